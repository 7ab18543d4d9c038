"""Compares a process guest's cgroup with the guest's settings, and writes CPU, memory and block I/O values.

A value in a file that the agent never wrote belongs to another program, and stays unchanged. A value in a
file that the agent wrote is corrected if it changes, and removed when it is no longer wanted. A guest without
a group has none of these values.

This module decides what to write; :mod:`compute_agent.drivers.cgroup` reads and writes the files. The module
is separate from the process driver, so that its decisions can be tested without processes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from compute_agent.drivers import cgroup
from compute_agent.drivers.base import CpuLimits, QuotaError
from compute_agent.drivers.cgroup import GuestCgroup, limits_agree, without_missing
from compute_agent.model import cpuset
from compute_agent.model.guest import Guest
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import DEFAULT_WEIGHT, BlockIo, DeviceRates

MAX: Final = "io.max"
LATENCY: Final = "io.latency"
WEIGHTS: Final = {"io.weight": 10_000, "io.bfq.weight": 1000}
"""The files for the block I/O weight, with the highest weight that each file accepts. io.cost reads the first
file, and the scheduler bfq reads the second.
"""

_KEYS: Final = ("rbps", "wbps", "riops", "wiops")
_NO_LIMIT: Final = "max"


def pending_writes(
    group: GuestCgroup, wanted: BlockIo | None, noted: Collection[str]
) -> list[tuple[str, str]]:
    """The lines to write so that the group has the ``wanted`` block I/O settings, as pairs of file and line.

    :param wanted: the settings that the guest should have; None means the kernel's defaults.
    :param noted: the files that the agent has already written.
    """
    # Other files are not read, because any value in them belongs to another program.
    goal = wanted or BlockIo()
    todo = list(_weight_writes(group, goal, noted))
    if goal.rates or MAX in noted:
        todo += _device_writes(group, MAX, dict.fromkeys(goal.devices, _max_text(goal.rates)), noted)
    if goal.latency_us is not None or LATENCY in noted:
        todo += _device_writes(
            group, LATENCY, dict.fromkeys(goal.devices, _latency_text(goal.latency_us)), noted
        )
    return todo


def missing_parts(group: GuestCgroup | None, wanted: BlockIo) -> list[str]:
    """Messages about block I/O settings that this kernel lacks, or that need a cgroup."""
    if group is None:
        return ["it has no cgroup (version 2) of its own ([cgroup] root), which limits need"]
    found = []
    has_weight = any(group.has_file(name) for name in WEIGHTS)
    if wanted.weight is not None and not has_weight:
        found.append("the kernel has no io.weight: this needs the controller io with io.cost or bfq")
    if wanted.rates and wanted.devices and not group.has_file(MAX):
        found.append("there is no io.max here: this needs the controller io in [cgroup] root")
    if wanted.latency_us is not None and not group.has_file(LATENCY):
        found.append("the kernel has no io.latency: this needs CONFIG_BLK_CGROUP_IOLATENCY")
    if wanted.own_disks:
        found.append("a process has no disks of its own: name devices of the host instead of guest")
    return found


def _weight_writes(group: GuestCgroup, goal: BlockIo, noted: Collection[str]) -> Iterator[tuple[str, str]]:
    # Both files are written, because the I/O scheduler of each device decides which file takes effect.
    for name, most in WEIGHTS.items():
        if goal.weight is None and name not in noted:
            continue
        text = group.read_file(name)
        if text is None:
            continue
        has = next((int(line.split()[-1]) for line in text.splitlines() if line.startswith("default")), None)
        wanted = min(DEFAULT_WEIGHT if goal.weight is None else goal.weight, most)
        # A default weight is overwritten, because it does not come from another program.
        if has != wanted and (name in noted or has in (None, DEFAULT_WEIGHT)):
            yield name, f"default {wanted}"


def _device_writes(
    group: GuestCgroup, name: str, wanted: dict[str, str], noted: Collection[str]
) -> Iterator[tuple[str, str]]:
    """The lines to write to a file such as ``io.max``, which has one line for each device with limits."""
    text = group.read_file(name)
    if text is None:
        return
    has = {device: rest for device, _, rest in (line.partition(" ") for line in text.splitlines()) if device}
    nothing = _max_text(DeviceRates()) if name == MAX else _latency_text(None)
    # The kernel removes the line of a device without limits, so a missing line stands for "no limit".
    for device in sorted({*has, *wanted}):
        goal = wanted.get(device, nothing)
        if has.get(device, nothing).split() != goal.split() and (name in noted or device not in has):
            yield name, f"{device} {goal}"


def _max_text(rates: DeviceRates) -> str:
    return " ".join(
        f"{key}={_NO_LIMIT if amount is None else amount}"
        for key, amount in zip(_KEYS, rates.all_rates, strict=True)
    )


def _latency_text(latency_us: int | None) -> str:
    return f"target={latency_us or 0}"


def other_limits(guest: Guest, group: GuestCgroup | None, wanted: CpuLimits) -> CpuLimits | None:
    """The limits of the group if they differ from ``wanted``; None if they agree.

    :raises DriverError: ``wanted`` has a quota, and the guest cannot have one.
    """
    has = None if group is None else group.cpu_limits()
    if has is None and wanted.quota is not None:
        why = "it is in no cgroup v2 group of its own with the controller cpu ([cgroup] root)"
        raise QuotaError(guest, wanted.quota, why)
    if group is None or has is None:
        return None
    return None if limits_agree(has, without_missing(group, wanted)) else has


def missing_limits(group: GuestCgroup | None, wanted: CpuLimits) -> list[str]:
    """Messages about CPU limits that this kernel lacks, or that need a cgroup."""
    if group is not None and group.cpu_limits() is not None:
        return cgroup.missing_parts(group, wanted)
    if not wanted.idle and not wanted.burst:
        return []
    return ["it is in no cgroup v2 group of its own with the controller cpu ([cgroup] root)"]


def limit_cpu(guest: Guest, group: GuestCgroup | None, wanted: CpuLimits) -> bool:
    """Write CPU limits that differ from ``wanted``, and read them back; return whether a limit differed.

    :raises DriverError: the kernel refuses a limit.
    """
    has = other_limits(guest, group, wanted)
    if group is None or has is None:
        return False
    try:
        group.limit_cpu(has, without_missing(group, wanted))
    except OSError as error:
        raise DriverError(f"the CPU limits of guest {guest} cannot be set: {error}") from error
    if left := other_limits(guest, group, wanted):
        raise DriverError(f"the kernel did not apply {wanted} to guest {guest}, which has {left}")
    return True


def other_nodes(group: GuestCgroup | None, wanted: frozenset[int]) -> frozenset[int] | None:
    """The NUMA nodes of the group if they differ from ``wanted``; None if they agree or cannot be set.

    :param wanted: the NUMA nodes; empty means all nodes that the parent group allows.
    """
    has = None if group is None else group.memory_nodes()
    if group is None or has is None or has == wanted:
        return None
    # A binding is lifted by writing all possible nodes, so a group with all nodes counts as not bound.
    return None if not wanted and has >= group.possible_nodes() else has


def bind_memory(guest: Guest, group: GuestCgroup | None, wanted: frozenset[int]) -> bool:
    """Write the NUMA nodes if they differ from ``wanted``, and read them back; return whether they differed.

    :raises DriverError: the kernel refuses the nodes.
    """
    if group is None or other_nodes(group, wanted) is None:
        return False
    nodes = cpuset.format(wanted) or "any"
    try:
        group.bind_memory(wanted or group.possible_nodes())
    except OSError as error:
        raise DriverError(
            f"the memory of guest {guest} cannot be bound to NUMA nodes {nodes}: {error}"
        ) from error
    if other_nodes(group, wanted) is not None:
        raise DriverError(f"guest {guest}: the kernel did not bind its memory to NUMA nodes {nodes}")
    return True
