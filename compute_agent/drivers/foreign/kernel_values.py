"""The files of a control group: parses the values in the texts of files, and makes texts from values.

These are pure functions of texts (Documentation/admin-guide/cgroup-v2.rst). systemd answers a call before it
writes to the files, and another program can write to the files, too. So the agent compares the files
themselves with the wanted values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from compute_agent.drivers.base import UNLIMITED
from compute_agent.drivers.cgroup import PERIOD
from compute_agent.drivers.foreign.values import (
    BURST,
    CPUS,
    DEFAULTS,
    FILE_NAMES,
    IDLE,
    INFINITY,
    IO_WEIGHT,
    LATENCY,
    MEMORY_HIGH,
    MEMORY_LOW,
    MEMORY_MAX,
    MEMORY_MIN,
    NODES,
    OOM_GROUP,
    QUOTA,
    RATES,
    WEIGHT,
    DeviceLimits,
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
    **dict.fromkeys(RATES, "io.max"),
    LATENCY: "io.latency",
    **{name: name for name in FILE_NAMES},
}
"""The file of each value."""

_RATE_KEYS: Final[Mapping[str, str]] = dict(zip(RATES, ("rbps", "wbps", "riops", "wiops"), strict=True))
"""The key of each rate in ``io.max``."""
_DEVICE_KEYS: Final[Mapping[str, str]] = {**_RATE_KEYS, LATENCY: "target"}
"""The key of each limit of devices in its file."""
_KERNEL_PARTS: Final = frozenset({IO_WEIGHT, LATENCY})
"""Values that a kernel can lack, although its groups have the controller."""

IDLE_FILE: Final = "cpu.idle"

Texts = Mapping[str, str | None]
"""The contents of the files of a group by their names; None means that the file does not exist."""

_NO_QUOTA: Final = f"max {PERIOD}"
_MIN_QUOTA: Final = 1000
"""The smallest quota in microseconds that the kernel accepts."""

_SECOND: Final = 1_000_000

# The kernel stores a quota in whole microseconds for each period, and a group can have another period than
# PERIOD. So two equal quotas can differ by a rounding error.
_QUOTA_TOLERANCE: Final = 0.01


def differing_files(values: Values, texts: Texts, whole: Values) -> list[str]:
    """The names of those ``values`` that differ from the values in the kernel's files.

    :param texts: the contents of the files by their names; None means that the file does not exist.
    :param whole: all CPUs and all NUMA nodes, by name. An empty set means all of them.
    """
    return [name for name, value in values.items() if not _value_agrees(name, value, texts, whole)]


def _value_agrees(name: str, value: Value, texts: Texts, whole: Values) -> bool:
    text = texts[FILES[name]]
    if text is None:
        # systemd does not enable the controller for a group without a value. io.weight exists only with
        # io.cost, and io.latency only with CONFIG_BLK_CGROUP_IOLATENCY.
        return value == DEFAULTS[name] or name in _KERNEL_PARTS
    try:
        if isinstance(value, frozenset):
            found = cpuset.parse(text)
            if value or not found:
                return found == value
            # The kernel refuses an empty set for a group with processes. So such a group has all CPUs or
            # nodes instead.
            everything = whole[name]
            assert isinstance(everything, frozenset)
            return found >= everything
        if isinstance(value, DeviceLimits):
            return value == _parse_limits(name, text)
        if name == BURST:
            return _burst_agrees(value, text, texts[FILES[QUOTA]])
        if name == WEIGHT:
            return _weight_agrees(value, text, texts[IDLE_FILE])
        if name == QUOTA:
            return _quota_agrees(value, text)
        if name == IO_WEIGHT:
            return _parse_weight(text) == _kernel_weight(value)
        return (INFINITY if text == "max" else int(text)) == (INFINITY if value >= UNLIMITED else value)
    except (ValueError, LookupError):
        return False


def _parse_weight(text: str) -> int:
    """The weight in ``cpu.weight``, or the default weight in ``io.weight``."""
    return int(text.split("default", 1)[-1].split()[0])


def _parse_limits(name: str, text: str) -> DeviceLimits:
    """The limits of one kind in ``io.max`` or ``io.latency``, which have a line for each limited device."""
    limits = {}
    for line in text.splitlines():
        device, *pairs = line.split()
        limit = dict(pair.split("=", 1) for pair in pairs)[_DEVICE_KEYS[name]]
        limits[device] = INFINITY if limit == "max" else int(limit)
    return DeviceLimits.from_limits(limits)


def _kernel_weight(value: int) -> int:
    return DEFAULT_WEIGHT if value == INFINITY else value


def _weight_agrees(value: int, text: str, idle: str | None) -> bool:
    if value == IDLE:
        # On a kernel without cpu.idle, the group has the lowest weight instead.
        return idle == "1" or (idle is None and text == "1")
    return idle in (None, "0") and int(text) == _kernel_weight(value)


def _quota_agrees(value: int, text: str) -> bool:
    quota, period = text.split()
    if quota == "max" or value == INFINITY:
        return quota == "max" and value == INFINITY
    return math.isclose(int(quota) / int(period), value / _SECOND, rel_tol=_QUOTA_TOLERANCE)


def _burst_agrees(value: int, text: str, quota: str | None) -> bool:
    return math.isclose(int(text), value * _period_of(quota) / _SECOND, rel_tol=_QUOTA_TOLERANCE)


def _period_of(quota: str | None) -> int:
    """The period in microseconds in the content of ``cpu.max``."""
    return int((quota or _NO_QUOTA).split()[1])


def files_of(names: Iterable[str]) -> frozenset[str]:
    """The files that contain the values with these names."""
    found = {FILES[name] for name in names}
    # The weight is in two files, and the burst belongs to the period of the quota.
    if FILES[WEIGHT] in found:
        found.add(IDLE_FILE)
    if FILES[BURST] in found:
        found.add(FILES[QUOTA])
    return frozenset(found)


def read_values(texts: Texts) -> Values:
    """The values of a group. A value is left out if its file does not exist or is not in ``texts``.

    :param texts: the contents of files of :data:`FILES`, and of :data:`IDLE_FILE`, by their names.
    :raises ValueError: a file has other content than the kernel documents.
    """
    found: dict[str, Value] = {}
    for name, file in FILES.items():
        text = texts.get(file)
        if text is not None:
            try:
                found[name] = _read_value(name, text)
            except LookupError as error:
                raise ValueError(f"{file} has the content {text[:100]!r}") from error
    if texts.get(IDLE_FILE) == "1" and WEIGHT in found:
        found[WEIGHT] = IDLE
    if burst := found.get(BURST):
        assert isinstance(burst, int)
        found[BURST] = round(burst * _SECOND / _period_of(texts.get(FILES[QUOTA])))
    return found


def _read_value(name: str, text: str) -> Value:
    if isinstance(DEFAULTS[name], frozenset):
        return cpuset.parse(text)
    if name in _DEVICE_KEYS:
        return _parse_limits(name, text)
    if name in (BURST, OOM_GROUP):
        return int(text)
    if name == QUOTA:
        quota, period = text.split()[:2]
        return INFINITY if quota == "max" else round(int(quota) * _SECOND / int(period))
    if name in (WEIGHT, IO_WEIGHT):
        weight = _parse_weight(text)
        # A weight that equals the default counts as not set, because nothing distinguishes the two.
        return INFINITY if weight == DEFAULT_WEIGHT else weight
    return INFINITY if text == "max" else int(text)


def file_writes(writes: Values, texts: Texts, whole: Values) -> list[tuple[str, str]]:
    """The texts to write so that a group gets the values: pairs of file and text, in the order of writes.

    :param texts: the present contents of the files by their names.
    :param whole: all CPUs and all NUMA nodes, by name. They are written instead of an empty set, which the
        kernel refuses for a group with processes (ENOSPC).
    """
    found, rates = list[tuple[str, str]](), dict[str, DeviceLimits]()
    for name, value in writes.items():
        if isinstance(value, frozenset):
            everything = whole[name]
            assert isinstance(everything, frozenset)
            found.append((FILES[name], cpuset.format(value or everything)))
        elif isinstance(value, DeviceLimits):
            rates[name] = value
        elif name == WEIGHT:
            found += _weight_writes(value, texts[IDLE_FILE])
        elif name in (QUOTA, BURST):
            continue
        elif name == IO_WEIGHT:
            found.append((FILES[name], f"default {_kernel_weight(value)}"))
        else:
            found.append((FILES[name], "max" if value >= UNLIMITED else str(value)))
    latency = rates.pop(LATENCY, None)
    found += _time_writes(writes, texts) + _rate_writes(rates, texts)
    return found if latency is None else found + _latency_writes(latency, texts[FILES[LATENCY]] or "")


def _time_writes(writes: Values, texts: Texts) -> list[tuple[str, str]]:
    """The writes of quota and burst. The kernel refuses a burst above the quota, also for a moment."""
    found, present = list[tuple[str, str]](), texts[FILES[QUOTA]] or _NO_QUOTA
    quota, burst = writes.get(QUOTA), writes.get(BURST)
    if isinstance(quota, int):
        present = _quota_text(quota, present)
        found.append((FILES[QUOTA], present))
    if isinstance(burst, int):
        # The number is rounded down, because the rounded quota can be lower, too.
        text = str(burst * _period_of(present) // _SECOND)
        grows = int(text) > int(texts[FILES[BURST]] or 0)
        found.insert(len(found) if grows else 0, (FILES[BURST], text))
    return found


def _latency_writes(latency: DeviceLimits, text: str) -> list[tuple[str, str]]:
    """The lines for each device with another target than before. The number 0 removes a target."""
    before, after = _parse_limits(LATENCY, text).by_device, latency.by_device
    changed = (device for device in {*before, *after} if before.get(device) != after.get(device))
    return [(FILES[LATENCY], f"{device} target={after.get(device, 0)}") for device in sorted(changed)]


def _rate_writes(rates: Mapping[str, DeviceLimits], texts: Texts) -> list[tuple[str, str]]:
    """The lines for each device that has a limit of one of the ``rates``, or shall get such a limit."""
    before = {name: _parse_limits(name, texts[FILES[name]] or "") for name in RATES}
    after = {**before, **rates}
    changed = {pair[0] for name in rates for pair in (*before[name].pairs, *after[name].pairs)}
    limits = {key: after[name].by_device for name, key in _RATE_KEYS.items()}
    return [
        (
            FILES[RATES[0]],
            " ".join([device, *(f"{key}={limits[key].get(device, 'max')}" for key in limits)]),
        )
        for device in sorted(changed)
    ]


def _weight_writes(value: int, idle: str | None) -> list[tuple[str, str]]:
    if value == IDLE:
        return [(IDLE_FILE, "1")] if idle is not None else [(FILES[WEIGHT], "1")]
    # The kernel refuses a weight for an idle group (EINVAL).
    before = [(IDLE_FILE, "0")] if idle == "1" else []
    return [*before, (FILES[WEIGHT], str(_kernel_weight(value)))]


def _quota_text(value: int, present: str) -> str:
    # The quota is written for the present period of the guest's group.
    period = int(present.split()[1])
    if value == INFINITY:
        return f"max {period}"
    # If the period is short, a small quota may be below the kernel's minimum.
    if value * period < _MIN_QUOTA * _SECOND:
        period = PERIOD
    return f"{max(round(value * period / _SECOND), _MIN_QUOTA)} {period}"
