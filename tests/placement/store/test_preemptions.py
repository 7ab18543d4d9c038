"""The choice of preemptible claims that end for a window, compared with all sets of claims."""

import math
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.search.budget import BudgetExhausted
from placement.store.time_profile import AT_ONCE, TimedAmount, TimeWindow, by_key, largest_sum
from placement.store.time_schedule import TimeSchedule
from placement.store.window_room import PreemptibleRoom, choose_preempted, shorten_amounts
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


def lent_room(size: int, per_provider: int) -> PreemptibleRoom:
    """Return the room of claims of 1 VCPU, with some claims on each provider."""
    claims = [str(number) for number in range(size)]
    timed = [
        TimedAmount(each, str(int(each) // per_provider), "VCPU", 1, TimeWindow(AT_ONCE, 30), has_begun=True)
        for each in claims
    ]
    return PreemptibleRoom(START, claims, TimeSchedule(0, timed, ()))


def test_the_choice_reads_only_claims_in_the_way_and_halves_their_number() -> None:
    window, work = TimeWindow(START, START + 5), list[int]()
    # the only claim of the last of 1000 providers
    assert choose_preempted(lent_room(1000, 1), {("999", "VCPU"): 0}, window, work.append) == ("999",)
    assert work == [1, 1]
    work.clear()
    assert choose_preempted(lent_room(1000, 1000), {("0", "VCPU"): 998}, window, work.append) == ("0", "1")
    assert len(work) <= 12
    assert choose_preempted(lent_room(1000, 1000), {("0", "VCPU"): -1}, window) is None


def test_a_spent_budget_ends_the_choice() -> None:
    def spend(steps: int) -> None:
        raise BudgetExhausted

    with pytest.raises(BudgetExhausted):
        choose_preempted(lent_room(4, 4), {("0", "VCPU"): 1}, TimeWindow(START, START + 5), spend)


def test_a_claim_that_ends_before_keeps_its_end() -> None:
    early = TimedAmount("c", "a", "VCPU", 1, TimeWindow(AT_ONCE, 5), has_begun=True)
    late = TimedAmount("c", "b", "VCPU", 1, TimeWindow(AT_ONCE, math.inf), has_begun=True)
    found = shorten_amounts([early, late], ["c"], START)
    assert [each.window.ends_at for each in found] == [5, START]
