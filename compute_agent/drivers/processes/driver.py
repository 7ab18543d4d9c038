"""The driver of guests that are plain processes.

The agent starts a guest in a session of its own, or adopts it by the pid of a process or the folder of a
cgroup v2 group. A guest outlives the agent. The pid and the start time identify a guest, so the agent does
not mistake a later process with the same pid for the guest. Guests are pinned by scheduler affinity
(sched_setaffinity(2)). If the option ``[cgroup] root`` names a cgroup v2 group that the agent can write to,
each guest has a group of its own below that group.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from compute_agent.drivers import memory_limits, procfs
from compute_agent.drivers.base import CpuLimits, CpuSettings, Listener, MemoryLimits, OomKill
from compute_agent.drivers.cgroup import CgroupRoot, GuestCgroup, group_name
from compute_agent.drivers.memory_limits import OomScores, ScoreComparison
from compute_agent.drivers.processes import guest_cgroup, launch
from compute_agent.drivers.processes.process_table import ProcessTable
from compute_agent.drivers.processes.records import DRIVER, ProcessRecord, RecordStore
from compute_agent.drivers.undivided import UndividedThreads, undivided_cpus
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BlockIo

LOG = logging.getLogger(__name__)

# SIGKILL does not end a process in an uninterruptible wait, such as for a disk, before the wait is over.
_KILL_SECONDS: Final = 10.0


class ProcessDriver(UndividedThreads):
    """The driver of process guests, which the agent starts or adopts and records in one folder."""

    name = DRIVER

    def __init__(self, folder: Path, groups: CgroupRoot | None = None, look_only: bool = False) -> None:
        """Take over the guests recorded in ``folder`` that still run, and forget the guests that have ended.

        :param folder: the folder of records, made if absent.
        :param groups: the delegated group, below which each guest gets a group; None means that guests have
            no groups.
        :param look_only: whether the driver only reads, and changes nothing on disk.
        :raises UnsafeFileError: other users can write to the folder.
        :raises OSError: the folder cannot be used.
        """
        self._groups = groups
        self._warned_of_memory = False
        self._scores = OomScores()
        self._records = RecordStore(folder, look_only)
        self._table = ProcessTable(self._records, look_only)

    # Running guests

    @property
    def outage_reason(self) -> str:
        """Always empty: processes depend on no daemon."""
        return ""

    def outage_reasons(self) -> Mapping[str, str]:
        """Always empty: processes depend on no daemon."""
        return {}

    @property
    def awaited_drivers(self) -> frozenset[str]:
        """Always empty: the records of guests are read when the driver opens."""
        return frozenset()

    def guests(self) -> Sequence[Guest]:
        """The guests that have records and run."""
        return [record.as_guest() for record in self._table.running_records()]

    def listed_guests(self) -> Sequence[Guest]:
        """The same as :meth:`guests`."""
        return self.guests()

    def lost_guests(self) -> Mapping[str, str]:
        """The guests with records that cannot be used: a dict from each uuid to reason and remedy."""
        return self._table.lost_guests()

    def excluded_guests(self) -> Mapping[str, str]:
        """Always empty: the driver excludes none of its guests."""
        return {}

    def watch_guests(self, listener: Listener) -> None:
        """Call ``listener`` for each guest that ends or gets another main process from now on."""
        self._table.start_watch(listener)

    def close(self) -> None:
        """Stop watching; the guests keep running."""
        self._table.close()

    # Life

    def create_guest(
        self,
        guest_uuid: str,
        name: str,
        settings: GuestSettings,
        command: Sequence[str],
        cwd: str = "/",
        environment: Mapping[str, str] | None = None,
        declared: Sequence[str] = (),
    ) -> Guest:
        """See :meth:`compute_agent.drivers.base.StartingDriver.create_guest`."""
        variables = launch.guest_environment(guest_uuid, environment or {})
        launch.check_command(command, cwd, variables["PATH"])
        self._table.forbid_double(guest_uuid)
        self._table.forbid_lost(guest_uuid)
        log = self._records.log_of(guest_uuid)
        try:
            output = self._records.open_log(guest_uuid)
            try:
                child = launch.start_held(command, cwd, variables, output)
            finally:
                # The guest has its own copy of the descriptor. A copy in the agent would keep a removed log
                # file, and its space, on the disk.
                os.close(output)
        except OSError as error:
            raise DriverError(f"guest {guest_uuid} cannot be started: {error}") from error
        identity = procfs.identify_process(child.pid)
        if identity is None:
            launch.end_held(child)
            raise DriverError(f"guest {guest_uuid} ended before it began; see {log}")
        record = ProcessRecord(
            guest_uuid, name, identity, settings, tuple(command), log=log, declared=tuple(declared)
        )
        # The record names the group, so the group is made before the record is saved. If the agent crashes
        # between the two, an empty group is left, because the held process ends with the agent.
        try:
            if self._groups is not None and self._groups.make_group(guest_uuid).process_ids():
                # The refusal is raised as an OSError, so that the code below handles it like a refusal of the
                # kernel.
                raise OSError(f"there are processes in its group {group_name(guest_uuid)} already")
            record = self._move_to_group(record)
            self._table.add(record, child)
        except OSError as error:
            self._undo_create(record, child)
            raise DriverError(f"guest {guest_uuid} cannot be recorded: {error}") from error
        return record.as_guest()

    def release(self, guest: Guest) -> None:
        """See :meth:`compute_agent.drivers.base.StartingDriver.release`."""
        try:
            launch.release(self._table.child_process(guest.uuid))
        except BrokenPipeError as error:
            raise DriverError(f"guest {guest} was killed before it began") from error
        # From now on the end of the process is the end of a guest. Until now, only discard() could end the
        # held process.
        self._table.watch_ending(self._table.known_record(guest.uuid))

    def discard(self, guest: Guest) -> None:
        """See :meth:`compute_agent.drivers.base.StartingDriver.discard`."""
        self._undo_create(self._table.known_record(guest.uuid), self._table.child_process(guest.uuid))

    def recent_ending(self, guest: Guest, seconds: float) -> str:
        """See :meth:`compute_agent.drivers.base.StartingDriver.recent_ending`."""
        return self._table.recent_ending(guest, seconds)

    def adopt_guest(
        self,
        guest_uuid: str,
        name: str,
        settings: GuestSettings,
        origin: int | Path,
        declared: Sequence[str] = (),
    ) -> Guest:
        """Make a running process, or all processes of a cgroup v2 group, a guest.

        If guests have groups, the processes move from their present group into a new group. Thus the agent
        changes no values in another program's group.

        :raises DriverError: the process cannot be a guest, or cannot be recorded.
        """
        self._table.forbid_double(guest_uuid)
        source: GuestCgroup | None = None
        if isinstance(origin, int):
            identity = launch.adoptable_process(origin)
            self._table.forbid_guests({origin})
        else:
            guests = {record.uuid for record in self._table.running_records()}
            source, identity = launch.adoptable_group(origin, self._groups, guests)
            self._table.forbid_guests(set(source.process_ids()))
        command = procfs.command_line(identity.pid)
        record = ProcessRecord(
            guest_uuid,
            name,
            identity,
            settings,
            command,
            adopted=True,
            whole_group=source is not None,
            declared=tuple(declared),
            # The path is read before the process moves, because afterwards /proc shows the group that the
            # agent made.
            origin_cgroup=procfs.cgroup_path(identity.pid),
        )
        # The record names the group, so the processes move before the record is saved. If the agent crashes
        # between the two, the group can be adopted again.
        try:
            record = self._move_to_group(record, source)
            self._table.add(record)
        except OSError as error:
            self._give_back(guest_uuid, source)
            raise DriverError(f"guest {guest_uuid} cannot be recorded: {error}") from error
        self._table.watch_ending(record)
        return record.as_guest()

    def stop(self, guest: Guest, timeout: float) -> None:
        """Stop the guest with SIGTERM, and with SIGKILL after ``timeout`` seconds.

        The function ignores a guest that has ended already.

        :raises DriverError: the guest does not end even after SIGKILL, for example while it waits for a disk.
        """
        record = self._table.known_record(guest.uuid)

        def survives_kill() -> bool:
            # The signal is sent again each time, because a process of the guest may have forked since then.
            _signal_guest(record, signal.SIGKILL)
            return self._table.is_alive(record)

        _signal_guest(record, signal.SIGTERM)
        # is_alive() also reads the exit status of a child. Otherwise an ended child would stay a zombie and
        # count as alive.
        if not procfs.await_end(partial(self._table.is_alive, record), timeout):
            LOG.warning("Guest %s did not end within %s s after SIGTERM, and gets SIGKILL", guest, timeout)
            if not procfs.await_end(survives_kill, _KILL_SECONDS):
                raise DriverError(
                    f"guest {guest} does not end {_KILL_SECONDS:g} s after SIGKILL: it still waits in the"
                    " kernel"
                )
        # The end is handled here, so that the guest is no longer listed when stop() returns. GuestGoneError
        # means that the watch thread has already handled the end.
        with contextlib.suppress(GuestGoneError):
            self._table.handle_end(self._table.known_record(guest.uuid))

    def oom_kills(self) -> Sequence[OomKill]:
        """The OOM kills since the last call, of guests with cgroups of their own."""
        for record in self._table.known_records():
            if (group := record.own_group) is not None:
                self._table.oom.look_at_group(record.as_guest(), group)
        return self._table.oom.take_news()

    # Inner parts

    def _move_to_group(self, record: ProcessRecord, source: GuestCgroup | None = None) -> ProcessRecord:
        """Move the processes of a guest into its own group.

        :param source: the group from which all processes move; None means that only the main process and its
            descendants move.
        :return: the record with the new group; unchanged if guests have no groups.
        :raises OSError: a process cannot be moved.
        """
        if self._groups is None:
            return record
        group = self._groups.make_group(record.uuid)
        if source is not None:
            group.take_processes(source)
        else:
            for pid in procfs.descendants_of(record.identity.pid):
                # Parents are moved first, so that children that are made during the loop start in the group.
                group.add(pid)
        return replace(record, cgroup=str(group.folder))

    def _give_back(self, guest_uuid: str, source: GuestCgroup | None) -> None:
        """Move the processes back to their former group after a failed adoption."""
        if source is None or self._groups is None:
            return
        try:
            group = self._groups.make_group(guest_uuid)
            source.take_processes(group)
            group.remove_empty()
        except OSError as error:
            LOG.error(
                "After a failed adoption, processes of the cgroup %s are left in the cgroup of guest %s: %s",
                source.folder,
                guest_uuid,
                error,
            )

    def _undo_create(self, record: ProcessRecord, child: subprocess.Popen[bytes]) -> None:
        """End a held process, and remove the guest's group and record."""
        launch.end_held(child)
        self._table.forget_guest(record)

    # Abilities of the driver

    @property
    def starting_driver(self) -> ProcessDriver:
        """The driver itself, because the agent starts process guests."""
        return self

    # CPUs

    def process_ids(self, guest: Guest) -> Sequence[int]:
        """The pids of the main process and all its descendants."""
        return procfs.descendants_of(guest.pid)

    def thread_ids(self, guest: Guest) -> frozenset[int]:
        """The ids of all threads of the guest's processes at this moment."""
        return frozenset().union(*self._list_threads(guest)[0].values())

    def recent_threads(self, guest: Guest) -> frozenset[int]:
        """The same as :meth:`thread_ids`; comparisons of one round share the list."""
        return frozenset().union(*self._recent_list(guest)[0].values())

    def _list_threads(self, guest: Guest) -> tuple[Mapping[int, frozenset[int]], bool]:
        return _guest_threads(self._table.running_record(guest.uuid))

    def _recent_list(self, guest: Guest) -> tuple[Mapping[int, frozenset[int]], bool]:
        return procfs.read_shared((self.name, guest.pid), self._list_threads, guest)

    def vcpu_threads(self, guest: Guest) -> frozenset[int]:
        """The ids of all threads: the driver cannot tell which of them correspond to guest CPUs."""
        return self.thread_ids(guest)

    def misplaced_threads(self, guest: Guest, settings: CpuSettings) -> Mapping[int, frozenset[int]]:
        """The present affinity of each thread with other pins than ``settings`` say, by thread id."""
        wanted = undivided_cpus(settings)
        threads, left_group = self._recent_list(guest)
        found = procfs.misplaced_threads(frozenset().union(*threads.values()), wanted)
        # A main process outside of its group is reported as misplaced, so that apply_cpu_settings() moves it
        # back.
        if left_group:
            main = self._table.running_record(guest.uuid).identity.pid
            if (has := procfs.thread_affinity(main)) is not None:
                found[main] = has
        return found

    def definition_drift(self, guest: Guest, settings: CpuSettings) -> str:
        """Always empty: a process has no definition for a next start."""
        self._table.known_record(guest.uuid)
        return ""

    def observed_cpus(self, guest: Guest) -> frozenset[int]:
        """The CPUs that the guest's main thread may use."""
        cpus = procfs.thread_affinity(self._table.running_record(guest.uuid).identity.pid)
        if cpus is None:
            raise GuestGoneError(f"guest {guest} has ended")
        return cpus

    def apply_cpu_settings(self, guest: Guest, settings: CpuSettings) -> int:
        """Pin all threads of the guest and read the pins back; return how many threads changed."""
        wanted = undivided_cpus(settings)
        changed = 0
        record = self._table.running_record(guest.uuid)
        try:
            if _guest_threads(record)[1]:
                LOG.warning(
                    "Another program moved guest %s out of its cgroup; the agent moves it back", guest
                )
                self._move_to_group(record)
            # The cpuset is written first: the kernel then moves all threads at once, and new processes start
            # within it. The affinity is set, too, because tools show it, and because a guest without a group
            # has no cpuset.
            if record.own_group is not None:
                record.own_group.confine_cpus(wanted)
            seen: set[int] = set()
            # The loop ends when a pass finds no new process, because a process may fork while other processes
            # are pinned.
            while fresh := [
                pid for pid in _guest_threads(self._table.running_record(guest.uuid))[0] if pid not in seen
            ]:
                seen.update(fresh)
                changed += sum(procfs.pin_threads(pid, wanted) for pid in fresh)
        except OSError as error:
            raise DriverError(f"guest {guest} cannot be pinned to {sorted(wanted)}: {error}") from error
        misplaced = self.misplaced_threads(guest, settings)
        if misplaced:
            raise DriverError(f"guest {guest}: the kernel did not accept the affinity of {sorted(misplaced)}")
        return changed

    def cpu_limits(self, guest: Guest, wanted: CpuLimits) -> CpuLimits | None:
        """The CPU limits of the guest's group if they differ from ``wanted``, otherwise None."""
        return guest_cgroup.other_limits(guest, self._group_of(guest), wanted)

    def apply_cpu_limits(self, guest: Guest, wanted: CpuLimits) -> bool:
        """Write those limits of the guest's group that differ from ``wanted``, and read them back."""
        return guest_cgroup.limit_cpu(guest, self._group_of(guest), wanted)

    def missing_limits(self, guest: Guest, wanted: CpuLimits) -> Sequence[str]:
        """Messages about limits in ``wanted`` that the kernel lacks, or that need a group of the guest."""
        return guest_cgroup.missing_limits(self._group_of(guest), wanted)

    def _check_running(self, guest: Guest) -> None:
        self._table.running_record(guest.uuid)

    # Memory

    def memory_nodes(self, guest: Guest, wanted: frozenset[int]) -> frozenset[int] | None:
        """The NUMA nodes of the guest's group if they differ from ``wanted``, otherwise None."""
        return guest_cgroup.other_nodes(self._group_of(guest), wanted)

    def bind_memory(self, guest: Guest, wanted: frozenset[int]) -> bool:
        """Write the NUMA nodes of the guest's group if they differ from ``wanted``, and read them back.

        The kernel then moves the memory. The memory of a guest without a group stays on its nodes.
        """
        group = self._group_of(guest)
        # The warning is logged once for all guests, because the reason is the same for all, and a host can
        # have hundreds of guests.
        if wanted and not self._warned_of_memory and (group is None or group.memory_nodes() is None):
            self._warned_of_memory = True
            LOG.warning(
                "The memory of guest %s, and of other process guests, is not bound to NUMA nodes: this needs"
                " [cgroup] root, a cgroup v2 group with the controller cpuset",
                guest,
            )
        return guest_cgroup.bind_memory(guest, group, wanted)

    def memory_use(self, guest: Guest) -> int | None:
        """The bytes that the guest's group uses, page cache included; None if the guest has no group."""
        group = self._group_of(guest)
        return None if group is None else group.memory_use()

    def huge_page_use(self, guest: Guest) -> Mapping[int, int]:
        """Bytes of huge pages of the guest's group, by page size in KiB; empty without a group."""
        return memory_limits.huge_page_use(self._group_of(guest))

    def memory_limits(self, guest: Guest, wanted: MemoryLimits) -> MemoryLimits | None:
        """The limits of the guest's group and processes; None if they agree with the ``wanted`` limits."""
        record = self._table.running_record(guest.uuid)
        todo = _differing_limits(record, wanted)
        scores = self._compare_scores(guest, record, wanted, self._recent_list(guest)[0])
        if not todo and scores.goal is None:
            return None
        return memory_limits.present_limits(record.own_group, wanted, scores.present)

    def memory_missing(self, guest: Guest, wanted: MemoryLimits) -> Sequence[str]:
        """Always empty: guests without a group are documented, and all other guests have all limits."""
        self._group_of(guest)
        return ()

    def limit_memory(self, guest: Guest, wanted: MemoryLimits) -> bool:
        """Write the limits that differ from ``wanted``, and read them back.

        Before that, the driver notes in the guest's record which limits are the agent's.
        """
        record = self._table.running_record(guest.uuid)
        pids, group = list(_guest_threads(record)[0]), record.own_group
        todo = _differing_limits(record, wanted)
        score = self._compare_scores(guest, record, wanted, pids).goal
        if not todo and score is None:
            return False
        try:
            # The limits are noted before they are written. If the agent crashes between the two, the next
            # agent still knows the values as its own.
            names = todo.keys() if score is None else todo.keys() | {memory_limits.OOM_SCORE}
            self._table.note_limits(guest.uuid, names)
            if group is not None:
                for name, amount in todo.items():
                    group.limit_memory(name, amount)
            # The kernel protects the memory of a group only up to memory.low and memory.min of the groups
            # above it (cgroup-v2.rst).
            if {memory_limits.LOW, memory_limits.MIN} & todo.keys() and self._groups is not None:
                self._groups.protect_guests()
            if score is not None:
                self._scores.write(guest, pids, score)
        except OSError as error:
            raise DriverError(f"the memory of guest {guest} cannot be limited: {error}") from error
        if (left := self.memory_limits(guest, wanted)) is not None:
            raise DriverError(f"the kernel did not apply {wanted} to guest {guest}, which has {left}")
        return True

    def _compare_scores(
        self, guest: Guest, record: ProcessRecord, wanted: MemoryLimits, pids: Iterable[int]
    ) -> ScoreComparison:
        """See :meth:`OomScores.compare_scores`."""
        # The score of a started guest comes from no other program: the guest inherits the score that the
        # agent's unit sets.
        is_own = not record.adopted or memory_limits.OOM_SCORE in record.limits
        return self._scores.compare_scores(guest, pids, wanted.oom_score_adj, is_own)

    # Block I/O

    def blockio_drift(self, guest: Guest, wanted: BlockIo | None) -> str:
        """The lines that the agent would have to write to block I/O files of the guest's group."""
        todo = self._blockio_writes(guest, wanted)
        return "; ".join(f"{name} has not {line}" for name, line in todo)

    def apply_blockio(self, guest: Guest, wanted: BlockIo | None) -> bool:
        """Write the lines that differ from ``wanted``, and read them back.

        Before that, the driver notes in the guest's record which files the agent writes.
        """
        todo = self._blockio_writes(guest, wanted)
        group = self._group_of(guest)
        if not todo or group is None:
            return False
        name = line = ""  # The error message needs values, in case the note fails before the first write.
        try:
            self._table.note_limits(guest.uuid, {name for name, _ in todo})
            for name, line in todo:
                group.write_file(name, line)
        except OSError as error:
            raise DriverError(f"guest {guest} cannot have {line!r} in {name}: {error}") from error
        if left := self.blockio_drift(guest, wanted):
            raise DriverError(f"guest {guest}: the kernel did not accept it: {left}")
        return True

    def blockio_missing(self, guest: Guest, wanted: BlockIo) -> Sequence[str]:
        """Messages about parts of ``wanted`` that the kernel lacks, or that need a group of the guest."""
        return guest_cgroup.missing_parts(self._group_of(guest), wanted)

    def _blockio_writes(self, guest: Guest, wanted: BlockIo | None) -> list[tuple[str, str]]:
        record = self._table.running_record(guest.uuid)
        if record.own_group is None:
            return []
        return guest_cgroup.pending_writes(record.own_group, wanted, record.limits)

    # Inner parts

    def _group_of(self, guest: Guest) -> GuestCgroup | None:
        """The guest's own group; None if the guest has no own group.

        :raises GuestGoneError: the guest has ended.
        """
        # For a guest without a group, the check whether its process runs is left out. This saves a read of
        # /proc.
        record = self._table.known_record(guest.uuid)
        return self._table.running_record(guest.uuid).own_group if record.cgroup else None


def _signal_guest(record: ProcessRecord, number: signal.Signals) -> None:
    """Send a signal to the processes of a guest.

    For a started guest these are its process group, for an adopted process the process alone, and for an
    adopted cgroup all its processes.
    """
    if record.whole_group:
        targets = record.member_pids()
    else:
        targets = [record.identity.pid] if procfs.is_alive(record.identity) else []
    for pid in targets:
        # The process may have ended since the list was made.
        with contextlib.suppress(ProcessLookupError):
            # A started guest leads its own process group. An adopted process can be in the process group of a
            # shell or a service, which must not be stopped together with the guest.
            if record.adopted:
                os.kill(pid, number)
            else:
                os.killpg(pid, number)


def _differing_limits(record: ProcessRecord, wanted: MemoryLimits) -> dict[str, int]:
    """The memory limits to write, by file; empty for a guest without a group of its own."""
    group = record.own_group
    return {} if group is None else memory_limits.differing_limits(group, wanted, record.limits)


def _guest_threads(record: ProcessRecord) -> tuple[dict[int, frozenset[int]], bool]:
    """The thread ids of a guest by process, and whether its main process is outside of the guest's group.

    The processes are the members of the guest's group. A main process that another program moved out of the
    group is included, with all its descendants.
    """
    threads = {pid: procfs.thread_ids(pid) for pid in record.member_pids()}
    if record.identity.pid in threads:
        return threads, False
    return threads | procfs.family_threads(record.identity.pid), record.own_group is not None
