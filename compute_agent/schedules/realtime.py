"""Realtime schedules of the threads that run guest CPUs.

The agent sets SCHED_FIFO or SCHED_RR with the flag SCHED_RESET_ON_FORK. With this flag, new threads of the
guest start with the usual schedule and the nice value 0. The agent then gives these threads the nice value of
the guest's main thread. Other programs set the flag SCHED_RESET_ON_FORK as well (rtkit, ``chrt -R``). So only
in guests with a note does the flag show that the agent has set a schedule. The setting ``<vcpusched>`` of
libvirt, which Nova writes for ``hw:cpu_realtime``, sets no such flag. The agent does not change a guest with
realtime threads of another program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compute_agent.host import kernel_files
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import CpuAssignment

MAX_PRIORITY: Final = 49
"""The highest priority of guest CPUs. The kernel's interrupt threads have priority 50, and a busy guest must
not block them.
"""

NONE_HELD: Final = "it is for dedicated CPUs, and the guest holds none"
NO_ROOM: Final = (
    "its other threads may only use the CPUs of its guest CPUs, and would never run while these are busy"
)
NOT_BOUND: Final = (
    "its threads cannot be told apart, and no control group of its own (controller cpuset) keeps them on its"
    " dedicated CPUs"
)
NOT_ALLOWED: Final = (
    "the kernel refuses it: it needs CAP_SYS_NICE and, in control groups of version 1, realtime runtime"
    " (cpu.rt_runtime_us)"
)

_RELEASE: Final = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})", re.ASCII)
_FAIR_SERVER: Final = 6, 12
"""The first version of Linux with a fair server in place of the limit for realtime threads."""

_DEADLINE: Final = 6
"""The number of SCHED_DEADLINE, for which Python has no name."""
_REALTIME: Final = frozenset({os.SCHED_FIFO, os.SCHED_RR, _DEADLINE})
_OWN: Final = frozenset({os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.SCHED_RR | os.SCHED_RESET_ON_FORK})
RESET_USUAL: Final = os.SCHED_OTHER | os.SCHED_RESET_ON_FORK


@dataclass(frozen=True, slots=True)
class ThreadSchedule:
    """The policy of a thread with its flags, and its priority."""

    policy: int = os.SCHED_OTHER
    priority: int = 0

    @property
    def is_usual(self) -> bool:
        """Whether this is the usual schedule, with or without the flag, which threads cannot remove."""
        return self.policy in (os.SCHED_OTHER, RESET_USUAL)

    @property
    def is_realtime(self) -> bool:
        """Whether this is a realtime schedule."""
        return self.policy & ~os.SCHED_RESET_ON_FORK in _REALTIME

    @property
    def is_like_own(self) -> bool:
        """Whether this schedule is one that the agent sets."""
        return self.policy in _OWN and 1 <= self.priority <= MAX_PRIORITY


USUAL: Final = ThreadSchedule()


def realtime_schedule(priority: int, in_turn: bool) -> ThreadSchedule:
    """The realtime schedule that the agent sets.

    :param in_turn: whether threads of the same priority take turns on a CPU.
    """
    policy = os.SCHED_RR if in_turn else os.SCHED_FIFO
    return ThreadSchedule(policy | os.SCHED_RESET_ON_FORK, priority)


def choose_threads(
    threads: Mapping[int, CpuSet], place: CpuAssignment, has_others: bool
) -> tuple[frozenset[int], str]:
    """The threads that can have a realtime schedule, and the reason if there are no such threads.

    Only threads that run on dedicated CPUs alone can have a realtime schedule.

    :param threads: the CPUs of the threads that run guest CPUs, by thread id.
    :param has_others: whether the guest has threads that run no guest CPU.
    """
    held = place.held_cpus
    if not any(cpus and cpus <= held for cpus in place.vcpu_cpus):
        return frozenset(), NONE_HELD
    found = {tid: cpus for tid, cpus in threads.items() if cpus and cpus <= held}
    if has_others and place.emulator_cpus <= frozenset().union(*found.values()):
        return frozenset(), NO_ROOM if found else ""
    return frozenset(found), ""


def decide_schedules(
    present: Mapping[int, ThreadSchedule], wanted: Collection[int], schedule: ThreadSchedule, noted: bool
) -> dict[int, ThreadSchedule]:
    """The threads of a guest that need another schedule, each with the schedule that it should get.

    :param present: the schedules of all threads of the guest.
    :param wanted: the threads that should have ``schedule``.
    :param noted: whether the guest perhaps has priorities of the agent.
    """
    own = {tid for tid, has in present.items() if noted and has.is_like_own}
    if any(has.is_realtime and tid not in own for tid, has in present.items()):
        wanted = ()
    # A thread that has given up its priority keeps only the flag. If the guest is about to get a note, such a
    # flag counts as set by the agent at once, because it would count so afterwards anyway.
    takes_flags = noted or bool(wanted)
    found = {}
    for tid, has in present.items():
        goal = schedule if tid in wanted else USUAL
        # Batch and idle schedules stay, too, because another program has set them.
        if has != goal and (tid in own or (has.is_usual and takes_flags)):
            found[tid] = goal
    return found


class KernelSchedules:
    """Reads and sets the scheduling policies and priorities of threads.

    A method that sets a value raises ProcessLookupError if the thread has ended, and OSError if the kernel
    refuses the change.
    """

    def read(self, tid: int) -> ThreadSchedule | None:
        """The schedule of a thread; None if the thread has ended."""
        try:
            return ThreadSchedule(os.sched_getscheduler(tid), os.sched_getparam(tid).sched_priority)
        except ProcessLookupError:
            return None

    def write(self, tid: int, schedule: ThreadSchedule) -> None:
        """Set the schedule of a thread."""
        os.sched_setscheduler(tid, schedule.policy, os.sched_param(schedule.priority))

    def read_nice(self, tid: int) -> int | None:
        """The nice value of a thread, which does not depend on its schedule; None if the thread has ended."""
        try:
            return os.getpriority(os.PRIO_PROCESS, tid)
        except ProcessLookupError:
            return None

    def write_nice(self, tid: int, nice: int) -> None:
        """Set the nice value of a thread."""
        os.setpriority(os.PRIO_PROCESS, tid, nice)


def read_schedules(schedules: KernelSchedules, tids: Iterable[int]) -> dict[int, ThreadSchedule]:
    """The schedules of the threads that have not ended, by thread id."""
    found = {tid: schedules.read(tid) for tid in tids}
    return {tid: one for tid, one in found.items() if one is not None}


def read_throttle(root: Path) -> str:
    """A sentence about the kernel's limit for busy realtime threads of the host below ``root``.

    The result is empty if there is no such limit. Linux 6.12 and later have the fair server, with which a
    busy realtime thread gives way only to threads that starve. A dedicated CPU has no such threads. Some
    distributions have the fair server in older kernels. Only the server's file in debugfs shows this.
    """
    folder = root / "proc/sys/kernel"
    runtime, period = (
        kernel_files.read_optional(f"{folder}/sched_rt_{name}_us") or "" for name in ("runtime", "period")
    )
    # os.path.isdir() is used, because Path.is_dir() raises an error if only root may read the parent folder.
    has_server = os.path.isdir(root / "sys/kernel/debug/sched/fair_server")
    # The version is checked, too, because usually only root may read debugfs, and a container or a locked
    # kernel has no debugfs.
    match = _RELEASE.match(kernel_files.read_optional(f"{folder}/osrelease") or "")
    has_server |= match is not None and (int(match[1]), int(match[2])) >= _FAIR_SERVER
    try:
        limit, whole = int(runtime), int(period)
    except ValueError:
        return ""
    if has_server or not 0 <= limit < whole:
        return ""
    return (
        f"realtime_priority: the kernel stops busy realtime threads for {(whole - limit) // 1000} ms in each"
        f" {whole // 1000} ms (kernel.sched_rt_runtime_us)"
    )
