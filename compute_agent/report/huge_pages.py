"""Memory that becomes huge pages to sell, and is held as ``MEMORY_MB`` so far.

Pages lie in the memory of their node: what is sold of both is never more than it has. So ``MEMORY_MB``
shrinks to what is beside the pages as far as nobody holds it, and as many pages as lie in the rest are
reserved until it is given back. A pure function; the generation that is written with tells whether somebody
has claimed memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.model.messages import called
from compute_agent.model.resource import HUGE_PAGES, MEMORY
from compute_agent.report.plan import ReportedProvider


def keep_held_memory(
    derived: ProviderTree, reported: Mapping[str, ReportedProvider], held_mb: Callable[[str], int]
) -> tuple[ProviderTree, tuple[str, ...]]:
    """The tree as it can be reported now, and what waits for memory to be given back, a sentence each.

    ``held_mb`` tells how much ``MEMORY_MB`` of a provider is held; it is asked only where that would shrink.
    """
    nodes, waiting = [], []
    for node in derived.nodes:
        there = reported[node.uuid].inventories.get(MEMORY) if node.uuid in reported else None
        own = node.inventories.get(MEMORY, ProviderInventory(0))
        if there is None or there.total <= own.total or not _sizes(node):
            nodes.append(node)
            continue
        held = held_mb(node.uuid)
        needed = min(there.total, max(there.reserved, own.reserved) + ceil(held / there.allocation_ratio))
        if needed <= own.total:
            nodes.append(node)
            continue
        inventories, pages = _with_memory(node, own, needed)
        nodes.append(replace(node, inventories=inventories))
        waiting.append(
            f"{called(node.name, node.uuid)}: {held} MEMORY_MB are held, and {own.total} are beside its huge"
            f" pages: {pages} of these are not offered until less is held"
        )
    return replace(derived, nodes=tuple(nodes)), tuple(waiting)


def _with_memory(
    node: ProviderNode, own: ProviderInventory, needed: int
) -> tuple[dict[str, ProviderInventory], int]:
    """The inventories with so much ``MEMORY_MB``, and how many pages more are reserved for that."""
    missing_kib, reserved = (needed - own.total) * 1024, 0
    found = dict(node.inventories)
    found[MEMORY] = replace(own, total=needed, max_unit=needed)
    for size, name in _sizes(node).items():
        pages = min(-(-missing_kib // size), found[name].total - found[name].reserved)
        found[name] = replace(found[name], reserved=found[name].reserved + pages)
        missing_kib, reserved = max(0, missing_kib - pages * size), reserved + pages
    return found, reserved


def _sizes(node: ProviderNode) -> dict[int, str]:
    """The classes of pages that a provider offers, by size in KiB, the smallest first."""
    return {size: name for size, name in sorted(HUGE_PAGES.items()) if name in node.inventories}
