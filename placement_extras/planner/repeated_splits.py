"""Computes how many guests fit if they are split over NUMA nodes. Hosts with equal rooms share a search.

A request is *plain* if it has only one group, without a suffix and without required traits. This module
counts the guests of plain requests on hosts where exactly one provider has each class that is not split. The
split of a guest on such a host depends only on the *rooms*: the amounts that the providers of each NUMA node
can give. So splits are cached, with the rooms as the key. A room counts at most the amount of one guest, so
that hosts with different usage often have equal rooms.

Invariants
    A counted guest takes amounts from rooms, and never adds amounts. So the best split remains the best as
    long as it fits, and is repeated until one of its amounts is no longer free.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.budget import SearchBudget
from placement.search.claims.even_division import ZoneRoom
from placement.search.claims.split_choices import zoned_classes
from placement.search.claims.topology import (
    LOCAL,
    REMOTE,
    SPLIT,
    TopologyPolicy,
    Zone,
    best_splits,
    distance_of,
)
from placement.search.conditions import all_conditions, needs_of, root_conditions
from placement.search.equivalence import tree_reader
from placement.search.request import CandidatesRequest

Amounts = tuple[tuple[int, int], ...]
"""The split of one guest: pairs of the number of a room and the amount that the guest takes there."""

_HostRoom = tuple[int, int, int, int, int]
"""A room of a host: the smallest and the largest amount for one guest, the step, the largest amount if the
host is empty, and the slot.
"""
_HostRooms = Sequence[Sequence[Sequence[_HostRoom]]]
"""The rooms of a host by zone and class."""
_Zone = tuple[tuple[tuple[int, int, int, int, int], ...], ...]
"""The rooms of one zone by class. Each room has the largest free amount, the smallest amount, the step, the
largest amount if the host is empty, and the slot.
"""


@dataclass(frozen=True, slots=True)
class _RepeatLayout:
    """The positions and slots of the requested resource classes in all trees of one structure.

    ``names`` has the classes that are split. ``rooms`` has, by zone, each room of these classes: the class,
    the position of the provider, and the slot. ``rest`` has the same for the other classes. ``zones`` has the
    positions of the zones' NUMA nodes.
    """

    names: tuple[str, ...]
    zones: tuple[int, ...]
    rooms: tuple[tuple[tuple[str, int, int], ...], ...]
    rest: tuple[tuple[str, int, int], ...]


class RepeatedSplits:
    """Counts how many guests of one request fit on a host. Splits are cached by the rooms of the host."""

    def __init__(
        self,
        snapshot: ModelSnapshot,
        request: CandidatesRequest,
        topology: TopologyPolicy,
        budget: SearchBudget,
    ) -> None:
        self._snapshot = snapshot
        self._topology = topology
        self._budget = budget
        self._distances = snapshot.zone_distances()
        needs = list(needs_of(request))
        #: whether the request is plain
        self._is_plain = (
            len(request.groups) == 1
            and not request.groups[0].suffix
            and not request.groups[0].required
            and not any(need.together for need in needs)
        )
        self._asked = dict(request.groups[0].resources) if request.groups else {}
        self._conditions = {name: need.conditions for need in needs for name, _ in need.resources}
        self._on_roots = tuple(root_conditions(request))
        self._read_tree = tree_reader(all_conditions(request, needs))
        self._layouts: dict[Hashable, _RepeatLayout | None] = {}
        self._known: dict[Hashable, Amounts | None] = {}

    def count_guests(self, tree: HostTree, free: Sequence[int], limit: int) -> int | None:
        """Return how many guests fit, at most ``limit``; None if this class cannot count them on this host.

        :param free: the free amounts of the host, by slot.
        """
        if not self._is_plain:
            return None
        key = self._read_tree(tree), tree.kind
        if key not in self._layouts:
            self._layouts[key] = self._find_layout(tree)
        layout = self._layouts[key]
        if layout is None:
            return None
        if not all(each.met_by(tree.root, self._snapshot) for each in self._on_roots):
            return 0
        left = list(free)
        for name, at, slot in layout.rest:
            amount = self._asked[name]
            is_portion = tree.members[at].inventories[name].is_portion(amount)
            limit = min(limit, max(0, left[slot]) // amount if is_portion else 0)
        rooms = self._list_rooms(tree, layout)
        apart = self._list_distances(tree, layout) if self._distances else ()
        count = 0
        while count < limit:
            self._budget.spend(1)
            zones = self._order_zones(rooms, left)
            # slots are left out of the state, because hosts with equal rooms have different slots
            state = tuple([tuple([tuple([each[:-1] for each in some]) for some in zone]) for zone in zones])
            known = layout.names, state, apart
            if known not in self._known:
                self._known[known] = self._split_guest(layout.names, zones, apart)
            amounts = self._known[known]
            if amounts is None:
                break
            slots = [each[-1] for zone in zones for some in zone for each in some]
            taken = [(slots[number], amount) for number, amount in amounts]
            # the best split remains the best as long as it fits, so all its repetitions are counted at once
            times = min(limit - count, *[left[slot] // amount for slot, amount in taken])
            for slot, amount in taken:
                left[slot] -= times * amount
            count += times
        return count

    def _list_rooms(self, tree: HostTree, layout: _RepeatLayout) -> _HostRooms:
        """Return the rooms of a host by zone and class. Amounts are limited to the amount of one guest."""
        found = []
        for zone in layout.rooms:
            by_class: dict[str, list[_HostRoom]] = {name: [] for name in layout.names}
            for name, at, slot in zone:
                inventory = tree.members[at].inventories[name]
                room = ZoneRoom.from_inventory(at, inventory, self._asked[name])
                empty = 0
                # only the policy "restricted" compares a split with the splits on the empty host
                if self._topology is TopologyPolicy.RESTRICTED:
                    empty = max(0, min(tree.capacities[slot], room.most)) // room.step * room.step
                by_class[name].append((room.least, room.most, room.step, empty, slot))
            found.append(list(by_class.values()))
        return found

    def _order_zones(self, rooms: _HostRooms, free: Sequence[int]) -> list[_Zone]:
        """Return the rooms with their free amounts, in an order that is equal for equivalent hosts."""
        zones: list[_Zone] = [
            tuple(
                [
                    tuple(
                        sorted(
                            [
                                (
                                    most if free[slot] >= most else max(0, free[slot]) // step * step,
                                    least,
                                    step,
                                    empty,
                                    slot,
                                )
                                for least, most, step, empty, slot in some
                            ]
                        )
                    )
                    for some in zone
                ]
            )
            for zone in rooms
        ]
        # zones with known distances cannot be exchanged, so they keep their order
        if not self._distances:
            zones.sort()
        return zones

    def _find_layout(self, tree: HostTree) -> _RepeatLayout | None:
        """Return the layout of a tree; None if a class that is not split is not at exactly one provider."""
        names = zoned_classes(tree, [name for name in self._asked if name in SPLIT])
        self._budget.spend(len(tree.members))

        def list_places(name: str) -> list[tuple[str, int, int]]:
            return [
                (name, at, slot)
                for at, slot in tree.shape.having.get(name, ())
                if all(each.met_by(tree.members[at], self._snapshot) for each in self._conditions[name])
            ]

        rest = [list_places(name) for name in self._asked if name not in names]
        if not names or any(len(each) != 1 for each in rest):
            return None
        found = [place for name in names for place in list_places(name)]
        zones = tree.kind.zone_positions
        return _RepeatLayout(
            names,
            # the first position of a zone is its NUMA node
            tuple(zone[0] for zone in zones),
            tuple(tuple(place for place in found if place[1] in zone) for zone in zones),
            tuple(place for each in rest for place in each),
        )

    def _list_distances(self, tree: HostTree, layout: _RepeatLayout) -> tuple[tuple[int, ...], ...]:
        ids = [tree.members[at].id for at in layout.zones]
        return tuple(
            tuple(LOCAL if one == other else distance_of(self._distances, one, other) for other in ids)
            for one in ids
        )

    def _split_guest(
        self, names: Sequence[str], zones: Sequence[_Zone], apart: Sequence[Sequence[int]]
    ) -> Amounts | None:
        """Return a guest's split: number and amount of each used room. None means that it does not fit."""
        now, when_empty, number = list[Zone](), list[Zone](), 0
        for zone in zones:
            rooms: dict[str, list[ZoneRoom]] = {}
            unused: dict[str, list[ZoneRoom]] = {}
            for name, some in zip(names, zone, strict=True):
                for most, least, step, empty, _ in some:
                    rooms.setdefault(name, []).append(ZoneRoom(number, least, most, step))
                    unused.setdefault(name, []).append(ZoneRoom(number, least, empty, step))
                    number += 1
            now.append(rooms)
            when_empty.append(unused)
        asked = {name: self._asked[name] for name in names}
        if not apart:
            # without known distances, all zones count as equally far apart
            apart = [[REMOTE] * len(zones)] * len(zones)
        found = best_splits(self._topology, asked, now, when_empty, apart, self._budget)
        return None if found is None else tuple((at, amount) for at, _, amount in found[1][0].whole_split)
