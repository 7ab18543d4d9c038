"""Pure functions that decide on which CPUs emulator threads belong if another program pins guests.

Emulator threads are QEMU's threads that run no guest CPU, the workers of vhost, and helpers. Emulator threads
belong on shared CPUs of the guest's NUMA nodes. With the emulator policy ``isolate`` the guest has a
dedicated CPU for its emulator threads, which none of its guest CPUs uses. All other dedicated CPUs are for
guest CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.messages import named_few

_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class EmulatorCpus:
    """The CPUs of a host on which threads that run no guest CPU belong.

    :ivar shared: the CPUs in the option ``cpu_shared_set``.
    :ivar nodes: the CPUs of each NUMA node, by number of the node.
    """

    shared: CpuSet = frozenset()
    nodes: Mapping[int, CpuSet] = field(default_factory=dict)

    def choose_cpus(self, place: CpuAssignment, held: CpuSet, online: CpuSet) -> CpuSet:
        """The shared CPUs in the NUMA nodes of a guest, or else all shared CPUs; empty if no CPU is left.

        :param held: the CPUs that guests hold, which emulator threads must not use.
        """
        free = self.shared & online - held
        near = frozenset[int]().union(*(cpus for cpus in self.nodes.values() if cpus & place.cpus))
        return free & near or free


def find_misplaced(threads: Mapping[int, CpuSet], place: CpuAssignment, held: CpuSet) -> dict[int, CpuSet]:
    """The threads that may use dedicated CPUs although the policy forbids it, each with these CPUs.

    :param threads: the CPUs of a guest's threads that run no guest CPU, by thread id.
    :param place: the assignment of the guest: the CPUs and NUMA nodes where it runs.
    :param held: the CPUs that all guests together hold.
    """
    reserved = held - (place.held_cpus - place.cpus)
    return {tid: cpus & reserved for tid, cpus in threads.items() if cpus & reserved}


def tell_misplaced(misplaced: Mapping[int, CpuSet]) -> str:
    """A message about threads on CPUs where they do not belong; empty if there are no such threads."""
    if not misplaced:
        return ""
    cpus = cpuset.format(frozenset().union(*misplaced.values()))
    tids = named_few([str(tid) for tid in sorted(misplaced)], _SHOWN)
    return f"threads that run no guest CPU may use dedicated CPUs {cpus}: {tids}"
