"""Sets properties of services through systemd, waits until the kernel has them, and gives them back.

systemd owns the files of control groups, so the agent writes none of them. It sets properties at run time:
systemd keeps them in ``/run/systemd/system.control`` until the next boot, through reloads and restarts of the
service and of systemd itself. The values before the first write are on disk (``records.py``). A property that
is given back leaves no file there, because the file would hide a later change of the unit file.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.drivers.systemd.bus import BusError
from compute_agent.drivers.systemd.kernel_values import FILES, IDLE_FILE, differing_files
from compute_agent.drivers.systemd.manager import SystemdManager, is_unknown_unit
from compute_agent.drivers.systemd.records import UnitRecord, UnitRecords
from compute_agent.drivers.systemd.unit_properties import (
    CPUS,
    DEFAULTS,
    NODES,
    Values,
    decode_values,
    drop_in_name,
    own_value,
    pending_writes,
    value_text,
)
from compute_agent.host.cpus import read_online
from compute_agent.host.kernel_files import SysFiles
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError

LOG = logging.getLogger(__name__)

CONTROL_FOLDER: Final = Path("/run/systemd/system.control")
"""The folder of the files that systemd writes for properties that are set at run time."""

_APPLY_SECONDS: Final = 2.0
"""The longest time in seconds until systemd has written to the kernel what it has confirmed."""
_APPLY_PAUSE: Final = 0.01

_READING_SECONDS: Final = 1.0
"""The longest age in seconds of a reading that a comparison uses. A round compares all settings of a guest
within milliseconds, and rounds are further apart."""


@dataclass(frozen=True, slots=True)
class HostFolders:
    """The folders of the host.

    :ivar root: the root of the host's files.
    :ivar groups: the root of all control groups.
    :ivar control: the folder of the files for properties that are set at run time.
    """

    root: Path = Path("/")
    groups: Path = Path("/sys/fs/cgroup")
    control: Path = CONTROL_FOLDER

    @property
    def online_cpus(self) -> frozenset[int]:
        """The online CPUs."""
        return read_online(self.root)

    @property
    def possible_cpus(self) -> frozenset[int]:
        """The CPUs that the host can ever have."""
        return SysFiles(self.root).cpu_list("sys/devices/system/cpu/possible") or self.online_cpus


GoalChoice = Callable[[Values, Values], Values]
"""Chooses the goals from the present values and from those of the service's own."""


@dataclass(frozen=True, slots=True)
class UnitComparison:
    """The present values of a service, its goals, and the properties with other values than the goals."""

    present: Values
    goals: Values
    differing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UnitReading:
    """The values of a service that systemd had at one time, in seconds of the monotonic clock."""

    guest_uuid: str
    time: float
    values: Values

    def is_fresh(self, guest: Guest) -> bool:
        """Whether a comparison of this guest may use the reading now."""
        return self.guest_uuid == guest.uuid and time.monotonic() - self.time <= _READING_SECONDS


class UnitEditor:
    """Compares and sets the properties of services. Methods may be called from any thread."""

    def __init__(self, manager: SystemdManager, records: UnitRecords, folders: HostFolders) -> None:
        self._manager = manager
        self._records = records
        self._folders = folders
        self._lock = threading.RLock()
        # The last one only: a round compares all settings of a guest before the next guest.
        self._reading: UnitReading | None = None
        self._writes = 0
        """The number of writes. A reading with a write in between is not kept."""

    def record_of(self, guest: Guest) -> UnitRecord:
        """The values of the service's own, as far as the agent has changed them."""
        with self._lock:
            return self._records.record_of(guest.uuid, guest.name)

    def compare_unit(self, guest: Guest, choose: GoalChoice) -> UnitComparison:
        """Compare a service with its goals.

        Comparisons of one guest that follow each other share one reading of systemd's values.

        :raises GuestGoneError: systemd does not know the service any more.
        :raises DriverError: systemd does not answer.
        """
        reading = self._reading
        if reading is None or not reading.is_fresh(guest):
            reading = self._read_unit(guest)
        return self._compare_values(guest, choose, reading.values)

    def _compare_values(self, guest: Guest, choose: GoalChoice, present: Values) -> UnitComparison:
        # An older systemd does not have all properties.
        goals = {
            name: value
            for name, value in choose({**DEFAULTS, **present}, self.record_of(guest).values).items()
            if name in present
        }
        differing = {*pending_writes(goals, present), *self._differing_files(guest, goals)}
        return UnitComparison({**DEFAULTS, **present}, goals, tuple(sorted(differing)))

    def apply(self, guest: Guest, choose: GoalChoice) -> bool:
        """Set the properties that differ, and read them back; return whether any differed.

        :raises GuestGoneError: systemd does not know the service any more.
        :raises DriverError: systemd or the kernel refuses a value, or systemd does not answer.
        """
        with self._lock:
            found = self._compare_values(guest, choose, self._read_unit(guest).values)
            if not found.differing:
                return False
            writes = {name: found.goals[name] for name in found.differing}
            record = self._note_values(self.record_of(guest), found.present, writes)
            self._write_values(guest, writes)
            own = {name for name in writes if writes[name] == own_value(name, found.present, record.values)}
            self._forget_values(record, own)
        return True

    def note_score(self, guest: Guest, scored: bool) -> None:
        """Note whether the agent sets ``oom_score_adj`` of the service.

        :raises DriverError: the note cannot be written.
        """
        with self._lock:
            record = self.record_of(guest)
            if record.scored != scored:
                self._save(replace(record, scored=scored))

    def give_back(self, is_managed: Callable[[UnitRecord], bool]) -> None:
        """Give back the values of all services that are no guests any more.

        A failure is logged, and the next call tries again.

        :param is_managed: whether a service is a guest, with the uuid of the record.
        """
        with self._lock:
            for record in self._records.all_records():
                if not is_managed(record):
                    try:
                        self._give_back(record)
                    except DriverError as error:
                        LOG.warning("%s does not get back its limits: %s", record.unit, error)

    # Inner parts

    def _give_back(self, record: UnitRecord) -> None:
        try:
            self._widen_sets(record.unit, record.values)
            if record.values:
                self._set_properties(record.unit, record.values)
        except BusError as error:
            # A service that was removed has no values, only files.
            if not is_unknown_unit(error):
                raise
        self._forget_values(record, record.values.keys())
        self._save(UnitRecord(record.guest_uuid, record.unit))
        LOG.info("Service %s has its own limits again", record.unit)

    def _read_unit(self, guest: Guest) -> UnitReading:
        writes, now = self._writes, time.monotonic()
        reading = UnitReading(guest.uuid, now, self._read_values(guest))
        if writes == self._writes:
            self._reading = reading
        return reading

    def _read_values(self, guest: Guest) -> Values:
        found = self._manager.read_service(guest.name)
        if found is None:
            raise GuestGoneError(f"guest {guest} has ended")
        try:
            return decode_values(found)
        except ValueError as error:
            raise DriverError(f"systemd gives unexpected values of guest {guest}: {error}") from error

    def _differing_files(self, guest: Guest, values: Values) -> list[str]:
        group = GuestCgroup(Path(guest.cgroup))
        texts = {file: group.io_text(file) for file in (*(FILES[name] for name in values), IDLE_FILE)}
        whole = {CPUS: self._folders.online_cpus, NODES: procfs.nodes_with_memory()}
        return differing_files(values, texts, whole)

    def _note_values(self, record: UnitRecord, present: Values, writes: Values) -> UnitRecord:
        """Note the values of the service's own before the first write."""
        new = {name: present[name] for name in writes if name not in record.values}
        if not new:
            return record
        kept = [name for name in new if self._drop_in(record.unit, name).exists()]
        record = record.with_values(new, kept)
        self._save(record)
        return record

    def _write_values(self, guest: Guest, writes: Values) -> None:
        names = ", ".join(f"{name}={value_text(value)}" for name, value in writes.items())
        try:
            self._widen_sets(guest.name, writes, guest)
            self._set_properties(guest.name, writes)
        except BusError as error:
            if is_unknown_unit(error):
                raise GuestGoneError(f"guest {guest} has ended") from error
            raise DriverError(f"systemd does not set {names} of guest {guest}: {error}") from error
        if left := self._await_values(guest, writes):
            raise DriverError(f"guest {guest}: the kernel did not accept {', '.join(left)} of {names}")

    def _widen_sets(self, unit: str, writes: Values, guest: Guest | None = None) -> None:
        """Set all CPUs or NUMA nodes before a value is removed.

        The kernel refuses an empty set for a group with processes (ENOSPC), so the group would keep its
        former set.
        """
        whole = {CPUS: self._folders.possible_cpus, NODES: procfs.nodes_with_memory()}
        wide = {name: value for name, value in whole.items() if writes.get(name) == frozenset()}
        if wide:
            self._set_properties(unit, wide)
            if guest is not None:
                self._await_values(guest, wide)
            else:
                time.sleep(_APPLY_PAUSE)

    def _set_properties(self, unit: str, values: Values) -> None:
        try:
            self._manager.set_properties(unit, values)
        finally:
            # The call may have had an effect although it failed.
            self._writes += 1
            self._reading = None

    def _await_values(self, guest: Guest, values: Values) -> list[str]:
        """Wait until systemd and the kernel have the values; return the names of those that are missing."""
        deadline = time.monotonic() + _APPLY_SECONDS
        while True:
            left = [*pending_writes(values, {**DEFAULTS, **self._read_values(guest)})]
            left = sorted({*left, *self._differing_files(guest, values)})
            if not left or time.monotonic() >= deadline:
                return left
            time.sleep(_APPLY_PAUSE)

    def _forget_values(self, record: UnitRecord, names: Collection[str]) -> None:
        """Forget properties with values of the service's own, and remove systemd's files of them."""
        known = [name for name in names if name in record.values]
        if not known:
            return
        for name in known:
            if name not in record.kept:
                path = self._drop_in(record.unit, name)
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
                    path.parent.rmdir()
        self._save(record.without_values(known))

    def _drop_in(self, unit: str, name: str) -> Path:
        return self._folders.control / f"{unit}.d" / drop_in_name(name)

    def _save(self, record: UnitRecord) -> None:
        try:
            self._records.save(record)
        except OSError as error:
            raise DriverError(
                f"service {record.unit} keeps its limits, because its record cannot be written: {error}"
            ) from error
