"""Computes the amounts that hosts can give over time, and caches them for all searches for windows.

A *host room* has the values for one resource class of a host that do not depend on a request. These values
are the skylines of the providers with the class, the sum of the skylines, and two amounts. The first amount
is available without any timed amounts, the second at any time. A search compares both amounts with its
request. So it excludes most hosts that never have room, and accepts most hosts that always have room, without
further work.

From host rooms, :class:`HostTimes` finds the starts of windows that the sums of a host do not exclude, so
that few windows are tested. The placement of claims tests these starts
(:mod:`placement.search.claims.availability`).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.budget import SearchBudget
from placement.search.claims.claim import WantedClaim, shared_classes
from placement.search.claims.topology import SPLIT
from placement.store.time_profile import TimeWindow
from placement.store.time_skyline import NO_SKYLINE, SkylinesByClass, TimeSkyline, whole_milliseconds

Skylines = Mapping[int, SkylinesByClass]
"""The skylines of providers with timed amounts, by id of the provider and by resource class."""
NO_SKYLINES: Final[SkylinesByClass] = {}


@dataclass(frozen=True, slots=True)
class TimedSearch:
    """A search over times: a snapshot, the skylines of its providers, and the search's budget.

    Concurrent searches have different random numbers, so that they mostly begin at different hosts.
    """

    snapshot: ModelSnapshot
    skylines: Skylines
    budget: SearchBudget
    rng: random.Random


class HostRoom:
    """The amounts of one class that a host can give over time: its providers' skylines, and bounds.

    - ``free`` has the free amount of each provider without timed amounts; ``max_units`` has the largest
      amount of one allocation from the provider.
    - ``most`` is the amount that the host can give without timed amounts; ``most_at_once`` is the largest
      part of this amount from one provider.
    - ``least`` is an amount that the host can give at any time; ``least_at_once`` is the largest part from
      one provider.
    - ``total`` is the sum over all providers of the timed amounts that reduce ``most``; None before
      :meth:`sum_up`.
    """

    __slots__ = (
        "free",
        "least",
        "least_at_once",
        "max_units",
        "most",
        "most_at_once",
        "skylines",
        "total",
        "tree",
    )

    def __init__(self, tree: HostTree, name: str, skylines: Skylines) -> None:
        having = tree.shape.having[name]
        self.tree = tree
        self.skylines = [
            skylines.get(tree.members[at].id, NO_SKYLINES).get(name, NO_SKYLINE) for at, _ in having
        ]
        self.free = [
            tree.free[slot] + each.counted for (_, slot), each in zip(having, self.skylines, strict=True)
        ]
        self.max_units = [tree.shape.portions[slot].max_unit for _, slot in having]
        self.most, self.most_at_once = self._sum_free([0] * len(having))
        # the peaks of several providers are mostly at different times, so this is a lower bound
        self.least, self.least_at_once = self._sum_free([each.peak for each in self.skylines])
        self.total: TimeSkyline | None = None

    def _sum_free(self, used: Sequence[int]) -> tuple[int, int]:
        """Return the amounts that the host can give beside these used ones: in all, and from one provider."""
        # most hosts have one provider of a class, and a search may read thousands of hosts
        if len(used) == 1:
            room = max(0, min(self.max_units[0], self.free[0] - used[0]))
            return room, room
        rooms = [
            min(most, free - beside)
            for most, free, beside in zip(self.max_units, self.free, used, strict=True)
            if free > beside
        ]
        return sum(rooms), max(rooms, default=0)

    def sum_during(self, window: TimeWindow) -> int:
        """Return the free amount of all providers together during a window, for any number of allocations."""
        pairs = zip(self.free, self.skylines, strict=True)
        return sum(max(0, free - each.largest_sum(window)) for free, each in pairs)

    def sum_up(self, budget: SearchBudget) -> None:
        """Compute ``total``, if it is unknown."""
        if self.total is None:
            budget.spend(sum(len(each.times) for each in self.skylines))
            parts = zip(self.skylines, self.free, self.max_units, strict=True)
            # a provider never gives more than its max_unit, and never less than nothing
            self.total = TimeSkyline.total_of(
                [(each, free - most, free) for each, free, most in parts if free > 0]
            )


RoomsByRoot = dict[int, HostRoom]
"""The host rooms for one class, by root. A host room is outdated if the tree of its host has changed."""


class KeptSkylines(dict[int, SkylinesByClass]):
    """The skylines that a worker keeps, with the host rooms that searches have computed from them, by class.

    A plain ``dict`` copy with other skylines has no cached host rooms, so none can be outdated.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rooms: dict[str, RoomsByRoot] = {}

    def with_changes(
        self, skylines: Skylines, gone: Iterable[int], changed_roots: Iterable[int]
    ) -> KeptSkylines:
        """Return a copy with other skylines for some providers, and without the host rooms of these roots.

        :param gone: the ids of providers that no longer have skylines.
        """
        # other threads may still use the original
        found = KeptSkylines()
        found.update(self)
        found.rooms = {name: each.copy() for name, each in self.rooms.copy().items()}
        for each in gone:
            found.pop(each, None)
        found.update(skylines)
        for rooms in found.rooms.values():
            for root in changed_roots:
                rooms.pop(root, None)
        return found


def rooms_of(skylines: Skylines, name: str) -> RoomsByRoot:
    """Return the cached host rooms for a class; the caller may add further host rooms."""
    return skylines.rooms.setdefault(name, {}) if isinstance(skylines, KeptSkylines) else {}


@dataclass(frozen=True, slots=True)
class ClassNeed:
    """The total amount of a class that a request needs, and the largest amount from one provider."""

    resource_class: str
    total: int
    largest: int


class HostTimes:
    """Finds starts at which the sums of a host suffice; classes of sharing providers exclude no start."""

    def __init__(self, search: TimedSearch, wanted: WantedClaim, duration: float) -> None:
        snapshot = search.snapshot
        self._trees = snapshot.whole_trees()
        self._skylines = search.skylines
        self._duration = duration
        self._budget = search.budget
        needs = _class_needs(wanted, shared_classes(snapshot))
        self._needs = [(each, rooms_of(search.skylines, each.resource_class)) for each in needs]
        #: the limits of hosts, by root; None for a host on which the request fits at no time
        self._limits: dict[int, _HostLimits | None] = {}

    def possible_roots(self, roots: Iterable[int]) -> Iterator[int]:
        """Yield these roots, except roots of hosts that exclude every start."""
        return (root for root in roots if self._limits_of(root) is not None)

    def first_start(self, root: int, after: float, until: float) -> float:
        """Return the first start from ``after`` on that is not excluded.

        A result above ``until`` is perhaps excluded, too: it only means that no start up to ``until`` is
        possible.
        """
        self._budget.spend()
        limits = self._limits_of(root)
        if limits is None:
            return math.inf
        singles, others = limits
        start, before = after, -math.inf
        # each class may move the start past the end of an amount, and then all classes are tested again
        while before < start <= until:
            before = start
            for skyline, most in singles:
                start = skyline.first_fit(most, start, self._duration, until)
            for each in others:
                start = each.first_start(start, self._duration, until, self._budget)
        return start

    def tight_end(self, root: int, start: float) -> float:
        """Return the time until which the request fits, by classes that only one provider of the host has."""
        limits = self._limits_of(root)
        if limits is None:
            return math.inf
        return min([skyline.fits_until(most, start) for skyline, most in limits[0]], default=math.inf)

    def tight_gaps(self, root: int, start: float, now: float) -> tuple[float, float]:
        """Return the length of the free time around a start, and its part before the start.

        Like :meth:`tight_end`, this considers only classes that one provider of the host has.
        """
        limits = self._limits_of(root)
        begins = [] if limits is None else [skyline.fits_since(most, start) for skyline, most in limits[0]]
        begin = min(start, max([now, *begins]))
        return self.tight_end(root, start) - begin, start - begin

    def latest_end(self, root: int, start: float) -> float:
        """Return the latest end time of a stay that begins at ``start``, according to the sums of a host."""
        limits = self._limits_of(root)
        others = () if limits is None else limits[1]
        ends = [each.fits_until(start, self._budget) for each in others]
        return min([self.tight_end(root, start), *ends])

    def count_at(self, root: int, start: float) -> float:
        """Return an upper bound of the number of equal requests that fit together from a start on.

        The bound is infinity if the host gives no amounts itself.
        """
        if self._limits_of(root) is None:
            return 0
        self._budget.spend(len(self._needs))
        window = TimeWindow(start, start + self._duration)
        counts = [rooms[root].sum_during(window) // need.total for need, rooms in self._needs]
        return min(counts, default=math.inf)

    def next_end(self, root: int, time: float) -> float:
        """Return the first end after ``time`` of an amount that can limit the request on a host."""
        if self._limits_of(root) is None:
            return math.inf
        ends = [each.next_end(time) for _, rooms in self._needs for each in rooms[root].skylines]
        return whole_milliseconds(min(ends, default=math.inf))

    def _limits_of(self, root: int) -> _HostLimits | None:
        if root not in self._limits:
            self._limits[root] = self._find_limits(root)
        return self._limits[root]

    def _find_limits(self, root: int) -> _HostLimits | None:
        self._budget.spend()
        tree = self._trees[root]
        singles: list[tuple[TimeSkyline, int]] = []
        others: list[_ClassLimit] = []
        for need, rooms in self._needs:
            room = rooms.get(root)
            if room is None or room.tree is not tree:
                if need.resource_class not in tree.shape.having:
                    return None
                room = rooms[root] = HostRoom(tree, need.resource_class, self._skylines)
            if need.total > room.most or need.largest > room.most_at_once:
                return None
            if need.total <= room.least and need.largest <= room.least_at_once:
                continue
            if len(room.skylines) == 1:
                # all groups together are one allocation of this provider
                singles.append((room.skylines[0], room.free[0] - need.total))
            else:
                others.append(_ClassLimit(need, room))
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
    """The need for a class that several providers of a host have, and the host room for this class."""

    need: ClassNeed
    room: HostRoom

    def first_start(self, start: float, duration: float, until: float, budget: SearchBudget) -> float:
        """Return the first start that the sums of the providers do not exclude."""
        room, most = self.room, self.room.most - self.need.total
        while start <= until:
            if room.total is not None:
                start = room.total.first_fit(most, start, duration, until)
                if start > until:
                    break
            # many providers with many breakpoints each have many ends to try
            budget.spend(len(room.skylines))
            if self._has_room(TimeWindow(start, start + duration)):
                break
            start = whole_milliseconds(min([each.next_end(start) for each in room.skylines]))
            # with the sum over the providers, most ends are skipped; hosts with room at the first start do
            # not need this sum
            if start <= until:
                room.sum_up(budget)
        return start

    def fits_until(self, start: float, budget: SearchBudget) -> float:
        """Return the end of the free time from ``start`` on, by the sums; infinity if it has no end."""
        ends = sorted({time for each in self.room.skylines for time in each.times if time > start})
        budget.spend(len(ends))
        # a longer window never has more room
        count = bisect_left(ends, True, key=lambda end: not self._has_room(TimeWindow(start, end)))
        # the last window with room extends to the next breakpoint
        if count == len(ends):
            return math.inf
        return ends[count - 1] if count else start

    def _has_room(self, window: TimeWindow) -> bool:
        room, total, largest = self.room, 0, 0
        # a loop is faster than sums and maxima of lists with two numbers
        for skyline, free, most in zip(room.skylines, room.free, room.max_units, strict=True):
            here = min(most, free - skyline.largest_sum(window))
            if here > 0:
                total += here
                largest = max(largest, here)
        return total >= self.need.total and largest >= self.need.largest


_HostLimits = tuple[list[tuple[TimeSkyline, int]], list[_ClassLimit]]
"""The limits of a host. For each class that one provider has, there is its skyline and the largest sum that
leaves enough free for the request. Then follow the limits of classes that several providers have.
"""
