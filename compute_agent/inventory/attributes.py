"""What is kept with the providers of a host beside inventories and traits: pure functions of its topology.

For claims that go by it, where the service keeps attributes. Other names are somebody else's.

Where guests are and at what watermarks act, as attributes for people who look: pure functions.

The zones of a host that get a provider of their own, and which lies in which.
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
"""Of a NUMA node to another, as in SLIT (10 is local); the uuid of that one's provider follows."""
MEMORY_TIER: Final = "memory_tier"
"""Of the memory of a NUMA node, as the kernel counts them: the lower the faster."""
CPU_CAPACITY: Final = "cpu_capacity"
"""How much a CPU of the zone does on average; 1 is the fastest kind of core of the host."""

FLEET_GROUP: Final = "fleet.group"
"""Of the first provider of the agent: the group of hosts that it has settings with."""
FLEET_GENERATION: Final = "fleet.generation"
"""Of the same: the generation of these settings that it works by; 0 if it has none."""
FLEET_TROUBLE: Final = "fleet.trouble"
"""Of the same: why it does not follow its fleet; not there if it does."""

POSITION: Final = "position."
"""Of the same, where that is wanted: where a guest is; the uuid of its consumer follows."""
WATERMARK: Final = "watermark."
"""Of the same, where that is wanted: at what a watermark acts; the name of its section follows."""

REPORTED_AT: Final = "agent.reported_at"
"""Of the same, where that is wanted: when the agent reported, or shortly before, in seconds since 1970."""
REPORT_DUE: Final = "agent.report_due"
"""Of the same: by when it will have reported again, if it lives."""

_MAX_DISTANCES: Final = 200
"""A provider takes 256 attributes, which others want to have some of, too."""
_OURS: Final = frozenset(
    {MEMORY_TIER, CPU_CAPACITY, FLEET_GROUP, FLEET_GENERATION, FLEET_TROUBLE, REPORTED_AT, REPORT_DUE}
)
_FULL_CAPACITY: Final = 1024
_MISSED: Final = 3


def is_ours(name: str) -> bool:
    """Whether an attribute of that name on one of the agent's providers is the agent's."""
    return name in _OURS or name.startswith((DISTANCE, POSITION, WATERMARK))


def heartbeat(now: float, interval: int, phase: int, longest: int) -> Mapping[str, float]:
    """The attributes that say that the agent lives, which change once an interval.

    :param phase: in which second of an interval.
    :param longest: seconds between two that are nothing to worry about; three times as long are.
    """
    reported = (now - phase) // interval * interval + phase
    return {REPORTED_AT: reported, REPORT_DUE: reported + _MISSED * longest}


def of_zone(
    topology: HostTopology, zones: Sequence[HostZone], zone: HostZone, root_uuid: str
) -> Mapping[str, float]:
    """The attributes of the provider of a zone."""
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
            assert other.node is not None
            found[DISTANCE + child_uuid(root_uuid, other.name)] = told[other.node.id]
    return found


_MAX_GUESTS: Final = 100
_MAX_WATERMARKS: Final = 20
"""A provider takes 256 attributes, which others want to have some of, too."""
_MAX_TEXT: Final = 255
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,50}")


@dataclass(frozen=True, slots=True)
class GuestCpuMap:
    """The CPUs of a guest, and by L3 cache the ways that it can fill, and how many there are."""

    consumer: str
    cpus: frozenset[int]
    ways: Mapping[int, tuple[frozenset[int], int]] = field(default_factory=dict)

    def __str__(self) -> str:
        """As ``cpus 4-7; L3 0: 0-3 of 12``."""
        ways = [
            f"L3 {cache}: {cpuset.format(some)} of {count}"
            for cache, (some, count) in sorted(self.ways.items())
        ]
        return "; ".join([f"cpus {cpuset.format(self.cpus)}", *ways])


def described(guests: Iterable[GuestCpuMap], watermarks: Mapping[str, str]) -> dict[str, str]:
    """The attributes that say it; of very many guests some, always the same.

    :param watermarks: what each acts at, by its section.
    """
    known = sorted(
        (each for each in guests if _UUID.fullmatch(each.consumer)), key=lambda each: each.consumer
    )
    told = {POSITION + each.consumer: str(each)[:_MAX_TEXT] for each in known[:_MAX_GUESTS]}
    named = sorted(name for name in watermarks if _NAME.fullmatch(name))[:_MAX_WATERMARKS]
    return told | {WATERMARK + name: watermarks[name][:_MAX_TEXT] for name in named}


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
