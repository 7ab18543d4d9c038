"""Computes the amounts that hosts can give over time, and caches them for all searches for windows.

A *host room* has the values for one resource class of a host that do not depend on a request. These values
are the skylines of the providers with the class, the sum of the skylines, and two amounts. The first amount
is available without any timed amounts, the second at any time. A search compares both amounts with its
request. So it excludes most hosts that never have room, and accepts most hosts that always have room, without
further work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from placement.read_model.trees import HostTree
from placement.search.budget import SearchBudget
from placement.store.time_profile import TimeWindow
from placement.store.time_skyline import NO_SKYLINE, SkylinesByClass, TimeSkyline

Skylines = Mapping[int, SkylinesByClass]
"""The skylines of providers with timed amounts, by id of the provider and by resource class."""
NO_SKYLINES: Final[SkylinesByClass] = {}


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
