"""PCI devices on pages: those of a host with their holders, and those of the cloud by resource class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement_extras.console.host import ConsumerHolding, InventoryStock, ProviderNodeView

NUMA_NODE: Final = "numa_node"
PCI_PATH: Final = "pci_path"
"""Attributes of the provider of a PCI device, which the agent of the host writes."""

MAX_DEVICES: Final = 100
"""Maximum number of devices that a page lists."""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A PCI device. ``node`` is its NUMA node, ``path`` the bridges above it; empty where unknown.

    ``holders`` are the numbers of its consumers in the list beside it.
    """

    provider: Provider
    stocks: tuple[InventoryStock, ...]
    node: str
    path: str
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShownDevices:
    """The first PCI devices of a host, and the number of all."""

    rows: tuple[DeviceRow, ...] = ()
    count: int = 0


def list_devices(node: ProviderNodeView, held: Sequence[ConsumerHolding]) -> ShownDevices:
    """Return the PCI devices of a provider and of all providers below it, with their holders."""
    holders: dict[int, list[int]] = {}
    for number, each in enumerate(held, 1):
        for provider in {provider.id for provider, _, _ in each.amounts}:
            holders.setdefault(provider, []).append(number)
    found = _device_rows(node, holders)
    rows = tuple(islice(found, MAX_DEVICES))
    return ShownDevices(rows, len(rows) + sum(1 for _ in found))


def _device_rows(node: ProviderNodeView, holders: Mapping[int, Sequence[int]]) -> Iterator[DeviceRow]:
    told = node.provider.attributes
    number, path = told.get(NUMA_NODE), told.get(PCI_PATH)
    if node.stocks and (number is not None or path is not None):
        yield DeviceRow(
            node.provider,
            node.stocks,
            f"{number:g}" if isinstance(number, float) else str(number or ""),
            str(path or ""),
            tuple(holders.get(node.provider.id, ())),
        )
    for child in node.children:
        yield from _device_rows(child, holders)


@dataclass(slots=True)
class DeviceStock:
    """The PCI devices of one resource class: ``hosts`` hosts have some, and ``open_hosts`` a free one."""

    resource_class: str
    capacity: int = 0
    used: int = 0
    hosts: int = 0
    open_hosts: int = 0


def device_stocks(snapshot: ModelSnapshot) -> list[DeviceStock]:
    """Return the sums of the PCI devices of all hosts for each resource class, in the order of its name."""
    found: dict[str, DeviceStock] = {}
    hosts: dict[str, tuple[set[int], set[int]]] = {}
    # the agent writes at least one of these attributes for each device
    for provider_id in {*snapshot.by_attribute.get(NUMA_NODE, ()), *snapshot.by_attribute.get(PCI_PATH, ())}:
        provider = snapshot.providers[provider_id]
        for name, inventory in provider.inventories.items():
            stock = found.setdefault(name, DeviceStock(name))
            stock.capacity += inventory.capacity
            stock.used += provider.used.get(name, 0)
            having, giving = hosts.setdefault(name, (set(), set()))
            having.add(provider.root_id)
            if provider.free(name) > 0:
                giving.add(provider.root_id)
    for name, (having, giving) in hosts.items():
        found[name].hosts, found[name].open_hosts = len(having), len(giving)
    return [found[name] for name in sorted(found)]
