"""Pure functions for the attributes of a host's providers, and for the zones that have a provider.

A zone is the host, a NUMA node or an L3 cache. This project's Placement service stores attributes of a
provider in addition to inventories and traits. Claims and operators use these attributes. Attributes with
names that are not in this module belong to other programs.

Other attributes have the use of caches and memory bandwidth, and the limited guests, which the console shows.
Their number is bounded: there is one for each L3 cache, one for each of the few guests with the largest use,
and one for each limited guest.
"""

from __future__ import annotations

import heapq
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from compute_agent.host.topology import CpuCache, HostTopology, NumaNode
from compute_agent.inventory.provider_tree import child_uuid
from compute_agent.model import cpuset
from compute_agent.model.messages import is_uuid

DISTANCE: Final = "numa_distance."
"""Prefix of the distance from one NUMA node to another one, as in ACPI's table SLIT (10 is the distance to
itself).

The uuid of the other node's provider follows the prefix.
"""
MEMORY_TIER: Final = "memory_tier"
"""The memory tier of a NUMA node, from the kernel; a lower number is faster memory."""
CPU_CAPACITY: Final = "cpu_capacity"
"""The mean capacity of the CPUs of a zone, 0 to 1; 1 is the fastest kind of core of the host."""

NUMA_NODE: Final = "numa_node"
"""The number of the NUMA node with CPUs that is nearest to a PCI device."""
PCI_PATH: Final = "pci_path"
"""The path to a PCI device: its root complex and the bridges above it, from the root port down."""

# Only one provider has the attributes below: the first provider that belongs to the agent.
FLEET_GROUP: Final = "fleet.group"
"""The fleet group of the host. All hosts of a group share their settings."""
FLEET_GENERATION: Final = "fleet.generation"
"""The generation of the fleet settings that the host has adopted; 0 if the host has adopted no settings."""
FLEET_TROUBLE: Final = "fleet.trouble"
"""The reason why the host does not use the settings of its fleet; absent while it uses them."""

POSITION: Final = "position."
"""Prefix of the attributes with the CPUs and cache ways of a guest, if options enable them. The consumer's
uuid follows."""
WATERMARK: Final = "watermark."
"""Prefix of the attributes with the thresholds of a watermark, if options enable them. The name of the
watermark's section follows."""

NEIGHBOUR: Final = "neighbour."
"""Prefix of attributes with the use of caches and with limits of guests (:func:`neighbour_attributes`)."""

BROKEN_PROMISES: Final = "agent.broken_promises"
"""A text with the broken promises to guests, such as ``2 cpus, 1 quiet``; absent if all promises are kept."""

REPORTED_AT: Final = "agent.reported_at"
"""The time of the last heartbeat, in seconds since the epoch, if heartbeats are enabled."""
REPORT_DUE: Final = "agent.report_due"
"""The time by which a running agent writes another heartbeat, in seconds since the epoch."""

# A provider can have 256 attributes, and other programs need some of them. So the numbers of guests with
# positions, of watermarks, of caches and of limited guests have limits.
_MAX_GUESTS: Final = 100
_MAX_WATERMARKS: Final = 20
_MAX_CACHES: Final = 64
_MAX_LIMITED: Final = 20
_MAX_DISTANCES: Final = 200
"""Maximum number of NUMA nodes for which distances are reported. A host with more nodes reports no
distances.
"""
_OURS: Final = frozenset(
    {
        *(MEMORY_TIER, CPU_CAPACITY, FLEET_GROUP, FLEET_GENERATION, FLEET_TROUBLE),
        *(BROKEN_PROMISES, REPORTED_AT, REPORT_DUE, NUMA_NODE, PCI_PATH),
    }
)
# The kernel's cpu_capacity of the fastest kind of core.
_FULL_CAPACITY: Final = 1024
# The number is 3, so that two reports can fail before the agent counts as stopped.
MISSED_INTERVALS: Final = 3
"""The number of intervals without new values after which the last values count as outdated."""


def is_ours(name: str) -> bool:
    """Whether the agent is the program that writes attributes of this name."""
    return name in _OURS or name.startswith((DISTANCE, POSITION, WATERMARK, NEIGHBOUR))


def begin_interval(now: float, interval: int, root_uuid: str) -> float:
    """The start of the current interval of a host, in seconds since the epoch.

    Values that the agent reports once in each interval change at this time.

    :param now: the present time in seconds since the epoch.
    :param interval: the length of an interval in seconds.
    :param root_uuid: the uuid of the host.
    """
    # Each host has a phase of its own, so that hosts that were started together do not write at the same
    # time.
    phase = zlib.crc32(root_uuid.encode()) % interval
    return (now - phase) // interval * interval + phase


def heartbeat_attributes(reported: float, longest: int) -> Mapping[str, float]:
    """The attributes by which clients see that the agent runs.

    :param reported: the time of the heartbeat. This time changes only once in an interval, so that most
        reports do not write the attribute again.
    :param longest: the longest usual time between two reports, in seconds. After three times this time the
        agent counts as stopped.
    """
    return {REPORTED_AT: reported, REPORT_DUE: reported + MISSED_INTERVALS * longest}


def promise_attributes(broken: str) -> Mapping[str, str]:
    """The attribute that shows broken promises of a host."""
    return {BROKEN_PROMISES: broken[:MAX_TEXT]}


def of_device(node: int | None, path: Sequence[str]) -> Mapping[str, str | float]:
    """The known attributes of a PCI device's provider.

    :param node: the nearest NUMA node with CPUs; None if unknown.
    :param path: the root complex and the bridges above the device.
    """
    way = "/".join(path)
    known: dict[str, str | float] = {} if node is None else {NUMA_NODE: float(node)}
    # A path that is too long is left out: a shortened path would make devices look nearer to each other than
    # they are.
    return known | {PCI_PATH: way} if 0 < len(way) <= MAX_TEXT else known


def of_zone(
    topology: HostTopology, zones: Sequence[HostZone], zone: HostZone, root_uuid: str
) -> Mapping[str, float]:
    """The attributes of the provider of a zone: CPU capacity, memory tier and distances to NUMA nodes."""
    found: dict[str, float] = {}
    capacities = [topology.cpu_capacities[cpu] for cpu in zone.cpus if cpu in topology.cpu_capacities]
    if capacities:
        # 1.0 is the capacity of the fastest core of this host and not of the fleet, because the kernel has no
        # unit that compares hosts.
        found[CPU_CAPACITY] = round(sum(capacities) / len(capacities) / _FULL_CAPACITY, 3)
    if zone.node is None:
        return found
    if zone.node.id in topology.memory_tiers:
        found[MEMORY_TIER] = topology.memory_tiers[zone.node.id]
    told = topology.distances.get(zone.node.id, {})
    nodes = [other for other in zones if other.node is not None and other.node.id in told]
    if 1 < len(nodes) <= _MAX_DISTANCES:
        for other in nodes:
            # This line is for the type checker: the list above contains only zones with a node.
            assert other.node is not None
            found[DISTANCE + child_uuid(root_uuid, other.name)] = told[other.node.id]
    return found


MAX_TEXT: Final = 255
"""Maximum characters of the text of an attribute."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,50}")


@dataclass(frozen=True, slots=True)
class GuestCpuMap:
    """The CPUs of a guest, and the cache ways that the guest can fill.

    :ivar consumer: the uuid of the guest's consumer.
    :ivar ways: by the id of an L3 cache: the ways that the guest can fill, and the number of all ways of the
        cache.
    """

    consumer: str
    cpus: frozenset[int]
    ways: Mapping[int, tuple[frozenset[int], int]] = field(default_factory=dict)

    def __str__(self) -> str:
        """The value of the attribute, such as ``cpus 4-7; L3 0: 0-3 of 12``."""
        ways = [
            f"L3 {cache}: {cpuset.format(some)} of {count}"
            for cache, (some, count) in sorted(self.ways.items())
        ]
        return "; ".join([f"cpus {cpuset.format(self.cpus)}", *ways])


def guest_attributes(guests: Iterable[GuestCpuMap], watermarks: Mapping[str, str]) -> dict[str, str]:
    """The attributes of guests and watermarks.

    The numbers of guests and watermarks are limited. The first guests in the order of uuids, and the first
    watermarks in the order of names, get an attribute.

    :param watermarks: a text with the thresholds of each watermark, by the name of its section.
    """
    # Consumers without a uuid are left out, because the name of the attribute ends with the uuid.
    known = sorted((each for each in guests if is_uuid(each.consumer)), key=lambda each: each.consumer)
    told = {POSITION + each.consumer: str(each)[:MAX_TEXT] for each in known[:_MAX_GUESTS]}
    named = sorted(name for name in watermarks if _NAME.fullmatch(name))[:_MAX_WATERMARKS]
    return told | {WATERMARK + name: watermarks[name][:MAX_TEXT] for name in named}


@dataclass(frozen=True, slots=True)
class HostZone:
    """A zone that can have a provider: a NUMA node (``node``) or an L3 domain (``l3``).

    :ivar parent: the name of the zone that contains this zone; None if only the host itself contains it.
    :ivar cpus: all CPUs in the zone.
    :ivar home_of: the CPUs that the inventories of this zone offer. No other zone offers them.
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
    """The zones of a provider tree of ``shape`` (``flat``, ``numa`` or ``l3``). Outer zones come first.

    NUMA nodes are zones in the shapes ``numa`` and ``l3``. L3 domains are zones in the shape ``l3``, and in
    any shape if resctrl controls their cache. An L3 domain inside a node is the node's child. If an L3 cache
    spans whole nodes (sub-NUMA clustering), these nodes are its children. If an L3 cache and a node overlap
    only in part, as on some virtual machines, the cache and the node are children of the host.

    :param controlled_l3: the ids of the L3 caches that resctrl controls.
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
        # A node without CPUs and memory has nothing to offer.
        if shape != "flat" and (node.cpus or node.memory_kib)
    ]
    l3_zones = [
        HostZone(
            name=f"L3_{cache.id}",
            parent=next((zone.name for zone in node_zones if cache.cpus <= zone.cpus), None),
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
        # A node becomes the child of a cache that contains the whole node.
        for node in node_zones
        if l3.parent is None and node.cpus and _covers_its_nodes(l3, node_zones) and node.cpus <= l3.cpus
    }
    node_zones = [replace(zone, parent=around.get(zone.name)) for zone in node_zones]
    outer = [zone for zone in l3_zones if zone.parent is None]
    inner = [zone for zone in l3_zones if zone.parent is not None]
    return _with_homes([*outer, *node_zones, *inner], shape)


def _covers_its_nodes(l3: HostZone, nodes: Iterable[HostZone]) -> bool:
    return all(node.cpus <= l3.cpus for node in nodes if node.cpus & l3.cpus)


def _with_homes(zones: list[HostZone], shape: str) -> tuple[HostZone, ...]:
    """The zones, with the field ``home_of`` set: each CPU belongs to at most one zone.

    In the shape ``l3`` this is the innermost zone of the CPU, in the shape ``numa`` its NUMA node, and in the
    shape ``flat`` no zone.
    """
    candidates = [zone for zone in zones if shape == "l3" or (shape == "numa" and zone.node is not None)]
    homes: dict[str, frozenset[int]] = {}
    taken: frozenset[int] = frozenset()
    # Inner zones come before outer zones. In each of these two groups, NUMA nodes come before caches.
    for zone in sorted(candidates, key=lambda zone: (zone.parent is None, zone.node is None)):
        homes[zone.name] = zone.cpus - taken
        taken |= zone.cpus
    return tuple(replace(zone, home_of=homes.get(zone.name, frozenset())) for zone in zones)


MEASURED_AT: Final = NEIGHBOUR + "measured_at"
"""The time of the measurement, in seconds since the epoch."""
VALID_UNTIL: Final = NEIGHBOUR + "valid_until"
"""The time by which a running agent replaces the values, in seconds since the epoch."""
CACHE: Final = NEIGHBOUR + "cache."
"""Prefix of the attributes with the use of an L3 cache. The kernel's id of the cache follows."""
GUEST: Final = NEIGHBOUR + "guest."
"""Prefix of the attributes with the use of a guest. A number follows; the value begins with the consumer's
uuid."""
LIMIT: Final = NEIGHBOUR + "limit."
"""Prefix of the attributes with the limits of a guest. A number follows; the value begins with the consumer's
uuid."""

_TOP: Final = 3
"""Number of guests that are reported because they use most bandwidth, and of guests that are reported because
they use most cache."""
_MB: Final = 1e6
_MIB: Final = 1 << 20
_CLASS: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class CacheLoad:
    """The use of an L3 cache: bandwidths in bytes a second, occupancy and size in bytes; None if unknown."""

    bandwidth: float | None = None
    occupancy: float | None = None
    max_bandwidth: float | None = None
    size: float | None = None

    def __str__(self) -> str:
        """The value of the attribute, such as ``1250 MB/s of 25600, 12.5 MiB of 32``."""
        parts = (
            _amount_text(self.bandwidth, self.max_bandwidth, _MB, "MB/s"),
            _amount_text(self.occupancy, self.size, _MIB, "MiB"),
        )
        return ", ".join(filter(None, parts))


def _amount_text(amount: float | None, whole: float | None, unit: float, name: str) -> str:
    if amount is None:
        return ""
    # One decimal is enough for small guests; with more decimals, the value would change with each report.
    text = f"{round(amount / unit, 1):.10g} {name}"
    return text if whole is None else f"{text} of {round(whole / unit, 1):.10g}"


@dataclass(frozen=True, slots=True)
class GuestLoad:
    """The cache use and memory bandwidth of a guest, summed over all L3 caches, with its QoS class."""

    consumer: str
    qos_class: str
    load: CacheLoad

    def __str__(self) -> str:
        """The value of the attribute, such as ``UUID BE: 300 MB/s, 2.1 MiB``."""
        # The class is left out if its name has characters that the console does not accept.
        known = f"{self.qos_class}: " if _CLASS.fullmatch(self.qos_class) else ""
        return f"{self.consumer} {known}{self.load}"


@dataclass(frozen=True, slots=True, order=True)
class RequestedLimit:
    """A limit of a guest, the trigger that requests the limit, and the guests that the limit protects."""

    lever: str
    trigger: str
    victims: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The part of the attribute, such as ``cpu_quota: interference for UUID``."""
        known = [one for one in self.victims if is_uuid(one)]
        return f"{self.lever}: {self.trigger}" + (f" for {' '.join(known)}" if known else "")


def neighbour_attributes(
    measured_at: float,
    interval: float,
    caches: Mapping[int, CacheLoad],
    guests: Iterable[GuestLoad],
    limits: Mapping[str, Sequence[RequestedLimit]],
) -> dict[str, str | float]:
    """The attributes of a host; empty if the host has neither caches nor limits.

    :param measured_at: the time of the measurement, in seconds since the epoch.
    :param interval: the longest usual time between two measurements, in seconds.
    :param caches: the use of each cache by the whole host, by its id.
    """
    known = [each for each in guests if is_uuid(each.consumer)]
    top = {
        *_largest_guests(known, lambda load: load.bandwidth),
        *_largest_guests(known, lambda load: load.occupancy),
    }
    limited = sorted(guest for guest, some in limits.items() if some and is_uuid(guest))
    told = {
        f"{CACHE}{cache}": text for cache, load in sorted(caches.items())[:_MAX_CACHES] if (text := str(load))
    }
    # Attribute names have numbers and not uuids, because Placement has an index of all attribute names.
    told |= {f"{GUEST}{number}": text for number, text in enumerate(sorted(map(str, top)))}
    told |= {
        f"{LIMIT}{number}": _limit_text(guest, limits[guest])
        for number, guest in enumerate(limited[:_MAX_LIMITED])
    }
    times = {MEASURED_AT: measured_at, VALID_UNTIL: measured_at + MISSED_INTERVALS * interval}
    return {**told, **times} if told else {}


def _largest_guests(
    guests: Iterable[GuestLoad], amount: Callable[[CacheLoad], float | None]
) -> list[GuestLoad]:
    """The guests with the largest known amounts above 0; guests with equal amounts are ordered by uuid."""
    found = [(value, each.consumer, each) for each in guests if (value := amount(each.load))]
    return [each for _, _, each in heapq.nlargest(_TOP, found, key=lambda one: one[:2])]


def _limit_text(guest: str, limits: Sequence[RequestedLimit]) -> str:
    """The guest's uuid and its first limits: as many whole limits as fit into an attribute."""
    text, separator = guest, " "
    for part in map(str, sorted(limits)):
        if len(longer := text + separator + part) <= MAX_TEXT:
            text, separator = longer, "; "
    return text
