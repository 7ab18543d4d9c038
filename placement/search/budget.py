"""How much one search may cost, and when it lets others go on.

Most questions are answered within a millisecond, and a few grow without bound: how to put
24 groups on 8 devices is a packing problem. So whatever a search does is counted, in
*steps* of a few microseconds each, and every now and then the clock is looked at: the CPU
time of the thread, as waiting for others is no work.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter, thread_time
from typing import Final, Literal, TypeVar

_STEPS: Final = 64
"""How many there are between two looks at the clock."""
_FIRST_SLICE: Final = 0.02
"""Seconds of work before a search gives way for the first time: few ever do."""
_SLICE: Final = 0.002
"""Seconds between two such moments; others in the process wait for about as long."""

_AT_ONCE: Final = 512
"""So many of what is only looked up or shown are dealt with between two looks at the clock."""

Ended = Literal["deadline", "size"]
Item = TypeVar("Item")


class BudgetExhausted(Exception):
    """There is nothing left of the budget."""


class SearchBudget:
    """Limits of one search; without arguments there are none.

    :param seconds: of work.
    :param size: of what is found, in bytes of the answer.
    :param give_way: called again and again during long searches. What it raises ends the search.
    :param first_slice: seconds of work before it is called for the first time.
    """

    def __init__(
        self,
        seconds: float = math.inf,
        size: float = math.inf,
        give_way: Callable[[], None] = lambda: None,
        first_slice: float = _FIRST_SLICE,
    ) -> None:
        self.seconds = seconds
        self.size = size
        #: what it was that ran out
        self.ended: Ended | None = None
        #: the groups, by suffix, that had no place beside others: how often
        self.dead_ends: dict[str, int] = {}
        self._steps_left = _STEPS
        self._give_way = give_way
        now = thread_time()
        self._end = now + seconds
        self._end_of_slice = now + first_slice
        #: by the clock, which costs less to look at: no more work can be done than time passes
        self._not_before = perf_counter() + min(seconds, first_slice)

    def spend(self, steps: int = 1) -> None:
        """Count so many steps. They may be counted generously: a look at the clock costs little.

        :raises Exhausted: they were the last.
        """
        self._steps_left -= steps
        if self._steps_left <= 0:
            if self.ended:
                raise BudgetExhausted
            if self._look() >= self._end:
                self.ended, self._steps_left = "deadline", 0
                raise BudgetExhausted

    def spend_anyway(self, steps: int = 1) -> None:
        """Count steps of work on results that were found: it gives way, and never ends."""
        self._steps_left -= steps
        if self._steps_left <= 0:
            self._look()

    def allows(self, size: int) -> bool:
        """Whether the answer, with so many bytes, may become longer."""
        if size > self.size:
            self.ended = "size"
        return self.ended is None

    def _look(self) -> float:
        """Give way if it is time; what the clock of the thread shows, if it has been looked at."""
        now = 0.0
        if perf_counter() >= self._not_before:
            now = thread_time()
            if now >= self._end_of_slice:
                self._give_way()
                self._end_of_slice = now + _SLICE
            # where others work, too, much less work is done than time passes
            left = min(self._end, self._end_of_slice) - now
            self._not_before = perf_counter() + max(left, _SLICE / 2)
        self._steps_left = _STEPS
        return now


def slices(items: Sequence[Item], budget: SearchBudget) -> Iterator[Sequence[Item]]:
    """All of them, some at a time; between two times others may have their turn."""
    for begin in range(0, len(items), _AT_ONCE):
        budget.spend_anyway(_AT_ONCE)
        yield items[begin : begin + _AT_ONCE]
