"""Upper bounds of the scores at each host, computed from sums, so that most hosts need not be searched.

All choices of a request take the same total amount of each resource class. If only the host provides the
class, this total gives the exact used share of the host, and the bound equals the score of each choice. For a
criterion that depends on the chosen providers, the bound is the best possible score.

Sums are added in the same order as in :mod:`placement.search.claims.scores`, so that no rounding error puts
the bound below the score of the best choice.

Only :mod:`placement.search.claims.placement` uses this module. The module is separate from ``scores``,
because it reads sums of hosts instead of candidates.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Final

from placement.read_model.provider import SHARES, Provider
from placement.read_model.trees import TreeClass
from placement.search.budget import SearchBudget
from placement.search.claims.claim import ClaimScenario, WantedClaim
from placement.search.claims.scores import (
    ATTRIBUTE,
    Rank,
    mean_share,
    number_of,
    position_in_range,
    used_share,
)
from placement.search.claims.topology import LOCAL, NUMA_DISTANCE, REMOTE, SPLIT
from placement.search.conditions import needs_of
from placement.search.roots import SharingProviders

# the margin covers rounding errors, because ``scores`` adds the shares of sharing providers in another order
_SLACK: Final = 1e-12
"""Assumed relative rounding error of sums that are not added in the same order as in ``scores``."""

Bounds = tuple[Sequence[float], Sequence[float]]
"""The lower and the upper bounds of the used share of capacity; each sequence has one value for each host."""


class ScoreUpperBounds:
    """Upper bounds of the scores of hosts that possibly have room for a claim.

    :param roots: the roots of the hosts; hosts without room for some class are left out.
    """

    def __init__(
        self, world: ClaimScenario, wanted: WantedClaim, roots: Sequence[int], budget: SearchBudget
    ) -> None:
        self._snapshot = world.snapshot
        self._world = world
        self._wanted = wanted
        self._budget = budget
        self._needs = needs_of(wanted.request)
        self._sharing = SharingProviders(world.snapshot, budget, self._needs)
        self._roots = self._with_room(roots)
        self._used: Bounds | None = None
        #: roots of hosts at which no choice has the attribute of the order
        self._lacking: set[int] = set()

    def highest_first(self) -> Iterator[tuple[Rank, int]]:
        """Yield the upper bound and the root of each host, the best first; equal bounds keep their order."""
        # lists of numbers replace an object for each host, so that a few list comprehensions score ten
        # thousand hosts
        totals = [0.0] * len(self._roots)
        for name, weight in self._wanted.order:
            self._count_look()
            values, weight = self._bounds_by(name, low=weight < 0), abs(weight)
            totals = [total + weight * value for total, value in zip(totals, values, strict=True)]
        self._count_look()
        # a stable sort keeps the random order of hosts with equal bounds, so that concurrent claims spread
        order = sorted(range(len(totals)), key=totals.__getitem__, reverse=True)
        if self._lacking:
            # a second stable sort moves hosts without the number to the end, and keeps the order otherwise
            order.sort(key=lambda at: self._roots[at] in self._lacking)
        return (((self._roots[at] in self._lacking, -totals[at]), self._roots[at]) for at in order)

    def _count_look(self) -> None:
        """Count the steps of one pass over all hosts against the budget."""
        self._budget.spend(1 + len(self._roots) // 16)

    def _with_room(self, roots: Sequence[int]) -> Sequence[int]:
        """Return the hosts where, for each class without sharing providers, one provider has enough free."""
        least: dict[str, int] = {}
        for need in self._needs:
            for name, amount in need.resources:
                if not self._is_shared(name):
                    is_split = self._wanted.topology is not None and need.unsuffixed and name in SPLIT
                    # one provider may serve all needs of a class, so a host passes if a provider has enough
                    # for the largest need
                    least[name] = max(least.get(name, 1), 1 if is_split else amount)
        for name, amount in least.items():
            index = self._snapshot.free_index(name)
            # the count takes only a bisection, so the set is made only if it would leave out a host
            if index.count_roots(amount) < len(self._snapshot.trees):
                having = set(index.roots_with(amount))
                roots = [root for root in roots if root in having]
        return roots

    def _is_shared(self, name: str) -> bool:
        return bool(self._sharing.providers) and name in self._sharing.resource_classes

    def _bounds_by(self, name: str, *, low: bool) -> Iterable[float]:
        """Return for each host the upper bound of its score by a criterion."""
        if name == "pack":
            return self._share_bounds()[1]
        if name == "spread":
            return [1 - least for least in self._share_bounds()[0]]
        if name == "group":
            return self._liking_bounds()
        if name.startswith(ATTRIBUTE):
            return self._standing_bounds(name.removeprefix(ATTRIBUTE), low=low)
        if name == "numa_nodes":
            return [1 / fewest for fewest in self._fewest_zones_each]
        if name == NUMA_DISTANCE:
            nearest = max(1, min([REMOTE, *self._world.distances.values()]))
            apart = min(1.0, LOCAL / nearest)
            return [apart if fewest > 1 else 1.0 for fewest in self._fewest_zones_each]
        # all other criteria depend on the chosen providers, so their bound is the best possible score
        return [1.0] * len(self._roots)

    def _share_bounds(self) -> Bounds:
        """Return bounds of the used share of each host after the claim."""
        if self._used is None:
            amounts = self._wanted.request.total_amounts
            bounds = [self._of_class(name, amount) for name, amount in amounts.items()]
            self._count_look()
            least = list(map(mean_share, zip(*(each for each, _ in bounds), strict=True)))
            most = least
            # without sharing providers the lower and upper bounds are equal, and one list serves as both
            # lists
            if any(map(self._is_shared, amounts)):
                most = list(map(mean_share, zip(*(each for _, each in bounds), strict=True)))
            self._used = least, most
        return self._used

    def _of_class(self, name: str, amount: int) -> Bounds:
        """Return the bounds of the used share of one resource class at each host."""
        self._count_look()
        sums = self._snapshot.sums_of(name)
        if not self._is_shared(name):
            shares = [
                # the same formula as in used_share(), inlined because it runs for ten thousand hosts
                part if capacity and (part := (used + amount) / capacity) < 1 else 1.0
                for used, capacity in map(sums.__getitem__, self._roots)
            ]
            return shares, shares
        # several providers may give the class at once if several needs ask for it
        is_apart = sum(name in dict(need.resources) for need in self._needs) > 1
        bounds_of = partial(_beside_pools, amount=amount, is_apart=is_apart)
        # sums of sharing providers are keyed by aggregates, because hosts of one rack have the same sharing
        # providers
        pools = {
            via: _pool_sums(self._sharing.sharing_through(via).providers, name)
            for via in {*self._via_aggregates.values()}
        }
        alone = {via: bounds_of((0, 0), each) for via, each in pools.items()}
        least, most = [], []
        for root in self._roots:
            own, via = sums.get(root), self._via_aggregates.get(root)
            # without sharing providers, the host itself gives the whole amount, or has no candidate
            if via is None:
                least.append(part := 1.0 if own is None else used_share(*own, amount))
                most.append(0.0 if own is None else part)
                continue
            low, high = alone[via] if own is None else bounds_of(own, pools[via])
            least.append(low)
            most.append(high)
        return least, most

    @cached_property
    def _via_aggregates(self) -> Mapping[int, tuple[str, ...]]:
        """The aggregates that connect a host with sharing providers, by the root of the host."""
        return self._sharing.by_root()

    @cached_property
    def _fewest_zones_each(self) -> Sequence[int]:
        """Return for each host the least number of NUMA nodes that a choice needs."""
        alike: Counter[tuple[str, ...]] = Counter()
        # only isolated groups are known to use different providers
        if self._wanted.request.group_policy == "isolate":
            alike.update(
                tuple(name for name, _ in need.resources)
                for need in self._needs
                if not need.unsuffixed and not all(self._is_shared(name) for name, _ in need.resources)
            )
        apart = [(names, count) for names, count in alike.items() if count > 1]
        if not apart:
            return [1] * len(self._roots)
        trees = self._snapshot.whole_trees()
        known: dict[TreeClass, int] = {}
        fewest = []
        for root in self._roots:
            # the result is keyed by class of trees: zones depend on traits, and few classes cover all hosts
            kind = trees[root].kind
            if kind not in known:
                self._budget.spend(1 + len(kind.shape.lineages) // 4)
                known[kind] = max(1, *(_fewest_zones(kind, names, count) for names, count in apart))
            fewest.append(known[kind])
        return fewest

    def _liking_bounds(self) -> Iterable[float]:
        """Return each host's best score for the group, also for choices of sharing providers alone."""
        group, beside = self._wanted.group, self._world.members_beside(self._wanted.group)
        if group is None:
            return [0.0] * len(self._roots)
        size = self._world.size_of(group)
        pools = self._snapshot.by_trait.get(SHARES, ())
        elsewhere = {self._snapshot.providers[each].root_id for each in pools}
        least = max((group.host_preference((each,), beside, size) for each in elsewhere), default=0.0)
        # for a choice of sharing providers alone, the members at this host do not count
        nobody = max(least, group.host_preference((), beside, size))
        known = {root: max(least, group.host_preference((root,), beside, size)) for root in beside}
        return [known.get(root, nobody) for root in self._roots]

    def _standing_bounds(self, name: str, *, low: bool) -> Iterable[float]:
        """Return each host's best position in an attribute's range, sharing providers included."""
        whole = self._snapshot.attribute_range(name)
        of_trees = self._snapshot.attribute_ranges(name)
        numbers = [
            number
            for each in self._sharing.providers
            if (number := number_of(self._snapshot, self._snapshot.providers[each], name)) is not None
        ]
        elsewhere = [(min(numbers), max(numbers))] if numbers else []
        best: Mapping[int, float] = {}
        if whole is not None:
            best = {
                root: _best_standing(whole, (each, *elsewhere), low=low) for root, each in of_trees.items()
            }
        # a choice of sharing providers alone may be anchored at any host, and is scored by the number of the
        # sharing provider
        if not numbers:
            self._lacking.update(root for root in self._roots if root not in best)
        lacking = _best_standing(whole, elsewhere, low=low) if whole is not None and elsewhere else 0.0
        return [best.get(root, lacking) for root in self._roots]


def _best_standing(whole: tuple[float, float], ranges: Iterable[tuple[float, float]], *, low: bool) -> float:
    return max(position_in_range(whole, number, low=low) for number in chain.from_iterable(ranges))


def _pool_sums(pools: Iterable[Provider], name: str) -> Sequence[tuple[int, int]]:
    """Return the used amount and the capacity of each sharing provider with the class."""
    return [
        (each.used.get(name, 0), each.inventories[name].capacity)
        for each in pools
        if name in each.inventories and each.inventories[name].capacity > 0
    ]


def _beside_pools(
    own: tuple[int, int], pools: Sequence[tuple[int, int]], amount: int, *, is_apart: bool
) -> tuple[float, float]:
    """Return bounds of a class's used share at a host with a sharing provider, or several if ``is_apart``."""
    used, capacity = own
    found = [used_share(used, capacity, amount)] if capacity > 0 else []
    if not is_apart:
        found += [used_share(used + there, capacity + could, amount) for there, could in pools]
        return min(found, default=1.0), max(found, default=0.0)
    # with a capacity of 0 or less and some usage, the share together with sharing providers may have any
    # value
    if capacity <= 0 < used:
        return 0.0, 1.0
    # the used share of several providers together is between their lowest and their highest share
    least = min([*found, *(there / could for there, could in pools)], default=1.0)
    most = max([*found, *(used_share(there, could, amount) for there, could in pools)], default=0.0)
    return least * (1 - _SLACK), min(1.0, most * (1 + _SLACK))


def _fewest_zones(kind: TreeClass, names: tuple[str, ...], count: int) -> int:
    """Return the least number of zones which together have ``count`` providers with all these classes."""
    having = {at for at, _ in kind.shape.places_giving(names)}
    inside = sorted([len(having.intersection(zone)) for zone in kind.zone_positions], reverse=True)
    # providers outside of zones count first, because they need no zone
    left = count - (len(having) - sum(inside))
    for fewest, there in enumerate(inside):
        if left <= 0:
            return fewest
        left -= there
    return len(inside)
