"""Tests that the best choice by a claim's order is that of a brute-force search, in random small clouds.

With PLACEMENT_EXAMPLES_PERCENT=400, two thousand clouds are tried.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import combinations
from statistics import mean
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from placement.read_model.provider import SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.schemas import candidates
from placement.search import compiled_request
from placement.search.budget import SearchBudget
from placement.search.claims.claim import ClaimScenario, Order, WantedClaim
from placement.search.claims.placement import PlacedClaim, UnplacedClaim, place_claims
from placement.search.claims.scores import CRITERIA
from placement.search.claims.topology import Distances
from placement.store.groups import ConsumerGroup, GroupPolicy
from tests.examples import examples
from tests.placement.search import brute
from tests.placement.search.claims.strategies import OWNER, anything, zoned
from tests.placement.search.device_hosts import device_requests, unlike_hosts
from tests.placement.search.snapshots import Spec, build, build_scenario, inventory, name_to_uuid

TAKEN = frozenset[tuple[int, str, int]]
device_worlds = st.tuples(unlike_hosts(most_devices=4), device_requests())
orders = st.dictionaries(
    st.sampled_from(sorted(CRITERIA)), st.sampled_from((0.5, 1.0, 2.0, 3.0)), min_size=1, max_size=3
)


def pack(snapshot: ModelSnapshot, root: Provider, taken: TAKEN) -> float:
    used: defaultdict[str, int] = defaultdict(int)
    there: defaultdict[str, int] = defaultdict(int)
    classes = {name for _, name, _ in taken}
    for provider in snapshot:
        for name in classes & provider.inventories.keys():
            mine = [amount for each, what, amount in taken if (each, what) == (provider.id, name)]
            if provider.root_id == root.id or mine:
                there[name] += provider.inventories[name].capacity
                used[name] += provider.used.get(name, 0) + sum(mine)
    return sum(min(1.0, used[name] / there[name]) for name in classes) / len(classes)


def zone_ids(snapshot: ModelSnapshot, taken: TAKEN) -> set[int]:
    found = set()
    for provider_id, _, _ in taken:
        marked = [
            each for each in brute.ancestry(snapshot, provider_id) if ZONE in snapshot.providers[each].traits
        ]
        found |= set(marked[:1])
    return found


def zones(snapshot: ModelSnapshot, root: Provider, taken: TAKEN) -> float:
    return 1 / max(1, len(zone_ids(snapshot, taken)))


def distance(distances: Distances, snapshot: ModelSnapshot, taken: TAKEN) -> float:
    apart = [distances.get(pair, 20) for pair in combinations(sorted(zone_ids(snapshot, taken)), 2)]
    return 10 / mean(apart) if apart else 1.0


def nearness(snapshot: ModelSnapshot, way: brute.Found) -> float:
    """The mean, over all pairs of providers, of the levels from the lower provider up to the nearest common
    ancestor.
    """
    taken = {provider_id for provider_id, _, _ in way[0]}
    ids = {provider_id for suffix, provider_id in way[1] if suffix and provider_id in taken}
    levels = []
    for one, other in combinations(ids, 2):
        above, below = brute.ancestry(snapshot, one), brute.ancestry(snapshot, other)
        # a provider of another tree counts as beyond the root
        top = next((each for each in above if each in below), None)
        levels.append(max(len(above), len(below)) if top is None else max(above.index(top), below.index(top)))
    return 1 / mean(levels) if levels else 1.0


def fit(snapshot: ModelSnapshot, root: Provider, taken: TAKEN) -> float:
    shares = []
    for provider_id, name, amount in taken:
        provider = snapshot.providers[provider_id]
        shares.append(amount / (provider.inventories[name].capacity - provider.used.get(name, 0)))
    return max(shares)


def group(wanted: WantedClaim, members: Mapping[int, int], root: Provider) -> float:
    assert wanted.group is not None
    if "anti" in wanted.group.policy:
        return 1 / (1 + members.get(root.id, 0))
    return members.get(root.id, 0) / max(1, sum(members.values()))


JUDGES: dict[str, Callable[[ModelSnapshot, Provider, TAKEN], float]] = {
    "pack": pack,
    "spread": lambda *situation: 1 - pack(*situation),
    "numa_nodes": zones,
    "best_fit": fit,
}


def value(name: str, world: ClaimScenario, wanted: WantedClaim, root: Provider, way: brute.Found) -> float:
    taken = way[0]
    if name == "distance":
        return nearness(world.snapshot, way)
    if name == "group":
        return group(wanted, world.groups["g"], root)
    if name == "numa_distance":
        return distance(world.distances, world.snapshot, taken)
    return JUDGES[name](world.snapshot, root, taken)


def totals(world: ClaimScenario, wanted: WantedClaim) -> dict[int, list[float]]:
    """The total scores of all choices, by the root of their host."""
    snapshot = world.snapshot
    found: dict[int, list[float]] = {}
    for root in snapshot:
        if root.parent_id is None and brute.root_is_right(root, wanted.request):
            ways = {
                brute.comparable(assignment)
                for assignment in brute.assignments(snapshot, root, wanted.request)
                if all(rule(snapshot, wanted.request, assignment) for rule in brute.RULES)
            }
            values = [
                sum(weight * value(name, world, wanted, root, way) for name, weight in wanted.order)
                for way in ways
            ]
            if values:
                found[root.id] = values
    return found


@settings(
    max_examples=examples(500),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(
    anything | device_worlds,
    orders,
    st.sampled_from((GroupPolicy.SOFT_AFFINITY, GroupPolicy.SOFT_ANTI_AFFINITY)),
    st.data(),
)
def test_the_best_choice_is_made_and_alternates_are_the_best_of_other_hosts(situation, order, policy, data):  # type: ignore[no-untyped-def]
    snapshot, request = zoned(situation[0]), situation[1]
    named = frozenset[str]().union(*request.same_subtrees)
    assume(all(group.resources or group.suffix in named for group in request.groups))
    # a choice of sharing providers alone is found once, wherever it is anchored
    assume(not any("MISC_SHARES_VIA_AGGREGATE" in each.traits for each in snapshot))
    roots = st.sampled_from(sorted(snapshot.trees))
    members = data.draw(st.dictionaries(roots, st.integers(1, 3), max_size=3))
    near = data.draw(st.integers(11, 40))
    zone_pairs = combinations(sorted(each.id for each in snapshot if ZONE in each.traits), 2)
    world = build_scenario(snapshot, {"g": members}, {pair: near for pair in zone_pairs if sum(pair) % 2})
    joins = ConsumerGroup("g", policy)
    wanted = WantedClaim(
        "c", None, OWNER, request, (1, 39), alternates=9, order=tuple(order.items()), group=joins
    )
    possible = totals(world, wanted)
    rng = random.Random(data.draw(st.integers(0, 99)))
    # with 1, equal devices are distinguished on each host; with 8, only on hosts with many ways
    with patch.object(compiled_request, "_WIDE", data.draw(st.sampled_from((1, 8)))):
        found = place_claims(world, [wanted], SearchBudget(), rng)
    if isinstance(found, UnplacedClaim):
        assert not possible
        return
    best, alternates = found[0].choice, found[0].alternates
    assert best.score is not None
    assert best.score.total == pytest.approx(max(max(values) for values in possible.values()))
    left = {root: max(values) for root, values in possible.items() if root != best.root.id}
    assert {each.root.id: each.score.total for each in alternates if each.score} == pytest.approx(left)
    listed = [each.score.total for each in alternates if each.score]
    assert listed == sorted(listed, reverse=True)


def test_a_device_with_the_trait_of_numa_nodes_is_not_equal_to_its_siblings() -> None:
    devices = (Spec("d0", "n", {"CUSTOM_GPU": 1}, [ZONE]), Spec("d1", "n", {"CUSTOM_GPU": 1}))
    snapshot = build(Spec("h"), Spec("n", "h", {"PCPU": 1}, [ZONE]), *devices)
    query = "resources_d=CUSTOM_GPU:1&resources_cpu=PCPU:1&group_policy=none&same_subtree=_d,_cpu"
    with patch.object(compiled_request, "_WIDE", 1):
        score = chosen(snapshot, query, (("numa_nodes", 1.0),)).choice.score
    assert score is not None
    assert score.total == 1


def chosen(
    snapshot: ModelSnapshot, query: str, order: Order, avoid: frozenset[str] = frozenset()
) -> PlacedClaim:
    asked = candidates.parse_body({"query": query, "flavor": None, "microversion": "1.39"}, {})
    wanted = WantedClaim("c", None, OWNER, asked.request, asked.version, order=order, avoid=avoid)
    found = place_claims(build_scenario(snapshot), [wanted], SearchBudget(), random.Random(0))
    assert isinstance(found, list)
    return found[0]


def nodes(name: str, *used: int) -> list[Spec]:
    """A host with NUMA nodes of 8 PCPU each. The arguments are the numbers of used PCPU."""
    return [Spec(name)] + [
        Spec(f"{name}_{number}", name, {"PCPU": 8}, [ZONE], used={"PCPU": each})
        for number, each in enumerate(used)
    ]


@pytest.mark.parametrize(
    ("order", "root", "criteria"),
    [
        ((("pack", 1.0),), "full", {"pack": 1.0}),
        ((("spread", 1.0),), "empty", {"spread": 0.75}),
        ((("numa_nodes", 2.0), ("pack", 1.0)), "half", {"numa_nodes": 1.0, "pack": 0.5}),
        ((("best_fit", 1.0), ("numa_nodes", 0.1)), "half", {"best_fit": 1.0, "numa_nodes": 1.0}),
        ((("numa_distance", 2.0), ("pack", 1.0)), "half", {"numa_distance": 1.0, "pack": 0.5}),
    ],
)
def test_each_criterion_prefers_its_kind_of_host(order: Order, root: str, criteria: dict[str, float]) -> None:
    snapshot = build(*nodes("empty", 0, 0), *nodes("half", 0, 4), *nodes("full", 6, 6))
    found = chosen(snapshot, "resources1=PCPU:2&resources2=PCPU:2&group_policy=none", order)
    assert found.choice.root.name == root
    assert found.choice.score is not None
    assert found.choice.score.criteria == pytest.approx(criteria)
    assert found.choice.score.total == pytest.approx(sum(weight * criteria[name] for name, weight in order))


@pytest.mark.parametrize(
    ("used", "nic", "score"), [((), "nic0", 1), (("nic0",), "nic1", 1 / 2), (("nic0", "nic1"), "nic2", 1 / 3)]
)
def test_a_nic_below_the_switch_of_the_gpu_is_nearest(used: tuple[str, ...], nic: str, score: float) -> None:
    snapshot = build(
        Spec("h"),
        *(Spec(f"n{node}", "h", {"PCPU": 8}, [ZONE]) for node in range(2)),
        *(Spec(f"sw{switch}", f"n{switch // 2}") for switch in range(4)),
        Spec("gpu", "sw0", {"CUSTOM_GPU": 1}),
        *(
            Spec(
                f"nic{number}", f"sw{number}", {"CUSTOM_NIC": 1}, used={"CUSTOM_NIC": f"nic{number}" in used}
            )
            for number in range(3)
        ),
    )
    query = "resources_g=CUSTOM_GPU:1&resources_n=CUSTOM_NIC:1&group_policy=none"
    choice = chosen(snapshot, query, (("distance", 1.0),)).choice
    assert [each.name for each in choice.mappings["_n"]] == [nic]
    assert choice.score is not None
    assert choice.score.total == pytest.approx(score)


def test_the_device_with_least_left_fits_best_of_many() -> None:
    devices = (
        Spec(f"d{number}", "h", {"VF": inventory(8, max_unit=1)}, used={"VF": 7 * (number == 7)})
        for number in range(8)
    )
    choice = chosen(build(Spec("h"), *devices), "resources_v=VF:1", (("best_fit", 1.0),)).choice
    assert [each.name for each in choice.mappings["_v"]] == ["d7"]


@pytest.mark.parametrize(
    ("avoid", "capacity", "pool"), [((), 100, "pool0"), (("pool0",), 100, "pool1"), ((), 1000, "pool7")]
)
def test_every_pool_is_compared(avoid: tuple[str, ...], capacity: int, pool: str) -> None:
    """Eight pools have 100 GB free; with a larger capacity the last one is the fullest."""
    sizes = [100] * 7 + [capacity]
    snapshot = build(
        *(
            Spec(f"pool{number}", None, {"DISK_GB": size}, [SHARES], ["a"], {"DISK_GB": size - 100})
            for number, size in enumerate(sizes)
        ),
        Spec("h", None, {"VCPU": 8}, [], ["a"]),
    )
    avoided = frozenset(map(name_to_uuid, avoid))
    choice = chosen(snapshot, "resources=VCPU:1,DISK_GB:10", (("pack", 1.0),), avoided).choice
    assert [provider.name for provider, _ in choice.resources] == ["h", pool]


@settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
@given(anything, orders.map(lambda order: {name: order[name] for name in order if name != "group"}))
def test_amounts_of_shared_pools_count_for_the_criteria(situation, order):  # type: ignore[no-untyped-def]
    snapshot, request = zoned(situation[0]), situation[1]
    named = frozenset[str]().union(*request.same_subtrees)
    assume(all(group.resources or group.suffix in named for group in request.groups))
    assume(order and any("MISC_SHARES_VIA_AGGREGATE" in each.traits for each in snapshot))
    world = build_scenario(snapshot)
    wanted = WantedClaim("c", None, OWNER, request, (1, 39), alternates=9, order=tuple(order.items()))
    found = place_claims(world, [wanted], SearchBudget(), random.Random(0))
    for choice in () if isinstance(found, UnplacedClaim) else (found[0].choice, *found[0].alternates):
        taken = frozenset(
            (provider.id, name, amount)
            for provider, amounts in choice.resources
            for name, amount in amounts.items()
        )
        assert choice.score is not None
        mapped = frozenset(
            (suffix, provider.id) for suffix, served in choice.mappings.items() for provider in served
        )
        expected = {name: value(name, world, wanted, choice.root, (taken, mapped)) for name in order}
        assert choice.score.criteria == pytest.approx(expected)
