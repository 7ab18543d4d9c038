"""Tests that dedicated CPUs and memory are split over zones as by a brute-force search, in random small
clouds.
"""

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from placement.read_model.provider import Inventory
from placement.read_model.trees import ZONE
from placement.search.budget import SearchBudget
from placement.search.claims import refusal
from placement.search.claims.claim import ClaimScenario, WantedClaim
from placement.search.claims.even_division import ZoneRoom
from placement.search.claims.placement import PlacedClaim, UnplacedClaim, place_claims
from placement.search.claims.split_choices import is_splittable
from placement.search.claims.topology import TopologyPolicy, divide_amount
from placement.search.diagnosis.clauses import (
    RequestClause,
    droppable_clauses,
    resource_clause,
    without_clauses,
)
from tests.examples import examples
from tests.placement.search.claims.strategies import (
    TOPOLOGIES,
    hosts,
    nodes,
    queries,
    wants,
    worlds_of_topologies,
)
from tests.placement.search.claims.topology_judge import NO_WAY, judge, rank
from tests.placement.search.snapshots import Spec, build, build_scenario, inventory


@settings(max_examples=examples(500), deadline=None)
@given(hosts(), queries, TOPOLOGIES, st.integers(0, 99), st.booleans())
def test_each_host_gives_its_best_split_or_none(
    world: ClaimScenario, query: str, topology: TopologyPolicy, seed: int, ordered: bool
) -> None:
    check_choices(
        world, wants(query, topology, alternates=9, order=(("pack", 1.0),) if ordered else ()), seed
    )


def test_a_class_comes_from_the_zone_that_the_others_need() -> None:
    specs = [
        Spec("h"),
        Spec("h_0", "h", {"PCPU": 2, "MEMORY_MB": 2}, [ZONE]),
        Spec(
            "h_1",
            "h",
            {"PCPU": 2, "MEMORY_MB": inventory(3, min_unit=2)},
            [ZONE, "T1"],
            used={"MEMORY_MB": 2},
        ),
    ]
    wanted = wants("resources=PCPU:1,MEMORY_MB:2&required=T1", TopologyPolicy.BEST_EFFORT)
    world = build_scenario(build(*specs))
    found = place_claims(world, [wanted], SearchBudget(), random.Random(1))
    assert not isinstance(found, UnplacedClaim)
    check_choices(world, wanted, 1)


def test_the_rest_of_a_request_comes_from_a_provider_with_a_trait_if_that_needs_fewer_zones() -> None:
    specs = [
        Spec("h"),
        Spec("h_0", "h", {"PCPU": inventory(4, step_size=2), "VCPU": 2}, [ZONE]),
        Spec("h_0c", "h_0", {"PCPU": 1, "VCPU": 2}, ["T1"]),
        Spec("h_1", "h", {"PCPU": inventory(4, step_size=3)}, [ZONE]),
    ]
    wanted = wants("resources=PCPU:4,VCPU:1&required=T1", TopologyPolicy.BEST_EFFORT)
    for seed in range(4):
        check_choices(build_scenario(build(*specs)), wanted, seed)


def check_choices(world: ClaimScenario, wanted: WantedClaim, seed: int) -> None:
    """Check that each host with a possible split is a choice or an alternate, with its best split."""
    best = {each.id: judge(world, wanted, each.id) for each in world.snapshot if each.parent_id is None}
    possible = {root: each for root, each in best.items() if each != NO_WAY}
    found = place_claims(world, [wanted], SearchBudget(), random.Random(seed))
    if isinstance(found, UnplacedClaim):
        assert possible == {}
    else:
        shown = [found[0].choice, *found[0].alternates]
        assert {choice.root.id: rank(world, wanted, choice) for choice in shown} == possible


@settings(max_examples=examples(500), deadline=None)
@given(
    hosts(uneven=True) | hosts(uneven=True, caches=True),
    queries | st.integers(5, 11).map(lambda cpus: f"resources=PCPU:{cpus}"),
    TOPOLOGIES,
    st.integers(0, 99),
)
def test_hosts_with_portions_of_their_own_give_their_best_split_or_none(
    world: ClaimScenario, query: str, topology: TopologyPolicy, seed: int
) -> None:
    check_choices(world, wants(query, topology, alternates=9), seed)


@settings(max_examples=examples(200), deadline=None)
@given(worlds_of_topologies, queries | st.just("resources=PCPU:9"))
def test_suggested_changes_help(asked: tuple[ClaimScenario, TopologyPolicy], query: str) -> None:
    world, topology = asked
    wanted = wants(query, topology)
    roots = [each.id for each in world.snapshot if each.parent_id is None]

    def fitting(changed: WantedClaim) -> int:
        return sum(judge(world, changed, root) != NO_WAY for root in roots)

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
    """A host with NUMA nodes that have different bounds for an allocation of PCPU."""
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


def test_spread_combines_caches_of_unlike_steps_in_one_node() -> None:
    specs = [Spec("h"), Spec("h_0", "h", {}, [ZONE]), Spec("h_1", "h", {}, [ZONE])]
    specs.append(Spec("h_0_0", "h_0", {"PCPU": inventory(12, step_size=4, min_unit=2)}))
    specs.append(Spec("h_0_1", "h_0", {"PCPU": inventory(4, min_unit=2)}))
    specs.append(Spec("h_1_0", "h_1", {"PCPU": inventory(9, step_size=3, min_unit=2)}))
    specs.append(Spec("h_1_1", "h_1", {"PCPU": inventory(8, step_size=4, min_unit=3)}))
    found = shares(*specs, query="resources=PCPU:11", topology=TopologyPolicy.SPREAD)
    assert found is not None
    amounts = {name: each["PCPU"] for name, each in found.items()}
    parts = [
        sum(amount for name, amount in amounts.items() if name.startswith(zone)) for zone in ("h_0", "h_1")
    ]
    assert sorted(parts) == [4, 7]


def test_spread_takes_the_most_even_parts_of_three_nodes() -> None:
    specs = [Spec("h")] + [Spec(f"h_{number}", "h", {}, [ZONE]) for number in range(3)]
    specs.append(Spec("h_0_0", "h_0", {"PCPU": inventory(2, min_unit=2)}))
    specs.append(Spec("h_0_1", "h_0", {"PCPU": inventory(16, step_size=4, min_unit=3)}))
    specs.append(Spec("h_1_0", "h_1", {"PCPU": inventory(6, step_size=3, min_unit=2)}))
    specs.append(Spec("h_2_0", "h_2", {"PCPU": inventory(4, step_size=2)}))
    found = shares(*specs, query="resources=PCPU:10", topology=TopologyPolicy.SPREAD)
    assert found is not None
    assert {name: each["PCPU"] for name, each in found.items()} == {"h_0_0": 2, "h_1_0": 6, "h_2_0": 2}


def test_parts_are_as_equal_as_a_min_unit_allows() -> None:
    assert divide_amount(10, [ZoneRoom(0, 4, 8, 1), ZoneRoom(0, 1, 8, 1)]) == [5, 5]


def shares(
    *specs: Spec, query: str, topology: TopologyPolicy, near: Mapping[tuple[str, str], int] | None = None
) -> dict[str, dict[str, int]] | None:
    """The amounts that a choice takes, by the name of the provider."""
    snapshot = build(*specs)
    ids = {each.name: each.id for each in snapshot}
    distances = {(ids[one], ids[other]): far for (one, other), far in (near or {}).items()}
    found = place_claims(
        build_scenario(snapshot, distances=distances),
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


def test_a_claim_leaves_the_provider_that_a_later_claim_needs() -> None:
    snapshot = build(
        Spec("h"),
        Spec("h_0", "h", {}, [ZONE]),
        Spec("h_0_a", "h_0", {"MEMORY_MB": 2}),
        Spec("h_0_b", "h_0", {"MEMORY_MB": inventory(3, max_unit=2)}),
    )
    wanted = [wants(f"resources=MEMORY_MB:{amount}", TopologyPolicy.SINGLE_NUMA) for amount in (1, 4)]
    placed = place_claims(build_scenario(snapshot), wanted, SearchBudget(), random.Random(0))
    assert isinstance(placed, list)
    assert [provider.name for provider, _ in placed[0].choice.resources] == ["h_0_b"]


def test_a_claim_leaves_the_part_that_a_later_claim_needs() -> None:
    snapshot = build(
        Spec("h"),
        Spec("h_0", "h", {"PCPU": 3}, [ZONE]),
        Spec("h_0_c", "h_0", {"PCPU": inventory(4, max_unit=2)}),
    )
    groups = "resources=PCPU:{}&resources_1=PCPU:1&group_policy=none"
    first = wants(groups.format(3), TopologyPolicy.SINGLE_NUMA)
    later = replace(wants(groups.format(2), TopologyPolicy.SINGLE_NUMA), topology=None)
    placed = place_claims(build_scenario(snapshot), [first, later], SearchBudget(), random.Random(0))
    assert isinstance(placed, list)
    assert {each.name: amounts for each, amounts in placed[0].choice.resources} == {
        "h_0": {"PCPU": 2},
        "h_0_c": {"PCPU": 2},
    }
