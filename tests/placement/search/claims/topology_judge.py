"""Finds by brute force all ways to take dedicated CPUs and memory from the zones of a host."""

from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from math import inf, lcm
from typing import NamedTuple

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.search.claims.claim import ClaimScenario, HostChoice, WantedClaim
from placement.search.claims.topology import REMOTE, TopologyPolicy

Taken = dict[int, int]
"""The taken amount of a class, by the id of the provider."""
State = frozenset[tuple[int, str, int]]
"""Amounts by provider id and class."""


class Rank(NamedTuple):
    """The rank of a way by its topology policy; a lower rank is better. ``squares`` has the sum of squares of
    the parts, by class.
    """

    zones: float
    distance: float
    squares: tuple[int, ...] = ()


NO_WAY = Rank(inf, inf)


def tree(snapshot: ModelSnapshot, root: int) -> list[Provider]:
    return [each for each in snapshot if each.root_id == root]


def homes(snapshot: ModelSnapshot, root: int) -> dict[int, int]:
    """The zone of each provider of a tree. A provider outside of zones, or in a tree without zones, has the
    root as its zone.
    """
    found: dict[int, int] = {}
    for each in tree(snapshot, root):
        at: Provider | None = each
        while at is not None and ZONE not in at.traits:
            at = None if at.parent_id is None else snapshot.providers[at.parent_id]
        found[each.id] = root if at is None else at.id
    return found


def zone_ids(snapshot: ModelSnapshot, root: int) -> list[int]:
    found = [each.id for each in tree(snapshot, root) if ZONE in each.traits]
    return found or [root]


def ways_to_take(providers: list[Provider], name: str, amount: int) -> Iterator[Taken]:
    """All ways to take this amount of a class from these providers within their bounds of an allocation."""
    if not providers:
        if amount == 0:
            yield {}
        return
    first, *others = providers
    for mine in range(amount + 1):
        if mine == 0 or (name in first.inventories and mine % first.inventories[name].step_size == 0):
            for rest in ways_to_take(others, name, amount - mine):
                yield {first.id: mine, **rest} if mine else rest


def fit(snapshot: ModelSnapshot, *taken: tuple[str, Taken], empty: bool = False) -> bool:
    total: dict[tuple[int, str], int] = {}
    for name, amounts in taken:
        for provider_id, amount in amounts.items():
            total[provider_id, name] = total.get((provider_id, name), 0) + amount
    for (provider_id, name), amount in total.items():
        provider = snapshot.providers[provider_id]
        used = 0 if empty else provider.used.get(name, 0)
        if name not in provider.inventories or not provider.inventories[name].accepts_amount(amount, used):
            return False
    return True


def allowed_ways(world: ClaimScenario, wanted: WantedClaim, root: int) -> list[tuple[Rank, State]]:
    """The ways to place a guest at a host on as many zones as its policy asks for."""
    snapshot = world.snapshot
    (group, *others) = sorted(wanted.request.groups, key=lambda each: each.suffix)
    members, zones, home = tree(snapshot, root), zone_ids(snapshot, root), homes(snapshot, root)
    suiting = [each for each in members if group.forbidden.isdisjoint(each.traits)]
    rooms = [each for each in suiting if home[each.id] in zones]
    split = {name: amount for name, amount in group.resources.items() if name != "DISK_GB"}
    disks: list[tuple[str, Taken] | None] = [None]
    if "DISK_GB" in group.resources:
        amount = group.resources["DISK_GB"]
        disks = [("DISK_GB", {each.id: amount}) for each in suiting if "DISK_GB" in each.inventories]
    beside: list[tuple[str, Taken] | None] = [None]
    if others:
        beside = [
            ("PCPU", {each.id: 1})
            for each in members
            if all(not each.traits.isdisjoint(some) for some in others[0].required)
            # a group of its own is served by itself, whatever the split takes of the same provider
            if "PCPU" in each.inventories and each.inventories["PCPU"].is_portion(1)
        ]

    @cache
    def unit(name: str, at: frozenset[int], other: int | None) -> int:
        """The least common multiple of the step sizes of the providers that can give anything."""
        more = [] if other is None else [("PCPU", {other: 1})]
        return lcm(
            *(
                each.inventories[name].step_size
                for each in rooms
                if home[each.id] in at and name in each.inventories
                if any(fit(snapshot, (name, {each.id: m}), *more) for m in range(1, split[name] + 1))
            )
        )

    found: list[tuple[Rank, State]] = []
    fewest: float = inf
    for ways in product(*(ways_to_take(rooms, name, amount) for name, amount in split.items())):
        at = frozenset(home[each] for way in ways for each in way)
        far = sum(world.distances.get(pair, REMOTE) for pair in combinations(sorted(at), 2))
        taken = list(zip(split, ways, strict=True))
        per_zone = {
            name: [sum(amount for each, amount in way.items() if home[each] == zone) for zone in at]
            for name, way in taken
        }
        for one_disk, other in product(disks, beside):
            more = [each for each in (one_disk, other) if each is not None]
            serving = {each for way in ways for each in way} | (set(one_disk[1]) if one_disk else set())
            had = frozenset[str]().union(*(snapshot.providers[each].traits for each in serving))
            if any(had.isdisjoint(some) for some in group.required):
                continue
            if fit(snapshot, *taken, empty=True):
                fewest = min(fewest, len(at))
            if not fit(snapshot, *taken, *more):
                continue
            squares: tuple[int, ...] = ()
            if wanted.topology is TopologyPolicy.SPREAD:
                taker = None if other is None else next(iter(other[1]))
                if any(
                    0 in parts or max(parts) - min(parts) > unit(name, at, taker)
                    for name, parts in per_zone.items()
                ):
                    continue
                squares = tuple(sum(part * part for part in parts) for parts in per_zone.values())
            amounts: dict[tuple[int, str], int] = {}
            for name, way in (*taken, *more):
                for provider_id, amount in way.items():
                    amounts[provider_id, name] = amounts.get((provider_id, name), 0) + amount
            state = frozenset((*key, amount) for key, amount in amounts.items())
            found.append((Rank(len(at), far, squares), state))
    counts = [rank.zones for rank, _ in found]
    number = {
        TopologyPolicy.SINGLE_NUMA: 1,
        TopologyPolicy.RESTRICTED: fewest,
        TopologyPolicy.BEST_EFFORT: min(counts, default=0),
        TopologyPolicy.SPREAD: max(counts, default=0),
    }[wanted.topology or TopologyPolicy.SPREAD]
    return [each for each in found if each[0].zones == number]


def judge(world: ClaimScenario, wanted: WantedClaim, root: int) -> Rank:
    """The rank of the best split at a host; infinite if there is no split."""
    return min((rank for rank, _ in allowed_ways(world, wanted, root)), default=NO_WAY)


def rank(world: ClaimScenario, wanted: WantedClaim, choice: HostChoice) -> Rank:
    """Check a choice; return its rank."""
    snapshot, home = world.snapshot, homes(world.snapshot, choice.root.id)
    (group, *others) = sorted(wanted.request.groups, key=lambda each: each.suffix)
    taken = {
        (provider.id, name): amount
        for provider, amounts in choice.resources
        for name, amount in amounts.items()
    }
    for provider_id, name in taken:
        provider = snapshot.providers[provider_id]
        assert provider.inventories[name].accepts_amount(taken[provider_id, name], provider.used.get(name, 0))
    asked = {
        name: sum(each.resources.get(name, 0) for each in wanted.request.groups)
        for each in wanted.request.groups
        for name in each.resources
    }
    assert asked == {name: sum(got for (_, what), got in taken.items() if what == name) for name in asked}
    if others:
        (served,) = choice.mappings[others[0].suffix]
        taken[served.id, "PCPU"] -= 1
    parts: dict[str, dict[int, int]] = {name: {} for name in group.resources if name != "DISK_GB"}
    for (provider_id, name), amount in taken.items():
        if amount and name in parts:
            zone = home[provider_id]
            parts[name][zone] = parts[name].get(zone, 0) + amount
    at = sorted({zone for each in parts.values() for zone in each})
    serving = {provider_id for (provider_id, _), amount in taken.items() if amount}
    assert serving == {each.id for each in choice.mappings[""]}
    traits = [snapshot.providers[each].traits for each in serving]
    assert all(group.forbidden.isdisjoint(each) for each in traits)
    assert not any(frozenset[str]().union(*traits).isdisjoint(some) for some in group.required)
    far = sum(world.distances.get(pair, REMOTE) for pair in combinations(at, 2))
    squares: tuple[int, ...] = ()
    if wanted.topology is TopologyPolicy.SPREAD:
        squares = tuple(sum(part * part for part in each.values()) for each in parts.values())
    return Rank(len(at), far, squares)
