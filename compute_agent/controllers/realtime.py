"""Controller ``realtime``: guest CPUs on dedicated CPUs have a realtime schedule, where their class says so.

It acts in each sync(): a guest makes threads all the time, and new ones have the usual schedule. A thread
that had its schedule from the agent and lost it is drift.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from compute_agent.controllers.base import (
    GuestTarget,
    KernelController,
    PlannedChange,
    ReleaseItem,
    items_by_guest,
    without_preserved,
)
from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestDriver
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.guest import Guest
from compute_agent.model.messages import GuestGoneError
from compute_agent.schedules.realtime import (
    NOT_ALLOWED,
    USUAL,
    KernelSchedules,
    ThreadSchedule,
    choose_threads,
    decide_schedules,
    realtime_schedule,
)

OPTION: Final = "realtime_priority"


class RealtimeController(KernelController):
    """Sets and lifts realtime schedules of the threads that run guest CPUs."""

    name = "realtime"
    acts_early = False

    def __init__(
        self,
        driver: GuestDriver,
        priorities: Mapping[str, int],
        schedules: KernelSchedules,
        read_throttle: Callable[[], str],
        count_drift: Callable[[], object] = lambda: None,
    ) -> None:
        """Set the priorities of classes by name.

        :param read_throttle: a sentence about the kernel's limit for realtime threads; empty without one.
        :param count_drift: called for each thread that lost its schedule.
        """
        self._driver = driver
        self._priorities = priorities
        self._schedules = schedules
        self._read_throttle = read_throttle
        self._count_drift = count_drift
        self.refused: Mapping[str, Sequence[str]] = {}
        #: Threads with a schedule of the agent, by guest.
        self._threads: dict[str, frozenset[int]] = {}
        #: Main processes of guests without a priority that were looked at, by guest.
        self._looked: dict[str, int] = {}

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Set and lift the schedules of all guests."""
        found: dict[str, Sequence[str]] = {}
        for target in without_preserved(targets):
            try:
                reasons = self._bring_about(target)[1]
            except GuestGoneError:
                continue
            if reasons:
                found[target.guest.uuid] = reasons
        present = {target.guest.uuid for target in targets}
        self._threads = {uuid: tids for uuid, tids in self._threads.items() if uuid in present}
        self._looked = {uuid: pid for uuid, pid in self._looked.items() if uuid in present}
        self.refused = found

    def describe_drift(self, target: GuestTarget) -> str | None:
        """Return None: sync() has compared all threads, and repaired them."""
        return None

    def apply(self, target: GuestTarget) -> bool:
        """Set the schedules of a guest, once its pins are set; return whether any changed."""
        if target.guest.settings.preserve:
            return False
        has_changed, reasons = self._bring_about(target)
        others = {uuid: each for uuid, each in self.refused.items() if uuid != target.guest.uuid}
        self.refused = {**others, target.guest.uuid: reasons} if reasons else others
        return has_changed

    def plan_changes(
        self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]
    ) -> Iterator[PlannedChange]:
        """The threads that would get another schedule, by guest."""
        for target in sorted(without_preserved(targets), key=lambda target: target.guest.uuid):
            try:
                changes = self._plan_guest(target)[0]
            except GuestGoneError:
                continue
            priorities = {one.priority for one in changes.values()}
            for priority in sorted(priorities):
                number = sum(one.priority == priority for one in changes.values())
                change = f"{number} threads -> {_priority_text(priority)}"
                yield PlannedChange(self.name, str(target.guest), change)

    def release(self, guests: Sequence[Guest], online: frozenset[int]) -> Iterator[ReleaseItem]:
        """The schedules of the agent, by guest."""

        def of_guest(guest: Guest) -> Iterator[ReleaseItem]:
            own = [tid for tid, has in self._read_schedules(guest).items() if has.is_own]
            if own:
                detail = f"{len(own)} threads"
                yield ReleaseItem(self.name, str(guest), detail, partial(self._give_back, guest))

        return items_by_guest(guests, self.name, of_guest)

    def _give_back(self, guest: Guest) -> None:
        """Lift the schedules of a guest.

        :raises OSError: the kernel refuses it.
        """
        present = self._read_schedules(guest)
        for tid, schedule in decide_schedules(present, (), USUAL).items():
            self._write(tid, schedule)

    def _bring_about(self, target: GuestTarget) -> tuple[bool, Sequence[str]]:
        """Set what differs; whether anything did, and what the guest does not get.

        :raises GuestGoneError:
        """
        guest = target.guest
        if self._priority_of(guest) is not None:
            self._looked.pop(guest.uuid, None)
        elif self._looked.get(guest.uuid) == guest.pid:
            return False, ()
        changes, reasons = self._plan_guest(target)
        present = self._driver.vcpu_threads(guest)
        set_before = self._threads.get(guest.uuid, frozenset()) & present
        done: dict[int, ThreadSchedule] = {}
        for tid, schedule in changes.items():
            try:
                done[tid] = self._write(tid, schedule)
            except OSError as error:
                reason = NOT_ALLOWED if isinstance(error, PermissionError) else str(error)
                reasons = (f"{OPTION}: {reason}",)
                break
            if schedule.is_own and tid in set_before:
                self._count_drift()
        own = {tid for tid, schedule in done.items() if schedule.is_own}
        self._threads[guest.uuid] = (set_before - done.keys()) | own
        if self._priority_of(guest) is None and len(done) == len(changes):
            self._looked[guest.uuid] = guest.pid
        return bool(done), reasons

    def _write(self, tid: int, schedule: ThreadSchedule) -> ThreadSchedule:
        # A thread that has ended needs none.
        with contextlib.suppress(ProcessLookupError):
            self._schedules.write(tid, schedule)
        return schedule

    def _plan_guest(self, target: GuestTarget) -> tuple[dict[int, ThreadSchedule], tuple[str, ...]]:
        """The threads that need another schedule, and what the guest does not get.

        :raises GuestGoneError:
        """
        present = self._read_schedules(target.guest)
        priority = self._priority_of(target.guest)
        if priority is None or target.assignment is None:
            return decide_schedules(present, (), USUAL), ()
        found = {tid: procfs.thread_affinity(tid) for tid in present}
        threads = {tid: cpus for tid, cpus in found.items() if cpus is not None}
        has_others = bool(self._driver.thread_ids(target.guest) - present.keys())
        chosen, reason = choose_threads(threads, target.assignment, has_others)
        # Threads that cannot be told apart may be several on a CPU.
        schedule = realtime_schedule(priority, in_turn=not self._driver.vcpu_affinity(target.guest))
        changes = decide_schedules(present, chosen, schedule)
        limit = self._read_throttle() if chosen else ""
        return changes, tuple(f"{OPTION}: {each}" for each in (reason, limit) if each)

    def _read_schedules(self, guest: Guest) -> dict[int, ThreadSchedule]:
        """The schedules of the threads that run guest CPUs.

        :raises GuestGoneError:
        """
        found = {tid: self._schedules.read(tid) for tid in self._driver.vcpu_threads(guest)}
        return {tid: one for tid, one in found.items() if one is not None}

    def _priority_of(self, guest: Guest) -> int | None:
        return self._priorities.get(guest.settings.qos_class)


def _priority_text(priority: int) -> str:
    return f"realtime priority {priority}" if priority else "usual schedule"
