"""Cycles and instructions of threads, by hardware counters: perf_event_open(2).

A thread has two counters that count together, in the kernel and beyond, on whichever CPU it runs. Most
virtual machines have none.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

_NUMBERS: Final = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331}
"""Of the system call, by architecture."""

HARDWARE: Final = ((0, 0), (0, 1))
"""Type and number of what is counted: cycles (of the CPU, not of a clock), and instructions."""

_FORMAT_GROUP: Final = 1 << 3
_CLOSE_ON_EXEC: Final = 1 << 3
_ATTRIBUTES: Final = struct.Struct("=IIQQQQQIIQ")
"""``struct perf_event_attr`` as it was at first: type, size, config, period, sample type, read format..."""
_COUNTS: Final = struct.Struct("=QQQ")
"""What a read of two counters gives: their number, and their values."""

_SHARE_OF_FILES: Final = 4
"""One in so many of the files that the process may have open may be a counter."""

_NO_COUNTERS: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL})


@dataclass(frozen=True, slots=True)
class ThreadCycles:
    """By one thread, since it began to be counted."""

    cycles: int
    instructions: int


class CycleCounters(Protocol):
    """Whoever counts."""

    @property
    def missing(self) -> str:
        """Why nothing can be counted, a sentence; empty if it can, or nobody has tried."""
        ...

    def read(self, threads: Collection[int]) -> Mapping[int, ThreadCycles]:
        """What these threads have done; from now on they are counted, and no others.

        Threads that have ended, or cannot be counted, are not in it.
        """
        ...


class PerfEvents:
    """Counts by perf events; for one thread of the agent."""

    def __init__(
        self, events: tuple[tuple[int, int], tuple[int, int]] = HARDWARE, most: int | None = None
    ) -> None:
        """More than ``most`` threads are not counted at all; by default as many as open files allow."""
        self.missing = ""
        self._most = most
        self._events = events
        self._opened: dict[int, tuple[int, int]] = {}
        """Two descriptors by thread; the first is read for both."""
        self._last: Mapping[int, ThreadCycles] = {}

    def read(self, threads: Collection[int]) -> dict[int, ThreadCycles]:
        """What these threads have done; from now on they are counted, and no others."""
        most = _threads_allowed() if self._most is None else self._most
        if len(threads) > most:
            threads, self.missing = (), _why(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
        for thread in self._opened.keys() - set(threads):
            self._close(thread)
        found, refused = {}, ""
        for thread in threads:
            try:
                found[thread] = self._counted(thread)
            except ProcessLookupError:
                continue
            except (OSError, struct.error) as error:
                if isinstance(error, PermissionError):
                    refused = _why(error)
                    continue  # others may be another user's
                self.missing = _why(error)
                self._close_all()
                return {}  # it will be so of all others
        if found or refused:
            self.missing = "" if found else refused
        self._last = found
        return found

    def _counted(self, thread: int) -> ThreadCycles:
        """What a thread has done.

        A counter that stands still begins anew: its thread sleeps, or has ended, and the id may be another's.
        """
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
        leader = _open_event(self._events[0], thread, -1)
        try:
            member = _open_event(self._events[1], thread, leader)
        except OSError:
            os.close(leader)
            raise
        self._opened[thread] = leader, member

    def _close_all(self) -> None:
        for thread in tuple(self._opened):
            self._close(thread)

    def _close(self, thread: int) -> None:
        leader, member = self._opened.pop(thread)
        os.close(member)
        os.close(leader)


def _threads_allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft // _SHARE_OF_FILES // 2


def _open_event(event: tuple[int, int], thread: int, group: int) -> int:
    """The descriptor of a counter of a thread, on all CPUs.

    :raises OSError:
    """
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    kind, config = event
    attributes = _ATTRIBUTES.pack(kind, _ATTRIBUTES.size, config, 0, 0, _FORMAT_GROUP, 0, 0, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(number, attributes, thread, -1, group, _CLOSE_ON_EXEC)
    if descriptor < 0:
        found = ctypes.get_errno()
        raise OSError(found, os.strerror(found))
    return descriptor


def _why(error: Exception) -> str:
    number = error.errno if isinstance(error, OSError) else None
    if number in _NO_COUNTERS:
        return f"this host has no hardware counters, as most virtual machines ({error})"
    if number in (errno.EPERM, errno.EACCES):
        return (
            f"the agent may not count ({error}): it takes CAP_PERFMON, and in its unit"
            " SystemCallFilter=perf_event_open"
        )
    if number == errno.EMFILE:
        return f"each thread of a guest takes two open files ({error}): raise LimitNOFILE= of the unit"
    return f"perf_event_open(2) fails: {error}"
