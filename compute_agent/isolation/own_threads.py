"""Keeps the agent's own threads off quiet CPUs, like all other work of the host.

Usually the control group of the agent keeps the threads off quiet CPUs. This module is for hosts where guests
are below that group, and for hosts without cgroup v2.
"""

from __future__ import annotations

import contextlib
import os

from compute_agent.model.cpuset import CpuSet


class OwnThreads:
    """Binds the threads of this process to CPUs. New threads have the CPUs of the thread that starts them."""

    def __init__(self) -> None:
        #: The CPUs that the main thread had before; None: the agent has not changed them.
        self._home: CpuSet | None = None

    def keep_off(self, cpus: CpuSet) -> None:
        """Bind all threads to CPUs outside ``cpus``; without ``cpus``, give them their former CPUs back."""
        present = frozenset(os.sched_getaffinity(os.getpid()))
        if self._home is None and not present & cpus:
            return
        home = present if self._home is None else self._home
        goal = (home - cpus) or home
        for name in os.listdir("/proc/self/task"):
            # A thread that has ended needs no CPUs. If the kernel refuses, the agent's control group does not
            # allow these CPUs.
            with contextlib.suppress(OSError):
                if frozenset(os.sched_getaffinity(int(name))) != goal:
                    os.sched_setaffinity(int(name), goal)
        self._home = None if goal == home else home
