"""Combines splits of dedicated CPUs and memory over zones with candidates for the other resources."""

from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from typing import Final

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree, TreeClass
from placement.search.budget import SearchBudget
from placement.search.candidate_search import CandidateSearch
from placement.search.claims.claim import HostChoice
from placement.search.claims.even_division import ZoneRoom
from placement.search.claims.topology import (
    REMOTE,
    SPLIT,
    Distances,
    FoundSplit,
    Ranked,
    Split,
    TopologyPolicy,
    Zone,
    best_splits,
    distance_of,
)
from placement.search.conditions import needs_of, root_conditions
from placement.search.equivalence import tree_reader
from placement.search.request import CandidatesRequest
from placement.search.roots import RootFilter


def is_splittable(request: CandidatesRequest) -> bool:
    """Return whether the request asks for a class that a topology policy splits."""
    return any(
        group.suffix == "" and not group.resources.keys().isdisjoint(SPLIT) for group in request.groups
    )


_MAX_SUMS: Final = 256
"""Maximum number of sums that are kept for one host; 256 is the number of all sums of eight providers."""


def full_amounts(
    snapshot: ModelSnapshot, name: str, topology: TopologyPolicy | None, budget: SearchBudget
) -> set[int]:
    """Return likely values of the largest amount of a class that fits: sums of the providers' maxima.

    The caller tests each of these values.

    :param topology: None for a class that is not split.
    """
    found, known = set[int](), set[tuple[_ZoneAmounts, ...]]()
    for tree in snapshot.whole_trees().values():
        budget.spend()
        rooms = {
            at: ZoneRoom.from_inventory(at, tree.members[at].inventories[name], tree.free[slot])
            for at, slot in tree.shape.having.get(name, ())
        }
        useful = {at: room for at, room in rooms.items() if room.least <= room.most}
        # amounts of single providers count, too: for classes that are not split, and for providers outside of
        # zones
        found.update(room.most for room in useful.values())
        if topology is None or not useful:
            continue
        in_zones = [[useful[at] for at in zone if at in useful] for zone in tree.kind.zone_positions]
        # zones are sorted, because hosts with the same zones in another order have the same sums
        zones = sorted(
            (tuple(sorted(room.most for room in zone)), lcm(*(room.step for room in zone)))
            for zone in in_zones
            if zone
        )
        if (key := tuple(zones)) not in known:
            known.add(key)
            found.update(_zone_sums(key, topology, budget))
    return found


_ZoneAmounts = tuple[tuple[int, ...], int]
"""The maximum amount of each provider of a zone, and the least common multiple of their steps."""


def _zone_sums(zones: Sequence[_ZoneAmounts], topology: TopologyPolicy, budget: SearchBudget) -> set[int]:
    """Return the sums of a class over each number of zones that the policy allows for a split."""
    sums = [_subset_sums([{most} for most in mosts], budget) for mosts, _ in zones]
    every = set[int]().union(*sums)
    if topology is TopologyPolicy.SINGLE_NUMA:
        return every
    found = _subset_sums(sums, budget)
    if topology is TopologyPolicy.SPREAD:
        unit = lcm(*(step for _, step in zones))
        for least in every:
            # with even shares, each part is at most a step larger than the smallest part
            most = least + unit
            shares = [
                {min(each, most // step * step) for each in some}
                for some, (_, step) in zip(sums, zones, strict=True)
            ]
            found |= _subset_sums(shares, budget)
    return found


def _subset_sums(values: Iterable[Collection[int]], budget: SearchBudget) -> set[int]:
    """Return all sums of at most one value from each collection; if they are too many, the largest sums."""
    found = {0}
    for some in values:
        budget.spend(len(found))
        found |= {known + value for known in found for value in some}
        if len(found) > _MAX_SUMS:
            found = set(sorted(found)[-_MAX_SUMS:])
    return found - {0}


class SplitChoices:
    """The choices for a request with a topology policy, host by host.

    The group without a suffix asks for the classes that are split. If no zone of a host has a class, the
    class is not split on this host.

    :param among: the ids of the roots to search; None means all roots.
    :param first_only: whether to leave out splits that take the same parts from other providers of the zones.
    """

    def __init__(
        self,
        snapshot: ModelSnapshot,
        request: CandidatesRequest,
        topology: TopologyPolicy,
        distances: Distances,
        budget: SearchBudget,
        *,
        among: Container[int] | None = None,
        first_only: bool = False,
    ) -> None:
        self._snapshot = snapshot
        self._trees = snapshot.whole_trees()
        self._budget = budget
        self._asked = {
            name: amount
            for group in request.groups
            for name, amount in group.resources.items()
            if group.suffix == "" and name in SPLIT
        }
        self._zoned_classes: dict[TreeClass, tuple[str, ...]] = {}
        #: one search for each tuple of classes that the zones of a tree have
        self._splits: dict[tuple[str, ...], _SplitSearch] = {}
        self._new_search = partial(
            _SplitSearch, snapshot, request, topology, distances, budget, first_only=first_only
        )
        # the search for hosts with none of the split classes in their zones, where the topology policy has no
        # effect
        self._whole = CandidateSearch(snapshot, request, budget, among=among)

    def roots(self) -> RootFilter:
        """Return the roots that may have choices."""
        return self._search_for(tuple(self._asked)).roots()

    def choices_at(self, root: int) -> Iterator[HostChoice | None]:
        """Yield each choice at a root when it is found; None means that the next one takes long."""
        tree = self._trees[root]
        self._budget.spend()
        names = self._zoned_classes.get(tree.kind)
        if names is None:
            # the key is the class of the tree, because traits decide which providers are zones
            names = self._zoned_classes[tree.kind] = zoned_classes(tree, self._asked)
        if names:
            # a quick check before splits are tried: in a crowded cloud most hosts have too little free in
            # total
            if all(_free_amount(tree, name) >= self._asked[name] for name in names):
                yield from self._search_for(names).choices_at(tree)
            return
        for candidate in self._whole.choices_at(root):
            yield candidate and HostChoice.from_candidate(self._snapshot, candidate)

    def _search_for(self, names: tuple[str, ...]) -> "_SplitSearch":
        found = self._splits.get(names)
        if found is None:
            asked = {name: self._asked[name] for name in names}
            found = self._splits[names] = self._new_search(asked=asked)
        return found


def _free_amount(tree: HostTree, name: str) -> int:
    """Return the sum of the free amounts of a class at all providers of a tree."""
    free = tree.free
    return sum([free[slot] for _, slot in tree.shape.having.get(name, ()) if free[slot] > 0])


def zoned_classes(tree: HostTree, asked: Iterable[str]) -> tuple[str, ...]:
    """Return the requested classes that zones of a tree have."""
    slots = tree.shape.slots
    return tuple(
        name for name in asked if any((at, name) in slots for zone in tree.kind.zone_positions for at in zone)
    )


@dataclass(frozen=True, slots=True)
class _ZoneLayout:
    """The positions and slots at which each NUMA node of a class of trees has the requested classes.

    ``zones`` has the positions of the NUMA nodes. ``is_complete`` tells whether each requested
    class is in at least one zone. ``apart`` has the default distances of the zones.
    """

    zones: tuple[int, ...]
    rooms: tuple[tuple[tuple[str, int, int], ...], ...]
    is_complete: bool
    apart: tuple[tuple[int, ...], ...]

    @property
    def room_positions(self) -> set[int]:
        """The positions of all providers with rooms."""
        return {at for zone in self.rooms for _, at, _ in zone}


class _SplitSearch:
    """The search for one request in all trees with the same split classes in their zones."""

    def __init__(
        self,
        snapshot: ModelSnapshot,
        request: CandidatesRequest,
        topology: TopologyPolicy,
        distances: Distances,
        budget: SearchBudget,
        *,
        first_only: bool,
        asked: Mapping[str, int],
    ) -> None:
        self._first_only = first_only
        self._snapshot = snapshot
        self._request = request
        self._asked = asked
        self._topology = topology
        self._distances = distances
        self._budget = budget
        self._needs = {
            name: need for need in needs_of(request) if need.unsuffixed for name, _ in need.resources
        }
        #: traits that the group without a suffix requires; each trait has to be at some provider of the split
        #: or of the rest
        self._required = next(group.required for group in request.groups if group.suffix == "")
        #: whether the best split depends on the choice for the other resources, which may have traits of the
        #: group or take amounts of the split classes
        self._depends_on_rest = bool(self._required) or any(
            group.suffix and not asked.keys().isdisjoint(group.resources) for group in request.groups
        )
        conditions = {each for name in asked for each in self._needs[name].conditions}
        self._read_tree = tree_reader(conditions)
        # each_root=True: the split makes choices differ by root even if sharing providers serve all other
        # resources
        rest = _unsplit_request(request, asked)
        #: candidates for the rest of the request; None if the request has no rest
        self._rest = None if rest is None else CandidateSearch(snapshot, rest, budget, each_root=True)
        self._on_roots = tuple(root_conditions(request))
        self._layouts: dict[Hashable, _ZoneLayout] = {}
        self._known: dict[Hashable, Ranked | None] = {}

    def roots(self) -> RootFilter:
        """Return the roots that may have choices."""
        # all roots are searched, because no index has sums over zones
        return RootFilter(self._snapshot.roots()) if self._rest is None else self._rest.roots()

    def choices_at(self, tree: HostTree) -> Iterator[HostChoice | None]:
        """Yield the choices at a tree."""
        layout = self._zone_layout(tree)
        # without any room for a requested class, the tree cannot serve the split
        if not layout.is_complete:
            return
        if not self._depends_on_rest:
            for choice in self._other_choices(tree):
                if choice is None:
                    yield None
                elif (found := self._best_beside(tree, layout, choice)) is not None:
                    yield from self._join_splits(tree, choice, found[1])
            return
        # all choices for the other resources are compared first, because a later choice may allow a better
        # split
        ranked: list[tuple[HostChoice, Ranked]] = []
        for choice in self._other_choices(tree):
            if choice is None:
                yield None
            elif (found := self._best_beside(tree, layout, choice)) is not None:
                ranked.append((choice, found))
        best = min((rank for _, (rank, _) in ranked), default=None)
        for choice, (rank, splits) in ranked:
            if rank == best:
                yield from self._join_splits(tree, choice, splits)

    def _other_choices(self, tree: HostTree) -> Iterator[HostChoice | None]:
        """Yield the choices for the resources that are not split."""
        if self._rest is not None:
            for candidate in self._rest.choices_at(tree.root.id):
                yield candidate and HostChoice.from_candidate(self._snapshot, candidate)
        elif all(each.met_by(tree.root, self._snapshot) for each in self._on_roots):
            yield HostChoice(tree.root, (), {})

    def _best_beside(self, tree: HostTree, layout: _ZoneLayout, others: HostChoice) -> Ranked | None:
        """Return the best splits that fit together with a choice for the other resources, as positions."""
        # a quick proof: if a required trait is missing at all providers with rooms, every split lacks it
        if not self._has_traits(tree, others, layout.room_positions):
            return None
        apart = layout.apart
        if self._distances:
            ids = [tree.members[at].id for at in layout.zones]
            apart = tuple(tuple(distance_of(self._distances, one, other) for other in ids) for one in ids)
        key: Hashable = None
        if not self._depends_on_rest:
            # the key has only the free amounts of rooms, because a split does not depend on other classes
            free = tuple(tree.free[slot] for zone in layout.rooms for _, _, slot in zone)
            whole = tuple(
                tree.members[at].inventories[name].capacity
                for zone in layout.rooms
                for name, at, _ in zone
                # only this policy also needs the rooms of the empty host, which may differ between trees of
                # one class
                if self._topology is TopologyPolicy.RESTRICTED
            )
            key = (self._read_tree(tree), tree.kind, free, whole, apart if self._distances else None)
            if key in self._known:
                return self._known[key]
        found = best_splits(
            self._topology,
            self._asked,
            self._rooms_now(tree, layout, others),
            self._rooms_now(tree, layout, None),
            apart,
            self._budget,
            lambda split: self._has_traits(tree, others, [share.provider for share in split]),
        )
        if key is not None:
            self._known[key] = found
        return found

    def _zone_layout(self, tree: HostTree) -> _ZoneLayout:
        # the key includes the class of the tree, because traits decide which providers are zones
        key: Hashable = (self._read_tree(tree), tree.kind)
        found = self._layouts.get(key)
        if found is None:
            zones = tree.kind.zone_positions
            self._budget.spend(len(tree.members))
            rooms = tuple(tuple(self._zone_rooms(tree, zone)) for zone in zones)
            found = self._layouts[key] = _ZoneLayout(
                # the first provider of each zone is its NUMA node
                tuple(zone[0] for zone in zones),
                rooms,
                {name for zone in rooms for name, _, _ in zone} == self._asked.keys(),
                ((REMOTE,) * len(zones),) * len(zones),
            )
        return found

    def _zone_rooms(self, tree: HostTree, zone: Sequence[int]) -> Iterator[tuple[str, int, int]]:
        for at in zone:
            provider = tree.members[at]
            for name in self._asked:
                conditions = self._needs[name].conditions
                if name in provider.inventories and all(
                    each.met_by(provider, self._snapshot) for each in conditions
                ):
                    yield name, at, tree.kind.shape.slots[at, name]

    def _rooms_now(self, tree: HostTree, layout: _ZoneLayout, others: HostChoice | None) -> list[Zone]:
        """Return the rooms of each zone after a choice for other resources, or without any usage for None."""
        taken = {provider.id: amounts for provider, amounts in others.resources} if others else {}
        zones: list[Zone] = []
        for places in layout.rooms:
            rooms: dict[str, list[ZoneRoom]] = {}
            for name, at, slot in places:
                provider = tree.members[at]
                inventory = provider.inventories[name]
                # The value None asks for the rooms of the host without any usage
                free = inventory.capacity if others is None else tree.free[slot]
                mine = taken.get(provider.id, {}).get(name, 0)
                rooms.setdefault(name, []).append(ZoneRoom.from_inventory(at, inventory, free, mine))
            zones.append(rooms)
        return zones

    def _has_traits(self, tree: HostTree, others: HostChoice, positions: Iterable[int]) -> bool:
        """Return whether these positions and ``others`` together have all traits of the unsuffixed group."""
        if not self._required:
            return True
        serving = [*others.mappings.get("", ()), *(tree.members[at] for at in positions)]
        return all(
            any(not provider.traits.isdisjoint(traits) for provider in serving) for traits in self._required
        )

    def _join_splits(
        self, tree: HostTree, others: HostChoice, found: Sequence[FoundSplit]
    ) -> Iterator[HostChoice]:
        for each in found:
            yield self._join_split(others, each.whole_split)
        # the other splits take from different providers of the same zones. They are computed only if they are
        # needed: a later claim of the call may fit beside only one of them
        for each in () if self._first_only else found:
            for split in each.equal_splits():
                self._budget.spend(len(split))
                if self._has_traits(tree, others, [share.provider for share in split]):
                    yield self._join_split(others, split)

    def _join_split(self, others: HostChoice, split: Split) -> HostChoice:
        members = self._snapshot.whole_trees()[others.root.id].members
        resources = {provider.id: (provider, dict(amounts)) for provider, amounts in others.resources}
        # the providers are a dict by id, so that a provider that serves both the split and the rest is listed
        # once
        serving: dict[int, Provider] = {each.id: each for each in others.mappings.get("", ())}
        for at, name, amount in split:
            provider = members[at]
            _, amounts = resources.setdefault(provider.id, (provider, {}))
            amounts[name] = amounts.get(name, 0) + amount
            serving[provider.id] = provider
        return HostChoice(
            others.root, tuple(resources.values()), {**others.mappings, "": tuple(serving.values())}
        )


def _unsplit_request(request: CandidatesRequest, split: Collection[str]) -> CandidatesRequest | None:
    """Return the part of a request that is not split over zones; None if there is no such part."""
    groups = []
    for group in request.groups:
        if group.suffix:
            groups.append(group)
            continue
        left = {name: amount for name, amount in group.resources.items() if name not in split}
        if left:
            # required traits are left out, because a provider of the split may have them; they are checked
            # for the whole choice
            groups.append(replace(group, resources=left, required=()))
    return replace(request, groups=tuple(groups)) if groups else None
