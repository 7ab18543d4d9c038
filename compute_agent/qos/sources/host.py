"""The host: /proc/stat, /proc/meminfo (proc(5)) and /proc/pressure (Documentation/accounting/psi.rst)."""

from __future__ import annotations

from dataclasses import dataclass

from compute_agent.qos.rounds import Round


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Clock ticks since boot of all CPUs together, and how many CPUs that are.

    ``stolen`` are those in which a hypervisor ran others; they are part of ``total``.
    """

    busy: int
    total: int
    cpus: int
    stolen: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes."""

    total: int
    used: int


def parse_stat(text: str) -> CpuTimes:
    """The CPU lines of /proc/stat. Time that a hypervisor took (steal) is nobody's use here."""
    cpus = 0
    first: list[int] = []
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name == "cpu":
            first = [int(number) for number in rest.split()]
        elif name.startswith("cpu"):
            cpus += 1
        elif first:
            break  # the rest is long on hosts with many interrupts
    # user nice system idle iowait irq softirq steal; guest times are in user and nice already. Old kernels
    # have fewer.
    user, nice, system, idle, iowait, irq, softirq, steal = (*first, *[0] * 8)[:8]
    if not first:
        raise ValueError("there is no line of all CPUs")
    busy = user + nice + system + irq + softirq
    return CpuTimes(busy, busy + idle + iowait + steal, max(cpus, 1), steal)


def parse_meminfo(text: str) -> Memory:
    """Used is what MemAvailable (or, before Linux 3.14, free memory and caches) leaves of the total."""
    sizes = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable", "MemFree", "Buffers", "Cached"):
            sizes[name] = int(rest.split()[0]) * 1024
    available = sizes.get("MemAvailable")
    if available is None:
        available = sizes["MemFree"] + sizes.get("Buffers", 0) + sizes.get("Cached", 0)
    return Memory(sizes["MemTotal"], max(0, sizes["MemTotal"] - available))


def parse_pressure(text: str) -> int:
    """Microseconds in which some task waited (``total`` of the line ``some``) of a PSI file."""
    for line in text.splitlines():
        kind, *fields = line.split()
        if kind == "some":
            return int(dict(pair.split("=", 1) for pair in fields)["total"])
    raise ValueError("there is no line 'some'")


def cpu(now: Round, before: Round | None) -> tuple[float | None, float | None]:
    """CPU use of everybody since the round before, and what there is, in cores."""
    path = f"{now.root}/proc/stat"
    last = now.parsed(path, parse_stat)
    first = before.parsed(path, parse_stat) if before else None
    if last is None:
        return None, None
    if first is None or last.total <= first.total or last.busy < first.busy:
        return None, float(last.cpus)
    # By ticks, not by the clock: a round that comes late measures no less.
    return (last.busy - first.busy) / (last.total - first.total) * last.cpus, float(last.cpus)


def stolen(now: Round, before: Round | None) -> float | None:
    """The part of the time since the round before that a hypervisor took, in percent; None if unknown."""
    path = f"{now.root}/proc/stat"
    last = now.parsed(path, parse_stat)
    first = before.parsed(path, parse_stat) if before else None
    if last is None or first is None or last.total <= first.total or last.stolen < first.stolen:
        return None
    return min(100.0, 100 * (last.stolen - first.stolen) / (last.total - first.total))


def memory(now: Round) -> Memory | None:
    """Memory use of everybody."""
    return now.parsed(f"{now.root}/proc/meminfo", parse_meminfo)


def pressure(path: str, now: Round, before: Round | None) -> float | None:
    """The part of the time since the round before in which some task waited, in percent; None if unknown.

    From the total, as the kernel's own averages go on telling of what is over.
    """
    last = now.parsed(path, parse_pressure)
    first = before.parsed(path, parse_pressure) if before else None
    if before is None or last is None or first is None or now.time <= before.time or last < first:
        return None
    return min(100.0, (last - first) / (now.time - before.time) / 1e4)
