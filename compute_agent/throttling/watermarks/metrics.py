"""Metrics that watermarks can name: their measurement, and their order of guests for actions.

Another package offers a :class:`WatermarkMetric` under the entry point group ``compute_agent.qos.metrics``;
no code here needs to know of it. The names that such a package needs are in :mod:`compute_agent.qos.metrics`.

An order of guests is a list of comparisons. The first one with a difference decides. A comparison is a key:
the guest with the smaller one is acted on first. Guests that are equal in everything come in the order of
their uuids, so that two rounds agree.
"""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stevedore import ExtensionManager

from compute_agent.model.resource import RECLAIMED_MEMORY, RECLAIMED_VCPU
from compute_agent.throttling.levers import BLOCKIO, CACHE_WAYS, CPU_QUOTA, MEMORY_BANDWIDTH, ThrottleLever
from compute_agent.usage import rounds
from compute_agent.usage.rounds import MeasuringRound
from compute_agent.usage.snapshot import GuestUsage, MetricSeries

LOG = logging.getLogger(__name__)

ENTRY_POINTS: Final = "compute_agent.qos.metrics"
"""The name is that of a former package: packages of others are registered under it."""


Comparison = Callable[[GuestUsage, MetricSeries], float]
Sorter = tuple[Comparison, ...]


def by_class(guest: GuestUsage, series: MetricSeries) -> float:
    """Lowest class first."""
    # A rank, as names of classes have no order.
    return guest.rank


def by_priority(guest: GuestUsage, series: MetricSeries) -> float:
    """Lowest priority first."""
    return guest.priority


def by_running_time(guest: GuestUsage, series: MetricSeries) -> float:
    """Youngest first."""
    # The youngest has the least work to lose.
    return -guest.started


def by_usage(guest: GuestUsage, series: MetricSeries) -> float:
    """Guests with the largest use of the metric come first, and guests with an unknown use last."""
    # Unknown use counts as none: such a guest may free nothing, so others are taken before it.
    return -guest.usage.get(series, 0.0)


def by_cpu_use(guest: GuestUsage, series: MetricSeries) -> float:
    """Largest use of CPU first, for any metric."""
    return -guest.usage.get(MetricSeries("cpu_usage"), 0.0)


def by_best_effort_ratio(guest: GuestUsage, series: MetricSeries) -> float:
    """Guests with the largest ratio of CPU use to their promised CPUs come first."""
    promised = sum(one.full for knob, one in guest.allotments.items() if knob.lever == "cpu_quota")
    # A guest that was promised nothing cannot have more than that.
    return by_cpu_use(guest, series) / promised if promised else 0.0


def by_age(guest: GuestUsage, series: MetricSeries) -> float:
    """Oldest first."""
    return guest.started


CRITERIA: Final[Mapping[str, Comparison]] = {
    "class": by_class,
    "priority": by_priority,
    "usage": by_usage,
    "cpu_usage": by_cpu_use,
    "youngest": by_running_time,
    "oldest": by_age,
}
"""The words for comparisons in options."""


def combined_order(comparison: Comparison) -> Sorter:
    """The general order, with a metric's own comparison before the running time."""
    # Class and priority are an operator's word, and go before any use; age only decides between equals.
    return (by_class, by_priority, comparison, by_running_time)


GENERAL_ORDER: Final[Sorter] = (by_class, by_priority, by_running_time)
CPU_ORDER: Final[Sorter] = (by_class, by_priority, by_cpu_use, by_best_effort_ratio, by_running_time)
MEMORY_ORDER: Final[Sorter] = combined_order(by_usage)


def sort_guests(guests: Iterable[GuestUsage], sorter: Sorter, series: MetricSeries) -> list[GuestUsage]:
    """The guests, in the order of actions."""
    return sorted(guests, key=lambda guest: (*(key(guest, series) for key in sorter), guest.uuid))


@dataclass(frozen=True, slots=True)
class MetricUsage:
    """The usage of one metric, by domain ("" for the host as a whole); of guests by uuid, then by domain.

    ``capacity`` is the amount of 100 %, where that is known.
    """

    host: Mapping[str, float] = field(default_factory=dict)
    guests: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    capacity: Mapping[str, float] = field(default_factory=dict)


Measure = Callable[[MeasuringRound, MeasuringRound | None], MetricUsage]
"""Usage from a round and the one before it, which is None for the first."""


def host_usage(
    amount: float | None, guests: Mapping[str, float] | None = None, capacity: float | None = None
) -> MetricUsage:
    """Usage of the host as a whole; None where it is not known."""
    return MetricUsage(
        host={} if amount is None else {"": amount},
        guests={guest: {"": used} for guest, used in (guests or {}).items()},
        capacity={} if capacity is None else {"": capacity},
    )


def cpu_usage(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """CPU use in cores."""
    used, cpus = rounds.host_cpu_use(now, before)
    return host_usage(used, rounds.guest_cpu_use(now, before), cpus)


def cpu_steal(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """Time that a hypervisor took, in percent of the time of all CPUs."""
    return host_usage(rounds.stolen_share(now, before), None, 100.0)


def memory_usage(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """Memory use in bytes."""
    memory = rounds.host_memory_use(now)
    if memory is None:
        return MetricUsage()
    return host_usage(memory.used, rounds.guest_memory_use(now), memory.total)


def swap_in(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """Bytes a second that the host reads back from swap, also from compressed memory (zswap)."""
    return host_usage(rounds.swapped_in(now, before))


def memory_bandwidth(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """Memory bandwidth in bytes a second, by L3 cache."""
    # Read once a round for both metrics of caches.
    cache = now.read_caches()
    return MetricUsage(cache.bandwidth, cache.guest_bandwidth, cache.bandwidth_capacity)


def llc_occupancy(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """Cache occupancy in bytes, by L3 cache."""
    cache = now.read_caches()
    return MetricUsage(cache.occupancy, cache.guest_occupancy, cache.cache_size)


def best_effort_cpu(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """CPU use of the guests that may be limited, in percent of their promised CPUs.

    The use of each is its part of that percentage.
    """
    promised = {
        subject.facts.uuid: sum(
            one.full for knob, one in subject.facts.allotments.items() if knob.lever == "cpu_quota"
        )
        for subject in now.subjects
        if not subject.facts.protected
    }
    # Of guests that were measured alone: the others would lower the percentage by their promise.
    used = {guest: cores for guest, cores in rounds.guest_cpu_use(now, before).items() if promised.get(guest)}
    total = sum(promised[guest] for guest in used)
    shares = {guest: 100 * cores / total for guest, cores in used.items()}
    # None, not 0: without a best-effort guest nothing is used, and nothing is known either.
    return host_usage(sum(shares.values()) if shares else None, shares, 100.0)


def oversold_measure(resource_class: str) -> Measure:
    """The reclaimed amount that guests hold beyond the present offer; of guests what they hold of it."""

    def measure_oversold(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
        found = now.read_oversold(resource_class)
        return MetricUsage() if found is None else host_usage(found.total, found.guests)

    return measure_oversold


def pressure_measure(resource: str) -> Measure:
    """The pressure on ``resource`` (cpu, memory, io), in percent of the time.

    Guests have no value: a cgroup reports the pressure that a guest suffers, not the pressure that it causes.
    """

    def measure_pressure(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
        return host_usage(
            rounds.pressure_share(f"{now.root}/proc/pressure/{resource}", now, before), None, 100.0
        )

    return measure_pressure


class MetricUnit(enum.StrEnum):
    """The unit of usage and thresholds of a metric. A condition is 1 while it holds, else 0."""

    CORES = "cores"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes/s"
    PERCENT = "percent"
    CONDITION = "condition"
    OTHER = ""


@dataclass(frozen=True, slots=True)
class WatermarkMetric:
    """A metric, with its possible actions.

    - ``action_priority``: 0 (lowest) to 10; metrics of a higher one come first.
    - ``measure`` computes the usage of the metric from two rounds.
    - ``sorter``: the order in which guests are acted on; None: the general order.
    - ``lever``: guests are throttled with it, and its step functions throttle and restore; None: guests are
      not throttled. ``throttle_quantified``: the amount that a throttle frees can be computed.
    - ``evictable``: guests can be evicted for it.
    - ``evict_quantified``: the amount that an eviction frees can be computed.
    - ``evict`` makes a guest leave in a way of this metric's own; None: the agent's way. The function is
      called with the guest's uuid, from a thread, and raises an exception when it fails.
    - ``inputs``: the metrics of an expression, which is the name.
    - ``external``: the values come from outside the kernel. While they are missing, limits stay.
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
    inputs: tuple[str, ...] = ()
    external: bool = False

    def __post_init__(self) -> None:
        # It is an option's value, a label of Prometheus and a word of expressions.
        if not self.inputs and not re.fullmatch(r"[a-z][a-z0-9_]*", self.name, re.ASCII):
            raise ValueError(f"{self.name!r} is not a name of a metric: small letters, digits and _")
        if not 0 <= self.action_priority <= 10:
            raise ValueError(f"{self.name}: action_priority {self.action_priority} is not within 0..10")
        # A contradiction within a package is found when it is loaded, and not by the first plan.
        if self.throttle_quantified and not self.can_throttle:
            raise ValueError(f"{self.name}: what a throttle frees is known, but it cannot throttle")
        if (self.evict_quantified or self.evict) and not self.evictable:
            raise ValueError(f"{self.name}: what an eviction does is known, but it cannot evict")

    @property
    def can_throttle(self) -> bool:
        """Whether guests can be throttled for this metric."""
        return self.lever is not None


BUILT_IN: Final = (
    WatermarkMetric(
        "memory_usage", MetricUnit.BYTES, 9, memory_usage, MEMORY_ORDER,
        evictable=True, evict_quantified=True,
    ),
    # Memory that guests read back at once was not theirs to lose: the host is full, whatever its usage says.
    WatermarkMetric(
        "swap_in", MetricUnit.BYTES_PER_SECOND, 8, swap_in, MEMORY_ORDER, CPU_QUOTA, evictable=True
    ),
    WatermarkMetric(
        "cpu_usage", MetricUnit.CORES, 7, cpu_usage, CPU_ORDER,
        CPU_QUOTA, throttle_quantified=True, evictable=True, evict_quantified=True,
    ),
    # A guest that leaves takes with it what it was promised as well, so that an eviction may even raise the
    # ratio.
    WatermarkMetric(
        "best_effort_cpu", MetricUnit.PERCENT, 6, best_effort_cpu, CPU_ORDER,
        CPU_QUOTA, throttle_quantified=True,
    ),
    WatermarkMetric(
        "memory_bandwidth", MetricUnit.BYTES_PER_SECOND, 5, memory_bandwidth,
        combined_order(by_usage), MEMORY_BANDWIDTH,
        throttle_quantified=True, evictable=True, evict_quantified=True,
    ),
    WatermarkMetric(
        "llc_occupancy", MetricUnit.BYTES, 4, llc_occupancy, combined_order(by_usage),
        CACHE_WAYS, throttle_quantified=True,
    ),
    WatermarkMetric(
        "reclaimed_cpu_oversold", MetricUnit.CORES, 6, oversold_measure(RECLAIMED_VCPU), CPU_ORDER,
        evictable=True, evict_quantified=True,
    ),
    WatermarkMetric(
        "reclaimed_memory_oversold", MetricUnit.BYTES, 9, oversold_measure(RECLAIMED_MEMORY), MEMORY_ORDER,
        evictable=True, evict_quantified=True,
    ),
    # Waiting for CPUs or disks ends when guests are slowed down; memory comes back only from guests that
    # leave.
    WatermarkMetric("cpu_pressure", MetricUnit.PERCENT, 3, pressure_measure("cpu"), CPU_ORDER, CPU_QUOTA),
    WatermarkMetric(
        "memory_pressure", MetricUnit.PERCENT, 2, pressure_measure("memory"), None, CPU_QUOTA, evictable=True
    ),
    WatermarkMetric("io_pressure", MetricUnit.PERCENT, 1, pressure_measure("io"), None, BLOCKIO),
    # A host that is a virtual machine itself: no guest of it can give back the time that others beside it
    # take.
    WatermarkMetric(
        "cpu_steal", MetricUnit.PERCENT, 0, cpu_steal, CPU_ORDER, CPU_QUOTA, evictable=True
    ),
)  # fmt: skip


class MetricRegistry(Mapping[str, WatermarkMetric]):
    """Metrics by name."""

    def __init__(self, metrics: Iterable[WatermarkMetric] = BUILT_IN) -> None:
        """Metrics and their levers, by name.

        :raises ValueError: two metrics have the same name, or two different levers have.
        """
        self._metrics: dict[str, WatermarkMetric] = {}
        self.levers: dict[str, ThrottleLever] = {}
        for metric in metrics:
            self.add_metric(metric)

    def __getitem__(self, name: str) -> WatermarkMetric:
        return self._metrics[name]

    def __iter__(self) -> Any:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def add_metric(self, metric: WatermarkMetric) -> None:
        """Make another metric known.

        :raises ValueError: the name of the metric or of its lever, is taken.
        """
        if metric.name in self._metrics:
            raise ValueError(f"there are two metrics {metric.name}")
        lever = metric.lever
        # A limit is kept by the name of its lever: two of one name would give back each other's.
        if lever is not None and self.levers.get(lever.name, lever) != lever:
            raise ValueError(f"{metric.name}: there is another lever {lever.name}")
        self._metrics[metric.name] = metric
        if lever is not None:
            self.levers[lever.name] = lever

    def with_metrics(self, metrics: Iterable[WatermarkMetric]) -> MetricRegistry:
        """Another registry, with further metrics.

        :raises ValueError: a name is taken.
        """
        return MetricRegistry([*self.values(), *metrics])

    def metrics_moved_by(self, lever: str) -> list[WatermarkMetric]:
        """The metrics that throttle guests with a lever."""
        return [metric for metric in self.values() if metric.lever and metric.lever.name == lever]


def load_registry() -> MetricRegistry:
    """The built-in metrics and those that installed packages offer.

    A metric that cannot be used is left out after a log line, so that only a watermark that names it is
    refused.
    """
    # First the built-in ones: a package must not replace what operators know by that name.
    registry = MetricRegistry()
    extensions: ExtensionManager[Any] = ExtensionManager(
        ENTRY_POINTS,
        # Without it stevedore would log with its own words, and no remedy.
        on_load_failure_callback=lambda manager, point, error: LOG.error(
            "The metric %s of %s cannot be loaded: %s", point.name, point.value, error
        ),
    )
    for extension in extensions:
        metric: object = extension.plugin
        try:
            # A package may register anything; its defect must not keep the agent from starting.
            if not isinstance(metric, WatermarkMetric):
                raise ValueError(f"it is a {type(metric).__name__}, not a WatermarkMetric")
            registry.add_metric(metric)
        # A package with a wrong metric must not cost the metrics of others.
        except ValueError as error:
            LOG.error(
                "The metric %s of %s is left out: %s", extension.name, extension.entry_point_target, error
            )
    return registry
