"""Metrics of noise on dedicated CPUs: interrupts, and the time for which guests wait for their CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from compute_agent.controllers.isolation import isolation_level
from compute_agent.drivers.base import GuestThreads
from compute_agent.isolation.noise import TICK, NoiseReader
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest_settings import IsolationLevel
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.pipeline.worker import GuestPipeline

MAX_CPUS: Final = 1024
"""Maximum number of CPUs with series, from the lowest number up. Each CPU has three series."""

MAX_GUESTS: Final = 500
"""Maximum number of guests with series, in the order of uuids. Each guest has two series."""

MAX_THREADS: Final = 512
"""Maximum number of threads that are read for each guest, from the lowest thread id up.

A guest that is a plain process can have any number of threads.
"""

_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CpuHolder:
    """A guest with its dedicated CPUs, its isolation level, and the thread ids of its guest CPUs."""

    uuid: str
    name: str
    cpus: CpuSet
    level: IsolationLevel
    threads: frozenset[int]


class NoiseSource(Collector):
    """Lists guests with dedicated CPUs, and offers metrics of noise on these CPUs. Any thread may use it."""

    def __init__(
        self,
        in_force: ConfigurationInForce,
        pipeline: GuestPipeline,
        driver: GuestThreads,
        registry: CollectorRegistry,
    ) -> None:
        self._in_force = in_force
        self._pipeline = pipeline
        self._driver = driver
        registry.register(self)

    def list_holders(self) -> list[CpuHolder]:
        """List the guests with dedicated CPUs, in the order of their uuids."""
        found = []
        for view in self._pipeline.guest_views():
            if view.assignment is None or not view.assignment.held_cpus:
                continue
            guest = view.guest
            level = isolation_level(self._in_force.controllers, guest.settings)
            try:
                threads = frozenset(sorted(self._driver.vcpu_threads(guest))[:MAX_THREADS])
            except (GuestGoneError, DriverError, OSError):
                threads = frozenset()
            found.append(CpuHolder(guest.uuid, guest.name, view.assignment.held_cpus, level, threads))
        return found

    def describe(self) -> Iterator[Metric]:
        """Return the names and types of the metrics, which the registry needs before the first scrape."""
        return iter(_noise_families())

    def collect(self) -> Iterator[Metric]:
        """Collect the metrics of the dedicated CPUs of guests.

        If no guest has dedicated CPUs, no file is read.
        """
        interrupts, softirqs, ticks, involuntary, delay = families = _noise_families()
        holders = self.list_holders()[:MAX_GUESTS]
        if holders:
            cpus = sorted(frozenset[int]().union(*(holder.cpus for holder in holders)))[:MAX_CPUS]
            threads = frozenset[int]().union(*(holder.threads for holder in holders))
            reader = NoiseReader(Path(self._in_force.current.options.host.root))
            reading = reader.read_counters(frozenset(cpus), threads)
            for cpu, counters in reading.cpus.items():
                labels = (str(cpu),)
                ticks.add_metric(labels, counters.interrupts.get(TICK, 0))
                rest = sum(counters.interrupts.values()) - counters.interrupts.get(TICK, 0)
                interrupts.add_metric(labels, rest)
                softirqs.add_metric(labels, sum(counters.softirqs.values()))
            for holder in holders:
                found = [reading.threads[tid] for tid in holder.threads if tid in reading.threads]
                labels = (holder.uuid,)
                involuntary.add_metric(labels, sum(one.involuntary for one in found))
                waited = sum(one.delay_ns or 0 for one in found)
                delay.add_metric(labels, waited / _NANOSECONDS)
        yield from families


def _noise_families() -> tuple[CounterMetricFamily, ...]:
    return (
        CounterMetricFamily(
            "compute_agent_cpu_interrupts",
            "Interrupts, except timer interrupts, on a dedicated CPU of a guest.",
            labels=("cpu",),
        ),
        CounterMetricFamily(
            "compute_agent_cpu_softirqs", "Softirqs on a dedicated CPU of a guest.", labels=("cpu",)
        ),
        CounterMetricFamily(
            "compute_agent_cpu_ticks", "Timer interrupts on a dedicated CPU of a guest.", labels=("cpu",)
        ),
        CounterMetricFamily(
            "compute_agent_guest_involuntary_switches",
            "Involuntary context switches of guest CPUs, for guests with dedicated CPUs.",
            labels=("guest",),
        ),
        CounterMetricFamily(
            "compute_agent_guest_run_delay_seconds",
            "Time that guest CPUs waited for a host CPU, for guests with dedicated CPUs.",
            labels=("guest",),
        ),
    )
