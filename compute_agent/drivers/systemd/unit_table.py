"""The table of services, scopes and slices that are guests, and their sections ``[X-ComputeAgent]``.

The agent reads a unit when systemd signals a change of the unit, and all units after each reload of systemd
and each new connection. Between these times, the agent finds starts and ends without a signal in the list of
units. The agent remembers units that are not meant to be guests until the next reload, because systemd, too,
reads a new drop-in only at a reload.

A slice that is meant to be a guest has all units below it. So none of these units is a guest by itself, even
while the slice has no processes.

systemd ignores sections that begin with ``X-`` (systemd.unit(5)). The section can be in the unit file and in
drop-ins of this file. A scope has drop-ins only. Settings in later files override settings in earlier files,
as in all other sections. A unit with the section is a guest, even if the section is empty, unless the section
has ``Guest=false``. These files decide about CPUs of the host. So the agent accepts the section only in files
that no other user can change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.base import GuestChange
from compute_agent.drivers.foreign.declared import (
    BadDeclarationError,
    DeclaredSettings,
    KeyNames,
    made_uuid,
    matches_any,
    parse_declaration,
    read_wish,
)
from compute_agent.drivers.foreign.records import ValueRecord
from compute_agent.drivers.foreign.table import (
    ExcludedSubjectError,
    GuestEntry,
    GuestTable,
    SubjectFinding,
    UnfitSubjectError,
)
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.drivers.systemd.manager import SystemdManager
from compute_agent.drivers.systemd.unit_state import (
    SLICE,
    UnitState,
    find_main,
    outer_units,
    parse_group,
    parse_unit,
    refuse_unit,
    unit_kind,
)
from compute_agent.files import UnsafeFileError, check_folder, read_bounded
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import SETTING_NAMES, SettingSource
from compute_agent.model.messages import DriverError, named_few

LOG = logging.getLogger(__name__)

SECTION: Final = "X-ComputeAgent"

GUEST: Final = "Guest"
"""The key that says whether the unit is a guest."""

# The limit is far above the size of real unit files, which have a few kB. systemd has a limit, too
# (READ_FULL_BYTES_MAX, 64 MiB).
_MAX_BYTES: Final = 1 << 20

KEYS: Final[Mapping[str, str]] = {
    "Class" if name == "qos_class" else "".join(word.capitalize() for word in name.split("_")): name
    for name in SETTING_NAMES
}
"""The settings of guests by their keys in the section, such as ``Class`` for ``qos_class``."""


_KEYS: Final = KeyNames("Uuid", "Vcpus", "Memory", KEYS, f"[{SECTION}]")


def section_lines(text: str) -> list[tuple[str, str]] | None:
    """The assignments (key and value) in the sections ``[X-ComputeAgent]``; None without such a section.

    systemd.syntax(7) describes the syntax. If a line ends with a backslash, the next line continues it.
    Comments begin with ``#`` or ``;``.
    """
    found: list[tuple[str, str]] | None = None
    inside = False
    for line in _joined_lines(text):
        if line.startswith("["):
            inside = line == f"[{SECTION}]"
            if inside and found is None:
                found = []
        elif inside and found is not None:
            key, separator, value = line.partition("=")
            found.append((key.strip(), value.strip()) if separator else (line, ""))
    return found


def _joined_lines(text: str) -> Iterable[str]:
    joined = ""
    for raw in text.split("\n"):
        line = raw.strip()
        # A comment between the parts of a continued line is skipped.
        if (not line and not joined) or line.startswith(("#", ";")):
            continue
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        if whole := (joined + line).strip():
            yield whole
        joined = ""
    if joined.strip():
        yield joined.strip()


def parse_section(lines: Sequence[tuple[str, str]]) -> DeclaredSettings | None:
    """The settings in the assignments of all files, in the order of the files.

    The last assignment of a key applies; an empty value stands for the default. The result is None if the
    assignments say that the unit is no guest.

    :raises BadDeclarationError: the value of ``Guest``, the uuid, the number of CPUs or the memory cannot be
        used.
    """
    values = dict(lines)
    return parse_declaration(values, _KEYS) if read_wish(GUEST, values.pop(GUEST, "") or "true") else None


def read_settings(paths: Sequence[Path], is_chosen: bool = False) -> DeclaredSettings | None:
    """Read the settings in the files of a unit; None if the unit is not meant to be a guest.

    :param paths: the unit file and its drop-ins, in the order in which systemd applies them.
    :param is_chosen: whether an option of the agent names the unit, so that it is a guest even without the
        section.
    :raises BadDeclarationError: a value cannot be used, or other users can change a file with the section.
    """
    lines: list[tuple[str, str]] = []
    with_section: list[Path] = []
    for path in paths:
        try:
            text = read_bounded(path, _MAX_BYTES).decode(errors="replace")
        except OSError:
            # The file was removed, or is a link to /dev/null (a masked drop-in). systemd does not read such a
            # file, either.
            continue
        if (found := section_lines(text)) is not None:
            with_section.append(path)
            lines += found
    if not with_section and not is_chosen:
        return None
    unsafe = [str(error) for path in with_section if (error := _trust_error(path)) is not None]
    if unsafe:
        raise BadDeclarationError(f"a file with [{SECTION}] is not trusted: {named_few(unsafe, 1)}")
    return parse_section(lines)


def _trust_error(path: Path) -> UnsafeFileError | None:
    """The reason why a file is not trusted; None if only root and the agent's user can change it."""
    try:
        check_folder(path)
    except UnsafeFileError as error:
        return error
    return None


class UnitTable(GuestTable):
    """The units that are guests, by name, and the units that cannot be managed."""

    def __init__(
        self,
        driver: str,
        manager: SystemdManager,
        host: str,
        groups: Path,
        report: Callable[[GuestChange], None],
        guest_names: Collection[str] = (),
    ) -> None:
        """Begin without guests; see :class:`~compute_agent.drivers.systemd.driver.SystemdDriver`."""
        super().__init__(driver, host, groups, report)
        self._manager = manager
        self._guest_names = guest_names
        self.list_inner: Callable[[], Mapping[str, Guest]] = dict
        """Returns the guests of other drivers that no unit can contain and be a guest, by folder: a unit
        contains a guest if its group is the folder or above it.
        """
        self._inner: tuple[Callable[[], Mapping[str, Guest]], Mapping[str, Guest]] | None = None
        """The function ``list_inner`` and its result in this round; None if it was not called yet."""

    def guest_above(self, folder: str) -> str:
        """The name of the service with a control group that contains the given folder; empty if none has."""
        entries = self.all_entries()
        outer = (one.guest.name for one in entries if Path(folder).is_relative_to(one.own_group.folder))
        return next(outer, "")

    def overruled_units(self) -> set[str]:
        """The units in the table that contain another driver's guest."""
        return self._find_overruled(self.list_inner())

    def _find_overruled(self, inner: Mapping[str, Guest]) -> set[str]:
        return {one.guest.name for one in self.all_entries() if _find_inside(inner, one.own_group.folder)}

    def begin_round(self) -> None:
        """Begin a round of reads, in which all units are compared with one list of other drivers' guests.

        Each list takes a read of /proc for each domain, and a reload of systemd causes a read of all units.
        """
        self._inner = None

    def _inner_guests(self) -> Mapping[str, Guest]:
        list_inner = self.list_inner
        # At the start, the other drivers can become known during the round.
        if self._inner is None or self._inner[0] is not list_inner:
            self._inner = list_inner, list_inner()
        return self._inner[1]

    def is_managed(self, record: ValueRecord) -> bool:
        """Whether a unit is a guest with this uuid and has not ended."""
        return self._managed.get(record.name) == record.guest_uuid

    def may_return(self, key: str, guest_uuid: str) -> bool:
        """Whether a unit runs or can soon run again, such as between two runs with ``Restart=``."""
        properties = self._manager.read_unit(key)
        try:
            return properties is not None and not parse_unit(properties).has_ended
        except ValueError as error:
            raise DriverError(f"the state of unit {key} is not known: {error}") from error

    def _find_suspects(self, everything: bool) -> Collection[str]:
        units = self._manager.list_units()
        # Units that are gone are forgotten, because names such as run-r1f.service occur only once and would
        # pile up.
        self._others &= units.keys()
        off = {name for name, active in units.items() if active in ("inactive", "failed")}
        suspects = (units.keys() - off - self._others) | self._managed.keys()
        return suspects if everything else suspects - self._steady_units(units)

    def _steady_units(self, units: Mapping[str, str]) -> set[str]:
        """The guests that continue to run, which need not be read again.

        Settings of such a guest change only with a reload, which systemd announces.

        :param units: the ``ActiveState`` of each unit.
        """
        alive = (one.guest.name for one in self.all_entries() if one.is_alive)
        return {name for name in alive if units.get(name) == "active"} - self._find_overruled(
            self._inner_guests()
        )

    def order_keys(self, keys: Iterable[str]) -> list[str]:
        """The names in the order of reads: slices first, because they decide about the units below them."""
        return sorted(keys, key=lambda name: (unit_kind(name) != SLICE, name.count("-"), name))

    def unsteady_keys(self) -> list[str]:
        """The units that change with others.

        They are slices and guests without a living main process, and guests below a slice that has become a
        guest.
        """
        entries = {one.guest.name: one for one in self.all_entries()}
        alive = {name for name, entry in entries.items() if entry.is_alive}
        waiting = {
            name for name in self._managed.keys() - alive if unit_kind(name) == SLICE or name in entries
        }
        inner = {
            name
            for name, entry in entries.items()
            if self._find_outer(f"/{entry.own_group.folder.relative_to(self._groups)}")
        }
        return self.order_keys(waiting | inner)

    def _find_outer(self, group: str) -> str:
        """The name of a slice that is meant to be a guest and contains a group; empty if there is none."""
        return next((name for name in outer_units(group) if name in self._managed), "")

    def _look_closely(self, key: str) -> SubjectFinding:
        properties = self._manager.read_unit(key)
        if properties is None:
            return SubjectFinding()
        try:
            unit = parse_unit(properties)
        except ValueError as error:
            LOG.warning("The agent ignores unit %s: %s", key, error)
            return SubjectFinding(is_other=True)
        # An alias is left out, because systemd also lists the unit under its own name.
        if unit.name != key or not unit.loaded:
            return SubjectFinding(is_other=unit.loaded)
        guest_uuid = made_uuid(self._host, key)
        try:
            settings = read_settings(unit.files, matches_any(unit.name, self._guest_names))
            if settings is None:
                return SubjectFinding(is_other=True)
            guest_uuid = settings.guest_uuid or guest_uuid
            return self._find_entry(unit, guest_uuid, settings)
        except (BadDeclarationError, UnfitSubjectError) as error:
            if not unit.may_run:
                return SubjectFinding()
            return SubjectFinding.from_refusal(guest_uuid, f"{unit_kind(key)} {key}", error)

    def _find_entry(self, unit: UnitState, guest_uuid: str, settings: DeclaredSettings) -> SubjectFinding:
        refuse_unit(unit.name)
        properties = self._manager.read_group(unit.name)
        if properties is None or unit.has_ended:
            return SubjectFinding()
        try:
            unit = parse_group(unit, properties)
        except ValueError as error:
            raise UnfitSubjectError(str(error)) from error
        if outer := self._find_outer(unit.group):
            raise ExcludedSubjectError(
                f"it belongs to slice {outer}, which is a guest: set Guest=false in one of the two"
            )
        self._refuse_namesake(unit.name, guest_uuid, "unit", "Uuid=")
        folder = self._groups / unit.group.strip("/")
        main = find_main(unit, self._groups, folder)
        if main is None or self._is_outdated(unit, main):
            return SubjectFinding(managed=guest_uuid)
        if inner := _find_inside(self._inner_guests(), folder):
            raise ExcludedSubjectError(
                f"guest {inner.name} of driver {inner.driver} runs in it: remove one of the two"
            )
        start = procfs.seconds_at_start(main.pid)
        guest = Guest(
            guest_uuid,
            self._driver,
            unit.name,
            main.pid,
            settings.guest_settings,
            str(folder),
            {"unit": unit.name},
            declared=settings.declared,
            declared_by=SettingSource.UNIT,
            declared_problems=settings.problems,
            run=(main.pid, start or 0.0) if unit.invocation else None,
        )
        entry = GuestEntry(guest, main, settings.memory_mb, unit.invocation)
        return SubjectFinding(entry, guest_uuid)

    def _is_outdated(self, unit: UnitState, main: ProcessIdentity) -> bool:
        """Whether a unit with another main process has another run, too.

        It has been started again between the two reads of its properties. A signal of the new run follows.
        """
        with self._lock:
            before = self._entries.get(unit.name)
        if before is None or before.invocation != unit.invocation or before.main.pid == main.pid:
            return False
        properties = self._manager.read_unit(unit.name)
        try:
            return properties is None or parse_unit(properties).invocation != unit.invocation
        except ValueError:
            return True


def _find_inside(guests: Mapping[str, Guest], folder: Path) -> Guest | None:
    """The first of the guests with a folder that is ``folder`` or below it; None if there is none."""
    return next((guest for inner, guest in guests.items() if Path(inner).is_relative_to(folder)), None)
