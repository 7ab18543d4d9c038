"""A driver of guests that another program starts, each in a control group of its own.

The threads of a guest are the threads of all processes in its group. For each kind of guests, a subclass
provides the peer, the table and the editor.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from compute_agent.drivers import memory_limits, procfs
from compute_agent.drivers.base import (
    UNLIMITED,
    ChangeKind,
    CpuLimits,
    CpuSettings,
    GuestChange,
    MemoryLimits,
    OomKill,
)
from compute_agent.drivers.cgroup import group_at
from compute_agent.drivers.foreign import values
from compute_agent.drivers.foreign.declared import MAX_MEMORY_MB
from compute_agent.drivers.foreign.editor import (
    HostFolders,
    ValueComparison,
    ValueEditor,
)
from compute_agent.drivers.foreign.table import GuestEntry, GuestTable
from compute_agent.drivers.foreign.values import (
    CPUS,
    INFINITY,
    MEMORY_MAX,
    NODES,
    GoalChoice,
)
from compute_agent.drivers.memory_limits import OomScores, OomWatch, ScoreComparison
from compute_agent.drivers.peer import LookBudget, PeerDriver, PeerHint
from compute_agent.drivers.undivided import UndividedThreads, undivided_cpus
from compute_agent.model import cpuset
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BlockIo

LOG = logging.getLogger(__name__)

# The longest pause in seconds until deferred hints are handled.
_DEFER_SECONDS: Final = 1.0

_MIB: Final = 1 << 20
KILL_SECONDS: Final = 10.0
"""The maximum time in seconds within which the processes of a guest must end after SIGKILL."""


class ForeignDriver(PeerDriver, UndividedThreads):
    """The common parts of drivers of guests that other programs start, each in a control group of its own."""

    subjects = "Guests"

    _table: GuestTable
    _editor: ValueEditor

    def __init__(
        self,
        folders: HostFolders | None = None,
        look_interval: float = 10.0,
        lock: Callable[[], None] = lambda: None,
        look_only: bool = False,
    ) -> None:
        """Begin without a peer; see :class:`~compute_agent.drivers.peer.PeerDriver`.

        :param folders: the folders of the host; None means the defaults of :class:`HostFolders`.
        :param look_only: whether the driver only reads, and changes neither guests nor records.
        """
        super().__init__(look_interval, lock)
        self._hints: queue.SimpleQueue[PeerHint] = queue.SimpleQueue()
        self._folders = folders or HostFolders()
        self._oom, self._scores = OomWatch(), OomScores()
        self._look_only = look_only
        self._budget = LookBudget()
        self._deferred: set[PeerHint] = set()
        """The hints that wait, because their unit or container was read too often in the last seconds."""
        self.announce_start: Callable[[Guest], None] = lambda guest: None
        """Called for each guest that the driver finds, before the listener gets the change."""
        self.settle_seconds = 0.0
        """Seconds after the start of a guest in which it gets no claim, because another driver's guest can
        still start in it and take its place."""

    def _silence_text(self) -> str:
        # Before the end of the first attempt, it is not known whether the peer answers.
        outcome = "does not answer" if self._tried.is_set() else "has not listed its guests yet"
        return f"{self.peer_name} {outcome}"

    def _connected_text(self) -> str:
        return f"The agent is connected to {self.peer_name}, and reads its guests"

    # Running guests

    def _living_guests(self) -> Sequence[Guest]:
        return [entry.guest for entry in self._table.all_entries() if entry.has_processes]

    def lost_guests(self) -> Mapping[str, str]:
        """The subjects that are perhaps guests but cannot be managed: a dict from the uuid to the reason."""
        return self._table.lost_guests()

    def excluded_guests(self) -> Mapping[str, str]:
        """The chosen subjects that are certainly no guests, as a dict from the uuid to the reason."""
        return self._table.excluded_guests()

    def oom_kills(self) -> Sequence[OomKill]:
        """The OOM kills of running guests that have happened since the last call."""
        for entry in self._table.all_entries():
            self._oom.look_at_group(entry.guest, entry.own_group)
        return self._oom.take_news()

    def stop(self, guest: Guest, timeout: float) -> None:
        """Stop the guest through its peer, and kill its processes after ``timeout`` seconds.

        The peer does not restart the guest by itself. However, if a service runs a container, the service can
        start the container again.

        :raises DriverError: the peer does not answer, or the guest does not end.
        """
        entry = self._table.find_running(guest)
        if entry is None or self._await_end(entry, self._begin_stop(guest, timeout)):
            return
        LOG.warning("Guest %s did not end within %s s, and gets SIGKILL", guest, timeout)
        self._kill_processes(guest)
        if not self._await_end(entry, KILL_SECONDS):
            raise DriverError(f"guest {guest} does not end {KILL_SECONDS:g} s after SIGKILL")

    def _await_end(self, entry: GuestEntry, seconds: float) -> bool:
        """Wait until a guest has ended with all its processes; return whether it has."""
        return procfs.await_end(
            lambda: entry.is_alive or self._table.find_running(entry.guest) is not None, seconds
        )

    @abc.abstractmethod
    def _begin_stop(self, guest: Guest, timeout: float) -> float:
        """Ask the peer to stop a guest within ``timeout`` seconds.

        :return: the seconds within which the guest must end, counted from the end of this call.
        """

    @abc.abstractmethod
    def _kill_processes(self, guest: Guest) -> None:
        """Ask the peer to send SIGKILL to the processes of a guest."""

    @abc.abstractmethod
    def _can_idle(self, guest: Guest) -> bool:
        """Whether the guest can be idle (``cpu.idle``): it gets only CPU time that no group wants."""

    # Claims

    def wanted_memory(self, guest: Guest) -> int:
        """The memory in MiB to claim for a guest: its declared memory, or else its own limit, or else 0.

        :raises GuestGoneError: the guest has ended.
        :raises DriverError: the limit cannot be read.
        """
        if declared := self._table.find_living(guest).memory_mb:
            return declared
        found = self._compare_guest(guest, GoalChoice(frozenset({MEMORY_MAX}), values.own_limit))
        limit = found.goals.get(MEMORY_MAX, INFINITY)
        assert isinstance(limit, int)
        return 0 if limit >= UNLIMITED else min(-(-limit // _MIB), MAX_MEMORY_MB)

    @abc.abstractmethod
    def subject_key(self, guest: Guest) -> str:
        """The key by which the peer knows the unit or container of a guest."""

    def is_gone(self, key: str, guest_uuid: str) -> bool:
        """Whether a guest that does not run will never come back under this uuid.

        :param key: the key of its unit or container.
        :raises DriverError: the peer does not answer.
        """
        # During an outage the table is not complete, and each question would wait for a peer that hangs.
        if reason := self.outage_reason:
            raise DriverError(reason)
        return self._table.is_other(key, guest_uuid) or not self._table.may_return(key, guest_uuid)

    # Threads

    def process_ids(self, guest: Guest) -> Sequence[int]:
        """The pids of the guest, the main process first."""
        members = self._table.find_recent(guest).own_group.process_ids()
        return [guest.pid, *(pid for pid in members if pid != guest.pid)]

    def thread_ids(self, guest: Guest) -> frozenset[int]:
        """The ids of all threads of the guest's processes at this moment."""
        found = frozenset[int]().union(*map(procfs.thread_ids, self.process_ids(guest)))
        if not found:
            raise GuestGoneError(f"guest {guest} has ended")
        return found

    def recent_threads(self, guest: Guest) -> frozenset[int]:
        """The same as :meth:`thread_ids`; comparisons of one round share the list."""
        return procfs.read_shared((self.name, guest.pid), self.thread_ids, guest)

    def vcpu_threads(self, guest: Guest) -> frozenset[int]:
        """The ids of all threads, because the guest has no guest CPUs."""
        return self.thread_ids(guest)

    # CPUs

    def misplaced_threads(self, guest: Guest, settings: CpuSettings) -> Mapping[int, frozenset[int]]:
        """The threads that may use other CPUs than ``settings`` has: a dict from thread id to present CPUs.

        A thread with fewer CPUs than ``settings`` has is not misplaced. If no thread is misplaced but the
        group has other CPUs, the guest's main thread counts as misplaced.
        """
        wanted = undivided_cpus(settings)
        found = self._compare_guest(guest, values.cpu_choice(wanted, self._folders.recent_sets[CPUS]))
        goal = found.goals.get(CPUS, frozenset())
        allowed = goal if isinstance(goal, frozenset) and goal else wanted
        affinities = procfs.thread_affinities(self.recent_threads(guest))
        misplaced = {tid: cpus for tid, cpus in affinities.items() if not cpus <= allowed}
        if found.differing and not misplaced:
            misplaced = {guest.pid: self.observed_cpus(guest)}
        return misplaced

    def definition_drift(self, guest: Guest, settings: CpuSettings) -> str:
        """Always empty, because the agent changes no definition for the next start."""
        self._table.find_recent(guest)
        return ""

    def observed_cpus(self, guest: Guest) -> frozenset[int]:
        """The CPUs that the main thread of the guest may use, or that of another process if it has ended."""
        main = self._table.find_recent(guest).main.pid
        found = procfs.thread_affinities([main]) or procfs.thread_affinities(self.process_ids(guest))
        if not found:
            raise GuestGoneError(f"guest {guest} has ended")
        return next(iter(found.values()))

    def apply_cpu_settings(self, guest: Guest, settings: CpuSettings) -> int:
        """Set the CPUs of the group, and read them back.

        Return the number of threads that had other CPUs before the call.
        """
        wanted = undivided_cpus(settings)
        if not wanted & self._folders.online_cpus:
            raise DriverError(f"guest {guest} cannot be pinned to {cpuset.format(wanted)}: they are offline")
        before = self.misplaced_threads(guest, settings)
        if not before:
            return 0
        self._apply(guest, values.cpu_choice(wanted, self._folders.whole_sets[CPUS]))
        if misplaced := self.misplaced_threads(guest, settings):
            raise DriverError(f"guest {guest}: the kernel did not accept the CPUs of {sorted(misplaced)}")
        return len(before)

    def cpu_limits(self, guest: Guest, wanted: CpuLimits) -> CpuLimits | None:
        """Weight and quota of the guest if they differ from ``wanted``, otherwise None.

        A weight of the guest's own, or a lower quota of the guest's own, does not count as a difference.
        """
        found = self._compare_guest(guest, self._limit_choice(guest, wanted))
        return values.present_limits(found.present) if found.differing else None

    def apply_cpu_limits(self, guest: Guest, wanted: CpuLimits) -> bool:
        """Set the weight and the quota of the guest if they differ from ``wanted``, and read them back."""
        return self._apply(guest, self._limit_choice(guest, wanted))

    # Memory

    def memory_nodes(self, guest: Guest, wanted: frozenset[int]) -> frozenset[int] | None:
        """The NUMA nodes of the guest if they differ from ``wanted``, otherwise None."""
        found = self._compare_guest(guest, values.node_choice(wanted, self._folders.recent_sets[NODES]))
        nodes = found.present[NODES]
        return nodes if found.differing and isinstance(nodes, frozenset) else None

    def bind_memory(self, guest: Guest, wanted: frozenset[int]) -> bool:
        """Set the NUMA nodes of the guest's group if they differ from ``wanted``.

        The kernel then moves the memory.
        """
        return self._apply(guest, values.node_choice(wanted, self._folders.whole_sets[NODES]))

    def memory_use(self, guest: Guest) -> int | None:
        """The bytes of memory that the guest uses, including page cache.

        The result is None if the group does not have the controller memory.
        """
        return self._table.find_recent(guest).own_group.memory_use()

    def huge_page_use(self, guest: Guest) -> Mapping[int, int]:
        """The bytes in huge pages that the guest uses, by page size in KiB."""
        return memory_limits.huge_page_use(self._table.find_recent(guest).own_group)

    def memory_limits(self, guest: Guest, wanted: MemoryLimits) -> MemoryLimits | None:
        """The memory limits of the guest if they differ from ``wanted``, otherwise None."""
        found = self._compare_guest(guest, self._memory_choice(guest, wanted))
        scores = self._compare_scores(guest, wanted)
        if not found.differing and scores.goal is None:
            return None
        return values.present_memory(found.present, wanted, None if scores.goal is None else scores.present)

    def limit_memory(self, guest: Guest, wanted: MemoryLimits) -> bool:
        """Set the memory limits that differ from ``wanted``, and read them back."""
        changed = self._apply(guest, self._memory_choice(guest, wanted))
        score = self._compare_scores(guest, wanted).goal
        if score is None:
            return changed
        # The first score is noted before it is written: after a crash between the two, the next agent still
        # knows the score as its own. When a later score replaces it, the former score stays noted until each
        # process has the new score.
        if not self._editor.record_of(guest).scored:
            self._editor.note_score(guest, score)
        try:
            self._scores.write(guest, self._scored_processes(guest, wanted), score)
        except OSError as error:
            raise DriverError(f"the oom_score_adj of guest {guest} cannot be set: {error}") from error
        self._editor.note_score(guest, score or None)
        return True

    # Block I/O

    def blockio_drift(self, guest: Guest, wanted: BlockIo | None) -> str:
        """A text that names each weight, rate and target of block I/O that differs from ``wanted``."""
        found = self._compare_guest(guest, self._io_choice(guest, wanted))
        return ", ".join(f"{name} is {values.value_text(found.present[name])}" for name in found.differing)

    def apply_blockio(self, guest: Guest, wanted: BlockIo | None) -> bool:
        """Set the values of block I/O that differ from ``wanted``, and read them back."""
        return self._apply(guest, self._io_choice(guest, wanted))

    # Inner parts: one guest

    def _check_running(self, guest: Guest) -> None:
        self._table.find_recent(guest)

    def _compare_guest(self, guest: Guest, choice: GoalChoice) -> ValueComparison:
        self._table.find_recent(guest)
        with self._checked_end(guest):
            found = self._editor.compare_guest(guest, choice)
        # If the guest has just ended, its group has no values, and the difference means nothing.
        if found.differing:
            self._table.find_living(guest)
        return found

    def _apply(self, guest: Guest, choice: GoalChoice) -> bool:
        self._table.find_living(guest)
        if self._look_only:
            raise DriverError(f"guest {guest} is not changed in a dry run")
        with self._checked_end(guest):
            return self._editor.apply(guest, choice)

    @contextlib.contextmanager
    def _checked_end(self, guest: Guest) -> Iterator[None]:
        """If the block raises DriverError and the guest has ended, raise GuestGoneError instead."""
        try:
            yield
        except GuestGoneError:
            raise
        except DriverError:
            self._table.find_living(guest)
            raise

    def _limit_choice(self, guest: Guest, wanted: CpuLimits) -> GoalChoice:
        possible = replace(wanted, idle=wanted.idle and self._can_idle(guest))
        return values.limit_choice(possible, self._editor.record_of(guest).values.keys())

    def _memory_choice(self, guest: Guest, wanted: MemoryLimits) -> GoalChoice:
        return values.memory_choice(wanted, self._editor.record_of(guest).values.keys())

    def _io_choice(self, guest: Guest, wanted: BlockIo | None) -> GoalChoice:
        noted = self._editor.record_of(guest).values.keys()
        return values.io_choice(wanted or BlockIo(), self._limitable_devices, noted)

    def _limitable_devices(self, wanted: frozenset[str]) -> frozenset[str]:
        """The devices of the host, without those of ``wanted`` for which the guest cannot have limits."""
        return self._folders.block_devices

    def _compare_scores(self, guest: Guest, wanted: MemoryLimits) -> ScoreComparison:
        """See :meth:`OomScores.compare_scores`."""
        pids, is_own = self._scored_processes(guest, wanted), self._editor.record_of(guest).scored
        return self._scores.compare_scores(guest, pids, wanted.oom_score_adj, is_own)

    def _scored_processes(self, guest: Guest, wanted: MemoryLimits) -> Sequence[int]:
        """The pids of the processes for which the agent sets ``oom_score_adj``."""
        pids = self.process_ids(guest)
        if not self._is_composed(guest):
            return pids
        record = self._editor.record_of(guest)
        last = record.score
        if record.scored and last is None:
            # The record has no score. The score of the main process is used, because the agent has also set
            # that.
            last = memory_limits.oom_score_adj(guest.pid)
        # Processes with any other score are left out, because their container or unit sets that score.
        return [pid for pid in pids if memory_limits.oom_score_adj(pid) in (0, last, wanted.oom_score_adj)]

    def _is_composed(self, guest: Guest) -> bool:
        """Whether the processes of a guest belong to several programs, which can have scores of their own."""
        return False

    # Inner parts: the thread

    def _wake_thread(self) -> None:
        self._hints.put(PeerHint())

    def _read_all(self) -> None:
        self._look_around(everything=True)

    def _look_around(self, everything: bool) -> None:
        self._next_look = time.monotonic() + self._look_interval
        self._table.begin_round()
        self._table.look_around(everything)
        self._give_back()

    def _give_back(self) -> None:
        if not self._look_only:
            self._editor.give_back(self._table.is_managed)

    def _handle_changes(self) -> None:
        hints, self._deferred = self._deferred, set()
        pause = max(self._next_look - time.monotonic(), 0.0)
        with contextlib.suppress(queue.Empty):
            hints.add(self._hints.get(timeout=min(pause, _DEFER_SECONDS) if hints else pause))
            # All waiting hints are handled together, because the start of one guest causes a dozen hints.
            while True:
                hints.add(self._hints.get_nowait())
        if self._stopped.is_set() or not self._peer.is_open:
            return
        self._table.begin_round()
        everything, now = PeerHint() in hints, time.monotonic()
        has_looked = everything or now >= self._next_look
        if has_looked:
            self._budget.forget_old(now)
            self._look_around(everything)
        for key in self._table.order_keys({hint.key for hint in hints if hint.key}):
            if self._budget.take_look(key, now):
                self._table.look_at(key, PeerHint(key, True) in hints)
                has_looked = True
            else:
                self._deferred |= {hint for hint in hints if hint.key == key}
        # Hints that all have to wait cost nothing else: a service can cause them without end.
        if has_looked:
            for key in self._table.unsteady_keys():
                if self._budget.take_look(key, now):
                    self._table.look_at(key)
            self._give_back()

    def _report_change(self, change: GuestChange) -> None:
        if change.kind in (ChangeKind.STARTED, ChangeKind.FOUND):
            self._oom.begin_counting(change.guest.uuid, group_at(change.guest.cgroup))
            self.announce_start(change.guest)
        super()._report_change(change)
