"""Partitions the ways of a cache, and assigns exclusive ways to groups.

The partition divides a cache into the *pool*, which contains the ways for exclusive use, and the ways that
all groups share. If masks must not have holes, the pool is one run of adjacent ways. If a pool has enough
free ways for a request, masks can always be moved so that the request fits. A mask can be moved while its
guest runs.

A *block* is the exclusive mask of one group, a run of ways. If free ways are not adjacent, as few blocks as
possible are moved until enough free ways are adjacent. The method is a search (A*) over the positions of the
blocks. A *window* is a run of the wanted number of ways. The search estimates the remaining moves by the
smallest number of blocks in any window. A move takes at most one block out of a window, so the estimate never
exceeds the true number of moves, and the first solution is a shortest solution. A solution that pushes all
blocks aside always exists, so its number of moves is an upper bound for the search. After each step no two
exclusive masks overlap, and none is empty.
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
"""Maximum number of states that the search tries. It takes some tenths of a second. After this number of
states, the search pushes all blocks aside instead.
"""

# The first way of each block, in the order of the owners' names. The block of the owner that needs ways, if
# it has one, comes last.
_BlockPositions = tuple[int, ...]

BlockMove = tuple[str, WayMask]


def plan_moves(
    pool: WayMask, blocks: Mapping[str, WayMask], owner: str, own: WayMask, count: int
) -> tuple[BlockMove, ...]:
    """Plan moves of masks after which ``count`` adjacent ways are free or belong to the ``owner``.

    No move makes two masks overlap. The pool must have enough free ways.

    :param pool: the ways that can become exclusive, as one run.
    :param blocks: the blocks of all other owners, runs in the pool that do not overlap.
    :param owner: the name of the group that needs ways.
    :param own: the exclusive ways that the owner has now.
    """
    return _MoveSearch(pool, blocks, owner, own, count).find_shortest()


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
        # The owner's block can move like other blocks, but it does not have to leave the window.
        if own:
            self.names.append(owner)
            self.sizes.append(len(own))
            start.append(next(iter(own)))
        self.start: _BlockPositions = tuple(start)
        self.count = count

    def find_shortest(self) -> tuple[BlockMove, ...]:
        aside = self._push_aside()
        bound = len(aside)
        # The smallest number of moves with which each state was reached.
        seen = {self._canonical_state(self.start): 0}
        # States with equal estimates are ordered by a serial number, so that equal inputs give equal results.
        serial = itertools.count()
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
                # Among equal estimates, the state with the most moves so far comes first, because it is
                # nearest to a solution.
                if estimate < bound:
                    step = (self.names[index], WayMask.from_range(at, self.sizes[index]))
                    heapq.heappush(todo, (estimate, -cost, next(serial), after, (*path, step)))
        return aside

    def _in_the_way(self, state: _BlockPositions) -> int:
        """A lower bound of the remaining moves: the fewest blocks in any window of ``count`` ways."""
        windows = self.high - self.low - self.count + 1
        # This runs for each state of the search, so the blocks are counted in one pass, and not again for
        # each window. An entry is the number of blocks in a window minus the number in the window below it.
        changes = [0] * (windows + 1)
        # The owner's block comes last and does not count, so there are more sizes than positions
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
            # A block can overlap with its own old position, because the kernel replaces a mask by one write.
            obstacles = taken & ~(block << at)
            for to in range(self.low, self.high - size + 1):
                if to != at and not block << to & obstacles:
                    yield index, to

    def _canonical_state(self, state: _BlockPositions) -> tuple[tuple[int, int], ...]:
        """A key of a state, which is equal for states that differ only by an exchange of equal blocks.

        The owner's block counts as different from all other blocks.
        """
        pairs = list(zip(state, self.sizes, strict=True))
        return tuple(sorted(pairs[: self.others])) + tuple(pairs[self.others :])

    def _push_aside(self) -> tuple[BlockMove, ...]:
        """Move the blocks below the owner's block down, and those above it up.

        Afterwards all free ways are next to the owner's block.

        The block nearest to an end of the pool moves first, into free ways. If the owner has no block, all
        blocks move down.
        """
        own = self.start[self.others] if len(self.start) > self.others else self.high
        steps = []
        by_place = sorted(range(self.others), key=lambda index: self.start[index])
        edge = self.low
        # Blocks can have free ways between them, so each position is compared with the edge.
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
    """The partition of the ways of a cache.

    :ivar rules: the masks that the cache accepts.
    :ivar pool: the ways that can become exclusive to a group.
    :ivar locked: the ways that foreign groups have locked. All other ways are shared.
    """

    rules: MaskRules
    pool: WayMask
    locked: WayMask = NO_WAYS

    @property
    def shared_ways(self) -> WayMask:
        """The ways that are never exclusive."""
        return self.rules.all_ways - self.pool - self.locked

    def open_ways(self, exclusive: WayMask) -> WayMask:
        """The ways for groups without exclusive ways; ``exclusive`` are all ways that groups have alone."""
        return self.rules.widest_mask(self.rules.all_ways - self.locked - exclusive, around=self.shared_ways)


@dataclass(frozen=True, slots=True)
class MaskMove:
    """One change of a mask.

    :ivar before: the owner's ways before the change; empty if the owner had no exclusive ways.
    :ivar after: the owner's ways after the change.
    """

    owner: str
    before: WayMask
    after: WayMask


@dataclass(frozen=True, slots=True)
class WayAssignment:
    """The result of assigning exclusive ways.

    :ivar masks: the exclusive ways of each owner.
    :ivar moves: the changes of exclusive masks, in the order in which they are safe.
    :ivar refused: the reason for each owner that gets no ways.
    """

    masks: Mapping[str, WayMask] = field(default_factory=dict)
    moves: tuple[MaskMove, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


# Results are cached, because the search takes cubic time in the number of ways, and each resolution plans the
# same few caches.
@functools.lru_cache(maxsize=64)
def partition_ways(
    rules: MaskRules, shareable: WayMask, shared_ways: int, locked: WayMask = NO_WAYS
) -> WayPartition:
    """Partition a cache so that at least ``shared_ways`` ways stay shared, with the largest possible pool.

    At least ``min_bits`` adjacent ways stay shared, because each mask needs this number of ways. The pool can
    be empty.

    :param shareable: the ways that devices can also fill. Such ways never become exclusive to a group.
    :param locked: the ways that foreign groups have locked. Locked ways are neither in the pool nor shared.
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
            # Among equally large pools, the pool that leaves most shared ways adjacent is chosen, because a
            # mask can need a run.
            key = (count, longest, -first)
            if len(rest) >= keep and longest >= rules.min_bits and key > best_key:
                best, best_key = pool, key
    return WayPartition(rules, best, locked)


def assign_ways(
    partition: WayPartition, held: Mapping[str, WayMask], wanted: Mapping[str, int]
) -> WayAssignment:
    """Assign each owner its number of exclusive ways.

    An owner with the right number of ways keeps them, if other owners can get their ways without a move of
    this owner's mask. Ways of owners that are not in ``wanted`` become free. A mask that lies outside of the
    pool, or overlaps with another mask, is replaced. A request for which the free ways are too few is
    refused, and the ways of its owner become free, too.

    :param held: the exclusive masks that owners have now, the oldest first.
    :param wanted: the number of exclusive ways that each owner should have.
    """
    masks: dict[str, WayMask] = {}
    moves: list[MaskMove] = []
    # Owners that already have ways take precedence over new owners. Of the new owners, the one that wants
    # most ways comes first, because it is the hardest to place.
    order = [owner for owner in held if owner in wanted]
    order += sorted(wanted.keys() - held.keys(), key=lambda owner: (-wanted[owner], owner))
    left, served = len(partition.pool), []
    for owner in order:
        if partition.rules.min_bits <= wanted[owner] <= left:
            served.append(owner)
            left -= wanted[owner]
    # The reason names the ways that are left in the end: in the next call, the served owners come first, so
    # the reason stays the same.
    refused = {
        owner: _refusal_reason(partition, wanted[owner], left) for owner in order if owner not in served
    }
    for owner in served:
        mask = held.get(owner, NO_WAYS)
        if _is_valid_mask(partition, mask) and not any(mask & other for other in masks.values()):
            masks[owner] = mask
    # Masks that break a rule stay in effect until their owner has moved. Their ways are not free before that.
    misplaced = {owner: held[owner] for owner in served if owner in held and owner not in masks}
    for owner in served:  # Masks that shrink come first: they need no free ways, and free some.
        if owner in masks and len(masks[owner]) > wanted[owner]:
            after = _shrunk_mask(partition, masks, owner, wanted[owner])
            moves.append(MaskMove(owner, masks[owner], after))
            masks[owner] = after
    # The sort is stable: first the owners with misplaced masks, then the others in their order.
    for owner in sorted(served, key=lambda owner: owner not in misplaced):
        if len(masks.get(owner, NO_WAYS)) == wanted[owner]:
            continue
        before = misplaced.pop(owner, masks.get(owner, NO_WAYS))
        for move in _moves_for(partition, masks, misplaced, owner, wanted[owner]):
            # The search does not know the misplaced mask of the owner, which is still in effect in the
            # kernel.
            if move.owner == owner:
                move = MaskMove(owner, before, move.after)
            before = move.after if move.owner == owner else before
            moves.append(move)
            masks[move.owner] = move.after
    return WayAssignment(masks, tuple(moves), refused)


def _holes_allowed(rules: MaskRules) -> bool:
    # If min_bits is above 1, only masks of a single run are safe, because the kernel checks the lowest run.
    return rules.sparse and rules.min_bits <= 1


def _refusal_reason(partition: WayPartition, count: int, left: int) -> str:
    if count < partition.rules.min_bits:
        return f"{count} ways are fewer than the {partition.rules.min_bits} that a mask needs"
    return f"{count} exclusive ways do not fit: {left} of {len(partition.pool)} are left"


def _is_valid_mask(partition: WayPartition, mask: WayMask) -> bool:
    if not mask or not partition.pool.contains_mask(mask) or len(mask) < partition.rules.min_bits:
        return False
    return mask.is_contiguous or _holes_allowed(partition.rules)


def _shrunk_mask(partition: WayPartition, masks: Mapping[str, WayMask], owner: str, count: int) -> WayMask:
    """The part of a shrinking mask that remains: the lower or upper end, whichever leaves more open ways."""
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
    """The moves after which ``owner`` has ``count`` ways. The pool must have enough free ways."""
    others = {name: mask for name, mask in masks.items() if name != owner}
    own = masks.get(owner, NO_WAYS)
    taken = WayMask.union_of(others.values())
    # Misplaced masks are still in effect, so positions that avoid them are preferred.
    for avoided in (WayMask.union_of(misplaced.values()), NO_WAYS):
        place = _best_place(partition, partition.pool - taken - avoided, taken, own, count)
        if place is not None:
            return (MaskMove(owner, own, place),)
    if _holes_allowed(partition.rules):
        # If masks can have holes, any free ways can be used, and no other mask has to move.
        free = partition.pool - taken - own
        kept = WayMask.from_ways(list(own) + list(free)[: count - len(own)])
        return (MaskMove(owner, own, kept),)
    moves = []
    for name, after in plan_moves(partition.pool, others, owner, own, count):
        # The block of the owner itself is not in ``others``, so ``own`` is the default.
        moves.append(MaskMove(name, others.get(name, own), after))
        if name == owner:
            own = after
        else:
            others[name] = after
    taken = WayMask.union_of(others.values())
    place = _best_place(partition, partition.pool - taken, taken, own, count)
    # The assertion is only for the type checker: plan_moves() has joined enough free ways.
    assert place is not None
    return (*moves, MaskMove(owner, own, place))


def _best_place(
    partition: WayPartition, free: WayMask, taken: WayMask, own: WayMask, count: int
) -> WayMask | None:
    """The best run of ``count`` free ways; None if there is no such run.

    The best run has most ways of ``own``. Among equal runs, the run that leaves most open ways is chosen,
    then the run in the smallest gap, and then the lowest run.
    """
    best, best_key = None, (0, 0, 0, 0)
    for gap in free.split_runs():
        first = next(iter(gap))
        for start in range(first, first + len(gap) - count + 1):
            place = WayMask.from_range(start, count)
            left = len(partition.open_ways(taken | place))
            # Ways of ``own`` are preferred, because they still contain the owner's data. The smallest gap
            # that fits leaves large gaps for large requests.
            key = (len(place & own), left, -len(gap), -start)
            if best is None or key > best_key:
                best, best_key = place, key
    return best
