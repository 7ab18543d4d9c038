"""Controller ``realtime``: gives the threads that run guest CPUs the realtime priority of the guest's class.

Only guest CPUs that run on dedicated CPUs get a realtime schedule. The controller acts in each sync(),
because a guest can create threads at any time, and new threads start with the usual schedule. A schedule that
another program changes counts as drift. A function for one guest raises GuestGoneError if the guest has
ended, and OSError if the kernel refuses a change or the notes cannot be written.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from compute_agent.controllers.base import (
    FOREIGN_ROUNDS,
    GuestController,
    GuestTarget,
    PlannedChange,
    ReleaseItem,
    without_preserved,
)
from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestDriver
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.schedules.realtime import (
    NOT_ALLOWED,
    NOT_BOUND,
    USUAL,
    KernelSchedules,
    ThreadSchedule,
    choose_threads,
    decide_schedules,
    read_schedules,
    realtime_schedule,
)
from compute_agent.schedules.run_notes import RunNote, RunNotesFile, note_of

LOG = logging.getLogger(__name__)

OPTION: Final = "realtime_priority"


class SchedulePlan(NamedTuple):
    """The schedules that a guest's threads will get.

    - ``changes`` are the new schedules by thread id.
    - ``reasons`` are sentences about settings that the guest cannot have.
    - ``threads`` are the ids of all threads that run guest CPUs.
    """

    changes: Mapping[int, ThreadSchedule]
    reasons: tuple[str, ...]
    threads: frozenset[int]


class RealtimeController(GuestController):
    """Sets and removes realtime schedules of the threads that run guest CPUs."""

    name = "realtime"
    compare_rounds = FOREIGN_ROUNDS
    release_kind = name

    def __init__(
        self,
        driver: GuestDriver,
        priorities: Mapping[str, int],
        store: RunNotesFile,
        schedules: KernelSchedules,
        count_drift: Callable[[], object] = lambda: None,
    ) -> None:
        """Begin with these realtime priorities of the classes of guests.

        :param priorities: the priority of each class that has one, by its name.
        :param store: keeps a note of each guest with a priority; the note is written before the priority is
            set.
        :param schedules: the kernel's interface for schedules.
        :param count_drift: called for each thread that has lost the schedule from the agent.
        """
        self._driver = driver
        self._priorities = priorities
        self._store = store
        self._schedules = schedules
        self._count_drift = count_drift
        #: The threads that got a schedule from the agent, by guest.
        self._threads: dict[str, frozenset[int]] = {}

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Set and remove the realtime schedules of all guests."""
        found: dict[str, Sequence[str]] = {}
        for target in without_preserved(targets):
            try:
                reasons = self._bring_about(target)[1]
            except GuestGoneError:
                continue
            except (DriverError, OSError) as error:
                reasons = (f"{OPTION}: {error}",)
            if reasons:
                found[target.guest.uuid] = reasons
        self.refused = found
        present = {target.guest.uuid for target in targets}
        self._threads = {uuid: tids for uuid, tids in self._threads.items() if uuid in present}
        notes = self._store.kept_notes
        self._store.keep_notes({uuid: note for uuid, note in notes.items() if procfs.is_alive(note.main)})

    def describe_drift(self, target: GuestTarget) -> str | None:
        """Always None, because sync() has compared and corrected the threads of all guests."""
        return None

    def apply(self, target: GuestTarget) -> bool:
        """Set the schedules of a guest after the guest was pinned; return whether any schedule changed."""
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
                changes = self._plan_guest(target, self._is_noted(target.guest)).changes
            except GuestGoneError:
                continue
            priorities = {one.priority for one in changes.values()}
            for priority in sorted(priorities):
                number = sum(one.priority == priority for one in changes.values())
                change = f"{number} threads -> {_priority_text(priority)}"
                yield PlannedChange(self.name, str(target.guest), change)

    def list_written(self, guest: Guest, online: frozenset[int]) -> Iterator[ReleaseItem]:
        """The schedules of a guest's threads that the agent set."""
        if lifted := self._plan_lifting(guest):
            detail = f"{len(lifted)} threads"
            yield ReleaseItem(self.name, str(guest), detail, partial(self._give_back, guest))

    def _give_back(self, guest: Guest) -> None:
        """Give the threads of a guest the usual schedule again."""
        for tid, schedule in self._plan_lifting(guest).items():
            self._write(tid, schedule)
        if not self._plan_lifting(guest):
            self._drop_note(guest)

    def _plan_lifting(self, guest: Guest) -> dict[int, ThreadSchedule]:
        """The usual schedule for each thread with a realtime schedule of the agent, by thread id."""
        if not self._is_noted(guest):
            return {}
        return decide_schedules(self._read_schedules(guest), (), USUAL, noted=True)

    def _bring_about(self, target: GuestTarget) -> tuple[bool, Sequence[str]]:
        """Set the schedules of a guest that differ from the wanted schedules.

        :return: whether any schedule differed, and messages about requests of the guest that cannot be met.
        :raises OSError: the note cannot be written, so no schedule is changed.
        """
        guest = target.guest
        priority, noted = self.priority_of(guest), self._is_noted(guest)
        if priority is None and not noted:
            return False, ()
        plan = self._plan_guest(target, noted)
        reasons = plan.reasons
        if not noted and plan.changes:
            self._keep_note(guest, priority)
        set_before = self._threads.get(guest.uuid, frozenset()) & plan.threads
        done: dict[int, ThreadSchedule] = {}
        for tid, schedule in plan.changes.items():
            try:
                done[tid] = self._write(tid, schedule)
            except OSError as error:
                reason = NOT_ALLOWED if isinstance(error, PermissionError) else str(error)
                reasons = (f"{OPTION}: {reason}",)
                break
            if schedule != USUAL and tid in set_before:
                self._count_drift()
        if noted:
            self._restore_nice(guest, {tid for tid, one in done.items() if one != USUAL} - set_before)
        self._set_strangers_back(guest, done)
        own = {tid for tid, schedule in done.items() if schedule != USUAL}
        self._threads[guest.uuid] = (set_before - done.keys()) | own
        if priority is None and not plan.changes:
            self._drop_note(guest)
        return bool(done), reasons

    def _restore_nice(self, guest: Guest, tids: Collection[int]) -> None:
        """Give new threads, which start with nice value 0, the nice value of the main thread."""
        nice = self._schedules.read_nice(guest.pid) or 0
        for tid in tids if nice else ():
            with contextlib.suppress(ProcessLookupError):
                if self._schedules.read_nice(tid) == 0:
                    self._schedules.write_nice(tid, nice)

    def _set_strangers_back(self, guest: Guest, done: Mapping[int, ThreadSchedule]) -> None:
        """Give the usual schedule to threads of other processes that reuse the ids of ended guest threads."""
        present: frozenset[int] = frozenset()
        with contextlib.suppress(GuestGoneError):
            present = self._driver.thread_ids(guest) if done else present
        for tid in done.keys() - present:
            if done[tid] != USUAL and self._schedules.read(tid) == done[tid]:
                LOG.warning(
                    "Thread %d of guest %s has ended. Another thread has this id now, so the agent takes the"
                    " realtime priority of the guest from this thread",
                    tid,
                    guest,
                )
                self._write(tid, USUAL)

    def _is_noted(self, guest: Guest) -> bool:
        """Whether a note says that the agent has perhaps set priorities since the start of the guest."""
        notes = self._store.kept_notes
        # Notes are checked first: usually no guest has one, and identifying a process costs reads of /proc.
        main = procfs.identify_process(guest.pid) if guest.uuid in notes else None
        return main is not None and note_of(notes, guest.uuid, main) is not None

    def _keep_note(self, guest: Guest, priority: int | None) -> None:
        """Record the realtime priority of a guest in its note; None stands for no priority."""
        main = procfs.identify_process(guest.pid)
        if main is None:
            raise GuestGoneError(f"guest {guest} has ended")
        self._store.keep_notes({**self._store.kept_notes, guest.uuid: RunNote(main)})
        LOG.info("Guest %s gets realtime priority %s", guest, priority)

    def _drop_note(self, guest: Guest) -> None:
        """Remove the note of a guest that no longer has priorities."""
        # These threads began after the threads of the guest were listed.
        self._restore_nice(guest, self._driver.vcpu_threads(guest))
        notes = self._store.kept_notes
        self._store.keep_notes({uuid: note for uuid, note in notes.items() if uuid != guest.uuid})
        LOG.info("The agent has removed the realtime priority of guest %s", guest)

    def _write(self, tid: int, schedule: ThreadSchedule) -> ThreadSchedule:
        # A thread that has ended needs no schedule.
        with contextlib.suppress(ProcessLookupError):
            self._schedules.write(tid, schedule)
        return schedule

    def _plan_guest(self, target: GuestTarget, noted: bool) -> SchedulePlan:
        """Plan the schedules of a guest's threads.

        :param noted: whether the guest perhaps has priorities of the agent.
        """
        guest, place = target.guest, target.assignment
        present = self._read_schedules(guest)
        priority, members = self.priority_of(guest), frozenset(present)
        if priority is None or place is None:
            return SchedulePlan(decide_schedules(present, (), USUAL, noted), (), members)
        found = {tid: procfs.thread_affinity(tid) for tid in present}
        threads = {tid: cpus for tid, cpus in found.items() if cpus is not None}
        has_others = bool(self._driver.thread_ids(guest) - present.keys())
        chosen, reason = choose_threads(threads, place, has_others)
        has_names = bool(self._driver.vcpu_affinity(guest))
        # A process can itself bind its threads to CPUs that it does not hold. Only a cpuset prevents such a
        # move.
        if chosen and not has_names and not _is_bound(guest, place.held_cpus):
            chosen, reason = frozenset(), NOT_BOUND
        # If QEMU's threads have no names, several guest CPUs perhaps share a CPU. So these threads get a
        # schedule with time slices.
        schedule = realtime_schedule(priority, in_turn=not has_names)
        changes = decide_schedules(present, chosen, schedule, noted)
        return SchedulePlan(changes, (f"{OPTION}: {reason}",) if reason else (), members)

    def _read_schedules(self, guest: Guest) -> dict[int, ThreadSchedule]:
        """The schedules of the threads that run guest CPUs, by thread id."""
        return read_schedules(self._schedules, self._driver.vcpu_threads(guest))

    def priority_of(self, guest: Guest) -> int | None:
        """The realtime priority that a guest gets from its class; None if the class sets no priority."""
        return self._priorities.get(guest.settings.qos_class)


def _is_bound(guest: Guest, cpus: CpuSet) -> bool:
    """Whether the guest's cpuset keeps all its threads on ``cpus``, even if they ask for another affinity."""
    allowed = GuestCgroup(Path(guest.cgroup)).allowed_cpus() if guest.cgroup else None
    return bool(allowed and allowed <= cpus)


def _priority_text(priority: int) -> str:
    return f"realtime priority {priority}" if priority else "usual schedule"
