"""Choices in the order of their scores, of as few hosts as that takes: branch and bound."""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import chain
from typing import Final

from placement.candidates.budget import SearchBudget
from placement.claims.scoring import ChoiceScorer, Found, Rank

MAX_SCORED: Final = 10_000
"""Of more choices for one that is wanted the others come last, in any order."""
_AT_ONCE: Final = 64
"""After so many choices of a host other hosts have their turn."""

Choices = Iterator[Found | None]
"""Those of a host; None where it takes long to find the next."""


def best_first(
    hosts: Iterator[tuple[Rank, int]],
    at: Callable[[int], Choices],
    scorer: ChoiceScorer,
    budget: SearchBudget,
) -> Iterator[Found]:
    """All choices, the best first; of those as good as each other the one that was found first.

    :param hosts: the roots of hosts with their ceilings, as the rank of the best choice that there may be,
        in order. Hosts are looked at while their ceiling is better than the best choice that is known.
    """
    known: list[tuple[Rank, int, Found]] = []
    begun: list[tuple[Rank, int, Choices]] = []
    scored = 0
    host = next(hosts, None)
    while scored < MAX_SCORED:
        if host is not None and (not known or host[0] < known[0][0]):
            (ceiling, root), host = host, next(hosts, None)
            choices = at(root)
        elif begun and (not known or begun[0][0] < known[0][0]):
            ceiling, root, choices = heappop(begun)
        elif known:
            yield heappop(known)[-1]
            continue
        else:
            return
        for count, found in enumerate(choices, start=1):
            if found is not None:
                budget.spend()
                rank = scorer.rank(found)
                heappush(known, (rank, scored, found))
                scored += 1
                if rank > ceiling and count < _AT_ONCE:
                    continue
            heappush(begun, (ceiling, root, choices))
            break
    while known:
        yield heappop(known)[-1]
    rest = (at(root) for _, root in chain(() if host is None else (host,), hosts))
    for choices in chain([choices for _, _, choices in begun], rest):
        yield from (found for found in choices if found is not None)
