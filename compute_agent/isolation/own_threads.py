"""The agent's own threads, which keep off quiet CPUs as all work of the host does.

Mostly the control group of the agent does that. It does not where guests are below that group, or where the
host has no control groups of version 2.
"""

from __future__ import annotations

import contextlib
import os

from compute_agent.model.cpuset import CpuSet


class OwnThreads:
    """Binds the threads of this process. New threads have the CPUs of the thread that starts them."""

    def __init__(self) -> None:
        #: The CPUs of the main thread without the agent's doing; None: nothing was changed.
        self._home: CpuSet | None = None

    def keep_off(self, cpus: CpuSet) -> None:
        """Bind all threads to other CPUs; without ``cpus`` they have those from before again."""
        present = frozenset(os.sched_getaffinity(os.getpid()))
        if self._home is None and not present & cpus:
            return
        home = present if self._home is None else self._home
        goal = (home - cpus) or home
        for name in os.listdir("/proc/self/task"):
            # A thread that has ended needs none, and the CPUs of a control group count more.
            with contextlib.suppress(OSError):
                if frozenset(os.sched_getaffinity(int(name))) != goal:
                    os.sched_setaffinity(int(name), goal)
        self._home = None if goal == home else home
