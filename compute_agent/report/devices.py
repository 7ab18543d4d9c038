"""Decides which PCI devices the agent reports, given devices of other programs, missing and used devices.

Pure functions.

nova-compute reports its devices (``[pci] report_in_placement``) below its root provider. nova-compute marks
their providers with the trait ``COMPUTE_MANAGED_PCI_DEVICE``, and names providers as the agent does. Names
are unique in Placement, so a device never has two providers. nova-compute takes over a provider that has the
name of its device (nova/compute/pci_placement_translator.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from compute_agent.inventory.attributes import is_ours
from compute_agent.inventory.device_spec import ONE_TIME_USE
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree, device_of
from compute_agent.model.messages import full_name, named_few
from compute_agent.report.plan import Ownership, ReportedProvider, is_novas_device

HeldAmount = Callable[[str, str], int]
"""A function that returns the amount which consumers hold, given a provider's uuid and a resource class."""

_SHOWN: Final = 5
"""Maximum number of addresses that a message contains."""


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
        f"{named_few(addresses, _SHOWN)}: {program} reports them to Placement, so the agent does not. Remove"
        " them from [pci] device_spec here, or there"
        for program, addresses in sorted(foreign.items())
    )
    return derived.without_devices(left_out), tuple(sentences)


def keep_gone_devices(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], owned: Ownership, held: HeldAmount
) -> tuple[ProviderTree, tuple[str, ...]]:
    """Add the devices that are gone but must keep their providers to the tree, with all units reserved.

    The provider stays while a guest holds the device, because Placement refuses to delete a provider with
    allocations. All units are reserved, because Placement would otherwise offer the rest of a card to other
    guests. The provider of a device for one use (``one_time_use``) stays after the use, too: the device may
    come back, and only the provider shows that it was used.

    :param owned: the agent's own parts of providers.
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
    there = reported[node.uuid].inventories if node.uuid in reported else {}
    # Classes that the tree no longer has count, too, because one of them may be the former class of the
    # device.
    classes = [name for name in there if name == node.device_class or name not in node.inventories]
    # The reserve shows the use even after the guest is gone and the agent's state is lost.
    return _is_reserved({name: there[name] for name in classes}) or any(
        held(node.uuid, name) for name in classes
    )


def _is_reserved(inventories: Mapping[str, ProviderInventory]) -> bool:
    return any(one.reserved >= one.total for one in inventories.values())


def reserve_inventories(inventories: Mapping[str, ProviderInventory]) -> dict[str, ProviderInventory]:
    """The inventories with all units reserved, so that nothing more can be allocated."""
    return {name: replace(one, reserved=one.total) for name, one in inventories.items()}
