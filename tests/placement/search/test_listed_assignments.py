"""Tests that listing all assignments finds those that the search finds one by one, in the same order."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from placement.read_model.snapshot import ModelSnapshot
from placement.search.backtracking import OptionPlaces, list_assignments, pairwise_assignments
from placement.search.budget import SearchBudget
from placement.search.conditions import needs_of
from placement.search.request import CandidatesRequest, RequestGroup
from placement.search.rules import RequestRules

SUFFIXES = ("_1", "_2", "_3", "_4")
CLASSES = ("VCPU", "MEMORY_MB", "CUSTOM_A", "CUSTOM_B")


def rules_of(policy: str | None, subtrees: Sequence[frozenset[str]] = ()) -> RequestRules:
    groups = [RequestGroup(suffix, {name: 1}) for suffix, name in zip(SUFFIXES, CLASSES, strict=True)]
    request = CandidatesRequest(
        (RequestGroup("", {"DISK_GB": 1}), *groups), group_policy=policy, same_subtrees=tuple(subtrees)
    )
    return RequestRules(ModelSnapshot(), request, needs_of(request), SearchBudget())


def lineages_of(parents: Sequence[int]) -> list[tuple[int, ...]]:
    """The lineages of a root and further providers; a provider's parent has a smaller position."""
    found: list[tuple[int, ...]] = [(0,)]
    for at, parent in enumerate(parents, start=1):
        found.append((at, *found[parent % at]))
    return found


@given(
    st.lists(st.integers(0, 9), min_size=5, max_size=9),
    st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=5, max_size=5),
    st.sampled_from((None, "none", "isolate")),
    st.lists(st.sets(st.sampled_from(SUFFIXES), min_size=2, max_size=2), max_size=2),
)
def test_a_list_has_the_assignments_of_the_search_in_the_same_order(
    parents: list[int], options: list[set[int]], policy: str | None, subtrees: list[set[str]]
) -> None:
    rules = rules_of(policy, [frozenset(each) for each in subtrees])
    places = OptionPlaces((), [sorted(each) for each in options], lineages_of(parents))
    one_by_one = [each for each in pairwise_assignments(rules, places) if each is not None]
    listed = list_assignments(rules, places)
    assert listed == one_by_one if listed is not None else len(one_by_one) > 100


def test_too_many_assignments_are_not_listed() -> None:
    places = OptionPlaces((), [range(each) for each in (1, 4, 4, 4, 17)], lineages_of(range(17)))
    assert list_assignments(rules_of("none"), places) is None
    few = OptionPlaces((), [range(each) for each in (1, 4, 4, 4, 15)], lineages_of(range(17)))
    assert len(list_assignments(rules_of("none"), few) or ()) == 4 * 4 * 4 * 15


def test_the_group_without_a_provider_left_is_remembered_as_a_dead_end() -> None:
    rules = rules_of("isolate")
    places = OptionPlaces((), [[0], [1, 2], [3], [3], [4, 5]], lineages_of(range(5)))
    assert list_assignments(rules, places) == []
    assert rules.budget.dead_ends == {"_3": 1}
