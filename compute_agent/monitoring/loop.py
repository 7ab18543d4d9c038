"""The thread of monitoring, with its options and its metrics for Prometheus."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from oslo_config import cfg
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from compute_agent.monitoring.monitor import SYNC_SECONDS, CacheMonitor
from compute_agent.monitoring.readings import MonitorReading, MonitorTarget
from compute_agent.monitoring.samples import SampleStore, to_samples
from compute_agent.threads import PeriodicTask, ThreadSpec, log_failures


@dataclass(frozen=True, slots=True)
class MonitoringSettings:
    """The options of ``[monitoring]``.

    :ivar interval: seconds between two readings; 0 switches monitoring off.
    :ivar store_interval: seconds between two stored samples; 0 switches storage off.
    :ivar retention: the age in seconds at which stored samples are deleted.
    :ivar store_bytes: the maximum size of the file of samples.
    """

    interval: float = 1.0
    store_interval: float = 10.0
    retention: float = 7 * 86400.0
    store_bytes: int = 512 * 10**6

    @classmethod
    def from_options(cls, conf: cfg.ConfigOpts) -> MonitoringSettings:
        """Read the settings from the options of a configuration."""
        options = conf.monitoring
        return cls(options.interval, options.store_interval, options.retention, options.store_max_mb * 10**6)


class MonitoringCollector(Collector):
    """Collects the metrics of caches for Prometheus from the newest reading.

    A series with an empty ``guest`` has the values of a class, without its guests that have a resctrl group
    of their own.

    The series of a guest disappear when the guest ends, because all values come from the newest reading.
    """

    def __init__(self, loop: MonitorLoop) -> None:
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics of monitoring."""
        occupancy = GaugeMetricFamily(
            "compute_agent_llc_occupancy_bytes",
            "Last-level cache occupied by a guest or a class.",
            labels=("guest", "class", "cache_id"),
        )
        moved = CounterMetricFamily(
            "compute_agent_memory_bandwidth_bytes",
            "Bytes moved between caches and memory by a guest or a class.",
            labels=("guest", "class", "cache_id", "kind"),
        )
        host_occupancy = GaugeMetricFamily(
            "compute_agent_host_llc_occupancy_bytes",
            "Last-level cache occupied by all guests and processes of the host.",
            labels=("cache_id",),
        )
        host_moved = CounterMetricFamily(
            "compute_agent_host_memory_bandwidth_bytes",
            "Bytes moved between caches and memory by all guests and processes of the host.",
            labels=("cache_id", "kind"),
        )
        reading = self._loop.newest_reading()
        if reading is not None:
            for cache, one in reading.host_caches.items():
                if one.occupancy is not None:
                    host_occupancy.add_metric((str(cache),), one.occupancy)
            for (cache, kind), amount in reading.host_moved_bytes.items():
                host_moved.add_metric((str(cache), kind), amount)
        for use in reading.targets if reading else ():
            for cache, one in use.caches.items():
                if one.occupancy is not None:
                    occupancy.add_metric((*use.target.key, str(cache)), one.occupancy)
            for (cache, kind), amount in use.moved_bytes.items():
                moved.add_metric((*use.target.key, str(cache), kind), amount)
        monitor = self._loop.monitor
        yield occupancy
        yield moved
        yield host_occupancy
        yield host_moved
        yield GaugeMetricFamily(
            "compute_agent_unmonitored_guests",
            "Guests that are not monitored, because RMIDs or bandwidth counters are too few.",
            value=len(monitor.groups.unmonitored_guests) if monitor else 0,
        )
        yield CounterMetricFamily(
            "compute_agent_monitoring_exhaustions",
            "How often RMIDs or bandwidth counters became too few for all guests.",
            value=monitor.groups.exhaustion_count if monitor else 0,
        )
        yield CounterMetricFamily(
            "compute_agent_sample_write_failures",
            "Failed writes of samples.",
            value=self._loop.store.failures,
        )


LOG = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 30.0
"""Seconds for which samples are collected before they are written together, because a write uses the disk."""

# The number of seconds is for short intervals. With 0.1 s, one late round would already exceed five rounds.
STALE_ROUNDS, STALE_SECONDS = 5, 3.0
"""Numbers of rounds and of seconds. A reading is out of date if it is older than both numbers."""

# Counters are not read while no one uses the values, because a host with 250 guests has thousands of
# counters.
WANTED_ROUNDS: Final = 2
"""Number of rounds after a request in which counters are read; then the thread waits for the next request."""

ASKED_SECONDS, MAX_ASKED_SECONDS = 1.0, 10.0
"""Lower and upper bound, in seconds, of a caller's wait for a reading.

Between these bounds, the wait is two times the length of the last round.
"""

GUESTS_SECONDS: Final = 5.0
"""Minimum number of seconds between two comparisons of the list of guests while no one uses the values."""

MONITORING_THREAD: Final = ThreadSpec(
    "monitoring",
    "``[monitoring] interval`` while readings are requested, or else ``store_interval``",
    "reads counters of caches and bandwidth, and stores samples",
    "a condition on which callers wait for a reading",
    "resctrl; the driver; the file of samples",
)

Targets = Callable[[], Sequence[MonitorTarget] | None]
"""A function that lists the targets to measure. The result is None while the targets are not known; the loop
then uses the last known list.
"""


class MonitorLoop:
    """Measures the cache use of guests and classes, and stores samples.

    An error ends a round, but not the thread.
    """

    def __init__(self, targets: Targets, store: SampleStore, settings: MonitoringSettings) -> None:
        """Prepare the loop. Its thread calls ``targets`` in each round; monitor_with() sets the monitor."""
        self.store = store
        self.settings = settings
        self.monitor: CacheMonitor | None = None
        self._next_monitor: CacheMonitor | None = None
        self._ask = targets
        self._targets: Sequence[MonitorTarget] | None = None
        self._kept: MonitorReading | None = None
        self._kept_at, self._flush_due = -math.inf, 0.0
        self._wanted_until = -math.inf
        self.rounds, self.round_seconds = 0, 0.0
        """The number of finished rounds, and the duration of the last one in seconds."""
        self._round_over = threading.Condition()
        self._troubles: dict[str, str] = {}
        self._last = self._looked = -math.inf
        """The monotonic seconds of the last reading, and of the last comparison of the list of guests."""
        self._thread = PeriodicTask(
            MONITORING_THREAD,
            self._run_due_round,
            self._seconds_to_wait,
            log_failures(LOG, "Caches are not monitored"),
        )

    def start(self) -> None:
        """Start the thread, which begins with a round."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread, and write queued samples. Monitoring groups stay for the next agent.

        :param timeout: the maximum wait, in seconds, for a round that hangs.
        """
        self._thread.stop(timeout)
        if self._thread.is_alive():
            LOG.warning("A round of monitoring hangs; its samples are lost")
            return  # the thread perhaps still uses store and monitor, which have no locks
        self.store.flush(time.time())
        self.store.close()
        if self.monitor is not None:
            self.monitor.close()

    def reload(self, settings: MonitoringSettings) -> None:
        """Use other settings from now on."""
        self.settings = settings
        self._thread.wake()

    def monitor_with(self, monitor: CacheMonitor | None) -> None:
        """Use another monitor (of another mount) from the next round on; None stops the measurement."""
        # Only the thread replaces the monitor, because a round that is under way needs the old monitor until
        # its end.
        self._next_monitor = monitor
        self._thread.wake()

    def newest_reading(self) -> MonitorReading | None:
        """The newest reading, after a wait of at most ten seconds; None while monitoring is off or fails."""
        # the attributes are read only once, because a reload can remove the monitor in between
        interval, monitor = self.settings.interval, self.monitor
        if monitor is None or interval <= 0:
            return None
        now = time.monotonic()
        self._wanted_until = now + WANTED_ROUNDS * interval
        reading = monitor.newest
        if reading is None or now - reading.time > WANTED_ROUNDS * interval:
            self._have_round()
            monitor = self.monitor
            reading = None if monitor is None else monitor.newest
        if reading is None:
            return None
        age = time.monotonic() - reading.time
        # The time of a reading is the begin of its round. The newest reading is therefore always older than
        # the length of its round.
        return reading if age <= max(STALE_ROUNDS * interval, STALE_SECONDS) + self.round_seconds else None

    def _have_round(self) -> None:
        """Wake the thread, and wait until the thread has finished a round."""
        if not self.is_running:
            return
        with self._round_over:
            before = self.rounds
            self._thread.wake()
            seconds = min(max(ASKED_SECONDS, 2 * self.round_seconds), MAX_ASKED_SECONDS)
            self._round_over.wait_for(lambda: self.rounds != before, seconds)

    def run_round(self, now: float, wall: float) -> None:
        """List the targets, read all counters, and store samples if they are due.

        :param now: the present time in monotonic seconds.
        :param wall: the same time in seconds since the epoch.
        """
        self._pick_up()
        if self.monitor is None:
            return
        # A driver can raise anything. The targets of the last round then stay in use.
        with self._report_trouble("The guests to monitor cannot be listed", Exception):
            targets = self._ask()
            self._targets = self._targets if targets is None else targets
        if self._targets is None:
            return  # a measurement of an empty list would remove the groups of running guests
        reading = None
        with self._report_trouble("Caches cannot be measured", OSError):
            reading = self.monitor.measure_targets(self._targets, now)
        if reading is not None:
            self._store_reading(reading, now, wall)

    def _run_due_round(self) -> None:
        """Run a round if a reading of counters is due, or if the targets have changed."""
        self._pick_up()
        interval, now = self.settings.interval, time.monotonic()
        if interval <= 0 or self.monitor is None:
            self._switch_off()
            return
        due = due_at(now, self._last, self._wanted_until, self._kept_at, self.settings)
        if now < min(due, self._look_due):
            return
        self._looked = now
        if now < due and not self._is_other():
            return
        with self._report_trouble("A round of monitoring failed", Exception):
            self.run_round(now, time.time())
        with self._round_over:
            self.rounds, self.round_seconds = self.rounds + 1, time.monotonic() - now
            self._round_over.notify_all()
        # A late round does not shift the schedule, but missed rounds are skipped.
        self._last = due if due <= now < due + interval else now

    def _seconds_to_wait(self, took: float) -> float | None:
        interval, now = self.settings.interval, time.monotonic()
        if interval <= 0 or self.monitor is None:
            return None
        due = due_at(now, self._last, self._wanted_until, self._kept_at, self.settings)
        return max(0.0, min(due, self._look_due) - now)

    @property
    def _look_due(self) -> float:
        """The time of the next comparison of the list of guests, in monotonic seconds."""
        return self._looked + max(self.settings.interval, GUESTS_SECONDS)

    def _is_other(self) -> bool:
        """Whether the list of targets has changed: guests have started, ended or moved to other groups."""
        try:
            targets = self._ask()
        except Exception:
            return True  # the round logs the error
        return targets is not None and targets != self._targets

    def _pick_up(self) -> None:
        """Use the monitor that monitor_with() has set last."""
        before, self.monitor = self.monitor, self._next_monitor
        if before is not None and before is not self.monitor:
            before.close()
            # The totals of the new monitor begin at 0, so no rate can be computed across the change.
            self._kept, self._kept_at = None, -math.inf

    def _switch_off(self) -> None:
        """Remove all monitoring groups, so that other programs can use their RMIDs."""
        if self.monitor is None:
            return
        with self._report_trouble("Monitoring groups cannot be removed", OSError):
            self.monitor.measure_targets((), time.monotonic())
        self.monitor.close()

    def _store_reading(self, reading: MonitorReading, now: float, wall: float) -> None:
        settings = self.settings
        self.store.retention, self.store.max_bytes = settings.retention, settings.store_bytes
        if settings.store_interval <= 0:
            self._kept, self._kept_at = None, -math.inf
            return
        # With the tolerance of half an interval, a round that is slightly early counts, too.
        if now >= self._kept_at + settings.store_interval - settings.interval / 2:
            self.store.add(to_samples(self._kept, reading, wall))
            self._kept, self._kept_at = reading, now
        if now >= self._flush_due:
            self.store.flush(wall)
            self._flush_due = now + FLUSH_SECONDS

    @contextmanager
    def _report_trouble(self, what: str, kind: type[Exception]) -> Iterator[None]:
        """Log an error of the ``with`` block only when it begins and when it ends, and not in each round."""
        before = self._troubles.get(what, "")
        try:
            yield
        except kind as error:
            reason = self._troubles[what] = f"{type(error).__name__}: {error}"
            # Other errors than OSError are defects of the code, for which the log has the stack.
            stack = None if isinstance(error, OSError) else error
            if reason != before:
                LOG.warning("Monitoring of caches has a problem: %s: %s", what, error, exc_info=stack)
        else:
            if before:
                LOG.info("Monitoring works again after this problem: %s", what)
            self._troubles[what] = ""


def due_at(
    now: float, last: float, wanted_until: float, kept_at: float, settings: MonitoringSettings
) -> float:
    """The time at which the next reading is due. All times are in monotonic seconds.

    While readings are requested, the time between them is one interval. Otherwise a reading is made only for
    stored samples and for the comparison of groups with guests.

    :param last: the time of the last reading of counters.
    :param wanted_until: the time until which a caller has requested readings.
    :param kept_at: the time at which samples were stored last.
    """
    soon = last + settings.interval
    if now < wanted_until:
        return soon
    due = last + SYNC_SECONDS
    if settings.store_interval > 0:
        due = min(due, kept_at + settings.store_interval)
    return max(soon, due)
