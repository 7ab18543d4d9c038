"""The set of guests in the cache: takes over running guests, adds new ones, and removes ended ones.

This module is the part of the worker that compares the cache with the driver. The module is separate from
:mod:`compute_agent.pipeline.worker`, so that all steps of an event are on one page there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from compute_agent.drivers.base import GuestDriver
from compute_agent.events.event import EventKind, EventRecorder, NamedSubject
from compute_agent.model.guest import Allocation, Guest, GuestHolding, GuestMigration
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.enforcer import GuestEnforcer
from compute_agent.pipeline.guest_cache import CachedGuest, UnclaimedHolding
from compute_agent.pipeline.guest_settings import GuestClassifier
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.placer import GuestPlacer, place_words
from compute_agent.pipeline.state import SavedGuest
from compute_agent.policy.policies import KernelPlacement
from compute_agent.report.history import ConsumerOwner


def observe_guest(driver: GuestDriver, guest: Guest) -> KernelPlacement:
    """The CPUs and NUMA nodes that the kernel lets a guest use at the moment.

    :raises GuestGoneError:
    """
    return KernelPlacement(
        driver.observed_cpus(guest),
        driver.vcpu_affinity(guest),
        driver.emulator_affinity(guest),
        driver.memory_nodes(guest, frozenset()) or frozenset(),
    )


LOG = logging.getLogger(__name__)

Limits = Mapping[str, Mapping[ThrottleControl, float]]
"""The limits of throttling, by uuid of the guest."""


class GuestLifecycle:
    """Keeps the cache equal to the guests that the driver reports. For the worker."""

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
        self._limits: Limits = {}
        self._owners: Mapping[str, ConsumerOwner] = {}

    def begin_with(
        self,
        saved: Mapping[str, SavedGuest],
        limits: Limits,
        unclaimed: Mapping[str, Allocation],
        migrations: Mapping[str, str],
        owners: Mapping[str, ConsumerOwner],
    ) -> None:
        """Keep the state of the former agent until the guests are taken over.

        :param saved: the guests, by uuid.
        :param limits: the limits of throttling, by guest.
        :param unclaimed: the allocations of consumers without a guest.
        :param migrations: by consumer that is a migration, its guest.
        :param owners: the owners of consumers.
        """
        self._cache.migrations = dict(migrations)
        self._cache.hold_for(unclaimed, time.monotonic())
        self._saved, self._limits, self._owners = saved, limits, owners

    @property
    def is_known(self) -> bool:
        """Whether the running guests were taken over, after an answer of the driver."""
        return self._saved is None

    def enter_guest(
        self,
        guest: Guest,
        allocation: Allocation | None,
        as_of: float = 0.0,
        started: bool = False,
        owner: ConsumerOwner | None = None,
    ) -> None:
        """Add a guest, or note its changes, and place it.

        :param allocation: the guest's allocation; None: not known.
        :param started: whether the driver reports a start. The cache cannot tell: a guest may go on with
            another pid, and one that has started may have been found before its start was reported.
        """
        # A migration counts only where nothing better is known: Placement's answer is empty, or a new guest
        # has no answer.
        entry = self._cache.get(guest.uuid)
        through = (
            None if allocation or (allocation is None and entry) else self._through_migration(guest.uuid)
        )
        if through is not None:
            allocation = through.allocation
        if entry is None:
            # A guest that was lost until now still runs on its former CPUs.
            lost = self._cache.lost.get(guest.uuid)
            place = lost.assignment if lost and self._placer.host_state.places_guests else None
            held = self._held_before(guest, allocation)
            owner = owner or self._owners.get(guest.uuid)
            self._cache.add(
                entry := CachedGuest(self._classify_guest(guest, held, owner), held, place, owner=owner)
            )
        else:
            held = entry.allocation if allocation is None else allocation
            entry.owner = owner or entry.owner
            guest = self._classify_guest(guest, held, entry.owner)
            # A start makes new cgroups without limits; throttling decides about the new run by itself.
            if started and guest != entry.guest:
                entry.limits.clear()
            self.use_settings(entry, guest)
        if allocation is not None:
            if allocation != entry.allocation:
                self._cache.mark_pending(entry)
            entry.allocation, entry.as_of = allocation, as_of
            entry.migration = None if through is None else through.migration
        self._placer.place_guest(entry)
        # Only a guest that has just started is stopped: one that runs already has work to lose.
        if started and entry.refusal and self._placer.host_state.refuse_unplaced:
            self._stop_unplaced(entry)

    def _classify_guest(
        self, guest: Guest, allocation: Allocation | None, owner: ConsumerOwner | None
    ) -> Guest:
        found = self._classifier.classify_guest(guest, allocation, owner, self._placer.host_state)
        self._classifier.report_problems(found)
        return found

    def classify_again(self, entry: CachedGuest) -> bool:
        """Resolve the settings of a guest again; return whether they have changed.

        The worker calls it when the rules, the allocation or the settings by hand may have changed.
        """
        return self.use_settings(entry, self._classify_guest(entry.guest, entry.allocation, entry.owner))

    def use_settings(self, entry: CachedGuest, guest: Guest) -> bool:
        """Replace the guest of an entry; return whether it differs from the former one."""
        before = entry.guest
        if guest == before:
            return False
        # Settings of a new run are not a change of a running guest.
        if guest.pid == before.pid:
            self._classifier.report_change(before, guest)
        # Throttling passes over preserved guests, so their limits would never be lifted.
        if guest.settings.preserve and not before.settings.preserve and entry.limits:
            self._enforcer.lift_limits(entry, self._placer.host_state)
        entry.guest = guest
        self._cache.mark_pending(entry)
        return True

    def forget_absent(self) -> None:
        """Remove settings by hand of guests that left this host some time ago."""
        present = {entry.guest.uuid for entry in self._cache}
        present |= self._cache.lost.keys() | self._cache.unclaimed.keys()
        gone = self._classifier.manual.absent_guests(present)
        if not gone:
            return
        flavors = self._driver.flavor_source
        try:
            # A domain that is shut off keeps its settings, with or without an allocation of Nova.
            defined = frozenset[str]() if flavors is None else flavors.inactive_guests()
        except DriverError:
            # Their settings stay until libvirt can say which domains are defined.
            return
        for uuid in gone:
            if uuid not in defined:
                LOG.info("Guest %s has gone: its settings by hand and by the fleet are removed", uuid)
                self._classifier.forget_guest(uuid)

    def forget_ended(self, guest: Guest, ending: str = "") -> None:
        """Remove a guest that ended from the cache. The guest's consumer keeps the allocation.

        :param ending: exit status or signal, for the event.
        """
        entry = self._cache.get(guest.uuid)
        if entry is None or entry.guest.pid != guest.pid:
            return  # This end was handled before, and the consumer may have another guest by now.
        self._cache.remove(guest.uuid)
        if (starting := self._driver.starting_driver) is not None:
            # A process guest that ended does not start again, unlike a domain.
            self._classifier.forget_guest(guest.uuid)
            # A pass over all guests may see the end before the driver reports it.
            ending = ending or starting.recent_ending(guest, 0.0)
        # It has started again already, and the driver cannot manage it: the new run may use these CPUs.
        if guest.uuid in self._driver.lost_guests():
            self._cache.lose_guest(guest.uuid, SavedGuest(entry.allocation, entry.assignment))
        # The allocation of a migration is among the unclaimed ones already, by the migration's own consumer.
        if entry.allocation and entry.migration is None:
            self._cache.unclaimed[guest.uuid] = UnclaimedHolding(entry.allocation, time.monotonic())
        self._recorder.record_done(LOG.info, EventKind.LEAVE, guest, "Guest %s left", reason=ending)

    def take_over(self) -> bool:
        """Fill the cache, once, with the guests that run.

        Assignments come from the state file, or else from the kernel.

        :return: whether this call made the change.
        :raises DriverError: the driver cannot list the guests. Nothing is forgotten then.
        """
        if (saved := self._saved) is None:
            return False
        running = {guest.uuid: guest for guest in self._driver.guests()}
        # From here on the driver has answered, and nothing below may make the agent take over twice.
        self._saved = None
        for uuid, guest in running.items():
            if (old := saved.get(uuid)) is not None:
                # Without pinning the saved CPUs say nothing about where the guest runs.
                assignment = old.assignment if self._placer.host_state.places_guests else None
                limits = dict(self._limits.get(uuid, {}))
                owner = self._owners.get(uuid)
                found = self._classify_guest(guest, old.allocation, owner)
                entry = CachedGuest(found, old.allocation, assignment, limits=limits, owner=owner)
                if limits and found.settings.preserve:
                    self._enforcer.lift_limits(entry, self._placer.host_state)
                self._cache.add(entry)
                # The state file does not say which guest follows its migration, but an equal allocation shows
                # it.
                through = self._through_migration(uuid)
                if through is not None and through.allocation == old.allocation:
                    entry.migration = through.migration
        lost = self._driver.lost_guests()
        for uuid in saved.keys() - running.keys():
            if uuid in lost:
                self._cache.lose_guest(uuid, saved[uuid])
                continue
            if self._driver.starting_driver is not None:
                self._classifier.forget_guest(uuid)
            message = "Guest %s ended while the agent was away"
            self._recorder.record_done(LOG.info, EventKind.LEAVE, NamedSubject(uuid), message)
            if allocation := saved[uuid].allocation:
                self._cache.unclaimed[uuid] = UnclaimedHolding(allocation, time.monotonic())
        self.reconcile_guests()
        self._placer.place_all()  # Configuration and hardware may have changed while the agent was away.
        self._limits = {}  # A guest that is found later is another run than the one with limits.
        return True

    def reconcile_guests(self) -> None:
        """Make the cache equal to the guests that run, and mark drift of the kernel.

        :raises DriverError: the driver cannot list the guests.
        """
        running = {guest.uuid: guest for guest in self._driver.guests()}
        for entry in self._cache:
            if entry.guest.uuid not in running:
                self.forget_ended(entry.guest)
        for uuid, guest in running.items():
            if (known := self._cache.get(uuid)) is None:
                # A lost guest that can be managed again keeps its place; the CPUs of one never seen are read
                # from the kernel.
                if uuid in self._cache.lost:
                    self.enter_guest(guest, None)
                else:
                    self._find_guest(guest)
            elif known.guest.pid != guest.pid:
                self.enter_guest(guest, None)  # The driver missed an end and a start.
        if self._cache.lost:
            for uuid in self._cache.lost.keys() - self._driver.lost_guests().keys():
                LOG.info("Guest %s, which the driver could not manage, has ended: its CPUs are free", uuid)
                self._cache.forget_lost(uuid)
        self._placer.follow_guests()
        self._enforcer.compare_all(self._placer.host_state)

    def _find_guest(self, guest: Guest) -> None:
        """Add a guest that is neither in the cache nor in the saved state."""
        held, owner = self._held_before(guest), self._owners.get(guest.uuid)
        guest = self._classify_guest(guest, held, owner)
        try:
            assignment = self._placer.read_back(guest, observe_guest(self._driver, guest))
        except GuestGoneError:
            # It ended before it was taken over.
            return
        limits = dict(self._limits.get(guest.uuid, {}))
        entry = CachedGuest(guest, held, assignment, limits=limits, owner=owner)
        self._cache.add(entry)
        message = "Guest %s was not known; the kernel has it%s"
        self._recorder.record_done(LOG.info, EventKind.FIND, guest, message, place_words(entry))
        self._placer.take_up(entry)

    def _held_before(self, guest: Guest, reported: Allocation | None = None) -> Allocation | None:
        """The allocation of a new guest: the reported one, or else the last known one of its consumer.

        :param reported: the answer of Placement; None: there was none.
        :return: None: the consumer is not known.
        """
        known = self._cache.unclaimed.get(guest.uuid) or self._cache.lost.get(guest.uuid)
        if reported is not None or known is None or known.allocation is None:
            return reported
        allocation = self._placer.host_state.own_part(known.allocation)
        LOG.info(
            "Guest %s keeps the last known allocation of its consumer: %s",
            guest,
            self._placer.host_state.in_words(allocation),
        )
        return allocation

    def _through_migration(self, uuid: str) -> GuestHolding | None:
        """The holding of a guest's migration here; None without one, or if it holds something itself."""
        consumer = self._cache.migration_of(uuid)
        if not consumer or uuid in self._cache.unclaimed:
            return None
        return GuestHolding(self._cache.unclaimed[consumer].allocation, GuestMigration(consumer))

    def _stop_unplaced(self, entry: CachedGuest) -> None:
        """Stop a guest that has no CPUs, as early as possible; if that fails, the guest stays confined."""
        guest, reason = entry.guest, entry.refusal
        try:
            self._driver.stop(guest, 0.0)
        except GuestGoneError:
            # It ended by itself meanwhile, which is as good.
            pass
        except DriverError as error:
            LOG.error("Guest %s has no CPUs and cannot be stopped: %s", guest, error)
            return
        self._recorder.record_done(
            LOG.error, EventKind.STOP, guest, "Guest %s was stopped, as it has no place: %s", reason
        )
        self._metrics.guests_stopped.inc()
        self.forget_ended(guest)
