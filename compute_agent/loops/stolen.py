"""What a hypervisor takes of the shared CPUs: kept, told, and withheld from what is sold."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry, Gauge

from compute_agent.events.event import EventKind, EventOutcome, EventRecorder
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.loops.kept_file import KeptFile
from compute_agent.pipeline.world import HostState
from compute_agent.reclaim.offers import term_row
from compute_agent.reclaim.stolen import FILE, StolenReserve, dump, parse, stolen_part
from compute_agent.reclaim.zone import HostUse
from compute_agent.report.held_amounts import WithheldUnits

LOG = logging.getLogger(__name__)

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
        for node in world.tree.providing(VCPU):
            cpus = node.inventories[VCPU].total
            before = self._zones.get(node.uuid, StolenReserve())
            part = stolen_part(use.stolen, world.own_cpus(node) & world.cpu_sets.shared)
            found = before.after(part, cpus, now)
            zones[node.uuid] = found
            self._taken.labels(node.name).set(found.part * cpus)
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
            self._file.save(dump(self._zones), now)

    def _tell(self, node: ProviderNode, before: StolenReserve, found: StolenReserve, cpus: int) -> None:
        acts = self.mode == ACT
        self._recorder.record(
            LOG.info,
            EventKind.STOLEN,
            None,
            "Of %s %d of %d CPUs are %s, after %d",
            node.name,
            found.withheld,
            cpus,
            "withheld" if acts else "what would be withheld",
            before.withheld,
            reason=f"the hypervisor takes {found.part * cpus:.1f} of them",
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
        for node in tree.providing(VCPU):
            found, cpus = self._zones.get(node.uuid, StolenReserve()), node.inventories[VCPU].total
            terms = list(found.in_words(cpus))
            what = "to be withheld of VCPU" if self.mode == ACT else "would be withheld of VCPU"
            terms.append((f"{what} (5 minutes between changes, less after 15)", float(found.withheld)))
            if self.mode == ACT and (done := withheld.get(node.uuid)) is not None:
                terms.append((done.words, float(done.reserved)))
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
    return KeptFile(state_path / FILE, parse, "What was learnt of stolen time")
