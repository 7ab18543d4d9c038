"""The set of guests: those found at the start, those found later, and those that have gone."""

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
    """Where the kernel lets a guest run now.

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
"""What the watermarks hold guests down to, by guest."""


class GuestLifecycle:
    """Keeps the cache to the guests that run, by what the driver says. For the worker."""

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
        """Remember, until the guests are taken over, what the agent before has ``saved`` of them.

        And the ``limits`` of the watermarks, what consumers without a guest held, whose ``migrations`` some
        of these are, and the ``owners`` of consumers.
        """
        self._cache.migrations = dict(migrations)
        self._cache.hold_for(unclaimed, time.monotonic())
        self._saved, self._limits, self._owners = saved, limits, owners

    @property
    def is_known(self) -> bool:
        """Whether the guests were taken over: the driver has answered."""
        return self._saved is None

    def enter_guest(
        self,
        guest: Guest,
        allocation: Allocation | None,
        as_of: float = 0.0,
        started: bool = False,
        owner: ConsumerOwner | None = None,
    ) -> None:
        """Take a guest, and what it holds if that is known, as the driver has it now, and place it.

        Whether it has ``started`` is for the driver to say: the pid of one that goes on may be another, and
        one that started may have been found before its start was told.
        """
        entry = self._cache.get(guest.uuid)
        through = (
            None if allocation or (allocation is None and entry) else self._through_migration(guest.uuid)
        )
        if through is not None:
            allocation = through.allocation
        if entry is None:
            # One that was lost until now is where it was.
            lost = self._cache.lost.get(guest.uuid)
            place = lost.assignment if lost and self._placer.world.places_guests else None
            held = self._held_before(guest, allocation)
            owner = owner or self._owners.get(guest.uuid)
            self._cache.add(
                entry := CachedGuest(self._classify_guest(guest, held, owner), held, place, owner=owner)
            )
        else:
            held = entry.allocation if allocation is None else allocation
            entry.owner = owner or entry.owner
            guest = self._classify_guest(guest, held, entry.owner)
            if started and guest != entry.guest:
                entry.limits.clear()
            self.use_settings(entry, guest)
        if allocation is not None:
            if allocation != entry.allocation:
                self._cache.mark_pending(entry)
            entry.allocation, entry.as_of = allocation, as_of
            entry.migration = None if through is None else through.migration
        self._placer.place_guest(entry)
        if started and entry.refusal and self._placer.world.refuse_unplaced:
            self._stop_unplaced(entry)

    def _classify_guest(
        self, guest: Guest, allocation: Allocation | None, owner: ConsumerOwner | None
    ) -> Guest:
        found = self._classifier.classify_guest(guest, allocation, owner, self._placer.world)
        self._classifier.report_problems(found)
        return found

    def classify_again(self, entry: CachedGuest) -> bool:
        """Resolve the settings of a guest anew, as rules, what it holds, or what was set may be others.

        Whether they have changed.
        """
        return self.use_settings(entry, self._classify_guest(entry.guest, entry.allocation, entry.owner))

    def use_settings(self, entry: CachedGuest, guest: Guest) -> bool:
        """Go on with a guest as it is now; whether it is another one than before."""
        before = entry.guest
        if guest == before:
            return False
        if guest.pid == before.pid:
            self._classifier.report_change(before, guest)
        if guest.settings.preserve and not before.settings.preserve and entry.limits:
            self._enforcer.lift_limits(entry, self._placer.world)
        entry.guest = guest
        self._cache.mark_pending(entry)
        return True

    def forget_absent(self) -> None:
        """Remove what was set by hand for guests that have not been on this host for long."""
        present = {entry.guest.uuid for entry in self._cache}
        present |= self._cache.lost.keys() | self._cache.unclaimed.keys()
        gone = self._classifier.manual.absent_guests(present)
        if not gone:
            return
        flavors = self._driver.flavor_source
        try:
            # A domain that is shut off may be without an allocation, as those are that are not of Nova.
            defined = frozenset[str]() if flavors is None else flavors.inactive_guests()
        except DriverError:
            return
        for uuid in gone:
            if uuid not in defined:
                LOG.info("Guest %s has gone: its settings by hand and by the fleet are removed", uuid)
                self._classifier.forget_guest(uuid)

    def forget_ended(self, guest: Guest, ending: str = "") -> None:
        """Forget a guest that ended. Its consumer keeps the allocation.

        :param ending: exit status or signal, for the event.
        """
        entry = self._cache.get(guest.uuid)
        if entry is None or entry.guest.pid != guest.pid:
            return  # known before, and the consumer may have another guest by now
        self._cache.remove(guest.uuid)
        if (starting := self._driver.starting_driver) is not None:
            self._classifier.forget_guest(guest.uuid)  # a process that ended does not start again
            # A pass over all guests may see the end before the driver reports it.
            ending = ending or starting.recent_ending(guest, 0.0)
        if guest.uuid in self._driver.lost_guests():  # it started again, and cannot be looked after
            self._cache.lose_guest(guest.uuid, SavedGuest(entry.allocation, entry.assignment))
        if entry.allocation and entry.migration is None:
            self._cache.unclaimed[guest.uuid] = UnclaimedHolding(entry.allocation, time.monotonic())
        self._recorder.record_done(LOG.info, EventKind.LEAVE, guest, "Guest %s left", reason=ending)

    def take_over(self) -> bool:
        """Fill the cache, once, from what runs; positions from the state file, or else from the kernel.

        Whether that was done now.

        :raises DriverError: the driver cannot say what runs: nothing is forgotten then.
        """
        if (saved := self._saved) is None:
            return False
        running = {guest.uuid: guest for guest in self._driver.guests()}
        self._saved = None
        for uuid, guest in running.items():
            if (old := saved.get(uuid)) is not None:
                assignment = old.assignment if self._placer.world.places_guests else None
                limits = dict(self._limits.get(uuid, {}))
                owner = self._owners.get(uuid)
                found = self._classify_guest(guest, old.allocation, owner)
                entry = CachedGuest(found, old.allocation, assignment, limits=limits, owner=owner)
                if limits and found.settings.preserve:
                    self._enforcer.lift_limits(entry, self._placer.world)
                self._cache.add(entry)
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
        self._placer.place_all()  # configuration and hardware may be others than they were
        self._limits = {}  # whoever is found later is another than the one that was limited
        return True

    def reconcile_guests(self) -> None:
        """Make the cache have the guests that run, and the kernel what these need.

        :raises DriverError:
        """
        running = {guest.uuid: guest for guest in self._driver.guests()}
        for entry in self._cache:
            if entry.guest.uuid not in running:
                self.forget_ended(entry.guest)
        for uuid, guest in running.items():
            if (known := self._cache.get(uuid)) is None:
                if uuid in self._cache.lost:
                    self.enter_guest(guest, None)
                else:
                    self._find_guest(guest)
            elif known.guest.pid != guest.pid:
                self.enter_guest(guest, None)  # it ended and started, and nobody told
        if self._cache.lost:
            for uuid in self._cache.lost.keys() - self._driver.lost_guests().keys():
                LOG.info("Guest %s is said to be gone: what it held is free", uuid)
                self._cache.forget_lost(uuid)
        self._placer.follow_guests()
        self._enforcer.compare_all(self._placer.world)

    def _find_guest(self, guest: Guest) -> None:
        """Take up a guest that nobody remembers."""
        held, owner = self._held_before(guest), self._owners.get(guest.uuid)
        guest = self._classify_guest(guest, held, owner)
        try:
            assignment = self._placer.read_back(guest, observe_guest(self._driver, guest))
        except GuestGoneError:
            return
        limits = dict(self._limits.get(guest.uuid, {}))
        entry = CachedGuest(guest, held, assignment, limits=limits, owner=owner)
        self._cache.add(entry)
        message = "Guest %s was not known; the kernel has it%s"
        self._recorder.record_done(LOG.info, EventKind.FIND, guest, message, place_words(entry))
        self._placer.take_up(entry)

    def _held_before(self, guest: Guest, reported: Allocation | None = None) -> Allocation | None:
        """What the consumer of a new guest held when Placement was last heard.

        Unless it is ``reported`` now; None if it was never heard of.
        """
        known = self._cache.unclaimed.get(guest.uuid) or self._cache.lost.get(guest.uuid)
        if reported is not None or known is None or known.allocation is None:
            return reported
        allocation = self._placer.world.own_part(known.allocation)
        LOG.info("Guest %s keeps what its consumer held: %s", guest, self._placer.world.in_words(allocation))
        return allocation

    def _through_migration(self, uuid: str) -> GuestHolding | None:
        """What is held here by the migration of a guest, as far as it is known; not what it holds itself."""
        consumer = self._cache.migration_of(uuid)
        if not consumer or uuid in self._cache.unclaimed:
            return None
        return GuestHolding(self._cache.unclaimed[consumer].allocation, GuestMigration(consumer))

    def _stop_unplaced(self, entry: CachedGuest) -> None:
        """End a guest that has no place before it does anything; where that cannot be, it stays confined."""
        guest, reason = entry.guest, entry.refusal
        try:
            self._driver.stop(guest, 0.0)
        except GuestGoneError:
            pass
        except DriverError as error:
            LOG.error("Guest %s has no place and cannot be stopped: %s", guest, error)
            return
        self._recorder.record_done(
            LOG.error, EventKind.STOP, guest, "Guest %s was stopped, as it has no place: %s", reason
        )
        self._metrics.guests_stopped.inc()
        self.forget_ended(guest)
