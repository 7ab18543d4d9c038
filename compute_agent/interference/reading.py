"""What guests did in one sample, as decisions see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compute_agent.qos.snapshot import GuestUsage


@dataclass(frozen=True, slots=True)
class GuestReading:
    """One guest. What is None or missing is not known.

    ``facts`` say who it is and what it is entitled to. ``cpus`` are those that it may run on, ``near`` with
    them those that share an L3 cache with one of them; ``limited`` says whether anybody holds it down now.
    ``cpu`` and ``delay`` are the cores that it used and waited for; pressures are in percent of the time,
    ``io`` in bytes a second, ``cpi`` are cycles for each instruction. ``bandwidth`` (bytes a second) and
    ``occupancy`` (bytes) are by L3 cache id as text.
    """

    facts: GuestUsage
    cpus: frozenset[int] = frozenset()
    limited: bool = False
    cpu: float | None = None
    delay: float | None = None
    cpu_pressure: float | None = None
    io_pressure: float | None = None
    io: float | None = None
    bandwidth: Mapping[str, float] = field(default_factory=dict)
    occupancy: Mapping[str, float] = field(default_factory=dict)
    cpi: float | None = None
    near: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class GuestSamples:
    """All guests by uuid, over the seconds up to ``time`` (monotonic)."""

    time: float
    readings: Mapping[str, GuestReading]
