"""A running domain: its settings, their difference from the wanted ones, and the calls that change them.

Limits are set through libvirt and read from the domain's cgroup (https://libvirt.org/cgroups.html). A read of
the cgroup works while libvirtd is away, and costs a twentieth of a call. The cgroup also shows the kernel's
values. Calls that fail raise ``libvirt.libvirtError``, which the driver translates. The persistent definition
only decides where the guest runs between its next start and its placement, so a failed write of it is only
logged.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from compute_agent.drivers import procfs
from compute_agent.drivers.base import CpuLimits, CpuSettings, QuotaError
from compute_agent.drivers.cgroup import (
    PERIOD,
    GuestCgroup,
    attainable_quota,
    burst_microseconds,
    limits_agree,
    missing_parts,
    quota_microseconds,
    without_missing,
)
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
    note_element,
    set_item,
)
from compute_agent.drivers.libvirt.qemu import QemuProcess, ThreadRole, wanted_cpus
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.host.kernel_files import read, read_optional, read_text
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError, full_name
from compute_agent.model.resource import BlockIo

# libvirt makes a group for the whole domain and groups below it, one of them for the main thread. With cgroup
# v2 under systemd there is one more level between them.
_OF_MAIN_THREAD: Final = "emulator"
_BETWEEN: Final = "libvirt"

# The defaults of cpu.shares and cpu.weight stand for the same share.
_DEFAULT_SHARES: Final = 1024
_DEFAULT_WEIGHT: Final = 100
# The kernel's lowest cpu.shares of cgroup v1.
_MIN_SHARES: Final = 2


@dataclass(frozen=True, slots=True)
class DomainGroup:
    """The group of a whole domain.

    :ivar folders: the outer folder, and with cgroup v2 under systemd the one below it that holds all threads.
    :ivar unified: whether it is of cgroup v2.
    """

    folders: tuple[Path, ...]
    unified: bool

    def read_limits(self) -> CpuLimits | None:
        """Weight and quota; None when they cannot be read, as when the domain has ended."""
        try:
            return self._unified_limits() if self.unified else self._legacy_limits()
        except OSError:
            return None

    def emulator_threads(self) -> list[int]:
        """The ids of all threads in the group of the main thread; none when the domain has ended."""
        # The group of version 2 is threaded: a read of cgroup.procs fails there.
        name = "cgroup.threads" if self.unified else "tasks"
        words = (read_optional(f"{self.folders[-1]}/{_OF_MAIN_THREAD}/{name}") or "").split()
        # A thread outside of the reader's pid namespace has the id 0.
        return [int(word) for word in words if word.isdigit() and word != "0"]

    def libvirt_shares(self, weight: int) -> int:
        """The ``cpu_shares`` of libvirt for a weight. libvirt passes the number to the kernel unchanged."""
        if self.unified:
            return weight
        return max(round(weight * _DEFAULT_SHARES / _DEFAULT_WEIGHT), _MIN_SHARES)

    def _unified_limits(self) -> CpuLimits | None:
        found = [
            limits for folder in self.folders if (limits := GuestCgroup(folder).cpu_limits()) is not None
        ]
        # The outer group has libvirt's weight. A quota may be in either one, and the lower one is in force.
        quotas = [limits.quota for limits in found if limits.quota is not None]
        if not found:
            return None
        burst = max(limits.burst for limits in found)
        return CpuLimits(found[0].weight, min(quotas, default=None), found[0].idle, burst)

    def within_kernel(self, wanted: CpuLimits) -> CpuLimits:
        """The parts of limits that the kernel knows here."""
        if not self.unified:
            return replace(wanted, idle=False, burst=0.0)
        return without_missing(GuestCgroup(self.folders[0]), wanted)

    def missing_parts(self, wanted: CpuLimits) -> list[str]:
        """Sentences about the parts of limits that the kernel does not know here."""
        if not self.unified:
            return ["cpu_idle and cpu_burst take cgroup v2"] if wanted.idle or wanted.burst else []
        return missing_parts(GuestCgroup(self.folders[0]), wanted)

    def write_idle(self, has: CpuLimits, wanted: CpuLimits) -> None:
        """Write what libvirt has no setting for, before libvirt's calls: an idle group takes no weight.

        A burst that is too large for the quota goes as well.

        :raises OSError:
        """
        if self.unified:
            GuestCgroup(self.folders[0]).share_cpu(has, wanted)
            if has.burst and burst_microseconds(wanted) < has.burst * PERIOD:
                self._write_burst(wanted)

    def write_burst(self, has: CpuLimits, wanted: CpuLimits) -> None:
        """Write a larger burst, after libvirt has set the quota.

        :raises OSError:
        """
        # Rounded, because cores as a float need not give back the exact microseconds.
        if self.unified and burst_microseconds(wanted) > round(has.burst * PERIOD):
            self._write_burst(wanted)

    def _write_burst(self, wanted: CpuLimits) -> None:
        # The burst is of the group with the quota; the other one has none to save from.
        for folder in self.folders:
            group = GuestCgroup(folder)
            limits = group.cpu_limits()
            if limits is not None and (limits.quota is not None or limits.burst):
                group.save_burst(wanted if limits.quota is not None else CpuLimits())

    def _legacy_limits(self) -> CpuLimits:
        """The limits of cgroup v1 (Documentation/scheduler/sched-bwc.rst), in terms of version 2."""
        shares, quota = (self._read_number(name) for name in ("cpu.shares", "cpu.cfs_quota_us"))
        # A quota of -1 is not a limit.
        weight = max(round(shares * _DEFAULT_WEIGHT / _DEFAULT_SHARES), 1)
        return CpuLimits(weight, quota / self._read_number("cpu.cfs_period_us") if quota > 0 else None)

    def _read_number(self, name: str) -> int:
        return int(read(f"{self.folders[0]}/{name}"))


def find_group(pid: int) -> DomainGroup | None:
    """The group of the domain of a QEMU process; None if libvirt made none with the controller cpu."""
    try:
        lines = read_text(f"/proc/{pid}/cgroup").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        # The process has ended.
        return None
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    # A host with both versions has the controller cpu in one of them; a line of version 1 that names it wins.
    legacy = next((key for key in paths if "cpu" in key.split(",")), None)
    mount = _mount_points().get("cpu" if legacy is not None else "")
    leaf = Path(paths.get(legacy or "", "/"))
    # A libvirtd of a session, or one without cgroups, leaves QEMU in its own group.
    if mount is None or leaf.name != _OF_MAIN_THREAD or ".." in leaf.parts:
        return None  # A path with ".." is outside of the part of the hierarchy that a container shows.
    inner = mount / leaf.parent.relative_to("/")
    folders = (inner.parent, inner) if inner.name == _BETWEEN else (inner,)
    return DomainGroup(folders, legacy is None)


@functools.cache
def _mount_points() -> Mapping[str, Path]:
    """The mount points of the hierarchies, by ``cpu`` for version 1 and ``""`` for version 2."""
    # Read once from /proc/self/mountinfo (proc(5)): mount points do not change while a host runs.
    found: dict[str, Path] = {}
    for line in read_text("/proc/self/mountinfo").splitlines():
        mount, _, file_system = line.partition(" - ")
        kind, _, options = file_system.split(" ", 2)
        if kind == "cgroup2":
            found.setdefault("", Path(mount.split()[4]))
        elif kind == "cgroup" and "cpu" in options.split(","):
            found.setdefault("cpu", Path(mount.split()[4]))
    return found


@dataclass(frozen=True, slots=True)
class SettledTask:
    """A task that still has other CPUs than wanted after the attempt to move it, and the reason."""

    wanted: CpuSet
    has: CpuSet
    reason: str


@dataclass(slots=True)
class RunningDomain:
    """One run of a domain.

    :ivar source: the inactive XML that ``definition`` was read from; empty after a change by the agent.
    :ivar binding: the present binding of its memory.
    :ivar refused: the NUMA nodes that libvirt refused to bind its memory to; None: it refused none.
    :ivar unreported: whether its threads were pinned in the kernel while libvirt may not know it yet.
    :ivar own_limits: the limits of memory that the agent has set.
    :ivar blockio: its present block I/O.
    :ivar soft_limit: its present soft limit of memory in KiB; None: no limit.
    :ivar refused_soft_limit: libvirt's reason; empty: it refused none.
    :ivar refused_blockio: the block I/O that libvirt refused, with the reason.
    :ivar number: the number that libvirt gave this run; empty if not known.
    :ivar settled: helper tasks that could not be moved to the CPUs wanted.
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
    number: str = ""
    settled: dict[ProcessIdentity, SettledTask] = field(default_factory=dict)
    _group: DomainGroup | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs."""
        return procfs.is_alive(self.process.identity)

    def describe_as(self, found: RunningDomain) -> None:
        """Take over the values of a later look at the same process."""
        # Refusals and the agent's own limits stay: they are not in the XML.
        self.guest, self.source, self.definition = found.guest, found.source, found.definition
        self.binding, self.blockio = found.binding, found.blockio
        self.soft_limit = found.soft_limit

    def note_definition(self, definition: DomainDefinition) -> None:
        """Note that the agent changed the definition to this one.

        The new text of the definition is not known. The former text must not count as read: another program
        may restore it.
        """
        if definition != self.definition:
            self.definition, self.source = definition, ""

    @property
    def domain_group(self) -> DomainGroup | None:
        """The group of the domain; None as long as libvirt has made none for CPUs."""
        # Absence is not cached, as libvirt may make the group later.
        if self._group is None:
            self._group = find_group(self.guest.pid)
        return self._group

    def pin_rest(self, settings: CpuSettings) -> None:
        """Pin the threads that libvirt's calls left: without cgroups these miss the emulator's helpers.

        :raises DriverError: the kernel refuses the CPUs of a thread.
        """
        for _ in range(procfs.MAX_PASSES):
            misplaced = self.process.misplaced_threads(settings)
            if not misplaced:
                return
            for tid, (it, _) in misplaced.items():
                try:
                    os.sched_setaffinity(tid, wanted_cpus(it, settings))
                # A thread that has ended needs no pin.
                except ProcessLookupError:
                    continue
                except OSError as error:
                    raise DriverError(
                        f"thread {tid} of guest {self.guest} cannot be pinned: {error}"
                    ) from error

    def other_limits(self, wanted: CpuLimits) -> CpuLimits | None:
        """The kernel's limits where they differ from those that the domain should have; None if they agree.

        :raises GuestGoneError:
        :raises DriverError: a quota is wanted for a domain without a group.
        """
        has = None if self.domain_group is None else self.domain_group.read_limits()
        if has is not None and self.domain_group is not None:
            goal = self.domain_group.within_kernel(self.definition.limits_within(wanted))
            return None if limits_agree(has, goal) else has
        if not self.is_alive:
            raise GuestGoneError(f"guest {self.guest} has ended")
        if wanted.quota is not None:
            why = "libvirt made no cgroup with the controller cpu for it"
            raise QuotaError(self.guest, wanted.quota, why)
        return None

    def other_nodes(self, wanted: frozenset[int]) -> frozenset[int] | None:
        """The NUMA nodes of the kernel's or libvirt's binding where they differ from those wanted.

        Empty stands for no binding. None if they agree, or if libvirt refused them before.

        :raises GuestGoneError:
        """
        if self.refused == wanted:
            return None
        allowed = procfs.memory_nodes(self.guest.pid)
        if allowed is None:
            raise GuestGoneError(f"guest {self.guest} has ended")
        if allowed == self.binding.nodes == wanted:
            return None
        # Both must agree: the kernel's nodes are those in force, libvirt's are those last asked for.
        everywhere = procfs.nodes_with_memory()
        for has in (allowed, self.binding.nodes):
            unbound = not has or has >= everywhere
            if has != wanted and (wanted or not unbound):
                return frozenset() if unbound else has
        return None

    # Threads that run no guest CPU. Where another program pins guests, they get back its pins in the
    # definition, so that only threads with a pin there are moved. Only the running domain is changed: its
    # next start is the other program's.

    def emulator_threads(self) -> dict[int, CpuSet]:
        """The CPUs of the threads that run no guest CPU, by thread id."""
        roles = self.process.thread_roles().items()
        found = {tid: procfs.thread_affinity(tid) for tid, role in roles if not role.runs_guest}
        return {tid: cpus for tid, cpus in found.items() if cpus is not None}

    def moved_threads(self, host: CpuSet, online: CpuSet) -> dict[int, CpuSet]:
        """These threads with other pins than the definition has, with their CPUs, by thread id."""
        pins = self._emulator_pins(host).items()
        wanted = {role: cpus & online for role, cpus in pins if cpus & online}
        return {tid: has for tid, (_, has) in self.process.find_elsewhere(wanted).items()}

    def move_threads(self, tuning: DomainTuning, host: CpuSet, threads: Collection[int], cpus: CpuSet) -> int:
        """Pin the threads with the roles of some to other CPUs; return how many changed."""
        roles = self._roles_of(threads) & self._emulator_pins(host).keys()
        return self._pin_roles(tuning, dict.fromkeys(roles, cpus))

    def restore_threads(self, tuning: DomainTuning, host: CpuSet, online: CpuSet) -> int:
        """Pin the threads by the definition; return how many changed."""
        roles, pins = self._roles_of(self.moved_threads(host, online)), self._emulator_pins(host)
        return self._pin_roles(tuning, {role: pins[role] for role in roles & pins.keys()})

    def _emulator_pins(self, host: CpuSet) -> dict[ThreadRole, CpuSet]:
        """The pins in the definition of these threads, without those to all CPUs of the host."""
        pins = self.definition.demanded_pins(host) if self.definition.persistent else {}
        return {role: cpus for role, cpus in pins.items() if not role.runs_guest}

    def _roles_of(self, threads: Collection[int]) -> set[ThreadRole]:
        return {role for tid, role in self.process.thread_roles().items() if tid in threads}

    def _pin_roles(self, tuning: DomainTuning, wanted: Mapping[ThreadRole, CpuSet]) -> int:
        before = self.process.find_elsewhere(wanted)
        for role, cpus in wanted.items():
            tuning.pin_threads({role}, CpuSettings((), cpus))
        # Without cgroups, libvirt pins the main thread alone.
        tried: set[int] = set()
        for _ in range(procfs.MAX_PASSES):
            left = self.process.find_elsewhere(wanted)
            if not left.keys() - tried:
                break
            for tid, (role, _) in left.items():
                tried.add(tid)
                # The thread has ended, or the kernel refuses: the count below has what did not move.
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(tid, wanted[role])
        return len(before.keys() - self.process.find_elsewhere(wanted).keys())


LOG = logging.getLogger(__name__)


class DomainTuning:
    """The calls that change the settings of one domain."""

    # Any: libvirt-python has no types, and is imported with the first connection only.
    def __init__(self, libvirt: Any, domain: Any, host_cpus: frozenset[int]) -> None:
        self._libvirt = libvirt
        self._domain = domain
        self._host_cpus = host_cpus

    def pin_threads(self, roles: Iterable[ThreadRole], settings: CpuSettings) -> None:
        """Pin the threads of the running domain that have these roles."""
        live = self._libvirt.VIR_DOMAIN_AFFECT_LIVE
        # Guest CPUs come first: they run the guest's own code, and each call takes milliseconds.
        for it in sorted(
            set(roles), key=lambda role: (not role.runs_guest, role.iothread or 0, role.vcpu or 0)
        ):
            if it.vcpu is not None and it.vcpu < len(settings.vcpu_cpus):
                self._domain.pinVcpuFlags(it.vcpu, self._cpu_map(settings.vcpu_cpus[it.vcpu]), live)
            elif it.runs_guest:
                # A guest CPU plugged in later, or one thread for all of them, gets the CPUs of all.
                for vcpu in [it.vcpu] if it.vcpu is not None else range(len(settings.vcpu_cpus)):
                    self._domain.pinVcpuFlags(vcpu, self._cpu_map(settings.cpus), live)
            elif it.iothread is not None:
                self._domain.pinIOThread(it.iothread, self._cpu_map(settings.emulator_cpus), live)
            else:
                self._domain.pinEmulator(self._cpu_map(settings.emulator_cpus), live)

    def bind_memory(self, has: MemoryBinding, nodes: frozenset[int]) -> None:
        """Bind the memory of the running domain to these NUMA nodes."""
        self._bind_memory(has, nodes, self._libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def persist_pins(self, has: DomainDefinition, settings: CpuSettings) -> DomainDefinition:
        """Write the differing pins into the persistent definition.

        The note comes first, and has the old and the new pins: after a crash in between, the agent recognises
        both as its own.

        :return: the definition after the writes.
        """
        # Only differing pins are written: each call makes libvirtd write a file and sync it.
        domain, config = self._domain, self._libvirt.VIR_DOMAIN_AFFECT_CONFIG
        wanted = has.other_pins(settings, self._host_cpus)
        if not wanted:
            return has
        pins = dict(has.pins)
        try:
            has = self._write_note(replace(has, own=has.own_pins.union(wanted.items())))
            for role, cpus in wanted.items():
                if role.vcpu is not None:
                    domain.pinVcpuFlags(role.vcpu, self._cpu_map(cpus), config)
                elif role.iothread is not None:
                    domain.pinIOThread(role.iothread, self._cpu_map(cpus), config)
                else:
                    domain.pinEmulator(self._cpu_map(cpus), config)
                pins[role] = cpus
        except self._libvirt.libvirtError as error:
            self._not_persisted("pins", error)
        return replace(has, pins=pins, pinned=has.pinned | pins.keys() & wanted.keys())

    def persist_binding(self, has: DomainDefinition, nodes: frozenset[int]) -> DomainDefinition:
        """Write NUMA nodes into the persistent definition, unless another program bound the memory.

        :return: the definition after the write.
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
        """Set weight and quota of the running domain where they differ.

        The quota is that of the whole domain (``global_quota``). The one of each guest CPU (``vcpu_quota``)
        belongs to the flavor.
        """
        change = {}
        if not wanted.idle and wanted.weight not in (None, has.weight):
            change["cpu_shares"] = group.libvirt_shares(wanted.weight)
        if attainable_quota(wanted.quota) != has.quota:
            change |= _quota_parameters(wanted.quota)
        if change:
            self._domain.setSchedulerParametersFlags(change, self._libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def persist_shares(self, has: DomainDefinition, shares: int) -> DomainDefinition:
        """Write the agent's shares into the definition, with a note.

        The note comes first, and has the old and the new shares: after a crash between the two writes, the
        agent recognises both as its own.

        :return: the definition after the writes.
        """
        libvirt, config = self._libvirt, self._libvirt.VIR_DOMAIN_AFFECT_CONFIG
        noted = frozenset({shares}) | ({has.shares} if has.shares else frozenset())
        try:
            has = self._write_note(replace(has, noted=noted, own=has.own_pins))
            if has.persistent:
                self._domain.setSchedulerParametersFlags({"cpu_shares": shares}, config)
        except libvirt.libvirtError as error:
            self._not_persisted("CPU shares", error)
            return has
        return replace(has, shares=shares)

    def set_soft_limit(self, kib: int | None, persistent: bool) -> None:
        """Set the soft limit of memory of the running domain, or of its definition."""
        limit = UNLIMITED_KIB if kib is None else kib
        self._domain.setMemoryParameters({SOFT_LIMIT: limit}, self._affect_flag(persistent))

    def note_items(self, has: DomainDefinition, items: Iterable[str]) -> DomainDefinition:
        """Mark these items as set by the agent, and return the changed definition."""
        return self._write_note(replace(has, own=has.own_pins, own_items=has.own_items.union(items)))

    def set_blockio(self, items: Mapping[str, Item], persistent: bool) -> None:
        """Set items of block I/O on the running domain, or in its definition."""
        for item, value in items.items():
            set_item(self._domain, item, value, self._affect_flag(persistent))

    def _affect_flag(self, persistent: bool) -> int:
        """The flag of libvirt for the definition or for the running domain."""
        libvirt = self._libvirt
        # The annotation turns Any of the untyped package into int for the type checker.
        flag: int = libvirt.VIR_DOMAIN_AFFECT_CONFIG if persistent else libvirt.VIR_DOMAIN_AFFECT_LIVE
        return flag

    def _write_note(self, has: DomainDefinition) -> DomainDefinition:
        """Write the note of a definition; it names the ``own`` pins, not all pins."""
        kind = self._libvirt.VIR_DOMAIN_METADATA_ELEMENT
        text = note_element(has.noted, has.own or (), has.own_items)
        self._domain.setMetadata(kind, text, PREFIX, NAMESPACE, self._affect_flag(has.persistent))
        return has

    def _not_persisted(self, what: str, error: Exception) -> None:
        guest = full_name(self._domain.name(), self._domain.UUIDString())
        LOG.warning("The definition of guest %s keeps its %s: %s", guest, what, error)

    def _bind_memory(self, has: MemoryBinding, nodes: frozenset[int], flag: int) -> None:
        change: dict[str, Any] = {"numa_nodeset": cpuset.format(nodes)}
        # libvirt refuses another mode than the present one while the domain runs.
        if not has.mode:
            change["numa_mode"] = self._libvirt.VIR_DOMAIN_NUMATUNE_MEM_RESTRICTIVE
        self._domain.setNumaParameters(change, flag)

    def _cpu_map(self, cpus: frozenset[int]) -> tuple[bool, ...]:
        """CPUs as a map of libvirt. CPUs that the host does not have are left out."""
        return tuple(cpu in cpus for cpu in sorted(self._host_cpus))


def _quota_parameters(cores: float | None) -> dict[str, int]:
    # -1 is libvirt's value for no limit.
    if cores is None:
        return {"global_quota": -1}
    return {"global_period": PERIOD, "global_quota": quota_microseconds(cores)}
