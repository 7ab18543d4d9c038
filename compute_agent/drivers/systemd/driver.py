"""The driver of guests that are units of systemd: services, scopes and slices.

The driver sets CPUs, memory and block I/O only through systemd, which owns the control groups and writes
their files. The agent sets properties at run time: systemd keeps them in ``/run/systemd/system.control``
until the next boot, through reloads and restarts of the unit and of systemd itself. A unit without a unit
file, such as each scope, has the properties in ``/run/systemd/transient``, until the unit ends. When the
agent restores a property, it removes systemd's file there, because the file would hide a later change of the
unit file.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.base import CpuLimits, MemoryLimits
from compute_agent.drivers.cgroup import group_at
from compute_agent.drivers.foreign.driver import ForeignDriver
from compute_agent.drivers.foreign.editor import (
    HostFolders,
    ValueEditor,
    ValueReading,
    read_texts,
)
from compute_agent.drivers.foreign.kernel_values import FILES, Texts
from compute_agent.drivers.foreign.records import ValueRecord, ValueRecords
from compute_agent.drivers.foreign.values import (
    CPUS,
    DEFAULTS,
    IO_WEIGHT,
    LATENCY,
    NODES,
    OOM_GROUP,
    RATES,
    DeviceLimits,
    GoalChoice,
    Values,
    pending_writes,
    value_text,
)
from compute_agent.drivers.peer import PeerHint
from compute_agent.drivers.systemd.bus import CALL_SECONDS, BusError
from compute_agent.drivers.systemd.manager import SystemdManager, is_unknown_unit
from compute_agent.drivers.systemd.unit_state import (
    DEVICE_PROPERTIES,
    SERVICE,
    SLICE,
    DevicePaths,
    decode_values,
    device_paths,
    drop_in_name,
    unit_kind,
)
from compute_agent.drivers.systemd.unit_table import UnitTable
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError, GuestGoneError
from compute_agent.model.resource import BlockIo
from compute_agent.threads import ThreadSpec, start_thread

_APPLY_SECONDS: Final = 2.0
"""The maximum time in seconds within which systemd must write a confirmed value to the kernel."""
_APPLY_PAUSE: Final = 0.01
_MAX_KNOWN: Final = 1000

_FOLDERS: Final = ("system.control", "transient")
"""The folders in which systemd keeps properties that are set at run time."""

PROPERTY_SECONDS: Final = 60.0
"""The maximum age in seconds of properties that a comparison uses while the files of the group stay the same.
If another program changes a property through systemd, a file of the group changes, too.
"""


@dataclass(frozen=True, slots=True)
class KnownProperties:
    """The properties of a unit, and the time at which they were read (monotonic clock, in seconds).

    :ivar texts: the contents of the files of the unit's group at that time.
    """

    texts: Texts
    values: Values
    time: float


class UnitEditor(ValueEditor):
    """Compares the properties of units with the wanted values, and sets the wanted ones.

    Any thread is allowed to call the methods.
    """

    subject = "unit"

    def __init__(self, manager: SystemdManager, records: ValueRecords, folders: HostFolders) -> None:
        super().__init__(records, folders)
        self._manager = manager
        # The properties by the name of the unit. They are kept because each answer of systemd has some 250
        # properties.
        self._known: dict[str, KnownProperties] = {}

    def apply(self, guest: Guest, choice: GoalChoice) -> bool:
        """Set the values that differ, and read them back; return whether any value differed."""
        # The values are read again, because a record must get the present values of the guest.
        self._known.pop(guest.name, None)
        return super().apply(guest, choice)

    def _read_values(self, guest: Guest, texts: Texts) -> Values:
        known, now = self._known.get(guest.name), time.monotonic()
        if (
            known is not None
            and now - known.time <= PROPERTY_SECONDS
            and all(texts[file] == text for file, text in known.texts.items() if file in texts)
        ):
            return known.values
        # All files are read, because later comparisons of other values compare these texts.
        texts = read_texts(group_at(guest.cgroup))
        writes, values = self._writes, self._ask_values(guest)
        if writes == self._writes:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[guest.name] = KnownProperties(texts, values, now)
        return values

    def _ask_values(self, guest: Guest) -> Values:
        found = self._manager.read_group(guest.name)
        if found is None:
            raise GuestGoneError(f"guest {guest} has ended")
        try:
            return decode_values(found, self._folders.limited_device)
        except ValueError as error:
            raise DriverError(f"systemd gives unexpected values of guest {guest}: {error}") from error

    def _find_differing(self, values: Values, reading: ValueReading) -> Collection[str]:
        # Both the properties and the files are compared: systemd answers before it writes, and another
        # program can write to the files.
        present = {**DEFAULTS, **reading.values}
        return {*pending_writes(values, present), *super()._find_differing(values, reading)}

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

    def _restore_values(self, record: ValueRecord) -> None:
        try:
            self._widen_sets(record.name, record.values)
            if record.values:
                self._set_properties(record.name, self._without_lost_devices(record.values))
        except BusError as error:
            # If systemd no longer has the unit, there are no values to restore, only files to remove.
            if not is_unknown_unit(error):
                raise

    def _names_to_keep(self, record: ValueRecord, names: Collection[str]) -> Sequence[str]:
        return [name for name in names if any(path.exists() for path in self._drop_ins(record.name, name))]

    def _remove_files(self, record: ValueRecord, names: Collection[str]) -> None:
        for path in (path for name in names for path in self._drop_ins(record.name, name)):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                path.parent.rmdir()

    # Inner parts

    def _widen_sets(self, unit: str, writes: Values, guest: Guest | None = None) -> None:
        """Set a value to all CPUs or all NUMA nodes before the agent sets it to the empty set.

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

    def _without_lost_devices(self, values: Values) -> Values:
        """The values without limits of devices that are gone, because the kernel refuses these limits."""
        there = self._folders.block_devices if not values.keys().isdisjoint(DEVICE_PROPERTIES) else ()
        return {
            name: value.keep_devices(there) if isinstance(value, DeviceLimits) else value
            for name, value in values.items()
        }

    def _set_properties(self, unit: str, values: Values) -> None:
        paths: DevicePaths = {}
        if not values.keys().isdisjoint(DEVICE_PROPERTIES):
            paths = device_paths(self._manager.read_group(unit) or {}, self._folders.limited_device)
        try:
            self._manager.set_properties(unit, values, paths)
        finally:
            # The readings are forgotten in any case, because a failed call may have had an effect.
            self._forget_reading()
            self._known.pop(unit, None)

    def _await_values(self, guest: Guest, values: Values) -> list[str]:
        """Wait until systemd and the kernel have the values; return the names of values that still differ."""
        deadline = time.monotonic() + _APPLY_SECONDS
        while True:
            left = self._find_differing(values, self._read_guest(guest))
            if not left or time.monotonic() >= deadline:
                return sorted(left)
            time.sleep(_APPLY_PAUSE)

    def _drop_ins(self, unit: str, name: str) -> list[Path]:
        return [self._folders.runtime / one / f"{unit}.d" / drop_in_name(name) for one in _FOLDERS]


DRIVER: Final = "systemd"
"""The name of the driver in ``[guests] drivers`` and in documents."""

_BFQ: Final = "io.bfq.weight"
"""The file of the scheduler bfq, into which systemd also writes the weight."""

UNITS_THREAD: Final = ThreadSpec(
    "systemd-units",
    "when systemd signals a change of a unit, and each [guests] reconcile_interval; 0.1 to 2 s while"
    " systemd does not answer",
    "keeps the table of units, and reports those that start, end or change",
    "that of the table; that of changes of units",
    "systemd over the message bus; the queue of ``arrivals``",
)


class SystemdDriver(ForeignDriver):
    """The driver of guests that are units of the systemd of this host."""

    name = DRIVER
    peer_name = "systemd"

    def __init__(
        self,
        bus_path: Path,
        host: str,
        records: ValueRecords,
        folders: HostFolders | None = None,
        look_interval: float = 10.0,
        lock: Callable[[], None] = lambda: None,
        look_only: bool = False,
        seconds: float = CALL_SECONDS,
        guest_names: Collection[str] = (),
    ) -> None:
        """Start the thread that connects and finds units.

        :param bus_path: the UNIX socket of the message bus.
        :param host: the name of the host's resource provider.
        :param records: the values that units had before the agent changed them.
        :param seconds: the time limit of each call to systemd.
        :param guest_names: patterns for names; a unit with a matching name is a guest even without the
            section.
        :raises DriverError: jeepney is not installed.
        """
        super().__init__(folders, look_interval, lock, look_only)
        self._peer = self._manager = SystemdManager(bus_path, self._hints.put, seconds)
        self._table = self._units = UnitTable(
            self.name, self._manager, host, self._folders.groups, self._report_change, guest_names
        )
        self._editor = UnitEditor(self._manager, records, self._folders)
        self._await_look(start_thread(UNITS_THREAD, self._follow_peer))

    def leave_groups(self, list_inner: Callable[[], Mapping[str, Guest]]) -> None:
        """From now on, do not manage a unit with a control group that contains another driver's guest.

        The driver's thread soon restores the values of units that contain such a guest now.

        :param list_inner: returns the guests of other drivers. The keys are folders, as of
            :meth:`compute_agent.drivers.combined.CombinedDriver.overruling_guests`.
        """
        self._units.list_inner = list_inner
        for name in self._units.overruled_units():
            self._hints.put(PeerHint(name))

    def leave_service(self, inner: Guest) -> None:
        """Stop to manage the service with the control group of another driver's guest, if there is one.

        The limits of the service would apply to this guest, too. The driver's thread restores them soon.
        """
        if name := self._units.guest_above(inner.cgroup):
            self._hints.put(PeerHint(name))

    def _begin_stop(self, guest: Guest, timeout: float) -> float:
        self._manager.stop_unit(guest.name)
        return timeout

    def _kill_processes(self, guest: Guest) -> None:
        self._manager.kill_unit(guest.name)

    def subject_key(self, guest: Guest) -> str:
        """The name of the unit."""
        return guest.name

    def missing_limits(self, guest: Guest, wanted: CpuLimits) -> Sequence[str]:
        """Messages about those limits in ``wanted`` that this systemd cannot set."""
        self._table.find_recent(guest)
        found = []
        if wanted.idle and not self._manager.has_idle:
            found.append("cpu_idle: this needs systemd 252")
        if wanted.burst:
            found.append("cpu_burst: systemd has no property for it")
        return found

    def memory_missing(self, guest: Guest, wanted: MemoryLimits) -> Sequence[str]:
        """Messages about those limits in ``wanted`` that systemd cannot set while a unit runs."""
        group, found = self._table.find_recent(guest).own_group, []
        if wanted.oom_group and not group.memory_limit(FILES[OOM_GROUP]):
            # systemd itself writes the file, by a setting that it reads only when it loads the unit.
            remedy = "systemd cannot change it at run time: write OOMPolicy=kill into the unit file"
            is_slice = unit_kind(guest.name) == SLICE
            found.append(f"oom_group: {'systemd has no such setting of slices' if is_slice else remedy}")
        if any(amount for _, amount in wanted.huge_pages or ()):
            found.append("huge pages: systemd cannot limit them, so the unit can use more than it holds")
        return found

    def blockio_missing(self, guest: Guest, wanted: BlockIo) -> Sequence[str]:
        """Messages about those parts of ``wanted`` that the unit cannot have."""
        group, found = self._table.find_recent(guest).own_group, []
        if wanted.rates or wanted.latency_us is not None:
            for device, limited in sorted(self._moved_devices(wanted.devices).items()):
                found.append(
                    f"systemd cannot limit block device {device}, because it limits the disk below, which is"
                    f" {limited}: name this disk in the class"
                )
        # systemd enables the controller io with the first setting that needs it. Before that, it is not known
        # which files the kernel has.
        if group.has_file(FILES[RATES[0]]):
            if wanted.weight is not None and not (group.has_file(FILES[IO_WEIGHT]) or group.has_file(_BFQ)):
                found.append("the kernel has no io.weight: this needs the controller io with io.cost or bfq")
            if wanted.latency_us is not None and not group.has_file(FILES[LATENCY]):
                found.append("the kernel has no io.latency: this needs CONFIG_BLK_CGROUP_IOLATENCY")
        if wanted.own_disks:
            found.append("a unit has no disks of its own: name devices of the host instead of guest")
        return found

    def _limitable_devices(self, wanted: frozenset[str]) -> frozenset[str]:
        return self._folders.block_devices - self._moved_devices(wanted).keys()

    def _moved_devices(self, wanted: frozenset[str]) -> Mapping[str, str]:
        """The wanted devices for which systemd limits another device, with the number of the other one."""
        found = {device: self._folders.limited_device(f"/dev/block/{device}") for device in wanted}
        return {device: limited for device, limited in found.items() if limited != device}

    def _is_composed(self, guest: Guest) -> bool:
        return unit_kind(guest.name) != SERVICE

    def _can_idle(self, guest: Guest) -> bool:
        return self._manager.has_idle
