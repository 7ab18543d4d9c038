"""The state of one unit as systemd reports it, its properties, and whether it is a running guest.

:mod:`compute_agent.drivers.foreign.values` defines the names of properties. A property has a type on the bus,
and systemd's files for properties have names of their own. All functions are pure, apart from
:func:`find_main`, which reads /proc. The agent checks each value, because other programs choose some of
the values. For example, a service names its main process (``MAINPID=`` of sd_notify(3)).
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from compute_agent.drivers import procfs
from compute_agent.drivers.foreign.table import ExcludedSubjectError, group_members
from compute_agent.drivers.foreign.values import (
    DEFAULTS,
    FILE_NAMES,
    INFINITY,
    LATENCY,
    QUOTA,
    RATES,
    DeviceLimits,
    Value,
    Values,
)
from compute_agent.drivers.procfs import ProcessIdentity

UNIT_DEFAULTS: Final[Values] = {name: value for name, value in DEFAULTS.items() if name not in FILE_NAMES}
"""The properties that the agent sets, with their defaults."""

DEVICE_PROPERTIES: Final = (*RATES, LATENCY)
"""The properties with a number for each device. systemd identifies a device by any path that leads to it."""

DeviceFinder = Callable[[str], str]
"""Returns the number of the device that systemd limits for a path; empty if it is not known."""

DevicePaths = Mapping[str, Sequence[str]]
"""The paths by which a unit has limits of a device, by the number of the device."""

_DEVICE_FOLDER: Final = "/dev/block/"

DROP_INS: Final[Mapping[str, str]] = {QUOTA: "CPUQuota"}
"""The word in the name of systemd's file of a property, for properties with a word other than their own
name."""

# The maximum number of bytes of a mask with one bit for each CPU. Linux has at most 8192 CPUs
# (CONFIG_NR_CPUS).
_MAX_MASK: Final = 1024


def drop_in_name(name: str) -> str:
    """The name of the file that systemd writes for a property that is set at run time."""
    return f"50-{DROP_INS.get(name, name)}.conf"


def number_in_path(path: str) -> str:
    """The number of the device in a path such as ``/dev/block/8:0``; empty for any other path."""
    return path.removeprefix(_DEVICE_FOLDER) if path.startswith(_DEVICE_FOLDER) else ""


def decode_value(name: str, variant: Any, find_device: DeviceFinder = number_in_path) -> Value:
    """Decode the value of a property as systemd sends it, which is a pair of type and value.

    Limits for paths of unknown devices are left out.

    :raises ValueError: ``variant`` is not a value of this property.
    """
    kind, value = variant if isinstance(variant, tuple) and len(variant) == 2 else ("", None)
    if name in DEVICE_PROPERTIES:
        if kind == "a(st)" and isinstance(value, list):
            limits = {find_device(path): limit for path, limit in value}
            return DeviceLimits.from_limits({device: limit for device, limit in limits.items() if device})
    elif isinstance(DEFAULTS[name], int):
        if kind == "t" and isinstance(value, int):
            return value
    elif kind == "ay" and isinstance(value, bytes) and len(value) <= _MAX_MASK:
        return frozenset(8 * at + bit for at, byte in enumerate(value) for bit in range(8) if byte >> bit & 1)
    raise ValueError(f"{name} cannot be of type {kind!r}")


def decode_values(properties: Mapping[str, Any], find_device: DeviceFinder = number_in_path) -> Values:
    """Decode the values of those properties that the agent sets.

    An older systemd lacks some properties. The result has no entry for a missing property, and the agent
    cannot set this property.

    :raises ValueError: a value does not fit its property.
    """
    return {
        name: decode_value(name, properties[name], find_device)
        for name in UNIT_DEFAULTS
        if name in properties
    }


def device_paths(properties: Mapping[str, Any], find_device: DeviceFinder) -> DevicePaths:
    """The paths by which a unit has limits of devices."""
    found: dict[str, list[str]] = {}
    for name in DEVICE_PROPERTIES:
        for path, _ in properties.get(name, ("", ()))[1]:
            if (device := find_device(path)) and path not in found.setdefault(device, []):
                found[device].append(path)
    return found


def encode_value(
    name: str, value: Value, paths: DevicePaths = MappingProxyType({})
) -> tuple[str, int | bytes | list[tuple[str, int]]]:
    """A value as the pair of type and value that systemd accepts.

    systemd writes the limits of each path with its missing limits as "max", so a limit by a second path of a
    device would override the first. The value therefore has the same limit for each path of a device. The
    paths of all other devices have "no limit", because systemd keeps the limits of paths that are not named.

    :param paths: the paths by which the unit has limits of devices now.
    """
    if isinstance(value, DeviceLimits):
        limits = value.by_device
        return "a(st)", [
            (path, limits.get(device, INFINITY))
            for device in sorted({*limits, *paths})
            for path in paths.get(device, (f"{_DEVICE_FOLDER}{device}",))
        ]
    if isinstance(value, int):
        return "t", value
    mask = bytearray(max(value, default=-1) // 8 + 1)
    for number in value:
        mask[number // 8] |= 1 << number % 8
    return "ay", bytes(mask)


SERVICE: Final = "service"
SLICE: Final = "slice"

KINDS: Final = (SERVICE, "scope", SLICE)
"""The types of units that can be guests, which are the suffixes of names."""

_UNFIT: Final[Mapping[str, str]] = {
    "-.slice": "it contains all processes of the host",
    "init.scope": "it contains systemd itself",
    "system.slice": "it contains the services of the host",
    "user.slice": "it contains the sessions of all users",
    "machine.slice": "it contains the domains and containers of the host",
    "machine-qemu*.scope": "it contains a domain, which can be a guest of the driver libvirt",
    "libpod-*.scope": "it contains a container, which can be a guest of the driver podman",
    "machine-libpod_pod_*.slice": "it contains a pod, which can be a guest of the driver podman",
    "docker-*.scope": "it contains a container, which can be a guest of the driver docker",
}
"""The units that are never guests, by patterns of their names, with the reasons."""

_NAME: Final = re.compile(r"[A-Za-z0-9:_.@\\-]{1,255}\Z", re.ASCII)
"""The characters of the name of a unit (systemd.unit(5))."""

_UNIT_PATH: Final = "/org/freedesktop/systemd1/unit/"
_ESCAPED: Final = re.compile(r"_([0-9a-f]{2})")

_ALIVE: Final = frozenset({"active", "activating", "reloading", "refreshing", "deactivating"})
"""The values of ``ActiveState`` of a unit that has processes or may soon have processes."""

_OFF: Final = frozenset({"inactive", "failed"})

_MAX_FILES: Final = 1000


def unit_kind(name: str) -> str:
    """The type of a unit that can be a guest, one of :data:`KINDS`; empty for any other text."""
    stem, _, kind = name.rpartition(".")
    # The name of a template ends with "@" before the suffix.
    return kind if kind in KINDS and not stem.endswith("@") and _NAME.match(name) else ""


def refuse_unit(name: str) -> None:
    """Refuse the units that belong to the host or to another driver.

    :raises ExcludedSubjectError: the unit is never a guest.
    """
    for pattern, reason in _UNFIT.items():
        if fnmatch.fnmatchcase(name, pattern):
            raise ExcludedSubjectError(reason)


def unit_path(name: str) -> str:
    """The path of the D-Bus object of a unit."""
    return _UNIT_PATH + "".join(
        char if char.isalnum() and not (at == 0 and char.isdigit()) else f"_{ord(char):02x}"
        for at, char in enumerate(name)
    )


def unit_of_path(path: str) -> str:
    """The name of the unit with this D-Bus object path; empty if the object can be no guest."""
    if not path.startswith(_UNIT_PATH):
        return ""
    name = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), path.removeprefix(_UNIT_PATH))
    return name if unit_kind(name) else ""


@dataclass(frozen=True, slots=True)
class UnitState:
    """The state of a unit.

    :ivar invocation: the id of the present run, which systemd makes; empty if systemd names none.
    :ivar files: the unit file and its drop-ins, in the order in which systemd applies them.
    :ivar main_pid: the pid of the main process; 0 if there is none, as in each scope and slice.
    :ivar group: the path of the control group below the root of all groups; empty if the unit has no group.
    """

    name: str
    loaded: bool
    active: str
    files: tuple[Path, ...]
    main_pid: int = 0
    group: str = ""
    invocation: str = ""

    @property
    def may_run(self) -> bool:
        """Whether the unit has processes or may soon have processes."""
        return self.active in _ALIVE

    @property
    def has_ended(self) -> bool:
        """Whether the unit is off, and not only between two runs."""
        return not self.loaded or self.active in _OFF


def parse_unit(properties: Mapping[str, Any]) -> UnitState:
    """The state of a unit, from the properties that all kinds of units have.

    :param properties: the properties of the D-Bus interface ``org.freedesktop.systemd1.Unit``.
    :raises ValueError: a property is missing or is not what systemd documents.
    """
    name = _text(properties, "Id")
    if not unit_kind(name):
        raise ValueError(f"{name[:300]!r} is not the name of a service, scope or slice")
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


def parse_group(unit: UnitState, properties: Mapping[str, Any]) -> UnitState:
    """The state of a unit, and the properties that only units with a control group have.

    :param properties: the properties of the D-Bus interface of this type of units, such as
        ``org.freedesktop.systemd1.Service``.
    :raises ValueError: a property is missing or is not what systemd documents.
    """
    # Only services have a main process.
    absent = "" if unit_kind(unit.name) == SERVICE else "u"
    kind, main_pid = properties.get("MainPID", (absent, 0))
    if kind != "u":
        raise ValueError("MainPID is not a number")
    group = _text(properties, "ControlGroup")
    if group and not _is_group_of(unit.name, group):
        raise ValueError(f"ControlGroup {group[:300]!r} is not the group of the unit")
    # A unit with values that the agent cannot read is not managed.
    decode_values(properties)
    return replace(unit, main_pid=main_pid, group=group)


def _text(properties: Mapping[str, Any], name: str) -> str:
    kind, value = properties.get(name, ("", None))
    if kind not in ("s", "o") or not isinstance(value, str):
        raise ValueError(f"{name} is not a text")
    return value


def _is_group_of(name: str, group: str) -> bool:
    parts = group.split("/")
    return parts[0] == "" and ".." not in parts and name in _names_of(parts[-1])


def outer_units(group: str) -> list[str]:
    """The possible names of the units that contain the control group of a unit, the outermost first."""
    return [name for part in group.split("/")[1:-1] for name in _names_of(part)]


def _names_of(part: str) -> tuple[str, str]:
    # systemd puts "_" before names that the kernel could mistake for files of its own (cg_escape()).
    return part, part.removeprefix("_")


def find_main(unit: UnitState, groups: Path, folder: Path) -> ProcessIdentity | None:
    """The main process of a unit; None if the unit has no process now.

    The oldest process stands for the main process of a scope, a slice, and a service that has none.

    :param groups: the folder of the root of all groups.
    :param folder: the folder of the unit's group.
    :raises UnfitSubjectError: the unit cannot be a guest.
    """
    if not unit.may_run or not unit.group:
        return None
    pids = group_members(groups, folder, unit.main_pid)
    # systemd may name a main process outside of the group, which does not belong to the unit.
    main = procfs.identify_process(unit.main_pid) if unit.main_pid in pids else None
    # A service that is starting and has only a process of ExecStartPre= is not a guest yet. A service that is
    # stopping may have other processes for some time after the end of its main process.
    if main is None and unit.active != "activating":
        return procfs.oldest_process(pids)
    return main
