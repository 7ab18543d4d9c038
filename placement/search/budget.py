"""The budget of a search: limits of its time and size, and pauses in which other threads run.

Most searches take less than a millisecond, but a few take unlimited time: placing 24 groups on 8 devices is a
packing problem. A search counts its work in *steps* of a few microseconds each. From time to time the budget
checks the thread's CPU time, which does not include waiting. A function with a budget, and each method of an
object that was made with one, raises :class:`BudgetExhausted` when the budget is spent.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter, thread_time
from typing import Final, Literal, TypeVar

_STEPS: Final = 64
"""Number of steps between two checks of the clock."""
# most searches end earlier, and a switch to another thread would only delay them
_FIRST_SLICE: Final = 0.02
"""Seconds of work after which a search first lets other threads run."""
# a short request takes 1 to 2 ms itself, and should not wait much longer than that for a long request
_SLICE: Final = 0.002
"""Seconds of work between two pauses of a search; another thread of the process waits about this long."""

# a cheap lookup takes only a fraction of a step, so the clock is checked once for many items
_AT_ONCE: Final = 512
"""Number of items that a loop handles between two checks of the clock."""

Ended = Literal["deadline", "size"]
Item = TypeVar("Item")


class BudgetExhausted(Exception):
    """The search has used all the CPU time of its budget."""


class SearchBudget:
    """Limits of the time and the results of one search. Without arguments there are no limits.

    :param seconds: maximum CPU time of the search, in seconds.
    :param size: maximum size of the answer, in bytes.
    :param yield_lock: a function that is called regularly during long searches, to let other requests run. An
        exception of this function ends the search.
    :param first_slice: seconds of work before the first call of ``yield_lock``.
    """

    def __init__(
        self,
        seconds: float = math.inf,
        size: float = math.inf,
        yield_lock: Callable[[], None] = lambda: None,
        first_slice: float = _FIRST_SLICE,
    ) -> None:
        self.seconds = seconds
        self.size = size
        #: the limit that was reached; None if no limit was reached
        self.ended: Ended | None = None
        #: number of dead ends, by the suffix of the group that had no provider left to try
        self.dead_ends: dict[str, int] = {}
        self._steps_left = _STEPS
        self._yield_lock = yield_lock
        now = thread_time()
        self._end = now + seconds
        self._end_of_slice = now + first_slice
        # reading the CPU clock is a system call, and CPU time never passes faster than wall time. Before this
        # moment on the wall clock, the thread cannot have reached a limit of CPU time.
        self._not_before = perf_counter() + min(seconds, first_slice)

    def spend(self, steps: int = 1) -> None:
        """Count steps of work; too high a count only causes a check of the clock."""
        self._steps_left -= steps
        if self._steps_left <= 0:
            # the error is raised again in later calls, because the caller may go on with another generator of
            # this search
            if self.ended:
                raise BudgetExhausted
            if self._check_clock() >= self._end:
                self.ended, self._steps_left = "deadline", 0
                raise BudgetExhausted

    def spend_anyway(self, steps: int = 1) -> None:
        """Count steps on results already found, and let other threads run; a spent budget is no error."""
        self._steps_left -= steps
        if self._steps_left <= 0:
            self._check_clock()

    def allows_size(self, size: int) -> bool:
        """Return whether an answer of ``size`` bytes is allowed to grow."""
        if size > self.size:
            self.ended = "size"
        return self.ended is None

    def _check_clock(self) -> float:
        """Let other threads run at the end of a slice; return the thread's CPU time, 0 if it was not read."""
        now = 0.0
        if perf_counter() >= self._not_before:
            now = thread_time()
            if now >= self._end_of_slice:
                self._yield_lock()
                self._end_of_slice = now + _SLICE
            # the next check of the CPU clock is at least half a slice later, because reading the clock is a
            # system call
            left = min(self._end, self._end_of_slice) - now
            self._not_before = perf_counter() + max(left, _SLICE / 2)
        self._steps_left = _STEPS
        return now


def yielding_slices(items: Sequence[Item], budget: SearchBudget) -> Iterator[Sequence[Item]]:
    """Split items into slices, and let other threads run between two slices."""
    for begin in range(0, len(items), _AT_ONCE):
        budget.spend_anyway(_AT_ONCE)
        yield items[begin : begin + _AT_ONCE]
