"""Which idle cores are parked: decided for whole cores, by how long no guest has used them. Pure functions.

Nouns: a CPU is *used* while a guest holds it, floats on it or is about to start on it. A core is *parked*
when none of its CPUs has been used for a while; the core stays parked until one of its CPUs is used.

With cores ``2-3``, ``4-5`` and ``6-7``, CPU 4 used, and 60 seconds to wait, the cores ``2-3`` and ``6-7`` are
parked after 60 seconds. A guest on CPU 6 wakes the core ``6-7``.

Always: no CPU of a used core is parked; no core with a CPU outside :attr:`ParkingRules.cpus` is. Where CPUs
go offline, CPU 0 stays online, and so does one core of each L3 cache and NUMA node. The kernel drops the
resctrl masks of a cache, and the CPUs near a node's memory, with the last online CPU of that domain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSet, ParkMode

NO_CPUS: CpuSet = frozenset()


@dataclass(frozen=True, slots=True)
class ParkingRules:
    """How idle cores are parked.

    :ivar after: seconds without use until a core is parked.
    :ivar cpus: the CPUs that may be parked.
    :ivar unknown: offline dedicated CPUs of unknown cores. The controller brings them online, because the
        kernel shows the siblings of an online CPU only.
    """

    mode: ParkMode
    after: float
    topology: HostTopology
    cpus: CpuSet
    unknown: CpuSet = NO_CPUS


@dataclass(slots=True)
class IdleTimes:
    """The start of each CPU's idle time, in monotonic seconds."""

    since: dict[int, float] = field(default_factory=dict)

    def note_used(self, cpus: CpuSet, used: CpuSet, now: float) -> Mapping[int, float]:
        """Note which CPUs are used now.

        :return: the start of the idle time of each other CPU, in monotonic seconds.
        """
        # A used CPU loses its entry, so that it waits from zero after its last use.
        self.since = {cpu: self.since.get(cpu, now) for cpu in cpus - used}
        return self.since


def choose_parked(
    rules: ParkingRules, used: CpuSet, parked: CpuSet, since: Mapping[int, float], now: float
) -> CpuSet:
    """The CPUs to be parked.

    :param parked: the CPUs that are parked already, which do not wait again.
    """
    cores = [
        core.cpus
        for core in rules.topology.cores
        if core.cpus <= rules.cpus
        and core.cpus.isdisjoint(used)
        and (
            not core.cpus.isdisjoint(parked)
            or all(now - since.get(cpu, now) >= rules.after for cpu in core.cpus)
        )
    ]
    if rules.mode is ParkMode.OFFLINE:
        # Most kernels refuse to take CPU 0 offline, or have no file for it.
        cores = _spare_domains(rules.topology, [cpus for cpus in cores if 0 not in cpus])
    return NO_CPUS.union(*cores)


def _spare_domains(topology: HostTopology, cores: Iterable[CpuSet]) -> list[CpuSet]:
    """The cores, without the first one of each cache or node that would go offline as a whole."""
    domains = [cache.cpus for cache in topology.l3_domains]
    # A node of memory alone has no CPU that could stay online.
    domains += [node.cpus for node in topology.numa_nodes if node.cpus]
    found: list[CpuSet] = []
    gone: CpuSet = NO_CPUS
    # From the last core on, so that the first ones stay: the same ones whatever was parked before.
    for cpus in sorted(cores, key=min, reverse=True):
        if all(cpus.isdisjoint(domain) or domain - gone - cpus for domain in domains):
            found.append(cpus)
            gone |= cpus
    return found
