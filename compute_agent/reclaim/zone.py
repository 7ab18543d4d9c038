"""What was used in a zone between two reads of the host and its guests: a pure function.

What was used of the memory of a zone: as of CPUs, with NUMA nodes in place of CPUs and MiB of cores.

A guest needs its working set: what it holds but for the files that it has not looked at for a while
(``inactive_file``), which the kernel takes back before anything else; and what of it is in swap, as nobody
is to be offered what others were swapped out for. It lies where its cgroup says; where none does evenly on
the nodes that it may have memory of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.reclaim.estimate import SYSTEM, ZoneReading


@dataclass(frozen=True, slots=True)
class GuestUse:
    """A guest that runs. It may run on ``cpus``, and use so many cores as ``entitlement`` says.

    ``cores`` is what it used between the reads; None: that is not known, as it has just begun. ``parts`` are
    those of what it used by CPU; empty: it lies evenly. ``reclaimed``: it lives on what others leave.
    """

    uuid: str
    entitlement: float
    cpus: frozenset[int]
    cores: float | None = None
    reclaimed: bool = False
    parts: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostUse:
    """One read of host and guests, and what was used since the one before.

    ``busy`` are the parts of the time that CPUs were, ``stolen`` those in which a hypervisor ran others,
    ``guests`` those that run. ``left`` says whether guests have ended since, and ``reclaimed_left`` whether
    such were among them that live on what others leave.
    """

    time: float
    busy: Mapping[int, float]
    guests: tuple[GuestUse, ...]
    left: bool = False
    reclaimed_left: bool = False
    stolen: Mapping[int, float] = field(default_factory=dict)


def read_zone(use: HostUse, shared: frozenset[int]) -> ZoneReading | None:
    """What the others used of the ``shared`` CPUs of a zone; None where that cannot be told.

    What a guest uses lies evenly on the CPUs that it may run on, unless more is known. What is nobody's is
    the system's, unless guests came or went meanwhile: it may have been theirs. Nor can it be told what the
    others used if one of these lives on what they leave.
    """
    if use.reclaimed_left or not shared <= use.busy.keys():
        return None
    total = sum(use.busy[cpu] for cpu in shared)
    others: dict[str, float] = {}
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
    total = max(0.0, total)
    if complete:
        others[SYSTEM] = max(0.0, total - sum(others.values()))
    return ZoneReading(use.time, total, others)


def used_part(guest: GuestUse, shared: frozenset[int]) -> float:
    """The part of what a guest used that was of the shared CPUs of a zone."""
    return sum(guest.parts.get(one, 0.0) for one in shared) if guest.parts else part_of(guest, shared)


def part_of(guest: GuestUse, shared: frozenset[int]) -> float:
    """The part of its CPUs that a guest has among the shared ones of a zone."""
    return len(guest.cpus & shared) / len(guest.cpus) if guest.cpus else 0.0


def entitlements(guests: Iterable[GuestUse], shared: frozenset[int]) -> dict[str, float]:
    """What each of the others may use of the shared CPUs of a zone, in cores."""
    return {
        guest.uuid: min(guest.entitlement, float(len(guest.cpus & shared)))
        for guest in guests
        if not guest.reclaimed and guest.cpus & shared
    }


MIB: Final = 1 << 20


def parse_inactive_file(text: str) -> int:
    """Bytes of files that a cgroup has not looked at for a while (memory.stat)."""
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "inactive_file":
            return int(number)
    raise ValueError("there is no inactive_file")


def parse_parts(text: str) -> dict[int, float]:
    """The parts of a cgroup's working set by NUMA node (memory.numa_stat); empty: it has none."""
    held: dict[int, int] = {}
    for line in text.splitlines():
        name, *nodes = line.split()
        sign = {"anon": 1, "file": 1, "inactive_file": -1}.get(name, 0)
        for node, number in (one.split("=") for one in nodes if sign):
            held[int(node.removeprefix("N"))] = held.get(int(node.removeprefix("N")), 0) + sign * int(number)
    held = {node: max(0, amount) for node, amount in held.items()}
    total = sum(held.values())
    return {node: amount / total for node, amount in held.items()} if total else {}


def parse_swap_use(text: str) -> float:
    """MiB of the machine that are in swap alone (/proc/meminfo)."""
    total, free, cached = _kib(text, "SwapTotal", "SwapFree", "SwapCached")
    return max(0, total - free - cached) / 1024


def parse_swapped(text: str) -> int:
    """Bytes of a process that are in swap (VmSwap of /proc/PID/status); kernel threads have none."""
    for line in text.splitlines():
        if line.startswith("VmSwap:"):
            return int(line.split()[1]) * 1024
    return 0


def parse_node_use(text: str) -> float:
    """MiB that a node or the machine cannot do without (its meminfo): not free, nor files of a while ago."""
    total, free, inactive = _kib(text, "MemTotal", "MemFree", "Inactive(file)")
    if min(total, free, inactive) < 0 or free + inactive > total:
        raise ValueError(f"of {total} KiB {free} are free, and {inactive} are files")
    return (total - free - inactive) / 1024


def _kib(text: str, *names: str) -> list[int]:
    """Some amounts of a meminfo, that of the machine or of a node, whose lines begin with the node."""
    kib = {}
    for line in text.splitlines():
        name, _, amount = line.rpartition(":")
        kib[name.split()[-1] if name else ""] = amount.split()
    return [int(kib[name][0]) for name in names]


def memory_entitlements(guests: Iterable[GuestUse], nodes: frozenset[int]) -> dict[str, float]:
    """What each of the others may use of the memory of some nodes, in MiB.

    That is no less than what it has there, also where it was put elsewhere since.
    """
    found = {
        guest.uuid: max(
            guest.entitlement * part_of(guest, nodes), (guest.cores or 0.0) * used_part(guest, nodes)
        )
        for guest in guests
        if not guest.reclaimed
    }
    return {uuid: mib for uuid, mib in found.items() if mib}
