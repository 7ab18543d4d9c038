"""``GET /allocation_candidates``: all candidates of a request, lazily.

Roots are tried one after another and each yields its candidates in small batches,
so that a limit bounds the work and not only the answer. A root at which nothing is found for
a while waits until the others had their turn.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Final, Literal

from placement.candidates.budget import BudgetExhausted, SearchBudget
from placement.candidates.looking import BATCH, CandidateSearch
from placement.candidates.pattern import AllocationCandidate, Offer, PatternBatch, candidates_of
from placement.candidates.request import CandidatesRequest
from placement.candidates.roots import RootFilter
from placement.candidates.sources import first, one_by_one, round_robin
from placement.exceptions import SEARCH_TOO_LONG, InvalidRequest
from placement.model.provider import Provider
from placement.model.snapshot import ModelSnapshot
from placement.model.trees import HostTree

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
    in_turn = randomize or strategy == "breadth-first"
    by_root = looking.by_root(1 if in_turn or looking.may_repeat else min(BATCH, limit or BATCH))
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


def _distinct(offers: Iterable[Offer], found: CandidateSearch) -> Iterator[Offer]:
    """Of offers of one candidate each, drop what was found before from another root."""
    seen: set[Hashable] = set()
    for offer in offers:
        found.budget.spend()
        if not found.is_repeated(offer, seen):
            yield offer
