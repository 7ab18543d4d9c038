"""Guests: virtual machines and plain processes, with their allocations and assignments of CPUs.

A guest holds an allocation in Placement; during a migration, a consumer of the migration holds it. The
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
    """A NUMA cell of a guest: guest CPUs, and the host's NUMA nodes from which the cell gets its memory."""

    vcpus: frozenset[int]
    nodes: frozenset[int]


@dataclass(frozen=True, slots=True)
class PlacementConstraints:
    """The demands in a guest's definition. If a policy cannot meet them, it leaves the guest on its CPUs.

    :ivar nodes: NUMA nodes of the host from which all memory of the guest must come; empty means any node.
    :ivar cells: groups of guest CPUs, each with the NUMA nodes from which the memory of the group must come.
    :ivar pins: pairs of the number of a guest CPU and the host CPUs that it may use. A guest CPU without an
        entry may use any host CPU.
    :ivar emulator: host CPUs that all other threads may use; empty means any CPU.
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
"""An allocation: amounts by uuid of the provider and by resource class."""


@dataclass(frozen=True, slots=True)
class ConsumerAllocations:
    """The allocations of a consumer on all hosts, with its owner and generation. None means unknown."""

    consumer: str
    resources: Allocation = field(default_factory=dict)
    generation: int | None = None
    project_id: str | None = None
    user_id: str | None = None
    consumer_type: str | None = None

    def without_providers(self, providers: Collection[str]) -> ConsumerAllocations:
        """The allocation without the amounts on ``providers``."""
        rest = {uuid: amounts for uuid, amounts in self.resources.items() if uuid not in providers}
        return replace(self, resources=rest)


@dataclass(frozen=True, slots=True)
class CpuAssignment:
    """The CPUs and memory nodes of a guest. CPUs are numbers of logical CPUs of the host.

    :ivar vcpu_cpus: for each guest CPU, the host CPUs that it may use.
    :ivar emulator_cpus: host CPUs that all other threads may use.
    :ivar dedicated: CPUs that no other guest gets. CPUs of guest CPUs come first, in the order of guest CPUs.
    :ivar withheld: the part of ``dedicated`` that stays empty, because a sibling thread is in use.
    :ivar mems: NUMA nodes for the memory; empty means any node.
    :ivar given: whether another program has placed the guest, possibly against the guest's allocation. Other
        guests then perhaps use the same CPUs.
    """

    vcpu_cpus: tuple[CpuSet, ...]
    emulator_cpus: CpuSet
    dedicated: tuple[int, ...] = ()
    withheld: CpuSet = frozenset()
    mems: CpuSet = frozenset()
    given: bool = False

    @property
    def held_cpus(self) -> CpuSet:
        """The dedicated CPUs of the guest, as a set."""
        return frozenset(self.dedicated)

    @property
    def cpus(self) -> CpuSet:
        """The union of the host CPUs that the guest CPUs may use."""
        return frozenset().union(*self.vcpu_cpus)


@dataclass(frozen=True, slots=True)
class GuestMigration:
    """The migration of a guest that still runs on this host.

    :ivar consumer: uuid of the migration's consumer, which holds the guest's former allocation on this host.
    :ivar others: uuids of other consumers with the same amounts. Each of them could also be the migration's
        consumer.
    """

    consumer: str
    others: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"migrating: its allocation on this host belongs to consumer {self.consumer}"
        return text if not self.others else f"{text}, or to {' or '.join(self.others)} with the same amounts"


@dataclass(frozen=True, slots=True)
class GuestHolding:
    """The allocation of a guest on this host, held by the migration's consumer if ``migration`` is set."""

    allocation: Allocation
    migration: GuestMigration | None = None


@dataclass(frozen=True, slots=True)
class GuestIdentity:
    """Facts about a guest for rules and messages. A value that the driver does not know is empty.

    All values except ``cgroup`` come from Nova.

    :ivar cgroup: path of the cgroup in which an adopted process was before its adoption.
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
    :ivar driver: the name of the driver.
    :ivar pid: the process id of the guest's main process.
    :ivar settings: all settings, as the worker of the pipeline has resolved them.
    :ivar cgroup: path of the guest's own cgroup v2 folder; empty if the guest shares a group with others.
    :ivar details: further facts of the driver by name, for messages only.
    :ivar dedicated: the number of guest CPUs that the flavor wants dedicated; 0 if the number is unknown or
        no guest CPU should be dedicated.
    :ivar constraints: demands of the guest's definition.
    :ivar dedicated_vcpus: numbers of the dedicated guest CPUs, if only some are dedicated.
    :ivar declared: settings that the driver found in the guest's definition; ``declared_by`` is their source.
    :ivar declared_problems: sentences about declared values that have no effect.
    :ivar setting_sources: the source of each setting as text, by setting.
    :ivar setting_problems: sentences about values of settings that have no effect.
    :ivar deferred_class: the QoS class that the guest gets with its claim, while it has another class because
        there is no room for the claim; otherwise empty.
    :ivar rule: name of the rule that matches the guest; empty if no rule matches.
    :ivar devices: addresses of the host's PCI devices that the guest has, and uuids of mediated devices; None
        if they are not known.
    :ivar run: the first main process of this run, if the main process may change during a run: its pid, and
        its start in seconds since boot. None means that the run ends with its main process.
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
    deferred_class: str = ""
    rule: str = ""
    devices: frozenset[str] | None = None
    run: tuple[int, float] | None = None

    def __str__(self) -> str:
        return full_name(self.name, self.uuid)

    @property
    def claimed_settings(self) -> GuestSettings:
        """The settings of the guest with its own QoS class, which decide about its claim."""
        return replace(self.settings, qos_class=self.deferred_class) if self.deferred_class else self.settings

    def is_same_run(self, other: Guest) -> bool:
        """Whether ``other`` is this guest in the same run, maybe with another main process."""
        return self.pid == other.pid if self.run is None else self.run == other.run
