"""Placing what is wanted, in which there may be something else to ask for where there is no place."""

import random
from collections.abc import Sequence
from dataclasses import replace

from placement.candidates.budget import Budget
from placement.claims.placing import Placed, Unplaced, place
from placement.claims.wanted import Wanted
from placement.claims.world import World


def place_or_fall_back(
    world: World, wanted: Sequence[Wanted], budget: Budget, rng: random.Random
) -> list[Placed] | Unplaced:
    """As :func:`~placement.claims.placing.place`; the first without a place asks for what it falls back to.

    Each does so once at most, in the order in which they are found to have no place. If that does not help,
    the answer is the one to what was asked for at first.

    :raises Exhausted: the budget is spent before this is known.
    """
    asked = list(wanted)
    first: Unplaced | None = None
    while isinstance(found := place(world, asked, budget, rng), Unplaced):
        first = first or found
        without = asked[found.number]
        if without.fallback is None:
            return first
        asked[found.number] = replace(without, request=without.fallback, fallback=None)
    return found
