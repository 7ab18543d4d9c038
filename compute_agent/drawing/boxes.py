"""The topology of a host as nested boxes without positions, and the roles of CPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from compute_agent.host.topology import CpuCore, HostTopology, NumaNode
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSets


class CpuRole(StrEnum):
    """The role of a CPU, by the agent's sets of CPUs that contain the CPU."""

    DEDICATED = "dedicated"
    SHARED = "shared"
    BOTH = "dedicated or shared"
    """The CPU is in the dedicated set and in the shared set, as with Nova's legacy option ``vcpu_pin_set``.
    """
    HOST = "host"
    """The CPU is neither in the dedicated set nor in the shared set, so no guest runs on it."""


def cpus_by_role(cpus: frozenset[int], sets: CpuSets) -> Mapping[CpuRole, frozenset[int]]:
    """CPUs by their role, in the order of :class:`CpuRole`, without roles that no CPU has."""
    found = {
        CpuRole.DEDICATED: cpus & sets.dedicated - sets.shared,
        CpuRole.SHARED: cpus & sets.shared - sets.dedicated,
        CpuRole.BOTH: cpus & sets.dedicated & sets.shared,
        CpuRole.HOST: cpus - sets.dedicated - sets.shared,
    }
    return {role: those for role, those in found.items() if those}


HOST, PACKAGE, DIE, NUMA, L3, CORE = range(6)
"""Kinds of boxes, from the outermost to the innermost.

Among boxes with the same CPUs, the box with the lower number is outside.
"""

_KINDS: Final = {"performance": "P", "efficiency": "E", "low-power": "LP"}


@dataclass(slots=True)
class CpuBox:
    """A rectangle for a part of the topology, such as a NUMA node. Parts with the same CPUs share one box.

    :ivar kind: one of :data:`HOST` to :data:`CORE`.
    :ivar lines: the texts in the box. The box stands for one or several parts, such as a package and its only
        node, and has a text for each.
    :ivar children: the boxes inside this box.
    :ivar devices: a line for each PCI device that is nearest to these CPUs.
    """

    kind: int
    lines: list[str]
    cpus: frozenset[int]
    children: list[CpuBox] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)

    @property
    def all_lines(self) -> list[str]:
        """All lines of text in the box: those about its parts, and those about its devices."""
        return [*self.lines, *self.devices]


DeviceLines = Mapping[int | None, Sequence[str]]
"""Lines of text about PCI devices, by NUMA node. The key None has devices without a node."""

NO_DEVICES: Final[DeviceLines] = MappingProxyType({})


def nest_boxes(topology: HostTopology, devices: DeviceLines = NO_DEVICES) -> tuple[CpuBox, list[str]]:
    """Nest the parts of a topology by their CPUs.

    Returns the box of the host, and a line for each part that overlaps another part only partly, and so has
    no box. If a core and another part overlap, the core gets the box, because its box has the cells of the
    CPUs. The host's own box has the devices without a node, or with a node without CPUs.
    """
    boxed = {node.id for node in topology.numa_nodes if node.cpus}
    others = [line for node, lines in devices.items() if node not in boxed for line in lines]
    host = CpuBox(HOST, [_host_line(topology)], topology.usable, devices=others)
    # The largest boxes come first, so the boxes around a smaller one exist already.
    crossing = []
    for box in sorted(_list_boxes(topology, devices), key=lambda box: (-len(box.cpus), box.kind)):
        around = _innermost_box(host, box.cpus)
        # The cells of a core are drawn in its own box, so a core shares no box.
        if around is not host and around.cpus == box.cpus and box.kind != CORE:
            around.lines += box.lines
            around.devices += box.devices
        elif not _cuts_core(box, topology) and all(
            sibling.cpus.isdisjoint(box.cpus) for sibling in around.children
        ):
            around.children.append(box)
        else:
            crossing.append(f"{(box.lines or ['Core'])[0]}: CPUs {cpuset.format(box.cpus)}")
    _sort_children(host)
    # Nodes without CPUs, such as memory expanders, come after the boxes, which are in the order of their
    # CPUs.
    host.children += [
        CpuBox(NUMA, [_node_line(node), "no CPUs"], frozenset())
        for node in topology.numa_nodes
        if not node.cpus
    ]
    return host, crossing


def format_size(kib: int) -> str:
    """A size in the largest unit in which it is at least 1, such as ``46.8 GiB`` or ``512 KiB``."""
    amount, unit = float(kib), "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.3g} {unit}" if amount < 1000 else f"{amount:.0f} {unit}"


def _list_boxes(topology: HostTopology, devices: DeviceLines) -> Iterator[CpuBox]:
    for package in topology.packages:
        yield CpuBox(PACKAGE, [f"Package {package.id}"], package.cpus)
    for die in topology.dies:
        # A package with only one die needs no box for the die.
        if sum(other.package == die.package for other in topology.dies) > 1:
            yield CpuBox(DIE, [f"Die {die.id}"], die.cpus)
    for node in topology.numa_nodes:
        if node.cpus:
            yield CpuBox(NUMA, [_node_line(node)], node.cpus, devices=list(devices.get(node.id, ())))
    for cache in topology.l3_domains:
        size_text = "" if cache.size_kib is None else f", {format_size(cache.size_kib)}"
        yield CpuBox(L3, [f"L3 {cache.id}{size_text}"], cache.cpus)
    for core in topology.cores:
        yield CpuBox(CORE, _core_lines(core), core.cpus)


def _host_line(topology: HostTopology) -> str:
    parts = [topology.model_name or topology.architecture, f"{len(topology.usable)} CPUs"]
    memory_kib = sum(node.memory_kib for node in topology.numa_nodes)
    if memory_kib:
        parts.append(format_size(memory_kib))
    return " · ".join(" ".join(part.split()) for part in parts)


def _node_line(node: NumaNode) -> str:
    return f"NUMA node {node.id}, {format_size(node.memory_kib)}"


def _core_lines(core: CpuCore) -> list[str]:
    return [] if core.kind is None else [_KINDS.get(core.kind, core.kind.removeprefix("capacity-"))]


def _innermost_box(box: CpuBox, cpus: frozenset[int]) -> CpuBox:
    inner = next((child for child in box.children if cpus <= child.cpus and child.kind != CORE), None)
    return box if inner is None else _innermost_box(inner, cpus)


def _cuts_core(box: CpuBox, topology: HostTopology) -> bool:
    """Whether the box contains only some CPUs of a core. Boxes of cores themselves do not count."""
    return box.kind != CORE and any(
        not core.cpus.isdisjoint(box.cpus) and not core.cpus <= box.cpus for core in topology.cores
    )


def _sort_children(box: CpuBox) -> None:
    box.children.sort(key=lambda child: min(child.cpus))
    for child in box.children:
        _sort_children(child)
