"""Sums over time, compared with a look at each instant, and the worked example of the documentation."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.store.time_profile import (
    AT_ONCE,
    HoldRefusal,
    TimedAmount,
    TimedRows,
    TimeWindow,
    WindowPromise,
    check_amounts,
    first_growth,
    largest_sum,
    needed_holds,
    returned_amounts,
)
from placement.store.time_skyline import NO_SKYLINE, TimeSkyline, make_skylines

KEY = ("host", "VCPU")
LAST = 8


def amount(used: int, begin: float, end: float, *, has_begun: bool = False) -> TimedAmount:
    return TimedAmount("consumer", *KEY, used, TimeWindow(begin, end), has_begun)


def windows() -> st.SearchStrategy[TimeWindow]:
    return st.tuples(st.integers(0, LAST - 1), st.integers(1, LAST)).map(
        lambda pair: TimeWindow(pair[0], pair[0] + pair[1])
    )


def amounts() -> st.SearchStrategy[list[TimedAmount]]:
    one = st.builds(
        lambda used, window, has_begun: TimedAmount("consumer", *KEY, used, window, has_begun),
        st.integers(1, 3),
        windows(),
        st.booleans(),
    )
    return st.lists(one, max_size=5)


def sum_at(some: list[TimedAmount], instant: float) -> int:
    return sum(each.used for each in some if each.starts_at <= instant < each.window.ends_at)


@given(
    held=st.integers(0, 3),
    claims=st.lists(st.tuples(st.integers(1, 3), st.integers(1, LAST)), max_size=4),
    left=st.integers(0, 3),
)
def test_a_window_has_its_promise_at_each_instant_until_its_end(
    held: int, claims: list[tuple[int, int]], left: int
) -> None:
    end = LAST - 1
    own = [TimedAmount("window", *KEY, held, TimeWindow(1, end), True)] if held else []
    taken = [
        TimedAmount(f"claim {number}", *KEY, used, TimeWindow(AT_ONCE, until), True)
        for number, (used, until) in enumerate(claims)
    ]
    other = TimedAmount("other", *KEY, 5, TimeWindow(2, 3), False)
    promised = held + left + sum(used for used, _ in claims)
    promise = WindowPromise(7, "window", *KEY, promised, TimeWindow(1, end))
    rows = TimedRows([*own, *taken, other], [promise], {each.consumer: 7 for each in taken})
    returns = returned_amounts(rows)
    assert all(each.is_return and each.consumer == "window" for each in returns)
    for instant in range(1, LAST + 1):
        until_end = promised if instant < end else 0
        late = sum_at(taken, instant) if instant >= end else 0
        assert sum_at([*own, *taken, *returns], instant) == until_end + late
    assert list(rows.all_amounts) == [*rows.amounts, *returns]
    assert returned_amounts(rows.without_consumers({"window"})) == []
    # a claim that is gone has returned its amount now
    gone = returned_amounts(rows.without_consumers({"claim 0"}))
    assert sum_at(gone, 1) == left + (claims[0][0] if claims else 0) + sum(
        used for used, until in claims[1:] if until <= 1 < end
    )


@given(some=amounts(), window=windows())
def test_the_largest_sum_is_that_of_the_busiest_instant(some: list[TimedAmount], window: TimeWindow) -> None:
    instants = range(int(window.starts_at), int(window.ends_at))
    assert largest_sum(some, window) == max(sum_at(some, each) for each in instants)


@given(before=amounts(), after=amounts(), window=windows(), limit=st.integers(0, 6))
def test_the_first_growth_is_at_the_first_instant_with_a_larger_excess(
    before: list[TimedAmount], after: list[TimedAmount], window: TimeWindow, limit: int
) -> None:
    growing = (
        each
        for each in range(int(window.starts_at), int(window.ends_at))
        if sum_at(after, each) > max(limit, sum_at(before, each))
    )
    assert first_growth(before, after, limit, window) == next(growing, window.ends_at)


@given(some=amounts(), now=st.integers(0, LAST), period=st.integers(1, LAST))
def test_the_largest_integral_is_that_of_the_fullest_period(
    some: list[TimedAmount], now: int, period: int
) -> None:
    hours = [sum_at(some, each) if each >= now else 0 for each in range(3 * LAST + 1)]
    fullest = max(sum(hours[begin : begin + period]) for begin in range(now, 2 * LAST + 1))
    assert TimeSkyline.from_amounts(some).largest_integral(now, period) == fullest


@given(some=amounts(), more=amounts(), now=st.integers(0, LAST))
def test_a_hold_covers_each_instant_ahead_beside_the_begun_amounts(
    some: list[TimedAmount], more: list[TimedAmount], now: int
) -> None:
    every = [*some, *more]
    begun = sum(each.used for each in every if each.has_begun)
    held = needed_holds(every, now).get(KEY, 0)
    busiest = max(sum_at(every, each) for each in range(now, 2 * LAST + 1))
    assert held + begun == max(busiest, begun)


@given(some=amounts(), window=windows(), capacity=st.integers(0, 8), used=st.integers(1, 3))
def test_a_new_amount_fits_in_the_changed_usage_exactly_if_no_instant_is_too_full(
    some: list[TimedAmount], window: TimeWindow, capacity: int, used: int
) -> None:
    now = 0.0
    held = needed_holds(some, now).get(KEY, 0)
    usage = held + sum(each.used for each in some if each.has_begun)
    here = make_skylines(some, [(KEY, held)]).get(KEY[0], {}).get(KEY[1], NO_SKYLINE)
    changed = usage - here.counted + here.largest_sum(window)
    instants = range(int(window.starts_at), int(window.ends_at))
    assert (changed + used <= capacity) == all(sum_at(some, each) + used <= capacity for each in instants)


def test_the_worked_example() -> None:
    ten, eleven, twelve = 10.0, 11.0, 12.0
    first, second = amount(4, ten, eleven), amount(6, eleven, twelve)
    assert needed_holds([first, second], 9.0) == {KEY: 6}
    assert needed_holds([amount(4, ten, eleven, has_begun=True), second], ten) == {KEY: 2}
    assert needed_holds([second], 10.5) == {KEY: 6}
    assert largest_sum([first, second], TimeWindow(0.0, math.inf)) == 6


def test_windows_without_allocations_count_as_timed_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placement.store.time_profile.MAX_TIMED_AMOUNTS", 2)
    claim = TimedAmount("claim", *KEY, 1, TimeWindow(AT_ONCE, 2), True)
    some = [WindowPromise(number, f"window {number}", *KEY, 1, TimeWindow(1, 3)) for number in range(3)]
    # the claim counts for the first window, and the other windows have only returns
    check_amounts(TimedRows([claim], some[:2], {"claim": 0}).all_amounts, 1)
    with pytest.raises(HoldRefusal, match="2 amounts of 'VCPU'"):
        check_amounts(TimedRows([claim], some, {"claim": 0}).all_amounts, 1)


def test_the_work_for_returns_grows_with_the_rows_and_not_with_their_product() -> None:
    reads = []

    class CountedSources(dict[str, int]):
        def get(self, consumer: str, default: int | None = None) -> int | None:  # type: ignore[override]
            reads.append(consumer)
            return super().get(consumer, default)

    claims = [TimedAmount(f"claim {number}", *KEY, 1, TimeWindow(AT_ONCE, 2), True) for number in range(9)]
    promises = [WindowPromise(number, f"window {number}", *KEY, 2, TimeWindow(1, 3)) for number in range(9)]
    sources = CountedSources({each.consumer: number for number, each in enumerate(claims)})
    # each window gets back 1 at the end of its claim, and has 1 already
    assert len(returned_amounts(TimedRows(claims, promises, sources))) == 18
    assert len(reads) == 9
