"""The journal of a search, which undoes the changes that the search has tried, and limits their number.

Every search of the planner looks for a series of changes (such as moves of guests) that leads to a wanted
state. The search makes a change and tries to reach the state with further changes. If this fails, the search
undoes the change. The number of combinations of changes can be huge. So a search stops after a number of
tries, and its answer then has bounds instead of an exact number.

    for way in journal.try_each(ways):
        take(way)
        journal.record_undo(give_back, way)
        if self._place_rest():
            return True     # the changes stay made
    return False            # each was undone before the next

Two searches of the core have no journal: ``placement.search.backtracking`` and
``placement.search.claims.placement``. The documentation of these modules has the reason.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from placement.search.budget import SearchBudget

Option = TypeVar("Option")


class TriesExhausted(Exception):
    """A search has reached its limit of tries before the result was known."""


class TrialJournal:
    """The changes that one search has made, which are undone in reverse order.

    :param max_tries: the maximum number of tries. The next call of :meth:`count_try` raises
        :class:`TriesExhausted`.
    """

    def __init__(self, budget: SearchBudget, max_tries: int) -> None:
        self._budget = budget
        self._tries_left = max_tries
        self._undoing: list[tuple[Callable[..., object], tuple[object, ...]]] = []

    def __len__(self) -> int:
        return len(self._undoing)

    def count_try(self) -> None:
        """Count one try.

        :raises TriesExhausted: the maximum number of tries was already reached.
        """
        self._tries_left -= 1
        self._budget.spend()
        if self._tries_left < 0:
            raise TriesExhausted

    def record_undo(self, undo: Callable[..., object], *arguments: object) -> None:
        """Record a change: the function that undoes the change, with the arguments of this function."""
        self._undoing.append((undo, arguments))

    def undo_changes(self, kept: int = 0) -> None:
        """Undo changes, the latest first, until only the first ``kept`` changes are left."""
        while len(self._undoing) > kept:
            undo, arguments = self._undoing.pop()
            undo(*arguments)

    def try_each(self, options: Iterable[Option]) -> Iterator[Option]:
        """Yield the options one at a time, and undo the changes for an option before the next option.

        If the caller leaves its loop over the options, the changes for the last option stay, because a closed
        generator does not continue after its ``yield``.
        """
        for option in options:
            kept = len(self._undoing)
            yield option
            self.undo_changes(kept)
