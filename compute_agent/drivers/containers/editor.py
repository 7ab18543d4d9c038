"""Writes values to the control groups of containers, and restores the old values.

The control group of a container exists only during one run of the container. So the agent has nothing to
restore after the end of a run. The control group of a pod outlives its runs, so the old values are restored
when the pod stops.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from compute_agent.drivers import procfs
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.drivers.containers.container_state import PodRun, own_group, parse_run
from compute_agent.drivers.containers.table import run_of
from compute_agent.drivers.foreign.editor import HostFolders, ValueEditor, read_texts
from compute_agent.drivers.foreign.kernel_values import FILES, Texts, file_writes, read_values
from compute_agent.drivers.foreign.records import ValueRecord, ValueRecords
from compute_agent.drivers.foreign.values import CPUS, NODES, USUAL_NAMES, DeviceLimits, Values
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError


class ContainerEditor(ValueEditor):
    """Compares and writes the files of containers' groups. Any thread is allowed to call the methods."""

    subject = "container"

    def __init__(
        self,
        records: ValueRecords,
        folders: HostFolders,
        group_path: Callable[[int], str] = procfs.cgroup_path,
    ) -> None:
        """:param group_path: returns the path of the control group of a process."""
        super().__init__(records, folders)
        self._group_path = group_path

    def _run_of(self, guest: Guest) -> str:
        main = procfs.identify_recent(guest.pid)
        if main is None:
            raise GuestGoneError(f"guest {guest} has ended")
        return str(run_of(guest, main, self._folders.groups))

    def _read_values(self, guest: Guest, texts: Texts) -> Values:
        try:
            return read_values(texts)
        except ValueError as error:
            raise DriverError(f"the control group of guest {guest} cannot be read: {error}") from error

    def _write_values(self, guest: Guest, writes: Values) -> None:
        group = GuestCgroup(Path(guest.cgroup))
        self._write_files(group, writes, f"guest {guest}")
        if left := self._differing_files(writes, read_texts(group, USUAL_NAMES | writes.keys())):
            raise DriverError(f"guest {guest}: the kernel did not accept {', '.join(sorted(left))}")

    def _restore_values(self, record: ValueRecord) -> None:
        try:
            run = parse_run(record.run)
        except ValueError as error:
            raise DriverError(str(error)) from error
        if isinstance(run, PodRun):
            group = run.group
        else:
            # The identity is checked, because a process with the pid of the former main process may belong to
            # another container.
            found = own_group(self._group_path(run.main.pid), run.key)
            group = found if procfs.is_alive(run.main) else ""
        if group:
            cgroup = GuestCgroup(self._folders.groups / group.strip("/"))
            # The group of a stopped pod may have lost a controller, and with it the controller's files. The
            # kernel has forgotten the limits of devices that are gone, and refuses them (ENODEV).
            there = self._folders.block_devices
            values = {
                name: value.keep_devices(there) if isinstance(value, DeviceLimits) else value
                for name, value in record.values.items()
                if cgroup.has_file(FILES[name])
            }
            self._write_files(cgroup, values, f"container {record.name}")

    def _write_files(self, group: GuestCgroup, writes: Values, subject: str) -> None:
        # For a group without processes, the kernel accepts an empty set. Such a set also includes CPUs that
        # the host gets later.
        empty = {CPUS: frozenset[int](), NODES: frozenset[int]()}
        whole = self._folders.whole_sets if group.process_ids() else empty
        try:
            for file, text in file_writes(writes, read_texts(group, USUAL_NAMES | writes.keys()), whole):
                try:
                    group.write_io(file, text)
                except OSError as error:
                    # The group has ended with its container. A device that has gone is another reason for
                    # ENODEV, after which the values of other devices still have to be written.
                    if not group.folder.exists():
                        return
                    raise DriverError(f"{subject} cannot have {text!r} in {file}: {error}") from error
        finally:
            self._forget_reading()
