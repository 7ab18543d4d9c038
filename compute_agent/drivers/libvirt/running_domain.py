"""The settings of a running domain, their differences from wanted settings, and the calls to change them.

Limits are set through libvirt and read from the domain's cgroup (https://libvirt.org/cgroups.html). A read of
the cgroup works while libvirtd does not run, costs a twentieth of a call of libvirt, and shows the kernel's
values. Calls that fail raise ``libvirt.libvirtError``, which the driver translates. The persistent definition
matters only from the next start of the guest until the agent places the guest again, so a failed write of the
definition is only logged.
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
    BURST,
    IDLE,
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
from compute_agent.model.resource import DEFAULT_WEIGHT, BlockIo

# Names of groups. libvirt makes a group for the whole domain and groups below it, one of them ("emulator")
# for the main thread. With cgroup v2 under systemd there is one more level ("libvirt") between the two.
_OF_MAIN_THREAD: Final = "emulator"
_BETWEEN: Final = "libvirt"

# The default value of cpu.shares, which means the same share of CPU time as the default of cpu.weight.
_DEFAULT_SHARES: Final = 1024
# The kernel refuses a smaller cpu.shares (cgroup v1). libvirt refuses a smaller cpu_shares, also on cgroup
# v2.
_MIN_SHARES: Final = 2


@dataclass(frozen=True, slots=True)
class DomainGroup:
    """The cgroup that libvirt made for a whole domain.

    :ivar folders: the outermost folder; with cgroup v2 under systemd also the folder below it that contains
        all threads.
    :ivar unified: whether the group is of cgroup v2.
    """

    folders: tuple[Path, ...]
    unified: bool

    def read_limits(self) -> CpuLimits | None:
        """Weight, quota, idleness and burst. None if they cannot be read, such as after the domain's end."""
        try:
            return self._unified_limits() if self.unified else self._legacy_limits()
        except OSError:
            return None

    def emulator_threads(self) -> list[int]:
        """Threads in the cgroup ``emulator``: QEMU's main thread and helpers; none after the guest's end."""
        # In cgroup v2 the cgroup ``emulator`` is threaded, and the kernel refuses to read its
        # cgroup.procs.
        name = "cgroup.threads" if self.unified else "tasks"
        words = (read_optional(f"{self.folders[-1]}/{_OF_MAIN_THREAD}/{name}") or "").split()
        # The kernel shows the id 0 for a thread in a pid namespace that the reader does not see.
        return [int(word) for word in words if word.isdigit() and word != "0"]

    def bind_main_thread(self, nodes: frozenset[int]) -> bool:
        """Write ``cpuset.mems`` of the cgroup of the main thread, unless libvirt has written this file.

        The kernel moves the pages that the process has, unless they are pinned. The cgroups of other threads
        do not have a value of their own before libvirt binds the domain.

        :return: whether a value was written.
        :raises OSError: the kernel refuses the nodes.
        """
        group = GuestCgroup(self.folders[-1] / _OF_MAIN_THREAD)
        # The result is None if libvirt made the group without the controller cpuset.
        if not self.unified or group.memory_nodes() != frozenset():
            return False
        group.bind_memory(nodes)
        return True

    def libvirt_shares(self, weight: int) -> int:
        """The ``cpu_shares`` for a weight of cgroup v2; libvirt writes this number to the group."""
        if self.unified:
            return weight
        return max(round(weight * _DEFAULT_SHARES / DEFAULT_WEIGHT), _MIN_SHARES)

    def _unified_limits(self) -> CpuLimits | None:
        found = [
            limits for folder in self.folders if (limits := GuestCgroup(folder).cpu_limits()) is not None
        ]
        # libvirt sets the weight on the outermost group. Either group can have a quota. If both groups have
        # one, the lower quota takes effect.
        quotas = [limits.quota for limits in found if limits.quota is not None]
        if not found:
            return None
        burst = max(limits.burst for limits in found)
        return CpuLimits(found[0].weight, min(quotas, default=None), found[0].idle, burst)

    def within_kernel(self, wanted: CpuLimits) -> CpuLimits:
        """The ``wanted`` limits, without limits that libvirt or the kernel of this host does not support."""
        if not self.unified:
            return replace(wanted, idle=False, burst=0.0)
        if wanted.weight is not None:
            # Without this, a best-effort guest with one CPU would have the weight 1.
            wanted = replace(wanted, weight=max(wanted.weight, _MIN_SHARES))
        return without_missing(GuestCgroup(self.folders[0]), wanted)

    def missing_parts(self, wanted: CpuLimits) -> list[str]:
        """Messages about limits in ``wanted`` that the kernel of this host does not support."""
        if not self.unified:
            return ["cpu_idle and cpu_burst take cgroup v2"] if wanted.idle or wanted.burst else []
        return missing_parts(GuestCgroup(self.folders[0]), wanted)

    def write_idle(self, has: CpuLimits, wanted: CpuLimits) -> None:
        """Write ``cpu.idle``, and reduce the burst, before libvirt sets weight and quota.

        libvirt has settings neither for idleness nor for the burst. The kernel refuses a weight for an idle
        group, and a quota below the burst.

        :raises OSError: the kernel refuses a value.
        """
        if self.unified:
            if wanted.idle != has.idle:
                GuestCgroup(self.folders[0]).write_file(IDLE, str(int(wanted.idle)))
            if has.burst and burst_microseconds(wanted) < has.burst * PERIOD:
                self._write_burst(wanted)

    def write_burst(self, has: CpuLimits, wanted: CpuLimits) -> None:
        """Increase the burst after libvirt has set the quota, because the quota must be at least as large.

        :raises OSError: the kernel refuses the value.
        """
        # A burst in cores is a float, and need not give the exact number of microseconds, so the value is
        # rounded.
        if self.unified and burst_microseconds(wanted) > round(has.burst * PERIOD):
            self._write_burst(wanted)

    def _write_burst(self, wanted: CpuLimits) -> None:
        # The kernel saves unused time only in a group with a quota, so the burst of the other group is 0.
        for folder in self.folders:
            group = GuestCgroup(folder)
            limits = group.cpu_limits()
            if limits is not None and (limits.quota is not None or limits.burst):
                burst = 0 if limits.quota is None else burst_microseconds(wanted)
                group.write_file(BURST, str(burst))

    def _legacy_limits(self) -> CpuLimits:
        """The limits in cgroup v1 (Documentation/scheduler/sched-bwc.rst), converted to cgroup v2."""
        shares, quota = (self._read_number(name) for name in ("cpu.shares", "cpu.cfs_quota_us"))
        # -1 stands for no quota.
        weight = max(round(shares * DEFAULT_WEIGHT / _DEFAULT_SHARES), 1)
        return CpuLimits(weight, quota / self._read_number("cpu.cfs_period_us") if quota > 0 else None)

    def _read_number(self, name: str) -> int:
        return int(read(f"{self.folders[0]}/{name}"))


def find_group(pid: int) -> DomainGroup | None:
    """The cgroup of the domain with this QEMU process; None if it has no group with the controller cpu."""
    try:
        return parse_group(read_text(f"/proc/{pid}/cgroup"), _mount_points())
    except (FileNotFoundError, ProcessLookupError):
        # The process has ended.
        return None


def parse_group(text: str, mounts: Mapping[str, Path]) -> DomainGroup | None:
    """The cgroup of a domain from /proc/PID/cgroup of its process; see :func:`find_group`.

    :param mounts: the mount points of the hierarchies: ``cpu`` for version 1, an empty text for version 2.
    """
    lines = (line.split(":", 2) for line in text.splitlines())
    paths = {controllers: path for _, controllers, path in lines}
    # A host that mounts both versions has the controller cpu in one of them: in version 1 if a line of
    # version 1 names it.
    legacy = next((key for key in paths if "cpu" in key.split(",")), None)
    mount = mounts.get("cpu" if legacy is not None else "")
    leaf = Path(paths.get(legacy or "", "/"))
    # A libvirtd of a user's session, or one without cgroups, leaves QEMU in the libvirtd's own cgroup.
    if mount is None or leaf.name != _OF_MAIN_THREAD or ".." in leaf.parts:
        return None  # A path with ".." is outside of the part of the hierarchy that a container shows.
    inner = mount / leaf.parent.relative_to("/")
    folders = (inner.parent, inner) if inner.name == _BETWEEN else (inner,)
    return DomainGroup(folders, legacy is None)


@functools.cache
def _mount_points() -> Mapping[str, Path]:
    """The mount points of the hierarchies, see :func:`parse_group`."""
    # The mount points come from /proc/self/mountinfo (proc(5)). They are cached, because mount points of
    # cgroups do not change while a host runs.
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
    """A helper task that could not be moved to the wanted CPUs.

    :ivar wanted: the CPUs to which the agent tried to pin the task.
    :ivar has: the CPUs that the task may still use.
    :ivar reason: the reason why the task could not be moved, for messages to the operator.
    """

    wanted: CpuSet
    has: CpuSet
    reason: str


@dataclass(slots=True)
class RunningDomain:
    """One run of a domain, with its settings as last read, and the requests that libvirt refused.

    :ivar source: the inactive XML that ``definition`` was read from; empty after the agent changed the
        definition.
    :ivar binding: the present binding of the domain's memory to NUMA nodes.
    :ivar refused: the NUMA nodes to which libvirt refused to bind the memory; None means that libvirt has not
        refused.
    :ivar unreported: True from the time when the agent pins the domain's threads in the kernel until libvirt
        has accepted the same pins.
    :ivar blockio: the domain's present block I/O settings.
    :ivar soft_limit: the domain's present soft limit of memory in KiB; None means no limit.
    :ivar refused_soft_limit: libvirt's reason for a refused soft limit; empty if libvirt has not refused.
    :ivar refused_blockio: the block I/O settings that libvirt refused, with the reason; None means that
        libvirt has not refused.
    :ivar number: the id that libvirt gave this run; empty if not known.
    :ivar settled: the helper tasks that could not be moved to the wanted CPUs.
    """

    guest: Guest
    process: QemuProcess
    source: str
    definition: DomainDefinition
    binding: MemoryBinding
    refused: frozenset[int] | None = None
    unreported: bool = False
    blockio: DomainBlockIo = field(default_factory=DomainBlockIo)
    soft_limit: int | None = None
    refused_soft_limit: str = ""
    refused_blockio: tuple[BlockIo | None, str] | None = None
    number: str = ""
    settled: dict[ProcessIdentity, SettledTask] = field(default_factory=dict)
    _group: DomainGroup | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the QEMU process still runs."""
        return procfs.is_alive(self.process.identity)

    @property
    def was_alive(self) -> bool:
        """The same as :attr:`is_alive`; comparisons of one round share the reading."""
        return procfs.was_alive(self.process.identity)

    def describe_as(self, found: RunningDomain) -> None:
        """Copy the values of ``found``, which were read later for the same process."""
        # Refusals stay, because the XML does not contain them.
        self.guest, self.source, self.definition = found.guest, found.source, found.definition
        self.binding, self.blockio = found.binding, found.blockio
        self.soft_limit = found.soft_limit

    def note_definition(self, definition: DomainDefinition) -> None:
        """Store the definition as the agent has just changed it.

        libvirt's text of the changed definition is not known, so ``source`` is emptied. If ``source`` kept
        the old text and another program restored the old definition, the agent would not read the definition
        again.
        """
        if definition != self.definition:
            self.definition, self.source = definition, ""

    @property
    def domain_group(self) -> DomainGroup | None:
        """The cgroup of the domain; None as long as libvirt has made no group with the controller cpu."""
        # If there is no group yet, this is not cached, because libvirt may make the group later.
        if self._group is None:
            self._group = find_group(self.guest.pid)
        return self._group

    def pin_rest(self, settings: CpuSettings) -> None:
        """Pin the threads of QEMU that libvirt did not pin, such as helpers on a host without cgroups.

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
        """The kernel's limits if they differ from the limits that the domain should have; None if they agree.

        :raises GuestGoneError: the guest has ended.
        :raises DriverError: ``wanted`` has a quota, and the domain has no cgroup.
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
        """The NUMA nodes to which the kernel or libvirt binds the memory, if they differ from ``wanted``.

        An empty set means that the memory is not bound. None means that the nodes agree, or that libvirt has
        already refused the nodes in ``wanted``.

        :raises GuestGoneError: the guest has ended.
        """
        if self.refused == wanted:
            return None
        allowed = procfs.memory_nodes(self.guest.pid)
        if allowed is None:
            raise GuestGoneError(f"guest {self.guest} has ended")
        if allowed == self.binding.nodes == wanted:
            return None
        # The binding in the kernel and the binding in libvirt must both be as wanted: the kernel's binding
        # takes effect now, and libvirt applies its own binding again later.
        everywhere = procfs.nodes_with_memory()
        for has in (allowed, self.binding.nodes):
            unbound = not has or has >= everywhere
            if has != wanted and (wanted or not unbound):
                return frozenset() if unbound else has
        return None

    # The functions below are for guests that another program pins. They move threads that run no guest CPU.
    # Only threads with a pin in the definition are moved, so that they can later get this pin back. The
    # definition itself stays unchanged, because it belongs to the other program.

    def emulator_threads(self) -> dict[int, CpuSet]:
        """The present CPUs of the threads that run no guest CPU, by thread id."""
        roles = self.process.thread_roles().items()
        return procfs.thread_affinities(tid for tid, role in roles if not role.runs_guest)

    def moved_threads(self, host: CpuSet, online: CpuSet) -> dict[int, CpuSet]:
        """The CPUs of emulator and I/O threads with other pins than in the definition, by thread id."""
        pins = self._emulator_pins(host).items()
        wanted = {role: cpus & online for role, cpus in pins if cpus & online}
        return {tid: has for tid, (_, has) in self.process.find_elsewhere(wanted).items()}

    def move_threads(self, tuning: DomainTuning, host: CpuSet, threads: Collection[int], cpus: CpuSet) -> int:
        """Pin all threads that share a role with one of ``threads`` to ``cpus``; return how many changed."""
        roles = self._roles_of(threads) & self._emulator_pins(host).keys()
        return self._pin_roles(tuning, dict.fromkeys(roles, cpus))

    def restore_threads(self, tuning: DomainTuning, host: CpuSet, online: CpuSet) -> int:
        """Pin moved threads to the CPUs in the definition again; return how many changed."""
        roles, pins = self._roles_of(self.moved_threads(host, online)), self._emulator_pins(host)
        return self._pin_roles(tuning, {role: pins[role] for role in roles & pins.keys()})

    def _emulator_pins(self, host: CpuSet) -> dict[ThreadRole, CpuSet]:
        """The definition's pins for roles without a guest CPU, except pins to all CPUs of the host."""
        pins = self.definition.demanded_pins(host) if self.definition.persistent else {}
        return {role: cpus for role, cpus in pins.items() if not role.runs_guest}

    def _roles_of(self, threads: Collection[int]) -> set[ThreadRole]:
        return {role for tid, role in self.process.thread_roles().items() if tid in threads}

    def _pin_roles(self, tuning: DomainTuning, wanted: Mapping[ThreadRole, CpuSet]) -> int:
        before = self.process.find_elsewhere(wanted)
        for role, cpus in wanted.items():
            tuning.pin_threads({role}, CpuSettings((), cpus))
        # Without cgroups, libvirt's pinEmulator() pins only the main thread.
        tried: set[int] = set()
        for _ in range(procfs.MAX_PASSES):
            left = self.process.find_elsewhere(wanted)
            if not left.keys() - tried:
                break
            for tid, (role, _) in left.items():
                tried.add(tid)
                # An error means that the thread has ended or that the kernel refuses. The result below does
                # not count such a thread.
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(tid, wanted[role])
        return len(before.keys() - self.process.find_elsewhere(wanted).keys())


LOG = logging.getLogger(__name__)


class DomainTuning:
    """The calls of libvirt that change one domain; each raises libvirtError if libvirtd refuses."""

    # libvirt is typed as Any, because libvirt-python has no types, and is not imported with this module.
    def __init__(self, libvirt: Any, domain: Any, host_cpus: frozenset[int]) -> None:
        self._libvirt = libvirt
        self._domain = domain
        self._host_cpus = host_cpus

    def is_refusal(self, error: Any) -> bool:
        """Whether a failed call would also fail if the agent repeated it later.

        The result is False if the domain has ended. If a domain is in another job, such as a migration or a
        snapshot, the same call succeeds after the job (``src/conf/virdomainjob.c``: "cannot acquire state
        change lock").

        :param error: the libvirtError of the call.
        :raises libvirtError: libvirtd does not answer.
        """
        timed_out = error.get_error_code() == self._libvirt.VIR_ERR_OPERATION_TIMEOUT
        # The text of the error is compared because libvirt has no separate error code for a full queue of
        # jobs.
        if timed_out or "state change lock" in str(error):
            return False
        return bool(self._domain.isActive())

    def pin_threads(self, roles: Iterable[ThreadRole], settings: CpuSettings) -> None:
        """Pin the threads that have these roles in the running domain."""
        vcpus = [ThreadRole(vcpu=number) for number in range(len(settings.vcpu_cpus))]
        # Guest CPUs are pinned first: they run the guest's own code, and each call takes milliseconds.
        for it in sorted(
            set(roles), key=lambda role: (not role.runs_guest, role.iothread or 0, role.vcpu or 0)
        ):
            for role in vcpus if it.all_vcpus else [it]:
                self._pin_role(role, wanted_cpus(it, settings), persistent=False)

    def bind_memory(self, has: MemoryBinding, nodes: frozenset[int], persistent: bool = False) -> None:
        """Bind the memory of the running domain to NUMA nodes.

        :param has: the present binding.
        :param persistent: whether the persistent definition is changed instead of the running domain.
        """
        change: dict[str, Any] = {"numa_nodeset": cpuset.format(nodes)}
        # While the domain runs, libvirt refuses a mode other than the present one. So the mode is set only if
        # the domain has no mode yet.
        if not has.mode:
            change["numa_mode"] = self._libvirt.VIR_DOMAIN_NUMATUNE_MEM_RESTRICTIVE
        self._domain.setNumaParameters(change, self._affect_flag(persistent))

    def persist_pins(self, has: DomainDefinition, settings: CpuSettings) -> DomainDefinition:
        """Write the pins that differ from ``settings`` into the persistent definition.

        :return: the definition after the writes.
        """
        # Only pins that differ are written, because each call makes libvirtd write a file and sync it.
        wanted = has.other_pins(settings, self._host_cpus)
        if not wanted:
            return has
        pins = dict(has.pins)
        try:
            has = self._write_note(replace(has, own=has.own_pins.union(wanted.items())))
            for role, cpus in wanted.items():
                self._pin_role(role, cpus, persistent=True)
                pins[role] = cpus
        except self._libvirt.libvirtError as error:
            self._not_persisted("pins", error)
        return replace(has, pins=pins, pinned=has.pinned | pins.keys() & wanted.keys())

    def persist_binding(self, has: DomainDefinition, nodes: frozenset[int]) -> DomainDefinition:
        """Write NUMA nodes into the persistent definition, unless another program bound the memory there.

        :return: the definition after the write.
        """
        if not has.persistent or has.binding.is_foreign or has.binding.nodes == nodes:
            return has
        try:
            self.bind_memory(has.binding, nodes, persistent=True)
        except self._libvirt.libvirtError as error:
            self._not_persisted("memory", error)
            return has
        return replace(has, binding=MemoryBinding(RESTRICTIVE, nodes))

    def limit(self, has: CpuLimits, wanted: CpuLimits, group: DomainGroup) -> None:
        """Set weight and quota of the running domain where they differ from the wanted values.

        The quota is libvirt's quota of the whole domain (``global_quota``). The quota of each guest CPU
        (``vcpu_quota``) belongs to the flavor.
        """
        change = {}
        if not wanted.idle and wanted.weight not in (None, has.weight):
            change["cpu_shares"] = group.libvirt_shares(wanted.weight)
        if attainable_quota(wanted.quota) != has.quota:
            # libvirt sets the values in this order. With the former period, the new quota would for a moment
            # mean another number of CPUs.
            if wanted.quota is not None:
                change["global_period"] = PERIOD
            # libvirt uses -1 for "no limit".
            change["global_quota"] = -1 if wanted.quota is None else quota_microseconds(wanted.quota)
        if change:
            self._domain.setSchedulerParametersFlags(change, self._libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def persist_shares(self, has: DomainDefinition, shares: int) -> DomainDefinition:
        """Write the agent's shares into the definition, with a note that these shares are the agent's.

        :return: the definition after the writes.
        """
        noted = frozenset({shares}) | ({has.shares} if has.shares else frozenset())
        try:
            has = self._write_note(replace(has, noted=noted, own=has.own_pins))
            if has.persistent:
                self._domain.setSchedulerParametersFlags({"cpu_shares": shares}, self._affect_flag(True))
        except self._libvirt.libvirtError as error:
            self._not_persisted("CPU shares", error)
            return has
        return replace(has, shares=shares)

    def set_soft_limit(self, kib: int | None, persistent: bool) -> None:
        """Set the soft limit of memory of the running domain, or in its definition if ``persistent``.

        :param kib: the limit in KiB; None means no limit.
        """
        limit = UNLIMITED_KIB if kib is None else kib
        self._domain.setMemoryParameters({SOFT_LIMIT: limit}, self._affect_flag(persistent))

    def note_items(self, has: DomainDefinition, items: Iterable[str]) -> DomainDefinition:
        """Note in the metadata that the agent wrote these items; return the changed definition."""
        return self._write_note(replace(has, own=has.own_pins, own_items=has.own_items.union(items)))

    def set_blockio(self, items: Mapping[str, Item], persistent: bool) -> None:
        """Set items of block I/O of the running domain, or in its definition if ``persistent``."""
        for item, value in items.items():
            set_item(self._domain, item, value, self._affect_flag(persistent))

    def _pin_role(self, role: ThreadRole, cpus: frozenset[int], persistent: bool) -> None:
        flag = self._affect_flag(persistent)
        if role.vcpu is not None:
            self._domain.pinVcpuFlags(role.vcpu, self._cpu_map(cpus), flag)
        elif role.iothread is not None:
            self._domain.pinIOThread(role.iothread, self._cpu_map(cpus), flag)
        else:
            self._domain.pinEmulator(self._cpu_map(cpus), flag)

    def _affect_flag(self, persistent: bool) -> int:
        """The flag that makes a call of libvirt change the definition, or the running domain."""
        libvirt = self._libvirt
        # The annotation turns Any of the untyped package into int for the type checker.
        flag: int = libvirt.VIR_DOMAIN_AFFECT_CONFIG if persistent else libvirt.VIR_DOMAIN_AFFECT_LIVE
        return flag

    def _write_note(self, has: DomainDefinition) -> DomainDefinition:
        """Write the agent's note into the definition's metadata; it names the pins in ``has.own`` only.

        The note is written before the values, and names the old and the new values. If the agent crashes
        between the two writes, the next agent still recognises both values as its own.
        """
        kind = self._libvirt.VIR_DOMAIN_METADATA_ELEMENT
        text = note_element(has.noted, has.own or (), has.own_items)
        self._domain.setMetadata(kind, text, PREFIX, NAMESPACE, self._affect_flag(has.persistent))
        return has

    def _not_persisted(self, what: str, error: Exception) -> None:
        guest = full_name(self._domain.name(), self._domain.UUIDString())
        LOG.warning("The definition of guest %s cannot be changed, and keeps its %s: %s", guest, what, error)

    def _cpu_map(self, cpus: frozenset[int]) -> tuple[bool, ...]:
        """CPUs as a CPU map of libvirt. CPUs that the host does not have are left out."""
        return tuple(cpu in cpus for cpu in sorted(self._host_cpus))
