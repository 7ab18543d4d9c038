"""Where a guest runs."""

from __future__ import annotations

from dataclasses import dataclass

from compute_agent.model.cpuset import CpuSet


@dataclass(frozen=True, slots=True)
class CpuAssignment:
    """Where a guest runs, as logical CPU numbers.

    ``dedicated`` are the CPUs no other guest gets, those of the guest CPUs in their order; ``withheld`` are
    those of them that are kept empty as siblings of used ones. ``vcpu_cpus`` has a set per guest CPU,
    ``emulator_cpus`` is for all other threads, ``mems`` are NUMA nodes. ``given``: somebody else has the
    guest there, whatever zones its allocation names, and the CPUs may be those of others as well.
    """

    vcpu_cpus: tuple[CpuSet, ...]
    emulator_cpus: CpuSet
    dedicated: tuple[int, ...] = ()
    withheld: CpuSet = frozenset()
    mems: CpuSet = frozenset()
    given: bool = False

    @property
    def held(self) -> CpuSet:
        """The CPUs that no other guest may have."""
        return frozenset(self.dedicated)

    @property
    def cpus(self) -> CpuSet:
        """The CPUs that any guest CPU may use."""
        return frozenset().union(*self.vcpu_cpus)
