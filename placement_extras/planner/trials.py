"""Trials: changes that a search makes and takes back, and a limit of how many it tries.

Every search of the planner answers the same kind of question: whether some changes, one after the other, lead
to a state that is wanted. It goes on from each change, and takes it back if that leads nowhere. How many ways
there are grows without bound, so that after some tries a search gives up and a bound is answered instead.

    for way in journal.trying(ways):
        take(way)
        journal.record(give_back, way)
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
    """A search has tried as much as it may, and does not know."""


class TrialJournal:
    """The changes of one search, to be undone in reverse order.

    :param max_tries: how often :meth:`count_try` may be called.
    """

    def __init__(self, budget: SearchBudget, max_tries: int) -> None:
        self._budget = budget
        self._tries_left = max_tries
        self._undoing: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def __len__(self) -> int:
        return len(self._undoing)

    def count_try(self) -> None:
        """Count one try.

        :raises TriesExhausted: there were as many before as there may be.
        :raises placement.search.budget.BudgetExhausted: it takes too long.
        """
        self._tries_left -= 1
        self._budget.spend()
        if self._tries_left < 0:
            raise TriesExhausted

    def record(self, undo: Callable[..., object], *arguments: object) -> None:
        """Note a change that was made, by the call that undoes it."""
        self._undoing.append((undo, arguments))

    def undo_changes(self, kept: int = 0) -> None:
        """Undo changes, the last first, until as many are left."""
        while len(self._undoing) > kept:
            undo, arguments = self._undoing.pop()
            undo(*arguments)

    def trying(self, options: Iterable[Option]) -> Iterator[Option]:
        """The options, one by one; changes made for one are undone before the next.

        A caller that leaves the loop keeps the changes of its last option: a generator that is closed does
        not go on behind its ``yield``.
        """
        for option in options:
            kept = len(self._undoing)
            yield option
            self.undo_changes(kept)
