"""Guests that are plain processes, pinned by scheduler affinity (sched_setaffinity(2)) and, where there is a
writable cgroup v2 group, confined in a group of their own.

A guest is started by the agent or adopted by pid. It lives in a session of its own and outlives the agent.
It is known by pid and start time, so that another process that got its pid later is not taken for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from compute_agent.drivers import confinement, procfs
from compute_agent.drivers.base import (
    Change,
    ChangeKind,
    CpuLimits,
    CpuSettings,
    DriverError,
    Guest,
    GuestGoneError,
    GuestSettings,
    Listener,
)
from compute_agent.drivers.cgroup import CgroupRoot, Group
from compute_agent.drivers.pidwatch import PidWatch
from compute_agent.drivers.registry import ProcessRecord, Registry

LOG = logging.getLogger(__name__)

# Both are in the environment of a started guest, so that it is found again even if its record is lost.
ENV_GUEST = "COMPUTE_AGENT_GUEST"
ENV_HOME = "COMPUTE_AGENT_GUESTS"

# The child waits for a line on its standard input before it becomes the guest's program. If the agent dies
# first, the read fails and the child ends: a guest never runs before it is pinned.
_HOLD = 'read -r go && exec "$@" </dev/null'

_POLL_SECONDS = 0.02


class ProcessDriver:
    """The process guests recorded in one folder."""

    name = "process"

    def __init__(self, folder: Path, groups: CgroupRoot | None = None) -> None:
        """Take over the guests recorded in ``folder`` (made if absent) that still run; forget the others.

        New guests get a group below ``groups``, if there is one.
        """
        self._registry = Registry(folder)
        self._groups = groups
        self._lock = threading.RLock()
        self._records: dict[str, ProcessRecord] = {}
        self._told_of_memory = False
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._listener: Listener | None = None
        self._watch: PidWatch[ProcessRecord] | None = None
        self._take_over()

    # What runs

    def guests(self) -> Sequence[Guest]:
        """The guests that run now."""
        with self._lock:
            records = list(self._records.values())
        return [_guest(record) for record in records if procfs.is_alive(record.identity)]

    def watch(self, listener: Listener) -> None:
        """Call ``listener`` for every guest that starts or ends from now on."""
        with self._lock:
            self._listener = listener
            self._watch = PidWatch(self._ended)
            records = list(self._records.values())
        for record in records:
            self._watch_record(record)

    def close(self) -> None:
        """Stop watching; the guests keep running."""
        if self._watch is not None:
            self._watch.close()

    # Life

    def create(
        self, guest_uuid: str, name: str, settings: GuestSettings, command: Sequence[str], cwd: str = "/"
    ) -> Guest:
        """Make the process of a new guest, held before its first instruction; see release() and discard().

        Raises DriverError if the command or folder cannot be used or the guest exists.
        """
        if not command:
            raise DriverError("the command of the guest is empty")
        if shutil.which(command[0]) is None and not os.access(os.path.join(cwd, command[0]), os.X_OK):
            raise DriverError(f"the command {command[0]!r} is not found or not executable")
        if not os.path.isdir(cwd):
            raise DriverError(f"the working folder {cwd!r} does not exist")
        self._forbid_double(guest_uuid)
        log = self._registry.folder / f"{guest_uuid}.log"
        environment = {**os.environ, ENV_GUEST: guest_uuid, ENV_HOME: str(self._registry.folder)}
        try:
            with open(log, "ab", opener=_private) as output:
                child = subprocess.Popen(
                    ["/bin/sh", "-c", _HOLD, "compute-agent-guest", *command],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=cwd,
                    env=environment,
                    start_new_session=True,
                )
        except OSError as error:
            raise DriverError(f"guest {guest_uuid} cannot be started: {error}") from error
        identity = procfs.identify(child.pid)
        if identity is None:
            raise DriverError(f"guest {guest_uuid} ended before it began; see {log}")
        record = ProcessRecord(guest_uuid, name, identity, settings, tuple(command), log=str(log))
        with self._lock:
            self._children[guest_uuid] = child
            self._records[guest_uuid] = record
        try:
            record = self._records[guest_uuid] = self._grouped(record)
            self._registry.save(record)
        except OSError as error:
            self.discard(_guest(record))
            raise DriverError(f"guest {guest_uuid} cannot be recorded: {error}") from error
        return _guest(record)

    def release(self, guest: Guest) -> None:
        """Let a guest made by create() run its program."""
        child = self._children[guest.uuid]
        assert child.stdin is not None
        try:
            child.stdin.write(b"go\n")
            child.stdin.close()
        except BrokenPipeError as error:
            raise DriverError(f"guest {guest.uuid} was killed before it began") from error
        self._watch_record(self._record(guest))

    def discard(self, guest: Guest) -> None:
        """Undo create(): the held process ends without having run the guest's program."""
        with self._lock:
            child = self._children.pop(guest.uuid)
            record = self._records.pop(guest.uuid)
        child.kill()
        child.wait()
        if record.cgroup:
            Group(Path(record.cgroup)).remove()
        assert child.stdin is not None
        with contextlib.suppress(OSError):
            child.stdin.close()
        self._registry.remove(guest.uuid)

    def adopt(self, guest_uuid: str, name: str, settings: GuestSettings, pid: int) -> Guest:
        """Take a running process as a guest. Raises DriverError if there is none or it is a guest already."""
        self._forbid_double(guest_uuid)
        identity = procfs.identify(pid)
        if identity is None:
            raise DriverError(f"there is no process with pid {pid}")
        command = procfs.command_line(pid)
        if not command:
            raise DriverError(f"pid {pid} is a kernel thread and cannot be a guest")
        with self._lock:
            for other in self._records.values():
                if other.identity == identity:
                    raise DriverError(f"pid {pid} is guest {other.uuid} already")
            record = ProcessRecord(guest_uuid, name, identity, settings, command, adopted=True)
            try:
                record = self._grouped(record)
                self._registry.save(record)
            except OSError as error:
                raise DriverError(f"guest {guest_uuid} cannot be recorded: {error}") from error
            self._records[guest_uuid] = record
        self._watch_record(record)
        return _guest(record)

    def stop(self, guest: Guest, timeout: float) -> None:
        """End the guest: SIGTERM, and SIGKILL after ``timeout`` seconds. Gone already is no error."""
        record = self._record(guest)
        deadline = time.monotonic() + timeout
        self._signal(record, signal.SIGTERM)
        while self._runs(record) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if self._runs(record):
            LOG.warning("Guest %s did not end within %s s of SIGTERM: SIGKILL", guest.uuid, timeout)
            self._signal(record, signal.SIGKILL)
            while self._runs(record):
                time.sleep(_POLL_SECONDS)
        self._ended(record)

    # CPUs

    def thread_ids(self, guest: Guest) -> frozenset[int]:
        """The kernel thread ids of the guest's processes now."""
        return frozenset().union(*(procfs.thread_ids(pid) for pid in self._processes(guest)))

    def cpu_affinity(self, guest: Guest, settings: CpuSettings) -> Mapping[int, frozenset[int]]:
        """The threads of the guest with another affinity than ``settings`` give, with the one they have."""
        wanted = _process_cpus(settings)
        found: dict[int, frozenset[int]] = {}
        for pid in self._processes(guest):
            found.update(procfs.misplaced_threads(pid, wanted))
        return found

    def observed_cpus(self, guest: Guest) -> frozenset[int]:
        """The CPUs of the guest's main thread."""
        self._processes(guest)
        cpus = procfs.affinity(guest.pid)
        if cpus is None:
            raise GuestGoneError(f"guest {guest.uuid} has ended")
        return cpus

    def apply_cpu_settings(self, guest: Guest, settings: CpuSettings) -> int:
        """Pin every thread of the guest's processes and read back. Returns how many threads changed."""
        wanted = _process_cpus(settings)
        changed = 0
        record = self._record(guest)
        try:
            if record.cgroup:
                Group(Path(record.cgroup)).confine(wanted)
            seen: set[int] = set()
            while fresh := [pid for pid in self._processes(guest) if pid not in seen]:
                seen.update(fresh)
                changed += sum(procfs.pin_threads(pid, wanted) for pid in fresh)
        except OSError as error:
            raise DriverError(f"guest {guest.uuid} cannot be pinned to {sorted(wanted)}: {error}") from error
        misplaced = self.cpu_affinity(guest, settings)
        if misplaced:
            raise DriverError(
                f"guest {guest.uuid}: the kernel did not take the affinity of {sorted(misplaced)}"
            )
        return changed

    def vcpu_affinity(self, guest: Guest) -> Mapping[int, frozenset[int]]:
        """The CPUs of the guest's main thread for each guest CPU: threads are no guest CPUs here."""
        return dict.fromkeys(range(guest.settings.vcpus), self.observed_cpus(guest))

    def cpu_limits(self, guest: Guest, wanted: CpuLimits) -> CpuLimits | None:
        """Weight and quota of the guest's group where they are not those wanted.

        Raises DriverError if a guest without a group is to have a quota.
        """
        return confinement.other_limits(guest.uuid, self._group(guest), wanted)

    def apply_cpu_limits(self, guest: Guest, wanted: CpuLimits) -> bool:
        """Write weight and quota of the guest's group where they differ, and read back."""
        return confinement.limit(guest.uuid, self._group(guest), wanted)

    # Memory

    def memory_nodes(self, guest: Guest, wanted: frozenset[int]) -> frozenset[int] | None:
        """The NUMA nodes of the guest's group where they are not those wanted."""
        return confinement.other_nodes(self._group(guest), wanted)

    def bind_memory(self, guest: Guest, wanted: frozenset[int]) -> bool:
        """Write the NUMA nodes of the guest's group if they differ, and read back. The kernel moves the
        memory. That of a guest without a group stays where it is.
        """
        group = self._group(guest)
        if wanted and not self._told_of_memory and (group is None or group.memory_nodes() is None):
            self._told_of_memory = True
            LOG.warning(
                "The memory of guest %s and others like it stays where it is: only a cgroup v2 group with the"
                " controller cpuset ([cgroup] root) binds it to NUMA nodes",
                guest.uuid,
            )
        return confinement.bind(guest.uuid, group, wanted)

    # Inner parts

    def _group(self, guest: Guest) -> Group | None:
        """The guest's group; None if it has none. Raises GuestGoneError."""
        record = self._record(guest)
        if not procfs.is_alive(record.identity):
            raise GuestGoneError(f"guest {guest.uuid} has ended")
        return Group(Path(record.cgroup)) if record.cgroup else None

    def _take_over(self) -> None:
        for record in self._registry.load():
            if procfs.is_alive(record.identity):
                self._records[record.uuid] = record
            else:
                LOG.info("Guest %s (pid %d) ended while nobody looked", record.uuid, record.identity.pid)
                self._registry.remove(record.uuid)
                if record.cgroup:
                    Group(Path(record.cgroup)).remove()
        for record in _lost_guests(str(self._registry.folder), self._records.keys()):
            LOG.warning(
                "Guest %s (pid %d) runs without a record: taken over", record.uuid, record.identity.pid
            )
            self._registry.save(record)
            self._records[record.uuid] = record

    def _forbid_double(self, guest_uuid: str) -> None:
        with self._lock:
            if guest_uuid in self._records:
                raise DriverError(f"guest {guest_uuid} exists already")

    def _record(self, guest: Guest) -> ProcessRecord:
        with self._lock:
            record = self._records.get(guest.uuid)
        if record is None:
            raise GuestGoneError(f"guest {guest.uuid} has ended")
        return record

    def _runs(self, record: ProcessRecord) -> bool:
        self._reap(record.uuid)
        return procfs.is_alive(record.identity)

    def _processes(self, guest: Guest) -> list[int]:
        """The guest's processes: those of its group, else its main process and all descendants.

        Raises GuestGoneError.
        """
        group = self._group(guest)
        return (group and group.processes()) or procfs.descendants(guest.pid)

    def _grouped(self, record: ProcessRecord) -> ProcessRecord:
        """The record with the group that its process was moved into, if there are groups. Raises OSError."""
        if self._groups is None:
            return record
        group = self._groups.make(record.uuid)
        for pid in procfs.descendants(record.identity.pid):
            group.add(pid)
        return replace(record, cgroup=str(group.folder))

    def _signal(self, record: ProcessRecord, number: signal.Signals) -> None:
        if not procfs.is_alive(record.identity):
            return
        with contextlib.suppress(ProcessLookupError):
            if record.adopted:
                os.kill(record.identity.pid, number)
            else:
                os.killpg(record.identity.pid, number)

    def _reap(self, guest_uuid: str) -> int | None:
        """Take the exit status of a guest that is a child of this process; None if it is not, or has not
        ended.
        """
        child = self._children.get(guest_uuid)
        return None if child is None else child.poll()

    def _watch_record(self, record: ProcessRecord) -> None:
        if self._watch is not None and not self._watch.add(record, record.identity.pid):
            self._ended(record)

    def _ended(self, record: ProcessRecord) -> None:
        """Clean up after a guest and tell of it; once, whoever sees its end first."""
        guest_uuid = record.uuid
        with self._lock:
            if self._records.get(guest_uuid) != record:
                return  # done before, and there may be a new guest of that consumer
            del self._records[guest_uuid]
        if record.cgroup:
            Group(Path(record.cgroup)).remove()
        elif not record.adopted:
            self._end_leftovers(record)
        status = self._reap(guest_uuid)
        self._children.pop(guest_uuid, None)
        LOG.info("Guest %s ended%s", guest_uuid, "" if status is None else f" with status {status}")
        self._registry.remove(guest_uuid)
        if self._listener is not None:
            self._listener(Change(ChangeKind.STOPPED, _guest(record)))

    def _end_leftovers(self, record: ProcessRecord) -> None:
        """Processes that the guest left behind would go on using its CPUs."""
        for pid in procfs.session_members(record.identity.pid):
            LOG.info("Guest %s ended and left process %d behind: killed", record.uuid, pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _guest(record: ProcessRecord) -> Guest:
    details = {
        "command": " ".join(record.command),
        "log": record.log,
        "origin": "adopted" if record.adopted else "started",
        **({"cgroup": record.cgroup} if record.cgroup else {}),
    }
    return Guest(record.uuid, ProcessDriver.name, record.name, record.identity.pid, record.settings, details)


def _process_cpus(settings: CpuSettings) -> frozenset[int]:
    """A plain process has no threads that are guest CPUs: all of them share the CPUs of the guest."""
    return settings.cpus or settings.emulator_cpus


def _lost_guests(home: str, known: Collection[str]) -> list[ProcessRecord]:
    """Session leaders that carry our mark in their environment but have no record."""
    lost = []
    for pid in procfs.pids():
        guest_uuid = procfs.environment_value(pid, ENV_GUEST)
        if guest_uuid is None or procfs.environment_value(pid, ENV_HOME) != home:
            continue
        identity = procfs.identify(pid)
        if identity is None or guest_uuid in known or procfs.session_of(pid) != pid:
            continue
        log = os.path.join(home, f"{guest_uuid}.log")
        lost.append(
            ProcessRecord(
                guest_uuid, guest_uuid, identity, GuestSettings(), procfs.command_line(pid), log=log
            )
        )
    return lost


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o640)
