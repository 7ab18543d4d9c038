"""Providers of what guests leave unused of shared CPUs and memory, one below that of each NUMA node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from compute_agent.inventory import traits
from compute_agent.inventory.tree import ProviderInventory, ProviderNode, ProviderTree, child_uuid
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.resource import MEMORY, RECLAIMED_MEMORY, RECLAIMED_VCPU

SUFFIX: Final = "_RECLAIMED"
"""The end of the name of such a provider, after that of the one that it is below."""


def with_reclaimed(tree: ProviderTree, cpu_sets: CpuSets, memory: bool = False) -> ProviderTree:
    """The tree with these providers, below the root where NUMA nodes have none. All of each is reserved.

    ``memory``: they have that, too, where the one above has.
    """
    zones = [node for node in tree.nodes if traits.NUMA_ROOT in node.traits] or [tree.root]
    return replace(tree, nodes=(*tree.nodes, *(_child(tree.root, zone, cpu_sets, memory) for zone in zones)))


def _child(root: ProviderNode, zone: ProviderNode, cpu_sets: CpuSets, memory: bool) -> ProviderNode:
    most = {RECLAIMED_VCPU: len(reclaimable(zone, cpu_sets))}
    if memory and (has := zone.inventories.get(MEMORY)) is not None:
        most[RECLAIMED_MEMORY] = has.total - has.reserved
    offered = {
        name: ProviderInventory(amount, amount, max_unit=amount) for name, amount in most.items() if amount
    }
    name = f"{zone.name}{SUFFIX}"
    uuid = child_uuid(root.uuid, name.removeprefix(root.name).lstrip("_"))
    return replace(
        zone, name=name, uuid=uuid, parent=zone.uuid, inventories=offered, traits=frozenset(), attributes={}
    )


def reclaimable(zone: ProviderNode, cpu_sets: CpuSets) -> frozenset[int]:
    """The CPUs of a zone of which others may have what is left: those on which guests of no pool float."""
    return (cpu_sets.open_shared - cpu_sets.dedicated) & zone.cpus


def with_offers(
    tree: ProviderTree, offers: Mapping[str, int], resource_class: str = RECLAIMED_VCPU
) -> ProviderTree:
    """The tree with so much of a class of these providers, by uuid, not reserved."""
    return replace(tree, nodes=tuple(_offering(node, offers, resource_class) for node in tree.nodes))


def _offering(node: ProviderNode, offers: Mapping[str, int], resource_class: str) -> ProviderNode:
    has = node.inventories.get(resource_class)
    if has is None or node.uuid not in offers:
        return node
    reserved = has.total - max(0, min(offers[node.uuid], has.total))
    return replace(node, inventories={**node.inventories, resource_class: replace(has, reserved=reserved)})
