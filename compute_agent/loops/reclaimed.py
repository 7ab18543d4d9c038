"""The reclaim loop: measures what guests leave unused of shared CPUs and memory, and offers it to others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg
from prometheus_client import Counter

from compute_agent.drivers.base import GuestThreads
from compute_agent.events.event import EventRecorder
from compute_agent.inventory.memory import reclaimable_cpus, with_offers
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.loops import collectors, offers
from compute_agent.loops.base import ReloadedConfiguration, WakeReport
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
from compute_agent.loops.usage import HostUseReader, MemoryReader, has_memory_of_rest, lives_on_rest
from compute_agent.model.resource import MEMORY, RECLAIMED_MEMORY, RECLAIMED_VCPU
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.reclaim.estimate import EstimateLimits
from compute_agent.reclaim.offers import FILE, MEMORY_FILE
from compute_agent.reclaim.zone import HostUse, guest_entitlements, memory_entitlements, read_zone
from compute_agent.report.held_amounts import WithheldUnits
from compute_agent.threads import NO_LOCK, PeriodicTask, ThreadSpec
from compute_agent.throttling.watermarks.metrics import CPU_ORDER, MEMORY_ORDER

LOG = logging.getLogger(__name__)

INTERVAL: Final = 60.0
"""Seconds between two readings."""

CAPACITY_THREAD: Final = ThreadSpec(
    "capacity",
    INTERVAL,
    "measures unused CPUs and memory, stolen time and amounts of collectors, and offers them",
    NO_LOCK,
    "files of the host and of guests; files of the state folder; wakes ``report``",
)

MEMORY_PRESSURE: Final = "memory_pressure"
"""The metric of memory whose guests are sorted by no use."""


@dataclass(frozen=True, slots=True)
class ReclaimSettings:
    """The options of [capacity]."""

    mode: str
    limits: EstimateLimits
    steal: str
    collectors: tuple[str, ...]
    memory: bool = False

    @classmethod
    def of(cls, options: cfg.ConfigOpts) -> ReclaimSettings:
        """As the configuration has them."""
        found = options.capacity
        return cls(
            found.mode,
            EstimateLimits(found.sigma, found.percentile, found.margin, found.burst),
            found.steal,
            tuple(found.collectors),
            found.memory,
        )

    @property
    def off(self) -> bool:
        """Whether there is nothing to measure."""
        return self.mode == OFF and self.steal == OFF and not self.collectors


class ReclaimLoop:
    """The loop. Rounds that go wrong cost readings, and after a quarter of an hour without one all offers."""

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
    ) -> None:
        """Prepare the loop; ``changed`` is called when there is another offer to report.

        ``clock`` dates what is learnt and kept, ``monotonic`` measures between two readings.
        """
        self._conf = conf
        self._settings = ReclaimSettings.of(conf.options)
        self._pipeline = pipeline
        root = conf.options.host.root
        self.cpu_reader = HostUseReader(
            pipeline, driver, lambda: self._conf.settings.classes, root, monotonic
        )
        self._changed = changed
        self._clock = clock
        folder = Path(conf.options.state_path)
        gauges = ReclaimGauges(metrics.registry)
        cpus = ReclaimedResource(RECLAIMED_VCPU, "CPUs", "shared CPUs of the zone", folder / FILE)
        memory = ReclaimedResource(RECLAIMED_MEMORY, "MiB", "MiB of the zone", folder / MEMORY_FILE)
        self.cpus, self.memory = (ReclaimEstimator(one, recorder, gauges) for one in (cpus, memory))
        self.memory_reader = MemoryReader(pipeline, driver, lambda: self._conf.settings.classes, root)
        self.switch_estimators()
        self._stolen = StolenTime(self._settings.steal, folder, recorder, metrics.registry)
        self._collectors = CollectorLoops(
            self._settings.collectors, folder, recorder, metrics.registry, clock
        )
        self._thread = PeriodicTask(
            CAPACITY_THREAD,
            self.round,
            lambda took: INTERVAL,
            self._failed,
            is_needed=lambda: not self._settings.off,
            rest=self.switch_estimators,
            keep=self.save_estimates,
        )
        self._failures = Counter(
            "compute_agent_capacity_round_failures",
            "Readings of what guests leave unused that went wrong.",
            registry=metrics.registry,
        )

    @property
    def _promises(self) -> tuple[ReclaimEstimator, ...]:
        """Those that are switched on."""
        if self._settings.mode == OFF:
            return ()
        return (self.cpus, self.memory) if self._settings.memory else (self.cpus,)

    # For other threads

    def start(self) -> None:
        """Begin, unless it is switched off."""
        self._collectors.start()
        self._thread.start()

    def reload(self, conf: ReloadedConfiguration) -> None:
        """Go by other options from the next round on."""
        self.use_options(conf)
        self.start()

    def use_options(self, conf: ReloadedConfiguration) -> None:
        """Go by other options, without a thread that begins for them."""
        self._conf, self._settings = conf, ReclaimSettings.of(conf.options)
        self._stolen.switch(self._settings.steal)
        self._collectors.use(self._settings.collectors)

    @property
    def is_running(self) -> bool:
        """Whether there is something to measure, and it has not been stopped."""
        return self._thread.is_running

    def stop(self, timeout: float = 2.0) -> None:
        """End, and keep what was learnt; what hangs is not waited for longer than ``timeout`` seconds."""
        self._thread.stop(timeout)

    def save_estimates(self) -> None:
        """Keep what was learnt; collectors end."""
        for promises in self._promises:
            promises.save(self._clock())
        self._stolen.save(self._clock())
        self._collectors.stop()

    def offering(self, tree: ProviderTree) -> ProviderTree:
        """The tree with what is offered and withheld now.

        Nothing is offered unless that is switched on, and readings are new.
        """
        tree = self._collectors.offering(self._stolen.offering(tree))
        if self._settings.mode != ACT:
            return tree
        now = self._clock()
        for promises in self._promises:
            tree = with_offers(tree, promises.offers(now), promises.resource.name)
        return tree

    def blame(self, guest: str, metric: str, cause: str = "") -> None:
        """A guest was throttled or evicted for the sake of a metric, which is the ``cause`` if none is said.

        If that is one of CPUs and the guest lives on what others leave, a promise to it was broken; and if it
        is one of memory, likewise.
        """
        registry = self._conf.settings.rules.registry
        if metric not in registry:
            return
        of_memory = registry[metric].sorter is MEMORY_ORDER or metric == MEMORY_PRESSURE
        promises = self.memory if of_memory else self.cpus
        if promises not in self._promises or not (of_memory or registry[metric].sorter is CPU_ORDER):
            return
        lives = has_memory_of_rest if of_memory else lives_on_rest
        for view in self._pipeline.guest_views():
            if view.guest.uuid == guest and lives(view):
                for uuid, amounts in (view.allocation or {}).items():
                    if amounts.get(promises.resource.name):
                        promises.blame(uuid, cause or metric)

    def document(self, withheld: Iterable[WithheldUnits] = ()) -> list[dict[str, Any]]:
        """Every zone with the terms of its sum, in words, as the command line shows them.

        ``withheld`` is what became of what is to be withheld.
        """
        tree, mode = self._pipeline.host_state.tree, self._settings.mode
        rows = [
            row
            for promises in self._promises or (self.cpus,)
            for row in promises.document(tree.providers_of(promises.resource.name), mode)
        ]
        became = {one.uuid: one for one in withheld}
        return [*rows, *self._stolen.document(tree, became), *self._collectors.document(tree)]

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong with collectors, a sentence each."""
        return self._collectors.troubles

    # The thread

    def switch_estimators(self) -> None:
        """Begin with promises that are switched on now, and end with those that are not any more."""
        on = self._promises
        for promises in (self.cpus, self.memory):
            promises.switch(promises in on, self._clock())

    def _failed(self, is_new: bool) -> None:
        self._failures.inc()
        if is_new:
            LOG.exception("The unused part of guests' CPUs and memory cannot be measured")

    def round(self) -> None:
        """One reading, here and now, and what follows of it."""
        if not self._pipeline.has_taken_over:
            return
        self.switch_estimators()
        failures = []
        for part in (self._collect, self._promise_memory, self._promise_cpus):
            try:
                if part():
                    self._changed()
            except Exception as error:  # which is no reason not to measure the rest
                failures.append(error)
        if failures:
            raise ExceptionGroup("not all was measured", failures)

    def _collect(self) -> bool:
        return self._collectors.round(self._pipeline.host_state.tree)

    def _promise_memory(self) -> bool:
        settings, now = self._settings, self._clock()
        if self.memory not in self._promises:
            return False
        return self.memory.take(self.measure_memory(now), settings.limits, settings.mode == ACT, now)

    def _promise_cpus(self) -> bool:
        """CPUs, and what is stolen of them, from one reading."""
        settings, now = self._settings, self._clock()
        if settings.mode == OFF and settings.steal == OFF:
            return False
        use = self.cpu_reader.read(now)
        if use is None:
            return False
        changed = self._stolen.round(use, self._pipeline.host_state, now)
        if settings.mode != OFF:
            changed |= self.cpus.take(self.measure_cpus(use), settings.limits, settings.mode == ACT, now)
        return changed

    def measure_cpus(self, use: HostUse) -> Iterator[MeasuredZone]:
        """Zones of shared CPUs with what is used of them."""
        world = self._pipeline.host_state
        for node in world.tree.providers_of(RECLAIMED_VCPU):
            shared = reclaimable_cpus(node, world.cpu_sets)
            entitled = guest_entitlements(use.guests, shared)
            yield MeasuredZone(node, float(len(shared)), read_zone(use, shared), entitled)

    def measure_memory(self, now: float) -> Iterator[MeasuredZone]:
        """Zones of memory with what is used of them at ``now``, in seconds since the epoch."""
        tree, use = self._pipeline.host_state.tree, self.memory_reader.read(now)
        for node in tree.providers_of(RECLAIMED_MEMORY):
            nodes = node.numa_nodes
            held = [one for one in self._pipeline.host_state.topology.numa_nodes if one.id in nodes]
            zone = tree.get(node.parent or "")
            has = None if zone is None else zone.inventories.get(MEMORY)
            if has is None:  # nova-compute has it, and the total leaves out the host's reserve
                capacity = float(node.inventories[RECLAIMED_MEMORY].total)
            else:
                capacity = sum(one.memory_kib for one in held) / 1024 - has.reserved
            entitled = memory_entitlements(use.guests, nodes)
            yield MeasuredZone(node, max(0.0, capacity), read_zone(use, nodes), entitled)


def first_tree(tree: ProviderTree, conf: cfg.ConfigOpts) -> ProviderTree:
    """The tree with what an agent that starts now would withhold at first."""
    found, folder = conf.capacity, Path(conf.state_path)
    tree = offers.with_kept(tree, found.steal, folder)
    return collectors.with_kept(tree, found.collectors, folder, time.time())
