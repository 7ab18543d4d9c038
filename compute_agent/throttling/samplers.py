"""Samplers: read the kernel's files once a round, and return frozen values for the triggers."""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final, NamedTuple

from compute_agent.classes.guest_classes import QosClasses
from compute_agent.drivers.base import GuestThreads
from compute_agent.host.cycles import CycleCounters, PerfEvents, ThreadCycles
from compute_agent.model.messages import DriverError
from compute_agent.monitoring.readings import MonitoredCaches
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.throttling.interference.signals import GuestReading, GuestSamples
from compute_agent.throttling.watermarks.metrics import GuestSampling, MetricUsage, WatermarkMetric
from compute_agent.throttling.watermarks.sections import WatermarkRules, WatermarkSection
from compute_agent.usage.rounds import (
    MeasuredGuest,
    MeasuringRound,
    OversoldReader,
    SourceReader,
    counter_rate,
    guest_cpu_use,
    parse_moved_bytes,
    pressure_share,
)
from compute_agent.usage.snapshot import MetricSeries, UsageSnapshot
from compute_agent.usage.subjects import CacheAllotments, SubjectFactory

LOG = logging.getLogger(__name__)

MAX_SECONDS: Final = 60.0
"""Maximum number of seconds between the two readings of counters that make a sample. A mean over a longer
time would hide short disturbances."""

MAX_THREADS: Final = 256
"""Maximum number of threads for which the agent reads counters of a guest. The agent reads the threads with
the lowest ids, so that each round reads the same threads."""

Waits = Mapping[int, int]
"""Nanoseconds that each thread has waited for a CPU since it began, by thread id."""


def parse_schedstat(text: str) -> int:
    """The nanoseconds that a thread has waited for a CPU, from the text of its file ``schedstat``.

    The kernel's Documentation/scheduler/sched-stats.rst has the format.
    """
    # The file has three numbers: the time on a CPU, the time of waiting for a CPU, and the number of time
    # slices.
    return int(text.split()[1])


def parse_io_stat(text: str) -> int:
    """The bytes that a cgroup has read and written on all devices so far, from the text of ``io.stat``."""
    return sum(parse_moved_bytes(text).values())


class _SampledThreads(NamedTuple):
    """The threads of a guest that the agent reads counters of.

    If a guest has too many threads, only some are read. ``each`` is the number of all threads divided by the
    number of read threads.
    """

    ids: frozenset[int] = frozenset()
    each: float = 1.0


class GuestReader:
    """Reads, once a round, the values of all guests that signals of interference need.

    Only one thread may use this object.
    """

    def __init__(
        self,
        driver: GuestThreads,
        classes: Callable[[], QosClasses],
        root: str = "/",
        cache: MonitoredCaches | None = None,
        cycles: CycleCounters | None = None,
    ) -> None:
        """``root`` is the folder that contains ``proc``. Paths of cgroups are not below ``root``."""
        self.cycles = PerfEvents() if cycles is None else cycles
        self._driver = driver
        self._subjects = SubjectFactory(driver)
        self._classes = classes
        self._root = root
        self._cache = cache
        self._before: MeasuringRound | None = None
        self._waits: Mapping[str, Waits] = {}
        self._counted: Mapping[int, ThreadCycles] = {}

    def use_allotments(self, allotments: CacheAllotments | None) -> None:
        """From the next read on, get guests' allotments of cache and bandwidth from another function."""
        self._subjects.cache_allotments = allotments

    def read_guests(
        self,
        views: Sequence[GuestView],
        online: frozenset[int],
        signals: Collection[str],
        time: float,
        caches: Collection[frozenset[int]] = (),
    ) -> GuestSamples | None:
        """Read the counters of all guests, and return each guest's values since the previous read.

        The first call returns None. A call also returns None if the last call was more than a minute ago.

        :param online: the numbers of the host's CPUs that are online.
        :param signals: names of the signals for which values are needed.
        :param time: the present time in monotonic seconds.
        :param caches: the CPUs of each L3 cache, by the id of the cache.
        """
        now = MeasuringRound(
            time, self._root, self._subjects.build_subjects(views, self._classes()), self._cache
        )
        before = self._before
        # CPU use is read for every choice of signals, because most signals leave out idle guests.
        cores = guest_cpu_use(now, before)
        # Each thread has files of its own, so threads are read only for the two signals that need them.
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
        # If there is no earlier read, or if it is too old, the values only serve the next read.
        elapsed = 0.0 if before is None else time - before.time
        readings = {}
        for view, subject in zip(views, now.subjects, strict=True):
            uuid = view.guest.uuid
            own = threads.get(uuid, _SampledThreads())
            # The difference is computed for each thread, because the sum over all threads falls when a thread
            # ends.
            waited = _grown_waits(self._waits.get(uuid, {}), waits.get(uuid, {}))
            # A guest without an assignment can run on every CPU.
            cpus = online if view.assignment is None else view.assignment.cpus & online
            readings[uuid] = GuestReading(
                subject.facts,
                cpus,
                bool(view.limits),
                cores.get(uuid),
                None if waited is None or elapsed <= 0 else waited * own.each / 1e9 / elapsed,
                *_group_values(subject.cgroup, signals, now, before),
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
        except DriverError:  # the guest has ended, or libvirtd does not answer
            return _SampledThreads()
        # If the agent read thousands of threads of one guest, this guest would cost it more CPU time than all
        # others.
        if len(found) <= MAX_THREADS:
            return _SampledThreads(found)
        return _SampledThreads(frozenset(heapq.nsmallest(MAX_THREADS, found)), len(found) / MAX_THREADS)


def _waited_times(now: MeasuringRound, threads: Iterable[int]) -> Waits:
    found = {tid: now.parse_file(f"{now.root}/proc/{tid}/schedstat", parse_schedstat) for tid in threads}
    return {tid: waited for tid, waited in found.items() if waited is not None}


def _cycles_each(
    first: Mapping[int, ThreadCycles], last: Mapping[int, ThreadCycles], threads: Collection[int]
) -> float | None:
    """Mean number of CPU cycles per instruction of threads, between two readings of their counters.

    The result is None if no thread was counted in both readings, or if no such thread executed an
    instruction.
    """
    common = [(first[tid], last[tid]) for tid in threads if tid in first and tid in last]
    # A counter that has fallen belongs to a new thread with the id of a thread that has ended.
    grown = [(b.cycles - a.cycles, b.instructions - a.instructions) for a, b in common]
    done = [(cycles, instructions) for cycles, instructions in grown if cycles >= 0 and instructions > 0]
    return sum(one for one, _ in done) / sum(one for _, one in done) if done else None


def _grown_waits(first: Waits, last: Waits) -> int | None:
    common = first.keys() & last.keys()
    return sum(max(0, last[tid] - first[tid]) for tid in common) if common else None


def _group_values(
    group: str, signals: Collection[str], now: MeasuringRound, before: MeasuringRound | None
) -> tuple[float | None, float | None, float | None]:
    """The pressure of a guest on CPUs and I/O in percent, and the bytes a second of its I/O.

    The kernel counts them by cgroup, so a guest without a cgroup of its own has no values.
    """
    cpu = io = moved = None
    if group and "cpu_pressure" in signals:
        cpu = pressure_share(f"{group}/cpu.pressure", now, before)
    if group and "io_pressure" in signals:
        io = pressure_share(f"{group}/io.pressure", now, before)
        moved = counter_rate(f"{group}/io.stat", parse_io_stat, now, before)
    return cpu, io, None if moved is None else max(0.0, moved)


class MetricSampler:
    """Measures once a round the metrics of the host and its guests that watermarks need.

    Only one thread may use this object.
    """

    def __init__(
        self,
        root: str = "/",
        cache: MonitoredCaches | None = None,
        read_source: SourceReader = lambda name: None,
        read_oversold: OversoldReader = lambda resource_class: None,
    ) -> None:
        """Prepare measurements.

        :param root: the folder that contains ``proc``, usually ``/``. Paths of cgroups are not below it.
        :param cache: reads the counters of caches; None means that caches are not measured.
        :param read_source: returns the last value of a metric from outside the kernel, by its name.
        :param read_oversold: returns the oversold amount of a reclaimed resource class.
        """
        self._root = root
        self._cache = cache
        self._read_source = read_source
        self._read_oversold = read_oversold
        self._before: MeasuringRound | None = None
        self._present: MeasuringRound | None = None
        self._missing: frozenset[str] = frozenset()
        self._host = UsageSnapshot(-math.inf, {})
        self.guest_metrics: frozenset[str] = frozenset()
        """Names of the metrics that this round has measured for guests."""
        self.rated_metrics: frozenset[str] = frozenset()
        """Names of the metrics that the previous round measured for guests. This round can compute rates of
        guests only for these metrics.
        """

    def measure_host(self, rules: WatermarkRules, time: float) -> UsageSnapshot:
        """Measure the host without its guests at ``time`` (monotonic seconds).

        The snapshot has no metrics that are computed from guests. A later call of take_snapshot() with the
        same time adds the guests to the round.
        """
        metrics = [
            metric
            for metric in rules.needed_metrics(rules.watermarks)
            if metric.guest_sampling is not GuestSampling.ALWAYS
        ]
        self._host = self._measure_round(rules, metrics, self._begin_round(time))
        return self._host

    def take_snapshot(
        self,
        rules: WatermarkRules,
        subjects: Sequence[MeasuredGuest],
        time: float,
        near: Sequence[WatermarkSection] | None = None,
    ) -> UsageSnapshot:
        """Measure the host and its guests at ``time`` (monotonic seconds).

        Values that cannot be read are left out of the snapshot. A line is logged when a metric becomes
        unreadable, and when it is readable again. Rates are means since the last round, so the first round
        has no rates.

        :param near: the watermarks with metrics that are measured for guests; None means all watermarks. For
            all other watermarks, measure_host() must have measured the host in this round.
        """
        now = self._begin_round(time)
        now.subjects = subjects
        metrics = rules.needed_metrics(rules.watermarks if near is None else near)
        self.guest_metrics = frozenset(metric.name for metric in metrics)
        snapshot = self._measure_round(rules, metrics, now)
        if near is None:
            return snapshot
        host, capacity = (
            {series: amount for series, amount in known.items() if series.metric not in self.guest_metrics}
            for known in (self._host.host, self._host.capacity)
        )
        return replace(snapshot, host={**host, **snapshot.host}, capacity={**capacity, **snapshot.capacity})

    def _begin_round(self, time: float) -> MeasuringRound:
        """Return the round at ``time``.

        If measure_host() has begun the round without guests, continue that round.
        """
        if self._present is None or self._present.time != time or self.guest_metrics:
            # This round uses the parsed values of the round before. That round must read nothing more,
            # because its values would then be of two moments.
            if self._present is not None:
                self._present.close()
            self._before = self._present
            self.rated_metrics, self.guest_metrics = self.guest_metrics, frozenset()
            self._present = MeasuringRound(
                time, self._root, (), self._cache, self._read_source, self._read_oversold
            )
        return self._present

    def _measure_round(
        self, rules: WatermarkRules, metrics: Sequence[WatermarkMetric], now: MeasuringRound
    ) -> UsageSnapshot:
        host: dict[MetricSeries, float] = {}
        capacity: dict[MetricSeries, float] = {}
        usage: dict[str, dict[MetricSeries, float]] = {subject.facts.uuid: {} for subject in now.subjects}
        for metric in metrics:
            measured = _measure_metric(metric, now, self._before)
            host |= {MetricSeries(metric.name, domain): used for domain, used in measured.host.items()}
            capacity |= {
                MetricSeries(metric.name, domain): amount for domain, amount in measured.capacity.items()
            }
            # Guests of one host have the same few domains, so each series is made once.
            series: dict[str, MetricSeries] = {}
            for guest, by_domain in measured.guests.items():
                # Guests that are unknown here are left out, because code of another package can return any
                # guests.
                if (of_guest := usage.get(guest)) is not None:
                    for domain, used in by_domain.items():
                        if domain not in series:
                            series[domain] = MetricSeries(metric.name, domain)
                        of_guest[series[domain]] = used
        # Missing metrics are not logged in the first round, in which all rates are missing.
        if self._before is not None:
            watched = {one.metric for one in rules.watermarks}.intersection(metric.name for metric in metrics)
            self._log_missing(watched, {one.metric for one in host})
        guests = {
            subject.facts.uuid: subject.facts.with_usage(usage[subject.facts.uuid])
            for subject in now.subjects
        }
        return UsageSnapshot(now.time, host, guests, capacity)

    def _log_missing(self, watched: Set[str], found: Set[str]) -> None:
        """Log the metrics that have become unreadable, and the metrics that are readable again.

        :param watched: the metrics of watermarks that were measured now.
        :param found: the metrics that have a value now.
        """
        for metric in sorted(watched - found - self._missing):
            LOG.warning(
                "The host does not report the metric %s: its watermarks wait until the host reports it",
                metric,
            )
        for metric in sorted(watched & found & self._missing):
            LOG.info("The host reports the metric %s again", metric)
        self._missing = (self._missing - found) | (watched - found)


def _measure_metric(
    metric: WatermarkMetric, now: MeasuringRound, before: MeasuringRound | None
) -> MetricUsage:
    try:
        return metric.measure(now, before)
    except Exception:  # code of another package can raise anything; the other metrics are still measured
        LOG.exception("The metric %s cannot be measured", metric.name)
        return MetricUsage()
