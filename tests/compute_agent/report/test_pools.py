"""Tests that CPUs that guests of another pool hold are not offered until these guests have left them."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.cpuset import CpuSets
from compute_agent.report.capacity import CpuLocation, Held
from compute_agent.report.held_amounts import keep_held_cpus
from compute_agent.report.plan import OwnedNames, ReportedProvider
from compute_agent.report.reshape import ReshapePlan, plan_reshape
from tests.compute_agent.inventory.machines import machine


def tree(name: str, totals: Mapping[str, int], ratio: float = 1.0) -> ProviderTree:
    """A provider tree with a zone named ``zone``. All other providers are pools of this zone."""
    nodes = [ProviderNode("h", "root", None)]
    for uuid, total in totals.items():
        offered = {name: ProviderInventory(total, max_unit=total, allocation_ratio=ratio)} if total else {}
        pool = "" if uuid == "zone" else uuid
        nodes.append(ProviderNode(uuid, uuid, "zone" if pool else "root", offered, pool=pool))
    return ProviderTree(tuple(nodes))


def as_reported(found: ProviderTree) -> dict[str, ReportedProvider]:
    return {
        node.uuid: ReportedProvider(node.uuid, node.name, node.parent, 1, node.inventories)
        for node in found.nodes
    }


def offered(found: ProviderTree, name: str) -> dict[str, tuple[int, int]]:
    return {
        node.uuid: (node.inventories[name].total, node.inventories[name].reserved)
        for node in found.nodes
        if name in node.inventories
    }


def test_a_pool_reserves_what_guests_of_the_zone_hold_of_its_cpus() -> None:
    before = as_reported(tree("PCPU", {"zone": 8}))
    held = {"zone": 6}
    wanted = tree("PCPU", {"zone": 4, "gold": 4})
    found, waiting = keep_held_cpus(wanted, before, lambda uuid, name: held.get(uuid, 0))
    assert offered(found, "PCPU") == {"zone": (4, 0), "gold": (4, 2)}
    (sentence,) = waiting
    assert "guests hold 6 CPUs as PCPU, but it has only 4" in sentence
    held["zone"] = 4
    assert keep_held_cpus(wanted, before, lambda uuid, name: held.get(uuid, 0)) == (wanted, ())


def test_the_zone_reserves_what_members_of_a_smaller_pool_hold() -> None:
    before = as_reported(tree("VCPU", {"zone": 4, "gold": 4}, ratio=4.0))
    wanted = tree("VCPU", {"zone": 6, "gold": 2}, ratio=4.0)
    found, _ = keep_held_cpus(wanted, before, lambda uuid, name: {"gold": 13}.get(uuid, 0))
    assert offered(found, "VCPU") == {"zone": (6, 2), "gold": (2, 0)}


def test_held_amounts_are_not_read_without_pools() -> None:
    wanted = tree("PCPU", {"zone": 4})
    assert keep_held_cpus(wanted, as_reported(wanted), None) == (wanted, ())  # type: ignore[arg-type]


totals = st.fixed_dictionaries({uuid: st.integers(0, 6) for uuid in ("zone", "gold", "silver")})


@given(totals, st.data(), st.sampled_from([1.0, 1.5, 4.0]))
def test_free_and_held_cpus_are_never_more_than_the_zone_has(
    now: dict[str, int], data: st.DataObject, ratio: float
) -> None:
    """The CPUs of the zone may have been divided in any way before, as long as the held amounts fit into the
    zone.
    """
    there = sum(now.values())
    cuts = sorted(data.draw(st.lists(st.integers(0, there), min_size=2, max_size=2)))
    before = dict(zip(now, (cuts[0], cuts[1] - cuts[0], there - cuts[1]), strict=True))
    held = {uuid: data.draw(st.integers(0, int(total * ratio))) for uuid, total in before.items()}
    reported = as_reported(tree("VCPU", before, ratio))
    found, _ = keep_held_cpus(tree("VCPU", now, ratio), reported, lambda uuid, name: held.get(uuid, 0))
    taken = 0
    for uuid, (total, reserved) in offered(found, "VCPU").items():
        assert 0 <= reserved <= total
        assert total == now[uuid]
        claimable = max(held[uuid], int((total - reserved) * ratio))
        taken += -(-claimable // ratio)
    taken += sum(-(-held[uuid] // ratio) for uuid in now if not now[uuid])
    assert taken <= there


ROOT = "5a8f3e6c-9d5f-4ab0-8f3d-2a6c9a3a1f00"
TOPOLOGY = machine(nodes=2, cores=4)
"""CPUs 0-3 and 4-7; 0 and 4 are shared."""


def host(pool: frozenset[int]) -> ProviderTree:
    shared = frozenset({0, 4})
    sets = CpuSets(TOPOLOGY.online - shared, shared, shared, pooled=pool)
    settings = InventorySettings(reserved_host_memory_mb=0)
    return derive_provider_tree(TOPOLOGY, sets, settings, ROOT, "h", None, {"gold": pool} if pool else {})


def reshaped(
    before: ProviderTree, after: ProviderTree, held: Held, locations: Mapping[str, CpuLocation]
) -> list[tuple[str, str, str, int]]:
    """The moves of a reshape: the consumer, the names of source and target, and the amounts."""
    names = {node.uuid: node.name for tree in (before, after) for node in tree.nodes}
    owned = {node.uuid: OwnedNames(frozenset(node.inventories), node.traits) for node in before.nodes}
    zones = {node.uuid: node.cpus for tree in (before, after) for node in tree.nodes}
    planned = plan_reshape(after, as_reported(before), owned, held, locations, zones)
    assert isinstance(planned, ReshapePlan)
    return [
        (move.consumer, names[move.source], names[move.target], move.target_amount) for move in planned.moves
    ]


def test_allocations_of_a_removed_pool_move_to_the_zone_of_its_cpus() -> None:
    before, after = host(frozenset({2, 3, 4, 5})), host(frozenset())
    gold = {node.name: node.uuid for node in before.nodes if node.pool}
    held = {
        "runs": {gold["h_NUMA_0_POOL_gold"]: {"PCPU": 2}},
        "waits": {gold["h_NUMA_1_POOL_gold"]: {"PCPU": 1, "VCPU": 1}},
    }
    locations = {"runs": CpuLocation(frozenset({2, 3}), frozenset(), 2)}
    assert reshaped(before, after, held, locations) == [
        ("runs", "h_NUMA_0_POOL_gold", "h_NUMA_0", 2),
        ("waits", "h_NUMA_1_POOL_gold", "h_NUMA_1", 1),
        ("waits", "h_NUMA_1_POOL_gold", "h_NUMA_1", 1),
    ]


def test_a_new_pool_moves_nothing_that_guests_hold() -> None:
    before, after = host(frozenset()), host(frozenset({2, 3}))
    zone = next(node.uuid for node in before.nodes if node.name == "h_NUMA_0")
    locations = {"runs": CpuLocation(frozenset({2, 3}), frozenset(), 2)}
    assert reshaped(before, after, {"runs": {zone: {"PCPU": 2}}}, locations) == []


def test_an_allocation_that_moves_between_shapes_stays_out_of_pools() -> None:
    """The allocation has no running guest. A flat tree becomes NUMA nodes with a pool."""
    sets = CpuSets(TOPOLOGY.online, frozenset(), frozenset())
    flat = derive_provider_tree(
        TOPOLOGY, sets, InventorySettings("flat", reserved_host_memory_mb=0), ROOT, "h"
    )
    pool = frozenset({0, 1, 2})
    nodes = derive_provider_tree(
        TOPOLOGY,
        CpuSets(TOPOLOGY.online, frozenset(), frozenset(), pooled=pool),
        InventorySettings(reserved_host_memory_mb=0),
        ROOT,
        "h",
        None,
        {"gold": pool},
    )
    moves = reshaped(flat, nodes, {"waits": {ROOT: {"PCPU": 3}}}, {})
    assert moves == [("waits", "h", "h_NUMA_1", 3)]
