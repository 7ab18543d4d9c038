"""Counts the guests of a flavor that fit: in the cloud, in each aggregate, and after the failure of a host.

Hosts with a common sharing provider are coupled: if a guest on one host takes an amount from this provider,
the other hosts can no longer use this amount. For full hosts, the result has the resource classes that are
short, and the stranded free amounts of the other classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from operator import itemgetter
from typing import Final

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.budget import SearchBudget
from placement.search.request import CandidatesRequest
from placement.search.roots import SharingProviders
from placement_extras.planner.packing import (
    NONE,
    FitBounds,
    FlavorFootprints,
    FootprintFinder,
    Free,
    Slot,
    Way,
    fit_function,
    pack_guests,
)

# in a larger group, it would take too long to count the guests of the group once for each of its hosts
MAX_RETRIED: Final = 32
"""Maximum number of coupled hosts in a group for which guests are counted again without each of its hosts.
For a larger group, the result has bounds instead.
"""


@dataclass(eq=False, slots=True)
class CoupledHost:
    """A host that has sharing providers in common with other hosts, and the ways to place a guest there.

    A slot is a pair of provider id and class.

    ``free`` has the free amounts of the slots of these ways. ``alone`` is the number of guests that fit if no
    guests are placed on the other hosts. ``shared`` has the sharing providers that this host uses and that
    belong to other trees. ``offered`` has the slots of sharing providers in this host's own tree.
    """

    tree: HostTree
    shared: Sequence[Provider]
    ways: FlavorFootprints
    free: dict[Slot, int]
    alone: FitBounds
    offered: frozenset[Slot]


class HostCoupling:
    """Hosts with common sharing providers, and the number of guests that fit on all these hosts together.

    :param sharing: the ids of all sharing providers that serve trees other than their own.
    """

    def __init__(self, finder: FootprintFinder, sharing: Collection[int], budget: SearchBudget) -> None:
        self._finder = finder
        self._sharing = sharing
        self._budget = budget
        self._groups: list[list[CoupledHost]] = []
        self._group_of: dict[CoupledHost, int] = {}

    def couple_host(self, tree: HostTree, shared: Sequence[Provider]) -> CoupledHost:
        """Return the coupled host for a tree and the sharing providers that it uses in other trees."""
        ways, free = couple_ways(self._finder.footprints_at(tree, shared), tree, shared)
        offered = {
            (each.id, name) for each in tree.members if each.id in self._sharing for name in each.inventories
        }
        return CoupledHost(
            tree, shared, ways, free, fit_function(ways, self._budget)(free), frozenset(offered)
        )

    def group_hosts(self, hosts: Sequence[CoupledHost]) -> None:
        """Divide the coupled hosts into groups. Hosts in different groups share no sharing provider."""
        leader: dict[int, int] = {}

        def find_leader(root: int) -> int:
            # union-find with path halving
            while (above := leader.setdefault(root, root)) != root:
                leader[root] = leader[above]
                root = above
            return root

        for host in hosts:
            # a sharing provider couples its hosts even if no way takes an amount from it, because it can
            # serve a group without resources
            self._budget.spend(1 + len(host.shared) // 4)
            for other in host.shared:
                leader[find_leader(other.root_id)] = find_leader(host.tree.root.id)
        groups: dict[int, list[CoupledHost]] = {}
        for host in hosts:
            groups.setdefault(find_leader(host.tree.root.id), []).append(host)
        self._groups = list(groups.values())
        self._group_of = {each: number for number, group in enumerate(self._groups) for each in group}

    def fit_bounds(self, hosts: Collection[CoupledHost]) -> FitBounds:
        """Return bounds for the number of guests that fit on these hosts together."""
        by_group: dict[int, list[CoupledHost]] = {}
        for host in hosts:
            by_group.setdefault(self._group_of[host], []).append(host)
        return sum([self._fit_group(group) for group in by_group.values()], NONE)

    def without_each(self) -> Iterator[tuple[HostTree, FitBounds]]:
        """Yield each coupled host, with bounds for the guests that fit on the other hosts if it fails."""
        fits = [self._fit_group(group) for group in self._groups]
        # hosts in different groups have no provider in common, so the bounds of the groups are added
        whole = sum(fits, NONE)
        for group, fit in zip(self._groups, fits, strict=True):
            for failed in group:
                # in a large group, counting again for each host would take too long, so the result has bounds
                if len(group) > MAX_RETRIED and not failed.offered:
                    # at most the guests of the failed host are lost
                    lost = min(fit.lower_bound, failed.alone.upper_bound)
                    left = FitBounds(fit.lower_bound - lost, fit.upper_bound)
                else:
                    left = self._fit_group(
                        [self._after_failure(each, failed) for each in group if each is not failed]
                    )
                yield failed.tree, whole - fit + left

    def _after_failure(self, host: CoupledHost, failed: CoupledHost) -> CoupledHost:
        """Return a coupled host with the ways that are left after another host has failed."""
        if not failed.offered:
            return host
        # the sharing providers of the failed host are lost, too, so hosts that used them have fewer ways
        shared = [each for each in host.shared if each.root_id != failed.tree.root.id]
        return host if len(shared) == len(host.shared) else self.couple_host(host.tree, shared)

    def _fit_group(self, hosts: Sequence[CoupledHost]) -> FitBounds:
        # equal ways of several hosts take only from sharing providers, so they are one way
        ways = dict.fromkeys(way for each in hosts for way in each.ways.ways)
        classes = {slot: name for each in hosts for slot, name in each.ways.classes.items()}
        free = {slot: left for each in hosts for slot, left in each.free.items()}
        upper_bound = sum([each.alone.upper_bound for each in hosts])
        return pack_guests(
            FlavorFootprints(tuple(ways), classes, coupled=True), free, self._budget, upper_bound
        )


def couple_ways(
    found: FlavorFootprints, tree: HostTree, shared: Sequence[Provider]
) -> tuple[FlavorFootprints, dict[Slot, int]]:
    """Return the ways at a host, and the free amounts of their slots, with slots for all coupled hosts."""
    # a slot of a tree is a position in this tree. At other hosts the position means another inventory, so ids
    # of providers replace positions.
    ways = replace(found.with_provider_ids(tree), coupled=True)
    amounts = _amounts_at(ways, (*tree.members, *shared), Provider.free)
    named = {*ways.classes, *ways.single_slots(ways.classes)}
    return ways, {slot: amount for slot, amount in amounts.items() if slot in named}


def _amounts_at(
    ways: FlavorFootprints, providers: Iterable[Provider], amount_of: Callable[[Provider, str], int]
) -> dict[Slot, int]:
    """Return the amount of each inventory by provider id and class, and the usable amount of each pool."""
    found = {(each.id, name): amount_of(each, name) for each in providers for name in each.inventories}
    return found | {slot: pool.usable_amount(found) for slot, pool in ways.pools.items()}


def _capacity_of(provider: Provider, name: str) -> int:
    return provider.inventories[name].capacity


MAX_EXAMPLES: Final = 5
"""Maximum number of example hosts in an answer for each set of short classes."""


@dataclass(frozen=True, slots=True)
class StrandedHost:
    """A full host: its root, its stranded amounts, and the number of guests that could use these amounts."""

    root: Provider
    stranded: Mapping[str, int]
    guests: int


@dataclass(frozen=True, slots=True)
class ClassShortage:
    """The full hosts at which the same resource classes (``classes``) are short.

    ``hosts`` is the number of these hosts, and ``stranded`` has their stranded amounts by class. If these
    hosts had enough of the short classes, ``guests`` more guests would fit there. ``examples`` has some of
    these hosts, beginning with the host that would then have room for the most guests.
    """

    classes: tuple[str, ...]
    hosts: int
    stranded: Mapping[str, int]
    guests: int
    examples: tuple[StrandedHost, ...]


class StrandedAmounts:
    """Groups full hosts by their short classes."""

    def __init__(self, budget: SearchBudget) -> None:
        self._budget = budget
        self._lacking: dict[tuple[FlavorFootprints, frozenset[str]], _LackingHosts] = {}
        self._gathered: dict[tuple[str, ...], _GatheredHosts] = {}

    def add(
        self, tree: HostTree, ways: FlavorFootprints, free: Free, shared: Collection[int] = frozenset()
    ) -> None:
        """Add a full host. Each way to place a guest there needs more than the free amount of some slot.

        :param shared: ids of the sharing providers of a coupled host. Free amounts of these providers are not
            stranded, because other hosts can use them.
        """
        # the way with the fewest short classes decides which classes are short
        short = min(
            # among ways with equally few short classes, names decide, so that equal hosts get the same
            # classes
            (_short_classes(way, ways, free) for way in ways.ways),
            key=lambda names: (len(names), sorted(names)),
        )
        key = (ways, short)
        lacking = self._lacking.get(key)
        if lacking is None:
            lacking = self._lacking[key] = _LackingHosts(ways, short, shared, self._budget)
            self._gathered.setdefault(lacking.classes, _GatheredHosts())
        stranded = {
            name: sum([free[slot] for slot in slots if free[slot] > 0]) for name, slots in lacking.others
        }
        guests = lacking.fit(free).lower_bound if stranded else 0
        self._gathered[lacking.classes].add(tree, stranded, guests)

    def class_shortages(self) -> tuple[ClassShortage, ...]:
        """Return the shortages, sorted by descending number of hosts."""
        ordered = sorted(self._gathered.items(), key=lambda item: (-item[1].hosts, item[0]))
        return tuple([gathered.shortage_of(classes) for classes, gathered in ordered])


def _short_classes(way: Way, ways: FlavorFootprints, free: Free) -> frozenset[str]:
    return frozenset([ways.classes[slot] for slot, amount in way if free[slot] < amount])


class _LackingHosts:
    """The full hosts that have the same ways to place a guest, and lack the same resource classes."""

    def __init__(
        self, ways: FlavorFootprints, short: frozenset[str], shared: Collection[int], budget: SearchBudget
    ) -> None:
        self.classes = tuple(sorted(short))
        slots: dict[str, list[Slot]] = {}
        for slot, name in ways.classes.items():
            if name not in short and not (shared and slot[0] in shared):
                slots.setdefault(name, []).extend(ways.single_slots((slot,)))
        #: the other classes of the flavor, which are not short, with their slots
        self.others = tuple(sorted(slots.items()))
        left = ways.without_classes(short, budget)
        #: the function that counts the guests that would fit if a host had enough of the short classes
        self.fit: Callable[[Free], FitBounds] = fit_function(left, budget)


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

    def shortage_of(self, classes: tuple[str, ...]) -> ClassShortage:
        # among hosts with the same number of guests, names and ids decide, so that answers have equal
        # examples
        examples = nsmallest(MAX_EXAMPLES, self.examples)
        return ClassShortage(
            classes, self.hosts, self.stranded, self.guests, tuple([each[-1] for each in examples])
        )


_TREES: Final = 64
"""Number of trees between two checks of the budget."""


@dataclass(frozen=True, slots=True)
class FlavorCapacity:
    """The number of guests of a flavor that still fit.

    - ``hosts`` is the number of hosts that could serve the flavor if all hosts and sharing providers were
      empty. ``candidate_hosts`` is the number of hosts on which a guest fits at present.
    - ``worst`` is the root of the worst host: if this host fails, room for the most guests is lost. Without
      this host, ``without_worst`` guests fit.
    - ``by_aggregate`` has, for each aggregate, the number of guests that fit on hosts with their root in the
      aggregate.
    - ``shortages`` is None if a topology splits the guests, because no shortages are computed for such
      guests.
    """

    fit: FitBounds
    hosts: int
    candidate_hosts: int
    worst: Provider | None
    without_worst: FitBounds
    by_aggregate: Mapping[str, FitBounds]
    shortages: tuple[ClassShortage, ...] | None
    uncounted_hosts: int = 0
    """Number of hosts on which no guests were placed before the time ended. Their lower bound is 0."""


class CloudHosts:
    """The hosts of a snapshot on which guests are counted.

    :param avoided: ids of the roots of hosts to leave out. Sharing providers of such a host are also left out
        for other hosts.
    """

    def __init__(
        self, snapshot: ModelSnapshot, budget: SearchBudget, avoided: Collection[int] = frozenset()
    ) -> None:
        self.snapshot = snapshot
        self.budget = budget
        self._avoided = avoided
        sharing = SharingProviders(snapshot, budget)
        self.sharing = {each for each in sharing.providers if snapshot.providers[each].root_id not in avoided}
        self.hosts = list(self._list_hosts(sharing))

    def _list_hosts(self, sharing: SharingProviders) -> Iterator[tuple[HostTree, Sequence[Provider]]]:
        shared: Sequence[Provider] = ()
        for number, (root, tree) in enumerate(self.snapshot.whole_trees().items()):
            if number % _TREES == 0:
                self.budget.spend(_TREES)
            if root in self._avoided:
                continue
            if self.sharing:
                shared = [each for each in sharing.with_tree(root).providers if each.id in self.sharing]
            yield tree, shared

    def is_coupled(self, ways: FlavorFootprints, tree: HostTree) -> bool:
        """Return whether a host uses sharing providers of other trees, or has a sharing provider."""
        return ways.coupled or (bool(self.sharing) and any(each.id in self.sharing for each in tree.members))


def worst_failure(
    fit: FitBounds, left: Iterable[tuple[FitBounds, HostTree]]
) -> tuple[Provider | None, FitBounds]:
    """Return the root of the worst host, and the guests that fit without this host.

    :param fit: the guests that fit on all hosts. If none fit, there is no worst host.
    :param left: the guests that fit without a host, for each host that can be the worst.
    """
    if not fit.upper_bound:
        return None, NONE
    bounds, tree = min(left, key=lambda each: (each[0].lower_bound, each[1].root.id))
    return tree.root, bounds


def count_flavor(cloud: CloudHosts, request: CandidatesRequest) -> FlavorCapacity:
    """Return how many more guests of a flavor fit, if no guests of other flavors are added."""
    return _FlavorCount(cloud, request).run()


class _FlavorCount:
    """Counts the guests of one flavor over all hosts."""

    def __init__(self, cloud: CloudHosts, request: CandidatesRequest) -> None:
        self._cloud = cloud
        self._budget = cloud.budget
        self._finder = FootprintFinder(cloud.snapshot, request, cloud.budget)
        self._stranding = StrandedAmounts(cloud.budget)
        self._coupling = HostCoupling(self._finder, cloud.sharing, cloud.budget)
        self._coupled: list[CoupledHost] = []
        #: for hosts that are too small for some of the ways, the ways that remain
        self._smaller: dict[tuple[FlavorFootprints, tuple[Way, ...]], FlavorFootprints] = {}
        self._full_hosts = self._open = 0

    def run(self) -> FlavorCapacity:
        alone: list[tuple[HostTree, int, int]] = []
        for number, (tree, shared) in enumerate(self._cloud.hosts):
            if number % _TREES == 0:
                self._budget.spend(_TREES)
            ways = self._finder.footprints_at(tree, shared)
            if self._cloud.is_coupled(ways, tree):
                self._couple_host(tree, shared)
                continue
            if not ways.ways:
                continue
            # ways of hosts with the same structure are one object, so their formula is made once
            formula, free = ways.fit_formula, ways.with_pools(tree.free)
            if formula is not None:
                fits = upper_bound = formula(free)
            else:
                fit = pack_guests(ways, free, self._budget)
                fits, upper_bound = fit.lower_bound, fit.upper_bound
            if upper_bound:
                alone.append((tree, fits, upper_bound))
            else:
                self._note_full(tree, ways, free, ways.with_pools(tree.capacities))
        self._coupling.group_hosts(self._coupled)
        single = FitBounds(
            sum([fits for _, fits, _ in alone]), sum([upper_bound for _, _, upper_bound in alone])
        )
        coupled = self._coupling.fit_bounds(self._coupled)
        # each coupled host is perhaps the worst. Among the other hosts, only the host with the most guests
        # can be the worst.
        left = [(single + fit, tree) for tree, fit in self._coupling.without_each()]
        if alone:
            tree, *most = max(alone, key=itemgetter(1))
            left.append((single - FitBounds(*most) + coupled, tree))
        fit = single + coupled
        worst, without_worst = worst_failure(fit, left)
        return FlavorCapacity(
            fit=fit,
            hosts=self._open + len(alone) + self._full_hosts,
            candidate_hosts=self._open + len(alone),
            worst=worst,
            without_worst=without_worst,
            by_aggregate=self._by_aggregate(alone),
            shortages=self._stranding.class_shortages(),
        )

    def _couple_host(self, tree: HostTree, shared: Sequence[Provider]) -> None:
        host = self._coupling.couple_host(tree, shared)
        self._coupled.append(host)
        if host.alone.upper_bound:
            self._open += 1
        elif host.ways.ways:
            capacities = _amounts_at(host.ways, (*tree.members, *shared), _capacity_of)
            self._note_full(tree, host.ways, host.free, capacities, {each.id for each in host.shared})

    def _note_full(
        self,
        tree: HostTree,
        ways: FlavorFootprints,
        free: Free,
        capacities: Mapping[Slot, int] | Sequence[int],
        shared: Collection[int] = frozenset(),
    ) -> None:
        """Add a full host to the shortages if a guest would fit on this host when it is empty.

        :param ways: the ways to place a guest at the largest host of the same structure. This host can be too
            small for some of these ways.
        """
        self._budget.spend(1 + len(ways.ways) // 4)
        kept = ways.ways_within(capacities)
        if not kept:
            return
        # ways that need more than the capacity of this host are left out
        if len(kept) < len(ways.ways):
            key = ways, kept
            if key not in self._smaller:
                self._smaller[key] = ways.with_ways(kept)
            ways = self._smaller[key]
        self._full_hosts += 1
        self._stranding.add(tree, ways, free, shared)

    def _by_aggregate(self, alone: Sequence[tuple[HostTree, int, int]]) -> dict[str, FitBounds]:
        sums: dict[str, list[int]] = {}
        for tree, fits, upper_bound in alone:
            for aggregate in tree.root.aggregates:
                known = sums.setdefault(aggregate, [0, 0])
                known[0] += fits
                known[1] += upper_bound
        found = {aggregate: FitBounds(*known) for aggregate, known in sums.items()}
        coupled: dict[str, list[CoupledHost]] = {}
        for host in self._coupled:
            for aggregate in host.tree.root.aggregates:
                coupled.setdefault(aggregate, []).append(host)
        for aggregate, hosts in coupled.items():
            found[aggregate] = found.get(aggregate, NONE) + self._coupling.fit_bounds(hosts)
        return {aggregate: fit for aggregate, fit in sorted(found.items()) if fit.upper_bound}
