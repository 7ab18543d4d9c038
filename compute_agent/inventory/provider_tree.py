"""The tree of resource providers that a host reports.

Field names and limits are those of the Placement API (PUT /resource_providers/{uuid}/inventories).
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from compute_agent.host.pci_devices import PCI_ADDRESS
from compute_agent.model.resource import STOCK_NAMES

Field = Literal["reserved", "allocation_ratio"]
"""The fields of an inventory that operators can also set through the API."""

FIELDS: Final[tuple[Field, ...]] = ("reserved", "allocation_ratio")


NAME_LIMIT: Final = 200
"""Maximum number of characters in the name of a provider (Placement API, POST /resource_providers)."""


@dataclass(frozen=True, slots=True)
class ProviderInventory:
    """The inventory of one resource class, with the fields of the Placement API."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = 1
    step_size: int = 1
    allocation_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class ProviderNode:
    """A resource provider for a part of the host.

    :ivar parent: the uuid of the parent; None for the root.
    :ivar cpus: the online and parked CPUs of the provider's zone, including CPUs that are in no CPU set.
    :ivar numa_nodes: the NUMA nodes that the zone contains or lies in.
    :ivar l3_ids: the L3 caches that the zone contains or lies in.
    :ivar pool: the name of the pool if the provider represents the CPUs of a pool in a zone. Then ``cpus``
        are the CPUs of the pool.
    :ivar device: the address of the PCI device, switch or root complex that the provider represents, or the
        name and place of a device set. Such a provider has no CPUs.
    :ivar device_class: the resource class of the PCI device; empty for other providers. Provider files can
        add inventories of other classes.
    :ivar withheld: by resource class, the units to withhold from new guests. Units that guests already hold
        are not withheld.
    """

    name: str
    uuid: str
    parent: str | None
    inventories: Mapping[str, ProviderInventory] = field(default_factory=dict, hash=False)
    traits: frozenset[str] = frozenset()
    attributes: Mapping[str, str | float] = field(default_factory=dict, hash=False)
    cpus: frozenset[int] = frozenset()
    numa_nodes: frozenset[int] = frozenset()
    l3_ids: frozenset[int] = frozenset()
    pool: str = ""
    device: str = ""
    device_class: str = ""
    withheld: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ProviderTree:
    """All providers of a host. The root comes first, and each parent comes before its children.

    :ivar configured: pairs of a resource class and a field of its inventory that the ini file or a provider
        file sets.
    :ivar beside: whether the root belongs to nova-compute, so that the agent does not write it.
    :ivar device_attributes: the attributes of PCI devices that nova-compute reports, by address.
    :ivar cards: the addresses of the physical functions, by the addresses of their virtual functions.
    """

    nodes: tuple[ProviderNode, ...]
    configured: frozenset[tuple[str, Field]] = frozenset()
    beside: bool = False
    device_attributes: Mapping[str, Mapping[str, str | float]] = field(default_factory=dict, hash=False)
    cards: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def root(self) -> ProviderNode:
        """The provider of the whole host."""
        return self.nodes[0]

    @property
    def ours(self) -> tuple[ProviderNode, ...]:
        """The providers that the agent creates, changes and deletes."""
        return self.nodes[1:] if self.beside else self.nodes

    def get(self, provider_uuid: str) -> ProviderNode | None:
        """The provider of this host with that uuid; None if there is no such provider."""
        return next((node for node in self.nodes if node.uuid == provider_uuid), None)

    def providers_of(self, resource_class: str) -> tuple[ProviderNode, ...]:
        """The providers that have an inventory of ``resource_class``."""
        return tuple(node for node in self.nodes if resource_class in node.inventories)

    @property
    def device_providers(self) -> tuple[ProviderNode, ...]:
        """The providers of PCI devices."""
        return tuple(node for node in self.nodes if node.device_class)

    def card_of(self, address: str) -> str:
        """The address of the physical function if the device is a virtual function; else its own address."""
        return self.cards.get(address, address)

    def without_devices(self, addresses: Collection[str]) -> ProviderTree:
        """The tree without the PCI devices at these addresses."""
        nodes = (node for node in self.nodes if not (node.device_class and node.device in addresses))
        return replace(self, nodes=tuple(nodes))

    def with_attributes(self, told: Mapping[str, str | float]) -> ProviderTree:
        """The tree with more attributes on the first provider of the agent, if the agent has one."""
        if not self.ours:
            return self
        first = self.ours[0]
        changed = replace(first, attributes={**first.attributes, **told})
        return replace(self, nodes=tuple(changed if node is first else node for node in self.nodes))


def nodes_below(root: ProviderNode, parent: ProviderNode) -> frozenset[int]:
    """The NUMA nodes of a device provider below ``parent``; empty below the root."""
    return frozenset() if parent is root else parent.numa_nodes


def child_uuid(root_uuid: str, zone: str) -> str:
    """The uuid of the provider of a zone (``NUMA_0``, ``L3_2``), which is the same at each start."""
    # The uuid depends on the zone and not on the provider's name, so that a renamed host keeps its providers.
    return str(uuid.uuid5(uuid.UUID(root_uuid), zone))


_MDEV_NAME: Final = re.compile(r"_pci_([0-9a-f]{4,8})_([0-9a-f]{2})_([0-9a-f]{2})_([0-7])\Z", re.ASCII)


def device_name(root_name: str, address: str) -> str:
    """The name of the provider of a PCI device, as Nova spells it."""
    return f"{root_name}_{address.upper()}"


def mdev_name(root_name: str, address: str) -> str:
    """The name of the provider of a device that makes mediated devices, as Nova spells it."""
    return f"{root_name}_pci_{re.sub('[:.]', '_', address)}"


def device_of(name: str) -> str:
    """The PCI address that a provider of that name represents; empty for other names."""
    if mdev := _MDEV_NAME.search(name):
        return "{}:{}:{}.{}".format(*mdev.groups())
    address = name.rpartition("_")[2].lower()
    return address if PCI_ADDRESS.fullmatch(address) else ""


def with_stock_names(tree: ProviderTree, known: Collection[str] = ()) -> ProviderTree:
    """The tree with ``CUSTOM_LLC`` for ``LLC`` and ``CUSTOM_MBA`` for ``MBA``, for a stock Placement.

    :param known: the classes that the server knows. Their names stay.
    """
    replaced = {name: stock for name, stock in STOCK_NAMES.items() if name not in known}
    if not replaced:
        return tree
    return replace(
        tree,
        nodes=tuple(
            replace(
                node,
                inventories={replaced.get(name, name): held for name, held in node.inventories.items()},
                withheld={replaced.get(name, name): amount for name, amount in node.withheld.items()},
            )
            for node in tree.nodes
        ),
    )
