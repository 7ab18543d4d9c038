"""The sums of what is offered, term by term, as the command line shows them.

What is promised of what is left: down at once, up slowly, and written seldom.

Promises that were broken, and how much less is offered for a day after that: pure functions.

History and offers as they are kept, so that a new start of the agent need not learn for a day.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.kept_json import number
from compute_agent.reclaim.estimate import HOURS, PERIODS, SUM, HourlyPeaks, ZoneHistory, spread


def term_row(provider: str, words: str, amount: float, unit: str) -> dict[str, Any]:
    """A term of the sum of a provider, by the columns of ``compute-agent capacity show``."""
    return {"provider": provider, "term": words, "amount": round(amount, 2), "unit": unit}


_ROUNDING: Final = 1e-9

GROWTH: Final = 0.1
"""The part of the capacity by which an offer grows in ``GROWTH_SECONDS`` at most, and whenever it does."""

GROWTH_SECONDS: Final = 300.0

STEP: Final = 0.1
"""The part of what is published by which that has to grow to be published anew; one CPU at least."""

ABOVE_SECONDS: Final = 900.0
"""How long there has to be more before more is published."""


@dataclass(frozen=True, slots=True)
class CapacityOffer:
    """What is promised of a zone: ``published`` in whole CPUs.

    ``level`` is what could be, in cores, as of ``time``; ``above_since`` is since when enough more could be
    published (0: it cannot), and ``above`` the least that it could have been since then.
    """

    published: int = 0
    level: float = 0.0
    time: float = 0.0
    above_since: float = 0.0
    above: int = 0

    def after(self, left: float, capacity: float, time: float, growth: float = GROWTH) -> CapacityOffer:
        """The offer when the others leave ``left`` of ``capacity`` CPUs.

        ``growth`` is the part of these by which it grows at most.
        """
        elapsed = max(0.0, time - self.time) if self.time else 0.0
        grown = self.level + growth * capacity * min(elapsed / GROWTH_SECONDS, 1.0)
        level = max(0.0, min(left, grown, capacity))
        whole = math.floor(level + _ROUNDING)
        if whole < self.published:
            return CapacityOffer(whole, level, time)
        if whole < self.published + step_of(self.published):
            return replace(self, level=level, time=time, above_since=0.0)
        # What was in a gap nobody knows, and after a change of the clock it cannot be told how long it was.
        if not self.above_since or not 0 <= time - self.time <= GROWTH_SECONDS:
            return replace(self, level=level, time=time, above_since=time, above=whole)
        above = min(self.above, whole)
        if time - self.above_since < ABOVE_SECONDS:
            return replace(self, level=level, time=time, above=above)
        most = self.published + max(math.floor(growth * capacity), step_of(self.published))
        return CapacityOffer(min(above, most), level, time)


def step_of(published: int) -> int:
    """The CPUs by which an offer grows at least when it is published anew."""
    return max(1, math.ceil(STEP * published - _ROUNDING))


DAY_SECONDS: Final = 86_400.0
"""How long less is offered after a promise was broken."""

MAX_STEP_SECONDS: Final = 300.0
"""What counts of the time between two readings: neither an agent that is not there nor a clock that jumps
serves the day."""

LEAST: Final = 0.1
"""The part of the CPUs by which at least less is offered."""


_MARGIN_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class HeldBackShare:
    """What is held back of a zone for promises that were broken.

    ``cpus`` are the most that were missing in the day, ``count`` is how often some were. ``remaining`` is
    for how many seconds less is offered, as of ``time``.
    """

    cpus: float = 0.0
    count: int = 0
    remaining: float = 0.0
    time: float = 0.0

    def after(self, missing: float, times: int, time: float) -> HeldBackShare:
        """With so many promises broken since the last time, by ``missing`` CPUs at most."""
        passed = min(max(0.0, time - self.time), MAX_STEP_SECONDS) if self.time else 0.0
        remaining = max(0.0, self.remaining - passed)
        if times:
            cpus, count = (self.cpus, self.count) if remaining else (0.0, 0)
            return HeldBackShare(max(cpus, missing), count + times, DAY_SECONDS, time)
        return (
            HeldBackShare(self.cpus, self.count, remaining, time) if remaining else HeldBackShare(time=time)
        )

    def held_back(self, capacity: float) -> float:
        """How many of so many CPUs are not offered."""
        return min(capacity, max(self.cpus, LEAST * capacity)) if self.remaining else 0.0

    def in_words(self, capacity: float) -> Iterator[tuple[str, float]]:
        """The term, a sentence and its cores; none if nothing is held back."""
        if self.remaining:
            hours, times = self.remaining / 3600, "once" if self.count == 1 else f"{self.count} times"
            yield (
                f"held back for {hours:.1f} hours more, as the promise was broken {times}",
                self.held_back(capacity),
            )


def missing_cpus(used: float, promised: float, capacity: float) -> float:
    """How many of the promised CPUs of a zone are not there when others use so many of all."""
    missing = used + promised - capacity
    return missing if promised and missing > _MARGIN_ROUNDING else 0.0


FILE: Final = "capacity.json"
"""In the state folder; and of memory:"""
MEMORY_FILE: Final = "capacity_memory.json"

VERSION: Final = 1

_MAX_AMOUNT: Final = 1e12
"""Of cores, or of MiB."""


@dataclass(frozen=True, slots=True)
class ZoneState:
    """What is known and promised of a zone, and what is held back of it."""

    history: ZoneHistory = field(default_factory=ZoneHistory)
    offer: CapacityOffer = field(default_factory=CapacityOffer)
    breach: HeldBackShare = field(default_factory=HeldBackShare)


def dump(zones: Mapping[str, ZoneState]) -> bytes:
    """The states of zones, by the uuid of their provider, as the content of the file."""
    return kept_json.dump(VERSION, {"zones": {uuid: asdict(one) for uuid, one in zones.items()}})


def parse(content: bytes) -> dict[str, ZoneState]:
    """The states in the content of the file.

    :raises ValueError: it is something else.
    """
    return kept_json.parse(VERSION, content, _zones)


def _zones(document: Any) -> dict[str, ZoneState]:
    return {str(uuid): _zone(zone) for uuid, zone in document["zones"].items()}


def _zone(content: Any) -> ZoneState:
    kept, offered = content["history"], content["offer"]
    periods = tuple(map(_cores, kept["periods"]))[-PERIODS:]
    peaks = {
        str(uuid): HourlyPeaks(tuple(map(_cores, one["hours"]))[-HOURS:], _cores(one["percentile"]))
        for uuid, one in kept["peaks"].items()
    }
    history = ZoneHistory(
        _time(kept["time"]),
        periods,
        spread(periods) if periods else ZoneHistory().recent,
        _cores(kept["period"]),
        _time(kept["period_began"]),
        peaks,
        spread(peaks[SUM].hours) if SUM in peaks and peaks[SUM].hours else ZoneHistory().daily,
        {str(uuid): _cores(used) for uuid, used in kept["hour"].items()},
        _time(kept["hour_began"]),
    )
    offer = CapacityOffer(
        math.floor(_cores(offered["published"])),
        _cores(offered["level"]),
        _time(offered["time"]),
        _time(offered["above_since"]),
        math.floor(_cores(offered["above"])),
    )
    # Files of earlier agents have none.
    held = content.get("breach") or asdict(HeldBackShare())
    breach = HeldBackShare(
        _cores(held["cpus"]),
        math.floor(_cores(held["count"])),
        number(held["remaining"], DAY_SECONDS),
        _time(held["time"]),
    )
    return ZoneState(history, offer, breach)


def _cores(value: Any) -> float:
    return number(value, _MAX_AMOUNT)


def _time(value: Any) -> float:
    return number(value, 1e12)
