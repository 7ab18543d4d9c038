"""Audits: compare the guests of the host with allocations in Placement, and repair differences on request.

An allocation without a running guest can belong to a guest that is starting, or is stopped for some time. An
audit therefore deletes an allocation only if the allocation has been unchanged and without a guest for some
time. Just before the deletion, the audit reads the consumer and the guests again. The request has the
generation of the consumer, so that Placement refuses the deletion after a concurrent change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from compute_agent.controllers.emulator import find_misplaced, tell_misplaced
from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestDriver, GuestFlavor
from compute_agent.events.event import EventKind, EventRecorder, NamedSubject
from compute_agent.host.pci_devices import read_pci_devices
from compute_agent.loops.allocations import allocations_by_consumer, allocations_read, hand_over
from compute_agent.loops.base import WakeReport
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import Allocation, CpuAssignment, Guest
from compute_agent.model.guest_settings import EmulatorPolicy, GuestSettings, ThreadPolicy
from compute_agent.model.messages import GuestGoneError
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.promises.facts import cards_of, held_devices
from compute_agent.promises.verdict import device_faults
from compute_agent.report.answers import ConcurrentUpdateError, ConflictError
from compute_agent.report.audit import (
    AuditedGuest,
    AuditFinding,
    ConsumerRecord,
    Decision,
    FindingKind,
    HealOptions,
    allocation_for,
    compare_holdings,
    decide_creation,
    decide_deletion,
)
from compute_agent.report.capacity import CpuLocation, FreeCapacity
from compute_agent.report.client import PlacementClient
from compute_agent.report.history import ConsumerOwner
from compute_agent.report.reporter import HostReporter


def locate_guests(driver: GuestDriver, host_state: HostState) -> dict[str, CpuLocation]:
    """Read the CPUs on which the threads of each running guest can run, by uuid.

    :raises DriverError: the driver does not answer.
    """
    settings: dict[str, GuestSettings] = {}
    affinities: dict[str, frozenset[CpuSet]] = {}
    for guest in driver.guests():
        try:
            threads = driver.thread_ids(guest)
        except GuestGoneError:
            # The guest has ended since it was listed.
            continue
        found = frozenset(cpus for tid in threads if (cpus := procfs.thread_affinity(tid)) is not None)
        if found:
            settings[guest.uuid], affinities[guest.uuid] = guest.settings, found
    return from_affinities(settings, affinities, host_state)


def locate_consumers(driver: GuestDriver, pipeline: GuestPipeline) -> dict[str, CpuLocation]:
    """Read the CPUs on which the host's guests can run, by uuid of the consumer that holds their allocation.

    While a guest migrates or is resized on its host, its migration holds the allocation that is in use. The
    allocation of the guest itself is then for the time after the migration or resize.

    :raises DriverError: the driver does not answer.
    """
    locations = locate_guests(driver, pipeline.host_state)
    views = pipeline.guest_views()
    through = {view.guest.uuid: view.migration.consumer for view in views if view.migration is not None}
    return {through.get(uuid, uuid): location for uuid, location in locations.items()}


def from_affinities(
    settings: Mapping[str, GuestSettings], affinities: Mapping[str, frozenset[CpuSet]], host_state: HostState
) -> dict[str, CpuLocation]:
    """Derive the dedicated and shared CPUs that guests use from the CPU sets of their threads.

    If a thread may run on dedicated CPUs only, these CPUs belong to its guest. If threads of two guests are
    bound to the same CPU, the CPU belongs to neither guest. Threads that can also run on other CPUs, such as
    emulator threads, count as floating.

    :param affinities: the different CPU sets of the threads of each guest, by uuid.
    """
    dedicated = host_state.cpu_sets.dedicated
    bound = {
        uuid: frozenset[int]().union(*(cpus for cpus in sets if cpus <= dedicated))
        for uuid, sets in affinities.items()
    }
    # With the legacy vcpu_pin_set alone, dedicated and shared CPUs are the same, so that pinned and floating
    # threads cannot be told apart.
    ambiguous = bool(dedicated & host_state.cpu_sets.shared)
    found: dict[str, CpuLocation] = {}
    for uuid, sets in affinities.items():
        observed = frozenset[int]().union(*sets)
        used = bound[uuid]
        # With the thread policy isolate, the siblings of the dedicated CPUs of a guest also belong to the
        # guest, and stay empty.
        isolated = settings[uuid].thread_policy is ThreadPolicy.ISOLATE
        own = used | (host_state.topology.siblings_of(used) & dedicated if isolated else frozenset())
        others = frozenset[int]().union(*(cpus for other, cpus in bound.items() if other != uuid))
        if not used or own & others:
            found[uuid] = CpuLocation(floating=observed)
            continue
        vcpus = settings[uuid].vcpus
        extra = settings[uuid].emulator_policy is EmulatorPolicy.ISOLATE
        pinned = len(used) == vcpus + extra and not ambiguous
        found[uuid] = CpuLocation(own, observed - own, vcpus if pinned else 0)
    return found


LOG = logging.getLogger(__name__)

MAX_ATTEMPTS: Final = 4
"""Maximum number of attempts to write an allocation that other clients change at the same time."""

_HEAL, _DELETE, _MOVE = "--heal", "--delete", "guest move"

_MOVE_EMULATOR: Final = "[isolation] emulator = move"

_NOVA_REMEDIES: Final = {
    FindingKind.UNALLOCATED: "nova-manage placement heal_allocations",
    FindingKind.UNUSED: "nova-manage placement audit",
}
"""The commands that repair a difference on a host of nova-compute, where Nova owns guests and allocations."""


@dataclass(frozen=True, slots=True)
class AuditOutcome:
    """A difference between guests and allocations that an audit found, and the outcome of its repair.

    :ivar remedy: the switch, option or command that repairs the difference; empty if there is no repair.
    :ivar outcome: the outcome of the repair as text; empty if no repair was tried.
    """

    finding: AuditFinding
    remedy: str = ""
    outcome: str = ""


class HostAuditor:
    """Compares the guests of the host with allocations once, and repairs differences on request."""

    def __init__(
        self,
        pipeline: GuestPipeline,
        driver: GuestDriver,
        client: PlacementClient,
        changed: WakeReport,
        recorder: EventRecorder | None = None,
        holders: Mapping[str, ConsumerOwner] = MappingProxyType({}),
        moves_emulator: bool = False,
        root: Path = Path("/"),
        claimed: frozenset[str] = frozenset(),
    ) -> None:
        """Prepare an audit.

        :param changed: called after the audit has changed an allocation.
        :param holders: the owners (project and user) of guests, by uuid.
        :param moves_emulator: whether the agent moves emulator threads away from dedicated CPUs if another
            program pins guests.
        :param root: the folder that contains ``sys``, usually ``/``.
        :param claimed: the guests for which the agent itself holds allocations, whether they run or not.
        """
        self._root = root
        self._claimed = claimed
        self._moves_emulator = moves_emulator
        self._holders = holders
        self._recorder = recorder or EventRecorder()
        self._pipeline = pipeline
        self._driver = driver
        self._client = client
        self._changed = changed
        self._flavors: dict[str, GuestFlavor] = {}

    def run_audit(self, options: HealOptions) -> list[AuditOutcome]:
        """Compare guests with allocations, and repair the differences that ``options`` allow.

        :raises PlacementError: Placement does not answer, or refuses a request.
        :raises DriverError: the running guests are not known. Nothing was repaired.
        """
        self._pipeline.check_taken_over()
        host_state = self._pipeline.host_state
        # This reporter is only used to read, so it gets no classes and traits of its own.
        reader = HostReporter(self._client, {}, lambda owned: None)
        reported = reader.read_reported(host_state.tree.root.uuid)
        # Migrations are read first, because the allocation of a new migration would otherwise count as an
        # allocation without a guest.
        self._read_migrations(frozenset(uuid for uuid, provider in reported.items() if provider.inventories))
        # Allocations are read before guests: a guest gets its allocation before it starts. So a guest
        # that starts after the read of allocations does not seem to lack its allocation.
        held = allocations_by_consumer(
            self._client, [zone.uuid for zone in host_state.all_zones if zone.uuid in reported]
        )
        guests = {guest.uuid: guest for guest in self._audited_guests()}
        inventories = {uuid: provider.inventories for uuid, provider in reported.items()}
        free = FreeCapacity(reader.server_tree(host_state.tree), inventories, held)
        findings = compare_holdings(
            guests.values(), held, self._inactive_guests(), self._pipeline.guest_migrations
        )
        for finding in findings:
            # The audit is certain that this guest uses these amounts, so no other guest can get them.
            if finding.kind is FindingKind.UNALLOCATED:
                _take_amounts(free, guests[finding.consumer].known)
        outcomes = []
        for finding in findings:
            if options.consumers and finding.consumer not in options.consumers:
                continue
            match finding.kind:
                case kind if host_state.tree.beside and kind in _NOVA_REMEDIES:
                    outcome = AuditOutcome(finding, _NOVA_REMEDIES[kind])
                case FindingKind.UNALLOCATED:
                    outcome = self._create_allocation(finding, guests[finding.consumer], free, options)
                case FindingKind.UNUSED:
                    outcome = self._delete_allocation(finding, options)
                case FindingKind.STRAY:
                    outcome = AuditOutcome(finding, _MOVE)
                case FindingKind.EMULATOR if not self._moves_emulator:
                    outcome = AuditOutcome(finding, _MOVE_EMULATOR)
                case _:
                    outcome = AuditOutcome(finding)
            LOG.debug("An audit of guests and allocations has this result: %s", outcome)
            outcomes.append(outcome)
        return outcomes

    # Reading

    def _read_migrations(self, offering: frozenset[str]) -> None:
        """Report to the worker the guests that have begun to migrate since the last report.

        :raises PlacementError: Placement does not answer, or refuses a request.
        :raises DriverError: the worker does not answer in time.
        """
        event = allocations_read(self._client, self._pipeline, offering)
        if event is None or not event.migrations:
            return
        # Only migrations are submitted. Reports decide about losses, because these can come from an older
        # copy of Placement's database.
        migrating = {uuid: event.allocations[uuid] for uuid in event.migrations}
        unclaimed = {consumer: one.allocation for consumer, one in self._pipeline.unclaimed_holdings.items()}
        held = {**unclaimed, **(event.held or {})}
        hand_over(self._pipeline, replace(event, allocations=migrating, held=held))

    def _audited_guests(self) -> list[AuditedGuest]:
        views = {view.guest.uuid: view for view in self._pipeline.guest_views()}
        locations = locate_guests(self._driver, self._pipeline.host_state)
        held = frozenset[int]().union(
            *(view.assignment.held_cpus for view in views.values() if view.assignment is not None)
        )
        tree = self._pipeline.reported_tree
        cards = cards_of(tree, partial(read_pci_devices, self._root))
        found = []
        for guest in self._driver.guests():
            try:
                flavor = self._read_flavor(guest)
                misplaced = self._tell_misplaced(views.get(guest.uuid), held)
            except GuestGoneError:
                # The guest has ended since it was listed.
                continue
            self._flavors[guest.uuid] = flavor
            location = locations.get(guest.uuid, CpuLocation())
            view = views.get(guest.uuid)
            audited = _audited_guest(guest, flavor, view, location)
            devices = ""
            if guest.devices is not None and view is not None and view.allocation is not None:
                devices = "; ".join(device_faults(held_devices(tree, view.allocation), guest.devices, cards))
            found.append(replace(audited, misplaced=misplaced, devices=devices))
        return found

    def _tell_misplaced(self, view: GuestView | None, held: CpuSet) -> str:
        """A sentence about emulator threads on dedicated CPUs; empty if the agent itself pins guests."""
        if view is None or view.assignment is None or not self._pipeline.host_state.follows_kernel:
            return ""
        threads = self._driver.emulator_threads(view.guest)
        return tell_misplaced(find_misplaced(threads, view.assignment, held))

    def _read_flavor(self, guest: Guest) -> GuestFlavor:
        return (
            GuestFlavor() if (flavors := self._driver.flavor_source) is None else flavors.read_flavor(guest)
        )

    def _inactive_guests(self) -> frozenset[str]:
        """The guests of this host that are not running, but need their allocations."""
        flavors = self._driver.flavor_source
        inactive = frozenset[str]() if flavors is None else flavors.inactive_guests()
        return inactive | self._driver.lost_guests().keys() | self._claimed

    def _is_here(self, consumer: str) -> bool:
        running = {guest.uuid for guest in self._driver.guests()}
        return consumer in running or consumer in self._inactive_guests()

    # Repairs

    def _create_allocation(
        self, finding: AuditFinding, guest: AuditedGuest, free: FreeCapacity, options: HealOptions
    ) -> AuditOutcome:
        allocation = allocation_for(guest, free)
        if isinstance(allocation, str):
            return AuditOutcome(finding, _HEAL, f"not possible: {allocation}")

        flavor, typed = self._flavors[guest.uuid], self._client.knows_consumer_types
        holder = self._holders.get(guest.uuid, ConsumerOwner(flavor.project_id, flavor.user_id))

        def decide_record(record: ConsumerRecord) -> Decision:
            return decide_creation(
                record, allocation, holder.project_id, holder.user_id, typed(), holder.consumer_type
            )

        outcome = self._carry_out("created", guest.uuid, decide_record, options.heal, options.dry_run)
        # Amounts are subtracted here only for guests without known amounts, because run_audit() has already
        # subtracted known amounts.
        if not guest.known:
            _take_amounts(free, allocation)
        return AuditOutcome(replace(finding, allocation=allocation), _HEAL, outcome)

    def _delete_allocation(self, finding: AuditFinding, options: HealOptions) -> AuditOutcome:
        age = self._finding_age(finding)
        outcome = self._carry_out(
            "deleted",
            finding.consumer,
            lambda record: decide_deletion(record, finding, age, options),
            options.delete,
            options.dry_run,
        )
        return AuditOutcome(replace(finding, detail=f"without a guest for {age:.0f} s"), _DELETE, outcome)

    def _finding_age(self, finding: AuditFinding) -> float:
        """The number of seconds for which an allocation has been unchanged and without a guest."""
        known = self._pipeline.unclaimed_holdings.get(finding.consumer)
        if known is None or known.allocation != finding.allocation:
            # The allocation is new, or has changed, so its age begins at 0.
            return 0.0
        return time.monotonic() - known.since

    def _read_record(self, consumer: str) -> ConsumerRecord:
        """Read the present allocation of a consumer, and then whether its guest is on this host."""
        holds = self._client.get_allocations(consumer)
        return ConsumerRecord(
            holds, self._pipeline.host_state.own_part(holds.resources), self._is_here(consumer)
        )

    def _carry_out(
        self,
        verb: str,
        consumer: str,
        decide: Callable[[ConsumerRecord], Decision],
        asked_for: bool,
        dry_run: bool,
    ) -> str:
        """Write the allocation that ``decide`` returns for a consumer; return the outcome as text.

        :param verb: the effect on the allocation of this host, for the log: ``created`` or ``deleted``.
        :param asked_for: whether the operator has requested this kind of repair.
        """
        if not asked_for and not dry_run:
            return ""
        reason = ""
        # After a concurrent change, the record is read again, and the decision is made again.
        for _ in range(MAX_ATTEMPTS):
            wanted = decide(self._read_record(consumer))
            if isinstance(wanted, str):
                return wanted
            if dry_run:
                return "would be done"
            try:
                self._client.set_allocations(wanted)
            except ConflictError as error:
                reason = f"refused: {error}"
                # Another conflict, such as a full provider, would be the same at the next attempt.
                if isinstance(error, ConcurrentUpdateError):
                    continue
                break
            self._recorder.record_done(
                LOG.info,
                EventKind.AUDIT,
                NamedSubject(consumer),
                f"The audit {verb} the allocation of consumer %s; it holds now: %s",
                wanted.resources or "nothing",
            )
            self._changed()
            return "done"
        return reason


def _audited_guest(
    guest: Guest, flavor: GuestFlavor, view: GuestView | None, location: CpuLocation
) -> AuditedGuest:
    settings = guest.settings
    if view is not None and view.assignment is not None and view.assignment.held_cpus:
        location = _location_of(view.assignment)
    return AuditedGuest(
        guest.uuid,
        guest.name,
        settings.vcpus,
        location,
        flavor.dedicated,
        settings.emulator_policy is EmulatorPolicy.ISOLATE,
        flavor.resources,
        "" if view is None else view.refusal,
        "" if view is None else view.stray,
        "" if view is None or view.migration is None else view.migration.consumer,
        frozenset() if view is None or view.assignment is None else view.assignment.held_cpus,
        # During a migration, the allocation on this host belongs to the migration's consumer.
        {} if view is None or view.migration is not None else view.allocation or {},
        flavor.dedicated_vcpus,
        frozenset() if view is None or view.assignment is None else _pinned_vcpus(view.assignment),
    )


def _pinned_vcpus(assignment: CpuAssignment) -> CpuSet:
    """The numbers of the guest CPUs that can run only on CPUs dedicated to their guest."""
    return frozenset(
        number for number, cpus in enumerate(assignment.vcpu_cpus) if cpus <= assignment.held_cpus
    )


def _location_of(assignment: CpuAssignment) -> CpuLocation:
    alone = all(cpus <= assignment.held_cpus for cpus in assignment.vcpu_cpus)
    vcpus = len(assignment.vcpu_cpus)
    return CpuLocation(assignment.held_cpus, assignment.cpus - assignment.held_cpus, vcpus if alone else 0)


def _take_amounts(free: FreeCapacity, allocation: Allocation) -> None:
    for provider, amounts in allocation.items():
        for name, amount in amounts.items():
            free.take_amount(provider, name, amount)


def audit_document(outcomes: list[AuditOutcome], names: dict[str, str]) -> list[dict[str, Any]]:
    """The outcomes of an audit as commands show them; ``names`` are the names of providers, by uuid."""
    return [
        {
            "finding": it.finding.kind.value,
            "consumer": it.finding.consumer,
            "name": it.finding.name,
            "resources": {
                names.get(uuid, uuid): dict(amounts) for uuid, amounts in it.finding.allocation.items()
            },
            "detail": it.finding.detail,
            "remedy": it.remedy,
            "outcome": it.outcome,
        }
        for it in outcomes
    ]
