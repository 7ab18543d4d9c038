"""Promises that were broken, and how much less is offered for a day after that: pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

DAY_SECONDS: Final = 86_400.0
"""How long less is offered after a promise was broken."""

MAX_STEP_SECONDS: Final = 300.0
"""What counts of the time between two readings: neither an agent that is not there nor a clock that jumps
serves the day."""

LEAST: Final = 0.1
"""The part of the CPUs by which at least less is offered."""


_ROUNDING: Final = 1e-6


@dataclass(frozen=True, slots=True)
class HeldBackShare:
    """What is held back of a zone for promises that were broken.

    ``cpus`` are the most that were missing in the day, ``count`` is how often some were. ``remaining`` is
    for how many seconds less is offered, as of ``time``.
    """

    cpus: float = 0.0
    count: int = 0
    remaining: float = 0.0
    time: float = 0.0

    def after(self, missing: float, times: int, time: float) -> HeldBackShare:
        """With so many promises broken since the last time, by ``missing`` CPUs at most."""
        passed = min(max(0.0, time - self.time), MAX_STEP_SECONDS) if self.time else 0.0
        remaining = max(0.0, self.remaining - passed)
        if times:
            cpus, count = (self.cpus, self.count) if remaining else (0.0, 0)
            return HeldBackShare(max(cpus, missing), count + times, DAY_SECONDS, time)
        return (
            HeldBackShare(self.cpus, self.count, remaining, time) if remaining else HeldBackShare(time=time)
        )

    def held_back(self, capacity: float) -> float:
        """How many of so many CPUs are not offered."""
        return min(capacity, max(self.cpus, LEAST * capacity)) if self.remaining else 0.0

    def in_words(self, capacity: float) -> Iterator[tuple[str, float]]:
        """The term, a sentence and its cores; none if nothing is held back."""
        if self.remaining:
            hours, times = self.remaining / 3600, "once" if self.count == 1 else f"{self.count} times"
            yield (
                f"held back for {hours:.1f} hours more, as the promise was broken {times}",
                self.held_back(capacity),
            )


def missing_cpus(used: float, promised: float, capacity: float) -> float:
    """How many of the promised CPUs of a zone are not there when others use so many of all."""
    missing = used + promised - capacity
    return missing if promised and missing > _ROUNDING else 0.0
