"""The zones of a host: NUMA nodes, each with all that is below it."""

from typing import Final

from placement.model.provider import Provider
from placement.model.snapshot import Snapshot
from placement.model.trees import Tree

ZONE: Final = "HW_NUMA_ROOT"
"""The trait of providers that are NUMA nodes."""


def zone_of(snapshot: Snapshot, provider: Provider) -> int | None:
    """The id of the nearest provider, upwards from this one, that is a NUMA node."""
    return next((each.id for each in snapshot.upwards(provider) if ZONE in each.traits), None)


def zones_of(tree: Tree) -> list[list[int]]:
    """The positions of the providers of each zone, the NUMA node first; a tree without any is one zone."""
    at = {each.id: position for position, each in enumerate(tree.members)}
    zones: dict[int, list[int]] = {
        position: [position] for position, each in enumerate(tree.members) if ZONE in each.traits
    }
    if not zones:
        root = at[tree.root.id]
        return [[root, *(position for position in range(len(tree.members)) if position != root)]]
    for position, each in enumerate(tree.members):
        parent = each.parent_id
        while position not in zones and parent is not None:
            above = at[parent]
            if above in zones:
                zones[above].append(position)
                break
            parent = tree.members[above].parent_id
    return list(zones.values())
