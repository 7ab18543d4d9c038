"""Finds the starts of windows that sums per host do not exclude, so that few windows have to be placed.

The placement of claims tests these starts (:mod:`placement.search.claims.availability`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
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
    """Finds the starts at which the sums of a host leave enough room for the request of a claim.

    Classes that sharing providers have exclude no start.
    """

    def __init__(
        self,
        snapshot: ModelSnapshot,
        skylines: Skylines,
        wanted: WantedClaim,
        duration: float,
        budget: SearchBudget,
    ) -> None:
        self._trees = snapshot.whole_trees()
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
        """Return the time until which the request fits from a start on, according to the single providers."""
        limits = self._limits_of(root)
        if limits is None:
            return math.inf
        return min([skyline.fits_until(most, start) for skyline, most in limits[0]], default=math.inf)

    def latest_end(self, root: int, start: float) -> float:
        """Return until when the sums of a host do not exclude that the request stays from a start on."""
        limits = self._limits_of(root)
        others = () if limits is None else limits[1]
        ends = [each.fits_until(start, self._budget) for each in others]
        return min([self.tight_end(root, start), *ends])

    def _limits_of(self, root: int) -> _HostLimits | None:
        if root not in self._limits:
            self._limits[root] = self._find_limits(root)
        return self._limits[root]

    def _find_limits(self, root: int) -> _HostLimits | None:
        tree = self._trees[root]
        singles: list[tuple[TimeSkyline, int]] = []
        others: list[_ClassLimit] = []
        for need in self._needs:
            name, total = need.resource_class, need.total
            having = tree.shape.having.get(name, ())
            if len(having) != 1:
                limit = _ClassLimit.from_tree(tree, having, self._skylines, need)
                if limit is None:
                    return None
                # a class with room at any time excludes nothing
                if limit.skylines:
                    others.append(limit)
                continue
            ((at, slot),) = having
            # all groups together are one allocation of this provider; hosts that are too small are excluded
            # before their skylines are read
            if total > tree.capacities[slot] or total > tree.shape.portions[slot].max_unit:
                return None
            skyline = self._skylines.get(tree.members[at].id, NO_SKYLINES).get(name, NO_SKYLINE)
            most = tree.free[slot] + skyline.counted - total
            if most < 0:
                return None
            if skyline.peak > most:
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
    def from_tree(
        cls, tree: HostTree, having: Iterable[tuple[int, int]], skylines: Skylines, need: ClassNeed
    ) -> _ClassLimit | None:
        """Return the limit; None if the host can never have enough.

        A limit without skylines excludes nothing.

        :param having: the positions and slots of the providers that have the class.
        """
        slots = [slot for _, slot in having]
        units = [tree.shape.portions[slot].max_unit for slot in slots]
        if not _gives_enough(need, map(min, units, [tree.capacities[slot] for slot in slots])):
            return None
        timed = [
            skylines.get(tree.members[at].id, NO_SKYLINES).get(need.resource_class, NO_SKYLINE)
            for at, _ in having
        ]
        free = [tree.free[slot] + each.counted for slot, each in zip(slots, timed, strict=True)]
        if not _gives_enough(need, map(min, units, free)):
            return None
        # mostly the peaks are at different times, but many hosts have room even beside all of them
        beside = [here - each.peak for here, each in zip(free, timed, strict=True)]
        return cls(need, () if _gives_enough(need, map(min, units, beside)) else timed, free, units)

    def first_start(self, start: float, duration: float, until: float, budget: SearchBudget) -> float:
        """Return the first start that the sums of the providers do not exclude."""
        total: TimeSkyline | None = None
        while start <= until:
            # many providers with many breakpoints each have many ends to try
            budget.spend(len(self.skylines))
            if self._has_room(TimeWindow(start, start + duration)):
                break
            start = whole_milliseconds(min([each.next_end(start) for each in self.skylines]))
            # the sum over the providers skips most ends, but takes longer than a test of few ends
            if start <= until:
                if total is None:
                    budget.spend(sum(len(each.times) for each in self.skylines))
                    total = self._total_skyline()
                start = total.first_fit(self._most_beside(), start, duration, until)
        return start

    def fits_until(self, start: float, budget: SearchBudget) -> float:
        """Return until when the sums exclude no stay from a start on; infinity if never."""
        ends = sorted({time for each in self.skylines for time in each.times if time > start})
        budget.spend(len(ends))
        # a longer window never has more room
        count = bisect_left(ends, True, key=lambda end: not self._has_room(TimeWindow(start, end)))
        # the last window with room extends to the next breakpoint
        if count == len(ends):
            return math.inf
        return ends[count - 1] if count else start

    def _has_room(self, window: TimeWindow) -> bool:
        beside = [here - each.largest_sum(window) for here, each in zip(self.free, self.skylines, strict=True)]
        return _gives_enough(self.need, map(min, self.max_units, beside))

    def _total_skyline(self) -> TimeSkyline:
        """Return the sum of the amounts that take room from the need, over all providers."""
        parts = zip(self.skylines, self.free, self.max_units, strict=True)
        # a provider never gives more than its max_unit, and never less than nothing
        bounded = ((each, free - most, free) for each, free, most in parts if free > 0)
        return TimeSkyline.total_of(tuple(bounded))

    def _most_beside(self) -> int:
        """Return the largest total that leaves enough room for the need."""
        rooms = (min(both) for both in zip(self.free, self.max_units, strict=True))
        return sum(each for each in rooms if each > 0) - self.need.total


_HostLimits = tuple[list[tuple[TimeSkyline, int]], list[_ClassLimit]]
"""The limits of a host: for each class of one provider, its skyline and the largest sum that leaves room for
the request; and the limits of classes that several providers have.
"""


def _gives_enough(need: ClassNeed, rooms: Iterable[int]) -> bool:
    positive = [each for each in rooms if each > 0]
    return bool(positive) and sum(positive) >= need.total and max(positive) >= need.largest
