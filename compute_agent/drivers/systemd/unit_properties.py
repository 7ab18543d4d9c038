"""The properties of a service: their types on the bus, and the files that systemd writes for them.

The names are those of :mod:`compute_agent.drivers.foreign.values`. Pure functions, apart from the paths and
numbers of devices, which come from the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from compute_agent.drivers.foreign.values import DEFAULTS, INFINITY, QUOTA, DeviceLimits, Value, Values
from compute_agent.host.block_devices import disk_number, disk_path

DROP_INS: Final[Mapping[str, str]] = {QUOTA: "CPUQuota"}
"""The word in the name of the file that systemd writes for a property, if it is not the property's name."""

# Linux has at most 8192 CPUs (CONFIG_NR_CPUS), one bit each.
_MAX_MASK: Final = 1024


def drop_in_name(name: str) -> str:
    """The name of the file that systemd writes for a property that is set at run time."""
    return f"50-{DROP_INS.get(name, name)}.conf"


def decode_value(name: str, variant: Any) -> Value:
    """The value of a property as systemd sends it: a pair of type and value.

    :raises ValueError: it is not a value of this property.
    """
    kind, value = variant if isinstance(variant, tuple) and len(variant) == 2 else ("", None)
    default = DEFAULTS[name]
    if isinstance(default, int):
        if kind == "t" and isinstance(value, int):
            return value
    elif isinstance(default, DeviceLimits):
        if kind == "a(st)" and isinstance(value, list):
            return _decode_limits(value)
    elif kind == "ay" and isinstance(value, bytes) and len(value) <= _MAX_MASK:
        return frozenset(8 * at + bit for at, byte in enumerate(value) for bit in range(8) if byte >> bit & 1)
    raise ValueError(f"{name} cannot be of type {kind!r}")


def _decode_limits(pairs: Sequence[tuple[str, int]]) -> DeviceLimits:
    limits: dict[str, int] = {}
    for path, limit in pairs:
        device = disk_number(path)
        limits[device] = min(limit, limits.get(device, INFINITY))
    return DeviceLimits.from_limits(limits)


def decode_values(properties: Mapping[str, Any]) -> Values:
    """The values of the properties that the agent may set.

    An older systemd lacks some properties. They count as not set, and cannot be set.

    :raises ValueError: a value does not fit its property.
    """
    return {name: decode_value(name, properties[name]) for name in DEFAULTS if name in properties}


def encode_value(name: str, value: Value) -> list[tuple[str, tuple[str, Any]]]:
    """The pairs of property and variant by which systemd sets a value, in their order."""
    if isinstance(value, int):
        return [(name, ("t", value))]
    if isinstance(value, DeviceLimits):
        # systemd adds devices to those that it has, unless the list is empty.
        pairs = [(disk_path(device), limit) for device, limit in value.pairs]
        return [(name, ("a(st)", [])), *([(name, ("a(st)", pairs))] if pairs else [])]
    mask = bytearray(max(value, default=-1) // 8 + 1)
    for number in value:
        mask[number // 8] |= 1 << number % 8
    return [(name, ("ay", bytes(mask)))]
