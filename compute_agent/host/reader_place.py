"""The CPUs on which threads of the agent run while they read counters of caches.

The kernel reads a counter of an L3 cache on a CPU of that cache. Until Linux 6.8 the kernel uses the CPU of
the reading thread, if this CPU belongs to the cache. Otherwise the kernel interrupts any CPU of the cache,
even a quiet CPU. So a thread of the agent moves to shared CPUs of the cache before it reads a counter. Later
kernels always use the first CPU of the cache.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

from compute_agent.model.cpuset import CpuSet


def find_counter_cpus(caches: Iterable[CpuSet], tickless: CpuSet) -> CpuSet:
    """The CPUs on which the kernel itself reads counters of L3 caches: the first CPU of each cache.

    :param caches: the CPUs of each cache.
    :param tickless: the CPUs of ``nohz_full``, which the kernel avoids if it can.
    """
    return frozenset(min(cpus - tickless or cpus) for cpus in caches if cpus)


class CacheReaderPlace:
    """Moves the calling thread to CPUs of an L3 cache, and back to the CPUs of the main thread."""

    def __init__(self, cpus: Mapping[int, CpuSet]) -> None:
        """Keep the CPUs to which :meth:`move_near` moves a thread.

        :param cpus: the CPUs for shared work in each L3 cache, by its id.
        """
        self._cpus = cpus
        self._has_moved = False

    def move_near(self, cache: int) -> None:
        """Move the calling thread to shared CPUs of a cache. Without shared CPUs, the thread stays."""
        cpus = self._cpus.get(cache)
        if cpus:
            # An error (EINVAL) means that the agent's cgroup allows none of these CPUs. Then the thread
            # stays.
            with contextlib.suppress(OSError):
                # The id 0 stands for the calling thread.
                os.sched_setaffinity(0, cpus)
                self._has_moved = True

    def return_home(self) -> None:
        """Let the calling thread run on the CPUs that the main thread may use."""
        if self._has_moved:
            with contextlib.suppress(OSError):
                # The id of the main thread is the pid of the process.
                os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
            self._has_moved = False
