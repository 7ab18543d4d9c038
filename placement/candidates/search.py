"""``GET /allocation_candidates``: all candidates of a request, lazily.

Roots are tried one after another and each yields its candidates one by one, so
that a limit bounds the work and not only the answer.
"""

import random
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Set
from itertools import islice
from typing import Final, Literal

from placement.candidates.combine import Candidate, combine
from placement.candidates.memo import memo_of
from placement.candidates.needs import Need, needs_of
from placement.candidates.request import CandidatesRequest
from placement.candidates.roots import Sharing, possible_roots
from placement.candidates.rules import Rules
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
        candidates = (candidate for candidates in found.by_root() for candidate in candidates)
    if found.may_repeat:
        candidates = _distinct(candidates, found)
    return list(islice(candidates, min(limits, default=None)))


def _round_robin(sources: Iterator[Iterable[Candidate]]) -> Iterator[Candidate]:
    """One of each source, then a second of each, and so on; sources are opened as they are reached."""
    active: deque[Iterator[Candidate]] = deque()
    for source in map(iter, sources):
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
        #: of each need the ids of those that may serve it, as far as one index tells
        self._having = [_having(world, need) for need in self._needs]
        #: the needs, those first that the last trees could not serve
        self._hardest_first = list(range(len(self._needs)))
        #: whether the same candidate may be found at two roots
        self.may_repeat = bool(self._sharing.providers)
        self._memo = None if self.may_repeat or rng is not None else memo_of(world, request)
        self._sharing_serves: dict[tuple[int, int], bool] = {}
        self._only_shared: set[tuple[tuple[int, ...], ...]] = set()

    def by_root(self) -> Iterator[Iterable[Candidate]]:
        """For every tree that may serve the request the candidates anchored there."""
        roots = possible_roots(self._world, self._request, self._needs, self._sharing)
        if self._rng is not None:
            found = list(roots)
            roots = self._rng.sample(found, len(found))
        memo, revisions = self._memo, self._world.revisions
        if memo is None:
            yield from map(self._at, roots)
            return
        for root in roots:
            known = memo.get(root, revisions[root])
            yield memo.recording(root, revisions[root], self._at(root)) if known is None else known

    def _at(self, root: int) -> Iterator[Candidate]:
        """The candidates that are anchored at this root."""
        if self._accepts(self._world.providers[root]):
            options = self._options(root)
            if options is not None:
                yield from combine(self._rules, root, options, self._rng)

    def is_shared(self, candidate: Candidate) -> bool:
        """Whether the candidate consists of sharing providers alone, so that other roots have it too."""
        sharing = self._sharing.providers
        return all(number in sharing for numbers in candidate.mappings.values() for number in numbers)

    def _accepts(self, root: Provider) -> bool:
        return self._request.root_required <= root.traits and root.traits.isdisjoint(
            self._request.root_forbidden
        )

    def _options(self, root: int) -> list[list[Provider]] | None:
        """The providers that serve each need, or None if there is a need that none serves."""
        world = self._world
        members = world.trees[root]
        sharing = self._sharing.with_tree(root)
        options: list[list[Provider]] = [[] for _ in self._needs]
        own = False
        for rank, index in enumerate(self._hardest_first):
            need, having = self._needs[index], self._having[index]
            for number in sorted(members & having):
                if need.served_by(world.providers[number], world):
                    options[index].append(world.providers[number])
                    own = True
            for number in sorted(sharing & having):
                if self._shared_serves(index, number):
                    options[index].append(world.providers[number])
            if not options[index]:
                self._hardest_first.insert(0, self._hardest_first.pop(rank))
                return None
        if own:
            return options
        # nothing of this tree itself: the same sharing providers need be combined only once
        key = tuple(tuple(provider.id for provider in found) for found in options)
        if key in self._only_shared:
            return None
        self._only_shared.add(key)
        return options

    def _shared_serves(self, index: int, number: int) -> bool:
        """As :meth:`Need.served_by`, remembered, for many trees ask it of the same provider."""
        key = (index, number)
        serves = self._sharing_serves.get(key)
        if serves is None:
            serves = self._needs[index].served_by(self._world.providers[number], self._world)
            self._sharing_serves[key] = serves
        return serves


def _having(world: World, need: Need) -> Set[int]:
    """The smallest set in the indexes that holds all providers that serve the need."""
    sets: list[Set[int]] = [world.by_class.get(name, set()) for name, _ in need.resources]
    sets += [
        world.by_trait.get(trait, set()) for traits in need.required if len(traits) == 1 for trait in traits
    ]
    return min(sets, key=len, default=world.providers.keys())
