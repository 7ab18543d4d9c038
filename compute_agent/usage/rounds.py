"""Rounds, which read each file at most once, and functions that measure CPU, memory and pressure in them.

Files of the host are /proc/stat, /proc/meminfo (proc(5)) and /proc/pressure
(Documentation/accounting/psi.rst). The files of a guest are in its cgroup v2 folder
(Documentation/admin-guide/cgroup-v2.rst). For a guest without a cgroup, the files are in /proc/PID of the
guest's processes.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from compute_agent.host.kernel_files import read_optional
from compute_agent.host.proc_stat import CpuTimes, parse_line, parse_process_stat
from compute_agent.monitoring.readings import CacheReading, MonitoredCaches
from compute_agent.usage.snapshot import GuestUsage

LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MeasuredGuest:
    """A guest and the sources of its counters: the path of its cgroup v2 folder, or else its processes.

    ``facts`` are the guest's class, its rank, and the amounts that it may use without a limit. The usage in
    ``facts`` is empty.
    """

    facts: GuestUsage
    cgroup: str = ""
    pids: tuple[int, ...] = ()


SourceReader = Callable[[str], float | None]
"""Returns the last value of a metric that comes from outside the kernel, by the name of the metric. The
result is None if the metric has no value now.
"""


@dataclass(frozen=True, slots=True)
class OversoldCapacity:
    """Reclaimed capacity that guests hold beyond the present offer, in cores or bytes.

    ``total`` is the amount beyond the offer. ``guests`` has the reclaimed amount of each guest, by uuid.
    """

    total: float
    guests: Mapping[str, float]


OversoldReader = Callable[[str], OversoldCapacity | None]
"""Returns the reclaimed amount that guests hold beyond the present offer, by the resource class. The result
is None if the class is not offered or not measured.
"""


class MeasuringRound:
    """One round of measurement at ``time`` (monotonic seconds): reads a file when a measure asks for it.

    The round keeps parsed values, because the next round computes differences from them. After close() the
    round reads no more files, because their content would be of a later time. Measures of other packages use
    this class, too.
    """

    def __init__(
        self,
        time: float,
        root: str,
        subjects: Sequence[MeasuredGuest],
        cache: MonitoredCaches | None = None,
        read_source: SourceReader = lambda name: None,
        read_oversold: OversoldReader = lambda resource_class: None,
    ) -> None:
        """Measure at ``time`` (monotonic seconds).

        :param root: the folder that contains ``proc``, usually ``/``.
        :param cache: reads the counters of caches; None means that caches are not measured.
        :param read_source: returns the last value of a metric that comes from outside the kernel, by its
            name.
        :param read_oversold: returns the reclaimed amount that guests hold beyond the present offer, by
            resource class.
        """
        self.time = time
        self.root = root.rstrip("/")
        self.subjects = subjects
        self._reader = cache
        self.read_source = read_source
        self.read_oversold = read_oversold
        self._cache: CacheReading | None = None
        self._parsed: dict[tuple[str, Callable[[str], Any]], Any] = {}
        self._texts: dict[str, str | None] = {}
        self._closed = False
        self._cpu_counters: tuple[Sequence[MeasuredGuest], Mapping[str, Mapping[Hashable, float]]] | None
        self._cpu_counters = None

    def cpu_counters(self) -> Mapping[str, Mapping[Hashable, float]]:
        """The CPU times of all guests by uuid and source, read once for the present subjects."""
        known = self._cpu_counters
        if known is None or known[0] is not self.subjects:
            found = {subject.facts.uuid: _cpu_seconds(self, subject) for subject in self.subjects}
            known = self._cpu_counters = self.subjects, found
        return known[1]

    def parse_file(self, path: str, parse: Callable[[str], T], is_short: bool = False) -> T | None:
        """The result of ``parse`` for the text of a file, which is read and parsed once in a round.

        The result is None if the file is missing, or if ``parse`` raises ValueError or LookupError. A file
        can vanish at any time, and old kernels do not have all files. After close(), the result is None for a
        file that was not parsed before.

        :param is_short: whether one read(2) returns the whole file, which is true for most files of a cgroup.
            True saves a system call for each guest and file.
        """
        key = (path, parse)  # several measures parse one file in different ways
        found: T | None = self._parsed.get(key)
        if found is None and not self._closed and key not in self._parsed:
            found = self._parsed[key] = self._read_parsed(path, parse, is_short)
        return found

    def read_caches(self) -> CacheReading:
        """The latest counters of resctrl, read once in a round; empty if resctrl is off."""
        if self._cache is None:
            self._cache = CacheReading() if self._reader is None or self._closed else self._reader.read()
        return self._cache

    def close(self) -> None:
        """Read no more files and forget their contents; the parsed results stay for the next round."""
        self._closed = True
        self._texts.clear()

    def _read_parsed(self, path: str, parse: Callable[[str], T], is_short: bool) -> T | None:
        if path not in self._texts:
            self._texts[path] = read_optional(path, is_short)
        text = self._texts[path]
        if text is None:
            return None
        try:
            return parse(text)
        except (ValueError, LookupError) as error:
            LOG.debug("The file %s cannot be parsed, so its value is missing in this round: %s", path, error)
            return None


@dataclass(frozen=True, slots=True)
class AllCpus:
    """The times of all online CPUs together since boot, and the number of these CPUs."""

    times: CpuTimes
    cpus: int


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Total and used memory of the host, in bytes."""

    total: int
    used: int


def parse_host_stat(text: str) -> AllCpus:
    """Parse the CPU lines of /proc/stat.

    Time that a hypervisor has taken (steal) does not count as use of this host.

    :raises ValueError: the text has no line of all CPUs.
    """
    cpus, together = 0, ""
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name == "cpu":
            together = rest
        elif name.startswith("cpu"):
            cpus += 1
        elif together:
            break  # the CPU lines come first, and the line of interrupts is long on large hosts
    # A container can have a /proc with other content.
    if not together:
        raise ValueError("there is no line of all CPUs")
    return AllCpus(parse_line(together), max(cpus, 1))


def parse_meminfo(text: str) -> HostMemory:
    """Parse /proc/meminfo. Used memory is the total less MemAvailable.

    Linux before 3.14 has no MemAvailable. On such a kernel, used memory is the total less free memory and
    caches.
    """
    sizes = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        if name in ("MemTotal", "MemAvailable", "MemFree", "Buffers", "Cached"):
            sizes[name] = int(rest.split()[0]) * 1024
    available = sizes.get("MemAvailable")
    if available is None:
        # Slab does not count as available, because only a part of it can be reclaimed.
        available = sizes["MemFree"] + sizes.get("Buffers", 0) + sizes.get("Cached", 0)
    return HostMemory(sizes["MemTotal"], max(0, sizes["MemTotal"] - available))


def parse_pressure(text: str) -> int:
    """The microseconds since boot in which some task waited: ``total`` in the ``some`` line of a PSI file.

    :raises ValueError: the text has no such line.
    """
    fields = _some_fields(text)
    if fields is None:
        raise ValueError("there is no line 'some'")
    return int(fields["total"])


def parse_recent_pressure(text: str) -> float | None:
    """The percent of the last 10 seconds in which a task waited: ``some avg10`` of a PSI file.

    The result is None if the text has no such line.
    """
    fields = _some_fields(text)
    return None if fields is None else float(fields["avg10"])


def _some_fields(text: str) -> dict[str, str] | None:
    for line in text.splitlines():
        kind, *fields = line.split()
        if kind == "some":
            return dict(pair.split("=", 1) for pair in fields)
    return None


def host_cpu_use(now: MeasuringRound, before: MeasuringRound | None) -> tuple[float | None, float | None]:
    """CPU use of the host since the previous round, in cores, and its number of CPUs; None if unknown."""
    # Without /proc/stat the number of CPUs is unknown, too.
    last, first = _all_cpus(now, before)
    if last is None:
        return None, None
    if first is None or last.times.total <= first.times.total or last.times.busy < first.times.busy:
        return None, float(last.cpus)
    # The busy ticks are divided by the ticks of all CPUs and not by the clock, so that a late read does not
    # falsify the use.
    busy, total = last.times.busy - first.times.busy, last.times.total - first.times.total
    return busy / total * last.cpus, float(last.cpus)


def stolen_share(now: MeasuringRound, before: MeasuringRound | None) -> float | None:
    """The stolen CPU time (steal) of this host since the round ``before``, in percent; None if unknown."""
    last, first = _all_cpus(now, before)
    if last is None or first is None:
        return None
    # The counters of a virtual machine can fall when it is migrated.
    if last.times.total <= first.times.total or last.times.stolen < first.times.stolen:
        return None
    return min(100.0, 100 * (last.times.stolen - first.times.stolen) / (last.times.total - first.times.total))


def _all_cpus(now: MeasuringRound, before: MeasuringRound | None) -> tuple[AllCpus | None, AllCpus | None]:
    path = f"{now.root}/proc/stat"
    return now.parse_file(path, parse_host_stat), before.parse_file(path, parse_host_stat) if before else None


def host_memory_use(now: MeasuringRound) -> HostMemory | None:
    """Total and used memory of the host, in bytes; None if unknown."""
    return now.parse_file(f"{now.root}/proc/meminfo", parse_meminfo)


def parse_swapped_in(text: str) -> int:
    """Bytes that the host has read back from swap since boot, from /proc/vmstat (proc(5)).

    :raises KeyError: the kernel was built without swap.
    """
    pages = dict(line.split(" ", 1) for line in text.splitlines())
    # zswap keeps compressed pages in memory. Pages in zswap do not reach the swap device, so pswpin does not
    # count them.
    return (int(pages["pswpin"]) + int(pages.get("zswpin", 0))) * _PAGE


def counter_rate(
    path: str, parse: Callable[[str], int], now: MeasuringRound, before: MeasuringRound | None
) -> float | None:
    """The growth per second of a counter in a file since the round ``before``; None if unknown.

    The rate is negative if the counter began again, for example because a device was removed.
    """
    # The counter is read in the first round, too, because the next round computes the difference from it.
    last = now.parse_file(path, parse)
    first = before.parse_file(path, parse) if before else None
    if before is None or last is None or first is None or now.time <= before.time:
        return None
    return (last - first) / (now.time - before.time)


def swapped_in(now: MeasuringRound, before: MeasuringRound | None) -> float | None:
    """The bytes a second that the host has read back from swap since the last round; None if unknown."""
    rate = counter_rate(f"{now.root}/proc/vmstat", parse_swapped_in, now, before)
    return None if rate is None or rate < 0 else rate


def pressure_share(path: str, now: MeasuringRound, before: MeasuringRound | None) -> float | None:
    """The percent of the time since the last round in which at least one task waited; None if unknown.

    ``path`` is the path of a PSI file. The percentage is computed from ``total``, because the kernel's
    averages include pressure of earlier rounds.
    """
    rate = counter_rate(path, parse_pressure, now, before)
    return None if rate is None or rate < 0 else min(100.0, rate / 1e4)


# The unit of statm. A page has 4 KiB on x86, and up to 64 KiB on ARM and POWER.
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def parse_cpu_stat(text: str) -> float:
    """CPU time of a cgroup so far, in seconds, from its cpu.stat."""
    # The kernel writes this line first, and each round reads the file for each guest.
    _, found, rest = f"\n{text}".partition("\nusage_usec ")
    if not found:
        raise ValueError("there is no usage_usec")
    return int(rest.partition("\n")[0]) / 1e6


def parse_resident(text: str) -> int:
    """Resident memory of a process in bytes, from /proc/PID/statm."""
    return int(text.split()[1]) * _PAGE


def parse_page_cache(text: str) -> int:
    """Bytes of cached files of a cgroup, from its memory.stat; the kernel can reclaim them."""
    # ``file`` includes tmpfs (shmem), which has no disk to be written to and stays until it is deleted.
    # The file has some sixty lines, and each round reads it for each guest.
    lines = f"\n{text}"
    _, found, files = lines.partition("\nfile ")
    if not found:
        raise ValueError("there is no line file")
    shared = lines.partition("\nshmem ")[2]
    return int(files.partition("\n")[0]) - int(shared.partition("\n")[0] or 0)


_DIRECTIONS: Final = {"rbytes": "read", "wbytes": "write"}


def parse_moved_bytes(text: str) -> dict[str, int]:
    """Bytes that a cgroup has read and written on all devices, by direction (``read``, ``write``).

    :raises ValueError: a value is no number.
    """
    found = dict.fromkeys(_DIRECTIONS.values(), 0)
    for line in text.splitlines():
        for key, _, number in (word.partition("=") for word in line.split()[1:]):
            if key in _DIRECTIONS:
                found[_DIRECTIONS[key]] += int(number)
    return found


def guest_cpu_seconds(now: MeasuringRound) -> dict[str, float]:
    """CPU time that guests have used so far, in seconds by uuid.

    For a guest without a cgroup, only the time of its present processes is known. A guest without a readable
    counter is left out.
    """
    return {guest: sum(counted.values()) for guest, counted in now.cpu_counters().items() if counted}


def guest_cpu_use(now: MeasuringRound, before: MeasuringRound | None) -> dict[str, float]:
    """CPU use of guests since the previous round, in cores by uuid; guests of unknown use are left out."""
    # The counters are read in the first round, too, because the next round computes the difference from them.
    last = now.cpu_counters()
    # A time that does not advance would lead to a division by zero or a negative use.
    if before is None or now.time <= before.time:
        return {}
    # The round before is closed, so this call returns the values that the closed round has kept.
    first = before.cpu_counters()
    grown = {guest: _grown_seconds(first.get(guest, {}), counted) for guest, counted in last.items()}
    elapsed = now.time - before.time
    return {guest: seconds / elapsed for guest, seconds in grown.items() if seconds is not None}


def guest_memory_use(now: MeasuringRound) -> dict[str, float]:
    """Memory of the host that guests hold, in bytes by uuid; guests with an unknown amount are left out.

    The page cache is not included for a guest with a cgroup.
    """
    found = {subject.facts.uuid: held_memory(now, subject) for subject in now.subjects}
    return {guest: float(held) for guest, held in found.items() if held is not None}


def _cpu_seconds(now: MeasuringRound, subject: MeasuredGuest) -> dict[Hashable, float]:
    """CPU time that a guest has used, in seconds, by the source of the counter.

    A source is the path of the guest's cgroup, or the pid and start time of a process.
    """
    # The cgroup is read first, because it also counts processes that have ended since.
    if subject.cgroup:
        seconds = now.parse_file(f"{subject.cgroup}/cpu.stat", parse_cpu_stat, is_short=True)
        if seconds is not None:
            return {subject.cgroup: seconds}
    counted: dict[Hashable, float] = {}
    for pid in subject.pids:
        process = now.parse_file(f"{now.root}/proc/{pid}/stat", parse_process_stat, is_short=True)
        if process is not None:
            counted[pid, process.start_time] = process.cpu_seconds
    return counted


def _grown_seconds(first: Mapping[Hashable, float], last: Mapping[Hashable, float]) -> float | None:
    # A process that began since the previous round has no earlier value. A counter that is lower than before
    # belongs to a new cgroup with the same path.
    grown = [max(0.0, seconds - first[key]) for key, seconds in last.items() if key in first]
    return sum(grown) if grown else None


def held_memory(now: MeasuringRound, subject: MeasuredGuest) -> int | None:
    """Memory of the host that a guest holds, in bytes; None if unknown.

    The page cache is not included for a guest with a cgroup.
    """
    if subject.cgroup:
        held = now.parse_file(f"{subject.cgroup}/memory.current", int, is_short=True)
        if held is not None:
            files = now.parse_file(f"{subject.cgroup}/memory.stat", parse_page_cache, is_short=True)
            return max(0, held - (files or 0))
    # Pages that several processes share are counted more than once. Exact values would need a read of all
    # mappings.
    resident = [now.parse_file(f"{now.root}/proc/{pid}/statm", parse_resident) for pid in subject.pids]
    known = [size for size in resident if size is not None]
    return sum(known) if known else None
