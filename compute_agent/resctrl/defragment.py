"""Make one run of free ways out of several, with the fewest rewritings of masks.

A search (A*) over where the blocks stand. What is left to do is estimated by the fewest blocks that stand in
any window of the wanted size: each move takes at most one out of it, so the estimate never exceeds the truth
and the first solution is a shortest one. Pushing the blocks aside always works and bounds the search.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Mapping
from typing import Final

from compute_agent.resctrl.masks import Mask

BUDGET: Final = 20_000
"""States looked at before the simple solution is taken: some tenths of a second."""

_State = tuple[int, ...]
"""Where the blocks start, in the order of their names; the owner's own block, if any, comes last."""

Step = tuple[str, Mask]


def plan_moves(pool: Mask, blocks: Mapping[str, Mask], owner: str, own: Mask, count: int) -> tuple[Step, ...]:
    """Moves (who, to where) after which ``count`` ways in a row are free but for the owner's ``own``.

    ``pool`` is one run; the blocks are runs in it that do not overlap. Each step is safe after those before
    it. There have to be enough free ways by number.
    """
    search = _Search(pool, blocks, owner, own, count)
    return search.shortest()


class _Search:
    def __init__(self, pool: Mask, blocks: Mapping[str, Mask], owner: str, own: Mask, count: int) -> None:
        self.low = next(iter(pool))
        self.high = self.low + len(pool)
        self.names = sorted(blocks)
        self.sizes = [len(blocks[name]) for name in self.names]
        self.others = len(self.names)
        start = [next(iter(blocks[name])) for name in self.names]
        if own:
            self.names.append(owner)
            self.sizes.append(len(own))
            start.append(next(iter(own)))
        self.start: _State = tuple(start)
        self.count = count

    def shortest(self) -> tuple[Step, ...]:
        aside = self._push_aside()
        bound = len(aside)
        seen = {self._alike(self.start): 0}
        serial = itertools.count()  # the older of equal ones first, so that the result is always the same
        todo: list[tuple[int, int, int, _State, tuple[Step, ...]]] = []
        heapq.heappush(todo, (self._in_the_way(self.start), 0, next(serial), self.start, ()))
        while todo and todo[0][0] < bound and len(seen) < BUDGET:
            _, _, _, state, path = heapq.heappop(todo)
            if self._in_the_way(state) == 0:
                return path
            cost = len(path) + 1
            for index, at in self._moves(state):
                after = (*state[:index], at, *state[index + 1 :])
                key = self._alike(after)
                if seen.get(key, bound) <= cost:
                    continue
                seen[key] = cost
                estimate = cost + self._in_the_way(after)
                if estimate < bound:
                    step = (self.names[index], Mask.run(at, self.sizes[index]))
                    heapq.heappush(todo, (estimate, -cost, next(serial), after, (*path, step)))
        return aside

    def _in_the_way(self, state: _State) -> int:
        """The fewest blocks of others in any window."""
        windows = self.high - self.low - self.count + 1
        changes = [0] * (windows + 1)  # how many more are in a window than in the one below
        for at, size in zip(state[: self.others], self.sizes, strict=False):
            changes[max(0, at - self.low - self.count + 1)] += 1
            changes[min(windows, at - self.low + size)] -= 1
        return min(itertools.accumulate(changes[:-1]))

    def _moves(self, state: _State) -> Iterator[tuple[int, int]]:
        taken = 0
        for at, size in zip(state, self.sizes, strict=True):
            taken |= (1 << size) - 1 << at
        for index, (at, size) in enumerate(zip(state, self.sizes, strict=True)):
            block = (1 << size) - 1
            obstacles = taken & ~(block << at)
            for to in range(self.low, self.high - size + 1):
                if to != at and not block << to & obstacles:
                    yield index, to

    def _alike(self, state: _State) -> tuple[tuple[int, int], ...]:
        """Blocks of one size stand for each other; the owner's own does not."""
        pairs = list(zip(state, self.sizes, strict=True))
        return tuple(sorted(pairs[: self.others])) + tuple(pairs[self.others :])

    def _push_aside(self) -> tuple[Step, ...]:
        """Blocks below the owner's go down, those above it up: all free ways meet around it.

        Nearest to the end first, so that each slides into free ways. Without own ways all go down.
        """
        own = self.start[self.others] if len(self.start) > self.others else self.high
        steps = []
        by_place = sorted(range(self.others), key=lambda index: self.start[index])
        edge = self.low
        for index in by_place:
            if self.start[index] < own:
                if self.start[index] != edge:
                    steps.append((self.names[index], Mask.run(edge, self.sizes[index])))
                edge += self.sizes[index]
        edge = self.high
        for index in reversed(by_place):
            if self.start[index] > own:
                edge -= self.sizes[index]
                if self.start[index] != edge:
                    steps.append((self.names[index], Mask.run(edge, self.sizes[index])))
        return tuple(steps)
