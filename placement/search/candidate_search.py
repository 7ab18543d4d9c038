"""``GET /allocation_candidates``: searches the trees of a snapshot and yields all candidates of a request.

Roots are tried one after another, and each yields its candidates in small batches, so that a limit bounds
the work and not only the answer. A root without a result for a while waits until the others had their turn.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from operator import itemgetter
from typing import Final, Literal, TypeVar

from placement.exceptions import InvalidRequest
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree, ProviderSet
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.candidates import AllocationCandidate, Offer, PatternBatch, candidates_of
from placement.search.compiled_request import CompiledRequest, SearchResults, options_of
from placement.search.conditions import MetPositions, ProviderNeed, needs_of, root_conditions
from placement.search.equivalence import root_reader, tree_reader
from placement.search.request import CandidatesRequest
from placement.search.roots import RootFilter, SharingProviders, possible_roots
from placement.search.rules import RequestRules

T = TypeVar("T")

Source = tuple[ProviderSet, Iterable[PatternBatch]]
"""What there is at one set of providers; an empty batch says that the search there rests."""


def one_by_one(sources: Iterator[Source]) -> Iterator[Offer]:
    """All of one source, then all of the next; what rests waits until the last had its turn."""
    resting: deque[Source] = deque()
    # lazily: sources that come to rest are appended to the deque while it is drained
    for source in chain(sources, drained(resting)):
        provider_set, batches = source
        for batch in batches:
            if not batch:
                resting.append(source)
                break
            yield provider_set, batch


def round_robin(sources: Iterator[Source]) -> Iterator[Offer]:
    """One of each source, then a second of each, and so on; sources are opened as they are reached."""
    active: deque[Source] = deque()
    # the same, so that a limit is met before most sources are opened at all
    for provider_set, batches in chain(sources, drained(active)):
        left = iter(batches)
        for batch in left:
            active.append((provider_set, left))
            if batch:
                yield provider_set, batch
            break


def drained(waiting: deque[T]) -> Iterator[T]:
    """The waiting items, with those that join meanwhile."""
    while waiting:
        yield waiting.popleft()


def first(offers: Iterable[Offer], limit: int) -> Iterator[Offer]:
    """The first of the offers, until they have as many candidates together as the limit says."""
    if limit < 1:
        return
    for provider_set, patterns in offers:
        # the whole batch where it fits: rendering makes the template of a batch object once
        yield provider_set, patterns if len(patterns) <= limit else PatternBatch(patterns[:limit])
        limit -= len(patterns)
        if limit <= 0:
            return


BATCH: Final = 16
"""How many candidates of one tree are looked for at once, where the limit allows."""
# a look adds up what all patterns need, which for each offer would cost more than to find it
_CHUNK: Final = 256
"""How many offers are taken between two looks at how large the answer has become; fewer of many groups."""
# most roots are refused by a dictionary lookup, which is less than a step
_ROOTS: Final = 32
"""How many roots are looked at between two looks at the budget."""
_NO_PATTERNS: Final = PatternBatch()
_SUMMARY_SIZE: Final = 400
"""Bytes of a provider in an answer, about."""


class CandidateSearch:
    """One request on its way through the trees of the snapshot."""

    def __init__(
        self,
        snapshot: ModelSnapshot,
        request: CandidatesRequest,
        rng: random.Random | None,
        budget: SearchBudget,
    ) -> None:
        self.budget = budget
        self._snapshot = snapshot
        self._trees = snapshot.whole_trees()
        self._request = request
        self._rng = rng
        # the order matters: sharing providers are filtered by needs, and rules refer to needs by their
        # index
        self._needs = needs_of(request)
        self._sharing = SharingProviders(snapshot, budget, self._needs)
        self._rules = RequestRules(snapshot, request, self._needs, budget)
        self._classes = {name for need in self._needs for name, _ in need.resources}
        #: of classes that nothing shares the most that is asked for at once
        self._least: list[tuple[str, int]] = list(
            {
                name: amount
                # ascending, so that of equal names the largest amount stays in the dictionary
                for name, amount in sorted(chain.from_iterable([need.resources for need in self._needs]))
                if not self._sharing.providers or name not in self._sharing.classes
            }.items()
        )
        self._on_roots = tuple(root_conditions(request))
        self._read_root = root_reader(self._on_roots)
        #: all of a tree that decides on its plan, beside what is shared with it
        self._read_tree = tree_reader(self._rules.conditions)
        #: by what conditions read of a root whether it may be one
        self._good_roots: dict[Hashable, bool] = {}
        #: whether the same candidate may be found at two roots: one of sharing providers alone
        self.may_repeat = self._sharing.suffice
        #: by what is quickly known of trees, and by which of their providers meet the conditions
        self._plans: dict[Hashable, CompiledRequest | None] = {}
        self._distinct_plans: dict[Hashable, CompiledRequest | None] = {}
        self._met_in: list[MetPositions] = [each.met_in(snapshot) for each in self._rules.conditions]
        # shared by all plans: trees of two structures may have the same positions of options
        self._searched = SearchResults(1)
        self._when_empty: dict[CompiledRequest, PatternBatch] = {}
        self._known_unused: dict[int, Provider] = {}
        #: sharing providers that served for a tree without any help of its own
        self._alone: set[tuple[int, ...]] = set()

    def chunk(self) -> int:
        """How many offers have not more than some MiB of the answer together."""
        return max(1, _CHUNK // len(self._needs))

    def size_of(self, offers: Sequence[Offer]) -> int:
        """About how many bytes an answer with these offers has."""
        candidates = sum([len(patterns) for _, patterns in offers])
        # a set: the summaries of a tree are in an answer once, however many candidates it has
        summaries = sum([provider_set.own for provider_set in {provider_set for provider_set, _ in offers}])
        return candidates * self._candidate_size + summaries * _SUMMARY_SIZE

    @cached_property
    def _candidate_size(self) -> int:
        return sum(map(_need_size, self._needs))

    def possible_roots(self) -> RootFilter:
        """The roots at which candidates may be anchored."""
        return possible_roots(self._snapshot, self._request, self._needs, self._sharing)

    def by_root(self, batch: int) -> Iterator[Source]:
        """For every tree that may serve the request the candidates anchored there, so many at once."""
        roots: Iterable[int] = self.possible_roots()
        if self._rng is not None:
            found = list(roots)
            roots = self._rng.sample(found, len(found))
        # here and not in the constructor, as only the caller knows its limit and strategy
        self._searched.batch = batch
        uncounted = 0
        for root in roots:
            uncounted += 1
            if uncounted == _ROOTS:
                self.budget.spend(_ROOTS)
                uncounted = 0
            if source := self.source(root):
                yield source

    def source(self, root: int, *, each_root: bool = False) -> Source | None:
        """The candidates anchored at a root; None if it is quickly known that there are none."""
        tree = self._trees[root]
        # nothing shares in most clouds: this way has no set to build, and no check for repetition
        if not self._sharing.providers:
            plan = self._plan_of(tree, (), in_use=True)
            return None if plan is None else (tree, plan.batches(tree, tree.free, self._rng))
        # before the sharing providers are looked up, which takes longer than this check
        if self._has_too_little(tree):
            return None
        shared, uuids = self._sharing.with_tree(root)
        plan = self._plan_of(tree, shared, in_use=True)
        # candidates of pools alone are the same at each tree that the pools share with; one tree is enough
        if plan is None or (plan.only_shared and not each_root and self._is_repeated(shared)):
            return None
        provider_set = tree.beside(shared, uuids) if shared else tree
        return provider_set, plan.batches(provider_set, tree.free, self._rng)

    def _has_too_little(self, tree: HostTree) -> bool:
        """Whether a class that nothing shares is used so far that a need has no place."""
        max_free = tree.max_free
        for name, amount in self._least:  # noqa: SIM110  # a generator costs more than all that it does
            if max_free.get(name, -1) < amount:
                return True
        return False

    def serves(self, tree: HostTree, shared: Sequence[Provider]) -> bool:
        """Whether any candidate is anchored at a tree, with what shares with it."""
        plan = self._plan_of(tree, shared)
        if plan is None:
            return False
        provider_set = tree.beside(shared, tuple([each.uuid.encode() for each in shared])) if shared else tree
        return any(plan.batches(provider_set, tree.free))

    def when_empty(self, tree: HostTree, shared: Sequence[Provider]) -> PatternBatch:
        """All patterns of a tree if nothing were used of it, nor of what shares with it."""
        # all patterns are wanted here, so that larger batches mean fewer rests and less bookkeeping
        self._searched.batch = BATCH
        if shared:
            shared = [self._without_usage(each) for each in shared]
        plan = self._plan_of(tree, shared)
        if plan is None:
            return _NO_PATTERNS
        found = self._when_empty.get(plan)
        if found is None:
            empty = tree.when_empty(shared)
            # the capacities of the structure are those of its largest tree, so that one result serves all
            # its trees
            patterns = chain.from_iterable(plan.batches(empty, tuple(tree.shape.capacities)))
            found = self._when_empty[plan] = PatternBatch(patterns)
        return found

    def _without_usage(self, provider: Provider) -> Provider:
        """The sharing provider with nothing used."""
        # the same object where possible: its id is a part of the keys of plans
        if not provider.used:
            return provider
        if provider.id not in self._known_unused:
            self._known_unused[provider.id] = replace(provider, used={})
        return self._known_unused[provider.id]

    def is_repeated(self, offer: Offer, seen: set[Hashable]) -> bool:
        """Whether an offer of one candidate was seen before, from another root.

        Only what consists of shared providers alone may be; else it is noted in what was ``seen``.
        """
        sharing, members = self._sharing.providers, offer[0].members
        # candidates with a provider of a tree of their own cannot occur at another root
        if not self.may_repeat or not all(
            members[at].id in sharing
            for pattern in offer[1]
            for positions in pattern.mappings.values()
            for at in positions
        ):
            return False
        known = {_candidate_key(candidate) for candidate in candidates_of([offer])}
        if known <= seen:
            return True
        seen |= known
        return False

    def _is_repeated(self, shared: Iterable[Provider]) -> bool:
        """Whether a tree that only these providers can serve for had a like one before it."""
        provider_ids = tuple([each.id for each in shared])
        repeated = provider_ids in self._alone
        self._alone.add(provider_ids)
        return repeated

    def _plan_of(
        self, tree: HostTree, shared: Sequence[Provider], in_use: bool = False
    ) -> CompiledRequest | None:
        """The plan of a tree, made by :meth:`_find_plan` once for trees that are the same to the request.

        :param in_use: None also where too much is used for any candidate, if that is quickly known.
        """
        # by what is read of the root rather than with the plan: a plan then serves trees whose roots differ
        if self._on_roots:
            root = tree.root
            seen = self._read_root(root)
            good = self._good_roots.get(seen)
            if good is None:
                good = all(each.met_by(root, self._snapshot) for each in self._on_roots)
                self._good_roots[seen] = good
            if not good:
                return None
        # two levels of keys: this one takes one call for each of thousands of trees, the one of _find_plan
        # is exact
        read = self._read_tree(tree)
        key = (read, *[each.id for each in shared]) if shared else read
        try:
            return self._plans[key]
        except KeyError:
            # not remembered: the next tree of this key may have more free
            if in_use and not shared and self._has_too_little(tree):
                return None
            plan = self._plans[key] = self._find_plan(tree, shared)
            return plan

    def _find_plan(self, tree: HostTree, shared: Sequence[Provider]) -> CompiledRequest | None:
        """The plan for trees like this one, None if they cannot serve the request."""
        self.budget.spend(1 + len(self._met_in) * len(tree.members) // 4)
        # with pools both checks would be wrong: another tree may have the class or the trait
        if not shared and not self._classes <= tree.shape.classes:
            return None
        met = [met_at(tree) for met_at in self._met_in]
        if not shared and not all(map(any, met)):
            return None
        # traits and aggregates that no condition names have no effect on met, so that many keys end up here
        key = (tree.shape, *met, *[each.id for each in shared])
        if key not in self._distinct_plans:
            self._distinct_plans[key] = self._new_plan(tree, shared, met)
        return self._distinct_plans[key]

    def _new_plan(
        self, tree: HostTree, shared: Sequence[Provider], met: Sequence[Sequence[bool]]
    ) -> CompiledRequest | None:
        rules = self._rules
        options = options_of(rules, tree, shared, met)
        if options is None:
            return None
        members = (*tree.members, *shared) if shared else tree.members
        traits = []
        for any_of in rules.unsuffixed_traits:
            positions = {at for index in rules.unsuffixed for at in options[index].positions()}
            # in order, since these positions are compared with those of other plans
            having = tuple([at for at in sorted(positions) if not members[at].traits.isdisjoint(any_of)])
            if not having:
                return None
            traits.append(having)
        return CompiledRequest(rules, tree, shared, options, tuple(traits), self._searched)


def _need_size(need: ProviderNeed) -> int:
    """About how many bytes a need takes in an answer, for each candidate."""
    amounts = sum([len(name) + 12 for name, _ in need.resources])
    return len('"":{"resources":{}},"":[""],') + 2 * 36 + len(need.suffix) + amounts


def _candidate_key(candidate: AllocationCandidate) -> Hashable:
    return (
        frozenset(
            (provider_id, name, amount)
            for provider_id, amounts in candidate.resources.items()
            for name, amount in amounts.items()
        ),
        frozenset((suffix, frozenset(provider_ids)) for suffix, provider_ids in candidate.mappings.items()),
    )


Strategy = Literal["depth-first", "breadth-first"]

NO_LIMIT: Final = -1


def search(
    snapshot: ModelSnapshot,
    request: CandidatesRequest,
    *,
    strategy: Strategy = "depth-first",
    max_candidates: int = NO_LIMIT,
    randomize: bool = False,
    budget: SearchBudget | None = None,
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
    budget = budget or SearchBudget()
    limits = [limit for limit in (request.limit, max_candidates) if limit is not None and limit != NO_LIMIT]
    limit = min(limits, default=None)
    looking = CandidateSearch(snapshot, request, random.Random() if randomize else None, budget)
    # batches of one where the order of candidates goes from root to root, else as large as is useful
    in_turn = randomize or strategy == "breadth-first"
    by_root = looking.by_root(1 if in_turn or looking.may_repeat else min(BATCH, limit or BATCH))
    offers = round_robin(by_root) if in_turn else one_by_one(by_root)
    if looking.may_repeat:
        offers = _drop_repeated(offers, looking)
    if limit is not None:
        offers = first(offers, limit)
    # outermost, so that a spent budget ends the answer and keeps all that was found
    offers = _while_it_lasts(offers)
    chunk = looking.chunk()
    found = list(islice(offers, chunk))
    size = looking.size_of(found) if len(found) == chunk else 0
    # the size is only looked at after a full chunk: most answers are smaller
    while more := budget.allows(size) and list(islice(offers, chunk)):
        found += more
        size += looking.size_of(more)
    if budget.ended and not found:
        raise _too_much(request, budget)
    return found


class CandidatesByHost:
    """The candidates of a request host by host, whatever its limit.

    :param each_root: whether what consists of shared providers alone is to come once for every root.
    """

    def __init__(
        self,
        snapshot: ModelSnapshot,
        request: CandidatesRequest,
        budget: SearchBudget,
        *,
        each_root: bool = False,
    ) -> None:
        self._looking = CandidateSearch(snapshot, request, None, budget)
        self._each_root = each_root
        #: what was found of shared providers alone
        self._seen: set[Hashable] = set()

    def roots(self) -> RootFilter:
        """The roots that may serve."""
        return self._looking.possible_roots()

    def at(self, root: int) -> Iterator[AllocationCandidate | None]:
        """The candidates anchored at a root, found as they are asked for; None where the search rests.

        :raises Exhausted: the budget is spent.
        """
        looking = self._looking
        looking.budget.spend()
        source = looking.source(root, each_root=self._each_root)
        if source is None:
            return
        provider_set, batches = source
        for batch in batches:
            if not batch:
                yield None
            elif self._each_root or not looking.is_repeated((provider_set, batch), self._seen):
                yield from candidates_of([(provider_set, batch)])


def served(
    snapshot: ModelSnapshot, request: CandidatesRequest, budget: SearchBudget
) -> Callable[[HostTree, Sequence[Provider]], bool]:
    """A function that tells of a tree, and what shares with it, whether any candidate is anchored there.

    It remembers what it found at trees alike, for as long as the snapshot does not change.

    :raises Exhausted: (the function) the budget is spent.
    """
    return CandidateSearch(snapshot, request, None, budget).serves


def when_empty(
    snapshot: ModelSnapshot, request: CandidatesRequest, budget: SearchBudget
) -> Callable[[HostTree, Sequence[Provider]], PatternBatch]:
    """A function that tells of a tree all patterns that it had if nothing were used.

    Nothing of what shares with it counts as used, either. Trees whose providers meet the same conditions, and
    have the same portions, get the same batch: its patterns are those of the largest of them, so that a
    smaller one may be too small for some.

    :raises Exhausted: (the function) the budget is spent.
    """
    return CandidateSearch(snapshot, request, None, budget).when_empty


def _while_it_lasts(offers: Iterable[Offer]) -> Iterator[Offer]:
    """The offers until the budget is spent."""
    with suppress(BudgetExhausted):
        yield from offers


def _too_much(request: CandidatesRequest, budget: SearchBudget) -> InvalidRequest:
    """The refusal of a request that is too hard, with the group to blame."""
    advice = "."
    if budget.dead_ends:
        # the group that most often had no place is the one to make smaller
        suffix, count = max(budget.dead_ends.items(), key=itemgetter(1))
        asked = next(group.resources for group in request.groups if group.suffix == suffix)
        amounts = ",".join(f"{name}:{amount}" for name, amount in asked.items())
        advice = (
            f". In {count} ways to serve the other groups there was no place left for "
            f"resources{suffix}={amounts}: ask for fewer groups, or for smaller amounts."
        )
    return InvalidRequest.too_long(
        "No allocation candidate was found", budget.seconds, "candidates_deadline", advice
    )


def _drop_repeated(offers: Iterable[Offer], found: CandidateSearch) -> Iterator[Offer]:
    """Offers of one candidate each, without those found before from another root."""
    seen: set[Hashable] = set()
    for offer in offers:
        found.budget.spend()
        if not found.is_repeated(offer, seen):
            yield offer
