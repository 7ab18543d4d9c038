"""Chooses the idle cores to park: whole cores that no guest has used for a while. Pure functions.

Nouns:

- A CPU is *used* while a guest holds it, floats on it or is about to start on it.
- A core is *parked* when none of its CPUs has been used for a while. The core stays parked until one of its
  CPUs is used.

A worked example: the cores are ``2-3``, ``4-5`` and ``6-7``, CPU 4 is used, and the wait is 60 seconds. After
60 seconds the cores ``2-3`` and ``6-7`` are parked. A guest on CPU 6 wakes the core ``6-7``.

Invariants: a core with a used CPU, or with a CPU outside :attr:`ParkingRules.cpus`, is not parked. Where
parking takes CPUs offline, CPU 0 and one core of each L3 cache and NUMA node stay online. If the last CPU of
a cache went offline, the kernel would drop the resctrl masks of the cache. If the last CPU of a node went
offline, no CPU would be near the node's memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compute_agent.host.topology import HostTopology
from compute_agent.model.cpuset import CpuSet, ParkMode

NO_CPUS: CpuSet = frozenset()


@dataclass(frozen=True, slots=True)
class ParkingRules:
    """The rules that decide which idle cores are parked, when and how.

    :ivar mode: how CPUs are parked: offline, in a deep idle state, or with a slow governor.
    :ivar after: the seconds without use after which a core is parked.
    :ivar topology: the cores, caches and NUMA nodes of the host.
    :ivar cpus: the CPUs that may be parked.
    :ivar unknown: offline dedicated CPUs of unknown cores. The controller brings them online, because the
        kernel shows the siblings of online CPUs only.
    """

    mode: ParkMode
    after: float
    topology: HostTopology
    cpus: CpuSet
    unknown: CpuSet = NO_CPUS


@dataclass(slots=True)
class IdleTimes:
    """Remembers since when each CPU is idle.

    :ivar since: the start of each CPU's idle time in monotonic seconds; used CPUs have no entry.
    """

    since: dict[int, float] = field(default_factory=dict)

    def note_used(self, cpus: CpuSet, used: CpuSet, now: float) -> Mapping[int, float]:
        """Note which CPUs are used now.

        :param cpus: all CPUs that may be parked.
        :param used: the CPUs that guests use.
        :param now: the present time in monotonic seconds.
        :return: the start of the idle time of each unused CPU, in monotonic seconds.
        """
        # A used CPU loses its entry, so that its idle time starts from zero after its last use.
        self.since = {cpu: self.since.get(cpu, now) for cpu in cpus - used}
        return self.since


def choose_parked(
    rules: ParkingRules, used: CpuSet, parked: CpuSet, since: Mapping[int, float], now: float
) -> CpuSet:
    """The CPUs to park.

    :param used: the CPUs that guests use.
    :param parked: the CPUs that are parked already. They stay parked until they are used.
    :param since: the start of the idle time by CPU, in monotonic seconds.
    :param now: the present time in monotonic seconds.
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
        # CPU 0 stays online: most kernels refuse to take it offline, or have no file for it.
        cores = _spare_domains(rules.topology, [cpus for cpus in cores if 0 not in cpus])
    return NO_CPUS.union(*cores)


def _spare_domains(topology: HostTopology, cores: Iterable[CpuSet]) -> list[CpuSet]:
    """The cores that may be parked, without the last online core of each L3 cache and NUMA node."""
    domains = [cache.cpus for cache in topology.l3_domains]
    # A NUMA node that has only memory has no CPU to keep online.
    domains += [node.cpus for node in topology.numa_nodes if node.cpus]
    found: list[CpuSet] = []
    gone: CpuSet = NO_CPUS
    # The loop runs from the last core to the first, so that the first core of a domain always stays online.
    for cpus in sorted(cores, key=min, reverse=True):
        if all(cpus.isdisjoint(domain) or domain - gone - cpus for domain in domains):
            found.append(cpus)
            gone |= cpus
    return found
