"""History and offers as they are kept, so that a new start of the agent need not learn for a day."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from compute_agent import kept_json
from compute_agent.capacity.breach import DAY_SECONDS, HeldBackShare
from compute_agent.capacity.history import HOURS, PERIODS, SUM, HourlyPeaks, ZoneHistory, spread
from compute_agent.capacity.offer import CapacityOffer
from compute_agent.kept_json import number

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
