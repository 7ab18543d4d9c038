"""How good a choice is, by criteria: pure functions of the choice and the world in which it is made."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from placement.claims.choice import Choice, Score
from placement.claims.wanted import Wanted
from placement.claims.world import World
from placement.claims.zones import zone_of
from placement.model.provider import Provider


def score(world: World, wanted: Wanted, choice: Choice) -> Score:
    """The score of a choice for one that is wanted, which nobody holds yet in this world."""
    criteria = {name: CRITERIA[name](world, wanted, choice) for name, _ in wanted.order}
    return Score(sum(weight * criteria[name] for name, weight in wanted.order), criteria)


def pack(world: World, wanted: Wanted, choice: Choice) -> float:
    """How much of the host would be used: of each class that is taken the share, and of these the mean.

    A provider outside of the host that shares with it counts for what is taken of it.
    """
    snapshot = world.snapshot
    host = {each.id: each for each in snapshot.whole_trees()[choice.root.id].members}
    taken: dict[str, dict[int, int]] = {}
    for provider, amounts in choice.resources:
        for name, amount in amounts.items():
            taken.setdefault(name, {})[provider.id] = amount
    shares = []
    for name, by_provider in taken.items():
        others = [snapshot.providers[each] for each in by_provider if each not in host]
        shares.append(_used_share(name, (*host.values(), *others), sum(by_provider.values())))
    return sum(shares) / len(shares)


def spread(world: World, wanted: Wanted, choice: Choice) -> float:
    """How much of the host would be free: what is left of 1 by :func:`pack`."""
    return 1 - pack(world, wanted, choice)


def zones(world: World, wanted: Wanted, choice: Choice) -> float:
    """1 by the number of NUMA nodes that something is taken of; what is in none of them does not count."""
    found = {zone_of(world.snapshot, provider) for provider, _ in choice.resources} - {None}
    return 1 / max(1, len(found))


def fit(world: World, wanted: Wanted, choice: Choice) -> float:
    """How much is taken of what is free, where that is the largest share: 1 where it is used up."""
    return max(
        amount / provider.free(name)
        for provider, amounts in choice.resources
        for name, amount in amounts.items()
    )


def group(world: World, wanted: Wanted, choice: Choice) -> float:
    """How well it is placed beside the others of its group: how many of them are there, or how few."""
    return wanted.group.liking(choice.hosts, world.beside(wanted.group)) if wanted.group else 0.0


CRITERIA: Final[Mapping[str, Callable[[World, Wanted, Choice], float]]] = {
    "pack": pack,
    "spread": spread,
    "zones": zones,
    "fit": fit,
    "group": group,
}


def _used_share(name: str, providers: Iterable[Provider], taken: int) -> float:
    """How much of a class would be used of these providers together, if so much more of it were."""
    having = [each for each in providers if name in each.inventories]
    used = sum(each.used.get(name, 0) for each in having) + taken
    return min(1.0, used / sum(max(0, each.inventories[name].capacity) for each in having))
