"""What one round has found, and how it comes from counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

from compute_agent.monitoring.targets import MonitorTarget
from compute_agent.resctrl.monitoring import (
    LOCAL_BYTES,
    OCCUPANCY,
    TOTAL_BYTES,
    BandwidthTotals,
    CounterSample,
    CounterValue,
)

LOCAL, TOTAL = "local", "total"
"""Kinds of bandwidth: to memory of the cache's own NUMA node, and to all memory."""

N = TypeVar("N", int, float)

KINDS: Final = {LOCAL_BYTES: LOCAL, TOTAL_BYTES: TOTAL}


class CacheUse(NamedTuple):
    """Use of one L3 cache: occupancy in bytes, bandwidths in bytes a second; None where it is not known."""

    occupancy: int | None = None
    local: float | None = None
    total: float | None = None


class GroupCounters(NamedTuple):
    """The counters of a group by cache id and event, and bytes a second of those that have a rate."""

    values: Mapping[tuple[int, str], CounterValue]
    rates: Mapping[tuple[int, str], float]

    def caches(self) -> dict[int, CacheUse]:
        """The use of each cache."""
        values, rates = self.values, self.rates
        return {
            cache: CacheUse(
                occupancy if isinstance(occupancy := values.get((cache, OCCUPANCY)), int) else None,
                rates.get((cache, LOCAL_BYTES)),
                rates.get((cache, TOTAL_BYTES)),
            )
            for cache in {cache for cache, _ in values}
        }


@dataclass(frozen=True)
class TargetUse:
    """What a target has used since ``begun`` (monotonic seconds), when its monitoring began, or began again.

    ``bytes_moved`` are by cache id and event, ``groups`` are those that have counted for it. What that means
    is made when somebody asks: of most readings nobody does.
    """

    target: MonitorTarget
    begun: float
    bytes_moved: Mapping[tuple[int, str], int]
    groups: Sequence[GroupCounters] = ()

    @cached_property
    def caches(self) -> Mapping[int, CacheUse]:
        """Use of the caches, by id; empty where it is not monitored."""
        return add_up(group.caches() for group in self.groups)

    @cached_property
    def moved(self) -> Mapping[tuple[int, str], int]:
        """Bytes, by cache id and kind; these never become less."""
        return {(cache, KINDS[event]): amount for (cache, event), amount in self.bytes_moved.items()}


@dataclass(frozen=True)
class MonitorReading:
    """All targets at ``time`` (monotonic seconds), and what the control groups of the host have counted.

    A target that is not monitored is in it without caches.
    """

    time: float
    targets: tuple[TargetUse, ...] = ()
    groups: Sequence[GroupCounters] = ()

    @cached_property
    def host(self) -> Mapping[int, CacheUse]:
        """Everybody on the host together."""
        return add_up(group.caches() for group in self.groups)


class TargetMeter:
    """One target from sample to sample, whichever group its counters are in."""

    def __init__(self, begun: float) -> None:
        """``begun`` is now, in monotonic seconds."""
        self.begun = begun
        self._group: str | None = None
        self._totals = BandwidthTotals()

    def take(self, group: str, sample: CounterSample) -> GroupCounters:
        """What was counted, with the rates since the sample before; the first of a group has none."""
        if group != self._group:
            self._totals.restart()
            self._group = group
        return GroupCounters(sample.values, self._totals.add_sample(sample))

    def moved(self) -> dict[tuple[int, str], int]:
        """Bytes since the first sample, by cache id and event; these never become less."""
        return self._totals.bytes.copy()


class BytesSum:
    """Bytes that several have moved together, also those that have left; they never become less."""

    def __init__(self) -> None:
        self.moved: dict[tuple[int, str], int] = {}
        self._last: dict[tuple[str, float], Mapping[tuple[int, str], int]] = {}

    def add(self, moved: Mapping[tuple[str, float], Mapping[tuple[int, str], int]]) -> None:
        """Count what each, by name and when it began, has moved since the round before; who is new: none."""
        for one, bytes_moved in moved.items():
            last = self._last.get(one, bytes_moved)
            for key, amount in bytes_moved.items():
                self.moved[key] = self.moved.get(key, 0) + amount - last.get(key, 0)
        self._last = dict(moved)


def add_up(uses: Iterable[Mapping[int, CacheUse]]) -> dict[int, CacheUse]:
    """The use of caches by several together. What is known of none of them is not known."""
    found: dict[int, CacheUse] = {}
    for caches in uses:
        for cache, use in caches.items():
            other = found.get(cache, CacheUse())
            found[cache] = CacheUse(
                _sum(other.occupancy, use.occupancy),
                _sum(other.local, use.local),
                _sum(other.total, use.total),
            )
    return found


def _sum(one: N | None, other: N | None) -> N | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
