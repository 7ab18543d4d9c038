"""Noise from two readings: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.noise.counters import TICK, NoiseReading, ThreadCounters

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
    """Events a second by cause, without idle causes and counters of other devices, which are lower."""
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
