"""Samplers: read files of a host once a round, and return frozen values for the triggers.

Watermarks get a snapshot with the metrics that they name, interference a sample with the signals of each
guest.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from compute_agent.classes.guest_classes import QosClasses
from compute_agent.drivers.base import GuestThreads
from compute_agent.host.cycles import CycleCounters, PerfEvents, ThreadCycles
from compute_agent.model.messages import DriverError
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.throttling.interference.signals import GuestReading, GuestSamples
from compute_agent.throttling.watermarks.metrics import MetricUsage, WatermarkMetric
from compute_agent.throttling.watermarks.sections import WatermarkRules
from compute_agent.usage.rounds import (
    CacheReader,
    MeasuredGuest,
    MeasuringRound,
    OversoldReader,
    SourceReader,
    guest_cpu_use,
    parse_moved_bytes,
    pressure_share,
)
from compute_agent.usage.snapshot import MetricSeries, UsageSnapshot
from compute_agent.usage.subjects import CacheAllotments, SubjectFactory

LOG = logging.getLogger(__name__)

MAX_SECONDS: Final = 60.0
"""The longest time between two readings: a mean over a longer time would hide what happened in between."""

MAX_THREADS: Final = 256
"""The most threads of a guest that the agent reads: those with the lowest ids, so that they are the same in
each round."""

Waits = Mapping[int, int]
"""Nanoseconds that threads have waited for a CPU, by thread id."""


def parse_schedstat(text: str) -> int:
    """Nanoseconds that a thread has waited for a CPU (Documentation/scheduler/sched-stats.rst)."""
    # Time on a CPU, time runnable and waiting, time slices: the second is the one.
    return int(text.split()[1])


def parse_io_stat(text: str) -> int:
    """Bytes read and written by a cgroup, of all devices (io.stat)."""
    return sum(parse_moved_bytes(text).values())


class _SampledThreads(NamedTuple):
    """The sampled threads of a guest, and the number of its threads for each sampled one."""

    ids: frozenset[int] = frozenset()
    each: float = 1.0


class GuestReader:
    """Reads the values that some signals need of all guests, once a round. For one thread."""

    def __init__(
        self,
        driver: GuestThreads,
        classes: Callable[[], QosClasses],
        root: str = "/",
        cache: CacheReader | None = None,
        allotments: CacheAllotments | None = None,
        cycles: CycleCounters | None = None,
    ) -> None:
        """``root`` is the folder with ``proc``; the paths of cgroups do not depend on it."""
        self.cycles = PerfEvents() if cycles is None else cycles
        self._driver = driver
        self._subjects = SubjectFactory(driver, allotments)
        self._classes = classes
        self._root = root
        self._cache = cache
        self._before: MeasuringRound | None = None
        self._waits: Mapping[str, Waits] = {}
        self._counted: Mapping[int, ThreadCycles] = {}

    def use_allotments(self, allotments: CacheAllotments | None) -> None:
        """Go by other allotments from the next read on."""
        self._subjects.cache_allotments = allotments

    def read_guests(
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
        now = MeasuringRound(
            time, self._root, self._subjects.build_subjects(views, self._classes()), self._cache
        )
        before = self._before
        # Always: every signal needs to know which guests work at all.
        cores = guest_cpu_use(now, before)
        # Threads cost a file each: they are read only for signals that need them.
        by_thread = not {"run_delay", "cpi"}.isdisjoint(signals)
        threads = {view.guest.uuid: self._sampled_threads(view) for view in views} if by_thread else {}
        waits = (
            {uuid: _waited_times(now, own.ids) for uuid, own in threads.items()}
            if "run_delay" in signals
            else {}
        )
        counting = (
            frozenset().union(*(own.ids for own in threads.values())) if "cpi" in signals else frozenset()
        )
        counted = self.cycles.read(counting)
        # None before, or long before: the values are kept, and make no sample.
        elapsed = 0.0 if before is None else time - before.time
        readings = {}
        for view, subject in zip(views, now.subjects, strict=True):
            uuid = view.guest.uuid
            own = threads.get(uuid, _SampledThreads())
            # By thread: a sum over all would fall when one of them ends.
            waited = _grown_waits(self._waits.get(uuid, {}), waits.get(uuid, {}))
            # A guest without an assignment runs wherever the kernel puts it.
            cpus = online if view.assignment is None else view.assignment.cpus & online
            readings[uuid] = GuestReading(
                subject.facts,
                cpus,
                bool(view.limits),
                cores.get(uuid),
                None if waited is None or elapsed <= 0 else waited * own.each / 1e9 / elapsed,
                _guest_pressure("cpu", subject, now, before) if "cpu_pressure" in signals else None,
                _guest_pressure("io", subject, now, before) if "io_pressure" in signals else None,
                _io_rate(subject, now, before) if "io_pressure" in signals else None,
                now.read_caches().guest_bandwidth.get(uuid, {}),
                now.read_caches().guest_occupancy.get(uuid, {}),
                _cycles_each(self._counted, counted, own.ids),
                cpus.union(*(cache for cache in caches if not cache.isdisjoint(cpus))),
            )
        now.close()
        self._before, self._waits, self._counted = now, waits, counted
        return GuestSamples(time, readings) if 0 < elapsed <= MAX_SECONDS else None

    def _sampled_threads(self, view: GuestView) -> _SampledThreads:
        try:
            found = self._driver.vcpu_threads(view.guest)
        except DriverError:  # it has ended, or libvirtd is away
            return _SampledThreads()
        # A database with thousands of threads would cost the agent more than all other guests.
        if len(found) <= MAX_THREADS:
            return _SampledThreads(found)
        return _SampledThreads(frozenset(heapq.nsmallest(MAX_THREADS, found)), len(found) / MAX_THREADS)


def _waited_times(now: MeasuringRound, threads: Iterable[int]) -> Waits:
    found = {tid: now.parse_file(f"{now.root}/proc/{tid}/schedstat", parse_schedstat) for tid in threads}
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


def _grown_waits(first: Waits, last: Waits) -> int | None:
    common = first.keys() & last.keys()
    return sum(max(0, last[tid] - first[tid]) for tid in common) if common else None


def _guest_pressure(
    resource: str, subject: MeasuredGuest, now: MeasuringRound, before: MeasuringRound | None
) -> float | None:
    # The host's pressure is not a guest's: without a cgroup nothing is known.
    if not subject.cgroup:
        return None
    return pressure_share(f"{subject.cgroup}/{resource}.pressure", now, before)


def _io_rate(subject: MeasuredGuest, now: MeasuringRound, before: MeasuringRound | None) -> float | None:
    """Bytes a second, of a guest with a cgroup."""
    if not subject.cgroup:
        return None
    path = f"{subject.cgroup}/io.stat"
    last = now.parse_file(path, parse_io_stat)
    first = before.parse_file(path, parse_io_stat) if before else None
    if before is None or last is None or first is None or now.time <= before.time:
        return None
    return max(0, last - first) / (now.time - before.time)


class MetricSampler:
    """Measures only the metrics that watermarks name. For one thread."""

    def __init__(
        self,
        root: str = "/",
        cache: CacheReader | None = None,
        read_source: SourceReader = lambda name: None,
        read_oversold: OversoldReader = lambda resource_class: None,
    ) -> None:
        """``root`` is the folder with ``proc``; the paths of cgroups do not depend on it."""
        self._root = root
        self._cache = cache
        self._read_source = read_source
        self._read_oversold = read_oversold
        self._before: MeasuringRound | None = None
        self._missing: frozenset[str] = frozenset()

    def take_snapshot(
        self, rules: WatermarkRules, subjects: Sequence[MeasuredGuest], time: float
    ) -> UsageSnapshot:
        """The host and its guests at ``time`` (monotonic seconds).

        Leaves out values that cannot be read; the log has a line when that begins. Rates are since the sample
        before, and so missing from the first one.
        """
        now = MeasuringRound(time, self._root, subjects, self._cache, self._read_source, self._read_oversold)
        host: dict[MetricSeries, float] = {}
        capacity: dict[MetricSeries, float] = {}
        usage: dict[str, dict[MetricSeries, float]] = {subject.facts.uuid: {} for subject in subjects}
        # Each metric once, though several watermarks may name it.
        for metric in needed_metrics(rules):
            measured = _measure_metric(metric, now, self._before)
            host |= {MetricSeries(metric.name, domain): used for domain, used in measured.host.items()}
            capacity |= {
                MetricSeries(metric.name, domain): amount for domain, amount in measured.capacity.items()
            }
            for guest, by_domain in measured.guests.items():
                # A measure of another package may name guests that are not there.
                if guest in usage:
                    usage[guest] |= {
                        MetricSeries(metric.name, domain): used for domain, used in by_domain.items()
                    }
        # In the first round every rate is missing.
        if self._before is not None:
            self._log_missing({one.metric for one in rules.watermarks} - {one.metric for one in host})
        # Its files are of this moment; only parsed values serve the next round.
        now.close()
        self._before = now
        guests = {
            subject.facts.uuid: replace(subject.facts, usage=usage[subject.facts.uuid])
            for subject in subjects
        }
        return UsageSnapshot(time, host, guests, capacity)

    def _log_missing(self, missing: Collection[str]) -> None:
        for metric in sorted(set(missing) - self._missing):
            LOG.warning("The host does not report %s: its watermarks wait until it does", metric)
        for metric in sorted(self._missing - set(missing)):
            LOG.info("The host reports %s again", metric)
        self._missing = frozenset(missing)


def needed_metrics(rules: WatermarkRules) -> list[WatermarkMetric]:
    """The metrics that watermarks name, also in expressions, and those that their levers limit."""
    names: dict[str, None] = {}
    for watermark in rules.watermarks:
        metric = rules.registry[watermark.metric]
        # The metrics of an expression, for operators: they show why it holds.
        names |= dict.fromkeys((metric.name, *metric.inputs))
        # The lever's own metric, too: what a limit leaves is computed from its use.
        names |= {metric.lever.metric: None} if metric.lever else {}
    return [rules.registry[name] for name in names if name in rules.registry]


def _measure_metric(
    metric: WatermarkMetric, now: MeasuringRound, before: MeasuringRound | None
) -> MetricUsage:
    try:
        return metric.measure(now, before)
    except Exception:  # code of another package: one metric must not cost the rest
        LOG.exception("%s cannot be measured", metric.name)
        return MetricUsage()
