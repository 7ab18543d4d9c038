"""What a placement is worth: which splits had to be, and what is left for others."""

from collections.abc import Iterable
from dataclasses import dataclass

from compute_agent.host.topology import Topology
from compute_agent.policy.base import ThreadPolicy
from tests.benchmark.policy_streams import Guest

CpuSet = frozenset[int]


@dataclass(frozen=True, slots=True)
class Split:
    """In how many NUMA nodes and L3 domains a guest is more than there need be."""

    nodes: int
    l3s: int

    @property
    def is_needless(self) -> bool:
        """Whether it could have been in fewer of either."""
        return self.nodes > 0 or self.l3s > 0


class Judge:
    """Looks at the placements on one host."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._nodes = [node.cpus for node in topology.numa_nodes if node.cpus]
        self._l3s = [cache.cpus for cache in topology.l3_domains]

    def split(self, free: CpuSet, guest: Guest, cpus: CpuSet) -> Split:
        """Of a guest that was given ``cpus`` (those it uses) when ``free`` CPUs were free on the host."""
        return Split(
            _touched(self._nodes, cpus) - self._fewest(self._nodes, free, guest),
            _touched(self._l3s, cpus) - self._fewest(self._l3s, free, guest),
        )

    def whole_cores(self, free: CpuSet) -> int:
        """Cores with all their threads free."""
        return sum(core.cpus <= free for core in self._topology.cores)

    def capacity(self, cpus: CpuSet, policy: ThreadPolicy) -> int:
        """How many guest CPUs of a thread policy fit on free CPUs."""
        whole = [core.cpus for core in self._topology.cores if core.cpus <= cpus]
        match policy:
            case ThreadPolicy.ISOLATE:
                return len(whole)
            case ThreadPolicy.REQUIRE:
                return sum(len(core) for core in whole if len(core) > 1)
            case _:
                return len(cpus)

    def _fewest(self, domains: Iterable[CpuSet], free: CpuSet, guest: Guest) -> int:
        """The fewest domains that hold the guest: those with most room, as rooms just add up."""
        rooms = sorted((self.capacity(free & cpus, guest.thread_policy) for cpus in domains), reverse=True)
        missing, used = guest.vcpus, 0
        for room in rooms:
            if missing <= 0:
                break
            missing, used = missing - room, used + 1
        return used


def _touched(domains: Iterable[CpuSet], cpus: CpuSet) -> int:
    return sum(not domain.isdisjoint(cpus) for domain in domains)
