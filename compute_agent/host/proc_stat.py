"""Times of CPUs since boot, from /proc/stat (proc_stat(5)), and /proc/PID/stat (proc_pid_stat(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Times of a CPU in clock ticks.

    :ivar stolen: time in which a hypervisor ran other machines. Stolen time is part of ``total``, but not of
        ``busy``.
    """

    busy: int
    stolen: int
    total: int


def parse_line(numbers: str) -> CpuTimes:
    """The times in a line after its name. Old kernels have fewer of them.

    :raises ValueError: the line has other words.
    """
    # user nice system idle iowait irq softirq steal; guest times are in user and nice already.
    # Missing fields count as 0, and the guest times at the end are cut off.
    user, nice, system, idle, iowait, irq, softirq, steal = (*map(int, numbers.split()), *[0] * 8)[:8]
    busy = user + nice + system + irq + softirq
    return CpuTimes(busy, steal, busy + idle + iowait + steal)


def parse_cpu_times(text: str) -> dict[int, CpuTimes]:
    """The times of each online CPU, by its number.

    :raises ValueError: the text is not a /proc/stat.
    """
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if not name.startswith("cpu"):
            break  # the rest is long on hosts with many interrupts
        if name == "cpu":
            continue
        found[int(name.removeprefix("cpu"))] = parse_line(rest)
    if not found:
        raise ValueError("/proc/stat has no line of a CPU")
    return found


def busy_parts(before: Mapping[int, CpuTimes], now: Mapping[int, CpuTimes]) -> dict[int, float]:
    """The busy part of the time between two readings, by CPU.

    Time is counted in ticks rather than by the clock. A CPU that was offline starts with 0 again, and is left
    out of the next result.
    """
    return _parts_of_ticks(before, now, lambda times: times.busy)


def stolen_parts(before: Mapping[int, CpuTimes], now: Mapping[int, CpuTimes]) -> dict[int, float]:
    """The part of the time that a hypervisor took, by CPU, as :func:`busy_parts` counts it."""
    return _parts_of_ticks(before, now, lambda times: times.stolen)


def _parts_of_ticks(
    before: Mapping[int, CpuTimes], now: Mapping[int, CpuTimes], ticks: Callable[[CpuTimes], int]
) -> dict[int, float]:
    found = {}
    for cpu, last in now.items():
        first = before.get(cpu)
        # Times can go backwards: iowait, a part of the total, decreases at times (proc_stat(5)).
        if first is not None and last.total > first.total and ticks(last) >= ticks(first):
            found[cpu] = min(1.0, (ticks(last) - ticks(first)) / (last.total - first.total))
    return found


_TICKS: Final = os.sysconf("SC_CLK_TCK")

_KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD in the flags of a task (include/linux/sched.h)."""

# Zombies, and dead processes with the letters of newer and older kernels.
_DEAD_STATES: Final = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The state of a process.

    :ivar start_time: clock ticks since boot.
    :ivar cpu_seconds: CPU time of all threads since the start.
    """

    is_dead: bool
    is_kernel_thread: bool
    parent: int
    session: int
    start_time: int
    cpu_seconds: float


def parse_process_stat(text: str) -> ProcessStat:
    """Parse a /proc/PID/stat.

    :raises ValueError: a field is not a number.
    :raises LookupError: fields are missing.
    """
    # The second field is the command's name in brackets, which may itself have blanks and brackets. So the
    # fields are counted from the third, the state, which follows the last bracket.
    fields = text.rpartition(")")[2].split()
    # The fields of proc_pid_stat(5) begin with 1, and two of them come before the state.
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

    :param status: the content of its /proc/PID/status.
    """
    match = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return match is not None and bool(int(match[1], 16) >> number & 1)
