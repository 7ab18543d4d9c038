"""A guest, a virtual machine or a plain process that the agent looks after: identity, demands and place.

A guest holds resources in Placement, by itself or through a migration, and has an assignment of CPUs. Its
settings are in :mod:`compute_agent.model.guest_settings`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest_settings import GuestSettings, SettingSource
from compute_agent.model.messages import called


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
class GuestIdentity:
    """What is known of a guest beside its name in the driver; empty where its driver does not know it.

    ``display_name``, ``flavor``, ``extra_specs``, owner and image are those of Nova. ``cgroup`` is the path
    of the cgroup that an adopted process was in.
    """

    display_name: str = ""
    flavor: str = ""
    extra_specs: Mapping[str, str] = field(default_factory=dict)
    project_id: str = ""
    project_name: str = ""
    user_id: str = ""
    user_name: str = ""
    image_id: str = ""
    image_properties: Mapping[str, str] = field(default_factory=dict)
    cgroup: str = ""


@dataclass(frozen=True, slots=True)
class Guest:
    """One guest as its driver knows it. ``uuid`` is its consumer uuid, ``pid`` its main process.

    ``cgroup`` is the folder of its cgroup v2 group, empty if it has none to itself. ``details`` are for
    people alone: what else the driver can tell, by name. ``dedicated`` is how many of its CPUs it was ordered
    to have for itself; 0: none, or nobody said. ``constraints`` are what its definition demands.
    ``dedicated_vcpus`` are the numbers of the guest CPUs that are to be dedicated, where only some are.

    The driver knows ``identity`` and the settings that are ``declared``, with ``declared_by`` as their
    source. The worker resolves all ``settings``: ``setting_sources`` are words by setting,
    ``setting_problems`` are sentences about values that do not count, ``rule`` is the name of the rule that
    matches.
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
    dedicated_vcpus: CpuSet = frozenset()
    identity: GuestIdentity = field(default_factory=GuestIdentity)
    declared: Mapping[str, Any] = field(default_factory=dict)
    declared_by: SettingSource = SettingSource.START
    declared_problems: tuple[str, ...] = ()
    setting_sources: Mapping[str, str] = field(default_factory=dict)
    setting_problems: tuple[str, ...] = ()
    rule: str = ""

    def __str__(self) -> str:
        return called(self.name, self.uuid)
