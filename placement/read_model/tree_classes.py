"""The classes of all trees of the read model: trees share equal objects, and equivalent hosts are indexed.

:class:`TreeClasses` makes the trees of a snapshot. Trees that differ only in names and usage get the same
objects for everything else. So a cloud of thousands of equal hosts takes little memory, and searches compare
these objects by identity.

Hosts are *equivalent* if their trees have the same structure, traits and aggregates. Attributes do not
matter. The traits of disabled hosts do not matter either. But windows do not move to a disabled host, so the
index of equivalent hosts has no disabled hosts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final
from weakref import WeakValueDictionary

from placement.read_model.provider import STATUS_TRAITS, Provider
from placement.read_model.trees import HostTree, PortionBounds, TreeClass, TreeFrame, TreeStructure

_NOWHERE: Final[frozenset[str]] = frozenset()
_MAX_AGGREGATES: Final = 1024
"""Maximum number of combinations of aggregates in the cache.

When there are more, the cache is emptied.
"""

# map() with this getter runs in C, because the start of a worker reads each member of each tree
_USED_AMOUNTS: Final = attrgetter("used")


class _EqualObjects:
    """The values of a tree that do not depend on usage; trees with equal values share one object."""

    __slots__ = ("aggregates", "all_aggregates", "capacities", "kind", "unused")

    def __init__(
        self, kind: TreeClass, members: Sequence[Provider], aggregates: tuple[frozenset[str], ...]
    ) -> None:
        self.kind = kind
        self.aggregates = aggregates
        first, *others = {*aggregates} - {_NOWHERE} or {_NOWHERE}
        self.all_aggregates = first.union(*others) if others else first
        #: the capacity of each slot
        self.capacities = [members[at].inventories[name].capacity for at, name in kind.shape.slots]
        #: for an unused tree: free amounts by slot, and by class the largest amount that one provider can
        #: give
        self.unused = kind.shape.with_most(tuple(self.capacities))

    def free(self, members: Sequence[Provider]) -> tuple[tuple[int, ...], Mapping[str, int]]:
        """Return the free amounts by slot, and by class the largest amount that one provider can give."""
        if any(map(_USED_AMOUNTS, members)):
            return self.kind.shape.free_amounts(self.capacities, members)
        return self.unused


class TreeClasses:
    """All frames, structures and classes of current trees."""

    def __init__(self) -> None:
        # the references are weak, so that a frame, structure or class disappears with its last tree
        self._frames: WeakValueDictionary[Hashable, TreeFrame] = WeakValueDictionary()
        self._shapes: WeakValueDictionary[Hashable, TreeStructure] = WeakValueDictionary()
        self._kinds: WeakValueDictionary[Hashable, TreeClass] = WeakValueDictionary()
        #: for each class, the bounds of all structures so far, also of those that have disappeared
        self.bounds: dict[str, PortionBounds] = {}
        #: tuples of aggregates; trees with equal aggregates share one tuple
        self._aggregates: dict[tuple[frozenset[str], ...], tuple[frozenset[str], ...]] = {}

    def make_trees(
        self,
        roots: Sequence[Provider],
        families: Sequence[tuple[Provider, ...]],
        keys: Sequence[Hashable],
    ) -> list[HostTree]:
        """Return the trees with these roots and members.

        :param keys: a key for each tree. Trees with equal keys have their providers at the same places, and
            the same objects as inventories, traits and aggregates.
        """
        found: dict[Hashable, _EqualObjects] = {}
        made = []
        for root, members, key in zip(roots, families, keys, strict=True):
            like = found.get(key)
            if like is None:
                like = found[key] = self._equal_objects_of(members)
            free, most = like.free(members)
            of_all = like.kind, like.aggregates, like.all_aggregates, like.capacities
            # positional arguments are faster, and this runs for each tree of the cloud
            made.append(HostTree(root, members, *of_all, free, most))
        return made

    def renew_trees(
        self,
        before: Sequence[HostTree | None],
        roots: Sequence[Provider],
        families: Sequence[tuple[Provider, ...]],
    ) -> list[HostTree]:
        """Return the trees with these roots and members; ``before`` has each tree before its last change."""
        # most changes concern usage, and keep everything else
        made = [
            None if old is None else old.when_used(root, members)
            for old, root, members in zip(before, roots, families, strict=True)
        ]
        left = [at for at, each in enumerate(made) if each is None]
        others = [families[at] for at in left]
        new = iter(self.make_trees([roots[at] for at in left], others, list(map(family_key, others))))
        return [next(new) if each is None else each for each in made]

    def _equal_objects_of(self, members: tuple[Provider, ...]) -> _EqualObjects:
        shape = self._structure_of(members)
        traits = tuple([each.traits for each in members])
        # the structure itself is in the key: it is compared by identity, so its features are not hashed again
        kind = self._kinds.get((shape, traits))
        if kind is None:
            kind = self._kinds[shape, traits] = TreeClass(shape, traits)
        # capacities are noted separately, because hosts of all sizes share one structure
        shape.note_capacities(members)
        aggregates = tuple([each.aggregates for each in members])
        if len(self._aggregates) >= _MAX_AGGREGATES:
            self._aggregates.clear()
        return _EqualObjects(kind, members, self._aggregates.setdefault(aggregates, aggregates))

    def _structure_of(self, members: tuple[Provider, ...]) -> TreeStructure:
        positions: dict[int | None, int] = {each.id: at for at, each in enumerate(members)}
        parents = tuple([positions.get(each.parent_id) for each in members])
        names = tuple([tuple(sorted(each.inventories)) for each in members])
        frame = self._frames.get((parents, names))
        if frame is None:
            frame = self._frames[parents, names] = TreeFrame(parents, names)
        inventories = [members[at].inventories[name] for at, name in frame.slots]
        portions = tuple([(each.min_unit, each.max_unit, each.step_size) for each in inventories])
        # the frame itself is in the key: it is compared by identity, so its names are not hashed again
        shape = self._shapes.get((frame, portions))
        if shape is None:
            shape = self._shapes[frame, portions] = TreeStructure(frame, members)
            for name in shape.having:
                known, found = self.bounds.get(name), shape.find_bounds(name)
                self.bounds[name] = found if known is None else known.joined_with(found)
        return shape


def family_key(members: Sequence[Provider]) -> Hashable:
    """Return a key of a tree for :meth:`TreeClasses.make_trees`, valid while these providers exist.

    The key has identities of objects, because hashing their values would take longer.
    """
    # ids are relative to the lowest id, so that hosts with providers that were created in the same order have
    # equal keys
    first = members[0].id
    return tuple(
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


class EquivalentHosts:
    """The roots of all hosts that are not disabled, by equivalence, for moves of windows between hosts."""

    def __init__(self, trees: Mapping[int, HostTree]) -> None:
        self._roots: dict[Hashable, list[int]] = {}
        # few classes of trees have many hosts, so the traits of most hosts are not read
        lists: dict[Hashable, list[int]] = {}
        for root, tree in trees.items():
            known = tree.kind, tree.aggregates
            roots = lists.get(known)
            if roots is None:
                disabled = any(STATUS_TRAITS & each for each in tree.kind.traits)
                roots = lists[known] = [] if disabled else self._roots.setdefault(_likeness_of(tree), [])
            roots.append(root)

    def roots_like(self, tree: HostTree) -> Sequence[int]:
        """Return the roots of the hosts that are equivalent to this one, perhaps with this one."""
        return self._roots.get(_likeness_of(tree), ())


def _likeness_of(tree: HostTree) -> Hashable:
    return tree.shape, tuple(each - STATUS_TRAITS for each in tree.kind.traits), tree.aggregates


def any_differs(before: Iterable[HostTree | None], after: Iterable[HostTree]) -> bool:
    """Return whether any of these trees has more than another usage; None stands for a new tree."""
    return any(
        old is None or old.kind is not new.kind or old.aggregates is not new.aggregates
        for old, new in zip(before, after, strict=True)
    )
