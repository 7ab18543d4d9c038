"""The use of a zone between two reads of the host and its guests. Pure functions.

Memory is treated as CPUs are, with NUMA nodes in place of CPUs and MiB in place of cores.

A guest needs its working set, which is its memory without files that were not read lately
(``inactive_file`` of memory.stat, see the kernel's Documentation/admin-guide/cgroup-v2.rst). The kernel
reclaims these first. Swapped memory counts, too: memory that is free because a guest was swapped out must not
be offered. The cgroup of a guest shows the nodes of its memory. Without a cgroup, memory counts evenly on all
nodes that the guest may use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.reclaim.estimate import SYSTEM, ZoneReading


@dataclass(frozen=True, slots=True)
class GuestUse:
    """The use of a running guest.

    :ivar entitlement: the cores that the guest may use.
    :ivar cpus: the CPUs on which the guest may run.
    :ivar cores: the guest's use between the two readings, in cores; None if unknown, for example after the
        guest's start.
    :ivar reclaimed: whether the guest runs on capacity that others leave.
    :ivar parts: the part of the guest's use on each CPU; empty if the use is even.
    """

    uuid: str
    entitlement: float
    cpus: frozenset[int]
    cores: float | None = None
    reclaimed: bool = False
    parts: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostUse:
    """One read of host and guests, with the use since the read before.

    :ivar time: seconds since the epoch.
    :ivar busy: the part of the time in which each CPU was busy.
    :ivar guests: running guests.
    :ivar left: whether guests have ended since the read before.
    :ivar reclaimed_left: whether guests that run on reclaimed capacity were among them.
    :ivar stolen: the part of the time in which a hypervisor ran other machines, by CPU.
    """

    time: float
    busy: Mapping[int, float]
    guests: tuple[GuestUse, ...]
    left: bool = False
    reclaimed_left: bool = False
    stolen: Mapping[int, float] = field(default_factory=dict)


def read_zone(use: HostUse, shared: frozenset[int]) -> ZoneReading | None:
    """The others' use of the ``shared`` CPUs of a zone; None where it is unknown.

    The use of a guest counts evenly on all CPUs that it may run on, unless ``parts`` are known. The rest of
    the busy time belongs to the system.
    """
    # The use of a guest on reclaimed CPUs is subtracted, so without it there is no sum.
    if use.reclaimed_left or not shared <= use.busy.keys():
        return None
    total = sum(use.busy[cpu] for cpu in shared)
    others: dict[str, float] = {}
    # The rest may belong to a guest that has started or ended meanwhile, instead of the system.
    complete = not use.left
    for guest in use.guests:
        part = used_part(guest, shared)
        if not part:
            continue
        if guest.cores is None:
            if guest.reclaimed:
                return None
            complete = False
        elif guest.reclaimed:
            total -= guest.cores * part
        else:
            others[guest.uuid] = guest.cores * part
    total = max(0.0, total)  # host and guests are not read at the same instant
    if complete:
        others[SYSTEM] = max(0.0, total - sum(others.values()))
    return ZoneReading(use.time, total, others)


def used_part(guest: GuestUse, shared: frozenset[int]) -> float:
    """The part of a guest's use on the shared CPUs of a zone."""
    return sum(guest.parts.get(one, 0.0) for one in shared) if guest.parts else cpu_share(guest, shared)


def cpu_share(guest: GuestUse, shared: frozenset[int]) -> float:
    """The part of a guest's CPUs that are shared CPUs of a zone."""
    return len(guest.cpus & shared) / len(guest.cpus) if guest.cpus else 0.0


def guest_entitlements(guests: Iterable[GuestUse], shared: frozenset[int]) -> dict[str, float]:
    """The entitlement of each other guest on the shared CPUs of a zone, in cores, by uuid."""
    return {
        guest.uuid: min(guest.entitlement, float(len(guest.cpus & shared)))
        for guest in guests
        if not guest.reclaimed and guest.cpus & shared
    }


MIB: Final = 1 << 20


def parse_inactive_file(text: str) -> int:
    """Bytes of a cgroup's files that were not read for a while (memory.stat).

    :raises ValueError: the text has no such line.
    """
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "inactive_file":
            return int(number)
    raise ValueError("memory.stat has no inactive_file")


def parse_parts(text: str) -> dict[int, float]:
    """The parts of a cgroup's working set by NUMA node (memory.numa_stat); empty where it has no memory."""
    held: dict[int, int] = {}
    for line in text.splitlines():
        name, *nodes = line.split()
        sign = {"anon": 1, "file": 1, "inactive_file": -1}.get(name, 0)
        for node, number in (one.split("=") for one in nodes if sign):
            held[int(node.removeprefix("N"))] = held.get(int(node.removeprefix("N")), 0) + sign * int(number)
    # The kernel reads its counters one after the other, so a difference may be negative.
    held = {node: max(0, amount) for node, amount in held.items()}
    total = sum(held.values())
    return {node: amount / total for node, amount in held.items()} if total else {}


def parse_swap_use(text: str) -> float:
    """MiB of the machine that are only in swap (/proc/meminfo)."""
    # SwapCached is in swap and in memory, where it already counts.
    total, free, cached = _read_kib(text, "SwapTotal", "SwapFree", "SwapCached")
    return max(0, total - free - cached) / 1024


def parse_swapped(text: str) -> int:
    """Bytes of a process in swap (VmSwap of /proc/PID/status); 0 for kernel threads, which lack the line."""
    for line in text.splitlines():
        if line.startswith("VmSwap:"):
            return int(line.split()[1]) * 1024
    return 0


def parse_node_use(text: str) -> float:
    """MiB that a node or the machine needs: all but free memory and inactive files (meminfo).

    :raises ValueError: the amounts contradict each other.
    """
    total, free, inactive = _read_kib(text, "MemTotal", "MemFree", "Inactive(file)")
    if min(total, free, inactive) < 0 or free + inactive > total:
        raise ValueError(f"{total} KiB are fewer than {free} free ones and {inactive} of inactive files")
    return (total - free - inactive) / 1024


def _read_kib(text: str, *names: str) -> list[int]:
    """Amounts of a meminfo in KiB. Lines of a node's file begin with the node."""
    kib = {}
    for line in text.splitlines():
        name, _, amount = line.rpartition(":")
        # A node's file has "Node 0 MemTotal: 16 kB", so the name is the last word before the colon.
        kib[name.split()[-1] if name else ""] = amount.split()
    return [int(kib[name][0]) for name in names]


def memory_entitlements(guests: Iterable[GuestUse], nodes: frozenset[int]) -> dict[str, float]:
    """The entitlement of each other guest to the memory of some nodes, in MiB, by uuid.

    The entitlement is at least the guest's memory there, which may stay after the guest was assigned to other
    nodes.
    """
    found = {
        guest.uuid: max(
            guest.entitlement * cpu_share(guest, nodes), (guest.cores or 0.0) * used_part(guest, nodes)
        )
        for guest in guests
        if not guest.reclaimed
    }
    return {uuid: mib for uuid, mib in found.items() if mib}
