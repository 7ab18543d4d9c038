"""Keeps the history of use, and estimates the next use from this history, with the terms of the estimate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import mul
from typing import Final

# Five minutes are short enough to follow load, and longer than the peaks of single readings.
PERIOD: Final = 300.0
"""The length of a period in seconds. The largest reading of a period counts."""

# The periods together are two hours.
PERIODS: Final = 24
"""The number of periods from which mean and deviation are computed."""

HOUR: Final = 3600.0
HOURS: Final = 24
"""The number of hours for which peaks are kept."""

# A uuid is neither empty nor an asterisk, so these keys cannot be those of a guest.
SYSTEM: Final = ""
"""The key for the use of the system, next to the uuids of guests."""

SUM: Final = "*"
"""The key for the sum of the use of all guests on ordinary capacity and of the system."""

_NO_GUESTS: Final = frozenset({SYSTEM, SUM})


@dataclass(frozen=True, slots=True)
class ZoneReading:
    """The use of a zone since the last reading, in cores.

    :ivar time: the time of the reading in seconds since the epoch.
    :ivar total: the use of all guests on ordinary capacity and of the system together.
    :ivar guests: the use of each guest by uuid, and of the system by :data:`SYSTEM` if it is known.
    """

    time: float
    total: float
    guests: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UseSpread:
    """The mean and the standard deviation of some values."""

    mean: float = 0.0
    deviation: float = 0.0


@dataclass(frozen=True, slots=True)
class HourlyPeaks:
    """The peaks of use in the last hours in cores, the oldest first, and a percentile of them."""

    hours: tuple[float, ...] = ()
    percentile: float = 0.0


@dataclass(frozen=True, slots=True)
class ZoneHistory:
    """The history of use of a zone. Times are seconds since the epoch, amounts are cores.

    :ivar time: the time of the last reading; 0 means that no reading was made.
    :ivar periods: the largest total of each of the last periods, the oldest first.
    :ivar recent: mean and deviation of ``periods``.
    :ivar period: the largest total of the period that began at ``period_began``.
    :ivar peaks: the hourly peaks of each guest, of :data:`SYSTEM` and of :data:`SUM`.
    :ivar daily: mean and deviation of the peaks of :data:`SUM`.
    :ivar hour: the largest use of each guest, of the system and of all together in the hour that began at
        ``hour_began``.
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
    def known_hours(self) -> int:
        """The number of hours of the last day for which there are peaks."""
        known = self.peaks.get(SUM)
        return 0 if known is None else len(known.hours)

    def with_reading(self, reading: ZoneReading, percentile: float) -> ZoneHistory:
        """The history with one more reading.

        Guests that are not in the reading have ended. A gap between readings adds nothing, because the use in
        the gap is not known. If the clock was set back, the history continues from the new time.

        :param percentile: the percentile of hourly peaks that is kept, in percent.
        """
        time = reading.time
        kept = self
        if not self.time or time < self.time:  # otherwise the period would last too long
            kept = replace(self, period_began=_round_down(time, PERIOD), hour_began=_round_down(time, HOUR))
        kept = kept._with_closed_periods(time, percentile)
        hour, guests = kept.hour, reading.guests
        present = {uuid: max(hour.get(uuid, 0.0), used) for uuid, used in guests.items()}
        present[SUM] = max(hour.get(SUM, 0.0), reading.total)
        # The system's use is not known while guests come and go, but its peak of the hour stays.
        if SYSTEM not in present and SYSTEM in hour:
            present[SYSTEM] = hour[SYSTEM]
        peaks = kept.peaks
        # This code runs for each zone in each minute. So the mapping is copied only if a guest has ended.
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

    def _with_closed_periods(self, time: float, percentile: float) -> ZoneHistory:
        """The history at ``time``, in which a period or an hour that has ended by then counts as past."""
        kept = self
        if time >= kept.period_began + PERIOD:
            periods = (*kept.periods, kept.period)[-PERIODS:]
            began = _round_down(time, PERIOD)
            kept = replace(kept, periods=periods, recent=spread_of(periods), period=0.0, period_began=began)
        if time >= kept.hour_began + HOUR:
            peaks = {
                uuid: _with_peak(kept.peaks.get(uuid, HourlyPeaks()), peak, percentile)
                for uuid, peak in kept.hour.items()
            }
            daily = spread_of(peaks.get(SUM, HourlyPeaks()).hours)
            kept = replace(kept, peaks=peaks, daily=daily, hour={}, hour_began=_round_down(time, HOUR))
        return kept


def _round_down(time: float, length: float) -> float:
    return math.floor(time / length) * length


def _with_peak(peaks: HourlyPeaks, peak: float, percentile: float) -> HourlyPeaks:
    hours = (*peaks.hours, peak)[-HOURS:]
    return HourlyPeaks(hours, percentile_of(hours, percentile))


def percentile_of(values: tuple[float, ...], percentile: float) -> float:
    """The smallest value such that at least ``percentile`` percent of the values are not larger."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percentile / 100) - 1)]


def spread_of(values: tuple[float, ...]) -> UseSpread:
    """The mean and standard deviation of values. Without a value, the mean and the deviation are 0."""
    if not values:
        return UseSpread()
    # The module statistics is exact, but thirty times slower.
    mean = sum(values) / len(values)
    # Rounding can make the difference negative.
    return UseSpread(mean, math.sqrt(max(0.0, sum(map(mul, values, values)) / len(values) - mean * mean)))


STALE_SECONDS: Final = 900.0
"""The age in seconds above which the last reading is no basis of an estimate."""

# The first hour contains the guest's start, which often says little about its later use.
KNOWN_HOURS: Final = 2
"""Hours of history that a guest needs before its measured use counts. Before that, all CPUs of the guest
count as used.
"""


@dataclass(frozen=True, slots=True)
class EstimateLimits:
    """The parameters that make an estimate more or less cautious.

    :ivar sigma: the number of standard deviations above a mean up to which use is expected.
    :ivar percentile: the percentile of a guest's hourly peaks that counts as its use, in percent.
    :ivar margin: the percent that is added to the sum of the percentiles.
    :ivar burst: the percent of hours in which the largest guest is assumed to use all of its CPUs.
    """

    sigma: float = 4.0
    percentile: float = 85.0
    margin: float = 5.0
    burst: float = 1.0


@dataclass(frozen=True, slots=True)
class UseEstimate:
    """The upper bound of the expected use by guests on ordinary capacity and by the system, with its terms.

    All amounts are cores.

    :ivar capacity: the shared CPUs of the zone.
    :ivar recent: mean and deviation of the totals in the last two hours.
    :ivar daily: mean and deviation of the hourly peaks of the last day.
    :ivar largest: the cores that the largest guest with a history may use.
    :ivar now: the largest total of the present period.
    :ivar known: the sum of the percentiles of guests with a history and of the system.
    :ivar known_guests: the number of guests with a history.
    :ivar unknown: the sum of the cores that guests without a history may use.
    :ivar unknown_guests: the number of guests without a history.
    :ivar untold: the reason why there is no estimate. All of ``capacity`` then counts as used.
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

    def upper_bound(self, spread: UseSpread) -> float:
        """The mean plus ``sigma`` deviations."""
        return spread.mean + self.limits.sigma * spread.deviation

    @property
    def burst_peaks(self) -> UseSpread:
        """The mean and deviation of hourly peaks if the largest guest used all of its CPUs in a few hours."""
        # An event that happens in one of a hundred hours is rarely among 24 measured hours. So its deviation
        # is added.
        few = self.limits.burst / 100
        burst = self.largest * math.sqrt(few * (1 - few))
        return UseSpread(self.daily.mean, math.hypot(self.daily.deviation, burst))

    @property
    def guest_bound(self) -> float:
        """The sum of the percentiles, with the margin added."""
        return self.known * (1 + self.limits.margin / 100)

    @property
    def expected_use(self) -> float:
        """The upper bound of use: the largest of the terms, plus all CPUs of guests without a history."""
        if self.untold:
            return self.capacity
        terms = self.upper_bound(self.recent), self.upper_bound(self.burst_peaks), self.now, self.guest_bound
        return min(self.capacity, max(terms) + self.unknown)

    @property
    def free_amount(self) -> float:
        """The cores that guests on ordinary capacity and the system leave unused."""
        return self.capacity - self.expected_use

    def in_words(self, what: str = "shared CPUs of the zone") -> Iterator[tuple[str, float]]:
        """The terms of the estimate, each as a phrase and its cores.

        :param what: the phrase for ``capacity``.
        """
        limits = self.limits
        yield what, self.capacity
        if self.untold:
            yield f"all count as used: {self.untold}", self.capacity
            return
        for spread, what in (
            (self.recent, "sums of the last two hours"),
            (
                self.burst_peaks,
                "hourly peaks of the last day, if the largest guest uses all of its"
                f" {self.largest:g} in {limits.burst:g} % of hours",
            ),
        ):
            yield (
                f"{what}: mean {spread.mean:.2f} and {limits.sigma:g} deviations of {spread.deviation:.2f}",
                self.upper_bound(spread),
            )
        yield "largest sum of the present five minutes", self.now
        yield (
            f"bound of {self.known_guests} guests and the system in {limits.percentile:g} % of hours:"
            f" {self.known:.2f}, and {limits.margin:g} % more",
            self.guest_bound,
        )
        yield f"on top of the largest: all of {self.unknown_guests} guests without a history", self.unknown
        yield "others may use", self.expected_use
        yield "others leave", self.free_amount


def estimate_use(
    history: ZoneHistory,
    entitlements: Mapping[str, float],
    capacity: float,
    limits: EstimateLimits,
    time: float,
) -> UseEstimate:
    """Estimate the next use of ``capacity`` CPUs by guests on ordinary capacity and the system.

    :param history: the history of the zone.
    :param entitlements: the cores that each guest of the zone may use, by uuid.
    :param capacity: the shared CPUs of the zone.
    :param time: the present time in seconds since the epoch.
    """
    if untold := _unknown_reason(history, time):
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
            # The present hour counts at once, so that a rise is not ignored until the hour ends.
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


def _unknown_reason(history: ZoneHistory, time: float) -> str:
    if not history.time:
        return "there is no reading yet"
    age = time - history.time
    if not 0 <= age <= STALE_SECONDS:
        return f"the last reading is {age:.0f} s old"
    if len(history.periods) < PERIODS or history.known_hours < HOURS:
        missing = (history.hour_began - time) / HOUR + HOURS - history.known_hours
        return (
            f"only {history.known_hours} of the {HOURS} necessary hours are known, and"
            f" {max(missing, 0.0):.1f} hours are missing"
        )
    return ""
