"""What is set on one domain: pins, memory and CPU limits, live and in the persistent definition.

Calls that fail raise ``libvirt.libvirtError``, which the driver makes its own errors of. The persistent
definition decides where the guest runs next time, for the moment until it is placed anew: what cannot be
written there costs a log line.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from compute_agent.drivers.base import CpuLimits, CpuSettings
from compute_agent.drivers.cgroup import PERIOD, attainable, quota_microseconds
from compute_agent.drivers.libvirt.definition import (
    NAMESPACE,
    PREFIX,
    RESTRICTIVE,
    SOFT_LIMIT,
    UNLIMITED_KIB,
    DomainDefinition,
    MemoryBinding,
    note,
)
from compute_agent.drivers.libvirt.domain_blockio import Item, set_item
from compute_agent.drivers.libvirt.domain_group import DomainGroup
from compute_agent.drivers.libvirt.qemu import ThreadRole
from compute_agent.model import cpuset
from compute_agent.model.messages import called

LOG = logging.getLogger(__name__)


class DomainTuning:
    """The settings of one domain."""

    def __init__(self, libvirt: Any, domain: Any, host_cpus: frozenset[int]) -> None:
        self._libvirt = libvirt
        self._domain = domain
        self._host_cpus = host_cpus

    def pin(self, roles: Iterable[ThreadRole], settings: CpuSettings) -> None:
        """Pin what the threads with these roles do on the running domain."""
        live = self._libvirt.VIR_DOMAIN_AFFECT_LIVE
        for it in sorted(
            set(roles), key=lambda role: (not role.runs_guest, role.iothread or 0, role.vcpu or 0)
        ):
            if it.vcpu is not None and it.vcpu < len(settings.vcpu_cpus):
                self._domain.pinVcpuFlags(it.vcpu, self._map(settings.vcpu_cpus[it.vcpu]), live)
            elif it.runs_guest:
                for vcpu in [it.vcpu] if it.vcpu is not None else range(len(settings.vcpu_cpus)):
                    self._domain.pinVcpuFlags(vcpu, self._map(settings.cpus), live)
            elif it.iothread is not None:
                self._domain.pinIOThread(it.iothread, self._map(settings.emulator_cpus), live)
            else:
                self._domain.pinEmulator(self._map(settings.emulator_cpus), live)

    def bind_memory(self, has: MemoryBinding, nodes: frozenset[int]) -> None:
        """Let the running domain have memory of these NUMA nodes only."""
        self._bind_memory(has, nodes, self._libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def persist_pins(self, has: DomainDefinition, settings: CpuSettings) -> DomainDefinition:
        """Write the pins that differ into the persistent definition; the definition as it is then.

        Every write makes libvirtd write a file. The note comes first, and has the old pins as well: after a
        crash in between they are not taken for somebody else's.
        """
        domain, config = self._domain, self._libvirt.VIR_DOMAIN_AFFECT_CONFIG
        wanted = has.other_pins(settings, self._host_cpus)
        if not wanted:
            return has
        pins = dict(has.pins)
        try:
            has = self._note(replace(has, own=has.own_pins.union(wanted.items())))
            for role, cpus in wanted.items():
                if role.vcpu is not None:
                    domain.pinVcpuFlags(role.vcpu, self._map(cpus), config)
                elif role.iothread is not None:
                    domain.pinIOThread(role.iothread, self._map(cpus), config)
                else:
                    domain.pinEmulator(self._map(cpus), config)
                pins[role] = cpus
        except self._libvirt.libvirtError as error:
            self._not_persisted("pins", error)
        return replace(has, pins=pins, pinned=has.pinned | pins.keys() & wanted.keys())

    def persist_binding(self, has: DomainDefinition, nodes: frozenset[int]) -> DomainDefinition:
        """Write NUMA nodes into the persistent definition; the definition as it is then.

        Where somebody else bound memory, it stays as it is.
        """
        if not has.persistent or has.binding.is_foreign or has.binding.nodes == nodes:
            return has
        try:
            self._bind_memory(has.binding, nodes, self._libvirt.VIR_DOMAIN_AFFECT_CONFIG)
        except self._libvirt.libvirtError as error:
            self._not_persisted("memory", error)
            return has
        return replace(has, binding=MemoryBinding(RESTRICTIVE, nodes))

    def limit(self, has: CpuLimits, wanted: CpuLimits, group: DomainGroup) -> None:
        """Set what differs of weight and quota on the running domain.

        The quota is that of the whole domain (``global_quota``): the one for each guest CPU is the flavor's.
        """
        change = {}
        if wanted.weight not in (None, has.weight):
            change["cpu_shares"] = group.shares(wanted.weight)
        if attainable(wanted.quota) != has.quota:
            change |= _quota(wanted.quota)
        self._domain.setSchedulerParametersFlags(change, self._libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def persist_shares(self, has: DomainDefinition, shares: int) -> DomainDefinition:
        """Write the agent's shares into the definition, noted as such; the definition as it is then.

        The note comes first, and has the old shares as well: after a crash between the two they are not taken
        for somebody else's.
        """
        libvirt, config = self._libvirt, self._libvirt.VIR_DOMAIN_AFFECT_CONFIG
        noted = frozenset({shares}) | ({has.shares} if has.shares else frozenset())
        try:
            has = self._note(replace(has, noted=noted, own=has.own_pins))
            if has.persistent:
                self._domain.setSchedulerParametersFlags({"cpu_shares": shares}, config)
        except libvirt.libvirtError as error:
            self._not_persisted("CPU shares", error)
            return has
        return replace(has, shares=shares)

    def set_soft_limit(self, kib: int | None, persistent: bool) -> None:
        """Set the soft limit of memory of the running domain, or of its definition."""
        limit = UNLIMITED_KIB if kib is None else kib
        self._domain.setMemoryParameters({SOFT_LIMIT: limit}, self._flag(persistent))

    def note_items(self, has: DomainDefinition, items: Iterable[str]) -> DomainDefinition:
        """Note that these items are the agent's; the definition as it is then."""
        return self._note(replace(has, own=has.own_pins, own_items=has.own_items.union(items)))

    def set_blockio(self, items: Mapping[str, Item], persistent: bool) -> None:
        """Set items of block I/O on the running domain, or in its definition."""
        for item, value in items.items():
            set_item(self._domain, item, value, self._flag(persistent))

    def _flag(self, persistent: bool) -> int:
        """Says whether the definition is meant, or the running domain."""
        libvirt = self._libvirt
        flag: int = libvirt.VIR_DOMAIN_AFFECT_CONFIG if persistent else libvirt.VIR_DOMAIN_AFFECT_LIVE
        return flag

    def _note(self, has: DomainDefinition) -> DomainDefinition:
        """Note what is the agent's of a definition that is to be like that; its ``own`` pins are told."""
        kind = self._libvirt.VIR_DOMAIN_METADATA_ELEMENT
        text = note(has.noted, has.own or (), has.own_items)
        self._domain.setMetadata(kind, text, PREFIX, NAMESPACE, self._flag(has.persistent))
        return has

    def _not_persisted(self, what: str, error: Exception) -> None:
        guest = called(self._domain.name(), self._domain.UUIDString())
        LOG.warning("The definition of guest %s keeps its %s: %s", guest, what, error)

    def _bind_memory(self, has: MemoryBinding, nodes: frozenset[int], flag: int) -> None:
        change: dict[str, Any] = {"numa_nodeset": cpuset.format(nodes)}
        if not has.mode:
            change["numa_mode"] = self._libvirt.VIR_DOMAIN_NUMATUNE_MEM_RESTRICTIVE
        self._domain.setNumaParameters(change, flag)

    def _map(self, cpus: frozenset[int]) -> tuple[bool, ...]:
        """A CPU map of libvirt's. CPUs that the host does not have are left out, and libvirt refuses none."""
        return tuple(cpu in cpus for cpu in sorted(self._host_cpus))


def _quota(cores: float | None) -> dict[str, int]:
    if cores is None:
        return {"global_quota": -1}
    return {"global_period": PERIOD, "global_quota": quota_microseconds(cores)}
