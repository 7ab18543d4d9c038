"""The explanation of a request: hosts left after each condition, reasons, and changes that would help."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE, HostTree, TreeStructure, picker
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.candidate_search import served
from placement.search.conditions import condition_class
from placement.search.diagnosis.clauses import RequestClause, combinations, resources
from placement.search.diagnosis.relaxations import RelaxationSearch, RequestRelaxation
from placement.search.diagnosis.survey import HostDiagnosis, LikeHosts, survey
from placement.search.equivalence import TreeKin
from placement.search.request import CandidatesRequest

MAX_EXAMPLES: Final = 5
"""Hosts that are named for each reason."""


@dataclass(frozen=True, slots=True)
class FunnelStep:
    """The hosts left after a condition; after one on single providers also the providers."""

    clause: RequestClause
    hosts: int
    providers: int | None = None


@dataclass(frozen=True, slots=True)
class PartFunnel:
    """How many pass the conditions of a part of the request, one after the other."""

    suffix: str
    resources: Mapping[str, int]
    steps: tuple[FunnelStep, ...]


@dataclass(frozen=True, slots=True)
class NearestMiss:
    """A host that came so far, by its root: the provider of it that came closest, and what is there of it.

    ``found`` is what is free, or what the inventory says of its portions; None where it is about no amount.
    """

    root: Provider
    provider: Provider | None = None
    found: int | None = None


class ProviderPlace(Enum):
    """Where a provider is, as sentences name it."""

    ROOT = "root"
    NUMA_NODE = "NUMA node"
    POOL = "pool"
    ELSEWHERE = "provider"


@dataclass(frozen=True, slots=True)
class UnmetReason:
    """The first condition that so many hosts do not meet; the examples begin with the nearest misses.

    ``is_of_nobody`` says that it names a tree or aggregates that no provider is in. ``places`` are those of
    the providers that came closest at any of the hosts, and ``steps`` the steps in which these give, where it
    is about an amount; ``is_avoided`` says that those of the nearest miss may not be taken of.
    """

    clause: RequestClause
    hosts: int
    examples: tuple[NearestMiss, ...]
    is_of_nobody: bool = False
    places: frozenset[ProviderPlace] = frozenset()
    steps: frozenset[int] = frozenset()
    is_avoided: bool = False


@dataclass(frozen=True, slots=True)
class LargestAmount:
    """The largest amount of a resource class that fits while all else stays; None if no amount does."""

    clause: RequestClause
    fits: int | None


@dataclass(frozen=True, slots=True)
class RequestExplanation:
    """Why a request fits, or does not.

    ``incomplete`` names the fields that lack something because the budget was spent; ``fitting`` is None
    where that is one of them.
    """

    hosts: int
    fitting: int | None
    groups: tuple[PartFunnel, ...]
    steps: tuple[FunnelStep, ...]
    reasons: tuple[UnmetReason, ...]
    relaxations: tuple[RequestRelaxation, ...]
    largest: tuple[LargestAmount, ...]
    incomplete: tuple[str, ...]


def explain(
    snapshot: ModelSnapshot,
    request: CandidatesRequest,
    budget: SearchBudget,
    among: Container[int] | None = None,
    *,
    relaxing: bool = True,
) -> RequestExplanation:
    """The explanation of a request; its limit does not matter.

    :param among: the ids of the roots of those hosts that count; None for all.
    :param relaxing: whether to look for what would help, and for the largest amounts.
    :raises Exhausted: not even the conditions on single providers could be looked at.
    """
    whole = _WholeFunnel(survey(snapshot, request, budget, among), budget)
    incomplete: list[str] = []
    try:
        whole.combine()
    except BudgetExhausted:
        incomplete += ["candidate_hosts", "host_conditions", "reasons", "relaxations", "max_amounts"]
    reasons: list[UnmetReason] = []
    if not incomplete and not gather(whole.reasons(), reasons):
        incomplete += ["reasons", "relaxations", "max_amounts"]
    relaxations: list[RequestRelaxation] = []
    largest: list[LargestAmount] = []
    if not incomplete and relaxing:
        relaxer = RelaxationSearch(whole.found, budget)
        if not whole.left and not gather(relaxer.relaxations(), relaxations):
            incomplete.append("relaxations")
        if not gather(_largest_amounts(relaxer, request), largest):
            incomplete.append("max_amounts")
    return RequestExplanation(
        hosts=sum(host.count for host in whole.found.hosts),
        fitting=None if "candidate_hosts" in incomplete else _count_hosts(whole.left),
        groups=tuple(_part_funnels(whole.found)),
        steps=tuple(whole.steps),
        reasons=tuple(reasons),
        relaxations=tuple(relaxations),
        largest=tuple(largest),
        incomplete=tuple(incomplete),
    )


T = TypeVar("T")


def gather(found: Iterable[T], into: list[T]) -> bool:
    """Add what is found, one by one; False if the budget is spent before that is all."""
    try:
        for each in found:
            into.append(each)
    except BudgetExhausted:
        return False
    return True


def _largest_amounts(relaxer: RelaxationSearch, request: CandidatesRequest) -> Iterator[LargestAmount]:
    for group in request.groups:
        for name, amount in group.resources.items():
            clause = RequestClause("resources", group.suffix, (name,), amount)
            yield LargestAmount(clause, relaxer.largest(resources(group.suffix, name)))


def _count_hosts(hosts: list[LikeHosts]) -> int:
    return sum(host.count for host in hosts)


def _part_funnels(found: HostDiagnosis) -> Iterator[PartFunnel]:
    for number, part in enumerate(found.parts):
        by_first = [0] * (len(part.checks) + 1)
        for host in found.hosts:
            by_first[host.firsts[number]] += host.count
        left, steps = sum(by_first), []
        for index, check in enumerate(part.checks):
            left -= by_first[index]
            steps.append(FunnelStep(check.clause, left, found.left[number][index]))
        yield PartFunnel(part.need.suffix, dict(part.need.resources), tuple(steps))


class _WholeFunnel:
    """The hosts that are left, condition by condition, and those that are not by the first they fail."""

    def __init__(self, found: HostDiagnosis, budget: SearchBudget) -> None:
        self.found = found
        self.left = found.hosts
        self.steps: list[FunnelStep] = []
        self._budget = budget
        #: by clause: the hosts, and the part that it belongs to, if it is about one
        self._failed: dict[RequestClause, tuple[list[LikeHosts], int | None]] = {}
        self._check_alone()

    def _check_alone(self) -> None:
        """The conditions on each part by itself, on roots, and on traits of the group without a suffix."""
        parts, droppable = self.found.parts, self.found.droppable
        for number, part in enumerate(parts):
            kept = []
            for host in self.left:
                first = host.firsts[number]
                if first == len(part.checks):
                    kept.append(host)
                else:
                    self._note_failed(part.checks[first].clause, host, number)
            self.left = kept
            self._add_step(
                RequestClause("group", part.need.suffix, tuple(name for name, _ in part.need.resources))
            )
        for check in self.found.on_roots:
            bit = 1 << droppable.index(check.clause)
            self._keep_passing(check.clause, [not host.root & bit for host in self.left])
        for number, check in enumerate(self.found.together):
            self._keep_passing(check.clause, [0 in host.traits[number] for host in self.left])

    def combine(self) -> None:
        """The conditions that tie the parts to one another.

        :raises Exhausted: it takes too long; what is known then stays.
        """
        # the whole request first: hosts that serve it pass every step, so that most need no other search
        *steps, (last, whole) = combinations(self.found.request)
        tell = self._serving_function(whole)
        fitting = {host for host in self.left if tell(host)}  # and so up to each clause
        for clause, request in steps:
            tell = self._serving_function(request)
            self._keep_passing(clause, [host in fitting or tell(host) for host in self.left])
        self._keep_passing(last, [host in fitting for host in self.left])

    def _serving_function(self, request: CandidatesRequest) -> Callable[[LikeHosts], bool]:
        tell = served(self.found.snapshot, request, self._budget)
        return lambda host: tell(host.alike.tree, host.alike.shared)

    def _keep_passing(self, clause: RequestClause, passes: list[bool]) -> None:
        kept = []
        for host, passed in zip(self.left, passes, strict=True):
            if passed:
                kept.append(host)
            else:
                self._note_failed(clause, host, None)
        self.left = kept
        self._add_step(clause)

    def _add_step(self, clause: RequestClause) -> None:
        self.steps.append(FunnelStep(clause, _count_hosts(self.left)))

    def _note_failed(self, clause: RequestClause, host: LikeHosts, part: int | None) -> None:
        self._failed.setdefault(clause, ([], part))[0].append(host)

    def reasons(self) -> Iterator[UnmetReason]:
        """Why hosts are not left, most of them first."""
        # stable, so that reasons of as many hosts stay in the documented order
        by_count = sorted(self._failed.items(), key=lambda item: -_count_hosts(item[1][0]))
        for clause, (hosts, part) in by_count:
            nearest = heapq.merge(*(self._nearest_misses(clause, part, host) for host in hosts))
            examples = tuple([_nearest_miss(clause, *miss[-2:]) for miss in islice(nearest, MAX_EXAMPLES)])
            places, portions = self._closest_places(clause, part, hosts)
            yield UnmetReason(
                clause,
                _count_hosts(hosts),
                examples,
                _is_of_nobody(self.found.snapshot, clause),
                places,
                portions,
            )

    def _closest_places(
        self, clause: RequestClause, part: int | None, hosts: list[LikeHosts]
    ) -> tuple[frozenset[ProviderPlace], frozenset[int]]:
        """Where the providers that came closest are, and in which steps they give; until two differ."""
        places, steps = set[ProviderPlace](), set[int]()
        if part is None or clause.condition not in _AMOUNTS:
            return frozenset(), frozenset()
        for host in hosts:
            kin, positions = host.alike.kin, host.closest[part]
            self._budget.spend(1 + len(host.alike.trees) // 8)
            for tree in host.alike.trees:
                providers = kin.providers(tree)
                for at in positions:
                    places.add(ProviderPlace.POOL if at >= kin.own else _place_of(providers[at]))
                    steps.add(providers[at].inventories[clause.names[0]].step_size)
                if len(places) > 1 and len(steps) > 1:
                    return frozenset(places), frozenset(steps)
        return frozenset(places), frozenset(steps)

    def _nearest_misses(self, clause: RequestClause, part: int | None, host: LikeHosts) -> list[_Miss]:
        """The nearest misses of hosts that are alike, nearest first."""
        failed = sum(
            first < len(each.checks) for first, each in zip(host.firsts, self.found.parts, strict=True)
        )
        about_amount = part is not None and clause.condition in _AMOUNTS
        positions = host.closest[part] if part is not None and about_amount else ()
        missing = _distance_function(clause, positions, host)
        self._budget.spend(len(host.alike.trees) // 8)
        at = _ClosestProviders(positions, host.alike.kin)
        distances = list(map(missing, host.alike.trees))
        # the distance of the last example, so that only its hosts are sorted by name
        furthest = heapq.nsmallest(MAX_EXAMPLES, distances)[-1]
        return heapq.nsmallest(
            MAX_EXAMPLES,
            [
                (distance, failed, tree.root.name, tree.root.id, tree, at)
                for distance, tree in zip(distances, host.alike.trees, strict=True)
                if distance <= furthest
            ],
        )


def _place_of(provider: Provider) -> ProviderPlace:
    """Where a provider of the host itself is."""
    if provider.parent_id is None:
        return ProviderPlace.ROOT
    return ProviderPlace.NUMA_NODE if ZONE in provider.traits else ProviderPlace.ELSEWHERE


def _is_of_nobody(snapshot: ModelSnapshot, clause: RequestClause) -> bool:
    """Whether the clause names a tree, or aggregates, that no provider is in."""
    condition = condition_class(clause.condition)
    if condition is None or not condition.words.unknown:
        return False
    return condition((frozenset(clause.names),)).is_unknown(snapshot)


class _ClosestProviders(NamedTuple):
    """The providers of a host that came closest, by position."""

    positions: tuple[int, ...]
    kin: TreeKin


_Miss = tuple[int, int, str, int, HostTree, _ClosestProviders]
"""How far from what is asked for, how many parts are not served, name and id of the host; its tree, where."""

_AMOUNTS: Final = ("capacity", "min_unit", "max_unit", "step_size")


def _distance_function(
    clause: RequestClause, positions: tuple[int, ...], host: LikeHosts
) -> Callable[[HostTree], int]:
    """A function that tells how far one of these hosts is from what a clause asks for."""
    if not positions or clause.amount is None:
        return lambda _: 0
    amount, kin = clause.amount, host.alike.kin
    if clause.condition != "capacity":

        def missing(tree: HostTree) -> int:
            providers = kin.providers(tree)
            return min([abs(_found_amount(clause, providers[at]) - amount) for at in positions])

        return missing
    name, own = clause.names[0], kin.own
    slots = [kin.slots[at, name] for at in positions if at < own]
    most = max((_found_amount(clause, kin.shared[at - own]) for at in positions if at >= own), default=0)
    pickers: dict[TreeStructure, Callable[[tuple[int, ...]], tuple[int, ...]]] = {}

    def missing_of_capacity(tree: HostTree) -> int:
        # by structure: the same slots are picked of thousands of trees
        pick = pickers.get(tree.shape)
        if pick is None:
            within = tree.shape.layout(kin.where).slots
            pick = pickers[tree.shape] = picker([within[slot] for slot in slots])
        return amount - max(most, max(pick(tree.free), default=0))

    return missing_of_capacity


def _nearest_miss(clause: RequestClause, tree: HostTree, at: _ClosestProviders) -> NearestMiss:
    if not at.positions:
        return NearestMiss(tree.root)
    providers, own = at.kin.providers(tree), at.kin.own
    found = [
        (
            position >= own,
            providers[position].id,
            providers[position],
            _found_amount(clause, providers[position]),
        )
        for position in at.positions
    ]
    *_, provider, amount = min(found, key=lambda each: (abs(each[3] - (clause.amount or 0)), *each[:2]))
    return NearestMiss(tree.root, provider, amount)


def _found_amount(clause: RequestClause, provider: Provider) -> int:
    """The amount that there is of what the clause asks for."""
    name = clause.names[0]
    inventory = provider.inventories[name]
    if clause.condition == "capacity":
        return max(0, provider.free(name))
    return {
        "min_unit": inventory.min_unit,
        "max_unit": inventory.max_unit,
        "step_size": inventory.step_size,
    }[clause.condition]
