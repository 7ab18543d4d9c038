"""Load profiles: the CPU use of guests by hour of the week, and the time in which two guests are busy.

Two guests with equal means can be busy at the same hours or at opposite hours. Two guests that share a core
contend for it only if they are busy at the same hours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

WEEK_HOURS: Final = 7 * 24
"""The number of hours of a week. Hour 0 begins on Monday at midnight, in the time zone of the host."""


# Profiles are compared by identity, because a hash of all hours takes longer than an overlap.
@dataclass(frozen=True, slots=True, eq=False)
class LoadProfile:
    """The mean CPU use in each hour of the week, in cores, or as the share of time for which one CPU is busy.

    :ivar learnt: whether the use by hour was measured. Otherwise all hours have the mean of the last minutes.
    """

    hours: tuple[float, ...]
    learnt: bool = False

    @classmethod
    def from_mean(cls, use: float) -> LoadProfile:
        """The profile of a guest for which only one mean over all hours is known."""
        return cls((use,) * WEEK_HOURS)


ALWAYS_BUSY: Final = LoadProfile.from_mean(1.0)
"""The profile for a guest of unknown use. With this profile, each busy hour of the other guest counts in
full.
"""


@lru_cache(maxsize=1024)
def use_per_cpu(profile: LoadProfile, count: int) -> LoadProfile:
    """The share of time, 0 to 1, for which each of ``count`` CPUs is busy if a guest uses them evenly."""
    return LoadProfile(tuple([min(1.0, cores / count) for cores in profile.hours]), profile.learnt)


# Only the busiest hours count, because the mean of all 168 hours would hide the peaks of guests that work in
# 40 of these hours.
BUSIEST_HOURS: Final = 24
"""Number of hours of the week in which two guests are compared: the hours in which both together are busiest.
"""


@lru_cache(maxsize=2048)
def common_load(one: LoadProfile, other: LoadProfile) -> float:
    """An upper bound of the part of the time, from 0 to 1, in which two CPUs are both busy.

    In each hour, two CPUs can be busy together at most for as long as the less busy CPU is busy. The result
    is the mean of this time over the :data:`BUSIEST_HOURS`. The result is 0 for guests that are never busy in
    the same hour. For two guests with constant use, the result is the smaller use.
    """
    return sum(sorted(map(min, one.hours, other.hours))[-BUSIEST_HOURS:]) / BUSIEST_HOURS


def fill_hours(hours: Sequence[float | None]) -> LoadProfile | None:
    """A profile in which unknown hours have the mean of the same time of day; None if a day is not known."""
    known = [cores for cores in hours if cores is not None]
    if len(known) < 24:
        return None
    mean = sum(known) / len(known)
    by_clock = [[cores for cores in hours[clock::24] if cores is not None] for clock in range(24)]
    of_day = [sum(days) / len(days) if days else mean for days in by_clock]
    return LoadProfile(
        tuple([of_day[number % 24] if cores is None else cores for number, cores in enumerate(hours)]),
        learnt=True,
    )
