"""Choices whose dedicated CPUs and memory are split over zones, beside whatever else is asked for."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from placement.candidates.budget import Budget
from placement.candidates.conditions import HasTraits
from placement.candidates.needs import needs_of
from placement.candidates.pattern import candidates_of
from placement.candidates.request import CandidatesRequest
from placement.candidates.search import in_turn
from placement.claims.choice import Choice
from placement.claims.topology import (
    REMOTE,
    SPLIT,
    Distances,
    Ranked,
    Room,
    Split,
    Topology,
    Zone,
    best_splits,
    distance_of,
)
from placement.claims.zones import zones_of
from placement.model.provider import Provider
from placement.model.snapshot import Snapshot
from placement.model.trees import Kind, Tree

Arrange = Callable[[Iterable[int]], Iterable[int]]


def is_splittable(request: CandidatesRequest) -> bool:
    """Whether the request asks for anything that is split."""
    return any(
        group.suffix == "" and not group.resources.keys().isdisjoint(SPLIT) for group in request.groups
    )


def split_choices(
    snapshot: Snapshot,
    request: CandidatesRequest,
    topology: Topology,
    distances: Distances,
    budget: Budget,
    arrange: Arrange,
) -> Iterator[Choice]:
    """All choices that the policy allows, at each host those that it prefers there.

    What is split is asked for by the group without a suffix. Where the zones of a host have nothing of a
    class, that is taken as without a policy.

    :param arrange: as for :func:`placement.candidates.search.in_turn`.
    :raises placement.candidates.budget.Exhausted: the budget is spent.
    """
    asked = {
        name: amount
        for group in request.groups
        for name, amount in group.resources.items()
        if group.suffix == "" and name in SPLIT
    }
    zoned: dict[Kind, tuple[str, ...]] = {}
    by_names: dict[tuple[str, ...], set[int]] = {}
    for root, tree in snapshot.whole_trees().items():
        names = zoned.get(tree.kind)
        if names is None:
            names = zoned[tree.kind] = _zoned(tree, asked)
        by_names.setdefault(names, set()).add(root)
    for names, roots in by_names.items():
        among = partial(_among, arrange, roots)
        if names:
            amounts = {name: asked[name] for name in names}
            yield from _Splitting(snapshot, request, amounts, topology, distances, budget).choices(among)
        else:
            for candidate in candidates_of(in_turn(snapshot, request, budget, among)):
                yield Choice.of(snapshot, candidate)


def _among(arrange: Arrange, chosen: set[int], roots: Iterable[int]) -> Iterable[int]:
    return arrange([root for root in roots if root in chosen])


def _zoned(tree: Tree, asked: Iterable[str]) -> tuple[str, ...]:
    """Which of the classes the zones of a tree have."""
    having = {name for zone in zones_of(tree) for at in zone for name in tree.members[at].inventories}
    return tuple(name for name in asked if name in having)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the zones of trees of a kind have what is asked for: class, position and slot of each room.

    ``zones`` are the positions of the providers that are the zones; ``is_complete`` says whether there is a
    room for each class, and ``apart`` how far apart the zones are if nobody knows.
    """

    zones: tuple[int, ...]
    rooms: tuple[tuple[tuple[str, int, int], ...], ...]
    is_complete: bool
    apart: tuple[tuple[int, ...], ...]

    @property
    def places(self) -> set[int]:
        """The positions of all providers that have a room."""
        return {at for zone in self.rooms for _, at, _ in zone}


class _Splitting:
    """One request on its way through the trees whose zones have all of the classes that are split."""

    def __init__(
        self,
        snapshot: Snapshot,
        request: CandidatesRequest,
        asked: Mapping[str, int],
        topology: Topology,
        distances: Distances,
        budget: Budget,
    ) -> None:
        self._snapshot = snapshot
        self._request = request
        self._asked = asked
        self._topology = topology
        self._distances = distances
        self._budget = budget
        self._needs = {
            name: need for need in needs_of(request) if need.unsuffixed for name, _ in need.resources
        }
        #: of the group without a suffix, which the providers of a split may have, too
        self._required = next(group.required for group in request.groups if group.suffix == "")
        #: whether others of the request take of the same
        self._contested = any(
            group.suffix and not asked.keys().isdisjoint(group.resources) for group in request.groups
        )
        conditions = {each for name in asked for each in self._needs[name].conditions}
        self._alike = not self._required and all(each.reads == "kind" for each in conditions)
        self._layouts: dict[Hashable, _Layout] = {}
        self._known: dict[Hashable, Ranked | None] = {}

    def choices(self, arrange: Arrange) -> Iterator[Choice]:
        """All of them."""
        if self._contested:  # what the others take decides how good a split may be
            at_root: dict[int, list[Choice]] = {}
            for choice in self._others(arrange):
                at_root.setdefault(choice.root.id, []).append(choice)
            groups: Iterable[list[Choice]] = at_root.values()
        else:
            groups = ([choice] for choice in self._others(arrange))
        for group in groups:
            ranked = [(choice, found) for choice in group if (found := self._best(choice)) is not None]
            best = min((rank for _, (rank, _) in ranked), default=None)
            for choice, (rank, splits) in ranked:
                if rank == best:
                    for split in splits:
                        yield self._with(choice, split)

    def _others(self, arrange: Arrange) -> Iterator[Choice]:
        """The choices for what is not split."""
        groups = []
        for group in self._request.groups:
            if group.suffix:
                groups.append(group)
                continue
            left = {name: amount for name, amount in group.resources.items() if name not in self._asked}
            if left:
                groups.append(replace(group, resources=left, required=()))
        rest = replace(self._request, groups=tuple(groups))
        if groups:
            for candidate in candidates_of(
                in_turn(self._snapshot, rest, self._budget, arrange, each_root=True)
            ):
                yield Choice.of(self._snapshot, candidate)
            return
        required = tuple(frozenset({trait}) for trait in rest.root_required)
        condition = HasTraits(required, rest.root_forbidden)
        for root in arrange(sorted(self._snapshot.trees)):
            self._budget.spend()
            provider = self._snapshot.providers[root]
            if condition.met_by(provider, self._snapshot):
                yield Choice(provider, (), {})

    def _best(self, others: Choice) -> Ranked | None:
        """The best splits beside the others, by positions in the tree."""
        tree = self._snapshot.whole_trees()[others.root.id]
        layout = self._layout(tree)
        if not layout.is_complete or not self._has_traits(tree, others, layout.places):
            return None
        apart = layout.apart
        if self._distances:
            ids = [tree.members[at].id for at in layout.zones]
            apart = tuple(tuple(distance_of(self._distances, one, other) for other in ids) for one in ids)
        key: Hashable = None
        if self._alike and not self._contested:
            free = tuple(tree.free[slot] for zone in layout.rooms for _, _, slot in zone)
            whole = tuple(
                tree.members[at].inventories[name].capacity
                for zone in layout.rooms
                for name, at, _ in zone
                if self._topology is Topology.RESTRICTED
            )
            key = (tree.kind, free, whole, apart if self._distances else None)
            if key in self._known:
                return self._known[key]
        found = best_splits(
            self._topology,
            self._asked,
            self._zones(tree, layout, others),
            self._zones(tree, layout, None),
            apart,
            self._budget,
            lambda split: self._has_traits(tree, others, [share.provider for share in split]),
        )
        if key is not None:
            self._known[key] = found
        return found

    def _layout(self, tree: Tree) -> _Layout:
        key: Hashable = tree.kind if self._alike else tree
        found = self._layouts.get(key)
        if found is None:
            zones = zones_of(tree)
            self._budget.spend(len(tree.members))
            rooms = tuple(tuple(self._rooms(tree, zone)) for zone in zones)
            found = self._layouts[key] = _Layout(
                tuple(zone[0] for zone in zones),
                rooms,
                {name for zone in rooms for name, _, _ in zone} == self._asked.keys(),
                ((REMOTE,) * len(zones),) * len(zones),
            )
        return found

    def _rooms(self, tree: Tree, zone: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        for at in zone:
            provider = tree.members[at]
            for name in self._asked:
                conditions = self._needs[name].conditions
                if name in provider.inventories and all(
                    each.met_by(provider, self._snapshot) for each in conditions
                ):
                    yield name, at, tree.kind.shape.slots[at, name]

    def _zones(self, tree: Tree, layout: _Layout, others: Choice | None) -> list[Zone]:
        """The rooms of each zone as it is used now, and by the others; without them, as if it were empty."""
        taken = {provider.id: amounts for provider, amounts in others.resources} if others else {}
        zones: list[Zone] = []
        for places in layout.rooms:
            rooms: dict[str, list[Room]] = {}
            for name, at, slot in places:
                provider = tree.members[at]
                inventory = provider.inventories[name]
                free = inventory.capacity if others is None else tree.free[slot]
                mine = taken.get(provider.id, {}).get(name, 0)
                rooms.setdefault(name, []).append(Room.of(at, inventory, free, mine))
            zones.append(rooms)
        return zones

    def _has_traits(self, tree: Tree, others: Choice, positions: Iterable[int]) -> bool:
        """Whether those there, and others of the group without a suffix, together have what it requires."""
        if not self._required:
            return True
        serving = [*others.mappings.get("", ()), *(tree.members[at] for at in positions)]
        return all(
            any(not provider.traits.isdisjoint(traits) for provider in serving) for traits in self._required
        )

    def _with(self, others: Choice, split: Split) -> Choice:
        members = self._snapshot.whole_trees()[others.root.id].members
        resources = {provider.id: (provider, dict(amounts)) for provider, amounts in others.resources}
        serving: dict[int, Provider] = {each.id: each for each in others.mappings.get("", ())}
        for at, name, amount in split:
            provider = members[at]
            _, amounts = resources.setdefault(provider.id, (provider, {}))
            amounts[name] = amounts.get(name, 0) + amount
            serving[provider.id] = provider
        return Choice(
            others.root, tuple(resources.values()), {**others.mappings, "": tuple(serving.values())}
        )
