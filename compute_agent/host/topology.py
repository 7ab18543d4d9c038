"""The topology of one host as immutable values: packages, cores, caches and NUMA nodes.

CPUs are logical CPUs (hardware threads), given by their kernel number. Sets of CPUs contain only usable CPUs
(online or parked), except in ``HostTopology.offline`` and ``HostTopology.present``. Sizes are in KiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest_settings import MemoryType


@dataclass(frozen=True, slots=True)
class CpuPackage:
    """A processor in a socket. Its id is the kernel's physical_package_id, unique except on old Itanium."""

    id: int
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class CpuDie:
    """A die of a package. Its id is the kernel's die_id, which is unique only within the package."""

    id: int
    package: int
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class CpuCluster:
    """Cores that share an L2 cache or a bus; cluster_id is unique only within the package."""

    id: int
    package: int
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class CpuCore:
    """A core and its hardware threads.

    :ivar id: core_id, which is unique at most within its package.
    :ivar kind: the kind of core of a hybrid processor: ``performance``, ``efficiency`` or ``low-power`` on
        x86, and ``capacity-N`` with the kernel's cpu_capacity elsewhere. None means that all cores of the
        host are of one kind.
    """

    id: int
    package: int
    cpus: CpuSet
    kind: str | None = None
    base_frequency_khz: int | None = None


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node. Some nodes have no CPUs, and some have no memory.

    :ivar huge_pages: the number of huge pages, both used and free, by page size in KiB.
    """

    id: int
    cpus: CpuSet
    memory_kib: int
    huge_pages: Mapping[int, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class CpuCache:
    """A cache of type ``unified``, ``data`` or ``instruction``.

    :ivar id: the number of the cache, which is unique among the caches of its level and type.
    :ivar size_kib: the size in KiB; None if the kernel does not show it.
    :ivar ways: the number of ways; None if the kernel does not show it.
    """

    level: int
    type: str
    id: int
    size_kib: int | None
    ways: int | None
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class HostTopology:
    """The topology of a host. The parts are ordered by id, but caches by level, type and id."""

    packages: tuple[CpuPackage, ...]
    dies: tuple[CpuDie, ...]
    clusters: tuple[CpuCluster, ...]
    cores: tuple[CpuCore, ...]
    caches: tuple[CpuCache, ...]
    numa_nodes: tuple[NumaNode, ...]
    online: CpuSet
    offline: CpuSet = frozenset()
    present: CpuSet = frozenset()
    parked: CpuSet = frozenset()
    """The offline CPUs that a power manager brings online for a guest. Their cores, caches and nodes are
    known."""
    distances: Mapping[int, Mapping[int, int]] = field(default_factory=dict, hash=False)
    """The distances between nodes as in ACPI's SLIT, where 10 is local; empty if the kernel shows none."""
    memory_tiers: Mapping[int, int] = field(default_factory=dict, hash=False)
    """The memory tier of each node; a lower tier is faster memory. Empty if the kernel shows none."""
    memory_types: Mapping[int, MemoryType] = field(default_factory=dict, hash=False)
    """The type of memory of each node, if it is known."""
    cpu_capacities: Mapping[int, int] = field(default_factory=dict, hash=False)
    """The kernel's cpu_capacity of each CPU: 1024 for the fastest kind of core; empty if the kernel shows
    none.
    """
    memory_kib: int = 0
    """MemTotal of /proc/meminfo in KiB; 0 if unknown."""
    cpu_flags: frozenset[str] = frozenset()
    """The flags (x86) or features (ARM) that all online CPUs have."""
    architecture: str = "unknown"
    """The architecture as ``uname -m`` names it: x86_64, aarch64, ppc64le, ia64, s390x."""
    vendor: str | None = None
    """The vendor_id of an x86 processor: GenuineIntel, AuthenticAMD; None on other architectures."""
    model_name: str | None = None
    base_frequency_khz: int | None = None
    """The base frequency of the fastest kind of core, in kHz."""
    _core_of: Mapping[int, CpuCore] = field(init=False, repr=False, compare=False, hash=False)
    _node_of: Mapping[int, int] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        # Inner loops use these mappings, and a frozen class with slots cannot have a cached property. So the
        # mappings are computed here.
        object.__setattr__(self, "_core_of", {cpu: core for core in self.cores for cpu in core.cpus})
        # If several nodes list the same CPU, the first node counts, as for inventories.
        nodes = {cpu: node.id for node in reversed(self.numa_nodes) for cpu in node.cpus}
        object.__setattr__(self, "_node_of", nodes)

    @property
    def usable(self) -> CpuSet:
        """The CPUs that are online, and the parked CPUs, which come online for a guest."""
        return self.online | self.parked

    def with_online(self, online: CpuSet, powered: CpuSet) -> HostTopology:
        """A copy of the topology with other CPUs online.

        :param online: the CPUs that are online now.
        :param powered: the CPUs that a power manager controls. No other CPU changes.
        """
        powered &= self.usable
        now = (self.online - powered) | (powered & online)
        if now == self.online:
            return self
        parked = self.usable - now
        return replace(self, online=now, parked=parked, offline=(self.offline - powered) | parked)

    def core_of(self, cpu: int) -> CpuCore | None:
        """The core that has ``cpu`` as a thread; None if the CPU is not usable."""
        return self._core_of.get(cpu)

    def threads_of(self, cpu: int) -> CpuSet:
        """The usable threads of the core of ``cpu``; ``cpu`` alone if its core is not known."""
        core = self._core_of.get(cpu)
        return frozenset({cpu}) if core is None else core.cpus

    def siblings_of(self, cpus: Iterable[int]) -> CpuSet:
        """The other usable threads of the cores of ``cpus``, without ``cpus`` themselves."""
        cpus = frozenset(cpus)
        return frozenset[int]().union(*map(self.threads_of, cpus)) - cpus

    def node_of(self, cpu: int) -> int | None:
        """The id of the NUMA node of ``cpu``; None if it is not known."""
        return self._node_of.get(cpu)

    def nodes_of(self, cpus: CpuSet) -> frozenset[int]:
        """The ids of the NUMA nodes that have at least one of ``cpus``."""
        return frozenset(node.id for node in self.numa_nodes if not cpus.isdisjoint(node.cpus))

    def cpus_of(self, nodes: frozenset[int]) -> CpuSet:
        """The CPUs of these NUMA nodes."""
        return frozenset[int]().union(*(node.cpus for node in self.numa_nodes if node.id in nodes))

    @property
    def l3_domains(self) -> tuple[CpuCache, ...]:
        """The unified L3 caches, ordered by id; empty if the machine shows none."""
        return tuple(cache for cache in self.caches if cache.level == 3 and cache.type == "unified")

    @property
    def is_hyperthreaded(self) -> bool:
        """Whether any core has more than one usable thread."""
        return any(len(core.cpus) > 1 for core in self.cores)

    def to_dict(self) -> dict[str, Any]:
        """The topology in the stable form of ``topology show -f json``. A set of CPUs is a text."""
        return {
            "packages": [_group_document(package) for package in self.packages],
            "numa_nodes": [
                {
                    "id": node.id,
                    "cpus": cpuset.format(node.cpus),
                    "memory_kib": node.memory_kib,
                    "memory_type": str(self.memory_types.get(node.id, "")),
                }
                for node in self.numa_nodes
            ],
            "distances": {
                str(node): {str(peer): distance for peer, distance in sorted(row.items())}
                for node, row in sorted(self.distances.items())
            },
            "cores": [
                {"id": core.id, "package": core.package, "cpus": cpuset.format(core.cpus)}
                for core in self.cores
            ],
            "caches": [_group_document(cache) for cache in self.caches],
            "online_cpus": cpuset.format(self.online),
            "offline_cpus": cpuset.format(self.offline),
            "parked_cpus": cpuset.format(self.parked),
        }


def _group_document(group: CpuPackage | CpuCache) -> dict[str, Any]:
    return {**asdict(group), "cpus": cpuset.format(group.cpus)}
