"""What is remembered of use, reading by reading."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
