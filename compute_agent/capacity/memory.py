"""What was used of the memory of a zone: as of CPUs, with NUMA nodes in place of CPUs and MiB of cores.

A guest needs its working set: what it holds but for the files that it has not looked at for a while
(``inactive_file``), which the kernel takes back before anything else; and what of it is in swap, as nobody
is to be offered what others were swapped out for. It lies where its cgroup says; where none does evenly on
the nodes that it may have memory of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from compute_agent.capacity.zone import GuestUse, part_of, used_part

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
