"""Lists the guests that hold dedicated CPUs and PCI devices, for commands, topology diagrams and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from compute_agent.controllers.isolation import isolation_level
from compute_agent.drivers.base import GuestThreads
from compute_agent.host.pci_devices import PciDevice, read_pci_device, read_pci_link
from compute_agent.inventory.attributes import NUMA_NODE, PCI_PATH
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.isolation.noise import TICK, NoiseReader
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import Allocation
from compute_agent.model.guest_settings import IsolationLevel
from compute_agent.model.messages import DriverError, GuestGoneError, on_one_line
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


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """An offered PCI device (or a card with virtual functions), and the guests that hold it.

    :ivar total: the number of units in the device's inventory: 1, or the number of virtual functions.
    :ivar node: the nearest NUMA node with CPUs; None if unknown.
    :ivar path: the root complex and the bridges above the device.
    :ivar device: the facts from the kernel; None if the device is gone, or was not read.
    :ivar holders: the held units, by name of a running guest or uuid of another consumer.
    """

    address: str
    resource_class: str
    total: int
    node: int | None
    path: str
    device: PciDevice | None
    holders: Mapping[str, int]

    @property
    def held_amount(self) -> int:
        """The number of units that consumers hold."""
        return sum(self.holders.values())

    @property
    def in_words(self) -> str:
        """The device and its holders as one line: ``0000:81:00.0 CUSTOM_NIC, 2 of 4 held: web-1, web-2``."""
        names = ", ".join(map(on_one_line, self.holders))
        if self.total == 1:
            return f"{self.address} {self.resource_class}: {names or 'free'}"
        held = f"{self.held_amount} of {self.total} held"
        return f"{self.address} {self.resource_class}, {held}: {names or 'free'}"


def list_devices(
    tree: ProviderTree,
    read_device: Callable[[str], PciDevice | None],
    holdings: Iterable[tuple[str, Allocation]],
) -> list[DeviceUse]:
    """List the PCI devices in the provider tree, sorted by PCI address.

    :param read_device: reads the facts of a device by its address, or returns None if the device is gone.
    :param holdings: pairs of a holder's name and the holder's allocation. Several holders can have the same
        name.
    """
    known, found = list(holdings), []
    for node in tree.device_providers:
        name, held = node.device_class, Counter[str]()
        for holder, allocation in known:
            held[holder] += allocation.get(node.uuid, {}).get(name, 0)
        number = node.attributes.get(NUMA_NODE)
        found.append(
            DeviceUse(
                node.device,
                name,
                node.inventories[name].total,
                int(number) if isinstance(number, float) else None,
                str(node.attributes.get(PCI_PATH, "")),
                read_device(node.device),
                +held,
            )
        )
    return sorted(found, key=lambda each: each.address)


class DeviceSource:
    """Lists the offered devices with their holders at each call. Any thread may use this object."""

    def __init__(self, root: Path, pipeline: GuestPipeline, registry: CollectorRegistry) -> None:
        """Register the gauges of devices.

        :param root: the folder that contains ``sys``, usually ``/``.
        """
        self._root = root
        self._pipeline = pipeline
        registry.register(self)

    def list_uses(self) -> list[DeviceUse]:
        """List the devices, with their facts from the kernel, sorted by address."""
        return self._list_uses(partial(read_pci_device, self._root))

    def _list_uses(self, read_device: Callable[[str], PciDevice | None]) -> list[DeviceUse]:
        views, unclaimed = self._pipeline.guest_views(), self._pipeline.unclaimed_holdings
        holdings = [(view.guest.name, view.allocation or {}) for view in views]
        # Consumers without a running guest keep their devices.
        holdings += [(consumer, one.allocation) for consumer, one in unclaimed.items()]
        return list_devices(self._pipeline.reported_tree, read_device, holdings)

    def collect(self) -> Iterator[Metric]:
        """Collect the numbers of held and free devices by class, and the state of PCI Express links."""
        units = GaugeMetricFamily(
            "compute_agent_pci_devices",
            "PCI devices and virtual functions that the host offers, held and free.",
            labels=["resource_class", "state"],
        )
        links = GaugeMetricFamily(
            "compute_agent_pci_link_share",
            "Present bandwidth of a PCI Express link, divided by the maximum of its device; idle devices may"
            " have slower links.",
            labels=["device"],
        )
        lanes = GaugeMetricFamily(
            "compute_agent_pci_degraded_links",
            "PCI Express links with fewer lanes than their devices support; `compute-agent status` names"
            " them.",
        )
        sums = Counter[tuple[str, str]]()
        degraded = 0
        # At a scrape, only the links of devices are read. The metrics do not need the other files.
        for use in self._list_uses(lambda address: None):
            for state, amount in (("held", use.held_amount), ("free", max(0, use.total - use.held_amount))):
                sums[use.resource_class, state] += amount
            link = read_pci_link(self._root, use.address)
            degraded += link.is_degraded
            if link.share is not None:
                links.add_metric([use.address], link.share)
        for labels, amount in sorted(sums.items()):
            units.add_metric(labels, amount)
        lanes.add_metric([], degraded)
        yield from (units, links, lanes)
