"""What is kept with the providers of a host beside inventories and traits: pure functions of its topology.

For claims that go by it, where the service keeps attributes. Other names are somebody else's.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from compute_agent.host.topology import HostTopology
from compute_agent.inventory.tree import child_uuid
from compute_agent.inventory.zones import HostZone

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
