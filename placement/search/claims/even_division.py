"""Divides an amount over zones into parts that are as equal as possible.

A *room* is the range of amounts of a resource class that one provider can give to one guest. A zone can give
each sum of amounts of its rooms, which may have different step sizes. An integer stands for the possible sums
of a zone: bit n is set if the zone can give n units.

A worked example: 5 units are divided over two zones. The first zone has two rooms, with the step sizes 3 and
2, and can give 2, 3, 4 or 5 units. The second zone has one room with the step size 1. The most even divisions
are 2 + 3 and 3 + 2, each with 13 as the sum of squares.

Invariants
    - The parts of a division are above 0. The largest part exceeds the smallest part by at most the least
      common multiple of the step sizes, except in the result of :func:`exact_division`.
    - The first division that is yielded has the smallest sum of squares of its parts.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt, lcm

from placement.read_model.provider import Inventory
from placement.search.budget import SearchBudget


@dataclass(frozen=True, slots=True, order=True)
class ZoneRoom:
    """The amounts of a class that a provider can give: multiples of ``step`` from ``least`` to ``most``."""

    provider: int
    least: int
    most: int
    step: int

    @classmethod
    def from_inventory(cls, provider: int, inventory: Inventory, free: int, taken: int = 0) -> "ZoneRoom":
        """Return the possible amounts of a provider with this free amount.

        :param taken: the amount of the class that other groups of the same consumer take from the provider.
        """
        step = inventory.step_size
        # one allocation has this amount and ``taken``, so min_unit, max_unit and step_size apply to the sum
        # of both amounts
        least = -(-max(1, inventory.min_unit - taken) // step) * step
        most = max(0, min(free, inventory.max_unit) - taken) // step * step
        return cls(provider, least, most, step)


Division = tuple[int, ...]
"""The parts of an amount, one part for each zone."""


def even_divisions(
    amount: int, zones: Sequence[Sequence[ZoneRoom]], budget: SearchBudget
) -> Iterator[Division]:
    """Yield the divisions of an amount over all given zones, the most even division first.

    If each zone has one room, all divisions use the same rooms, so only the first division is yielded.
    """
    useful = [[room for room in rooms if room.least <= min(room.most, amount)] for rooms in zones]
    if not all(useful):
        return
    unit = lcm(*(room.step for rooms in useful for room in rooms))
    values = _parts_near_mean(amount, useful, unit, budget)
    most = [sum(room.most for room in rooms) for rooms in useful]
    best = _most_even(amount, values, most, unit, budget)
    if best is None:
        return
    yield best
    if any(len(rooms) > 1 for rooms in useful):
        others = (each for each in _all_divisions(amount, values, budget) if _widest_gap(each) <= unit)
        yield from sorted((each for each in others if each != best), key=sum_squares)


def exact_division(amount: int, zones: Sequence[Sequence[ZoneRoom]], budget: SearchBudget) -> Division | None:
    """Return the most even division over all given zones (least sum of squares); its parts can differ widely.

    :returns: None if the amount is no sum of one part of each zone, for example because of step sizes.
    """
    values = []
    for rooms in zones:
        sums = zone_sums(rooms, amount)
        budget.spend(1 + amount // 8)
        values.append([part for part in range(1, amount + 1) if sums >> part & 1])
    if not _is_possible(amount, values, budget):
        return None
    return _least_squares(amount, values, [max(each) for each in values], budget)


def sum_squares(parts: Iterable[int]) -> int:
    """Return the sum of squares of the parts. The more even a division of an amount, the smaller this sum."""
    return sum(part * part for part in parts)


def zone_sums(rooms: Iterable[ZoneRoom], limit: int) -> int:
    """Return the amounts up to ``limit`` that rooms of a zone, or some of them, can give, as bits."""
    mask = (2 << limit) - 1
    found = 1
    for room in rooms:
        most = min(room.most, limit)
        if room.least > most:
            continue
        more = found << room.least & mask
        # each shift doubles the number of multiples that are added
        added, count = 1, (most - room.least) // room.step + 1
        while added < count:
            step = min(added, count - added)
            more |= more << step * room.step & mask
            added += step
        found |= more
    return found


def _parts_near_mean(
    amount: int, zones: Sequence[Sequence[ZoneRoom]], unit: int, budget: SearchBudget
) -> list[list[int]]:
    """Return the amounts that each zone can give, without amounts further than ``unit`` from the mean."""
    number = len(zones)
    lowest, highest = max(1, -(-amount // number) - unit), min(amount, amount // number + unit)
    found = []
    for rooms in zones:
        if len(rooms) == 1:
            (room,) = rooms
            begin = max(room.least, -(-lowest // room.step) * room.step)
            found.append(list(range(begin, min(room.most, highest) + 1, room.step)))
            budget.spend(1 + len(found[-1]) // 8)
            continue
        budget.spend(1 + len(rooms) * (1 + highest // 4096))
        near = zone_sums(rooms, highest) >> lowest
        budget.spend(near.bit_length() // 8)
        found.append([lowest + at for at, bit in enumerate(reversed(bin(near)[2:])) if bit == "1"])
    return found


def _widest_gap(parts: Sequence[int]) -> int:
    """Return the difference between the largest and the smallest part of a division."""
    return max(parts) - min(parts)


def _most_even(
    amount: int, values: Sequence[Sequence[int]], most: Sequence[int], unit: int, budget: SearchBudget
) -> Division | None:
    """Return the most even division, with parts that differ by at most ``unit``; None if there is none.

    Of several equally even divisions, the result has the larger parts in the zones with the larger ``most``.
    """
    if not _is_possible(amount, values, budget):
        return None
    found = _least_squares(amount, values, most, budget)
    if found is None or _widest_gap(found) <= unit:
        return found
    # each possible smallest part is tried: all other parts exceed it by at most the unit
    best: Division | None = None
    for least in sorted({value for each in values for value in each if value * len(values) <= amount}):
        window = [[value for value in each if least <= value <= least + unit] for each in values]
        if _is_possible(amount, window, budget):
            found = _least_squares(amount, window, most, budget)
            if found is not None and (best is None or sum_squares(found) < sum_squares(best)):
                best = found
    return best


def _is_possible(amount: int, values: Sequence[Sequence[int]], budget: SearchBudget) -> bool:
    """Return whether the amount is a sum of one value of each zone."""
    if not all(values):
        return False
    # bit 0 stands for the sum of the smallest values, so that almost equal parts need few bits
    above = amount - sum(map(min, values))
    if above < 0:
        return False
    mask = (2 << above) - 1
    sums = 1
    for each in values:
        budget.spend(1 + len(each) * (1 + above // 4096))
        least, more = min(each), 0
        for value in each:
            if value - least <= above:
                more |= sums << value - least
        sums = more & mask
    return bool(sums >> above & 1)


def _least_squares(
    amount: int, values: Sequence[Sequence[int]], most: Sequence[int], budget: SearchBudget
) -> Division | None:
    """Return one value of each zone: the values with the given sum and the least sum of squares.

    The search tries values near the mean first, and then widens the range of values.
    """
    number = len(values)
    # deviations from the mean are multiplied by the number of zones, so that they are integers
    far = [sorted((abs(value * number - amount), value) for value in each) for each in values]
    radius = max(each[0][0] for each in far)
    last = max(each[-1][0] for each in far)
    while True:
        found = _least_within(amount, far, most, radius, budget)
        if found is not None:
            bound = isqrt(sum((part * number - amount) ** 2 for part in found))
            return found if bound <= radius else _least_within(amount, far, most, bound, budget)
        if radius >= last:
            return None
        radius = max(1, 2 * radius)


def _least_within(
    amount: int,
    far: Sequence[Sequence[tuple[int, int]]],
    most: Sequence[int],
    radius: int,
    budget: SearchBudget,
) -> Division | None:
    # the best division for each sum of parts, by a key; the least key wins. The key has the sum of squares,
    # then the amount from the zones that can give most, then the first parts. The last two are negative,
    # because larger is better
    best: dict[int, tuple[int, int, Division]] = {0: (0, 0, ())}
    for each, largest in zip(far, most, strict=True):
        near = [value for distance, value in each if distance <= radius]
        after: dict[int, tuple[int, int, Division]] = {}
        for total, (squares, weight, parts) in best.items():
            budget.spend(1 + len(near))
            for value in near:
                sum_now = total + value
                key = (squares + value * value, weight - value * largest, (*parts, -value))
                if sum_now <= amount and (sum_now not in after or key < after[sum_now]):
                    after[sum_now] = key
        best = after
    return tuple([-part for part in best[amount][2]]) if amount in best else None


def _all_divisions(amount: int, values: Sequence[Sequence[int]], budget: SearchBudget) -> Iterator[Division]:
    """Yield each combination of one value per zone, if the sum of the values is the amount."""
    if not values:
        if not amount:
            yield ()
        return
    first, *others = values
    least, most = sum(map(min, others)), sum(map(max, others))
    for value in first:
        budget.spend()
        if least <= amount - value <= most:
            for more in _all_divisions(amount - value, others, budget):
                yield (value, *more)
