"""Controller ``memory``: the memory of a guest comes from the NUMA nodes that it holds memory of.

That is what its allocation says, by the providers of its ``MEMORY_MB``: also of guests that float over CPUs
of other nodes, and of nodes without CPUs. Where the allocation says no node (a flat tree), that of guests
with dedicated CPUs comes from the nodes of these, and that of others from any. Huge pages that a guest has
taken stay where they are: which node they come from is said when the guest is started.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from compute_agent.controllers.base import GuestTarget
from compute_agent.drivers.base import GuestDriver
from compute_agent.inventory.traits import memory_trait
from compute_agent.inventory.tree import ProviderNode
from compute_agent.model import cpuset
from compute_agent.model.guest import MemoryType


class MemoryController:
    """Binds memory through the driver. That of a guest without an assignment stays as it is."""

    name = "memory"
    acts_early = False

    def __init__(
        self, driver: GuestDriver, memory_types: Mapping[int, MemoryType] = MappingProxyType({})
    ) -> None:
        """``memory_types`` are the kinds of memory of the host's NUMA nodes."""
        self._driver = driver
        self._memory_types = memory_types
        self.refused: Mapping[str, Sequence[str]] = {}

    def sync(self, targets: Sequence[GuestTarget], zones: Sequence[ProviderNode]) -> None:
        """Find those who do not get the kind of memory that they ask for."""
        found = {target.guest.uuid: self._refusal(target) for target in targets}
        self.refused = {uuid: (reason,) for uuid, reason in found.items() if reason}

    def _refusal(self, target: GuestTarget) -> str:
        wanted, place = target.guest.settings.memory_type, target.assignment
        if wanted is MemoryType.ANY or place is None:
            return ""
        others = {node for node in place.mems if self._memory_types.get(node) is not wanted}
        if place.mems and not others:
            return ""
        return (
            f"it asks for memory of type {wanted}, and gets that of NUMA nodes {_text(place.mems)}: let it"
            f" hold MEMORY_MB of a provider with the trait {memory_trait(wanted)}"
        )

    def drifted(self, target: GuestTarget) -> str | None:
        """Which nodes memory comes from instead; None if it comes from where it should."""
        if target.assignment is None:
            return None
        has = self._driver.memory_nodes(target.guest, target.assignment.mems)
        if has is None:
            return None
        return f"memory from NUMA nodes {_text(has)} in place of {_text(target.assignment.mems)}"

    def apply(self, target: GuestTarget) -> bool:
        """Bind memory, or lift what binds it. True if anything had to be changed."""
        if target.assignment is None:
            return False
        return self._driver.bind_memory(target.guest, target.assignment.mems)


def _text(nodes: frozenset[int]) -> str:
    return cpuset.format(nodes) or "any"
