"""The options of [monitoring] as plain values.

Caches, bandwidth and monitoring itself, for Prometheus.

The thread that measures, round by round.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from oslo_config import cfg
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from compute_agent.monitoring.monitor import SYNC_SECONDS, CacheMonitor
from compute_agent.monitoring.reading import MonitorReading, MonitorTarget
from compute_agent.monitoring.samples import SampleStore, to_samples
from compute_agent.threads import PeriodicTask, ThreadSpec, log_failures


@dataclass(frozen=True, slots=True)
class MonitoringSettings:
    """Times are in seconds; an ``interval`` of 0 switches off what it is of. ``store_bytes`` is a size."""

    interval: float = 1.0
    store_interval: float = 10.0
    retention: float = 7 * 86400.0
    store_bytes: int = 512 * 10**6

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> MonitoringSettings:
        """Those of a configuration."""
        options = conf.monitoring
        return cls(options.interval, options.store_interval, options.retention, options.store_max_mb * 10**6)


class MonitoringCollector(Collector):
    """Tells what the newest reading has: series of guests that left end with them.

    A series without a guest is that of the class.
    """

    def __init__(self, loop: MonitorLoop) -> None:
        self._loop = loop

    def collect(self) -> Iterator[Metric]:
        """All metrics of monitoring."""
        occupancy = GaugeMetricFamily(
            "compute_agent_llc_occupancy_bytes",
            "Last-level cache that a guest, or a class, has filled.",
            labels=("guest", "class", "cache_id"),
        )
        moved = CounterMetricFamily(
            "compute_agent_memory_bandwidth_bytes",
            "Bytes that a guest, or a class, has moved between caches and memory.",
            labels=("guest", "class", "cache_id", "kind"),
        )
        reading = self._loop.newest()
        for use in reading.targets if reading else ():
            for cache, one in use.caches.items():
                if one.occupancy is not None:
                    occupancy.add_metric((*use.target.key, str(cache)), one.occupancy)
            for (cache, kind), amount in use.moved.items():
                moved.add_metric((*use.target.key, str(cache), kind), amount)
        monitor = self._loop.monitor
        yield occupancy
        yield moved
        yield GaugeMetricFamily(
            "compute_agent_unmonitored_guests",
            "Guests that are not monitored, as RMIDs or bandwidth counters do not last for them.",
            value=len(monitor.unmonitored) if monitor else 0,
        )
        yield CounterMetricFamily(
            "compute_agent_monitoring_exhaustions",
            "How often RMIDs or bandwidth counters began to be too few for all guests.",
            value=monitor.exhaustions if monitor else 0,
        )
        yield CounterMetricFamily(
            "compute_agent_sample_write_failures",
            "Failed writes of samples.",
            value=self._loop.store.failures,
        )


LOG = logging.getLogger(__name__)

FLUSH_SECONDS: Final = 30.0
"""How long samples wait to be written together."""

STALE_ROUNDS, STALE_SECONDS = 5, 3.0
"""After so many rounds, and so long, without a reading the last one tells nothing of now."""

WANTED_ROUNDS: Final = 2
"""For so many rounds counters are read after somebody has asked for them. Then they wait to be asked for."""

ASKED_SECONDS, MAX_ASKED_SECONDS = 1.0, 10.0
"""How long who asks waits for a reading: twice as long as the last one took, within these."""

MONITORING_THREAD: Final = ThreadSpec(
    "monitoring",
    "``[monitoring] interval`` while readings are asked for, else ``store_interval``",
    "reads counters of caches and bandwidth, and stores samples",
    "a condition on which those wait that ask for a reading",
    "resctrl; the driver; the file of samples",
)

Targets = Callable[[], Sequence[MonitorTarget] | None]
"""Tells what to measure; None where that is not known just now, and the last answer stays in force."""


class MonitorLoop:
    """Asks for the targets, measures them and has samples stored. Troubles cost rounds, never the thread."""

    def __init__(self, targets: Targets, store: SampleStore, settings: MonitoringSettings) -> None:
        """``targets`` is called from the thread in every round."""
        self.store = store
        self.settings = settings
        self.monitor: CacheMonitor | None = None
        self._next_monitor: CacheMonitor | None = None
        self._ask = targets
        self._targets: Sequence[MonitorTarget] | None = None
        self._kept: MonitorReading | None = None
        self._kept_at, self._flush_due = -math.inf, 0.0
        self._wanted_until = -math.inf
        self._rounds, self._took = 0, 0.0
        self._round_over = threading.Condition()
        self._troubles: dict[str, str] = {}
        self._last = self._looked = -math.inf
        """When counters were read, and when it was last looked for other guests (monotonic seconds)."""
        self._thread = PeriodicTask(
            MONITORING_THREAD,
            self._round,
            self._pause,
            log_failures(LOG, "Caches are not monitored"),
        )

    def start(self) -> None:
        """Begin with the first round."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the thread and write what is pending. Groups stay: the next agent goes on with them.

        What hangs is not waited for longer than ``timeout`` seconds.
        """
        self._thread.stop(timeout)
        if self._thread.is_alive():
            LOG.warning("A round of monitoring hangs; its samples are lost")
            return
        self.store.flush(time.time())
        self.store.close()
        if self.monitor is not None:
            self.monitor.close()

    def reload(self, settings: MonitoringSettings) -> None:
        """Go on with other settings."""
        self.settings = settings
        self._thread.wake()

    def monitor_with(self, monitor: CacheMonitor | None) -> None:
        """Go on with another monitor or, with None, without any."""
        self._next_monitor = monitor
        self._thread.wake()

    def newest(self) -> MonitorReading | None:
        """The newest reading; None while measuring is off, or does not work.

        Where nobody has asked for long it is made now, which is waited for.
        """
        interval, monitor = self.settings.interval, self.monitor  # a reload may take it away meanwhile
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
        # As new as it can be, it is of when the round began.
        return reading if age <= max(STALE_ROUNDS * interval, STALE_SECONDS) + self._took else None

    def _have_round(self) -> None:
        """Let the thread make a round, and wait until it is over."""
        if not self._thread.is_alive():
            return
        with self._round_over:
            before = self._rounds
            self._thread.wake()
            seconds = min(max(ASKED_SECONDS, 2 * self._took), MAX_ASKED_SECONDS)
            self._round_over.wait_for(lambda: self._rounds != before, seconds)

    def take(self, now: float, wall: float) -> None:
        """One round, at ``now`` (monotonic seconds), which is ``wall`` in seconds since the epoch."""
        self._pick_up()
        if self.monitor is None:
            return
        try:
            targets = self._ask()
            self._targets = self._targets if targets is None else targets
            self._report("The guests to monitor cannot be told", None)
        except Exception as error:  # code of others; the guests of the last round will do
            self._report("The guests to monitor cannot be told", error)
        if self._targets is None:
            return  # groups of guests that run must not be taken for those of guests that left
        try:
            reading = self.monitor.take(self._targets, now)
            self._report("Caches cannot be measured", None)
        except OSError as error:
            self._report("Caches cannot be measured", error)
            return
        self._keep(reading, now, wall)

    def _round(self) -> None:
        """Read counters where they are due, or guests are others; it may have been woken sooner."""
        self._pick_up()
        interval, now = self.settings.interval, time.monotonic()
        if interval <= 0 or self.monitor is None:
            self._switch_off()
            return
        due = due_at(now, self._last, self._wanted_until, self._kept_at, self.settings)
        if now < min(due, self._looked + interval):
            return
        self._looked = now
        if now < due and not self._is_other():
            return
        try:
            self.take(now, time.time())
            self._report("A round of monitoring failed", None)
        except Exception as error:
            self._report("A round of monitoring failed", error)
        with self._round_over:
            self._rounds, self._took = self._rounds + 1, time.monotonic() - now
            self._round_over.notify_all()
        # Rounds that were missed are not made up for.
        self._last = due if due <= now < due + interval else now

    def _pause(self, took: float) -> float | None:
        interval, now = self.settings.interval, time.monotonic()
        if interval <= 0 or self.monitor is None:
            return None
        due = due_at(now, self._last, self._wanted_until, self._kept_at, self.settings)
        return max(0.0, min(due, self._looked + interval) - now)

    def _is_other(self) -> bool:
        """Whether guests came or went, or are elsewhere."""
        try:
            targets = self._ask()
        except Exception:
            return True  # the round tells of it
        return targets is not None and targets != self._targets

    def _pick_up(self) -> None:
        """Have the monitor that was handed over last."""
        before, self.monitor = self.monitor, self._next_monitor
        if before is not None and before is not self.monitor:
            before.close()
            self._kept, self._kept_at = None, -math.inf

    def _switch_off(self) -> None:
        """Remove all monitoring groups, so that others have their RMIDs."""
        if self.monitor is None:
            return
        try:
            self.monitor.take((), time.monotonic())
        except OSError as error:
            self._report("Monitoring groups cannot be removed", error)
        self.monitor.close()

    def _keep(self, reading: MonitorReading, now: float, wall: float) -> None:
        settings = self.settings
        self.store.retention, self.store.max_bytes = settings.retention, settings.store_bytes
        if settings.store_interval <= 0:
            self._kept, self._kept_at = None, -math.inf
            return
        # With a little room, so that a round that is a moment early is not passed over.
        if now >= self._kept_at + settings.store_interval - settings.interval / 2:
            self.store.add(to_samples(self._kept, reading, wall))
            self._kept, self._kept_at = reading, now
        if now >= self._flush_due:
            self.store.flush(wall)
            self._flush_due = now + FLUSH_SECONDS

    def _report(self, what: str, error: Exception | None) -> None:
        """Log a trouble when it begins and when it ends."""
        reason = "" if error is None else f"{type(error).__name__}: {error}"
        if reason and reason != self._troubles.get(what):
            LOG.warning("%s: %s", what, error, exc_info=None if isinstance(error, OSError) else error)
        elif self._troubles.get(what) and not reason:
            LOG.info("%s: that is over", what)
        self._troubles[what] = reason


def due_at(
    now: float, last: float, wanted_until: float, kept_at: float, settings: MonitoringSettings
) -> float:
    """When counters are to be read again that were read at ``last``; all in monotonic seconds.

    After each interval while somebody asks for them. Else for samples, of which the last was kept at
    ``kept_at``, and for the groups to be looked after.
    """
    soon = last + settings.interval
    if now < wanted_until:
        return soon
    due = last + SYNC_SECONDS
    if settings.store_interval > 0:
        due = min(due, kept_at + settings.store_interval)
    return max(soon, due)
