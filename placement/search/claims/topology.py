"""Splits dedicated CPUs and memory over zones of a host: chooses zones, and the amount from each zone.

A *zone* is a NUMA node with all its descendant providers; a host without NUMA nodes is one zone. The *rooms*
of a zone are the amounts of a class that each provider of the zone can currently give. A *split* takes all
requested amounts from some zones, and divides each class as evenly as the rooms allow.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import accumulate, chain, combinations, islice, permutations, product
from math import gcd, lcm, prod
from typing import Final, NamedTuple

from placement.search.budget import SearchBudget
from placement.search.claims.even_division import (
    Division,
    ZoneRoom,
    even_divisions,
    exact_division,
    sum_squares,
)

SPLIT: Final = ("PCPU", "MEMORY_MB")
"""The resource classes that a topology policy splits."""

# the ACPI system locality table (SLIT) defines 10 as the local distance
LOCAL: Final = 10
"""The distance within a zone."""
# the usual distance to another node in a SLIT
REMOTE: Final = 20
"""The assumed distance of two zones without a known distance."""

# the number of combinations is a product over all rooms: four rooms with four remainders each have 256
_MAX_BEGINNINGS: Final = 512
"""Maximum number of combinations of remainders (one for each room) that are tried if rooms have different
step sizes.
"""

# an exact division takes a bit for each unit, which suits numbers of CPUs but not MiB of memory
_MAX_EXACT: Final = 1024
"""The largest amount that is divided exactly over zones with rooms of different step sizes. Larger amounts
are divided approximately."""

# a zone rarely has more than a few providers of a class
_MAX_EQUAL: Final = 64
"""Maximum number of splits of one division that are tried instead of the first one."""
_MAX_ORDERED: Final = 4
"""Maximum number of providers of a zone that exchange their parts for another split."""

Distances = Mapping[tuple[int, int], int]
"""A dict from the provider ids of two zones, in ascending order, to the distance of the zones."""

NUMA_DISTANCE: Final = "numa_distance"
"""The criterion of orders that prefers zones near each other."""
# distances are computed from attributes of all hosts, and most claims do not need them
DISTANCE_CRITERIA: Final = frozenset({NUMA_DISTANCE})
"""The criteria that read distances: scenarios of other claims without a topology policy have no distances."""


def distance_of(distances: Distances, one: int, other: int) -> int:
    """Return the distance of two zones (NUMA nodes), in units of the ACPI SLIT."""
    return distances.get((one, other) if one < other else (other, one), REMOTE)


class TopologyPolicy(StrEnum):
    """How many zones a split can use; the first three policies are those of Kubernetes' Topology Manager."""

    SINGLE_NUMA = "single-numa-node"
    RESTRICTED = "restricted"
    BEST_EFFORT = "best-effort"
    SPREAD = "spread"


Zone = Mapping[str, Sequence[ZoneRoom]]
"""The rooms of a zone, by class."""


class ZoneShare(NamedTuple):
    """The amount of a class that a split takes from one provider; ``provider`` identifies the provider."""

    provider: int
    resource_class: str
    amount: int


Split = tuple[ZoneShare, ...]
ZonePart = tuple[str, int, Sequence[ZoneRoom]]
"""A class, the amount that a zone gives of it, and the rooms of the zone."""


class FoundSplit(NamedTuple):
    """The first split of a division over zones: the parts of the zones, and the shares of each part."""

    parts: Sequence[ZonePart]
    shares: tuple[Split, ...]

    @property
    def whole_split(self) -> Split:
        """All shares together."""
        return (*chain.from_iterable(self.shares),)

    def equal_splits(self) -> Iterator[Split]:
        """Yield some other splits that take each part from the same number of providers, as evenly."""
        shared = [
            islice(_of_count(name, amount, _useful_rooms(rooms), len(shares)), _MAX_EQUAL)
            for (name, amount, rooms), shares in zip(self.parts, self.shares, strict=True)
        ]
        for each in islice(product(*shared), _MAX_EQUAL):
            if each != self.shares:
                yield (*chain.from_iterable(each),)


class SplitRank(NamedTuple):
    """The rank of a split of a guest over zones, by the policy of the claim; a lower rank is better.

    ``unevenness`` has for each class the sum of squares of its parts, if the policy asks for even parts.
    """

    zones: int
    distance: int
    unevenness: tuple[int, ...] = ()


Ranked = tuple[SplitRank, list[FoundSplit]]
Accepts = Callable[[Split], bool]


def best_splits(
    topology: TopologyPolicy,
    asked: Mapping[str, int],
    zones: Sequence[Zone],
    when_empty: Sequence[Zone],
    apart: Sequence[Sequence[int]],
    budget: SearchBudget,
    accepts: Accepts = lambda split: True,
) -> Ranked | None:
    """Return the best splits that a policy allows at a host, with their rank; None if no split is possible.

    The result has one split for each set of zones; :meth:`FoundSplit.equal_splits` has others.

    :param when_empty: the amounts that the zones could give if there were no guest.
    :param apart: distances, indexed by the numbers of both zones.
    :param accepts: a function that returns whether the providers of a split have the required traits.
    """
    every = range(1, len(zones) + 1)
    if topology is TopologyPolicy.SINGLE_NUMA:
        return _of_sizes((1,), asked, zones, apart, budget, accepts)
    # the policy allows as many zones as the empty host would need, independent of current usage
    if topology is TopologyPolicy.RESTRICTED:
        least = _of_sizes(every, asked, when_empty, apart, budget, accepts)
        return least and _of_sizes((least[0].zones,), asked, zones, apart, budget, accepts)
    if topology is TopologyPolicy.BEST_EFFORT:
        return _of_sizes(every, asked, zones, apart, budget, accepts)
    found = _of_sizes(reversed(every), asked, zones, apart, budget, accepts, even=True)
    # the rank is negative, because the lowest rank wins and this policy prefers many zones
    return found and (found[0]._replace(zones=-found[0].zones), found[1])


def _of_sizes(
    sizes: Iterable[int],
    asked: Mapping[str, int],
    zones: Sequence[Zone],
    apart: Sequence[Sequence[int]],
    budget: SearchBudget,
    accepts: Accepts,
    *,
    even: bool = False,
) -> Ranked | None:
    """Return the splits over the nearest zones, for the first number in ``sizes`` that has a split."""
    for size in sizes:
        if not all(_may_hold(amount, name, zones, size) for name, amount in asked.items()):
            continue
        best: SplitRank | None = None
        found: list[FoundSplit] = []
        for chosen in combinations(range(len(zones)), size):
            budget.spend(size)
            distance = sum(apart[one][other] for one, other in combinations(chosen, 2))
            # the set is skipped if these zones are further apart than the best set with a split
            if best is not None and distance > best.distance:
                continue
            some = [zones[number] for number in chosen]
            # if a required trait is missing at all providers with rooms in these zones, every split lacks it
            if not accepts(tuple(_all_shares(asked, some))):
                continue
            ways = _list_even_ways(asked, some, budget) if even else _list_ways(asked, some, budget)
            for unevenness, parts in ways:
                splits = (FoundSplit(parts, each) for each in _out_of(parts, budget))
                first = next((each for each in splits if accepts(each.whole_split)), None)
                if first is not None:
                    rank = SplitRank(size, distance, unevenness)
                    if best is None or rank < best:
                        best, found = rank, []
                    if rank == best:
                        found.append(first)
                    break
        if best is not None:
            return best, found
    return None


def _all_shares(asked: Iterable[str], zones: Iterable[Zone]) -> Iterator[ZoneShare]:
    for name in asked:
        for zone in zones:
            for room in zone.get(name, ()):
                yield ZoneShare(room.provider, name, 0)


def _list_even_ways(
    asked: Mapping[str, int], zones: Sequence[Zone], budget: SearchBudget
) -> Iterator[tuple[tuple[int, ...], Sequence[ZonePart]]]:
    """Yield for each division over all given zones its unevenness and its parts, the most even first."""
    for divided in _combined_divisions(list(asked.items()), zones, budget):
        parts = [
            (name, part, zone[name])
            for name, division in zip(asked, divided, strict=True)
            for part, zone in zip(division, zones, strict=True)
        ]
        yield tuple(map(sum_squares, divided)), parts


def _combined_divisions(
    asked: Sequence[tuple[str, int]], zones: Sequence[Zone], budget: SearchBudget
) -> Iterator[tuple[Division, ...]]:
    """Yield combinations of one even division for each class, in the order of the first class's divisions."""
    if not asked:
        yield ()
        return
    (name, amount), *others = asked
    for division in even_divisions(amount, [zone.get(name, ()) for zone in zones], budget):
        for more in _combined_divisions(others, zones, budget):
            yield (division, *more)


def _may_hold(amount: int, name: str, zones: Sequence[Zone], size: int) -> bool:
    most = sorted((sum(room.most for room in zone.get(name, ())) for zone in zones), reverse=True)
    return sum(most[:size]) >= amount


def _list_ways(
    asked: Mapping[str, int], zones: Sequence[Zone], budget: SearchBudget
) -> Iterator[tuple[tuple[int, ...], Sequence[ZonePart]]]:
    """Yield the parts of each division that takes a part from each of these zones.

    The unevenness is an empty tuple, because the order of these divisions does not depend on it.
    """
    joined: list[tuple[int, list[list[ZoneRoom]]]] = []
    first: list[list[list[int]]] = []
    for name, amount in asked.items():
        rooms = [zone.get(name, ()) for zone in zones]
        budget.spend(2 * len(zones))
        by_step = [[_join_rooms(each, common) for each in rooms] for common in (gcd, lcm)]
        if by_step[0] == by_step[1]:
            by_step = by_step[:1]
        divided = [divide_amount(amount, each) for each in by_step]
        # if step sizes differ within a zone, joining its rooms to one room would lose some divisions
        if len(by_step) > 1 and amount <= _MAX_EXACT:
            exact = exact_division(amount, rooms, budget)
            divided.append(None if exact is None else list(exact))
        joined.append((amount, by_step))
        first.append(_unique_divisions(divided))
    # no split uses these zones if a class has no division over them
    if not all(first):
        return
    tried = list(product(*first))
    for way in tried:
        if parts := _parts_of_way(way, asked, zones):
            yield (), parts
    # all orders of parts are tried, because zones with equal rooms may differ in traits or other classes
    every = [
        _unique_divisions(each for rooms in by_step for each in _divide_sets(amount, rooms, budget))
        for amount, by_step in joined
    ]
    budget.spend(prod(map(len, every)) // 8)
    for way in product(*every):
        if way not in tried and (parts := _parts_of_way(way, asked, zones)):
            yield (), parts


def _unique_divisions(divisions: Iterable[list[int] | None]) -> list[list[int]]:
    """Return the distinct divisions."""
    return [list(each) for each in dict.fromkeys(tuple(one) for one in divisions if one is not None)]


def _parts_of_way(
    way: Sequence[Sequence[int]], asked: Iterable[str], zones: Sequence[Zone]
) -> Sequence[ZonePart]:
    """Return the parts of the given divisions of each class; none if a zone gives no part of any class."""
    if not all(any(divided[number] for divided in way) for number in range(len(zones))):
        return ()
    return [
        (name, part, zones[number][name])
        for name, divided in zip(asked, way, strict=True)
        for number, part in enumerate(divided)
        if part
    ]


def _out_of(parts: Sequence[ZonePart], budget: SearchBudget) -> Iterator[tuple[Split, ...]]:
    """Yield all combinations of splits for these amounts: for each amount, one split over its rooms."""
    if not parts:
        yield ()
        return
    (name, amount, rooms), *others = parts
    for shares in _of_zone(name, amount, rooms):
        budget.spend(len(shares))
        for more in _out_of(others, budget):
            yield (shares, *more)


def _join_rooms(rooms: Sequence[ZoneRoom], common: Callable[..., int]) -> ZoneRoom:
    """Return one room that approximates all rooms of a zone together.

    :param common: combines the step sizes of the rooms. With the greatest common divisor, the result includes
        amounts that only some rooms can give. With the least common multiple, it includes only amounts that
        each room can give.
    """
    useful = [room for room in rooms if room.least <= room.most]
    if not useful:
        return ZoneRoom(0, 1, 0, 1)
    step = common(*(room.step for room in useful))
    least = -(-min(room.least for room in useful) // step) * step
    return ZoneRoom(0, least, sum(room.most for room in useful) // step * step, step)


def _of_zone(name: str, amount: int, rooms: Sequence[ZoneRoom]) -> Iterator[Split]:
    """Yield splits of an amount over the providers of one zone; splits over few providers come first."""
    useful = _useful_rooms(rooms)
    for count in range(1, len(useful) + 1):
        yield from _of_count(name, amount, useful, count)


def _useful_rooms(rooms: Sequence[ZoneRoom]) -> list[ZoneRoom]:
    return sorted((room for room in rooms if room.least <= room.most), key=lambda room: room.most)


def _of_count(name: str, amount: int, useful: Sequence[ZoneRoom], count: int) -> Iterator[Split]:
    """Yield splits of an amount over this number of providers of one zone."""
    for chosen in combinations(useful, count):
        divided = _divide_equally(amount, chosen)
        for parts in () if divided is None else _fitting_orders(divided, chosen):
            yield tuple(
                ZoneShare(room.provider, name, part) for room, part in zip(chosen, parts, strict=True)
            )


def _fitting_orders(parts: Sequence[int], rooms: Sequence[ZoneRoom]) -> Iterable[Sequence[int]]:
    """Return the given order of parts, then other orders that fit the rooms, which are as even."""
    if len(set(parts)) == 1 or len(parts) > _MAX_ORDERED:
        return (parts,)
    orders = dict.fromkeys(permutations(parts))
    others = [
        each
        for each in orders
        if each != tuple(parts)
        and all(
            room.least <= part <= room.most and part % room.step == 0
            for part, room in zip(each, rooms, strict=True)
        )
    ]
    return (parts, *others)


def _divide_sets(amount: int, rooms: Sequence[ZoneRoom], budget: SearchBudget) -> Iterator[list[int]]:
    """Yield one division for each set of rooms, larger sets first, without subsets of yielded ones."""
    useful = [number for number, room in enumerate(rooms) if room.least <= room.most]
    divided: list[frozenset[int]] = []
    for count in range(len(useful), 0, -1):
        for chosen in combinations(useful, count):
            budget.spend(1 + len(divided) // 8)
            if any(larger.issuperset(chosen) for larger in divided):
                continue
            found = _divide_equally(amount, [rooms[number] for number in chosen])
            if found is not None:
                divided.append(frozenset(chosen))
                parts = [0] * len(rooms)
                for number, part in zip(chosen, found, strict=True):
                    parts[number] = part
                yield parts


def divide_amount(amount: int, rooms: Sequence[ZoneRoom]) -> list[int] | None:
    """Divide an amount equally over as many rooms as possible (others give 0); None if this is impossible."""
    useful = [number for number, room in enumerate(rooms) if room.least <= room.most]
    least = list(accumulate(sorted(rooms[number].least for number in useful)))
    most = list(accumulate(sorted((rooms[number].most for number in useful), reverse=True)))
    # the smallest ``least`` values bound the number of rooms from above, the largest ``most`` values from
    # below
    counts = [count for count in range(len(useful), 0, -1) if least[count - 1] <= amount <= most[count - 1]]
    for count in counts:
        best: list[int] | None = None
        tried = set[tuple[ZoneRoom, ...]]()
        for chosen in combinations(useful, count):
            # equal rooms give the same division, so each combination of rooms is tried once
            alike = tuple(sorted(replace(rooms[number], provider=0) for number in chosen))
            if alike in tried:
                continue
            tried.add(alike)
            found = _divide_equally(amount, [rooms[number] for number in chosen])
            if found is not None and (best is None or sum_squares(found) < sum_squares(best)):
                best = [0] * len(rooms)
                for number, part in zip(chosen, found, strict=True):
                    best[number] = part
        if best is not None:
            return best
    return None


def _divide_equally(amount: int, rooms: Sequence[ZoneRoom]) -> list[int] | None:
    """Divide the amount over all given rooms, as equally as possible; None if this is impossible.

    Each part has a remainder modulo the least common multiple of the steps, and all combinations of
    remainders are tried. If there are too many combinations, all parts are multiples of the least common
    multiple.
    """
    if not sum(room.least for room in rooms) <= amount <= sum(room.most for room in rooms):
        return None
    unit = lcm(*(room.step for room in rooms))
    begin: list[Sequence[int]] = [range(0, unit, room.step) for room in rooms]
    if prod(map(len, begin)) > _MAX_BEGINNINGS:
        begin = [(0,)] * len(rooms)
    best: list[int] | None = None
    for beginnings in product(*begin):
        if (amount - sum(beginnings)) % unit == 0:
            bounds = [
                (room.least + (first - room.least) % unit, room.most - (room.most - first) % unit)
                for room, first in zip(rooms, beginnings, strict=True)
            ]
            found = _fill_bounds(amount, bounds, unit)
            if found is not None and (best is None or sum_squares(found) < sum_squares(best)):
                best = found
    return best


def _fill_bounds(amount: int, bounds: Sequence[tuple[int, int]], unit: int) -> list[int] | None:
    """Return parts with this sum within the bounds.

    The parts begin at their lower bounds and grow by ``unit``, the smallest part first.
    """
    if any(least > most for least, most in bounds) or not (
        sum(least for least, _ in bounds) <= amount <= sum(most for _, most in bounds)
    ):
        return None

    def up_to(level: int) -> list[int]:
        return [max(least, min(most, level - (level - least) % unit)) for least, most in bounds]

    # rooms are filled up to a common level, which a bisection finds, because the sum grows with the level
    levels = range(min(least for least, _ in bounds), max(most for _, most in bounds) + 1)
    above = bisect_right(levels, amount, key=lambda level: sum(up_to(level)))
    if not above:  # no level fits: even the lowest one gives more than the amount
        return None
    parts = up_to(levels[above - 1])
    next_ones = sorted(
        (part, -most, number)
        for number, (part, (_, most)) in enumerate(zip(parts, bounds, strict=True))
        if part < most
    )
    for _, _, number in next_ones[: (amount - sum(parts)) // unit]:
        parts[number] += unit
    return parts
