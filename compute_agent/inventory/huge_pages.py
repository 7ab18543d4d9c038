"""Huge pages as inventories: what of the memory of NUMA nodes is in them, and which the host keeps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from compute_agent.host.topology import HostTopology, NumaNode
from compute_agent.inventory.tree import ProviderInventory
from compute_agent.model.messages import ConfigError
from compute_agent.model.resource import HUGE_PAGES

OPTION: Final = "[compute] reserved_huge_pages"

Reserved = Mapping[tuple[int, int], int]
"""Pages by NUMA node and size in KiB."""

_NUMBER: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]{1,12})(KB|MB|GB)?", re.ASCII)
_KIB: Final = {None: 1, "KB": 1, "MB": 1024, "GB": 1024**2}


def parse_reserved(entries: Iterable[str]) -> dict[tuple[int, int], int]:
    """The pages that entries such as ``node:0,size:2048,count:64`` reserve.

    :raises ConfigError: naming the entry.
    """
    found: dict[tuple[int, int], int] = {}
    for entry in entries:
        pairs = [part.partition(":") for part in entry.split(",")]
        parts = {key.strip(): value.strip() for key, _, value in pairs}
        node, size = _NUMBER.fullmatch(parts.get("node", "")), _SIZE.fullmatch(parts.get("size", ""))
        count = _NUMBER.fullmatch(parts.get("count", ""))
        if len(pairs) != 3 or not (node and size and count):
            raise ConfigError(f"{OPTION} = {entry}: it is to be such as node:0,size:2048,count:64")
        key = int(node[0]), int(size[1]) * _KIB[size[2]]
        if key in found:
            raise ConfigError(f"{OPTION} = {entry}: that node and size are named twice")
        found[key] = int(count[0])
    return found


def check_reserved(reserved: Reserved, topology: HostTopology) -> None:
    """See that the host has what is reserved.

    :raises ConfigError:
    """
    pages = {node.id: node.huge_pages for node in topology.numa_nodes}
    for (node, size), count in reserved.items():
        there = pages.get(node, {}).get(size, 0)
        if count > there or (count and size not in HUGE_PAGES):
            raise ConfigError(
                f"{OPTION}: {count} pages of {size} KiB of NUMA node {node} are more than the {there} there"
            )


def page_inventories(nodes: Iterable[NumaNode], reserved: Reserved) -> dict[str, ProviderInventory]:
    """The inventories of the pages that some nodes have together, in pages."""
    nodes = tuple(nodes)
    found = {}
    for size, name in HUGE_PAGES.items():
        total = sum(node.huge_pages.get(size, 0) for node in nodes)
        if total:
            kept = sum(reserved.get((node.id, size), 0) for node in nodes)
            found[name] = ProviderInventory(total=total, reserved=kept, max_unit=total)
    return found


def pages_mb(nodes: Iterable[NumaNode]) -> int:
    """MiB of the memory of some nodes that are in pages of these sizes, rounded up."""
    kib = sum(size * count for node in nodes for size, count in node.huge_pages.items() if size in HUGE_PAGES)
    return -(-kib // 1024)
