"""What /proc/PID/stat says of a process (proc_pid_stat(5))."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")

_KERNEL_THREAD: Final = 0x00200000
"""PF_KTHREAD among the flags."""

_DEAD_STATES: Final = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """``start_time`` is in clock ticks since boot; ``cpu_seconds`` is what all threads used since then."""

    is_dead: bool
    is_kernel_thread: bool
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
        session=int(fields[3]),
        start_time=int(fields[19]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
    )
