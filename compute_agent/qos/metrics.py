"""The metrics that watermarks can name: descriptions, the built-in ones and those of other packages.

Another package offers a Metric under the entry point group ``compute_agent.qos.metrics``; no code here needs
to know of it.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stevedore import ExtensionManager

from compute_agent.qos import sorters
from compute_agent.qos.levers import BLOCKIO, CACHE_WAYS, CPU_QUOTA, MEMORY_BANDWIDTH, ThrottleLever
from compute_agent.qos.sorters import Sorter
from compute_agent.qos.sources import builtin
from compute_agent.qos.sources.base import Measure

LOG = logging.getLogger(__name__)

ENTRY_POINTS: Final = "compute_agent.qos.metrics"


class MetricUnit(enum.StrEnum):
    """What usage and thresholds of a metric are counted in."""

    CORES = "cores"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes/s"
    PERCENT = "percent"
    OTHER = ""


@dataclass(frozen=True, slots=True)
class WatermarkMetric:
    """A metric and what can be done about it.

    - ``action_priority``: 0 (lowest) to 10; metrics of a higher one are seen to first.
    - ``measure`` tells its usage from two rounds.
    - ``sorter``: in which order guests are acted on; None: it cannot sort, and the general order is used.
    - ``lever``: what guests are throttled with, whose step functions throttle and restore; None: it cannot
      throttle. ``throttle_quantified``: what a throttle frees can be computed.
    - ``evictable``: guests can be evicted for its sake. ``evict_quantified``: what that frees can be
      computed. ``evict`` makes a guest leave in a way of this metric's own (called with its uuid, from a
      thread; raises an exception when it fails); None: the agent's way.
    """

    name: str
    unit: MetricUnit
    action_priority: int
    measure: Measure
    sorter: Sorter | None = None
    lever: ThrottleLever | None = None
    throttle_quantified: bool = False
    evictable: bool = False
    evict_quantified: bool = False
    evict: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name, re.ASCII):
            raise ValueError(f"{self.name!r} is no name of a metric: small letters, digits and _")
        if not 0 <= self.action_priority <= 10:
            raise ValueError(f"{self.name}: action_priority {self.action_priority} is not within 0..10")
        if self.throttle_quantified and not self.throttleable:
            raise ValueError(f"{self.name}: what a throttle frees is known, but it cannot throttle")
        if (self.evict_quantified or self.evict) and not self.evictable:
            raise ValueError(f"{self.name}: what an eviction does is known, but it cannot evict")

    @property
    def throttleable(self) -> bool:
        """Whether guests can be throttled for its sake."""
        return self.lever is not None


BUILT_IN: Final = (
    WatermarkMetric(
        "memory_usage", MetricUnit.BYTES, 9, builtin.memory_usage, sorters.MEMORY,
        evictable=True, evict_quantified=True,
    ),
    WatermarkMetric(
        "cpu_usage", MetricUnit.CORES, 7, builtin.cpu_usage, sorters.CPU,
        CPU_QUOTA, throttle_quantified=True, evictable=True, evict_quantified=True,
    ),
    # Whoever leaves takes with it what it was promised as well, so that an eviction may even raise the ratio.
    WatermarkMetric(
        "best_effort_cpu", MetricUnit.PERCENT, 6, builtin.best_effort_cpu, sorters.CPU,
        CPU_QUOTA, throttle_quantified=True,
    ),
    WatermarkMetric(
        "memory_bandwidth", MetricUnit.BYTES_PER_SECOND, 5, builtin.memory_bandwidth,
        sorters.combined(sorters.by_usage), MEMORY_BANDWIDTH,
        throttle_quantified=True, evictable=True, evict_quantified=True,
    ),
    WatermarkMetric(
        "llc_occupancy", MetricUnit.BYTES, 4, builtin.llc_occupancy, sorters.combined(sorters.by_usage),
        CACHE_WAYS, throttle_quantified=True,
    ),
    # Waiting for CPUs or disks ends when guests are slowed down; memory comes back only from those who leave.
    WatermarkMetric("cpu_pressure", MetricUnit.PERCENT, 3, builtin.pressure("cpu"), sorters.CPU, CPU_QUOTA),
    WatermarkMetric(
        "memory_pressure", MetricUnit.PERCENT, 2, builtin.pressure("memory"), None, CPU_QUOTA, evictable=True
    ),
    WatermarkMetric("io_pressure", MetricUnit.PERCENT, 1, builtin.pressure("io"), None, BLOCKIO),
    # Of a host that is a virtual machine itself: what others beside it take, no guest of it can give back.
    WatermarkMetric(
        "cpu_steal", MetricUnit.PERCENT, 0, builtin.cpu_steal, sorters.CPU, CPU_QUOTA, evictable=True
    ),
)  # fmt: skip


class MetricRegistry(Mapping[str, WatermarkMetric]):
    """Metrics by name."""

    def __init__(self, metrics: Iterable[WatermarkMetric] = BUILT_IN) -> None:
        """Metrics and their levers, by name.

        :raises ValueError: two have one name, or two levers do and differ.
        """
        self._metrics: dict[str, WatermarkMetric] = {}
        self.levers: dict[str, ThrottleLever] = {}
        for metric in metrics:
            self.add(metric)

    def __getitem__(self, name: str) -> WatermarkMetric:
        return self._metrics[name]

    def __iter__(self) -> Any:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def add(self, metric: WatermarkMetric) -> None:
        """Make another metric known.

        :raises ValueError: its name, or that of its lever, is taken.
        """
        if metric.name in self._metrics:
            raise ValueError(f"there are two metrics {metric.name}")
        lever = metric.lever
        if lever is not None and self.levers.get(lever.name, lever) != lever:
            raise ValueError(f"{metric.name}: there is another lever {lever.name}")
        self._metrics[metric.name] = metric
        if lever is not None:
            self.levers[lever.name] = lever

    def moved_by(self, lever: str) -> list[WatermarkMetric]:
        """The metrics that guests are throttled for with a lever."""
        return [metric for metric in self.values() if metric.lever and metric.lever.name == lever]


def load_registry() -> MetricRegistry:
    """The built-in metrics and those that installed packages offer.

    One that cannot be used is left out after a log line, so that only a watermark that names it is refused.
    """
    registry = MetricRegistry()
    extensions: ExtensionManager[Any] = ExtensionManager(
        ENTRY_POINTS,
        on_load_failure_callback=lambda manager, point, error: LOG.error(
            "The metric %s of %s cannot be loaded: %s", point.name, point.value, error
        ),
    )
    for extension in extensions:
        metric: object = extension.plugin
        try:
            if not isinstance(metric, WatermarkMetric):
                raise ValueError(f"it is a {type(metric).__name__}, not a Metric")
            registry.add(metric)
        except ValueError as error:
            LOG.error(
                "The metric %s of %s is left out: %s", extension.name, extension.entry_point_target, error
            )
    return registry
