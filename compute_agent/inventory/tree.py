"""What is reported: a tree of resource providers, their inventories and traits, and the CPUs behind them.

Field names and limits are those of the Placement API (PUT /resource_providers/{uuid}/inventories).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from compute_agent.model.resource import STOCK_NAMES

Field = Literal["reserved", "allocation_ratio"]
"""What of an inventory operators set as well."""

FIELDS: Final[tuple[Field, ...]] = ("reserved", "allocation_ratio")


@dataclass(frozen=True, slots=True)
class ProviderInventory:
    """How much of one resource class a provider has."""

    total: int
    reserved: int = 0
    min_unit: int = 1
    max_unit: int = 1
    step_size: int = 1
    allocation_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class ProviderNode:
    """One resource provider; ``parent`` is the parent's uuid, None for the root.

    ``cpus``, ``numa_nodes`` and ``l3_ids`` are the zone of the host that it stands for: its online CPUs
    (whether or not they are in a CPU set), and the NUMA nodes and L3 caches that lie in it or around it.
    ``pool`` is the pool that it is the part of a zone of: only those CPUs of the zone are its own.
    ``withheld`` is what of a class is to be reserved beside that of its inventory, as far as nobody holds it.
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
    withheld: Mapping[str, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class ProviderTree:
    """All providers of a host, the root first and every parent before its children.

    ``configured`` are the resource classes and fields of inventories that options of the ini file set, rather
    than defaults. ``beside``: the root is nova-compute's, and nothing of it is the agent's to write.
    """

    nodes: tuple[ProviderNode, ...]
    configured: frozenset[tuple[str, Field]] = frozenset()
    beside: bool = False

    @property
    def root(self) -> ProviderNode:
        """The provider that stands for the whole host."""
        return self.nodes[0]

    @property
    def ours(self) -> tuple[ProviderNode, ...]:
        """The providers that the agent makes, writes and removes."""
        return self.nodes[1:] if self.beside else self.nodes

    def get(self, provider_uuid: str) -> ProviderNode | None:
        """The provider of that uuid, None if it is not one of this host's."""
        return next((node for node in self.nodes if node.uuid == provider_uuid), None)

    def providing(self, resource_class: str) -> tuple[ProviderNode, ...]:
        """The providers that have an inventory of ``resource_class``."""
        return tuple(node for node in self.nodes if resource_class in node.inventories)

    def with_attributes(self, told: Mapping[str, str | float]) -> ProviderTree:
        """The tree, with more attributes of the first provider that is the agent's, if it makes any."""
        if not self.ours:
            return self
        first = self.ours[0]
        changed = replace(first, attributes={**first.attributes, **told})
        return replace(self, nodes=tuple(changed if node is first else node for node in self.nodes))


def child_uuid(root_uuid: str, zone: str) -> str:
    """Uuid of the provider of a zone of the host (``NUMA_0``, ``L3_2``): the same on every start.

    The zone, not the whole provider name, goes into it, so that a host that is renamed keeps its providers.
    """
    return str(uuid.uuid5(uuid.UUID(root_uuid), zone))


def with_stock_names(tree: ProviderTree) -> ProviderTree:
    """The same tree for a server that does not know ``LLC`` and ``MBA``.

    It has ``CUSTOM_LLC`` and ``CUSTOM_MBA`` instead.
    """
    return replace(
        tree,
        nodes=tuple(
            replace(
                node,
                inventories={STOCK_NAMES.get(name, name): held for name, held in node.inventories.items()},
                withheld={STOCK_NAMES.get(name, name): amount for name, amount in node.withheld.items()},
            )
            for node in tree.nodes
        ),
    )
