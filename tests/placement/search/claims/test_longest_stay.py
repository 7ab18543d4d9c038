"""The longest stays of preemptible claims, compared with each end that whole seconds allow."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.exceptions import InvalidRequest
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted
from placement.search.claims.availability import during_window
from placement.search.claims.claim import ClaimScenario, WantedClaim
from placement.search.claims.longest_stay import (
    StaySpan,
    place_longest,
    place_until_last,
    prolong_stay,
)
from placement.search.claims.placement import PlacedClaim, UnplacedClaim, place_claims
from placement.search.claims.topology import TopologyPolicy
from placement.store.groups import ConsumerGroup, GroupPolicy
from placement.store.time_profile import AT_ONCE, TimedAmount, TimeWindow
from tests.examples import examples
from tests.placement.search.claims.timed_worlds import (
    LAST,
    QUERIES,
    fits,
    have_room,
    make_wanted,
    timed_search,
    worlds,
)
from tests.placement.search.snapshots import Spec, build, name_to_uuid

World = tuple[ModelSnapshot, list[TimedAmount]]
spans = st.tuples(st.integers(1, LAST), st.integers(0, LAST)).map(
    lambda pair: StaySpan(0, pair[0], pair[0] + pair[1])
)
APART = ConsumerGroup("apart", GroupPolicy.ANTI_AFFINITY, 1)


def last_end(world: World, wanted: list[WantedClaim], span: StaySpan) -> float | None:
    """Return the last whole second until which claims fit from 0 on."""
    ends = range(int(span.max_end), int(span.min_end) - 1, -1)
    return next((end for end in ends if fits(*world, wanted, TimeWindow(0, end))), None)


def given_end(world: World, placed: list[PlacedClaim]) -> float | None:
    """Return the common end of placed claims, which have room until then."""
    if not placed:
        return None
    (end,) = {each.wanted.window.ends_at for each in placed if each.wanted.window is not None}
    assert have_room(*world, [each.choice for each in placed], TimeWindow(0, end))
    return end


@settings(max_examples=examples(150), deadline=None)
@given(
    world=worlds(),
    query=st.sampled_from(QUERIES),
    topology=st.sampled_from([None, None, *TopologyPolicy]),
    span=spans,
)
def test_one_claim_gets_the_host_where_it_stays_longest(
    world: World, query: str, topology: TopologyPolicy | None, span: StaySpan
) -> None:
    snapshot, amounts = world
    wanted = make_wanted(query, topology if "resources=PCPU" in query else None)
    placed = place_longest(timed_search(snapshot, amounts), wanted, span)
    assert given_end(world, placed) == last_end(world, [wanted], span)


@settings(max_examples=examples(100), deadline=None)
@given(
    world=worlds(),
    queries=st.lists(st.sampled_from(QUERIES), min_size=2, max_size=3),
    are_apart=st.booleans(),
    span=spans,
)
def test_several_claims_get_the_longest_common_stay(
    world: World, queries: list[str], are_apart: bool, span: StaySpan
) -> None:
    snapshot, amounts = world
    wanted = [
        replace(make_wanted(query), consumer=str(number), group=APART if are_apart else None)
        for number, query in enumerate(queries)
    ]
    search = timed_search(snapshot, amounts)
    shortest = during_window(search, span.shortest_window)
    placed = place_claims(ClaimScenario.from_members(shortest, {}, wanted), wanted, search.budget, search.rng)
    expected = last_end(world, wanted, span)
    if isinstance(placed, UnplacedClaim):
        assert expected is None
        return
    found = prolong_stay(search, {}, placed, span)
    assert given_end(world, found) == expected
    if are_apart:
        assert len({each.choice.root.id for each in found}) == len(queries)


def test_a_fallback_is_served_only_without_a_place_for_the_request() -> None:
    amounts = [TimedAmount("w", name_to_uuid("a"), "VCPU", 4, TimeWindow(5, 9), has_begun=False)]
    snapshot = build(
        Spec("a", inventories={"VCPU": 4}, used={"VCPU": 4}), Spec("b", inventories={"DISK_GB": 4})
    )
    other = make_wanted("resources=DISK_GB:1").request
    wanted = replace(make_wanted("resources=VCPU:1"), fallback=other)
    for least, host, end in ((3, "a", 5), (6, "b", 20)):
        (placed,) = place_longest(timed_search(snapshot, amounts), wanted, StaySpan(0, least, 20))
        assert (placed.choice.root.name, placed.wanted.fallback) == (host, other)
        assert placed.wanted.window == TimeWindow(AT_ONCE, end)


def test_the_price_of_a_longest_stay_is_bounded() -> None:
    snapshot = build(
        *(Spec(f"cn{number}", inventories={"VCPU": 4}, used={"VCPU": 4}) for number in range(400))
    )
    wanted = make_wanted("resources=VCPU:1")
    with pytest.raises(BudgetExhausted):
        place_longest(timed_search(snapshot, [], seconds=0.0), wanted, StaySpan(0, 1, 2))


def test_a_known_place_is_kept_if_the_budget_is_spent() -> None:
    def place_never(end: float) -> list[PlacedClaim]:
        raise BudgetExhausted

    assert place_until_last([5.0, 9.0], place_never, ([], 5.0)) == ([], 5.0)
    with pytest.raises(BudgetExhausted):
        place_until_last([5.0, 9.0], place_never)


def test_a_stay_is_at_most_a_year_and_at_least_its_duration() -> None:
    wanted = replace(make_wanted("resources=VCPU:1"), window=TimeWindow(AT_ONCE, math.inf), min_duration=60.0)
    span = StaySpan.from_wanted(wanted, 1000.0)
    assert span == StaySpan(1000.0, 1060.0, 1000.0 + 366 * 86_400)
    assert StaySpan.from_wanted(replace(wanted, window=None), 1000.0) is None
    short = replace(wanted, window=TimeWindow(AT_ONCE, 1059.0), min_duration=2_592_001.0)
    with pytest.raises(InvalidRequest, match="at least 2592001 seconds from now"):
        StaySpan.from_wanted(short, 1000.0)
