"""Providers of PCI devices, each below the provider of its NUMA node. Pure functions.

Names, classes and traits are those of Nova's reports (``[pci] report_in_placement``), so that its aliases
match. Nova has the providers below the root; here a query joins a device with CPUs and memory of its node by
``same_subtree``. Virtual functions are counted on the provider of their physical function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from compute_agent.host.pci_devices import PciDevice
from compute_agent.host.topology import HostTopology
from compute_agent.inventory.device_spec import OPTION, DeviceSpec, match_devices
from compute_agent.inventory.provider_tree import (
    NAME_LIMIT,
    ProviderInventory,
    ProviderNode,
    ProviderTree,
    child_uuid,
    device_name,
)
from compute_agent.inventory.traits import NUMA_ROOT
from compute_agent.model.messages import ConfigError, named_few

_SHOWN: Final = 5
"""Maximum number of addresses in a sentence."""


@dataclass(frozen=True, slots=True)
class DeviceOffer:
    """The PCI devices that a host offers.

    :ivar providers: address, resource class, traits and amount of each provider, by address.
    :ivar warnings: sentences on devices that need the operator's attention.
    """

    providers: tuple[OfferedDevice, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A device, or a physical function with those of its virtual functions that are offered."""

    address: str
    resource_class: str
    traits: frozenset[str]
    amount: int
    numa_node: int | None


def offer_devices(specs: Sequence[DeviceSpec], devices: Iterable[PciDevice]) -> DeviceOffer:
    """Decide on the devices that the host offers, with their classes and amounts.

    :raises ConfigError: a physical function and one of its virtual functions are both selected, or virtual
        functions of one physical function differ in class or traits. Placement would count a card twice, or
        could not distinguish its parts.
    """
    known = tuple(devices)
    by_address = {device.address: device for device in known}
    members: dict[str, list[tuple[PciDevice, DeviceSpec]]] = {}
    for device, spec in match_devices(specs, known):
        if not spec.neutrons:
            members.setdefault(device.physical_function or device.address, []).append((device, spec))
    providers = []
    for address, group in sorted(members.items()):
        first, spec = group[0]
        offered = (spec.class_of(first), spec.traits)
        for other, other_spec in group[1:]:
            if not (first.is_virtual and other.is_virtual):
                raise ConfigError(
                    f"{OPTION} selects {address} and its virtual function"
                    f" {(other if other.is_virtual else first).address}: a guest that has one has the other,"
                    " too. Narrow the entry, by product_id for example"
                )
            if (other_spec.class_of(other), other_spec.traits) != offered:
                raise ConfigError(
                    f"{OPTION} gives {first.address} and {other.address} different classes or traits: virtual"
                    f" functions of one device ({address}) have one provider, so they are alike"
                )
        # The virtual functions of a card are as near as the card itself.
        node = by_address.get(address, first).numa_node
        providers.append(OfferedDevice(address, *offered, len(group), node))
    selected = [device for group in members.values() for device, _ in group]
    return DeviceOffer(tuple(providers), tuple(_device_warnings(selected)))


def _device_warnings(selected: Sequence[PciDevice]) -> Iterable[str]:
    without_iommu = [device.address for device in selected if device.iommu_group is None]
    if without_iommu:
        yield (
            f"{OPTION}: {named_few(without_iommu, _SHOWN)} cannot be given to domains, since the IOMMU is"
            " off: boot with intel_iommu=on or amd_iommu=on, and enable VT-d or AMD-Vi in the firmware"
        )
    if narrow := [device for device in selected if device.link.is_degraded]:
        lanes = ", ".join(
            f"{device.address} x{device.link.width} of x{device.link.max_width}" for device in narrow[:_SHOWN]
        )
        yield f"{OPTION}: devices work with fewer lanes than they have: {lanes}. Check slot and riser"


def with_devices(
    tree: ProviderTree, offered: Sequence[OfferedDevice], topology: HostTopology
) -> tuple[ProviderTree, tuple[str, ...]]:
    """Add the providers of devices to a tree.

    A device is below the provider of its NUMA node, or below the root where the tree or the kernel does not
    show one.

    :returns: the tree, and sentences on devices without a node.
    :raises ConfigError: the name of the root leaves no room for an address.
    """
    if not offered:
        return tree, ()
    if (longest := len(tree.root.name) + 1 + max(len(each.address) for each in offered)) > NAME_LIMIT:
        raise ConfigError(
            f"[compute] resource_provider_name {tree.root.name!r} does not fit: providers of devices add an"
            f" address, and {longest} characters are more than {NAME_LIMIT}"
        )
    zones = {min(node.numa_nodes): node for node in tree.nodes[1:] if _is_zone_of_one_node(node)}
    homes = nearest_cpu_nodes(topology)
    unknown, added = [], []
    for device in offered:
        node = _only_node(topology) if device.numa_node is None else device.numa_node
        if node is None or node not in homes:
            unknown.append(device.address)
        zone = None if node is None else zones.get(homes.get(node, node))
        added.append(_device_provider(tree.root, zone or tree.root, device))
    warnings = []
    if unknown and zones:
        warnings.append(
            f"{OPTION}: the kernel does not show the NUMA node of {named_few(unknown, _SHOWN)}: below the"
            " root provider no query joins them with CPUs of their node. Write the node to numa_node of the"
            " device in /sys/bus/pci/devices, if you know it"
        )
    return replace(tree, nodes=(*tree.nodes, *added)), tuple(warnings)


def nearest_cpu_nodes(topology: HostTopology) -> Mapping[int, int]:
    """Map each NUMA node with CPUs to itself, and each other node to the nearest node with CPUs.

    The memory of a GPU can be a node of its own. Of equally near nodes the first counts. A node without CPUs
    and without distances is missing.
    """
    with_cpus = [node.id for node in topology.numa_nodes if node.cpus]
    found = {node: node for node in with_cpus}
    for node in topology.numa_nodes:
        row = topology.distances.get(node.id, {})
        near = [peer for peer in with_cpus if peer in row]
        if node.id not in found and near:
            found[node.id] = min(near, key=lambda peer: (row[peer], peer))
    return found


def _only_node(topology: HostTopology) -> int | None:
    """The NUMA node of a host with a single one. Firmware of such hosts often names no node."""
    nodes = topology.numa_nodes
    return nodes[0].id if len(nodes) == 1 else None


def _is_zone_of_one_node(node: ProviderNode) -> bool:
    # Providers of L3 caches and pools lie inside a node; a device is as near to all of them.
    return len(node.numa_nodes) == 1 and NUMA_ROOT in node.traits


def _device_provider(root: ProviderNode, parent: ProviderNode, device: OfferedDevice) -> ProviderNode:
    return ProviderNode(
        name=device_name(root.name, device.address),
        # By the address alone, so that a device keeps its provider when the shape of the tree changes.
        uuid=child_uuid(root.uuid, f"PCI_{device.address}"),
        parent=parent.uuid,
        inventories={device.resource_class: ProviderInventory(total=device.amount, max_unit=device.amount)},
        traits=device.traits,
        numa_nodes=parent.numa_nodes if parent is not root else frozenset(),
        device=device.address,
    )
