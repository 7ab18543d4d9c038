"""Reads processes and threads in /proc (proc(5)): identity, age, affinity, memory nodes, cgroup.

Several controllers compare the same guest in one round. Within :func:`sharing_reads` they share the readings
of its processes and threads, so that each file is read once in a round.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from compute_agent.host.kernel_files import read, read_optional, read_piece, read_text
from compute_agent.host.proc_stat import ProcessStat, parse_process_stat, parse_start_time
from compute_agent.model import cpuset

A = TypeVar("A")
T = TypeVar("T")

READING_SECONDS: Final = 1.0
"""The maximum age in seconds of readings that a comparison shares with an earlier comparison of the same
round. A round compares all settings of a guest within milliseconds.
"""

# A pass pins all threads of a process. A thread that is made during a pass inherits the affinity of the
# thread that made it, so two passes are nearly always enough. If a process makes threads faster than the
# agent lists them, the next reconcile pins the missing threads.
MAX_PASSES: Final = 16

# Seconds between two checks whether a guest has ended.
_POLL_SECONDS: Final = 0.02

# Clock ticks per second, the unit of start times in /proc. The kernel's timer may have another frequency.
_TICKS: Final = os.sysconf("SC_CLK_TCK")

# Maximum number of bytes of a command line that are read. A process can make its command line as long as its
# memory (PR_SET_MM_MAP).
_MAX_COMMAND_LINE: Final = 1 << 17

# Maximum number of bytes of an environment that are read. An environment can be as long as a command line.
_MAX_ENVIRONMENT: Final = 1 << 20


SharedReadings = dict[Hashable, tuple[float, Any]]
"""Readings by key, each with its time in seconds of the monotonic clock."""


class _ThreadReadings(threading.local):
    readings: SharedReadings | None = None


_SHARED: Final = _ThreadReadings()
"""The readings of each thread; None outside of :func:`sharing_reads`."""


@contextlib.contextmanager
def sharing_reads(earlier: SharedReadings | None = None) -> Iterator[SharedReadings]:
    """Let :func:`read_shared` use readings again, in this thread and until the end of the block.

    Shared readings are for code that lists guests, or compares a guest with its settings. Code that changes a
    guest reads each file again.

    :param earlier: the readings of an earlier block of the same round; None begins without readings.
    :return: the readings, which a later block can use.
    """
    before, _SHARED.readings = _SHARED.readings, {} if earlier is None else earlier
    try:
        yield _SHARED.readings
    finally:
        _SHARED.readings = before


def read_shared(key: Hashable, read: Callable[[A], T], subject: A) -> T:
    """Return ``read(subject)``, or a result with the same key that is at most :data:`READING_SECONDS` old.

    Outside of :func:`sharing_reads` each call reads. A reading that raises an exception is not kept.
    """
    readings = _SHARED.readings
    if readings is None:
        return read(subject)
    now, known = time.monotonic(), readings.get(key)
    if known is None or now - known[0] > READING_SECONDS:
        known = readings[key] = now, read(subject)
    found: T = known[1]
    return found


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identifies a process by pid and start time, because the kernel reuses pids.

    Within one boot, no two processes have the same pid and start time.

    :ivar start_time: the start in clock ticks since boot (field 22 of /proc/PID/stat).
    """

    pid: int
    start_time: int
    boot_id: str


# The id cannot change while this process lives, so it is read once.
@functools.cache
def boot_id() -> str:
    """The random id of this boot of the kernel."""
    return read_text("/proc/sys/kernel/random/boot_id").strip()


def identify_process(pid: int) -> ProcessIdentity | None:
    """The identity of the process that has ``pid`` now; None if there is no process, or only a zombie."""
    # A zombie keeps its pid until its parent reads its status; it runs nothing and cannot be pinned.
    text = _read_stat_text(pid)
    start = None if text is None else parse_start_time(text)
    return None if start is None else ProcessIdentity(pid, start, boot_id())


def identify_recent(pid: int) -> ProcessIdentity | None:
    """The same as :func:`identify_process`; comparisons of one round share the reading."""
    return read_shared(pid, identify_process, pid)


def await_end(is_running: Callable[[], bool], seconds: float) -> bool:
    """Wait until something no longer runs, at most ``seconds``; return whether it has ended.

    :param is_running: called again and again, until it returns False.
    """
    deadline = time.monotonic() + seconds
    while is_running():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def oldest_process(pids: Iterable[int]) -> ProcessIdentity | None:
    """The process that started first among these pids; None if no process with these pids runs."""
    alive = (identity for pid in pids if (identity := identify_process(pid)) is not None)
    return min(alive, key=lambda identity: (identity.start_time, identity.pid), default=None)


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether the process with this identity still runs; a later process with the same pid does not count."""
    return identify_process(identity.pid) == identity


def was_alive(identity: ProcessIdentity) -> bool:
    """The same as :func:`is_alive`; comparisons of one round share the reading."""
    return identify_recent(identity.pid) == identity


def seconds_at_start(pid: int) -> float | None:
    """A process's start in seconds since boot, as exact as a clock tick; None if there is no such process."""
    identity = identify_process(pid)
    return None if identity is None else identity.start_time / _TICKS


def process_age(pid: int) -> float | None:
    """The age of a process in seconds; None if there is no such process."""
    # Start times in /proc include the time that the host was suspended. So does CLOCK_BOOTTIME, unlike
    # CLOCK_MONOTONIC.
    start = seconds_at_start(pid)
    return None if start is None else max(time.clock_gettime(time.CLOCK_BOOTTIME) - start, 0.0)


def parent_of(pid: int) -> int:
    """The pid of the parent of a process; 0 if the process has no parent or is gone."""
    stat = _read_stat(pid)
    return 0 if stat is None else stat.parent


def ancestors_of(pid: int) -> Iterator[int]:
    """The pids of a process, its parent, and so on; empty for the pid 0."""
    while pid:
        yield pid
        pid = parent_of(pid)


def is_kernel_thread(pid: int) -> bool:
    """Whether a process is a thread of the kernel; False if the process is gone."""
    stat = _read_stat(pid)
    return stat is not None and stat.is_kernel_thread


def command_line(pid: int) -> tuple[str, ...]:
    """The command line of a process, at most its first 128 KiB; empty for kernel threads and ended processes.

    A process can change its own command line, so callers must not trust the command line alone.
    """
    try:
        raw = read(f"/proc/{pid}/cmdline", _MAX_COMMAND_LINE)
    except OSError:
        return ()
    return tuple(part.decode(errors="replace") for part in raw.rstrip(b"\0").split(b"\0")) if raw else ()


def all_pids() -> list[int]:
    """The ids of all processes in this pid namespace."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def thread_ids(pid: int) -> frozenset[int]:
    """The ids of the threads that a process has now (/proc/PID/task); empty if the process is gone."""
    try:
        return frozenset(int(name) for name in os.listdir(f"/proc/{pid}/task"))
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return frozenset()


def thread_name(pid: int, tid: int) -> str:
    """The name of a thread (/proc/PID/task/TID/comm); empty if the process is gone."""
    try:
        return read_text(f"/proc/{pid}/task/{tid}/comm").rstrip("\n")
    except OSError:
        return ""


def users_of(pid: int) -> frozenset[int]:
    """The real, effective, saved and file system user ids of a process; empty if the process is gone."""
    try:
        status = read(f"/proc/{pid}/status")
    except OSError:
        return frozenset()
    # The name of the process comes before "Uid:" in the file. The kernel escapes line ends in names, so a
    # name cannot forge a line.
    ids = status.partition(b"\nUid:")[2].partition(b"\n")[0]
    return frozenset(map(int, ids.split()))


def memory_nodes(pid: int) -> frozenset[int] | None:
    """The NUMA nodes from which the main thread of a process may get memory; None for an ended process."""
    try:
        status = read(f"/proc/{pid}/status")
    except (FileNotFoundError, ProcessLookupError):
        return None
    nodes = status.partition(b"\nMems_allowed_list:")[2].partition(b"\n")[0]
    return cpuset.parse(nodes.decode())


def nodes_with_memory() -> frozenset[int]:
    """The NUMA nodes of the host that have memory; node 0 alone if the kernel was built without NUMA."""
    try:
        return cpuset.parse(read_text("/sys/devices/system/node/has_memory"))
    except FileNotFoundError:
        return frozenset({0})


def cgroup_path(pid: int) -> str:
    """The path of a process's cgroup in systemd's hierarchy; empty for the root or if it cannot be read."""
    text = read_optional(f"/proc/{pid}/cgroup") or ""
    paths = {controllers: path for line in text.splitlines() for _, controllers, path in [line.split(":", 2)]}
    # In hybrid mode systemd tracks units in the named hierarchy of version 1, and the hierarchy of version 2
    # may have no groups.
    return next((path for name in ("", "name=systemd") if (path := paths.get(name, "/")) != "/"), "")


def group_folder(groups: Path, pid: int) -> str:
    """The folder of a process's control group; empty for the root, or if the group cannot be read.

    :param groups: the folder of the root of all groups.
    """
    path = cgroup_path(pid)
    return path and str(groups / path.strip("/"))


def thread_affinity(tid: int) -> frozenset[int] | None:
    """The CPUs on which the kernel allows a thread to run; None when the thread is gone."""
    try:
        return frozenset(os.sched_getaffinity(tid))
    except ProcessLookupError:
        return None


def thread_affinities(tids: Iterable[int]) -> dict[int, frozenset[int]]:
    """The CPUs on which the kernel allows threads to run, by thread id, without threads that are gone."""
    found = {tid: thread_affinity(tid) for tid in tids}
    return {tid: cpus for tid, cpus in found.items() if cpus is not None}


def pin_threads(pid: int, cpus: frozenset[int]) -> int:
    """Pin all threads of a process to ``cpus``, and repeat this until no new thread appears.

    The function ignores a thread that ends before it is pinned.

    :return: how many threads had another affinity.
    :raises OSError: EINVAL: none of the CPUs is online and in the process's cpuset.
    """
    changed = 0
    seen: set[int] = set()
    for _ in range(MAX_PASSES):
        fresh = thread_ids(pid) - seen
        if not fresh:
            break
        for tid in sorted(fresh):
            seen.add(tid)
            if thread_affinity(tid) in (None, cpus):
                continue
            try:
                os.sched_setaffinity(tid, cpus)
            except ProcessLookupError:
                # The thread has ended since it was listed.
                continue
            changed += 1
    return changed


def misplaced_threads(threads: Iterable[int], cpus: frozenset[int]) -> dict[int, frozenset[int]]:
    """The present CPUs of the threads with another affinity than ``cpus``, by thread id."""
    return {tid: has for tid, has in thread_affinities(threads).items() if has != cpus}


def descendants_of(pid: int) -> list[int]:
    """The pids of a process and all its descendants (/proc/PID/task/TID/children), parents first."""
    return list(family_threads(pid))


def family_threads(pid: int) -> dict[int, frozenset[int]]:
    """The thread ids of a process and of all its descendants, by pid, parents first."""
    found: dict[int, frozenset[int]] = {}
    waiting = [pid]
    # The list grows during the loop, so that the loop also visits the children of each child. Each thread has
    # its own list of children in /proc.
    for parent in waiting:
        found[parent] = thread_ids(parent)
        for tid in found[parent]:
            try:
                children = read(f"/proc/{parent}/task/{tid}/children")
            except OSError:
                # The thread has ended. The kernel gave its children to another thread of the process.
                continue
            waiting.extend(int(child) for child in children.split())
    return found


def session_members(session: int) -> list[int]:
    """The processes of a session, without its leader and without zombies."""
    members = []
    for pid in all_pids():
        stat = _read_stat(pid)
        if pid != session and stat is not None and stat.session == session and not stat.is_dead:
            members.append(pid)
    return members


def has_variable(pid: int, name: str, value: str) -> bool:
    """Whether a process was started with this value of an environment variable; False if unreadable."""
    try:
        environment = read(f"/proc/{pid}/environ", _MAX_ENVIRONMENT)
    except OSError:
        return False
    return f"{name}={value}".encode() in environment.split(b"\0")


def _read_stat(pid: int) -> ProcessStat | None:
    """The fields of /proc/PID/stat; None when the process is gone."""
    text = _read_stat_text(pid)
    return None if text is None else parse_process_stat(text)


def _read_stat_text(pid: int) -> str | None:
    # ESRCH (ProcessLookupError) means that the process ended between open(2) and read(2).
    try:
        return read_piece(f"/proc/{pid}/stat").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
