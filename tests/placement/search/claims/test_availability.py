"""The earliest free windows of claims, compared with each start that whole seconds allow."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.availability import (
    FreeWindow,
    StartSpan,
    find_free,
    find_joint,
    place_in_window,
    times_by_way,
)
from placement.search.claims.claim import WantedClaim
from placement.search.claims.host_rooms import HostTimes, KeptSkylines, Skylines, TimedSearch
from placement.search.claims.topology import TopologyPolicy
from placement.store.groups import ConsumerGroup, GroupPolicy
from placement.store.time_profile import TimedAmount, TimeWindow, largest_sum, needed_holds
from placement.store.time_skyline import TimeSkyline, make_skylines, whole_milliseconds
from tests.examples import examples
from tests.placement.search.claims.timed_worlds import (
    LAST,
    QUERIES,
    fits,
    have_room,
    make_wanted,
    skylines_of,
    timed_search,
    windows,
    worlds,
)
from tests.placement.search.snapshots import Spec, build, name_to_uuid

APART = ConsumerGroup("apart", GroupPolicy.ANTI_AFFINITY, 1)


def found(
    snapshot: ModelSnapshot, amounts: list[TimedAmount], wanted: WantedClaim, span: StartSpan, limit: int = 20
) -> list[FreeWindow]:
    return list(islice(free_windows(timed_search(snapshot, amounts), wanted, span), limit))


def free_windows(search: TimedSearch, wanted: WantedClaim, span: StartSpan) -> Iterator[FreeWindow]:
    return find_free(search, wanted, span, times_by_way(search, wanted, span.duration))


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
        t for t in range(begin, last + 1) if fits(snapshot, amounts, [wanted], TimeWindow(t, t + duration))
    )
    assert next(every, None) == (starts[0] if starts else None)
    assert starts == sorted(starts)
    for each in answers:
        assert each.starts_at + duration <= each.free_until
        for end in (each.starts_at + duration, min(each.free_until, 3.0 * LAST)):
            assert have_room(snapshot, amounts, [each.choices[0]], TimeWindow(each.starts_at, end))


@settings(max_examples=examples(300), deadline=None)
@given(
    world=worlds(),
    query=st.sampled_from(QUERIES),
    topology=st.sampled_from([None, None, *TopologyPolicy]),
    window=windows,
)
def test_a_window_is_placed_if_and_only_if_some_host_has_room(
    world: tuple[ModelSnapshot, list[TimedAmount]],
    query: str,
    topology: TopologyPolicy | None,
    window: TimeWindow,
) -> None:
    snapshot, amounts = world
    wanted = make_wanted(query, topology if "resources=PCPU" in query else None)
    search = timed_search(snapshot, amounts)
    ways = times_by_way(search, wanted, window.duration_seconds)
    placed = place_in_window(search, wanted, window, ways, 0)
    assert bool(placed) == fits(snapshot, amounts, [wanted], window)
    assert have_room(snapshot, amounts, [each.choice for each in placed], window)


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
    assert {(each.choices[0].root.name, each.starts_at, each.free_until) for each in answers} == expected


def test_among_equal_starts_the_tightest_gap_comes_first() -> None:
    amounts = [
        TimedAmount(str(number), name_to_uuid(host), "VCPU", 4, TimeWindow(begin, 30), has_begun=False)
        for number, (host, begin) in enumerate([("a", 9), ("b", 5)])
    ]
    snapshot = build(
        *(Spec(each, inventories={"VCPU": 4}, used={"VCPU": 4 if each != "c" else 0}) for each in "abc")
    )
    answers = found(snapshot, amounts, make_wanted("resources=VCPU:1"), StartSpan(0, 0, 4))
    assert [each.choices[0].root.name for each in answers] == ["b", "a", "c"]


def test_a_window_is_booked_where_the_free_time_around_it_is_shortest() -> None:
    # the same gap follows on a and b; on c the room has never an end, and on d it has neither
    times = {"a": [(1, 3), (20, 30)], "b": [(1, 8), (20, 30)], "c": [(1, 9)], "d": []}
    amounts = [
        TimedAmount(f"{host}{begin}", name_to_uuid(host), "VCPU", 4, TimeWindow(begin, end), has_begun=False)
        for host, windows in times.items()
        for begin, end in windows
    ]
    used = {host: 4 if some else 0 for host, some in times.items()}
    snapshot = build(*(Spec(each, inventories={"VCPU": 4}, used={"VCPU": used[each]}) for each in times))
    wanted, window = make_wanted("resources=VCPU:4"), TimeWindow(10, 14)
    chosen = []
    for _ in times:
        avoiding = replace(wanted, avoid=frozenset(name_to_uuid(each) for each in chosen))
        search = timed_search(snapshot, amounts)
        ways = times_by_way(search, avoiding, window.duration_seconds)
        (found,) = place_in_window(search, avoiding, window, ways, 0)
        chosen.append(found.choice.root.name)
    assert chosen[:3] == ["b", "a", "c"]


def test_a_start_is_never_before_the_end_that_makes_room() -> None:
    end = 10.0004
    amounts = [TimedAmount("w", name_to_uuid("a"), "VCPU", 4, TimeWindow(1, end), has_begun=False)]
    snapshot = build(Spec("a", inventories={"VCPU": 4}, used={"VCPU": 4}))
    (answer,) = found(snapshot, amounts, make_wanted("resources=VCPU:1"), StartSpan(0, 99, 4))
    assert answer.starts_at == 10.001 == whole_milliseconds(end)


def test_a_host_that_is_full_beyond_its_capacity_has_room_at_other_times() -> None:
    # the inventory was lowered from 8 after the booking of a window of 6
    amounts = [TimedAmount("w", name_to_uuid("a"), "VCPU", 6, TimeWindow(5, 9), has_begun=False)]
    snapshot = build(Spec("a", inventories={"VCPU": 4}, used={"VCPU": 6}))
    answers = found(snapshot, amounts, make_wanted("resources=VCPU:4"), StartSpan(0, 99, 4))
    assert [(each.starts_at, each.free_until) for each in answers] == [(0, 5), (9, math.inf)]


def test_the_price_of_a_search_is_bounded() -> None:
    snapshot = build(*(Spec(f"cn{number}", inventories={"VCPU": 4}) for number in range(200)))
    search = timed_search(snapshot, [], seconds=0.0)
    with pytest.raises(BudgetExhausted):
        list(free_windows(search, make_wanted("resources=VCPU:1"), StartSpan(0, 99, 4)))


def test_the_price_of_a_host_with_many_windows_on_many_providers_is_bounded() -> None:
    specs = [Spec("a"), *(Spec(f"a{number}", "a", {"PCPU": 4}, used={"PCPU": 4}) for number in range(8))]
    # the windows of a provider do not touch, so each one has an end to try
    amounts = [
        TimedAmount("w", name_to_uuid(each.name), "PCPU", 4, TimeWindow(begin, begin + 0.5), has_begun=False)
        for each in specs[1:]
        for begin in range(1, 1000)
    ]
    snapshot = build(*specs)
    wanted = make_wanted("resources_A=PCPU:3&resources_B=PCPU:2&group_policy=none")
    times = HostTimes(timed_search(snapshot, amounts, seconds=0.0), wanted, 1.0)
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
    since = skyline.fits_since(most, first)
    # no amount begins before 0
    free = range(int(since) if since > -math.inf else -1, first + 1)
    assert all(largest_sum(amounts, TimeWindow(t, t + 1)) <= most for t in free)
    assert since == -math.inf or largest_sum(amounts, TimeWindow(since - 1, since)) > most
    until = skyline.fits_until(most, first)
    assert until == next(
        (t for t in range(first, 4 * LAST) if largest_sum(amounts, TimeWindow(t, t + 1)) > most), math.inf
    )


def test_kept_rooms_are_dropped_with_the_skylines_of_their_hosts() -> None:
    snapshot = build(*(Spec(name, inventories={"VCPU": 4}, used={"VCPU": 4}) for name in ("a", "b")))
    a, b = (snapshot.by_uuid[name_to_uuid(name)] for name in ("a", "b"))

    def skylines_until(end: float) -> Skylines:
        window = TimeWindow(0, end)
        return skylines_of(
            snapshot,
            [TimedAmount("w", name_to_uuid(name), "VCPU", 4, window, has_begun=False) for name in ("a", "b")],
        )

    def first_starts(skylines: Skylines) -> list[float]:
        search = TimedSearch(snapshot, skylines, SearchBudget(), random.Random(0))
        times = HostTimes(search, make_wanted("resources=VCPU:1"), 1.0)
        return [times.first_start(root, 1.0, math.inf) for root in (a, b)]

    before = KeptSkylines().with_changes(skylines_until(3), (), ())
    assert first_starts(before) == [3, 3]
    # the trees are the same objects, so only the timetable knows that a host has other windows
    after = before.with_changes({a: skylines_until(5)[a]}, (), {a})
    assert after.rooms["VCPU"].keys() == {b}
    assert first_starts(after) == [5, 3]
    assert first_starts(after.with_changes({}, {b}, {b})) == [5, math.inf]
    assert first_starts(before) == [3, 3]


def found_jointly(
    snapshot: ModelSnapshot,
    amounts: list[TimedAmount],
    wanted: Sequence[WantedClaim],
    span: StartSpan,
    limit: int = 9,
) -> list[FreeWindow]:
    return list(islice(find_joint(timed_search(snapshot, amounts), wanted, span), limit))


@settings(max_examples=examples(150), deadline=None)
@given(
    world=worlds(),
    queries=st.lists(st.tuples(st.sampled_from(QUERIES), st.integers(1, 2)), min_size=1, max_size=3),
    are_apart=st.booleans(),
    begin=st.integers(0, 4),
    duration=st.integers(1, 6),
    last=st.integers(4, 2 * LAST),
)
def test_joint_windows_are_the_earliest_ones_and_each_one_can_be_booked(
    world: tuple[ModelSnapshot, list[TimedAmount]],
    queries: list[tuple[str, int]],
    are_apart: bool,
    begin: int,
    duration: int,
    last: int,
) -> None:
    group = APART if are_apart else None
    wanted = [each for query, count in queries for each in [replace(make_wanted(query), group=group)] * count]
    answers = found_jointly(*world, wanted, StartSpan(begin, last, duration))
    after: float = begin
    for each in answers:
        starts = range(math.ceil(after), last + 1)
        assert each.starts_at == next(t for t in starts if fits(*world, wanted, TimeWindow(t, t + duration)))
        assert each.starts_at + duration <= each.free_until
        for end in (each.starts_at + duration, min(each.free_until, 3.0 * LAST)):
            assert have_room(*world, each.choices, TimeWindow(each.starts_at, end))
        if are_apart:
            assert len({choice.root.id for choice in each.choices}) == len(wanted)
        after = each.free_until
    if after <= last:
        rest = range(math.ceil(after), last + 1)
        assert not any(fits(*world, wanted, TimeWindow(t, t + duration)) for t in rest)


def test_all_hosts_are_tried_if_the_first_ones_do_not_suffice() -> None:
    # the small hosts have room for one claim each, and only the last one has room for the second claim
    specs = [Spec(f"cn{number:03}", inventories={"VCPU": 1}) for number in range(100)]
    snapshot = build(*specs, Spec("large", inventories={"VCPU": 1, "DISK_GB": 1}))
    wanted = [make_wanted("resources=VCPU:1") for _ in range(100)]
    wanted += [make_wanted("resources=VCPU:1,DISK_GB:1")]
    (answer,) = found_jointly(snapshot, [], [*wanted[:2], wanted[-1]], StartSpan(0, 9, 4))
    assert answer.choices[-1].root.name == "large"
    (answer,) = found_jointly(snapshot, [], wanted, StartSpan(0, 9, 4))
    assert len({each.root.id for each in answer.choices}) == 101


def test_a_joint_start_is_never_before_the_end_that_makes_room() -> None:
    end = 10.0004
    amounts = [TimedAmount("w", name_to_uuid("a"), "VCPU", 4, TimeWindow(1, end), has_begun=False)]
    snapshot = build(Spec("a", inventories={"VCPU": 4}, used={"VCPU": 4}))
    wanted = [make_wanted("resources=VCPU:2")] * 2
    (answer,) = found_jointly(snapshot, amounts, wanted, StartSpan(0, 99, 4))
    assert (answer.starts_at, answer.free_until) == (10.001, math.inf)


def test_the_price_of_a_joint_search_is_bounded() -> None:
    snapshot = build(*(Spec(f"cn{number}", inventories={"VCPU": 4}) for number in range(200)))
    wanted = [make_wanted("resources=VCPU:1")] * 2
    with pytest.raises(BudgetExhausted):
        list(find_joint(timed_search(snapshot, [], seconds=0.0), wanted, StartSpan(0, 99, 4)))
