"""PCI devices of guests: those that a guest has, compared with those that it holds. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from compute_agent.host.pci_devices import PciDevice
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.model.guest import Allocation

HeldDevices = Mapping[str, int]
"""Amounts of held devices by the address of the card: more than one of its virtual functions."""


def held_devices(tree: ProviderTree, allocation: Allocation) -> HeldDevices:
    """The devices in an allocation."""
    return {
        node.device: amount
        for node in tree.device_providers
        if (amount := allocation.get(node.uuid, {}).get(node.device_class))
    }


def cards_of(tree: ProviderTree, read_devices: Callable[[], Iterable[PciDevice]]) -> Mapping[str, str]:
    """The cards of the devices that a host offers, by address. A virtual function is of its physical one.

    :param read_devices: reads the devices of the host; called only if the host offers any.
    """
    offered = {node.device for node in tree.device_providers}
    if not offered:
        return {}
    cards = {device.address: device.physical_function or device.address for device in read_devices()}
    # A device that is gone may still be in the definition of a guest.
    return {address: address for address in offered} | {
        address: card for address, card in cards.items() if card in offered
    }


def device_faults(held: HeldDevices, has: Collection[str], cards: Mapping[str, str]) -> list[str]:
    """The differences between held devices and those that a guest has, a sentence each.

    :param has: addresses of devices. Those that the host does not offer belong to other programs.
    """
    present = Counter(cards[address] for address in has if address in cards)
    return [
        f"it has {present[card]} of {card}, and holds {held.get(card, 0)}"
        for card in sorted({*held, *present})
        if held.get(card, 0) != present[card]
    ]


def in_words(held: HeldDevices) -> str:
    """Held devices as a text: ``0000:81:00.0, 2 of 0000:a1:00.0``, or ``none``."""
    parts = (card if amount == 1 else f"{amount} of {card}" for card, amount in sorted(held.items()))
    return ", ".join(parts) or "none"
