"""Where threads of the agent run while they read counters of caches.

The kernel reads a counter of an L3 cache on a CPU of that cache. Until Linux 6.8 that is the CPU of the
reader if it has the cache, and otherwise any of them by an interrupt between CPUs, a quiet one included. So a
reader moves to CPUs of the cache that are for shared work first. Later kernels use the first CPU of the
cache for each reader.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

from compute_agent.model.cpuset import CpuSet


def find_counter_cpus(caches: Iterable[CpuSet], tickless: CpuSet) -> CpuSet:
    """The CPUs on which the kernel itself reads counters of L3 caches: the first one of each.

    :param tickless: CPUs of ``nohz_full``, which it avoids where it can.
    """
    return frozenset(min(cpus - tickless or cpus) for cpus in caches if cpus)


class CacheReaderPlace:
    """Moves the calling thread to CPUs of an L3 cache, and back to those of the main thread."""

    def __init__(self, cpus: Mapping[int, CpuSet]) -> None:
        """``cpus`` are the CPUs for shared work by L3 cache id."""
        self._cpus = cpus
        self._has_moved = False

    def move_near(self, cache: int) -> None:
        """Have the calling thread run on shared CPUs of a cache. A cache without any changes nothing."""
        cpus = self._cpus.get(cache)
        if cpus:
            # EINVAL: the control group of the agent has none of these CPUs.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, cpus)
                self._has_moved = True

    def return_home(self) -> None:
        """Have the calling thread run where the main thread may."""
        if self._has_moved:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
            self._has_moved = False
