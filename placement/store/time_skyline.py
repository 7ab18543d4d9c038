"""Sums of timed amounts as step functions, which answer questions about a time window quickly.

A *skyline* has the sum of the timed amounts of one provider and resource class at each instant. Its
*breakpoints* are the instants at which the sum changes. A skyline is computed once, and then answers
questions about many windows, each faster than by adding all amounts again.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Final

from placement.store.time_profile import HoldKey, TimedAmount, TimeWindow, by_key


def whole_milliseconds(seconds: float) -> float:
    """Round a time up to whole milliseconds, which answers of the API show exactly."""
    nearest = round(seconds, 3)
    return nearest if nearest >= seconds else round(nearest + 0.001, 3)


@dataclass(frozen=True, slots=True)
class TimeSkyline:
    """The sums of the timed amounts of one provider and resource class, as a step function.

    The sum from ``times[i]`` until ``times[i + 1]`` is ``sums[i]``.

    The sum is 0 before the first breakpoint and after the last breakpoint. ``counted`` is the timed part of
    the used amount in the read model: the begun amounts and the hold. ``peak`` is the largest sum at any
    time.
    """

    times: "array[float]"
    sums: "array[int]"
    counted: int = 0
    peak: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak", max(self.sums, default=0))

    @classmethod
    def from_amounts(cls, amounts: Iterable[TimedAmount], counted: int = 0) -> "TimeSkyline":
        """Return the skyline of the amounts of one provider and resource class."""
        changes: dict[float, int] = {}
        for each in amounts:
            changes[each.starts_at] = changes.get(each.starts_at, 0) + each.used
            changes[each.window.ends_at] = changes.get(each.window.ends_at, 0) - each.used
        return cls.from_changes(changes, counted)

    @classmethod
    def total_of(cls, parts: "Iterable[tuple[TimeSkyline, int, int]]") -> "TimeSkyline":
        """Return the sum of skylines, each kept within two bounds, minus its value without timed amounts."""
        changes: dict[float, int] = {}
        for skyline, lowest, highest in parts:
            levels: Iterable[int] = skyline.sums
            before = min(max(0, lowest), highest)
            # mostly the bounds change nothing, because windows fit into their providers
            if before or skyline.peak > highest:
                levels = [min(max(each, lowest), highest) for each in levels]
            for time, level in zip(skyline.times, levels, strict=True):
                changes[time] = changes.get(time, 0) + level - before
                before = level
        return cls.from_changes(changes)

    @classmethod
    def from_changes(cls, changes: Mapping[float, int], counted: int = 0) -> "TimeSkyline":
        """Return the skyline of a sum, given the changes of the sum by time."""
        # where two windows of equal amounts adjoin, the sum does not change
        times = [time for time in sorted(changes) if changes[time]]
        sums = accumulate(map(changes.__getitem__, times))
        return cls(array("d", times), array("q", sums), counted)

    def largest_sum(self, window: TimeWindow) -> int:
        """Return the largest sum at any instant of a window."""
        begin = max(0, bisect_right(self.times, window.starts_at) - 1)
        # a slice and its maximum are faster than a loop
        return max(0, max(self.sums[begin : bisect_left(self.times, window.ends_at, begin)], default=0))

    def largest_integral(self, now: float, period: float) -> float:
        """Return the largest integral of the sum over any future period; all amounts must have an end."""
        # the integral from now until each breakpoint
        instants, integrals = [max(each, now) for each in self.times], [0.0]
        for (begin, end), level in zip(pairwise(instants), self.sums, strict=False):
            integrals.append(integrals[-1] + level * (end - begin))

        def integral_until(instant: float) -> float:
            at = bisect_right(instants, instant) - 1
            return 0.0 if at < 0 else integrals[at] + self.sums[at] * (instant - instants[at])

        # the integral of a moving period is linear while no border of the period meets a breakpoint
        starts = {max(now, each) for instant in instants for each in (instant, instant - period)}
        return max((integral_until(each + period) - integral_until(each) for each in starts), default=0.0)

    def first_fit(self, most: int, start: float, duration: float, until: float = math.inf) -> float:
        """Return the earliest start of a window during which the sum never exceeds the amount ``most``.

        The result is ``start``, or the end of an amount in whole milliseconds. A result above ``until`` only
        means that no window fits that starts before ``until``.

        :param most: at least 0.
        :param duration: the length of the window, in seconds.
        """
        times, sums = self.times, self.sums
        count, known = len(times), math.nan
        while start != known:
            # a start that fits is rounded, and then another amount may begin within the millisecond
            known = start if math.isnan(known) else whole_milliseconds(start)
            start, end = known, known + duration
            index = max(0, bisect_right(times, start) - 1)
            while index < count and times[index] < end:
                if sums[index] > most:
                    # the last sum is 0, so the loop ends
                    while sums[index] > most:
                        index += 1
                    start = times[index]
                    if start > until:
                        return whole_milliseconds(start)
                    end = start + duration
                index += 1
        return start

    def fits_until(self, most: int, start: float) -> float:
        """Return the first time after ``start`` at which the sum exceeds ``most``, or infinity."""
        for index in range(bisect_right(self.times, start), len(self.times)):
            if self.sums[index] > most:
                return self.times[index]
        return math.inf

    def fits_since(self, most: int, start: float) -> float:
        """Return the last time up to ``start`` from which on the sum never exceeds ``most``.

        The result is minus infinity if the sum has never exceeded ``most``, and ``start`` if it exceeds
        ``most`` at ``start``.
        """
        at = bisect_right(self.times, start) - 1
        if at >= 0 and self.sums[at] > most:
            return start
        while at > 0 and self.sums[at - 1] <= most:
            at -= 1
        return self.times[at] if at > 0 else -math.inf

    def rises_within(self, begin: float, end: float) -> list[float]:
        """Return the breakpoints at which the sum of the timed amounts grows.

        The result includes ``begin``, and does not include ``end``.
        """
        first, last = bisect_left(self.times, begin), bisect_left(self.times, end)
        return [
            self.times[index]
            for index in range(first, last)
            if self.sums[index] > (self.sums[index - 1] if index else 0)
        ]

    def falls_after(self, time: float) -> Iterator[float]:
        """Yield the times after ``time`` at which the sum falls, in ascending order."""
        for index in range(max(1, bisect_right(self.times, time)), len(self.times)):
            if self.sums[index] < self.sums[index - 1]:
                yield self.times[index]

    def next_end(self, time: float) -> float:
        """Return the first time after ``time`` at which the sum decreases; infinity if it never decreases."""
        return next(self.falls_after(time), math.inf)


NO_SKYLINE: Final = TimeSkyline(array("d"), array("q"))
"""The skyline of a provider and class without timed amounts."""
SkylinesByClass = Mapping[str, TimeSkyline]
SkylinesByProvider = Mapping[str, SkylinesByClass]
"""Skylines by uuid of the provider and by resource class."""


def make_skylines(
    amounts: Iterable[TimedAmount],
    holds: Iterable[tuple[HoldKey, int]],
    spend: Callable[[int], None] = lambda _: None,
) -> dict[str, dict[str, TimeSkyline]]:
    """Compute the skylines of amounts, by uuid of the provider and by resource class.

    :param spend: a function that is called with the number of amounts of each skyline; its exception ends the
        work.
    """
    counted = dict(holds)
    found: dict[str, dict[str, TimeSkyline]] = {}
    for (provider, name), some in by_key(amounts).items():
        spend(len(some))
        begun = sum(each.used for each in some if each.has_begun)
        held = counted.pop((provider, name), 0)
        found.setdefault(provider, {})[name] = TimeSkyline.from_amounts(some, begun + held)
    for (provider, name), held in counted.items():
        found.setdefault(provider, {})[name] = TimeSkyline(array("d"), array("q"), held)
    return found
