"""Signals of guests that suffer, the use of others that causes them, and the watches that name signals.

A reading has the values of one guest in a sample. A signal is a function of readings, and a row of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.throttling import levers
from compute_agent.throttling.levers import ThrottleLever
from compute_agent.usage.snapshot import GuestUsage


@dataclass(frozen=True, slots=True)
class GuestReading:
    """One guest. A value that is None or missing is not known.

    - ``facts`` are its class and allotments.
    - ``cpus`` are the CPUs that the guest may run on; ``near`` are these, and the CPUs that share an L3 cache
      with one of them.
    - ``limited``: some limit is in force for it.
    - ``cpu`` and ``delay`` are the cores that it used and waited for.
    - ``cpu_pressure`` and ``io_pressure`` are in percent of the time, ``io`` in bytes a second.
    - ``bandwidth`` (bytes a second) and ``occupancy`` (bytes) are by L3 cache id as text.
    - ``cpi`` are cycles for each instruction.
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


DomainValues = Mapping[str, float]
"""By domain: an L3 cache id as text, or "" for the host as a whole."""

MIN_CPU: Final = 0.25
"""Minimum demand of a guest in cores: a ratio of two small numbers is noise, and would make a victim of an
idle guest."""

_MIN_BANDWIDTH: Final = 50e6
"""Memory traffic of the guest in bytes a second, in the same form."""


def _own_cpus(reading: GuestReading) -> frozenset[int]:
    return reading.cpus


@dataclass(frozen=True, slots=True)
class InterferenceSignal:
    """One way to suffer; greater is worse.

    - ``values`` are the values of a guest in a sample, ``amounts`` the amounts of the resource that it takes.
    - ``lever`` limits the amounts.
    - A violation is at least ``least`` above the mean, in the unit of the signal, and ``share`` of the mean
      above it.
    - ``words``, ``unit``, ``scale`` and ``needs`` are for messages.
    - ``first_steps`` is the number of steps of the first limit, if one step would hardly have an effect.
    - ``reach``: if values are of the whole host, a guest on none of these CPUs does not contribute to them.
    """

    name: str
    words: str
    lever: ThrottleLever
    values: Callable[[GuestReading], DomainValues]
    amounts: Callable[[GuestReading], DomainValues]
    least: float
    share: float
    needs: str
    unit: str = "%"
    scale: float = 1.0
    reach: Callable[[GuestReading], frozenset[int]] = _own_cpus
    first_steps: int = 1

    def format_value(self, value: float) -> str:
        """A value as text for messages."""
        return f"{value * self.scale:.3g} {self.unit}"


def _run_delay(reading: GuestReading) -> DomainValues:
    """The waiting part of the time in which a guest wanted to run: 0.5 if it wanted 2 cores and had 1."""
    if reading.cpu is None or reading.delay is None:
        return {}
    # Of the time wanted, not of all: a guest that mostly sleeps would never seem to wait.
    wanted = reading.cpu + reading.delay
    return {"": reading.delay / wanted} if wanted >= MIN_CPU else {}


def _cpu_pressure(reading: GuestReading) -> DomainValues:
    # A pressure of a guest that hardly runs is one of its start and end.
    return _whole_host(reading.cpu_pressure) if (reading.cpu or 0.0) >= MIN_CPU else {}


def _io_pressure(reading: GuestReading) -> DomainValues:
    return _whole_host(reading.io_pressure)


def _cycles_signal(reading: GuestReading) -> DomainValues:
    return _whole_host(reading.cpi) if (reading.cpu or 0.0) >= MIN_CPU else {}


def _bandwidth_cost(reading: GuestReading) -> DomainValues:
    """CPU time for each gigabyte from memory: an answer that is late keeps a CPU busy."""
    # Time per byte, not bytes: a victim that is slowed down moves less, and would look calm.
    if (cpu := reading.cpu or 0.0) < MIN_CPU:
        return {}
    return {domain: 1e9 * cpu / rate for domain, rate in reading.bandwidth.items() if rate >= _MIN_BANDWIDTH}


def _miss_rate(reading: GuestReading) -> DomainValues:
    """Gigabytes from memory for each second of CPU: a line that the cache has lost comes from there."""
    # Per CPU time, so that a victim that simply works more does not look disturbed.
    if (cpu := reading.cpu or 0.0) < MIN_CPU:
        return {}
    return {domain: rate / cpu / 1e9 for domain, rate in reading.bandwidth.items() if rate >= _MIN_BANDWIDTH}


def _near_cpus(reading: GuestReading) -> frozenset[int]:
    return reading.near


def _cpu_use(reading: GuestReading) -> DomainValues:
    return _whole_host(reading.cpu)


def _io_rate(reading: GuestReading) -> DomainValues:
    return _whole_host(reading.io)


def _bandwidth_use(reading: GuestReading) -> DomainValues:
    return reading.bandwidth


def _cache_use(reading: GuestReading) -> DomainValues:
    return reading.occupancy


def _whole_host(value: float | None) -> DomainValues:
    return {} if value is None else {"": value}


_RESCTRL: Final = "resctrl with counters of bandwidth, a group for each guest, and [monitoring] interval"

SIGNALS: Final[Mapping[str, InterferenceSignal]] = {
    one.name: one
    for one in (
        InterferenceSignal(
            # A tenth of the time is what a guest notices; a quarter of the mean is beyond the usual ups and
            # downs.
            *("run_delay", "waits for CPUs", levers.CPU_QUOTA, _run_delay, _cpu_use, 0.1, 0.25),
            needs="/proc/PID/schedstat (CONFIG_SCHED_INFO)",
            scale=100,
        ),
        InterferenceSignal(
            # The same in percent, as the kernel counts pressures.
            *("cpu_pressure", "is under CPU pressure", levers.CPU_QUOTA, _cpu_pressure, _cpu_use, 10.0, 0.25),
            needs="guests in a cgroup v2 of their own with cpu.pressure",
        ),
        InterferenceSignal(
            *("io_pressure", "is under I/O pressure", levers.BLOCKIO, _io_pressure, _io_rate, 10.0, 0.25),
            needs="guests in a cgroup v2 of their own with io.pressure and io.stat",
        ),
        InterferenceSignal(
            *(
                "cpi",
                "takes more cycles for each instruction",
                levers.CPU_QUOTA,
                _cycles_signal,
                _cpu_use,
                0.0,
                0.25,
            ),
            needs="hardware counters, and CAP_PERFMON",
            unit="cycles",
            reach=_near_cpus,
            first_steps=5,  # a memory bus that is overrun stays so with a fifth less of one guest's CPU time
        ),
        InterferenceSignal(
            *(
                "memory_bandwidth",
                "waits for memory",
                levers.MEMORY_BANDWIDTH,
                _bandwidth_cost,
                _bandwidth_use,
            ),
            *(0.0, 0.3),
            needs=_RESCTRL,
            unit="s/GB",
        ),
        InterferenceSignal(
            # 0.3 GB are five million lines a second; with fewer hardly any guest is slower by a twentieth.
            *("llc_occupancy", "misses the cache", levers.CACHE_WAYS, _miss_rate, _cache_use, 0.3, 0.5),
            needs=_RESCTRL,
            unit="GB/s",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class InterferenceWatch:
    """One section ``[interference:NAME]``. ``victims`` are the classes that it is about (empty: all).

    Guests of ``consenting`` classes may be limited for others of their class. After ``escalate_after``
    verdicts against a guest for the same victim in a day ``escalate`` is called with its uuid.
    """

    name: str
    signal: InterferenceSignal
    preview: bool = True
    victims: frozenset[str] = frozenset()
    # Empty: no class has agreed to be limited for an equal.
    consenting: frozenset[str] = frozenset()
    escalate_after: int = 3
    escalate: Callable[[str], None] | None = None
