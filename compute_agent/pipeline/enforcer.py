"""The enforcer: runs the controllers, which write the settings of guests to the kernel, one after another.

If a controller fails, the next controllers still run.

Before the driver reports the start of a guest, only the controllers of cache groups and of memory nodes run
for it. The CPUs of the guest are set only when the guest runs, because libvirt itself sets them during the
start.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.controllers.base import GuestTarget, KernelController
from compute_agent.drivers import procfs
from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import Allocation, Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.pipeline.guest_cache import CachedGuest, GuestCache
from compute_agent.pipeline.host_state import HostState, memory_nodes
from compute_agent.pipeline.metrics import AgentMetrics

KEPT_SECONDS: Final = 60.0
"""Seconds within which the process of an expected guest must exist; after that, the start counts as
failed.
"""

STARTING_SECONDS: Final = 600.0
"""Seconds that an expected guest has to begin to run once its process exists. Clearing huge pages takes
minutes.
"""


@dataclass(frozen=True, slots=True)
class ExpectedGuest:
    """A guest that is about to start.

    :ivar guest: the guest, with pid 0 until its process exists.
    :ivar until: the time, in monotonic seconds, after which the guest is not expected any more.
    :ivar delay: the age of the guest's process, in seconds, when it was put into its cache group; None if it
        is not in its cache group yet.
    """

    guest: Guest
    allocation: Allocation | None
    until: float
    delay: float | None = None


class ExpectedGuests:
    """The guests that start soon; only the worker uses the object, under the pipeline's lock."""

    def __init__(self, cache: GuestCache, now: Callable[[], float] = time.monotonic) -> None:
        self._cache = cache
        self._now = now
        self._expected: dict[str, ExpectedGuest] = {}

    def add(self, guest: Guest, allocation: Allocation | None) -> None:
        """Note that a guest is about to start. The start is expected within the next minute."""
        self._expected[guest.uuid] = ExpectedGuest(guest, allocation, self._now() + KEPT_SECONDS)
        # sync() makes the cache group of an expected guest, and has to run again.
        self._cache.synced = False

    def note_process(self, guest: Guest) -> ExpectedGuest | None:
        """Note the process of an expected guest, and return its updated entry; None for any other guest."""
        one = self._expected.get(guest.uuid)
        if one is None:
            return None
        # Only the pid is taken, because the settings of the expected guest are resolved already, and the
        # settings of ``guest`` are not.
        found = replace(one, guest=replace(one.guest, pid=guest.pid), until=self._now() + STARTING_SECONDS)
        self._expected[guest.uuid] = found
        return found

    def waiting_guests(self) -> list[ExpectedGuest]:
        """The expected guests that the worker's cache does not have. Late and ended guests are left out."""
        now = self._now()
        # Late and ended guests are dropped at each call, because no event reports a start that has failed.
        self._expected = {
            uuid: one
            for uuid, one in self._expected.items()
            if one.until > now and (not one.guest.pid or procfs.process_age(one.guest.pid) is not None)
        }
        return [one for uuid, one in self._expected.items() if self._cache.get(uuid) is None]

    def note_delay(self, guest: Guest) -> None:
        """Record the age of an expected guest's process when it was put into its cache group."""
        if (one := self._expected.get(guest.uuid)) is not None:
            self._expected[guest.uuid] = replace(one, delay=procfs.process_age(guest.pid))

    def delay_of(self, guest: Guest) -> float | None:
        """The age of a guest's process, in seconds, when it was put into its cache group.

        The result is None if the guest has ended. For a guest that was not expected, the result is the
        present age. The call also removes the guest from the expected guests. If another start of the guest
        was announced meanwhile, that start stays expected.
        """
        age, one = procfs.process_age(guest.pid), self._expected.get(guest.uuid)
        if one is None or (one.guest.pid or guest.pid) != guest.pid or (age is None and not one.guest.pid):
            return age
        del self._expected[guest.uuid]
        return age if one.delay is None else one.delay


LOG = logging.getLogger(__name__)

_OUTCOMES: Final = {True: "was changed", False: "is as it should be"}


class GuestEnforcer:
    """Runs controllers for pending changes, and finds drift; only the worker uses the object."""

    def __init__(
        self,
        host_state: HostState,
        controllers: Sequence[KernelController],
        metrics: AgentMetrics,
        recorder: EventRecorder,
        read_online: Callable[[], CpuSet] | None = None,
    ) -> None:
        """Run ``controllers``, in their order.

        :param read_online: reads the CPUs that are online now; None means that the online CPUs of the host
            state are used.
        """
        self._read_online = read_online
        self._controllers = controllers
        self._recorder = recorder
        self._metrics = metrics
        self.cache = GuestCache(frozenset(controller.name for controller in controllers), host_state)
        self._expected = ExpectedGuests(self.cache)
        self._comparisons = 0

    def use_controllers(self, controllers: Sequence[KernelController]) -> None:
        """Replace the controllers, such as after a reload, and mark each as pending for all guests."""
        self._comparisons = 0
        self._controllers = controllers
        self.cache.controllers = frozenset(controller.name for controller in controllers)
        # Controllers run even if there are no guests, because sync() applies the classes of CPUs to the host.
        self.cache.synced = False
        for entry in self.cache:
            self.cache.mark_pending(entry)

    def compare_all(self) -> None:
        """Compare the kernel with the wanted settings of each guest.

        If a setting differs, the controller becomes pending for the guest. A controller takes part in one of
        ``compare_rounds`` successive calls.
        """
        # Each controller begins at another round, so that the work is spread over the rounds.
        due = [
            controller
            for number, controller in enumerate(self._controllers, self._comparisons)
            if self._comparisons == 0 or number % controller.compare_rounds == 0
        ]
        self._comparisons += 1
        targets = self._sync_with(due if self.cache.synced else self._controllers)
        for entry, target in zip(self.cache, targets, strict=True):
            # A limit of throttling is repaired at once, because it protects other guests.
            self._compare_guest(entry, target, self._controllers if entry.limits else due)

    def apply(self, but: CachedGuest | None = None) -> None:
        """Run the controllers for all pending changes. If a change fails, it is logged and stays pending.

        Floating guests come first, because they have to leave the CPUs to which other guests will be pinned.

        :param but: a guest that is left out; None for no guest.
        """
        self._sync()
        for controller in self._controllers:
            waiting = [entry for entry in self.cache if controller.name in entry.pending and entry is not but]
            for entry in sorted(waiting, key=lambda entry: _is_pinned(entry, self.cache.host_state)):
                try:
                    self._apply_controller(controller, entry)
                except GuestGoneError:
                    pass  # skipped: the guest has ended, and the queue has the event
                except (DriverError, OSError) as error:
                    self._note_failure(controller, error)
                    continue
                entry.pending.discard(controller.name)

    def apply_to(self, entry: CachedGuest) -> None:
        """Run the pending controllers for one guest.

        :raises DriverError: a controller has failed. The controllers after it were not called and stay
            pending.
        """
        self._sync()
        for controller in self._controllers:
            if controller.name in entry.pending:
                try:
                    self._apply_controller(controller, entry)
                # Errors of files are raised as DriverError, because senders of requests handle no other
                # error.
                except OSError as error:
                    raise DriverError(f"{controller.name}: {error}") from error
                entry.pending.discard(controller.name)

    def _apply_controller(self, controller: KernelController, entry: CachedGuest) -> None:
        changed = controller.apply(self._target_for(entry))
        LOG.debug(
            "The controller %s has compared guest %s with its settings: the guest %s",
            controller.name,
            entry.guest,
            _OUTCOMES[changed],
        )

    def lift_limits(self, entry: CachedGuest) -> None:
        """Remove the limits of a guest that now has the setting ``preserve``. A failure is logged."""
        # The limits are cleared before the target is made, because the target has a copy of the limits.
        entry.limits.clear()
        target = self._target_for(entry)
        # Controllers of cache groups (acts_early) are left out, because they remove limits in sync().
        for controller in (each for each in self._controllers if not each.acts_early):
            try:
                controller.apply(target)
            except GuestGoneError:
                # The limits of a guest end with the guest.
                return
            except (DriverError, OSError) as error:
                self._note_failure(controller, error)

    def expect_guest(self, guest: Guest, allocation: Allocation | None) -> None:
        """Prepare the start of a guest: make its cache group, and bring its CPUs online."""
        self._expected.add(guest, allocation)
        self._sync()

    def begin_guest(self, guest: Guest) -> None:
        """Bind the memory of an expected guest during its start, and put its process into its cache group.

        :raises DriverError: a controller has failed.
        """
        one = self._expected.note_process(guest)
        # The result is None if the guest is not expected any more, or if the driver has already reported the
        # start of the guest. A preserved guest is expected only so that its CPUs are online.
        if one is None or one.guest.settings.preserve:
            return
        self._sync()
        # Memory is bound first, because pages that QEMU has pinned cannot move any more.
        for controller in sorted(self._controllers, key=lambda controller: controller.acts_early):
            try:
                controller.begin_guest(_target_of(one, self.cache.host_state))
            except OSError as error:
                raise DriverError(f"{controller.name}: {error}") from error
        self._expected.note_delay(guest)

    def note_cache_delay(self, guest: Guest) -> None:
        """Record how old the process of a started guest was when it got its cache group, if it has one."""
        early = {controller.name for controller in self._controllers if controller.acts_early}
        entry = self.cache.get(guest.uuid)
        if entry is None or not early or not early.isdisjoint(entry.pending):
            return
        entry.cache_delay = self._expected.delay_of(guest)
        if entry.cache_delay is not None:
            self._metrics.cache_group_seconds.observe(entry.cache_delay)

    def update_gauges(self) -> None:
        """Set the metric for the number of pending changes of each controller."""
        waiting = Counter(name for entry in self.cache for name in entry.pending)
        for controller in self._controllers:
            self._metrics.pending.labels(controller.name).set(waiting[controller.name])

    def _sync(self) -> None:
        if not self.cache.synced:
            self._sync_with(self._controllers)

    def _sync_with(self, controllers: Sequence[KernelController]) -> list[GuestTarget]:
        """Call sync() of controllers, and return the targets of all guests in the order of the cache."""
        # Preserved guests are among the targets, so that no other guest gets their CPUs and cache ways.
        targets = [self._target_for(entry) for entry in self.cache]
        expected = [_target_of(one, self.cache.host_state) for one in self._expected.waiting_guests()]
        synced, zones = True, self.cache.host_state.all_zones
        for controller in controllers:
            try:
                controller.sync([*targets, *expected] if controller.awaits else targets, zones)
            # ``synced`` stays False, so that the next event calls all controllers again.
            except (DriverError, OSError) as error:
                self._note_failure(controller, error)
                synced = False
        self.cache.synced = synced
        self._log_refused()
        return targets

    def _log_refused(self) -> None:
        """Note settings that controllers could not give to guests, and record new refusals as events."""
        refusing = [controller for controller in self._controllers if controller.refused]
        for entry in self.cache:
            uuid = entry.guest.uuid
            refused = tuple(
                f"{controller.name}: {reason}"
                for controller in refusing
                for reason in controller.refused.get(uuid, ())
            )
            for reason in refused:
                if reason not in entry.refused:
                    self._recorder.record_done(
                        LOG.warning,
                        EventKind.REFUSE,
                        entry.guest,
                        "Guest %s does not get all its settings: %s",
                        reason,
                    )
            entry.refused = refused
        for controller in self._controllers:
            refusals = (
                sum(entry.guest.uuid in controller.refused for entry in self.cache)
                if controller in refusing
                else 0
            )
            self._metrics.refused_settings.labels(controller.name).set(refusals)

    def _compare_guest(
        self, entry: CachedGuest, target: GuestTarget, controllers: Sequence[KernelController]
    ) -> None:
        # The agent must not change a preserved guest, so its differences are no drift.
        if entry.guest.settings.preserve:
            return
        for controller in controllers:
            # A pending change is no drift.
            if controller.name in entry.pending:
                continue
            try:
                difference = controller.describe_drift(target)
            except GuestGoneError:
                # The queue contains the event of the guest's end.
                return
            except (DriverError, OSError) as error:
                # The next apply() compares again, and writes what differs.
                if entry.not_compared.get(controller.name) != str(error):
                    entry.not_compared[controller.name] = str(error)
                    LOG.warning(
                        "Guest %s cannot be compared with its %s settings, and the agent tries again: %s",
                        entry.guest,
                        controller.name,
                        error,
                    )
                self._metrics.controller_failures.labels(controller.name).inc()
                entry.pending.add(controller.name)
                continue
            entry.not_compared.pop(controller.name, None)
            if difference is not None:
                self._recorder.record_done(
                    LOG.warning,
                    EventKind.REPAIR,
                    entry.guest,
                    "Guest %s drifted from its settings: %s",
                    difference,
                )
                self._metrics.drift.labels(controller.name).inc()
                entry.pending.add(controller.name)

    def _target_for(self, entry: CachedGuest) -> GuestTarget:
        online, spare = self._online_cpus(), frozenset[int]()
        # If all CPUs of the guest are offline, the guest runs on online CPUs that no other guest holds.
        if entry.assignment is not None and online.isdisjoint(entry.assignment.cpus):
            others = [held for uuid, held in self.cache.held_cpus().items() if uuid != entry.guest.uuid]
            spare = online.difference(*others)
        return GuestTarget(entry.guest, entry.assignment, online, entry.allocation, dict(entry.limits), spare)

    def _online_cpus(self) -> CpuSet:
        """The CPUs that are online now, which a power manager can change between two events."""
        state = self.cache.host_state
        return state.reachable_cpus if self._read_online is None else self.read_host_state().topology.online

    def read_host_state(self) -> HostState:
        """The host state, updated with the CPUs that are online now."""
        # The online CPUs are read only on hosts with a power manager, because this method is called for each
        # guest.
        state = self.cache.host_state
        return state.with_online(self._read_online()) if self._read_online and state.powered else state

    def _note_failure(self, controller: KernelController, error: Exception) -> None:
        LOG.error("The controller %s has failed: %s; the agent tries again", controller.name, error)
        self._metrics.controller_failures.labels(controller.name).inc()


def _target_of(one: ExpectedGuest, host_state: HostState) -> GuestTarget:
    # The target has no assignment, because libvirt itself sets CPUs and memory during the start.
    mems = frozenset[int]() if one.allocation is None else memory_nodes(host_state, one.guest, one.allocation)
    return GuestTarget(one.guest, None, host_state.topology.online, one.allocation, starting_mems=mems)


def _is_pinned(entry: CachedGuest, host_state: HostState) -> bool:
    """Whether a guest runs on dedicated CPUs."""
    return entry.assignment is not None and not host_state.topology.usable.isdisjoint(
        entry.assignment.dedicated
    )
