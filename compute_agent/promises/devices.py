"""Pure functions that compare the PCI devices that a guest has with those in its allocation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from compute_agent.host.pci_devices import PciDevice
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.model.guest import Allocation

HeldDevices = Mapping[str, int]
"""The number of devices in an allocation, by the address of the card. The number is above 1 for several
virtual functions of a card.
"""


def held_devices(tree: ProviderTree, allocation: Allocation) -> HeldDevices:
    """The devices that an allocation contains."""
    return {
        node.device: amount
        for node in tree.device_providers
        if (amount := allocation.get(node.uuid, {}).get(node.device_class))
    }


def cards_of(tree: ProviderTree, read_devices: Callable[[], Iterable[PciDevice]]) -> Mapping[str, str]:
    """The card of each device that a host offers, by address, or by the uuid of a mediated device.

    The card of a virtual function is its physical function. If the host offers virtual functions separately,
    each of them is its own card.

    :param read_devices: reads the devices of the host; called only if the host offers devices.
    """
    offered = {node.device for node in tree.device_providers}
    if not offered:
        return {}
    cards = dict[str, str]()
    for device in read_devices():
        made = (each for one in device.mdev_types for each in one.devices)
        card = device.address if device.address in offered else device.card_address
        cards |= dict.fromkeys((device.address, *made), card)
    # A device that is gone is perhaps still in the definition of a guest.
    return {address: address for address in offered} | {
        address: card for address, card in cards.items() if card in offered
    }


def device_faults(held: HeldDevices, has: Collection[str], cards: Mapping[str, str]) -> list[str]:
    """One message for each difference between the devices that a guest has and those in its allocation.

    :param held: the devices in the guest's allocation.
    :param has: the addresses of the devices that the guest has. Devices that the host does not offer belong
        to other programs, and are ignored.
    :param cards: the card of each offered device.
    """
    present = Counter(cards[address] for address in has if address in cards)
    return [
        f"it has {present[card]} of {card}, and holds {held.get(card, 0)}"
        for card in sorted({*held, *present})
        if held.get(card, 0) != present[card]
    ]


def in_words(held: HeldDevices) -> str:
    """The devices of an allocation as text, such as ``0000:81:00.0, 2 of 0000:a1:00.0``, or ``none``."""
    parts = (card if amount == 1 else f"{amount} of {card}" for card, amount in sorted(held.items()))
    return ", ".join(parts) or "none"
