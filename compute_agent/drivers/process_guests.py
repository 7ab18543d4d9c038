"""How guests that are plain processes come and go.

A guest is started by the agent, in a session of its own, or adopted by the pid of a process or the folder of
a cgroup v2 group. It outlives the agent. It is known by pid and start time, so that another process that got
its pid later is not taken for it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from compute_agent.drivers import adoption, launch, procfs
from compute_agent.drivers.base import Listener, OomKill
from compute_agent.drivers.cgroup import CgroupRoot, GuestCgroup, group_name
from compute_agent.drivers.memory_limits import OomScores
from compute_agent.drivers.process_table import ProcessTable
from compute_agent.drivers.records import DRIVER, ProcessRecord, RecordStore
from compute_agent.model.guest import Guest, GuestSettings
from compute_agent.model.messages import DriverError, GuestGoneError

LOG = logging.getLogger(__name__)

_POLL_SECONDS: Final = 0.02
_KILL_SECONDS: Final = 10.0


class ProcessGuests:
    """The process guests recorded in one folder."""

    name = DRIVER

    def __init__(self, folder: Path, groups: CgroupRoot | None = None, look_only: bool = False) -> None:
        """Take over the guests recorded in ``folder`` (made if absent) that still run; forget the others.

        New guests get a group below ``groups``, if there is one. With ``look_only`` nothing is made or
        forgotten.

        :raises UnsafeFileError: others may write to the folder.
        :raises OSError:
        """
        self._groups = groups
        self._warned_of_memory = False
        self._scores = OomScores()
        self._records = RecordStore(folder, look_only)
        self._table = ProcessTable(self._records, look_only)

    # What runs

    @property
    def outage(self) -> str:
        """Empty: processes depend on nobody."""
        return ""

    def guests(self) -> Sequence[Guest]:
        """The guests that run now."""
        return [record.guest() for record in self._table.all()]

    def lost(self) -> Mapping[str, str]:
        """The guests that may run and are not looked after, by uuid, and why that is so."""
        return self._table.lost()

    def watch(self, listener: Listener) -> None:
        """Call ``listener`` for every guest that ends from now on, or goes on with another main process."""
        self._table.listen(listener)

    def close(self) -> None:
        """Stop watching; the guests keep running."""
        self._table.close()

    # Life

    def create(
        self,
        guest_uuid: str,
        name: str,
        settings: GuestSettings,
        command: Sequence[str],
        cwd: str = "/",
        environment: Mapping[str, str] | None = None,
    ) -> Guest:
        """Make the process of a new guest, held before its first instruction; see release() and discard().

        ``environment`` has variables beside those that every guest has.

        :raises DriverError: the command or folder cannot be used or the guest exists.
        """
        variables = launch.guest_environment(guest_uuid, environment or {})
        launch.check_command(command, cwd, variables["PATH"])
        self._table.forbid_double(guest_uuid)
        self._table.forbid_lost(guest_uuid)
        log = self._records.log_of(guest_uuid)
        try:
            output = self._records.open_log(guest_uuid)
            try:
                child = launch.start_held(command, cwd, variables, output)
            finally:
                os.close(output)
        except OSError as error:
            raise DriverError(f"guest {guest_uuid} cannot be started: {error}") from error
        identity = procfs.identify(child.pid)
        if identity is None:
            raise DriverError(f"guest {guest_uuid} ended before it began; see {log}")
        record = ProcessRecord(guest_uuid, name, identity, settings, tuple(command), log=log)
        try:
            if self._groups is not None and self._groups.make(guest_uuid).processes():
                raise OSError(f"there are processes in its group {group_name(guest_uuid)} already")
            record = self._grouped(record)
            self._table.add(record, child)
        except OSError as error:
            self._undo(record, child)
            raise DriverError(f"guest {guest_uuid} cannot be recorded: {error}") from error
        return record.guest()

    def release(self, guest: Guest) -> None:
        """Let a guest made by create() run its program."""
        try:
            launch.release(self._table.child(guest.uuid))
        except BrokenPipeError as error:
            raise DriverError(f"guest {guest} was killed before it began") from error
        self._table.watch(self._table.known(guest.uuid))

    def discard(self, guest: Guest) -> None:
        """Undo create(): the held process ends without having run the guest's program."""
        self._undo(self._table.known(guest.uuid), self._table.child(guest.uuid))

    def adopt(self, guest_uuid: str, name: str, settings: GuestSettings, origin: int | Path) -> Guest:
        """Take a running process, or all processes of a cgroup v2 group, as a guest.

        Where guests have groups, the processes move into one of their own: what others set on a group is not
        changed.

        :raises DriverError: it cannot be.
        """
        self._table.forbid_double(guest_uuid)
        source: GuestCgroup | None = None
        if isinstance(origin, int):
            identity = adoption.adoptable_process(origin)
            self._table.forbid_guests({origin})
        else:
            guests = {record.uuid for record in self._table.all()}
            source, identity = adoption.adoptable_group(origin, self._groups, guests)
            self._table.forbid_guests(set(source.processes()))
        command = procfs.command_line(identity.pid)
        record = ProcessRecord(
            guest_uuid, name, identity, settings, command, adopted=True, whole_group=source is not None
        )
        try:
            record = self._grouped(record, source)
            self._table.add(record)
        except OSError as error:
            self._give_back(guest_uuid, source)
            raise DriverError(f"guest {guest_uuid} cannot be recorded: {error}") from error
        self._table.watch(record)
        return record.guest()

    def configure(self, guest: Guest, settings: GuestSettings) -> Guest:
        """Give a running guest other settings; watchers are told."""
        try:
            return self._table.configure(guest.uuid, settings).guest()
        except OSError as error:
            raise DriverError(f"the settings of guest {guest} cannot be recorded: {error}") from error

    def stop(self, guest: Guest, timeout: float) -> None:
        """End the guest: SIGTERM, and SIGKILL after ``timeout`` seconds. Gone already is no error.

        :raises DriverError: the kernel does not let go of it even then, as while it waits for a disk.
        """
        record = self._table.known(guest.uuid)
        deadline = time.monotonic() + timeout
        _signal(record, signal.SIGTERM)
        while self._table.is_alive(record) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        if self._table.is_alive(record):
            LOG.warning("Guest %s did not end within %s s of SIGTERM: SIGKILL", guest, timeout)
            deadline = time.monotonic() + _KILL_SECONDS
            while self._table.is_alive(record):
                if time.monotonic() >= deadline:
                    raise DriverError(
                        f"guest {guest} does not end {_KILL_SECONDS:g} s after SIGKILL: the kernel holds it"
                    )
                _signal(record, signal.SIGKILL)
                time.sleep(_POLL_SECONDS)
        with contextlib.suppress(GuestGoneError):
            self._table.ended(self._table.known(guest.uuid))

    def oom_kills(self) -> Sequence[OomKill]:
        """What the kernel killed of guests that have groups."""
        for record in self._table.all_known():
            if (group := record.group) is not None:
                self._table.oom.look(record.guest(), group)
        return self._table.oom.take()

    # Inner parts

    def _grouped(self, record: ProcessRecord, source: GuestCgroup | None = None) -> ProcessRecord:
        """The record with the group, if there are any, that its processes or ``source`` were moved into.

        :raises OSError:
        """
        if self._groups is None:
            return record
        group = self._groups.make(record.uuid)
        if source is not None:
            group.take(source)
        else:
            for pid in procfs.descendants(record.identity.pid):
                group.add(pid)
        return replace(record, cgroup=str(group.folder))

    def _give_back(self, guest_uuid: str, source: GuestCgroup | None) -> None:
        """Move the processes of a group that cannot be a guest back to where they were."""
        if source is None or self._groups is None:
            return
        try:
            group = self._groups.make(guest_uuid)
            source.take(group)
            group.remove_empty()
        except OSError as error:
            LOG.error(
                "Processes of %s are left in the group of guest %s: %s", source.folder, guest_uuid, error
            )

    def _undo(self, record: ProcessRecord, child: subprocess.Popen[bytes]) -> None:
        """End a held process, and leave nothing of it."""
        child.kill()
        child.wait()
        assert child.stdin is not None
        with contextlib.suppress(OSError):
            child.stdin.close()
        self._table.forget(record)


def _signal(record: ProcessRecord, number: signal.Signals) -> None:
    if record.whole_group:
        targets = record.members()
    else:
        targets = [record.identity.pid] if procfs.is_alive(record.identity) else []
    for pid in targets:
        with contextlib.suppress(ProcessLookupError):
            if record.adopted:
                os.kill(pid, number)
            else:
                os.killpg(pid, number)
