"""What guests suffer by, and what it is that others do to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from compute_agent.interference.reading import GuestReading
from compute_agent.qos import levers
from compute_agent.qos.levers import ThrottleLever

Values = Mapping[str, float]
"""By domain: an L3 cache id as text, or "" for the host as a whole."""

MIN_CPU: Final = 0.25
"""Cores that a guest has to want; of one that hardly runs nobody can tell whether it suffers."""

_MIN_BANDWIDTH: Final = 50e6
"""Bytes a second, likewise."""


def _own_cpus(reading: GuestReading) -> frozenset[int]:
    return reading.cpus


@dataclass(frozen=True, slots=True)
class InterferenceSignal:
    """One way to suffer; greater is worse.

    ``values`` are those of a guest in a sample. ``amounts`` are what a guest takes of the resource, and
    ``lever`` limits that. A violation is at least ``least`` above the mean, in the unit of the signal, and at
    least ``share`` of the mean above it. ``unit`` and ``scale`` are for people, as is what it ``needs``.
    ``first_steps`` are taken at once to begin with, where one would hardly be seen.
    Where values are of the host as a whole, who runs on none of the CPUs of ``reach`` has no part in it.
    """

    name: str
    words: str
    lever: ThrottleLever
    values: Callable[[GuestReading], Values]
    amounts: Callable[[GuestReading], Values]
    least: float
    share: float
    needs: str
    unit: str = "%"
    scale: float = 1.0
    reach: Callable[[GuestReading], frozenset[int]] = _own_cpus
    first_steps: int = 1

    def shown(self, value: float) -> str:
        """A value for people."""
        return f"{value * self.scale:.3g} {self.unit}"


def _run_delay(reading: GuestReading) -> Values:
    """The part of the time in which it wanted to run that it waited: of 2 cores 1 had, 0.5."""
    if reading.cpu is None or reading.delay is None:
        return {}
    wanted = reading.cpu + reading.delay
    return {"": reading.delay / wanted} if wanted >= MIN_CPU else {}


def _cpu_pressure(reading: GuestReading) -> Values:
    return _whole(reading.cpu_pressure) if (reading.cpu or 0.0) >= MIN_CPU else {}


def _io_pressure(reading: GuestReading) -> Values:
    return _whole(reading.io_pressure)


def _cpi(reading: GuestReading) -> Values:
    return _whole(reading.cpi) if (reading.cpu or 0.0) >= MIN_CPU else {}


def _bandwidth_cost(reading: GuestReading) -> Values:
    """CPU time for each gigabyte: memory that answers late keeps CPUs busy."""
    if (cpu := reading.cpu or 0.0) < MIN_CPU:
        return {}
    return {domain: 1e9 * cpu / rate for domain, rate in reading.bandwidth.items() if rate >= _MIN_BANDWIDTH}


def _misses(reading: GuestReading) -> Values:
    """Gigabytes for each second of CPU: what the cache has no more comes from memory."""
    if (cpu := reading.cpu or 0.0) < MIN_CPU:
        return {}
    return {domain: rate / cpu / 1e9 for domain, rate in reading.bandwidth.items() if rate >= _MIN_BANDWIDTH}


def _near_cpus(reading: GuestReading) -> frozenset[int]:
    return reading.near


def _cpu(reading: GuestReading) -> Values:
    return _whole(reading.cpu)


def _io(reading: GuestReading) -> Values:
    return _whole(reading.io)


def _bandwidth(reading: GuestReading) -> Values:
    return reading.bandwidth


def _occupancy(reading: GuestReading) -> Values:
    return reading.occupancy


def _whole(value: float | None) -> Values:
    return {} if value is None else {"": value}


_RESCTRL: Final = "resctrl with counters of bandwidth, a group for each guest, and [monitoring] interval"

SIGNALS: Final[Mapping[str, InterferenceSignal]] = {
    one.name: one
    for one in (
        InterferenceSignal(
            *("run_delay", "waits for CPUs", levers.CPU_QUOTA, _run_delay, _cpu, 0.1, 0.25),
            needs="/proc/PID/schedstat (CONFIG_SCHED_INFO)",
            scale=100,
        ),
        InterferenceSignal(
            *("cpu_pressure", "is under CPU pressure", levers.CPU_QUOTA, _cpu_pressure, _cpu, 10.0, 0.25),
            needs="guests in a cgroup v2 of their own with cpu.pressure",
        ),
        InterferenceSignal(
            *("io_pressure", "is under I/O pressure", levers.BLOCKIO, _io_pressure, _io, 10.0, 0.25),
            needs="guests in a cgroup v2 of their own with io.pressure and io.stat",
        ),
        InterferenceSignal(
            *("cpi", "takes more cycles for each instruction", levers.CPU_QUOTA, _cpi, _cpu, 0.0, 0.25),
            needs="hardware counters, and CAP_PERFMON",
            unit="cycles",
            reach=_near_cpus,
            first_steps=5,  # memory that is overrun stays so with a fifth less of one guest's CPU time
        ),
        InterferenceSignal(
            *("memory_bandwidth", "waits for memory", levers.MEMORY_BANDWIDTH, _bandwidth_cost, _bandwidth),
            *(0.0, 0.3),
            needs=_RESCTRL,
            unit="s/GB",
        ),
        InterferenceSignal(
            # 0.3 GB are five million lines a second; of fewer hardly anybody becomes slower by a twentieth.
            *("llc_occupancy", "misses the cache", levers.CACHE_WAYS, _misses, _occupancy, 0.3, 0.5),
            needs=_RESCTRL,
            unit="GB/s",
        ),
    )
}
