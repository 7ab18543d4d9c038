"""CPUs that became those of another pool, or of none, while guests hold them.

The rest of a zone and the pools in it share the CPUs of the zone. Where more is held of one of them than it
has now, the guests are on CPUs of the others: these reserve as many until less is held, so that what can
still be claimed and what is held are never more than there is. A pure function; the generation that is
written with tells whether somebody has claimed CPUs meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from typing import Final

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.messages import called
from compute_agent.report.plan import ReportedProvider

_CLASSES: Final = ("PCPU", "VCPU")


def keep_held_cpus(
    derived: ProviderTree,
    reported: Mapping[str, ReportedProvider],
    held: Callable[[str, str], int],
) -> tuple[ProviderTree, tuple[str, ...]]:
    """The tree as it can be reported now, and what waits for CPUs to be given back, a sentence each.

    ``held`` tells how much of a class is held of a provider; it is asked only where there are pools.
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
                    f"{called(node.name, node.uuid)}: guests hold {used[node.uuid]} CPUs as {name}, and it"
                    f" has {_cpus(node, name)}: others of the zone do not offer {missing} until less is held"
                )
                for other in members:
                    slack = _cpus(other, name) - used[other.uuid] - reserved[other.uuid, name]
                    part = max(0, min(missing, slack))
                    reserved[other.uuid, name] += part
                    missing -= part
    nodes = tuple(_reserving(node, reserved) for node in derived.nodes)
    return replace(derived, nodes=nodes), tuple(waiting)


def _cpus(node: ProviderNode, name: str) -> int:
    """The CPUs of a provider that can be held as a class."""
    own = node.inventories.get(name, ProviderInventory(0))
    return own.total - own.reserved


def _cpus_held(
    node: ProviderNode,
    name: str,
    reported: Mapping[str, ReportedProvider],
    held: Callable[[str, str], int],
) -> int:
    """How many CPUs what is held of a class takes."""
    there = reported[node.uuid].inventories.get(name) if node.uuid in reported else None
    return 0 if there is None else ceil(held(node.uuid, name) / there.allocation_ratio)


def _reserving(node: ProviderNode, reserved: Mapping[tuple[str, str], int]) -> ProviderNode:
    more = {name: reserved[node.uuid, name] for name in _CLASSES if reserved.get((node.uuid, name))}
    if not more:
        return node
    inventories = {
        name: replace(own, reserved=own.reserved + more.get(name, 0))
        for name, own in node.inventories.items()
    }
    return replace(node, inventories=inventories)
