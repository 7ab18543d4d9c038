"""Finds starts of windows that sums per host do not exclude, so that few windows need a full search.

The placement of claims tests these starts (:mod:`placement.search.claims.availability`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from placement.read_model.provider import SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.claims.claim import WantedClaim
from placement.search.claims.topology import SPLIT
from placement.store.time_profile import TimeWindow
from placement.store.time_skyline import NO_SKYLINE, SkylinesByClass, TimeSkyline, whole_milliseconds

Skylines = Mapping[int, SkylinesByClass]
"""The skylines of providers with timed amounts, by id of the provider and by resource class."""
NO_SKYLINES: Final[SkylinesByClass] = {}


@dataclass(frozen=True, slots=True)
class ClassNeed:
    """The total amount of a class that a request needs, and the largest amount from one provider."""

    resource_class: str
    total: int
    largest: int


class HostTimes:
    """Finds the starts at which, by the sums of a host, enough is free for the request of a claim.

    Resource classes of sharing providers exclude no start.
    """

    def __init__(
        self,
        snapshot: ModelSnapshot,
        skylines: Skylines,
        wanted: WantedClaim,
        duration: float,
        budget: SearchBudget,
    ) -> None:
        self._snapshot = snapshot
        self._skylines = skylines
        self._duration = duration
        self._budget = budget
        pools = [snapshot.providers[each] for each in snapshot.by_trait.get(SHARES, ())]
        shared = {name for pool in pools for name in pool.inventories}
        self._needs = _class_needs(wanted, shared)
        #: the limits of hosts, by root; None if no time suffices
        self._limits: dict[int, _HostLimits | None] = {}

    def first_start(self, root: int, after: float, until: float) -> float:
        """Return the first start from ``after`` on that is not excluded.

        A result above ``until`` only means that no start up to ``until`` is possible.
        """
        self._budget.spend()
        limits = self._limits_of(root)
        if limits is None:
            return math.inf
        singles, others = limits
        start, before = after, -math.inf
        # each class may move the start past the end of an amount, and then all classes are read again
        while before < start <= until:
            before = start
            for skyline, most in singles:
                start = skyline.first_fit(most, start, self._duration, until)
            for each in others:
                start = each.first_start(start, self._duration, until, self._budget)
        return start

    def tight_end(self, root: int, start: float) -> float:
        """Return the time until which the request fits from a start on, if each provider is checked alone."""
        limits = self._limits_of(root)
        if limits is None:
            return math.inf
        return min([skyline.fits_until(most, start) for skyline, most in limits[0]], default=math.inf)

    def latest_end(self, root: int, start: float) -> float:
        """Return the latest time until which, by the sums of a host, the request may fit from a start on."""
        limits = self._limits_of(root)
        others = () if limits is None else limits[1]
        ends = [each.fits_until(start, self._budget) for each in others]
        return min([self.tight_end(root, start), *ends])

    def _limits_of(self, root: int) -> _HostLimits | None:
        if root not in self._limits:
            self._limits[root] = self._find_limits(root)
        return self._limits[root]

    def _find_limits(self, root: int) -> _HostLimits | None:
        providers = self._snapshot.providers
        members = [providers[each] for each in self._snapshot.trees[root]]
        singles: list[tuple[TimeSkyline, int]] = []
        others: list[_ClassLimit] = []
        for need in self._needs:
            name = need.resource_class
            having = [each for each in members if name in each.inventories]
            if len(having) != 1:
                limit = _ClassLimit.from_providers(having, self._skylines, need)
                if limit is None:
                    return None
                # a class without timed amounts has room at any time
                if limit.skylines:
                    others.append(limit)
                continue
            (provider,) = having
            inventory = provider.inventories[name]
            skyline = self._skylines.get(provider.id, NO_SKYLINES).get(name, NO_SKYLINE)
            most = inventory.capacity - provider.used.get(name, 0) + skyline.counted - need.total
            # all groups together are one allocation of this provider
            if most < 0 or need.total > inventory.max_unit:
                return None
            if skyline.times:
                singles.append((skyline, most))
        return singles, others


def _class_needs(wanted: WantedClaim, shared: Container[str]) -> list[ClassNeed]:
    largest: dict[str, int] = {}
    for group in wanted.request.groups:
        for name, amount in group.resources.items():
            # a topology splits these amounts over several providers
            is_split = wanted.topology is not None and group.suffix == "" and name in SPLIT
            largest[name] = max(largest.get(name, 0), 0 if is_split else amount)
    totals = wanted.request.total_amounts
    return [ClassNeed(name, totals[name], most) for name, most in largest.items() if name not in shared]


@dataclass(frozen=True, slots=True)
class _ClassLimit:
    """The providers of a host with one class: skylines, free untimed amounts, and largest portions."""

    need: ClassNeed
    skylines: Sequence[TimeSkyline]
    free: Sequence[int]
    max_units: Sequence[int]

    @classmethod
    def from_providers(
        cls, members: Iterable[Provider], skylines: Skylines, need: ClassNeed
    ) -> _ClassLimit | None:
        """Return the limit; None if the host can never have enough."""
        name, timed, free, units = need.resource_class, list[TimeSkyline](), list[int](), list[int]()
        for each in members:
            skyline = skylines.get(each.id, NO_SKYLINES).get(name, NO_SKYLINE)
            timed.append(skyline)
            free.append(each.free(name) + skyline.counted)
            units.append(each.inventories[name].max_unit)
        if not _gives_enough(need, [min(both) for both in zip(free, units, strict=True)]):
            return None
        return cls(need, timed if any(each.times for each in timed) else (), free, units)

    def first_start(self, start: float, duration: float, until: float, budget: SearchBudget) -> float:
        """Return the first start that the sums of the providers do not exclude."""
        total: TimeSkyline | None = None
        while start <= until:
            # many providers with many breakpoints each have many ends to try
            budget.spend(len(self.skylines))
            if self._has_room(TimeWindow(start, start + duration)):
                break
            # the sum over the providers skips most ends, and hosts with room at once do not need it
            if total is None:
                budget.spend(sum(len(each.times) for each in self.skylines))
                total = self._total_skyline()
            start = whole_milliseconds(min(each.next_end(start) for each in self.skylines))
            start = total.first_fit(self._most_beside(), start, duration, until)
        return start

    def fits_until(self, start: float, budget: SearchBudget) -> float:
        """Return the time until which, by the sums, enough is free from a start on; infinity if for ever."""
        ends = sorted({time for each in self.skylines for time in each.times if time > start})
        budget.spend(len(ends))
        # a longer window never has more room
        count = bisect_left(ends, True, key=lambda end: not self._has_room(TimeWindow(start, end)))
        # the last window with room extends to the next breakpoint
        if count == len(ends):
            return math.inf
        return ends[count - 1] if count else start

    def _has_room(self, window: TimeWindow) -> bool:
        rooms = [
            min(most, free - each.largest_sum(window))
            for each, free, most in zip(self.skylines, self.free, self.max_units, strict=True)
        ]
        return _gives_enough(self.need, rooms)

    def _total_skyline(self) -> TimeSkyline:
        """Return the skyline, over all providers, of the timed amounts that reduce what the need can get."""
        parts = zip(self.skylines, self.free, self.max_units, strict=True)
        # a provider never gives more than its max_unit, and never less than nothing
        bounded = ((each, free - most, free) for each, free, most in parts if free > 0)
        return TimeSkyline.total_of(tuple(bounded))

    def _most_beside(self) -> int:
        """Return the largest total of timed amounts that leaves enough free for the need."""
        rooms = (min(both) for both in zip(self.free, self.max_units, strict=True))
        return sum(each for each in rooms if each > 0) - self.need.total


_HostLimits = tuple[list[tuple[TimeSkyline, int]], list[_ClassLimit]]
"""The limits of a host: for each class of one provider, its skyline and the largest sum that leaves enough
free for the request; and the limits of classes that several providers have.
"""


def _gives_enough(need: ClassNeed, rooms: Sequence[int]) -> bool:
    positive = [each for each in rooms if each > 0]
    return bool(positive) and sum(positive) >= need.total and max(positive) >= need.largest
