"""Signals and use of guests between two reads of their files."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from compute_agent.drivers.base import GuestThreads
from compute_agent.host.cycles import CycleCounters, PerfEvents, ThreadCycles
from compute_agent.interference.reading import GuestReading, GuestSamples
from compute_agent.loops.usage import CacheEntitlements, SubjectFactory
from compute_agent.model.messages import DriverError
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.qos.classes import QosClasses
from compute_agent.qos.rounds import CacheReader, MeasuredGuest, MeasuringRound
from compute_agent.qos.sources import guests, host

MAX_SECONDS: Final = 60.0
"""Between two reads; a longer time is no sample."""

MAX_THREADS: Final = 256
"""Of a guest with more threads so many are read, those with the lowest ids, and stand for all."""

Waits = Mapping[int, int]
"""Nanoseconds that threads have waited for a CPU, by thread id."""


def parse_schedstat(text: str) -> int:
    """Nanoseconds that a thread has waited for a CPU (Documentation/scheduler/sched-stats.rst)."""
    return int(text.split()[1])


def parse_io_stat(text: str) -> int:
    """Bytes read and written by a cgroup, of all devices (io.stat)."""
    return sum(
        int(number)
        for line in text.splitlines()
        for key, _, number in (word.partition("=") for word in line.split()[1:])
        if key in ("rbytes", "wbytes")
    )


class _SampledThreads(NamedTuple):
    """Threads of a guest that are read, and how many of its threads each stands for."""

    ids: frozenset[int] = frozenset()
    each: float = 1.0


class GuestReader:
    """Reads again and again, in one thread, what some signals need."""

    def __init__(
        self,
        driver: GuestThreads,
        classes: Callable[[], QosClasses],
        root: str = "/",
        cache: CacheReader | None = None,
        entitlements: CacheEntitlements | None = None,
        cycles: CycleCounters | None = None,
    ) -> None:
        """``root`` is the folder that /proc is below; the folders of cgroups are taken as they are."""
        self.cycles = PerfEvents() if cycles is None else cycles
        self._driver = driver
        self._subjects = SubjectFactory(driver, entitlements)
        self._classes = classes
        self._root = root
        self._cache = cache
        self._before: MeasuringRound | None = None
        self._waits: Mapping[str, Waits] = {}
        self._counted: Mapping[int, ThreadCycles] = {}

    def entitled_by(self, entitlements: CacheEntitlements | None) -> None:
        """Go by other entitlements from the next read on."""
        self._subjects.cache_entitlements = entitlements

    def read(
        self,
        views: Sequence[GuestView],
        online: frozenset[int],
        signals: Collection[str],
        time: float,
        caches: Collection[frozenset[int]] = (),
    ) -> GuestSamples | None:
        """All guests since the read before, at ``time`` (monotonic seconds).

        ``caches`` are the CPUs of each L3 cache. None the first time, and if the last time was long ago.
        """
        now = MeasuringRound(time, self._root, self._subjects.build(views, self._classes()), self._cache)
        before = self._before
        cores = guests.cpu(now, before)
        by_thread = not {"run_delay", "cpi"}.isdisjoint(signals)
        threads = {view.guest.uuid: self._threads(view) for view in views} if by_thread else {}
        waits = (
            {uuid: _waited(now, own.ids) for uuid, own in threads.items()} if "run_delay" in signals else {}
        )
        counting = (
            frozenset().union(*(own.ids for own in threads.values())) if "cpi" in signals else frozenset()
        )
        counted = self.cycles.read(counting)
        elapsed = 0.0 if before is None else time - before.time
        readings = {}
        for view, subject in zip(views, now.subjects, strict=True):
            uuid = view.guest.uuid
            own = threads.get(uuid, _SampledThreads())
            waited = _grown(self._waits.get(uuid, {}), waits.get(uuid, {}))
            cpus = online if view.assignment is None else view.assignment.cpus & online
            readings[uuid] = GuestReading(
                subject.facts,
                cpus,
                bool(view.limits),
                cores.get(uuid),
                None if waited is None or elapsed <= 0 else waited * own.each / 1e9 / elapsed,
                _pressure("cpu", subject, now, before) if "cpu_pressure" in signals else None,
                _pressure("io", subject, now, before) if "io_pressure" in signals else None,
                _io(subject, now, before) if "io_pressure" in signals else None,
                now.cache().guest_bandwidth.get(uuid, {}),
                now.cache().guest_occupancy.get(uuid, {}),
                _cycles_each(self._counted, counted, own.ids),
                cpus.union(*(cache for cache in caches if not cache.isdisjoint(cpus))),
            )
        now.close()
        self._before, self._waits, self._counted = now, waits, counted
        return GuestSamples(time, readings) if 0 < elapsed <= MAX_SECONDS else None

    def _threads(self, view: GuestView) -> _SampledThreads:
        try:
            found = self._driver.vcpu_threads(view.guest)
        except DriverError:  # it has ended, or nobody can say now
            return _SampledThreads()
        if len(found) <= MAX_THREADS:
            return _SampledThreads(found)
        return _SampledThreads(frozenset(heapq.nsmallest(MAX_THREADS, found)), len(found) / MAX_THREADS)


def _waited(now: MeasuringRound, threads: Iterable[int]) -> Waits:
    found = {tid: now.parsed(f"{now.root}/proc/{tid}/schedstat", parse_schedstat) for tid in threads}
    return {tid: waited for tid, waited in found.items() if waited is not None}


def _cycles_each(
    first: Mapping[int, ThreadCycles], last: Mapping[int, ThreadCycles], threads: Collection[int]
) -> float | None:
    """Cycles for each instruction of some threads; None if they were not counted, or did nothing."""
    common = [(first[tid], last[tid]) for tid in threads if tid in first and tid in last]
    # A counter that is less than it was is of another thread.
    grown = [(b.cycles - a.cycles, b.instructions - a.instructions) for a, b in common]
    done = [(cycles, instructions) for cycles, instructions in grown if cycles >= 0 and instructions > 0]
    return sum(one for one, _ in done) / sum(one for _, one in done) if done else None


def _grown(first: Waits, last: Waits) -> int | None:
    common = first.keys() & last.keys()
    return sum(max(0, last[tid] - first[tid]) for tid in common) if common else None


def _pressure(
    resource: str, subject: MeasuredGuest, now: MeasuringRound, before: MeasuringRound | None
) -> float | None:
    if not subject.cgroup:
        return None
    return host.pressure(f"{subject.cgroup}/{resource}.pressure", now, before)


def _io(subject: MeasuredGuest, now: MeasuringRound, before: MeasuringRound | None) -> float | None:
    """Bytes a second, of a guest with a cgroup."""
    if not subject.cgroup:
        return None
    path = f"{subject.cgroup}/io.stat"
    last = now.parsed(path, parse_io_stat)
    first = before.parsed(path, parse_io_stat) if before else None
    if before is None or last is None or first is None or now.time <= before.time:
        return None
    return max(0, last - first) / (now.time - before.time)
