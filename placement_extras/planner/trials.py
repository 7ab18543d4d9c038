"""Trials: changes that a search makes and undoes, and a limit on their number.

Every search of the planner looks for successive changes that lead to a wanted state. A search continues from
each change, and undoes the change if it leads nowhere. The number of combinations grows without bound. So a
search stops after some tries, and the answer has a bound instead.

    for way in journal.try_each(ways):
        take(way)
        journal.record_undo(give_back, way)
        if self._place_rest():
            return True     # the changes stay made
    return False            # each was undone before the next

Two searches elsewhere have no journal, and say why: ``placement.search.backtracking`` and
``placement.search.claims.placement``.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from placement.search.budget import SearchBudget

Option = TypeVar("Option")


class TriesExhausted(Exception):
    """A search has reached its limit of tries without a result."""


class TrialJournal:
    """The changes of one search, to be undone in reverse order.

    :param max_tries: the number of calls of :meth:`count_try`.
    """

    def __init__(self, budget: SearchBudget, max_tries: int) -> None:
        self._budget = budget
        self._tries_left = max_tries
        self._undoing: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def __len__(self) -> int:
        return len(self._undoing)

    def count_try(self) -> None:
        """Count one try.

        :raises TriesExhausted: the limit is already reached.
        :raises placement.search.budget.BudgetExhausted: the search takes too long.
        """
        self._tries_left -= 1
        self._budget.spend()
        if self._tries_left < 0:
            raise TriesExhausted

    def record_undo(self, undo: Callable[..., object], *arguments: object) -> None:
        """Record a change by the call that undoes it."""
        self._undoing.append((undo, arguments))

    def undo_changes(self, kept: int = 0) -> None:
        """Undo changes, the latest first, until ``kept`` are left."""
        while len(self._undoing) > kept:
            undo, arguments = self._undoing.pop()
            undo(*arguments)

    def try_each(self, options: Iterable[Option]) -> Iterator[Option]:
        """Yield the options one at a time; changes that were made for one are undone before the next.

        A caller that leaves the loop keeps the changes of its last option, as a closed generator does not
        continue after its ``yield``.
        """
        for option in options:
            kept = len(self._undoing)
            yield option
            self.undo_changes(kept)
