"""CPU times since boot from /proc/stat (proc_stat(5)), and /proc/PID/stat (proc_pid_stat(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """The times of a CPU since boot, in clock ticks.

    :ivar stolen: the time in which a hypervisor ran other machines. Stolen time is part of ``total``, but not
        of ``busy``.
    """

    busy: int
    stolen: int
    total: int


def parse_line(numbers: str) -> CpuTimes:
    """The times of a CPU, from the numbers in its line of /proc/stat. Old kernels have fewer numbers.

    :raises ValueError: the line has other words.
    """
    # The order of the numbers is user nice system idle iowait irq softirq steal. Missing fields count as 0.
    # The guest times at the end are cut off, because user and nice contain them already.
    user, nice, system, idle, iowait, irq, softirq, steal = (*map(int, numbers.split()), *[0] * 8)[:8]
    # A CPU that waits for I/O (iowait) is idle.
    busy = user + nice + system + irq + softirq
    return CpuTimes(busy, steal, busy + idle + iowait + steal)


def parse_cpu_times(text: str) -> dict[int, CpuTimes]:
    """The times of each online CPU, by the number of the CPU.

    :raises ValueError: the text does not have the format of /proc/stat.
    """
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if not name.startswith("cpu"):
            break  # The rest of the file is long on hosts with many interrupts.
        if name == "cpu":
            continue
        found[int(name.removeprefix("cpu"))] = parse_line(rest)
    if not found:
        raise ValueError("/proc/stat has no line of a CPU")
    return found


def busy_parts(before: Mapping[int, CpuTimes], now: Mapping[int, CpuTimes]) -> dict[int, float]:
    """The share of time, 0 to 1, for which each CPU was busy between two readings of /proc/stat.

    The elapsed time is the sum of all ticks that the kernel counted. No clock is read. A CPU that was offline
    between the readings is left out, because its ticks begin at 0 again.
    """
    return _parts_of_ticks(before, now, lambda times: times.busy)


def stolen_parts(before: Mapping[int, CpuTimes], now: Mapping[int, CpuTimes]) -> dict[int, float]:
    """The share of time, 0 to 1, that a hypervisor took from each CPU. See :func:`busy_parts`."""
    return _parts_of_ticks(before, now, lambda times: times.stolen)


def _parts_of_ticks(
    before: Mapping[int, CpuTimes], now: Mapping[int, CpuTimes], ticks: Callable[[CpuTimes], int]
) -> dict[int, float]:
    found = {}
    for cpu, last in now.items():
        first = before.get(cpu)
        # Times can go backwards: iowait, which is a part of the total, decreases sometimes (proc_stat(5)).
        if first is not None and last.total > first.total and ticks(last) >= ticks(first):
            found[cpu] = min(1.0, (ticks(last) - ticks(first)) / (last.total - first.total))
    return found


_TICKS: Final = os.sysconf("SC_CLK_TCK")

_KERNEL_THREAD: Final = 0x00200000
"""The flag PF_KTHREAD of a task (include/linux/sched.h)."""

# The states of zombies, and of dead processes in newer and older kernels.
_DEAD_STATES: Final = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/PID/stat that the agent uses.

    :ivar is_dead: whether the process is dead or a zombie.
    :ivar start_time: the start in clock ticks since boot.
    :ivar cpu_seconds: the CPU time of all its threads since its start.
    """

    is_dead: bool
    is_kernel_thread: bool
    parent: int
    session: int
    start_time: int
    cpu_seconds: float


def parse_start_time(text: str) -> int | None:
    """The start time in the text of a /proc/PID/stat, in clock ticks since boot; None for a dead process.

    :raises ValueError: a field that should be a number is not one.
    :raises LookupError: fields are missing.
    """
    # The agent compares start times of all guests in each round, so only the state and the start time are
    # parsed.
    fields = _fields_of(text)
    return None if fields[0] in _DEAD_STATES else int(fields[19])


def _fields_of(text: str) -> list[str]:
    # The second field is the name of the command in brackets, which itself can contain blanks and brackets.
    # So fields are counted from the third one, the state, after the last bracket.
    return text.rpartition(")")[2].split()


def parse_process_stat(text: str) -> ProcessStat:
    """Parse the content of a /proc/PID/stat.

    :raises ValueError: a field that should be a number is not one.
    :raises LookupError: fields are missing.
    """
    fields = _fields_of(text)
    # proc_pid_stat(5) numbers fields from 1, and two fields come before the state.
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
