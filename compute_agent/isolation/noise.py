"""Counters of interruptions: /proc/interrupts, /proc/softirqs, and schedstat and status of threads.

Formats: Documentation/filesystems/proc.rst and Documentation/scheduler/sched-stats.rst of the kernel.

Pure functions compute the noise between two readings.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compute_agent.host.kernel_files import SysFiles
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.messages import printable_text

TICK: Final = "tick"
"""The cause of the timer interrupt of a CPU."""

_TICKS: Final = frozenset({"LOC", "arch_timer", "riscv-timer", "timer"})
"""Labels and names of the timer interrupt: x86, ARM, RISC-V, and the first ticks of a boot."""

_TRIGGER: Final = re.compile(r"(?:.*-)?(?:edge|level|fasteoi)\Z", re.IGNORECASE)
"""The word in a line of /proc/interrupts after which the names of the devices follow."""

_MAX_CAUSE: Final = 80
_SWITCHES: Final = re.compile(r"^nonvoluntary_ctxt_switches:\s*([0-9]+)$", re.MULTILINE)
_PROCESSOR: Final = 36
"""The index of the field ``processor`` (39 in proc_pid_stat(5)) of /proc/TID/stat, with the field ``state``
as 0.
"""


@dataclass(frozen=True, slots=True)
class CpuCounters:
    """Interruptions of a CPU since boot, by cause. The tick is an interrupt with the cause ``TICK``."""

    interrupts: Mapping[str, int] = field(default_factory=dict)
    softirqs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ThreadCounters:
    """Interruptions of a thread since its start.

    :ivar cpu: the CPU that the thread last ran on.
    :ivar involuntary: the number of times that the kernel ran another thread, although this thread could
        continue.
    :ivar delay_ns: nanoseconds in which the thread waited for its CPU. None means that the kernel does not
        count this time.
    """

    cpu: int
    involuntary: int
    delay_ns: int | None


@dataclass(frozen=True, slots=True)
class NoiseReading:
    """All counters of one moment, in monotonic seconds."""

    time: float
    cpus: Mapping[int, CpuCounters] = field(default_factory=dict)
    threads: Mapping[int, ThreadCounters] = field(default_factory=dict)


class NoiseReader:
    """Reads counters below a root."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = SysFiles(root)
        self._clock = clock

    def read_counters(self, cpus: CpuSet, threads: Collection[int] = ()) -> NoiseReading:
        """The counters of these CPUs and threads. Offline CPUs and ended threads are left out."""
        now = self._clock()
        interrupts = parse_interrupts(self._files.text("proc/interrupts") or "", cpus)
        softirqs = parse_softirqs(self._files.text("proc/softirqs") or "", cpus)
        found = {
            cpu: CpuCounters(interrupts.get(cpu, {}), softirqs.get(cpu, {}))
            for cpu in sorted(interrupts.keys() | softirqs.keys())
        }
        read = {tid: one for tid in threads if (one := self._read_thread(tid)) is not None}
        return NoiseReading(now, found, read)

    def _read_thread(self, tid: int) -> ThreadCounters | None:
        match = _SWITCHES.search(self._files.text(f"proc/{tid}/status") or "")
        fields = (self._files.text(f"proc/{tid}/stat") or "").rpartition(")")[2].split()
        if match is None or len(fields) <= _PROCESSOR or not fields[_PROCESSOR].isdigit():
            return None
        delays = (self._files.text(f"proc/{tid}/schedstat") or "").split()
        delay = int(delays[1]) if len(delays) == 3 and delays[1].isdigit() else None
        return ThreadCounters(int(fields[_PROCESSOR]), int(match[1]), delay)


def parse_interrupts(text: str, cpus: CpuSet) -> dict[int, dict[str, int]]:
    """The numbers of interrupts by CPU and cause. Causes without an interrupt on a CPU are left out."""
    header, _, rest = text.partition("\n")
    columns = _cpu_columns(header, cpus)
    count = len(header.split())
    found: dict[int, dict[str, int]] = {cpu: {} for cpu in columns}
    for line in rest.splitlines():
        label, colon, words = line.partition(":")
        parts = words.split(None, count)
        # Lines of the whole host, such as ERR, have one number.
        if not colon or len(parts) < count or not "".join(parts[:count]).isdigit():
            continue
        cause = ""
        for cpu, column in columns.items():
            # Most counters of a large host are 0, and never change.
            if parts[column] != "0" and (amount := int(parts[column])):
                cause = cause or _name_cause(label.strip(), parts[count] if len(parts) > count else "")
                found[cpu][cause] = found[cpu].get(cause, 0) + amount
    return found


def parse_softirqs(text: str, cpus: CpuSet) -> dict[int, dict[str, int]]:
    """The numbers of softirqs by CPU and kind. Kinds without a softirq on a CPU are left out."""
    header, _, rest = text.partition("\n")
    columns = _cpu_columns(header, cpus)
    found: dict[int, dict[str, int]] = {cpu: {} for cpu in columns}
    for line in rest.splitlines():
        label, _, words = line.partition(":")
        parts, cause = words.split(), f"softirq {printable_text(label.strip())}"
        for cpu, column in columns.items():
            if column < len(parts) and parts[column].isdigit() and (amount := int(parts[column])):
                found[cpu][cause] = amount
    return found


def _cpu_columns(header: str, cpus: CpuSet) -> dict[int, int]:
    """The number of the column of each CPU. Offline CPUs have no column."""
    numbers = [word.removeprefix("CPU") for word in header.split()]
    return {
        int(number): column
        for column, number in enumerate(numbers)
        if number.isdigit() and int(number) in cpus
    }


# A scrape reads hundreds of lines, and their names hardly ever change.
@functools.lru_cache(maxsize=4096)
def _name_cause(label: str, rest: str) -> str:
    """A cause in words: ``interrupt 30 (eth0)``, or the kernel's words for a cause without a number."""
    words = rest.split()
    if not label.isdigit():
        return TICK if label in _TICKS else printable_text(" ".join([label, *words]))[:_MAX_CAUSE]
    after = next((place for place, word in enumerate(words) if _TRIGGER.match(word)), len(words) - 2)
    name = " ".join(words[after + 1 :])
    if name in _TICKS:
        return TICK
    return printable_text(f"interrupt {label} ({name})" if name else f"interrupt {label}")[:_MAX_CAUSE]


_SHOWN: Final = 5
"""Maximum number of causes that are named for a CPU."""


@dataclass(frozen=True, slots=True)
class CpuNoise:
    """The noise of a CPU, as rates a second.

    :ivar tick: timer interrupts; ``interrupts`` are all other interrupts.
    :ivar involuntary: switches away from threads of guest CPUs that could continue.
    :ivar delay_us: microseconds in which these threads waited for the CPU; None if not counted.
    :ivar causes: the most frequent interrupts and softirqs.
    """

    tick: float = 0.0
    interrupts: float = 0.0
    softirqs: float = 0.0
    involuntary: float | None = None
    delay_us: float | None = None
    causes: Mapping[str, float] = field(default_factory=dict)

    @property
    def all_interruptions(self) -> float:
        """All interruptions except the tick."""
        return self.interrupts + self.softirqs + (self.involuntary or 0.0)


def compare_readings(before: NoiseReading, now: NoiseReading) -> dict[int, CpuNoise]:
    """The noise of each CPU between two readings. CPUs that are in only one of the readings are left out.

    :raises ValueError: no time has passed between the readings.
    """
    seconds = now.time - before.time
    if seconds <= 0:
        raise ValueError("no time has passed between two readings")
    threads: dict[int, list[tuple[ThreadCounters, ThreadCounters]]] = {}
    for tid, last in now.threads.items():
        first = before.threads.get(tid)
        # A thread with smaller counters than before is another thread with the same number.
        if first is not None and last.involuntary >= first.involuntary:
            threads.setdefault(last.cpu, []).append((first, last))
    found = {}
    for cpu, counters in now.cpus.items():
        if cpu not in before.cpus:
            continue
        interrupts = _event_rates(before.cpus[cpu].interrupts, counters.interrupts, seconds)
        softirqs = _event_rates(before.cpus[cpu].softirqs, counters.softirqs, seconds)
        tick = interrupts.pop(TICK, 0.0)
        causes = sorted((interrupts | softirqs).items(), key=lambda one: (-one[1], one[0]))[:_SHOWN]
        found[cpu] = CpuNoise(
            tick,
            sum(interrupts.values()),
            sum(softirqs.values()),
            *_thread_noise(threads.get(cpu, ()), seconds),
            dict(causes),
        )
    return found


def _event_rates(before: Mapping[str, int], now: Mapping[str, int], seconds: float) -> dict[str, float]:
    """The number of events a second by cause, without causes that had no event.

    A counter that is lower than before belongs to another device, and is also left out.
    """
    rates = {cause: (amount - before.get(cause, 0)) / seconds for cause, amount in now.items()}
    return {cause: rate for cause, rate in rates.items() if rate > 0}


def _thread_noise(
    pairs: Iterable[tuple[ThreadCounters, ThreadCounters]], seconds: float
) -> tuple[float | None, float | None]:
    """Involuntary switches and microseconds of delay a second; None without threads or delay counts."""
    pairs = tuple(pairs)
    if not pairs:
        return None, None
    switches = sum(last.involuntary - first.involuntary for first, last in pairs)
    delays = [
        last.delay_ns - first.delay_ns
        for first, last in pairs
        if first.delay_ns is not None and last.delay_ns is not None
    ]
    return switches / seconds, sum(delays) / 1000 / seconds if delays else None
