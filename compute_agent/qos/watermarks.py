"""Watermarks: what ``[watermark:NAME]`` sections say, and which configurations contradict themselves."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from oslo_config import cfg

from compute_agent.conf.qos import WATERMARK, watermark_sections
from compute_agent.model.messages import ConfigError
from compute_agent.qos.classes import QosClasses
from compute_agent.qos.metrics import MetricRegistry, MetricUnit, WatermarkMetric
from compute_agent.qos.snapshot import GuestUsage, MetricSeries, UsageSnapshot

_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_THRESHOLD: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT%]?)", re.ASCII)


class WatermarkAction(enum.StrEnum):
    """What a watermark asks for; the values are the names of the options."""

    DISABLE_SCHEDULING = "disable_scheduling"
    EVICT = "evict"
    THROTTLE_DOWN = "throttle_down"
    THROTTLE_UP = "throttle_up"


ABOVE: Final = (WatermarkAction.DISABLE_SCHEDULING, WatermarkAction.EVICT, WatermarkAction.THROTTLE_DOWN)
"""The actions that are taken above their threshold."""


@dataclass(frozen=True, slots=True)
class WatermarkThreshold:
    """From where on an action is taken.

    It is in the metric's unit, or ``relative``, in percent of what the host has.
    """

    value: float
    relative: bool = False

    def amount(self, capacity: float | None) -> float | None:
        """In the metric's unit; None where what the host has is not known."""
        if not self.relative:
            return self.value
        return None if capacity is None else self.value / 100 * capacity

    def __str__(self) -> str:
        return f"{self.value:.15g}{'%' if self.relative else ''}"


@dataclass(frozen=True, slots=True)
class GuestSelector:
    """Which guests a watermark is about.

    Those of ``classes`` (empty: all) up to ``max_priority`` (None: all).
    """

    classes: frozenset[str] = frozenset()
    max_priority: int | None = None

    def selects(self, guest: GuestUsage) -> bool:
        """Whether a watermark is about this guest; a protected one never."""
        return (
            not guest.protected
            and (not self.classes or guest.qos_class in self.classes)
            and (self.max_priority is None or guest.priority <= self.max_priority)
        )


@dataclass(frozen=True, slots=True)
class WatermarkSection:
    """The thresholds of one section. ``cool_down`` is in seconds; ``preview``: nothing is really done."""

    name: str
    metric: str
    throttle_down: WatermarkThreshold | None = None
    throttle_up: WatermarkThreshold | None = None
    evict: WatermarkThreshold | None = None
    disable_scheduling: WatermarkThreshold | None = None
    for_samples: int = 1
    cool_down: float = 0.0
    preview: bool = False
    selector: GuestSelector = GuestSelector()

    def threshold(self, action: WatermarkAction) -> WatermarkThreshold | None:
        """The threshold of an action, if there is one."""
        found: WatermarkThreshold | None = getattr(self, action.value)
        return found

    def amount(self, action: WatermarkAction, snapshot: UsageSnapshot, domain: str) -> float | None:
        """The threshold of an action on one domain, in the metric's unit.

        None if there is none or it is not known.
        """
        threshold = self.threshold(action)
        capacity = snapshot.capacity.get(MetricSeries(self.metric, domain))
        return None if threshold is None else threshold.amount(capacity)


def parse_watermarks(
    conf: cfg.ConfigOpts, registry: MetricRegistry, classes: QosClasses
) -> tuple[WatermarkSection, ...]:
    """The watermarks that ``conf`` has.

    :raises ConfigError: naming section and option.
    """
    watermarks = []
    for name, options in watermark_sections(conf):
        metric = _metric(name, options.metric, registry)
        thresholds = {
            action: _threshold(name, action, options[action.value], metric) for action in WatermarkAction
        }
        watermark = WatermarkSection(
            name,
            metric.name,
            **{action.value: threshold for action, threshold in thresholds.items()},
            for_samples=options.for_samples,
            cool_down=options.cool_down,
            preview=options.mode == "preview",
            selector=_selector(name, options, classes),
        )
        _check_watermark(watermark)
        watermarks.append(watermark)
    check_together(watermarks)
    return tuple(watermarks)


def parse_threshold(text: str, unit: MetricUnit) -> WatermarkThreshold:
    """A threshold as written: ``0.8``, ``12G``, ``80%``.

    :raises ValueError:
    """
    match = _THRESHOLD.fullmatch(text.strip())
    if match is None or not math.isfinite(float(match[1])):
        raise ValueError(f"{text!r} is no threshold: a number such as 12, 1.5, 12G or 80% is needed")
    value, suffix = float(match[1]), match[2]
    if suffix == "%":
        if unit == MetricUnit.OTHER:
            raise ValueError("the metric has no percentages")
        if value > 100 and unit != MetricUnit.PERCENT:
            raise ValueError(f"{text.strip()} is more than there is")
        return WatermarkThreshold(value, relative=unit != MetricUnit.PERCENT)
    if suffix and unit not in (MetricUnit.BYTES, MetricUnit.BYTES_PER_SECOND):
        raise ValueError(f"{suffix} is for bytes, and the metric is in {unit or 'another unit'}")
    return WatermarkThreshold(value * 1024 ** _POWERS[suffix])


def check_together(watermarks: Iterable[WatermarkSection]) -> None:
    """Those in preview are compared among themselves, so that others can be tried out beside those in force.

    :raises ConfigError: watermarks of one metric contradict each other.
    """
    by_metric: dict[tuple[str, bool], list[WatermarkSection]] = {}
    for watermark in watermarks:
        by_metric.setdefault((watermark.metric, watermark.preview), []).append(watermark)
    for same in by_metric.values():
        _check_same_kind(same)
        down, up = _lowest(same, WatermarkAction.THROTTLE_DOWN), _lowest(same, WatermarkAction.THROTTLE_UP)
        if down is None and up is not None:
            raise ConfigError(
                f"{_option(up[0], WatermarkAction.THROTTLE_UP)}: nothing is throttled for {up[0].metric}"
            )
        if down is not None and up is None:
            raise ConfigError(
                f"{_option(down[0], WatermarkAction.THROTTLE_DOWN)}: without a throttle_up for"
                f" {down[0].metric} guests would stay throttled"
            )
        for action in (WatermarkAction.THROTTLE_DOWN, WatermarkAction.EVICT):
            above = _lowest(same, action)
            if up is not None and above is not None and up[1].value >= above[1].value:
                raise ConfigError(
                    f"{_option(up[0], WatermarkAction.THROTTLE_UP)} = {up[1]} is not below"
                    f" {_option(above[0], action)} = {above[1]}"
                )


def _check_watermark(watermark: WatermarkSection) -> None:
    """One section alone.

    :raises ConfigError:
    """
    if all(watermark.threshold(action) is None for action in WatermarkAction):
        raise ConfigError(f"[{WATERMARK}{watermark.name}] has no threshold: {', '.join(WatermarkAction)}")
    thresholds = [
        (action, found) for action in WatermarkAction if (found := watermark.threshold(action)) is not None
    ]
    if len({threshold.relative for _, threshold in thresholds}) > 1:
        listed = ", ".join(f"{action} = {threshold}" for action, threshold in thresholds)
        raise ConfigError(f"[{WATERMARK}{watermark.name}] mixes percentages and amounts: {listed}")
    if watermark.throttle_down and watermark.evict and watermark.evict.value < watermark.throttle_down.value:
        raise ConfigError(
            f"{_option(watermark, WatermarkAction.EVICT)} = {watermark.evict} is below"
            f" throttle_down = {watermark.throttle_down}: guests would be evicted before they are throttled"
        )


def _check_same_kind(watermarks: Sequence[WatermarkSection]) -> None:
    kinds: dict[bool, WatermarkSection] = {}
    for watermark in watermarks:
        for action in WatermarkAction:
            threshold = watermark.threshold(action)
            if threshold is not None:
                kinds.setdefault(threshold.relative, watermark)
    if len(kinds) > 1:
        raise ConfigError(
            f"[{WATERMARK}{kinds[True].name}] has percentages of {watermarks[0].metric} and"
            f" [{WATERMARK}{kinds[False].name}] has amounts, so that they cannot be compared"
        )


def _lowest(
    watermarks: Iterable[WatermarkSection], action: WatermarkAction
) -> tuple[WatermarkSection, WatermarkThreshold] | None:
    found = [
        (watermark, threshold)
        for watermark in watermarks
        if (threshold := watermark.threshold(action)) is not None
    ]
    return min(found, key=lambda pair: pair[1].value, default=None)


def _metric(name: str, text: str | None, registry: MetricRegistry) -> WatermarkMetric:
    metric = registry.get(text or "")
    if metric is None:
        said = f"there is no metric {text!r}" if text else "which one is not said"
        raise ConfigError(f"[{WATERMARK}{name}] metric: {said}; there are {', '.join(sorted(registry))}")
    return metric


def _threshold(
    name: str, action: WatermarkAction, text: str | None, metric: WatermarkMetric
) -> WatermarkThreshold | None:
    if text is None:
        return None
    section = f"[{WATERMARK}{name}] {action}"
    if action in (WatermarkAction.THROTTLE_DOWN, WatermarkAction.THROTTLE_UP) and not metric.throttleable:
        raise ConfigError(f"{section}: guests cannot be throttled for {metric.name}")
    if action is WatermarkAction.EVICT and not metric.evictable:
        raise ConfigError(f"{section}: guests cannot be evicted for {metric.name}")
    try:
        return parse_threshold(text, metric.unit)
    except ValueError as error:
        raise ConfigError(f"{section}: {error}") from error


def _selector(name: str, options: Any, classes: QosClasses) -> GuestSelector:
    chosen: Collection[str] = options.qos_classes
    for qos_class in chosen:
        section = f"[{WATERMARK}{name}] qos_classes"
        if qos_class not in classes.classes:
            known = ", ".join(sorted(classes.classes))
            raise ConfigError(f"{section}: there is no class {qos_class!r}; there are {known}")
        if classes.protects(qos_class, dedicated=False):
            raise ConfigError(f"{section}: {qos_class} is above [qos] highest_class and never acted on")
    return GuestSelector(frozenset(chosen), options.max_priority)


def _option(watermark: WatermarkSection, action: WatermarkAction) -> str:
    return f"[{WATERMARK}{watermark.name}] {action}"
