"""Partition the ways of a cache, and assign exclusive ways to groups.

The partition divides a cache into the *pool*, which has the ways for exclusive use, and ways that all groups
share. Where masks may have no holes, the pool is one run of ways. Then every request that fits by its
number can be made to fit by moving masks, since a mask can be rewritten while its guest runs.

Free ways that lie apart are joined by the fewest rewritings of masks. The method is a search (A*) over the
positions of the blocks. The estimate of the remaining moves is the smallest number of blocks in any window of
the wanted size. A move takes at most one block out of a window, so the estimate never exceeds the truth, and
the first solution is a shortest one. Pushing all blocks aside always works; its length bounds the search.
After each step no two exclusive masks overlap, and none is empty.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.resctrl.schemata import MaskRules, WayMask

NO_WAYS: Final = WayMask()

MAX_STATES: Final = 20_000
"""States tried before all blocks are pushed aside instead. This number takes some tenths of a second."""

# The first way of each block, in the order of their names. The owner's block, if any, comes last.
_BlockPositions = tuple[int, ...]

BlockMove = tuple[str, WayMask]


def plan_moves(
    pool: WayMask, blocks: Mapping[str, WayMask], owner: str, own: WayMask, count: int
) -> tuple[BlockMove, ...]:
    """Moves after which ``count`` ways in a row are free or among the owner's ``own``.

    Each move is safe after those before it. There must be enough free ways by number.

    :param pool: one run of ways.
    :param blocks: runs in the pool that do not overlap, by owner.
    """
    search = _MoveSearch(pool, blocks, owner, own, count)
    return search.find_shortest()


class _MoveSearch:
    def __init__(
        self, pool: WayMask, blocks: Mapping[str, WayMask], owner: str, own: WayMask, count: int
    ) -> None:
        self.low = next(iter(pool))
        self.high = self.low + len(pool)
        self.names = sorted(blocks)
        self.sizes = [len(blocks[name]) for name in self.names]
        self.others = len(self.names)
        start = [next(iter(blocks[name])) for name in self.names]
        # The owner's block moves as the others do, but a window may contain it.
        if own:
            self.names.append(owner)
            self.sizes.append(len(own))
            start.append(next(iter(own)))
        self.start: _BlockPositions = tuple(start)
        self.count = count

    def find_shortest(self) -> tuple[BlockMove, ...]:
        aside = self._push_aside()
        bound = len(aside)
        seen = {self._canonical_state(self.start): 0}  # the smallest cost at which each state was reached
        serial = itertools.count()  # breaks ties by age, so that equal inputs give equal results
        todo: list[tuple[int, int, int, _BlockPositions, tuple[BlockMove, ...]]] = []
        heapq.heappush(todo, (self._in_the_way(self.start), 0, next(serial), self.start, ()))
        while todo and todo[0][0] < bound and len(seen) < MAX_STATES:
            _, _, _, state, path = heapq.heappop(todo)
            if self._in_the_way(state) == 0:
                return path
            cost = len(path) + 1
            for index, at in self._possible_moves(state):
                after = (*state[:index], at, *state[index + 1 :])
                key = self._canonical_state(after)
                if seen.get(key, bound) <= cost:
                    continue
                seen[key] = cost
                estimate = cost + self._in_the_way(after)
                # -cost prefers the deepest of equal estimates: it is the nearest to a solution.
                if estimate < bound:
                    step = (self.names[index], WayMask.from_range(at, self.sizes[index]))
                    heapq.heappush(todo, (estimate, -cost, next(serial), after, (*path, step)))
        return aside

    def _in_the_way(self, state: _BlockPositions) -> int:
        """The smallest number of blocks in any window of ``count`` ways: the estimate of moves left."""
        windows = self.high - self.low - self.count + 1
        # One pass over the blocks instead of one over each window: this runs for every state.
        changes = [0] * (windows + 1)  # blocks in a window less those in the window below it
        # The owner's block is the last one and does not count, so there are more sizes than positions
        # (strict=False).
        for at, size in zip(state[: self.others], self.sizes, strict=False):
            changes[max(0, at - self.low - self.count + 1)] += 1
            changes[min(windows, at - self.low + size)] -= 1
        return min(itertools.accumulate(changes[:-1]))

    def _possible_moves(self, state: _BlockPositions) -> Iterator[tuple[int, int]]:
        taken = 0
        for at, size in zip(state, self.sizes, strict=True):
            taken |= (1 << size) - 1 << at
        for index, (at, size) in enumerate(zip(state, self.sizes, strict=True)):
            block = (1 << size) - 1
            # A block may overlap with its own old place: the kernel replaces a mask by one write.
            obstacles = taken & ~(block << at)
            for to in range(self.low, self.high - size + 1):
                if to != at and not block << to & obstacles:
                    yield index, to

    def _canonical_state(self, state: _BlockPositions) -> tuple[tuple[int, int], ...]:
        """The state with blocks of equal size interchangeable, except for the owner's."""
        pairs = list(zip(state, self.sizes, strict=True))
        return tuple(sorted(pairs[: self.others])) + tuple(pairs[self.others :])

    def _push_aside(self) -> tuple[BlockMove, ...]:
        """Move blocks below the owner's down, and blocks above it up, so that all free ways meet around it.

        The block nearest to an end goes first and slides into free ways. Without a block of the owner, all
        blocks go down.
        """
        own = self.start[self.others] if len(self.start) > self.others else self.high
        steps = []
        by_place = sorted(range(self.others), key=lambda index: self.start[index])
        edge = self.low
        # Blocks may have free ways between them, so each is compared with the edge and not just counted.
        for index in by_place:
            if self.start[index] < own:
                if self.start[index] != edge:
                    steps.append((self.names[index], WayMask.from_range(edge, self.sizes[index])))
                edge += self.sizes[index]
        edge = self.high
        for index in reversed(by_place):
            if self.start[index] > own:
                edge -= self.sizes[index]
                if self.start[index] != edge:
                    steps.append((self.names[index], WayMask.from_range(edge, self.sizes[index])))
        return tuple(steps)


@dataclass(frozen=True, slots=True)
class WayPartition:
    """The ways of a cache.

    :ivar pool: ways for exclusive use.
    :ivar locked: ways that foreign groups keep for themselves. All others are shared.
    """

    rules: MaskRules
    pool: WayMask
    locked: WayMask = NO_WAYS

    @property
    def shared_ways(self) -> WayMask:
        """The ways that are never exclusive."""
        return self.rules.all_ways - self.pool - self.locked

    def open_ways(self, exclusive: WayMask) -> WayMask:
        """The mask of all other groups while ``exclusive`` ways are assigned."""
        return self.rules.widest_mask(self.rules.all_ways - self.locked - exclusive, around=self.shared_ways)


@dataclass(frozen=True, slots=True)
class MaskMove:
    """One rewriting of a mask. ``before`` is empty where the owner had no exclusive ways."""

    owner: str
    before: WayMask
    after: WayMask


@dataclass(frozen=True, slots=True)
class WayAssignment:
    """Exclusive masks by owner, the moves in their order, and the reasons of refused owners."""

    masks: Mapping[str, WayMask] = field(default_factory=dict)
    moves: tuple[MaskMove, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


# The search is cubic in the number of ways, and each resolution asks for the same few caches.
@functools.lru_cache(maxsize=64)
def partition_ways(
    rules: MaskRules, shareable: WayMask, shared_ways: int, locked: WayMask = NO_WAYS
) -> WayPartition:
    """Partition a cache so that at least ``shared_ways`` stay shared. The pool is as large as possible.

    At least ``min_bits`` ways in a row stay shared, since a mask needs as many. The pool may be empty.

    :param shareable: ways that devices fill, too. Such ways are never exclusive.
    :param locked: ways of foreign groups. Locked ways are neither in the pool nor shared.
    """
    usable = rules.all_ways - locked
    spare = usable - shareable
    keep = max(shared_ways, rules.min_bits)
    if _holes_allowed(rules):
        # The lowest ways are for exclusive use, as in partitions without holes.
        surplus = len(usable) - max(keep, len(usable & shareable))
        return WayPartition(rules, WayMask.from_ways(list(spare)[: max(0, surplus)]), locked)
    best, best_key = NO_WAYS, (0, 0, 0)
    for first in spare:
        for count in range(1, len(spare) + 1):
            pool = WayMask.from_range(first, count)
            if not spare.contains_mask(pool):
                break
            rest = usable - pool
            longest = max((len(run) for run in rest.split_runs()), default=0)
            # Of equally large pools, the one that leaves the shared ways together: a mask may need a run.
            key = (count, longest, -first)
            if len(rest) >= keep and longest >= rules.min_bits and key > best_key:
                best, best_key = pool, key
    return WayPartition(rules, best, locked)


def assign_ways(
    partition: WayPartition, held: Mapping[str, WayMask], wanted: Mapping[str, int]
) -> WayAssignment:
    """Assign each owner its number of ways.

    An owner with the right number keeps its ways, unless another owner cannot be served otherwise. The ways
    of owners that are not in ``wanted`` are free. A held mask that breaks the rules (outside of the pool, or
    overlapping) is replaced. A request that does not fit is refused, and the ways of its owner are free, too.

    :param held: the masks in force, the oldest first.
    :param wanted: the number of ways by owner.
    """
    masks: dict[str, WayMask] = {}
    moves: list[MaskMove] = []
    refused: dict[str, str] = {}
    # Running guests take precedence over new ones. Of these the largest comes first: it is hardest to place.
    order = [owner for owner in held if owner in wanted]
    order += sorted(wanted.keys() - held.keys(), key=lambda owner: (-wanted[owner], owner))
    left = len(partition.pool)
    for owner in order:
        reason = _refusal_reason(partition, wanted[owner], left)
        if reason:
            refused[owner] = reason
        else:
            left -= wanted[owner]
    served = [owner for owner in order if owner not in refused]
    for owner in served:
        mask = held.get(owner, NO_WAYS)
        if _is_valid_mask(partition, mask) and not any(mask & other for other in masks.values()):
            masks[owner] = mask
    # Masks that break a rule stay in force until their owner has moved, so they are in the way until then.
    misplaced = {owner: held[owner] for owner in served if owner in held and owner not in masks}
    for owner in served:  # shrinking frees ways and needs none
        if owner in masks and len(masks[owner]) > wanted[owner]:
            after = _shrunk_mask(partition, masks, owner, wanted[owner])
            moves.append(MaskMove(owner, masks[owner], after))
            masks[owner] = after
    # The sort is stable: misplaced owners first, then the order of service.
    for owner in sorted(served, key=lambda owner: owner not in misplaced):
        if len(masks.get(owner, NO_WAYS)) == wanted[owner]:
            continue
        before = misplaced.pop(owner, masks.get(owner, NO_WAYS))
        for move in _moves_for(partition, masks, misplaced, owner, wanted[owner]):
            if move.owner == owner:  # the search knows no misplaced mask, but the kernel has it
                move = MaskMove(owner, before, move.after)
            before = move.after if move.owner == owner else before
            moves.append(move)
            masks[move.owner] = move.after
    return WayAssignment(masks, tuple(moves), refused)


def _holes_allowed(rules: MaskRules) -> bool:
    # With a minimum above 1 the kernel checks the length of the lowest run, so only whole runs are safe.
    return rules.sparse and rules.min_bits <= 1


def _refusal_reason(partition: WayPartition, count: int, left: int) -> str | None:
    if count < partition.rules.min_bits:
        return f"{count} ways are fewer than the {partition.rules.min_bits} that a mask needs"
    if count > left:
        return f"{count} exclusive ways do not fit: {left} of {len(partition.pool)} are left"
    return None


def _is_valid_mask(partition: WayPartition, mask: WayMask) -> bool:
    if not mask or not partition.pool.contains_mask(mask) or len(mask) < partition.rules.min_bits:
        return False
    return mask.is_contiguous or _holes_allowed(partition.rules)


def _shrunk_mask(partition: WayPartition, masks: Mapping[str, WayMask], owner: str, count: int) -> WayMask:
    """The part of a mask to keep: the end that leaves most to all others."""
    mask = masks[owner]
    others = WayMask.union_of(other for name, other in masks.items() if name != owner)
    if not mask.is_contiguous:
        return WayMask.from_ways(list(mask)[:count])
    first = next(iter(mask))
    ends = (WayMask.from_range(first, count), WayMask.from_range(first + len(mask) - count, count))
    return max(ends, key=lambda end: len(partition.open_ways(others | end)))


def _moves_for(
    partition: WayPartition,
    masks: Mapping[str, WayMask],
    misplaced: Mapping[str, WayMask],
    owner: str,
    count: int,
) -> tuple[MaskMove, ...]:
    """The moves after which ``owner`` has ``count`` ways. There is room by number."""
    others = {name: mask for name, mask in masks.items() if name != owner}
    own = masks.get(owner, NO_WAYS)
    taken = WayMask.union_of(others.values())
    # Misplaced masks are still in force, so places beside them are preferred.
    for avoided in (WayMask.union_of(misplaced.values()), NO_WAYS):
        place = _best_place(partition, partition.pool - taken - avoided, taken, own, count)
        if place is not None:
            return (MaskMove(owner, own, place),)
    if _holes_allowed(partition.rules):
        # Where masks may have holes any free ways will do, and nothing has to move.
        free = partition.pool - taken - own
        kept = WayMask.from_ways(list(own) + list(free)[: count - len(own)])
        return (MaskMove(owner, own, kept),)
    moves = []
    for name, after in plan_moves(partition.pool, others, owner, own, count):
        # The owner's block is not among the others.
        moves.append(MaskMove(name, others.get(name, own), after))
        if name == owner:
            own = after
        else:
            others[name] = after
    taken = WayMask.union_of(others.values())
    place = _best_place(partition, partition.pool - taken, taken, own, count)
    # For the type checker: plan_moves has joined enough free ways.
    assert place is not None
    return (*moves, MaskMove(owner, own, place))


def _best_place(
    partition: WayPartition, free: WayMask, taken: WayMask, own: WayMask, count: int
) -> WayMask | None:
    """The run in ``free`` that keeps most of ``own``, leaves most to all others, and fits a gap best."""
    best, best_key = None, (0, 0, 0, 0)
    for gap in free.split_runs():
        first = next(iter(gap))
        for start in range(first, first + len(gap) - count + 1):
            place = WayMask.from_range(start, count)
            left = len(partition.open_ways(taken | place))
            # Kept ways stay warm; the smallest gap that fits leaves large ones for large requests.
            key = (len(place & own), left, -len(gap), -start)
            if best is None or key > best_key:
                best, best_key = place, key
    return best
