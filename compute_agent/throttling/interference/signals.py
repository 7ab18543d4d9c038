"""Signals, which measure how much a guest suffers from other guests, and watches, which select signals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.levers import (
    BLOCKIO,
    CACHE_WAYS,
    CPU_QUOTA,
    MEMORY_BANDWIDTH,
    ThrottleLever,
    ThrottleSteps,
)
from compute_agent.usage.snapshot import GuestUsage


@dataclass(frozen=True, slots=True)
class GuestReading:
    """The measured values of one guest since the previous sample.

    A value of None, or a missing key, means that the value is unknown.

    - ``facts`` has the class, rank and allotments of the guest.
    - ``cpus`` are the CPUs that the guest can run on. ``near`` also has the CPUs that share an L3 cache with
      one of them.
    - ``limited``: at least one limit is in force for the guest.
    - ``cpu`` is the CPU time that the guest's threads used, and ``delay`` the time that they waited for a
      CPU. The unit of both values is seconds a second.
    - ``cpu_pressure`` and ``io_pressure`` are in percent of the time.
    - ``io`` is in bytes a second, of reads and writes together.
    - ``bandwidth`` is in bytes a second and ``occupancy`` in bytes. Both mappings have the L3 cache id, as
      text, as key.
    - ``cpi`` is the number of CPU cycles per instruction.
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
    """One sample: the readings of all guests by uuid, up to ``time`` in monotonic seconds."""

    time: float
    readings: Mapping[str, GuestReading]


DomainValues = Mapping[str, float]
"""Values by domain: an L3 cache id as text, or "" for the host as a whole."""

MIN_CPU: Final = 0.25
"""Minimum CPU use, in cores, of a guest that can have signals of CPUs, memory or caches.

The ratio of two small numbers is noise, and an idle guest would seem to be a victim.
"""

_MIN_BANDWIDTH: Final = 50e6
"""Minimum memory bandwidth, in bytes a second, of a guest that can have signals of caches or memory. Below
this bandwidth, the ratio would be noise.
"""


@dataclass(frozen=True, slots=True)
class InterferenceSignal:
    """A measure of how much a guest suffers from other guests; a greater value is worse.

    - ``values`` computes from a reading how much the guest suffers, by domain.
    - ``amounts`` computes from a reading how much of the resource the guest uses, by domain.
    - ``lever`` limits these amounts.
    - ``least`` and ``share``: a violation has to exceed the mean by at least ``least`` (in the unit of
      ``values``), and by at least ``share`` of the mean.
    - ``words`` describes the disturbance in messages. ``needs`` says what the host needs to measure the
      signal.
    - ``unit`` and ``scale`` are the unit and the factor of values in messages.
    - ``first_steps`` is the number of steps between a guest's use and its first limit.
    - ``reaches_near``: a guest can also disturb a victim from CPUs that share an L3 cache with the victim's
      CPUs. Signals of a cache or NUMA node have domains, and do not use the field.
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
    reaches_near: bool = False
    first_steps: int = 1

    def format_value(self, value: float) -> str:
        """A value of the signal as text for messages, with its unit."""
        return f"{value * self.scale:.3g} {self.unit}"

    def reached_cpus(self, victim: GuestReading) -> frozenset[int]:
        """The CPUs on which another guest can disturb a victim; only guests on these CPUs are suspects."""
        return victim.near if self.reaches_near else victim.cpus

    def first_limit(self, suspect: GuestReading, knob: ThrottleControl, steps: ThrottleSteps) -> float | None:
        """The first limit of a suspected guest; None if no lower limit is possible.

        The limit is ``first_steps`` steps below the guest's use of the resource. If the use is unknown, the
        steps begin at the allotment, and can have no effect. A guest near its lowest limit gets fewer steps.
        """
        allotment = suspect.facts.allotments[knob]
        used, limit = self.amounts(suspect).get(knob.domain), allotment.full
        # The steps begin at the use: a guest with 16 guest CPUs that uses 4 would not notice a limit of 13.
        if used is not None and allotment.per_unit is not None:
            limit = min(limit, used / allotment.per_unit)
        found = None
        for _ in range(self.first_steps):
            found = self.lever.down(limit if found is None else found, allotment, steps) or found
        return found


def _run_delay(reading: GuestReading) -> DomainValues:
    """The share of its needed CPU time that a guest did not get: 0.5 if it needed 2 cores and got 1."""
    if reading.cpu is None or reading.delay is None:
        return {}
    # The value is a share of the demand, and not of the elapsed time, because a guest that mostly sleeps
    # would never seem to wait.
    wanted = reading.cpu + reading.delay
    return {"": reading.delay / wanted} if wanted >= MIN_CPU else {}


def _cpu_pressure(reading: GuestReading) -> DomainValues:
    # Without the minimum MIN_CPU, the pressure while a guest starts or ends would count.
    return _whole_host(reading.cpu_pressure) if (reading.cpu or 0.0) >= MIN_CPU else {}


def _cpi_value(reading: GuestReading) -> DomainValues:
    return _whole_host(reading.cpi) if (reading.cpu or 0.0) >= MIN_CPU else {}


def _bandwidth_cost(reading: GuestReading) -> DomainValues:
    """CPU seconds per gigabyte of memory traffic, by L3 cache: waits for slow memory take CPU time, too."""
    # The traffic itself is no signal, because a disturbed guest moves fewer bytes, and would look
    # undisturbed.
    return {domain: 1 / rate for domain, rate in _miss_rate(reading).items()}


def _miss_rate(reading: GuestReading) -> DomainValues:
    """Gigabytes of memory traffic per CPU second, by L3 cache: displaced lines are read again."""
    # The rate is per CPU time, so that a guest that works more does not look disturbed.
    if (cpu := reading.cpu or 0.0) < MIN_CPU:
        return {}
    return {domain: rate / cpu / 1e9 for domain, rate in reading.bandwidth.items() if rate >= _MIN_BANDWIDTH}


def _cpu_use(reading: GuestReading) -> DomainValues:
    return _whole_host(reading.cpu)


def _whole_host(value: float | None) -> DomainValues:
    return {} if value is None else {"": value}


_RESCTRL: Final = "resctrl with counters of bandwidth, a group for each guest, and [monitoring] interval"

SIGNALS: Final[Mapping[str, InterferenceSignal]] = {
    one.name: one
    for one in (
        InterferenceSignal(
            # A tenth of the time is noticeable for a guest, and a quarter of the mean is more than the usual
            # variation.
            "run_delay",
            "waits for CPUs",
            CPU_QUOTA,
            values=_run_delay,
            amounts=_cpu_use,
            least=0.1,
            share=0.25,
            needs="/proc/PID/schedstat (CONFIG_SCHED_INFO)",
            scale=100,
        ),
        InterferenceSignal(
            # The two numbers are those of run_delay. The first is 10.0 instead of 0.1, because the unit of
            # pressures is percent.
            "cpu_pressure",
            "is under CPU pressure",
            CPU_QUOTA,
            values=_cpu_pressure,
            amounts=_cpu_use,
            least=10.0,
            share=0.25,
            needs="guests in a cgroup v2 of their own with cpu.pressure",
        ),
        InterferenceSignal(
            "io_pressure",
            "is under I/O pressure",
            BLOCKIO,
            values=lambda reading: _whole_host(reading.io_pressure),
            amounts=lambda reading: _whole_host(reading.io),
            least=10.0,
            share=0.25,
            needs="guests in a cgroup v2 of their own with io.pressure and io.stat",
        ),
        InterferenceSignal(
            "cpi",
            "takes more cycles for each instruction",
            CPU_QUOTA,
            values=_cpi_value,
            amounts=_cpu_use,
            least=0.0,
            share=0.25,
            needs="hardware counters, and CAP_PERFMON",
            unit="cycles",
            reaches_near=True,
            first_steps=5,  # a single step of a fifth does not relieve an overloaded memory bus
        ),
        InterferenceSignal(
            "memory_bandwidth",
            "waits for memory",
            MEMORY_BANDWIDTH,
            values=_bandwidth_cost,
            amounts=lambda reading: reading.bandwidth,
            least=0.0,
            share=0.3,
            needs=_RESCTRL,
            unit="s/GB",
        ),
        InterferenceSignal(
            # 0.3 GB are five million cache lines of 64 bytes. With fewer misses a second, hardly any guest is
            # slower by 5 %.
            "llc_occupancy",
            "misses the cache",
            CACHE_WAYS,
            values=_miss_rate,
            amounts=lambda reading: reading.occupancy,
            least=0.3,
            share=0.5,
            needs=_RESCTRL,
            unit="GB/s",
        ),
    )
}


@dataclass(frozen=True, slots=True)
class InterferenceWatch:
    """One section ``[interference:NAME]``: the disturbance to look for, and the guests to protect from it.

    - ``preview``: decisions are only reported.
    - ``victims`` are the classes of guests to protect from disturbance; empty for all classes.
    - ``consenting`` are classes of guests that can also be limited for guests of the same class.
    - ``escalate`` is called with the uuid of a guest after ``escalate_after`` verdicts against it for the
      same victim in a day. If ``escalate`` is None, no command is configured.
    """

    name: str
    signal: InterferenceSignal
    preview: bool = True
    victims: frozenset[str] = frozenset()
    # ``consenting`` is empty by default, because a limit for an equal guest needs the operator's consent.
    consenting: frozenset[str] = frozenset()
    escalate_after: int = 3
    escalate: Callable[[str], None] | None = None
