"""What a domain's XML demands of where the guest runs (https://libvirt.org/formatdomain.html).

Memory that comes strictly from some NUMA nodes of the host, of the whole domain or of single cells of the
guest, is a demand: ``<numatune>`` with mode ``strict``, which is the default. Other modes are wishes, and the
agent's own is ``restrictive``. Pins in a definition that somebody else than the agent wrote are demands, too
(see :mod:`definition`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from xml.etree import ElementTree

from compute_agent.drivers.libvirt.document import parse
from compute_agent.drivers.libvirt.qemu import EMULATOR, ThreadRole
from compute_agent.model import cpuset
from compute_agent.model.guest import GuestCell, PlacementConstraints

_STRICT: Final = "strict"


def parse_constraints(domain_xml: str) -> PlacementConstraints:
    """What the XML of a domain demands.

    :raises ValueError: this is not XML, or has sets of CPUs or nodes that are none.
    """
    root = parse(domain_xml)
    vcpus = {
        cell.get("id", str(number)): cpuset.parse(cell.get("cpus", ""))
        for number, cell in enumerate(root.iterfind("cpu/numa/cell"))
    }
    nodes = frozenset[int]()
    if (memory := root.find("numatune/memory")) is not None:
        nodes = _strict_nodes(memory)
    cells = (
        GuestCell(vcpus.get(node.get("cellid", ""), frozenset()), _strict_nodes(node))
        for node in root.iterfind("numatune/memnode")
    )
    return PlacementConstraints(nodes, tuple(cell for cell in cells if cell.vcpus and cell.nodes))


def with_pins(
    constraints: PlacementConstraints, pins: Mapping[ThreadRole, frozenset[int]]
) -> PlacementConstraints:
    """The same with these pins demanded, and no others. Those of I/O threads go with the emulator's."""
    vcpus = {role.vcpu: cpus for role, cpus in pins.items() if role.vcpu is not None}
    return replace(constraints, pins=tuple(sorted(vcpus.items())), emulator=pins.get(EMULATOR, frozenset()))


def _strict_nodes(element: ElementTree.Element) -> frozenset[int]:
    if element.get("mode", _STRICT) != _STRICT:
        return frozenset()
    return cpuset.parse(element.get("nodeset", ""))
