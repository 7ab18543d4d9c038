"""The zones of a host that get a provider of their own, and which lies in which."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from compute_agent.host.topology import CpuCache, HostTopology, NumaNode


@dataclass(frozen=True, slots=True)
class HostZone:
    """A NUMA node (then ``node`` is set) or an L3 domain (then ``l3`` is).

    ``parent`` is the name of the zone around it, None for the host itself. ``home_of`` are the CPUs whose
    inventories sit here rather than further in or out.
    """

    name: str
    parent: str | None
    cpus: frozenset[int]
    numa_nodes: frozenset[int]
    l3_ids: frozenset[int]
    node: NumaNode | None = field(default=None, hash=False)
    l3: CpuCache | None = None
    home_of: frozenset[int] = frozenset()


def layout(topology: HostTopology, shape: str, controlled_l3: Collection[int] = ()) -> tuple[HostZone, ...]:
    """The zones of the tree ``shape`` (``flat``, ``numa`` or ``l3``), every one after the zone around it.

    NUMA nodes are zones in ``numa`` and ``l3``; L3 domains are in ``l3``, and wherever their cache is
    controlled. An L3 domain inside a node is the node's child. Where an L3 spans whole nodes (sub-NUMA
    clustering), they are its children. Where the two cross each other, as some virtual machines tell, both
    are children of the host.
    """
    node_zones = [
        HostZone(
            name=f"NUMA_{node.id}",
            parent=None,
            cpus=node.cpus,
            numa_nodes=frozenset({node.id}),
            l3_ids=frozenset(cache.id for cache in topology.l3_domains if cache.cpus & node.cpus),
            node=node,
        )
        for node in topology.numa_nodes
        if shape != "flat" and (node.cpus or node.memory_kib)
    ]
    l3_zones = [
        HostZone(
            name=f"L3_{cache.id}",
            parent=next((zone.name for zone in node_zones if _inside(cache, zone)), None),
            cpus=cache.cpus,
            numa_nodes=frozenset(node.id for node in topology.numa_nodes if cache.cpus & node.cpus),
            l3_ids=frozenset({cache.id}),
            l3=cache,
        )
        for cache in topology.l3_domains
        if shape == "l3" or cache.id in controlled_l3
    ]
    around = {
        node.name: l3.name
        for l3 in l3_zones
        for node in node_zones
        if l3.parent is None and node.cpus and _covers_its_nodes(l3, node_zones) and node.cpus <= l3.cpus
    }
    node_zones = [replace(zone, parent=around.get(zone.name)) for zone in node_zones]
    outer = [zone for zone in l3_zones if zone.parent is None]
    inner = [zone for zone in l3_zones if zone.parent is not None]
    return _with_homes([*outer, *node_zones, *inner], shape)


def _inside(cache: CpuCache, node: HostZone) -> bool:
    return cache.cpus <= node.cpus


def _covers_its_nodes(l3: HostZone, nodes: Iterable[HostZone]) -> bool:
    return all(node.cpus <= l3.cpus for node in nodes if node.cpus & l3.cpus)


def _with_homes(zones: list[HostZone], shape: str) -> tuple[HostZone, ...]:
    """Each CPU at home in the innermost zone that ``shape`` puts CPUs on.

    Where two zones cross, that is the NUMA node.
    """
    candidates = [zone for zone in zones if shape == "l3" or (shape == "numa" and zone.node is not None)]
    homes: dict[str, frozenset[int]] = {}
    taken: frozenset[int] = frozenset()
    for zone in sorted(candidates, key=lambda zone: (zone.parent is None, zone.node is None)):
        homes[zone.name] = zone.cpus - taken
        taken |= zone.cpus
    return tuple(replace(zone, home_of=homes.get(zone.name, frozenset())) for zone in zones)
