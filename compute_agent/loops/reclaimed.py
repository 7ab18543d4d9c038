"""The reclaim loop: measures shared CPUs and memory that guests leave unused, and offers them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg
from prometheus_client import Counter

from compute_agent.drivers.base import GuestThreads
from compute_agent.events.event import EventRecorder
from compute_agent.inventory.memory import reclaimable_cpus, with_offers
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.loops import collectors, offers
from compute_agent.loops.base import AgentLoop, ReloadedConfiguration, WakeReport
from compute_agent.loops.collectors import CollectorLoops
from compute_agent.loops.offers import (
    ACT,
    OFF,
    MeasuredZone,
    ReclaimedResource,
    ReclaimEstimator,
    ReclaimGauges,
    StolenTime,
)
from compute_agent.loops.usage import UseReader, has_memory_of_rest, lives_on_rest
from compute_agent.model.resource import MEMORY, RECLAIMED_MEMORY, RECLAIMED_VCPU
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.reclaim.estimate import EstimateLimits
from compute_agent.reclaim.offers import FILE, MEMORY_FILE
from compute_agent.reclaim.zone import HostUse, guest_entitlements, memory_entitlements, read_zone
from compute_agent.report.held_amounts import WithheldUnits
from compute_agent.threads import NO_LOCK, PeriodicTask, ThreadSpec
from compute_agent.throttling.watermarks.metrics import CPU_ORDER, MEMORY_ORDER, OVERSOLD
from compute_agent.usage.rounds import OversoldCapacity

LOG = logging.getLogger(__name__)

INTERVAL: Final = 60.0
"""Seconds between two measurements."""

CAPACITY_THREAD: Final = ThreadSpec(
    "capacity",
    INTERVAL,
    "measures unused CPUs and memory, stolen time and amounts of collectors, and offers them",
    NO_LOCK,
    "files of the host and of guests; files of the state folder; wakes ``report``",
)

_MIB: Final = 1 << 20

MEMORY_PRESSURE: Final = "memory_pressure"
"""A metric of memory. The agent recognises all other metrics of memory by the order in which they limit
guests. This metric does not have that order.
"""


class ReclaimLoop(AgentLoop):
    """Measures unused capacity each minute. An offer expires 15 minutes after the last measurement."""

    def __init__(
        self,
        conf: ReloadedConfiguration,
        pipeline: GuestPipeline,
        driver: GuestThreads,
        recorder: EventRecorder,
        metrics: AgentMetrics,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        changed: WakeReport = lambda: None,
        cold: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """Prepare the loop.

        :param changed: called after an offer has changed, so that the change is reported.
        :param cold: returns the bytes of cold memory by uuid of the guest; see ColdMemoryLoop.
        :param clock: returns seconds since the epoch, for times in the saved history.
        :param monotonic: returns monotonic seconds, for the time between two measurements.
        """
        self._conf = conf
        self._pipeline = pipeline
        self.reader = UseReader(
            pipeline, driver, lambda: self._conf.settings.classes, conf.options.host.root, monotonic, cold
        )
        self._changed = changed
        self._clock = clock
        folder = Path(conf.options.state_path)
        gauges = ReclaimGauges(metrics.registry)
        cpus = ReclaimedResource(RECLAIMED_VCPU, "CPUs", "shared CPUs of the zone", folder / FILE)
        memory = ReclaimedResource(RECLAIMED_MEMORY, "MiB", "MiB of the zone", folder / MEMORY_FILE)
        self.cpus, self.memory = (ReclaimEstimator(one, recorder, gauges) for one in (cpus, memory))
        self.switch_estimators()
        self._stolen = StolenTime(self._capacity.steal, folder, recorder, metrics.registry)
        self._collectors = CollectorLoops(
            self._capacity.collectors, folder, recorder, metrics.registry, clock
        )
        self._thread = PeriodicTask(
            CAPACITY_THREAD,
            self.run_round,
            lambda took: INTERVAL,
            self._count_failure,
            is_needed=self.is_needed,
            rest=self.switch_estimators,
            keep=self.save_estimates,
        )
        self._failures = Counter(
            "compute_agent_capacity_round_failures",
            "Failed readings of unused CPUs and memory.",
            registry=metrics.registry,
        )

    @property
    def _capacity(self) -> Any:
        """The options of ``[capacity]``."""
        return self._conf.options.capacity

    def is_needed(self) -> bool:
        """Whether anything has to be measured, because an option is on."""
        capacity = self._capacity
        return capacity.mode != OFF or capacity.steal != OFF or bool(capacity.collectors)

    @property
    def _estimate_limits(self) -> EstimateLimits:
        capacity = self._capacity
        return EstimateLimits(capacity.sigma, capacity.percentile, capacity.margin, capacity.burst)

    @property
    def _active_estimators(self) -> tuple[ReclaimEstimator, ...]:
        """The estimators that the options switch on."""
        if self._capacity.mode == OFF:
            return ()
        return (self.cpus, self.memory) if self._capacity.memory else (self.cpus,)

    # For other threads

    def start(self) -> None:
        """Start the threads of collectors and of the loop, unless all is switched off."""
        self._collectors.start()
        self._thread.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration from the next round on."""
        self.use_options(conf)
        self.start()

    def use_options(self, conf: ReloadedConfiguration) -> None:
        """Use another configuration from the next round on, without starting a thread."""
        self._conf = conf
        self._stolen.switch_mode(self._capacity.steal)
        self._collectors.use_collectors(self._capacity.collectors)

    @property
    def is_running(self) -> bool:
        """Whether the thread of the loop runs."""
        return self._thread.is_running

    def save_estimates(self) -> None:
        """Save the history of all estimators, and stop the collectors."""
        for promises in self._active_estimators:
            promises.save(self._clock())
        self._stolen.save(self._clock())
        self._collectors.stop()

    def add_to_tree(self, tree: ProviderTree) -> ProviderTree:
        """The tree with withheld amounts and, if ``[capacity] mode`` is act, offers from recent readings."""
        tree = self._collectors.add_to_tree(self._stolen.add_to_tree(tree))
        if self._capacity.mode != ACT:
            return tree
        now = self._clock()
        for promises in self._active_estimators:
            tree = with_offers(tree, promises.list_offers(now), promises.resource.name)
        return tree

    def read_oversold(self, resource_class: str) -> OversoldCapacity | None:
        """The amount of a reclaimed class that guests hold beyond the present offers, in cores or bytes.

        The result is None if nothing is offered, or if no measurement is recent. Without a recent
        measurement, all offers have expired, and so cannot be too small.
        """
        found = [one for one in self._active_estimators if one.resource.name == resource_class]
        if self._capacity.mode != ACT or not found:
            return None
        offers = found[0].list_offers(self._clock())
        held = {
            view.guest.uuid: {
                uuid: amounts[resource_class]
                for uuid, amounts in (view.allocation or {}).items()
                if uuid in offers and amounts.get(resource_class)
            }
            for view in self._pipeline.guest_views()
        }
        unit = float(_MIB) if resource_class == RECLAIMED_MEMORY else 1.0
        return oversold_capacity(offers, held, unit)

    def count_blame(self, guest: str, metric: str, cause: str = "") -> None:
        """Count that an offer was too large, if a throttled or evicted guest runs on reclaimed capacity.

        :param guest: the uuid of the guest that was throttled or evicted.
        :param metric: the metric because of which the guest was throttled or evicted. A metric of CPUs counts
            only for guests on reclaimed CPUs, and a metric of memory only for guests on reclaimed memory. The
            metric of oversold capacity never counts: a smaller offer raises this metric, so a high value does
            not mean that the offer was too large.
        :param cause: if a signal of another guest was the cause, this signal; empty if the metric was.
        """
        registry = self._conf.settings.rules.registry
        if metric not in registry:
            return
        names = registry[metric].measured_names
        # An eviction because of a smaller offer must not make the next offer even smaller.
        if OVERSOLD.issuperset(names):
            return
        of_memory = registry[metric].sorter is MEMORY_ORDER or names[0] == MEMORY_PRESSURE
        promises = self.memory if of_memory else self.cpus
        if promises not in self._active_estimators or not (of_memory or registry[metric].sorter is CPU_ORDER):
            return
        lives = has_memory_of_rest if of_memory else lives_on_rest
        for view in self._pipeline.guest_views():
            if view.guest.uuid == guest and lives(view):
                for uuid, amounts in (view.allocation or {}).items():
                    if amounts.get(promises.resource.name):
                        promises.count_blame(uuid, cause or metric)

    def list_rows(self, withheld: Iterable[WithheldUnits] = ()) -> list[dict[str, Any]]:
        """Rows that explain offers and withheld amounts; ``withheld`` has the amounts of the last report."""
        tree, mode = self._pipeline.host_state.tree, self._capacity.mode
        rows = [
            row
            for promises in self._active_estimators or (self.cpus,)
            for row in promises.list_rows(tree.providers_of(promises.resource.name), mode)
        ]
        became = {one.uuid: one for one in withheld}
        return [*rows, *self._stolen.list_rows(tree, became), *self._collectors.list_rows(tree)]

    @property
    def failure_texts(self) -> tuple[str, ...]:
        """Return a sentence about each collector that fails."""
        return self._collectors.failure_texts

    # The thread

    def switch_estimators(self) -> None:
        """Switch each estimator on or off according to the options."""
        on = self._active_estimators
        for promises in (self.cpus, self.memory):
            promises.switch_on(promises in on, self._clock())

    def _count_failure(self, is_new: bool) -> None:
        self._failures.inc()
        if is_new:
            LOG.exception("The unused part of guests' CPUs and memory cannot be measured")

    def run_round(self) -> None:
        """Measure once, and update estimates and offers; do nothing until the running guests are known."""
        # Before that, the amounts of unknown guests would count as unused.
        if not self._pipeline.has_taken_over:
            return
        self.switch_estimators()
        failures = []
        for part in (self._collect, self._promise_memory, self._promise_cpus):
            try:
                if part():
                    self._changed()
            except Exception as error:  # the error is raised later, after the other parts were measured
                failures.append(error)
        if failures:
            raise ExceptionGroup("some values could not be measured", failures)

    def _collect(self) -> bool:
        return self._collectors.run_round(self._pipeline.host_state.tree)

    def _promise_memory(self) -> bool:
        now = self._clock()
        if self.memory not in self._active_estimators:
            return False
        return self.memory.take_round(
            self.measure_memory(now), self._estimate_limits, self._capacity.mode == ACT, now
        )

    def _promise_cpus(self) -> bool:
        """Update offers of CPUs and withheld VCPU from one measurement; return whether any has changed."""
        mode, now = self._capacity.mode, self._clock()
        if mode == OFF and self._capacity.steal == OFF:
            return False
        use = self.reader.read_cpus(now)
        if use is None:
            return False
        changed = self._stolen.run_round(use, self._pipeline.host_state, now)
        if mode != OFF:
            changed |= self.cpus.take_round(self.measure_cpus(use), self._estimate_limits, mode == ACT, now)
        return changed

    def measure_cpus(self, use: HostUse) -> Iterator[MeasuredZone]:
        """Measure the zones with shared CPUs: their capacity, their use, and the amounts that guests hold."""
        host_state = self._pipeline.host_state
        for node in host_state.tree.providers_of(RECLAIMED_VCPU):
            shared = reclaimable_cpus(node, host_state.cpu_sets)
            entitled = guest_entitlements(use.guests, shared)
            yield MeasuredZone(node, float(len(shared)), read_zone(use, shared), entitled)

    def measure_memory(self, now: float) -> Iterator[MeasuredZone]:
        """Measure the memory of each zone; ``now`` is the present time in seconds since the epoch."""
        tree, use = self._pipeline.host_state.tree, self.reader.read_memory(now)
        for node in tree.providers_of(RECLAIMED_MEMORY):
            nodes = node.numa_nodes
            held = [one for one in self._pipeline.host_state.topology.numa_nodes if one.id in nodes]
            zone = tree.get(node.parent or "")
            has = None if zone is None else zone.inventories.get(MEMORY)
            # If the agent has no inventory of memory, nova-compute reports memory. The total of the reclaimed
            # class is then already without the memory that the host reserves.
            if has is None:
                capacity = float(node.inventories[RECLAIMED_MEMORY].total)
            else:
                capacity = sum(one.memory_kib for one in held) / 1024 - has.reserved
            entitled = memory_entitlements(use.guests, nodes)
            # max(): the reserve can exceed the memory of these nodes.
            yield MeasuredZone(node, max(0.0, capacity), read_zone(use, nodes), entitled)


def oversold_capacity(
    offers: Mapping[str, int], held: Mapping[str, Mapping[str, int]], unit: float
) -> OversoldCapacity | None:
    """Compute the amount that guests hold beyond the offers; None if ``offers`` is empty.

    :param offers: the offered amounts, by uuid of the provider.
    :param held: the amounts that guests hold, by uuid of the guest and of the provider.
    :param unit: the size of a unit of these amounts, in cores or bytes.
    """
    if not offers:
        return None
    beyond = {
        provider: sum(amounts.get(provider, 0) for amounts in held.values()) - offer
        for provider, offer in offers.items()
    }
    short = {provider for provider, amount in beyond.items() if amount > 0}
    guests = {
        guest: unit * sum(amount for provider, amount in amounts.items() if provider in short)
        for guest, amounts in held.items()
    }
    # Only guests on a provider with an offer that is too small count: other guests would free nothing there.
    return OversoldCapacity(
        unit * sum(beyond[provider] for provider in short),
        {guest: amount for guest, amount in guests.items() if amount},
    )


def first_tree(tree: ProviderTree, conf: cfg.ConfigOpts) -> ProviderTree:
    """Return the tree without the amounts that a starting agent withholds because of its saved files."""
    found, folder = conf.capacity, Path(conf.state_path)
    tree = offers.with_kept(tree, found.steal, folder)
    return collectors.with_kept(tree, found.collectors, folder, time.time())
