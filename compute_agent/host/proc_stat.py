"""Parsers of /proc/stat (proc_stat(5)), the times of CPUs, and of /proc/PID/stat (proc_pid_stat(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Times of a CPU since boot, in clock ticks.

    :ivar busy: time in which the CPU ran anything, including interrupts.
    :ivar stolen: time in which a hypervisor ran other virtual machines. It is part of ``total`` but not of
        ``busy``.
    """

    busy: int
    stolen: int
    total: int


def parse_line(numbers: str) -> CpuTimes:
    """Parse the numbers of a CPU line of /proc/stat, without its name. Old kernels have fewer numbers.

    :raises ValueError: the line has words that are no numbers.
    """
    # Missing fields count as 0. The two last fields, guest times, are cut off: user and nice include them.
    user, nice, system, idle, iowait, irq, softirq, steal = (*map(int, numbers.split()), *[0] * 8)[:8]
    busy = user + nice + system + irq + softirq
    return CpuTimes(busy, steal, busy + idle + iowait + steal)


def parse_cpu_times(text: str) -> dict[int, CpuTimes]:
    """Parse /proc/stat: the times of each online CPU, by its number.

    :raises ValueError: the text is not the content of /proc/stat.
    """
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if not name.startswith("cpu"):
            break  # the CPU lines come first, and the line of interrupts is long on large hosts
        if name == "cpu":
            continue
        found[int(name.removeprefix("cpu"))] = parse_line(rest)
    if not found:
        raise ValueError("/proc/stat has no line of a CPU")
    return found


def busy_parts(before: Mapping[int, CpuTimes], now: Mapping[int, CpuTimes]) -> dict[int, float]:
    """The busy part of the time between two readings, from 0 to 1, by CPU.

    The time is that of the CPU's ticks, not of a clock. The result lacks a CPU that was offline in between,
    because its times begin at 0 again.
    """
    return _parts_of_ticks(before, now, lambda times: times.busy)


def stolen_parts(before: Mapping[int, CpuTimes], now: Mapping[int, CpuTimes]) -> dict[int, float]:
    """The part of the time between two readings that a hypervisor took, from 0 to 1, by CPU."""
    return _parts_of_ticks(before, now, lambda times: times.stolen)


def _parts_of_ticks(
    before: Mapping[int, CpuTimes], now: Mapping[int, CpuTimes], ticks: Callable[[CpuTimes], int]
) -> dict[int, float]:
    found = {}
    for cpu, last in now.items():
        first = before.get(cpu)
        # A total may fall, because iowait, a part of it, decreases in certain conditions (proc_stat(5)).
        if first is not None and last.total > first.total and ticks(last) >= ticks(first):
            found[cpu] = min(1.0, (ticks(last) - ticks(first)) / (last.total - first.total))
    return found


_TICKS: Final = os.sysconf("SC_CLK_TCK")

_KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD in the flags of a task (include/linux/sched.h)."""

# Z is a zombie; X and x are dead processes in newer and older kernels.
_DEAD_STATES: Final = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The state of a process.

    :ivar is_dead: whether the process has ended, also as a zombie.
    :ivar parent: process id of the parent.
    :ivar start_time: time of the start, in clock ticks since boot.
    :ivar cpu_seconds: CPU time of all threads since the start, in seconds.
    """

    is_dead: bool
    is_kernel_thread: bool
    parent: int
    session: int
    start_time: int
    cpu_seconds: float


def parse_process_stat(text: str) -> ProcessStat:
    """Parse the content of /proc/PID/stat.

    :raises ValueError: a field is not a number.
    :raises LookupError: fields are missing.
    """
    # The second field is the name of the command in brackets, and may contain blanks and brackets itself. The
    # fields are therefore counted from the third one, the state, which follows the last bracket.
    fields = text.rpartition(")")[2].split()
    # The index is three less than the number in proc_pid_stat(5), which begins with 1.
    return ProcessStat(
        is_dead=fields[0] in _DEAD_STATES,
        is_kernel_thread=bool(int(fields[6]) & _KERNEL_THREAD),
        parent=int(fields[1]),
        session=int(fields[3]),
        start_time=int(fields[19]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
    )


def has_capability(status: str, number: int) -> bool:
    """Whether a process may use a capability (capabilities(7)).

    :param status: the content of /proc/PID/status of the process.
    :param number: the number of the capability.
    """
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> number & 1)
