"""Whole trees of providers, as far as a search needs to know them.

Thousands of hosts are alike but for their names and their usage. What they have in common is their
:class:`TreeClass`: a result of a search for one tree holds for every other tree of the class that has as much
free. A layout says where a tree has the classes of a question, in an order that leaves out the rest.

These classes hold for every request. :mod:`placement.search.equivalence` derives from them, and from what a
request reads, which trees are the same to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final, NamedTuple
from weakref import WeakValueDictionary

from placement.read_model.provider import Inventory, Provider

Where = tuple[tuple[str, ...], bool]
"""What a layout is made by: the classes, and whether it is of all providers."""


class TreeLayout(NamedTuple):
    """The providers of a tree that have any of some classes, those above them, and the root, which is first.

    The others come branch by branch; branches in which the same classes are at the same places are beside one
    another. So trees have the same ``places`` that differ in other providers, or in the order of branches.
    """

    positions: tuple[int, ...]
    """Of the providers, in the tree."""
    slots: tuple[int, ...]
    """Of what they have of the classes, provider by provider, in the order of the classes."""
    places: tuple[tuple[int, tuple[int, ...]], ...]
    """By provider the place of its parent in this order (-1: the root's), and which classes it has."""
    pick: Callable[[tuple[int, ...]], tuple[int, ...]]
    """Of what is free of a tree what is free at the slots."""

    def slots_of(self, rank: int) -> list[int]:
        """The slots of one of the classes."""
        ranks = [each for _, here in self.places for each in here]
        return [slot for slot, each in zip(self.slots, ranks, strict=True) if each == rank]


def arranged(
    lineages: Sequence[Sequence[int]],
    having: Mapping[str, Sequence[tuple[int, int]]],
    names: Sequence[str],
    *,
    whole: bool,
) -> TreeLayout:
    """The layout of a tree for these classes; with ``whole`` of all providers.

    :param lineages: as :attr:`TreeStructure.lineages`, and ``having`` as its attribute of that name.
    """
    of: dict[int, list[tuple[int, int]]] = {}
    for rank, name in enumerate(names):
        for at, slot in having.get(name, ()):
            of.setdefault(at, []).append((rank, slot))
    root = lineages[0][-1]
    kept = {above for at in of for above in lineages[at]}
    branches: dict[int, list[int]] = {}
    for at in range(len(lineages)) if whole else sorted(kept):
        if at != root:
            branches.setdefault(lineages[at][-2], []).append(at)
    sorted_out = []
    for members in branches.values():
        within = {at: index for index, at in enumerate(members)}
        code = tuple(
            [(within.get(lineages[at][1], -1), tuple([rank for rank, _ in of.get(at, ())])) for at in members]
        )
        sorted_out.append((code, members))
    sorted_out.sort()
    positions, places = [root], [(-1, tuple([rank for rank, _ in of.get(root, ())]))]
    for code, members in sorted_out:
        first = len(positions)
        positions += members
        places += [(0 if above < 0 else first + above, ranks) for above, ranks in code]
    slots = tuple([slot for at in positions for _, slot in of.get(at, ())])
    return TreeLayout(tuple(positions), slots, tuple(places), picker(slots))


def picker(slots: Sequence[int]) -> Callable[[tuple[int, ...]], Any]:
    """What is free at these slots, as a tuple."""
    if not slots:
        return lambda _: ()
    if len(slots) == 1:
        (slot,) = slots
        return lambda free: (free[slot],)
    return itemgetter(*slots)


Places = tuple[int, tuple[int, ...]]
"""The position of a provider, and slots of what it has."""

ZONE: Final = "HW_NUMA_ROOT"
"""The trait of providers that are NUMA nodes."""

_NOWHERE: Final[frozenset[str]] = frozenset()
_MAX_AGGREGATES: Final = 1024
_MAX_KEPT: Final = 16
"""Combinations of classes, and of what is free, that each shape remembers."""
_MAX_LAYOUTS: Final = 4
"""Layouts that each shape remembers: those of what is asked for again and again."""


class TreeStructure:
    """What trees may have in common beside traits: parents, classes and the portions they come in.

    A provider is known by its position in the tree, an inventory by its *slot*, where
    :attr:`Tree.free` has how much of it is free.
    """

    __slots__ = (
        "__weakref__",
        "_giving",
        "_layouts",
        "_portions_of",
        "_with_most",
        "branches",
        "capacities",
        "classes",
        "having",
        "lineages",
        "portions",
        "slots",
    )

    def __init__(self, members: Sequence[Provider]) -> None:
        positions: dict[int | None, int] = {each.id: at for at, each in enumerate(members)}
        parents = [positions.get(each.parent_id) for each in members]
        #: by position: those of the provider and of its ancestors, the root last
        self.lineages = tuple([_lineage(at, parents) for at in range(len(members))])
        #: by position: that of the topmost provider below the root that it is, or is below; None for the root
        self.branches = tuple([each[-2] if len(each) > 1 else None for each in self.lineages])
        inventories = [(at, name) for at, each in enumerate(members) for name in sorted(each.inventories)]
        self.slots = {inventory: slot for slot, inventory in enumerate(inventories)}
        #: by class: positions and slots of those that have it
        self.having: dict[str, list[tuple[int, int]]] = {}
        for (at, name), slot in self.slots.items():
            self.having.setdefault(name, []).append((at, slot))
        #: of all providers of the tree
        self.classes = frozenset(self.having)
        #: by slot: no tree of this shape ever had more
        self.capacities = [0] * len(inventories)
        #: by slot: who says in which portions there is something
        self.portions = [members[at].inventories[name] for at, name in inventories]
        self._giving: dict[tuple[str, ...], Sequence[Places]] = {}
        self._layouts: dict[Where, TreeLayout] = {}
        self._portions_of: dict[str, tuple[int, int]] = {}
        self._with_most: dict[tuple[int, ...], tuple[tuple[int, ...], Mapping[str, int]]] = {}

    def giving(self, names: tuple[str, ...]) -> Sequence[Places]:
        """Who has all of these classes: positions, and the slots of the classes in their order."""
        found = self._giving.get(names)
        if found is None:
            found = [
                (at, tuple([self.slots[at, name] for name in names]))
                for at in range(len(self.lineages))
                if all((at, name) in self.slots for name in names)
            ]
            if len(self._giving) < _MAX_KEPT:  # clients may ask for any combination
                self._giving[names] = found
        return found

    def layout(self, where: Where) -> TreeLayout:
        """Where these classes are."""
        found = self._layouts.get(where)
        if found is None:
            names, whole = where
            found = arranged(self.lineages, self.having, names, whole=whole)
            if len(self._layouts) >= _MAX_LAYOUTS:
                self._layouts.clear()
            self._layouts[where] = found
        return found

    def with_most(self, free: tuple[int, ...]) -> tuple[tuple[int, ...], Mapping[str, int]]:
        """What is free, and of each class the most that one of the providers could give then in one go.

        Mostly the same objects for trees that have as much free, such as empty ones.
        """
        found = self._with_most.get(free)
        if found is None:
            most: dict[str, int] = {}
            for (_, name), portions, here in zip(self.slots, self.portions, free, strict=True):
                at_once = min(here, portions.max_unit)
                if at_once > most.get(name, -1):
                    most[name] = at_once
            if len(self._with_most) >= _MAX_KEPT:
                self._with_most.clear()
            found = self._with_most[free] = free, most
        return found

    def any_gives(self, name: str, amount: int) -> bool:
        """Whether the amount is one that each provider with the class gives in one go; False if in doubt."""
        bounds = self._portions_of.get(name)
        if bounds is None:
            if name not in self.having:
                return False
            portions = [self.portions[slot] for _, slot in self.having[name]]
            highest = min([each.max_unit if each.step_size == 1 else 0 for each in portions])
            bounds = self._portions_of[name] = max([each.min_unit for each in portions]), highest
        return bounds[0] <= amount <= bounds[1]

    def note_capacities(self, members: Sequence[Provider]) -> None:
        """Take notice of a tree of this shape."""
        for slot, (at, name) in enumerate(self.slots):
            capacity = members[at].inventories[name].capacity
            if capacity > self.capacities[slot]:
                self.capacities[slot] = capacity


def _lineage(at: int, parents: Sequence[int | None]) -> tuple[int, ...]:
    found = [at]
    while (parent := parents[found[-1]]) is not None:
        if len(found) == len(parents):
            raise ValueError("a provider is its own ancestor")
        found.append(parent)
    return tuple(found)


class TreeClass:
    """A shape, and the traits of each provider: equal only to itself, and the same for all such trees."""

    __slots__ = ("__weakref__", "_zones", "shape", "traits")

    def __init__(self, shape: TreeStructure, traits: tuple[frozenset[str], ...]) -> None:
        self.shape = shape
        #: by position
        self.traits = traits
        self._zones: tuple[tuple[int, ...], ...] | None = None

    @property
    def zones(self) -> tuple[tuple[int, ...], ...]:
        """The positions of the providers of each zone, the NUMA node first; without any all are one zone."""
        if self._zones is None:
            self._zones = tuple(_zones(self.shape.lineages, self.traits))
        return self._zones


def _zones(
    lineages: Sequence[tuple[int, ...]], traits: Sequence[frozenset[str]]
) -> Iterator[tuple[int, ...]]:
    zones: dict[int, list[int]] = {at: [at] for at, each in enumerate(traits) if ZONE in each}
    if not zones:
        root = lineages[0][-1]
        yield root, *(at for at in range(len(lineages)) if at != root)
    for at, lineage in enumerate(lineages):
        nearest = next((above for above in lineage if above in zones), at)
        if nearest != at:
            zones[nearest].append(at)
    yield from map(tuple, zones.values())


class ProviderSet:
    """Providers that one candidate may combine, in a fixed order; equal only to itself.

    The first ``own`` of them are those of a tree of the ``shape``, the others share with it; ``uuids`` are as
    answers have them.
    """

    __slots__ = ("_uuids", "members", "shape")

    def __init__(
        self, members: tuple[Provider, ...], shape: TreeStructure, uuids: tuple[bytes, ...] | None = None
    ) -> None:
        self.members = members
        self.shape = shape
        self._uuids = uuids

    @property
    def own(self) -> int:
        """How many of them are of the tree."""
        return len(self.shape.lineages)

    @property
    def uuids(self) -> tuple[bytes, ...]:
        """As answers have them; there may be a million, most of which are in none."""
        if self._uuids is None:
            self._uuids = tuple([each.uuid.encode() for each in self.members])
        return self._uuids


class HostTree(ProviderSet):
    """A tree as it is now: its providers in ascending order of their ids.

    ``capacities`` has what may be used of each inventory, by slot, ``free`` what is free of it, below zero
    where more is used than there is; ``max_free``, by class, how much of it one of the providers could give
    in one go; ``aggregates`` those of each provider, ``all_aggregates`` those of any.
    """

    __slots__ = ("aggregates", "all_aggregates", "capacities", "free", "kind", "max_free", "root")

    def __init__(
        self,
        root: Provider,
        members: tuple[Provider, ...],
        kind: TreeClass,
        aggregates: tuple[frozenset[str], ...],
        all_aggregates: frozenset[str],
        capacities: Sequence[int],
        free: tuple[int, ...],
        max_free: Mapping[str, int],
    ) -> None:
        super().__init__(members, kind.shape)
        self.root = root
        self.kind = kind
        self.aggregates = aggregates
        self.all_aggregates = all_aggregates
        self.capacities = capacities
        self.free = free
        self.max_free = max_free

    def beside(self, shared: Sequence[Provider], uuids: tuple[bytes, ...]) -> ProviderSet:
        """The set of these providers and of those that share with them, which have these uuids."""
        return ProviderSet((*self.members, *shared), self.kind.shape, self.uuids + uuids)

    def when_empty(self, shared: Sequence[Provider]) -> ProviderSet:
        """The set if nothing were used of the tree, with as much as the largest tree of the shape has."""
        capacities = self.kind.shape.capacities
        inventories: list[dict[str, Inventory]] = [{} for _ in self.members]
        for slot, (at, name) in enumerate(self.kind.shape.slots):
            inventory = self.members[at].inventories[name]
            inventories[at][name] = replace(
                inventory, total=capacities[slot], reserved=0, allocation_ratio=1.0
            )
        own = [
            replace(each, inventories=empty, used={})
            for each, empty in zip(self.members, inventories, strict=True)
        ]
        return ProviderSet(
            (*own, *shared), self.kind.shape, self.uuids + tuple([each.uuid.encode() for each in shared])
        )


class _EqualObjects:
    """What trees have in common whose providers have the same objects: all but how much is used."""

    __slots__ = ("aggregates", "all_aggregates", "capacities", "kind", "unused")

    def __init__(
        self, kind: TreeClass, members: Sequence[Provider], aggregates: tuple[frozenset[str], ...]
    ) -> None:
        self.kind = kind
        self.aggregates = aggregates
        first, *others = {*aggregates} - {_NOWHERE} or {_NOWHERE}
        self.all_aggregates = first.union(*others) if others else first
        #: by slot
        self.capacities = [members[at].inventories[name].capacity for at, name in kind.shape.slots]
        #: what is free, and the most at once, where nothing is used
        self.unused = kind.shape.with_most(tuple(self.capacities))

    def free(self, members: Sequence[Provider]) -> tuple[tuple[int, ...], Mapping[str, int]]:
        """What is free of each inventory, and the most at once of each class."""
        used = [(at, each.used) for at, each in enumerate(members) if each.used]
        if not used:
            return self.unused
        slots, free = self.kind.shape.slots, self.capacities.copy()
        for at, amounts in used:
            for name, amount in amounts.items():
                slot = slots.get((at, name))
                if slot is not None:
                    free[slot] -= amount
        return self.kind.shape.with_most(tuple(free))


class TreeClasses:
    """All shapes and kinds that there are trees of."""

    def __init__(self) -> None:
        self._shapes: WeakValueDictionary[Hashable, TreeStructure] = WeakValueDictionary()
        self._kinds: WeakValueDictionary[Hashable, TreeClass] = WeakValueDictionary()
        #: what trees have in common that are in the same aggregates
        self._aggregates: dict[tuple[frozenset[str], ...], tuple[frozenset[str], ...]] = {}

    def trees(self, roots: Sequence[Provider], families: Sequence[tuple[Provider, ...]]) -> list[HostTree]:
        """The trees of these roots, and of the members of each."""
        found: dict[Hashable, _EqualObjects] = {}  # by identity of what stays alive meanwhile
        made = []
        for root, members in zip(roots, families, strict=True):
            first = root.id
            key = tuple(
                [
                    (
                        each.id - first,
                        None if each.parent_id is None else each.parent_id - first,
                        id(each.inventories),
                        id(each.traits),
                        id(each.aggregates),
                    )
                    for each in members
                ]
            )
            like = found.get(key)
            if like is None:
                like = found[key] = self._likeness(members)
            free, most = like.free(members)
            of_all = like.kind, like.aggregates, like.all_aggregates, like.capacities
            made.append(HostTree(root, members, *of_all, free, most))
        return made

    def _likeness(self, members: tuple[Provider, ...]) -> _EqualObjects:
        features = tuple(_features(members))
        shape = self._shapes.get(features)
        if shape is None:
            shape = self._shapes[features] = TreeStructure(members)
        traits = tuple([each.traits for each in members])
        kind = self._kinds.get((shape, traits))
        if kind is None:
            kind = self._kinds[shape, traits] = TreeClass(shape, traits)
        shape.note_capacities(members)
        aggregates = tuple([each.aggregates for each in members])
        if len(self._aggregates) >= _MAX_AGGREGATES:
            self._aggregates.clear()
        return _EqualObjects(kind, members, self._aggregates.setdefault(aggregates, aggregates))


def _features(members: Sequence[Provider]) -> Iterator[Hashable]:
    """What makes a shape."""
    positions: dict[int | None, int] = {each.id: at for at, each in enumerate(members)}
    for each in members:
        yield positions.get(each.parent_id)
        for name, inventory in sorted(each.inventories.items()):
            yield name, inventory.min_unit, inventory.max_unit, inventory.step_size
