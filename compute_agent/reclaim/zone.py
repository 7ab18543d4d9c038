"""The CPUs and memory of a zone that the host and its guests used between two reads. Pure functions.

Memory is handled with the same functions as CPUs. For memory, NUMA nodes take the place of CPUs, and MiB the
place of cores.

The use of a guest is its working set: its memory minus cached files that were not read lately
(``inactive_file`` of memory.stat, see the kernel's Documentation/admin-guide/cgroup-v2.rst). The kernel
reclaims these files first. Swapped memory counts, too: memory that is free because a guest was swapped out
must not be offered. The cgroup of a guest shows the nodes of its memory. Without a cgroup, the memory of a
guest counts in equal parts on all nodes that the guest may use.

*Cold* memory is memory that guests do not use. The agent finds it by small reclaims, with the rule of Senpai
(Weiner et al., "TMO: Transparent Memory Offloading in Datacenters", ASPLOS 2022). Every few seconds the
kernel reclaims a small part of a guest's memory. The longer the guest waits for memory, the smaller is this
part. If the guest's pressure (PSI) reaches a limit, the part is 0. If the guest uses memory that was moved to
swap, it soon reads this memory back. So only cold memory stays in swap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.reclaim.estimate import SYSTEM, ZoneReading


@dataclass(frozen=True, slots=True)
class GuestUse:
    """The use of CPUs (or memory) by a running guest.

    :ivar entitlement: the cores that the guest may use.
    :ivar cpus: the CPUs on which the guest may run.
    :ivar cores: the use between the two reads, in cores; None if not known, for example after the guest's
        start.
    :ivar reclaimed: whether the guest runs on reclaimed capacity, which other guests leave unused.
    :ivar parts: the part of the use on each CPU, 0 to 1; empty means equal parts on all CPUs.
    """

    uuid: str
    entitlement: float
    cpus: frozenset[int]
    cores: float | None = None
    reclaimed: bool = False
    parts: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostUse:
    """One read of the host and its guests, with their use since the last read.

    :ivar time: the time of the read in seconds since the epoch.
    :ivar busy: the part of the time in which each CPU was busy, 0 to 1.
    :ivar guests: the running guests.
    :ivar left: whether guests have ended since the previous read.
    :ivar reclaimed_left: whether guests on reclaimed capacity have ended since the previous read.
    :ivar stolen: the part of the time in which a hypervisor ran other machines, 0 to 1, by CPU.
    """

    time: float
    busy: Mapping[int, float]
    guests: tuple[GuestUse, ...]
    left: bool = False
    reclaimed_left: bool = False
    stolen: Mapping[int, float] = field(default_factory=dict)


def read_zone(use: HostUse, shared: frozenset[int]) -> ZoneReading | None:
    """The use of the ``shared`` CPUs of a zone by guests and the system; None if the use is not known.

    If ``parts`` of a guest are unknown, its use counts in equal parts on all CPUs on which it may run. All
    other busy time counts as use of the system.
    """
    # The use of guests on reclaimed CPUs is subtracted, so the total is not known without their use.
    if use.reclaimed_left or not shared <= use.busy.keys():
        return None
    total = sum(use.busy[cpu] for cpu in shared)
    others: dict[str, float] = {}
    # If guests have started or ended meanwhile, the rest of the use perhaps belongs to them, and not to the
    # system.
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
    # Host and guests are not read at the same instant, so the difference can be negative.
    total = max(0.0, total)
    if complete:
        others[SYSTEM] = max(0.0, total - sum(others.values()))
    return ZoneReading(use.time, total, others)


def used_part(guest: GuestUse, shared: frozenset[int]) -> float:
    """The part of a guest's use that is on the shared CPUs of a zone, 0 to 1."""
    return sum(guest.parts.get(one, 0.0) for one in shared) if guest.parts else cpu_share(guest, shared)


def cpu_share(guest: GuestUse, shared: frozenset[int]) -> float:
    """The part of a guest's CPUs that are shared CPUs of a zone, 0 to 1."""
    return len(guest.cpus & shared) / len(guest.cpus) if guest.cpus else 0.0


def guest_entitlements(guests: Iterable[GuestUse], shared: frozenset[int]) -> dict[str, float]:
    """Cores that a guest may use on shared CPUs, by uuid, without guests on reclaimed CPUs."""
    return {
        guest.uuid: min(guest.entitlement, float(len(guest.cpus & shared)))
        for guest in guests
        if not guest.reclaimed and guest.cpus & shared
    }


MIB: Final = 1 << 20


def parse_inactive_file(text: str) -> int:
    """The bytes of a cgroup's files that were not read lately, from the text of memory.stat.

    :raises ValueError: the text has no such line.
    """
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "inactive_file":
            return int(number)
    raise ValueError("memory.stat has no inactive_file")


def parse_parts(text: str) -> dict[int, float]:
    """Parts (0 to 1) of a working set by NUMA node, from memory.numa_stat; empty without memory."""
    held: dict[int, int] = {}
    for line in text.splitlines():
        name, *nodes = line.split()
        sign = {"anon": 1, "file": 1, "inactive_file": -1}.get(name, 0)
        for node, number in (one.split("=") for one in nodes if sign):
            held[int(node.removeprefix("N"))] = held.get(int(node.removeprefix("N")), 0) + sign * int(number)
    # The kernel reads its counters one after the other, so a difference of them can be negative.
    held = {node: max(0, amount) for node, amount in held.items()}
    total = sum(held.values())
    return {node: amount / total for node, amount in held.items()} if total else {}


def parse_swap_use(text: str) -> float:
    """The MiB of the host that are in swap and not in memory, from the text of /proc/meminfo."""
    # SwapCached is memory with a copy in swap, and already counts as memory.
    total, free, cached = _read_kib(text, "SwapTotal", "SwapFree", "SwapCached")
    return max(0, total - free - cached) / 1024


def parse_swap_room(text: str) -> float:
    """The free part of the swap, from 0 to 1, from the text of /proc/meminfo; 0 if the host has no swap."""
    total, free = _read_kib(text, "SwapTotal", "SwapFree")
    return free / total if total else 0.0


def parse_swapped(text: str) -> int:
    """The bytes of a process in swap, from VmSwap in the text of /proc/PID/status; 0 for kernel threads."""
    for line in text.splitlines():
        if line.startswith("VmSwap:"):
            return int(line.split()[1]) * 1024
    return 0


def parse_node_use(text: str) -> float:
    """The MiB that a NUMA node or the whole host needs: all memory except free memory and inactive files.

    :param text: the content of the meminfo file.
    :raises ValueError: the amounts contradict each other.
    """
    total, free, inactive = _read_kib(text, "MemTotal", "MemFree", "Inactive(file)")
    if min(total, free, inactive) < 0 or free + inactive > total:
        raise ValueError(f"{total} KiB are less than {free} KiB free and {inactive} KiB of inactive files")
    return (total - free - inactive) / 1024


def _read_kib(text: str, *names: str) -> list[int]:
    """The amounts with these names in a meminfo file, in KiB."""
    kib = {}
    for line in text.splitlines():
        name, _, amount = line.rpartition(":")
        # The file of a node has lines such as "Node 0 MemTotal: 16 kB", so the name is the last word before
        # the colon.
        kib[name.split()[-1] if name else ""] = amount.split()
    return [int(kib[name][0]) for name in names]


def memory_entitlements(guests: Iterable[GuestUse], nodes: frozenset[int]) -> dict[str, float]:
    """The memory that each guest may use on ``nodes``, in MiB by uuid, without guests on reclaimed capacity.

    The amount is at least the guest's present memory on the nodes, which can stay there after the guest was
    assigned to other nodes.
    """
    found = {
        guest.uuid: max(
            guest.entitlement * cpu_share(guest, nodes), (guest.cores or 0.0) * used_part(guest, nodes)
        )
        for guest in guests
        if not guest.reclaimed
    }
    return {uuid: mib for uuid, mib in found.items() if mib}


PROBE_SHARE: Final = 0.0005
"""The part of its memory that a probe (one small reclaim) takes from a guest without pressure, as in Senpai.
"""

MAX_PROBE: Final = 16 * 2**20
"""Maximum bytes of one probe."""

MIN_PROBE: Final = 64 * 2**10
"""Minimum bytes of one probe. A smaller probe would hardly free a page of each kind."""

CALM_SECONDS: Final = 600.0
"""Seconds without pressure after which the swapped memory of a guest counts as cold."""

MIN_SWAP_ROOM: Final = 0.25
"""The part of swap that probes leave free for watermarks, which need swap when memory is short."""


@dataclass(frozen=True, slots=True)
class ColdReading:
    """The memory of a guest in bytes.

    :ivar used: the guest's memory without swap; compressed memory (zswap) counts with its compressed size.
    :ivar swapped: the guest's memory in swap and zswap, with its size before compression.
    :ivar pressure: the percent of the time since the last reading in which the guest waited for memory; None
        if unknown.
    """

    used: int
    swapped: int
    pressure: float | None


def probe_size(reading: ColdReading, limit: float) -> int:
    """The bytes to reclaim from a guest now; 0 if its pressure is ``limit`` percent or more."""
    if reading.pressure is None:
        return 0
    wanted = int(reading.used * PROBE_SHARE * max(0.0, 1 - reading.pressure / limit))
    return min(MAX_PROBE, wanted) if wanted >= MIN_PROBE else 0


def track_calm(
    since: Mapping[str, float], readings: Mapping[str, ColdReading], limit: float, now: float
) -> dict[str, float]:
    """The time (seconds) since which each guest has not waited for memory. Waiting guests are left out.

    :param since: the result of the previous call.
    :param limit: the pressure, in percent, at which a guest counts as waiting.
    """
    return {
        uuid: since.get(uuid, now)
        for uuid, reading in readings.items()
        if reading.pressure is not None and reading.pressure < limit
    }


def cold_memory(
    since: Mapping[str, float], readings: Mapping[str, ColdReading], now: float
) -> dict[str, int]:
    """The bytes in swap, by uuid, of each guest that has not waited for memory for at least ``CALM_SECONDS``.

    :param since: the result of :func:`track_calm` for the same ``readings`` and ``now``.
    """
    return {
        uuid: readings[uuid].swapped
        for uuid, begin in since.items()
        if now - begin >= CALM_SECONDS and uuid in readings and readings[uuid].swapped
    }
