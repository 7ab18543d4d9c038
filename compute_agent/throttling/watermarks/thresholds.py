"""Thresholds: amounts of a metric, such as ``0.8``, ``12G``, ``80%`` or ``true``, and the times of amounts.

A threshold can depend on weekday and time of day: ``85%, 22:00-06:00 95%, sat-sun 95%``. Times are in the
time zone of the host, as in crontab(5). A period over midnight belongs to the day on which it begins. For
example, ``fri 22:00-06:00`` ends on Saturday morning. If several periods contain a minute, the last one in
the text counts.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from compute_agent.throttling.watermarks.metrics import MetricUnit

# Powers of 1024, as in files of cgroups (memory.max accepts 12G).
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}

THRESHOLD: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT%]?)", re.ASCII)
"""The text of an amount: a number with an optional suffix."""

# The usage of a condition is 1 or 0. So the usage is above the value of "true" while the condition holds, and
# below the value of "false" otherwise.
_WORDS: Final = {"true": 0.5, "false": 0.25}


@dataclass(frozen=True, slots=True)
class WatermarkThreshold:
    """The usage above which an action is taken. Only ``throttle_up`` is for usage below the threshold.

    - ``value`` is in the metric's unit or, if ``relative``, in percent of the capacity of the host or cache.
    - ``word`` is the text of the threshold of a condition, ``true`` or ``false``; empty for an amount.
    """

    value: float
    relative: bool = False
    word: str = field(default="", compare=False)

    def absolute_amount(self, capacity: float | None) -> float | None:
        """The threshold in the metric's unit; None for a percentage of an unknown ``capacity``."""
        if not self.relative:
            return self.value
        return None if capacity is None else self.value / 100 * capacity

    def __str__(self) -> str:
        return self.word or f"{self.value:.15g}{'%' if self.relative else ''}"


def parse_threshold(text: str, unit: MetricUnit, has_capacity: bool = True) -> WatermarkThreshold:
    """Parse the text of a threshold, such as ``0.8``, ``12G``, ``80%`` or ``true``, for a metric in ``unit``.

    :param has_capacity: whether the metric has a capacity, so that the threshold can be a percentage of it.
    :raises ValueError: the text is no threshold, or its suffix does not fit the metric.
    """
    if unit is MetricUnit.CONDITION:
        word = text.strip().lower()
        if word not in _WORDS:
            raise ValueError(f"{text.strip()!r} is not a threshold of a condition: write true or false")
        return WatermarkThreshold(_WORDS[word], word=word)
    match = THRESHOLD.fullmatch(text.strip())
    # A number with hundreds of digits is infinite as a float, and no usage would ever be above it.
    if match is None or not math.isfinite(float(match[1])):
        raise ValueError(f"{text!r} is not a threshold: a number such as 12, 1.5, 12G or 80% is needed")
    value, suffix = float(match[1]), match[2]
    if suffix == "%":
        # Without a capacity the usage would never be above the percentage.
        if unit == MetricUnit.OTHER or (not has_capacity and unit != MetricUnit.PERCENT):
            raise ValueError(
                f"{text.strip()}: a percentage needs a capacity, which the metric does not have; write an"
                " amount"
            )
        # For a metric in percent the number is the amount itself, and best_effort_cpu can exceed 100 %.
        if value > 100 and unit != MetricUnit.PERCENT:
            raise ValueError(f"{text.strip()} is above 100 percent of the capacity")
        return WatermarkThreshold(value, relative=unit != MetricUnit.PERCENT)
    # Only amounts of bytes can have a suffix: ``12G`` cores is a mistake, and does not mean twelve billion
    # cores.
    if suffix and unit not in (MetricUnit.BYTES, MetricUnit.BYTES_PER_SECOND):
        raise ValueError(f"{suffix} is for bytes, and the metric is in {unit or 'another unit'}")
    return WatermarkThreshold(value * 1024 ** _POWERS[suffix])


def parse_usage(text: str, unit: MetricUnit, has_capacity: bool = True) -> WatermarkThreshold:
    """Parse the text of an assumed usage of the host, which has the format of a threshold.

    The usage of a condition is 1 for ``true`` and 0 for ``false``.

    :raises ValueError: the text is no usage of a metric in ``unit``, or a percentage without a capacity.
    """
    threshold = parse_threshold(text, unit, has_capacity)
    return WatermarkThreshold(float(threshold.word == "true")) if threshold.word else threshold


DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES: Final = 24 * 60
_EVERY_DAY: Final = frozenset(range(len(DAYS)))
_CLOCK: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-4]):([0-5][0-9])", re.ASCII)
_DAY_RANGE: Final = re.compile(r"([a-z]{3})(?:-([a-z]{3}))?", re.ASCII)


class WeekMoment(NamedTuple):
    """A minute of the week: the weekday from 0 (Monday) to 6, and the minute of the day from 0 to 1439."""

    day: int
    minute: int

    def __str__(self) -> str:
        return f"{DAYS[self.day]} {self.minute // 60:02d}:{self.minute % 60:02d}"


def local_moment() -> WeekMoment:
    """The present minute of the week, by the clock and the time zone of the host."""
    # Python reads the time zone at its start. tzset() reads it again, so that a change of the time zone
    # applies.
    time.tzset()
    now = time.localtime()
    return WeekMoment(now.tm_wday, now.tm_hour * 60 + now.tm_min)


@dataclass(frozen=True, slots=True)
class WeekPeriod:
    """A period of the day on some weekdays.

    :ivar days: the weekdays on which the period begins; 0 is Monday.
    :ivar begin: the first minute of the period, counted from midnight.
    :ivar end: the first minute after the period, counted from midnight, up to 1440. If ``end`` is not after
    ``begin``, the period ends on the next day.
    """

    days: frozenset[int] = _EVERY_DAY
    begin: int = 0
    end: int = _DAY_MINUTES

    def has_moment(self, moment: WeekMoment) -> bool:
        """Whether a minute of the week is in the period."""
        day, minute = moment
        if self.begin < self.end:
            return day in self.days and self.begin <= minute < self.end
        began_yesterday = (day - 1) % len(DAYS) in self.days and minute < self.end
        return began_yesterday or (day in self.days and minute >= self.begin)

    @property
    def all_bounds(self) -> Iterator[WeekMoment]:
        """The minutes of the week at which the period begins, and the minutes at which it has just ended."""
        for day in self.days:
            yield WeekMoment(day, self.begin)
            over = day + (self.end <= self.begin or self.end == _DAY_MINUTES)
            yield WeekMoment(over % len(DAYS), self.end % _DAY_MINUTES)


def parse_period(text: str) -> WeekPeriod:
    """Parse the text of a period: ``22:00-06:00``, ``sat-sun`` or ``mon-fri 08:00-18:00``.

    :raises ValueError: the text is no period.
    """
    days, begin, end = _EVERY_DAY, 0, _DAY_MINUTES
    words = text.lower().split()
    if words and (match := _DAY_RANGE.fullmatch(words[0])) is not None:
        days = _day_numbers(match[1], match[2] or match[1])
        words.pop(0)
        if not words:
            return WeekPeriod(days)
    if len(words) != 1 or (match := _CLOCK.fullmatch(words[0])) is None:
        raise ValueError(f"{text!r} is no period such as 22:00-06:00, sat-sun or mon-fri 08:00-18:00")
    hours = [int(number) for number in match.groups()]
    begin, end = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
    if end > _DAY_MINUTES or begin == end:
        raise ValueError(f"{text!r} is no period: a day ends at 24:00, and a period has a minute at least")
    return WeekPeriod(days, begin, end)


def _day_numbers(first: str, last: str) -> frozenset[int]:
    for name in (first, last):
        if name not in DAYS:
            raise ValueError(f"there is no weekday {name!r}; there are {', '.join(DAYS)}")
    begin, end = DAYS.index(first), DAYS.index(last)
    # The remainder lets a range pass the end of the week, as in fri-mon.
    return frozenset((begin + step) % len(DAYS) for step in range((end - begin) % len(DAYS) + 1))


def week_bounds(periods: Iterable[WeekPeriod]) -> list[WeekMoment]:
    """The first minute of the week, and all minutes at which a period begins or has just ended."""
    return sorted({WeekMoment(0, 0), *(bound for period in periods for bound in period.all_bounds)})
