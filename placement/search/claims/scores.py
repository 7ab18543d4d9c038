"""Scores choices by criteria, and yields choices in the order of their scores.

The criteria read the resources of a choice through :class:`_TakenAmounts`. For a candidate without sharing
providers, most of these values are equal for all equivalent trees, and are computed once.

A branch-and-bound search finds the best choices without searching all hosts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import chain, combinations
from typing import Final

from placement.read_model.index import Sums
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree, TreeClass
from placement.search.budget import SearchBudget
from placement.search.candidates import AllocationCandidate, CandidatePattern
from placement.search.claims.claim import ChoiceScore, ClaimScenario, HostChoice, WantedClaim, zone_of
from placement.search.claims.topology import DISTANCE_CRITERIA, LOCAL, NUMA_DISTANCE, distance_of

ATTRIBUTE: Final = "attribute:"
"""Prefix of criteria that are attributes of providers; the name of the attribute follows."""

Found = AllocationCandidate | HostChoice
"""A choice to score: a candidate from the search, or a complete :class:`HostChoice`."""


Asked = Mapping[str, tuple[Sums, int]]
"""For each requested resource class: the used amount and the capacity of each tree by its root, and the
requested amount."""

Rank = tuple[bool, float]
"""A sort key of a choice: whether it lacks a compared attribute, and its negative score. Less is better."""


class ChoiceScorer:
    """Scores choices for one wanted claim, in a scenario in which the claim has no allocations yet."""

    def __init__(self, world: ClaimScenario, wanted: WantedClaim) -> None:
        self._world = world
        self._wanted = wanted
        # the terms of a pattern (its amounts and zones) are keyed by class of trees and pattern: equivalent
        # hosts give the same amounts from the same positions
        self._terms: dict[tuple[TreeClass, int], _PatternTerms] = {}
        #: the weights are absolute, because the criterion of a negative weight gives a reversed score
        self._criteria = [(name, abs(weight), criterion_of(name, weight)) for name, weight in wanted.order]
        self._reads_lineages = any(each.reads_lineages for _, _, each in self._criteria)
        #: for each requested class, the sums by tree, and the requested amount
        self._asked = {
            name: (world.snapshot.sums_of(name), amount)
            for name, amount in wanted.request.total_amounts.items()
        }

    @property
    def equal_devices_score_equally(self) -> bool:
        """Return whether devices that are equal for the request also always have equal scores.

        Devices that are equal for the request can still differ in attributes, and in free amounts above the
        requested amounts. NUMA nodes that are equal for the request can have different distances.
        """
        return not any(
            each.compares_devices or (name in DISTANCE_CRITERIA and self._world.distances)
            for name, _, each in self._criteria
        )

    def score_choice(self, found: Found) -> ChoiceScore:
        """Return the score of a choice by each criterion, and their weighted sum."""
        # scores are computed only for choices in the answer, because the search compares ranks and needs no
        # single scores
        taking = self._taken_by(found)
        criteria = {name: each.score(taking) or 0.0 for name, _, each in self._criteria}
        return ChoiceScore(-self._rank_taken(taking)[1], criteria)

    def rank_choice(self, found: Found) -> Rank:
        """Return the rank of a choice: whether it lacks an attribute, and its negative weighted sum."""
        return self._rank_taken(self._taken_by(found))

    def _rank_taken(self, taking: _TakenAmounts) -> Rank:
        lacks, total = False, 0.0
        for _, weight, each in self._criteria:
            value = each.score(taking)
            # a choice without the attribute comes after all choices with it, whatever its other scores are
            lacks = lacks or value is None
            # score_bounds adds in the same order, so that rounding errors are equal
            total += weight * (value or 0.0)
        # the rank is negative, because a heap returns the smallest rank first, and the best choice has the
        # largest sum
        return lacks, -total

    def _taken_by(self, found: Found) -> _TakenAmounts:
        if isinstance(found, AllocationCandidate):
            tree, pattern = found
            if isinstance(tree, HostTree):
                # the key is the identity of the pattern, which stays valid because the terms keep the pattern
                # alive
                terms = self._terms.get((tree.kind, id(pattern)))
                if terms is None:
                    terms = self._terms[tree.kind, id(pattern)] = _PatternTerms.from_pattern(
                        self._world, tree, pattern, with_lineages=self._reads_lineages
                    )
                return _TreeTaking(self._world, self._wanted, self._asked, tree, terms)
            found = HostChoice.from_candidate(self._world.snapshot, found)
        return _ChoiceTaking(self._world, self._wanted, self._asked, found)


# the class is not frozen, because an object is made for each choice, and making a frozen object takes longer
@dataclass(slots=True)
class _TakenAmounts(ABC):
    """The resources that a choice takes, as the values that criteria read."""

    world: ClaimScenario
    wanted: WantedClaim
    asked: Asked

    @abstractmethod
    def providers(self) -> Iterable[Provider]:
        """Return the providers that give an amount to the choice."""

    @abstractmethod
    def used_shares(self) -> Iterable[float]:
        """Return for each taken class the share of the host that would be in use with the choice."""

    @abstractmethod
    def fit_shares(self) -> Iterable[float]:
        """Return for each amount of the choice its share of the provider's free amount."""

    @abstractmethod
    def zone_ids(self) -> Collection[int]:
        """Return the ids of the NUMA nodes with allocations of the choice."""

    def zone_count(self) -> int:
        """Return the number of NUMA nodes with allocations of the choice."""
        return len(self.zone_ids())

    @abstractmethod
    def device_lineages(self) -> Collection[Sequence[int]]:
        """Return the lineages, root last, of the providers that serve groups with a suffix."""

    @abstractmethod
    def host_ids(self) -> Collection[int]:
        """Return the roots of the hosts of the choice."""


@dataclass(frozen=True, slots=True)
class _PatternTerms:
    """The resources that a pattern of candidates takes from each tree of one class of trees.

    ``zones`` are the positions of NUMA nodes. ``demands`` are pairs of a slot and the amount taken there.
    ``lineages`` has the lineage (the provider and its ancestors) of each provider that serves a group with a
    suffix. ``lineages`` is empty if no criterion of the claim reads lineages.
    """

    pattern: CandidatePattern
    zones: tuple[int, ...]
    demands: tuple[tuple[int, int], ...]
    lineages: tuple[tuple[int, ...], ...]

    @classmethod
    def from_pattern(
        cls, world: ClaimScenario, tree: HostTree, pattern: CandidatePattern, *, with_lineages: bool
    ) -> _PatternTerms:
        # terms have positions instead of ids, because these terms hold for all trees of the class
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
            tuple(
                tree.kind.shape.lineages[position]
                for position in _served_by_suffix(pattern.mappings) & pattern.resources.keys()
            )
            if with_lineages
            else (),
        )


@dataclass(slots=True)
class _TreeTaking(_TakenAmounts):
    """The resources of a choice that takes nothing from sharing providers."""

    tree: HostTree
    terms: _PatternTerms

    def providers(self) -> Iterable[Provider]:
        return [self.tree.members[position] for position in self.terms.pattern.resources]

    def used_shares(self) -> Iterable[float]:
        # without sharing providers the host itself gives each class, so the sums have an entry for the host
        root = self.tree.root.id
        return [used_share(*sums[root], amount) for sums, amount in self.asked.values()]

    def fit_shares(self) -> Iterable[float]:
        free = self.tree.free
        return [amount / free[slot] for slot, amount in self.terms.demands]

    def zone_count(self) -> int:
        return len(self.terms.zones)

    def zone_ids(self) -> Collection[int]:
        return [self.tree.members[position].id for position in self.terms.zones]

    def device_lineages(self) -> Collection[Sequence[int]]:
        return self.terms.lineages

    def host_ids(self) -> Collection[int]:
        return (self.tree.root.id,)


@dataclass(slots=True)
class _ChoiceTaking(_TakenAmounts):
    """The resources of a choice that perhaps also takes from sharing providers."""

    choice: HostChoice

    def providers(self) -> Iterable[Provider]:
        return [provider for provider, _ in self.choice.resources]

    def used_shares(self) -> Iterator[float]:
        root = self.choice.root.id
        for name, (sums, amount) in self.asked.items():
            # the host has no sums of a class that only its sharing providers have
            used, capacity = sums.get(root, (0, 0))
            for provider, amounts in self.choice.resources:
                # a sharing provider counts as part of the host for the classes that the choice takes from it
                if name in amounts and provider.root_id != root:
                    used += provider.used.get(name, 0)
                    capacity += max(0, provider.inventories[name].capacity)
            yield used_share(used, capacity, amount)

    def fit_shares(self) -> Iterator[float]:
        for provider, amounts in self.choice.resources:
            for name, amount in amounts.items():
                yield amount / provider.free(name)

    def zone_ids(self) -> Collection[int]:
        found = (zone_of(self.world.snapshot, provider) for provider, _ in self.choice.resources)
        return {zone for zone in found if zone is not None}

    def device_lineages(self) -> Collection[Sequence[int]]:
        mapped = {suffix: [each.id for each in served] for suffix, served in self.choice.mappings.items()}
        taken = {each.id for each, _ in self.choice.resources}
        snapshot = self.world.snapshot
        return [
            [above.id for above in snapshot.lineage_of(snapshot.providers[each])]
            for each in _served_by_suffix(mapped) & taken
        ]

    def host_ids(self) -> Collection[int]:
        return self.choice.hosts


def pack_score(taking: _TakenAmounts) -> float:
    """Return the mean used share of the claim's classes after the claim, sharing providers included."""
    return mean_share([*taking.used_shares()])


def spread_score(taking: _TakenAmounts) -> float:
    """Return the free share of the host after the claim, which is 1 minus :func:`pack_score`."""
    return 1 - pack_score(taking)


def zones_score(taking: _TakenAmounts) -> float:
    """Return 1 divided by the number of the choice's NUMA nodes; other providers do not count."""
    # a choice without zones has the score of one zone, because in both cases nothing crosses zones
    return 1 / (taking.zone_count() or 1)


def distance_score(taking: _TakenAmounts) -> float:
    """Return a score for the nearness of a choice's NUMA nodes, which is 1 for a single node.

    The score is the distance within a node, divided by the mean distance of all pairs of the choice's nodes.
    """
    distances = taking.world.distances
    apart = [distance_of(distances, one, other) for one, other in combinations(taking.zone_ids(), 2)]
    return min(1.0, LOCAL * len(apart) / max(1, sum(apart))) if apart else 1.0


def _served_by_suffix(mappings: Mapping[str, Iterable[int]]) -> set[int]:
    """Return the providers that serve groups with a suffix, as ids or as positions like in ``mappings``."""
    return {each for suffix, served in mappings.items() if suffix for each in served}


def nearness_score(taking: _TakenAmounts) -> float:
    """Return a score for the nearness of providers of groups with a suffix: 1 divided by their mean distance.

    The distance of two providers is the number of levels from the lower one up to their nearest common
    ancestor. For example, the distance is 1 for two devices at one switch, and 2 for devices at two switches
    of a NUMA node. Roots of different trees count as children of one ancestor.
    """
    lineages = taking.device_lineages()
    number = len(lineages)
    if number < 2:
        return 1.0
    # sums over all pairs, computed without visiting each pair, because requests may have hundreds of groups
    lower = sum([rank * depth for rank, depth in enumerate(sorted(map(len, lineages)))])
    common = sum([below * (below - 1) for below in Counter(chain.from_iterable(lineages)).values()]) // 2
    return (number * (number - 1) // 2) / (lower - common)


def fit_score(taking: _TakenAmounts) -> float:
    """Return the largest share of a provider's free amount that the choice takes; 1 is the whole amount."""
    return max(taking.fit_shares())


def group_score(taking: _TakenAmounts) -> float:
    """Return how well the hosts of the choice suit the policy of its group, from 0 to 1."""
    world, group = taking.world, taking.wanted.group
    if group is None:
        return 0.0
    return group.host_preference(taking.host_ids(), world.members_beside(group), world.size_of(group))


def attribute_score(taking: _TakenAmounts, name: str, *, low: bool) -> float | None:
    """Return the position of the choice's attribute in the range of all providers, from 0 to 1 (the best).

    A provider without a number for the attribute counts with the number of its nearest ancestor that has a
    number. If several providers give amounts, the score is computed from the mean of their numbers. The
    result is None if one of the providers has no number for the attribute, and none of its ancestors has one.

    :param low: whether the lowest number of the attribute is the best.
    """
    snapshot = taking.world.snapshot
    found = [number_of(snapshot, provider, name) for provider in taking.providers()]
    numbers = [each for each in found if each is not None]
    whole = snapshot.attribute_range(name)
    if whole is None or len(numbers) < len(found):
        return None
    # each number is divided before the sum, which could overflow. The mean is clamped, because a rounding
    # error could leave the range
    middle = sum(each / len(numbers) for each in numbers)
    return position_in_range(whole, min(max(middle, min(numbers)), max(numbers)), low=low)


def position_in_range(whole: tuple[float, float], number: float, *, low: bool) -> float:
    """Return the position of a number in a range, from 0 (lowest) to 1 (highest); ``low`` reverses it."""
    least, most = whole
    # if all numbers are equal, the criterion must not prefer any host
    if most <= least:
        return 1.0
    # the numbers are halved first, because their difference could overflow
    part = (number / 2 - least / 2) / (most / 2 - least / 2)
    return 1 - part if low else part


@dataclass(frozen=True, slots=True)
class OrderCriterion:
    """A criterion of the order of claims.

    - ``score``: returns the score of a choice, from 0 to 1 (the best); None if the choice lacks the attribute
      that is compared.
    - ``compares_devices``: whether devices that are equal for the request can have different scores. If not,
      the search tries only one of several equal devices.
    - ``reads_lineages``: whether the score depends on :meth:`_TakenAmounts.device_lineages`.
    """

    score: Callable[[_TakenAmounts], float | None]
    compares_devices: bool = field(kw_only=True)
    reads_lineages: bool = field(kw_only=True)


CRITERIA: Final[Mapping[str, OrderCriterion]] = {
    "pack": OrderCriterion(pack_score, compares_devices=False, reads_lineages=False),
    "spread": OrderCriterion(spread_score, compares_devices=False, reads_lineages=False),
    "numa_nodes": OrderCriterion(zones_score, compares_devices=False, reads_lineages=False),
    # the criterion compares no devices: the scores of equal nodes differ only by DISTANCE_CRITERIA
    NUMA_DISTANCE: OrderCriterion(distance_score, compares_devices=False, reads_lineages=False),
    "distance": OrderCriterion(nearness_score, compares_devices=False, reads_lineages=True),
    "best_fit": OrderCriterion(fit_score, compares_devices=True, reads_lineages=False),
    "group": OrderCriterion(group_score, compares_devices=False, reads_lineages=False),
}


def criterion_of(name: str, weight: float) -> OrderCriterion:
    """Return a criterion by its name in an order; a negative weight of an attribute reverses its scores."""
    return CRITERIA.get(name) or OrderCriterion(
        partial(attribute_score, name=name.removeprefix(ATTRIBUTE), low=weight < 0),
        compares_devices=True,
        reads_lineages=False,
    )


def used_share(used: int, capacity: int, taken: int) -> float:
    """Return the used share of a capacity after ``taken`` is added to ``used``, at most 1."""
    # the share is at most 1, because usage may exceed the capacity after an allocation ratio was lowered
    return min(1.0, (used + taken) / capacity) if capacity else 1.0


def mean_share(shares: Sequence[float]) -> float:
    """Return the mean of the used shares over all resource classes."""
    return sum(shares) / len(shares)


def number_of(snapshot: ModelSnapshot, provider: Provider, name: str) -> float | None:
    """Return the number of an attribute at a provider, or at its nearest ancestor with this attribute."""
    values = (each.attributes.get(name) for each in snapshot.lineage_of(provider))
    return next((value for value in values if isinstance(value, float)), None)


# the number limits the memory: a heap keeps all scored choices until the best one is known
MAX_SCORED: Final = 10_000
"""Maximum number of choices of a claim that are scored; further choices follow in any order."""
_AT_ONCE: Final = 64
"""Maximum number of choices of one host that are scored before the search turns to other hosts."""

Choices = Iterator[Found | None]
"""The choices of a host, with None wherever the search for the next choice takes long."""


def best_first(
    hosts: Iterator[tuple[Rank, int]],
    at: Callable[[int], Choices],
    scorer: ChoiceScorer,
    budget: SearchBudget,
) -> Iterator[Found]:
    """Yield all choices, the best first; equally good choices come in the order in which they were found.

    :param hosts: pairs of a rank and the root of a host, in order. The rank of a host is an upper bound for
        all choices at the host. A host is searched only while its bound is better than the best known choice.
    """
    known: list[tuple[Rank, int, Found]] = []
    begun: list[tuple[Rank, int, Choices]] = []
    scored = 0
    host = next(hosts, None)
    while scored < MAX_SCORED:
        # branch and bound: a host is searched only while its bound is better than the best known choice
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
                rank = scorer.rank_choice(found)
                heappush(known, (rank, scored, found))
                scored += 1
                # this choice is worse than its host's bound, so the host's next choice may still be better
                if rank > ceiling and count < _AT_ONCE:
                    continue
            # the host goes back to the heap, so that other hosts with the same bound are searched in turn
            heappush(begun, (ceiling, root, choices))
            break
    while known:
        yield heappop(known)[-1]
    # the heap is full: choices are yielded as they are found, so that no choice is lost
    rest = (at(root) for _, root in chain(() if host is None else (host,), hosts))
    for choices in chain([choices for _, _, choices in begun], rest):
        yield from (found for found in choices if found is not None)
