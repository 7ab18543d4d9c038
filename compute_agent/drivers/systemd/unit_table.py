"""The table of services that are guests.

One thread looks at services and updates the table (``driver.py`` has the thread); any thread may read it. The
lock protects the entries only, so no reader waits for systemd.

A service is looked at when systemd signals a change of it, and all services are looked at after each reload
of systemd and each new connection. In between, the list of services finds starts and ends without a signal.
Services without the section ``[X-ComputeAgent]`` are remembered until the next reload, because a drop-in that
systemd has not read has no effect either.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from compute_agent.drivers import procfs
from compute_agent.drivers.base import ChangeKind, GuestChange
from compute_agent.drivers.systemd.manager import SystemdManager
from compute_agent.drivers.systemd.records import UnitRecord
from compute_agent.drivers.systemd.unit_settings import (
    BadSectionError,
    UnitSettings,
    made_uuid,
    read_settings,
)
from compute_agent.drivers.systemd.unit_state import (
    RunningUnit,
    UnfitUnitError,
    UnitState,
    find_guest,
    parse_service,
    parse_unit,
)
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import SettingSource
from compute_agent.model.messages import GuestGoneError, printable_text

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UnitEntry:
    """A service that is a guest."""

    guest: Guest
    running: RunningUnit

    @property
    def is_alive(self) -> bool:
        """Whether its main process runs."""
        return procfs.is_alive(self.running.main)


@dataclass(frozen=True, slots=True)
class _UnitFinding:
    """The result of a look at a service.

    :ivar managed: the uuid of a service that is a guest, or is one again in a moment.
    :ivar lost: the uuid of a service that cannot be a guest, and the reason.
    :ivar is_other: whether the service does not have the section.
    """

    entry: UnitEntry | None = None
    managed: str = ""
    lost: tuple[str, str] | None = None
    is_other: bool = False


class UnitTable:
    """The services that are guests, by name, and those that cannot be managed."""

    def __init__(
        self,
        driver: str,
        manager: SystemdManager,
        host: str,
        groups: Path,
        report: Callable[[GuestChange], None],
    ) -> None:
        """Begin without services; :meth:`look_around` finds them.

        :param driver: the name of the driver, which each guest bears.
        :param host: the name of the host's resource provider, of which uuids are made.
        :param groups: the root of all control groups.
        :param report: called for each change of a guest.
        """
        self._driver = driver
        self._manager = manager
        self._host = host
        self._groups = groups
        self._report = report
        self._lock = threading.Lock()
        self._entries: dict[str, UnitEntry] = {}
        self._lost: dict[str, tuple[str, str]] = {}
        # Only the thread of the table uses these.
        self._managed: dict[str, str] = {}
        """The uuids of services with the section that have not ended, by name."""
        self._others: set[str] = set()
        """The services without the section."""
        self._complete = False

    # For any thread

    def all_entries(self) -> list[UnitEntry]:
        """All services of the table, including those that have just ended."""
        with self._lock:
            return list(self._entries.values())

    def lost_guests(self) -> dict[str, str]:
        """The services that cannot be managed: a dict from uuid to reason and remedy."""
        with self._lock:
            return dict(self._lost.values())

    def find_living(self, guest: Guest) -> UnitEntry:
        """The entry of a guest with a living main process.

        :raises GuestGoneError: the guest has ended, or the service was started again.
        """
        with self._lock:
            entry = self._entries.get(guest.name)
        if entry is None or entry.guest.uuid != guest.uuid or entry.guest.pid != guest.pid:
            raise GuestGoneError(f"guest {guest} has ended")
        if not entry.is_alive:
            raise GuestGoneError(f"guest {guest} has ended")
        return entry

    # For the thread of the table

    def is_managed(self, record: UnitRecord) -> bool:
        """Whether a service is a guest with this uuid and has not ended."""
        return self._managed.get(record.unit) == record.guest_uuid

    def look_around(self, everything: bool) -> None:
        """Look at services that started or ended without a signal.

        :param everything: whether to look at all services, as after a reload.
        :raises DriverError: systemd does not answer.
        """
        if everything:
            self._others.clear()
        services = self._manager.list_services()
        # Services with names that occur once, such as run-r1f.service, are forgotten when they are gone.
        self._others &= services.keys()
        off = {name for name, active in services.items() if active in ("inactive", "failed")}
        # Services with a reason are looked at each time, because no signal reports that the cause is gone.
        suspects = (services.keys() - off - self._others) | self._managed.keys() | self._lost.keys()
        for name in sorted(suspects):
            self.look_at(name)
        self._complete = True

    def look_at(self, name: str, is_new: bool = False) -> None:
        """Read the state of one service, update the table, and report the difference.

        :param is_new: whether systemd has loaded the service now, with files that may be new.
        :raises DriverError: systemd does not answer.
        """
        if is_new:
            self._others.discard(name)
        if name in self._others:
            return
        found = self._look_closely(name)
        if found.is_other:
            self._others.add(name)
        if found.managed:
            self._managed[name] = found.managed
        else:
            self._managed.pop(name, None)
        with self._lock:
            before = self._entries.get(name)
            if found.entry is not None:
                self._entries[name] = found.entry
            else:
                self._entries.pop(name, None)
            news = found.lost is not None and self._lost.get(name) != found.lost
            was_lost = found.lost is None and self._lost.pop(name, None) is not None
            if found.lost is not None:
                self._lost[name] = found.lost
        if news and found.lost is not None:
            LOG.warning("%s", found.lost[1])
        # The listener may read the table, so it is called without the lock.
        self._report_difference(before, found.entry, was_lost)

    def _report_difference(self, before: UnitEntry | None, now: UnitEntry | None, was_lost: bool) -> None:
        same = before is not None and now is not None and _is_same_run(before, now)
        if before is not None and not same:
            self._report(GuestChange(ChangeKind.STOPPED, before.guest))
        if now is not None and (before is None or before.guest != now.guest):
            has_started = before is not None or (self._complete and not was_lost)
            new = ChangeKind.STARTED if has_started else ChangeKind.FOUND
            self._report(GuestChange(ChangeKind.CHANGED if same else new, now.guest))

    def _look_closely(self, name: str) -> _UnitFinding:
        properties = self._manager.read_unit(name)
        if properties is None:
            return _UnitFinding()
        try:
            unit = parse_unit(properties)
        except ValueError as error:
            LOG.warning("Service %s is left out: %s", name, error)
            return _UnitFinding(is_other=True)
        # An alias is left out: systemd lists the service under its own name, too.
        if unit.name != name or not unit.loaded:
            return _UnitFinding(is_other=unit.loaded)
        guest_uuid = made_uuid(self._host, name)
        try:
            settings = read_settings(unit.files)
            if settings is None:
                return _UnitFinding(is_other=True)
            guest_uuid = settings.guest_uuid or guest_uuid
            return self._find_entry(unit, guest_uuid, settings)
        except (BadSectionError, UnfitUnitError) as error:
            if not unit.may_run:
                return _UnitFinding()
            reason = f"service {name} cannot be a guest: {error}"
            return _UnitFinding(lost=(guest_uuid, printable_text(reason)))

    def _find_entry(self, unit: UnitState, guest_uuid: str, settings: UnitSettings) -> _UnitFinding:
        properties = self._manager.read_service(unit.name)
        if properties is None or unit.has_ended:
            return _UnitFinding()
        try:
            unit = parse_service(unit, properties)
        except ValueError as error:
            raise UnfitUnitError(str(error)) from error
        with self._lock:
            namesakes = [
                name
                for name, entry in self._entries.items()
                if entry.guest.uuid == guest_uuid and name != unit.name
            ]
        if namesakes:
            raise UnfitUnitError(f"service {namesakes[0]} has the same uuid: change Uuid= of one of the two")
        running = find_guest(unit, self._groups)
        if running is None:
            return _UnitFinding(managed=guest_uuid)
        guest = Guest(
            guest_uuid,
            self._driver,
            unit.name,
            running.main.pid,
            settings.guest_settings,
            str(running.folder),
            {"unit": unit.name},
            declared=dict(settings.declared),
            declared_by=SettingSource.UNIT,
            declared_problems=settings.problems,
        )
        return _UnitFinding(UnitEntry(guest, running), guest_uuid)


def _is_same_run(before: UnitEntry, now: UnitEntry) -> bool:
    # A service that names another main process while the former one still runs goes on as the same guest.
    return before.guest.uuid == now.guest.uuid and (
        before.running.main == now.running.main or before.is_alive
    )
