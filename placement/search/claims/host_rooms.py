"""Computes the room of hosts over time, which searches for windows share.

A *host room* has all values about one resource class of a host that do not depend on a request. It has the
skylines of the providers with the class, and their sum. It also has the amount that the host can give without
timed amounts, and the amount beside the peaks of all of them. A search compares two numbers with its request,
and skips most hosts that can never serve the request, or that can always serve it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from placement.read_model.trees import HostTree
from placement.search.budget import SearchBudget
from placement.store.time_skyline import NO_SKYLINE, SkylinesByClass, TimeSkyline

Skylines = Mapping[int, SkylinesByClass]
"""The skylines of providers with timed amounts, by id of the provider and by resource class."""
NO_SKYLINES: Final[SkylinesByClass] = {}


class HostRoom:
    """The room of a host for one class: its providers with their skylines, and bounds of their amounts.

    - ``free`` has the free amounts without timed amounts, ``max_units`` the largest portions of providers.
    - ``most`` is the amount that the host gives without timed amounts; ``most_at_once`` comes from one
      provider.
    - ``least`` is an amount that the host gives at any time; ``least_at_once`` comes from one provider.
    - ``total`` is the sum of the amounts that take room, over all providers; None before :meth:`sum_up`.
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
        self.most, self.most_at_once = self._sum_free(0 for _ in having)
        # the peaks of several providers are mostly at different times, so this is a lower bound
        self.least, self.least_at_once = self._sum_free(each.peak for each in self.skylines)
        self.total: TimeSkyline | None = None

    def _sum_free(self, used: Iterable[int]) -> tuple[int, int]:
        """Return the amount that the host gives beside these timed amounts, and that of one provider."""
        rooms = [
            min(most, free - beside)
            for most, free, beside in zip(self.max_units, self.free, used, strict=True)
            if free > beside
        ]
        return sum(rooms), max(rooms, default=0)

    def sum_up(self, budget: SearchBudget) -> None:
        """Compute ``total``, if it is unknown.

        :raises placement.search.budget.BudgetExhausted: the budget is spent.
        """
        if self.total is None:
            budget.spend(sum(len(each.times) for each in self.skylines))
            parts = zip(self.skylines, self.free, self.max_units, strict=True)
            # a provider never gives more than its max_unit, and never less than nothing
            self.total = TimeSkyline.total_of(
                [(each, free - most, free) for each, free, most in parts if free > 0]
            )


RoomsByRoot = dict[int, HostRoom]
"""The rooms of hosts for one class, by root. A room is outdated if the tree of its host has changed."""


class KeptSkylines(dict[int, SkylinesByClass]):
    """The skylines that a worker keeps, with the rooms that searches have computed from them, by class.

    A copy with other skylines is an ordinary dict, so it has no outdated rooms.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rooms: dict[str, RoomsByRoot] = {}

    def with_changes(
        self, skylines: Skylines, gone: Iterable[int], changed_roots: Iterable[int]
    ) -> KeptSkylines:
        """Return a copy with other skylines of some providers, and without the rooms of these roots.

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
    """Return the known rooms for a class, to which the caller may add further rooms."""
    return skylines.rooms.setdefault(name, {}) if isinstance(skylines, KeptSkylines) else {}
