"""In which order guests are acted on: lists of comparisons, of which the first difference decides.

A comparison is a key: the guest with the smaller one is acted on first. Guests that are equal in everything
come in the order of their uuids, so that two rounds agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from compute_agent.qos.snapshot import GuestUsage, MetricSeries

Comparison = Callable[[GuestUsage, MetricSeries], float]
Sorter = tuple[Comparison, ...]


def by_class(guest: GuestUsage, series: MetricSeries) -> float:
    """Lowest class first."""
    return guest.rank


def by_priority(guest: GuestUsage, series: MetricSeries) -> float:
    """Lowest priority first."""
    return guest.priority


def by_running_time(guest: GuestUsage, series: MetricSeries) -> float:
    """Youngest first."""
    return -guest.started


def by_usage(guest: GuestUsage, series: MetricSeries) -> float:
    """Largest use of the metric in question first; guests of which it is not known last."""
    return -guest.usage.get(series, 0.0)


def by_cpu_use(guest: GuestUsage, series: MetricSeries) -> float:
    """Largest use of CPU first, whatever metric is in question."""
    return -guest.usage.get(MetricSeries("cpu_usage"), 0.0)


def by_best_effort_ratio(guest: GuestUsage, series: MetricSeries) -> float:
    """Largest ratio of CPU use to what was promised first."""
    promised = sum(one.full for knob, one in guest.entitlements.items() if knob.lever == "cpu_quota")
    return by_cpu_use(guest, series) / promised if promised else 0.0


def combined(comparison: Comparison) -> Sorter:
    """A new metric's own comparison between the general ones."""
    return (by_class, by_priority, comparison, by_running_time)


GENERAL: Final[Sorter] = (by_class, by_priority, by_running_time)
CPU: Final[Sorter] = (by_class, by_priority, by_cpu_use, by_best_effort_ratio, by_running_time)
MEMORY: Final[Sorter] = combined(by_usage)


def ordered(guests: Iterable[GuestUsage], sorter: Sorter, series: MetricSeries) -> list[GuestUsage]:
    """The guests, the one that is acted on first at the front."""
    return sorted(guests, key=lambda guest: (*(key(guest, series) for key in sorter), guest.uuid))
