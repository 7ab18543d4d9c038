"""Packs guests of a flavor into free amounts: finds the ways to place a guest, and how many guests fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from math import gcd
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree, TreeStructure
from placement.search.budget import SearchBudget
from placement.search.candidate_search import unused_patterns
from placement.search.candidates import CandidatePattern, PatternBatch, UnusedPatterns
from placement.search.request import CandidatesRequest
from placement_extras.planner.trials import TrialJournal, TriesExhausted

# this number of tries takes about 50 ms
_MAX_TRIES: Final = 2_000
"""Maximum number of tries to find a better packing than the first one. After these tries, the result has
bounds instead of an exact number.
"""
# with more ways, the search would reach its maximum number of tries without a result
_MAX_WAYS: Final = 200
"""The search for a better packing than the first one begins only if there are at most this number of ways."""

Free = Mapping[Any, int] | tuple[int, ...]
"""The free amounts, by slot."""


@dataclass(frozen=True, slots=True)
class FitBounds:
    """Bounds for the number of guests that fit: at least ``lower_bound`` and at most ``upper_bound``."""

    lower_bound: int
    upper_bound: int

    def __add__(self, other: FitBounds) -> FitBounds:
        return FitBounds(self.lower_bound + other.lower_bound, self.upper_bound + other.upper_bound)

    def __sub__(self, other: FitBounds) -> FitBounds:
        """Return the bounds for the remaining hosts if hosts with the bounds ``other`` are left out.

        The remaining hosts and the hosts that are left out must not have a sharing provider in common.
        """
        return FitBounds(self.lower_bound - other.lower_bound, self.upper_bound - other.upper_bound)


NONE: Final = FitBounds(0, 0)


def _one_way(way: Way) -> Callable[[Free], int]:
    """Return a function that counts the guests that fit if all guests take this way; at least 0."""
    # ways with one or two slots have faster functions, because most ways are of this kind, and the function
    # runs for thousands of hosts
    if len(way) == 1:
        ((only, each),) = way
        return lambda free: max(0, free[only] // each)
    if len(way) == 2:
        (first, one), (second, other) = way
        return lambda free: max(0, min(free[first] // one, free[second] // other))
    return lambda free: max(0, min([free[slot] // amount for slot, amount in way]))


def fit_function(found: FlavorFootprints, budget: SearchBudget) -> Callable[[Free], FitBounds]:
    """Return a function that counts the guests that fit into free amounts."""
    count = found.fit_formula
    if count is None:
        return lambda free: pack_guests(found, free, budget)

    def exact_bounds(free: Free) -> FitBounds:
        fits = count(free)
        return FitBounds(fits, fits)

    return exact_bounds


def _fit_formula(ways: Sequence[Way]) -> Callable[[Free], int] | None:
    if not ways:
        return lambda _: 0
    if len(ways) == 1:
        return _one_way(ways[0])
    common = set(ways[0]).intersection(*ways[1:])
    rests = [tuple([part for part in way if part not in common]) for way in ways]
    slots = [slot for rest in rests for slot, _ in rest]
    # a guest that takes one way leaves less room for another way, so no formula exists
    if len(set(slots)) < len(slots) or not {slot for slot, _ in common}.isdisjoint(slots):
        return None
    separate = [_one_way(rest) for rest in rests]
    if not common:
        return lambda free: sum([count(free) for count in separate])
    together = _one_way(tuple(common))
    return lambda free: min(together(free), sum([count(free) for count in separate]))


def pack_guests(
    found: FlavorFootprints, free: Free, budget: SearchBudget, upper_bound: int | None = None
) -> FitBounds:
    """Return bounds for the number of guests of one flavor that fit into the free amounts.

    The first packing fills the ways one after the other, beginning with the way that has room for the most
    guests. If this packing has fewer guests than the upper bound, a search tries to find a packing with more.

    :param upper_bound: an upper bound for the number of guests that the caller knows; None if it knows none.
    """
    search = _PackingSearch(found, free, budget)
    bound = search.bound_guests(0)
    return search.find_most(bound if upper_bound is None else min(bound, upper_bound))


class _PackingSearch:
    """Searches for the best packing by choosing the number of guests for one way after the other."""

    def __init__(self, found: FlavorFootprints, free: Free, budget: SearchBudget) -> None:
        self._budget = budget
        ways = found.ways
        budget.spend(len(ways))
        by_class: dict[str, set[Slot]] = {}
        for slot, name in found.classes.items():
            by_class.setdefault(name, set()).add(slot)
        #: the slots of each class. All ways take the same total amount of a class.
        self._by_class = list(by_class.values())
        self._left = {slot: free[slot] for way in ways for slot, _ in way}
        # the way with room for the most guests comes first, because the first packing is then usually the
        # best
        self._ways = sorted(
            (way for way in ways if self._most_guests(way)), key=self._most_guests, reverse=True
        )
        self._best = 0
        self._journal = TrialJournal(budget, _MAX_TRIES)

    def find_most(self, upper_bound: int) -> FitBounds:
        # a copy of the free amounts takes less time than an entry in the journal for each way
        left = dict(self._left)
        for way in self._ways:
            count = self._most_guests(way)
            self._take_amounts(way, count)
            self._best += count
        self._left = left
        # usually the first packing reaches the upper bound, and no search is needed
        if self._best < upper_bound and len(self._ways) <= _MAX_WAYS:
            # if the search ends after too many tries, the best packing and the upper bound are still correct
            with suppress(TriesExhausted):
                self._try_ways(0, 0, upper_bound)
                # all packings were tried, so the best packing is the maximum
                upper_bound = self._best
        return FitBounds(self._best, upper_bound)

    def bound_guests(self, first: int) -> int:
        """Return an upper bound for the number of guests that take ways from index ``first`` on.

        The result is the smallest of several bounds: the sum over these ways, and bounds from the free
        amounts of each class and each slot.
        """
        ways = self._ways[first:]
        if not ways:
            return 0
        self._budget.spend(sum(map(len, ways)))
        bound = sum(map(self._most_guests, ways))
        amounts: dict[Slot, list[int]] = {}
        for way in ways:
            for slot, amount in way:
                amounts.setdefault(slot, []).append(amount)
        for slots in self._by_class:
            each = sum([amount for slot, amount in ways[0] if slot in slots])
            volume = 0
            for slot in slots & amounts.keys():
                # guests can use the free amount of a slot only in multiples of this unit
                unit = gcd(*amounts[slot])
                volume += self._left[slot] // unit * unit
            bound = min(bound, volume // each)
        for slot, asked in amounts.items():
            # if all these ways take from this slot, the free amount of the slot gives a bound
            if len(asked) == len(ways):
                bound = min(bound, self._left[slot] // min(asked))
        return bound

    def _most_guests(self, way: Way) -> int:
        return max(0, min(self._left[slot] // amount for slot, amount in way))

    def _take_amounts(self, way: Way, count: int) -> None:
        for slot, amount in way:
            self._left[slot] -= count * amount

    def _try_ways(self, index: int, count: int, upper_bound: int) -> None:
        """Try all numbers of guests for the ways from ``index`` on, while a better packing is possible."""
        self._best = max(self._best, count)
        if self._best >= upper_bound or count + self.bound_guests(index) <= self._best:
            return
        self._journal.count_try()
        way = self._ways[index]
        # the largest number is tried first, because a good packing allows the search to skip more tries
        for number in self._journal.try_each(range(self._most_guests(way), -1, -1)):
            self._take_amounts(way, number)
            self._journal.record_undo(self._take_amounts, way, -number)
            self._try_ways(index + 1, count + number, upper_bound)
            if self._best >= upper_bound:
                break


Slot = Any
"""A slot: an inventory, or a pool of devices. A slot of the host itself is a number: the position of the
inventory in the tree. A slot of another provider is a pair of provider id and class. The slot of a pool is a
number after all positions in the tree. If slots of the host are pairs, too, the slot of a pool is the object
of the pool.
"""

Way = tuple[tuple[Slot, int], ...]
"""The amounts that one guest takes: pairs of slot and amount, in the order of the slots."""


class DevicePool(NamedTuple):
    """The slots of equal devices, and the amount in one unit. Guests take whole units of any device."""

    slots: tuple[Slot, ...]
    unit: int

    def usable_amount(self, amounts: Mapping[Any, int] | Sequence[int]) -> int:
        """Return the amount that guests can use: the sum of the free whole units of all devices."""
        unit = self.unit
        # a device that is used beyond its capacity must not reduce the sum
        return sum([amounts[slot] // unit for slot in self.slots if amounts[slot] >= unit]) * unit


@dataclass(eq=False)
class FlavorFootprints:
    """The Pareto-minimal ways of a flavor at hosts of one structure.

    A way is Pareto-minimal if no other way takes the same or less from each slot. ``classes`` has the
    resource class of each slot. ``coupled`` is set if a sharing provider of another tree serves a group of
    the request. ``pools`` has each pool by its slot.
    """

    ways: tuple[Way, ...]
    classes: Mapping[Slot, str]
    coupled: bool
    pools: Mapping[Slot, DevicePool] = field(default_factory=dict)

    @cached_property
    def fit_formula(self) -> Callable[[Free], int] | None:
        """A function that computes the number of guests from free amounts; None if there is no formula.

        A formula exists if each slot occurs in only one way, or in all ways with the same amount.
        """
        return _fit_formula(self.ways)

    def with_pools(self, amounts: Sequence[int]) -> tuple[int, ...]:
        """Return the free amounts of a tree's slots, followed by the usable amounts of its pools."""
        if not self.pools:
            return tuple(amounts)
        return (*amounts, *[pool.usable_amount(amounts) for pool in self.pools.values()])

    def single_slots(self, slots: Iterable[Slot]) -> Iterator[Slot]:
        """Yield these slots; instead of the slot of a pool, yield the slots of its devices."""
        for slot in slots:
            yield from self.pools[slot].slots if slot in self.pools else (slot,)

    def with_provider_ids(self, tree: HostTree) -> FlavorFootprints:
        """Return a copy in which a pair of provider id and class replaces each slot of the tree."""
        key = key_slots(tree, self.pools)
        return FlavorFootprints(
            tuple([tuple([(key(slot), amount) for slot, amount in way]) for way in self.ways]),
            {key(slot): name for slot, name in self.classes.items()},
            self.coupled,
            {key(slot): key(slot) for slot in self.pools},
        )

    def without_classes(self, names: Collection[str], budget: SearchBudget) -> FlavorFootprints:
        """Return the ways that remain if the request does not ask for these resource classes."""
        classes = {slot: name for slot, name in self.classes.items() if name not in names}
        left = {tuple([part for part in way if part[0] in classes]) for way in self.ways}
        ways = tuple(_pareto_minimal(left - {()}, budget))
        return FlavorFootprints(ways, classes, self.coupled, self.pools)

    def ways_within(self, capacities: Mapping[Slot, int] | Sequence[int]) -> tuple[Way, ...]:
        """Return the ways that take no more than the capacity of each slot."""
        return tuple([way for way in self.ways if all(capacities[slot] >= part for slot, part in way)])

    def with_ways(self, ways: tuple[Way, ...]) -> FlavorFootprints:
        """Return a copy that has only these ways."""
        classes = {slot: self.classes[slot] for way in ways for slot, _ in way}
        return FlavorFootprints(ways, classes, self.coupled, self.pools)


def key_slots(
    tree: HostTree, pools: Mapping[Slot, DevicePool] = MappingProxyType({})
) -> Callable[[Slot], Slot]:
    """Return a function that converts a slot of a tree to a slot that is valid at all coupled hosts."""
    names = list(tree.kind.shape.slots)

    def key_slot(slot: Slot) -> Slot:
        if slot in pools:
            return DevicePool(tuple(map(key_slot, pools[slot].slots)), pools[slot].unit)
        if isinstance(slot, int):
            at, name = names[slot]
            return tree.members[at].id, name
        return slot

    return key_slot


def most_by_volume(guests: int, asked: Mapping[str, Mapping[int, int]], there: Mapping[str, int]) -> int:
    """Return an upper bound for the number of guests that fit, from the sum of free amounts of each class.

    :param asked: the number of guests that request each amount, by resource class and amount.
    :param there: the free amounts of all hosts together, by resource class.
    """
    bound = guests
    for name, sizes in asked.items():
        left, fits = there[name], guests - sum(sizes.values())
        # guests with the smallest amounts come first, because this order leaves room for the most guests
        for amount, number in sorted(sizes.items()):
            # an adopted database can have allocations of 0, which always fit
            here = min(number, left // amount) if amount else number
            fits, left = fits + here, left - here * amount
        bound = min(bound, fits)
    return bound


NO_WAYS: Final = FlavorFootprints((), {}, coupled=False)


class FootprintFinder:
    """Finds the ways of a flavor at hosts. Equivalent hosts are searched only once.

    Equal devices are combined into pools.
    """

    def __init__(self, snapshot: ModelSnapshot, request: CandidatesRequest, budget: SearchBudget) -> None:
        self._budget = budget
        self._patterns = unused_patterns(snapshot, request, budget, pooled=True)
        self._found: dict[tuple[PatternBatch, TreeStructure], FlavorFootprints] = {}

    def footprints_at(
        self, tree: HostTree, shared: Sequence[Provider], parts: tuple[int, ...] = ()
    ) -> FlavorFootprints:
        """Return the ways to place a guest at a host, including ways that use sharing providers.

        :param parts: a number for each provider of the host. Only devices with the same number form a pool.
        """
        unused = self._patterns(tree, shared, parts)
        patterns = unused.patterns
        if not patterns:
            return NO_WAYS
        # the search returns the same object of patterns for equivalent trees, so the object is a part of the
        # key
        key = (patterns, tree.kind.shape)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._find_ways(unused, tree, shared)
        return found

    def _find_ways(
        self, unused: UnusedPatterns, tree: HostTree, shared: Sequence[Provider]
    ) -> FlavorFootprints:
        patterns, slots = unused.patterns, tree.kind.shape.slots
        classes: dict[Slot, str] = {}
        pools: dict[Slot, DevicePool] = {}
        pool_of = {at: pool for pool in unused.pools for at in pool[0]}
        pool_slots: dict[object, int] = {}

        def taken_way(pattern: CandidatePattern) -> Way:
            self._budget.spend(1 + len(pattern.resources))
            way: dict[Any, int] = {}
            for at, amounts in pattern.resources.items():
                for name, amount in amounts.items():
                    slot: Slot = (
                        slots[at, name] if at < tree.own_count else (shared[at - tree.own_count].id, name)
                    )
                    if at in pool_of:
                        members, unit = pool_of[at]
                        slot = pool_slots.setdefault(pool_of[at], len(slots) + len(pool_slots))
                        pools[slot] = DevicePool(tuple([slots[each, name] for each in members]), unit)
                    classes[slot] = name
                    way[slot] = way.get(slot, 0) + amount
            return tuple(sorted(way.items(), key=_slot_order))

        found = {taken_way(pattern) for pattern in patterns}
        coupled = any(
            at >= tree.own_count
            for pattern in patterns
            for served in pattern.mappings.values()
            for at in served
        )
        return FlavorFootprints(tuple(_pareto_minimal(found, self._budget)), classes, coupled, pools)


def _slot_order(part: tuple[Any, int]) -> tuple[bool, Any]:
    return isinstance(part[0], tuple), part[0]


def _pareto_minimal(ways: Iterable[Way], budget: SearchBudget) -> list[Way]:
    """Return only the Pareto-minimal ways."""
    kept: list[dict[Any, int]] = []
    for way in sorted(map(dict, ways), key=lambda way: (len(way), sum(way.values()))):
        budget.spend(1 + len(kept))
        # a way is left out if another way takes the same or less from each slot
        if not any(all(way.get(slot, 0) >= amount for slot, amount in other.items()) for other in kept):
            kept.append(way)
    # ways are sorted, so that equal clouds get equal answers. Slots have different types, which cannot be
    # compared, so repr() is the sort key.
    return sorted([tuple(way.items()) for way in kept], key=repr)
