"""How good a choice is, by criteria, in the world in which it is made.

Criteria look at what is taken by :class:`_Taking`. Of a candidate that takes from its own tree alone most of
that is the same for all trees of a kind, and found out once for each pattern: only what is free differs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Protocol

from placement.candidates.pattern import Candidate, Pattern
from placement.claims.choice import Choice, Score
from placement.claims.topology import LOCAL, distance_of
from placement.claims.wanted import Wanted
from placement.claims.world import World
from placement.claims.zones import zone_of
from placement.model.provider import Provider
from placement.model.snapshot import Snapshot
from placement.model.trees import Kind, Tree

ATTRIBUTE: Final = "attribute:"
"""What the criteria begin with that are attributes of providers; their names follow."""

Found = Candidate | Choice
"""What may be chosen, as the search has it or made already."""


class Scorer:
    """Scores for one that is wanted, of what nobody holds yet in a world."""

    def __init__(self, world: World, wanted: Wanted) -> None:
        self._world = world
        self._wanted = wanted
        self._terms: dict[tuple[Kind, int], _Terms] = {}
        self._plain = [(CRITERIA[name], weight) for name, weight in wanted.order if name in CRITERIA]
        self._attributes = [
            (name.removeprefix(ATTRIBUTE), weight) for name, weight in wanted.order if name not in CRITERIA
        ]

    def score(self, found: Found) -> Score:
        """What each criterion says, and the sum."""
        taking = self._taking(found)
        criteria = {
            name: CRITERIA[name](taking) if name in CRITERIA else self._attribute(taking, name, weight) or 0.0
            for name, weight in self._wanted.order
        }
        return Score(sum(abs(weight) * criteria[name] for name, weight in self._wanted.order), criteria)

    def rank(self, found: Found) -> tuple[bool, float]:
        """Whether it lacks a number that the order goes by, so that it comes last; and the sum alone."""
        taking = self._taking(found)
        total = sum([weight * criterion(taking) for criterion, weight in self._plain])
        lacks = False
        for name, weight in self._attributes:
            value = self._attribute(taking, ATTRIBUTE + name, weight)
            lacks = lacks or value is None
            total += abs(weight) * (value or 0.0)
        return lacks, total

    def _attribute(self, taking: "_Taking", name: str, weight: float) -> float | None:
        return attribute(self._world.snapshot, taking, name.removeprefix(ATTRIBUTE), low=weight < 0)

    def _taking(self, found: Found) -> "_Taking":
        if isinstance(found, Candidate):
            tree, pattern = found
            if isinstance(tree, Tree):
                # Like trees have the same pattern, which the terms keep, so that no other has its id.
                terms = self._terms.get((tree.kind, id(pattern)))
                if terms is None:
                    terms = self._terms[tree.kind, id(pattern)] = _Terms.of(self._world, tree, pattern)
                return _OfTree(self._world, self._wanted, tree, terms)
            found = Choice.of(self._world.snapshot, found)
        return _OfChoice(self._world, self._wanted, found)


class _Taking(Protocol):
    """What is taken, as criteria look at it."""

    def providers(self) -> Iterable[Provider]:
        """Those that something is taken of."""

    def shares(self) -> Iterable[float]:
        """Of each class that is taken, the share of the host that would be used."""

    def fits(self) -> Iterable[float]:
        """Of each amount, how much it is of what its provider has free."""

    def zones(self) -> int:
        """How many NUMA nodes something is taken of."""

    def distances(self) -> Iterable[int]:
        """How far these are apart, two at a time."""

    def liking(self) -> float:
        """How well it goes with the others of the group."""


@dataclass(frozen=True, slots=True)
class _Terms:
    """What a pattern takes of trees of a kind.

    ``zones`` are the positions of NUMA nodes, ``demands`` slots with amounts, ``taken`` has the sum by class.
    """

    pattern: Pattern
    zones: tuple[int, ...]
    demands: tuple[tuple[int, int], ...]
    taken: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, world: World, tree: Tree, pattern: Pattern) -> "_Terms":
        at = {member.id: position for position, member in enumerate(tree.members)}
        zones = {zone_of(world.snapshot, tree.members[position]) for position in pattern.resources}
        taken: dict[str, int] = {}
        for amounts in pattern.resources.values():
            for name, amount in amounts.items():
                taken[name] = taken.get(name, 0) + amount
        slots = tree.kind.shape.slots
        return cls(
            pattern,
            tuple(sorted(at[zone] for zone in zones if zone is not None)),
            tuple(
                (slots[position, name], amount)
                for position, amounts in pattern.resources.items()
                for name, amount in amounts.items()
            ),
            tuple(taken.items()),
        )


@dataclass(slots=True)  # that are made fast
class _OfTree:
    """A pattern that a tree follows without any help of others."""

    world: World
    wanted: Wanted
    tree: Tree
    terms: _Terms

    def providers(self) -> Iterable[Provider]:
        return [self.tree.members[position] for position in self.terms.pattern.resources]

    def shares(self) -> Iterable[float]:
        return [_share(*self.tree.sums(name), amount) for name, amount in self.terms.taken]

    def fits(self) -> Iterable[float]:
        free = self.tree.free
        return [amount / free[slot] for slot, amount in self.terms.demands]

    def zones(self) -> int:
        return len(self.terms.zones)

    def distances(self) -> Iterable[int]:
        return _apart(self.world, [self.tree.members[position].id for position in self.terms.zones])

    def liking(self) -> float:
        return _liking(self.world, self.wanted, (self.tree.root.id,))


@dataclass(slots=True)
class _OfChoice:
    """Whatever a choice takes."""

    world: World
    wanted: Wanted
    choice: Choice

    def providers(self) -> Iterable[Provider]:
        return [provider for provider, _ in self.choice.resources]

    def shares(self) -> Iterator[float]:
        tree = self.world.snapshot.whole_trees()[self.choice.root.id]
        taken: dict[str, list[tuple[Provider, int]]] = {}
        for provider, amounts in self.choice.resources:
            for name, amount in amounts.items():
                taken.setdefault(name, []).append((provider, amount))
        for name, parts in taken.items():
            used, capacity = tree.sums(name) if name in tree.kind.shape.having else (0, 0)
            for provider, _ in parts:
                if provider.root_id != tree.root.id:
                    used += provider.used.get(name, 0)
                    capacity += max(0, provider.inventories[name].capacity)
            yield _share(used, capacity, sum(amount for _, amount in parts))

    def fits(self) -> Iterator[float]:
        for provider, amounts in self.choice.resources:
            for name, amount in amounts.items():
                yield amount / provider.free(name)

    def zones(self) -> int:
        return len(self._zones())

    def distances(self) -> Iterable[int]:
        return _apart(self.world, self._zones())

    def liking(self) -> float:
        return _liking(self.world, self.wanted, self.choice.hosts)

    def _zones(self) -> set[int]:
        found = (zone_of(self.world.snapshot, provider) for provider, _ in self.choice.resources)
        return {zone for zone in found if zone is not None}


def pack(taking: _Taking) -> float:
    """How much of the host would be used: of each class that is taken the share, and of these the mean.

    A provider outside of the host that shares with it counts for what is taken of it.
    """
    shares = [*taking.shares()]
    return sum(shares) / len(shares)


def spread(taking: _Taking) -> float:
    """How much of the host would be free: what is left of 1 by :func:`pack`."""
    return 1 - pack(taking)


def zones(taking: _Taking) -> float:
    """1 by the number of NUMA nodes that something is taken of; what is in none of them does not count."""
    return 1 / (taking.zones() or 1)


def distance(taking: _Taking) -> float:
    """How near these are to each other: the distance within one, by the mean of that between two of them."""
    apart = [*taking.distances()]
    return min(1.0, LOCAL * len(apart) / max(1, sum(apart))) if apart else 1.0


def fit(taking: _Taking) -> float:
    """How much is taken of what is free, where that is the largest share: 1 where it is used up."""
    return max(taking.fits())


def group(taking: _Taking) -> float:
    """How well it is placed beside the others of its group: how many of them are there, or how few."""
    return taking.liking()


def attribute(snapshot: Snapshot, taking: _Taking, name: str, *, low: bool) -> float | None:
    """From 0 to 1 where the numbers of an attribute are among those of all providers, 1 being the best.

    What something is taken of counts by itself, or by the nearest above it that has such a number; where
    these are several, by the mean. None if one of them has none.

    :param low: whether the lowest is the best.
    """
    found = [_number(snapshot, provider, name) for provider in taking.providers()]
    numbers = [each for each in found if each is not None]
    bounds = snapshot.attribute_range(name)
    if bounds is None or len(numbers) < len(found):
        return None
    least, most = bounds
    # halves, as the difference of two numbers may be more than a number holds
    mean = sum(each / 2 / len(numbers) for each in numbers)
    share = (mean - least / 2) / (most / 2 - least / 2) if most > least else 1.0
    return 1 - share if low and most > least else share


CRITERIA: Final[Mapping[str, Callable[[_Taking], float]]] = {
    "pack": pack,
    "spread": spread,
    "zones": zones,
    "distance": distance,
    "fit": fit,
    "group": group,
}


def _share(used: int, capacity: int, taken: int) -> float:
    """How much would be used if so much more were."""
    return min(1.0, (used + taken) / capacity)


def _number(snapshot: Snapshot, provider: Provider, name: str) -> float | None:
    """The number of an attribute of the nearest provider, upwards from this one, that has it."""
    values = (each.attributes.get(name) for each in snapshot.upwards(provider))
    return next((value for value in values if isinstance(value, float)), None)


def _apart(world: World, zones: Iterable[int]) -> Iterable[int]:
    return [distance_of(world.distances, one, other) for one, other in combinations(zones, 2)]


def _liking(world: World, wanted: Wanted, hosts: Iterable[int]) -> float:
    return wanted.group.liking([*hosts], world.beside(wanted.group)) if wanted.group else 0.0
