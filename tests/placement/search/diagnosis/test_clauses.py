"""Tests of removing clauses from a request: everything else in the request stays the same."""

from dataclasses import dataclass

from placement.search.diagnosis.clauses import resource_clause, without_clauses
from placement.search.request import CandidatesRequest, RequestGroup


@dataclass(frozen=True, slots=True)
class WiderGroup(RequestGroup):
    """A request group with one more condition."""

    made_up: str = ""


def test_a_condition_without_a_clause_stays_when_others_are_left_out() -> None:
    group = WiderGroup("_A", {"VCPU": 1, "DISK_GB": 2}, made_up="kept")
    left = without_clauses(CandidatesRequest((group,)), {resource_clause("_A", "DISK_GB")})
    assert left is not None
    assert left.groups == (WiderGroup("_A", {"VCPU": 1}, made_up="kept"),)
