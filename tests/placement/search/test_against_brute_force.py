"""Tests that the search finds exactly the candidates of a brute-force search, in random snapshots.

Each random snapshot is searched ten times. With PLACEMENT_EXAMPLES_PERCENT=1000, ten times as many snapshots
are tried.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import product
from unittest.mock import patch

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement.exceptions import InvalidRequest
from placement.read_model.snapshot import ModelSnapshot
from placement.search import backtracking
from placement.search import budget as module_of_budget
from placement.search.budget import SearchBudget
from placement.search.candidate_search import find_candidates
from placement.search.candidates import AllocationCandidate, candidates_of
from placement.search.request import CandidatesRequest
from tests.examples import examples
from tests.placement.search.asking import comparable, find, render
from tests.placement.search.brute import all_candidates
from tests.placement.search.strategies import (
    crowded_hosts,
    fleets,
    neighbours,
    packings,
    situations,
    snapshots,
)

EXAMPLES = examples(150)
exhaustive = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


def check(snapshot: ModelSnapshot, request: CandidatesRequest) -> None:
    """Check that each candidate is found exactly once."""
    found = [comparable(candidate) for candidate in find(snapshot, request)]
    assert len(found) == len(set(found))
    assert set(found) == all_candidates(snapshot, request)


@exhaustive
@given(situations())
def test_search_finds_every_candidate_once(situation: tuple[ModelSnapshot, list[CandidatesRequest]]) -> None:
    snapshot, requests = situation
    for request in requests:
        check(snapshot, request)


@settings(exhaustive, max_examples=EXAMPLES * 2)
@given(crowded_hosts())
def test_search_finds_every_way_to_the_last_free_device(
    situation: tuple[ModelSnapshot, CandidatesRequest],
) -> None:
    check(*situation)


@settings(exhaustive, max_examples=EXAMPLES * 2)
@given(fleets())
def test_search_distinguishes_hosts_of_one_structure(
    situation: tuple[ModelSnapshot, CandidatesRequest],
) -> None:
    check(*situation)


@settings(exhaustive, max_examples=EXAMPLES * 2)
@given(neighbours())
def test_search_distinguishes_hosts_of_different_structures(
    situation: tuple[ModelSnapshot, CandidatesRequest],
) -> None:
    check(*situation)


@settings(exhaustive, max_examples=max(1, EXAMPLES // 5))
@given(situations())
def test_strategy_and_random_order_change_no_result(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]],
) -> None:
    snapshot, requests = situation
    for request in requests:
        expected = sorted(map(repr, map(comparable, find(snapshot, request))))
        for variant in (
            find(snapshot, request, strategy="breadth-first"),
            find(snapshot, request, randomize=True),
            find(snapshot, request, strategy="breadth-first", randomize=True),
        ):
            assert sorted(map(repr, map(comparable, variant))) == expected


@settings(exhaustive, max_examples=max(1, EXAMPLES // 5))
@given(situations())
def test_limit_takes_the_first_candidates(situation: tuple[ModelSnapshot, list[CandidatesRequest]]) -> None:
    snapshot, requests = situation
    for request in requests:
        everything = list(map(comparable, find(snapshot, request)))
        assert list(map(comparable, find(snapshot, request, max_candidates=2))) == everything[:2]


@settings(exhaustive, max_examples=EXAMPLES * 2)
@given(packings())
def test_search_finds_every_way_to_pack(situation: tuple[ModelSnapshot, CandidatesRequest]) -> None:
    check(*situation)


@settings(exhaustive, max_examples=EXAMPLES)
@given(
    crowded_hosts() | packings() | fleets() | neighbours(), st.sampled_from(("depth-first", "breadth-first"))
)
def test_rests_change_no_result(situation: tuple[ModelSnapshot, CandidatesRequest], strategy: str) -> None:
    snapshot, request = situation
    with patch.object(backtracking, "_CHOICES_BEFORE_REST", 0):
        found = [comparable(candidate) for candidate in find(snapshot, request, strategy=strategy)]
    assert len(found) == len(set(found))
    assert set(found) == all_candidates(snapshot, request)


@settings(exhaustive, max_examples=EXAMPLES)
@given(crowded_hosts() | packings() | fleets(), st.integers(1, 300))
def test_a_spent_budget_leaves_a_part_of_the_candidates(
    situation: tuple[ModelSnapshot, CandidatesRequest], steps: int
) -> None:
    snapshot, request = situation
    everything = all_candidates(snapshot, request)
    with patch.object(module_of_budget, "_STEPS", steps):
        budget = SearchBudget(seconds=0)  # the first check of the clock finds that out
    found = []
    with suppress(InvalidRequest):
        found = [comparable(candidate) for candidate in find(snapshot, request, budget=budget)]
    assert len(found) == len(set(found))
    assert set(found) <= everything
    assert budget.ended == "deadline" or set(found) == everything
    # a search that was cut off leaves nothing behind that a later search would take for all assignments
    check(snapshot, request)


@pytest.mark.parametrize("minor", [10, 11, 12, 16, 17, 26, 27, 28, 29, 33, 34, 39])
@settings(exhaustive, max_examples=max(1, EXAMPLES // 5))
@given(situations(requests_each=3))
def test_answer_shows_what_the_snapshot_holds(
    minor: int, situation: tuple[ModelSnapshot, list[CandidatesRequest]]
) -> None:
    snapshot, requests = situation
    for request in requests:
        offers = find_candidates(snapshot, request)
        candidates = list(candidates_of(offers))
        answer = orjson.loads(render(snapshot, offers, (1, minor)))
        assert len(answer["allocation_requests"]) == len(candidates)
        assert answer["provider_summaries"] == expected_summaries(snapshot, request, candidates, minor)


def expected_summaries(
    snapshot: ModelSnapshot, request: CandidatesRequest, candidates: Sequence[AllocationCandidate], minor: int
) -> dict[str, object]:
    """The provider summaries by the version history: traits from 1.17, all classes from 1.27, whole trees
    with parents and roots from 1.29.
    """
    uuids = {provider.id: provider.uuid for provider in snapshot}
    used = {provider_id for candidate in candidates for provider_id in candidate.resources}
    shown = [
        provider
        for provider in snapshot
        if provider.id in used
        or (
            minor >= 29
            and provider.root_id in {snapshot.providers[provider_id].root_id for provider_id in used}
        )
    ]
    asked = {name for group in request.groups for name in group.resources}
    expected = {}
    for provider in shown:
        summary: dict[str, object] = {
            "resources": {
                name: {
                    "capacity": int((inventory.total - inventory.reserved) * inventory.allocation_ratio),
                    "used": provider.used.get(name, 0),
                }
                for name, inventory in provider.inventories.items()
                if minor >= 27 or name in asked
            }
        }
        if minor >= 17:
            summary["traits"] = sorted(provider.traits)
        if minor >= 29:
            summary["parent_provider_uuid"] = uuids.get(provider.parent_id)
            summary["root_provider_uuid"] = uuids[provider.root_id]
        expected[provider.uuid] = summary
    return expected


@settings(exhaustive, max_examples=max(1, EXAMPLES // 2))
@given(situations(), snapshots())
def test_earlier_results_do_not_affect_a_changed_snapshot(
    situation: tuple[ModelSnapshot, list[CandidatesRequest]], other: ModelSnapshot
) -> None:
    """One snapshot is changed into another, provider by provider, and searched after each change."""
    snapshot, requests = situation
    for provider_id in sorted(snapshot.providers.keys() | other.providers.keys()):
        for request in requests[:4]:
            found = find_candidates(snapshot, request)
            assert set(map(comparable, candidates_of(found))) == all_candidates(snapshot, request)
            fresh = ModelSnapshot(snapshot)
            assert orjson.loads(render(snapshot, found, (1, 39))) == orjson.loads(
                render(fresh, find_candidates(fresh, replace(request)), (1, 39))
            )
        usage = snapshot.providers.get(provider_id)
        if provider_id in other.providers and is_whole_without(other, provider_id, snapshot):
            snapshot.put(other.providers[provider_id])
        elif usage is not None:
            snapshot.put(replace(usage, used=dict.fromkeys(usage.inventories, 1)))


KEPT = {rests: ModelSnapshot().first_assignments for rests in (0, 256)}
"""Assignments that all snapshots of the next test share, although their hosts have nothing in common."""


@settings(exhaustive, max_examples=EXAMPLES)
@given(
    crowded_hosts() | packings() | fleets() | neighbours(),
    st.sampled_from(("depth-first", "breadth-first")),
    st.sampled_from((*KEPT,)),
)
def test_assignments_of_other_requests_change_neither_candidates_nor_their_order(
    situation: tuple[ModelSnapshot, CandidatesRequest], strategy: str, rests: int
) -> None:
    snapshot, request = situation
    fresh = ModelSnapshot(snapshot)
    for like in similar_requests(request):
        with patch.object(backtracking, "_CHOICES_BEFORE_REST", rests):
            fresh.first_assignments.clear()
            expected = [*map(comparable, find(fresh, like, strategy=strategy))]
            snapshot.first_assignments = KEPT[rests]
            assert [*map(comparable, find(snapshot, like, strategy=strategy))] == expected


def similar_requests(request: CandidatesRequest) -> Iterator[CandidatesRequest]:
    """Requests for the same classes that differ in rules, amounts, or the group without a suffix."""
    one, other = (
        [replace(each, resources=dict.fromkeys(each.resources, amount)) for each in request.groups]
        for amount in (1, 2)
    )
    of_groups = [request.groups, one, [*other[:1], *one[1:]], [*one[:-1], *other[-1:]]]
    if all(each.suffix for each in request.groups) and request.groups[0].resources:
        of_groups.append([replace(one[0], suffix=""), *one[1:]])
    for groups, policy, keeps in product(of_groups, ("none", "isolate"), (True, False)):
        suffixes = {each.suffix for each in groups}
        subtrees = tuple([each for each in request.same_subtrees if keeps and each <= suffixes])
        yield replace(request, groups=tuple(groups), group_policy=policy, same_subtrees=subtrees, nested=True)


def is_whole_without(other: ModelSnapshot, provider_id: int, snapshot: ModelSnapshot) -> bool:
    """Whether all trees of the snapshot are complete after this provider was replaced by that of the other
    snapshot.
    """
    provider = other.providers[provider_id]
    has_parent = provider.parent_id is None or (
        provider.parent_id in snapshot.providers
        and snapshot.providers[provider.parent_id].root_id == provider.root_id
        and provider.root_id in snapshot.providers
        and snapshot.providers[provider.root_id].parent_id is None
    )
    has_no_children = (
        all(each.parent_id != provider_id for each in snapshot)
        or snapshot.providers[provider_id].root_id == provider.root_id
    )
    return has_parent and has_no_children and not _is_below(snapshot, provider.parent_id, provider_id)


def _is_below(snapshot: ModelSnapshot, provider_id: int | None, ancestor: int) -> bool:
    while provider_id is not None:
        if provider_id == ancestor:
            return True
        provider_id = snapshot.providers[provider_id].parent_id
    return False
