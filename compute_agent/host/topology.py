"""The topology of one host: frozen descriptions of packages, cores, caches and NUMA nodes.

CPUs are logical CPUs (hardware threads) by the kernel's number. Each set of CPUs has usable CPUs only, which
are online or parked, except for ``HostTopology.offline`` and ``HostTopology.present``. Sizes are in KiB.
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
    """A processor in a socket. ``id`` is its physical_package_id, which is unique except on old Itanium."""

    id: int
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class CpuDie:
    """A die of a package. ``id`` is its die_id, which is unique only within the package."""

    id: int
    package: int
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class CpuCluster:
    """Cores that share an L2 cache or a bus. ``id`` is the cluster_id, unique only within the package."""

    id: int
    package: int
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class CpuCore:
    """A core and its hardware threads.

    :ivar id: the core_id, which is unique at most within the package.
    :ivar kind: the kind of core of a hybrid processor: ``performance``, ``efficiency`` or ``low-power`` on
        x86, or ``capacity-N`` with the kernel's cpu_capacity on others. None if all cores are of one kind.
    :ivar base_frequency_khz: the guaranteed frequency without turbo; None if unknown.
    """

    id: int
    package: int
    cpus: CpuSet
    kind: str | None = None
    base_frequency_khz: int | None = None


@dataclass(frozen=True, slots=True)
class NumaNode:
    """A NUMA node, which may have no CPUs or no memory.

    ``huge_pages`` are the numbers of huge pages by their size in KiB.
    """

    id: int
    cpus: CpuSet
    memory_kib: int
    huge_pages: Mapping[int, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class CpuCache:
    """A cache of type ``unified``, ``data`` or ``instruction``.

    ``id`` is unique among caches of one level and type. Size and number of ways are None if the kernel does
    not show them.
    """

    level: int
    type: str
    id: int
    size_kib: int | None
    ways: int | None
    cpus: CpuSet


@dataclass(frozen=True, slots=True)
class HostTopology:
    """The topology of a host. Parts are sorted by id, and caches by level, type and id."""

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
    """CPUs that a power manager took offline and brings online for a guest. Their topology is known."""
    distances: Mapping[int, Mapping[int, int]] = field(default_factory=dict, hash=False)
    """Distances between NUMA nodes as in the ACPI SLIT, where 10 is local; empty if the kernel has none."""
    memory_tiers: Mapping[int, int] = field(default_factory=dict, hash=False)
    """The memory tier of NUMA nodes; a lower tier is faster. Empty if the kernel has none."""
    memory_types: Mapping[int, MemoryType] = field(default_factory=dict, hash=False)
    """The type of memory of each NUMA node of which it is known."""
    cpu_capacities: Mapping[int, int] = field(default_factory=dict, hash=False)
    """The kernel's cpu_capacity by CPU: 1024 for the fastest kind of core. Empty if the kernel has none."""
    memory_kib: int = 0
    """MemTotal of /proc/meminfo in KiB; 0 if unknown."""
    cpu_flags: frozenset[str] = frozenset()
    """The CPU flags (x86) or features (ARM) that all online CPUs have."""
    architecture: str = "unknown"
    """The architecture as ``uname -m`` prints it: x86_64, aarch64, ppc64le, ia64, s390x."""
    vendor: str | None = None
    """The vendor_id of x86 processors, such as GenuineIntel; None on other processors."""
    model_name: str | None = None
    base_frequency_khz: int | None = None
    """The base frequency in kHz of the fastest kind of core; None if unknown."""
    _core_of: Mapping[int, CpuCore] = field(init=False, repr=False, compare=False, hash=False)
    _node_of: Mapping[int, int] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        # Computed here, because inner loops use both, and a class with slots cannot have a cached property.
        object.__setattr__(self, "_core_of", {cpu: core for core in self.cores for cpu in core.cpus})
        # In reverse order, so that the first of several nodes with a CPU counts, as for inventories.
        nodes = {cpu: node.id for node in reversed(self.numa_nodes) for cpu in node.cpus}
        object.__setattr__(self, "_node_of", nodes)

    @property
    def usable(self) -> CpuSet:
        """The CPUs that guests can get: online CPUs, and parked CPUs, which come online for a guest."""
        return self.online | self.parked

    def with_online(self, online: CpuSet, powered: CpuSet) -> HostTopology:
        """The topology after CPUs went on or offline; ``online`` are the CPUs that are online now.

        :param powered: the CPUs that a power manager controls. Only the state of these CPUs changes, and
            offline ones count as parked.
        """
        powered &= self.usable
        now = (self.online - powered) | (powered & online)
        if now == self.online:
            return self
        parked = self.usable - now
        return replace(self, online=now, parked=parked, offline=(self.offline - powered) | parked)

    def core_of(self, cpu: int) -> CpuCore | None:
        """The core of a CPU; None for a CPU that is not usable."""
        return self._core_of.get(cpu)

    def threads_of(self, cpu: int) -> CpuSet:
        """The usable threads of the core of ``cpu``, including ``cpu``; only ``cpu`` if no core is known."""
        core = self._core_of.get(cpu)
        return frozenset({cpu}) if core is None else core.cpus

    def siblings_of(self, cpus: Iterable[int]) -> CpuSet:
        """The usable threads of the cores of ``cpus``, without ``cpus`` themselves."""
        cpus = frozenset(cpus)
        return frozenset[int]().union(*map(self.threads_of, cpus)) - cpus

    def node_of(self, cpu: int) -> int | None:
        """The id of the NUMA node of ``cpu``; None if unknown."""
        return self._node_of.get(cpu)

    def nodes_of(self, cpus: CpuSet) -> frozenset[int]:
        """The ids of the NUMA nodes that have any of ``cpus``."""
        return frozenset(node.id for node in self.numa_nodes if not cpus.isdisjoint(node.cpus))

    def cpus_of(self, nodes: frozenset[int]) -> CpuSet:
        """The CPUs of the NUMA nodes with these ids."""
        return frozenset[int]().union(*(node.cpus for node in self.numa_nodes if node.id in nodes))

    @property
    def l3_domains(self) -> tuple[CpuCache, ...]:
        """The unified caches of level 3, sorted by id; empty if the machine has or shows none."""
        return tuple(cache for cache in self.caches if cache.level == 3 and cache.type == "unified")

    @property
    def is_hyperthreaded(self) -> bool:
        """Whether any core has more than one usable thread."""
        return any(len(core.cpus) > 1 for core in self.cores)

    def to_dict(self) -> dict[str, Any]:
        """The output of ``topology show -f json``, which programs rely on. Sets of CPUs are strings."""
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
