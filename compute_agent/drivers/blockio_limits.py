"""Block I/O in the group of a guest: io.weight, io.bfq.weight, io.max and io.latency of cgroup v2.

What somebody else has set in a file that the agent never wrote stays; what the agent wrote is repaired, and
taken back when it is not wanted any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from compute_agent.drivers.cgroup import GuestCgroup
from compute_agent.model.resource import DEFAULT_WEIGHT, BlockIo, DeviceRates

MAX: Final = "io.max"
LATENCY: Final = "io.latency"
WEIGHTS: Final = {"io.weight": 10_000, "io.bfq.weight": 1000}
"""The files of io.cost and of the scheduler bfq, with the most that they take."""

_KEYS: Final = ("rbps", "wbps", "riops", "wiops")
_NO_LIMIT: Final = "max"


def writes(group: GuestCgroup, wanted: BlockIo | None, noted: Collection[str]) -> list[tuple[str, str]]:
    """What is to be written to become as ``wanted`` (None: as nobody says anything), file by file.

    ``noted`` are the files that the agent has written before. Others of which nothing is wanted are not read:
    whatever they say is somebody else's.
    """
    goal = wanted or BlockIo()
    todo = list(_weights(group, goal, noted))
    if goal.rates or MAX in noted:
        todo += _lines(group, MAX, dict.fromkeys(goal.devices, _max_text(goal.rates)), noted)
    if goal.latency_us is not None or LATENCY in noted:
        todo += _lines(group, LATENCY, dict.fromkeys(goal.devices, _latency_text(goal.latency_us)), noted)
    return todo


def missing(group: GuestCgroup | None, wanted: BlockIo) -> list[str]:
    """Why some of it cannot be had, a sentence each."""
    if group is None:
        return ["it is in no cgroup v2 group of its own ([cgroup] root), which limits take"]
    found = []
    has_weight = any(group.has(name) for name in WEIGHTS)
    if wanted.weight is not None and not has_weight:
        found.append("the kernel has no io.weight: it takes the controller io with io.cost or bfq")
    if wanted.rates and wanted.devices and not group.has(MAX):
        found.append("the kernel has no io.max here: it takes the controller io in [cgroup] root")
    if wanted.latency_us is not None and not group.has(LATENCY):
        found.append("the kernel has no io.latency: it takes CONFIG_BLK_CGROUP_IOLATENCY")
    if wanted.own_disks:
        found.append("a process has no disks of its own: name devices of the host in place of guest")
    return found


def _weights(group: GuestCgroup, goal: BlockIo, noted: Collection[str]) -> Iterator[tuple[str, str]]:
    for name, most in WEIGHTS.items():
        if goal.weight is None and name not in noted:
            continue
        text = group.io_text(name)
        if text is None:
            continue
        has = next((int(line.split()[-1]) for line in text.splitlines() if line.startswith("default")), None)
        wanted = min(DEFAULT_WEIGHT if goal.weight is None else goal.weight, most)
        if has != wanted and (name in noted or has in (None, DEFAULT_WEIGHT)):
            yield name, f"default {wanted}"


def _lines(
    group: GuestCgroup, name: str, wanted: dict[str, str], noted: Collection[str]
) -> Iterator[tuple[str, str]]:
    """The lines of a file with one for each device that has limits."""
    text = group.io_text(name)
    if text is None:
        return
    has = {device: rest for device, _, rest in (line.partition(" ") for line in text.splitlines()) if device}
    nothing = _max_text(DeviceRates()) if name == MAX else _latency_text(None)
    for device in sorted({*has, *wanted}):
        goal = wanted.get(device, nothing)
        if has.get(device, nothing).split() != goal.split() and (name in noted or device not in has):
            yield name, f"{device} {goal}"


def _max_text(rates: DeviceRates) -> str:
    return " ".join(
        f"{key}={_NO_LIMIT if amount is None else amount}"
        for key, amount in zip(_KEYS, rates.amounts, strict=True)
    )


def _latency_text(latency_us: int | None) -> str:
    return f"target={latency_us or 0}"
