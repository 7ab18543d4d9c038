"""The thread that measures what guests leave unused of the shared CPUs, and offers it to others."""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from oslo_config import cfg
from prometheus_client import Counter, Gauge

from compute_agent.capacity.breach import Breach, missing_cpus
from compute_agent.capacity.estimate import Estimate, Limits, estimate
from compute_agent.capacity.history import Reading
from compute_agent.capacity.offer import Offer
from compute_agent.capacity.state import FILE, ZoneState, dump, parse
from compute_agent.capacity.zone import entitlements, read_zone
from compute_agent.drivers.base import Driver
from compute_agent.events.event import Kind, Outcome
from compute_agent.events.recorder import Recorder
from compute_agent.inventory.reclaimed import reclaimable, with_offers
from compute_agent.inventory.tree import ProviderNode, ProviderTree
from compute_agent.loops import collectors, stolen
from compute_agent.loops.base import Configuration
from compute_agent.loops.collectors import Collectors
from compute_agent.loops.host_use import HostReader, lives_on_rest
from compute_agent.loops.kept_file import KeptFile
from compute_agent.loops.rounds_thread import RoundsThread
from compute_agent.loops.stolen import ACT, OFF, StolenTime
from compute_agent.model.resource_class import RECLAIMED_VCPU
from compute_agent.pipeline.metrics import Metrics
from compute_agent.pipeline.worker import Pipeline
from compute_agent.qos import sorters
from compute_agent.report.withheld import Withheld

LOG = logging.getLogger(__name__)

INTERVAL: Final = 60.0
"""Seconds between two readings."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of [capacity]."""

    mode: str
    limits: Limits
    steal: str
    collectors: tuple[str, ...]

    @classmethod
    def of(cls, options: cfg.ConfigOpts) -> Settings:
        """As the configuration has them."""
        found = options.capacity
        return cls(
            found.mode,
            Limits(found.sigma, found.percentile, found.margin, found.burst),
            found.steal,
            tuple(found.collectors),
        )

    @property
    def off(self) -> bool:
        """Whether there is nothing to measure."""
        return self.mode == OFF and self.steal == OFF and not self.collectors


class Reclaimed:
    """The loop. Rounds that go wrong cost readings, and after a quarter of an hour without one all offers."""

    def __init__(
        self,
        conf: Configuration,
        pipeline: Pipeline,
        driver: Driver,
        recorder: Recorder,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._conf = conf
        self._settings = Settings.of(conf.options)
        self._pipeline = pipeline
        root = conf.options.host.root
        self._reader = HostReader(pipeline, driver, lambda: self._conf.settings.classes, root)
        self._recorder = recorder
        self.changed: Callable[[], None] = lambda: None
        """Called when there is another offer to report; must not wait."""
        self._clock = clock
        folder = Path(conf.options.state_path)
        self._file = KeptFile(folder / FILE, parse, "What was learnt of the use of CPUs")
        self._zones = {} if self._settings.mode == OFF else _taken_over(self._file.load() or {})
        self._stolen = StolenTime(self._settings.steal, folder, recorder, metrics.registry)
        self._collectors = Collectors(self._settings.collectors, folder, recorder, metrics.registry, clock)
        self._estimates: dict[str, Estimate] = {}
        self._blamed: deque[tuple[str, str]] = deque(maxlen=1000)
        """Provider and cause of each time that somebody was throttled or evicted who lives on the rest."""
        self._thread = RoundsThread(
            "capacity",
            self.round,
            lambda: not self._settings.off,
            lambda took: INTERVAL,
            self._failed,
            rest=self._rest,
        )
        registry = metrics.registry
        self._failures = Counter(
            "compute_agent_capacity_round_failures",
            "Readings of what guests leave unused that went wrong.",
            registry=registry,
        )
        self._broken = Counter(
            "compute_agent_reclaimed_broken",
            "Promises of reclaimed CPUs that were broken: others needed them (use), or for the sake of a"
            " metric of CPUs, or of a guest that waited for CPUs (run_delay, cpu_pressure), somebody was"
            " throttled or evicted who lives on them.",
            ["provider", "cause"],
            registry=registry,
        )
        labels = ["provider"]
        self._offered = Gauge(
            "compute_agent_reclaimed_cpus",
            "CPUs that are offered of what is left.",
            labels,
            registry=registry,
        )
        self._expected = Gauge(
            "compute_agent_reclaimed_expected_use",
            "CPUs that all others together are expected to use next.",
            labels,
            registry=registry,
        )

    # For other threads

    def start(self) -> None:
        """Begin, unless it is switched off."""
        self._collectors.start()
        self._thread.start()

    def reload(self, conf: Configuration) -> None:
        """Go by other options from the next round on."""
        self._conf, self._settings = conf, Settings.of(conf.options)
        self._stolen.switch(self._settings.steal)
        self._collectors.use(self._settings.collectors)
        self.start()

    def stop(self, timeout: float = 2.0) -> None:
        """End, and keep what was learnt; what hangs is not waited for longer than ``timeout`` seconds."""
        if self._thread.stop(timeout):
            self._save()
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
        known = {uuid: one for uuid, one in dict(self._zones).items() if _is_of_now(one, now)}
        return with_offers(tree, {uuid: one.offer.published for uuid, one in known.items()})

    def blame(self, guest: str, metric: str, cause: str = "") -> None:
        """A guest was throttled or evicted for the sake of a metric, which is the ``cause`` if none is said.

        If that is one of CPUs and the guest lives on what others leave, a promise to it was broken.
        """
        registry = self._conf.settings.rules.registry
        if self._settings.mode == OFF or metric not in registry or registry[metric].sorter is not sorters.CPU:
            return
        for view in self._pipeline.views():
            if view.guest.uuid == guest and lives_on_rest(view):
                for uuid, amounts in (view.allocation or {}).items():
                    if amounts.get(RECLAIMED_VCPU):
                        self._blamed.append((uuid, cause or metric))

    def document(self, withheld: Iterable[Withheld] = ()) -> list[dict[str, Any]]:
        """Every zone with the terms of its sum, in words, as the command line shows them.

        ``withheld`` is what became of what is to be withheld.
        """
        mode, estimates = self._settings.mode, dict(self._estimates)
        rows = []
        for node in _providers(self._pipeline.world.tree):
            found = estimates.get(node.uuid)
            zone = self._zones.get(node.uuid, ZoneState())
            terms = [] if found is None else list(found.in_words())
            terms += [] if found is None else zone.breach.in_words(found.capacity)
            what = {"act": "offered", "preview": "would be offered"}.get(mode, "not offered: it is off")
            terms.append((f"{what} (more by 10 % of all CPUs at a time)", float(zone.offer.published)))
            rows += [
                {"provider": node.name, "term": words, "cores": round(cores, 2)} for words, cores in terms
            ]
        became = {one.uuid: one for one in withheld}
        tree = self._pipeline.world.tree
        return [*rows, *self._stolen.document(tree, became), *self._collectors.document(tree)]

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong with collectors, a sentence each."""
        return self._collectors.troubles

    # The thread

    def _rest(self) -> None:
        self._zones, self._estimates = {}, {}

    def _failed(self, is_new: bool) -> None:
        self._failures.inc()
        if is_new:
            LOG.exception("What guests leave unused cannot be measured")

    def round(self) -> None:
        """One reading, here and now, and what follows of it."""
        if not self._pipeline.has_taken_over:
            return
        settings, world, now = self._settings, self._pipeline.world, self._clock()
        if self._collectors.round(world.tree):
            self.changed()
        if settings.mode == OFF and settings.steal == OFF:
            return
        use = self._reader.read(now)
        if use is None:
            return
        if self._stolen.round(use, world, now):
            self.changed()
        if settings.mode == OFF:
            return
        zones, estimates, published, broken = {}, {}, False, False
        blamed = self._take_blamed()
        for node in _providers(world.tree):
            shared = reclaimable(node, world.cpu_sets)
            before = self._zones.get(node.uuid, ZoneState())
            reading = read_zone(use, shared)
            history = before.history
            if reading is not None:
                history = history.after(reading, settings.limits.percentile)
            found = estimate(
                history, entitlements(use.guests, shared), float(len(shared)), settings.limits, now
            )
            breach = self._breach(node, before, reading, found, blamed[node.uuid], now)
            broken |= breach.count > before.breach.count
            left = max(0.0, found.left - breach.held_back(found.capacity))
            offer = before.offer.after(left, found.capacity, now)
            zones[node.uuid], estimates[node.uuid] = ZoneState(history, offer, breach), found
            self._offered.labels(node.name).set(offer.published if settings.mode == ACT else 0)
            self._expected.labels(node.name).set(found.peak)
            if offer.published != before.offer.published:
                published = True
                self._tell(node, before.offer, offer, found)
        self._zones, self._estimates = zones, estimates
        if published or broken or self._file.is_due(now):
            self._save()
        if published:
            self.changed()

    def _take_blamed(self) -> dict[str, list[str]]:
        """The causes that were told since the last round, by provider."""
        found: dict[str, list[str]] = defaultdict(list)
        while self._blamed:
            uuid, cause = self._blamed.popleft()
            found[uuid].append(cause)
        return found

    def _breach(
        self,
        node: ProviderNode,
        before: ZoneState,
        reading: Reading | None,
        found: Estimate,
        blamed: list[str],
        now: float,
    ) -> Breach:
        """What is held back now, with what was broken since the last round."""
        published = before.offer.published
        missing = 0.0 if reading is None else missing_cpus(reading.total, published, found.capacity)
        causes = [*(["use"] if missing else []), *blamed]
        for cause in causes:
            self._broken.labels(node.name, cause).inc()
        breach = before.breach.after(missing, len(causes), now)
        if causes:
            used = "" if reading is None else f"others used {reading.total:.1f} of {found.capacity:g} CPUs; "
            throttled = f"throttled or evicted for {', '.join(sorted(set(blamed)))}; " if blamed else ""
            self._recorder.record(
                LOG.warning,
                Kind.BREAK,
                None,
                "Of %s not all of the %d CPUs were there that were %s",
                node.name,
                published,
                "promised" if self._settings.mode == ACT else "what would have been promised",
                reason=f"{used}{throttled}{breach.held_back(found.capacity):.1f} CPUs less for a day",
                outcome=Outcome.DONE if self._settings.mode == ACT else Outcome.PREVIEW,
            )
        return breach

    def _tell(self, node: ProviderNode, before: Offer, offer: Offer, found: Estimate) -> None:
        acts = self._settings.mode == ACT
        self._recorder.record(
            LOG.info,
            Kind.OFFER,
            None,
            "Of %s %d of %d CPUs are %s, after %d",
            node.name,
            offer.published,
            int(found.capacity),
            "offered" if acts else "what would be offered",
            before.published,
            reason=found.untold or f"the others may use {found.peak:.1f}, and leave {found.left:.1f}",
            outcome=Outcome.DONE if acts else Outcome.PREVIEW,
        )

    def _save(self) -> None:
        """Keep what was learnt."""
        self._file.save(dump(self._zones), self._clock())


def first_tree(tree: ProviderTree, conf: cfg.ConfigOpts) -> ProviderTree:
    """The tree with what an agent that starts now would withhold at first."""
    found, folder = conf.capacity, Path(conf.state_path)
    tree = stolen.with_kept(tree, found.steal, folder)
    return collectors.with_kept(tree, found.collectors, folder, time.time())


def _is_of_now(zone: ZoneState, now: float) -> bool:
    """Whether an offer is still good: after a start that of the agent before, if it is new enough."""
    return not estimate(zone.history, {}, 0.0, Limits(), now).untold


def _providers(tree: ProviderTree) -> tuple[ProviderNode, ...]:
    return tree.providing(RECLAIMED_VCPU)


def _taken_over(zones: Mapping[str, ZoneState]) -> Mapping[str, ZoneState]:
    # What is published again has to have grown since; a clock that jumped must not let it grow at once.
    return {uuid: replace(zone, offer=replace(zone.offer, above_since=0.0)) for uuid, zone in zones.items()}
