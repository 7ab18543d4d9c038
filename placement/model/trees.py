"""Whole trees of providers, as far as a search needs to know them.

Thousands of hosts are alike but for their names and for what is used of them. What
they have in common is their :class:`Kind`: whatever a search finds out about one
tree of a kind holds for every other that has as much free.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Final
from weakref import WeakValueDictionary

from placement.model.provider import Inventory, Provider

_NOWHERE: Final[frozenset[str]] = frozenset()


class Shape:
    """What trees may have in common beside traits: parents, classes and the portions they come in.

    A provider is known by its position in the tree, an inventory by its *slot*, where
    :attr:`Tree.free` has how much of it is free.
    """

    __slots__ = (
        "__weakref__",
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

    def note_capacities(self, members: Sequence[Provider]) -> None:
        """Take notice of a tree of this shape."""
        for slot, (at, name) in enumerate(self.slots):
            capacity = members[at].inventories[name].capacity
            if capacity > self.capacities[slot]:
                self.capacities[slot] = capacity


def _lineage(at: int, parents: Sequence[int | None]) -> tuple[int, ...]:
    found = [at]
    while (parent := parents[found[-1]]) is not None:
        found.append(parent)
    return tuple(found)


class Kind:
    """A shape, and the traits of each provider: equal only to itself, and the same for all such trees."""

    __slots__ = ("__weakref__", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape


class ProviderSet:
    """Providers that one candidate may combine, in a fixed order; equal only to itself.

    The first ``own`` of them are those of a tree of the ``shape``, the others share with it; ``uuids`` are as
    answers have them.
    """

    __slots__ = ("members", "own", "shape", "uuids")

    def __init__(self, members: tuple[Provider, ...], shape: Shape, uuids: tuple[bytes, ...]) -> None:
        self.members = members
        self.own = len(shape.lineages)
        self.shape = shape
        self.uuids = uuids


class Tree(ProviderSet):
    """A tree as it is now: its providers in ascending order of their ids.

    ``free`` has what is free of each inventory, below zero where more is used than
    there is; ``max_free``, by class, how much of it one of the providers could give in one
    go; ``aggregates`` those of each provider, ``all_aggregates`` those of any.
    """

    __slots__ = ("_sums", "aggregates", "all_aggregates", "free", "kind", "max_free", "root")

    def __init__(self, root: Provider, members: tuple[Provider, ...], kind: Kind) -> None:
        super().__init__(members, kind.shape, tuple([each.uuid.encode() for each in members]))
        self.root = root
        self.kind = kind
        self.aggregates = tuple([each.aggregates for each in members])
        first, *others = {*self.aggregates} - {_NOWHERE} or {_NOWHERE}
        self.all_aggregates = first.union(*others) if others else first
        self.max_free: dict[str, int] = {}
        free = []
        for at, name in kind.shape.slots:
            provider = members[at]
            inventory = provider.inventories[name]
            here = inventory.capacity - provider.used.get(name, 0)
            free.append(here)
            at_once = min(here, inventory.max_unit)
            if at_once > self.max_free.get(name, -1):
                self.max_free[name] = at_once
        self.free = tuple(free)
        self._sums: dict[str, tuple[int, int]] = {}

    def sums(self, name: str) -> tuple[int, int]:
        """Of a class that it has how much all its providers together use, and could give; found out once."""
        found = self._sums.get(name)
        if found is None:
            used = capacity = 0
            for at, slot in self.kind.shape.having[name]:
                here = self.members[at].inventories[name].capacity
                used += here - self.free[slot]
                if here > 0:
                    capacity += here
            found = self._sums[name] = used, capacity
        return found

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


class Kinds:
    """All shapes and kinds that there are trees of."""

    def __init__(self) -> None:
        self._shapes: WeakValueDictionary[Hashable, Shape] = WeakValueDictionary()
        self._kinds: WeakValueDictionary[Hashable, Kind] = WeakValueDictionary()

    def tree(self, root: Provider, members: tuple[Provider, ...]) -> Tree:
        """The tree of these providers."""
        features = tuple(_features(members))
        shape = self._shapes.get(features)
        if shape is None:
            shape = self._shapes[features] = Shape(members)
        key = (shape, *[each.traits for each in members])
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = Kind(shape)
        shape.note_capacities(members)
        return Tree(root, members, kind)


def _features(members: Sequence[Provider]) -> Iterator[Hashable]:
    """What makes a shape."""
    positions: dict[int | None, int] = {each.id: at for at, each in enumerate(members)}
    for each in members:
        yield positions.get(each.parent_id)
        for name, inventory in sorted(each.inventories.items()):
            yield name, inventory.min_unit, inventory.max_unit, inventory.step_size
