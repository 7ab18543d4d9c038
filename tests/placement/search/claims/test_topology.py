"""Dedicated CPUs and memory are split over zones as trying every way would, in random small clouds."""

import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, product
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from placement.read_model.provider import Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.schemas import explanation
from placement.search.budget import SearchBudget
from placement.search.claims import refusal
from placement.search.claims.claim import ClaimScenario, HostChoice, WantedClaim
from placement.search.claims.placement import PlacedClaim, UnplacedClaim, place_claims
from placement.search.claims.split_choices import is_splittable
from placement.search.claims.topology import REMOTE, TopologyPolicy, ZoneRoom, divide_amount
from placement.search.diagnosis.clauses import (
    RequestClause,
    droppable_clauses,
    resource_clause,
    without_clauses,
)
from placement.store.consumers import ConsumerOwnership
from tests.examples import examples
from tests.placement.search.snapshots import Spec, build, inventory

OWNER = ConsumerOwnership("project", "user", "INSTANCE")
Taken = dict[int, int]
"""By the id of a provider how much is taken of a class."""
TOPOLOGIES = st.sampled_from(list(TopologyPolicy))


@st.composite
def hosts(draw: st.DrawFn, *, uneven: bool = False) -> ClaimScenario:
    """Hosts that are used somehow; ``uneven`` ones give PCPU in portions of their own at each zone."""
    specs = []
    for number in range(draw(st.integers(1, 2))):
        name = f"h{number}"
        flat = draw(st.integers(0, 4)) == 0
        specs.append(Spec(name, None, {"DISK_GB": 10}))
        for zone in range(draw(st.integers(1, 3))):
            inventories, used = dict[str, Inventory](), dict[str, int]()
            for resource_class, step in (("PCPU", 1), ("MEMORY_MB", 2)):
                if draw(st.integers(0, 5)):
                    least = 1
                    if uneven and resource_class == "PCPU":
                        step, least = draw(st.integers(1, 3)), draw(st.integers(1, 3))
                    total = draw(st.integers(1, 4)) * step
                    maximum = draw(st.sampled_from((100, 100, 2)))
                    inventories[resource_class] = inventory(
                        total, step_size=step, min_unit=least, max_unit=maximum
                    )
                    used[resource_class] = draw(st.integers(0, total // step)) * step
            traits = [] if flat else [ZONE]
            traits += draw(st.sampled_from(([], ["T1"])))
            specs.append(Spec(f"{name}_{zone}", name, inventories, traits, used=used))
    snapshot = build(*specs)
    zones = sorted(each.id for each in snapshot if ZONE in each.traits)
    known = draw(st.booleans())
    distances = {
        pair: draw(st.integers(11, 13)) for pair in combinations(zones, 2) if known and draw(st.booleans())
    }
    return ClaimScenario(snapshot, distances=distances)


queries = st.builds(
    lambda *parts: "&".join(part for part in parts if part),
    st.sampled_from(
        [
            f"resources=PCPU:{cpus}{more}"
            for cpus in (1, 2, 3, 4, 6)
            for more in ("", ",MEMORY_MB:4", ",DISK_GB:1")
        ]
        + ["resources=MEMORY_MB:6", "resources=PCPU:2,MEMORY_MB:8,DISK_GB:2"]
    ),
    st.sampled_from(["", "", "resources1=PCPU:1", "resources1=PCPU:1&required1=T1"]),
    st.sampled_from(["", "", "required=T1", "required=!T1"]),
)


def tree(snapshot: ModelSnapshot, root: int) -> list[Provider]:
    return [each for each in snapshot if each.root_id == root]


def zone_ids(snapshot: ModelSnapshot, root: int) -> list[int]:
    found = [each.id for each in tree(snapshot, root) if ZONE in each.traits]
    return found or [root]


def ways_to_take(providers: list[Provider], name: str, amount: int) -> Iterator[Taken]:
    """Every way to take this amount of a class from these providers, as far as portions allow."""
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


def even(parts: Iterable[int], step: int) -> bool:
    parts = list(parts)
    return max(parts) - min(parts) <= step


def judge(world: ClaimScenario, wanted: WantedClaim, root: int) -> tuple[float, float]:
    """The number of zones of the best split of a host, and their distance; infinite if there is none."""
    snapshot = world.snapshot
    (group, *others) = sorted(wanted.request.groups, key=lambda each: each.suffix)
    members, zones = tree(snapshot, root), zone_ids(snapshot, root)
    home = {each.id: each.id if each.id in zones else root for each in members}
    suiting = [each for each in members if group.forbidden.isdisjoint(each.traits)]
    rooms = [each for each in suiting if len(zones) == 1 or each.id in zones]
    split = {name: amount for name, amount in group.resources.items() if name != "DISK_GB"}
    if any(not any(name in each.inventories for each in rooms) for name in split):
        return inf, inf
    disk = [each for each in suiting if "DISK_GB" in each.inventories]
    if "DISK_GB" in group.resources and not disk:
        return inf, inf
    beside: list[Taken] = [{}]
    if others:
        beside = [
            {each.id: 1}
            for each in members
            if all(not each.traits.isdisjoint(some) for some in others[0].required)
            # a group of its own is served by itself, whatever the split takes of the same provider
            if "PCPU" in each.inventories and each.inventories["PCPU"].is_portion(1)
        ]
    names = list(split)
    found, by_capacity = [], inf
    for ways in product(*(ways_to_take(rooms, name, split[name]) for name in names)):
        serving = {each for way in ways for each in way}
        if "DISK_GB" in group.resources:
            serving.add(disk[0].id)
        had = frozenset[str]().union(*(snapshot.providers[each].traits for each in serving))
        if any(had.isdisjoint(some) for some in group.required):
            continue
        at = sorted({home[each] for way in ways for each in way})
        taken = list(zip(names, ways, strict=True))
        if fit(snapshot, *taken, empty=True):
            by_capacity = min(by_capacity, len(at))
        if not any(fit(snapshot, *taken, ("PCPU", other)) for other in beside):
            continue
        if wanted.topology is TopologyPolicy.SPREAD:
            per_zone = [
                [sum(amount for each, amount in way.items() if home[each] == zone) for zone in at]
                for way in ways
            ]
            steps = [1 if name == "PCPU" else 2 for name in names]
            if any(0 in parts or not even(parts, step) for parts, step in zip(per_zone, steps, strict=True)):
                continue
        far = sum(world.distances.get(pair, REMOTE) for pair in combinations(at, 2))
        found.append((-len(at) if wanted.topology is TopologyPolicy.SPREAD else len(at), far))
    if wanted.topology is TopologyPolicy.SINGLE_NUMA:
        found = [each for each in found if each[0] == 1]
    if wanted.topology is TopologyPolicy.RESTRICTED:
        found = [each for each in found if each[0] == by_capacity]
    return min(found, default=(inf, inf))


def rank(world: ClaimScenario, wanted: WantedClaim, choice: HostChoice) -> tuple[float, float]:
    """The same as :func:`judge`, for a choice."""
    snapshot, zones = world.snapshot, zone_ids(world.snapshot, choice.root.id)
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
    at = sorted(
        {
            provider_id if provider_id in zones else choice.root.id
            for (provider_id, name), amount in taken.items()
            if amount and name != "DISK_GB"
        }
    )
    serving = {provider_id for (provider_id, _), amount in taken.items() if amount}
    assert serving == {each.id for each in choice.mappings[""]}
    traits = [snapshot.providers[each].traits for each in serving]
    assert all(group.forbidden.isdisjoint(each) for each in traits)
    assert not any(frozenset[str]().union(*traits).isdisjoint(some) for some in group.required)
    far = sum(world.distances.get(pair, REMOTE) for pair in combinations(at, 2))
    return (-len(at) if wanted.topology is TopologyPolicy.SPREAD else len(at)), far


def wants(query: str, topology: TopologyPolicy, **fields: object) -> WantedClaim:
    asked = explanation.parse({"query": query, "flavor": None, "microversion": "1.39"}, {})
    return WantedClaim("c", None, OWNER, asked.request, asked.version, topology=topology, **fields)  # type: ignore[arg-type]


@settings(max_examples=examples(500), deadline=None)
@given(hosts(), queries, TOPOLOGIES, st.integers(0, 99), st.booleans())
def test_each_host_gives_its_best_split_or_none(
    world: ClaimScenario, query: str, topology: TopologyPolicy, seed: int, ordered: bool
) -> None:
    wanted = wants(query, topology, alternates=9, order=(("pack", 1.0),) if ordered else ())
    best = {each.id: judge(world, wanted, each.id) for each in world.snapshot if each.parent_id is None}
    possible = {root: each for root, each in best.items() if each != (inf, inf)}
    found = place_claims(world, [wanted], SearchBudget(), random.Random(seed))
    if isinstance(found, UnplacedClaim):
        assert possible == {}
    else:
        shown = [found[0].choice, *found[0].alternates]
        assert {choice.root.id: rank(world, wanted, choice) for choice in shown} == possible


worlds_of_topologies = st.tuples(hosts(), TOPOLOGIES) | st.tuples(
    # the judge knows even shares only where all steps of a class are the same
    hosts(uneven=True),
    st.sampled_from([each for each in TopologyPolicy if each is not TopologyPolicy.SPREAD]),
)


@settings(max_examples=examples(200), deadline=None)
@given(worlds_of_topologies, queries | st.just("resources=PCPU:9"))
def test_suggested_changes_help(asked: tuple[ClaimScenario, TopologyPolicy], query: str) -> None:
    world, topology = asked
    wanted = wants(query, topology)
    roots = [each.id for each in world.snapshot if each.parent_id is None]

    def fitting(changed: WantedClaim) -> int:
        return sum(judge(world, changed, root) != (inf, inf) for root in roots)

    assume(not fitting(wanted))
    best_effort = replace(wanted, topology=TopologyPolicy.BEST_EFFORT)
    assert list(refusal.looser_topologies(world, wanted, SearchBudget())) == (
        [TopologyPolicy.BEST_EFFORT] if fitting(best_effort) else []
    )

    def changed(left_out: Collection[RequestClause], amounts: Mapping[RequestClause, int]) -> int:
        request = without_clauses(wanted.request, left_out, amounts)
        splittable = request is not None and is_splittable(request)
        return fitting(replace(wanted, request=request)) if splittable and request else 0

    found = {}
    for each in refusal.tried_relaxations(world, wanted, SearchBudget()).find_changes():
        amounts = {resource_clause(one.group, one.names[0]): one.amount for one in each.amounts}
        assert each.hosts == changed(each.left_out, amounts) > 0
        (clause,) = {*each.left_out, *amounts}
        found[clause] = amounts.get(clause)
    for clause in droppable_clauses(world.snapshot, wanted.request):
        (amount,) = [
            group.resources.get(clause.names[0])
            for group in wanted.request.groups
            if group.suffix == clause.group
        ]
        less = [each for each in range(1, amount or 1) if changed((), {clause: each})]
        if not less:
            assert (clause in found) == (changed([clause], {}) > 0)
        else:
            assert found[clause] == max(less)


@st.composite
def rooms(draw: st.DrawFn) -> ZoneRoom:
    step = draw(st.integers(1, 3))
    return ZoneRoom(0, draw(st.integers(1, 3)) * step, draw(st.integers(0, 8)) // step * step, step)


@settings(max_examples=examples(500), deadline=None)
@given(st.integers(1, 20), st.lists(rooms(), min_size=1, max_size=3))
def test_parts_are_as_equal_as_the_rooms_allow(amount: int, bounds: list[ZoneRoom]) -> None:
    ways = [
        parts
        for parts in product(*([0, *range(each.least, each.most + 1, each.step)] for each in bounds))
        if sum(parts) == amount
    ]
    found = divide_amount(amount, bounds)
    if found is None:
        assert ways == []
        return
    assert tuple(found) in ways
    used = max(sum(map(bool, parts)) for parts in ways)
    as_many = [parts for parts in ways if sum(map(bool, parts)) == used]
    assert sum(part * part for part in found) == min(sum(part * part for part in parts) for parts in as_many)


def unequal(*inventories: Inventory) -> list[Spec]:
    """A host with NUMA nodes that give PCPU in different portions."""
    return [Spec("h")] + [
        Spec(f"h_{number}", "h", {"PCPU": each}, [ZONE]) for number, each in enumerate(inventories)
    ]


@pytest.mark.parametrize("topology", list(TopologyPolicy))
def test_caches_of_a_node_may_have_different_steps(topology: TopologyPolicy) -> None:
    specs = [Spec("h"), Spec("h_0", "h", {}, [ZONE])]
    specs += [Spec(f"c{step}", "h_0", {"PCPU": inventory(6, step_size=step)}) for step in (3, 1)]
    assert shares(*specs, query="resources=PCPU:2", topology=topology) == {"c1": {"PCPU": 2}}


def test_spread_respects_the_portions_of_a_node() -> None:
    specs = unequal(inventory(8, min_unit=1), inventory(9, min_unit=1), inventory(10, min_unit=3))
    found = shares(*specs[:2], specs[3], query="resources=PCPU:5", topology=TopologyPolicy.SPREAD)
    assert found == {"h_0": {"PCPU": 2}, "h_2": {"PCPU": 3}}
    specs = unequal(inventory(10, min_unit=1), inventory(8, min_unit=3))
    found = shares(*specs, query="resources=PCPU:5", topology=TopologyPolicy.SPREAD)
    assert found == {"h_0": {"PCPU": 2}, "h_1": {"PCPU": 3}}


def test_parts_are_as_equal_as_a_min_unit_allows() -> None:
    assert divide_amount(10, [ZoneRoom(0, 4, 8, 1), ZoneRoom(0, 1, 8, 1)]) == [5, 5]


def nodes(name: str, *free: int, memory: int = 64) -> list[Spec]:
    """A host with NUMA nodes of PCPU 8 each, and these numbers of free ones."""
    return [Spec(name, None, {"DISK_GB": 100})] + [
        Spec(f"{name}_{number}", name, {"PCPU": 8, "MEMORY_MB": memory}, [ZONE], used={"PCPU": 8 - each})
        for number, each in enumerate(free)
    ]


def shares(
    *specs: Spec, query: str, topology: TopologyPolicy, near: Mapping[tuple[str, str], int] | None = None
) -> dict[str, dict[str, int]] | None:
    """The taken amounts, by the name of the provider."""
    snapshot = build(*specs)
    ids = {each.name: each.id for each in snapshot}
    distances = {(ids[one], ids[other]): far for (one, other), far in (near or {}).items()}
    found = place_claims(
        ClaimScenario(snapshot, distances=distances),
        [wants(query, topology)],
        SearchBudget(),
        random.Random(0),
    )
    if isinstance(found, UnplacedClaim):
        return None
    (placed,) = found
    assert isinstance(placed, PlacedClaim)
    return {provider.name: dict(amounts) for provider, amounts in placed.choice.resources}


EIGHT = "resources=PCPU:8"
MUCH = "resources=PCPU:12,MEMORY_MB:96"


@pytest.mark.parametrize(
    ("free", "query", "topology", "expected"),
    [
        ((4, 4), EIGHT, "best-effort", {"h_0": {"PCPU": 4}, "h_1": {"PCPU": 4}}),
        ((4, 4), EIGHT, "single-numa-node", None),
        ((4, 4), EIGHT, "restricted", None),  # an empty node would have room for it
        ((4, 8), EIGHT, "restricted", {"h_1": {"PCPU": 8}}),
        ((6, 3), EIGHT, "best-effort", {"h_0": {"PCPU": 5}, "h_1": {"PCPU": 3}}),
        ((6, 3), EIGHT, "spread", None),
        ((8, 8), EIGHT, "spread", {"h_0": {"PCPU": 4}, "h_1": {"PCPU": 4}}),
        ((8, 3), EIGHT, "spread", {"h_0": {"PCPU": 8}}),
        (
            (8, 6),
            MUCH,
            "restricted",
            {"h_0": {"PCPU": 6, "MEMORY_MB": 48}, "h_1": {"PCPU": 6, "MEMORY_MB": 48}},
        ),
        ((8, 3), MUCH, "restricted", None),
        ((2, 3, 5), EIGHT, "best-effort", {"h_1": {"PCPU": 3}, "h_2": {"PCPU": 5}}),
    ],
)
def test_each_policy_takes_its_zones(
    free: tuple[int, ...], query: str, topology: str, expected: dict[str, dict[str, int]] | None
) -> None:
    assert shares(*nodes("h", *free), query=query, topology=TopologyPolicy(topology)) == expected


def test_the_nearest_zones_are_taken() -> None:
    near = {("h_0", "h_1"): 32, ("h_0", "h_2"): 32, ("h_1", "h_2"): 12}
    found = shares(*nodes("h", 4, 4, 4), query=EIGHT, topology=TopologyPolicy.BEST_EFFORT, near=near)
    assert found == {"h_1": {"PCPU": 4}, "h_2": {"PCPU": 4}}


def test_classes_outside_of_zones_come_from_the_host_or_pools() -> None:
    pool = Spec("pool", None, {"DISK_GB": 100}, ["MISC_SHARES_VIA_AGGREGATE"], aggregates=["a"])
    one, two = (
        [Spec(name, aggregates=["a"]), *nodes(name, *free)[1:]]
        for name, free in (("one", (4, 3)), ("two", (4, 4)))
    )
    query = "resources=PCPU:8,DISK_GB:10"
    found = shares(*one, *two, pool, query=query, topology=TopologyPolicy.BEST_EFFORT)
    assert found == {"pool": {"DISK_GB": 10}, "two_0": {"PCPU": 4}, "two_1": {"PCPU": 4}}


def test_a_zone_may_give_an_amount_in_several_parts() -> None:
    specs = [Spec("h"), Spec("h_0", "h", {}, [ZONE])]
    specs += [Spec(f"h_0_{cache}", "h_0", {"PCPU": 4}) for cache in range(3)]
    found = shares(*specs, query="resources=PCPU:6", topology=TopologyPolicy.SINGLE_NUMA)
    assert found is not None
    assert sorted(found.values(), key=str) == [{"PCPU": 3}, {"PCPU": 3}]
