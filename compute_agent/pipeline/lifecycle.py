"""The lifecycle of guests: takes over running guests, adds new ones, applies allocations, removes ended ones.

This module is the part of the worker that compares the cache with the guests of the driver and with their
allocations. The steps of an event are in :mod:`compute_agent.pipeline.worker`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestDriver
from compute_agent.events.event import EventKind, EventRecorder, NamedSubject
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.model.guest import Allocation, Guest, GuestHolding, GuestMigration
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.enforcer import GuestEnforcer
from compute_agent.pipeline.events import AllocationsRead, GuestStarted
from compute_agent.pipeline.guest_cache import CachedGuest, ConsumerFacts, UnclaimedHolding
from compute_agent.pipeline.guest_settings import GuestClassifier
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.placer import GuestPlacer
from compute_agent.pipeline.state import AgentState, SavedGuest
from compute_agent.policy.policies import KernelPlacement
from compute_agent.report.history import ConsumerOwner


def observe_guest(driver: GuestDriver, guest: Guest) -> KernelPlacement:
    """Read the CPUs and NUMA nodes that the kernel lets a guest use now.

    :raises GuestGoneError: the guest has ended.
    """
    return KernelPlacement(
        driver.observed_cpus(guest),
        driver.vcpu_affinity(guest),
        driver.emulator_affinity(guest),
        driver.memory_nodes(guest, frozenset()) or frozenset(),
    )


LOG = logging.getLogger(__name__)

Limits = Mapping[str, Mapping[ThrottleControl, float]]
"""The limits that throttling has set, by uuid of the guest and by control, in the unit of the control."""


class GuestLifecycle:
    """Keeps the guests in the cache equal to the guests of the driver; only the worker uses the object."""

    def __init__(
        self,
        driver: GuestDriver,
        placer: GuestPlacer,
        enforcer: GuestEnforcer,
        metrics: AgentMetrics,
        recorder: EventRecorder,
        classifier: GuestClassifier,
    ) -> None:
        self._driver = driver
        self._classifier = classifier
        self._recorder = recorder
        self._placer = placer
        self._enforcer = enforcer
        self._cache = enforcer.cache
        self._metrics = metrics
        self._saved: Mapping[str, SavedGuest] | None = None
        """The saved guests that are not taken over yet; None means that the guests of all drivers are taken
        over.
        """
        self._awaited: frozenset[str] | None = None
        """The drivers that had not listed their guests at the last takeover; None means that there was no
        takeover.
        """
        self._limits: Limits = {}
        self._owners: Mapping[str, ConsumerOwner] = {}
        self._gone_devices: dict[str, dict[str, Guest]] = {}
        """The guests that hold a vanished PCI device, by address of the device and uuid of the guest."""
        self._unallocated: frozenset[str] = frozenset()
        """Uuids of the guests for which the log already has a warning about a missing allocation."""

    def begin_with(self, saved: AgentState, limits: Limits) -> None:
        """Remember, for take_over(), what the previous run of the agent has saved.

        :param limits: the limits that throttling has set, by uuid of the guest.
        """
        self._cache.migrations = dict(saved.migrations)
        self._cache.hold_for(saved.unclaimed, time.monotonic())
        self._saved, self._limits, self._owners = saved.guests, limits, saved.history.holders
        self._awaited = None

    @property
    def is_known(self) -> bool:
        """Whether take_over() has filled the cache with the running guests of all drivers."""
        return self._saved is None

    @property
    def is_known_in_part(self) -> bool:
        """Whether take_over() has filled the cache with the running guests of at least one driver."""
        return self._saved is None or self._awaited is not None

    def may_be_awaited(self, uuid: str) -> bool:
        """Whether a saved guest perhaps belongs to a driver that has not listed its guests yet."""
        return self._awaited is not None and self._saved is not None and uuid in self._saved

    def enter_guest(self, event: GuestStarted) -> None:
        """Add a guest that runs, or update its entry, and place it."""
        guest, allocation, owner = event.guest, event.allocation, event.owner
        # The allocation of a migration counts only if Placement's answer is empty, or if a new guest has no
        # answer.
        entry = self._cache.get(guest.uuid)
        through = (
            None if allocation or (allocation is None and entry) else self._through_migration(guest.uuid)
        )
        if through is not None:
            allocation = through.allocation
        if entry is None:
            # A guest that was lost before keeps its former CPUs.
            lost = self._cache.lost.get(guest.uuid)
            place = lost.assignment if lost and self._cache.host_state.places_guests else None
            held = self._held_before(guest, allocation)
            owner = owner or self._owners.get(guest.uuid)
            without_room = lost is not None and lost.without_room
            guest = self._classify_guest(guest, ConsumerFacts(held, owner, without_room))
            entry = CachedGuest(guest, held, place, owner=owner, without_room=without_room)
            self._cache.add(entry)
        else:
            held = entry.allocation if allocation is None else allocation
            entry.owner = owner or entry.owner
            guest = self._classify_guest(guest, replace(entry.consumer_facts, allocation=held))
            # A start creates new cgroups, which have no limits. Throttling will decide about the new run.
            if event.started and guest != entry.guest:
                entry.limits.clear()
            self.use_settings(entry, guest)
        if allocation is not None:
            if allocation != entry.allocation:
                self._cache.mark_pending(entry)
            entry.allocation, entry.as_of = allocation, event.as_of
            entry.migration = None if through is None else through.migration
        self._placer.place_guest(entry)
        # Only a guest that has just started is stopped, because a guest that has run longer would lose work.
        if event.started and entry.refusal and self._cache.host_state.refuse_unplaced:
            self._stop_unplaced(entry)

    def _classify_guest(self, guest: Guest, consumer: ConsumerFacts) -> Guest:
        found = self._classifier.classify_guest(guest, consumer)
        self._classifier.report_problems(found)
        return found

    def classify_again(self, entry: CachedGuest) -> bool:
        """Resolve a guest's settings after a change of their sources; return whether they have changed."""
        # A guest that loses its allocation later has its own class until the next refusal.
        entry.without_room = entry.without_room and not entry.allocation
        found = self._classify_guest(entry.guest, entry.consumer_facts)
        return self.use_settings(entry, found)

    def use_settings(self, entry: CachedGuest, guest: Guest) -> bool:
        """Replace the guest of a cache entry by ``guest``; return whether any setting differs."""
        before = entry.guest
        if guest == before:
            return False
        # The change is reported only if the pid is the same. With another pid, this is a new run of the
        # guest, and no change of settings.
        if guest.pid == before.pid:
            self._classifier.report_change(before, guest)
        # Limits are removed now, because throttling ignores preserved guests from now on.
        if guest.settings.preserve and not before.settings.preserve and entry.limits:
            self._enforcer.lift_limits(entry)
        entry.guest = guest
        self._cache.mark_pending(entry)
        return True

    def read_allocations(self, event: AllocationsRead) -> None:
        """Apply new allocations to the guests and consumers that have them."""
        # Consumers come first, because hold_for() drops ended migrations. The allocations of guests are
        # handled after them, and add the current migrations again.
        if event.held is not None:
            self._cache.hold_for(event.held, event.as_of)
        LOG.debug("The worker got new allocations of %d guests", len(event.allocations))
        for uuid, held in event.allocations.items():
            entry = self._cache.get(uuid)
            if entry is None or event.as_of < entry.as_of:
                continue  # The entry has a newer answer of Placement, for example from a start.
            entry.as_of = event.as_of
            allocation = self._cache.host_state.own_part(held)
            self._follow_migration(entry, event.migrations.get(uuid))
            entry.owner = event.owners.get(uuid, entry.owner)
            if allocation != entry.allocation:
                held_now = self._cache.host_state.in_words(allocation)
                self._recorder.record_done(
                    LOG.info, EventKind.HOLD, entry.guest, "The allocation of guest %s is now: %s", held_now
                )
                entry.allocation = allocation
                self.classify_again(entry)
                self._cache.mark_pending(entry)
                self._placer.place_guest(entry)
            # Settings are resolved again even with an unchanged allocation, because a new owner can match
            # another rule.
            elif self.classify_again(entry):
                self._placer.place_guest(entry)

    def note_refused_room(self, uuid: str) -> None:
        """Note that this host has no room for a guest's claim, so that the guest gets another class."""
        # The guest may have ended, or another program may have allocated for it, since the refusal.
        if (entry := self._cache.get(uuid)) is not None:
            entry.without_room = True
            if self.classify_again(entry):
                self._placer.place_guest(entry)
                LOG.warning(
                    "Guest %s has class %s until this host has room for its claim, and then class %s: free"
                    " resources of this host, or let the guest claim fewer",
                    entry.guest,
                    entry.guest.settings.qos_class,
                    entry.guest.deferred_class,
                )

    def warn_of_unallocated(self) -> None:
        """Log a warning for each guest that has lost its allocation."""
        unallocated = {entry.guest.uuid: entry for entry in self._cache if entry.allocation == {}}
        for uuid in sorted(unallocated.keys() - self._unallocated):
            entry = unallocated[uuid]
            LOG.warning(
                "Guest %s has no allocation on this host, and runs%s: see compute-agent audit",
                entry.guest,
                entry.place_words,
            )
        self._unallocated = frozenset(unallocated)

    def compare_devices(self, before: ProviderTree, now: ProviderTree) -> None:
        """Record held PCI devices that vanished, or are not offered any more, and devices that returned."""
        had, has = ({node.uuid: node.device for node in tree.device_providers} for tree in (before, now))
        for uuid in (uuid for uuid in had if uuid not in has):
            for entry in self._cache:
                if uuid in (entry.allocation or {}):
                    self._gone_devices.setdefault(had[uuid], {})[entry.guest.uuid] = entry.guest
                    self._recorder.record_done(
                        LOG.warning,
                        EventKind.DEVICE_GONE,
                        entry.guest,
                        "Guest %s holds the PCI device %s, which is gone, or not offered any more",
                        had[uuid],
                    )
        for address in has.values():
            for guest in self._gone_devices.pop(address, {}).values():
                self._recorder.record_done(
                    LOG.info,
                    EventKind.DEVICE_BACK,
                    guest,
                    "The PCI device that guest %s held is back: %s",
                    address,
                )

    def _follow_migration(self, entry: CachedGuest, migration: GuestMigration | None) -> None:
        """Record which migration holds a guest's allocation (None: no migration), and log a change."""
        if migration is not None:
            self._cache.migrations[migration.consumer] = entry.guest.uuid
            if migration != entry.migration:
                level = logging.WARNING if migration.others else logging.INFO
                LOG.log(level, "Guest %s is %s; its CPUs here do not change", entry.guest, migration)
        elif entry.migration is not None:
            LOG.info("Guest %s is not migrating any more", entry.guest)
        entry.migration = migration

    def forget_absent(self) -> None:
        """Remove the settings by hand and by the fleet of guests that left ten minutes ago or earlier.

        A domain that is defined but does not run keeps its settings.
        """
        present = {entry.guest.uuid for entry in self._cache}
        present |= self._cache.lost.keys() | self._cache.unclaimed.keys()
        # Guests of a driver that has not listed them yet would count as absent.
        if not self.is_known or not (gone := self._classifier.manual.absent_guests(present)):
            return
        flavors = self._driver.flavor_source
        try:
            # A domain that is defined but shut off keeps its settings, even without an allocation.
            defined = frozenset[str]() if flavors is None else flavors.inactive_guests()
        except DriverError:
            # libvirt cannot list the domains now. The settings stay until the next successful call.
            return
        for uuid in gone:
            if uuid not in defined:
                LOG.info(
                    "Guest %s has gone, so the agent removes the settings that operators or the fleet made"
                    " for it",
                    uuid,
                )
                self._classifier.forget_guest(uuid)

    def forget_ended(self, guest: Guest, ending: str = "") -> None:
        """Remove an ended guest from the cache, and record its allocation as an allocation without a guest.

        :param ending: the exit status or signal as text; empty if unknown.
        """
        entry = self._cache.get(guest.uuid)
        if entry is None or not entry.guest.is_same_run(guest):
            return  # the end was handled before, or the entry is a later run of the guest
        self._cache.remove(guest.uuid)
        starting = self._driver.starting_driver
        if starting is not None and guest.driver == starting.name:
            # Unlike a domain, a guest that the agent has started does not start again under the same uuid.
            self._classifier.forget_guest(guest.uuid)
            # reconcile_guests() sometimes finds the end before the driver reports the end with a status.
            ending = ending or starting.recent_ending(guest, 0.0)
        # The guest has started again, but the driver cannot manage the new run, which perhaps uses these
        # CPUs.
        if guest.uuid in self._driver.lost_guests():
            self._cache.lose_guest(guest.uuid, entry.saved_guest)
        # An allocation held by a migration is in ``unclaimed`` already, under the migration's consumer.
        if entry.allocation and entry.migration is None:
            self._cache.unclaimed[guest.uuid] = UnclaimedHolding(entry.allocation, time.monotonic())
        self._recorder.record_done(
            LOG.info, EventKind.LEAVE, guest, "Guest %s has left this host", reason=ending
        )

    def take_over(self) -> bool:
        """Fill the cache with the running guests, unless an earlier call has filled it.

        Assignments come from the state file, or else from the kernel. If a driver cannot list its guests yet,
        its saved guests keep their CPUs, and a later call takes them over.

        :return: whether this call has added the guests of a driver.
        :raises DriverError: no driver can list its guests; the saved state is kept for the next call.
        """
        if (saved := self._saved) is None:
            return False
        # The awaited drivers are read before the guests, because a driver can list its guests in between.
        awaited = self._driver.awaited_drivers
        if awaited == self._awaited:
            return False
        running = self._list_known(awaited)
        # A saved guest without the name of a driver can belong to any driver.
        waiting = {
            uuid: guest
            for uuid, guest in saved.items()
            if uuid not in running and awaited and (not guest.driver or guest.driver in awaited)
        }
        # The fields are set before the changes below, so that an error in these changes does not cause a
        # second takeover.
        self._awaited, self._saved = awaited, waiting if awaited else None
        if awaited:
            LOG.warning(
                "Guests of driver %s cannot be listed yet. Until they can be listed, %d guests of the state"
                " file keep their CPUs. The reason is: %s",
                " and ".join(sorted(awaited)),
                len(waiting),
                self._driver.outage_reason or "the driver has not looked for them yet",
            )
        for uuid, guest in running.items():
            if (old := saved.get(uuid)) is not None and self._cache.get(uuid) is None:
                self._resume_guest(guest, old)
        lost = self._driver.lost_guests()
        for uuid in saved.keys() - running.keys():
            if uuid in lost or uuid in waiting:
                self._cache.lose_guest(uuid, saved[uuid])
            else:
                self._note_ended(uuid, saved[uuid])
        self.reconcile_guests()
        self._placer.place_all()  # configuration and hardware perhaps changed while no agent ran
        # A guest that is found later is a new run, without these limits.
        self._limits = {uuid: limits for uuid, limits in self._limits.items() if uuid in waiting}
        return True

    def _list_known(self, awaited: frozenset[str]) -> dict[str, Guest]:
        """The running guests of all drivers except the ``awaited`` drivers, by uuid."""
        listed = self._driver.listed_guests()
        return {guest.uuid: guest for guest in listed if guest.driver not in awaited}

    def _resume_guest(self, guest: Guest, old: SavedGuest) -> None:
        """Add a running guest to the cache, with the state that the previous run of the agent has saved."""
        uuid = guest.uuid
        # Saved CPUs are used only with a policy that pins guests.
        assignment = old.assignment if self._cache.host_state.places_guests else None
        limits = dict(self._limits.get(uuid, {}))
        owner = self._owners.get(uuid)
        # Whether there is room now is not known before Placement answers, so the guest keeps its class.
        found = self._classify_guest(guest, ConsumerFacts(old.allocation, owner, old.without_room))
        entry = CachedGuest(
            found, old.allocation, assignment, limits=limits, owner=owner, without_room=old.without_room
        )
        if limits and found.settings.preserve:
            self._enforcer.lift_limits(entry)
        self._cache.add(entry)
        # The state file does not have the migration of a guest. If the consumer of a migration holds the
        # saved allocation, the guest is migrating.
        through = self._through_migration(uuid)
        if through is not None and through.allocation == old.allocation:
            entry.migration = through.migration

    def _note_ended(self, uuid: str, saved: SavedGuest) -> None:
        """Record that a guest of the saved state does not run any more."""
        if uuid in self._cache.lost:
            self._cache.forget_lost(uuid)
        starting = self._driver.starting_driver
        if starting is not None and saved.driver in ("", starting.name):
            self._classifier.forget_guest(uuid)
        message = "Guest %s ended while the agent did not run"
        self._recorder.record_done(LOG.info, EventKind.LEAVE, NamedSubject(uuid), message)
        if saved.allocation:
            self._cache.unclaimed[uuid] = UnclaimedHolding(saved.allocation, time.monotonic())

    def reconcile_guests(self) -> None:
        """Update the cache from the driver's list of guests, and mark guests with drifted settings.

        :raises DriverError: the driver cannot list the guests.
        """
        awaited = self._awaited or frozenset()
        with procfs.sharing_reads() as readings:
            running = self._list_known(awaited)
        for entry in self._cache:
            # A driver can report the start of a guest shortly before it lists the guest.
            if entry.guest.uuid not in running and entry.guest.driver not in awaited:
                self.forget_ended(entry.guest)
        for uuid, guest in running.items():
            if (known := self._cache.get(uuid)) is None:
                # A lost guest that the driver can manage again keeps its CPUs. The CPUs of an unknown guest
                # are read from the kernel.
                if uuid in self._cache.lost:
                    self.enter_guest(GuestStarted(guest, None))
                else:
                    self._find_guest(guest)
            elif known.guest.pid != guest.pid:
                self.enter_guest(GuestStarted(guest, None))  # the driver has missed an end and a start
        if self._cache.lost:
            kept = self._driver.lost_guests().keys() | (self._saved or {}).keys()
            for uuid in self._cache.lost.keys() - kept:
                LOG.info("Guest %s, which the driver could not manage, has ended: its CPUs are free", uuid)
                self._cache.forget_lost(uuid)
        self._placer.follow_guests()
        # A comparison of a guest uses the state of the process that the list has just read.
        with procfs.sharing_reads(readings):
            self._enforcer.compare_all()

    def _find_guest(self, guest: Guest) -> None:
        """Add a guest that is neither in the cache nor in the saved state, with its CPUs from the kernel."""
        held, owner = self._held_before(guest), self._owners.get(guest.uuid)
        guest = self._classify_guest(guest, ConsumerFacts(held, owner))
        try:
            assignment = self._placer.read_back(guest, observe_guest(self._driver, guest))
        except GuestGoneError:
            # The guest has ended since it was listed.
            return
        limits = dict(self._limits.get(guest.uuid, {}))
        entry = CachedGuest(guest, held, assignment, limits=limits, owner=owner)
        self._cache.add(entry)
        message = "Guest %s was not known to the agent before; it runs%s"
        self._recorder.record_done(LOG.info, EventKind.FIND, guest, message, entry.place_words)
        self._placer.take_up(entry)

    def _held_before(self, guest: Guest, reported: Allocation | None = None) -> Allocation | None:
        """The allocation of a new guest: ``reported``, or else the last known allocation of its consumer.

        :param reported: the answer of Placement; None means that there was no answer.
        :return: the allocation on this host; None if the consumer is not known.
        """
        known = self._cache.unclaimed.get(guest.uuid) or self._cache.lost.get(guest.uuid)
        if reported is not None or known is None or known.allocation is None:
            return reported
        allocation = self._cache.host_state.own_part(known.allocation)
        LOG.info(
            "Placement does not answer, so guest %s keeps its last known allocation: %s",
            guest,
            self._cache.host_state.in_words(allocation),
        )
        return allocation

    def _through_migration(self, uuid: str) -> GuestHolding | None:
        """The allocation that a migration holds for a guest; None without one, or if the guest has one."""
        consumer = self._cache.migration_of(uuid)
        if not consumer or uuid in self._cache.unclaimed:
            return None
        return GuestHolding(self._cache.unclaimed[consumer].allocation, GuestMigration(consumer))

    def _stop_unplaced(self, entry: CachedGuest) -> None:
        """Stop a refused guest. If the stop fails, the guest stays confined to CPUs that no guest holds."""
        guest, reason = entry.guest, entry.refusal
        try:
            self._driver.stop(guest, 0.0)
        except GuestGoneError:
            # The guest has ended by itself, with the same result.
            pass
        except DriverError as error:
            LOG.error("Guest %s has no CPUs and cannot be stopped: %s", guest, error)
            return
        self._recorder.record_done(
            LOG.error,
            EventKind.STOP,
            guest,
            "Guest %s was stopped, because it does not get the CPUs that it needs: %s",
            reason,
        )
        self._metrics.guests_stopped.inc()
        self.forget_ended(guest)
