"""Caches, bandwidth and monitoring itself, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from compute_agent.monitoring.loop import MonitorLoop


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
