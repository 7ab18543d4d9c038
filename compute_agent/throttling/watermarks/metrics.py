"""The metrics of watermarks, with their measurement, and the order in which guests are chosen for actions.

Another package adds a metric as a :class:`WatermarkMetric` under the entry point group
``compute_agent.qos.metrics``. The public names for such a package are in :mod:`compute_agent.qos.metrics`.

An order of guests (``Sorter``) is a sequence of comparisons. A comparison computes a number for each guest,
and the guest with the smaller number is acted on first. If two guests have the same number, the next
comparison decides. If all numbers are equal, the uuid decides, so that two rounds choose the same guest.
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
from compute_agent.throttling.levers import (
    BLOCKIO,
    CACHE_WAYS,
    CPU_QUOTA,
    MEMORY_BANDWIDTH,
    MEMORY_HIGH,
    ThrottleLever,
)
from compute_agent.usage import rounds
from compute_agent.usage.rounds import MeasuringRound
from compute_agent.usage.snapshot import GuestUsage, MetricSeries

LOG = logging.getLogger(__name__)

ENTRY_POINTS: Final = "compute_agent.qos.metrics"
"""Name of the entry point group. The name differs from the path of this module: the module has moved, and
other packages use the older name.
"""


Comparison = Callable[[GuestUsage, MetricSeries], float]
"""A function that returns the sort key of a guest for actions on a series; guests with smaller keys come
first.
"""

Sorter = tuple[Comparison, ...]
"""An order of guests: sort keys, of which an earlier key takes precedence over later ones."""


def by_class(guest: GuestUsage, series: MetricSeries) -> float:
    """Sort key: guests of a lower class come first."""
    return guest.rank


def by_priority(guest: GuestUsage, series: MetricSeries) -> float:
    """Sort key: guests with a lower priority come first."""
    return guest.priority


def by_running_time(guest: GuestUsage, series: MetricSeries) -> float:
    """Sort key: guests that started last come first, because they have the least work to lose."""
    return -guest.started


def by_usage(guest: GuestUsage, series: MetricSeries) -> float:
    """Sort key: guests with the largest use of the series come first, and guests with an unknown use last."""
    # An unknown use counts as 0, because an action on such a guest can free nothing.
    return -guest.usage.get(series, 0.0)


def by_cpu_use(guest: GuestUsage, series: MetricSeries) -> float:
    """Sort key: guests with the largest CPU use come first. ``series`` does not matter."""
    return -guest.usage.get(MetricSeries("cpu_usage"), 0.0)


def by_best_effort_ratio(guest: GuestUsage, series: MetricSeries) -> float:
    """Sort key: guests with the largest CPU use per guest CPU come first."""
    promised = sum(one.full for knob, one in guest.allotments.items() if knob.lever == "cpu_quota")
    # Without an allotment of CPU the ratio is not defined; 0 puts the guest last.
    return by_cpu_use(guest, series) / promised if promised else 0.0


def by_age(guest: GuestUsage, series: MetricSeries) -> float:
    """Sort key: guests that started first come first."""
    return guest.started


OVERSOLD: Final = frozenset({"reclaimed_cpu_oversold", "reclaimed_memory_oversold"})
"""The metrics of reclaimed capacity that guests hold beyond the present offer."""

JOINING_WORDS: Final = ("and", "or", "not")
"""The words that join conditions in expressions. No metric can have one of these names."""

CRITERIA: Final[Mapping[str, Comparison]] = {
    "class": by_class,
    "priority": by_priority,
    "usage": by_usage,
    "cpu_usage": by_cpu_use,
    "youngest": by_running_time,
    "oldest": by_age,
}
"""The comparisons, by the words that name them in the option for the order."""


def combined_order(comparison: Comparison) -> Sorter:
    """The general order of guests. The given comparison is inserted before the comparison by running time."""
    # Class and priority come first, because operators have set them. Age only decides between equal guests.
    return (by_class, by_priority, comparison, by_running_time)


GENERAL_ORDER: Final[Sorter] = (by_class, by_priority, by_running_time)
"""The order of guests for metrics without an order of their own."""

CPU_ORDER: Final[Sorter] = (by_class, by_priority, by_cpu_use, by_best_effort_ratio, by_running_time)
"""The order of guests for metrics of CPU."""

MEMORY_ORDER: Final[Sorter] = combined_order(by_usage)
"""The order of guests for memory: by use among guests of equal class and priority."""


def sort_guests(guests: Iterable[GuestUsage], sorter: Sorter, series: MetricSeries) -> list[GuestUsage]:
    """Sort guests in the order in which they are acted on because of ``series``."""
    return sorted(guests, key=lambda guest: (*(key(guest, series) for key in sorter), guest.uuid))


@dataclass(frozen=True, slots=True)
class MetricUsage:
    """The usage of one metric in a round, in the metric's unit.

    - ``host`` is the usage of the host by domain; the domain "" is the host as a whole.
    - ``guests`` is the usage of guests by uuid and domain.
    - ``capacity`` is the usage that counts as 100 %, by domain. Domains with an unknown capacity are missing.
    """

    host: Mapping[str, float] = field(default_factory=dict)
    guests: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    capacity: Mapping[str, float] = field(default_factory=dict)


Measure = Callable[[MeasuringRound, MeasuringRound | None], MetricUsage]
"""A function that computes the usage of a metric from this round and the round before, if there is one."""


def host_usage(
    amount: float | None, guests: Mapping[str, float] | None = None, capacity: float | None = None
) -> MetricUsage:
    """Build the ``MetricUsage`` of a metric without domains, in the metric's unit.

    ``amount`` is the usage of the host, ``guests`` the usage of guests by uuid, and ``capacity`` the capacity
    of the host. A value of None is unknown.
    """
    return MetricUsage(
        host={} if amount is None else {"": amount},
        guests={guest: {"": used} for guest, used in (guests or {}).items()},
        capacity={} if capacity is None else {"": capacity},
    )


def cpu_usage(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """CPU use of the host and its guests since the previous round, in cores."""
    used, cpus = rounds.host_cpu_use(now, before)
    return host_usage(used, rounds.guest_cpu_use(now, before), cpus)


def cpu_steal(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """The time that a hypervisor took from this host (steal), in percent of the time of all CPUs."""
    return host_usage(rounds.stolen_share(now, before), None, 100.0)


def memory_usage(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """Memory use of the host and its guests, in bytes."""
    memory = rounds.host_memory_use(now)
    if memory is None:
        return MetricUsage()
    return host_usage(memory.used, rounds.guest_memory_use(now), memory.total)


def swap_in(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """Bytes a second that the host reads back from swap, including compressed memory (zswap)."""
    return host_usage(rounds.swapped_in(now, before))


def memory_bandwidth(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """Memory bandwidth of the host and its guests in bytes a second, by L3 cache."""
    # The round keeps the counters of resctrl, which llc_occupancy() uses as well.
    cache = now.read_caches()
    return MetricUsage(cache.bandwidth, cache.guest_bandwidth, cache.bandwidth_capacity)


def llc_occupancy(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """Cache occupancy of the host and its guests in bytes, by L3 cache."""
    cache = now.read_caches()
    return MetricUsage(cache.occupancy, cache.guest_occupancy, cache.cache_size)


def best_effort_cpu(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
    """The CPU use of the guests that can be limited, in percent of the guest CPUs of these guests."""
    promised = {
        subject.facts.uuid: sum(
            one.full for knob, one in subject.facts.allotments.items() if knob.lever == "cpu_quota"
        )
        for subject in now.subjects
        if not subject.facts.protected
    }
    # Only guests with a measured use count: the guest CPUs of other guests would lower the percentage.
    used = {guest: cores for guest, cores in rounds.guest_cpu_use(now, before).items() if promised.get(guest)}
    total = sum(promised[guest] for guest in used)
    shares = {guest: 100 * cores / total for guest, cores in used.items()}
    # The value is None, and not 0, if no such guest exists. So the watermark treats the round as a round
    # without a sample.
    return host_usage(sum(shares.values()) if shares else None, shares, 100.0)


def oversold_measure(resource_class: str) -> Measure:
    """Return a function that measures the amount of ``resource_class`` that guests hold beyond the offer.

    A reclaimed class has as its inventory the unused capacity that the host offers at present. The usage of a
    guest is the amount of the class that it holds.
    """

    def measure_oversold(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
        found = now.read_oversold(resource_class)
        return MetricUsage() if found is None else host_usage(found.total, found.guests)

    return measure_oversold


def pressure_measure(resource: str) -> Measure:
    """Return a function that measures the host's pressure on ``resource`` (cpu, memory or io) in percent.

    The function measures no guests: the kernel reports the pressure that a guest suffers, and a watermark
    needs the pressure that a guest causes.
    """

    def measure_pressure(now: MeasuringRound, before: MeasuringRound | None) -> MetricUsage:
        return host_usage(
            rounds.pressure_share(f"{now.root}/proc/pressure/{resource}", now, before), None, 100.0
        )

    return measure_pressure


class MetricUnit(enum.StrEnum):
    """The unit of a metric; a condition's usage is 1 while it holds, else 0."""

    CORES = "cores"
    BYTES = "bytes"
    BYTES_PER_SECOND = "bytes/s"
    PERCENT = "percent"
    CONDITION = "condition"
    OTHER = ""


class GuestSampling(enum.Enum):
    """The rounds in which the agent measures guests for a metric.

    In all other rounds the agent measures only the host.

    - ``ALWAYS``: in each round, because the usage of the host can be computed from that of guests.
    - ``NEAR``: while the host uses more than half of the lowest threshold. Decisions need rates of guests,
      and a rate needs two rounds.
    - ``ABOVE``: while the host is above a threshold. One round is enough to measure the usage of a guest.

    In all cases guests are measured while limits or evictions are in force.
    """

    ALWAYS = 0.0
    NEAR = 0.5
    ABOVE = 1.0


@dataclass(frozen=True, slots=True)
class WatermarkMetric:
    """A metric of watermarks, and the actions that are possible if its usage exceeds a threshold.

    - ``action_priority`` is from 0 to 10; breaches of metrics with a higher priority are handled first.
    - ``measure`` computes the usage of the metric from the current measuring round and the previous round, if
      there was a previous round.
    - ``sorter`` is the order in which guests are chosen for actions; None means ``GENERAL_ORDER``.
    - ``lever`` is the means to throttle guests because of the metric, for example their CPU quota. None means
      that no guest is throttled because of the metric.
    - ``throttle_quantified``: the agent can compute how much a limit lowers the metric.
    - ``reclaimable``: a reclaim of memory that guests do not use lowers the metric.
    - ``evictable``: guests can be evicted because of the metric.
    - ``evict_quantified``: the agent can compute how much an eviction lowers the metric.
    - ``evict`` makes the guest with the given uuid leave; None means the default eviction of the
      agent. The function is called in a thread of its own, and raises an exception when it fails.
    - ``inputs`` are the metrics of an expression; ``name`` is then the text of the expression.
    - ``external``: the values come from outside the kernel. While the values are missing, limits are kept.
    - ``has_capacity``: ``measure`` returns the usage that counts as 100 %, so thresholds can be percentages.
      For a metric in percent the field does not matter.
    - ``guest_sampling`` says in which rounds guests are measured.
    """

    name: str
    unit: MetricUnit
    action_priority: int
    measure: Measure
    sorter: Sorter | None = None
    lever: ThrottleLever | None = None
    throttle_quantified: bool = False
    reclaimable: bool = False
    evictable: bool = False
    evict_quantified: bool = False
    evict: Callable[[str], None] | None = None
    inputs: tuple[str, ...] = ()
    external: bool = False
    has_capacity: bool = True
    guest_sampling: GuestSampling = GuestSampling.ALWAYS

    def __post_init__(self) -> None:
        # The name is used as the value of an option, as a label in Prometheus and as a word in expressions.
        if not self.inputs and not re.fullmatch(r"[a-z][a-z0-9_]*", self.name, re.ASCII):
            raise ValueError(f"{self.name!r} is not a name of a metric: small letters, digits and _")
        if self.name in JOINING_WORDS:
            raise ValueError(f"{self.name!r} is not a name of a metric: it joins conditions in expressions")
        if not 0 <= self.action_priority <= 10:
            raise ValueError(f"{self.name}: action_priority {self.action_priority} is not within 0..10")
        # A contradiction in a metric of another package is an error when the metric is loaded, and not later
        # in a plan.
        if self.throttle_quantified and not self.can_throttle:
            raise ValueError(f"{self.name}: throttle_quantified needs a metric that can throttle")
        if (self.evict_quantified or self.evict) and not self.evictable:
            raise ValueError(f"{self.name}: evict and evict_quantified need a metric that can evict")

    @property
    def measured_names(self) -> tuple[str, ...]:
        """The names of the metrics to measure: the inputs of an expression, otherwise the metric itself."""
        return self.inputs or (self.name,)

    @property
    def can_throttle(self) -> bool:
        """Whether guests can be throttled for this metric."""
        return self.lever is not None


BUILT_IN: Final = (
    WatermarkMetric(
        "memory_usage", MetricUnit.BYTES, 9, memory_usage, MEMORY_ORDER,
        MEMORY_HIGH, throttle_quantified=True, reclaimable=True, evictable=True, evict_quantified=True,
        guest_sampling=GuestSampling.ABOVE,
    ),
    # Guests that read memory back from swap need this memory. So the host is short of memory, even if its
    # usage is below the thresholds of memory_usage.
    WatermarkMetric(
        "swap_in", MetricUnit.BYTES_PER_SECOND, 8, swap_in, MEMORY_ORDER, CPU_QUOTA, evictable=True,
        has_capacity=False, guest_sampling=GuestSampling.NEAR,
    ),
    WatermarkMetric(
        "cpu_usage", MetricUnit.CORES, 7, cpu_usage, CPU_ORDER,
        CPU_QUOTA, throttle_quantified=True, evictable=True, evict_quantified=True,
        guest_sampling=GuestSampling.NEAR,
    ),
    # Guests are not evicted for this metric, because after an eviction the guest CPUs of the guest no
    # longer count, so the percentage can even rise.
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
        evictable=True, evict_quantified=True, has_capacity=False,
    ),
    WatermarkMetric(
        "reclaimed_memory_oversold", MetricUnit.BYTES, 9, oversold_measure(RECLAIMED_MEMORY), MEMORY_ORDER,
        evictable=True, evict_quantified=True, has_capacity=False,
    ),
    # Pressure on CPUs and disks falls when guests are slowed down. Pressure on memory needs evictions,
    # because a slower guest keeps its memory.
    WatermarkMetric(
        "cpu_pressure", MetricUnit.PERCENT, 3, pressure_measure("cpu"), CPU_ORDER, CPU_QUOTA,
        guest_sampling=GuestSampling.NEAR,
    ),
    WatermarkMetric(
        "memory_pressure", MetricUnit.PERCENT, 2, pressure_measure("memory"), None, CPU_QUOTA, evictable=True,
        guest_sampling=GuestSampling.NEAR,
    ),
    WatermarkMetric(
        "io_pressure", MetricUnit.PERCENT, 1, pressure_measure("io"), None, BLOCKIO,
        guest_sampling=GuestSampling.ABOVE,
    ),
    # Steal time exists only if the host is itself a virtual machine. Other virtual machines take this time,
    # so the effect of an action cannot be computed.
    WatermarkMetric(
        "cpu_steal", MetricUnit.PERCENT, 0, cpu_steal, CPU_ORDER, CPU_QUOTA, evictable=True,
        guest_sampling=GuestSampling.NEAR,
    ),
)  # fmt: skip


class MetricRegistry(Mapping[str, WatermarkMetric]):
    """All known metrics by name, and the levers that they use."""

    def __init__(self, metrics: Iterable[WatermarkMetric] = BUILT_IN) -> None:
        """Begin with ``metrics``.

        :raises ValueError: two metrics have the same name, or two different levers have the same name.
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
        """Add another metric and its lever.

        :raises ValueError: the registry has a metric of that name, or another lever with the lever's name.
        """
        if metric.name in self._metrics:
            raise ValueError(f"there are two metrics {metric.name}")
        lever = metric.lever
        # Limits are saved by the name of their lever, so two levers with the same name would remove each
        # other's limits.
        if lever is not None and self.levers.get(lever.name, lever) != lever:
            raise ValueError(f"{metric.name}: there is another lever {lever.name}")
        self._metrics[metric.name] = metric
        if lever is not None:
            self.levers[lever.name] = lever

    def with_metrics(self, metrics: Iterable[WatermarkMetric]) -> MetricRegistry:
        """A new registry with the metrics of this registry and further ``metrics``.

        :raises ValueError: a name is taken.
        """
        return MetricRegistry([*self.values(), *metrics])

    def metrics_moved_by(self, lever: str) -> list[WatermarkMetric]:
        """The metrics because of which guests are throttled with this lever."""
        return [metric for metric in self.values() if metric.lever and metric.lever.name == lever]


def load_registry() -> MetricRegistry:
    """Return the built-in and the installed metrics.

    An unusable metric is logged and left out, so a watermark of this metric is refused.
    """
    # Built-in metrics are added first, so that no package can replace a name that operators know.
    registry = MetricRegistry()
    extensions: ExtensionManager[Any] = ExtensionManager(
        ENTRY_POINTS,
        # Without a callback stevedore logs failures by itself, without the name of the metric.
        on_load_failure_callback=lambda manager, point, error: LOG.error(
            "The metric %s of %s cannot be loaded: %s", point.name, point.value, error
        ),
    )
    for extension in extensions:
        metric: object = extension.plugin
        try:
            # A package can register any object; its defect must not stop the agent from starting.
            if not isinstance(metric, WatermarkMetric):
                raise ValueError(f"it is a {type(metric).__name__}, not a WatermarkMetric")
            registry.add_metric(metric)
        # One wrong metric must not exclude the metrics of other packages.
        except ValueError as error:
            LOG.error(
                "The metric %s of %s is left out: %s", extension.name, extension.entry_point_target, error
            )
    return registry
