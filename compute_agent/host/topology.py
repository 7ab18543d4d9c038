"""The model of one host: frozen descriptions of packages, cores, caches and NUMA nodes.

CPUs are logical CPUs (hardware threads) by their kernel number. Every set of CPUs here holds usable CPUs
only: those that are online, and those that are parked. ``HostTopology.offline`` and ``HostTopology.present``
hold others, too. Sizes are in KiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest_settings import MemoryType


@dataclass(frozen=True, slots=True)
class CpuPackage:
    """A processor in a socket, with its physical_package_id, which is unique except on old Itanium."""

    id: int
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class CpuDie:
    """A die of a package. The id of a die (die_id) is unique only within the package."""

    id: int
    package: int
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class CpuCluster:
    """Cores that share an L2 cache or a bus. The id (cluster_id) is unique only within the package."""

    id: int
    package: int
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class CpuCore:
    """A core and its hardware threads.

    :ivar id: core_id, which is unique at most within its package.
    :ivar kind: the kind of core of a hybrid processor: ``performance``, ``efficiency`` or ``low-power`` on
        x86, and ``capacity-N`` with the kernel's cpu_capacity elsewhere. None where all cores are alike.
    """

    id: int
    package: int
    cpus: CpuSet
    kind: str | None = None
    base_frequency_khz: int | None = None


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node, which may lack CPUs or memory; ``huge_pages`` counts pages by size in KiB."""

    id: int
    cpus: CpuSet
    memory_kib: int
    huge_pages: Mapping[int, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class CpuCache:
    """A cache of type ``unified``, ``data`` or ``instruction``.

    The id of a cache is unique within level and type.

    Size and ways are None where the kernel does not show them.
    """

    level: int
    type: str
    id: int
    size_kib: int | None
    ways: int | None
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class HostTopology:
    """The topology of a host, ordered by id, and caches by level, type and id."""

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
    """Offline CPUs that come online for a guest. The cores, caches and nodes of these CPUs are known."""
    distances: Mapping[int, Mapping[int, int]] = field(default_factory=dict, hash=False)
    """Distances between nodes as in ACPI SLIT: 10 is local. Empty where the kernel has none."""
    memory_tiers: Mapping[int, int] = field(default_factory=dict, hash=False)
    """The memory tiers of nodes, a lower one for faster memory. Empty where the kernel has none."""
    memory_types: Mapping[int, MemoryType] = field(default_factory=dict, hash=False)
    """The kind of memory of nodes, where it is known."""
    cpu_capacities: Mapping[int, int] = field(default_factory=dict, hash=False)
    """The kernel's cpu_capacity: 1024 for the fastest kind of core. Empty where the kernel has none."""
    memory_kib: int = 0
    """MemTotal of /proc/meminfo; 0 where it is not known."""
    cpu_flags: frozenset[str] = frozenset()
    """Flags (x86) or Features (ARM) that all online CPUs have."""
    architecture: str = "unknown"
    """The architecture in the words of ``uname -m``: x86_64, aarch64, ppc64le, ia64, s390x."""
    vendor: str | None = None
    """The vendor_id of x86 processors: GenuineIntel, AuthenticAMD."""
    model_name: str | None = None
    base_frequency_khz: int | None = None
    """The base frequency of the fastest kind of core."""
    _core_of: Mapping[int, CpuCore] = field(init=False, repr=False, compare=False, hash=False)
    _node_of: Mapping[int, int] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        # A frozen class with slots cannot have a cached property, and inner loops look these two up.
        object.__setattr__(self, "_core_of", {cpu: core for core in self.cores for cpu in core.cpus})
        # Of several nodes the first counts, as it does for inventories.
        nodes = {cpu: node.id for node in reversed(self.numa_nodes) for cpu in node.cpus}
        object.__setattr__(self, "_node_of", nodes)

    @property
    def usable(self) -> CpuSet:
        """The CPUs that are online, and those that come online for a guest."""
        return self.online | self.parked

    def with_online(self, online: CpuSet, powered: CpuSet) -> HostTopology:
        """The host with other CPUs online. Only ``powered`` CPUs change, which a power manager controls."""
        powered &= self.usable
        now = (self.online - powered) | (powered & online)
        if now == self.online:
            return self
        parked = self.usable - now
        return replace(self, online=now, parked=parked, offline=(self.offline - powered) | parked)

    def core_of(self, cpu: int) -> CpuCore | None:
        """The core that ``cpu`` is a thread of, None for a CPU that is not usable."""
        return self._core_of.get(cpu)

    def threads_of(self, cpu: int) -> CpuSet:
        """The usable threads of the core of ``cpu``, itself included; just ``cpu`` where no core is known."""
        core = self._core_of.get(cpu)
        return frozenset({cpu}) if core is None else core.cpus

    def siblings_of(self, cpus: Iterable[int]) -> CpuSet:
        """The other usable threads of the cores of ``cpus``."""
        cpus = frozenset(cpus)
        return frozenset[int]().union(*map(self.threads_of, cpus)) - cpus

    def node_of(self, cpu: int) -> int | None:
        """Id of the NUMA node of ``cpu``, None where it is not known."""
        return self._node_of.get(cpu)

    def nodes_of(self, cpus: CpuSet) -> frozenset[int]:
        """Ids of the NUMA nodes that ``cpus`` are on."""
        return frozenset(node.id for node in self.numa_nodes if not cpus.isdisjoint(node.cpus))

    def cpus_of(self, nodes: frozenset[int]) -> CpuSet:
        """The CPUs of these NUMA nodes."""
        return frozenset[int]().union(*(node.cpus for node in self.numa_nodes if node.id in nodes))

    @property
    def l3_domains(self) -> tuple[CpuCache, ...]:
        """The unified caches of level 3, by id; empty where the machine has or shows none."""
        return tuple(cache for cache in self.caches if cache.level == 3 and cache.type == "unified")

    @property
    def is_hyperthreaded(self) -> bool:
        """Whether any core has more than one usable thread."""
        return any(len(core.cpus) > 1 for core in self.cores)

    def to_dict(self) -> dict[str, Any]:
        """The stable form of ``topology show -f json``. A set of CPUs is a string."""
        return {
            "packages": [
                {"id": package.id, "cpus": cpuset.format(package.cpus)} for package in self.packages
            ],
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
            "caches": [
                {
                    "level": cache.level,
                    "type": cache.type,
                    "id": cache.id,
                    "size_kib": cache.size_kib,
                    "ways": cache.ways,
                    "cpus": cpuset.format(cache.cpus),
                }
                for cache in self.caches
            ],
            "online_cpus": cpuset.format(self.online),
            "offline_cpus": cpuset.format(self.offline),
            "parked_cpus": cpuset.format(self.parked),
        }
