"""NUMA nodes with their CPUs, huge pages and distances, and the type of their memory.

No file of the kernel shows the type of a node's memory. The agent uses the first of these sources that knows
the node:

- NVIDIA's driver names the node of a GPU's memory (``/proc/driver/nvidia/gpus/*/numa_status``).
- The driver ``kmem`` has added a DAX device to the node as memory (``target_node``). The path of the device
  contains its bus. Persistent memory is below a bus of NVDIMMs, and CXL memory is below a region of CXL.
- The speed of the node is compared with the speed of nodes with CPUs. Speed means the kernel's memory tier,
  and the bandwidth from the firmware (HMAT: ``accessN/initiators``). Memory with twice the bandwidth or a
  faster tier is HBM. Slower memory is CXL memory if the host has such devices.
- A node with CPUs has DRAM.

If a node has no CPUs and no source knows the node, its memory has no type.

The file formats are those of Documentation/ABI/stable/sysfs-devices-node,
Documentation/admin-guide/mm/numaperf.rst, Documentation/ABI/testing/sysfs-bus-dax,
sysfs-kernel-mm-memory-tiers and sysfs-bus-cxl of the kernel.
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
    """The value of MemTotal in /proc/meminfo or in a node's meminfo, in KiB; 0 if the file is missing."""
    match = _MEM_TOTAL.search(files.text(path) or "")
    return int(match[1]) if match else 0


def read_nodes(files: SysFiles, online: frozenset[int]) -> tuple[NumaNode, ...]:
    """Read the NUMA nodes, ordered by id.

    If the kernel was built without NUMA, the result is one node 0 with all CPUs and all memory.
    """
    ids = list(files.list_numbers(NODE_FOLDER, "node"))
    if not ids:
        LOG.info(
            "The folder %s lists no NUMA nodes, so the host counts as one node", files.root / NODE_FOLDER
        )
        huge_pages = _huge_pages(files, "sys/kernel/mm/hugepages")
        return (NumaNode(0, online, read_memory_kib(files), huge_pages),)
    nodes = []
    for node in ids:
        folder = f"{NODE_FOLDER}/node{node}"
        cpus = files.cpus(folder, "cpulist", "cpumap")
        if cpus is None:
            LOG.warning("The CPUs of NUMA node %d are not known, so it counts as a node without CPUs", node)
        memory_kib = read_memory_kib(files, f"{folder}/meminfo")
        if len(ids) == 1:
            # If memory was plugged in while the machine ran, the node's own value may be too small.
            memory_kib = max(memory_kib, read_memory_kib(files))
        huge_pages = _huge_pages(files, f"{folder}/hugepages")
        nodes.append(NumaNode(node, (cpus or frozenset()) & online, memory_kib, huge_pages))
    if nowhere := online.difference(*(node.cpus for node in nodes)):
        LOG.warning("CPUs %s are on no NUMA node: they belong to the host as a whole", sorted(nowhere))
    return tuple(nodes)


def node_overlaps(nodes: Iterable[NumaNode]) -> tuple[str, ...]:
    """Warnings for nodes with common CPUs, which only emulated nodes (``numa=fake``) have."""
    ordered = sorted(nodes, key=lambda node: node.id)
    return tuple(
        f"NUMA nodes {one.id} and {other.id} both have CPUs {cpuset.format(both)}, as emulated nodes do"
        f" (numa=fake): these CPUs count as those of node {one.id}"
        for number, one in enumerate(ordered)
        for other in ordered[number + 1 :]
        if (both := one.cpus & other.cpus)
    )


def read_distances(files: SysFiles, nodes: tuple[NumaNode, ...]) -> Mapping[int, Mapping[int, int]]:
    """The distances between all nodes, as in ACPI's SLIT; empty if any distance is unknown."""
    ids = [node.id for node in nodes]
    matrix: dict[int, Mapping[int, int]] = {}
    for node in ids:
        text = files.text(f"{NODE_FOLDER}/node{node}/distance")
        row = text.split() if text else []
        # A row has a column for each online node in ascending order, even if the node numbers have gaps.
        if len(row) != len(ids) or not all(column.isdecimal() for column in row):
            if len(ids) > 1:
                LOG.info("The distances of NUMA node %d are not known, so the agent uses no distances", node)
            return {}
        matrix[node] = dict(zip(ids, map(int, row), strict=True))
    return matrix


def read_tiers(files: SysFiles) -> Mapping[int, int]:
    """The memory tier of each NUMA node; a lower tier is faster memory. Empty before Linux 6.1."""
    return {
        node: tier
        for tier in files.list_numbers(TIER_FOLDER, "memory_tier")
        for node in files.cpu_list(f"{TIER_FOLDER}/memory_tier{tier}/nodelist") or ()
    }


def _huge_pages(files: SysFiles, folder: str) -> Mapping[int, int]:
    sizes = files.list_numbers(folder, "hugepages-", "kB")
    # nr_hugepages is read, which includes pages in use, because an inventory contains all pages of the node.
    return {size: files.read_number(f"{folder}/hugepages-{size}kB/nr_hugepages") or 0 for size in sizes}


DAX_DEVICES: Final = "sys/bus/dax/devices"
DAX_MEMORY: Final = "sys/bus/dax/drivers/kmem"
CXL_DEVICES: Final = "sys/bus/cxl/devices"
NVIDIA_GPUS: Final = "proc/driver/nvidia/gpus"

HBM_BANDWIDTH: Final = 2
"""The lowest bandwidth that counts as HBM, as a multiple of the bandwidth of DRAM on the same host."""

_DAX_DEVICE: Final = re.compile(r"dax[0-9]+\.[0-9]+", re.ASCII)
_CXL_MEMORY: Final = re.compile(r"mem[0-9]+", re.ASCII)
_OF_NVDIMMS: Final = re.compile(r"/ndbus[0-9]+/", re.ASCII)
_OF_CXL: Final = re.compile(r"/decoder[0-9.]+/region[0-9]+/|/dax_region[0-9]+/", re.ASCII)
_GPU_NODE: Final = re.compile(r"^Node:\s*([0-9]{1,9})\s*$", re.ASCII | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MemorySpeed:
    """The speed of memory from the firmware's HMAT, as the kernel shows it; 0 if unknown.

    :ivar bandwidth: the bandwidth in MiB/s.
    :ivar latency: the latency in nanoseconds.
    """

    bandwidth: int = 0
    latency: int = 0


@dataclass(frozen=True, slots=True)
class MemoryEvidence:
    """The facts that show the type of memory of NUMA nodes. Nodes are given by their ids.

    :ivar gpus: the nodes with memory of NVIDIA GPUs.
    :ivar devices: the type of memory of those nodes that consist of a DAX device of a known type.
    :ivar speeds: the speed of each node from the firmware.
    :ivar has_cxl: whether the host has CXL devices with memory.
    """

    gpus: frozenset[int] = frozenset()
    devices: Mapping[int, MemoryType] = field(default_factory=dict)
    speeds: Mapping[int, MemorySpeed] = field(default_factory=dict)
    tiers: Mapping[int, int] = field(default_factory=dict)
    has_cxl: bool = False
    special: frozenset[int] = frozenset()
    """The nodes with memory that the firmware reserves for a special purpose (DAX devices ``hmem``)."""


def read_evidence(files: SysFiles, nodes: Iterable[NumaNode], tiers: Mapping[int, int]) -> MemoryEvidence:
    """Read the files about the memory of nodes."""
    devices: dict[int, MemoryType] = {}
    special: set[int] = set()
    # A DAX device with another driver is a file for programs, and its memory belongs to no node.
    for name in filter(_DAX_DEVICE.fullmatch, files.list_names(DAX_MEMORY)):
        target = files.read_number(f"{DAX_DEVICES}/{name}/target_node")
        path = files.read_link(f"{DAX_DEVICES}/{name}") or ""
        if target is None:
            continue
        if _OF_NVDIMMS.search(path):
            devices[target] = MemoryType.PMEM
        elif _OF_CXL.search(path):
            devices[target] = MemoryType.CXL
        else:
            special.add(target)
    statuses = (files.text(f"{NVIDIA_GPUS}/{gpu}/numa_status") or "" for gpu in files.list_names(NVIDIA_GPUS))
    return MemoryEvidence(
        gpus=frozenset(int(match[1]) for status in statuses for match in _GPU_NODE.finditer(status)),
        devices=devices,
        speeds={node.id: _read_speed(files, node.id) for node in nodes},
        tiers=tiers,
        has_cxl=any(map(_CXL_MEMORY.fullmatch, files.list_names(CXL_DEVICES))),
        special=frozenset(special),
    )


def tell_types(nodes: Iterable[NumaNode], evidence: MemoryEvidence) -> dict[int, MemoryType]:
    """The type of memory of each node with memory; nodes with an unknown type are left out."""
    with_memory = [node for node in nodes if node.memory_kib]
    by_device = {**evidence.devices, **dict.fromkeys(evidence.gpus, MemoryType.GPU)}
    # All other nodes are compared with the nodes that have CPUs and ordinary memory.
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
    """The type HBM or CXL, if the node's memory is faster or slower than that of ``usual`` nodes; or None."""
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


def _read_speed(files: SysFiles, node: int) -> MemorySpeed:
    """The speed as the nearest CPUs see it (class 1), or else the nearest initiator of any kind (class 0)."""
    for access in (1, 0):
        folder = f"{NODE_FOLDER}/node{node}/access{access}/initiators"
        bandwidth = files.read_number(f"{folder}/read_bandwidth") or 0
        latency = files.read_number(f"{folder}/read_latency") or 0
        if bandwidth > 0 or latency > 0:
            return MemorySpeed(max(bandwidth, 0), max(latency, 0))
    return MemorySpeed()
