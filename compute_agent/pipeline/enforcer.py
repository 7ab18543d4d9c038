"""Runs the controllers, one after the other; the failure of one does not stop the next.

For a guest that is about to start only the cache group is made and filled, before the driver can see the
guest. CPUs and memory wait until it runs, because libvirt itself still sets them during the start.
"""

from __future__ import annotations

import logging
import time
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
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.metrics import AgentMetrics

KEPT_SECONDS: Final = 60.0
"""Seconds that a guest is expected without a process; a start without one by then has failed."""

STARTING_SECONDS: Final = 600.0
"""Seconds that a guest with a process is expected; clearing many huge pages takes minutes."""


@dataclass(frozen=True, slots=True)
class ExpectedGuest:
    """A guest that is about to start.

    :ivar guest: the guest, with pid 0 until its process exists.
    :ivar until: the monotonic second at which the agent gives up.
    :ivar delay: seconds from the start of the guest's process until its cache group took effect.
    """

    guest: Guest
    allocation: Allocation | None
    until: float
    delay: float | None = None


class ExpectedGuests:
    """The guests that are about to start. Used by the worker, under the pipeline's lock."""

    def __init__(self, cache: GuestCache, now: Callable[[], float] = time.monotonic) -> None:
        self._cache = cache
        self._now = now
        self._expected: dict[str, ExpectedGuest] = {}

    def add(self, guest: Guest, allocation: Allocation | None) -> None:
        """Expect a guest."""
        self._expected[guest.uuid] = ExpectedGuest(guest, allocation, self._now() + KEPT_SECONDS)
        # The cache group of an expected guest is made by sync(), which must not be skipped now.
        self._cache.synced = False

    def note_process(self, guest: Guest) -> ExpectedGuest | None:
        """Note that the process of a guest is there; None if the guest is not expected."""
        one = self._expected.get(guest.uuid)
        if one is None:
            return None
        # The driver's guest has unresolved settings; those of the announcement are resolved.
        found = replace(one, guest=replace(one.guest, pid=guest.pid), until=self._now() + STARTING_SECONDS)
        self._expected[guest.uuid] = found
        return found

    def waiting_guests(self) -> list[ExpectedGuest]:
        """The expected guests that are not in the cache. Late and ended guests are dropped."""
        now = self._now()
        # Pruned at each use: no event reports a start that failed before the guest ran.
        self._expected = {
            uuid: one
            for uuid, one in self._expected.items()
            if one.until > now and (not one.guest.pid or procfs.process_age(one.guest.pid) is not None)
        }
        return [one for uuid, one in self._expected.items() if self._cache.get(uuid) is None]

    def note_delay(self, guest: Guest) -> None:
        """Record that the process of an expected guest has its cache group."""
        if (one := self._expected.get(guest.uuid)) is not None:
            self._expected[guest.uuid] = replace(one, delay=procfs.process_age(guest.pid))

    def delay_of(self, guest: Guest) -> float | None:
        """The age of a guest's process, in seconds, when it had its cache group; None if the process is gone.

        An unexpected guest has its group now, so the current age counts. Afterwards the guest is no longer
        expected, unless its next start was announced, even before Placement has answered about this start.
        """
        age, one = procfs.process_age(guest.pid), self._expected.get(guest.uuid)
        if one is None or (one.guest.pid or guest.pid) != guest.pid or (age is None and not one.guest.pid):
            return age
        del self._expected[guest.uuid]
        return age if one.delay is None else one.delay


LOG = logging.getLogger(__name__)

_OUTCOMES: Final = {True: "was changed", False: "is as it should be"}


class GuestEnforcer:
    """Puts pending changes into effect, and finds drift. Used by the worker only."""

    def __init__(
        self,
        controllers: Sequence[KernelController],
        metrics: AgentMetrics,
        recorder: EventRecorder,
        read_online: Callable[[], CpuSet] | None = None,
    ) -> None:
        """Run these controllers.

        :param read_online: reads the CPUs that are online now; None uses those of the host state.
        """
        self._read_online = read_online
        self._controllers = controllers
        self._recorder = recorder
        self._metrics = metrics
        self.cache = GuestCache(frozenset(controller.name for controller in controllers))
        self._expected = ExpectedGuests(self.cache)

    def use_controllers(self, controllers: Sequence[KernelController]) -> None:
        """Replace the controllers, as after a reload; each new one looks at every guest."""
        self._controllers = controllers
        self.cache.controllers = frozenset(controller.name for controller in controllers)
        # Explicitly, as a host without guests has CPU classes to sync as well.
        self.cache.synced = False
        for entry in self.cache:
            self.cache.mark_pending(entry)

    def compare_all(self, host_state: HostState) -> None:
        """Mark each guest and controller where the kernel differs from the target."""
        self.cache.synced = False
        self._sync(host_state)
        for entry in self.cache:
            self._compare_guest(entry, host_state)

    def apply(self, host_state: HostState, but: CachedGuest | None = None) -> None:
        """Put all pending changes into effect; failed ones stay pending.

        Guests that float come first: they leave the CPUs that others are about to be pinned to.

        :param but: a guest to leave out, which the caller handles.
        """
        self._sync(host_state)
        for controller in self._controllers:
            waiting = [entry for entry in self.cache.pending_for(controller.name) if entry is not but]
            for entry in sorted(waiting, key=lambda entry: _is_pinned(entry, host_state)):
                try:
                    changed = controller.apply(self._target_for(entry, host_state))
                    LOG.debug("%s: guest %s %s", controller.name, entry.guest, _OUTCOMES[changed])
                except GuestGoneError:
                    pass  # Its stop event is in the queue.
                except (DriverError, OSError) as error:
                    self._note_failure(controller, error)
                    continue
                entry.pending.discard(controller.name)

    def apply_to(self, entry: CachedGuest, host_state: HostState) -> None:
        """Put the pending changes of one guest into effect.

        :raises DriverError: of the first controller that fails; the next ones are not called.
        """
        self._sync(host_state)
        for controller in self._controllers:
            if controller.name in entry.pending:
                try:
                    changed = controller.apply(self._target_for(entry, host_state))
                    LOG.debug("%s: guest %s %s", controller.name, entry.guest, _OUTCOMES[changed])
                # The sender of an order hears of errors of the driver alone, so an error of a file becomes
                # one.
                except OSError as error:
                    raise DriverError(f"{controller.name}: {error}") from error
                entry.pending.discard(controller.name)

    def lift_limits(self, entry: CachedGuest, host_state: HostState) -> None:
        """Lift the limits of a guest that gets the setting ``preserve``. A failure is logged."""
        # Cleared before the target is made, which has a copy of them.
        entry.limits.clear()
        target = self._target_for(entry, host_state)
        # Limits of cache groups belong to sync(), which drops them with the guest's target.
        for controller in (each for each in self._controllers if not each.acts_early):
            try:
                controller.apply(target)
            except GuestGoneError:
                # The limits of a guest that has ended are gone, too.
                return
            except (DriverError, OSError) as error:
                self._note_failure(controller, error)

    def expect_guest(self, guest: Guest, allocation: Allocation | None, host_state: HostState) -> None:
        """Prepare for a guest that is about to start: its cache group, and its CPUs online."""
        self._expected.add(guest, allocation)
        self._sync(host_state)

    def begin_guest(self, guest: Guest, host_state: HostState) -> None:
        """Put the process of an expected guest into its cache group, before its start is over.

        :raises DriverError: a controller cannot do it.
        """
        one = self._expected.note_process(guest)
        # The guest was given up, or the driver has reported its start already. A preserved guest is expected
        # only so that its CPUs are online.
        if one is None or one.guest.settings.preserve:
            return
        self._sync(host_state)
        for controller in self._early_controllers():
            try:
                controller.apply(_target_of(one, host_state))
            except OSError as error:
                raise DriverError(f"{controller.name}: {error}") from error
        self._expected.note_delay(guest)

    def note_cache_delay(self, guest: Guest) -> None:
        """Record the time that a guest ran without its cache group after its start, if it has a group now."""
        entry, early = self.cache.get(guest.uuid), self._early_controllers()
        if entry is None or not early or any(controller.name in entry.pending for controller in early):
            return
        entry.cache_delay = self._expected.delay_of(guest)
        if entry.cache_delay is not None:
            self._metrics.cache_group_seconds.observe(entry.cache_delay)

    def _early_controllers(self) -> list[KernelController]:
        return [controller for controller in self._controllers if controller.acts_early]

    def update_gauges(self) -> None:
        """Set the gauges of pending changes."""
        for controller in self._controllers:
            waiting = sum(1 for _ in self.cache.pending_for(controller.name))
            self._metrics.pending.labels(controller.name).set(waiting)

    def _sync(self, host_state: HostState) -> None:
        if self.cache.synced:
            return
        # Preserved guests are among the targets: others must not get what they hold.
        targets = [self._target_for(entry, host_state) for entry in self.cache]
        expected = [_target_of(one, host_state) for one in self._expected.waiting_guests()]
        synced = True
        for controller in self._controllers:
            try:
                controller.sync([*targets, *expected] if controller.awaits else targets, host_state.all_zones)
            # Not synced: the next event calls all controllers again.
            except (DriverError, OSError) as error:
                self._note_failure(controller, error)
                synced = False
        self.cache.synced = synced
        self._log_refused()

    def _log_refused(self) -> None:
        """Record the refused requests of each guest, and log each new one."""
        for entry in self.cache:
            uuid = entry.guest.uuid
            refused = tuple(
                f"{controller.name}: {reason}"
                for controller in self._controllers
                for reason in controller.refused.get(uuid, ())
            )
            for reason in refused:
                if reason not in entry.refused:
                    self._recorder.record_done(
                        LOG.warning, EventKind.REFUSE, entry.guest, "Guest %s does not get all: %s", reason
                    )
            entry.refused = refused
        for controller in self._controllers:
            refusals = sum(entry.guest.uuid in controller.refused for entry in self.cache)
            self._metrics.refused_settings.labels(controller.name).set(refusals)

    def _compare_guest(self, entry: CachedGuest, host_state: HostState) -> None:
        # The agent must not change this guest, so no difference of it is drift.
        if entry.guest.settings.preserve:
            return
        target = self._target_for(entry, host_state)
        for controller in self._controllers:
            # A change that is pending is not drift.
            if controller.name in entry.pending:
                continue
            try:
                difference = controller.describe_drift(target)
            except GuestGoneError:
                # Its stop event is in the queue.
                return
            except (DriverError, OSError) as error:
                # Settings that cannot be read count as drift, so that the next apply() tries again.
                difference = str(error)
            if difference is not None:
                self._recorder.record_done(
                    LOG.warning, EventKind.REPAIR, entry.guest, "Guest %s drifted: %s", difference
                )
                self._metrics.drift.labels(controller.name).inc()
                entry.pending.add(controller.name)

    def _target_for(self, entry: CachedGuest, host_state: HostState) -> GuestTarget:
        online, spare = self._online_cpus(host_state), frozenset[int]()
        # All CPUs of the guest are offline: it borrows those that no other guest holds.
        if entry.assignment is not None and online.isdisjoint(entry.assignment.cpus):
            others = [held for uuid, held in self.cache.held_cpus().items() if uuid != entry.guest.uuid]
            spare = online.difference(*others)
        return GuestTarget(entry.guest, entry.assignment, online, entry.allocation, dict(entry.limits), spare)

    def _online_cpus(self, host_state: HostState) -> CpuSet:
        """The CPUs that are online at the moment: a power manager may have changed them."""
        return (
            host_state.reachable_cpus
            if self._read_online is None
            else self.refresh_online(host_state).topology.online
        )

    def refresh_online(self, host_state: HostState) -> HostState:
        """The host state with the CPUs that are online at the moment."""
        # This is called for each guest, so the file is read only where a power manager changes it.
        if self._read_online is None or not host_state.powered:
            return host_state
        return host_state.with_online(self._read_online())

    def _note_failure(self, controller: KernelController, error: Exception) -> None:
        LOG.error("%s: %s; the agent tries again", controller.name, error)
        self._metrics.controller_failures.labels(controller.name).inc()


def _target_of(one: ExpectedGuest, host_state: HostState) -> GuestTarget:
    # Without a place: libvirt itself sets CPUs and memory during the start.
    return GuestTarget(one.guest, None, host_state.topology.online, one.allocation)


def _is_pinned(entry: CachedGuest, host_state: HostState) -> bool:
    """Whether a guest runs on dedicated CPUs."""
    return entry.assignment is not None and not host_state.topology.usable.isdisjoint(
        entry.assignment.dedicated
    )
