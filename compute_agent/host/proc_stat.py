"""What each CPU has done since boot: the CPU lines of /proc/stat (proc_stat(5)).

What /proc/PID/stat says of a process (proc_pid_stat(5)).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """In clock ticks. ``stolen`` is when a hypervisor ran others, which is part of ``total`` and not busy."""

    busy: int
    stolen: int
    total: int


def parse_line(numbers: str) -> CpuTimes:
    """The times of one line, which follow its name. Old kernels have fewer.

    :raises ValueError: they are something else.
    """
    # user nice system idle iowait irq softirq steal; guest times are in user and nice already.
    user, nice, system, idle, iowait, irq, softirq, steal = (*map(int, numbers.split()), *[0] * 8)[:8]
    busy = user + nice + system + irq + softirq
    return CpuTimes(busy, steal, busy + idle + iowait + steal)


def parse_cpu_times(text: str) -> dict[int, CpuTimes]:
    """The times of each CPU that is online, by its number.

    :raises ValueError: it is something else.
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
        raise ValueError("there is no line of a CPU")
    return found


def busy_parts(before: Mapping[int, CpuTimes], now: Mapping[int, CpuTimes]) -> dict[int, float]:
    """The part of the time that each CPU was busy in between; without those that tell nothing.

    By ticks, not by the clock. Counters of a CPU that was offline begin anew.
    """
    return _parts(before, now, lambda times: times.busy)


def stolen_parts(before: Mapping[int, CpuTimes], now: Mapping[int, CpuTimes]) -> dict[int, float]:
    """As busy_parts(), of the time that a hypervisor took from each CPU."""
    return _parts(before, now, lambda times: times.stolen)


def _parts(
    before: Mapping[int, CpuTimes], now: Mapping[int, CpuTimes], ticks: Callable[[CpuTimes], int]
) -> dict[int, float]:
    found = {}
    for cpu, last in now.items():
        first = before.get(cpu)
        if first is not None and last.total > first.total and ticks(last) >= ticks(first):
            found[cpu] = min(1.0, (ticks(last) - ticks(first)) / (last.total - first.total))
    return found


_TICKS: Final = os.sysconf("SC_CLK_TCK")

_KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD among the flags."""

_DEAD_STATES: Final = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """``start_time`` is in clock ticks since boot; ``cpu_seconds`` is what all threads used since then."""

    is_dead: bool
    is_kernel_thread: bool
    parent: int
    session: int
    start_time: int
    cpu_seconds: float


def parse_process_stat(text: str) -> ProcessStat:
    """The content of the file.

    :raises ValueError:
    :raises LookupError: it is something else.
    """
    # The second field is the command's name in brackets and may itself hold blanks and brackets; the first of
    # these is the third, the state.
    fields = text.rpartition(")")[2].split()
    return ProcessStat(
        is_dead=fields[0] in _DEAD_STATES,
        is_kernel_thread=bool(int(fields[6]) & _KERNEL_THREAD),
        parent=int(fields[1]),
        session=int(fields[3]),
        start_time=int(fields[19]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
    )
