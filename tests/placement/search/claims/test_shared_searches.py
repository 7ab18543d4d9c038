"""Claims with equal or nearly equal requests, which share compiled requests and results.

For each start, a judge that shares no code with the search decides whether all claims fit together.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from placement.read_model.provider import SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.claims.availability import StartSpan, find_joint, place_jointly
from placement.search.claims.claim import WantedClaim
from placement.search.claims.placement import PlacedClaim
from placement.search.request import CandidatesRequest
from placement.store.groups import ConsumerGroup, GroupPolicy
from placement.store.time_profile import TimedAmount, TimeWindow, largest_sum, needed_holds
from tests.examples import examples
from tests.placement.search.claims.claim_judge import check_placed, fits
from tests.placement.search.claims.strategies import OWNER
from tests.placement.search.claims.timed_worlds import make_wanted, timed_search
from tests.placement.search.snapshots import Spec, build, name_to_uuid
from tests.placement.search.strategies import fleets, situations

APART: Final = ConsumerGroup("apart", GroupPolicy.ANTI_AFFINITY, 1)
LAST: Final = 6
many = settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
spans = st.tuples(st.integers(0, LAST), st.integers(1, 5)).map(lambda each: TimeWindow(each[0], sum(each)))


def with_usage(snapshot: ModelSnapshot, more: Callable[[Provider, str], int]) -> ModelSnapshot:
    """The snapshot with further usage of each provider and class."""
    return ModelSnapshot(
        each.with_usage({name: each.used.get(name, 0) + more(each, name) for name in each.inventories})
        for each in snapshot
    )


def at_present(snapshot: ModelSnapshot, amounts: list[TimedAmount]) -> ModelSnapshot:
    """The snapshot with the timed amounts that are in use, and with the holds for the others."""
    held: Mapping[tuple[str, str], int] = needed_holds(amounts, 0)
    return with_usage(
        snapshot,
        lambda each, name: (
            held.get((each.uuid, name), 0)
            + sum(one.used for one in amounts if one.has_begun and one.key == (each.uuid, name))
        ),
    )


def during(snapshot: ModelSnapshot, amounts: list[TimedAmount], window: TimeWindow) -> ModelSnapshot:
    return with_usage(
        snapshot,
        lambda each, name: largest_sum([one for one in amounts if one.key == (each.uuid, name)], window),
    )


@st.composite
def timed_amounts(draw: st.DrawFn, snapshot: ModelSnapshot) -> list[TimedAmount]:
    """Draw timed amounts, perhaps above the capacities."""
    keys = sorted((each.uuid, name) for each in snapshot for name in each.inventories)
    drawn = st.lists(st.tuples(st.sampled_from(keys), st.integers(1, 3), spans, st.booleans()), max_size=8)
    return [
        TimedAmount(str(number), *key, used, window, has_begun=has_begun)
        for number, (key, used, window, has_begun) in enumerate(draw(drawn) if keys else [])
    ]


@st.composite
def nearly(draw: st.DrawFn, request: CandidatesRequest) -> CandidatesRequest:
    """Draw an equal request that is another object, or one with another amount, policy or trait."""
    number = draw(st.integers(0, len(request.groups) - 1))
    group = request.groups[number]
    more = {name: amount + draw(st.sampled_from([-1, 0, 1])) for name, amount in group.resources.items()}
    changed = draw(
        st.sampled_from(
            [
                group,
                replace(group, resources={name: max(1, amount) for name, amount in more.items()}),
                replace(group, required=(frozenset({"T1"}),)),
            ]
        )
    )
    policy = draw(st.sampled_from([request.group_policy, "isolate"]))
    groups = (*request.groups[:number], changed, *request.groups[number + 1 :])
    return replace(request, groups=groups, group_policy=policy)


@st.composite
def like_claims(draw: st.DrawFn, snapshot: ModelSnapshot, request: CandidatesRequest) -> list[WantedClaim]:
    """Draw up to three claims for variants of one request, some of them the same object."""
    named = frozenset[str]().union(*request.same_subtrees)
    assume(all(group.resources or group.suffix in named for group in request.groups))
    roots = [each.uuid for each in snapshot if each.parent_id is None]
    some = st.frozensets(st.sampled_from(roots), min_size=1)
    group = draw(st.sampled_from([None, None, APART]))
    found: list[WantedClaim] = []
    for _ in range(draw(st.sampled_from([1, 2, 2, 3]))):
        if found and draw(st.integers(0, 3)) == 0:
            found.append(found[-1])
            continue
        asked = draw(st.just(request) | nearly(request) | nearly(request))
        found.append(
            WantedClaim(
                "window",
                None,
                OWNER,
                asked,
                (1, 39),
                fallback=draw(st.none() | st.none() | nearly(asked)),
                only=draw(st.none() | st.none() | some),
                avoid=draw(st.just(frozenset[str]()) | st.just(frozenset[str]()) | some),
                group=group,
            )
        )
    return found


@many
@given(
    st.data(),
    fleets() | fleets() | situations(requests_each=1),
    st.booleans(),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_several_claims_find_a_place_at_each_start_at_which_there_is_one(
    data: st.DataObject,
    situation: tuple[ModelSnapshot, CandidatesRequest | list[CandidatesRequest]],
    has_pools: bool,
    duration: int,
    seed: int,
) -> None:
    empty, asked = situation
    request = asked if isinstance(asked, CandidatesRequest) else asked[0]
    if not has_pools:
        # without sharing providers, the starts and claims share their searches
        empty = ModelSnapshot(replace(each, traits=each.traits - {SHARES}) for each in empty)
    wanted = data.draw(like_claims(empty, request))
    amounts = data.draw(timed_amounts(empty))
    snapshot = at_present(empty, amounts)
    possible = []
    for start in range(LAST + 1):
        window = TimeWindow(start, start + duration)
        placed = place_jointly(timed_search(snapshot, amounts, seed=seed), wanted, window)
        there = during(empty, amounts, window)
        assert bool(placed) == fits(there, {}, wanted)
        check_placed(there, {}, placed)
        possible += [start] if placed else []
    after = 0.0
    for each in find_joint(timed_search(snapshot, amounts), wanted, StartSpan(0, LAST, duration)):
        assert each.starts_at == next(start for start in possible if start >= after)
        after = each.free_until
        there = during(empty, amounts, TimeWindow(each.starts_at, min(after, 99.0)))
        placed = [PlacedClaim(*both) for both in zip(wanted, each.choices, strict=True)]
        check_placed(there, {}, placed)
    assert all(start < after for start in possible)


sizes = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4)


@many
@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4), spans), max_size=8),
    sizes,
    st.booleans(),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_up_to_16_claims_are_packed_at_each_start_at_which_that_is_possible(
    capacities: list[int],
    taken: list[tuple[int, int, TimeWindow]],
    asked: list[tuple[int, int]],
    are_apart: bool,
    duration: int,
    rng: random.Random,
) -> None:
    group = APART if are_apart else None
    wanted = [
        each
        for amount, count in asked
        for each in [replace(make_wanted(f"resources=VCPU:{amount}"), group=group)] * count
    ][:16]
    needed = sorted([each.request.total_amounts["VCPU"] for each in wanted], reverse=True)
    rng.shuffle(wanted)
    empty = build(*(Spec(str(at), inventories={"VCPU": each}) for at, each in enumerate(capacities)))
    amounts = [
        TimedAmount(str(number), name_to_uuid(str(at % len(capacities))), "VCPU", used, window, False)
        for number, (at, used, window) in enumerate(taken)
    ]
    snapshot = at_present(empty, amounts)
    search = replace(timed_search(snapshot, amounts), rng=rng)
    for start in range(LAST + 1):
        window = TimeWindow(start, start + duration)
        placed = place_jointly(search, wanted, window)
        free = tuple(sorted(each.free("VCPU") for each in during(empty, amounts, window)))
        assert bool(placed) == can_pack(needed, free, are_apart)


def can_pack(needed: Sequence[int], free: tuple[int, ...], are_apart: bool) -> bool:
    """Whether these amounts fit into the free amounts of hosts, perhaps at most one on each host."""

    @cache
    def fit_from(number: int, free: tuple[int, ...]) -> bool:
        if number == len(needed):
            return True
        return any(
            fit_from(
                number + 1,
                tuple(
                    sorted((*free[:at], *(() if are_apart else (here - needed[number],)), *free[at + 1 :]))
                ),
            )
            for at, here in enumerate(free)
            if here >= needed[number]
        )

    return fit_from(0, free)
