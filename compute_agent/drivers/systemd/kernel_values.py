"""Compares the files of a service's control group with the properties that systemd should have written there.

systemd answers before it writes, and another program may write to the files. A pure function decides from the
texts of the files (Documentation/admin-guide/cgroup-v2.rst).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from compute_agent.drivers.base import UNLIMITED
from compute_agent.drivers.systemd.unit_properties import (
    CPUS,
    DEFAULTS,
    IDLE,
    INFINITY,
    IO_WEIGHT,
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MAX,
    MEMORY_MIN,
    NODES,
    QUOTA,
    WEIGHT,
    Value,
    Values,
)
from compute_agent.model import cpuset
from compute_agent.model.resource import DEFAULT_WEIGHT

FILES: Final[Mapping[str, str]] = {
    CPUS: "cpuset.cpus",
    NODES: "cpuset.mems",
    WEIGHT: "cpu.weight",
    QUOTA: "cpu.max",
    MEMORY_MAX: "memory.max",
    MEMORY_HIGH: "memory.high",
    MEMORY_LOW: "memory.low",
    MEMORY_MIN: "memory.min",
    IO_WEIGHT: "io.weight",
}
"""The file of each property."""

IDLE_FILE: Final = "cpu.idle"

_SECOND: Final = 1_000_000

# The kernel stores a quota in microseconds a period, and a service may have a period of its own.
_QUOTA_TOLERANCE: Final = 0.01


def differing_files(values: Values, texts: Mapping[str, str | None], whole: Values) -> list[str]:
    """The properties among ``values`` that the kernel does not have.

    :param texts: the contents of the files by their names; None: the file does not exist.
    :param whole: all CPUs and all NUMA nodes, by the name of the property.
    """
    return [name for name, value in values.items() if not _value_agrees(name, value, texts, whole)]


def _value_agrees(name: str, value: Value, texts: Mapping[str, str | None], whole: Values) -> bool:
    text = texts[FILES[name]]
    if text is None:
        # The controller is not enabled for a group without a value. io.weight exists only with io.cost.
        return value == DEFAULTS[name] or name == IO_WEIGHT
    try:
        if isinstance(value, frozenset):
            everything = whole[name]
            assert isinstance(everything, frozenset)
            found = cpuset.parse(text)
            # The kernel refuses an empty set for a group with processes, which then keeps all CPUs.
            return found == value if value else not found or found >= everything
        if name == WEIGHT:
            return _weight_agrees(value, text, texts[IDLE_FILE])
        if name == QUOTA:
            return _quota_agrees(value, text)
        if name == IO_WEIGHT:
            return int(text.split("default", 1)[-1].split()[0]) == (
                DEFAULT_WEIGHT if value == INFINITY else value
            )
        return (INFINITY if text == "max" else int(text)) == (INFINITY if value >= UNLIMITED else value)
    except (ValueError, LookupError):
        return False


def _weight_agrees(value: int, text: str, idle: str | None) -> bool:
    if value == IDLE:
        # A kernel without cpu.idle has the lowest weight instead.
        return idle == "1" or (idle is None and text == "1")
    return idle in (None, "0") and int(text) == (DEFAULT_WEIGHT if value == INFINITY else value)


def _quota_agrees(value: int, text: str) -> bool:
    quota, period = text.split()
    if quota == "max" or value == INFINITY:
        return quota == "max" and value == INFINITY
    return math.isclose(int(quota) / int(period), value / _SECOND, rel_tol=_QUOTA_TOLERANCE)
