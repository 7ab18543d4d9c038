"""``GET /allocation_candidates``: all candidates of a request, lazily.

Roots are tried one after another and each yields its candidates in small batches,
so that a limit bounds the work and not only the answer. A root at which nothing is found for
a while waits until the others had their turn.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, islice
from operator import attrgetter, itemgetter
from typing import Final, Literal

from placement.candidates.budget import Budget, Exhausted
from placement.candidates.conditions import Condition, HasTraits
from placement.candidates.needs import Need, needs_of
from placement.candidates.pattern import Candidate, Offer, PatternBatch, candidates_of
from placement.candidates.plan import Plan, Searched, options_of
from placement.candidates.request import CandidatesRequest
from placement.candidates.roots import Sharing, possible_roots
from placement.candidates.rules import Rules
from placement.candidates.sources import Source, first, one_by_one, round_robin
from placement.exceptions import SEARCH_TOO_LONG, InvalidRequest
from placement.model.provider import Provider
from placement.model.snapshot import Snapshot
from placement.model.trees import Tree

Strategy = Literal["depth-first", "breadth-first"]

NO_LIMIT: Final = -1
_BATCH: Final = 16
"""How many candidates of one tree are looked for at once, where the limit allows."""
_CHUNK: Final = 256
"""How many offers are taken between two looks at how large the answer has become; fewer of many groups."""
_ROOTS: Final = 32
"""How many roots are looked at between two looks at the budget."""
_NO_PATTERNS: Final = PatternBatch()
_SUMMARY_SIZE: Final = 400
"""Bytes of a provider in an answer, about."""


def search(
    snapshot: Snapshot,
    request: CandidatesRequest,
    *,
    strategy: Strategy = "depth-first",
    max_candidates: int = NO_LIMIT,
    randomize: bool = False,
    budget: Budget | None = None,
) -> list[Offer]:
    """The candidates of a request, no two alike; those of one set of providers come together.

    :param strategy: all candidates of one root before the next one's, or one
        candidate of every root before the second of any.
    :param max_candidates: an upper bound beside the limit of the request.
    :param randomize: pick at random which candidates are within the limit:
        roots in random order, round-robin, and the candidates of each root in
        random order.
    :param budget: what the search may cost. Where it is spent (see :attr:`Budget.ended`), the
        candidates found so far are returned.
    :raises InvalidRequest: the budget was spent before any candidate was found.
    """
    budget = budget or Budget()
    limits = [limit for limit in (request.limit, max_candidates) if limit is not None and limit != NO_LIMIT]
    limit = min(limits, default=None)
    looking = _Search(snapshot, request, random.Random() if randomize else None, budget)
    in_turn = randomize or strategy == "breadth-first"
    by_root = looking.by_root(1 if in_turn or looking.may_repeat else min(_BATCH, limit or _BATCH))
    offers = round_robin(by_root) if in_turn else one_by_one(by_root)
    if looking.may_repeat:
        offers = _distinct(offers, looking)
    if limit is not None:
        offers = first(offers, limit)
    offers = _while_it_lasts(offers)
    chunk = looking.chunk()
    found = list(islice(offers, chunk))
    size = looking.size_of(found) if len(found) == chunk else 0
    while more := budget.allows(size) and list(islice(offers, chunk)):
        found += more
        size += looking.size_of(more)
    if budget.ended and not found:
        raise _too_much(request, budget)
    return found


def in_turn(
    snapshot: Snapshot,
    request: CandidatesRequest,
    budget: Budget,
    arrange: Callable[[Iterable[int]], Iterable[int]],
    *,
    each_root: bool = False,
) -> Iterator[Offer]:
    """The candidates of a request one by one, whatever its limit: one of every root, then a second of each.

    :param arrange: chooses from the ids of the roots that may serve, and says in which order they come.
    :param each_root: whether what consists of shared providers alone is to come once for every root.
    :raises Exhausted: the budget is spent.
    """
    looking = _Search(snapshot, request, None, budget)
    offers = round_robin(looking.by_root(1, arrange, each_root=each_root))
    return _distinct(offers, looking) if looking.may_repeat and not each_root else offers


def served(
    snapshot: Snapshot, request: CandidatesRequest, budget: Budget
) -> Callable[[Tree, Sequence[Provider]], bool]:
    """A function that tells of a tree, and what shares with it, whether any candidate is anchored there.

    It remembers what it found at trees alike, for as long as the snapshot does not change.

    :raises Exhausted: (the function) the budget is spent.
    """
    return _Search(snapshot, request, None, budget).serves


def when_empty(
    snapshot: Snapshot, request: CandidatesRequest, budget: Budget
) -> Callable[[Tree, Sequence[Provider]], PatternBatch]:
    """A function that tells of a tree all patterns that it had if nothing of it were used.

    What shares with the tree is taken as it is used now. Trees whose providers meet the same conditions, and
    have the same portions, get the same batch: its patterns are those of the largest of them, so that a
    smaller one may be too small for some.

    :raises Exhausted: (the function) the budget is spent.
    """
    return _Search(snapshot, request, None, budget).when_empty


def _while_it_lasts(offers: Iterable[Offer]) -> Iterator[Offer]:
    """The offers until the budget is spent."""
    with suppress(Exhausted):
        yield from offers


def _too_much(request: CandidatesRequest, budget: Budget) -> InvalidRequest:
    """The refusal of a request that is too hard, with the group to blame."""
    advice = ""
    if budget.dead_ends:
        suffix, count = max(budget.dead_ends.items(), key=itemgetter(1))
        asked = next(group.resources for group in request.groups if group.suffix == suffix)
        amounts = ",".join(f"{name}:{amount}" for name, amount in asked.items())
        advice = (
            f" In {count} ways to serve the other groups there was no place left for "
            f"resources{suffix}={amounts}: ask for fewer groups, or for smaller amounts."
        )
    return InvalidRequest(
        f"No allocation candidate was found in {budget.seconds:g} seconds of work, "
        f"which is the limit ([api] candidates_deadline).{advice}",
        SEARCH_TOO_LONG,
    )


def _distinct(offers: Iterable[Offer], found: "_Search") -> Iterator[Offer]:
    """Of offers of one candidate each, drop what was found before from another root.

    These are only candidates of sharing providers alone.
    """
    seen: set[Hashable] = set()
    for offer in offers:
        found.budget.spend()
        if found.is_shared(offer):
            (candidate,) = candidates_of([offer])
            key = _key(candidate)
            if key in seen:
                continue
            seen.add(key)
        yield offer


def _key(candidate: Candidate) -> Hashable:
    return (
        frozenset(
            (provider_id, name, amount)
            for provider_id, amounts in candidate.resources.items()
            for name, amount in amounts.items()
        ),
        frozenset((suffix, frozenset(provider_ids)) for suffix, provider_ids in candidate.mappings.items()),
    )


class _Search:
    """One request on its way through the trees of the snapshot."""

    def __init__(
        self, snapshot: Snapshot, request: CandidatesRequest, rng: random.Random | None, budget: Budget
    ) -> None:
        self.budget = budget
        self._snapshot = snapshot
        self._request = request
        self._rng = rng
        self._needs = needs_of(request)
        self._sharing = Sharing(snapshot, budget, self._needs)
        self._rules = Rules(snapshot, request, self._needs, budget)
        self._classes = {name for need in self._needs for name, _ in need.resources}
        #: of classes that nothing shares the most that is asked for at once
        self._least: list[tuple[str, int]] = list(
            {
                name: amount
                for name, amount in sorted(chain.from_iterable([need.resources for need in self._needs]))
                if not self._sharing.providers or name not in self._sharing.classes
            }.items()
        )
        self._root = HasTraits(
            tuple(frozenset({trait}) for trait in request.root_required), request.root_forbidden
        )
        self._any_root = not request.root_required and not request.root_forbidden
        #: all of a tree that decides on its plan, beside what is shared with it: conditions look at no more
        reads = {each.reads for each in self._rules.conditions}
        self._read = attrgetter(
            *sorted(reads if "kind" in reads else {"shape", *reads})
        )  # a kind is of a shape
        #: by the traits of a root whether it may be one
        self._good_roots: dict[frozenset[str], bool] = {}
        #: whether the same candidate may be found at two roots: one of sharing providers alone
        self.may_repeat = self._sharing.suffice
        #: by what is quickly known of trees, and by which of their providers meet the conditions
        self._plans: dict[Hashable, Plan | None] = {}
        self._distinct_plans: dict[Hashable, Plan | None] = {}
        #: with what each found out
        self._conditions: list[tuple[Condition, dict[Hashable, bool]]] = [
            (condition, {}) for condition in self._rules.conditions
        ]
        self._searched = Searched(1)
        self._when_empty: dict[Plan, PatternBatch] = {}
        #: sharing providers that served for a tree without any help of its own
        self._alone: set[tuple[int, ...]] = set()

    def chunk(self) -> int:
        """How many offers have not more than some MiB of the answer together."""
        return max(1, _CHUNK // len(self._needs))

    def size_of(self, offers: Sequence[Offer]) -> int:
        """About how many bytes an answer with these offers has."""
        candidates = sum([len(patterns) for _, patterns in offers])
        summaries = sum([provider_set.own for provider_set in {provider_set for provider_set, _ in offers}])
        return candidates * self._candidate_size + summaries * _SUMMARY_SIZE

    @cached_property
    def _candidate_size(self) -> int:
        return sum(map(_size, self._needs))

    def by_root(
        self,
        batch: int,
        arrange: Callable[[Iterable[int]], Iterable[int]] = lambda roots: roots,
        *,
        each_root: bool = False,
    ) -> Iterator[Source]:
        """For every tree that may serve the request the candidates anchored there, so many at once."""
        roots = arrange(possible_roots(self._snapshot, self._request, self._needs, self._sharing))
        if self._rng is not None:
            found = list(roots)
            roots = self._rng.sample(found, len(found))
        trees = self._snapshot.whole_trees()
        self._searched.batch = batch
        shared: Sequence[Provider] = ()
        uuids: tuple[bytes, ...] = ()
        sharing = bool(self._sharing.providers)
        uncounted = 0
        for root in roots:
            uncounted += 1
            if uncounted == _ROOTS:
                self.budget.spend(_ROOTS)
                uncounted = 0
            tree = trees[root]
            if sharing:
                if self._has_too_little(tree):
                    continue
                shared, uuids = self._sharing.with_tree(root)
            plan = self._plan_of(tree, shared, in_use=True)
            if plan is not None and (each_root or not (plan.only_shared and self._is_repeated(shared))):
                provider_set = tree.beside(shared, uuids) if shared else tree
                yield provider_set, plan.batches(provider_set, tree.free, self._rng)

    def _has_too_little(self, tree: Tree) -> bool:
        """Whether a class that nothing shares is used so far that a need has no place."""
        max_free = tree.max_free
        for name, amount in self._least:  # noqa: SIM110  # a generator costs more than all that it does
            if max_free.get(name, -1) < amount:
                return True
        return False

    def serves(self, tree: Tree, shared: Sequence[Provider]) -> bool:
        """Whether any candidate is anchored at a tree, with what shares with it."""
        plan = self._plan_of(tree, shared)
        if plan is None:
            return False
        provider_set = tree.beside(shared, tuple([each.uuid.encode() for each in shared])) if shared else tree
        return any(plan.batches(provider_set, tree.free))

    def when_empty(self, tree: Tree, shared: Sequence[Provider]) -> PatternBatch:
        """All patterns of a tree of which nothing is used."""
        self._searched.batch = _BATCH
        plan = self._plan_of(tree, shared)
        if plan is None:
            return _NO_PATTERNS
        found = self._when_empty.get(plan)
        if found is None:
            empty = tree.when_empty(shared)
            patterns = chain.from_iterable(plan.batches(empty, tuple(tree.shape.capacities)))
            found = self._when_empty[plan] = PatternBatch(patterns)
        return found

    def is_shared(self, offer: Offer) -> bool:
        """Whether its candidates consist of sharing providers alone, so that other roots have them too."""
        sharing, members = self._sharing.providers, offer[0].members
        return all(
            members[at].id in sharing
            for pattern in offer[1]
            for positions in pattern.mappings.values()
            for at in positions
        )

    def _is_repeated(self, shared: Iterable[Provider]) -> bool:
        """Whether a tree that only these providers can serve for had a like one before it."""
        provider_ids = tuple([each.id for each in shared])
        repeated = provider_ids in self._alone
        self._alone.add(provider_ids)
        return repeated

    def _plan_of(self, tree: Tree, shared: Sequence[Provider], in_use: bool = False) -> Plan | None:
        """As :meth:`_plan`, which is asked once for trees that are the same to the request.

        :param in_use: None also where too much is used for any candidate, if that is quickly known.
        """
        if not self._any_root:
            traits = tree.root.traits
            good = self._good_roots.get(traits)
            if good is None:
                good = self._good_roots[traits] = self._root.met_by(tree.root, self._snapshot)
            if not good:
                return None
        read = self._read(tree)
        key = (read, *[each.id for each in shared]) if shared else read
        try:
            return self._plans[key]
        except KeyError:
            if in_use and not shared and self._has_too_little(tree):
                return None
            plan = self._plans[key] = self._plan(tree, shared)
            return plan

    def _plan(self, tree: Tree, shared: Sequence[Provider]) -> Plan | None:
        """The plan for trees like this one, None if they cannot serve the request."""
        self.budget.spend(1 + len(self._conditions) * len(tree.members) // 4)
        if not shared and not self._classes <= tree.shape.classes:
            return None
        met = [condition.met_at(tree, self._snapshot, known) for condition, known in self._conditions]
        if not shared and not all(map(any, met)):
            return None
        key = (tree.shape, *met, *[each.id for each in shared])
        if key not in self._distinct_plans:
            self._distinct_plans[key] = self._new_plan(tree, shared, met)
        return self._distinct_plans[key]

    def _new_plan(self, tree: Tree, shared: Sequence[Provider], met: Sequence[Sequence[bool]]) -> Plan | None:
        rules = self._rules
        options = options_of(rules, tree, shared, met)
        if options is None:
            return None
        members = (*tree.members, *shared) if shared else tree.members
        traits = []
        for any_of in rules.unsuffixed_traits:
            positions = {at for index in rules.unsuffixed for at in options[index].positions()}
            having = tuple([at for at in sorted(positions) if not members[at].traits.isdisjoint(any_of)])
            if not having:
                return None
            traits.append(having)
        return Plan(rules, tree, shared, options, tuple(traits), self._searched)


def _size(need: Need) -> int:
    """About how many bytes a need takes in an answer, for each candidate."""
    amounts = sum([len(name) + 12 for name, _ in need.resources])
    return len('"":{"resources":{}},"":[""],') + 2 * 36 + len(need.suffix) + amounts
