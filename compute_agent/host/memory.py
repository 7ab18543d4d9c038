"""/sys/devices/system/node and /proc/meminfo: NUMA nodes, their CPUs, memory, huge pages and distances.

File formats: Documentation/ABI/stable/sysfs-devices-node of the kernel.

Which NUMA nodes have DRAM, and which have memory of another kind.

No file of the kernel says so. What tells, the first that does:

1. NVIDIA's driver names the node of a GPU that is memory (``/proc/driver/nvidia/gpus/*/numa_status``).
2. The driver ``kmem`` made memory of a DAX device (``target_node``), and the path of the device says whose it
   is: persistent memory is below a bus of NVDIMMs, CXL memory below a region of CXL.
3. Speed, beside that of the nodes with CPUs: the memory tier in which the kernel has the node, and what the
   firmware says of it (HMAT: ``accessN/initiators``). Twice the bandwidth or a faster tier is HBM; slower
   memory is CXL memory where the host has such devices.
4. A node with CPUs has DRAM.

Of a node without CPUs of which none of these tells, nothing is said.

File formats: Documentation/admin-guide/mm/numaperf.rst, Documentation/ABI/testing/sysfs-bus-dax,
Documentation/ABI/testing/sysfs-kernel-mm-memory-tiers and sysfs-bus-cxl of the kernel.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.host.kernel_files import SysFiles
from compute_agent.host.topology import NumaNode
from compute_agent.model import cpuset
from compute_agent.model.guest_settings import MemoryType

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


DAX_DEVICES: Final = "sys/bus/dax/devices"
DAX_MEMORY: Final = "sys/bus/dax/drivers/kmem"
CXL_DEVICES: Final = "sys/bus/cxl/devices"
NVIDIA_GPUS: Final = "proc/driver/nvidia/gpus"

HBM_BANDWIDTH: Final = 2
"""Memory with so many times the bandwidth of the DRAM beside it is HBM."""

_DAX_DEVICE: Final = re.compile(r"dax[0-9]+\.[0-9]+", re.ASCII)
_CXL_MEMORY: Final = re.compile(r"mem[0-9]+", re.ASCII)
_OF_NVDIMMS: Final = re.compile(r"/ndbus[0-9]+/", re.ASCII)
_OF_CXL: Final = re.compile(r"/decoder[0-9.]+/region[0-9]+/|/dax_region[0-9]+/", re.ASCII)
_GPU_NODE: Final = re.compile(r"^Node:\s*([0-9]{1,9})\s*$", re.ASCII | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MemorySpeed:
    """How fast CPUs get at memory, as the firmware tells; 0: it does not. The units are those of HMAT."""

    bandwidth: int = 0
    latency: int = 0


@dataclass(frozen=True, slots=True)
class MemoryEvidence:
    """What the files say about the memory of NUMA nodes, by their ids.

    ``devices`` are the kinds of those whose memory is a DAX device of a known kind. ``has_cxl``: there are
    CXL devices with memory.
    """

    gpus: frozenset[int] = frozenset()
    devices: Mapping[int, MemoryType] = field(default_factory=dict)
    speeds: Mapping[int, MemorySpeed] = field(default_factory=dict)
    tiers: Mapping[int, int] = field(default_factory=dict)
    has_cxl: bool = False
    special: frozenset[int] = frozenset()
    """Nodes whose memory the firmware keeps for a special purpose (DAX devices ``hmem``)."""


def read_evidence(files: SysFiles, nodes: Iterable[NumaNode], tiers: Mapping[int, int]) -> MemoryEvidence:
    """What the files say; ``tiers`` are the kernel's memory tiers of nodes."""
    devices: dict[int, MemoryType] = {}
    special: set[int] = set()
    for name in filter(_DAX_DEVICE.fullmatch, files.names(DAX_MEMORY)):
        target = files.number(f"{DAX_DEVICES}/{name}/target_node")
        path = files.link(f"{DAX_DEVICES}/{name}") or ""
        if target is None:
            continue
        if _OF_NVDIMMS.search(path):
            devices[target] = MemoryType.PMEM
        elif _OF_CXL.search(path):
            devices[target] = MemoryType.CXL
        else:
            special.add(target)
    statuses = (files.text(f"{NVIDIA_GPUS}/{gpu}/numa_status") or "" for gpu in files.names(NVIDIA_GPUS))
    return MemoryEvidence(
        gpus=frozenset(int(match[1]) for status in statuses for match in _GPU_NODE.finditer(status)),
        devices=devices,
        speeds={node.id: _speed(files, node.id) for node in nodes},
        tiers=tiers,
        has_cxl=any(map(_CXL_MEMORY.fullmatch, files.names(CXL_DEVICES))),
        special=frozenset(special),
    )


def tell_types(nodes: Iterable[NumaNode], evidence: MemoryEvidence) -> dict[int, MemoryType]:
    """The kind of the memory of each node that has any, as far as it can be told."""
    with_memory = [node for node in nodes if node.memory_kib]
    by_device = {**evidence.devices, **dict.fromkeys(evidence.gpus, MemoryType.GPU)}
    usual = [node.id for node in with_memory if node.cpus and node.id not in evidence.special]
    usual = [node for node in usual if node not in by_device]
    found = {}
    for node in with_memory:
        kind = by_device.get(node.id)
        if kind is None and node.id not in usual:
            kind = _by_speed(node.id, usual, evidence)
        if kind is None and node.cpus:
            kind = MemoryType.DRAM
        if kind is not None:
            found[node.id] = kind
    return found


def _by_speed(node: int, usual: Iterable[int], evidence: MemoryEvidence) -> MemoryType | None:
    """The kind of memory that is faster or slower than that of the ``usual`` nodes."""
    beside = [evidence.speeds.get(other, MemorySpeed()) for other in usual]
    bandwidth = max((speed.bandwidth for speed in beside), default=0)
    latency = max((speed.latency for speed in beside), default=0)
    tiers = [evidence.tiers[other] for other in usual if other in evidence.tiers]
    tier = evidence.tiers.get(node)
    its = evidence.speeds.get(node, MemorySpeed())
    if bandwidth and its.bandwidth >= HBM_BANDWIDTH * bandwidth:
        return MemoryType.HBM
    if tier is not None and tiers and tier < min(tiers):
        return MemoryType.HBM
    slower = (
        0 < its.bandwidth < bandwidth
        or its.latency > latency > 0
        or (tier is not None and bool(tiers) and tier > max(tiers))
    )
    return MemoryType.CXL if slower and evidence.has_cxl else None


def _speed(files: SysFiles, node: int) -> MemorySpeed:
    """Of the nearest CPUs (class 1), or of whatever is nearest (class 0)."""
    for access in (1, 0):
        folder = f"{NODE_FOLDER}/node{node}/access{access}/initiators"
        bandwidth = files.number(f"{folder}/read_bandwidth") or 0
        latency = files.number(f"{folder}/read_latency") or 0
        if bandwidth > 0 or latency > 0:
            return MemorySpeed(max(bandwidth, 0), max(latency, 0))
    return MemorySpeed()
