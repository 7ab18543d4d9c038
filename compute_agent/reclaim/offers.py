"""Offers of unused capacity, shares that are held back after broken promises, and the file that keeps them.

An offer shrinks at once, grows slowly, and is rarely written to Placement. After a broken promise less is
offered for a day. History and offers are kept in a file, so that a restarted agent need not learn for a day
again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from compute_agent.kept_json import MappingFormat, read_number
from compute_agent.reclaim.estimate import HOURS, PERIODS, SUM, HourlyPeaks, ZoneHistory, spread_of


def term_row(provider: str, words: str, amount: float, unit: str) -> dict[str, Any]:
    """A row of ``compute-agent capacity show``: one term of a provider, by column."""
    return {"provider": provider, "term": words, "amount": round(amount, 2), "unit": unit}


# A sum of floats can miss a whole number by a little, which would cost a CPU.
_ROUNDING: Final = 1e-9

# With this value, an offer needs 50 minutes to grow to the whole capacity. So a pause of the load for some
# minutes does not lead to a much larger offer.
GROWTH: Final = 0.1
"""The part of the capacity by which an offer can grow in ``GROWTH_SECONDS``, and in one change."""

GROWTH_SECONDS: Final = 300.0

# Each published change is a write to Placement, so small changes are not published.
STEP: Final = 0.1
"""The smallest growth that is published, as a part of the published amount; at least one CPU."""

ABOVE_SECONDS: Final = 900.0
"""The seconds for which a larger amount must last before it is published."""


@dataclass(frozen=True, slots=True)
class CapacityOffer:
    """The offer of a zone: the CPUs that are promised to guests on reclaimed CPUs.

    :ivar published: the promised number of whole CPUs.
    :ivar level: the cores that could be promised, at ``time``.
    :ivar time: the time of the offer in seconds since the epoch.
    :ivar above_since: the time since which a larger amount could be published; 0 if no larger amount can be
        published.
    :ivar above: the smallest amount that could have been published since ``above_since``.
    """

    published: int = 0
    level: float = 0.0
    time: float = 0.0
    above_since: float = 0.0
    above: int = 0

    def next_offer(self, left: float, capacity: float, time: float, growth: float = GROWTH) -> CapacityOffer:
        """The offer after one more reading.

        :param left: the cores that guests on ordinary capacity and the system leave unused.
        :param capacity: the shared CPUs of the zone.
        :param time: the present time in seconds since the epoch.
        :param growth: the part of the capacity by which the offer can grow at most.
        """
        elapsed = max(0.0, time - self.time) if self.time else 0.0
        # After a longer gap between readings, the offer grows only as much as in one interval of
        # GROWTH_SECONDS.
        grown = self.level + growth * capacity * min(elapsed / GROWTH_SECONDS, 1.0)
        level = max(0.0, min(left, grown, capacity))
        whole = math.floor(level + _ROUNDING)
        if whole < self.published:
            return CapacityOffer(whole, level, time)
        # This growth is too small to be published, so the waiting time begins again.
        if whole < self.published + step_of(self.published):
            return replace(self, level=level, time=time, above_since=0.0)
        # The amounts during a gap between readings are not known, and after a change of the clock the length
        # of the gap is not known either. So the waiting time begins again.
        if not self.above_since or not 0 <= time - self.time <= GROWTH_SECONDS:
            return replace(self, level=level, time=time, above_since=time, above=whole)
        above = min(self.above, whole)
        if time - self.above_since < ABOVE_SECONDS:
            return replace(self, level=level, time=time, above=above)
        most = self.published + max(math.floor(growth * capacity), step_of(self.published))
        return CapacityOffer(min(above, most), level, time)


def step_of(published: int) -> int:
    """The smallest growth of an offer that is published, in CPUs."""
    return max(1, math.ceil(STEP * published - _ROUNDING))


# Less is offered for a day, because load that broke a promise often returns at the same hour.
DAY_SECONDS: Final = 86_400.0
"""The seconds of readings for which less is offered after a broken promise."""

# Neither a stopped agent nor a clock that jumps may shorten the day.
MAX_STEP_SECONDS: Final = 300.0
"""The longest time between two readings that counts towards ``DAY_SECONDS``, in seconds."""

LEAST: Final = 0.1
"""The smallest part of the CPUs that is held back after a broken promise."""

# Readings come from counters of clock ticks, so their sums are less exact than other sums.
_MARGIN_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class HeldBackShare:
    """The CPUs of a zone that are not offered because an earlier offer was too large (a broken promise).

    :ivar cpus: the highest number of CPUs that were missing within the day.
    :ivar count: the number of broken promises within the day.
    :ivar remaining: the seconds after ``time`` for which less is still offered.
    :ivar time: the time of the last reading, in seconds since the epoch.
    """

    cpus: float = 0.0
    count: int = 0
    remaining: float = 0.0
    time: float = 0.0

    def after_breaches(self, missing: float, times: int, time: float) -> HeldBackShare:
        """The share after one more reading.

        :param missing: the highest number of promised CPUs that were missing.
        :param times: the number of promises that were broken since the last reading.
        :param time: the present time in seconds since the epoch.
        """
        passed = min(max(0.0, time - self.time), MAX_STEP_SECONDS) if self.time else 0.0
        remaining = max(0.0, self.remaining - passed)
        if times:  # each new broken promise starts the day from its beginning
            cpus, count = (self.cpus, self.count) if remaining else (0.0, 0)
            return HeldBackShare(max(cpus, missing), count + times, DAY_SECONDS, time)
        return (
            HeldBackShare(self.cpus, self.count, remaining, time) if remaining else HeldBackShare(time=time)
        )

    def held_back(self, capacity: float) -> float:
        """The CPUs of ``capacity`` that are not offered."""
        return min(capacity, max(self.cpus, LEAST * capacity)) if self.remaining else 0.0

    def in_words(self, capacity: float) -> Iterator[tuple[str, float]]:
        """Yield the held back share as a term: a phrase and its cores. Yield nothing without a share."""
        if self.remaining:
            hours, times = self.remaining / 3600, "once" if self.count == 1 else f"{self.count} times"
            yield (
                f"held back for {hours:.1f} more hours, since the promise was broken {times}",
                self.held_back(capacity),
            )


def missing_cpus(used: float, promised: float, capacity: float) -> float:
    """The promised CPUs that are missing, in cores; 0 if no CPU is missing.

    :param used: the cores that the system uses, together with the guests that hold no reclaimed capacity.
    :param promised: the CPUs that are promised.
    :param capacity: the shared CPUs of the zone.
    """
    missing = used + promised - capacity
    return missing if promised and missing > _MARGIN_ROUNDING else 0.0


FILE: Final = "capacity.json"
"""The name of the file for CPUs in the state folder."""
MEMORY_FILE: Final = "capacity_memory.json"
"""The name of the file for memory in the state folder."""

VERSION: Final = 1

_MAX_AMOUNT: Final = 1e12
"""The largest plausible number of cores or MiB."""


@dataclass(frozen=True, slots=True)
class ZoneState:
    """The history and the offer of a zone, and the share that is held back after broken promises."""

    history: ZoneHistory = field(default_factory=ZoneHistory)
    offer: CapacityOffer = field(default_factory=CapacityOffer)
    breach: HeldBackShare = field(default_factory=HeldBackShare)


def _parse_zone(content: Any) -> ZoneState:
    kept, offered = content["history"], content["offer"]
    periods = tuple(map(_parse_amount, kept["periods"]))[-PERIODS:]
    peaks = {
        str(uuid): HourlyPeaks(
            tuple(map(_parse_amount, one["hours"]))[-HOURS:], _parse_amount(one["percentile"])
        )
        for uuid, one in kept["peaks"].items()
    }
    # Means and deviations are computed again and not read, so that they cannot contradict the values.
    history = ZoneHistory(
        _parse_time(kept["time"]),
        periods,
        spread_of(periods) if periods else ZoneHistory().recent,
        _parse_amount(kept["period"]),
        _parse_time(kept["period_began"]),
        peaks,
        spread_of(peaks[SUM].hours) if SUM in peaks and peaks[SUM].hours else ZoneHistory().daily,
        {str(uuid): _parse_amount(used) for uuid, used in kept["hour"].items()},
        _parse_time(kept["hour_began"]),
    )
    offer = CapacityOffer(
        math.floor(_parse_amount(offered["published"])),
        _parse_amount(offered["level"]),
        _parse_time(offered["time"]),
        _parse_time(offered["above_since"]),
        math.floor(_parse_amount(offered["above"])),
    )
    # Files of earlier releases do not have this part.
    held = content.get("breach") or asdict(HeldBackShare())
    breach = HeldBackShare(
        _parse_amount(held["cpus"]),
        math.floor(_parse_amount(held["count"])),
        read_number(held["remaining"], DAY_SECONDS),
        _parse_time(held["time"]),
    )
    return ZoneState(history, offer, breach)


def _parse_amount(value: Any) -> float:
    return read_number(value, _MAX_AMOUNT)


def _parse_time(value: Any) -> float:
    return read_number(value, 1e12)


ZONES_FORMAT: Final[MappingFormat[ZoneState]] = MappingFormat(VERSION, "zones", asdict, _parse_zone)
"""The format of the files for CPUs and memory: the states of zones by the uuid of the zone's provider."""
