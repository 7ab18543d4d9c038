"""How dedicated CPUs and memory are divided over the zones of a host: which zones, and how much of each.

A *zone* is a NUMA node with all that is below it; a host without any is one zone. Its *rooms* are what each
of its providers can give of a class now. A *split* takes all that is asked for out of some zones, each class
as evenly as the rooms allow.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from math import lcm
from typing import Final, NamedTuple

from placement.candidates.budget import Budget
from placement.model.provider import Inventory

SPLIT: Final = ("PCPU", "MEMORY_MB")
"""The classes that are split."""

LOCAL: Final = 10
"""The distance within a zone, as firmware tables have it."""
REMOTE: Final = 20
"""That of two zones of which none is known."""

Distances = Mapping[tuple[int, int], int]
"""Of two zones, by the ids of their providers in ascending order, how far apart they are."""


def distance_of(distances: Distances, one: int, other: int) -> int:
    """How far apart two zones are."""
    return distances.get((one, other) if one < other else (other, one), REMOTE)


class Topology(StrEnum):
    """How many zones may be crossed."""

    SINGLE_NUMA = "single-numa"
    RESTRICTED = "restricted"
    BEST_EFFORT = "best-effort"
    SPREAD = "spread"


@dataclass(frozen=True, slots=True)
class Room:
    """What a provider can give of a class: multiples of ``step`` from ``least`` to ``most``."""

    provider: int
    least: int
    most: int
    step: int

    @classmethod
    def of(cls, provider: int, inventory: Inventory, free: int, taken: int = 0) -> "Room":
        """That of a provider of which so much is free, and so much of that taken by the same consumer."""
        step = inventory.step_size
        least = -(-max(1, inventory.min_unit - taken) // step) * step
        most = max(0, min(free, inventory.max_unit) - taken) // step * step
        return cls(provider, least, most, step)


Zone = Mapping[str, Sequence[Room]]
"""The rooms of a zone, by class."""


class Share(NamedTuple):
    """What is taken of a provider."""

    provider: int
    resource_class: str
    amount: int


Split = tuple[Share, ...]


class Rank(NamedTuple):
    """How good a split is for what it is wanted for: less is better."""

    zones: int
    distance: int


Ranked = tuple[Rank, list[Split]]
Accepts = Callable[[Split], bool]


def best_splits(
    topology: Topology,
    asked: Mapping[str, int],
    zones: Sequence[Zone],
    when_empty: Sequence[Zone],
    apart: Sequence[Sequence[int]],
    budget: Budget,
    accepts: Accepts = lambda split: True,
) -> Ranked | None:
    """The best splits that a policy allows at a host, as good as each other; None if it allows none.

    :param when_empty: the zones if nothing of them were used.
    :param apart: by the numbers of two zones how far apart they are.
    :param accepts: whether a split will do.
    :raises Exhausted: the budget is spent.
    """
    every = range(1, len(zones) + 1)
    if topology is Topology.SINGLE_NUMA:
        return _of_sizes((1,), asked, zones, apart, budget, accepts)
    if topology is Topology.RESTRICTED:
        least = _of_sizes(every, asked, when_empty, apart, budget, accepts)
        return least and _of_sizes((least[0].zones,), asked, zones, apart, budget, accepts)
    if topology is Topology.BEST_EFFORT:
        return _of_sizes(every, asked, zones, apart, budget, accepts)
    found = _of_sizes(reversed(every), asked, zones, apart, budget, accepts, even=True)
    return found and (found[0]._replace(zones=-found[0].zones), found[1])


def _of_sizes(
    sizes: Iterable[int],
    asked: Mapping[str, int],
    zones: Sequence[Zone],
    apart: Sequence[Sequence[int]],
    budget: Budget,
    accepts: Accepts,
    *,
    even: bool = False,
) -> Ranked | None:
    """The splits of the first of these numbers of zones that has any: the nearest ones."""
    for size in sizes:
        if not all(_may_hold(amount, name, zones, size) for name, amount in asked.items()):
            continue
        found: dict[int, list[Split]] = {}
        for chosen in combinations(range(len(zones)), size):
            budget.spend(size)
            distance = sum(apart[one][other] for one, other in combinations(chosen, 2))
            if not found or distance <= min(found):
                splits = _splits(asked, [zones[number] for number in chosen], budget, even=even)
                split = next(filter(accepts, splits), None)
                if split is not None:
                    found.setdefault(distance, []).append(split)
        if found:
            nearest = min(found)
            return Rank(size, nearest), found[nearest]
    return None


def _may_hold(amount: int, name: str, zones: Sequence[Zone], size: int) -> bool:
    most = sorted((sum(room.most for room in zone.get(name, ())) for zone in zones), reverse=True)
    return sum(most[:size]) >= amount


def _splits(
    asked: Mapping[str, int], zones: Sequence[Zone], budget: Budget, *, even: bool
) -> Iterator[Split]:
    """What may be taken of these zones: always as much of each, and of none nothing, of other providers."""
    parts: list[tuple[str, int, Sequence[Room]]] = []
    used: set[int] = set()
    for name, amount in asked.items():
        rooms = [_together(zone.get(name, ())) for zone in zones]
        divided = _evenly(amount, rooms) if even else divide(amount, rooms)
        if divided is None:
            return
        for number, part in enumerate(divided):
            if part:
                used.add(number)
                parts.append((name, part, zones[number][name]))
    if len(used) == len(zones):
        yield from _out_of(parts, budget)


def _out_of(parts: Sequence[tuple[str, int, Sequence[Room]]], budget: Budget) -> Iterator[Split]:
    """All ways to take these amounts of classes, each out of the rooms beside it."""
    if not parts:
        yield ()
        return
    (name, amount, rooms), *others = parts
    for shares in _of_zone(name, amount, rooms):
        budget.spend(len(shares))
        for more in _out_of(others, budget):
            yield (*shares, *more)


def _together(rooms: Sequence[Room]) -> Room:
    """What the providers of a zone can give together, mostly."""
    useful = [room for room in rooms if room.least <= room.most]
    if not useful:
        return Room(0, 1, 0, 1)
    least = min(room.least for room in useful)
    return Room(0, least, sum(room.most for room in useful), lcm(*(room.step for room in useful)))


def _of_zone(name: str, amount: int, rooms: Sequence[Room]) -> Iterator[Split]:
    """The amount out of the providers of a zone, as few as can give it first, where it fits best."""
    useful = sorted((room for room in rooms if room.least <= room.most), key=lambda room: room.most)
    for count in range(1, len(useful) + 1):
        for chosen in combinations(useful, count):
            divided = divide(amount, chosen)
            if divided is not None and all(divided):
                yield tuple(
                    Share(room.provider, name, part) for room, part in zip(chosen, divided, strict=True)
                )


def divide(amount: int, rooms: Sequence[Room]) -> list[int] | None:
    """The amount in parts, as equal as the rooms allow; of a room that cannot give its part 0.

    Rooms of different steps give multiples of all of them. None if they cannot give so much.
    """
    unit = lcm(*(room.step for room in rooms))
    bounds = {
        number: (-(-room.least // unit) * unit, room.most // unit * unit) for number, room in enumerate(rooms)
    }
    largest_first = sorted(
        (number for number, (least, most) in bounds.items() if least <= most),
        key=lambda number: -bounds[number][1],
    )
    while sum(bounds[number][0] for number in largest_first) > amount:
        largest_first.pop()
    if amount % unit or sum(bounds[number][1] for number in largest_first) < amount:
        return None
    parts = [0] * len(rooms)
    for number in largest_first:
        parts[number] = bounds[number][0]
    left = amount - sum(parts)
    while left:
        having = [number for number in largest_first if parts[number] < bounds[number][1]]
        each = max(unit, left // len(having) // unit * unit)
        for number in having:
            more = min(each, bounds[number][1] - parts[number], left)
            parts[number] += more
            left -= more
    return parts


def _evenly(amount: int, rooms: Sequence[Room]) -> list[int] | None:
    """The amount in parts that differ by one step at most; None if a room cannot give its part."""
    unit = lcm(*(room.step for room in rooms))
    if amount % unit:
        return None
    each, more = divmod(amount // unit, len(rooms))
    parts = [each * unit] * len(rooms)
    for number in sorted(range(len(rooms)), key=lambda number: -rooms[number].most)[:more]:
        parts[number] += unit
    if all(room.least <= part <= room.most for room, part in zip(rooms, parts, strict=True)):
        return parts
    return None
