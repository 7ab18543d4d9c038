"""Providers of PCI devices, each below the provider of its NUMA node. Pure functions.

Names, resource classes and traits are the same as in Nova's reports to Placement (``[pci]
report_in_placement``), so that Nova's PCI aliases match. In Nova's reports, these providers are below the
root. The agent's providers are below NUMA nodes, if the nodes are known. So a query can join a device with
CPUs and memory of its node by ``same_subtree``. Virtual functions are counted on the provider of their
physical function. Each device that makes mediated devices has its own provider, because Nova finds the device
by the name of the provider.

Two devices below one PCIe switch exchange data without the root complex. The *junction* of two devices is the
last bridge or root complex that their paths have in common. A junction gets a provider if devices of at least
two cards are below it, and if no other such junction is nearer to one of these devices. The functions of one
card share the port of the card, which is no junction.

An example: a GPU has the path ``pci0000:80/80:01.0/81:00.0/82:00.0``, a NIC
``pci0000:80/80:01.0/81:00.0/82:01.0``, and another NIC ``pci0000:80/80:02.0``. The junction of the GPU and
the first NIC is the switch ``81:00.0``. The junction of the second NIC with each of the two is the root
complex ``pci0000:80``, and the switch is below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from compute_agent.host.pci_devices import MdevType, PciDevice
from compute_agent.host.topology import HostTopology
from compute_agent.inventory.attributes import of_device
from compute_agent.inventory.device_spec import (
    ONE_TIME_USE,
    OPTION,
    SHOWN_DEVICES,
    DeviceSpec,
    match_devices,
    named_devices,
)
from compute_agent.inventory.provider_tree import (
    NAME_LIMIT,
    ProviderInventory,
    ProviderNode,
    ProviderTree,
    child_uuid,
    device_name,
    mdev_name,
    nodes_below,
)
from compute_agent.inventory.traits import NUMA_ROOT
from compute_agent.model.messages import ConfigError

PCIE_SWITCH: Final = "CUSTOM_PCIE_SWITCH"
"""The trait of a provider for a PCIe switch, which is the parent of the providers of its devices."""
PCIE_ROOT: Final = "CUSTOM_PCIE_ROOT"
"""The trait of a provider for a root complex, which is the parent of the providers of its devices."""


@dataclass(frozen=True, slots=True)
class DeviceOffer:
    """The PCI devices that a host offers.

    :ivar providers: the offered devices, each of which gets a provider.
    :ivar warnings: messages about devices that need the operator's attention.
    """

    providers: tuple[OfferedDevice, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """An offered device, or a physical function with its offered virtual functions.

    :ivar address: the PCI address of the device or physical function.
    :ivar card: the address of the physical function if the device is a virtual one; else ``address``.
    :ivar amount: the number of offered virtual functions or mediated devices; 1 for a whole device.
    :ivar mediated: whether guests get mediated devices that the device makes.
    :ivar numa_node: the NUMA node of the device, from the kernel; None if unknown.
    :ivar path: the root complex and the bridges above the device.
    """

    address: str
    card: str
    resource_class: str
    traits: frozenset[str]
    amount: int
    numa_node: int | None
    path: tuple[str, ...] = ()
    mediated: bool = False


def offer_devices(specs: Sequence[DeviceSpec], devices: Iterable[PciDevice]) -> DeviceOffer:
    """Decide which devices the host offers, and their resource classes and amounts.

    If the entries select a physical function and also one of its virtual functions, the card would count
    twice. So such a physical function is left out, with a warning. A card is also left out if its virtual
    functions differ in class or traits, because one provider stands for all of them.
    """
    known = tuple(devices)
    by_address = {device.address: device for device in known}
    members: dict[str, list[tuple[PciDevice, DeviceSpec]]] = {}
    pairs = match_devices(specs, known)
    for device, spec in pairs:
        if not spec.neutrons:
            members.setdefault(device.card_address, []).append((device, spec))
    providers, conflicts = list[OfferedDevice](), list[str]()
    for card, group in sorted(members.items()):
        if conflict := _find_conflict(card, group):
            conflicts.append(conflict)
            continue
        mediated, no_room = _offer_mediated(card, group)
        providers += mediated
        conflicts += no_room
        if whole := [pair for pair in group if not pair[1].mdev_type]:
            first, spec = whole[0]
            # The virtual functions of a card have the same NUMA node and path as the card itself.
            place = by_address.get(card, first)
            providers.append(
                OfferedDevice(
                    *(card, card, spec.class_of(first), spec.traits, len(whole), place.numa_node, place.path)
                )
            )
    selected = [pair for group in members.values() for pair in group]
    matched = {spec for _, spec in pairs}
    unmatched = (
        f"{OPTION}: the entry {spec.text} selects no PCI device of this host, or none that earlier entries"
        " or nova-compute leave: compare it with lspci -nn, or remove it"
        for spec in specs
        if spec not in matched
    )
    return DeviceOffer(tuple(providers), (*conflicts, *unmatched, *_device_warnings(selected)))


def _offer_mediated(
    card: str, group: Sequence[tuple[PciDevice, DeviceSpec]]
) -> tuple[list[OfferedDevice], list[str]]:
    """The devices of a card that make mediated devices, and messages about types that the card cannot make.

    ``max_instances`` limits the whole card, because the driver shows for each virtual function the number
    that the whole card can make. Functions with existing mediated devices come first, because guests may hold
    these devices.
    """
    offered, no_room = list[OfferedDevice](), list[str]()
    by_spec: dict[DeviceSpec, list[tuple[PciDevice, MdevType]]] = {}
    for device, spec in group:
        if (one := spec.type_of(device)) is not None:
            by_spec.setdefault(spec, []).append((device, one))
    for spec, makers in by_spec.items():
        room = sum(one.total for _, one in makers)
        if not room:
            no_room.append(
                f"{OPTION}: {card} can have no device of the type {spec.mdev_type}, because it has devices"
                " of another type: it is not offered"
            )
        room = room if spec.max_instances is None else min(room, spec.max_instances)
        for device, one in sorted(makers, key=lambda pair: (-len(pair[1].devices), pair[0].address)):
            if amount := min(one.total, room):
                room -= amount
                place = (amount, device.numa_node, device.path)
                offered.append(
                    OfferedDevice(
                        *(device.address, card, spec.class_of(device), spec.traits, *place), mediated=True
                    )
                )
    return sorted(offered, key=attrgetter("address")), no_room


def _find_conflict(address: str, group: Sequence[tuple[PciDevice, DeviceSpec]]) -> str:
    """The reason why a card gets no provider; empty if the card gets a provider."""
    functions = [(device, spec) for device, spec in group if device.is_virtual]
    if functions and len(functions) < len(group):
        return (
            f"{OPTION} selects {address} and its virtual function {functions[0][0].address}, and a guest that"
            " has one has the other, too: neither is offered. Narrow the entry, by product_id for example"
        )
    shared = [(device, spec) for device, spec in functions if not spec.mdev_type]
    for other, other_spec in shared:
        first, spec = shared[0]
        if ONE_TIME_USE in other_spec.traits:
            return (
                f"{OPTION} has one_time_use for {other.address}, and a provider does not tell used virtual"
                f" functions of {address} from others: {address} is not offered"
            )
        if (other_spec.class_of(other), other_spec.traits) != (spec.class_of(first), spec.traits):
            return (
                f"{OPTION} gives {first.address} and {other.address} different classes or traits, and virtual"
                f" functions of one device have one provider: {address} is not offered. Give them one class"
                " and the same traits"
            )
    return ""


def _device_warnings(selected: Sequence[tuple[PciDevice, DeviceSpec]]) -> Iterable[str]:
    virtual, whole = (
        {spec.class_of(device) for device, spec in selected if kind(device)}
        for kind in (attrgetter("is_virtual"), attrgetter("is_physical"))
    )
    for name in sorted(virtual & whole):
        yield (
            f"{OPTION}: {name} has whole cards and virtual functions of others, so a guest that asks for one"
            " may get the other: give them different values of resource_class, or a trait"
        )
    # Devices that make mediated devices are left out. A mediated device needs neither a driver of VFIO nor an
    # IOMMU group of its card.
    selected = [(device, spec) for device, spec in selected if not spec.mdev_type]
    devices = [device for device, _ in selected]
    if without_iommu := [device.address for device in devices if device.iommu_group is None]:
        yield (
            f"{OPTION}: {named_devices(without_iommu)} cannot be given to domains, since the IOMMU is"
            " off: boot with intel_iommu=on or amd_iommu=on, and enable VT-d or AMD-Vi in the firmware"
        )
    # The name contains "vfio" for vfio-pci and for its variants: mlx5_vfio_pci, nvidia-vgpu-vfio ...
    unbound = [device for device, spec in selected if not spec.managed and "vfio" not in device.driver]
    if unbound:
        drivers = [f"{device.address} ({device.driver or 'no driver'})" for device in unbound]
        yield (
            f"{OPTION}: with managed = no libvirt binds no driver, and these devices have none of VFIO:"
            f" {named_devices(drivers)}. Bind vfio-pci or the driver's variant, such as by driverctl"
        )
    if idle := [device.address for device in devices if device.vgpu_type == 0]:
        yield (
            f"{OPTION}: {named_devices(idle)} have no vGPU type, so no domain can use them: write the"
            " number of a type into nvidia/current_vgpu_type of the device"
        )
    if narrow := [device for device in devices if device.link.is_degraded]:
        lanes = ", ".join(
            f"{device.address} x{device.link.width} of x{device.link.max_width}"
            for device in narrow[:SHOWN_DEVICES]
        )
        yield f"{OPTION}: devices work with fewer lanes than they have: {lanes}. Check slot and riser"


def with_devices(
    tree: ProviderTree, offered: Sequence[OfferedDevice], topology: HostTopology
) -> tuple[ProviderTree, tuple[str, ...]]:
    """Add the providers of devices to a tree.

    A device is below the provider of its NUMA node. If the tree has no such provider, or the kernel does not
    show the node, the device is below the root. Each switch or root complex that several cards share gets a
    provider of its own, above the providers of the devices.

    :return: the tree, and warnings about devices without a node.
    :raises ConfigError: the name of the root is so long that an address does not fit after it.
    """
    if not offered:
        return tree, ()
    zones = {min(node.numa_nodes): node for node in tree.nodes[1:] if _is_zone_of_one_node(node)}
    homes = nearest_cpu_nodes(topology)
    by_zone: dict[str, list[tuple[OfferedDevice, int | None]]] = {}
    for device in offered:
        node = _node_with_cpus(device.numa_node, homes, topology)
        zone = tree.root if node is None else zones.get(node, tree.root)
        by_zone.setdefault(zone.uuid, []).append((device, node))
    nodes, added = [], list[ProviderNode]()
    for zone in tree.nodes:
        changed, below = _with_devices_of(tree, zone, by_zone.get(zone.uuid, ()))
        nodes.append(changed)
        added += below
    if longest := next((node.name for node in added if len(node.name) > NAME_LIMIT), ""):
        raise ConfigError(
            f"[compute] resource_provider_name {tree.root.name!r} does not fit: providers of devices add an"
            f" address, and {len(longest)} characters are more than {NAME_LIMIT}"
        )
    warnings = []
    unknown = [device.address for each in by_zone.values() for device, node in each if node is None]
    if unknown and zones:
        warnings.append(
            f"{OPTION}: the kernel does not show the NUMA node of {named_devices(unknown)}: below the"
            " root provider no query joins them with CPUs of their node. Write the node to numa_node of the"
            " device in /sys/bus/pci/devices, if you know it"
        )
    return replace(tree, nodes=(*nodes, *added)), tuple(warnings)


def _with_devices_of(
    tree: ProviderTree, zone: ProviderNode, devices: Sequence[tuple[OfferedDevice, int | None]]
) -> tuple[ProviderNode, list[ProviderNode]]:
    """The provider of a zone, and the providers below it: switches, root complexes and devices.

    If all devices of a NUMA node share one junction, the node gets the traits of the junction instead of a
    provider.
    """
    # A card is identified by its own address, because its virtual functions may have other slots in their
    # addresses.
    chains = junctions_of({device.card: device.path for device, _ in devices})
    alone = common_junction(tuple(chains.values())) if zone is not tree.root else None
    parents: dict[Path | None, ProviderNode] = {None: zone}
    if alone is not None:
        zone = replace(zone, traits=zone.traits | _junction_traits(alone, True))
        parents[alone] = zone
    added = []
    for device, node in devices:
        inner, outermost = alone, alone is None
        for junction in chains[device.card]:
            if junction not in parents:
                parents[junction] = _junction_provider(tree.root, parents[inner], zone, junction, outermost)
                added.append(parents[junction])
            inner, outermost = junction, False
        added.append(_device_provider(tree.root, parents[inner], device, node))
    return zone, added


def _junction_traits(junction: Path, outermost: bool) -> frozenset[str]:
    has = {PCIE_ROOT: outermost, PCIE_SWITCH: len(junction) > 1}
    return frozenset(trait for trait, holds in has.items() if holds)


def _junction_provider(
    root: ProviderNode, parent: ProviderNode, zone: ProviderNode, junction: Path, outermost: bool
) -> ProviderNode:
    # The name contains the zone, because one root complex can have devices of several NUMA nodes.
    place = f"{zone.name.removeprefix(root.name)}_{junction[-1].removeprefix('pci')}"
    kind = "ROOT" if len(junction) == 1 else "SWITCH"
    return ProviderNode(
        name=f"{root.name}{place}_{kind}",
        uuid=child_uuid(root.uuid, f"PCIE{place}"),
        parent=parent.uuid,
        traits=_junction_traits(junction, outermost),
        numa_nodes=nodes_below(root, parent),
        device=junction[-1],
    )


def nearest_cpu_nodes(topology: HostTopology) -> Mapping[int, int]:
    """Map each NUMA node to the nearest node with CPUs; a node with CPUs is mapped to itself.

    A node without CPUs can be the memory of a GPU. If several nodes are equally near, the first of them is
    chosen. A node without CPUs is left out if the kernel shows no distances for it.
    """
    with_cpus = [node.id for node in topology.numa_nodes if node.cpus]
    found = {node: node for node in with_cpus}
    for node in topology.numa_nodes:
        row = topology.distances.get(node.id, {})
        near = [peer for peer in with_cpus if peer in row]
        if node.id not in found and near:
            found[node.id] = min(near, key=lambda peer: (row[peer], peer))
    return found


def _node_with_cpus(node: int | None, homes: Mapping[int, int], topology: HostTopology) -> int | None:
    """The node with CPUs that is nearest to NUMA node ``node``; None if not known.

    If the firmware names no node and the host has only one, that node counts.
    """
    nodes = topology.numa_nodes
    if node is None and len(nodes) == 1:
        node = nodes[0].id
    return None if node is None else homes.get(node)


def foreign_attributes(
    devices: Iterable[PciDevice], topology: HostTopology
) -> Mapping[str, Mapping[str, str | float]]:
    """The attributes for the providers of devices that nova-compute reports, by PCI address."""
    homes = nearest_cpu_nodes(topology)
    return {
        device.address: of_device(_node_with_cpus(device.numa_node, homes, topology), device.path)
        for device in devices
        # Nova counts virtual functions on the provider of their physical function, except for mediated
        # devices.
        if not device.is_bridge and (device.mdev_types or not device.is_virtual)
    }


def _is_zone_of_one_node(node: ProviderNode) -> bool:
    # A provider of an L3 cache or a pool is left out: it lies inside a node, and a device is equally near to
    # all of its parts.
    return len(node.numa_nodes) == 1 and NUMA_ROOT in node.traits


def _device_provider(
    root: ProviderNode, parent: ProviderNode, device: OfferedDevice, node: int | None
) -> ProviderNode:
    return ProviderNode(
        name=(mdev_name if device.mediated else device_name)(root.name, device.address),
        # The uuid depends on the address alone, so that a device keeps its provider when the shape of the
        # tree changes.
        uuid=child_uuid(root.uuid, f"PCI_{device.address}"),
        parent=parent.uuid,
        inventories={device.resource_class: ProviderInventory(total=device.amount, max_unit=device.amount)},
        traits=device.traits,
        attributes=of_device(node, device.path),
        numa_nodes=nodes_below(root, parent),
        device=device.address,
        device_class=device.resource_class,
    )


Path = tuple[str, ...]
"""The path to a PCI device or bridge: the root complex and then the bridges below it, the outermost first."""


def junctions_of(paths: Mapping[str, Path]) -> Mapping[str, tuple[Path, ...]]:
    """The junctions above each device that get a provider, by the address of the device.

    The outermost junction comes first.
    """
    cards: dict[Path, set[str]] = {}
    for address, path in paths.items():
        for end in range(1, len(path) + 1):
            cards.setdefault(path[:end], set()).add(address.partition(".")[0])
    shared = {path for path, below in cards.items() if len(below) > 1}
    chains = {
        address: [path[:end] for end in range(1, len(path) + 1) if path[:end] in shared]
        for address, path in paths.items()
    }
    last = {chain[-1] for chain in chains.values() if chain}
    return {address: tuple(one for one in chain if one in last) for address, chain in chains.items()}


def common_junction(chains: Sequence[tuple[Path, ...]]) -> Path | None:
    """The outermost junction that all devices share; None if there is no such junction."""
    first = {chain[0] if chain else None for chain in chains}
    return first.pop() if len(first) == 1 else None
