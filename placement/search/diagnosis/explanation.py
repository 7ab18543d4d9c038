"""Explains a request: hosts that remain after each condition, reasons of other hosts, and helpful changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import repeat
from operator import lt
from typing import Final, TypeVar

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE, HostTree
from placement.search.backtracking import pairs_fit
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.candidate_search import CandidateSearch
from placement.search.conditions import condition_class
from placement.search.diagnosis.clauses import RequestClause, joint_clauses, resource_clause
from placement.search.diagnosis.relaxations import RelaxationSearch, RequestRelaxation
from placement.search.diagnosis.survey import HostDiagnosis, LikeHosts, survey_hosts
from placement.search.equivalence import LikeTrees, TreeKin
from placement.search.request import CandidatesRequest
from placement.search.rules import RequestRules

MAX_EXAMPLES: Final = 5
"""Maximum number of hosts that an explanation names for each reason."""


@dataclass(frozen=True, slots=True)
class FunnelStep:
    """The number of hosts that remain after a condition was checked.

    If the condition concerns single providers, the step also has the number of providers.
    """

    clause: RequestClause
    hosts: int
    # The number is None for conditions on whole hosts
    providers: int | None = None


@dataclass(frozen=True, slots=True)
class PartFunnel:
    """The numbers of hosts and providers that remain after each condition of a part."""

    suffix: str
    resources: Mapping[str, int]
    steps: tuple[FunnelStep, ...]


@dataclass(frozen=True, slots=True)
class NearestMiss:
    """A host that almost meets a condition: its closest provider, and the amount found there.

    ``found`` is the free amount, or the min_unit, max_unit or step_size that the condition concerns.
    ``found`` is None if the condition is not about an amount.
    """

    root: Provider
    provider: Provider | None = None
    # The amount is None for conditions without an amount, such as traits
    found: int | None = None


class ProviderPlace(Enum):
    """The location of a provider in its host, such as a NUMA node, as sentences name it."""

    ROOT = "root"
    NUMA_NODE = "NUMA node"
    POOL = "pool"
    ELSEWHERE = "provider"


@dataclass(frozen=True, slots=True)
class UnmetReason:
    """A condition, and the hosts for which it is the first failed one. Examples begin with the nearest miss.

    - ``names_nothing_known``: the condition names a tree without providers, or aggregates without providers.
    - ``places``: the locations of the closest providers in the trees of these hosts. The field is set if the
      condition is about an amount.
    - ``steps``: the step sizes of the closest providers.
    - ``is_avoided``: the closest provider of the nearest miss is one that the claim has to avoid.
    """

    clause: RequestClause
    hosts: int
    examples: tuple[NearestMiss, ...]
    names_nothing_known: bool = False
    places: frozenset[ProviderPlace] = frozenset()
    steps: frozenset[int] = frozenset()
    is_avoided: bool = False


@dataclass(frozen=True, slots=True)
class LargestAmount:
    """The largest amount of a resource class that fits if nothing else in the request changes.

    ``fits`` is None if no amount fits.
    """

    clause: RequestClause
    # The number is None instead of 0: if no amount fits, the obstacle is another condition
    fits: int | None


@dataclass(frozen=True, slots=True)
class TopologyFit:
    """The number of hosts on which a request with a topology policy fits.

    The request fits on at least ``fitting`` hosts and at most ``at_most`` hosts. ``looser`` is a less strict
    policy with which the request fits, if it does not fit with this policy.
    """

    policy: str
    fitting: int
    at_most: int
    looser: str | None = None


@dataclass(frozen=True, slots=True)
class RequestExplanation:
    """The reasons why a request fits some hosts, and does not fit others.

    ``incomplete`` names the fields that are incomplete because the budget was spent. If the field
    ``candidate_hosts`` is incomplete, then ``fitting`` is None. With a ``topology``, ``relaxations`` are
    changes that help the request with this topology. All other fields then explain the request without the
    topology.
    """

    hosts: int
    fitting: int | None
    groups: tuple[PartFunnel, ...]
    steps: tuple[FunnelStep, ...]
    reasons: tuple[UnmetReason, ...]
    relaxations: tuple[RequestRelaxation, ...]
    largest: tuple[LargestAmount, ...]
    incomplete: tuple[str, ...]
    topology: TopologyFit | None = None

    @property
    def may_fit(self) -> bool:
        """Whether the request fits some host, or may fit some host that was not tried."""
        return self.fitting != 0 if self.topology is None else self.topology.at_most != 0


def explain_request(
    snapshot: ModelSnapshot,
    request: CandidatesRequest,
    budget: SearchBudget,
    among: Container[int] | None = None,
    *,
    relaxing: bool = True,
) -> RequestExplanation:
    """Return the explanation of a request, independent of the request's limit.

    :param among: the ids of the root providers of the hosts that count; with None, all hosts count.
    :param relaxing: whether to search for helpful changes and for the largest amounts.
    :raises BudgetExhausted: the budget did not suffice for the conditions on single providers.
    """
    # this call is outside the try block: without a complete survey, the caller refuses the request
    whole = _WholeFunnel(survey_hosts(snapshot, request, budget, among), budget)
    # if the budget ends in some step, this list names the incomplete fields, and earlier results stay
    incomplete: list[str] = []
    try:
        whole.check_together()
    except BudgetExhausted:
        incomplete += ["candidate_hosts", "host_conditions", "reasons", "relaxations", "max_amounts"]
    reasons: list[UnmetReason] = []
    if not incomplete and not gather_found(whole.unmet_reasons(), reasons):
        incomplete += ["reasons", "relaxations", "max_amounts"]
    relaxations: list[RequestRelaxation] = []
    largest: list[LargestAmount] = []
    # relaxations come last, because each tested change takes a search
    if not incomplete and relaxing:
        relaxer = RelaxationSearch(whole.found, budget)
        # this search runs also for a request that fits, because the largest amounts tell how much more would
        # fit
        if not whole.left and not gather_found(relaxer.find_relaxations(), relaxations):
            incomplete.append("relaxations")
        if not gather_found(_largest_amounts(relaxer, request), largest):
            incomplete.append("max_amounts")
    return RequestExplanation(
        hosts=sum(host.host_count for host in whole.found.hosts),
        fitting=None if "candidate_hosts" in incomplete else _count_hosts(whole.left),
        groups=tuple(_part_funnels(whole.found)),
        steps=tuple(whole.steps),
        reasons=tuple(reasons),
        relaxations=tuple(relaxations),
        largest=tuple(largest),
        incomplete=tuple(incomplete),
    )


T = TypeVar("T")


def gather_found(found: Iterable[T], into: list[T]) -> bool:
    """Append items to a list as they are found; return False if the budget is spent before the last item."""
    # the caller passes the list, so that results found before the error are kept
    try:
        for each in found:
            into.append(each)
    except BudgetExhausted:
        return False
    return True


def _largest_amounts(relaxer: RelaxationSearch, request: CandidatesRequest) -> Iterator[LargestAmount]:
    for group in request.groups:
        for name, amount in group.resources.items():
            # the clauses of answers have amounts, while the search identifies a clause without its amount
            clause = RequestClause("resources", group.suffix, (name,), amount)
            yield LargestAmount(clause, relaxer.largest_amount(resource_clause(group.suffix, name)))


def _count_hosts(hosts: list[LikeHosts]) -> int:
    return sum(host.host_count for host in hosts)


def _part_funnels(found: HostDiagnosis) -> Iterator[PartFunnel]:
    for number, part in enumerate(found.parts):
        # each host is counted once, at its first failed check, and the counts are added up at the end.
        # Counting hosts at every check would take much longer
        by_first = [0] * (len(part.checks) + 1)
        for host in found.hosts:
            by_first[host.firsts[number]] += host.host_count
        left, steps = sum(by_first), []
        for index, check in enumerate(part.checks):
            left -= by_first[index]
            steps.append(FunnelStep(check.clause, left, found.left[number][index]))
        yield PartFunnel(part.need.suffix, dict(part.need.resources), tuple(steps))


class _WholeFunnel:
    """The hosts that have passed all checks so far, and other hosts by the first clause that they fail."""

    def __init__(self, found: HostDiagnosis, budget: SearchBudget) -> None:
        self.found = found
        self.left = found.hosts
        self.steps: list[FunnelStep] = []
        self._budget = budget
        #: for each clause, the hosts that fail it, and the number of its part (None if the clause belongs to
        #: no part)
        self._failed: dict[RequestClause, tuple[list[LikeHosts], int | None]] = {}
        self._check_alone()

    def _check_alone(self) -> None:
        """Check each part alone, the conditions on roots, and the traits of the group without a suffix."""
        parts, droppable = self.found.parts, self.found.droppable
        for number, part in enumerate(parts):
            by_first: list[list[LikeHosts]] = [[] for _ in range(len(part.checks) + 1)]
            for host in self.left:
                by_first[host.firsts[number]].append(host)
            # hosts are noted check by check, so that reasons are in the documented order
            for check, failed in zip(part.checks, by_first[:-1], strict=True):
                for host in failed:
                    self._note_failed(check.clause, host, number)
            self.left = by_first[-1]
            self._add_step(
                RequestClause("group", part.need.suffix, tuple(name for name, _ in part.need.resources))
            )
        # the survey has already checked one root of each group of equivalent hosts
        for check in self.found.on_roots:
            bit = 1 << droppable.index(check.clause)
            self._keep_passing(check.clause, [not host.unmet.root & bit for host in self.left])
        # 0 stands for leaving out no clause: if 0 is one of the alternatives, the host has these traits
        for number, check in enumerate(self.found.together):
            self._keep_passing(check.clause, [0 in host.unmet.traits[number] for host in self.left])

    def check_together(self) -> None:
        """Check the conditions that concern several parts together.

        :raises BudgetExhausted: the search takes too long; the results so far are kept.
        """
        # the whole request is tried first, because a host that serves it meets every clause and needs no
        # further search
        *steps, (last, whole) = joint_clauses(self.found.request)
        tell = self._serving_function(whole)
        fitting = {host for host in self.left if tell(host)}
        for clause, request in steps:
            tell = self._serving_function(request)
            self._keep_passing(clause, [host in fitting or tell(host) for host in self.left])
        # with the last clause the request is complete, and its result is known from the first search
        self._keep_passing(last, [host in fitting for host in self.left])

    def _serving_function(self, request: CandidatesRequest) -> Callable[[LikeHosts], bool]:
        # the code uses one check function for all hosts of a step, so that the request is compiled once
        tell = CandidateSearch(self.found.snapshot, request, self._budget).serves_tree
        needs = [part.need for part in self.found.parts]
        rules = RequestRules(self.found.snapshot, request, needs, self._budget)
        known: dict[Hashable, bool | None] = {}

        def serves_all(host: LikeHosts) -> bool:
            # each part fits alone, so its closest providers are those that can serve it
            options, kin = host.closest, host.alike.kin
            key = options, kin.part if rules.subtrees else None
            if key not in known:
                known[key] = pairs_fit(rules, options, kin.tree_places.lineages)
            fits = known[key]
            # hosts of many structures are compared by position; only if this does not suffice, the request is
            # compiled for each structure
            return tell(host.alike.first_tree, host.alike.kin.shared) if fits is None else fits

        return serves_all

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

    def unmet_reasons(self) -> Iterator[UnmetReason]:
        """Yield the reasons why hosts do not fit; the most frequent reason comes first."""
        # a stable sort keeps reasons with equal numbers of hosts in the documented order
        by_count = sorted(self._failed.items(), key=lambda item: -_count_hosts(item[1][0]))
        for clause, (hosts, part) in by_count:
            examples = tuple(self._nearest_misses(clause, part, hosts))
            places, portions = self._closest_places(clause, part, hosts)
            yield UnmetReason(
                clause,
                _count_hosts(hosts),
                examples,
                _names_nothing_known(self.found.snapshot, clause),
                places,
                portions,
            )

    def _closest_places(
        self, clause: RequestClause, part: int | None, hosts: list[LikeHosts]
    ) -> tuple[frozenset[ProviderPlace], frozenset[int]]:
        """Return the places and step sizes of the closest providers, at most two values of each."""
        places, steps = set[ProviderPlace](), set[int]()
        # places are collected only for conditions on amounts, because other sentences mention no places
        if part is None or clause.condition not in _AMOUNTS:
            return frozenset(), frozenset()
        name = clause.names[0]
        bounds = self.found.snapshot.portion_bounds(name)
        # mostly all providers of the cloud have one step size, and trees are visited only for their places
        step = bounds.step if bounds else 0
        for host in hosts:
            kin = host.alike.kin
            count = kin.own_count
            own = [at for at in host.closest[part] if at < count]
            for at in host.closest[part][len(own) :]:
                places.add(ProviderPlace.POOL)
                steps.add(kin.shared[at - count].inventories[name].step_size)
            if own and step:
                steps.add(step)
                # the root is at position 0
                if own == [0]:
                    places.add(ProviderPlace.ROOT)
                    continue
            self._budget.spend(1 + len(host.alike.rows) // 8)
            for tree in host.alike.member_trees if own else ():
                # two values are enough, because sentences only distinguish one value from several
                if len(places) > 1 and (step or len(steps) > 1):
                    break
                members, positions = tree.members, tree.shape.frame.layout_of(kin.tree_places.where).positions
                for at in own:
                    provider = members[positions[at]]
                    places.add(_place_of(provider))
                    if not step:
                        steps.add(provider.inventories[name].step_size)
        return frozenset(places), frozenset(steps)

    def _nearest_misses(
        self, clause: RequestClause, part: int | None, hosts: Sequence[LikeHosts]
    ) -> Iterator[NearestMiss]:
        """Yield the nearest misses of all hosts that fail a clause, nearest first."""
        parts = self.found.parts
        about_amount = part is not None and clause.condition in _AMOUNTS
        # a rank has the distance and the number of unserved parts in one number, which is compared faster
        scale, checks = len(parts) + 1, [len(each.checks) for each in parts]
        found: list[list[int]] = []
        for host in hosts:
            self._budget.spend(1 + host.host_count // 8)
            failed = sum(map(lt, host.firsts, checks))
            # for other conditions all hosts are equally near, and hosts are ordered by name
            ranks = [failed] * host.host_count
            if part is not None and about_amount:
                distances = _find_distances(clause, host.closest[part], host.alike)
                ranks = [distance * scale + failed for distance in distances]
            found.append(ranks)
        # names are read only in the groups of the five nearest hosts, or of hosts that are as near
        lowest = [*map(min, found)]
        furthest = sorted(lowest)[:MAX_EXAMPLES][-1] if len(found) >= MAX_EXAMPLES else math.inf
        rows: list[tuple[int, str, int, LikeHosts]] = []
        for host, ranks, least in zip(hosts, found, lowest, strict=True):
            if least <= furthest:
                # sorted() runs in C, and mostly hosts are already in the order of names
                named = zip(ranks, host.alike.tree_names, host.alike.roots, repeat(host), strict=False)
                rows += sorted(named)[:MAX_EXAMPLES]
        trees = self.found.snapshot.whole_trees()
        for _, _, root, host in sorted(rows)[:MAX_EXAMPLES]:
            positions = host.closest[part] if part is not None and about_amount else ()
            yield _nearest_miss(clause, trees[root], positions, host.alike.kin)


def _place_of(provider: Provider) -> ProviderPlace:
    """Return the location of a provider within the tree of its host."""
    if provider.parent_id is None:
        return ProviderPlace.ROOT
    return ProviderPlace.NUMA_NODE if ZONE in provider.traits else ProviderPlace.ELSEWHERE


def _names_nothing_known(snapshot: ModelSnapshot, clause: RequestClause) -> bool:
    """Return whether the clause names a tree or aggregates that contain no provider."""
    condition = condition_class(clause.condition)
    # only conditions with a remark about unknown names need the check; unknown traits, for example, are
    # refused before the search
    if condition is None or not condition.words.unknown:
        return False
    return condition((frozenset(clause.names),)).is_unknown(snapshot)


_AMOUNTS: Final = ("capacity", "min_unit", "max_unit", "step_size")


def _find_distances(clause: RequestClause, positions: tuple[int, ...], alike: LikeTrees) -> list[int]:
    """Return for each tree how much the closest of its providers lacks of the amount in a clause."""
    amount, kin, own = clause.amount or 0, alike.kin, alike.kin.own_count
    # each inventory is read, because hosts of a kin may differ in min_unit, max_unit and step_size
    if clause.condition != "capacity":
        return [
            min([abs(_found_amount(clause, providers[at]) - amount) for at in positions])
            for providers in map(kin.providers, alike.member_trees)
        ]
    slots = [kin.tree_places.slots[at, clause.names[0]] for at in positions if at < own]
    # the amount is read once, because all these hosts have the same sharing providers
    most = max([_found_amount(clause, kin.shared[at - own]) for at in positions if at >= own], default=0)
    if not slots:
        return [amount - most] * len(alike.rows)
    return [amount - (most if most > free else free) for free in alike.most_free(slots)]


def _nearest_miss(
    clause: RequestClause, tree: HostTree, positions: Sequence[int], kin: TreeKin
) -> NearestMiss:
    """Return the near miss of a tree, with the closest of the providers at these positions."""
    if not positions:
        return NearestMiss(tree.root)
    providers = kin.providers(tree)
    found = [
        (at >= kin.own_count, providers[at].id, providers[at], _found_amount(clause, providers[at]))
        for at in positions
    ]
    # the tree's own providers come first, and then the lowest id, so that equal requests name the same
    # provider
    *_, provider, amount = min(found, key=lambda each: (abs(each[3] - (clause.amount or 0)), *each[:2]))
    return NearestMiss(tree.root, provider, amount)


def _found_amount(clause: RequestClause, provider: Provider) -> int:
    """Return the amount at a provider that a clause compares with its requested amount."""
    name = clause.names[0]
    inventory = provider.inventories[name]
    if clause.condition == "capacity":
        # the amount is at least 0, because a negative free amount of an overcommitted provider would confuse
        # readers
        return max(0, provider.free(name))
    return {
        "min_unit": inventory.min_unit,
        "max_unit": inventory.max_unit,
        "step_size": inventory.step_size,
    }[clause.condition]
