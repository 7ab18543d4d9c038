"""The host: /proc/stat, /proc/meminfo (proc(5)) and /proc/pressure (Documentation/accounting/psi.rst)."""

from __future__ import annotations

from dataclasses import dataclass

from compute_agent.host.proc_stat import CpuTimes, parse_line
from compute_agent.qos.rounds import MeasuringRound


@dataclass(frozen=True, slots=True)
class AllCpus:
    """The times of all CPUs together since boot, and how many CPUs that are."""

    times: CpuTimes
    cpus: int


@dataclass(frozen=True, slots=True)
class HostMemory:
    """In bytes."""

    total: int
    used: int


def parse_stat(text: str) -> AllCpus:
    """The CPU lines of /proc/stat. Time that a hypervisor took (steal) is nobody's use here."""
    cpus, together = 0, ""
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name == "cpu":
            together = rest
        elif name.startswith("cpu"):
            cpus += 1
        elif together:
            break  # the rest is long on hosts with many interrupts
    if not together:
        raise ValueError("there is no line of all CPUs")
    return AllCpus(parse_line(together), max(cpus, 1))


def parse_meminfo(text: str) -> HostMemory:
    """Used is what MemAvailable (or, before Linux 3.14, free memory and caches) leaves of the total."""
    sizes = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable", "MemFree", "Buffers", "Cached"):
            sizes[name] = int(rest.split()[0]) * 1024
    available = sizes.get("MemAvailable")
    if available is None:
        available = sizes["MemFree"] + sizes.get("Buffers", 0) + sizes.get("Cached", 0)
    return HostMemory(sizes["MemTotal"], max(0, sizes["MemTotal"] - available))


def parse_pressure(text: str) -> int:
    """Microseconds in which some task waited (``total`` of the line ``some``) of a PSI file."""
    for line in text.splitlines():
        kind, *fields = line.split()
        if kind == "some":
            return int(dict(pair.split("=", 1) for pair in fields)["total"])
    raise ValueError("there is no line 'some'")


def cpu(now: MeasuringRound, before: MeasuringRound | None) -> tuple[float | None, float | None]:
    """CPU use of everybody since the round before, and what there is, in cores."""
    last, first = _all_cpus(now, before)
    if last is None:
        return None, None
    if first is None or last.times.total <= first.times.total or last.times.busy < first.times.busy:
        return None, float(last.cpus)
    # By ticks, not by the clock: a round that comes late measures no less.
    busy, total = last.times.busy - first.times.busy, last.times.total - first.times.total
    return busy / total * last.cpus, float(last.cpus)


def stolen(now: MeasuringRound, before: MeasuringRound | None) -> float | None:
    """The part of the time since the round before that a hypervisor took, in percent; None if unknown."""
    last, first = _all_cpus(now, before)
    if last is None or first is None:
        return None
    if last.times.total <= first.times.total or last.times.stolen < first.times.stolen:
        return None
    return min(100.0, 100 * (last.times.stolen - first.times.stolen) / (last.times.total - first.times.total))


def _all_cpus(now: MeasuringRound, before: MeasuringRound | None) -> tuple[AllCpus | None, AllCpus | None]:
    path = f"{now.root}/proc/stat"
    return now.parsed(path, parse_stat), before.parsed(path, parse_stat) if before else None


def memory(now: MeasuringRound) -> HostMemory | None:
    """Memory use of everybody."""
    return now.parsed(f"{now.root}/proc/meminfo", parse_meminfo)


def pressure(path: str, now: MeasuringRound, before: MeasuringRound | None) -> float | None:
    """The part of the time since the round before in which some task waited, in percent; None if unknown.

    From the total, as the kernel's own averages go on telling of what is over.
    """
    last = now.parsed(path, parse_pressure)
    first = before.parsed(path, parse_pressure) if before else None
    if before is None or last is None or first is None or now.time <= before.time or last < first:
        return None
    return min(100.0, (last - first) / (now.time - before.time) / 1e4)
