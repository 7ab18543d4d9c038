"""What was used of the memory of a zone: as of CPUs, with NUMA nodes in place of CPUs and MiB of cores.

A guest needs its working set: what it holds but for the files that it has not looked at for a while
(``inactive_file``), which the kernel takes back before anything else. Where it may have memory of several
nodes it lies evenly on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from compute_agent.capacity.zone import GuestUse, part_of

MIB: Final = 1 << 20


def parse_inactive_file(text: str) -> int:
    """Bytes of files that a cgroup has not looked at for a while (memory.stat)."""
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "inactive_file":
            return int(number)
    raise ValueError("there is no inactive_file")


def parse_node_use(text: str) -> float:
    """MiB that a node or the machine cannot do without (its meminfo): not free, nor files of a while ago."""
    kib = {}
    for line in text.splitlines():
        name, _, amount = line.rpartition(":")
        kib[name.split()[-1] if name else ""] = amount.split()
    total, free, inactive = (int(kib[name][0]) for name in ("MemTotal", "MemFree", "Inactive(file)"))
    if min(total, free, inactive) < 0 or free + inactive > total:
        raise ValueError(f"of {total} KiB {free} are free, and {inactive} are files")
    return (total - free - inactive) / 1024


def memory_entitlements(guests: Iterable[GuestUse], nodes: frozenset[int]) -> dict[str, float]:
    """What each of the others may use of the memory of some nodes, in MiB."""
    return {
        guest.uuid: guest.entitlement * part_of(guest, nodes)
        for guest in guests
        if not guest.reclaimed and guest.cpus & nodes
    }
