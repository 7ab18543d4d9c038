"""Offers CPUs and memory that guests leave unused, and withholds VCPU because of steal time.

A zone is a part of the host with a provider of its own: a NUMA node, a cache, or the whole host.
"""

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
from compute_agent.kept_json import KeptFile
from compute_agent.pipeline.host_state import HostState
from compute_agent.reclaim.estimate import HOURS, EstimateLimits, UseEstimate, ZoneReading, estimate_use
from compute_agent.reclaim.offers import (
    RESERVES_FORMAT,
    STOLEN_FILE,
    ZONES_FORMAT,
    CapacityOffer,
    HeldBackShare,
    StolenReserve,
    ZoneState,
    missing_cpus,
    stolen_part,
    term_row,
)
from compute_agent.reclaim.zone import HostUse
from compute_agent.report.held_amounts import WithheldUnits

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReclaimedResource:
    """A resource, such as CPUs or memory, of which guests leave a part unused.

    :ivar name: the resource class under which the unused part is offered.
    :ivar unit: the unit of amounts of this resource in messages.
    :ivar whole: the name of the whole capacity of a zone in messages, such as "shared CPUs".
    :ivar file: the name of the file with the history of use.
    """

    name: str
    unit: str
    whole: str
    file: Path


@dataclass(frozen=True, slots=True)
class MeasuredZone:
    """A zone (host, NUMA node or cache with a provider of its own) with its capacity and its measured use.

    :ivar capacity: the whole amount in the unit of the resource.
    :ivar reading: the measured CPU or memory use of the zone; None if it is unknown.
    :ivar entitlements: the amounts of the resource that guests hold in the zone, by uuid of the guest.
    """

    node: ProviderNode
    capacity: float
    reading: ZoneReading | None
    entitlements: Mapping[str, float]


class ReclaimGauges:
    """The metrics of reclaimed CPUs and memory."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ["provider", "resource"]
        self.broken = Counter(
            "compute_agent_reclaimed_broken",
            "How often capacity that was offered as unused was missing. The cause is use if its owners"
            " needed the capacity. Otherwise the cause is the metric, or the signal of a waiting guest"
            " (run_delay,"
            " cpu_pressure, cpi), for which a guest on this capacity was throttled or evicted.",
            [*labels, "cause"],
            registry=registry,
        )
        self.offered = Gauge(
            "compute_agent_reclaimed_offered",
            "Offered CPUs and MiB of memory that guests leave unused.",
            labels,
            registry=registry,
        )
        self.expected = Gauge(
            "compute_agent_reclaimed_expected_use",
            "CPUs and MiB of memory that all other guests together are expected to use next.",
            labels,
            registry=registry,
        )

    def forget_providers(self, resource: str, providers: Iterable[str]) -> None:
        """Remove the series of a resource for providers that do not offer it any more."""
        for provider in providers:
            for gauge in (self.offered, self.expected):
                gauge.remove(provider, resource)


class ReclaimEstimator:
    """Decides how much of one unused resource to offer.

    Only one thread may use the object, but any thread may read the offers.
    """

    def __init__(self, resource: ReclaimedResource, recorder: EventRecorder, gauges: ReclaimGauges) -> None:
        self.resource = resource
        self._recorder = recorder
        self._gauges = gauges
        self._file = KeptFile(resource.file, ZONES_FORMAT.parse, f"The history of the use of {resource.unit}")
        self.zones: Mapping[str, ZoneState] = {}
        """The history, offer and broken promises of each zone, by uuid of the zone's provider. Each round
        replaces the whole mapping.
        """
        self._estimates: Mapping[str, UseEstimate] = {}
        self._on = False
        self._began = 0.0
        """The time at which estimates were switched on, in seconds since the epoch."""
        self._shown: frozenset[str] = frozenset()
        """Names of the providers with series in the metrics."""
        # The length is limited, because only rounds empty the queue, and rounds can fail.
        self._blamed: deque[tuple[str, str]] = deque(maxlen=1000)
        """The provider's uuid and the cause, for each guest on reclaimed capacity that had to give way."""

    def switch_on(self, on: bool, now: float) -> None:
        """If ``on``, begin to offer with the saved history. Otherwise save the history, and end all offers.

        :param now: the present time in seconds since the epoch.
        """
        if on and not self._on:
            self._began = now
            self.zones = _taken_over(self._file.load() or {})
        elif self._on and not on:
            self.save(now)
            self._gauges.forget_providers(self.resource.name, self._shown)
            self.zones, self._estimates, self._shown = {}, {}, frozenset()
            self._blamed.clear()
        self._on = on

    def save(self, now: float) -> None:
        """Write the history to its file; ``now`` is in seconds since the epoch."""
        self._file.save(ZONES_FORMAT.dump(self.zones), now)

    def count_blame(self, provider: str, cause: str) -> None:
        """Count that the offer of a provider was too large, because a guest on it was throttled or evicted.

        ``provider`` is the uuid. ``cause`` is the metric or signal because of which the guest was throttled
        or evicted.
        """
        self._blamed.append((provider, cause))

    def list_offers(self, now: float) -> dict[str, int]:
        """The offered amounts by uuid of the provider, without offers based on readings that are too old."""
        known = {uuid: one for uuid, one in dict(self.zones).items() if _is_of_now(one, now)}
        return {uuid: one.offer.published for uuid, one in known.items()}

    def take_round(
        self, measured: Iterable[MeasuredZone], limits: EstimateLimits, acts: bool, now: float
    ) -> bool:
        """Update estimates and offers from one round of measurements; return whether an offer has changed.

        :param acts: whether offers are reported to Placement. Otherwise only commands show the offers
            (preview).
        :param now: the present time in seconds since the epoch.
        """
        zones, estimates, published, broken = {}, {}, False, False
        # The measurements are read first, because a read can fail. If _take_blamed() came first, a failed
        # read would lose the causes that _take_blamed() has removed.
        measured = tuple(measured)
        blamed = self._take_blamed()
        for one in measured:
            node = one.node
            before = self.zones.get(node.uuid, ZoneState())
            history = before.history
            if one.reading is not None:
                history = history.with_reading(one.reading, limits.percentile)
            found = estimate_use(history, one.entitlements, one.capacity, limits, now)
            breach = self._count_breaches(node, before, one.reading, found, blamed[node.uuid], acts, now)
            broken |= breach.count > before.breach.count
            left = max(0.0, found.free_amount - breach.held_back(found.capacity))
            offer = before.offer.next_offer(left, found.capacity, now)
            zones[node.uuid], estimates[node.uuid] = ZoneState(history, offer, breach), found
            labels = node.name, self.resource.name
            # In the mode preview, nothing is offered.
            self._gauges.offered.labels(*labels).set(offer.published if acts else 0)
            self._gauges.expected.labels(*labels).set(found.expected_use)
            if offer.published != before.offer.published:
                published = True
                self._record_offer(node, before.offer, offer, found, acts)
        self.zones, self._estimates = zones, estimates
        shown = frozenset(one.node.name for one in measured)
        self._gauges.forget_providers(self.resource.name, self._shown - shown)
        self._shown = shown
        # Changed offers and broken promises are saved at once, because the next run of the agent continues
        # with them.
        if published or broken or self._file.is_due(now):
            self.save(now)
        return published

    def list_rows(self, nodes: Iterable[ProviderNode], mode: str) -> Iterator[dict[str, Any]]:
        """Rows that explain how the offer of each zone is computed, for commands.

        :param mode: the value of ``[capacity] mode``: act, preview or off.
        """
        estimates, zones = dict(self._estimates), dict(self.zones)
        for node in nodes:
            found, zone = estimates.get(node.uuid), zones.get(node.uuid, ZoneState())
            terms = [] if found is None else list(found.in_words(self.resource.whole))
            terms += [] if found is None else zone.breach.in_words(found.capacity)
            if found is None and self._on:
                terms.append((self._not_read_yet(), 0.0))
            offered = {"act": "offered", "preview": "would be offered"}.get(mode, "not offered: it is off")
            unit = self.resource.unit
            terms.append((f"{offered} (more by 10 % of all {unit} at a time)", float(zone.offer.published)))
            for words, amount in terms:
                yield term_row(node.name, words, amount, unit)

    def _not_read_yet(self) -> str:
        began = datetime.fromtimestamp(self._began).astimezone()
        return (
            f"no use is known yet since {began:%H:%M:%S}: it is the difference of two readings, a minute"
            f" apart, and the estimate takes {HOURS} hours of readings"
        )

    def _take_blamed(self) -> dict[str, list[str]]:
        """Remove and return the causes that were counted since the last round, by uuid of the provider."""
        found: dict[str, list[str]] = defaultdict(list)
        while self._blamed:
            uuid, cause = self._blamed.popleft()
            found[uuid].append(cause)
        return found

    def _count_breaches(
        self,
        node: ProviderNode,
        before: ZoneState,
        reading: ZoneReading | None,
        found: UseEstimate,
        blamed: list[str],
        acts: bool,
        now: float,
    ) -> HeldBackShare:
        """Record that an offer was too large; return the share of capacity to hold back for some time."""
        published, unit = before.offer.published, self.resource.unit
        missing = 0.0 if reading is None else missing_cpus(reading.total, published, found.capacity)
        causes = [*(["use"] if missing else []), *blamed]
        for cause in causes:
            self._gauges.broken.labels(node.name, self.resource.name, cause).inc()
        breach = before.breach.after_breaches(missing, len(causes), now)
        if causes:
            used = (
                "" if reading is None else f"owners used {reading.total:.1f} of {found.capacity:g} {unit}; "
            )
            throttled = f"throttled or evicted for {', '.join(sorted(set(blamed)))}; " if blamed else ""
            self._recorder.record_event(
                LOG.warning,
                EventKind.BREAK,
                None,
                "The provider %s could not keep its promise of %d %s%s",
                node.name,
                published,
                unit,
                "" if acts else " (preview)",
                reason=f"{used}{throttled}{breach.held_back(found.capacity):.1f} {unit} less for a day",
                outcome=EventOutcome.DONE if acts else EventOutcome.PREVIEW,
            )
        return breach

    def _record_offer(
        self, node: ProviderNode, before: CapacityOffer, offer: CapacityOffer, found: UseEstimate, acts: bool
    ) -> None:
        self._recorder.record_event(
            LOG.info,
            EventKind.OFFER,
            None,
            "The provider %s %s %d of %d %s (before: %d)",
            node.name,
            "offers" if acts else "would offer",
            offer.published,
            int(found.capacity),
            self.resource.unit,
            before.published,
            reason=found.untold
            or f"the owners may use {found.expected_use:.1f}, and leave {found.free_amount:.1f}",
            outcome=EventOutcome.DONE if acts else EventOutcome.PREVIEW,
        )


def _is_of_now(zone: ZoneState, now: float) -> bool:
    """Whether the readings behind an offer are recent, and not from an earlier run of the agent."""
    # Guests and capacity may have changed since old readings, so an estimate from them cannot be used.
    return not estimate_use(zone.history, {}, 0.0, EstimateLimits(), now).untold


def _taken_over(zones: Mapping[str, ZoneState]) -> Mapping[str, ZoneState]:
    # The time for which the estimate has been above the offer begins again, because the clock may have jumped
    # since the file was saved.
    return {uuid: replace(zone, offer=replace(zone.offer, above_since=0.0)) for uuid, zone in zones.items()}


OFF: Final = "off"
ACT: Final = "act"
VCPU: Final = "VCPU"


class StolenTime:
    """Withholds VCPU for steal time: CPU time that a hypervisor takes from this virtual machine.

    Only one thread may use the object, but any thread may call add_to_tree() and list_rows().
    """

    def __init__(
        self, mode: str, state_path: Path, recorder: EventRecorder, registry: CollectorRegistry
    ) -> None:
        self.mode = mode
        self._file = _kept_file(state_path)
        self._recorder = recorder
        self._zones: Mapping[str, StolenReserve] = {} if mode == OFF else self._file.load() or {}
        labels = ["provider"]
        self._taken = Gauge(
            "compute_agent_stolen_cpus",
            "CPUs behind VCPU that the hypervisor takes away, in the second worst of the last 15 minutes.",
            labels,
            registry=registry,
        )
        self._withheld = Gauge(
            "compute_agent_withheld_cpus",
            "VCPU that the agent reserves because the hypervisor takes CPUs away.",
            labels,
            registry=registry,
        )

    def switch_mode(self, mode: str) -> None:
        """Use another mode (off, preview or act); ``off`` drops the measured times."""
        if mode == OFF:
            self._zones = {}
            self._taken.clear()
            self._withheld.clear()
        elif self.mode == OFF:
            self._zones = self._file.load() or {}
        self.mode = mode

    def run_round(self, use: HostUse, host_state: HostState, now: float) -> bool:
        """Update the withheld VCPU from a reading; return whether a report has to change.

        :param now: the present time in seconds since the epoch.
        """
        if self.mode == OFF:
            return False
        zones, changed = {}, False
        for node in host_state.tree.providers_of(VCPU):
            cpus = node.inventories[VCPU].total
            before = self._zones.get(node.uuid, StolenReserve())
            part = stolen_part(use.stolen, host_state.own_cpus(node) & host_state.cpu_sets.shared)
            found = before.with_part(part, cpus, now)
            zones[node.uuid] = found
            self._taken.labels(node.name).set(found.counted_part * cpus)
            self._withheld.labels(node.name).set(found.withheld if self.mode == ACT else 0)
            if found.withheld != before.withheld:
                changed = True
                self._record_offer(node, before, found, cpus)
        self._zones = zones
        if changed or self._file.is_due(now):
            self.save(now)
        # In the mode preview, nothing is withheld, so reports do not change.
        return changed and self.mode == ACT

    def save(self, now: float) -> None:
        """Write the measured times to their file; ``now`` is in seconds since the epoch."""
        if self.mode != OFF:
            self._file.save(RESERVES_FORMAT.dump(self._zones), now)

    def _record_offer(
        self, node: ProviderNode, before: StolenReserve, found: StolenReserve, cpus: int
    ) -> None:
        acts = self.mode == ACT
        self._recorder.record_event(
            LOG.info,
            EventKind.STOLEN,
            None,
            "The provider %s %s %d of %d CPUs (before: %d)",
            node.name,
            "withholds" if acts else "would withhold",
            found.withheld,
            cpus,
            before.withheld,
            reason=f"the hypervisor takes {found.counted_part * cpus:.1f} of them",
            outcome=EventOutcome.DONE if acts else EventOutcome.PREVIEW,
        )

    def add_to_tree(self, tree: ProviderTree) -> ProviderTree:
        """Return the provider tree with part of the VCPU withheld, if the mode is ``act``."""
        zones = self._zones if self.mode == ACT else {}
        return withhold_cpus(tree, zones)

    def list_rows(self, tree: ProviderTree, withheld: Mapping[str, WithheldUnits]) -> list[dict[str, Any]]:
        """Rows of stolen CPUs and withheld VCPU, for commands.

        :param withheld: the VCPU that the last report withheld, by uuid of the provider.
        """
        if self.mode == OFF:
            return []
        rows = []
        for node in tree.providers_of(VCPU):
            found, cpus = self._zones.get(node.uuid, StolenReserve()), node.inventories[VCPU].total
            terms = list(found.in_words(cpus))
            withheld_text = "to be withheld of VCPU" if self.mode == ACT else "would be withheld of VCPU"
            terms.append(
                (f"{withheld_text} (5 minutes between changes, less after 15)", float(found.withheld))
            )
            if self.mode == ACT and (done := withheld.get(node.uuid)) is not None:
                terms.append((done.outcome_text, float(done.reserved)))
            rows += [term_row(node.name, words, amount, "CPUs") for words, amount in terms]
        return rows


def with_kept(tree: ProviderTree, mode: str, state_path: Path) -> ProviderTree:
    """The tree without the VCPU that a starting agent withholds, because an earlier run saw steal time."""
    return withhold_cpus(tree, (_kept_file(state_path).peek_content() or {}) if mode == ACT else {})


def withhold_cpus(tree: ProviderTree, zones: Mapping[str, StolenReserve]) -> ProviderTree:
    """Return the provider tree with VCPU reserved; ``zones`` has the reserves by uuid of the provider."""
    return replace(
        tree,
        nodes=tuple(
            replace(node, withheld={VCPU: zone.withheld})
            if (zone := zones.get(node.uuid)) is not None and VCPU in node.inventories and zone.withheld
            else node
            for node in tree.nodes
        ),
    )


def _kept_file(state_path: Path) -> KeptFile[Mapping[str, StolenReserve]]:
    return KeptFile(state_path / STOLEN_FILE, RESERVES_FORMAT.parse, "The record of stolen time")
