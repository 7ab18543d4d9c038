"""Metrics of each guest for Prometheus: its use, its limits and its allocation, read at each scrape.

Counters come from the guest's cgroup: ``cpu.stat``, ``*.pressure``, ``memory.stat`` and ``io.stat``
(Documentation/admin-guide/cgroup-v2.rst). For a guest without a cgroup of its own, only CPU time and memory
are known, from its processes (proc(5)). A value that the kernel does not report has no series.

The label ``guest`` of a series is the uuid of the guest. ``compute_agent_guest_info`` has name, class,
project and flavor for joins, so that a guest that gets another class keeps its other series.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from compute_agent.classes.guest_classes import QosClasses
from compute_agent.drivers.base import GuestThreads
from compute_agent.model.messages import printable_text
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.usage.rounds import (
    MeasuredGuest,
    MeasuringRound,
    guest_cpu_seconds,
    held_memory,
    parse_moved_bytes,
    parse_pressure,
)
from compute_agent.usage.subjects import SubjectFactory

PRESSURES: Final = ("cpu", "memory", "io")
"""The resources for which a cgroup has a file of pressure (Documentation/accounting/psi.rst)."""

_MICROSECONDS: Final = 1_000_000

CHOICE_SECONDS: Final = 60.0
"""Seconds between two choices of the guests that have series, on a host with more guests than the maximum."""

_MAX_LABEL: Final = 255
"""Maximum number of characters of a label. Tenants choose the names of guests, and a name can be long."""

RequestedLimits = Mapping[str, Mapping[str, Mapping[ThrottleControl, float]]]
"""The limits that triggers (watermarks and interference) request for guests: by trigger, uuid of the guest
and control. Each limit is in the unit of its control, such as cores."""


class GuestMetrics(Collector):
    """Collects the metrics of guests. Several threads of scrapes can use the object at once."""

    def __init__(
        self,
        guest_views: Callable[[], Sequence[GuestView]],
        driver: GuestThreads,
        classes: Callable[[], QosClasses],
        limits: Callable[[], RequestedLimits],
        max_guests: Callable[[], int | None],
        registry: CollectorRegistry,
        root: str = "/",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Register the metrics.

        :param guest_views: returns present copies of all guests.
        :param limits: returns the limits of guests that watermarks and interference request.
        :param max_guests: returns the maximum number of guests that get series in Prometheus; None means all
            guests.
        :param root: the folder that contains ``proc``, usually ``/``; it is not a prefix of cgroup paths.
        :param clock: returns monotonic seconds.
        """
        self._guest_views = guest_views
        self._subjects = SubjectFactory(driver)
        self._classes = classes
        self._limits = limits
        self._max_guests = max_guests
        self._root = root
        self._clock = clock
        self._lock = threading.Lock()
        self._counted: Mapping[str, float] = {}
        self._chosen: frozenset[str] = frozenset()
        self._next_choice = 0.0
        registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """The names and types of the metrics, so that the registry knows them before the first scrape."""
        return iter(_GuestFamilies().all_families)

    def collect(self) -> Iterator[Metric]:
        """The metrics of all guests.

        On a host with more guests than the maximum, only the guests with the highest recent CPU use have
        series.
        """
        families, most = _GuestFamilies(), self._max_guests()
        if most == 0:
            return iter(families.all_families)
        views = {view.guest.uuid: view for view in self._guest_views()}
        subjects = self._subjects.build_subjects([*views.values()], self._classes())
        now = MeasuringRound(self._clock(), self._root, subjects)
        counted = guest_cpu_seconds(now)
        chosen = self._choose_guests(frozenset(views), counted, most, now.time)
        for uuid in chosen:
            families.add_view(views[uuid])
        for owner, by_guest in self._limits().items():
            for uuid in chosen & by_guest.keys():
                families.add_limits(owner, uuid, by_guest[uuid])
        for subject in subjects:
            if (uuid := subject.facts.uuid) in chosen:
                families.add_use(uuid, counted.get(uuid), held_memory(now, subject))
                if subject.cgroup:
                    families.add_group(now, subject)
        return iter(families.all_families)

    def _choose_guests(
        self, guests: frozenset[str], counted: Mapping[str, float], most: int | None, now: float
    ) -> frozenset[str]:
        """The uuids of the guests with series: all guests, or the ``most`` guests with the largest CPU use.

        The guests are chosen again after ``CHOICE_SECONDS``.

        :param counted: the CPU time of each guest so far, in seconds.
        :param now: the present time in monotonic seconds.
        """
        if most is None or len(guests) <= most:
            return guests
        with self._lock:
            # Guests are not chosen at each scrape. With two servers of Prometheus, the choice would then
            # depend on the few seconds between two scrapes.
            if now >= self._next_choice:
                # If the guest was not there at the last choice, all of its CPU time counts.
                grown = {guest: counted.get(guest, 0.0) - self._counted.get(guest, 0.0) for guest in guests}
                # Idle guests are ordered by uuid, so that each choice takes the same guests.
                ranked = sorted(grown, key=lambda guest: (-grown[guest], guest))
                self._chosen, self._counted = frozenset(ranked[:most]), counted
                self._next_choice = now + CHOICE_SECONDS
            return self._chosen & guests


class _GuestFamilies:
    """Builds the metric families of one scrape."""

    def __init__(self) -> None:
        self._info = GaugeMetricFamily(
            "compute_agent_guest_info",
            "Name, class, project and flavor of a guest, as far as they are known. The value is always 1.",
            labels=("guest", "name", "qos_class", "project", "flavor"),
        )
        self._entitlement = GaugeMetricFamily(
            "compute_agent_guest_entitlement",
            "Amounts that a guest holds on this host in Placement, in the unit of the resource class.",
            labels=("guest", "resource_class"),
        )
        self._limit = GaugeMetricFamily(
            "compute_agent_guest_limit",
            "Limit of a guest that a trigger requests, in the unit of the limited resource (lever). The"
            " lowest limit is in force.",
            labels=("guest", "lever", "domain", "trigger"),
        )
        self._cpu = CounterMetricFamily(
            "compute_agent_guest_cpu_seconds", "CPU time that a guest has used.", labels=("guest",)
        )
        self._throttled = CounterMetricFamily(
            "compute_agent_guest_throttled_seconds",
            "Time in which a CPU quota stopped a guest.",
            labels=("guest",),
        )
        self._pressure = CounterMetricFamily(
            "compute_agent_guest_pressure_seconds",
            "Time in which some task of a guest waited for the resource.",
            labels=("guest", "resource"),
        )
        self._memory = GaugeMetricFamily(
            "compute_agent_guest_memory_bytes",
            "Memory of the host that a guest uses, without cached files.",
            labels=("guest",),
        )
        self._swap = GaugeMetricFamily(
            "compute_agent_guest_swap_bytes", "Memory of a guest in swap.", labels=("guest",)
        )
        self._faults = CounterMetricFamily(
            "compute_agent_guest_major_faults",
            "Accesses of a guest to memory that the kernel had to read from a disk first.",
            labels=("guest",),
        )
        self._io = CounterMetricFamily(
            "compute_agent_guest_io_bytes",
            "Bytes that a guest has read from the host's disks or written to them.",
            labels=("guest", "direction"),
        )
        #: The metric families, in the order in which a scrape lists them.
        self.all_families: tuple[Metric, ...] = (
            self._info,
            self._entitlement,
            self._limit,
            self._cpu,
            self._throttled,
            self._pressure,
            self._memory,
            self._swap,
            self._faults,
            self._io,
        )

    def add_view(self, view: GuestView) -> None:
        """Add series with the name, class, project and flavor of a guest, and with its allocated amounts."""
        guest, identity = view.guest, view.guest.identity
        known = (guest.name, guest.settings.qos_class, identity.project_id, identity.flavor)
        # Tenants choose names: a character that UTF-8 cannot encode would fail the whole scrape.
        labels = (printable_text(text)[:_MAX_LABEL] for text in known)
        self._info.add_metric((guest.uuid, *labels), 1)
        held: dict[str, int] = {}
        for amounts in (view.allocation or {}).values():
            for name, amount in amounts.items():
                held[name] = held.get(name, 0) + amount
        for name, amount in held.items():
            self._entitlement.add_metric((guest.uuid, name), amount)

    def add_limits(self, owner: str, guest: str, limits: Mapping[ThrottleControl, float]) -> None:
        """Add a series for each limit that a trigger requests for a guest."""
        for control, limit in limits.items():
            self._limit.add_metric((guest, control.lever, control.domain, owner), limit)

    def add_use(self, guest: str, cpu_seconds: float | None, memory: float | None) -> None:
        """Add series with the CPU time (seconds) and the memory (bytes) of a guest.

        A value of None adds no series.

        CPU time and memory are also known for a guest without a cgroup of its own.
        """
        if cpu_seconds is not None:
            self._cpu.add_metric((guest,), cpu_seconds)
        if memory is not None:
            self._memory.add_metric((guest,), memory)

    def add_group(self, now: MeasuringRound, subject: MeasuredGuest) -> None:
        """Add series with the counters of a guest's cgroup; a missing file adds no series."""
        guest, group = subject.facts.uuid, subject.cgroup
        times = now.parse_file(f"{group}/cpu.stat", parse_counters) or {}
        if "throttled_usec" in times:
            self._throttled.add_metric((guest,), times["throttled_usec"] / _MICROSECONDS)
        for resource in PRESSURES:
            waited = now.parse_file(f"{group}/{resource}.pressure", parse_pressure)
            if waited is not None:
                self._pressure.add_metric((guest, resource), waited / _MICROSECONDS)
        swapped = now.parse_file(f"{group}/memory.swap.current", int)
        if swapped is not None:
            self._swap.add_metric((guest,), swapped)
        memory = now.parse_file(f"{group}/memory.stat", parse_counters) or {}
        if "pgmajfault" in memory:
            self._faults.add_metric((guest,), memory["pgmajfault"])
        moved = now.parse_file(f"{group}/io.stat", parse_moved_bytes)
        for direction, amount in (moved or {}).items():
            self._io.add_metric((guest, direction), amount)


def parse_counters(text: str) -> dict[str, int]:
    """Parse a file of the kernel that has a name and a number in each line, such as cpu.stat.

    :raises ValueError: a line has another form.
    """
    return {name: int(number) for name, number in (line.split() for line in text.splitlines())}
