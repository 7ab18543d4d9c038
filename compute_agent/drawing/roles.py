"""What CPUs are for, as pictures tell them apart."""

from collections.abc import Mapping
from enum import StrEnum

from compute_agent.model.cpuset import CpuSets


class CpuRole(StrEnum):
    """What one CPU is for."""

    DEDICATED = "dedicated"
    SHARED = "shared"
    BOTH = "dedicated or shared"
    """As with the legacy ``vcpu_pin_set`` alone."""
    HOST = "host"
    """In no set: no guest runs there."""


def roles(cpus: frozenset[int], sets: CpuSets) -> Mapping[CpuRole, frozenset[int]]:
    """These CPUs by what they are for, in the order of :class:`Role`; only those that there are."""
    found = {
        CpuRole.DEDICATED: cpus & sets.dedicated - sets.shared,
        CpuRole.SHARED: cpus & sets.shared - sets.dedicated,
        CpuRole.BOTH: cpus & sets.dedicated & sets.shared,
        CpuRole.HOST: cpus - sets.dedicated - sets.shared,
    }
    return {role: those for role, those in found.items() if those}
