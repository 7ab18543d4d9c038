"""The properties of a unit, their types on the bus, and the names of systemd's files for properties.

The module consists of pure functions. :mod:`compute_agent.drivers.foreign.values` defines the names of
properties.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from compute_agent.drivers.foreign.values import DEFAULTS, QUOTA, RATES, DeviceLimits, Value, Values

UNIT_DEFAULTS: Final[Values] = {name: value for name, value in DEFAULTS.items() if name not in RATES}
"""The properties that the agent sets, with their defaults.

Rates of devices are left out: systemd identifies devices by path, and resolves the paths of disks in its own
way.
"""

DROP_INS: Final[Mapping[str, str]] = {QUOTA: "CPUQuota"}
"""The word in the name of systemd's file of a property, for properties with a word other than their own
name."""

# The maximum number of bytes of a mask with one bit for each CPU. Linux has at most 8192 CPUs
# (CONFIG_NR_CPUS).
_MAX_MASK: Final = 1024


def drop_in_name(name: str) -> str:
    """The name of the file that systemd writes for a property that is set at run time."""
    return f"50-{DROP_INS.get(name, name)}.conf"


def decode_value(name: str, variant: Any) -> Value:
    """Decode the value of a property as systemd sends it, which is a pair of type and value.

    :raises ValueError: ``variant`` is not a value of this property.
    """
    kind, value = variant if isinstance(variant, tuple) and len(variant) == 2 else ("", None)
    if isinstance(DEFAULTS[name], int):
        if kind == "t" and isinstance(value, int):
            return value
    elif kind == "ay" and isinstance(value, bytes) and len(value) <= _MAX_MASK:
        return frozenset(8 * at + bit for at, byte in enumerate(value) for bit in range(8) if byte >> bit & 1)
    raise ValueError(f"{name} cannot be of type {kind!r}")


def decode_values(properties: Mapping[str, Any]) -> Values:
    """Decode the values of those properties that the agent sets.

    An older systemd lacks some properties. The result has no entry for a missing property, and the agent
    cannot set this property.

    :raises ValueError: a value does not fit its property.
    """
    return {name: decode_value(name, properties[name]) for name in UNIT_DEFAULTS if name in properties}


def encode_value(name: str, value: Value) -> tuple[str, int | bytes]:
    """A value as the pair of type and value that systemd accepts."""
    assert not isinstance(value, DeviceLimits), "units have no rates"
    if isinstance(value, int):
        return "t", value
    mask = bytearray(max(value, default=-1) // 8 + 1)
    for number in value:
        mask[number // 8] |= 1 << number % 8
    return "ay", bytes(mask)
