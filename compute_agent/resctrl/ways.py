"""Which ways of one cache a guest has for itself.

A cache is divided once: the *pool*, from which exclusive ways are given, and the rest, which stays with
everybody else. Where masks may not have holes the pool is one run of ways, so that whatever fits by its
number can be made to fit by moving: a mask can be rewritten while its guest runs. The fewest moves are looked
for, in an order in which no two exclusive masks overlap and none is ever empty.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.resctrl.defragment import plan_moves
from compute_agent.resctrl.masks import Mask, MaskRules

NOTHING: Final = Mask()


@dataclass(frozen=True, slots=True)
class Division:
    """How the ways of a cache are divided.

    ``pool``: to be given away; ``locked``: kept by groups of others.
    """

    rules: MaskRules
    pool: Mask
    locked: Mask = NOTHING

    @property
    def shared(self) -> Mask:
        """The ways that are never given away."""
        return self.rules.all_ways - self.pool - self.locked

    def open_ways(self, exclusive: Mask) -> Mask:
        """What everybody else may fill when ``exclusive`` is given away; a mask that the kernel takes."""
        return self.rules.widest(self.rules.all_ways - self.locked - exclusive, around=self.shared)


@dataclass(frozen=True, slots=True)
class Move:
    """One rewriting of a mask. ``before`` is empty for one who had no exclusive ways."""

    owner: str
    before: Mask
    after: Mask


@dataclass(frozen=True, slots=True)
class WayAssignment:
    """Exclusive masks by owner, the moves that lead there in their order, and who gets none and why."""

    masks: Mapping[str, Mask] = field(default_factory=dict)
    moves: tuple[Move, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


@functools.lru_cache(maxsize=64)
def divide(rules: MaskRules, shareable: Mask, shared_ways: int, locked: Mask = NOTHING) -> Division:
    """Divide a cache so that ``shared_ways`` or a few more are kept for everybody else.

    Kept are at least ``min_bits`` ways in a row, and the ``shareable`` ones that devices fill. ``locked``
    ways belong to nobody here. The pool is as large as it can be, and may be empty.
    """
    usable = rules.all_ways - locked
    spare = usable - shareable
    keep = max(shared_ways, rules.min_bits)
    if _holes_allowed(rules):
        surplus = len(usable) - max(keep, len(usable & shareable))
        return Division(rules, Mask.of(list(spare)[: max(0, surplus)]), locked)
    best, best_key = NOTHING, (0, 0, 0)
    for first in spare:
        for count in range(1, len(spare) + 1):
            pool = Mask.run(first, count)
            if not spare.covers(pool):
                break
            rest = usable - pool
            longest = max((len(run) for run in rest.runs()), default=0)
            key = (count, longest, -first)
            if len(rest) >= keep and longest >= rules.min_bits and key > best_key:
                best, best_key = pool, key
    return Division(rules, best, locked)


def assign(division: Division, held: Mapping[str, Mask], wanted: Mapping[str, int]) -> WayAssignment:
    """Give every owner its number of ways.

    ``held`` are the masks in force, those with the oldest rights first.

    Who has the right number keeps its ways unless somebody else cannot be served otherwise. Ways of owners
    that are not in ``wanted`` are free. Held masks that break the rules (outside of the pool, overlapping)
    are replaced. A wish that does not fit is refused, and that owner's ways are then free, too.
    """
    masks: dict[str, Mask] = {}
    moves: list[Move] = []
    refused: dict[str, str] = {}
    order = [owner for owner in held if owner in wanted]
    order += sorted(wanted.keys() - held.keys(), key=lambda owner: (-wanted[owner], owner))
    left = len(division.pool)
    for owner in order:
        reason = _unfit(division, wanted[owner], left)
        if reason:
            refused[owner] = reason
        else:
            left -= wanted[owner]
    served = [owner for owner in order if owner not in refused]
    for owner in served:
        mask = held.get(owner, NOTHING)
        if _valid(division, mask) and not any(mask & other for other in masks.values()):
            masks[owner] = mask
    misplaced = {owner: held[owner] for owner in served if owner in held and owner not in masks}
    for owner in served:  # shrink first: it needs no room and makes some
        if owner in masks and len(masks[owner]) > wanted[owner]:
            after = _shrunk(division, masks, owner, wanted[owner])
            moves.append(Move(owner, masks[owner], after))
            masks[owner] = after
    for owner in sorted(served, key=lambda owner: owner not in misplaced):
        if len(masks.get(owner, NOTHING)) == wanted[owner]:
            continue
        before = misplaced.pop(owner, masks.get(owner, NOTHING))
        for move in _moves_for(division, masks, misplaced, owner, wanted[owner]):
            if move.owner == owner:
                move = Move(owner, before, move.after)
            before = move.after if move.owner == owner else before
            moves.append(move)
            masks[move.owner] = move.after
    return WayAssignment(masks, tuple(moves), refused)


def _holes_allowed(rules: MaskRules) -> bool:
    # With a minimum above 1 the lowest piece has to be long enough: runs are always right.
    return rules.sparse and rules.min_bits <= 1


def _unfit(division: Division, count: int, left: int) -> str | None:
    if count < division.rules.min_bits:
        return f"{count} ways are fewer than the {division.rules.min_bits} that a mask needs"
    if count > left:
        return f"{count} exclusive ways do not fit: {left} of {len(division.pool)} are left"
    return None


def _valid(division: Division, mask: Mask) -> bool:
    if not mask or not division.pool.covers(mask) or len(mask) < division.rules.min_bits:
        return False
    return mask.contiguous or _holes_allowed(division.rules)


def _shrunk(division: Division, masks: Mapping[str, Mask], owner: str, count: int) -> Mask:
    """The part to keep: the one that leaves most to everybody else."""
    mask = masks[owner]
    others = Mask.union(other for name, other in masks.items() if name != owner)
    if not mask.contiguous:
        return Mask.of(list(mask)[:count])
    first = next(iter(mask))
    ends = (Mask.run(first, count), Mask.run(first + len(mask) - count, count))
    return max(ends, key=lambda end: len(division.open_ways(others | end)))


def _moves_for(
    division: Division, masks: Mapping[str, Mask], misplaced: Mapping[str, Mask], owner: str, count: int
) -> tuple[Move, ...]:
    """The moves after which ``owner`` has ``count`` ways; there is room by number."""
    others = {name: mask for name, mask in masks.items() if name != owner}
    own = masks.get(owner, NOTHING)
    taken = Mask.union(others.values())
    # What is to be replaced is still in force: better not to step on it.
    for avoided in (Mask.union(misplaced.values()), NOTHING):
        place = _best_place(division, division.pool - taken - avoided, taken, own, count)
        if place is not None:
            return (Move(owner, own, place),)
    if _holes_allowed(division.rules):
        free = division.pool - taken - own
        kept = Mask.of(list(own) + list(free)[: count - len(own)])
        return (Move(owner, own, kept),)
    moves = []
    for name, after in plan_moves(division.pool, others, owner, own, count):
        moves.append(Move(name, others.get(name, own), after))
        if name == owner:
            own = after
        else:
            others[name] = after
    taken = Mask.union(others.values())
    place = _best_place(division, division.pool - taken, taken, own, count)
    assert place is not None  # plan_moves has freed it
    return (*moves, Move(owner, own, place))


def _best_place(division: Division, free: Mask, taken: Mask, own: Mask, count: int) -> Mask | None:
    """The run in ``free`` that leaves the most to everybody else, in the gap that fits best.

    Somebody who has ways keeps them if they can be part of it.
    """
    best, best_key = None, (0, 0, 0, 0)
    for gap in free.runs():
        first = next(iter(gap))
        for start in range(first, first + len(gap) - count + 1):
            place = Mask.run(start, count)
            left = len(division.open_ways(taken | place))
            key = (len(place & own), left, -len(gap), -start)
            if best is None or key > best_key:
                best, best_key = place, key
    return best
