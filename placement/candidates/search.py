"""``GET /allocation_candidates``: all candidates of a request, lazily.

Roots are tried one after another and each yields its candidates in small batches,
so that a limit bounds the work and not only the answer.
"""

import random
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Final, Literal

from placement.candidates.needs import needs_of
from placement.candidates.pattern import Candidate, Offer, candidates_of
from placement.candidates.plan import Plan
from placement.candidates.request import CandidatesRequest
from placement.candidates.roots import Sharing, possible_roots
from placement.candidates.rules import Rules
from placement.model.trees import Place, Tree
from placement.model.world import Provider, World

Strategy = Literal["depth-first", "breadth-first"]

NO_LIMIT: Final = -1
#: How many candidates of one tree are looked for at once, where the limit allows.
_BATCH: Final = 16


def search(
    world: World,
    request: CandidatesRequest,
    *,
    strategy: Strategy = "depth-first",
    max_candidates: int = NO_LIMIT,
    randomize: bool = False,
) -> list[Offer]:
    """The candidates of a request, no two alike; those of one place that follow one another together.

    :param strategy: all candidates of one root before the next one's, or one
        candidate of every root before the second of any.
    :param max_candidates: an upper bound beside the limit of the request.
    :param randomize: pick at random which candidates are within the limit:
        roots in random order, round-robin, and the candidates of each root in
        random order.
    """
    limits = [limit for limit in (request.limit, max_candidates) if limit is not None and limit != NO_LIMIT]
    limit = min(limits, default=None)
    found = _Search(world, request, random.Random() if randomize else None)
    in_turn = randomize or strategy == "breadth-first"
    batch = 1 if in_turn or found.may_repeat else min(_BATCH, limit or _BATCH)
    by_root = found.by_root(batch)
    offers = _round_robin(by_root) if in_turn else chain.from_iterable(by_root)
    if found.may_repeat:
        offers = _distinct(offers, found)
    return list(offers) if limit is None else list(_first(offers, limit))


def _round_robin(sources: Iterator[Iterator[Offer]]) -> Iterator[Offer]:
    """One of each source, then a second of each, and so on; sources are opened as they are reached."""
    active: deque[Iterator[Offer]] = deque()
    for source in sources:
        for offer in islice(source, 1):
            active.append(source)
            yield offer
    while active:
        source = active.popleft()
        for offer in islice(source, 1):
            active.append(source)
            yield offer


def _first(offers: Iterable[Offer], limit: int) -> Iterator[Offer]:
    """As many of the offers as have that many candidates together."""
    if limit < 1:
        return
    for place, patterns in offers:
        yield place, patterns[:limit]
        limit -= len(patterns)
        if limit <= 0:
            return


def _distinct(offers: Iterable[Offer], found: "_Search") -> Iterator[Offer]:
    """Of offers of one candidate each, drop what was found before from another root.

    These are only candidates of sharing providers alone.
    """
    seen: set[Hashable] = set()
    for offer in offers:
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
        self._classes = {name for need in self._needs for name, _ in need.resources}
        self._any_traits = [any_trait for group in request.groups for any_trait in group.required]
        self._forbidden = frozenset[str]().union(*(group.forbidden for group in request.groups))
        self._aggregates = frozenset[str]().union(
            *(names for group in request.groups for names in (*group.member_of, group.forbidden_aggregates))
        )
        self._in_trees = any(need.in_tree is not None for need in self._needs)
        #: whether the same candidate may be found at two roots
        self.may_repeat = bool(self._sharing.providers)
        #: by what is quickly told of a tree, and by what of that matters
        self._plans: dict[Hashable, Plan | None] = {}
        self._distinct_plans: dict[Hashable, Plan | None] = {}
        #: sharing providers that served for a tree without any help of its own
        self._alone: set[tuple[int, ...]] = set()

    def by_root(self, batch: int) -> Iterator[Iterator[Offer]]:
        """For every tree that may serve the request the candidates anchored there, so many at once."""
        roots: Iterable[int] = possible_roots(self._world, self._request, self._needs, self._sharing)
        if self._rng is not None:
            found = list(roots)
            roots = self._rng.sample(found, len(found))
        trees, plans = self._world.whole_trees(), self._plans
        shared: Sequence[Provider] = ()
        kind_tells_all = not self._aggregates and not self._in_trees
        for root in roots:
            tree = trees[root]
            if self.may_repeat:
                shared = self._sharing.with_tree(root)
            key = tree.kind if kind_tells_all and not shared else self._key(tree, shared)
            try:
                plan = plans[key]
            except KeyError:
                plan = plans[key] = self._plan(tree, shared, batch)
            if plan is not None and not (plan.only_shared and self._is_repeated(shared)):
                place = Place((*tree.members, *shared)) if shared else tree
                yield zip(repeat(place), plan.batches(place, tree.free, self._rng))

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
        numbers = tuple([each.id for each in shared])
        repeated = numbers in self._alone
        self._alone.add(numbers)
        return repeated

    def _key(self, tree: Tree, shared: Iterable[Provider]) -> Hashable:
        """What trees have in common that have a plan in common, and more."""
        numbers = tuple([each.id for each in shared])
        return tree.kind, tree.aggregates, numbers, self._in_trees and tree.root.id

    def _plan(self, tree: Tree, shared: Sequence[Provider], batch: int) -> Plan | None:
        """The plan for trees like this one, None if they cannot serve the request."""
        root, kind = tree.root.traits, tree.kind
        if not self._request.root_required <= root or not root.isdisjoint(self._request.root_forbidden):
            return None
        if not shared and not self._classes <= kind.shape.classes:
            return None
        if not shared and any(map(kind.traits.isdisjoint, self._any_traits)):
            return None
        key = (
            kind.shape,
            *[self._forbidden & each.traits for each in tree.members],
            *[
                tuple([each.traits.isdisjoint(any_of) for each in tree.members])
                for any_of in self._any_traits
            ],
            *[self._aggregates & each.aggregates for each in tree.members],
            tuple([each.id for each in shared]),
            self._in_trees and tree.root.id,
        )
        if key not in self._distinct_plans:
            plan = Plan(self._rules, tree, shared, batch)
            self._distinct_plans[key] = plan if plan.hopeful else None
        return self._distinct_plans[key]
