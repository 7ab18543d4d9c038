"""What is remembered of use, reading by reading.

How much the others may use next, term by term.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import mul
from typing import Final

PERIOD: Final = 300.0
"""Seconds of which the largest sum counts as one."""

PERIODS: Final = 24
"""Periods of which mean and deviation are taken."""

HOUR: Final = 3600.0
HOURS: Final = 24
"""Hours whose peaks are kept."""

SYSTEM: Final = ""
"""Stands among guests for all that is none."""

SUM: Final = "*"
"""Stands among guests for all others together."""

_NO_GUESTS: Final = frozenset({SYSTEM, SUM})


@dataclass(frozen=True, slots=True)
class ZoneReading:
    """What was used in a zone since the reading before, in cores, at ``time`` (seconds since the epoch).

    ``total`` is by the others together, ``guests`` by each of them, with that of the system under ``SYSTEM``
    where it is known.
    """

    time: float
    total: float
    guests: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UseSpread:
    """Mean and standard deviation."""

    mean: float = 0.0
    deviation: float = 0.0


@dataclass(frozen=True, slots=True)
class HourlyPeaks:
    """The peaks of the last hours in cores, oldest first; ``percentile`` is exceeded in few of them."""

    hours: tuple[float, ...] = ()
    percentile: float = 0.0


@dataclass(frozen=True, slots=True)
class ZoneHistory:
    """What is known of a zone at ``time``, that of the last reading; 0: nothing.

    ``periods`` are the largest sums of the last periods, oldest first, with their ``recent`` spread;
    ``period`` is that of the one that began at ``period_began``. ``peaks`` are those of each guest, of
    ``SYSTEM`` and of ``SUM``, with the ``daily`` spread of the latter; ``hour`` is the largest use of each
    in the hour that began at ``hour_began``.
    """

    time: float = 0.0
    periods: tuple[float, ...] = ()
    recent: UseSpread = field(default_factory=UseSpread)
    period: float = 0.0
    period_began: float = 0.0
    peaks: Mapping[str, HourlyPeaks] = field(default_factory=dict)
    daily: UseSpread = field(default_factory=UseSpread)
    hour: Mapping[str, float] = field(default_factory=dict)
    hour_began: float = 0.0

    @property
    def days_hours(self) -> int:
        """How many hours of the last day are known."""
        known = self.peaks.get(SUM)
        return 0 if known is None else len(known.hours)

    def after(self, reading: ZoneReading, percentile: float) -> ZoneHistory:
        """The history with one more reading.

        Guests that are not in it have ended. A gap is as if it had not been: what was used in it nobody
        knows. After a change of the clock to an earlier time the history goes on from there.
        """
        time = reading.time
        kept = (
            self
            if self.time
            else ZoneHistory(period_began=_floor(time, PERIOD), hour_began=_floor(time, HOUR))
        )
        if time < kept.time:
            kept = replace(kept, period_began=_floor(time, PERIOD), hour_began=_floor(time, HOUR))
        kept = kept._closed(time, percentile)
        hour, guests = kept.hour, reading.guests
        present = {uuid: max(hour.get(uuid, 0.0), used) for uuid, used in guests.items()}
        present[SUM] = max(hour.get(SUM, 0.0), reading.total)
        if SYSTEM not in present and SYSTEM in hour:
            present[SYSTEM] = hour[SYSTEM]
        peaks = kept.peaks
        if not peaks.keys() <= guests.keys() | _NO_GUESTS:
            peaks = {uuid: one for uuid, one in peaks.items() if uuid in guests or uuid in _NO_GUESTS}
        return ZoneHistory(
            time,
            kept.periods,
            kept.recent,
            max(kept.period, reading.total),
            kept.period_began,
            peaks,
            kept.daily,
            present,
            kept.hour_began,
        )

    def _closed(self, time: float, percentile: float) -> ZoneHistory:
        """With the period and the hour closed that ``time`` is beyond."""
        kept = self
        if time >= kept.period_began + PERIOD:
            periods = (*kept.periods, kept.period)[-PERIODS:]
            began = _floor(time, PERIOD)
            kept = replace(kept, periods=periods, recent=spread(periods), period=0.0, period_began=began)
        if time >= kept.hour_began + HOUR:
            peaks = {
                uuid: _grown(kept.peaks.get(uuid, HourlyPeaks()), peak, percentile)
                for uuid, peak in kept.hour.items()
            }
            daily = spread(peaks[SUM].hours) if SUM in peaks else UseSpread()
            kept = replace(kept, peaks=peaks, daily=daily, hour={}, hour_began=_floor(time, HOUR))
        return kept


def _floor(time: float, length: float) -> float:
    return math.floor(time / length) * length


def _grown(peaks: HourlyPeaks, peak: float, percentile: float) -> HourlyPeaks:
    hours = (*peaks.hours, peak)[-HOURS:]
    return HourlyPeaks(hours, percentile_of(hours, percentile))


def percentile_of(values: tuple[float, ...], percentile: float) -> float:
    """The smallest of the values that ``percentile`` percent of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percentile / 100) - 1)]


def spread(values: tuple[float, ...]) -> UseSpread:
    """Mean and standard deviation of some values."""
    mean = sum(values) / len(values)
    return UseSpread(mean, math.sqrt(max(0.0, sum(map(mul, values, values)) / len(values) - mean * mean)))


STALE_SECONDS: Final = 900.0
"""A reading of so long ago tells nothing of now."""

KNOWN_HOURS: Final = 2
"""Hours after which a guest is known by what it used; before it counts whole."""


@dataclass(frozen=True, slots=True)
class EstimateLimits:
    """How careful an estimate is: deviations, percent of hours, and percent on top of these.

    ``burst`` is in how many percent of hours the largest guest is taken to use all that it may.
    """

    sigma: float = 4.0
    percentile: float = 85.0
    margin: float = 5.0
    burst: float = 1.0


@dataclass(frozen=True, slots=True)
class UseEstimate:
    """How many of ``capacity`` CPUs the others may use next, all in cores.

    ``recent`` is the spread of their sums in the last two hours, ``daily`` that of the hourly peaks of the
    last day, ``largest`` the most that a known guest may use, ``now`` the largest of the present five
    minutes. ``known`` is the sum of the percentiles of the guests and the system, ``unknown`` that of the
    whole entitlements of guests without a history. ``untold`` says why nothing can be told; then all may be
    used.
    """

    capacity: float
    limits: EstimateLimits
    recent: UseSpread = field(default_factory=UseSpread)
    daily: UseSpread = field(default_factory=UseSpread)
    largest: float = 0.0
    now: float = 0.0
    known: float = 0.0
    known_guests: int = 0
    unknown: float = 0.0
    unknown_guests: int = 0
    untold: str = ""

    def by_spread(self, spread: UseSpread) -> float:
        """Mean and so many deviations."""
        return spread.mean + self.limits.sigma * spread.deviation

    @property
    def peaks(self) -> UseSpread:
        """The spread of hourly peaks, if the largest guest used all that it may in a few hours.

        24 hours tell little of what happens in one of a hundred.
        """
        few = self.limits.burst / 100
        burst = self.largest * math.sqrt(few * (1 - few))
        return UseSpread(self.daily.mean, math.hypot(self.daily.deviation, burst))

    @property
    def of_guests(self) -> float:
        """The sum of the percentiles, with the margin."""
        return self.known * (1 + self.limits.margin / 100)

    @property
    def peak(self) -> float:
        """What the others may use next: the largest of the terms, and whoever is not known whole."""
        if self.untold:
            return self.capacity
        terms = self.by_spread(self.recent), self.by_spread(self.peaks), self.now, self.of_guests
        return min(self.capacity, max(terms) + self.unknown)

    @property
    def left(self) -> float:
        """What they leave."""
        return self.capacity - self.peak

    def in_words(self, what: str = "shared CPUs of the zone") -> Iterator[tuple[str, float]]:
        """The terms, a sentence and its cores each; ``what`` there is of ``capacity``."""
        limits = self.limits
        yield what, self.capacity
        if self.untold:
            yield f"all of them count as used, as {self.untold}", self.capacity
            return
        for spread, what in (
            (self.recent, "the sums of the last two hours"),
            (
                self.peaks,
                "the hourly peaks of the last day, with the largest guest at all of its"
                f" {self.largest:g} in {limits.burst:g} % of hours",
            ),
        ):
            yield (
                f"{what}: {spread.mean:.2f} on average and {limits.sigma:g} times the deviation of"
                f" {spread.deviation:.2f}",
                self.by_spread(spread),
            )
        yield "the largest sum of the present five minutes", self.now
        yield (
            f"what {self.known_guests} guests and the system stay below in {limits.percentile:g} % of hours,"
            f" {self.known:.2f}, and {limits.margin:g} % more",
            self.of_guests,
        )
        yield (
            f"the largest of these and {self.unknown_guests} guests that are not known yet, whole",
            self.unknown,
        )
        yield "what the others may use", self.peak
        yield "what they leave", self.left


def estimate(
    history: ZoneHistory,
    entitlements: Mapping[str, float],
    capacity: float,
    limits: EstimateLimits,
    time: float,
) -> UseEstimate:
    """What the others may use of ``capacity`` CPUs next, at ``time``.

    ``entitlements`` are the cores that each guest of the zone may use, by uuid.
    """
    if untold := _untold(history, time):
        return UseEstimate(capacity, limits, untold=untold)
    known = unknown = largest = 0.0
    unknown_guests = 0
    peaks, hour = history.peaks, history.hour
    for uuid, entitled in entitlements.items():
        found = peaks.get(uuid)
        if found is None or len(found.hours) < KNOWN_HOURS:
            unknown += entitled
            unknown_guests += 1
        else:
            known += max(found.percentile, hour.get(uuid, 0.0))
            largest = max(largest, entitled)
    system = peaks.get(SYSTEM)
    known += max(0.0 if system is None else system.percentile, hour.get(SYSTEM, 0.0))
    return UseEstimate(
        capacity,
        limits,
        history.recent,
        history.daily,
        largest,
        history.period,
        known,
        len(entitlements) - unknown_guests,
        unknown,
        unknown_guests,
    )


def _untold(history: ZoneHistory, time: float) -> str:
    if not history.time:
        return "there is no reading yet"
    age = time - history.time
    if not 0 <= age <= STALE_SECONDS:
        return f"the last reading is {age:.0f} s old"
    if len(history.periods) < PERIODS or history.days_hours < HOURS:
        missing = (history.hour_began - time) / HOUR + HOURS - history.days_hours
        return (
            f"only {history.days_hours} of the {HOURS} hours that it takes are known, and"
            f" {max(missing, 0.0):.1f} are still to come"
        )
    return ""
