"""Reads the ``[watermark:NAME]`` sections of a configuration, and finds contradictions between them."""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from oslo_config import cfg

from compute_agent.classes.guest_classes import QosClasses
from compute_agent.conf.qos import WATERMARK, family_sections
from compute_agent.model.messages import ConfigError
from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.levers import ThrottleSteps, left_by, taken_by
from compute_agent.throttling.watermarks.expressions import is_expression, normal_text, parse_expression
from compute_agent.throttling.watermarks.metrics import (
    CRITERIA,
    MetricRegistry,
    MetricUnit,
    Sorter,
    WatermarkMetric,
)
from compute_agent.throttling.watermarks.state import WatermarkState
from compute_agent.throttling.watermarks.thresholds import (
    THRESHOLD,
    WatermarkThreshold,
    WeekMoment,
    WeekPeriod,
    parse_period,
    parse_threshold,
    week_bounds,
)
from compute_agent.usage.snapshot import GuestUsage, MetricSeries, UsageSnapshot

# The pattern matches only the last word, because the period before the amount can end in a digit, too.
_AMOUNT: Final = re.compile(rf"\s+({THRESHOLD.pattern})$", re.ASCII)


class WatermarkAction(enum.StrEnum):
    """The actions of watermarks; the values are the names of the options."""

    DISABLE_SCHEDULING = "disable_scheduling"
    EVICT = "evict"
    RECLAIM = "reclaim"
    THROTTLE_DOWN = "throttle_down"
    THROTTLE_UP = "throttle_up"


MAX_PERIODS: Final = 20
"""Maximum number of periods of one threshold. This number limits the work of the check, which examines all
sections at the bounds of all periods."""

ABOVE: Final = tuple(action for action in WatermarkAction if action is not WatermarkAction.THROTTLE_UP)
"""The actions that are taken above a threshold. The only other action is raising limits, below a
threshold."""


Schedules = Mapping[WatermarkAction, tuple[tuple[WeekPeriod, WatermarkThreshold], ...]]
"""The thresholds of periods, by action. If several periods contain a minute, the last one counts."""


@dataclass(frozen=True, slots=True)
class WatermarkSection:
    """One section ``[watermark:NAME]``.

    :ivar thresholds: the usage above which each action is taken; for ``THROTTLE_UP``, the usage below which
        limits are raised again. The section does not take an action without a threshold.
    :ivar for_samples: number of successive rounds with usage above a threshold before the section acts.
    :ivar cool_down: seconds without usage above a threshold before limits are raised.
    :ivar preview: whether actions are only reported, and not carried out.
    :ivar qos_classes: the classes of the guests on which the section acts; empty for all classes.
    :ivar max_priority: the highest priority of these guests; None for all priorities.
    :ivar scheduled: thresholds that replace the usual thresholds in periods of the week.
    :ivar external: whether the metric comes from outside the kernel; see :class:`WatermarkMetric`.
    :ivar steps: the sizes of steps by which the section changes limits; None means the sizes in ``[qos]``.
    :ivar order: the order in which guests are chosen for actions; None means the order of the metric.
    :ivar evict_grace: seconds that an evicted guest has to end; None means ``[qos] evict_grace``.
    :ivar evict_at_once: maximum number of guests that leave at the same time; None for no maximum. The
        maximum applies only if the amount that an eviction frees cannot be computed.
    """

    name: str
    metric: str
    thresholds: Mapping[WatermarkAction, WatermarkThreshold] = field(default_factory=dict)
    for_samples: int = 1
    cool_down: float = 0.0
    preview: bool = False
    qos_classes: frozenset[str] = frozenset()
    max_priority: int | None = None
    scheduled: Schedules = field(default_factory=dict)
    external: bool = False
    steps: ThrottleSteps | None = None
    order: Sorter | None = None
    evict_grace: float | None = None
    evict_at_once: int | None = None

    def selects_guest(self, guest: GuestUsage) -> bool:
        """Whether the section can act on this guest; False for each protected guest."""
        return (
            not guest.protected
            and (not self.qos_classes or guest.qos_class in self.qos_classes)
            and (self.max_priority is None or guest.priority <= self.max_priority)
        )

    def at_moment(self, moment: WeekMoment) -> WatermarkSection:
        """The section with the thresholds that hold at ``moment``."""
        found = {
            action: threshold
            for action, entries in self.scheduled.items()
            for period, threshold in entries
            if period.has_moment(moment)
        }
        return replace(self, thresholds={**self.thresholds, **found}) if found else self

    def threshold_for(self, action: WatermarkAction) -> WatermarkThreshold | None:
        """The threshold of an action; None if the section does not take the action."""
        return self.thresholds.get(action)

    def threshold_amount(self, action: WatermarkAction, snapshot: UsageSnapshot, domain: str) -> float | None:
        """The threshold of an action on a domain, in the metric's unit.

        The result is None if there is no threshold, or if it is a percentage of an unknown capacity.
        """
        # A percentage refers to the capacity of the domain, because caches of one host can differ in size.
        threshold = self.threshold_for(action)
        capacity = snapshot.capacity.get(MetricSeries(self.metric, domain))
        return None if threshold is None else threshold.absolute_amount(capacity)


def with_expressions(conf: cfg.ConfigOpts, registry: MetricRegistry) -> MetricRegistry:
    """A registry with the metrics of ``registry`` and the expressions of all watermarks.

    :raises ConfigError: an expression cannot be used; the text names its section.
    """
    found: dict[str, WatermarkMetric] = {}
    for name, options in family_sections(conf, WATERMARK):
        if options.metric and is_expression(options.metric):
            try:
                metric = parse_expression(options.metric, registry)
            except ValueError as error:
                raise ConfigError(f"[{WATERMARK}{name}] metric: {error}") from error
            found[metric.name] = metric
    return registry.with_metrics(found.values()) if found else registry


def parse_watermarks(
    conf: cfg.ConfigOpts, registry: MetricRegistry, classes: QosClasses
) -> tuple[WatermarkSection, ...]:
    """Read the sections ``[watermark:NAME]``, and check them.

    :raises ConfigError: an option is wrong, or sections contradict each other; the text names them.
    """
    watermarks = []
    for name, options in family_sections(conf, WATERMARK):
        metric = _find_metric(name, options.metric, registry)
        found = {
            action: _read_thresholds(f"[{WATERMARK}{name}] {action}", action, text, metric)
            for action in WatermarkAction
            if (text := options[action.value]) is not None
        }
        watermark = WatermarkSection(
            name,
            metric.name,
            {action: threshold for action, (threshold, _) in found.items()},
            for_samples=options.for_samples,
            cool_down=options.cool_down,
            preview=options.mode == "preview",
            qos_classes=read_classes(
                f"[{WATERMARK}{name}] qos_classes", options.qos_classes, classes, limited=True
            ),
            max_priority=options.max_priority,
            scheduled={action: entries for action, (_, entries) in found.items() if entries},
            external=metric.external,
            steps=_read_steps(conf, options),
            order=tuple(CRITERIA[word] for word in options.order) or None,
            evict_grace=options.evict_grace,
            # For a condition or an external metric the default is one guest at a time, because the amount to
            # free is unknown, and one guest can be enough.
            evict_at_once=options.evict_at_once or (1 if metric.inputs or metric.external else None),
        )
        watermarks.append(watermark)
    check_watermarks(watermarks)
    return tuple(watermarks)


def check_watermarks(watermarks: Sequence[WatermarkSection]) -> None:
    """Check each watermark, and all watermarks together, for each period of the week.

    :raises ConfigError: thresholds contradict each other; the text has the minute of the week.
    """
    periods = [
        period
        for watermark in watermarks
        for entries in watermark.scheduled.values()
        for period, _ in entries
    ]
    for moment in week_bounds(periods):
        present = [watermark.at_moment(moment) for watermark in watermarks]
        try:
            for watermark in present:
                _check_watermark(watermark)
            check_together(present)
        except ConfigError as error:
            raise ConfigError(f"{error} (on {moment})" if periods else str(error)) from error


def check_together(watermarks: Iterable[WatermarkSection]) -> None:
    """Check that watermarks of one metric do not contradict each other.

    Watermarks in preview are checked separately from watermarks in force.

    :raises ConfigError: two watermarks contradict each other; the text names both watermarks.
    """
    by_metric: dict[tuple[str, bool], list[WatermarkSection]] = {}
    for watermark in watermarks:
        # A section in preview is often a trial of a replacement, so it can contradict the section in force.
        by_metric.setdefault((watermark.metric, watermark.preview), []).append(watermark)
    for same in by_metric.values():
        _check_same_kind(same)
        # Only the lowest threshold of each action is compared, because it decides for all guests.
        down, up = (
            _lowest_threshold(same, WatermarkAction.THROTTLE_DOWN),
            _lowest_threshold(same, WatermarkAction.THROTTLE_UP),
        )
        if down is None and up is not None:
            raise ConfigError(
                f"{_option_name(up[0], WatermarkAction.THROTTLE_UP)}: nothing is throttled for {up[0].metric}"
            )
        # Limits are raised only below a threshold throttle_up, so without such a threshold the limits would
        # never be removed.
        if down is not None and up is None:
            raise ConfigError(
                f"{_option_name(down[0], WatermarkAction.THROTTLE_DOWN)}: without a throttle_up for"
                f" {down[0].metric} guests would stay throttled for ever"
            )
        # With equal thresholds, limits would be set and removed again and again.
        for action in (WatermarkAction.RECLAIM, WatermarkAction.THROTTLE_DOWN, WatermarkAction.EVICT):
            above = _lowest_threshold(same, action)
            if up is not None and above is not None and up[1].value >= above[1].value:
                raise ConfigError(
                    f"{_option_name(up[0], WatermarkAction.THROTTLE_UP)} = {up[1]} is not below"
                    f" {_option_name(above[0], action)} = {above[1]}"
                )


_ESCALATION: Final = {
    WatermarkAction.RECLAIM: "reclaimed from",
    WatermarkAction.THROTTLE_DOWN: "throttled",
    WatermarkAction.EVICT: "evicted",
}
"""The actions on guests in the order of their severity, each with its word for error messages."""


def _check_watermark(watermark: WatermarkSection) -> None:
    """Check the thresholds of one section.

    :raises ConfigError: the section has no threshold, mixes units, or evicts before it throttles.
    """
    thresholds = watermark.thresholds
    if not thresholds:
        raise ConfigError(f"[{WATERMARK}{watermark.name}] has no threshold: {', '.join(WatermarkAction)}")
    # A percentage and an amount cannot be compared here, because the host's capacity is not known yet.
    if len({threshold.relative for threshold in thresholds.values()}) > 1:
        listed = ", ".join(f"{action} = {threshold}" for action, threshold in thresholds.items())
        raise ConfigError(f"[{WATERMARK}{watermark.name}] mixes percentages and amounts: {listed}")
    # The order is checked only within a section, because another section can evict guests of other classes at
    # a lower threshold.
    for (first, done), (then, do) in itertools.combinations(_ESCALATION.items(), 2):
        low, high = thresholds.get(first), thresholds.get(then)
        if low is not None and high is not None and high.value < low.value:
            raise ConfigError(
                f"{_option_name(watermark, then)} = {high} is below {first} = {low}: guests would be {do}"
                f" before they are {done}"
            )


def _check_same_kind(watermarks: Sequence[WatermarkSection]) -> None:
    kinds: dict[bool, WatermarkSection] = {}
    for watermark in watermarks:
        for threshold in watermark.thresholds.values():
            kinds.setdefault(threshold.relative, watermark)
    # The lowest threshold decides, and a percentage cannot be compared with an amount.
    if len(kinds) > 1:
        raise ConfigError(
            f"[{WATERMARK}{kinds[True].name}] has percentages of {watermarks[0].metric} and"
            f" [{WATERMARK}{kinds[False].name}] has amounts, so that they cannot be compared"
        )


def _lowest_threshold(
    watermarks: Iterable[WatermarkSection], action: WatermarkAction
) -> tuple[WatermarkSection, WatermarkThreshold] | None:
    found = [(one, one.thresholds[action]) for one in watermarks if action in one.thresholds]
    return min(found, key=lambda pair: pair[1].value, default=None)


def _find_metric(name: str, text: str | None, registry: MetricRegistry) -> WatermarkMetric:
    metric = registry.get(normal_text(text or ""))
    if metric is None:
        said = f"there is no metric {text!r}" if text else "the option is missing"
        raise ConfigError(f"[{WATERMARK}{name}] metric: {said}; choose one of {', '.join(sorted(registry))}")
    return metric


def _read_thresholds(
    section: str, action: WatermarkAction, text: str, metric: WatermarkMetric
) -> tuple[WatermarkThreshold, tuple[tuple[WeekPeriod, WatermarkThreshold], ...]]:
    """Read the option of one action: its usual threshold, and the thresholds of periods.

    :raises ConfigError: the text is wrong, or the metric does not support the action.
    """
    if action in (WatermarkAction.THROTTLE_DOWN, WatermarkAction.THROTTLE_UP) and not metric.can_throttle:
        raise ConfigError(f"{section}: guests cannot be throttled for {metric.name}")
    if action is WatermarkAction.RECLAIM and not metric.reclaimable:
        raise ConfigError(f"{section}: a reclaim of memory does not lower {metric.name}; only memory_usage")
    if action is WatermarkAction.EVICT and not metric.evictable:
        raise ConfigError(f"{section}: guests cannot be evicted for {metric.name}")
    if metric.unit is MetricUnit.CONDITION:
        return _read_condition(section, action, text), ()
    usual, *others = text.split(",")
    if len(others) > MAX_PERIODS:
        raise ConfigError(f"{section}: there are more than {MAX_PERIODS} periods")
    try:
        entries = []
        for entry in others:
            match = _AMOUNT.search(entry.strip())
            if match is None:
                raise ValueError(f"{entry.strip()!r} has no period and amount such as 22:00-06:00 95%")
            threshold = parse_threshold(match[1], metric.unit, metric.has_capacity)
            entries.append((parse_period(entry.strip()[: match.start()]), threshold))
        return parse_threshold(usual, metric.unit, metric.has_capacity), tuple(entries)
    except ValueError as error:
        raise ConfigError(f"{section}: {error}") from error


def _read_steps(conf: cfg.ConfigOpts, options: Any) -> ThrottleSteps | None:
    """The sizes of steps that a section sets; None if the section sets no sizes."""
    if options.step is None and options.min_share is None:
        return None
    step = conf.qos.step if options.step is None else options.step
    min_share = conf.qos.min_share if options.min_share is None else options.min_share
    # The options are in percent; the arithmetic of limits uses parts of 1.
    return ThrottleSteps(step / 100, min_share / 100)


def _read_condition(section: str, action: WatermarkAction, text: str) -> WatermarkThreshold:
    """Read the threshold of a condition: ``false`` for raising limits, and ``true`` for all other actions.

    :raises ConfigError: the text is another word.
    """
    word = "false" if action is WatermarkAction.THROTTLE_UP else "true"
    if text.strip().lower() != word:
        raise ConfigError(f"{section}: the metric is a condition: write {word}")
    return parse_threshold(word, MetricUnit.CONDITION)


def read_classes(option: str, names: Collection[str], classes: QosClasses, limited: bool) -> frozenset[str]:
    """Check the names of classes in an option.

    :param limited: whether the option names classes of guests that can be limited.
    :raises ConfigError: a class does not exist, or the agent never limits it; the text names the option.
    """
    for name in names:
        if name not in classes.classes:
            known = ", ".join(sorted(classes.classes))
            raise ConfigError(f"{option}: there is no class {name!r}; there are {known}")
        # The option is refused, because it would have no effect: the agent never limits such a class.
        if limited and classes.is_protected(name, dedicated=False):
            raise ConfigError(f"{option}: {name} is above [qos] highest_class and the agent never limits it")
    return frozenset(names)


def _option_name(watermark: WatermarkSection, action: WatermarkAction) -> str:
    return f"[{WATERMARK}{watermark.name}] {action}"


@dataclass(frozen=True, slots=True)
class WatermarkRules:
    """The configuration for decisions, which also computes the expected effects of actions.

    With a ``margin`` of 0.1, actions free a tenth more than the excess.
    """

    registry: MetricRegistry
    watermarks: tuple[WatermarkSection, ...]
    steps: ThrottleSteps = field(default_factory=ThrottleSteps)
    margin: float = 0.1

    def with_preview(self, *, preview: bool) -> WatermarkRules:
        """The rules with only the watermarks in preview (True), or only the watermarks in force (False)."""
        return replace(self, watermarks=tuple(one for one in self.watermarks if one.preview is preview))

    def at_moment(self, moment: WeekMoment) -> WatermarkRules:
        """The rules with the thresholds that hold at ``moment``."""
        return replace(self, watermarks=tuple(one.at_moment(moment) for one in self.watermarks))

    def needed_metrics(self, watermarks: Iterable[WatermarkSection]) -> list[WatermarkMetric]:
        """The metrics of some watermarks, and the metrics that their levers limit, without duplicates."""
        names: dict[str, None] = {}
        for watermark in watermarks:
            metric = self.registry[watermark.metric]
            # The metrics of an expression are measured, too, so that operators see why the expression holds.
            names |= dict.fromkeys((metric.name, *metric.inputs))
            # The lever's own metric is needed, too, because the effect of a limit is computed from a guest's
            # use of this metric.
            names |= {metric.lever.metric: None} if metric.lever else {}
        return [self.registry[name] for name in names if name in self.registry]

    def steps_of(self, watermark: WatermarkSection) -> ThrottleSteps:
        """The sizes of steps by which a watermark changes limits."""
        return watermark.steps or self.steps

    def restore_steps(self, lever: str) -> ThrottleSteps:
        """The step sizes by which limits of a lever rise: those of the watermark with the smallest step."""
        found = [
            self.steps_of(watermark)
            for metric in self.registry.metrics_moved_by(lever)
            for watermark in self.of_metric(metric.name, WatermarkAction.THROTTLE_DOWN)
        ]
        return min(found, key=lambda one: one.step, default=self.steps)

    @property
    def limited_evictions(self) -> frozenset[str]:
        """The names of the watermarks that limit how many guests leave at the same time."""
        return frozenset(one.name for one in self.watermarks if one.evict_at_once is not None)

    def of_metric(self, metric: str, action: WatermarkAction) -> list[WatermarkSection]:
        """The watermarks of a metric that have a threshold for an action."""
        return [one for one in self.watermarks if one.metric == metric and action in one.thresholds]

    def throttled_series(self, state: WatermarkState) -> list[MetricSeries]:
        """The series (a metric on one domain) for which guests can be limited now."""
        return [
            MetricSeries(metric.name, one.knob.domain)
            for one in state.throttles
            for metric in self.registry.metrics_moved_by(one.knob.lever)
        ]

    # Expected effects of actions

    def after_eviction(self, snapshot: UsageSnapshot, guest: str) -> UsageSnapshot:
        """The snapshot without a guest. The host's use falls only for ``evict_quantified`` metrics."""
        # A guest that is missing in the snapshot has left since its eviction began.
        if guest not in snapshot.guests:
            return snapshot
        return snapshot.without_guest(
            guest, {name for name, one in self.registry.items() if one.evict_quantified}
        )

    def share_left(
        self, guest: GuestUsage, knob: ThrottleControl, before: float | None, after: float
    ) -> float:
        """The share of its use that a guest keeps when its limit falls to ``after``; 1 if use is unknown."""
        use = self._guest_consumption(guest, knob)
        return 1.0 if not use else left_by(use, before, after, guest.allotments[knob]) / use

    def after_throttle(
        self, snapshot: UsageSnapshot, guest: str, knob: ThrottleControl, before: float | None, after: float
    ) -> UsageSnapshot:
        """The expected snapshot after a guest's limit falls from ``before`` (None: no limit) to ``after``."""
        one = snapshot.guests[guest]
        return self._with_scaled_use(snapshot, one, knob, self.share_left(one, knob, before, after))

    def after_restore(
        self, snapshot: UsageSnapshot, guest: str, knob: ThrottleControl, before: float, after: float | None
    ) -> UsageSnapshot:
        """The highest usage expected after a limit rises from ``before`` to ``after``, None for no limit."""
        one = snapshot.guests[guest]
        use = self._guest_consumption(one, knob)
        # If the use of the guest is unknown, no rise of usage is assumed. Otherwise its limit could stay for
        # ever.
        if not use:
            return snapshot
        # In the worst case, the guest uses all of its higher limit at once.
        share = taken_by(use, before, after, one.allotments[knob]) / use
        return self._with_scaled_use(snapshot, one, knob, share)

    def _guest_consumption(self, guest: GuestUsage, knob: ThrottleControl) -> float | None:
        lever = self.registry.levers.get(knob.lever)
        if lever is None or knob not in guest.allotments:
            return None
        return lever.guest_consumption(guest, knob.domain)

    def _with_scaled_use(
        self, snapshot: UsageSnapshot, guest: GuestUsage, knob: ThrottleControl, share: float
    ) -> UsageSnapshot:
        """The snapshot after the guest's use of the metrics of ``knob`` is multiplied by ``share``."""
        if share == 1.0:
            return snapshot
        usage = {}
        for metric in self.registry.metrics_moved_by(knob.lever):
            series = MetricSeries(metric.name, knob.domain)
            # A metric for which this guest has no value does not change.
            if series in guest.usage:
                usage[series] = guest.usage[series] * share
        return snapshot.with_usage(guest.uuid, usage)


def find_unenforceable(
    watermarks: Iterable[WatermarkSection],
    registry: MetricRegistry,
    unmeasured_metrics: Mapping[str, str],
    unusable_levers: Mapping[str, str],
) -> Iterator[str]:
    """Sentences about watermarks and actions that cannot take effect on this host.

    :param unmeasured_metrics: the metrics that cannot be measured on this host, each with the reason.
    :param unusable_levers: the levers that have no effect on this host, each with the reason.
    """
    for watermark in watermarks:
        section, lever = f"[{WATERMARK}{watermark.name}]", registry[watermark.metric].lever
        # A watermark gets at most one sentence: if its metric is missing, it cannot throttle either.
        needed = registry[watermark.metric].measured_names
        if reasons := [unmeasured_metrics[one] for one in needed if one in unmeasured_metrics]:
            yield f"{section} metric = {watermark.metric}: the agent never acts, because {reasons[0]}"
        elif lever and (reason := unusable_levers.get(lever.name)):
            if WatermarkAction.THROTTLE_DOWN in watermark.thresholds:
                yield f"{section} throttle_down: no guest is throttled, because {reason}"
            # A reclaim of memory needs swap, as the lever of the metric does.
            if WatermarkAction.RECLAIM in watermark.thresholds:
                yield f"{section} reclaim: no memory is reclaimed, because {reason}"
