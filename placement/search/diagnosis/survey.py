"""Finds the first check that each host fails, and the clauses without which the host passes all checks."""

from collections.abc import Container, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import compress
from operator import not_
from typing import NamedTuple

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree, slot_picker
from placement.search.budget import SearchBudget
from placement.search.diagnosis import clauses
from placement.search.diagnosis.clauses import ClauseCheck, RequestClause, RequestPart
from placement.search.equivalence import LikeTrees, Slots, TreeKin, group_trees, provider_reader
from placement.search.request import CandidatesRequest

Bits = int
"""A set of clauses, in which each clause is the bit at its index in :attr:`HostDiagnosis.droppable`."""


class FilterResult(NamedTuple):
    """The checks of one part of a request that a provider fails, apart from checks of free amounts.

    - ``first`` is the index of the first check that the provider fails, or the number of all checks.
    - ``spared`` has alternative sets of clauses of these checks. If a request leaves out all clauses of one
      set, the provider passes all checks. No set contains another set.
    - ``demands`` has slot, amount, index and clause of each check that depends on free amounts.
    """

    # the field is an index, because it also tells how many checks the provider has passed
    first: int
    spared: frozenset[Bits]
    demands: tuple[tuple[int, int, int, Bits], ...]


class TreeResults(NamedTuple):
    """The results for one part of a request, of all providers of a tree and of its sharing providers.

    ``bare`` has results that do not depend on free amounts of the tree. An entry of ``bare`` has a result,
    the positions of the providers with this result, and the number of these providers in the tree. ``giving``
    has all other results, with their positions.
    """

    bare: tuple[tuple[FilterResult, tuple[int, ...], int], ...]
    # the field is separate from ``bare``, in which all providers without the class are one entry
    giving: tuple[tuple[int, FilterResult], ...]


class UnmetFilters(NamedTuple):
    """The clauses that a request has to leave out, so that hosts can serve each of its parts alone.

    - ``root`` is the set of clauses about roots that have to be left out.
    - ``options`` has for each part alternative sets of clauses to leave out; one of the sets is enough.
      ``traits`` has such alternatives for each set of traits that the group without a suffix requires. These
      sets are minimal, which means that no set contains another one.
    """

    root: Bits
    options: tuple[frozenset[Bits], ...]
    traits: tuple[frozenset[Bits], ...]

    def is_met(self, changed: Bits, lessened: Bits = 0) -> bool:
        """Return False if the hosts certainly have no candidate after these clauses have changed.

        :param lessened: the changed clauses that ask for a smaller amount instead of being removed. Traits
            required by their groups are still required.
        """
        return (
            not self.root & ~changed
            and all(any(not option & ~changed for option in options) for options in self.options)
            # a reduced amount does not make a required trait of its group unnecessary
            and all(any(not option & (~changed | lessened) for option in options) for options in self.traits)
        )


@dataclass(eq=False, slots=True)
class LikeHosts:
    """The diagnosis of one group of ``host_count`` equivalent trees.

    ``firsts`` has for each part the index of the first check that even the best providers fail. ``closest``
    has the positions of these best providers. Hosts with the same failing clauses have equal ``unmet``.
    """

    alike: LikeTrees
    firsts: tuple[int, ...]
    closest: tuple[tuple[int, ...], ...]
    unmet: UnmetFilters
    host_count: int


@dataclass(eq=False, slots=True)
class HostDiagnosis:
    """The results of the checks at all hosts, with the parts and checks of the request.

    ``left`` has for each part and check the number of providers that pass this check and all earlier checks.
    """

    snapshot: ModelSnapshot
    request: CandidatesRequest
    parts: tuple[RequestPart, ...]
    on_roots: tuple[ClauseCheck, ...]
    together: tuple[ClauseCheck, ...]
    droppable: tuple[RequestClause, ...]
    hosts: list[LikeHosts] = field(default_factory=list)
    left: list[list[int]] = field(default_factory=list)
    standings: dict[TreeKin, list[TreeResults]] = field(default_factory=dict)
    """For each group of trees that differ only in free amounts (kin), a list with the results of its
    providers for each part. Sharing providers are included."""

    def clause_bits(self, left_out: Iterable[RequestClause]) -> Bits:
        """Encode a set of clauses as bits."""
        # the sum is over a set, because the bit of a clause that occurs twice must be added only once
        return sum({1 << self.droppable.index(clause) for clause in left_out})

    def clauses_of(self, bits: Bits) -> tuple[RequestClause, ...]:
        """Decode bits to the clauses of a set, in order."""
        return tuple([clause for at, clause in enumerate(self.droppable) if bits >> at & 1])


def survey_hosts(
    snapshot: ModelSnapshot,
    request: CandidatesRequest,
    budget: SearchBudget,
    among: Container[int] | None = None,
) -> HostDiagnosis:
    """Check all conditions at every host.

    :param among: the ids of the roots that count; None for all hosts.
    :raises placement.search.budget.BudgetExhausted: the survey takes too long.
    """
    parts = clauses.parts_of(snapshot, request)
    found = HostDiagnosis(
        snapshot,
        request,
        parts,
        clauses.root_checks(snapshot, request),
        clauses.checks_together(snapshot, request),
        clauses.droppable_clauses(snapshot, request),
    )
    _HostSurveyor(found, budget).survey_hosts(among)
    return found


class _LackResults(dict[tuple[bool, ...], tuple[int, int]]):
    """The first failed check of a provider, and a number of its failure, by the amounts that it has free."""

    def __init__(
        self,
        first: int,
        spared: frozenset[Bits],
        checks: tuple[tuple[int, Bits], ...],
        failures: "_FailureNumbers",
    ) -> None:
        self._first, self._spared, self._checks, self._failures = first, spared, checks, failures

    def __missing__(self, enough: tuple[bool, ...]) -> tuple[int, int]:
        first, failed = self._first, 0
        for index, bit in compress(self._checks, map(not_, enough)):
            failed |= bit
            first = min(first, index)
        made = self[enough] = first, self._failures.number_of(self._spared, failed)
        return made


class _FailureNumbers:
    """The ways in which providers fail, each with a number, because numbers are hashed faster.

    A way has the alternative sets of clauses that the provider spares without its free amounts, and the
    clauses for which it has too little free.
    """

    def __init__(self) -> None:
        self.ways: list[tuple[frozenset[Bits], Bits]] = []
        self._numbers: dict[tuple[frozenset[Bits], Bits], int] = {}
        #: the results of providers with the same checks, which most providers of the cloud share
        self._lacking: dict[Hashable, _LackResults] = {}

    def number_of(self, spared: frozenset[Bits], failed: Bits) -> int:
        """Return the number of a way."""
        way = spared, failed
        if way not in self._numbers:
            self._numbers[way] = len(self.ways)
            self.ways.append(way)
        return self._numbers[way]

    def lack_results(
        self, first: int, spared: frozenset[Bits], checks: tuple[tuple[int, Bits], ...]
    ) -> _LackResults:
        """Return the results of providers with these checks of free amounts."""
        key = first, spared, checks
        if key not in self._lacking:
            self._lacking[key] = _LackResults(*key, self)
        return self._lacking[key]


class _PartSurvey:
    """The results of one part at the trees of a kin, by the demands for which a tree has enough free."""

    __slots__ = ("bare_failures", "furthest", "giving", "known", "nearest", "number", "pick", "results")

    def __init__(self, number: int, results: TreeResults, failures: _FailureNumbers, compared: Slots) -> None:
        demands = [demand for _, each in results.giving for demand in each.demands]
        self.number = number
        self.results = results
        index = {each: at for at, each in enumerate(compared)}
        #: a function that picks whether each demand is met from :attr:`LikeTrees.enough`
        self.pick = slot_picker([index[slot, amount] for slot, amount, *_ in demands])
        #: for each provider that gives an amount: its part of the demands, and its results by the demands
        #: that it meets
        self.giving: list[tuple[slice, _LackResults]] = []
        end = 0
        for _, each in results.giving:
            begin, end = end, end + len(each.demands)
            checks = tuple([(index, bit) for _, _, index, bit in each.demands])
            self.giving.append((slice(begin, end), failures.lack_results(each.first, each.spared, checks)))
        #: of the other providers: the furthest check, the positions that fail it, and all failures
        self.furthest = max([each.first for each, *_ in results.bare], default=-1)
        self.nearest = [at for each, here, _ in results.bare if each.first == self.furthest for at in here]
        self.bare_failures = frozenset([failures.number_of(each.spared, 0) for each, *_ in results.bare])
        # groups of trees mostly differ in the free amounts of other parts, so they share results
        self.known: dict[tuple[bool, ...], _PartResult] = {}


@dataclass(eq=False, slots=True)
class _PartResult:
    """The result of a part at some trees: see :class:`LikeHosts` and :class:`UnmetFilters`.

    ``firsts`` has the first check that each provider fails that gives an amount. ``trees`` is the number of
    trees with this result.
    """

    first: int
    closest: tuple[int, ...]
    options: frozenset[Bits]
    firsts: list[int]
    trees: int = 0


class _KinSurvey(NamedTuple):
    """The results that all trees of a kin (trees that differ only in free amounts) have in common."""

    parts: list[_PartSurvey]
    traits: tuple[frozenset[Bits], ...]
    root: Bits


class _HostSurveyor:
    """Runs all checks at all hosts; equivalent hosts share results."""

    def __init__(self, found: HostDiagnosis, budget: SearchBudget) -> None:
        self._found = found
        self._budget = budget
        # sets of clauses are the bits of integers, so that unions and subset tests are single operations
        self._bit = {clause: 1 << at for at, clause in enumerate(found.droppable)}
        self._unsuffixed = [part for part in found.parts if part.need.unsuffixed]
        #: for each part and class, the index and the clause of the check of the free amount
        self._capacities = [
            {name: (at, self._bit[part.checks[at].drop]) for name, at in part.capacities.items()}
            for part in found.parts
        ]
        #: for each part, the sets of clauses without which the request does not have the part
        self._gone = [[found.clause_bits(clauses) for clauses in part.gone_without] for part in found.parts]
        #: cached results; the key has all attributes that the checks read
        self._known: dict[Hashable, FilterResult] = {}
        #: cached results of sharing providers, by part and provider
        self._sharing: dict[tuple[int, int], FilterResult] = {}
        #: for each part, a function that reads the attributes of a provider that the part's conditions need
        self._read_provider = [provider_reader(part.need.conditions) for part in found.parts]
        self._kins: dict[TreeKin, _KinSurvey] = {}
        self._parts: dict[Hashable, _PartSurvey] = {}
        self._failures = _FailureNumbers()
        #: cached alternative sets of clauses to leave out, by part and by the clauses that providers fail
        self._options: dict[Hashable, frozenset[Bits]] = {}

    def survey_hosts(self, among: Container[int] | None) -> None:
        """Add the hosts to the diagnosis, and count the providers that pass each check."""
        found = self._found
        for alike in group_trees(found.snapshot, found.request, among, self._budget):
            found.hosts.append(self._survey_alike(alike))
        passing = [[0] * (len(part.checks) + 1) for part in found.parts]
        for part in self._parts.values():
            failing = passing[part.number]
            count = sum([result.trees for result in part.known.values()])
            for each, _, own in part.results.bare:
                failing[each.first] += own * count
            for result in part.known.values():
                for first in result.firsts:
                    failing[first] += result.trees
        for counts in passing:
            # ``counts`` has for each check the number of providers that fail it first; the loop computes the
            # numbers of providers that remain
            left, total = [], sum(counts)
            for count in counts[:-1]:
                total -= count
                left.append(total)
            found.left.append(left)

    def _survey_alike(self, alike: LikeTrees) -> LikeHosts:
        # results are kept for each kin: for hosts that differ only in free amounts, only the demands are
        # checked again
        found = self._kins.get(alike.kin)
        if found is None:
            found = self._kins[alike.kin] = self._survey_kin(alike)
        # free amounts are checked here, for each group of equivalent trees, because the results of a kin
        # ignore them
        enough, count = alike.enough, len(alike.rows)
        self._budget.spend(len(found.parts))
        results = []
        for part in found.parts:
            given = part.pick(enough)
            result = part.known.get(given)
            if result is None:
                result = part.known[given] = self._result_of_part(part, given)
            result.trees += count
            results.append(result)
        return LikeHosts(
            alike,
            tuple([each.first for each in results]),
            tuple([each.closest for each in results]),
            UnmetFilters(found.root, tuple([each.options for each in results]), found.traits),
            count,
        )

    def _survey_kin(self, alike: LikeTrees) -> "_KinSurvey":
        found = self._found
        parts = [self._survey_part(number, alike) for number in range(len(found.parts))]
        found.standings[alike.kin] = [each.results for each in parts]
        # all trees of a kin meet the same conditions on roots, and on the group without a suffix together
        root = alike.first_tree.root
        lacking_root = sum(self._bit[check.drop] for check in found.on_roots if not check.met_by(root))
        return _KinSurvey(parts, tuple(self._lacking_together(alike)), lacking_root)

    def _survey_part(self, number: int, alike: LikeTrees) -> "_PartSurvey":
        """Return the survey of a part, which kins share if they differ only in what other parts need."""
        kin = alike.kin
        _, told, *portions = kin.features
        # free amounts of sharing providers are checked here, once for the kin, because they are equal for all
        # its hosts
        shared = tuple([self._result_of_shared(number, provider) for provider in kin.shared])
        told = told if self._found.parts[number].need.conditions else None
        key = number, kin.part, told, tuple(portions), shared
        found = self._parts.get(key)
        if found is None:
            results = self._results_of_tree(number, alike, shared)
            found = self._parts[key] = _PartSurvey(number, results, self._failures, kin.compared)
        return found

    def _result_of_part(self, part: "_PartSurvey", enough: tuple[bool, ...]) -> "_PartResult":
        """Return the result of a part at trees with enough free for some of its demands."""
        self._budget.spend(1 + len(part.giving) // 8)
        given = [known[enough[its_own]] for its_own, known in part.giving]
        firsts = [first for first, _ in given]
        furthest = max(part.furthest, *firsts) if firsts else part.furthest
        nearest = part.nearest if furthest == part.furthest else []
        nearest = nearest + [
            at for (at, _), first in zip(part.results.giving, firsts, strict=True) if first == furthest
        ]
        failing = part.bare_failures.union([number for _, number in given])
        options = self._options.get((part.number, failing))
        if options is None:
            ways = [self._failures.ways[number] for number in failing]
            # the host also fits if the whole part is left out
            sets = {spared | failed for each, failed in ways for spared in each}
            options = minimal_sets(sets.union(self._gone[part.number]))
            self._options[part.number, failing] = options
        return _PartResult(furthest, tuple(sorted(nearest)), options, firsts)

    def _results_of_tree(self, number: int, alike: LikeTrees, shared: Iterable[FilterResult]) -> TreeResults:
        """Return the results of the providers of a tree, and of its sharing providers (``shared``)."""
        part, tree, kin = self._found.parts[number], alike.first_tree, alike.kin
        names, providers = part.need.resources, kin.providers(tree)
        own, places = kin.own_count, kin.tree_places
        having = {at for name, _ in names for at, _ in places.having.get(name, ())}
        # the code uses one entry for all providers without any of the classes, because they have equal
        # results
        bare: dict[FilterResult, list[int]] = {}
        rest = [at for at in range(own) if at not in having]
        if part.need.conditions:
            for at in rest:
                bare.setdefault(self._result_of(number, providers[at], tree), []).append(at)
        elif rest:
            bare[self._result_of(number, providers[rest[0]], tree)] = rest
        owned = {standing: len(positions) for standing, positions in bare.items()}
        for at, standing in enumerate(shared, start=own):
            bare.setdefault(standing, []).append(at)
        giving = []
        for at in sorted(having):
            first, spared, _ = self._result_of(number, providers[at], tree)
            demands = [
                (places.slots[at, name], amount, *self._capacities[number][name])
                for name, amount in names
                if (at, name) in places.slots
            ]
            giving.append((at, FilterResult(first, spared, tuple(demands))))
        return TreeResults(
            tuple([(each, tuple(positions), owned.get(each, 0)) for each, positions in bare.items()]),
            tuple(giving),
        )

    def _result_of(self, number: int, provider: Provider, tree: HostTree) -> FilterResult:
        """Return the result of one provider of a tree.

        Providers with equal checked attributes share results.
        """
        part = self._found.parts[number]
        portions: list[tuple[bool, bool, bool] | None] = []
        for name, amount in part.need.resources:
            inventory = provider.inventories.get(name)
            if inventory is None:
                portions.append(None)
            else:
                in_steps = amount % inventory.step_size == 0
                portions.append((amount >= inventory.min_unit, amount <= inventory.max_unit, in_steps))
        # the key has portions instead of inventories, so that hosts of different sizes can have equal keys
        key: Hashable = (number, *portions)
        if part.need.conditions:
            key = (key, self._read_provider[number](provider, tree.root))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._check_provider(part, provider, in_use=False)
        return known

    def _result_of_shared(self, number: int, provider: Provider) -> FilterResult:
        key = (number, provider.id)
        # current usage counts at once for a sharing provider, because its result serves no other provider
        if key not in self._sharing:
            self._sharing[key] = self._check_provider(self._found.parts[number], provider, in_use=True)
        return self._sharing[key]

    def _check_provider(self, part: RequestPart, provider: Provider, *, in_use: bool) -> FilterResult:
        """Check one provider; ``in_use`` includes its free amounts, which ``demands`` otherwise lists."""
        first, spared = len(part.checks), 0
        #: for each condition with alternative checks, the clauses that fail in each alternative
        by_ways: dict[str, list[Bits]] = {}
        self._budget.spend(1 + len(part.checks) // 4)
        for index, check in enumerate(part.checks):
            # these clauses are collected here, and their alternatives are combined after the loop
            if check.ways:
                lacking = by_ways.setdefault(check.clause.condition, [0] * len(check.ways))
                for way, met_by in enumerate(check.ways):
                    lacking[way] |= 0 if met_by(provider) else self._bit[check.drop]
            if (in_use or check.clause.condition != "capacity") and not check.met_by(provider):
                first = min(first, index)
                if not check.ways:
                    spared |= self._bit[check.drop]
        # for each such condition, the provider has to pass one of the alternatives
        sets = {spared}
        for ways in by_ways.values():
            sets = {one | other for one in sets for other in ways}
        return FilterResult(first, minimal_sets(sets), ())

    def _lacking_together(self, alike: LikeTrees) -> Iterable[frozenset[Bits]]:
        """Yield alternative sets of clauses to leave out, for each check on a group together."""
        # the method returns early in the common case, a group without a suffix that requires no traits
        if not self._found.together:
            return
        classes = {name for part in self._unsuffixed for name, _ in part.need.resources}
        gone = 0
        for sets, part in zip(self._gone, self._found.parts, strict=True):
            gone |= sets[0] if part.need.unsuffixed else 0
        serving = [
            each for each in alike.kin.providers(alike.first_tree) if not classes.isdisjoint(each.inventories)
        ]
        self._budget.spend(1 + len(serving) // 4)
        for check in self._found.together:
            met = any(map(check.met_by, serving))
            yield frozenset({0}) if met else minimal_sets({self._bit[check.drop], gone})


def minimal_sets(sets: Iterable[Bits]) -> frozenset[Bits]:
    """Return those sets that contain none of the other sets."""
    kept: list[Bits] = []
    # small sets come first, so that each set has to be compared only with sets kept before
    for each in sorted(sets, key=int.bit_count):
        if not any(other & ~each == 0 for other in kept):
            kept.append(each)
    return frozenset(kept)
