"""PCI devices for the pages of the console.

The page of a host lists each PCI device with its consumers. The page of capacities counts the PCI devices of
the whole cloud.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement_extras.console.fleet import HostResults
from placement_extras.console.host import ConsumerHolding, InventoryStock, stocks_of

NUMA_NODE: Final = "numa_node"
PCI_PATH: Final = "pci_path"
"""Attributes that the agent of a host writes for the provider of a PCI device. Only providers of PCI devices
have a path.
"""

MAX_DEVICES: Final = 100
"""Maximum number of devices that a page lists."""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A PCI device in the list of a page.

    ``node`` is the NUMA node of the device, and ``path`` has the bridges above the device. An unknown node or
    path is an empty text. ``holders`` has the number of each consumer of the device in the page's list of
    consumers.
    """

    provider: Provider
    stocks: tuple[InventoryStock, ...]
    node: str
    path: str
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShownDevices:
    """The PCI devices that the page of a host lists (``rows``), and the number of all its PCI devices."""

    rows: tuple[DeviceRow, ...] = ()
    count: int = 0


def list_devices(providers: Iterable[Provider], held: Sequence[ConsumerHolding]) -> ShownDevices:
    """Return the PCI devices among these providers, with the consumers that hold them."""
    holders: dict[int, list[int]] = {}
    for number, each in enumerate(held, 1):
        for provider_id in {provider.id for provider, _, _ in each.amounts}:
            holders.setdefault(provider_id, []).append(number)
    found = [each for each in providers if _is_device(each)]
    rows = [_device_row(each, holders.get(each.id, ())) for each in found[:MAX_DEVICES]]
    return ShownDevices(tuple(rows), len(found))


def _is_device(provider: Provider) -> bool:
    return PCI_PATH in provider.attributes and bool(provider.inventories)


def _device_row(provider: Provider, holders: Sequence[int]) -> DeviceRow:
    number = provider.attributes.get(NUMA_NODE)
    return DeviceRow(
        provider,
        stocks_of(provider),
        f"{number:g}" if isinstance(number, float) else str(number or ""),
        str(provider.attributes[PCI_PATH]),
        tuple(holders),
    )


@dataclass(slots=True)
class DeviceStock:
    """The sums of the PCI devices of a resource class.

    ``hosts`` is the number of hosts with such devices, and ``open_hosts`` the number of hosts with a free
    one.
    """

    resource_class: str
    capacity: int = 0
    used: int = 0
    hosts: int = 0
    open_hosts: int = 0


def list_stocks(snapshot: ModelSnapshot, counts: HostResults[tuple[DeviceStock, ...]]) -> list[DeviceStock]:
    """Return the sums over all hosts for each resource class, sorted by the name of the class.

    The time depends on the number of hosts with devices, and not on the number of devices.

    :param counts: the results of :func:`count_devices`, which visits each device of a host.
    """
    trees, sums = snapshot.whole_trees(), dict[str, DeviceStock]()
    for root in snapshot.roots_having(snapshot.by_attribute, PCI_PATH).ids:
        for each in counts.result_of(trees[root]):
            stock = sums.setdefault(each.resource_class, DeviceStock(each.resource_class))
            stock.capacity += each.capacity
            stock.used += each.used
            stock.hosts += each.hosts
            stock.open_hosts += each.open_hosts
    return [sums[name] for name in sorted(sums)]


def count_devices(tree: HostTree) -> tuple[DeviceStock, ...]:
    """Return the sums of the PCI devices of one host, by resource class."""
    found: dict[str, DeviceStock] = {}
    for provider in filter(_is_device, tree.members):
        for name, inventory in provider.inventories.items():
            stock = found.setdefault(name, DeviceStock(name, hosts=1))
            # the reserved amount can exceed the total, and the capacity is then negative
            stock.capacity += max(0, inventory.capacity)
            stock.used += provider.used.get(name, 0)
            if provider.free(name) > 0:
                stock.open_hosts = 1
    return tuple(found.values())
