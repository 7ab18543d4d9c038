"""Inventories of huge pages, and providers of reclaimed CPUs and memory below each NUMA node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from compute_agent.host.topology import HostTopology, NumaNode
from compute_agent.inventory import traits
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree, child_uuid
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.messages import ConfigError
from compute_agent.model.resource import HUGE_PAGES, MEMORY, RECLAIMED_MEMORY, RECLAIMED_VCPU

OPTION: Final = "[compute] reserved_huge_pages"

Reserved = Mapping[tuple[int, int], int]
"""The number of reserved pages, by NUMA node and page size in KiB."""

_NUMBER: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]{1,12})(KB|MB|GB)?", re.ASCII)
_KIB: Final = {None: 1, "KB": 1, "MB": 1024, "GB": 1024**2}


def parse_reserved(entries: Iterable[str]) -> dict[tuple[int, int], int]:
    """The number of reserved pages by NUMA node and page size in KiB.

    :param entries: the values of the option, such as ``node:0,size:2048,count:64``.
    :raises ConfigError: an entry is wrong. The message quotes it.
    """
    found: dict[tuple[int, int], int] = {}
    for entry in entries:
        pairs = [part.partition(":") for part in entry.split(",")]
        parts = {key.strip(): value.strip() for key, _, value in pairs}
        node, size = _NUMBER.fullmatch(parts.get("node", "")), _SIZE.fullmatch(parts.get("size", ""))
        count = _NUMBER.fullmatch(parts.get("count", ""))
        if len(pairs) != 3 or not (node and size and count):
            raise ConfigError(f"{OPTION} = {entry}: the form is node:0,size:2048,count:64")
        key = int(node[0]), int(size[1]) * _KIB[size[2]]
        if key in found:
            raise ConfigError(f"{OPTION} = {entry}: another entry has the same node and size")
        found[key] = int(count[0])
    return found


def check_reserved(reserved: Reserved, topology: HostTopology) -> None:
    """Check that each NUMA node has at least as many huge pages as are reserved.

    :raises ConfigError: a node has fewer pages.
    """
    pages = {node.id: node.huge_pages for node in topology.numa_nodes}
    for (node, size), count in reserved.items():
        there = pages.get(node, {}).get(size, 0)
        if count > there or (count and size not in HUGE_PAGES):
            raise ConfigError(
                f"{OPTION}: {count} pages of {size} KiB of NUMA node {node} are more than the {there} there"
            )


def page_inventories(nodes: Iterable[NumaNode], reserved: Reserved) -> dict[str, ProviderInventory]:
    """The inventories of all huge pages of these nodes: numbers of pages, by resource class."""
    nodes = tuple(nodes)
    found = {}
    for size, name in HUGE_PAGES.items():
        total = sum(node.huge_pages.get(size, 0) for node in nodes)
        if total:
            kept = sum(reserved.get((node.id, size), 0) for node in nodes)
            found[name] = ProviderInventory(total=total, reserved=kept, max_unit=total)
    return found


def pages_mb(nodes: Iterable[NumaNode]) -> int:
    """The amount of memory in the huge pages of these nodes, in MiB, rounded up."""
    kib = sum(size * count for node in nodes for size, count in node.huge_pages.items() if size in HUGE_PAGES)
    # The result is rounded up, so that MEMORY_MB never includes a part of a huge page.
    return -(-kib // 1024)


SUFFIX: Final = "_RECLAIMED"
"""The suffix in the name of a provider of reclaimed capacity. The name of its parent comes before."""


def with_reclaimed(
    tree: ProviderTree, cpu_sets: CpuSets, memory: bool = False, root_memory_mb: int = 0
) -> ProviderTree:
    """The tree with a provider of reclaimed capacity below each NUMA node, or else below the root.

    At first all units of the new inventories are reserved. Later, with_offers() frees some of the units.

    :param memory: whether reclaimed memory is also offered, if the parent has memory.
    :param root_memory_mb: the memory of the host minus the reserved memory, in MiB. It counts only if another
        program reports the root.
    """
    zones = [node for node in tree.nodes if traits.NUMA_ROOT in node.traits] or [tree.root]
    amounts = {zone.uuid: _unreserved_mb(zone) for zone in zones} if memory else {}
    if memory and tree.beside:
        amounts[tree.root.uuid] = root_memory_mb
    reclaimed = (_reclaimed_node(tree.root, zone, cpu_sets, amounts.get(zone.uuid, 0)) for zone in zones)
    return replace(tree, nodes=(*tree.nodes, *reclaimed))


def _unreserved_mb(zone: ProviderNode) -> int:
    has = zone.inventories.get(MEMORY)
    return 0 if has is None else has.total - has.reserved


def _reclaimed_node(
    root: ProviderNode, zone: ProviderNode, cpu_sets: CpuSets, memory_mb: int
) -> ProviderNode:
    most = {RECLAIMED_VCPU: len(reclaimable_cpus(zone, cpu_sets)), RECLAIMED_MEMORY: memory_mb}
    # All units are reserved at first, because no estimate exists yet.
    offered = {
        name: ProviderInventory(amount, amount, max_unit=amount) for name, amount in most.items() if amount
    }
    name = f"{zone.name}{SUFFIX}"
    uuid = child_uuid(root.uuid, name.removeprefix(root.name).lstrip("_"))
    return replace(
        zone, name=name, uuid=uuid, parent=zone.uuid, inventories=offered, traits=frozenset(), attributes={}
    )


def reclaimable_cpus(zone: ProviderNode, cpu_sets: CpuSets) -> frozenset[int]:
    """The CPUs of a zone that guests on reclaimed capacity can use: shared CPUs that are in no pool."""
    # The CPUs of the legacy vcpu_pin_set are both shared and dedicated, and are never reclaimed.
    return (cpu_sets.open_shared - cpu_sets.dedicated) & zone.cpus


def with_offers(
    tree: ProviderTree, offers: Mapping[str, int], resource_class: str = RECLAIMED_VCPU
) -> ProviderTree:
    """A copy of the tree in which each inventory of the class reserves all units that are not offered.

    :param offers: the offered units, by uuid of the provider.
    """
    nodes = []
    for node in tree.nodes:
        has = node.inventories.get(resource_class)
        if has is not None and node.uuid in offers:
            offered = replace(has, reserved=has.total - max(0, min(offers[node.uuid], has.total)))
            node = replace(node, inventories={**node.inventories, resource_class: offered})
        nodes.append(node)
    return replace(tree, nodes=tuple(nodes))
