"""Offers of unused capacity, shares that are held back or withheld, and the files that keep them.

An offer shrinks at once, grows slowly, and is rarely written to Placement. After a broken promise less is
offered for a day. History and offers are kept in a file, so that a restarted agent need not learn for a day
again. CPUs are withheld for the time that a hypervisor takes from the host. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from compute_agent.kept_json import MappingFormat, read_number
from compute_agent.reclaim.estimate import HOURS, PERIODS, SUM, HourlyPeaks, ZoneHistory, spread_of


def term_row(provider: str, words: str, amount: float, unit: str) -> dict[str, Any]:
    """A row of ``compute-agent capacity show``: one term of a provider, by column."""
    return {"provider": provider, "term": words, "amount": round(amount, 2), "unit": unit}


# A sum of floats can miss a whole number by a little, which would cost a CPU or withhold one more.
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
        spread_of(periods),
        _parse_amount(kept["period"]),
        _parse_time(kept["period_began"]),
        peaks,
        spread_of(peaks.get(SUM, HourlyPeaks()).hours),
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


STOLEN_FILE: Final = "stolen.json"
"""The name of the file for stolen time in the state folder."""

WINDOW_SECONDS: Final = 900.0
"""The age in seconds up to which readings count."""

# With fewer readings one noisy minute would decide.
MIN_READINGS: Final = 3
"""The minimum number of readings for which the stolen part counts as known."""

# Each change is a write to Placement.
PAUSE_SECONDS: Final = 300.0
"""The shortest time between two changes, in seconds."""

# The value prevents changes by noise around a whole number, because the number of CPUs is rounded up
# (hysteresis).
RISE: Final = 0.5
"""The part of a CPU by which the stolen time must exceed the withheld CPUs before more are withheld."""


@dataclass(frozen=True, slots=True)
class StolenReserve:
    """The stolen time and the withheld CPUs of a zone. Times are seconds since the epoch.

    A host that is itself a virtual machine has less CPU time than its number of CPUs suggests, because its
    hypervisor runs other machines for a part of the time. The kernel shows this *stolen* time for each CPU
    (steal in /proc/stat, proc(5)). The agent takes the second largest stolen part of the last 15 minutes, so
    that one bad minute does not count. An example: a part of 12 % of 16 shared CPUs is 1.92 CPUs, so two CPUs
    are withheld.

    Invariants
        - Two changes are at least five minutes apart, so there are at most twelve in an hour.
        - More CPUs are withheld if the stolen time exceeds the withheld CPUs by half a CPU. Fewer CPUs are
          withheld if the stolen time was a whole CPU below the withheld CPUs for 15 minutes. Each such
          decrease is at most a tenth of the CPUs, or one CPU on a zone with fewer than 20.
        - While the stolen part is not known, as after a start of the agent, the number of withheld CPUs
          stays.

    :ivar readings: pairs of a time and the part of the CPUs' time that was stolen in the minute before.
    :ivar withheld: the number of withheld CPUs, since ``changed``.
    :ivar less_since: the time since which too many CPUs are withheld; 0 if the number is right.
    :ivar less: the highest number of CPUs that had to be withheld since ``less_since``.
    """

    readings: tuple[tuple[float, float], ...] = ()
    withheld: int = 0
    changed: float = 0.0
    less_since: float = 0.0
    less: int = 0

    @property
    def counted_part(self) -> float:
        """The second largest stolen part of the readings, so that one noisy minute does not count."""
        parts = sorted(part for _, part in self.readings)
        return 0.0 if not parts else parts[max(0, len(parts) - 2)]

    @property
    def is_known(self) -> bool:
        """Whether there are enough readings to know the stolen part."""
        return len(self.readings) >= MIN_READINGS

    def with_part(self, part: float | None, cpus: int, time: float) -> StolenReserve:
        """The reserve after one more reading.

        :param part: the stolen part of the CPUs' time, 0 to 1; None if unknown.
        :param cpus: the number of CPUs of the zone.
        :param time: the present time in seconds since the epoch.
        """
        kept = tuple(one for one in self.readings if 0 <= time - one[0] < WINDOW_SECONDS)
        if part is not None:
            kept = (*kept, (time, max(0.0, min(part, 1.0))))
        # After the clock was set back, nothing must wait until the old time is reached again.
        changed, since = min(self.changed, time), min(self.less_since, time)
        same = StolenReserve(kept, min(self.withheld, cpus), changed)
        cores = same.counted_part * cpus
        wanted = min(cpus, math.ceil(cores - _ROUNDING))
        may_change = time - changed >= PAUSE_SECONDS
        if same.is_known and cores > same.withheld + RISE and may_change:
            return StolenReserve(kept, wanted, time)
        if not same.is_known or wanted >= same.withheld:
            return same
        if not since:
            return replace(same, less_since=time, less=wanted)
        less = max(self.less, wanted)
        if time - since < ABOVE_SECONDS or not may_change:
            return replace(same, less_since=since, less=less)
        return StolenReserve(kept, max(less, same.withheld - max(1, math.floor(GROWTH * cpus))), time)

    def in_words(self, cpus: int) -> Iterator[tuple[str, float]]:
        """The stolen time as a term: a phrase and its cores."""
        if not self.is_known:
            yield "stolen CPU time: not known yet", 0.0
        else:
            yield (
                f"stolen of {cpus} CPUs: at most {100 * self.counted_part:.1f} % in all but one"
                " of the last 15 minutes",
                self.counted_part * cpus,
            )


def stolen_part(stolen: Mapping[int, float], cpus: frozenset[int]) -> float | None:
    """The mean stolen part of the time of these CPUs, 0 to 1; None if it is unknown for each of them."""
    known = [stolen[cpu] for cpu in cpus if cpu in stolen]
    return sum(known) / len(known) if known else None


def _parse_reserve(content: Any) -> StolenReserve:
    return StolenReserve(
        # The number is larger than the number of readings in a window. The number limits the memory that a
        # damaged file can use.
        tuple((read_number(time, 1e12), read_number(part, 1.0)) for time, part in content["readings"])[-100:],
        math.floor(read_number(content["withheld"], 1e6)),
        read_number(content["changed"], 1e12),
        read_number(content["less_since"], 1e12),
        math.floor(read_number(content["less"], 1e6)),
    )


RESERVES_FORMAT: Final[MappingFormat[StolenReserve]] = MappingFormat(VERSION, "zones", asdict, _parse_reserve)
"""The format of the file: the reserves of zones by the uuid of the zone's provider."""
