"""Upper bounds of scores per host, from sums, so that most hosts need not be searched.

The total taken of each class is the same for all choices of a request. Where all of it comes from the host
itself, that gives the used share of the host, and the bound is what its choices score. A criterion that
depends on which providers give it is bounded by the best score there is.

Sums are added in the order of :mod:`placement.search.claims.scores`, so that the best choice is not above its
bound by a rounding error.
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
from placement.search.claims.scores import ATTRIBUTE, Rank, mean, number_of, share, standing
from placement.search.claims.topology import LOCAL, REMOTE, SPLIT
from placement.search.conditions import needs_of
from placement.search.roots import SharingProviders

_SLACK: Final = 1e-12
"""Of shares that are not added up as scores are."""

Bounds = tuple[Sequence[float], Sequence[float]]
"""For each host the least and the most."""


class ScoreUpperBounds:
    """Upper bounds of the hosts that may have room for a claim.

    :param roots: of the hosts; those that have no room of some class are left out.
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
        #: those whose choices all lack a number that the order goes by
        self._lacking: set[int] = set()

    def highest_first(self) -> Iterator[tuple[Rank, int]]:
        """The ceilings, as ranks, with the roots of the hosts, the best first; else in their order."""
        # columns rather than objects: ten thousand hosts are scored in a few list comprehensions
        totals = [0.0] * len(self._roots)
        for name, weight in self._wanted.order:
            self._count_look()
            values, weight = self._bounds_by(name, low=weight < 0), abs(weight)
            totals = [total + weight * value for total, value in zip(totals, values, strict=True)]
        self._count_look()
        # stable, so that hosts of equal bounds keep their random order, and claims at once spread
        order = sorted(range(len(totals)), key=totals.__getitem__, reverse=True)
        if self._lacking:
            # a second stable sort puts hosts without the number last and keeps the order within
            order.sort(key=lambda at: self._roots[at] in self._lacking)
        return (((self._roots[at] in self._lacking, -totals[at]), self._roots[at]) for at in order)

    def _count_look(self) -> None:
        """Count what looking once at each host takes."""
        self._budget.spend(1 + len(self._roots) // 16)

    def _with_room(self, roots: Sequence[int]) -> Sequence[int]:
        """The hosts with a provider that has enough free, for each class that only the host can give."""
        least: dict[str, int] = {}
        for need in self._needs:
            for name, amount in need.resources:
                if not self._is_shared(name):
                    is_split = self._wanted.topology is not None and need.unsuffixed and name in SPLIT
                    # needs of one class may be served by one provider each, so that the largest decides
                    least[name] = max(least.get(name, 1), 1 if is_split else amount)
        for name, amount in least.items():
            index = self._snapshot.free_index(name)
            # a bisection; the set of hosts is only made where it leaves out any
            if index.count(amount) < len(self._snapshot.trees):
                having = set(index.having(amount))
                roots = [root for root in roots if root in having]
        return roots

    def _is_shared(self, name: str) -> bool:
        return bool(self._sharing.providers) and name in self._sharing.classes

    def _bounds_by(self, name: str, *, low: bool) -> Iterable[float]:
        """For each host the highest score by a criterion."""
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
        if name == "numa_distance":
            nearest = max(1, min([REMOTE, *self._world.distances.values()]))
            apart = min(1.0, LOCAL / nearest)
            return [apart if fewest > 1 else 1.0 for fewest in self._fewest_zones_each]
        return [1.0] * len(self._roots)

    def _share_bounds(self) -> Bounds:
        """Bounds of the share of the host that would be used."""
        if self._used is None:
            amounts = self._wanted.request.total_amounts
            bounds = [self._of_class(name, amount) for name, amount in amounts.items()]
            self._count_look()
            least = list(map(mean, zip(*(each for each, _ in bounds), strict=True)))
            most = least
            # without pools the least and the most are the same list
            if any(map(self._is_shared, amounts)):
                most = list(map(mean, zip(*(each for _, each in bounds), strict=True)))
            self._used = least, most
        return self._used

    def _of_class(self, name: str, amount: int) -> Bounds:
        """The same of one class."""
        self._count_look()
        sums = self._snapshot.sums(name)
        if not self._is_shared(name):
            shares = [
                part if capacity and (part := (used + amount) / capacity) < 1 else 1.0
                for used, capacity in map(sums.__getitem__, self._roots)
            ]
            return shares, shares
        # a class asked for by several needs may come from several providers at once
        is_apart = sum(name in dict(need.resources) for need in self._needs) > 1
        bounds_of = partial(_beside_pools, amount=amount, is_apart=is_apart)
        # by aggregates: hosts of one rack have the same pools
        pools = {
            via: _pool_sums(self._sharing.through(via), name) for via in {*self._via_aggregates.values()}
        }
        alone = {via: bounds_of((0, 0), each) for via, each in pools.items()}
        least, most = [], []
        for root in self._roots:
            own, via = sums.get(root), self._via_aggregates.get(root)
            if via is None:
                least.append(part := 1.0 if own is None else share(*own, amount))
                most.append(0.0 if own is None else part)
                continue
            low, high = alone[via] if own is None else bounds_of(own, pools[via])
            least.append(low)
            most.append(high)
        return least, most

    @cached_property
    def _via_aggregates(self) -> Mapping[int, tuple[str, ...]]:
        """The aggregates through which others share with a host, by its root."""
        return self._sharing.by_root()

    @cached_property
    def _fewest_zones_each(self) -> Sequence[int]:
        """For each host how many NUMA nodes at least something is taken of: isolated groups are apart."""
        alike: Counter[tuple[str, ...]] = Counter()
        # only isolated groups are surely at different providers
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
            kind = trees[root].kind
            if kind not in known:
                self._budget.spend(1 + len(kind.shape.lineages) // 4)
                known[kind] = max(1, *(_fewest_zones(kind, names, count) for names, count in apart))
            fewest.append(known[kind])
        return fewest

    def _liking_bounds(self) -> Iterable[float]:
        """How well it goes with the others of its group; who takes of pools alone is there, and not here."""
        group, beside = self._wanted.group, self._world.beside(self._wanted.group)
        if group is None:
            return [0.0] * len(self._roots)
        size = self._world.size_of(group)
        pools = self._snapshot.by_trait.get(SHARES, ())
        elsewhere = {self._snapshot.providers[each].root_id for each in pools}
        least = max((group.liking((each,), beside, size) for each in elsewhere), default=0.0)
        # a choice of pools alone has no member beside it at this host
        nobody = max(least, group.liking((), beside, size))
        known = {root: max(least, group.liking((root,), beside, size)) for root in beside}
        return [known.get(root, nobody) for root in self._roots]

    def _standing_bounds(self, name: str, *, low: bool) -> Iterable[float]:
        """Where the best number of a host, and of what shares with any, is among those of all."""
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
        if not numbers:
            self._lacking.update(root for root in self._roots if root not in best)
        lacking = _best_standing(whole, elsewhere, low=low) if whole is not None and elsewhere else 0.0
        return [best.get(root, lacking) for root in self._roots]


def _best_standing(whole: tuple[float, float], ranges: Iterable[tuple[float, float]], *, low: bool) -> float:
    return max(standing(whole, number, low=low) for number in chain.from_iterable(ranges))


def _pool_sums(pools: Iterable[Provider], name: str) -> Sequence[tuple[int, int]]:
    """How much each of those that have a class uses of it, and could give."""
    return [
        (each.used.get(name, 0), each.inventories[name].capacity)
        for each in pools
        if name in each.inventories and each.inventories[name].capacity > 0
    ]


def _beside_pools(
    own: tuple[int, int], pools: Sequence[tuple[int, int]], amount: int, *, is_apart: bool
) -> tuple[float, float]:
    """The least and the most that would be used of a class, by a host together with pools that it takes of.

    :param is_apart: whether it may take of several.
    """
    used, capacity = own
    found = [share(used, capacity, amount)] if capacity > 0 else []
    if not is_apart:
        found += [share(used + there, capacity + could, amount) for there, could in pools]
        return min(found, default=1.0), max(found, default=0.0)
    if capacity <= 0 < used:
        return 0.0, 1.0
    # shares of several together are between those of each
    least = min([*found, *(there / could for there, could in pools)], default=1.0)
    most = max([*found, *(share(there, could, amount) for there, could in pools)], default=0.0)
    return least * (1 - _SLACK), min(1.0, most * (1 + _SLACK))


def _fewest_zones(kind: TreeClass, names: tuple[str, ...], count: int) -> int:
    """In how many zones so many providers are at least that have all of these classes."""
    having = {at for at, _ in kind.shape.giving(names)}
    inside = sorted([len(having.intersection(zone)) for zone in kind.zones], reverse=True)
    left = count - (len(having) - sum(inside))
    for fewest, there in enumerate(inside):
        if left <= 0:
            return fewest
        left -= there
    return len(inside)
