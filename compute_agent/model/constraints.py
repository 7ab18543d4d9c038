"""What the definition of a guest demands of where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from compute_agent.model.cpuset import CpuSet


@dataclass(frozen=True, slots=True)
class GuestCell:
    """Guest CPUs, by number, whose memory comes from these NUMA nodes of the host and from no other."""

    vcpus: frozenset[int]
    nodes: frozenset[int]


@dataclass(frozen=True, slots=True)
class PlacementConstraints:
    """Demands that a policy has to meet, or leave the guest alone.

    ``nodes`` are the NUMA nodes that all memory of the guest comes from (empty: of any), ``cells`` the same
    for the memory of some guest CPUs. ``pins`` are the CPUs that guest CPUs may use, by number; those that
    are not there may use any. ``emulator`` are those of all other threads; empty: any.
    """

    nodes: frozenset[int] = frozenset()
    cells: tuple[GuestCell, ...] = ()
    pins: tuple[tuple[int, CpuSet], ...] = ()
    emulator: CpuSet = frozenset()

    @property
    def memory(self) -> frozenset[int]:
        """The NUMA nodes that memory is demanded of."""
        return self.nodes.union(*(cell.nodes for cell in self.cells))


UNCONSTRAINED: Final = PlacementConstraints()
"""Of a guest whose definition demands nothing."""
