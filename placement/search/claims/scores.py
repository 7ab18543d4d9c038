"""Scores of choices by criteria, and choices in the order of their scores.

Criteria look at the taken resources through :class:`_Taking`. Most of that is the same for all trees of a
kind when a candidate takes from its own tree alone, and is computed once for each pattern.

The best choices are found by branch and bound, so that few hosts are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, combinations
from typing import Final, Protocol

from placement.read_model.index import Sums
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree, TreeClass
from placement.search.budget import SearchBudget
from placement.search.candidates import AllocationCandidate, CandidatePattern
from placement.search.claims.claim import ChoiceScore, ClaimScenario, HostChoice, WantedClaim, zone_of
from placement.search.claims.topology import LOCAL, distance_of

ATTRIBUTE: Final = "attribute:"
"""What the criteria begin with that are attributes of providers; their names follow."""

Found = AllocationCandidate | HostChoice
"""What may be chosen, as the search has it or made already."""


Asked = Mapping[str, tuple[Sums, int]]
"""Of each class that is asked for the sums of all hosts, and how much."""

Rank = tuple[bool, float]
"""Whether a choice lacks a number that the order goes by, and its score, negative: less is
better."""


class ChoiceScorer:
    """Scores for one that is wanted, of what nobody holds yet in a world."""

    def __init__(self, world: ClaimScenario, wanted: WantedClaim) -> None:
        self._world = world
        self._wanted = wanted
        self._terms: dict[tuple[TreeClass, int], _PatternTerms] = {}
        #: of each class that is asked for the sums by tree, and how much
        self._asked = {
            name: (world.snapshot.sums(name), amount) for name, amount in wanted.request.total_amounts.items()
        }

    def score(self, found: Found) -> ChoiceScore:
        """The score by each criterion, and the sum."""
        taking = self._taken_by(found)
        criteria = {
            name: self._criterion_value(taking, name, weight) or 0.0 for name, weight in self._wanted.order
        }
        return ChoiceScore(-self._rank_taken(taking)[1], criteria)

    def rank(self, found: Found) -> Rank:
        """The rank of a choice, by the sum alone."""
        return self._rank_taken(self._taken_by(found))

    def _rank_taken(self, taking: _TakenAmounts) -> Rank:
        lacks, total = False, 0.0
        for name, weight in self._wanted.order:
            value = self._criterion_value(taking, name, weight)
            # a choice without the number comes after all that have it, whatever else it scores
            lacks = lacks or value is None
            # a negative weight has turned the attribute around already; bounds add in this order, too
            total += abs(weight) * (value or 0.0)
        # negative, as heaps give the least first
        return lacks, -total

    def _criterion_value(self, taking: _TakenAmounts, name: str, weight: float) -> float | None:
        criterion = CRITERIA.get(name)
        if criterion is not None:
            return criterion(taking)
        return attribute(self._world.snapshot, taking, name.removeprefix(ATTRIBUTE), low=weight < 0)

    def _taken_by(self, found: Found) -> _TakenAmounts:
        if isinstance(found, AllocationCandidate):
            tree, pattern = found
            if isinstance(tree, HostTree):
                # Like trees have the same pattern, which the terms keep, so that no other has its id.
                terms = self._terms.get((tree.kind, id(pattern)))
                if terms is None:
                    terms = self._terms[tree.kind, id(pattern)] = _PatternTerms.of(self._world, tree, pattern)
                return _OfTree(self._world, self._wanted, self._asked, tree, terms)
            found = HostChoice.of(self._world.snapshot, found)
        return _OfChoice(self._world, self._wanted, self._asked, found)


class _TakenAmounts(Protocol):
    """The taken resources, as criteria look at them."""

    def providers(self) -> Iterable[Provider]:
        """The providers that something is taken of."""

    def shares(self) -> Iterable[float]:
        """The share of the host that would be used, of each class that is taken."""

    def fits(self) -> Iterable[float]:
        """The share that each amount is of the free amount of its provider."""

    def zones(self) -> int:
        """How many NUMA nodes something is taken of."""

    def distances(self) -> Iterable[int]:
        """How far these are apart, two at a time."""

    def liking(self) -> float:
        """How well it goes with the others of the group."""


@dataclass(frozen=True, slots=True)
class _PatternTerms:
    """The resources that a pattern takes of trees of a kind.

    ``zones`` are the positions of NUMA nodes, ``demands`` slots with amounts.
    """

    pattern: CandidatePattern
    zones: tuple[int, ...]
    demands: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, world: ClaimScenario, tree: HostTree, pattern: CandidatePattern) -> _PatternTerms:
        at = {member.id: position for position, member in enumerate(tree.members)}
        zones = {zone_of(world.snapshot, tree.members[position]) for position in pattern.resources}
        slots = tree.kind.shape.slots
        return cls(
            pattern,
            tuple(sorted(at[zone] for zone in zones if zone is not None)),
            tuple(
                (slots[position, name], amount)
                for position, amounts in pattern.resources.items()
                for name, amount in amounts.items()
            ),
        )


@dataclass(slots=True)  # that are made fast
class _OfTree:
    """A pattern that a tree follows without any help of others."""

    world: ClaimScenario
    wanted: WantedClaim
    asked: Asked
    tree: HostTree
    terms: _PatternTerms

    def providers(self) -> Iterable[Provider]:
        return [self.tree.members[position] for position in self.terms.pattern.resources]

    def shares(self) -> Iterable[float]:
        root = self.tree.root.id
        return [share(*sums[root], amount) for sums, amount in self.asked.values()]

    def fits(self) -> Iterable[float]:
        free = self.tree.free
        return [amount / free[slot] for slot, amount in self.terms.demands]

    def zones(self) -> int:
        return len(self.terms.zones)

    def distances(self) -> Iterable[int]:
        return _zone_distances(self.world, [self.tree.members[position].id for position in self.terms.zones])

    def liking(self) -> float:
        return _group_liking(self.world, self.wanted, (self.tree.root.id,))


@dataclass(slots=True)
class _OfChoice:
    """Whatever a choice takes."""

    world: ClaimScenario
    wanted: WantedClaim
    asked: Asked
    choice: HostChoice

    def providers(self) -> Iterable[Provider]:
        return [provider for provider, _ in self.choice.resources]

    def shares(self) -> Iterator[float]:
        root = self.choice.root.id
        for name, (sums, amount) in self.asked.items():
            used, capacity = sums.get(root, (0, 0))
            for provider, amounts in self.choice.resources:
                if name in amounts and provider.root_id != root:
                    used += provider.used.get(name, 0)
                    capacity += max(0, provider.inventories[name].capacity)
            yield share(used, capacity, amount)

    def fits(self) -> Iterator[float]:
        for provider, amounts in self.choice.resources:
            for name, amount in amounts.items():
                yield amount / provider.free(name)

    def zones(self) -> int:
        return len(self._zone_ids())

    def distances(self) -> Iterable[int]:
        return _zone_distances(self.world, self._zone_ids())

    def liking(self) -> float:
        return _group_liking(self.world, self.wanted, self.choice.hosts)

    def _zone_ids(self) -> set[int]:
        found = (zone_of(self.world.snapshot, provider) for provider, _ in self.choice.resources)
        return {zone for zone in found if zone is not None}


def pack(taking: _TakenAmounts) -> float:
    """How much of the host would be used: of each class that is taken the share, and of these the mean.

    A provider outside of the host that shares with it counts for what is taken of it.
    """
    return mean([*taking.shares()])


def spread(taking: _TakenAmounts) -> float:
    """How much of the host would be free: what is left of 1 by :func:`pack`."""
    return 1 - pack(taking)


def zones(taking: _TakenAmounts) -> float:
    """1 by the number of NUMA nodes that something is taken of; what is in none of them does not count."""
    return 1 / (taking.zones() or 1)


def distance(taking: _TakenAmounts) -> float:
    """How near these are to each other: the distance within one, by the mean of that between two of them."""
    apart = [*taking.distances()]
    return min(1.0, LOCAL * len(apart) / max(1, sum(apart))) if apart else 1.0


def fit(taking: _TakenAmounts) -> float:
    """How much is taken of what is free, where that is the largest share: 1 where it is used up."""
    return max(taking.fits())


def group(taking: _TakenAmounts) -> float:
    """How well it is placed beside the others of its group: how many of them are there, or how few."""
    return taking.liking()


def attribute(snapshot: ModelSnapshot, taking: _TakenAmounts, name: str, *, low: bool) -> float | None:
    """From 0 to 1 where the numbers of an attribute are among those of all providers, 1 being the best.

    What something is taken of counts by itself, or by the nearest above it that has such a number; where
    these are several, by the mean. None if one of them has none.

    :param low: whether the lowest is the best.
    """
    found = [number_of(snapshot, provider, name) for provider in taking.providers()]
    numbers = [each for each in found if each is not None]
    whole = snapshot.attribute_range(name)
    if whole is None or len(numbers) < len(found):
        return None
    # parts, as the sum of some numbers may be more than a number holds; not outside of them by rounding
    middle = sum(each / len(numbers) for each in numbers)
    return standing(whole, min(max(middle, min(numbers)), max(numbers)), low=low)


def standing(whole: tuple[float, float], number: float, *, low: bool) -> float:
    """Where a number is between the lowest, 0, and the highest of all, 1; or the other way round."""
    least, most = whole
    if most <= least:
        return 1.0
    # halves, as the difference of two numbers may be more than a number holds
    part = (number / 2 - least / 2) / (most / 2 - least / 2)
    return 1 - part if low else part


CRITERIA: Final[Mapping[str, Callable[[_TakenAmounts], float]]] = {
    "pack": pack,
    "spread": spread,
    "numa_nodes": zones,
    "numa_distance": distance,
    "best_fit": fit,
    "group": group,
}


def share(used: int, capacity: int, taken: int) -> float:
    """How much would be used if so much more were."""
    return min(1.0, (used + taken) / capacity) if capacity else 1.0


def mean(shares: Sequence[float]) -> float:
    """The mean of the used shares of all classes."""
    return sum(shares) / len(shares)


def number_of(snapshot: ModelSnapshot, provider: Provider, name: str) -> float | None:
    """The number of an attribute of the nearest provider, upwards from this one, that has it."""
    values = (each.attributes.get(name) for each in snapshot.upwards(provider))
    return next((value for value in values if isinstance(value, float)), None)


def _zone_distances(world: ClaimScenario, zones: Iterable[int]) -> Iterable[int]:
    return [distance_of(world.distances, one, other) for one, other in combinations(zones, 2)]


def _group_liking(world: ClaimScenario, wanted: WantedClaim, hosts: Iterable[int]) -> float:
    group = wanted.group
    return group.liking([*hosts], world.beside(group), world.size_of(group)) if group else 0.0


MAX_SCORED: Final = 10_000
"""Of more choices for one that is wanted the others come last, in any order."""
_AT_ONCE: Final = 64
"""After so many choices of a host other hosts have their turn."""

Choices = Iterator[Found | None]
"""Those of a host; None where it takes long to find the next."""


def best_first(
    hosts: Iterator[tuple[Rank, int]],
    at: Callable[[int], Choices],
    scorer: ChoiceScorer,
    budget: SearchBudget,
) -> Iterator[Found]:
    """All choices, the best first; of those as good as each other the one that was found first.

    :param hosts: the roots of hosts with their ceilings, as the rank of the best choice that there may be,
        in order. Hosts are looked at while their ceiling is better than the best choice that is known.
    """
    known: list[tuple[Rank, int, Found]] = []
    begun: list[tuple[Rank, int, Choices]] = []
    scored = 0
    host = next(hosts, None)
    while scored < MAX_SCORED:
        # branch and bound: a host is only opened while it may still be better than the best known choice
        if host is not None and (not known or host[0] < known[0][0]):
            (ceiling, root), host = host, next(hosts, None)
            choices = at(root)
        elif begun and (not known or begun[0][0] < known[0][0]):
            ceiling, root, choices = heappop(begun)
        elif known:
            yield heappop(known)[-1]
            continue
        else:
            return
        for count, found in enumerate(choices, start=1):
            if found is not None:
                budget.spend()
                rank = scorer.rank(found)
                heappush(known, (rank, scored, found))
                scored += 1
                # worse than the bound of its host: the next of the same host may be better
                if rank > ceiling and count < _AT_ONCE:
                    continue
            # back with its bound, so that other hosts of the same bound have their turn
            heappush(begun, (ceiling, root, choices))
            break
    while known:
        yield heappop(known)[-1]
    # beyond the limit choices are yielded as they are found, so that none is lost
    rest = (at(root) for _, root in chain(() if host is None else (host,), hosts))
    for choices in chain([choices for _, _, choices in begun], rest):
        yield from (found for found in choices if found is not None)
