"""Tests of the upper bounds of scores: no choice is better than the bound of its host, and choices come in
order.

The clouds are small and random.
"""

import random
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from placement.read_model.snapshot import ModelSnapshot
from placement.schemas import candidates
from placement.search.budget import SearchBudget
from placement.search.claims import scores as module
from placement.search.claims.claim import ClaimScenario, Order, WantedClaim
from placement.search.claims.placement import choices_at_hosts
from placement.search.claims.score_bounds import ScoreUpperBounds
from placement.search.claims.scores import CRITERIA, ChoiceScorer, best_first
from placement.search.claims.topology import TopologyPolicy
from placement.search.request import CandidatesRequest
from placement.store.groups import ConsumerGroup, GroupPolicy
from tests.examples import examples
from tests.placement.search.claims.strategies import OWNER, anything, hosts, nodes, queries, wants, zoned
from tests.placement.search.snapshots import build, build_scenario

ORDERED = (*CRITERIA, "attribute:price")
POLICIES = st.sampled_from(
    (GroupPolicy.SOFT_AFFINITY, GroupPolicy.SOFT_ANTI_AFFINITY, GroupPolicy.ANTI_AFFINITY)
)


@st.composite
def orders(draw: st.DrawFn) -> Order:
    names = draw(st.lists(st.sampled_from(ORDERED), min_size=1, max_size=3, unique=True))
    low = draw(st.booleans())
    weights = [draw(st.sampled_from((0.1, 1.0, 3.0))) for _ in names]
    return tuple(
        (name, -weight if low and ":" in name else weight)
        for name, weight in zip(names, weights, strict=True)
    )


def priced(data: st.DataObject, snapshot: ModelSnapshot) -> ModelSnapshot:
    """The snapshot in which some providers have the attribute price."""
    prices = st.none() | st.sampled_from((0.0, 1.0, 2.5))
    return ModelSnapshot(
        each if (price := data.draw(prices)) is None else replace(each, attributes={"price": price})
        for each in snapshot
    )


def check(world: ClaimScenario, wanted: WantedClaim, seed: int) -> None:
    anywhere, at = choices_at_hosts(world, wanted, SearchBudget(), random.Random(seed))
    roots = list(anywhere)
    scorer = ChoiceScorer(world, wanted)
    ranks = {root: [scorer.rank_choice(each) for each in at(root) if each] for root in roots}
    _, again = choices_at_hosts(world, wanted, SearchBudget(), random.Random(seed))
    ceilings = list(ScoreUpperBounds(world, wanted, roots, SearchBudget()).highest_first())
    assert [ceiling for ceiling, _ in ceilings] == sorted(ceiling for ceiling, _ in ceilings)
    by_root = {root: ceiling for ceiling, root in ceilings}
    for root, found in ranks.items():
        assert all(by_root[root] <= rank for rank in found)
    for limit, at_once in ((10_000, 64), (10_000, 1), (3, 2)):
        _, again = choices_at_hosts(world, wanted, SearchBudget(), random.Random(seed))
        with patch.object(module, "MAX_SCORED", limit), patch.object(module, "_AT_ONCE", at_once):
            found = [
                scorer.rank_choice(each) for each in best_first(iter(ceilings), again, scorer, SearchBudget())
            ]
        if not any("MISC_SHARES_VIA_AGGREGATE" in each.traits for each in world.snapshot):
            # a choice of pools alone is found once, wherever it is anchored
            assert sorted(found) == sorted(rank for each in ranks.values() for rank in each)
        if limit > len(found):
            assert all(one <= other for one, other in pairwise(found))


@settings(max_examples=examples(300), deadline=None, suppress_health_check=list(HealthCheck))
@given(anything, orders(), POLICIES, st.integers(0, 9), st.data())
def test_no_choice_exceeds_the_upper_bound_of_its_host(
    situation: tuple[ModelSnapshot, CandidatesRequest],
    order: Order,
    policy: GroupPolicy,
    seed: int,
    data: st.DataObject,
) -> None:
    snapshot, request = priced(data, zoned(situation[0])), situation[1]
    named = frozenset[str]().union(*request.same_subtrees)
    assume(all(group.resources or group.suffix in named for group in request.groups))
    members = data.draw(st.dictionaries(st.sampled_from(sorted(snapshot.trees)), st.integers(1, 3)))
    wanted = WantedClaim("c", None, OWNER, request, (1, 39), order=order, group=ConsumerGroup("g", policy, 2))
    check(build_scenario(snapshot, {"g": members}), wanted, seed)


@settings(max_examples=examples(200), deadline=None)
@given(hosts(), queries, st.sampled_from(list(TopologyPolicy)), orders(), st.integers(0, 9), st.data())
def test_no_split_choice_exceeds_the_upper_bound_of_its_host(
    world: ClaimScenario, query: str, topology: TopologyPolicy, order: Order, seed: int, data: st.DataObject
) -> None:
    world = replace(world, snapshot=priced(data, world.snapshot))
    check(world, wants(query, topology, order=order), seed)


def test_isolated_groups_cross_zones_if_no_zone_has_room_for_all() -> None:
    snapshot = build(*(spec for host in range(9) for spec in nodes(f"h{host}", 8, 8 - host)))
    query = "resources1=PCPU:1&resources2=PCPU:1&group_policy=isolate"
    asked = candidates.parse_body({"query": query, "flavor": None, "microversion": "1.39"}, {})
    for order in ((("numa_nodes", 1.0),), (("numa_distance", 1.0),)):
        wanted = WantedClaim("c", None, OWNER, asked.request, asked.version, order=order)
        ceilings = ScoreUpperBounds(
            build_scenario(snapshot), wanted, sorted(snapshot.trees), SearchBudget()
        ).highest_first()
        assert [ceiling for ceiling, _ in ceilings] == [(False, -0.5)] * 9
