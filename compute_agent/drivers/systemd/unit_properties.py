"""The properties of a unit, their types on the bus, and the names of systemd's files for properties.

The module consists of pure functions. :mod:`compute_agent.drivers.foreign.values` defines the names of
properties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

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
