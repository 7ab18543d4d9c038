"""A request without some of its clauses is the same request otherwise."""

from dataclasses import dataclass

from placement.search.diagnosis.clauses import resources, without
from placement.search.request import CandidatesRequest, RequestGroup


@dataclass(frozen=True, slots=True)
class WiderGroup(RequestGroup):
    """A group with one more condition than there are."""

    made_up: str = ""


def test_a_condition_that_is_no_clause_yet_stays_when_others_are_left_out() -> None:
    group = WiderGroup("_A", {"VCPU": 1, "DISK_GB": 2}, made_up="kept")
    left = without(CandidatesRequest((group,)), {resources("_A", "DISK_GB")})
    assert left is not None
    assert left.groups == (WiderGroup("_A", {"VCPU": 1}, made_up="kept"),)
