"""Finds allocation candidates: searches the trees of a snapshot and yields the candidates of a request.

The search visits one root provider after another. The search takes the candidates of each root in small
batches, so that a limit also bounds the work. If the search at a root finds no candidate for a while, it
continues after all other roots had their turn.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from operator import itemgetter
from typing import Final, Literal, TypeVar

from placement.exceptions import InvalidRequest
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree, ProviderSet, TreeClass
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.candidates import AllocationCandidate, Offer, PatternBatch, UnusedPatterns
from placement.search.compiled_request import CompiledRequest, SearchResults, options_of
from placement.search.conditions import MetPositions, ProviderNeed, needs_of, root_conditions
from placement.search.equivalence import root_reader, tree_reader
from placement.search.request import CandidatesRequest
from placement.search.roots import NOT_SHARED, RootFilter, SharingProviders, TreeSharing, possible_roots
from placement.search.rules import RequestRules
from placement.search.symmetry import never_pooled

T = TypeVar("T")

Source = tuple[ProviderSet, Iterable[PatternBatch]]
"""The candidates at one tree: the provider set, and an iterator over batches of its patterns. An empty batch
lets the search continue with the next tree.
"""


def one_by_one(sources: Iterator[Source]) -> Iterator[Offer]:
    """Yield all batches of one tree, then all batches of the next tree.

    A tree at which the search rests is visited again at the end.

    The search also rests at a tree when the remaining candidates differ from earlier ones only in
    interchangeable providers and groups.
    """
    resting: deque[Source] = deque()
    # the function is a generator, because the loop appends sources that rest to the deque from which it reads
    for source in chain(sources, drain_waiting(resting)):
        provider_set, batches = source
        for batch in batches:
            if not batch:
                resting.append(source)
                break
            yield provider_set, batch


def round_robin(sources: Iterator[Source]) -> Iterator[Offer]:
    """Yield one batch of each tree, then a second batch of each tree, and so on.

    The search at a tree begins when its first batch is due.
    """
    active: deque[Source] = deque()
    # the function is a generator, because a limit may be reached before most sources are opened
    for provider_set, batches in chain(sources, drain_waiting(active)):
        left = iter(batches)
        for batch in left:
            active.append((provider_set, left))
            if batch:
                yield provider_set, batch
            break


def drain_waiting(waiting: deque[T]) -> Iterator[T]:
    """Yield the items of a queue, including items that are appended during the iteration."""
    while waiting:
        yield waiting.popleft()


def limit_offers(offers: Iterable[Offer], limit: int) -> Iterator[Offer]:
    """Yield batches until there are ``limit`` candidates in total; shorten the last batch if necessary."""
    if limit < 1:
        return
    for provider_set, patterns in offers:
        # a batch within the limit is yielded unchanged, because rendering makes one template for each batch
        # object
        yield provider_set, patterns if len(patterns) <= limit else PatternBatch(patterns[:limit])
        limit -= len(patterns)
        if limit <= 0:
            return


# the size is a compromise: small batches end a search with a low limit early, large batches have less
# overhead
BATCH: Final = 16
"""Largest number of candidates that the search finds at one tree before it turns to another tree."""
# the check adds up the sizes of all patterns; if it ran for each offer, it would cost more than finding the
# patterns
_CHUNK: Final = 256
"""Number of needs, summed over the found candidates, after which the size of the answer is checked again."""
# the loop over roots is quick: for most roots, one dictionary lookup shows that they have no candidate, in
# less time than a step
_ROOTS: Final = 32
"""Number of roots between two checks of the budget."""
_NO_PATTERNS: Final = UnusedPatterns(PatternBatch())
_SUMMARY_SIZE: Final = 400
"""Approximate size of the summary of a provider in an answer, in bytes."""


class CandidateSearch:
    """The search for the candidates of one request, through all trees of the snapshot or host by host.

    Without ``each_root``, :meth:`choices_at` yields a candidate of sharing providers alone only once. Such a
    candidate comes with the tree that contains all its providers if that tree is searched, otherwise with any
    tree.

    :param rng: source of a random order; None keeps the order of the search.
    :param each_root: whether a candidate of sharing providers alone is found at every root.
    :param among: the ids of the roots that the caller searches; None means all roots.
    :param distinct_only: whether to leave out candidates that differ from another one only in equal providers
        and equal groups.
    :param options_only: whether the positions in patterns count only the options of a tree.
    """

    def __init__(
        self,
        snapshot: ModelSnapshot,
        request: CandidatesRequest,
        budget: SearchBudget,
        *,
        rng: random.Random | None = None,
        each_root: bool = False,
        among: Container[int] | None = None,
        distinct_only: bool = False,
        options_only: bool = False,
    ) -> None:
        self.budget = budget
        self._each_root = each_root
        self._among = among
        self._snapshot = snapshot
        self._trees = snapshot.whole_trees()
        self._request = request
        self._rng = rng
        # the order of the next three statements matters: needs filter the sharing providers, and rules refer
        # to needs by index
        self._needs = needs_of(request)
        self._sharing = SharingProviders(snapshot, budget, self._needs)
        self._rules = RequestRules(snapshot, request, self._needs, budget)
        self._classes = {name for need in self._needs for name, _ in need.resources}
        #: for each class that no sharing provider has: the largest amount that one need asks for
        self._least: list[tuple[str, int]] = list(
            {
                name: amount
                # the needs are sorted by amount, so that for each class the dictionary keeps the largest
                # amount, which comes last
                for name, amount in sorted(chain.from_iterable([need.resources for need in self._needs]))
                if not self._sharing.providers or name not in self._sharing.resource_classes
            }.items()
        )
        #: for classes that are not shared and that several needs ask for: the sum of the amounts
        self._least_sums = [
            (name, asked) for name, asked in self._rules.contested.items() if name in dict(self._least)
        ]
        self._on_roots = tuple(root_conditions(request))
        self._read_root = root_reader(self._on_roots)
        #: a function that returns a key of all attributes of a tree that decide which compiled request
        #: applies to the tree
        self._read_tree = tree_reader(self._rules.conditions)
        #: whether a root meets the conditions on roots; the keys are the attributes of the root that the
        #: conditions read
        self._good_roots: dict[Hashable, bool] = {}
        #: whether sharing providers alone can serve all needs, so that the same candidate may be found at
        #: several roots
        self.may_repeat = self._sharing.suffice
        #: compiled requests in two caches. The first has keys that are quick to make; the keys of the second
        #: contain the positions that meet the conditions
        self._plans: dict[Hashable, CompiledRequest | None] = {}
        self._distinct_plans: dict[Hashable, CompiledRequest | None] = {}
        #: by the ids of the sharing providers of a tree: for each need, the indexes of those providers that
        #: can serve it
        self._serving: dict[tuple[int, ...], list[list[int]]] = {}
        self._met_in: list[MetPositions] = [each.met_in(snapshot) for each in self._rules.conditions]
        # all compiled requests use one cache, because trees of two structures can have their options at the
        # same positions
        self._searched = SearchResults(self._rules, distinct_only=distinct_only, options_only=options_only)
        #: patterns of unused trees in two caches. The first has a key for each class of trees, the second for
        #: each set of positions that never belong to a pool
        self._when_empty: dict[tuple[CompiledRequest, TreeClass, tuple[int, ...]], UnusedPatterns] = {}
        self._unused: dict[tuple[CompiledRequest, tuple[int, ...], tuple[int, ...]], UnusedPatterns] = {}
        self._known_unused: dict[int, Provider] = {}
        #: tuples of sharing providers that served the request at an earlier tree without a provider of that
        #: tree
        self._alone: set[tuple[int, ...]] = set()
        #: keys of the candidates of sharing providers alone that were found at earlier roots
        self._seen: set[Hashable] = set()
        #: provider sets with summaries that were already added to the size of the answer
        self._sized: set[ProviderSet] = set()

    def chunk_size(self) -> int:
        """Return the number of batches between checks of the answer's size, lower for more needs."""
        return max(1, _CHUNK // len(self._needs))

    def added_size(self, offers: Sequence[Offer]) -> int:
        """Return the approximate number of bytes by which these candidates enlarge the answer."""
        candidates = sum([len(patterns) for _, patterns in offers])
        # an answer has the summaries of a tree once, however many candidates the tree has
        added = {provider_set for provider_set, _ in offers} - self._sized
        self._sized |= added
        summaries = sum([len(provider_set.shape.lineages) for provider_set in added])
        return candidates * self._candidate_size + summaries * _SUMMARY_SIZE

    @cached_property
    def _candidate_size(self) -> int:
        return sum(map(_need_size, self._needs))

    def in_snapshot(self, snapshot: ModelSnapshot) -> CandidateSearch:
        """Return this search, with its results so far, for a snapshot that differs from the first in usage.

        The snapshot may lack trees of the first one. Neither snapshot may have sharing providers.
        """
        new = copy(self)
        new._snapshot, new._trees = snapshot, snapshot.whole_trees()
        return new

    def roots(self) -> RootFilter:
        """Return the roots of the trees that are possible hosts of a candidate."""
        return possible_roots(self._snapshot, self._request, self._needs, self._sharing)

    def by_root(self, batch: int) -> Iterator[Source]:
        """Yield each tree that can have candidates, with these candidates in batches of at most this size."""
        roots: Iterable[int] = self.roots()
        # roots are drawn without replacement, so that each root comes once
        if self._rng is not None:
            found = list(roots)
            roots = self._rng.sample(found, len(found))
        # the size is set here and not in the constructor, because it depends on the limit and the strategy of
        # the caller
        self._searched.batch = batch
        uncounted = 0
        for root in roots:
            uncounted += 1
            if uncounted == _ROOTS:
                self.budget.spend(_ROOTS)
                uncounted = 0
            if source := self._source_at(root):
                yield source

    def choices_at(self, root: int) -> Iterator[AllocationCandidate | None]:
        """Yield each candidate anchored at a root when it is found, and None whenever the search rests."""
        self.budget.spend()
        source = self._source_at(root)
        if source is None:
            return
        may_repeat = self.may_repeat and not self._each_root
        provider_set, batches = source
        for batch in batches:
            if not batch:
                yield None
            for pattern in batch:
                found = AllocationCandidate(provider_set, pattern)
                if may_repeat:
                    home = self._home_of(found)
                    is_elsewhere = home not in (None, root) and (self._among is None or home in self._among)
                    if is_elsewhere or self.is_repeated(found):
                        continue
                yield found

    def _source_at(self, root: int) -> Source | None:
        """Return the candidates at the tree of a root; None if a quick check proves that there are none."""
        tree = self._trees[root]
        # in most clouds no provider shares with others: then the tree is its own provider set, and no
        # candidate is found twice
        if not self._sharing.providers:
            plan = self._plan_of(tree, NOT_SHARED, in_use=True)
            return None if plan is None else plan.pattern_batches(tree, tree.free, self._rng)
        # the free amounts are checked before the sharing providers are looked up, which takes longer than
        # this check
        if self._has_too_little(tree):
            return None
        sharing = self._sharing.with_tree(root)
        plan = self._plan_of(tree, sharing)
        # candidates of sharing providers alone are the same at each tree that these providers share with, so
        # one tree is enough
        if plan is None or (plan.only_shared and not self._each_root and self._was_alone(sharing.ids)):
            return None
        return plan.pattern_batches(_provider_set(tree, sharing), tree.free, self._rng)

    def _has_too_little(self, tree: HostTree) -> bool:
        """Return whether too little of an unshared class is free for one need or for all needs."""
        max_free = tree.max_free
        # the code is a loop, which takes less time than any() with a generator
        for name, amount in self._least:
            if max_free.get(name, -1) < amount:
                return True
        free, having = tree.free, tree.shape.having
        for name, asked in self._least_sums:
            if (
                max_free[name] < asked
                and sum([free[slot] for _, slot in having[name] if free[slot] > 0]) < asked
            ):
                return True
        return False

    def serves_tree(self, tree: HostTree, shared: Sequence[Provider]) -> bool:
        """Return whether the tree, with its sharing providers, has any candidate.

        The search remembers the results of equivalent trees, for as long as the snapshot does not change.
        """
        sharing = TreeSharing.of_providers(shared)
        plan = self._plan_of(tree, sharing)
        if plan is None:
            return False
        return any(plan.pattern_batches(_provider_set(tree, sharing), tree.free)[1])

    def unused_patterns(
        self, tree: HostTree, shared: Sequence[Provider], parts: tuple[int, ...] = ()
    ) -> UnusedPatterns:
        """Return the patterns of all candidates that a tree would have if no provider had any usage.

        With ``distinct_only``, equal devices form pools. All devices of a pool have the same number in
        ``parts``.
        """
        # the caller needs all patterns, so larger batches save rests and bookkeeping
        self._searched.batch = BATCH
        if shared:
            shared = [self._without_usage(each) for each in shared]
        plan = self._plan_of(tree, TreeSharing.of_providers(shared))
        if plan is None:
            return _NO_PATTERNS
        found = self._when_empty.get((plan, tree.kind, parts))
        if found is None:
            # the key has the class of the tree, because trees of one compiled request may differ in other
            # traits
            apart = tuple([at for at, traits in enumerate(tree.kind.traits) if never_pooled(traits)])
            key = plan, apart if self._searched.distinct_only else (), parts
            found = self._unused.get(key)
            if found is None:
                found = self._unused[key] = plan.unused_patterns(tree.when_empty(shared), parts)
            self._when_empty[plan, tree.kind, parts] = found
        return found

    def _without_usage(self, provider: Provider) -> Provider:
        """Return a copy of the sharing provider with no usage."""
        # the same object is kept if possible, because its id is a part of the keys of compiled requests
        if not provider.used:
            return provider
        if provider.id not in self._known_unused:
            self._known_unused[provider.id] = replace(provider, used={})
        return self._known_unused[provider.id]

    def _home_of(self, candidate: AllocationCandidate) -> int | None:
        """Return the root of the tree that contains all providers of a candidate.

        The result is None if the providers are in several trees, or if this root does not meet the conditions
        on roots. If there is such a root, the search finds the same candidate at that root, too.
        """
        members = candidate.provider_set.members
        home, *others = {members[at].root_id for at in candidate.pattern.positions}
        root = self._snapshot.providers[home]
        if others or not all(each.met_by(root, self._snapshot) for each in self._on_roots):
            return None
        return home

    def is_repeated(self, candidate: AllocationCandidate) -> bool:
        """Return whether the search has already found this candidate at an earlier root.

        Only a candidate that consists of sharing providers alone can be found at several roots. The method
        neither compares nor remembers other candidates.
        """
        sharing, members = self._sharing.providers, candidate.provider_set.members
        # a candidate with a provider that does not share is anchored only at the tree of this provider
        if not all(members[at].id in sharing for at in candidate.pattern.positions):
            return False
        key = _candidate_key(candidate)
        repeated = key in self._seen
        self._seen.add(key)
        return repeated

    def _was_alone(self, provider_ids: tuple[int, ...]) -> bool:
        """Return whether an earlier tree had a candidate of only these sharing providers; remember these."""
        repeated = provider_ids in self._alone
        self._alone.add(provider_ids)
        return repeated

    def _plan_of(self, tree: HostTree, sharing: TreeSharing, in_use: bool = False) -> CompiledRequest | None:
        """Return the compiled request of a tree; equivalent trees get the same object.

        :param in_use: also return None if a quick check shows that too little is free for any candidate.
        """
        # conditions on the root are checked here, so that trees with different roots can share one compiled
        # request
        if self._on_roots:
            root = tree.root
            seen = self._read_root(root)
            good = self._good_roots.get(seen)
            if good is None:
                good = all(each.met_by(root, self._snapshot) for each in self._on_roots)
                self._good_roots[seen] = good
            if not good:
                return None
        # there are two caches: the key of this cache takes one call for each tree, the key in _find_plan() is
        # exact
        read = self._read_tree(tree)
        key = (read, sharing.ids) if sharing.ids else read
        if key in self._plans:
            return self._plans[key]
        # this refusal is not cached, because another tree with this key may have more free
        if in_use and not sharing.ids and self._has_too_little(tree):
            return None
        plan = self._plans[key] = self._find_plan(tree, sharing)
        return plan

    def _find_plan(self, tree: HostTree, sharing: TreeSharing) -> CompiledRequest | None:
        """Compile the request for the trees with this tree's key; None if they cannot serve it."""
        self.budget.spend(1 + len(self._met_in) * len(tree.members) // 4)
        # the next two checks are skipped if providers share with the tree, because a sharing provider may
        # have the class or the trait
        if not sharing.ids and not self._classes <= tree.shape.classes:
            return None
        met = [met_at(tree) for met_at in self._met_in]
        if not sharing.ids and not all(map(any, met)):
            return None
        # the key is exact: trees that differ only in traits or aggregates that no condition uses share one
        # compiled request
        key = (tree.shape, sharing.ids, *met)
        if key not in self._distinct_plans:
            self._distinct_plans[key] = self._new_plan(tree, sharing, met)
        return self._distinct_plans[key]

    def _new_plan(
        self, tree: HostTree, sharing: TreeSharing, met: Sequence[Sequence[bool]]
    ) -> CompiledRequest | None:
        rules, ids = self._rules, sharing.ids
        serving: Sequence[Sequence[int]] = ()
        if ids:
            if ids not in self._serving:
                self._serving[ids] = rules.serving_needs(sharing.providers)
            serving = self._serving[ids]
        options = options_of(rules, tree, serving, met)
        if options is None:
            return None
        members = (*tree.members, *sharing.providers) if ids else tree.members
        traits = []
        for any_of in rules.unsuffixed_traits:
            positions = {at for index in rules.unsuffixed for at in options[index].all_positions()}
            # positions are sorted, because compiled requests with equal positions share results
            having = tuple([at for at in sorted(positions) if not members[at].traits.isdisjoint(any_of)])
            if not having:
                return None
            traits.append(having)
        return CompiledRequest(rules, tree, ids, options, tuple(traits), self._searched)


def _provider_set(tree: HostTree, sharing: TreeSharing) -> ProviderSet:
    return tree.beside_shared(sharing.providers, sharing.uuids) if sharing.ids else tree


def _need_size(need: ProviderNeed) -> int:
    """Return the approximate number of bytes that a need adds to each candidate in an answer."""
    amounts = sum([len(name) + 12 for name, _ in need.resources])
    # a uuid has 36 characters, and occurs in the allocations and in the mappings
    return len('"":{"resources":{}},"":[""],') + 2 * 36 + len(need.suffix) + amounts


def _candidate_key(candidate: AllocationCandidate) -> str:
    """Return a text that equal candidates have in common."""
    # the key is one object, because a search frees all keys at its end, while no other request can run: with
    # nested sets, this took 60 ms for 25,000 candidates
    taken = sorted(
        [
            (provider_id, name, amount)
            for provider_id, amounts in candidate.resources.items()
            for name, amount in amounts.items()
        ]
    )
    served = sorted([(suffix, *sorted({*ids})) for suffix, ids in candidate.mappings.items()])
    return f"{taken}{served}"


Strategy = Literal["depth-first", "breadth-first"]

NO_LIMIT: Final = -1


def find_candidates(
    snapshot: ModelSnapshot,
    request: CandidatesRequest,
    *,
    strategy: Strategy = "depth-first",
    max_candidates: int = NO_LIMIT,
    randomize: bool = False,
    budget: SearchBudget | None = None,
) -> list[Offer]:
    """Return each candidate of a request once; with ``depth-first``, those of one tree are adjacent.

    :param strategy: ``depth-first`` yields all candidates of a root before those of the next root.
        ``breadth-first`` yields one candidate of each root before a second candidate of any root. Candidates
        that differ only in equal providers and groups perhaps come after all other candidates of all roots.
    :param max_candidates: a maximum number of candidates, which applies in addition to the limit of the
        request.
    :param randomize: choose the candidates within the limit at random. The search yields one candidate of
        each root in turn. Roots, and candidates of one root, come in random order.
    :param budget: limits of the search. When the budget is spent (see :attr:`SearchBudget.ended`), the
        candidates found so far are returned.
    :raises InvalidRequest: the budget was spent before any candidate was found.
    """
    budget = budget or SearchBudget()
    limits = [limit for limit in (request.limit, max_candidates) if limit is not None and limit != NO_LIMIT]
    limit = min(limits, default=None)
    rng = random.Random() if randomize else None
    looking = CandidateSearch(snapshot, request, budget, rng=rng, options_only=True)
    # each batch has one candidate if roots take turns, or if repeated candidates have to be dropped one by
    # one
    in_turn = randomize or strategy == "breadth-first"
    by_root = looking.by_root(1 if in_turn or looking.may_repeat else min(BATCH, limit or BATCH))
    offers = round_robin(by_root) if in_turn else one_by_one(by_root)
    if looking.may_repeat:
        offers = _drop_repeated(offers, looking)
    if limit is not None:
        offers = limit_offers(offers, limit)
    # this iterator is the outermost one: if the budget is spent, it ends the answer, and all candidates found
    # so far are kept
    offers = _while_it_lasts(offers)
    chunk = looking.chunk_size()
    found = list(islice(offers, chunk))
    size = looking.added_size(found) if len(found) == chunk else 0
    # the size is checked only after a full chunk, because most answers are smaller
    while more := budget.allows_size(size) and list(islice(offers, chunk)):
        found += more
        size += looking.added_size(more)
    if budget.ended and not found:
        raise _too_much(request, budget)
    return found if in_turn else _host_by_host(found)


def unused_patterns(
    snapshot: ModelSnapshot, request: CandidatesRequest, budget: SearchBudget, *, pooled: bool = False
) -> Callable[[HostTree, Sequence[Provider], tuple[int, ...]], UnusedPatterns]:
    """Return a function that finds all patterns that a tree would have without any usage.

    Arguments of the function are the tree, its sharing providers, and a tuple with a number for each provider
    of the tree. All devices of a pool have the same number. An empty tuple means that no provider has a
    number.

    The function also ignores the usage of sharing providers. Trees get the same batch if their providers meet
    the same conditions, and their inventories have the same units (such as ``step_size``). The patterns of
    the batch are those of the largest of these trees, so a smaller tree may be too small for some of the
    patterns.

    :param pooled: whether equal devices form pools.
    """
    return CandidateSearch(snapshot, request, budget, distinct_only=pooled).unused_patterns


def _host_by_host(offers: list[Offer]) -> list[Offer]:
    """Group the batches of candidates by provider set, in the order of the first batch of each set."""
    by_set: dict[ProviderSet, list[Offer]] = {}
    for offer in offers:
        by_set.setdefault(offer[0], []).append(offer)
    # mostly each provider set has one batch
    return offers if len(by_set) == len(offers) else [*chain.from_iterable(by_set.values())]


def _while_it_lasts(offers: Iterable[Offer]) -> Iterator[Offer]:
    """Yield batches until the search has spent its budget."""
    with suppress(BudgetExhausted):
        yield from offers


def _too_much(request: CandidatesRequest, budget: SearchBudget) -> InvalidRequest:
    """Return the error for a spent budget; it names the group that most often found no provider."""
    advice = "."
    if budget.dead_ends:
        # a smaller request of this group is most likely to help
        suffix, count = max(budget.dead_ends.items(), key=itemgetter(1))
        asked = next(group.resources for group in request.groups if group.suffix == suffix)
        amounts = ",".join(f"{name}:{amount}" for name, amount in asked.items())
        advice = (
            f". In {count} ways to serve other groups there was no place left for "
            f"resources{suffix}={amounts}: ask for fewer groups, or for smaller amounts."
        )
    return InvalidRequest.too_long(
        "No allocation candidate was found", budget.seconds, "candidates_deadline", advice
    )


def _drop_repeated(offers: Iterable[Offer], found: CandidateSearch) -> Iterator[Offer]:
    """Yield the batches with one candidate each, if no other root has already yielded the candidate."""
    for provider_set, batch in offers:
        found.budget.spend()
        (pattern,) = batch
        if not found.is_repeated(AllocationCandidate(provider_set, pattern)):
            yield provider_set, batch
