"""Computes how many guests fit if a topology policy splits their CPUs and memory over the zones of a host.

In the simple case, a guest takes all its CPUs and memory from one zone, and each zone has one provider of
each class. The ways of the flavor are then filtered and packed. In all other cases, the search of claims
places one guest after another on a copy of the host. The number of placed guests is the lower bound, and sums
of free amounts give the upper bound.

Only :mod:`placement_extras.planner.handler` uses this module. The module is separate from ``capacity``,
because it uses the search of claims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.claim import HostChoice, with_choice_held
from placement.search.claims.split_choices import SplitChoices, zoned_classes
from placement.search.claims.topology import SPLIT, TopologyPolicy
from placement.search.conditions import all_conditions, needs_of
from placement.search.equivalence import tree_reader
from placement.search.request import CandidatesRequest
from placement_extras.planner.capacity import CloudHosts, FlavorCapacity, worst_failure
from placement_extras.planner.packing import (
    NONE,
    FitBounds,
    FlavorFootprints,
    FootprintFinder,
    Way,
    fit_function,
)
from placement_extras.planner.repeated_splits import RepeatedSplits

CountedHost = tuple[HostTree, FitBounds]
"""A host that has no sharing provider in common with other hosts, and the number of guests that fit there."""
_NO_LIMIT: Final = 1 << 62
"""A limit that is larger than the number of guests on any host."""


def count_split(
    cloud: CloudHosts, request: CandidatesRequest, topology: TopologyPolicy, placing: SearchBudget
) -> FlavorCapacity:
    """Return how many guests of a flavor fit if a topology policy splits each of them.

    The field ``shortages`` of the result is None, because shortages are not computed. If the time ends before
    guests were placed on all hosts, the remaining hosts have the lower bound 0, and ``uncounted_hosts`` is
    the number of these hosts.

    :param placing: the budget for placing guests. The budget of the cloud is for all other work.
    """
    return _SplitCount(cloud, request, topology, placing).run()


def count_repeats(snapshot: ModelSnapshot, choice: HostChoice) -> int:
    """Return how many guests fit if each of them takes the amounts of this choice."""
    return min(
        snapshot.providers[provider.id].free(name) // amount
        for provider, amounts in choice.resources
        for name, amount in amounts.items()
    )


class _SplitCount:
    """Counts the guests of one flavor that a topology policy splits over NUMA nodes."""

    def __init__(
        self, cloud: CloudHosts, request: CandidatesRequest, topology: TopologyPolicy, placing: SearchBudget
    ) -> None:
        self._cloud = cloud
        self._budget = cloud.budget
        #: number of hosts on which no guests were placed before the time ended
        self._uncounted = 0
        self._placing = _HostPlacing(cloud, request, topology, placing)
        self._bounds = _AmountBounds(request, topology)
        self._finder = FootprintFinder(cloud.snapshot, request, cloud.budget)
        self._topology = topology
        #: by the ways of a guest and by the kind of the tree, the ways that take all split classes from one
        #: zone
        self._allowed: dict[tuple[FlavorFootprints, Hashable], FlavorFootprints] = {}

    def run(self) -> FlavorCapacity:
        alone, coupled, capable = list[CountedHost](), list[tuple[HostTree, Sequence[Provider]]](), 0
        for tree, shared in self._cloud.hosts:
            self._budget.spend()
            if self._is_coupled(tree, shared):
                coupled.append((tree, shared))
                continue
            is_capable, fit = self._count_host(tree, shared)
            capable += is_capable
            if fit.upper_bound:
                alone.append((tree, fit))
        group = self._count_coupled(coupled)
        capable_coupled, open_coupled = self._look_at_coupled(coupled)
        single = sum([fit for _, fit in alone], NONE)
        whole = group.fit_bounds()
        left = [(single + group.fit_bounds(without=tree.root.id), tree) for tree, _ in coupled]
        if alone:
            # among hosts that are not coupled, only the host with the most guests can be the worst
            tree, fit = max(alone, key=lambda each: each[1].lower_bound)
            left.append((single - fit + whole, tree))
        fit = single + whole
        worst, without_worst = worst_failure(fit, left)
        return FlavorCapacity(
            fit=fit,
            hosts=capable + capable_coupled,
            candidate_hosts=sum(1 for _, fit in alone if fit.lower_bound) + open_coupled,
            worst=worst,
            without_worst=without_worst,
            by_aggregate=self._by_aggregate(alone, group),
            shortages=None,
            uncounted_hosts=self._uncounted,
        )

    def _look_at_coupled(self, hosts: Sequence[tuple[HostTree, Sequence[Provider]]]) -> tuple[int, int]:
        """Return how many of these hosts would have room for a guest if empty, and how many have room now."""
        capable = able = 0
        for tree, shared in hosts if not self._uncounted else ():
            try:
                able += self._placing.count_guests(tree, shared) > 0
                capable += self._placing.is_capable(tree, shared)
            except BudgetExhausted:
                self._uncounted += 1
        return capable, able

    def _is_coupled(self, tree: HostTree, shared: Sequence[Provider]) -> bool:
        sharing = (*shared, *(each for each in tree.members if each.id in self._cloud.sharing))
        return any(not self._bounds.asked.keys().isdisjoint(each.inventories) for each in sharing)

    def _count_host(self, tree: HostTree, shared: Sequence[Provider]) -> tuple[bool, FitBounds]:
        """Return whether a guest would fit on the empty host, and how many guests fit now."""
        names = zoned_classes(tree, self._bounds.split)
        if not names or self._bounds.takes_of_one_provider(tree, names):
            ways = self._allowed_ways(tree, shared, names)
            if not ways.ways:
                return False, NONE
            fit = fit_function(ways, self._budget)(ways.with_pools(tree.free))
            return bool(ways.ways_within(ways.with_pools(tree.capacities))), fit
        if self._uncounted:  # the budget ended at an earlier host
            return self._bound_host(tree, shared)
        try:
            guests = self._placing.count_guests(tree, shared)
            is_capable = bool(guests) or self._placing.is_capable(tree, shared)
        except BudgetExhausted:
            return self._bound_host(tree, shared)
        # if not even one guest has a place, the upper bound is 0, whatever the sums of free amounts are
        upper = self._bounds.most_guests(tree, shared) if guests else 0
        return is_capable, FitBounds(guests, max(guests, upper))

    def _bound_host(self, tree: HostTree, shared: Sequence[Provider]) -> tuple[bool, FitBounds]:
        """Return bounds for a host on which no guests were placed before the time ended."""
        self._budget.spend(1 + len(tree.members))
        self._uncounted += 1
        return False, FitBounds(0, self._bounds.most_guests(tree, shared))

    def _allowed_ways(
        self, tree: HostTree, shared: Sequence[Provider], names: tuple[str, ...]
    ) -> FlavorFootprints:
        """Return the ways to place a guest that take all split classes from one zone."""
        ways = self._finder.footprints_at(tree, shared)
        if not names or not ways.ways:
            return ways
        key = ways, tree.kind
        if key not in self._allowed:
            zone_of = {
                tree.kind.shape.slots[at, name]: number
                for number, zone in enumerate(tree.kind.zone_positions)
                for at in zone
                for name in names
                if (at, name) in tree.kind.shape.slots
            }

            # all devices of a pool have the same parent, so they are in the same zone
            zone_of |= {
                slot: zone_of[pool.slots[0]] for slot, pool in ways.pools.items() if pool.slots[0] in zone_of
            }

            def is_allowed(way: Way) -> bool:
                at = {zone_of.get(slot) for slot, _ in way if ways.classes[slot] in names}
                return len(at) == 1 and None not in at

            self._allowed[key] = ways.with_ways(tuple(filter(is_allowed, ways.ways)))
        return self._allowed[key]

    def _count_coupled(self, hosts: Sequence[tuple[HostTree, Sequence[Provider]]]) -> _CoupledCount:
        """Place guests on hosts with common sharing providers, one host after another."""
        held, placed = dict[int, Provider](), Counter[tuple[int, frozenset[int]]]()
        for tree, shared in hosts:
            if self._uncounted:
                self._uncounted += 1
                continue
            try:
                snapshot = self._placing.copy_host(tree, shared, held)
                while (choice := self._placing.first_choice(snapshot, tree.root.id)) is not None:
                    times = count_repeats(snapshot, choice)
                    snapshot = with_choice_held(snapshot, choice, times)
                    taken = frozenset(provider.root_id for provider, _ in choice.resources)
                    placed[tree.root.id, taken] += times
                held.update(snapshot.providers)
            except BudgetExhausted:
                self._uncounted += 1
        most = {tree.root.id: self._bounds.most_guests(tree, shared) for tree, shared in hosts}
        return _CoupledCount(hosts, placed, most, self._bounds.asked)

    def _by_aggregate(self, alone: Iterable[CountedHost], group: _CoupledCount) -> dict[str, FitBounds]:
        found: dict[str, FitBounds] = {}
        for tree, fit in alone:
            for aggregate in tree.root.aggregates:
                found[aggregate] = found.get(aggregate, NONE) + fit
        for aggregate, roots in group.roots_by_aggregate().items():
            found[aggregate] = found.get(aggregate, NONE) + group.fit_bounds(roots)
        return {aggregate: fit for aggregate, fit in sorted(found.items()) if fit.upper_bound}


@dataclass(frozen=True, slots=True)
class _CoupledCount:
    """The number of guests that were placed on hosts with common sharing providers.

    ``placed`` has the numbers of guests. Their key is the root of the host, with the set of all roots from
    which these guests take amounts. ``most`` has an upper bound for the guests of each host, by its root.
    ``asked`` has the amounts of one guest, by class.
    """

    hosts: Sequence[tuple[HostTree, Sequence[Provider]]]
    placed: Mapping[tuple[int, frozenset[int]], int]
    most: Mapping[int, int]
    asked: Mapping[str, int]

    def fit_bounds(self, among: Collection[int] | None = None, without: int | None = None) -> FitBounds:
        """Return bounds for the number of guests that fit on these hosts.

        :param among: the roots of these hosts; None for all hosts.
        :param without: the root of a host that has failed, or None.
        """
        hosts = [
            (tree, shared)
            for tree, shared in self.hosts
            if tree.root.id != without and (among is None or tree.root.id in among)
        ]
        roots = {tree.root.id for tree, _ in hosts}
        lower = sum(
            number for (root, taken), number in self.placed.items() if root in roots and without not in taken
        )
        providers = {each.id: each for tree, shared in hosts for each in (*tree.members, *shared)}
        upper = sum(self.most[root] for root in roots)
        for name, amount in self.asked.items():
            having = [each for each in providers.values() if name in each.inventories]
            free = sum(max(0, each.free(name)) for each in having if each.root_id != without)
            upper = min(upper, free // amount)
        return FitBounds(lower, max(lower, upper))

    def roots_by_aggregate(self) -> Mapping[str, set[int]]:
        """Return the roots of these hosts, by the aggregates of the roots."""
        found: dict[str, set[int]] = {}
        for tree, _ in self.hosts:
            for aggregate in tree.root.aggregates:
                found.setdefault(aggregate, set()).add(tree.root.id)
        return found


class _HostPlacing:
    """Places guests on a copy of one host and of its sharing providers."""

    def __init__(
        self, cloud: CloudHosts, request: CandidatesRequest, topology: TopologyPolicy, budget: SearchBudget
    ) -> None:
        self._cloud = cloud
        self._budget = budget
        self._request = request
        self._topology = topology
        self._distances = cloud.snapshot.zone_distances()
        self._read_tree = tree_reader(all_conditions(request, needs_of(request)))
        self._repeated = RepeatedSplits(cloud.snapshot, request, topology, budget)
        #: numbers of guests, by the likeness of a host and its free amounts. Hosts have equal likenesses if
        #: they differ only in free amounts.
        self._known: dict[tuple[Hashable, tuple[int, ...]], int] = {}
        self._capable: dict[Hashable, bool] = {}

    def count_guests(self, tree: HostTree, shared: Sequence[Provider]) -> int:
        """Return how many guests fit at a host if they are placed one after another."""
        counted = self._repeated.count_guests(tree, tree.free, _NO_LIMIT)
        if counted is not None:
            return counted
        likeness = self._host_likeness(tree, shared)
        state = likeness, tree.free
        if state not in self._known:
            snapshot, count = self.copy_host(tree, shared), 0
            while (choice := self.first_choice(snapshot, tree.root.id)) is not None:
                times = count_repeats(snapshot, choice)
                snapshot, count = with_choice_held(snapshot, choice, times), count + times
            self._known[state] = count
        return self._known[state]

    def is_capable(self, tree: HostTree, shared: Sequence[Provider]) -> bool:
        """Return whether a guest would fit if the host and its sharing providers were unused."""
        counted = self._repeated.count_guests(tree, tree.capacities, 1)
        if counted is not None:
            return bool(counted)
        likeness = self._host_likeness(tree, shared)
        if likeness not in self._capable:
            used = self.copy_host(tree, shared)
            # the copies have no usage, because the question is whether a guest fits on the empty host
            empty = ModelSnapshot(replace(each, used={}) for each in used)
            self._capable[likeness] = self.first_choice(empty, tree.root.id) is not None
        return self._capable[likeness]

    def copy_host(
        self, tree: HostTree, shared: Sequence[Provider], held: Mapping[int, Provider] | None = None
    ) -> ModelSnapshot:
        """Return a snapshot that has only a host and its sharing providers.

        :param held: providers, by id, that replace those of the cloud, because they have another usage.
        """
        snapshot = self._cloud.snapshot
        ids = {each.id for each in tree.members}
        ids.update(member for each in shared for member in snapshot.trees[each.root_id])
        self._budget.spend(1 + len(ids))
        return ModelSnapshot((held or {}).get(each, snapshot.providers[each]) for each in ids)

    def first_choice(self, snapshot: ModelSnapshot, root: int) -> HostChoice | None:
        """Return the amounts that the next guest takes at a host, by provider; None if it does not fit."""
        self._budget.spend(1 + len(snapshot))
        choices = SplitChoices(snapshot, self._request, self._topology, self._distances, self._budget)
        return next((each for each in choices.choices_at(root) if each is not None), None)

    def _host_likeness(self, tree: HostTree, shared: Sequence[Provider]) -> Hashable:
        zones = [tree.members[zone[0]].id for zone in tree.kind.zone_positions]
        # if distances between zones are known, the search of claims uses them, so hosts with other distances
        # are not alike
        apart = tuple(self._distances.get(pair) for pair in combinations(zones, 2)) if self._distances else ()
        pools = tuple(each.id for each in shared)
        return (
            self._read_tree(tree),
            tree.kind,
            tuple(tree.capacities),
            pools,
            apart,
            tree.aggregates if pools else (),
        )


class _AmountBounds:
    """Upper bounds of the number of guests of a host, from sums of free amounts."""

    def __init__(self, request: CandidatesRequest, topology: TopologyPolicy) -> None:
        parts: dict[str, list[int]] = {}
        for group in request.groups:
            for name, amount in group.resources.items():
                parts.setdefault(name, []).append(amount)
        self._parts = parts
        self._topology = topology
        #: the amounts of one guest by class
        self.asked = {name: sum(amounts) for name, amounts in parts.items()}
        #: the amounts of one guest that the topology splits, by class
        self.split = {
            name: amount
            for group in request.groups
            for name, amount in group.resources.items()
            if group.suffix == "" and name in SPLIT
        }

    def takes_of_one_provider(self, tree: HostTree, names: Sequence[str]) -> bool:
        """Return whether a guest takes all split classes from one zone, and each class from one provider."""
        zones = tree.kind.zone_positions
        if self._topology is not TopologyPolicy.SINGLE_NUMA and len(zones) > 1:
            return False
        # if another group also asks for a split class, a way does not show which amounts the topology splits
        if any(len(self._parts[name]) > 1 for name in names):
            return False
        slots = tree.kind.shape.slots
        return all(sum((at, name) in slots for at in zone) <= 1 for zone in zones for name in names)

    def most_guests(self, tree: HostTree, shared: Sequence[Provider]) -> int:
        """Return an upper bound for the guests that fit at a host with its sharing providers."""
        names = zoned_classes(tree, self.split)
        providers = (*tree.members, *shared)
        most = [self._most_of_class(name, names, tree, providers) for name in self.asked]
        if names and self._topology is TopologyPolicy.SINGLE_NUMA:
            most.append(sum(self._most_of_zone(zone, names, tree) for zone in tree.kind.zone_positions))
        return min(most)

    def _most_of_class(
        self, name: str, zoned: Sequence[str], tree: HostTree, providers: Sequence[Provider]
    ) -> int:
        parts = self._parts[name]
        if len(parts) > 1:
            return sum(_usable(each, name) for each in providers) // self.asked[name]
        if name in zoned:
            members = [tree.members[at] for zone in tree.kind.zone_positions for at in zone]
            return sum(_usable(each, name) for each in members) // parts[0]
        # a guest takes a class that is not split from one provider, so the guests of providers are added
        having = [each for each in providers if name in each.inventories]
        giving = [each for each in having if each.inventories[name].is_portion(parts[0])]
        return sum(max(0, each.free(name)) // parts[0] for each in giving)

    def _most_of_zone(self, zone: Sequence[int], names: Sequence[str], tree: HostTree) -> int:
        sums = {name: sum(_usable(tree.members[at], name) for at in zone) for name in names}
        return min(sums[name] // self.split[name] for name in names)


def _usable(provider: Provider, name: str) -> int:
    """Return the free amount of a class that guests can use at a provider: whole steps of ``step_size``."""
    if name not in provider.inventories:
        return 0
    step = provider.inventories[name].step_size
    return max(0, provider.free(name)) // step * step
