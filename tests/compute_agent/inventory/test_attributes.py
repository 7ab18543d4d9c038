"""Tests of the attributes of the agent's providers: distances, tiers of memory, and capacities of CPUs."""

from dataclasses import replace

from compute_agent.host.topology import HostTopology
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.inventory.provider_tree import ProviderNode, child_uuid
from compute_agent.model.cpuset import CpuSets
from tests.compute_agent.inventory.machines import machine

ROOT = "11111111-0000-4000-8000-000000000001"


def nodes_of(topology: HostTopology, shape: str = "numa") -> dict[str, ProviderNode]:
    cpu_sets = CpuSets(frozenset(), topology.online, topology.online)
    tree = derive_provider_tree(topology, cpu_sets, InventorySettings(provider_tree=shape), ROOT, "h")
    return {node.name: node for node in tree.nodes}


def test_every_zone_tells_how_far_it_is_to_each() -> None:
    topology = replace(machine(nodes=2, cores=2), distances={0: {0: 10, 1: 21}, 1: {0: 22, 1: 10}})
    found = nodes_of(topology)
    zero, one = (f"numa_distance.{child_uuid(ROOT, f'NUMA_{number}')}" for number in (0, 1))
    assert found["h_NUMA_0"].attributes == {zero: 10, one: 21}
    assert found["h_NUMA_1"].attributes == {zero: 22, one: 10}
    assert found["h"].attributes == {}
    assert nodes_of(topology, "flat")["h"].attributes == {}


def test_tiers_of_memory_and_capacities_are_told_where_they_are_known() -> None:
    topology = machine(nodes=2, cores=2)
    zero, one = (node.cpus for node in topology.numa_nodes)
    capacities = dict.fromkeys(zero, 1024) | dict.fromkeys(one, 446)
    topology = replace(topology, distances={}, memory_tiers={1: 22}, cpu_capacities=capacities)
    found = nodes_of(topology)
    assert found["h_NUMA_0"].attributes == {"cpu_capacity": 1.0}
    assert found["h_NUMA_1"].attributes == {"memory_tier": 22, "cpu_capacity": 0.436}
