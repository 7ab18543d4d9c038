"""Cycles and instructions of threads, from hardware counters (perf_event_open(2)).

A thread has two counters, which count at the same time, in user and kernel mode, on any CPU. Most virtual
machines have no such counters.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

_NUMBERS: Final = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331}
"""The number of the system call by architecture, because the C library has no function for it."""

_HARDWARE: Final = ((0, 0), (0, 1))
"""The type and number of the two events: cycles of the CPU (and not of a clock), and instructions."""

# PERF_FORMAT_GROUP and PERF_FLAG_FD_CLOEXEC of perf_event.h, which have the same value by coincidence.
_FORMAT_GROUP: Final = 1 << 3
_CLOSE_ON_EXEC: Final = 1 << 3
_ATTRIBUTES: Final = struct.Struct("=IIQQQQQIIQ")
"""``struct perf_event_attr`` in its first version: type, size, config, period, sample type, read format..."""
_COUNTS: Final = struct.Struct("=QQQ")
"""The bytes that one read of two counters returns: the number 2, and the two values."""

# Counters get only a part of the open files. Sockets, resctrl counters and libvirt need the rest.
_SHARE_OF_FILES: Final = 4
"""The limit of open files divided by this number is the maximum number of files for counters."""

# The kernel's errors on hosts that do not have these events.
_NO_COUNTERS: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL})


@dataclass(frozen=True, slots=True)
class ThreadCycles:
    """The cycles and instructions of a thread since its counters were opened."""

    cycles: int
    instructions: int


class CycleCounters(Protocol):
    """Counts cycles and instructions of threads."""

    @property
    def missing_reason(self) -> str:
        """The reason why nothing can be counted; empty if counting works, and before the first read."""

    def read(self, threads: Collection[int]) -> Mapping[int, ThreadCycles]:
        """The counts of these threads.

        Threads that were counted before and are not in ``threads`` are no longer counted.

        The result has no entry for threads that have ended or cannot be counted.
        """


class PerfEvents:
    """Counts cycles through perf events. Only one thread at a time is allowed to call the methods."""

    def __init__(self, open_counter: Callable[[int, int, int, int], int] | None = None) -> None:
        """Count as many threads as the limit of open files allows.

        If there are more threads, none is counted, because the counts of some threads would mislead.

        :param open_counter: opens a counter like :func:`open_event`, which is the default.
        """
        self.missing_reason = ""
        self._open_counter = open_counter or open_event
        self._opened: dict[int, tuple[int, int]] = {}
        """The two file descriptors of each thread. A read of the first one returns both counts."""
        self._last: Mapping[int, ThreadCycles] = {}

    def read(self, threads: Collection[int]) -> dict[int, ThreadCycles]:
        """Count exactly these threads from now on, and return their counts so far."""
        if len(threads) > _threads_allowed():
            # The error is the same as for a refused file, because the remedy is the same: a higher limit of
            # open files.
            threads, self.missing_reason = (), _explain_error(_system_error(errno.EMFILE))
        for thread in self._opened.keys() - set(threads):
            self._close(thread)
        found, refused = {}, ""
        for thread in threads:
            try:
                found[thread] = self._count_thread(thread)
            # The thread has ended since it was listed.
            except ProcessLookupError:
                continue
            # A read of a counter in error state returns nothing, which cannot be unpacked.
            except (OSError, struct.error) as error:
                if isinstance(error, PermissionError):
                    refused = _explain_error(error)
                    continue  # Counting goes on, because the other threads may belong to another user.
                self.missing_reason = _explain_error(error)
                for opened in tuple(self._opened):
                    self._close(opened)
                return {}  # The same error would occur for all other threads.
        if found or refused:
            self.missing_reason = "" if found else refused
        self._last = found
        return found

    def _count_thread(self, thread: int) -> ThreadCycles:
        """The counts of one thread."""
        # If a counter has not moved, its thread sleeps or has ended, and another thread may have the id by
        # now. So the counter is opened again.
        if thread in self._opened:
            counted = self._read(thread)
            if counted != self._last.get(thread):
                return counted
            self._close(thread)
        self._open(thread)
        return self._read(thread)

    def _read(self, thread: int) -> ThreadCycles:
        _, cycles, instructions = _COUNTS.unpack(os.read(self._opened[thread][0], _COUNTS.size))
        return ThreadCycles(cycles, instructions)

    def _open(self, thread: int) -> None:
        leader = self._open_counter(*_HARDWARE[0], thread, -1)
        try:
            member = self._open_counter(*_HARDWARE[1], thread, leader)
        except OSError:
            os.close(leader)
            raise
        self._opened[thread] = leader, member

    def _close(self, thread: int) -> None:
        leader, member = self._opened.pop(thread)
        os.close(member)
        os.close(leader)


def _threads_allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each thread has two counters, and each counter is an open file.
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft // _SHARE_OF_FILES // 2


def open_event(kind: int, config: int, thread: int, group: int) -> int:
    """Open a counter for a thread on all CPUs, and return its file descriptor.

    :param kind: the type of the event, and ``config`` its number, as in perf_event.h.
    :param group: the descriptor of the thread's first counter; -1 to open the first counter.
    :raises OSError: the kernel refuses the counter; ENOSYS: the number of the system call is not known.
    """
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise _system_error(errno.ENOSYS)
    # The kernel distinguishes versions of this structure by its size; 64 bytes stand for the first version.
    attributes = _ATTRIBUTES.pack(kind, _ATTRIBUTES.size, config, 0, 0, _FORMAT_GROUP, 0, 0, 0, 0)
    # use_errno keeps the error number of the call, which later calls in Python could overwrite.
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(number, attributes, thread, -1, group, _CLOSE_ON_EXEC)
    if descriptor < 0:
        raise _system_error(ctypes.get_errno())
    return descriptor


def _system_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _explain_error(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number in _NO_COUNTERS:
        return f"this host has no hardware counters, like most virtual machines ({error})"
    if number in (errno.EPERM, errno.EACCES):
        return (
            f"the agent may not count ({error}): it needs CAP_PERFMON, and its unit needs"
            " SystemCallFilter=perf_event_open"
        )
    if number == errno.EMFILE:
        return f"each thread of a guest needs two open files ({error}): raise LimitNOFILE= of the unit"
    return f"perf_event_open(2) fails: {error}"
