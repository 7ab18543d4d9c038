"""The guests as others see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compute_agent.host.topology import HostTopology
from compute_agent.model.guest import Allocation, CpuAssignment, Guest, GuestMigration
from compute_agent.model.resource import ThrottleControl
from compute_agent.pipeline.cache import CachedGuest


@dataclass(frozen=True, slots=True)
class GuestView:
    """A copy of a cached guest that the worker does not change any more.

    ``cpu_nodes`` are the NUMA nodes of its CPUs; those of its memory may be others.
    """

    guest: Guest
    allocation: Allocation | None
    assignment: CpuAssignment | None
    refusal: str
    stray: str
    refused: tuple[str, ...]
    limits: Mapping[ThrottleControl, float]
    pending: tuple[str, ...]
    migration: GuestMigration | None = None
    cpu_nodes: frozenset[int] = frozenset()
    cache_delay: float | None = None

    @property
    def remote_memory(self) -> frozenset[int]:
        """The NUMA nodes that its memory comes from and none of its CPUs is on."""
        return frozenset() if self.assignment is None else self.assignment.mems - self.cpu_nodes


def view(entry: CachedGuest, topology: HostTopology | None = None) -> GuestView:
    """The guest as it is now. Of which nodes its CPUs are the ``topology`` tells."""
    cpus = frozenset[int]() if entry.assignment is None else entry.assignment.cpus
    nodes = frozenset[int]() if topology is None else topology.nodes_of(cpus)
    return GuestView(
        entry.guest,
        entry.allocation,
        entry.assignment,
        entry.refusal,
        entry.stray,
        entry.refused,
        dict(entry.limits),
        tuple(sorted(entry.pending)),
        entry.migration,
        nodes,
        entry.cache_delay,
    )
