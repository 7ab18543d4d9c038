"""The earliest free windows, compared with each start that whole seconds allow."""

import math
import random
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement import microversion
from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.schemas.query_candidates import parse_candidates
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.availability import (
    FreeWindow,
    StartSpan,
    during_window,
    find_free,
    skylines_in,
    times_by_way,
)
from placement.search.claims.claim import ClaimScenario, WantedClaim
from placement.search.claims.host_times import HostTimes
from placement.search.claims.placement import UnplacedClaim, place_claims
from placement.search.claims.topology import TopologyPolicy
from placement.store.consumers import ConsumerOwnership
from placement.store.time_profile import TimedAmount, TimeWindow, largest_sum, needed_holds
from placement.store.time_skyline import TimeSkyline, make_skylines, whole_milliseconds
from tests.examples import examples
from tests.placement.search.snapshots import Spec, build, inventory, name_to_uuid

LAST = 12
AGGREGATE = ["rack"]


def make_wanted(query: str, topology: TopologyPolicy | None = None) -> WantedClaim:
    pairs = [tuple(each.split("=", 1)) for each in query.split("&")]
    request = parse_candidates(pairs, microversion.MAX)  # type: ignore[arg-type]  # pairs of two texts
    return WantedClaim("", None, ConsumerOwnership("", "", ""), request, microversion.MAX, topology=topology)


HOSTS = [
    Spec("a", inventories={"VCPU": 4, "DISK_GB": 2}, aggregates=AGGREGATE),
    Spec("a0", "a", {"PCPU": 4, "MEMORY_MB": inventory(4, max_unit=3)}, (ZONE, "CUSTOM_FAST")),
    Spec("a1", "a", {"PCPU": 3, "MEMORY_MB": 4}, (ZONE,)),
    Spec(
        "b", inventories={"VCPU": 3, "PCPU": 4, "MEMORY_MB": 4}, aggregates=AGGREGATE, traits=["CUSTOM_FAST"]
    ),
    Spec("c", inventories={"VCPU": 4, "DISK_GB": 3}),
    Spec("pool", inventories={"DISK_GB": 4}, traits=[SHARES], aggregates=AGGREGATE),
]
QUERIES = [
    "resources=VCPU:2",
    "resources=VCPU:3,DISK_GB:2",
    "resources=PCPU:3&required=CUSTOM_FAST",
    "resources=PCPU:3,MEMORY_MB:3",
    "resources=VCPU:1&resources_A=PCPU:2&resources_B=PCPU:2&group_policy=isolate",
    "resources_A=PCPU:2,MEMORY_MB:2&resources_B=PCPU:2,MEMORY_MB:2&group_policy=none",
    "resources=DISK_GB:2",
    "resources=PCPU:4,MEMORY_MB:4",
]
windows = st.tuples(st.integers(0, LAST - 1), st.integers(1, LAST)).map(
    lambda pair: TimeWindow(pair[0], pair[0] + pair[1])
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[ModelSnapshot, list[TimedAmount]]:
    """Draw hosts, and timed amounts that fit into them; hosts also have consumers without an end."""
    pool = draw(st.booleans())
    specs = [each for each in HOSTS if pool or each.name != "pool"]
    free: dict[tuple[str, str], int] = {}
    used: dict[str, dict[str, int]] = {}
    for spec in specs:
        for name, given_inventory in spec.inventories.items():
            total = given_inventory if isinstance(given_inventory, int) else given_inventory.total
            endless = draw(st.sampled_from([0, 0, 0, 1]))
            used.setdefault(spec.name, {})[name] = endless
            free[spec.name, name] = total - endless
    amounts: list[TimedAmount] = []
    for key in draw(st.lists(st.sampled_from(sorted(free)), max_size=14)):
        one = TimedAmount(
            str(uuid.UUID(int=len(amounts))),
            name_to_uuid(key[0]),
            key[1],
            draw(st.integers(1, 3)),
            draw(windows),
            has_begun=draw(st.booleans()),
        )
        here = [each for each in amounts if each.key == one.key]
        if largest_sum([*here, one], TimeWindow(0, math.inf)) <= free[key]:
            amounts.append(one)
    holds = needed_holds(amounts, 0)
    for spec in specs:
        for name in spec.inventories:
            key = name_to_uuid(spec.name), name
            begun = sum(each.used for each in amounts if each.key == key and each.has_begun)
            used[spec.name][name] += holds.get(key, 0) + begun
    return build(*(replace(each, used=used.get(each.name, {})) for each in specs)), amounts


def fits(
    snapshot: ModelSnapshot, amounts: list[TimedAmount], wanted: WantedClaim, window: TimeWindow
) -> bool:
    """Decide by the whole cloud, with the usage of each instant."""
    changed = during_window(snapshot, skylines_of(snapshot, amounts), window)
    world = ClaimScenario.from_members(changed, {}, [wanted])
    return not isinstance(place_claims(world, [wanted], SearchBudget(), random.Random(0)), UnplacedClaim)


def skylines_of(
    snapshot: ModelSnapshot, amounts: list[TimedAmount]
) -> Mapping[int, Mapping[str, TimeSkyline]]:
    return skylines_in(snapshot, make_skylines(amounts, needed_holds(amounts, 0).items()))


def found(
    snapshot: ModelSnapshot, amounts: list[TimedAmount], wanted: WantedClaim, span: StartSpan, limit: int = 20
) -> list[FreeWindow]:
    return list(islice(free_windows(snapshot, amounts, wanted, span, SearchBudget()), limit))


def free_windows(
    snapshot: ModelSnapshot,
    amounts: list[TimedAmount],
    wanted: WantedClaim,
    span: StartSpan,
    budget: SearchBudget,
) -> Iterator[FreeWindow]:
    skylines = skylines_of(snapshot, amounts)
    ways = times_by_way(snapshot, skylines, wanted, span.duration, budget)
    return find_free(snapshot, skylines, wanted, span, budget, ways)


@settings(max_examples=examples(150), deadline=None)
@given(
    world=worlds(),
    query=st.sampled_from(QUERIES),
    topology=st.sampled_from([None, None, *TopologyPolicy]),
    begin=st.integers(0, 4),
    duration=st.integers(1, 6),
    last=st.integers(4, 2 * LAST),
)
def test_the_first_window_is_the_earliest_and_each_one_can_be_booked(
    world: tuple[ModelSnapshot, list[TimedAmount]],
    query: str,
    topology: TopologyPolicy | None,
    begin: int,
    duration: int,
    last: int,
) -> None:
    snapshot, amounts = world
    splittable = "resources=PCPU" in query
    wanted = make_wanted(query, topology if splittable else None)
    answers = found(snapshot, amounts, wanted, StartSpan(begin, last, duration))
    starts = [each.starts_at for each in answers]
    every = (
        t for t in range(begin, last + 1) if fits(snapshot, amounts, wanted, TimeWindow(t, t + duration))
    )
    assert next(every, None) == (starts[0] if starts else None)
    assert starts == sorted(starts)
    for each in answers:
        assert each.starts_at + duration <= each.free_until
        for end in (each.starts_at + duration, min(each.free_until, 3.0 * LAST)):
            window = TimeWindow(each.starts_at, end)
            for provider, some in each.choice.resources:
                for name, amount in some.items():
                    here = [one for one in amounts if one.key == (provider.uuid, name)]
                    begun = sum(one.used for one in here if one.has_begun)
                    endless = (
                        used_of(snapshot, provider.uuid, name)
                        - begun
                        - needed_holds(here, 0).get((provider.uuid, name), 0)
                    )
                    total = snapshot.providers[provider.id].inventories[name].capacity
                    assert endless + largest_sum(here, window) + amount <= total


def used_of(snapshot: ModelSnapshot, provider: str, name: str) -> int:
    return snapshot.providers[snapshot.by_uuid[provider]].used.get(name, 0)


@settings(max_examples=examples(100), deadline=None)
@given(
    booked=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 3), windows), max_size=8),
    amount=st.integers(1, 4),
    duration=st.integers(1, 5),
    last=st.integers(0, 2 * LAST),
)
def test_the_answers_are_all_the_longest_free_times_of_simple_hosts(
    booked: list[tuple[str, int, TimeWindow]], amount: int, duration: int, last: int
) -> None:
    amounts: list[TimedAmount] = []
    for host, used, window in booked:
        one = TimedAmount(str(len(amounts)), name_to_uuid(host), "VCPU", used, window, has_begun=False)
        if (
            largest_sum([each for each in [*amounts, one] if each.key == one.key], TimeWindow(0, math.inf))
            <= 4
        ):
            amounts.append(one)
    holds = needed_holds(amounts, 0)
    snapshot = build(
        *(
            Spec(each, inventories={"VCPU": 4}, used={"VCPU": holds.get((name_to_uuid(each), "VCPU"), 0)})
            for each in "ab"
        )
    )
    answers = found(
        snapshot, amounts, make_wanted(f"resources=VCPU:{amount}"), StartSpan(0, last, duration), 99
    )
    expected = set()
    for host in "ab":
        here = [each for each in amounts if each.provider == name_to_uuid(host)]
        free = [largest_sum(here, TimeWindow(t, t + 1)) + amount <= 4 for t in range(4 * LAST)]
        start = 0
        while start < len(free):
            end = start
            while end < len(free) and free[end]:
                end += 1
            if end - start >= duration and start <= last:
                expected.add((host, start, math.inf if end == len(free) else end))
            start = max(end, start) + 1
    assert {(each.choice.root.name, each.starts_at, each.free_until) for each in answers} == expected


def test_among_equal_starts_the_tightest_gap_comes_first() -> None:
    amounts = [
        TimedAmount(str(number), name_to_uuid(host), "VCPU", 4, TimeWindow(begin, 30), has_begun=False)
        for number, (host, begin) in enumerate([("a", 9), ("b", 5)])
    ]
    snapshot = build(
        *(Spec(each, inventories={"VCPU": 4}, used={"VCPU": 4 if each != "c" else 0}) for each in "abc")
    )
    answers = found(snapshot, amounts, make_wanted("resources=VCPU:1"), StartSpan(0, 0, 4))
    assert [each.choice.root.name for each in answers] == ["b", "a", "c"]


def test_a_start_is_never_before_the_end_that_makes_room() -> None:
    end = 10.0004
    amounts = [TimedAmount("w", name_to_uuid("a"), "VCPU", 4, TimeWindow(1, end), has_begun=False)]
    snapshot = build(Spec("a", inventories={"VCPU": 4}, used={"VCPU": 4}))
    (answer,) = found(snapshot, amounts, make_wanted("resources=VCPU:1"), StartSpan(0, 99, 4))
    assert answer.starts_at == 10.001 == whole_milliseconds(end)


def test_the_price_of_a_search_is_bounded() -> None:
    snapshot = build(*(Spec(f"cn{number}", inventories={"VCPU": 4}) for number in range(200)))
    with pytest.raises(BudgetExhausted):
        list(
            free_windows(
                snapshot, [], make_wanted("resources=VCPU:1"), StartSpan(0, 99, 4), SearchBudget(seconds=0.0)
            )
        )


def test_the_price_of_a_host_with_many_windows_on_many_providers_is_bounded() -> None:
    specs = [Spec("a"), *(Spec(f"a{number}", "a", {"PCPU": 4}, used={"PCPU": 4}) for number in range(8))]
    # the windows of a provider do not touch, so each one has an end to try
    amounts = [
        TimedAmount("w", name_to_uuid(each.name), "PCPU", 4, TimeWindow(begin, begin + 0.5), has_begun=False)
        for each in specs[1:]
        for begin in range(1, 1000)
    ]
    snapshot, budget = build(*specs), SearchBudget(seconds=0.0)
    wanted = make_wanted("resources_A=PCPU:3&resources_B=PCPU:2&group_policy=none")
    times = HostTimes(snapshot, skylines_of(snapshot, amounts), wanted, 1.0, budget)
    with pytest.raises(BudgetExhausted):
        times.first_start(snapshot.by_uuid[name_to_uuid("a")], 1.0, math.inf)


@pytest.mark.parametrize("steps", [1, 100])
def test_skylines_are_made_within_a_budget(steps: int) -> None:
    amounts = [
        TimedAmount(str(number), f"host-{number}", "VCPU", 1, TimeWindow(1, 2), has_begun=False)
        for number in range(steps)
    ]
    budget = SearchBudget(seconds=0.0)
    if steps == 1:
        assert len(make_skylines(amounts, (), budget.spend)) == 1
    else:
        with pytest.raises(BudgetExhausted):
            make_skylines(amounts, (), budget.spend)


@given(
    some=st.lists(st.tuples(st.integers(1, 3), windows), max_size=6), window=windows, most=st.integers(0, 6)
)
def test_a_skyline_answers_like_the_amounts(
    some: list[tuple[int, TimeWindow]], window: TimeWindow, most: int
) -> None:
    amounts = [TimedAmount("c", "p", "VCPU", used, each, has_begun=False) for used, each in some]
    skyline = TimeSkyline.from_amounts(amounts, 0)
    assert skyline.largest_sum(window) == largest_sum(amounts, window)
    length = window.ends_at - window.starts_at
    first = next(
        t
        for t in range(int(window.starts_at), 4 * LAST)
        if largest_sum(amounts, TimeWindow(t, t + length)) <= most
    )
    assert skyline.first_fit(most, window.starts_at, length) == first
    until = skyline.fits_until(most, first)
    assert until == next(
        (t for t in range(first, 4 * LAST) if largest_sum(amounts, TimeWindow(t, t + 1)) > most), math.inf
    )
