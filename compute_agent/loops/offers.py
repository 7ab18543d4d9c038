"""The offer of one resource in each zone, round by round, and the CPUs withheld for steal time."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from compute_agent.events.event import EventKind, EventOutcome, EventRecorder
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.loops.base import KeptFile
from compute_agent.pipeline.host_state import HostState
from compute_agent.reclaim.estimate import HOURS, EstimateLimits, UseEstimate, ZoneReading, estimate_use
from compute_agent.reclaim.offers import (
    CapacityOffer,
    HeldBackShare,
    ZoneState,
    dump,
    missing_cpus,
    parse,
    term_row,
)
from compute_agent.reclaim.stolen import FILE, StolenReserve, dump_stolen, parse_stolen, stolen_part
from compute_agent.reclaim.zone import HostUse
from compute_agent.report.held_amounts import WithheldUnits

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReclaimedResource:
    """What is promised: its class, its unit and what there is of it in words, and the file of its history."""

    name: str
    unit: str
    whole: str
    file: Path


@dataclass(frozen=True, slots=True)
class MeasuredZone:
    """A zone of ``capacity``: what others used of it (None: cannot be told), and may use by uuid."""

    node: ProviderNode
    capacity: float
    reading: ZoneReading | None
    entitlements: Mapping[str, float]


class ReclaimGauges:
    """For Prometheus, of all resources."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["provider", "resource"]
        self.broken = Counter(
            "compute_agent_reclaimed_broken",
            "Promises of what guests leave unused that were broken: others needed it (use), or for the sake"
            " of a metric of it, or of a guest that waited for CPUs (run_delay, cpu_pressure, cpi), somebody"
            " was throttled or evicted who lives on it.",
            [*labels, "cause"],
            registry=registry,
        )
        self.offered = Gauge(
            "compute_agent_reclaimed_offered",
            "CPUs, and MiB of memory, that are offered of what is left.",
            labels,
            registry=registry,
        )
        self.expected = Gauge(
            "compute_agent_reclaimed_expected_use",
            "CPUs, and MiB of memory, that all others together are expected to use next.",
            labels,
            registry=registry,
        )

    def forget(self, resource: str, providers: Iterable[str]) -> None:
        """Tell no more what is offered and expected of a resource of some providers."""
        for provider in providers:
            for gauge in (self.offered, self.expected):
                gauge.remove(provider, resource)


class ReclaimEstimator:
    """Of one resource. One thread takes rounds; others may ask, and blame."""

    def __init__(self, resource: ReclaimedResource, recorder: EventRecorder, gauges: ReclaimGauges) -> None:
        self.resource = resource
        self._recorder = recorder
        self._gauges = gauges
        self._file = KeptFile(resource.file, parse, f"What was learnt of the use of {resource.unit}")
        self.zones: Mapping[str, ZoneState] = {}
        """What was learnt, by uuid of the provider; replaced as a whole by each round."""
        self._estimates: Mapping[str, UseEstimate] = {}
        self._on = False
        self._began = 0.0
        """When it was switched on."""
        self._shown: frozenset[str] = frozenset()
        """Names of the providers that gauges tell of."""
        self._blamed: deque[tuple[str, str]] = deque(maxlen=1000)
        """Provider and cause of each time that somebody was throttled or evicted who lives on the rest."""

    def switch(self, on: bool, now: float) -> None:
        """Go on with what was kept, or keep that and tell nothing any more; nothing new where it is so."""
        if on and not self._on:
            self._began = now
            self.zones = _taken_over(self._file.load() or {})
        elif self._on and not on:
            self.save(now)
            self._gauges.forget(self.resource.name, self._shown)
            self.zones, self._estimates, self._shown = {}, {}, frozenset()
            self._blamed.clear()
        self._on = on

    def save(self, now: float) -> None:
        """Keep what was learnt."""
        self._file.save(dump(self.zones), now)

    def blame(self, provider: str, cause: str) -> None:
        """A promise of a provider was broken: somebody was throttled or evicted."""
        self._blamed.append((provider, cause))

    def offers(self, now: float) -> dict[str, int]:
        """What is offered by provider: of those of which something is known that is not too old."""
        known = {uuid: one for uuid, one in dict(self.zones).items() if _is_of_now(one, now)}
        return {uuid: one.offer.published for uuid, one in known.items()}

    def take(self, measured: Iterable[MeasuredZone], limits: EstimateLimits, acts: bool, now: float) -> bool:
        """One round; whether there is another offer."""
        zones, estimates, published, broken = {}, {}, False, False
        measured = tuple(measured)  # first, as it may fail: blame is for the next round then
        blamed = self._take_blamed()
        for one in measured:
            node = one.node
            before = self.zones.get(node.uuid, ZoneState())
            history = before.history
            if one.reading is not None:
                history = history.with_reading(one.reading, limits.percentile)
            found = estimate_use(history, one.entitlements, one.capacity, limits, now)
            breach = self._breach(node, before, one.reading, found, blamed[node.uuid], acts, now)
            broken |= breach.count > before.breach.count
            left = max(0.0, found.free_amount - breach.held_back(found.capacity))
            offer = before.offer.next_offer(left, found.capacity, now)
            zones[node.uuid], estimates[node.uuid] = ZoneState(history, offer, breach), found
            labels = node.name, self.resource.name
            self._gauges.offered.labels(*labels).set(offer.published if acts else 0)
            self._gauges.expected.labels(*labels).set(found.expected_use)
            if offer.published != before.offer.published:
                published = True
                self._tell(node, before.offer, offer, found, acts)
        self.zones, self._estimates = zones, estimates
        shown = frozenset(one.node.name for one in measured)
        self._gauges.forget(self.resource.name, self._shown - shown)
        self._shown = shown
        if published or broken or self._file.is_due(now):
            self.save(now)
        return published

    def document(self, nodes: Iterable[ProviderNode], mode: str) -> Iterator[dict[str, Any]]:
        """Every zone with the terms of its sum, in words."""
        estimates, zones = dict(self._estimates), dict(self.zones)
        for node in nodes:
            found, zone = estimates.get(node.uuid), zones.get(node.uuid, ZoneState())
            terms = [] if found is None else list(found.in_words(self.resource.whole))
            terms += [] if found is None else zone.breach.in_words(found.capacity)
            if found is None and self._on:
                terms.append((self._not_read_yet(), 0.0))
            what = {"act": "offered", "preview": "would be offered"}.get(mode, "not offered: it is off")
            unit = self.resource.unit
            terms.append((f"{what} (more by 10 % of all {unit} at a time)", float(zone.offer.published)))
            for words, amount in terms:
                yield term_row(node.name, words, amount, unit)

    def _not_read_yet(self) -> str:
        began = datetime.fromtimestamp(self._began).astimezone()
        return (
            f"nothing was read yet since {began:%H:%M:%S}: use is the difference of two readings, a minute"
            f" apart, and what is left can be told after {HOURS} hours of it"
        )

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
        reading: ZoneReading | None,
        found: UseEstimate,
        blamed: list[str],
        acts: bool,
        now: float,
    ) -> HeldBackShare:
        """What is held back now, with what was broken since the last round."""
        published, unit = before.offer.published, self.resource.unit
        missing = 0.0 if reading is None else missing_cpus(reading.total, published, found.capacity)
        causes = [*(["use"] if missing else []), *blamed]
        for cause in causes:
            self._gauges.broken.labels(node.name, self.resource.name, cause).inc()
        breach = before.breach.after_breaches(missing, len(causes), now)
        if causes:
            used = (
                "" if reading is None else f"others used {reading.total:.1f} of {found.capacity:g} {unit}; "
            )
            throttled = f"throttled or evicted for {', '.join(sorted(set(blamed)))}; " if blamed else ""
            self._recorder.record_event(
                LOG.warning,
                EventKind.BREAK,
                None,
                "Of %s not all of the %d %s were there that were %s",
                node.name,
                published,
                unit,
                "promised" if acts else "what would have been promised",
                reason=f"{used}{throttled}{breach.held_back(found.capacity):.1f} {unit} less for a day",
                outcome=EventOutcome.DONE if acts else EventOutcome.PREVIEW,
            )
        return breach

    def _tell(
        self, node: ProviderNode, before: CapacityOffer, offer: CapacityOffer, found: UseEstimate, acts: bool
    ) -> None:
        self._recorder.record_event(
            LOG.info,
            EventKind.OFFER,
            None,
            "Of %s %d of %d %s are %s, after %d",
            node.name,
            offer.published,
            int(found.capacity),
            self.resource.unit,
            "offered" if acts else "what would be offered",
            before.published,
            reason=found.untold
            or f"the others may use {found.expected_use:.1f}, and leave {found.free_amount:.1f}",
            outcome=EventOutcome.DONE if acts else EventOutcome.PREVIEW,
        )


def _is_of_now(zone: ZoneState, now: float) -> bool:
    """Whether an offer is still good: after a start that of the agent before, if it is new enough."""
    return not estimate_use(zone.history, {}, 0.0, EstimateLimits(), now).untold


def _taken_over(zones: Mapping[str, ZoneState]) -> Mapping[str, ZoneState]:
    # What is published again has to have grown since; a clock that jumped must not let it grow at once.
    return {uuid: replace(zone, offer=replace(zone.offer, above_since=0.0)) for uuid, zone in zones.items()}


OFF: Final = "off"
ACT: Final = "act"
VCPU: Final = "VCPU"


class StolenTime:
    """What is known of each provider of VCPU. For one thread, but for offering() and document()."""

    def __init__(
        self, mode: str, state_path: Path, recorder: EventRecorder, registry: CollectorRegistry
    ) -> None:
        self.mode = mode
        self._file = _file(state_path)
        self._recorder = recorder
        self._zones: Mapping[str, StolenReserve] = {} if mode == OFF else self._file.load() or {}
        labels = ["provider"]
        self._taken = Gauge(
            "compute_agent_stolen_cpus",
            "CPUs that the hypervisor takes of those that back VCPU, but in one of the last 15 minutes.",
            labels,
            registry=registry,
        )
        self._withheld = Gauge(
            "compute_agent_withheld_cpus",
            "CPUs that are not to be sold as VCPU, as the hypervisor takes them.",
            labels,
            registry=registry,
        )

    def switch(self, mode: str) -> None:
        """Go by another mode; what was learnt is forgotten when it is switched off."""
        if mode == OFF:
            self._zones = {}
            self._taken.clear()
            self._withheld.clear()
        elif self.mode == OFF:
            self._zones = self._file.load() or {}
        self.mode = mode

    def round(self, use: HostUse, world: HostState, now: float) -> bool:
        """What follows of a reading; whether something else is to be reported."""
        if self.mode == OFF:
            return False
        zones, changed = {}, False
        for node in world.tree.providers_of(VCPU):
            cpus = node.inventories[VCPU].total
            before = self._zones.get(node.uuid, StolenReserve())
            part = stolen_part(use.stolen, world.own_cpus(node) & world.cpu_sets.shared)
            found = before.with_part(part, cpus, now)
            zones[node.uuid] = found
            self._taken.labels(node.name).set(found.counted_part * cpus)
            self._withheld.labels(node.name).set(found.withheld if self.mode == ACT else 0)
            if found.withheld != before.withheld:
                changed = True
                self._tell(node, before, found, cpus)
        self._zones = zones
        if changed or self._file.is_due(now):
            self.save(now)
        return changed and self.mode == ACT

    def save(self, now: float) -> None:
        """Keep what was learnt."""
        if self.mode != OFF:
            self._file.save(dump_stolen(self._zones), now)

    def _tell(self, node: ProviderNode, before: StolenReserve, found: StolenReserve, cpus: int) -> None:
        acts = self.mode == ACT
        self._recorder.record_event(
            LOG.info,
            EventKind.STOLEN,
            None,
            "Of %s %d of %d CPUs are %s, after %d",
            node.name,
            found.withheld,
            cpus,
            "withheld" if acts else "what would be withheld",
            before.withheld,
            reason=f"the hypervisor takes {found.counted_part * cpus:.1f} of them",
            outcome=EventOutcome.DONE if acts else EventOutcome.PREVIEW,
        )

    def offering(self, tree: ProviderTree) -> ProviderTree:
        """The tree with what is withheld."""
        zones = self._zones if self.mode == ACT else {}
        return withholding(tree, zones)

    def document(self, tree: ProviderTree, withheld: Mapping[str, WithheldUnits]) -> list[dict[str, Any]]:
        """Every provider of VCPU with what is taken and withheld, in words.

        ``withheld`` is what became of it in Placement, by the uuid of the provider.
        """
        if self.mode == OFF:
            return []
        rows = []
        for node in tree.providers_of(VCPU):
            found, cpus = self._zones.get(node.uuid, StolenReserve()), node.inventories[VCPU].total
            terms = list(found.in_words(cpus))
            what = "to be withheld of VCPU" if self.mode == ACT else "would be withheld of VCPU"
            terms.append((f"{what} (5 minutes between changes, less after 15)", float(found.withheld)))
            if self.mode == ACT and (done := withheld.get(node.uuid)) is not None:
                terms.append((done.outcome_text, float(done.reserved)))
            rows += [term_row(node.name, words, amount, "CPUs") for words, amount in terms]
        return rows


def with_kept(tree: ProviderTree, mode: str, state_path: Path) -> ProviderTree:
    """The tree with what an agent that starts with this mode and folder would withhold at first."""
    return withholding(tree, (_file(state_path).look() or {}) if mode == ACT else {})


def withholding(tree: ProviderTree, zones: Mapping[str, StolenReserve]) -> ProviderTree:
    """The tree with so many CPUs of VCPU withheld."""
    return replace(
        tree,
        nodes=tuple(
            replace(node, withheld={VCPU: zone.withheld})
            if (zone := zones.get(node.uuid)) is not None and VCPU in node.inventories and zone.withheld
            else node
            for node in tree.nodes
        ),
    )


def _file(state_path: Path) -> KeptFile[Mapping[str, StolenReserve]]:
    return KeptFile(state_path / FILE, parse_stolen, "What was learnt of stolen time")
