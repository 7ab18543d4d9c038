"""A host with two NUMA nodes, a provider for each node, and a provider of another host."""

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.cpuset import CpuSets
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(nodes=2, cores=4)
ROOT = "11111111-0000-4000-8000-000000000000"
NODES = ["11111111-0000-4000-8000-000000000001", "11111111-0000-4000-8000-000000000002"]
ELSEWHERE = "11111111-0000-4000-8000-00000000000f"
INVENTORIES = {
    "PCPU": ProviderInventory(2, max_unit=2),
    "VCPU": ProviderInventory(1, max_unit=4, allocation_ratio=4.0),
}
TREE = ProviderTree(
    (
        ProviderNode("h", ROOT, None, cpus=TOPOLOGY.online),
        *(
            ProviderNode(f"h_{n.id}", NODES[n.id], ROOT, INVENTORIES, cpus=n.cpus)
            for n in TOPOLOGY.numa_nodes
        ),
    )
)
SETS = CpuSets(frozenset({1, 2, 5, 6}), frozenset({3, 7}), frozenset({3, 7}))
