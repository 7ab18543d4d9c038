"""The public names for packages that add a metric of watermarks; the code itself is in ``throttling``.

Such a package has a :class:`WatermarkMetric` under the entry point group of the same name::

    [options.entry_points]
    compute_agent.qos.metrics =
        disk_latency = disk_metrics:DISK_LATENCY

``measure`` gets the present round and the round before it, and returns a :class:`MetricUsage`. ``measure``
reads files through the present round, which reads a file only once for all metrics.
"""

from compute_agent.monitoring.readings import CacheReading
from compute_agent.throttling.levers import (
    BLOCKIO,
    CPU_QUOTA,
    ThrottleLever,
    ThrottleSteps,
    step_down,
    step_up,
)
from compute_agent.throttling.watermarks.metrics import (
    BUILT_IN,
    Comparison,
    Measure,
    MetricRegistry,
    MetricUnit,
    MetricUsage,
    Sorter,
    WatermarkMetric,
    by_usage,
    combined_order,
    host_usage,
    load_registry,
)
from compute_agent.usage.rounds import MeasuredGuest, MeasuringRound
from compute_agent.usage.snapshot import GuestAllotment, GuestUsage, MetricSeries

__all__ = [
    "BLOCKIO",
    "BUILT_IN",
    "CPU_QUOTA",
    "CacheReading",
    "Comparison",
    "GuestAllotment",
    "GuestUsage",
    "Measure",
    "MeasuredGuest",
    "MeasuringRound",
    "MetricRegistry",
    "MetricSeries",
    "MetricUnit",
    "MetricUsage",
    "Sorter",
    "ThrottleLever",
    "ThrottleSteps",
    "WatermarkMetric",
    "by_usage",
    "combined_order",
    "host_usage",
    "load_registry",
    "step_down",
    "step_up",
]
