"""A running domain: what is set on it, how that differs from what is wanted, and the calls that change it.

Limits are set through libvirt and read from the domain's cgroup (https://libvirt.org/cgroups.html): a read
works while libvirtd is away, costs a twentieth of a call, and shows what the kernel does. Calls that fail
raise ``libvirt.libvirtError``, which the driver translates. The persistent definition decides where the
guest runs at its next start, until it is placed: a failed write of it is only logged.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from compute_agent.drivers import procfs
from compute_agent.drivers.base import CpuLimits, CpuSettings, QuotaError
from compute_agent.drivers.cgroup import PERIOD, GuestCgroup, agree, attainable, quota_microseconds
from compute_agent.drivers.libvirt.domain_definition import (
    NAMESPACE,
    PREFIX,
    RESTRICTIVE,
    SOFT_LIMIT,
    UNLIMITED_KIB,
    DomainBlockIo,
    DomainDefinition,
    Item,
    MemoryBinding,
    note,
    set_item,
)
from compute_agent.drivers.libvirt.qemu import QemuProcess, ThreadRole, wanted_cpus
from compute_agent.host.kernel_files import read, read_text
from compute_agent.model import cpuset
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError, full_name
from compute_agent.model.resource import BlockIo

# Each domain has groups of its own below that of the whole domain, one of them for the main thread; cgroup v2
# under systemd has one more level between them.
_OF_MAIN_THREAD: Final = "emulator"
_BETWEEN: Final = "libvirt"

_DEFAULT_SHARES: Final = 1024
_DEFAULT_WEIGHT: Final = 100
_MIN_SHARES: Final = 2


@dataclass(frozen=True, slots=True)
class DomainGroup:
    """The group of a whole domain: ``folders`` are the outer one and those below it that hold all threads.

    ``unified`` is whether it is one of cgroup v2.
    """

    folders: tuple[Path, ...]
    unified: bool

    def limits(self) -> CpuLimits | None:
        """Weight and quota; None when they cannot be read, as when the domain has ended."""
        try:
            return self._unified_limits() if self.unified else self._legacy_limits()
        except OSError:
            return None

    def shares(self, weight: int) -> int:
        """What libvirt wants as ``cpu_shares`` for a weight: it hands the number to the kernel as it is."""
        if self.unified:
            return weight
        return max(round(weight * _DEFAULT_SHARES / _DEFAULT_WEIGHT), _MIN_SHARES)

    def _unified_limits(self) -> CpuLimits | None:
        found = [
            limits for folder in self.folders if (limits := GuestCgroup(folder).cpu_limits()) is not None
        ]
        quotas = [limits.quota for limits in found if limits.quota is not None]
        return CpuLimits(found[0].weight, min(quotas, default=None)) if found else None

    def _legacy_limits(self) -> CpuLimits:
        """Of cgroup v1 (Documentation/scheduler/sched-bwc.rst), in terms of version 2."""
        shares, quota = (self._number(name) for name in ("cpu.shares", "cpu.cfs_quota_us"))
        weight = max(round(shares * _DEFAULT_WEIGHT / _DEFAULT_SHARES), 1)
        return CpuLimits(weight, quota / self._number("cpu.cfs_period_us") if quota > 0 else None)

    def _number(self, name: str) -> int:
        return int(read(f"{self.folders[0]}/{name}"))


def find(pid: int) -> DomainGroup | None:
    """The group of the domain whose QEMU process this is; None if libvirt made none for CPUs."""
    try:
        lines = read_text(f"/proc/{pid}/cgroup").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    legacy = next((key for key in paths if "cpu" in key.split(",")), None)
    mount = _mounts().get("cpu" if legacy is not None else "")
    leaf = Path(paths.get(legacy or "", "/"))
    if mount is None or leaf.name != _OF_MAIN_THREAD or ".." in leaf.parts:
        return None  # the last is a group outside of what the agent sees of the hierarchy
    inner = mount / leaf.parent.relative_to("/")
    folders = (inner.parent, inner) if inner.name == _BETWEEN else (inner,)
    return DomainGroup(folders, legacy is None)


@functools.cache
def _mounts() -> Mapping[str, Path]:
    """Where the hierarchies of the controller cpu (version 1) and "" (version 2) are mounted.

    The source is /proc/self/mountinfo, proc(5).
    """
    found: dict[str, Path] = {}
    for line in read_text("/proc/self/mountinfo").splitlines():
        mount, _, file_system = line.partition(" - ")
        kind, _, options = file_system.split(" ", 2)
        if kind == "cgroup2":
            found.setdefault("", Path(mount.split()[4]))
        elif kind == "cgroup" and "cpu" in options.split(","):
            found.setdefault("cpu", Path(mount.split()[4]))
    return found


@dataclass(slots=True)
class RunningDomain:
    """The guest, its process, its definition with the XML that it is read from, and its memory binding.

    ``refused`` are NUMA nodes that libvirt refused to bind its memory to. ``unreported``: its threads are
    pinned, and libvirt may not know it yet. ``own_limits`` are limits of memory that the agent has set.
    ``blockio`` is how its block I/O is limited, ``soft_limit`` (KiB) its memory; ``refused_blockio`` is what
    libvirt did not take, and why, and so is ``refused_soft_limit``.
    """

    guest: Guest
    process: QemuProcess
    source: str
    definition: DomainDefinition
    binding: MemoryBinding
    refused: frozenset[int] | None = None
    unreported: bool = False
    own_limits: frozenset[str] = frozenset()
    blockio: DomainBlockIo = field(default_factory=DomainBlockIo)
    soft_limit: int | None = None
    refused_soft_limit: str = ""
    refused_blockio: tuple[BlockIo | None, str] | None = None
    _group: DomainGroup | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return procfs.is_alive(self.process.identity)

    def describe_as(self, found: RunningDomain) -> None:
        """Take over what is found to be new about the same process."""
        self.guest, self.source, self.definition = found.guest, found.source, found.definition
        self.binding, self.blockio = found.binding, found.blockio
        self.soft_limit = found.soft_limit

    def redefine(self, definition: DomainDefinition) -> None:
        """Note that the agent made this the definition.

        Its text is another one now, which nobody has read: somebody may make it what it was before.
        """
        if definition != self.definition:
            self.definition, self.source = definition, ""

    @property
    def group(self) -> DomainGroup | None:
        """The group of the domain; None as long as libvirt has made none for CPUs."""
        if self._group is None:
            self._group = find(self.guest.pid)
        return self._group

    def pin_rest(self, settings: CpuSettings) -> None:
        """Pin what libvirt's calls left: without cgroups they do not reach the emulator's helpers."""
        for _ in range(procfs.MAX_PASSES):
            misplaced = self.process.misplaced(settings)
            if not misplaced:
                return
            for tid, (it, _) in misplaced.items():
                try:
                    os.sched_setaffinity(tid, wanted_cpus(it, settings))
                except ProcessLookupError:
                    continue
                except OSError as error:
                    raise DriverError(
                        f"thread {tid} of guest {self.guest} cannot be pinned: {error}"
                    ) from error

    def other_limits(self, wanted: CpuLimits) -> CpuLimits | None:
        """The limits in the kernel where they are not those that the domain should have; None if they agree.

        :raises GuestGoneError:
        :raises DriverError: a domain without a group is to have a quota.
        """
        has = None if self.group is None else self.group.limits()
        if has is not None:
            return None if agree(has, self.definition.within(wanted)) else has
        if not self.is_alive:
            raise GuestGoneError(f"guest {self.guest} has ended")
        if wanted.quota is not None:
            why = "libvirt made no cgroup with the controller cpu for it"
            raise QuotaError(self.guest, wanted.quota, why)
        return None

    def other_nodes(self, wanted: frozenset[int]) -> frozenset[int] | None:
        """The NUMA nodes that the kernel or libvirt binds the memory to where they are not those wanted.

        Empty stands for all. None if they agree, or if libvirt refused them.

        :raises GuestGoneError:
        """
        if self.refused == wanted:
            return None
        allowed = procfs.memory_nodes(self.guest.pid)
        if allowed is None:
            raise GuestGoneError(f"guest {self.guest} has ended")
        if allowed == self.binding.nodes == wanted:
            return None
        everywhere = procfs.nodes_with_memory()
        for has in (allowed, self.binding.nodes):
            unbound = not has or has >= everywhere
            if has != wanted and (wanted or not unbound):
                return frozenset() if unbound else has
        return None


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
        guest = full_name(self._domain.name(), self._domain.UUIDString())
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
