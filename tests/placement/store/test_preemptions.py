"""The choice of preemptible claims that end for a window, compared with all sets of claims."""

import math
from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from placement.store.holds import TimeSchedule
from placement.store.preemptions import PreemptibleRoom, choose_preempted, shorten_amounts
from placement.store.time_profile import AT_ONCE, TimedAmount, TimeWindow, by_key, largest_sum
from tests.examples import examples

START = 10.0
KEYS = [("a", "VCPU"), ("a", "DISK_GB"), ("b", "VCPU")]
held = st.tuples(st.sampled_from("cdefg"), st.sampled_from(KEYS), st.integers(1, 4))


def has_room(room: PreemptibleRoom, chosen: tuple[str, ...], limits: dict[tuple[str, str], int]) -> bool:
    amounts = by_key(shorten_amounts(room.schedule.amounts, chosen, START))
    window = TimeWindow(START, START + 5)
    return all(largest_sum(amounts.get(key, []), window) <= limit for key, limit in limits.items())


@settings(max_examples=examples(300), deadline=None)
@given(
    amounts=st.lists(held, max_size=8),
    booked=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 3), st.integers(5, 14)), max_size=4),
    limits=st.dictionaries(st.sampled_from(KEYS), st.integers(-1, 8), min_size=1),
    claims=st.permutations("cdefg").map(lambda every: every[:4]),
)
def test_the_newest_claims_end_and_none_without_need(
    amounts: list[tuple[str, tuple[str, str], int]],
    booked: list[tuple[tuple[str, str], int, int]],
    limits: dict[tuple[str, str], int],
    claims: list[str],
) -> None:
    timed = [
        TimedAmount(consumer, *key, used, TimeWindow(AT_ONCE, 30), has_begun=True)
        for consumer, key, used in amounts
    ]
    timed += [
        TimedAmount(f"w{number}", *key, used, TimeWindow(begin, begin + 3), has_begun=False)
        for number, (key, used, begin) in enumerate(booked)
    ]
    room = PreemptibleRoom(START, claims, TimeSchedule(0, timed, ()))
    chosen = choose_preempted(room, limits, TimeWindow(START, START + 5))
    if chosen is None:
        assert not has_room(room, tuple(claims), limits)
        return
    assert has_room(room, chosen, limits)
    fewer = chain.from_iterable(combinations(chosen, count) for count in range(len(chosen)))
    assert not any(has_room(room, each, limits) for each in fewer)
    # the claims after the last one that was needed are older
    needed = next(count for count in range(5) if has_room(room, tuple(claims[:count]), limits))
    assert set(chosen) <= set(claims[:needed])


def test_a_claim_that_ends_before_keeps_its_end() -> None:
    early = TimedAmount("c", "a", "VCPU", 1, TimeWindow(AT_ONCE, 5), has_begun=True)
    late = TimedAmount("c", "b", "VCPU", 1, TimeWindow(AT_ONCE, math.inf), has_begun=True)
    found = shorten_amounts([early, late], ["c"], START)
    assert [each.window.ends_at for each in found] == [5, START]
