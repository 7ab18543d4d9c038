"""Kinds of memory, as far as guests can ask for them.

The classes of guests: their names. What they mean is said in ``qos`` and ``resctrl``.

What the definition of a guest demands of where it runs.

What the owner of a guest asks for beside amounts.

What a consumer holds in Placement.

Where a guest runs.

A guest that is being moved to another host, or resized.

A guest: a virtual machine or a plain process that the agent looks after.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from compute_agent.model.cpuset import CpuSet
from compute_agent.model.messages import ConfigError, called


class MemoryType(enum.StrEnum):
    """What the memory of a NUMA node is; ``any`` is the wish of a guest that does not mind."""

    ANY = "any"
    DRAM = "dram"
    HBM = "hbm"
    CXL = "cxl"
    PMEM = "pmem"
    GPU = "gpu"


BEST_EFFORT: Final = "BE"
LATENCY_SENSITIVE: Final = "LS"
LATENCY_SENSITIVE_RESERVED: Final = "LSR"

CLASS_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}\Z", re.ASCII)
"""What a class may be called: folders and labels carry the name."""


def class_section(prefix: str, name: str) -> str:
    """The section of a class as errors name it, of classes of guests, CPUs or block I/O.

    :raises ConfigError: no class may be called so.
    """
    section = f"[{prefix}{name}]"
    if not CLASS_NAME.match(name):
        raise ConfigError(f"{section}: a name has 1 to 64 letters, digits, hyphens and underscores")
    return section


@dataclass(frozen=True, slots=True)
class GuestCell:
    """Guest CPUs, by number, whose memory comes from these NUMA nodes of the host and from no other."""

    vcpus: frozenset[int]
    nodes: frozenset[int]


@dataclass(frozen=True, slots=True)
class PlacementConstraints:
    """Demands that a policy has to meet, or leave the guest alone.

    ``nodes`` are the NUMA nodes that all memory of the guest comes from (empty: of any), ``cells`` the same
    for the memory of some guest CPUs. ``pins`` are the CPUs that guest CPUs may use, by number; those that
    are not there may use any. ``emulator`` are those of all other threads; empty: any.
    """

    nodes: frozenset[int] = frozenset()
    cells: tuple[GuestCell, ...] = ()
    pins: tuple[tuple[int, CpuSet], ...] = ()
    emulator: CpuSet = frozenset()

    @property
    def memory(self) -> frozenset[int]:
        """The NUMA nodes that memory is demanded of."""
        return self.nodes.union(*(cell.nodes for cell in self.cells))


UNCONSTRAINED: Final = PlacementConstraints()
"""Of a guest whose definition demands nothing."""


MAX_VCPUS: Final = 4096
MAX_PRIORITY: Final = (1 << 31) - 1
MAX_ANNOTATION: Final = 4096
"""Characters."""


class ThreadPolicy(enum.StrEnum):
    """How a dedicated guest's CPUs relate to hardware threads (``hw:cpu_thread_policy``)."""

    PREFER = "prefer"
    REQUIRE = "require"
    ISOLATE = "isolate"
    SPREAD = "spread"


class EmulatorPolicy(enum.StrEnum):
    """Where emulator and I/O threads run (``hw:emulator_threads_policy``)."""

    SHARE = "share"
    ISOLATE = "isolate"


@dataclass(frozen=True, slots=True)
class GuestSettings:
    """What the guest's owner asked for beside amounts.

    ``resctrl`` is the annotation about cache and memory bandwidth, ``priority`` that of eviction; empty texts
    are no wish, and so is one for a ``blockio_class``. ``memory_type`` is the kind of memory it is to have.
    """

    vcpus: int = 1
    thread_policy: ThreadPolicy = ThreadPolicy.PREFER
    emulator_policy: EmulatorPolicy = EmulatorPolicy.SHARE
    qos_class: str = LATENCY_SENSITIVE
    priority: int = 0
    resctrl: str = ""
    blockio_class: str = ""
    memory_type: MemoryType = MemoryType.ANY


Allocation = Mapping[str, Mapping[str, int]]
"""Amounts by provider uuid and resource class."""


@dataclass(frozen=True, slots=True)
class ConsumerAllocations:
    """All that one consumer holds, on this host and elsewhere. Empty when it holds nothing."""

    consumer: str
    resources: Allocation = field(default_factory=dict)
    generation: int | None = None
    project_id: str | None = None
    user_id: str | None = None
    consumer_type: str | None = None

    def without(self, providers: Collection[str]) -> ConsumerAllocations:
        """The same consumer when it holds nothing of these providers any more."""
        rest = {uuid: amounts for uuid, amounts in self.resources.items() if uuid not in providers}
        return replace(self, resources=rest)


@dataclass(frozen=True, slots=True)
class CpuAssignment:
    """Where a guest runs, as logical CPU numbers.

    ``dedicated`` are the CPUs no other guest gets, those of the guest CPUs in their order; ``withheld`` are
    those of them that are kept empty as siblings of used ones. ``vcpu_cpus`` has a set per guest CPU,
    ``emulator_cpus`` is for all other threads, ``mems`` are NUMA nodes. ``given``: somebody else has the
    guest there, whatever zones its allocation names, and the CPUs may be those of others as well.
    """

    vcpu_cpus: tuple[CpuSet, ...]
    emulator_cpus: CpuSet
    dedicated: tuple[int, ...] = ()
    withheld: CpuSet = frozenset()
    mems: CpuSet = frozenset()
    given: bool = False

    @property
    def held(self) -> CpuSet:
        """The CPUs that no other guest may have."""
        return frozenset(self.dedicated)

    @property
    def cpus(self) -> CpuSet:
        """The CPUs that any guest CPU may use."""
        return frozenset().union(*self.vcpu_cpus)


@dataclass(frozen=True, slots=True)
class GuestMigration:
    """The migration of a guest that still runs here.

    ``consumer`` holds what the guest held here; ``others`` are those that might as well be the one.
    """

    consumer: str
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"migrating: what it has here is held by consumer {self.consumer}"
        return text if not self.others else f"{text}, or by {' or '.join(self.others)}, which hold as much"


@dataclass(frozen=True, slots=True)
class GuestHolding:
    """What a guest holds of this host: by itself, or through its migration."""

    allocation: Allocation
    migration: GuestMigration | None = None


@dataclass(frozen=True, slots=True)
class Guest:
    """One guest as its driver knows it. ``uuid`` is its consumer uuid, ``pid`` its main process.

    ``cgroup`` is the folder of its cgroup v2 group, empty if it has none to itself. ``details`` are for
    people alone: what else the driver can tell, by name. ``dedicated`` is how many of its CPUs it was ordered
    to have for itself; 0: none, or nobody said. ``constraints`` are what its definition demands.
    """

    uuid: str
    driver: str
    name: str
    pid: int
    settings: GuestSettings = field(default_factory=GuestSettings)
    cgroup: str = ""
    details: Mapping[str, str] = field(default_factory=dict)
    dedicated: int = 0
    constraints: PlacementConstraints = UNCONSTRAINED

    def __str__(self) -> str:
        return called(self.name, self.uuid)
