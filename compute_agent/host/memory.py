"""/sys/devices/system/node and /proc/meminfo: NUMA nodes, their CPUs, memory, huge pages and distances.

File formats: Documentation/ABI/stable/sysfs-devices-node of the kernel.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from typing import Final

from compute_agent.host.sysfiles import SysFiles
from compute_agent.host.topology import NumaNode
from compute_agent.model import cpuset

LOG = logging.getLogger(__name__)

NODE_FOLDER: Final = "sys/devices/system/node"
TIER_FOLDER: Final = "sys/devices/virtual/memory_tiering"

_MEM_TOTAL: Final = re.compile(r"(?:^|\s)MemTotal:\s*([0-9]+)\s*kB", re.ASCII)


def read_memory_kib(files: SysFiles, path: str = "proc/meminfo") -> int:
    """MemTotal of /proc/meminfo or of a node's meminfo; 0 where it is not told."""
    match = _MEM_TOTAL.search(files.text(path) or "")
    return int(match[1]) if match else 0


def read_nodes(files: SysFiles, online: frozenset[int]) -> tuple[NumaNode, ...]:
    """The NUMA nodes by id, those without CPUs or memory too.

    A machine without node folders (a kernel without NUMA) is one node 0 with all CPUs and all memory.
    """
    ids = list(files.numbered(NODE_FOLDER, "node"))
    if not ids:
        LOG.info("No NUMA nodes are listed in %s: the host counts as one node", files.root / NODE_FOLDER)
        huge_pages = _huge_pages(files, "sys/kernel/mm/hugepages")
        return (NumaNode(0, online, read_memory_kib(files), huge_pages),)
    nodes = []
    for node in ids:
        folder = f"{NODE_FOLDER}/node{node}"
        cpus = files.cpus(folder, "cpulist", "cpumap")
        if cpus is None:
            LOG.warning("The CPUs of NUMA node %d are not known", node)
        memory_kib = read_memory_kib(files, f"{folder}/meminfo")
        if len(ids) == 1:
            # The node's own figure falls behind the machine's where memory was plugged in while it ran.
            memory_kib = max(memory_kib, read_memory_kib(files))
        huge_pages = _huge_pages(files, f"{folder}/hugepages")
        nodes.append(NumaNode(node, (cpus or frozenset()) & online, memory_kib, huge_pages))
    if nowhere := online.difference(*(node.cpus for node in nodes)):
        LOG.warning("CPUs %s are on no NUMA node", sorted(nowhere))
    return tuple(nodes)


def overlaps(nodes: Iterable[NumaNode]) -> tuple[str, ...]:
    """What to tell the operator of CPUs that several nodes have, a sentence for each two such nodes.

    The kernel has each CPU on one node, but with emulated ones (``numa=fake``).
    """
    ordered = sorted(nodes, key=lambda node: node.id)
    return tuple(
        f"NUMA nodes {one.id} and {other.id} both have CPUs {cpuset.format(both)}, as emulated nodes do"
        f" (numa=fake): these CPUs count as those of node {one.id}"
        for number, one in enumerate(ordered)
        for other in ordered[number + 1 :]
        if (both := one.cpus & other.cpus)
    )


def read_distances(files: SysFiles, nodes: tuple[NumaNode, ...]) -> Mapping[int, Mapping[int, int]]:
    """The distance of every node from every node; empty where it is not told for all of them."""
    ids = [node.id for node in nodes]
    matrix: dict[int, Mapping[int, int]] = {}
    for node in ids:
        text = files.text(f"{NODE_FOLDER}/node{node}/distance")
        row = text.split() if text else []
        # A row has a column for each online node in ascending order, whatever gaps the numbers have.
        if len(row) != len(ids) or not all(column.isdecimal() for column in row):
            if len(ids) > 1:
                LOG.info("The distances of NUMA node %d are not known: no distance is used", node)
            return {}
        matrix[node] = dict(zip(ids, map(int, row), strict=True))
    return matrix


def read_tiers(files: SysFiles) -> Mapping[int, int]:
    """The memory tier of every NUMA node whose kernel tells (since 6.1): the lower the faster."""
    return {
        node: tier
        for tier in files.numbered(TIER_FOLDER, "memory_tier")
        for node in files.cpu_list(f"{TIER_FOLDER}/memory_tier{tier}/nodelist") or ()
    }


def _huge_pages(files: SysFiles, folder: str) -> Mapping[int, int]:
    sizes = files.numbered(folder, "hugepages-", "kB")
    return {size: files.number(f"{folder}/hugepages-{size}kB/nr_hugepages") or 0 for size in sizes}
