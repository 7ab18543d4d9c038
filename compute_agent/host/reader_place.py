"""The CPUs on which threads of the agent run while they read counters of caches.

The kernel reads a counter of an L3 cache on a CPU of that cache. Until Linux 6.8, this is the CPU of the
reading thread if it belongs to the cache. Otherwise the kernel interrupts any CPU of the cache, which may be
a CPU of a guest that must not be disturbed. The agent therefore first moves the reading thread to CPUs of the
cache that are for shared work. Later kernels always use the first CPU of the cache.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

from compute_agent.model.cpuset import CpuSet


def find_counter_cpus(caches: Iterable[CpuSet], tickless: CpuSet) -> CpuSet:
    """The CPUs on which kernels since 6.8 read counters of L3 caches: the first CPU of each cache.

    :param caches: the CPUs of each L3 cache.
    :param tickless: the CPUs of ``nohz_full``, which the kernel avoids if the cache has other CPUs.
    """
    return frozenset(min(cpus - tickless or cpus) for cpus in caches if cpus)


class CacheReaderPlace:
    """Moves the calling thread to CPUs of an L3 cache, and back to the CPUs of the main thread."""

    def __init__(self, cpus: Mapping[int, CpuSet]) -> None:
        """``cpus`` are the CPUs for shared work, by L3 cache id."""
        self._cpus = cpus
        self._has_moved = False

    def move_near(self, cache: int) -> None:
        """Move the calling thread to CPUs of a cache for shared work; do nothing if the cache has none."""
        cpus = self._cpus.get(cache)
        if cpus:
            # The kernel answers EINVAL if the agent's cpuset has none of these CPUs. The read works all the
            # same, on another CPU.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, cpus)
                self._has_moved = True

    def return_home(self) -> None:
        """Move the calling thread back to the CPUs on which the main thread may run."""
        if self._has_moved:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
            self._has_moved = False
