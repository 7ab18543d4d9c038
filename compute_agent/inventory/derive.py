"""Derives the provider tree: a pure function of topology, CPU sets, options and resctrl capabilities."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from compute_agent.host.topology import HostTopology, NumaNode
from compute_agent.inventory import attributes, traits
from compute_agent.inventory.attributes import HostZone, zone_layout
from compute_agent.inventory.cpu_pools import PoolPart, Positions, list_pool_parts, pool_trait
from compute_agent.inventory.memory import SUFFIX, check_reserved, page_inventories, pages_mb, with_reclaimed
from compute_agent.inventory.provider_tree import (
    NAME_LIMIT,
    Field,
    ProviderInventory,
    ProviderNode,
    ProviderTree,
    child_uuid,
    with_stock_names,
)
from compute_agent.inventory.resctrl import CacheDomain, CachePlatform
from compute_agent.model.cpuset import CpuSet, CpuSets
from compute_agent.model.messages import ConfigError
from compute_agent.model.resource import RESCTRL_GROUP

SHAPES: Final = ("flat", "numa", "l3")

BESIDE: Final = "beside"
"""The value of ``[compute] provider_tree`` for a tree below the root provider of a nova-compute."""

CONFIGURABLE: Final[Mapping[str, tuple[str, Field]]] = {
    "cpu_allocation_ratio": ("VCPU", "allocation_ratio"),
    "ram_allocation_ratio": ("MEMORY_MB", "allocation_ratio"),
    "disk_allocation_ratio": ("DISK_GB", "allocation_ratio"),
    "reserved_host_cpus": ("VCPU", "reserved"),
    "reserved_host_memory_mb": ("MEMORY_MB", "reserved"),
    "reserved_host_disk_mb": ("DISK_GB", "reserved"),
}
"""The options of ``[DEFAULT]`` that set a field of an inventory, with the resource class and the field."""

_RESCTRL: Final = "RESCTRL"
"""The last part of the name of the provider of resctrl groups, which exists only in a tree beside
nova-compute."""


@dataclass(frozen=True, slots=True)
class InventorySettings:
    """The options for inventories. The unit of an amount is part of the field's name.

    If the ini file sets no allocation ratio, the field has the value of the option
    ``initial_*_allocation_ratio``. This ratio applies only to new inventories.

    :ivar reserved_huge_pages: the number of reserved pages by NUMA node and page size in KiB.
    :ivar configured: the names of the options that the ini file sets.
    """

    provider_tree: str = "numa"
    cpu_allocation_ratio: float = 4.0
    ram_allocation_ratio: float = 1.0
    disk_allocation_ratio: float = 1.0
    reserved_host_memory_mb: int = 512
    reserved_host_disk_mb: int = 0
    disk_gb: int = 0
    huge_pages: bool = False
    reclaimed: bool = False
    reclaimed_memory: bool = False
    reserved_huge_pages: Mapping[tuple[int, int], int] = field(default_factory=dict)
    configured: frozenset[str] = frozenset()


def derive_provider_tree(
    topology: HostTopology,
    cpu_sets: CpuSets,
    settings: InventorySettings,
    root_uuid: str,
    root_name: str,
    platform: CachePlatform | None = None,
    pools: Positions = MappingProxyType({}),
) -> ProviderTree:
    """The provider tree of the host, with the root first.

    In the shape ``beside`` the root belongs to nova-compute, and the agent's providers are below it. This
    tree has no NUMA nodes, because the root already offers their CPUs and memory. Nova chooses the NUMA node
    of a guest without Placement.

    :param platform: the capabilities of resctrl; None means that resctrl is not available.
    :raises ConfigError: the settings contradict the hardware of the host.
    """
    _check_settings(settings, root_name, pools)
    control = platform or CachePlatform()
    controlled = {
        l3_id
        for l3_id, domain in control.domains.items()
        if domain.ways > 0 or domain.bandwidth_min is not None
    }
    if settings.provider_tree == BESIDE:
        tree = _tree_beside_nova(
            topology, control, zone_layout(topology, "flat", controlled), root_uuid, root_name
        )
        if not settings.reclaimed:
            return tree
        # nova-compute offers the host's memory at its root provider. The agent's tree does not contain this
        # inventory, so the amount is computed here.
        memory_mb = sum(node.memory_kib for node in topology.numa_nodes) // 1024
        unreserved = max(0, memory_mb - settings.reserved_host_memory_mb)
        return with_reclaimed(tree, cpu_sets, settings.reclaimed_memory, unreserved)
    zones = zone_layout(topology, settings.provider_tree, controlled)
    homes = _home_cpus(topology, zones)
    pool_parts = list_pool_parts(pools, homes)
    # The providers of pools offer the CPUs of pools, so neither zones nor the root offer these CPUs.
    pooled = frozenset[int]().union(*pools.values())
    own = [home - pooled for _, home in homes]
    on_root, by_zone = _host_inventories(topology, cpu_sets, settings, zones, own)
    for zone in zones:
        if zone.l3 is not None and zone.l3.id in control.domains:
            by_zone[zone.name].update(_cache_inventories(control.domains[zone.l3.id]))
    on_root |= {**_disk_inventory(settings), **_group_inventory(control)}
    root = _root(topology, root_uuid, root_name, on_root, traits.root_traits(topology, control.features))
    children = _zone_nodes(root, zones, by_zone, control, topology)
    children += [_pool_provider(root, part, cpu_sets, settings, topology) for part in pool_parts]
    configured = frozenset(field for option, field in CONFIGURABLE.items() if option in settings.configured)
    tree = ProviderTree((root, *children), configured)
    return with_reclaimed(tree, cpu_sets, settings.reclaimed_memory) if settings.reclaimed else tree


def _tree_beside_nova(
    topology: HostTopology, control: CachePlatform, zones: Sequence[HostZone], root_uuid: str, root_name: str
) -> ProviderTree:
    """The tree below the root of a nova-compute. The root has no inventories and no traits of the agent.

    The resource classes have the names that Nova accepts in extra specs: since microversion 2.86, CUSTOM_LLC
    and not LLC.
    """
    root = _root(topology, root_uuid, root_name, {}, frozenset())
    found: dict[str, Mapping[str, ProviderInventory]] = {
        zone.name: _cache_inventories(control.domains[zone.l3.id])
        for zone in zones
        if zone.l3 is not None and zone.l3.id in control.domains
    }
    children = _zone_nodes(root, zones, found, control, topology)
    features = traits.resctrl_traits(control.features)
    groups = _group_inventory(control)
    if groups or features:
        uuid = child_uuid(root_uuid, _RESCTRL)
        children.append(ProviderNode(f"{root_name}_{_RESCTRL}", uuid, root_uuid, groups, features))
    return with_stock_names(ProviderTree((root, *children), beside=True))


def _root(
    topology: HostTopology,
    uuid: str,
    name: str,
    inventories: Mapping[str, ProviderInventory],
    offered: frozenset[str],
) -> ProviderNode:
    return ProviderNode(
        name=name,
        uuid=uuid,
        parent=None,
        inventories=inventories,
        traits=offered,
        cpus=topology.usable,
        numa_nodes=frozenset(node.id for node in topology.numa_nodes),
        l3_ids=frozenset(cache.id for cache in topology.l3_domains),
    )


def _zone_nodes(
    root: ProviderNode,
    zones: Sequence[HostZone],
    inventories: Mapping[str, Mapping[str, ProviderInventory]],
    control: CachePlatform,
    topology: HostTopology,
) -> list[ProviderNode]:
    """The providers of the zones.

    :param inventories: the inventories by zone name and resource class.
    """
    return [
        ProviderNode(
            name=f"{root.name}_{zone.name}",
            uuid=child_uuid(root.uuid, zone.name),
            parent=root.uuid if zone.parent is None else child_uuid(root.uuid, zone.parent),
            inventories=inventories[zone.name],
            traits=_zone_traits(zone, control, topology),
            attributes=attributes.of_zone(topology, zones, zone, root.uuid),
            cpus=zone.cpus,
            numa_nodes=zone.numa_nodes,
            l3_ids=zone.l3_ids,
        )
        for zone in zones
    ]


def _home_cpus(topology: HostTopology, zones: Sequence[HostZone]) -> list[tuple[str | None, CpuSet]]:
    """The CPUs that belong to each zone, by the zone's name, and to the root (name None)."""
    homeless = topology.usable.difference(*(zone.home_of for zone in zones))
    return [(None, homeless), *((zone.name, zone.home_of) for zone in zones)]


def _pool_provider(
    root: ProviderNode, part: PoolPart, cpu_sets: CpuSets, settings: InventorySettings, topology: HostTopology
) -> ProviderNode:
    """The provider of the part of a pool in one zone."""
    offered = {
        "PCPU": _simple_inventory(len(part.cpus & cpu_sets.dedicated)),
        "VCPU": _simple_inventory(len(part.cpus & cpu_sets.shared), ratio=settings.cpu_allocation_ratio),
    }
    return ProviderNode(
        name=f"{root.name}_{part.name}",
        uuid=child_uuid(root.uuid, part.name),
        parent=root.uuid if part.zone is None else child_uuid(root.uuid, part.zone),
        inventories={name: inventory for name, inventory in offered.items() if inventory.total},
        traits=frozenset({pool_trait(part.pool)}),
        cpus=part.cpus,
        numa_nodes=topology.nodes_of(part.cpus),
        l3_ids=frozenset(cache.id for cache in topology.l3_domains if cache.cpus & part.cpus),
        pool=part.pool,
    )


def _host_inventories(
    topology: HostTopology,
    cpu_sets: CpuSets,
    settings: InventorySettings,
    zones: Sequence[HostZone],
    places: Sequence[CpuSet],
) -> tuple[dict[str, ProviderInventory], dict[str, dict[str, ProviderInventory]]]:
    """The CPU and memory inventories of the root, and of each zone by its name.

    The root offers all amounts that belong to no zone: everything in a flat tree, CPUs without a NUMA node,
    and the memory if the kernel shows only its sum. Reserves of the host are divided over root and zones in
    proportion to their amounts.

    :param places: the CPUs in no pool, first of the root and then of each zone.
    """
    # The first entry is for the root, and has no nodes, because the zones of the nodes offer the memory of
    # the nodes.
    nodes: list[Sequence[NumaNode]] = [(), *((zone.node,) if zone.node else () for zone in zones)]
    memory_mb = [sum(node.memory_kib for node in here) // 1024 for here in nodes]
    # No zone has memory in a flat tree, or if the kernel shows only the sum. Then the root offers all memory.
    if not any(memory_mb):
        nodes[0] = topology.numa_nodes
        memory_mb[0] = (sum(node.memory_kib for node in topology.numa_nodes) or topology.memory_kib) // 1024
    pages: list[dict[str, ProviderInventory]] = [{} for _ in places]
    if settings.huge_pages:
        check_reserved(settings.reserved_huge_pages, topology)
        pages = [page_inventories(here, settings.reserved_huge_pages) for here in nodes]
        # Memory in huge pages is subtracted, because it would otherwise be offered twice.
        memory_mb = [max(0, mb - pages_mb(here)) for mb, here in zip(memory_mb, nodes, strict=True)]
    if settings.reserved_host_memory_mb > sum(memory_mb) > 0:
        raise ConfigError(
            f"[DEFAULT] reserved_host_memory_mb = {settings.reserved_host_memory_mb} is more than the"
            f" {sum(memory_mb)} MiB that the host has"
        )
    vcpus = [len(place & cpu_sets.shared) for place in places]
    reserved_vcpus = spread_amount(cpu_sets.reserved_vcpus, vcpus)
    # The reserved memory is on nodes with CPUs, because the host does not use memory of expanders and GPUs.
    near_mb = [
        memory_mb[0],
        *(memory if zone.cpus else 0 for zone, memory in zip(zones, memory_mb[1:], strict=True)),
    ]
    enough = sum(near_mb) >= settings.reserved_host_memory_mb
    reserved_mb = spread_amount(settings.reserved_host_memory_mb, near_mb if enough else memory_mb)
    found: list[dict[str, ProviderInventory]] = []
    for place, vcpu, vcpu_reserved, memory, memory_reserved, in_pages in zip(
        places, vcpus, reserved_vcpus, memory_mb, reserved_mb, pages, strict=True
    ):
        offered = {
            "PCPU": _simple_inventory(len(place & cpu_sets.dedicated)),
            "VCPU": _simple_inventory(vcpu, vcpu_reserved, settings.cpu_allocation_ratio),
            "MEMORY_MB": _simple_inventory(memory, memory_reserved, settings.ram_allocation_ratio),
            **in_pages,
        }
        # Placement refuses an inventory with a total of 0.
        found.append({name: inventory for name, inventory in offered.items() if inventory.total})
    return found[0], {zone.name: inventories for zone, inventories in zip(zones, found[1:], strict=True)}


def spread_amount(amount: int, weights: Sequence[int]) -> list[int]:
    """Divide ``amount`` into whole numbers (parts) in proportion to ``weights``.

    No part exceeds its weight. The sum of the parts is the smaller one of ``amount`` and the sum of the
    weights. Units that remain after rounding down go to the parts with the largest remainders, and among
    equal remainders to the first parts.
    """
    whole = sum(weights)
    amount = min(amount, whole)
    if not amount:
        return [0] * len(weights)
    shares = [amount * weight // whole for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(amount * weights[i] % whole))
    for index in by_remainder[: amount - sum(shares)]:
        shares[index] += 1
    return shares


def _simple_inventory(total: int, reserved: int = 0, ratio: float = 1.0) -> ProviderInventory:
    # Placement refuses a max_unit below 1.
    return ProviderInventory(total=total, reserved=reserved, max_unit=max(total, 1), allocation_ratio=ratio)


def _disk_inventory(settings: InventorySettings) -> Mapping[str, ProviderInventory]:
    if settings.disk_gb <= 0:
        return {}
    # Nova, too, rounds the reserve up to GiB.
    reserved_gb = -(-settings.reserved_host_disk_mb // 1024)
    if reserved_gb > settings.disk_gb:
        raise ConfigError(
            f"[DEFAULT] reserved_host_disk_mb = {settings.reserved_host_disk_mb} is more than the"
            f" {settings.disk_gb} GiB of the file system of [DEFAULT] state_path"
        )
    return {"DISK_GB": _simple_inventory(settings.disk_gb, reserved_gb, settings.disk_allocation_ratio)}


def _group_inventory(control: CachePlatform) -> Mapping[str, ProviderInventory]:
    if control.groups <= 0:
        return {}
    return {RESCTRL_GROUP: _simple_inventory(control.groups, min(control.groups_taken, control.groups))}


def _cache_inventories(domain: CacheDomain) -> Mapping[str, ProviderInventory]:
    """The inventories of an L3 cache: ``LLC`` in ways (shared ways are reserved), ``MBA`` in percent."""
    found = {}
    if domain.ways > 0:
        found["LLC"] = ProviderInventory(
            total=domain.ways,
            reserved=min(domain.reserved_ways, domain.ways),
            min_unit=domain.min_ways,
            max_unit=domain.ways,
        )
    if domain.bandwidth_min is not None:
        found["MBA"] = ProviderInventory(
            total=100, min_unit=domain.bandwidth_min, max_unit=100, step_size=domain.bandwidth_step or 1
        )
    return found


def _zone_traits(zone: HostZone, control: CachePlatform, topology: HostTopology) -> frozenset[str]:
    if zone.node is not None:
        memory = topology.memory_types.get(zone.node.id)
        return frozenset({traits.NUMA_ROOT, *([] if memory is None else [traits.memory_trait(memory)])})
    if zone.l3 is None:
        return frozenset()
    domain = control.domains.get(zone.l3.id)
    if domain is None or domain.ways <= 0:
        return frozenset()
    # If resctrl does not show the size of a way, all ways count as equal parts of the cache.
    way_kib = domain.way_kib or (zone.l3.size_kib or 0) // domain.ways
    return frozenset({traits.way_size_trait(way_kib)} if way_kib else ())


def _check_settings(settings: InventorySettings, root_name: str, pools: Positions) -> None:
    if settings.provider_tree not in (*SHAPES, BESIDE):
        raise ConfigError(
            f"[compute] provider_tree = {settings.provider_tree!r} is not one of"
            f" {', '.join((*SHAPES, BESIDE))}"
        )
    ratios = {
        "cpu_allocation_ratio": settings.cpu_allocation_ratio,
        "ram_allocation_ratio": settings.ram_allocation_ratio,
        "disk_allocation_ratio": settings.disk_allocation_ratio,
    }
    for option, ratio in ratios.items():
        if option not in settings.configured:
            option = f"initial_{option}"
        if not 0 < ratio < float("inf"):
            raise ConfigError(f"[DEFAULT] {option} = {ratio} is not a number above 0")
    ends = [*(f"_POOL_{pool}" for pool in pools), SUFFIX if settings.reclaimed else ""]
    # The longest name of a NUMA node has five digits here. The kernel has at most 1024 nodes, so no real name
    # is longer.
    longest = f"{root_name}_NUMA_65535" + max(ends, key=len)
    if not root_name or len(longest) > NAME_LIMIT:
        raise ConfigError(
            f"[compute] resource_provider_name {root_name!r} is too long or empty: a provider name may have"
            f" {NAME_LIMIT} characters, and the agent appends up to {len(longest) - len(root_name)} for NUMA"
            " nodes and pools"
        )
