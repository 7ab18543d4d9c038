"""Builds provider trees of simple hosts."""

from compute_agent.host.topology import HostTopology
from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.inventory.resctrl import CachePlatform

ROOT = "5a8f3e6c-9d5f-4ab0-8f3d-2a6c9a3a1f00"


def tree_of(
    topology: HostTopology,
    options: CpuOptions | None = None,
    platform: CachePlatform | None = None,
    **settings: object,
) -> ProviderTree:
    sets = resolve_cpu_sets(options or CpuOptions(), topology)
    settings = {"reserved_host_memory_mb": 0, **settings}
    return derive_provider_tree(topology, sets, InventorySettings(**settings), ROOT, "host", platform)  # type: ignore[arg-type]  # of many types


def totals(tree: ProviderTree) -> dict[str, dict[str, int]]:
    return {
        node.name: {name: inventory.total for name, inventory in node.inventories.items()}
        for node in tree.nodes
    }
