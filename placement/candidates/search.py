"""``GET /allocation_candidates``: all candidates of a request, lazily.

Roots are tried one after another and each yields its candidates one by one, so
that a limit bounds the work and not only the answer.
"""

import random
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Final, Literal

from placement.candidates.needs import needs_of
from placement.candidates.pattern import Candidate
from placement.candidates.plan import Plan
from placement.candidates.request import CandidatesRequest
from placement.candidates.roots import Sharing, possible_roots
from placement.candidates.rules import Rules
from placement.model.trees import Place, Tree
from placement.model.world import Provider, World

Strategy = Literal["depth-first", "breadth-first"]

NO_LIMIT: Final = -1


def search(
    world: World,
    request: CandidatesRequest,
    *,
    strategy: Strategy = "depth-first",
    max_candidates: int = NO_LIMIT,
    randomize: bool = False,
) -> list[Candidate]:
    """The candidates of a request, no two alike.

    :param strategy: all candidates of one root before the next one's, or one
        candidate of every root before the second of any.
    :param max_candidates: an upper bound beside the limit of the request.
    :param randomize: pick at random which candidates are within the limit:
        roots in random order, round-robin, and the candidates of each root in
        random order.
    """
    limits = [limit for limit in (request.limit, max_candidates) if limit is not None and limit != NO_LIMIT]
    found = _Search(world, request, random.Random() if randomize else None)
    if randomize or strategy == "breadth-first":
        candidates = _round_robin(found.by_root())
    else:
        candidates = chain.from_iterable(found.by_root())
    if found.may_repeat:
        candidates = _distinct(candidates, found)
    return list(islice(candidates, min(limits, default=None)))


def _round_robin(sources: Iterator[Iterator[Candidate]]) -> Iterator[Candidate]:
    """One of each source, then a second of each, and so on; sources are opened as they are reached."""
    active: deque[Iterator[Candidate]] = deque()
    for source in sources:
        for candidate in islice(source, 1):
            active.append(source)
            yield candidate
    while active:
        source = active.popleft()
        for candidate in islice(source, 1):
            active.append(source)
            yield candidate


def _distinct(candidates: Iterator[Candidate], found: "_Search") -> Iterator[Candidate]:
    """Drop what was found before from another root: only candidates of sharing providers alone."""
    seen: set[Hashable] = set()
    for candidate in candidates:
        if found.is_shared(candidate):
            key = _key(candidate)
            if key in seen:
                continue
            seen.add(key)
        yield candidate


def _key(candidate: Candidate) -> Hashable:
    return (
        frozenset(
            (number, name, amount)
            for number, amounts in candidate.resources.items()
            for name, amount in amounts.items()
        ),
        frozenset((suffix, frozenset(numbers)) for suffix, numbers in candidate.mappings.items()),
    )


class _Search:
    """One request on its way through the trees of the world."""

    def __init__(self, world: World, request: CandidatesRequest, rng: random.Random | None) -> None:
        self._world = world
        self._request = request
        self._rng = rng
        self._needs = needs_of(request)
        self._sharing = Sharing(world)
        self._rules = Rules(world, request, self._needs)
        #: whether the same candidate may be found at two roots
        self.may_repeat = bool(self._sharing.providers)
        self._plans: dict[Hashable, Plan | None] = {}
        self._in_aggregates = any(need.member_of or need.forbidden_aggregates for need in self._needs)
        self._in_trees = any(need.in_tree is not None for need in self._needs)

    def by_root(self) -> Iterator[Iterator[Candidate]]:
        """For every tree that may serve the request the candidates anchored there."""
        roots = possible_roots(self._world, self._request, self._needs, self._sharing)
        if self._rng is not None:
            found = list(roots)
            roots = self._rng.sample(found, len(found))
        trees = self._world.whole_trees()
        for root in roots:
            tree = trees[root]
            shared = self._sharing.with_tree(root) if self.may_repeat else ()
            plan = self._plan(tree, shared)
            if plan is not None:
                place = self._place(tree, shared) if shared else tree
                patterns = (
                    plan.patterns(place, tree.free)
                    if self._rng is None
                    else plan.shuffled(place, tree.free, self._rng)
                )
                yield map(Candidate._make, zip(patterns, repeat(place)))

    def is_shared(self, candidate: Candidate) -> bool:
        """Whether the candidate consists of sharing providers alone, so that other roots have it too."""
        sharing = self._sharing.providers
        return all(number in sharing for numbers in candidate.mappings.values() for number in numbers)

    def _plan(self, tree: Tree, shared: Sequence[int]) -> Plan | None:
        """The plan for trees like this one, None if they cannot serve the request."""
        key: Hashable = tree.kind
        if shared or self._in_aggregates or self._in_trees:
            aggregates = tuple([each.aggregates for each in tree.members]) if self._in_aggregates else ()
            key = (tree.kind, tuple(shared), aggregates, self._in_trees and tree.root.id)
        if key in self._plans:
            return self._plans[key]
        plan = None
        if self._accepts(tree.root):
            made = Plan(self._rules, tree, [self._world.providers[number] for number in shared])
            plan = made if made.hopeful else None
        self._plans[key] = plan
        return plan

    def _place(self, tree: Tree, shared: Sequence[int]) -> Place:
        return Place((*tree.members, *[self._world.providers[number] for number in shared]))

    def _accepts(self, root: Provider) -> bool:
        return self._request.root_required <= root.traits and root.traits.isdisjoint(
            self._request.root_forbidden
        )
