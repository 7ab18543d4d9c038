"""What is short on full hosts, and what is stranded there: free, and of no use to a flavor."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

from placement.model.provider import Provider
from placement.model.trees import HostTree
from placement.search.budget import SearchBudget
from placement_extras.planner.packing import FitBounds, Free, packer
from placement_extras.planner.ways import FlavorFootprints, Slot, Way

MAX_EXAMPLES: Final = 5
"""Hosts that are named for each set of classes that are short."""


@dataclass(frozen=True, slots=True)
class StrandedHost:
    """A full host by its root: what is stranded there by class, and how many guests that would do for."""

    root: Provider
    stranded: Mapping[str, int]
    guests: int


@dataclass(frozen=True, slots=True)
class ShortClasses:
    """Full hosts of which these classes are short: how many, and what is stranded there, by class.

    For ``guests`` more that would do, if there were enough of what is short. ``examples`` begin with the
    hosts that strand most of them.
    """

    classes: tuple[str, ...]
    hosts: int
    stranded: Mapping[str, int]
    guests: int
    examples: tuple[StrandedHost, ...]


class StrandedAmounts:
    """Gathers the full hosts."""

    def __init__(self, budget: SearchBudget) -> None:
        self._budget = budget
        self._lacking: dict[tuple[FlavorFootprints, frozenset[str]], _LackingHosts] = {}
        self._gathered: dict[tuple[str, ...], _GatheredHosts] = {}

    def add(
        self, tree: HostTree, ways: FlavorFootprints, free: Free, shared: Collection[int] = frozenset()
    ) -> None:
        """Note a host at which none of the ways can be had.

        :param shared: ids of providers that share with it, where slots are provider ids and classes. What
            is free of them is stranded nowhere.
        """
        short = min(
            (_short(way, ways, free) for way in ways.ways), key=lambda names: (len(names), sorted(names))
        )
        key = (ways, short)
        lacking = self._lacking.get(key)
        if lacking is None:
            lacking = self._lacking[key] = _LackingHosts(ways, short, shared, self._budget)
            self._gathered.setdefault(lacking.classes, _GatheredHosts())
        stranded = {
            name: sum([free[slot] for slot in slots if free[slot] > 0]) for name, slots in lacking.others
        }
        guests = lacking.fit(free).fits if stranded else 0
        self._gathered[lacking.classes].add(tree, stranded, guests)

    def found(self) -> tuple[ShortClasses, ...]:
        """What is short, most hosts first."""
        ordered = sorted(self._gathered.items(), key=lambda item: (-item[1].hosts, item[0]))
        return tuple([gathered.short(classes) for classes, gathered in ordered])


def _short(way: Way, ways: FlavorFootprints, free: Free) -> frozenset[str]:
    return frozenset([ways.classes[slot] for slot, amount in way if free[slot] < amount])


class _LackingHosts:
    """Hosts of certain ways where certain classes are short."""

    def __init__(
        self, ways: FlavorFootprints, short: frozenset[str], shared: Collection[int], budget: SearchBudget
    ) -> None:
        self.classes = tuple(sorted(short))
        slots: dict[str, list[Slot]] = {}
        for slot, name in ways.classes.items():
            if name not in short and not (shared and slot[0] in shared):
                slots.setdefault(name, []).append(slot)
        #: the other classes, with their slots
        self.others = tuple(sorted(slots.items()))
        left = ways.without(short, budget)
        #: how many guests fit as far as the other classes go
        self.fit: Callable[[Free], FitBounds] = packer(left, budget)


@dataclass(slots=True)
class _GatheredHosts:
    hosts: int = 0
    guests: int = 0
    stranded: dict[str, int] = field(default_factory=dict)
    examples: list[tuple[int, str, int, StrandedHost]] = field(default_factory=list)

    def add(self, tree: HostTree, stranded: Mapping[str, int], guests: int) -> None:
        self.hosts += 1
        self.guests += guests
        for name, amount in stranded.items():
            self.stranded[name] = self.stranded.get(name, 0) + amount
        if guests:
            root = tree.root
            self.examples.append((-guests, root.name, root.id, StrandedHost(root, stranded, guests)))

    def short(self, classes: tuple[str, ...]) -> ShortClasses:
        examples = nsmallest(MAX_EXAMPLES, self.examples)
        return ShortClasses(
            classes, self.hosts, self.stranded, self.guests, tuple([each[-1] for each in examples])
        )
