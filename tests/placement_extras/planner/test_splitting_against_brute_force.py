"""Guests that a topology policy splits are counted within bounds, in random small clouds."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

from hypothesis import HealthCheck, given, reject, settings

from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.search.budget import SearchBudget
from placement.search.claims.claim import WantedClaim
from placement.search.claims.topology import TopologyPolicy
from placement_extras.planner.capacity import CloudHosts, FlavorCapacity
from placement_extras.planner.packing import FitBounds
from placement_extras.planner.split_count import count_split
from tests.examples import examples
from tests.placement.search.claims.test_topology import (
    even,
    fit,
    queries,
    tree,
    wants,
    ways_to_take,
    worlds_of_topologies,
    zone_ids,
)
from tests.placement.search.snapshots import Spec, build

State = frozenset[tuple[int, str, int]]
"""The amounts that guests have taken, by provider id and class."""
_MAX_STATES = 3_000
"""States of a host, after which a random example is left out."""
exhaustive = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def guests_at(snapshot: ModelSnapshot, wanted: WantedClaim, root: int) -> int:
    """The most guests that a host takes, of all orders and ways in which the policy allows to place them."""

    @cache
    def most_from(state: State) -> int:
        if most_from.cache_info().currsize > _MAX_STATES:
            reject()
        after = {next_state(state, way) for way in allowed_ways(used_by(snapshot, state), wanted, root)}
        return max((1 + most_from(each) for each in after), default=0)

    return most_from(frozenset())


def next_state(state: State, way: State) -> State:
    total = {(provider_id, name): amount for provider_id, name, amount in state}
    for provider_id, name, amount in way:
        total[provider_id, name] = total.get((provider_id, name), 0) + amount
    return frozenset((*key, amount) for key, amount in total.items())


def used_by(snapshot: ModelSnapshot, state: State) -> ModelSnapshot:
    """The snapshot in which guests hold these amounts."""
    more: dict[int, dict[str, int]] = {}
    for provider_id, name, amount in state:
        more.setdefault(provider_id, {})[name] = amount
    return ModelSnapshot(
        replace(
            each,
            used={
                name: each.used.get(name, 0) + more.get(each.id, {}).get(name, 0) for name in each.inventories
            },
        )
        for each in snapshot
    )


def allowed_ways(snapshot: ModelSnapshot, wanted: WantedClaim, root: int) -> Iterator[State]:
    """The ways to place one guest at a host, of the number of zones that its policy asks for."""
    (group, *others) = sorted(wanted.request.groups, key=lambda each: each.suffix)
    members, zones = tree(snapshot, root), zone_ids(snapshot, root)
    home = {each.id: each.id if each.id in zones else root for each in members}
    suiting = [each for each in members if group.forbidden.isdisjoint(each.traits)]
    rooms = [each for each in suiting if len(zones) == 1 or each.id in zones]
    split = {name: amount for name, amount in group.resources.items() if name != "DISK_GB"}
    disk = [each for each in suiting if "DISK_GB" in each.inventories]
    disks = (
        [("DISK_GB", {each.id: group.resources["DISK_GB"]}) for each in disk]
        if ("DISK_GB" in group.resources)
        else [None]
    )
    beside = [None]
    if others:
        beside = [
            ("PCPU", {each.id: 1})
            for each in members
            if all(not each.traits.isdisjoint(some) for some in others[0].required)
            if "PCPU" in each.inventories and each.inventories["PCPU"].is_portion(1)
        ]
    found: list[tuple[int, State]] = []
    fewest = len(zones) + 1
    for ways in product(*(ways_to_take(rooms, name, amount) for name, amount in split.items())):
        at = {home[each] for way in ways for each in way}
        taken = list(zip(split, ways, strict=True))
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
            if wanted.topology is TopologyPolicy.SPREAD:
                parts = [
                    [sum(amount for each, amount in way.items() if home[each] == zone) for zone in at]
                    for way in ways
                ]
                steps = [1 if name == "PCPU" else 2 for name in split]
                if any(0 in some or not even(some, step) for some, step in zip(parts, steps, strict=True)):
                    continue
            amounts: dict[tuple[int, str], int] = {}
            for name, way in (*taken, *more):
                for provider_id, amount in way.items():
                    amounts[provider_id, name] = amounts.get((provider_id, name), 0) + amount
            found.append((len(at), frozenset((*key, amount) for key, amount in amounts.items())))
    counts = {count for count, _ in found}
    number = {
        TopologyPolicy.SINGLE_NUMA: 1,
        TopologyPolicy.RESTRICTED: fewest,
        TopologyPolicy.BEST_EFFORT: min(counts, default=0),
        TopologyPolicy.SPREAD: max(counts, default=0),
    }[wanted.topology or TopologyPolicy.SPREAD]
    yield from (way for count, way in found if count == number)


def test_hosts_that_share_a_pool_take_it_from_each_other() -> None:
    pool = Spec("pool", None, {"DISK_GB": 5}, [SHARES], aggregates=["rack"])
    specs = [pool]
    for name in ("one", "two"):
        specs.append(Spec(name, aggregates=["rack"]))
        specs += [Spec(f"{name}_{number}", name, {"PCPU": 6}, [ZONE]) for number in range(2)]
    wanted = wants("resources=PCPU:4,DISK_GB:1", TopologyPolicy.BEST_EFFORT)
    found = count(build(*specs), wanted)
    # each host has PCPU for 3 guests, and the pool has disk for 5
    assert found.fit == FitBounds(5, 5)
    assert (found.hosts, found.candidate_hosts) == (2, 2)
    assert found.worst is not None
    assert (found.worst.name, found.without_worst) == ("pool", FitBounds(0, 0))
    (rack,) = found.by_aggregate.values()
    assert rack == FitBounds(5, 5)


def test_a_pool_that_fails_takes_its_guests_with_it() -> None:
    pool = Spec("pool", None, {"DISK_GB": 5, "PCPU": 4}, [SHARES, ZONE], aggregates=["rack"])
    host = [Spec("one", aggregates=["rack"]), Spec("one_0", "one", {"PCPU": 8}, [ZONE])]
    found = count(build(pool, *host), wants("resources=PCPU:4,DISK_GB:1", TopologyPolicy.BEST_EFFORT))
    assert found.fit == FitBounds(3, 3)
    assert found.worst is not None
    assert (found.worst.name, found.without_worst) == ("pool", FitBounds(0, 0))


def count(snapshot: ModelSnapshot, wanted: WantedClaim) -> FlavorCapacity:
    assert wanted.topology is not None
    return count_split(CloudHosts(snapshot, SearchBudget()), wanted.request, wanted.topology)


@exhaustive
@given(worlds_of_topologies, queries)
def test_the_number_of_guests_is_between_the_bounds(asked: tuple[Any, Any], query: str) -> None:
    world, topology = asked
    snapshot, wanted = world.snapshot, wants(query, topology)
    roots = [each.id for each in snapshot if each.parent_id is None]
    expected = {root: guests_at(snapshot, wanted, root) for root in roots}
    found = count(snapshot, wanted)
    total = sum(expected.values())
    assert found.fit.lower_bound <= total <= found.fit.upper_bound
    assert found.candidate_hosts == sum(map(bool, expected.values()))
    empty = ModelSnapshot(replace(each, used={}) for each in snapshot)
    assert found.hosts == sum(any(allowed_ways(empty, wanted, root)) for root in roots)
    if found.worst is not None:
        left = total - expected[found.worst.id]
        assert found.without_worst.lower_bound <= left <= found.without_worst.upper_bound
    one_each = all(
        len(zone_ids(snapshot, root))
        == sum("DISK_GB" not in each.inventories for each in tree(snapshot, root))
        for root in roots
    )
    one_zone = all(len(zone_ids(snapshot, root)) == 1 for root in roots)
    if one_each and len(wanted.request.groups) == 1 and (one_zone or topology is TopologyPolicy.SINGLE_NUMA):
        assert found.fit == FitBounds(total, total)
