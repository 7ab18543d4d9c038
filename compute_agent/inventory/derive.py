"""Stub signature; filled in by the next commit."""

from dataclasses import dataclass

from compute_agent.host.topology import Topology
from compute_agent.inventory.cache_platform import CachePlatform
from compute_agent.inventory.cpu_sets import CpuSets
from compute_agent.inventory.tree import ProviderTree


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that shape inventories; amounts in the units of their names."""

    provider_tree: str = "numa"
    cpu_allocation_ratio: float = 4.0
    ram_allocation_ratio: float = 1.0
    disk_allocation_ratio: float = 1.0
    reserved_host_memory_mb: int = 512
    reserved_host_disk_mb: int = 0
    disk_gb: int = 0


def derive(
    topology: Topology,
    cpu_sets: CpuSets,
    settings: Settings,
    root_uuid: str,
    root_name: str,
    platform: CachePlatform | None = None,
) -> ProviderTree:
    """The provider tree of the host."""
    raise NotImplementedError
