"""Judges a placement: its needless splits, and the free cores that remain."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.policy_streams import StreamGuest
from compute_agent.host.topology import HostTopology
from compute_agent.model.guest_settings import ThreadPolicy

CpuSet = frozenset[int]


@dataclass(frozen=True, slots=True)
class NeedlessSplit:
    """The numbers of needless NUMA nodes and L3 domains of a guest."""

    nodes: int
    l3s: int


class PlacementJudge:
    """Judges the placements on one host."""

    def __init__(self, topology: HostTopology) -> None:
        self._cores = [core.cpus for core in topology.cores]
        self._nodes = self._domain_cores(node.cpus for node in topology.numa_nodes if node.cpus)
        self._l3s = self._domain_cores(cache.cpus for cache in topology.l3_domains)

    def judge_split(self, free: CpuSet, guest: StreamGuest, cpus: CpuSet) -> NeedlessSplit:
        """Judge the CPUs that a guest uses, given the CPUs that were free on the host."""
        return NeedlessSplit(
            _touched_domains(self._nodes, cpus) - self._fewest_domains(self._nodes, free, guest),
            _touched_domains(self._l3s, cpus) - self._fewest_domains(self._l3s, free, guest),
        )

    def whole_cores(self, free: CpuSet) -> int:
        """Return the number of cores with only free threads."""
        return sum(core <= free for core in self._cores)

    def _domain_cores(self, parts: Iterable[CpuSet]) -> Mapping[CpuSet, Sequence[CpuSet]]:
        """Return the cores of each part of the host."""
        return {cpus: [core for core in self._cores if not core.isdisjoint(cpus)] for cpus in parts}

    def _fewest_domains(
        self, domains: Mapping[CpuSet, Sequence[CpuSet]], free: CpuSet, guest: StreamGuest
    ) -> int:
        """Return the smallest number of domains for the guest: those with the most room."""
        rooms = sorted(
            (_thread_capacity(cores, free & cpus, guest.thread_policy) for cpus, cores in domains.items()),
            reverse=True,
        )
        missing, used = guest.vcpus, 0
        for room in rooms:
            if missing <= 0:
                break
            missing, used = missing - room, used + 1
        return used


def _thread_capacity(cores: Iterable[CpuSet], free: CpuSet, policy: ThreadPolicy) -> int:
    """Return the number of guest CPUs of a thread policy that fit on free CPUs."""
    match policy:
        case ThreadPolicy.ISOLATE:
            return sum(core <= free for core in cores)
        case ThreadPolicy.REQUIRE:
            return sum(len(inside) for core in cores if len(inside := core & free) > 1)
        case _:
            return len(free)


def _touched_domains(domains: Iterable[CpuSet], cpus: CpuSet) -> int:
    return sum(not domain.isdisjoint(cpus) for domain in domains)
