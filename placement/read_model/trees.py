"""Whole trees of providers, in the form in which searches need them.

Thousands of hosts differ only in names and usage. Hosts without another difference belong to one
:class:`TreeClass`. The result of a search for one tree is valid for every other tree of the class with the
same free amounts. The exceptions are requests that read other attributes, such as aggregates. A layout
contains the positions of the requested resource classes in a tree, in an order that does not depend on other
providers.

These classes do not depend on requests. The module :mod:`placement.search.equivalence` finds the trees that
are equivalent for one request, by these classes and the attributes that the request reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, TypeVar

from placement.read_model.provider import Inventory, Provider

_K = TypeVar("_K")
_V = TypeVar("_V")

Where = tuple[tuple[str, ...], bool]
"""The key of a layout: some resource classes, and whether the layout contains all providers."""


class TreeLayout(NamedTuple):
    """The part of a tree that a request concerns, in an order that does not depend on other providers.

    The part consists of the root, all providers with any of the requested resource classes, and their
    ancestors.

    The root comes first, and the other providers follow branch by branch.

    Branches with the same classes at the same places are adjacent. So two trees have the same ``places`` if
    they differ only in providers without these classes, or in the order of branches.
    """

    positions: tuple[int, ...]
    """The positions of the providers in the tree."""
    slots: tuple[int, ...]
    """The slots of the inventories of these classes, sorted by provider and then by class."""
    places: tuple[tuple[int, tuple[int, ...]], ...]
    """For each provider, the index of its parent in the layout (-1 for the root), and its resource classes,
    as their indexes among the classes of the layout."""
    pick: Callable[[tuple[int, ...]], tuple[int, ...]]
    """A function that picks the free amounts of ``slots`` from the free amounts of a whole tree."""

    def slots_of(self, rank: int) -> list[int]:
        """Return the slots of a class; ``rank`` is the index of the class among the classes of the layout."""
        ranks = [each for _, here in self.places for each in here]
        return [slot for slot, each in zip(self.slots, ranks, strict=True) if each == rank]


def arrange_tree(
    lineages: Sequence[Sequence[int]],
    having: Mapping[str, Sequence[tuple[int, int]]],
    names: Sequence[str],
    *,
    whole: bool,
) -> TreeLayout:
    """Return the layout of a tree for these classes; with ``whole``, it contains all providers.

    :param lineages: for each position, this position and those of the ancestors, the root last, as in
        :attr:`TreeFrame.lineages`.
    :param having: for each resource class, the positions and slots that have it, as in
        :attr:`TreeFrame.having`.
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
    # each branch has a code for its content, and branches are sorted by these codes, so that the order does
    # not depend on ids
    sorted_out.sort()
    positions, places = [root], [(-1, tuple([rank for rank, _ in of.get(root, ())]))]
    for code, members in sorted_out:
        first = len(positions)
        positions += members
        places += [(0 if above < 0 else first + above, ranks) for above, ranks in code]
    slots = tuple([slot for at in positions for _, slot in of.get(at, ())])
    return TreeLayout(tuple(positions), slots, tuple(places), slot_picker(slots))


def slot_picker(slots: Sequence[int]) -> Callable[[tuple[int, ...]], Any]:
    """Return a function that picks the amounts of these slots from the free amounts of a tree, as a tuple."""
    if not slots:
        return lambda _: ()
    # a single index is a separate case, because an itemgetter with one index returns no tuple
    if len(slots) == 1:
        (slot,) = slots
        return lambda free: (free[slot],)
    return itemgetter(*slots)


class BoundedCache(dict[_K, _V]):
    """Results that are kept for later requests, up to a maximum number."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        self._most = most

    def keep_value(self, key: _K, value: _V) -> _V:
        """Keep a result, and return it; if the cache is full, drop every second result."""
        # tracking the use of each result would cost more than making a few results again. Of requests that
        # come in turn, the oldest one comes next, so dropping all old results would lose every hit
        if len(self) >= self._most:
            # a list is copied in one step, and another thread may drop the same results
            for dropped in list(self)[::2]:
                self.pop(dropped, None)
        self[key] = value
        return value


Places = tuple[int, tuple[int, ...]]
"""The position of a provider, and the slots of some of its inventories."""
Options = tuple[tuple[int, ...], ...]
"""For each need of a request, the positions of the providers that can serve it."""
ListEnd = Literal["full", "rest", "done"]
"""The reason for the end of a list of results: it is full, the search rests, or there are no more results."""
FirstAssignments = tuple[Sequence[tuple[int, ...]], ListEnd]
"""The first assignments of providers to the needs of a request, by positions, and the end of the list."""

ZONE: Final = "HW_NUMA_ROOT"
"""The trait of NUMA nodes."""

_MAX_KEPT: Final = 16
"""Maximum number of combinations of classes that each frame caches, and of tuples of free amounts that each
structure caches.
"""
_MAX_LAYOUTS: Final = 4
"""Maximum number of layouts that each frame caches, which suffices because most requests repeat."""
_MAX_PARTS: Final = 8
"""Maximum number of results for different options that each frame caches; successive requests mostly have the
same options.
"""

_MAX_CHOSEN: Final = 64
"""Maximum number of positions in options, and of needs in rules, for which results are kept."""


class PortionBounds(NamedTuple):
    """The bounds of one resource class at several providers: which amounts one allocation can have.

    The fields are the lowest and the highest ``min_unit``, the lowest and the highest ``max_unit``, and the
    common ``step_size``, or 0 if these differ.
    """

    least: int
    lowest: int
    common: int
    most: int
    step: int

    def joined_with(self, other: PortionBounds) -> PortionBounds:
        """Return the bounds of all providers that these and the other bounds describe."""
        return PortionBounds(
            min(self.least, other.least),
            max(self.lowest, other.lowest),
            min(self.common, other.common),
            max(self.most, other.most),
            self.step if self.step == other.step else 0,
        )

    def give_verdict(self, amount: int) -> bool | None:
        """Return True if each provider allows the amount, and False if it exceeds each ``max_unit``.

        The result is None if the providers differ, or if another bound perhaps forbids the amount.
        """
        # the result is None for other step sizes, where each multiple would have to be tested
        if self.step != 1 or amount < self.lowest:
            return None
        return True if amount <= self.common else False if amount > self.most else None

    @property
    def common_unit(self) -> tuple[int, int] | None:
        """The ``min_unit`` and the ``step_size`` of all providers; None if these differ."""
        return (self.least, self.step) if self.step and self.least == self.lowest else None


class TreePart(NamedTuple):
    """Some providers of a tree and some of its sharing providers, which stand for the whole in a search.

    Unlike trees can have equal parts, because a place is an index within the part, and numbers stand for
    branches.
    """

    positions: tuple[int, ...]
    """The positions in the provider set; the first one is 0, so that a part tells which tree it is from."""
    chosen: tuple[tuple[int, ...], ...]
    """The places of the chosen positions."""
    pick: Callable[[tuple[Any, ...]], tuple[Any, ...]]
    """A function that picks the part from all members."""
    own_count: int
    """The number of providers that belong to the tree; sharing providers follow."""
    lineages: tuple[tuple[int, ...], ...]
    """For each provider of the tree, the places of the provider and its ancestors."""
    branches: tuple[int | None, ...]
    """For each provider, a number of its branch; None for root and sharing providers."""


def is_keepable(options: Sequence[Sequence[int]]) -> bool:
    """Return whether results for these options, or these rules of needs, may be kept for later requests."""
    # results for requests with many groups or rules would take much memory, and rarely occur again
    return sum(map(len, options)) <= _MAX_CHOSEN


class TreeFrame:
    """The parents and resource classes that several structures with different portions have in common.

    In a cloud of hosts of all sizes, each host may have a structure of its own, but few frames exist. A frame
    identifies a provider by its position in the tree, and an inventory by its *slot*: the index of the free
    amount in :attr:`HostTree.free`.
    """

    __slots__ = (
        *("__weakref__", "_giving", "_layouts", "_parts"),
        *("branches", "classes", "having", "lineages", "slots", "within_reach"),
    )

    def __init__(self, parents: Sequence[int | None], names: Sequence[Sequence[str]]) -> None:
        #: for each position, the positions of the provider and its ancestors, the root last
        self.lineages = tuple([_lineage_of(at, parents) for at in range(len(parents))])
        #: for each position, the topmost ancestor below the root; None for the root
        self.branches = tuple([each[-2] if len(each) > 1 else None for each in self.lineages])
        inventories = [(at, name) for at, own in enumerate(names) for name in own]
        self.slots = {inventory: slot for slot, inventory in enumerate(inventories)}
        #: for each class, the positions and slots of the providers that have it
        self.having: dict[str, list[tuple[int, int]]] = {}
        for (at, name), slot in self.slots.items():
            self.having.setdefault(name, []).append((at, slot))
        #: the classes of all providers of the tree
        self.classes = frozenset(self.having)
        # these caches are in the frame, so that they are dropped with its last tree
        self._giving: dict[tuple[str, ...], Sequence[Places]] = {}
        self._layouts: BoundedCache[Where, TreeLayout] = BoundedCache(_MAX_LAYOUTS)
        self._parts: BoundedCache[Options, TreePart] = BoundedCache(_MAX_PARTS)
        #: by the same_subtree rules of a request, each with the indexes of its needs, and the options of each
        #: need: the options that the rules leave, or None if a need has no option left. The search fills this
        #: cache
        self.within_reach: BoundedCache[tuple[Options, Options], Options | None] = BoundedCache(_MAX_PARTS)

    def places_giving(self, names: tuple[str, ...]) -> Sequence[Places]:
        """Return the position and the slots of each provider that has all these resource classes."""
        found = self._giving.get(names)
        if found is None:
            found = [
                (at, tuple([self.slots[at, name] for name in names]))
                for at in range(len(self.lineages))
                if all((at, name) in self.slots for name in names)
            ]
            # the size of the cache is limited, because clients may ask for any combination of classes
            if len(self._giving) < _MAX_KEPT:
                self._giving[names] = found
        return found

    def layout_of(self, where: Where) -> TreeLayout:
        """Return the layout for these classes from the cache; make it if it is missing."""
        found = self._layouts.get(where)
        if found is None:
            names, whole = where
            layout = arrange_tree(self.lineages, self.having, names, whole=whole)
            found = self._layouts.keep_value(where, layout)
        return found

    def part_of(self, chosen: Options) -> TreePart:
        """Return the part of a provider set with these positions from the cache; make it if it is missing."""
        found = self._parts.get(chosen)
        if found is None:
            positions = tuple(sorted({0}.union(*chosen)))
            place = {at: rank for rank, at in enumerate(positions)}
            own = [at for at in positions if at < len(self.lineages)]
            numbers: dict[int | None, int | None] = {None: None}
            branches = [numbers.setdefault(self.branches[at], len(numbers)) for at in own]
            found = TreePart(
                positions,
                tuple([tuple([place[at] for at in each]) for each in chosen]),
                slot_picker(positions),
                len(own),
                tuple([tuple([place[up] for up in self.lineages[at] if up in place]) for at in own]),
                (*branches, *(None,) * (len(positions) - len(own))),
            )
            if is_keepable(chosen):
                self._parts.keep_value(chosen, found)
        return found


class TreeStructure:
    """The parents, resource classes and portions that several trees have in common.

    A portion is the ``min_unit``, ``max_unit`` and ``step_size`` of an inventory. Traits and amounts can
    differ. Positions and slots are those of the :class:`TreeFrame`.
    """

    __slots__ = (
        "__weakref__",
        "_bounds",
        "_with_most",
        "branches",
        "capacities",
        "classes",
        "frame",
        "having",
        "lineages",
        "portions",
        "slots",
    )

    def __init__(self, frame: TreeFrame, members: Sequence[Provider]) -> None:
        self.frame = frame
        # the structure refers to the values of its frame, because searches read them for each tree
        self.lineages, self.branches = frame.lineages, frame.branches
        self.slots, self.having, self.classes = frame.slots, frame.having, frame.classes
        #: for each slot, the largest capacity that any tree of this structure has had so far
        self.capacities = [0] * len(self.slots)
        #: for each slot, an inventory with the portions of the slot
        self.portions = [members[at].inventories[name] for at, name in self.slots]
        # these caches are in the structure, so that they are dropped with its last tree
        self._bounds: dict[str, PortionBounds] = {}
        self._with_most: BoundedCache[tuple[int, ...], tuple[tuple[int, ...], Mapping[str, int]]] = (
            BoundedCache(_MAX_KEPT)
        )

    def places_giving(self, names: tuple[str, ...]) -> Sequence[Places]:
        """Return the position and the slots of each provider that has all these resource classes."""
        return self.frame.places_giving(names)

    def free_amounts(
        self, capacities: Sequence[int], members: Sequence[Provider]
    ) -> tuple[tuple[int, ...], Mapping[str, int]]:
        """Return the free amounts by slot, and by class the largest amount that one provider can give.

        :param capacities: the capacity of each slot.
        """
        slots, free = self.slots, [*capacities]
        for at, each in enumerate(members):
            for name, amount in each.used.items():
                # usage without an inventory is ignored: usage may outlast its inventory, and then has no slot
                slot = slots.get((at, name))
                if slot is not None:
                    free[slot] -= amount
        return self.with_most(tuple(free))

    def with_most(self, free: tuple[int, ...]) -> tuple[tuple[int, ...], Mapping[str, int]]:
        """Return the free amounts, and by class the largest at one provider; equal amounts share objects."""
        found = self._with_most.get(free)
        if found is None:
            most: dict[str, int] = {}
            for (_, name), portions, here in zip(self.slots, self.portions, free, strict=True):
                at_once = min(here, portions.max_unit)
                if at_once > most.get(name, -1):
                    most[name] = at_once
            # empty hosts, which profit most, soon share one object again if the cache was full
            found = self._with_most.keep_value(free, (free, most))
        return found

    def find_bounds(self, name: str) -> PortionBounds:
        """Return the bounds of the providers of a class that the structure has."""
        portions = [self.portions[slot] for _, slot in self.having[name]]
        lows = [each.min_unit for each in portions]
        highs = [each.max_unit for each in portions]
        steps = {each.step_size for each in portions}
        step = steps.pop() if len(steps) == 1 else 0
        return PortionBounds(min(lows), max(lows), min(highs), max(highs), step)

    def bounds_of(self, name: str) -> PortionBounds:
        """Return the bounds of the providers of a class that the structure has; computed on demand."""
        found = self._bounds.get(name)
        if found is None:
            found = self._bounds[name] = self.find_bounds(name)
        return found

    def any_gives(self, name: str, amount: int) -> bool:
        """Return whether every provider with the class is known to allow this amount in one allocation."""
        return name in self.having and self.bounds_of(name).give_verdict(amount) is True

    def note_capacities(self, members: Sequence[Provider]) -> None:
        """Raise the capacities that the structure remembers to at least those of this tree."""
        for slot, (at, name) in enumerate(self.slots):
            capacity = members[at].inventories[name].capacity
            if capacity > self.capacities[slot]:
                self.capacities[slot] = capacity


def _lineage_of(at: int, parents: Sequence[int | None]) -> tuple[int, ...]:
    found = [at]
    while (parent := parents[found[-1]]) is not None:
        if len(found) == len(parents):
            # the loop stops at a cycle of parents, which damaged data may contain
            raise ValueError("a provider is its own ancestor")
        found.append(parent)
    return tuple(found)


class TreeClass:
    """A structure with the traits at each position. All trees of one class share the same object."""

    __slots__ = ("__weakref__", "_zones", "shape", "traits")

    def __init__(self, shape: TreeStructure, traits: tuple[frozenset[str], ...]) -> None:
        self.shape = shape
        #: the traits of each provider, by position
        self.traits = traits
        # zones are computed on demand, because only topology policies and some criteria need zones
        self._zones: tuple[tuple[int, ...], ...] | None = None

    @property
    def zone_positions(self) -> tuple[tuple[int, ...], ...]:
        """The positions of the providers of each zone, NUMA node first; a tree without nodes is one zone."""
        if self._zones is None:
            self._zones = tuple(_find_zones(self.shape.lineages, self.traits))
        return self._zones


def _find_zones(
    lineages: Sequence[tuple[int, ...]], traits: Sequence[frozenset[str]]
) -> Iterator[tuple[int, ...]]:
    zones: dict[int, list[int]] = {at: [at] for at, each in enumerate(traits) if ZONE in each}
    if not zones:
        root = lineages[0][-1]
        yield root, *(at for at in range(len(lineages)) if at != root)
    for at, lineage in enumerate(lineages):
        # the nearest NUMA node counts, if NUMA nodes are nested
        nearest = next((above for above in lineage if above in zones), at)
        if nearest != at:
            zones[nearest].append(at)
    yield from map(tuple, zones.values())


class ProviderSet:
    """The providers that one candidate can combine, in a fixed order. A set is equal only to itself.

    The first ``own_count`` providers belong to a tree of the structure; all further providers are sharing
    providers of the tree's aggregates. ``uuids`` has their uuids as bytes for answers.
    """

    __slots__ = ("_uuids", "members", "shape")

    def __init__(
        self, members: tuple[Provider, ...], shape: TreeStructure, uuids: tuple[bytes, ...] | None = None
    ) -> None:
        self.members = members
        self.shape = shape
        self._uuids = uuids

    @property
    def own_count(self) -> int:
        """The number of providers of the tree."""
        return len(self.shape.lineages)

    @property
    def own_lineages(self) -> Sequence[tuple[int, ...]]:
        """For each provider of the tree, the positions of the provider and its ancestors."""
        return self.shape.lineages

    @property
    def member_branches(self) -> tuple[int | None, ...]:
        """For each position, the topmost provider of its branch; None for root and sharing providers."""
        shared = len(self.members) - self.own_count
        return self.shape.branches + (None,) * shared if shared else self.shape.branches

    @property
    def uuids(self) -> tuple[bytes, ...]:
        """The uuids as bytes, computed only when they are needed, because few trees occur in answers."""
        if self._uuids is None:
            self._uuids = tuple([each.uuid.encode() for each in self.members])
        return self._uuids


class HostTree(ProviderSet):
    """A tree with its current state: its providers in ascending order of their ids.

    - ``capacities`` and ``free`` have the capacity and the free amount of each slot; a free amount is
      negative if the usage exceeds the capacity.
    - ``max_free`` has by class the largest amount that one provider can currently give.
    - ``aggregates`` has the aggregates of each provider, and ``all_aggregates`` their union.
    """

    __slots__ = (
        # this slot allows weak dictionaries, which keep counts for a tree as long as the tree exists
        "__weakref__",
        "aggregates",
        "all_aggregates",
        "capacities",
        "free",
        "kind",
        "max_free",
        "root",
    )

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
        # the attributes of the base class are set here, because a call would take time for each tree of the
        # cloud
        self.members = members
        self.shape = kind.shape
        self._uuids = None
        self.root = root
        self.kind = kind
        self.aggregates = aggregates
        self.all_aggregates = all_aggregates
        self.capacities = capacities
        self.free = free
        self.max_free = max_free

    def when_used(self, root: Provider, members: tuple[Provider, ...]) -> HostTree | None:
        """Return this tree with other members, or None if the members differ in more than their usage."""
        if len(members) != len(self.members):
            return None
        for old, new in zip(self.members, members, strict=True):
            # the identity suffices, because a change of usage keeps these objects
            if (
                new.id != old.id
                or new.parent_id != old.parent_id
                or new.inventories is not old.inventories
                or new.traits is not old.traits
                or new.aggregates is not old.aggregates
            ):
                return None
        free, most = self.shape.free_amounts(self.capacities, members)
        return HostTree(
            root, members, self.kind, self.aggregates, self.all_aggregates, self.capacities, free, most
        )

    def beside_shared(self, shared: Sequence[Provider], uuids: tuple[bytes, ...]) -> ProviderSet:
        """Return the provider set of this tree and ``shared``; ``uuids`` has the uuids of ``shared``."""
        return ProviderSet((*self.members, *shared), self.kind.shape, self.uuids + uuids)

    def when_empty(self, shared: Sequence[Provider]) -> ProviderSet:
        """Return the provider set of the unused tree, with the largest capacities of its structure."""
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
