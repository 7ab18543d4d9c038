"""Controller ``memory``: the memory of a guest comes from the NUMA nodes that it holds memory of.

That is what its allocation says, by the providers of its ``MEMORY_MB``: also of guests that float over CPUs
of other nodes, and of nodes without CPUs. Where the allocation says no node (a flat tree), that of guests
with dedicated CPUs comes from the nodes of these, and that of others from any. Huge pages that a guest has
taken stay where they are: which node they come from is said when the guest is started.
"""

from __future__ import annotations

from compute_agent.controllers.base import GuestController, Target
from compute_agent.drivers.base import Driver
from compute_agent.model import cpuset


class MemoryController(GuestController):
    """Binds memory through the driver. That of a guest without an assignment stays as it is."""

    name = "memory"

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def drifted(self, target: Target) -> str | None:
        """Which nodes memory comes from instead; None if it comes from where it should."""
        if target.assignment is None:
            return None
        has = self._driver.memory_nodes(target.guest, target.assignment.mems)
        if has is None:
            return None
        return f"memory from NUMA nodes {_text(has)} in place of {_text(target.assignment.mems)}"

    def apply(self, target: Target) -> bool:
        """Bind memory, or lift what binds it. True if anything had to be changed."""
        if target.assignment is None:
            return False
        return self._driver.bind_memory(target.guest, target.assignment.mems)


def _text(nodes: frozenset[int]) -> str:
    return cpuset.format(nodes) or "any"
