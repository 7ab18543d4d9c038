"""Guests that are plain processes.

They are pinned by scheduler affinity (sched_setaffinity(2)) and, where there is a writable cgroup v2 group,
confined in a group of their own.

How they come and go is in :mod:`compute_agent.drivers.process_guests`; what they get of CPUs, memory and
block I/O is here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from compute_agent.drivers import blockio_limits, confinement, memory_limits, procfs
from compute_agent.drivers.base import CpuLimits, CpuSettings, MemoryLimits
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.drivers.process_guests import ProcessGuests
from compute_agent.drivers.records import ProcessRecord
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BlockIo

LOG = logging.getLogger(__name__)


class ProcessDriver(ProcessGuests):
    """The process guests recorded in one folder, and what they get of the host."""

    # What it can

    @property
    def starting(self) -> ProcessDriver:
        """Guests are started by the agent."""
        return self

    @property
    def flavors(self) -> None:
        """Processes have no flavors."""
        return

    @property
    def expecting(self) -> None:
        """Guests are held before their first instruction, and adopted ones run already."""
        return

    # CPUs

    def processes(self, guest: Guest) -> Sequence[int]:
        """The main process and all that it has started."""
        return procfs.descendants(guest.pid)

    def thread_ids(self, guest: Guest) -> frozenset[int]:
        """The kernel thread ids of the guest's processes now."""
        pids, _ = _processes(self._table.running(guest.uuid))
        return frozenset().union(*map(procfs.thread_ids, pids))

    def vcpu_threads(self, guest: Guest) -> frozenset[int]:
        """All threads: none of a process is a guest CPU."""
        return self.thread_ids(guest)

    def misplaced_threads(self, guest: Guest, settings: CpuSettings) -> Mapping[int, frozenset[int]]:
        """The threads of the guest with another affinity than ``settings`` give, with the one they have."""
        wanted = _process_cpus(settings)
        record = self._table.running(guest.uuid)
        pids, left_group = _processes(record)
        found: dict[int, frozenset[int]] = {}
        for pid in pids:
            found.update(procfs.misplaced_threads(pid, wanted))
        if left_group and (has := procfs.affinity(record.identity.pid)) is not None:
            found[record.identity.pid] = has
        return found

    def definition_drift(self, guest: Guest, settings: CpuSettings) -> str:
        """Empty: a process is started once."""
        self._table.known(guest.uuid)
        return ""

    def observed_cpus(self, guest: Guest) -> frozenset[int]:
        """The CPUs of the guest's main thread."""
        cpus = procfs.affinity(self._table.running(guest.uuid).identity.pid)
        if cpus is None:
            raise GuestGoneError(f"guest {guest} has ended")
        return cpus

    def apply_cpu_settings(self, guest: Guest, settings: CpuSettings) -> int:
        """Pin every thread of the guest's processes and read back. Returns how many threads changed."""
        wanted = _process_cpus(settings)
        changed = 0
        record = self._table.running(guest.uuid)
        try:
            if _processes(record)[1]:
                LOG.warning("Guest %s was moved out of its group: put back", guest)
                self._grouped(record)
            if record.group is not None:
                record.group.confine(wanted)
            seen: set[int] = set()
            while fresh := [pid for pid in _processes(self._table.running(guest.uuid))[0] if pid not in seen]:
                seen.update(fresh)
                changed += sum(procfs.pin_threads(pid, wanted) for pid in fresh)
        except OSError as error:
            raise DriverError(f"guest {guest} cannot be pinned to {sorted(wanted)}: {error}") from error
        misplaced = self.misplaced_threads(guest, settings)
        if misplaced:
            raise DriverError(f"guest {guest}: the kernel did not take the affinity of {sorted(misplaced)}")
        return changed

    def vcpu_affinity(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """Empty: no thread of a process is a guest CPU."""
        self._table.running(guest.uuid)
        return {}

    def emulator_affinity(self, guest: Guest) -> frozenset[int]:
        """Empty: all threads of a process are alike."""
        self._table.running(guest.uuid)
        return frozenset()

    def cpu_limits(self, guest: Guest, wanted: CpuLimits) -> CpuLimits | None:
        """Weight and quota of the guest's group where they are not those wanted.

        :raises DriverError: a guest without a group is to have a quota.
        """
        return confinement.other_limits(guest, self._group(guest), wanted)

    def apply_cpu_limits(self, guest: Guest, wanted: CpuLimits) -> bool:
        """Write weight and quota of the guest's group where they differ, and read back."""
        return confinement.limit(guest, self._group(guest), wanted)

    # Memory

    def memory_nodes(self, guest: Guest, wanted: frozenset[int]) -> frozenset[int] | None:
        """The NUMA nodes of the guest's group where they are not those wanted."""
        return confinement.other_nodes(self._group(guest), wanted)

    def bind_memory(self, guest: Guest, wanted: frozenset[int]) -> bool:
        """Write the NUMA nodes of the guest's group if they differ, and read back.

        The kernel moves the memory. That of a guest without a group stays where it is.
        """
        group = self._group(guest)
        if wanted and not self._warned_of_memory and (group is None or group.memory_nodes() is None):
            self._warned_of_memory = True
            LOG.warning(
                "The memory of guest %s and others like it stays where it is: only a cgroup v2 group with the"
                " controller cpuset ([cgroup] root) binds it to NUMA nodes",
                guest,
            )
        return confinement.bind(guest, group, wanted)

    def memory_use(self, guest: Guest) -> int | None:
        """The bytes that the guest's group uses, cached files among them; None without one."""
        group = self._group(guest)
        return None if group is None else group.memory_use()

    def huge_page_use(self, guest: Guest) -> Mapping[int, int]:
        """The bytes in huge pages that the guest's group uses, by their size in KiB; empty without one."""
        return memory_limits.huge_page_use(self._group(guest))

    def memory_limits(self, guest: Guest, wanted: MemoryLimits) -> MemoryLimits | None:
        """The limits of the guest's group and of its processes where they are not those wanted."""
        record = self._table.running(guest.uuid)
        pids, wanted = _processes(record)[0], self._scores.attainable(guest, wanted)
        todo = memory_limits.differing(record.group, pids, wanted, _own_limits(record))
        return memory_limits.present(record.group, pids, wanted) if todo else None

    def limit_memory(self, guest: Guest, wanted: MemoryLimits) -> bool:
        """Write what differs, noted as the agent's before, and read back."""
        record = self._table.running(guest.uuid)
        pids, wanted = _processes(record)[0], self._scores.attainable(guest, wanted)
        todo = memory_limits.differing(record.group, pids, wanted, _own_limits(record))
        if not todo:
            return False
        try:
            self._table.note_limits(guest.uuid, todo)
            for name, amount in todo.items():
                if name != memory_limits.OOM_SCORE and record.group is not None:
                    record.group.limit_memory(name, amount)
            if memory_limits.LOW in todo and self._groups is not None:
                self._groups.protect_guests()
            if memory_limits.OOM_SCORE in todo:
                self._scores.write(guest, pids, todo[memory_limits.OOM_SCORE])
        except OSError as error:
            raise DriverError(f"the memory of guest {guest} cannot be limited: {error}") from error
        if (left := self.memory_limits(guest, wanted)) is not None:
            raise DriverError(f"guest {guest} has {left}, as the kernel did not take {wanted}")
        return True

    # Block I/O

    def blockio_drift(self, guest: Guest, wanted: BlockIo | None) -> str:
        """What has to be written into the guest's group."""
        todo = self._blockio_writes(guest, wanted)
        return "; ".join(f"{name} has not {line}" for name, line in todo)

    def apply_blockio(self, guest: Guest, wanted: BlockIo | None) -> bool:
        """Write what differs, noted as the agent's before, and read back."""
        todo = self._blockio_writes(guest, wanted)
        group = self._group(guest)
        if not todo or group is None:
            return False
        name = line = ""
        try:
            self._table.note_limits(guest.uuid, {name for name, _ in todo})
            for name, line in todo:
                group.write_io(name, line)
        except OSError as error:
            raise DriverError(f"guest {guest} cannot have {line!r} in {name}: {error}") from error
        if left := self.blockio_drift(guest, wanted):
            raise DriverError(f"guest {guest}: the kernel did not take it: {left}")
        return True

    def blockio_missing(self, guest: Guest, wanted: BlockIo) -> Sequence[str]:
        """What the kernel, or the guest's group, does not have."""
        return blockio_limits.missing(self._group(guest), wanted)

    def _blockio_writes(self, guest: Guest, wanted: BlockIo | None) -> list[tuple[str, str]]:
        record = self._table.running(guest.uuid)
        if record.group is None:
            return []
        return blockio_limits.writes(record.group, wanted, record.limits)

    # Inner parts

    def _group(self, guest: Guest) -> GuestCgroup | None:
        """The guest's group; None if it has none.

        :raises GuestGoneError: where there is a group, also for an end that nobody has seen yet.
        """
        record = self._table.known(guest.uuid)
        return self._table.running(guest.uuid).group if record.cgroup else None


def _processes(record: ProcessRecord) -> tuple[list[int], bool]:
    """The processes of a guest, and whether somebody moved the main one out of the guest's group.

    They are those of the group, and without it the main process with all descendants.
    """
    members = record.members()
    if record.identity.pid in members:
        return members, False
    return [*members, *procfs.descendants(record.identity.pid)], record.group is not None


def _own_limits(record: ProcessRecord) -> frozenset[str]:
    """The limits that are the agent's: those it wrote, and what guests that it started have from it."""
    own = frozenset(record.limits)
    return own if record.adopted else own | {memory_limits.OOM_SCORE}


def _process_cpus(settings: CpuSettings) -> frozenset[int]:
    """A plain process has no threads that are guest CPUs: all of them share the CPUs of the guest."""
    return settings.cpus or settings.emulator_cpus
