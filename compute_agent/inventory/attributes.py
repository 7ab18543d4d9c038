"""Attributes of the providers of a host, and the zones that have a provider. Pure functions.

A service with attributes stores them beside inventories and traits, for claims and for operators.
Attributes with other names belong to other programs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from compute_agent.host.topology import CpuCache, HostTopology, NumaNode
from compute_agent.inventory.provider_tree import child_uuid
from compute_agent.model import cpuset

DISTANCE: Final = "numa_distance."
"""Distance of a NUMA node to another as in SLIT (10 is local). The uuid of the other provider follows."""
MEMORY_TIER: Final = "memory_tier"
"""Memory tier of a NUMA node by the kernel, a lower one for faster memory."""
CPU_CAPACITY: Final = "cpu_capacity"
"""Mean capacity of the CPUs of a zone; 1 is the fastest kind of core of the host."""

NUMA_NODE: Final = "numa_node"
"""The NUMA node with CPUs that is nearest to a PCI device, by its number."""
PCI_PATH: Final = "pci_path"
"""The way to a PCI device: its root complex, and the bridges from the root port on."""

# The following are attributes of the first provider that belongs to the agent.
FLEET_GROUP: Final = "fleet.group"
"""The group of hosts with which the host shares settings."""
FLEET_GENERATION: Final = "fleet.generation"
"""The generation of the adopted settings; 0 without any."""
FLEET_TROUBLE: Final = "fleet.trouble"
"""The reason why the host does not follow its fleet; missing if it does."""

POSITION: Final = "position."
"""The place of a guest, if the options want it. The uuid of its consumer follows."""
WATERMARK: Final = "watermark."
"""The thresholds of a watermark, if the options want them. The name of its section follows."""

BROKEN_PROMISES: Final = "agent.broken_promises"
"""The broken promises to guests in words, as ``2 cpus, 1 quiet``; missing without any."""

REPORTED_AT: Final = "agent.reported_at"
"""The time of the last report, in seconds since the epoch, if the options want it."""
REPORT_DUE: Final = "agent.report_due"
"""The time by which a running agent will have reported again."""

# A provider takes 256 attributes, and other programs want some of them, too.
_MAX_DISTANCES: Final = 200
"""Maximum number of nodes with distances. With more nodes there are none."""
_OURS: Final = frozenset(
    {
        *(MEMORY_TIER, CPU_CAPACITY, FLEET_GROUP, FLEET_GENERATION, FLEET_TROUBLE),
        *(BROKEN_PROMISES, REPORTED_AT, REPORT_DUE, NUMA_NODE, PCI_PATH),
    }
)
# The kernel's cpu_capacity of the fastest kind of core.
_FULL_CAPACITY: Final = 1024
# Two reports may fail before the agent counts as stopped.
_MISSED: Final = 3


def is_ours(name: str) -> bool:
    """Whether the agent writes attributes of that name."""
    return name in _OURS or name.startswith((DISTANCE, POSITION, WATERMARK))


def heartbeat_attributes(now: float, interval: int, phase: int, longest: int) -> Mapping[str, float]:
    """The attributes that show a running agent. The attributes change once an interval.

    :param phase: the second of an interval in which the attributes change.
    :param longest: the longest usual seconds between two reports. After three times as long the agent counts
        as stopped.
    """
    reported = (now - phase) // interval * interval + phase
    return {REPORTED_AT: reported, REPORT_DUE: reported + _MISSED * longest}


def promise_attributes(broken: str) -> Mapping[str, str]:
    """The attribute of a host with broken promises.

    :param broken: the promises in words.
    """
    return {BROKEN_PROMISES: broken[:_MAX_TEXT]}


def of_device(node: int | None, path: Sequence[str]) -> Mapping[str, str | float]:
    """The attributes of a PCI device's provider, as far as the kernel shows them.

    :param node: the nearest NUMA node with CPUs.
    :param path: the root complex and the bridges above the device.
    """
    way = "/".join(path)
    known: dict[str, str | float] = {} if node is None else {NUMA_NODE: float(node)}
    # A path that is cut would make devices look nearer than they are.
    return known | {PCI_PATH: way} if 0 < len(way) <= _MAX_TEXT else known


def of_zone(
    topology: HostTopology, zones: Sequence[HostZone], zone: HostZone, root_uuid: str
) -> Mapping[str, float]:
    """The attributes of a zone's provider."""
    found: dict[str, float] = {}
    capacities = [topology.cpu_capacities[cpu] for cpu in zone.cpus if cpu in topology.cpu_capacities]
    if capacities:
        found[CPU_CAPACITY] = round(sum(capacities) / len(capacities) / _FULL_CAPACITY, 3)
    if zone.node is None:
        return found
    if zone.node.id in topology.memory_tiers:
        found[MEMORY_TIER] = topology.memory_tiers[zone.node.id]
    told = topology.distances.get(zone.node.id, {})
    nodes = [other for other in zones if other.node is not None and other.node.id in told]
    if 1 < len(nodes) <= _MAX_DISTANCES:
        for other in nodes:
            # The list above has no other zones, which the type checker does not see.
            assert other.node is not None
            found[DISTANCE + child_uuid(root_uuid, other.name)] = told[other.node.id]
    return found


_MAX_GUESTS: Final = 100
_MAX_WATERMARKS: Final = 20
"""Maximum number of guests and watermarks with attributes: a provider takes 256, and other programs need
some."""
_MAX_TEXT: Final = 255
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,50}")


@dataclass(frozen=True, slots=True)
class GuestCpuMap:
    """The CPUs of a guest, and by L3 cache the ways that it can fill, with the number of all ways."""

    consumer: str
    cpus: frozenset[int]
    ways: Mapping[int, tuple[frozenset[int], int]] = field(default_factory=dict)

    def __str__(self) -> str:
        """The text of the attribute, such as ``cpus 4-7; L3 0: 0-3 of 12``."""
        ways = [
            f"L3 {cache}: {cpuset.format(some)} of {count}"
            for cache, (some, count) in sorted(self.ways.items())
        ]
        return "; ".join([f"cpus {cpuset.format(self.cpus)}", *ways])


def guest_attributes(guests: Iterable[GuestCpuMap], watermarks: Mapping[str, str]) -> dict[str, str]:
    """The attributes of guests and watermarks. With too many guests, the first ones by uuid have one.

    :param watermarks: the thresholds of each watermark, by section.
    """
    known = sorted(
        (each for each in guests if _UUID.fullmatch(each.consumer)), key=lambda each: each.consumer
    )
    told = {POSITION + each.consumer: str(each)[:_MAX_TEXT] for each in known[:_MAX_GUESTS]}
    named = sorted(name for name in watermarks if _NAME.fullmatch(name))[:_MAX_WATERMARKS]
    return told | {WATERMARK + name: watermarks[name][:_MAX_TEXT] for name in named}


@dataclass(frozen=True, slots=True)
class HostZone:
    """A NUMA node (with ``node``) or an L3 domain (with ``l3``).

    :ivar parent: the name of the zone around it; None for the host itself.
    :ivar home_of: the CPUs with inventories in this zone rather than in an inner or outer one.
    """

    name: str
    parent: str | None
    cpus: frozenset[int]
    numa_nodes: frozenset[int]
    l3_ids: frozenset[int]
    node: NumaNode | None = field(default=None, hash=False)
    l3: CpuCache | None = None
    home_of: frozenset[int] = frozenset()


def zone_layout(
    topology: HostTopology, shape: str, controlled_l3: Collection[int] = ()
) -> tuple[HostZone, ...]:
    """The zones of the tree ``shape`` (``flat``, ``numa`` or ``l3``), each after the zone around it.

    NUMA nodes are zones in ``numa`` and ``l3``. L3 domains are zones in ``l3``, and wherever their cache is
    controlled. An L3 domain inside a node is the node's child. If an L3 spans whole nodes (sub-NUMA
    clustering), they are its children. If both cross each other, as on some virtual machines, both are
    children of the host.
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
            parent=next((zone.name for zone in node_zones if _is_inside(cache, zone)), None),
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


def _is_inside(cache: CpuCache, node: HostZone) -> bool:
    return cache.cpus <= node.cpus


def _covers_its_nodes(l3: HostZone, nodes: Iterable[HostZone]) -> bool:
    return all(node.cpus <= l3.cpus for node in nodes if node.cpus & l3.cpus)


def _with_homes(zones: list[HostZone], shape: str) -> tuple[HostZone, ...]:
    """The zones with ``home_of``: each CPU belongs to the innermost zone that has CPUs in this shape.

    Where two zones cross, that is the NUMA node.
    """
    candidates = [zone for zone in zones if shape == "l3" or (shape == "numa" and zone.node is not None)]
    homes: dict[str, frozenset[int]] = {}
    taken: frozenset[int] = frozenset()
    # Inner zones first, then outer ones; NUMA nodes before caches in both.
    for zone in sorted(candidates, key=lambda zone: (zone.parent is None, zone.node is None)):
        homes[zone.name] = zone.cpus - taken
        taken |= zone.cpus
    return tuple(replace(zone, home_of=homes.get(zone.name, frozenset())) for zone in zones)
