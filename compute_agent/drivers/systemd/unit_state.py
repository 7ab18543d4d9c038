"""The state of one service as systemd reports it, and whether it is a running guest.

All functions are pure, apart from :func:`find_running`, which reads /proc. The agent checks each value,
because the programs of services choose some of the values. For example, a service names its main process
(``MAINPID=`` of sd_notify(3)).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from compute_agent.drivers import procfs
from compute_agent.drivers.foreign.table import RunningGroup, group_members
from compute_agent.drivers.foreign.values import Values
from compute_agent.drivers.systemd.unit_properties import decode_values

SUFFIX: Final = ".service"

_NAME: Final = re.compile(r"[A-Za-z0-9:_.@\\-]{1,255}\Z", re.ASCII)
"""The characters of the name of a unit (systemd.unit(5))."""

_UNIT_PATH: Final = "/org/freedesktop/systemd1/unit/"
_ESCAPED: Final = re.compile(r"_([0-9a-f]{2})")

_ALIVE: Final = frozenset({"active", "activating", "reloading", "refreshing", "deactivating"})
"""The values of ``ActiveState`` of a service that has processes or may soon have processes."""

_OFF: Final = frozenset({"inactive", "failed"})

_MAX_FILES: Final = 1000


def is_service_name(name: str) -> bool:
    """Whether a text is the name of a service (and not of a template)."""
    return name.endswith(SUFFIX) and not name.endswith(f"@{SUFFIX}") and _NAME.match(name) is not None


def unit_path(name: str) -> str:
    """The path of the D-Bus object of a unit."""
    return _UNIT_PATH + "".join(
        char if char.isalnum() and not (at == 0 and char.isdigit()) else f"_{ord(char):02x}"
        for at, char in enumerate(name)
    )


def unit_of_path(path: str) -> str:
    """The name of the service with this D-Bus object path; empty if the object is no service."""
    if not path.startswith(_UNIT_PATH):
        return ""
    name = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), path.removeprefix(_UNIT_PATH))
    return name if is_service_name(name) else ""


@dataclass(frozen=True, slots=True)
class UnitState:
    """The state of a service.

    :ivar invocation: the id of the present run, which systemd makes; empty if systemd names none.
    :ivar files: the unit file and its drop-ins, in the order in which systemd applies them.
    :ivar group: the path of the control group below the root of all groups; empty if the service has no
        group.
    :ivar values: the values of the properties that the agent sets.
    """

    name: str
    loaded: bool
    active: str
    files: tuple[Path, ...]
    main_pid: int = 0
    group: str = ""
    values: Values | None = None
    invocation: str = ""

    @property
    def may_run(self) -> bool:
        """Whether the service has processes or may soon have processes."""
        return self.active in _ALIVE

    @property
    def has_ended(self) -> bool:
        """Whether the service is off, and not only between two runs."""
        return not self.loaded or self.active in _OFF


def parse_unit(properties: Mapping[str, Any]) -> UnitState:
    """The state of a unit, from the properties that all kinds of units have.

    :param properties: the properties of the D-Bus interface ``org.freedesktop.systemd1.Unit``.
    :raises ValueError: a property is missing or is not what systemd documents.
    """
    name = _text(properties, "Id")
    if not is_service_name(name):
        raise ValueError(f"{name[:300]!r} is not the name of a service")
    kind, drop_ins = properties.get("DropInPaths", ("as", []))
    if kind != "as" or len(drop_ins) > _MAX_FILES:
        raise ValueError("DropInPaths is not a list of paths")
    paths = [path for path in (_text(properties, "FragmentPath"), *drop_ins) if path]
    if any(not os.path.isabs(path) or "\0" in path for path in paths):
        raise ValueError("FragmentPath or DropInPaths is not a list of paths")
    loaded = _text(properties, "LoadState") in ("loaded", "merged")
    kind, invocation = properties.get("InvocationID", ("ay", b""))
    if kind != "ay":
        raise ValueError("InvocationID is not an id")
    active = _text(properties, "ActiveState")
    return UnitState(name, loaded, active, tuple(map(Path, paths)), invocation=invocation.hex())


def parse_service(unit: UnitState, properties: Mapping[str, Any]) -> UnitState:
    """The state of a service: the state of its unit, and the properties that only services have.

    :param properties: the properties of the D-Bus interface ``org.freedesktop.systemd1.Service``.
    :raises ValueError: a property is missing or is not what systemd documents.
    """
    kind, main_pid = properties.get("MainPID", ("", 0))
    if kind != "u":
        raise ValueError("MainPID is not a number")
    group = _text(properties, "ControlGroup")
    if group and not _is_group_of(unit.name, group):
        raise ValueError(f"ControlGroup {group[:300]!r} is not the group of the service")
    return replace(unit, main_pid=main_pid, group=group, values=decode_values(properties))


def _text(properties: Mapping[str, Any], name: str) -> str:
    kind, value = properties.get(name, ("", None))
    if kind not in ("s", "o") or not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


def _is_group_of(name: str, group: str) -> bool:
    parts = group.split("/")
    # systemd puts "_" before names that the kernel could mistake for files of its own (cg_escape()).
    return parts[0] == "" and ".." not in parts and parts[-1] in (name, f"_{name}")


def find_running(unit: UnitState, groups: Path) -> RunningGroup | None:
    """The main process and the group of a service; None if the service has no process now.

    :param groups: the folder of the root of all groups.
    :raises UnfitSubjectError: the service cannot be a guest.
    """
    if not unit.may_run or not unit.group:
        return None
    folder = groups / unit.group.strip("/")
    pids = group_members(groups, folder, unit.main_pid)
    # systemd may name a main process outside of the group, which does not belong to the service.
    main = procfs.identify_process(unit.main_pid) if unit.main_pid in pids else None
    # A service that is starting and has only a process of ExecStartPre= is not a guest yet. A service that is
    # stopping may have other processes for some time after the end of its main process.
    if main is None and unit.active != "activating":
        alive = (identity for pid in pids if (identity := procfs.identify_process(pid)) is not None)
        main = min(alive, key=lambda one: (one.start_time, one.pid), default=None)
    return None if main is None else RunningGroup(main, folder)
