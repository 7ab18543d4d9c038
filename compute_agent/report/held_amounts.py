"""Reserves amounts that guests still hold, so that Placement does not offer them to other guests.

Each reason to reserve amounts has a pure function:

- An operator turns memory into huge pages while guests still hold this memory as ``MEMORY_MB``
  (:func:`keep_held_memory`). Huge pages and ``MEMORY_MB`` together must not exceed the memory of the node.
  The inventory of ``MEMORY_MB`` shrinks to the memory without huge pages, but not below the held amount. Huge
  pages in held memory are reserved until guests give the memory back.
- CPUs move to another pool while guests hold them (:func:`keep_held_cpus`). The CPUs of a zone are divided
  between its pools and the zone's own provider. If guests hold more CPUs of a pool than the pool has now, the
  surplus is reserved in other pools until guests release CPUs.
- The configuration withholds units (:func:`keep_withheld`), or a provider file no longer adds a resource
  class.

Each inventory is sent with the generation of its provider. If another program has claimed an amount
meanwhile, Placement refuses the inventory, and the agent reads the amounts again.

Further pure functions decide which PCI devices the agent reports, from the devices of other programs, the
missing devices and the used devices. The service nova-compute reports its devices (``[pci]
report_in_placement``) below its root provider. nova-compute marks their providers with the trait
``COMPUTE_MANAGED_PCI_DEVICE``, and names the providers as the agent does. Names are unique in Placement, so a
device never has two providers. If a provider already has the name of a device, nova-compute takes over this
provider (nova/compute/pci_placement_translator.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from compute_agent.inventory.attributes import is_ours
from compute_agent.inventory.device_spec import ONE_TIME_USE, named_devices
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree, device_of
from compute_agent.model.messages import full_name
from compute_agent.model.resource import HUGE_PAGES, MEMORY, OWN_CLASSES
from compute_agent.report.plan import (
    OwnedNames,
    Ownership,
    ReportedProvider,
    is_novas_device,
    present_inventories,
    settled_inventories,
)

HeldAmount = Callable[[str, str], int]
"""A function that returns the amount which consumers hold, given a provider's uuid and a resource class."""


def keep_held_memory(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], held: HeldAmount
) -> tuple[ProviderTree, tuple[str, ...]]:
    """The tree that keeps held ``MEMORY_MB``, and a message about each provider that waits for memory.

    :param held: called only for inventories that would shrink: a call costs a request on some servers.
    """
    nodes, waiting = [], []
    for node in derived.nodes:
        there = present_inventories(node.uuid, reported).get(MEMORY)
        own = node.inventories.get(MEMORY, ProviderInventory(0))
        # An inventory that does not shrink has room for the held amount, so no request is needed.
        if there is not None and there.total > own.total and _page_sizes(node):
            taken = held(node.uuid, MEMORY)
            # The result is at most the present total: an inventory does not grow for held memory, even if
            # consumers hold more than it has.
            needed = min(
                there.total, max(there.reserved, own.reserved) + ceil(taken / there.allocation_ratio)
            )
            if needed > own.total:
                inventories, pages = _with_memory(node, own, needed)
                waiting.append(
                    f"{full_name(node.name, node.uuid)}: {taken} MEMORY_MB are held, but only {own.total} are"
                    f" not in huge pages: {pages} huge pages are not offered until less memory is held"
                )
                node = replace(node, inventories=inventories)
        nodes.append(node)
    return replace(derived, nodes=tuple(nodes)), tuple(waiting)


def _with_memory(
    node: ProviderNode, own: ProviderInventory, needed: int
) -> tuple[dict[str, ProviderInventory], int]:
    """The inventories with ``needed`` MiB of ``MEMORY_MB``, and the number of huge pages reserved for it."""
    missing_kib, reserved = (needed - own.total) * 1024, 0
    found = dict(node.inventories)
    found[MEMORY] = replace(own, total=needed, max_unit=needed)
    for size, name in _page_sizes(node).items():
        # A page that is partly held cannot be offered, so the number is rounded up. Small pages come first,
        # because rounding up their number loses less memory.
        pages = min(-(-missing_kib // size), found[name].total - found[name].reserved)
        found[name] = replace(found[name], reserved=found[name].reserved + pages)
        missing_kib, reserved = max(0, missing_kib - pages * size), reserved + pages
    return found, reserved


def _page_sizes(node: ProviderNode) -> dict[int, str]:
    """The resource classes of huge pages that a provider offers, by page size in KiB, the smallest first."""
    return {size: name for size, name in sorted(HUGE_PAGES.items()) if name in node.inventories}


_CLASSES: Final = ("PCPU", "VCPU")


def keep_held_cpus(
    derived: ProviderTree,
    reported: Mapping[str, ReportedProvider],
    held: HeldAmount,
) -> tuple[ProviderTree, tuple[str, ...]]:
    """The tree with held CPUs reserved in other pools, and a message about each provider that waits for CPUs.

    :param held: called only for zones with pools.
    """
    groups: dict[str, list[ProviderNode]] = defaultdict(list)
    for node in derived.nodes:
        if node.pool and node.parent is not None:
            groups[node.parent].append(node)
    reserved: dict[tuple[str, str], int] = defaultdict(int)
    waiting = []
    for parent, pools in groups.items():
        zone = derived.get(parent)
        members = [zone, *pools] if zone is not None else pools
        for name in _CLASSES:
            used = {node.uuid: _cpus_held(node, name, reported, held) for node in members}
            for node in members:
                missing = used[node.uuid] - _cpus(node, name)
                if missing <= 0:
                    continue
                waiting.append(
                    f"{full_name(node.name, node.uuid)}: guests hold {used[node.uuid]} CPUs as {name}, but"
                    f" it has only {_cpus(node, name)}: the other providers of the zone offer {missing}"
                    " fewer until guests hold less"
                )
                for other in members:
                    slack = _cpus(other, name) - used[other.uuid] - reserved[other.uuid, name]
                    # If the slack is negative, guests hold more CPUs of the provider than the provider has.
                    part = max(0, min(missing, slack))
                    reserved[other.uuid, name] += part
                    missing -= part
    nodes = tuple(_with_reserved(node, reserved) for node in derived.nodes)
    return replace(derived, nodes=nodes), tuple(waiting)


def _cpus(node: ProviderNode, name: str) -> int:
    """The number of a provider's CPUs that guests can hold as units of a resource class."""
    own = node.inventories.get(name, ProviderInventory(0))
    return own.total - own.reserved


def _cpus_held(
    node: ProviderNode,
    name: str,
    reported: Mapping[str, ReportedProvider],
    held: HeldAmount,
) -> int:
    """The number of CPUs that a held amount of a class occupies, at the reported allocation ratio."""
    there = present_inventories(node.uuid, reported).get(name)
    return 0 if there is None else ceil(held(node.uuid, name) / there.allocation_ratio)


def _with_reserved(node: ProviderNode, reserved: Mapping[tuple[str, str], int]) -> ProviderNode:
    more = {name: reserved[node.uuid, name] for name in _CLASSES if reserved.get((node.uuid, name))}
    if not more:
        return node
    inventories = {
        name: replace(own, reserved=own.reserved + more.get(name, 0))
        for name, own in node.inventories.items()
    }
    return replace(node, inventories=inventories)


@dataclass(frozen=True, slots=True)
class WithheldUnits:
    """The result of withholding units of one resource class on a provider.

    :ivar asked: the units that the configuration withholds.
    :ivar own: the units that are reserved for other reasons.
    :ivar reserved: all reserved units.
    :ivar held: the amount that consumers hold.
    :ivar foreign: whether another program has set ``reserved`` through the API. That value stays.
    """

    uuid: str
    name: str
    resource_class: str
    asked: int
    own: int
    reserved: int
    held: int
    ratio: float
    foreign: bool = False

    @property
    def in_full(self) -> bool:
        """Whether all units that the configuration wants to withhold are withheld."""
        return not self.foreign and self.reserved >= self.own + self.asked

    @property
    def outcome_text(self) -> str:
        """A text about the result."""
        if self.foreign:
            return (
                f"reserved of {self.resource_class} was set to {self.reserved} through the API and stays,"
                f" so nothing is withheld: set it to {self.own + self.asked} to withhold all"
            )
        if self.in_full:
            return f"reserved of {self.resource_class}, {self.own} of it for other reasons"
        return (
            f"reserved of {self.resource_class}, {self.own} of it for other reasons: more is not possible"
            f" while {self.held} are held at an allocation ratio of {self.ratio:g}"
        )

    def __str__(self) -> str:
        name = full_name(self.name, self.uuid)
        now = self.outcome_text if self.foreign else f"{self.reserved} {self.outcome_text}"
        return f"{name}: {self.asked} {self.resource_class} are to be withheld; {now}"


def keep_withheld(
    derived: ProviderTree,
    reported: Mapping[str, ReportedProvider],
    owned: Ownership,
    held: HeldAmount,
) -> tuple[ProviderTree, tuple[WithheldUnits, ...]]:
    """The tree with withheld units reserved as far as possible, and the result for each resource class.

    Units are not reserved if consumers would then hold more than the capacity.

    :param held: called only for classes to withhold.
    """
    nodes: list[ProviderNode] = []
    found: list[WithheldUnits] = []
    for node in derived.nodes:
        for name, asked in node.withheld.items():
            own = node.inventories.get(name)
            if own is None or asked <= 0:
                continue
            there = present_inventories(node.uuid, reported).get(name)
            ratio = own.allocation_ratio
            # If no option sets the ratio, the ratio in Placement stays and determines the capacity (see
            # settle_inventory).
            if there is not None and (name, "allocation_ratio") not in derived.configured:
                ratio = there.allocation_ratio
            used = held(node.uuid, name) if there is not None else 0
            most = min(own.reserved + asked, most_reserved(own, ratio, used))
            node = replace(node, inventories={**node.inventories, name: replace(own, reserved=most)})
            # A value that an operator set through the API takes precedence over the agent's.
            settled = settled_inventories(derived, node, reported, owned)[name]
            foreign = "reserved" in settled.kept_fields
            reserved = settled.inventory.reserved
            found.append(
                WithheldUnits(node.uuid, node.name, name, asked, own.reserved, reserved, used, ratio, foreign)
            )
        nodes.append(node)
    return replace(derived, nodes=tuple(nodes)), tuple(found)


def most_reserved(inventory: ProviderInventory, ratio: float, used: int) -> int:
    """The largest reserve, at least the present one, with (total - reserved) * ``ratio`` >= ``used``."""
    # The search is a bisection, because a division by the ratio would be off by one for some ratios.
    low, high = inventory.reserved, max(inventory.reserved, inventory.total)
    while low < high:
        middle = (low + high + 1) // 2
        if int((inventory.total - middle) * ratio) >= used:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(frozen=True, slots=True)
class WithheldOffers:
    """Amounts that are not offered yet, with a message about each.

    :ivar pages: huge pages in memory that guests hold.
    :ivar cpus: CPUs of pools that guests of other pools hold.
    :ivar removed: held resource classes that no provider file adds any more.
    :ivar withheld: the result for each resource class with units to withhold.
    :ivar devices: PCI devices of other programs, used devices, and devices that are gone but held.
    :ivar foreign_devices: the addresses of the PCI devices that other programs report.
    """

    pages: tuple[str, ...] = ()
    cpus: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    withheld: tuple[WithheldUnits, ...] = ()
    devices: tuple[str, ...] = ()
    foreign_devices: frozenset[str] = frozenset()

    @property
    def all_sentences(self) -> tuple[str, ...]:
        """All messages for the operator."""
        return (*self.pages, *self.cpus, *self.removed, *self.devices, *self.not_withheld)

    @property
    def not_withheld(self) -> tuple[str, ...]:
        """Messages about units that cannot be withheld, with reasons."""
        return tuple(str(one) for one in self.withheld if not one.in_full)


def beside_held(
    derived: ProviderTree,
    reported: Mapping[str, ReportedProvider],
    owned: Ownership,
    held: HeldAmount,
) -> tuple[ProviderTree, WithheldOffers]:
    """The tree to report while guests hold their amounts, and the amounts that are not offered yet."""
    # Withheld units come last, because only units that are not reserved for other reasons can be withheld.
    tree, foreign = without_foreign_devices(derived, reported)
    left_out = frozenset(node.device for node in derived.nodes if tree.get(node.uuid) is None)
    tree, pages = keep_held_memory(tree, reported, held)
    tree, cpus = keep_held_cpus(tree, reported, held)
    tree, used = reserve_used_devices(tree, reported, held)
    tree, gone = keep_gone_devices(tree, reported, owned, held)
    tree, removed = _keep_removed(tree, reported, owned, held)
    tree, withheld = keep_withheld(tree, reported, owned, held)
    return tree, WithheldOffers(pages, cpus, removed, withheld, (*foreign, *used, *gone), left_out)


def _keep_removed(
    derived: ProviderTree,
    reported: Mapping[str, ReportedProvider],
    owned: Ownership,
    held: HeldAmount,
) -> tuple[ProviderTree, tuple[str, ...]]:
    """The tree with removed resource classes, fully reserved, as long as guests hold them.

    If the resource class of a PCI device changes, both classes stand for the same device, so the inventories
    of both classes are reserved.
    """
    nodes, waiting = [], []
    for node in derived.nodes:
        removed = dict(_removed_classes(node, reported, owned))
        amounts = {name: amount for name in removed if (amount := held(node.uuid, name))}
        kept = reserve_inventories({name: removed[name] for name in amounts})
        own, also = node.inventories, ""
        if kept and node.device_class:
            own, also = reserve_inventories(own), f" Until then all {node.device_class} is reserved, too"
        for name, amount in amounts.items():
            waiting.append(
                f"{full_name(node.name, node.uuid)}: {amount} {name} are held of an inventory that is to"
                " be removed: all of it is reserved, and it is removed when nothing is"
                f" held{also and '.' + also}"
            )
        nodes.append(replace(node, inventories={**own, **kept}) if kept else node)
    return replace(derived, nodes=tuple(nodes)), tuple(waiting)


def _removed_classes(
    node: ProviderNode, reported: Mapping[str, ReportedProvider], owned: Ownership
) -> Iterator[tuple[str, ProviderInventory]]:
    mine = owned.get(node.uuid, OwnedNames()).classes - OWN_CLASSES - node.inventories.keys()
    there = present_inventories(node.uuid, reported)
    yield from ((name, there[name]) for name in sorted(mine & there.keys()))


def without_foreign_devices(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider]
) -> tuple[ProviderTree, tuple[str, ...]]:
    """The tree without devices that other programs report, and a message about each of these programs."""
    foreign: dict[str, list[str]] = {}
    named = {provider.name: provider for provider in reported.values()}
    # If Nova reports a card, its virtual functions or its vGPUs, the whole card belongs to Nova.
    novas = {
        derived.card_of(device_of(provider.name))
        for provider in reported.values()
        if is_novas_device(provider)
    }
    for node in derived.device_providers:
        other = named.get(node.name)
        if derived.card_of(node.device) in novas:
            foreign.setdefault("nova-compute", []).append(node.device)
        elif other is not None and other.uuid != node.uuid:
            foreign.setdefault("another program", []).append(node.device)
    left_out = {address for addresses in foreign.values() for address in addresses}
    sentences = (
        f"{named_devices(addresses)}: {program} reports them to Placement, so the agent does not. Remove"
        " them from [pci] device_spec here, or there"
        for program, addresses in sorted(foreign.items())
    )
    return derived.without_devices(left_out), tuple(sentences)


def keep_gone_devices(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership, held: HeldAmount
) -> tuple[ProviderTree, tuple[str, ...]]:
    """Add to the tree the devices that are gone but must keep their providers, with all units reserved.

    The provider stays while a guest holds the device, because Placement refuses to delete a provider with
    allocations. All units are reserved, because Placement would otherwise offer the rest of a card to other
    guests. The provider of a device for one use (``one_time_use``) stays after the use, too: the device can
    come back, and only the provider shows that it was used.

    :return: the tree, and a message about each device that is gone.
    """
    nodes, waiting = [], []
    for uuid, provider in reported.items():
        if uuid not in owned or derived.get(uuid) is not None or not (address := device_of(provider.name)):
            continue
        amounts = {name: held(uuid, name) for name in provider.inventories}
        traits = provider.traits & owned[uuid].traits
        is_used = ONE_TIME_USE in traits and _is_reserved(provider.inventories)
        if not (is_used or any(amounts.values())):
            continue
        # The provider of the parent may have been removed together with the device.
        parent = provider.parent if derived.get(provider.parent or "") is not None else derived.root.uuid
        inventories = reserve_inventories(provider.inventories)
        attributes = {name: value for name, value in provider.attributes.items() if is_ours(name)}
        nodes.append(
            ProviderNode(provider.name, uuid, parent, inventories, traits, attributes, device=address)
        )
        taken = ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()) if amount)
        state = f"{taken} are held" if taken else "it is for one use and was used"
        end = "nothing is held" if taken else "reserved of its inventory is set to 0 through the API"
        waiting.append(
            f"{full_name(provider.name, uuid)}: the device is gone, or [pci] device_spec does not select"
            f" it any more, and {state}: all of it is reserved, and it goes when {end}"
        )
    return replace(derived, nodes=(*derived.nodes, *nodes)), tuple(waiting)


def reserve_used_devices(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], held: HeldAmount
) -> tuple[ProviderTree, tuple[str, ...]]:
    """The tree in which all units of a device for one use are reserved, if a guest has ever held the device.

    The units stay reserved after the guest has ended, until an operator sets ``reserved`` to 0 through the
    API, as in Nova (its documentation of ``one_time_use``).
    """
    nodes, sentences = [], []
    for node in derived.nodes:
        used = node.device and ONE_TIME_USE in node.traits and _is_used(node, reported, held)
        if used:
            inventories = reserve_inventories(node.inventories)
            sentences.append(
                f"{full_name(node.name, node.uuid)} is for one use and was used: all of it is reserved. Clean"
                " the device, and set reserved of its inventory to 0 through the API when no guest holds it"
            )
            node = replace(node, inventories=inventories)
        nodes.append(node)
    return replace(derived, nodes=tuple(nodes)), tuple(sentences)


def _is_used(node: ProviderNode, reported: Mapping[str, ReportedProvider], held: HeldAmount) -> bool:
    there = present_inventories(node.uuid, reported)
    # Classes that the tree no longer has count, too, because one of them can be the former class of the
    # device.
    classes = [name for name in there if name == node.device_class or name not in node.inventories]
    # The reserve shows that the device was used, even after the guest is gone and the agent's state is lost.
    return _is_reserved({name: there[name] for name in classes}) or any(
        held(node.uuid, name) for name in classes
    )


def _is_reserved(inventories: Mapping[str, ProviderInventory]) -> bool:
    return any(one.reserved >= one.total for one in inventories.values())


def reserve_inventories(inventories: Mapping[str, ProviderInventory]) -> dict[str, ProviderInventory]:
    """The inventories with all units reserved, so that nothing more can be allocated."""
    return {name: replace(one, reserved=one.total) for name, one in inventories.items()}
