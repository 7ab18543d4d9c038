"""Tests that claims are placed exactly when a brute-force search finds places, in random small clouds."""

import random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from placement.search.budget import SearchBudget
from placement.search.claims.claim import ClaimScenario, Order, WantedClaim
from placement.search.claims.placement import UnplacedClaim, place_claims
from placement.store.groups import ConsumerGroup, GroupPolicy
from tests.examples import examples
from tests.placement.search.claims.claim_judge import check_placed, fits, ways
from tests.placement.search.claims.strategies import OWNER
from tests.placement.search.snapshots import build_scenario
from tests.placement.search.strategies import requests, snapshots

GROUPS = (
    ConsumerGroup("one", GroupPolicy.AFFINITY),
    ConsumerGroup("one", GroupPolicy.ANTI_AFFINITY),
    ConsumerGroup("one", GroupPolicy.SOFT_AFFINITY),
    ConsumerGroup("two", GroupPolicy.ANTI_AFFINITY),
    ConsumerGroup("two", GroupPolicy.ANTI_AFFINITY, 2),
)
ORDERS: tuple[Order, ...] = ((), (("pack", 1.0),), (("spread", 1.0), ("best_fit", 0.5)))
pytestmark = pytest.mark.usefixtures("wide_from_the_start")


@st.composite
def situations(draw: st.DrawFn) -> tuple[ClaimScenario, list[WantedClaim]]:
    snapshot = draw(snapshots())
    roots = [provider.uuid for provider in snapshot if provider.parent_id is None]
    some = st.frozensets(st.sampled_from(roots), min_size=1)
    root_ids = st.sampled_from([snapshot.by_uuid[root] for root in roots])
    members = {
        name: draw(st.dictionaries(root_ids, st.integers(1, 2), max_size=2)) for name in ("one", "two")
    }
    wanted = []
    for number in range(draw(st.integers(1, 3))):
        request = draw(requests(snapshot))
        named = frozenset[str]().union(*request.same_subtrees)
        assume(all(group.resources or group.suffix in named for group in request.groups))
        wanted.append(
            WantedClaim(
                consumer=str(number),
                generation=None,
                owner=OWNER,
                request=request,
                version=(1, 39),
                only=draw(st.sampled_from((None, None, draw(some)))),
                avoid=draw(st.sampled_from((frozenset(), frozenset(), draw(some)))),
                alternates=draw(st.integers(0, 3)),
                group=draw(st.none() | st.sampled_from(GROUPS)),
                order=draw(st.sampled_from(ORDERS)),
            )
        )
    return build_scenario(snapshot, members), wanted


@settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(situations(), st.integers(0, 99))
def test_all_are_placed_together_exactly_if_there_is_a_way(
    situation: tuple[ClaimScenario, list[WantedClaim]], seed: int
) -> None:
    world, wanted = situation
    found = place_claims(world, wanted, SearchBudget(), random.Random(seed))
    if isinstance(found, UnplacedClaim):
        assert not fits(world.snapshot, world.groups, wanted)
        assert not ways(found.world.snapshot, found.world.groups, wanted[found.number])
    else:
        assert [each.wanted for each in found] == wanted
        check_placed(world.snapshot, world.groups, found)
