"""Counts how many sets of guests fit, where each set contains several flavors in given proportions.

For example, each set has two guests of one flavor, and one guest of another flavor.

Only :mod:`placement_extras.planner.handler` uses this module, if a request counts several
flavors together.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from placement.read_model.trees import HostTree
from placement.search.budget import SearchBudget
from placement.search.request import CandidatesRequest
from placement_extras.planner.capacity import CloudHosts, couple_ways
from placement_extras.planner.packing import (
    DevicePool,
    FitBounds,
    FlavorFootprints,
    FootprintFinder,
    Slot,
    Way,
    most_by_volume,
)
from placement_extras.planner.trials import TrialJournal, TriesExhausted

# sets are placed in chunks, so that each host gets guests of different flavors
_CHUNKS: Final = 64
"""Number of chunks into which the search first divides the sets. Their number is the upper bound."""
_MAX_TRIES: Final = 5_000
"""Maximum number of tries to place one more set. After these tries, the result has bounds instead of an exact
number.
"""
# with more ways, the search would reach its maximum number of tries without a result
_MAX_WAYS: Final = 200
"""The search for a place for one more set begins only if there are at most this number of ways."""


@dataclass(frozen=True, slots=True)
class FlavorProportion:
    """A flavor with its number of guests in each set.

    At most ``upper_bound`` guests of this flavor fit if no guests of other flavors are placed. ``requests``
    has the request of the flavor and, if it has one, the fallback. Each guest gets a place for one of them.
    """

    requests: tuple[CandidatesRequest, ...]
    number: int
    upper_bound: int


Place = tuple[Any, tuple[Way, ...]]
"""The free amounts of a host by slot, and the ways to place a guest of a flavor there. The search changes the
free amounts.
"""


def count_sets(cloud: CloudHosts, shares: Sequence[FlavorProportion]) -> FitBounds:
    """Return how many sets of guests, in the given proportions, fit at the same time."""
    upper_bound = min(share.upper_bound // share.number for share in shares)
    if not upper_bound:
        return FitBounds(0, 0)
    # flavors that are hard to place come first, because the other flavors fill the gaps
    shares = sorted(shares, key=lambda share: share.upper_bound // share.number)
    placing = _SetPlacing(_find_places(cloud, shares), [share.number for share in shares], cloud.budget)
    return placing.find_most(_by_volume(cloud, shares, upper_bound))


def _by_volume(cloud: CloudHosts, shares: Sequence[FlavorProportion], upper_bound: int) -> int:
    """Return an upper bound for the number of sets, from the sums of free amounts in the cloud.

    :param upper_bound: a known upper bound, which the result does not exceed.
    """
    asked: dict[str, int] = {}
    for share in shares:
        amounts = [request.total_amounts for request in share.requests]
        for name in set[str]().union(*amounts):
            # each of the requests can serve a guest, so a guest takes at least the smallest amount of all
            # requests
            least = min(each.get(name, 0) for each in amounts)
            if least:
                asked[name] = asked.get(name, 0) + least * share.number
    there = dict.fromkeys(asked, 0)
    for tree, _ in cloud.hosts:
        cloud.budget.spend()
        for name in asked:
            for _, slot in tree.kind.shape.having.get(name, ()):
                # a slot that is used beyond its capacity must not reduce the sum over all hosts
                there[name] += max(0, tree.free[slot])
    return most_by_volume(upper_bound, {name: {amount: upper_bound} for name, amount in asked.items()}, there)


def _find_places(cloud: CloudHosts, shares: Sequence[FlavorProportion]) -> list[list[Place]]:
    """Return, for each flavor, the places at all hosts. At one host, flavors share the same free amounts."""
    # all hosts with sharing providers or pools have one common mapping of free amounts. Each other host has a
    # list of its own.
    common: dict[Slot, int] = {}
    own: dict[int, list[int]] = {}
    asked = [(number, request) for number, share in enumerate(shares) for request in share.requests]
    finders = [FootprintFinder(cloud.snapshot, request, cloud.budget) for _, request in asked]
    by_request: list[list[Place]] = [[] for _ in asked]
    for tree, shared in cloud.hosts:
        cloud.budget.spend(len(asked))
        found = [finder.footprints_at(tree, shared) for finder in finders]
        if not _agree_on_pools(found):
            cloud.budget.spend(len(tree.members))
            parts = _common_parts(found, tree)
            found = [finder.footprints_at(tree, shared, parts) for finder in finders]
        # a pool, like a sharing provider, needs a slot that is the same for all flavors
        if any(ways.coupled or ways.pools for ways in found) or cloud.is_coupled(found[0], tree):
            for places, ways in zip(by_request, found, strict=True):
                coupled, free = couple_ways(ways, tree, shared)
                common.update(free)
                if coupled.ways:
                    places.append((common, coupled.ways))
        else:
            # all flavors take from one copy of the free amounts, because the tree belongs to the snapshot
            left = own.setdefault(tree.root.id, list(tree.free))
            for places, ways in zip(by_request, found, strict=True):
                if ways.ways:
                    places.append((left, ways.ways))
    by_flavor: list[list[Place]] = [[] for _ in shares]
    for (number, _), places in zip(asked, by_request, strict=True):
        by_flavor[number] += places
    return by_flavor


def _agree_on_pools(found: Sequence[FlavorFootprints]) -> bool:
    """Return whether each device is in the same pool for all flavors that use it."""
    pool_of: dict[Slot, DevicePool | None] = {}
    return all(pool_of.setdefault(slot, pool) == pool for slot, pool in _used_slots(found))


def _used_slots(found: Sequence[FlavorFootprints]) -> Iterator[tuple[Slot, DevicePool | None]]:
    """Yield each slot that a flavor uses, with the pool of the slot; None if the slot is in no pool."""
    for ways in found:
        for slot in ways.classes:
            pool = ways.pools.get(slot)
            yield from ((each, pool) for each in ((slot,) if pool is None else pool.slots))


def _common_parts(found: Sequence[FlavorFootprints], tree: HostTree) -> tuple[int, ...]:
    """Return a number for each provider of a host. Providers that are equal for all flavors share a number.

    Only devices with the same number then form a pool, so that each device is in the same pool for all
    flavors.
    """
    uses: dict[Slot, set[DevicePool | Slot]] = {}
    for slot, pool in _used_slots(found):
        uses.setdefault(slot, set()).add(slot if pool is None else pool)
    labels: list[list[Hashable]] = [[] for _ in tree.members]
    for slot, (at, _) in enumerate(tree.kind.shape.slots):
        pools = uses.get(slot, set())
        # a device from which two flavors take different units is in no pool
        units = {each.unit if isinstance(each, DevicePool) else None for each in pools}
        labels[at].append(slot if len(units) > 1 else frozenset(pools))
    numbers: dict[Hashable, int] = {}
    return tuple([numbers.setdefault(tuple(each), len(numbers)) for each in labels])


class _SetPlacing:
    """Places sets of guests, and removes them again."""

    def __init__(
        self, places: Sequence[Sequence[Place]], numbers: Sequence[int], budget: SearchBudget
    ) -> None:
        self._places = places
        self._numbers = numbers
        self._budget = budget
        #: for each flavor, the index of the first place that is perhaps not full
        self._first = [0] * len(numbers)
        self._journal = TrialJournal(budget, _MAX_TRIES)

    def find_most(self, upper_bound: int) -> FitBounds:
        """Return bounds for the number of sets that fit; at most ``upper_bound`` sets fit."""
        # many sets are placed at a time. If they do not fit, half as many are tried next. So the work does
        # not grow with the number of guests.
        fits, chunk = 0, max(1, upper_bound // _CHUNKS)
        while chunk and fits < upper_bound:
            chunk = min(chunk, upper_bound - fits)
            if self._place_sets(chunk):
                fits += chunk
            else:
                chunk //= 2
        self._journal.undo_changes()
        # the number of ways is the depth of the recursion
        count = sum([len(ways) for places in self._places for _, ways in places])
        with suppress(TriesExhausted):
            while fits < upper_bound and count <= _MAX_WAYS:
                if self._try_sets(fits + 1):
                    fits += 1
                else:
                    # one more set does not fit, so the number of sets is exact
                    upper_bound = fits
                self._journal.undo_changes()
        return FitBounds(fits, upper_bound)

    def _place_sets(self, sets: int) -> bool:
        """Place this number of further sets and return True; if they do not fit, place none."""
        # a place that is full for a flavor stays full as long as guests are only added
        before, first = len(self._journal), self._first.copy()
        for number, guests in enumerate(self._numbers):
            left = sets * guests
            places = self._places[number]
            while left and self._first[number] < len(places):
                self._budget.spend()
                free, ways = places[self._first[number]]
                for way in ways:
                    most = min([free[slot] // amount for slot, amount in way])
                    if most > 0:
                        self._place_guests(free, way, min(most, left))
                        left -= min(most, left)
                if left:
                    self._first[number] += 1
            if left:
                self._journal.undo_changes(before)
                self._first = first
                return False
        return True

    def _place_guests(self, free: Any, way: Way, count: int) -> None:
        _take_amounts(free, way, count)
        self._journal.record_undo(_take_amounts, free, way, -count)

    def _try_sets(self, sets: int) -> bool:
        """Return whether this number of sets fits. If so, the sets stay placed.

        :raises TriesExhausted: the search has ended before this was known.
        """
        ways = [[(free, way) for free, ways in places for way in ways] for places in self._places]
        numbers = [sets * number for number in self._numbers]

        def try_from(flavor: int, index: int, left: int) -> bool:
            self._journal.count_try()
            if not left:
                flavor += 1
                return True if flavor == len(ways) else try_from(flavor, 0, numbers[flavor])
            if index == len(ways[flavor]):
                return False
            # even if each remaining way could use its host alone, they would not have room for all guests
            if left > sum([_most_guests(*each) for each in ways[flavor][index:]]):
                return False
            free, way = ways[flavor][index]
            most = min(left, _most_guests(free, way))
            for count in self._journal.try_each(range(most, -1, -1)):
                self._place_guests(free, way, count)
                if try_from(flavor, index + 1, left - count):
                    return True
            return False

        return try_from(0, 0, numbers[0])


def _take_amounts(free: Any, way: Way, count: int) -> None:
    """Subtract the amounts of guests from the free amounts of their host; if ``count`` is negative, add."""
    for slot, amount in way:
        free[slot] -= count * amount


def _most_guests(free: Any, way: Way) -> int:
    """Return how many guests can take the amounts of a way from its host."""
    most: int = min([free[slot] // amount for slot, amount in way])
    return max(0, most)
