"""Helpers: the tasks that serve a domain outside its QEMU process, and their CPUs.

libvirtd starts helpers of a domain as processes: swtpm, virtiofsd, passt. Helpers of a starting domain are in
the cgroup of QEMU's main thread. Helpers that are plugged in later stay in libvirtd's own cgroup.

From Linux 6.4 on, the kernel's vhost workers are threads of QEMU. Up to Linux 6.3 they are kernel threads
named ``vhost-PID``, in the cgroup of the thread that made them. If the domain has no such cgroup, the helpers
may use all CPUs of the host.

The agent finds helpers among the members of the cgroup of QEMU's main thread. Other helpers have pid files in
libvirt's state folder, and the names of these files begin with the number of the domain's run. Some
subfolders are writable for the system users that run helpers. So a pid counts only if its process has the
name of a helper and is in no cgroup of another domain.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.libvirt.running_domain import DomainGroup, RunningDomain, SettledTask, find_group
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.host.kernel_files import list_kernel_threads
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.messages import printable_text

STATE_FOLDER: Final = Path("/run/libvirt/qemu")
"""The folder with the state of libvirt's QEMU driver, for the libvirtd of the system."""

_FOLDERS: Final = ("", "swtpm", "passt", "slirp", "dbus")
"""The subfolders of the state folder in which helpers have pid files; "" is the state folder itself."""

_PID_FILE: Final = re.compile(r"(?P<number>[0-9]{1,10})-.+\.pid", re.ASCII | re.DOTALL)
# The maximum number of bytes read from a pid file, and of files read in a folder. Helpers can write to these
# folders, and must not be able to delay the agent.
_MAX_PID_FILE: Final = 32
_MAX_PID_FILES: Final = 10_000

_HELPERS: Final = frozenset(
    {
        "swtpm",
        "virtiofsd",
        "passt",
        "passt.avx2",
        "slirp-helper",
        "vhost-user-gpu",
        "dbus-daemon",
        "nbdkit",
        "qemu-pr-helper",
    }
)
"""The names of the processes that libvirt starts for a domain (``src/qemu/qemu_extdevice.c``)."""

_VHOST: Final = re.compile(r"vhost-([0-9]{1,10})", re.ASCII)

_LISTING_SECONDS: Final = 5.0
"""Seconds for which the lists of pid files and of kernel threads are used again, so that one list serves all
guests.
"""


@dataclass(frozen=True, slots=True)
class HelperTask:
    """A thread that serves a guest outside its QEMU process, and the CPUs that the kernel lets it use."""

    identity: ProcessIdentity
    name: str
    cpus: CpuSet


class HelperPins:
    """Finds the helper tasks of guests, sets their CPUs, and remembers tasks that cannot be moved.

    Any thread is allowed to call the methods.
    """

    def __init__(
        self, state_folder: Path = STATE_FOLDER, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin without lists.

        :param state_folder: the folder with pid files.
        :param clock: returns seconds, for the age of the lists.
        """
        self._state_folder = state_folder
        self._clock = clock
        self._pid_files: tuple[float, Mapping[str, frozenset[int]]] | None = None
        self._workers: tuple[float, Mapping[int, frozenset[int]]] | None = None

    def read_affinity(self, known: RunningDomain) -> dict[int, CpuSet]:
        """The CPUs that the kernel lets each helper task use, by thread id."""
        return {task.identity.pid: task.cpus for task in self._find_tasks(known)}

    def misplaced_tasks(
        self, known: RunningDomain, cpus: CpuSet, threads: Set[int] | None = None
    ) -> dict[int, CpuSet]:
        """The present CPUs, by thread id, of the helper tasks that have other CPUs than ``cpus``.

        Tasks that could not be moved to ``cpus`` before are left out.

        :param threads: the ids of QEMU's own threads; None means that they are listed.
        """
        return {task.identity.pid: task.cpus for task in self._list_misplaced(known, cpus, threads)}

    def move_tasks(
        self,
        known: RunningDomain,
        cpus: CpuSet,
        is_final: bool = True,
        only: Collection[int] | None = None,
    ) -> int:
        """Pin the helper tasks to ``cpus``; return how many changed.

        :param only: the ids of the threads to move; None means all.
        :param is_final: whether the cgroups of the domain already allow ``cpus``. Only in this case a failed
            move is remembered.
        """
        changed, tried = 0, set[ProcessIdentity]()
        for _ in range(procfs.MAX_PASSES):
            tasks = [
                task
                for task in self._list_misplaced(known, cpus)
                if task.identity not in tried and (only is None or task.identity.pid in only)
            ]
            if not tasks:
                break
            for task in tasks:
                tried.add(task.identity)
                has, reason = _move_task(task, cpus)
                changed += has not in (None, task.cpus)
                if has is not None and has != cpus and is_final:
                    known.settled[task.identity] = SettledTask(cpus, has, reason)
        return changed

    def list_stuck(self, known: RunningDomain) -> tuple[str, ...]:
        """Messages about helper tasks that could not be moved to the wanted CPUs."""
        if not known.settled:
            return ()
        tasks = {task.identity: task for task in self._find_tasks(known)}
        return tuple(
            f"its helper {tasks[identity].name} ({identity.pid}) stays on CPUs"
            f" {cpuset.format(settled.has)}: {settled.reason}"
            for identity, settled in tuple(known.settled.items())
            if identity in tasks and not settled.has <= settled.wanted
        )

    def _list_misplaced(
        self, known: RunningDomain, cpus: CpuSet, threads: Set[int] | None = None
    ) -> list[HelperTask]:
        tasks = self._find_tasks(known, threads)
        present = {task.identity for task in tasks}
        for identity in known.settled.keys() - present:
            known.settled.pop(identity, None)
        return [task for task in tasks if task.cpus != cpus and not _is_settled(known, task, cpus)]

    def _find_tasks(self, known: RunningDomain, threads: Set[int] | None = None) -> list[HelperTask]:
        """The helper tasks of a running domain; empty if the domain has ended.

        :param threads: the ids of QEMU's own threads; None means that they are listed.
        """
        pid, group = known.guest.pid, known.domain_group
        threads = procfs.thread_ids(pid) if threads is None else threads
        if not threads or not known.was_alive:
            return []
        found = {}
        for tid in self._list_ids(known, group, threads):
            # Threads of QEMU itself are left out, including a thread that was made after ``threads`` were
            # listed.
            if tid not in threads and not os.path.exists(f"/proc/{pid}/task/{tid}"):
                found[tid] = _describe_task(tid)
        return [task for task in found.values() if task is not None]

    def _list_ids(self, known: RunningDomain, group: DomainGroup | None, threads: Set[int]) -> Iterator[int]:
        if group is not None:
            for tid in set(group.emulator_threads()) - threads:
                # The cgroup can contain kernel threads of the host, such as the thread that splits huge
                # pages.
                if not procfs.is_kernel_thread(tid) or _VHOST.fullmatch(procfs.thread_name(tid, tid)):
                    yield tid
        else:
            workers = self._list_workers()
            start = known.process.identity.start_time
            for owner in workers.keys() & threads:
                # An older worker is left out: it belongs to an earlier thread with the same number.
                yield from (
                    tid
                    for tid in workers[owner]
                    if (found := procfs.identify_process(tid)) is not None and found.start_time >= start
                )
        if known.number:
            for pid in self._list_pid_files().get(known.number, ()):
                if pid != known.guest.pid and _is_helper(pid, group):
                    yield from procfs.thread_ids(pid)

    def _list_workers(self) -> Mapping[int, frozenset[int]]:
        """The ids of the kernel's vhost threads, by the id of the thread that made them."""
        now = self._clock()
        if self._workers is None or now - self._workers[0] >= _LISTING_SECONDS:
            found = defaultdict(set)
            for word in list_kernel_threads(Path("/")) or ():
                match = _VHOST.fullmatch(procfs.thread_name(int(word), int(word)))
                # In a container, process 2 and its children can be ordinary processes with any name.
                if match is not None and procfs.is_kernel_thread(int(word)):
                    found[int(match[1])].add(int(word))
            self._workers = now, {owner: frozenset(tids) for owner, tids in found.items()}
        return self._workers[1]

    def _list_pid_files(self) -> Mapping[str, frozenset[int]]:
        """The pids in pid files, by the number of a domain's run.

        A pid in the files of several runs is left out.
        """
        now = self._clock()
        if self._pid_files is None or now - self._pid_files[0] >= _LISTING_SECONDS:
            found: dict[str, set[int]] = defaultdict(set)
            claims: dict[int, set[str]] = defaultdict(set)
            for number, path in self._list_paths():
                pid = _read_pid(path)
                if pid:
                    found[number].add(pid)
                    claims[pid].add(number)
            self._pid_files = (
                now,
                {
                    number: frozenset(pid for pid in pids if len(claims[pid]) == 1)
                    for number, pids in found.items()
                },
            )
        return self._pid_files[1]

    def _list_paths(self) -> Iterator[tuple[str, str]]:
        for name in _FOLDERS:
            try:
                with os.scandir(self._state_folder / name) as entries:
                    for _, entry in zip(range(_MAX_PID_FILES), entries, strict=False):
                        if match := _PID_FILE.fullmatch(entry.name):
                            yield match["number"], entry.path
            except OSError:
                # The folder does not exist if no helper of this kind was ever used.
                continue


def _read_pid(path: str) -> int:
    """The pid in a file; 0 if the file is absent or has no pid."""
    try:
        # O_NONBLOCK and O_NOFOLLOW: the user of a helper can put any file there, such as a FIFO that would
        # block the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        # The file is gone, or is a symbolic link.
        return 0
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return 0
        text = os.read(descriptor, _MAX_PID_FILE).strip()
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return int(text) if text.isdigit() and len(text) <= 10 else 0


def _is_helper(pid: int, group: DomainGroup | None) -> bool:
    """Whether a process can be a helper of the domain with this cgroup."""
    if procfs.thread_name(pid, pid) not in _HELPERS or procfs.is_kernel_thread(pid):
        return False
    has = find_group(pid)
    return has is None or has == group


def _describe_task(tid: int) -> HelperTask | None:
    # The identity is read before the CPUs and checked after, so that both belong to one task.
    identity, cpus = procfs.identify_process(tid), procfs.thread_affinity(tid)
    if identity is None or cpus is None or not procfs.is_alive(identity):
        return None
    return HelperTask(identity, printable_text(procfs.thread_name(tid, tid)), cpus)


def _is_settled(known: RunningDomain, task: HelperTask, cpus: CpuSet) -> bool:
    settled = known.settled.get(task.identity)
    return settled is not None and (settled.wanted, settled.has) == (cpus, task.cpus)


def _move_task(task: HelperTask, cpus: CpuSet) -> tuple[CpuSet | None, str]:
    """Pin a task to ``cpus``.

    :return: the CPUs of the task afterwards, or None if the task has ended. The second value is the reason
        why the CPUs differ from ``cpus``, if they do.
    """
    tid = task.identity.pid
    # The task may have ended, and the kernel may have given its thread id to another task.
    if not procfs.is_alive(task.identity):
        return None, ""
    reason = "its control group has no others"
    try:
        os.sched_setaffinity(tid, cpus)
    except ProcessLookupError:
        # The task has ended since the check.
        return None, ""
    except OSError as error:
        reason = os.strerror(error.errno or 0)
    return procfs.thread_affinity(tid), reason
