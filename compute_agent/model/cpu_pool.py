"""A part of the host's CPUs that some guests have to themselves: what its section says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from compute_agent.model.cpuset import CpuSet

CPU_POOL: Final = "cpu_pool:"
"""What names of their sections begin with."""


@dataclass(frozen=True, slots=True)
class CpuPool:
    """A section ``[cpu_pool:NAME]``.

    It has the CPUs of ``cpus``; or so many dedicated and shared ones of one NUMA node, ``per_node`` of each.
    Members that float may use ``max_cpus`` altogether, with dedicated ones that nobody holds (None: no more
    than the pool has). ``classes`` are those whose guests it takes (empty: all), and it takes ``max_guests``.
    """

    name: str
    cpus: CpuSet = frozenset()
    dedicated_cpus: int = 0
    shared_cpus: int = 0
    per_node: bool = False
    max_cpus: int | None = None
    classes: frozenset[str] = frozenset()
    max_guests: int | None = None
