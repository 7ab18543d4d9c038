"""The driver of guests that are units of systemd: services, scopes and slices.

Operators and packages start and stop these units as usual; the agent never starts a unit. A unit becomes a
guest by the section ``[X-ComputeAgent]`` in its unit file or a drop-in, or by a name that matches the option
``guest_names`` of the agent. The agent sets CPUs, memory and block I/O only through systemd, which
owns the control groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from compute_agent.drivers.base import CpuLimits, MemoryLimits
from compute_agent.drivers.foreign.driver import ForeignDriver
from compute_agent.drivers.foreign.editor import HostFolders
from compute_agent.drivers.foreign.kernel_values import FILES
from compute_agent.drivers.foreign.records import ValueRecords
from compute_agent.drivers.foreign.values import IO_WEIGHT, LATENCY, OOM_GROUP, RATES
from compute_agent.drivers.peer import PeerHint
from compute_agent.drivers.systemd.bus import BusOpener
from compute_agent.drivers.systemd.editor import UnitEditor
from compute_agent.drivers.systemd.manager import SystemdManager
from compute_agent.drivers.systemd.unit_state import SERVICE, SLICE, unit_kind
from compute_agent.drivers.systemd.unit_table import UnitTable
from compute_agent.model.guest import Guest
from compute_agent.model.resource import BlockIo
from compute_agent.threads import ThreadSpec, start_thread

LOG = logging.getLogger(__name__)

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
        open_bus: BusOpener,
        host: str,
        records: ValueRecords,
        folders: HostFolders | None = None,
        look_interval: float = 10.0,
        lock: Callable[[], None] = lambda: None,
        look_only: bool = False,
        guest_names: Collection[str] = (),
    ) -> None:
        """Start the thread that connects and finds units.

        :param open_bus: connects to the message bus.
        :param host: the name of the host's resource provider.
        :param records: the values that units had before the agent changed them.
        :param guest_names: patterns for names; a unit with a matching name is a guest even without the
            section.
        """
        super().__init__(folders, look_interval, lock, look_only)
        self._peer = self._manager = SystemdManager(open_bus, self._hints.put)
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
