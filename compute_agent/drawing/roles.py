"""What CPUs are for, as pictures tell them apart."""

from collections.abc import Mapping
from enum import StrEnum

from compute_agent.model.cpu_sets import CpuSets


class Role(StrEnum):
    """What one CPU is for."""

    DEDICATED = "dedicated"
    SHARED = "shared"
    BOTH = "dedicated or shared"
    """As with the legacy ``vcpu_pin_set`` alone."""
    HOST = "host"
    """In no set: no guest runs there."""


def roles(cpus: frozenset[int], sets: CpuSets) -> Mapping[Role, frozenset[int]]:
    """These CPUs by what they are for, in the order of :class:`Role`; only those that there are."""
    found = {
        Role.DEDICATED: cpus & sets.dedicated - sets.shared,
        Role.SHARED: cpus & sets.shared - sets.dedicated,
        Role.BOTH: cpus & sets.dedicated & sets.shared,
        Role.HOST: cpus - sets.dedicated - sets.shared,
    }
    return {role: those for role, those in found.items() if those}
