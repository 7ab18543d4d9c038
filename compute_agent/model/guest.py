"""A guest: a virtual machine or a plain process that the agent places.

A guest holds resources in Placement, by itself or through a migration, and has an assignment of CPUs. The
settings of a guest are in :mod:`compute_agent.model.guest_settings`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest_settings import GuestSettings, SettingSource
from compute_agent.model.messages import full_name


@dataclass(frozen=True, slots=True)
class GuestCell:
    """A part of a guest's CPUs, by number, with memory from these NUMA nodes of the host only."""

    vcpus: frozenset[int]
    nodes: frozenset[int]


@dataclass(frozen=True, slots=True)
class PlacementConstraints:
    """Demands of a guest's definition. A policy that cannot meet them leaves the guest where it is.

    :ivar nodes: NUMA nodes for all memory of the guest; empty allows any node.
    :ivar cells: the same for the memory of some guest CPUs.
    :ivar pins: host CPUs that a guest CPU may use, by number of the guest CPU; guest CPUs without an entry
        may use any host CPU.
    :ivar emulator: host CPUs of all other threads; empty allows any.
    """

    nodes: frozenset[int] = frozenset()
    cells: tuple[GuestCell, ...] = ()
    pins: tuple[tuple[int, CpuSet], ...] = ()
    emulator: CpuSet = frozenset()

    @property
    def memory_nodes(self) -> frozenset[int]:
        """The NUMA nodes from which the guest demands memory."""
        return self.nodes.union(*(cell.nodes for cell in self.cells))


UNCONSTRAINED: Final = PlacementConstraints()
"""The constraints of a guest without demands."""


Allocation = Mapping[str, Mapping[str, int]]
"""Amounts by provider uuid and resource class."""


@dataclass(frozen=True, slots=True)
class ConsumerAllocations:
    """Everything that one consumer holds, on this host and elsewhere; empty if it holds nothing."""

    consumer: str
    resources: Allocation = field(default_factory=dict)
    generation: int | None = None
    project_id: str | None = None
    user_id: str | None = None
    consumer_type: str | None = None

    def without_providers(self, providers: Collection[str]) -> ConsumerAllocations:
        """The allocations of the consumer without those of some providers."""
        rest = {uuid: amounts for uuid, amounts in self.resources.items() if uuid not in providers}
        return replace(self, resources=rest)


@dataclass(frozen=True, slots=True)
class CpuAssignment:
    """The place of a guest, as logical CPU numbers.

    :ivar vcpu_cpus: for each guest CPU, the host CPUs that it may use.
    :ivar emulator_cpus: host CPUs of all other threads.
    :ivar dedicated: CPUs that no other guest gets. The CPUs of guest CPUs come first, in the order of guest
        CPUs.
    :ivar withheld: the part of ``dedicated`` that stays empty, as siblings of used CPUs.
    :ivar mems: NUMA nodes of the memory; empty allows any.
    :ivar given: another program placed the guest, whatever its allocation names. Other guests may use the
        same CPUs.
    """

    vcpu_cpus: tuple[CpuSet, ...]
    emulator_cpus: CpuSet
    dedicated: tuple[int, ...] = ()
    withheld: CpuSet = frozenset()
    mems: CpuSet = frozenset()
    given: bool = False

    @property
    def held_cpus(self) -> CpuSet:
        """The CPUs that no other guest may have."""
        return frozenset(self.dedicated)

    @property
    def cpus(self) -> CpuSet:
        """The CPUs that any guest CPU may use."""
        return frozenset().union(*self.vcpu_cpus)


@dataclass(frozen=True, slots=True)
class GuestMigration:
    """The migration of a guest that still runs here.

    :ivar consumer: the migration that now holds the guest's former allocation here.
    :ivar others: further consumers that hold as much, so that each of them could be the migration.
    """

    consumer: str
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"migrating: its allocation on this host belongs to consumer {self.consumer}"
        return text if not self.others else f"{text}, or to {' or '.join(self.others)} with the same amounts"


@dataclass(frozen=True, slots=True)
class GuestHolding:
    """The allocation of a guest on this host, its own or that of its migration."""

    allocation: Allocation
    migration: GuestMigration | None = None


@dataclass(frozen=True, slots=True)
class GuestIdentity:
    """Facts about a guest for rules and people. A value that the driver does not know is empty.

    :ivar display_name: as ``flavor``, ``extra_specs``, owner and image, the value in Nova.
    :ivar cgroup: path of the cgroup of an adopted process before its adoption.
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
    """One guest as its driver reports it.

    :ivar uuid: the uuid of the guest's consumer in Placement.
    :ivar pid: the main process of the guest.
    :ivar settings: all settings, which the worker of the pipeline resolves.
    :ivar cgroup: folder of the guest's group of cgroup v2; empty if the guest shares a group.
    :ivar details: further facts of the driver, by name, for people only.
    :ivar dedicated: number of guest CPUs that were ordered as dedicated; 0: none, or unknown.
    :ivar constraints: demands of the guest's definition.
    :ivar dedicated_vcpus: numbers of the dedicated guest CPUs, if only some are dedicated.
    :ivar declared: settings that the driver knows, with ``declared_by`` as their source.
    :ivar declared_problems: sentences about declared values that have no effect.
    :ivar setting_sources: the source of each setting, in words.
    :ivar setting_problems: sentences about values that have no effect.
    :ivar rule: name of the rule that matches.
    :ivar devices: addresses of the PCI devices of the host that it has, and uuids of mediated devices; None
        where they are not known.
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
    devices: frozenset[str] | None = None

    def __str__(self) -> str:
        return full_name(self.name, self.uuid)
