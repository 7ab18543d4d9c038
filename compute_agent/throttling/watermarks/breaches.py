"""Breaches: how long the usage of a metric has been above a threshold. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.levers import ThrottleLever
from compute_agent.throttling.watermarks.metrics import (
    GENERAL_ORDER,
    GuestSampling,
    Sorter,
    WatermarkMetric,
)
from compute_agent.throttling.watermarks.sections import (
    ABOVE,
    WatermarkAction,
    WatermarkRules,
    WatermarkSection,
)
from compute_agent.throttling.watermarks.state import ThrottleAction
from compute_agent.usage.snapshot import GuestUsage, MetricSeries, UsageSnapshot


class WatermarkWatch(NamedTuple):
    """The key of a streak: one threshold of a watermark on one domain."""

    watermark: str
    action: WatermarkAction
    domain: str


@dataclass(frozen=True, slots=True)
class ThresholdStreak:
    """The recent history of usage for one threshold on one domain.

    - ``samples`` is the number of successive samples above the threshold, up to the latest sample.
    - ``unseen`` is the number of rounds without a sample since the latest sample.
    - ``quiet_since`` is the time at which usage was last above the threshold, in monotonic seconds. If usage
      was never above the threshold, ``quiet_since`` is the time of the first round.
    """

    samples: int = 0
    unseen: int = 0
    quiet_since: float = 0.0


Streaks = Mapping[WatermarkWatch, ThresholdStreak]
"""The streaks by watch. Each domain has its own streaks, because a breach on one domain says nothing about
other domains."""


def observe_usage(
    streaks: Streaks,
    watermarks: Iterable[WatermarkSection],
    snapshot: UsageSnapshot,
    expected: Iterable[MetricSeries] = (),
) -> dict[WatermarkWatch, ThresholdStreak]:
    """Count another snapshot in the streaks; return the new streaks of measured and ``expected`` domains.

    A round without a sample does not change ``samples``, because a single reading can fail. After
    ``for_samples`` rounds without a sample, ``samples`` is 0 again. If other domains still have samples then,
    the domain no longer exists, and its watch ends.
    """
    after: dict[WatermarkWatch, ThresholdStreak] = {}
    for watermark in watermarks:
        measured = {one.domain for one in snapshot.host if one.metric == watermark.metric}
        # Domains of throttled guests count until the limits are removed.
        kept = measured | {one.domain for one in expected if one.metric == watermark.metric}
        domains = kept | {watch.domain for watch in streaks if watch.watermark == watermark.name}
        for action in ABOVE:
            # Before the first sample the domains are unknown. Without a domain, the whole host ("") counts as
            # the domain, so that the quiet time begins with the first round.
            for domain in domains or {""}:
                watch = WatermarkWatch(watermark.name, action, domain)
                if action in watermark.thresholds:
                    # A new watch is quiet from now on, because the usage before is not known.
                    before = streaks.get(watch, ThresholdStreak(quiet_since=snapshot.time))
                    streak = _next_streak(before, watermark, watch, snapshot)
                    # The domain "" was only used until the domains of the metric were known.
                    is_over = not domain or is_blind(streak, watermark)
                    if not measured or domain in kept or not is_over:
                        after[watch] = streak
    return after


def _next_streak(
    before: ThresholdStreak, watermark: WatermarkSection, watch: WatermarkWatch, snapshot: UsageSnapshot
) -> ThresholdStreak:
    usage = snapshot.host.get(MetricSeries(watermark.metric, watch.domain))
    amount = watermark.threshold_amount(watch.action, snapshot, watch.domain)
    # A threshold in percent of an unknown capacity cannot be compared, so the round counts as one without a
    # sample.
    if usage is None or amount is None:
        unseen = before.unseen + 1
        samples = 0 if unseen >= watermark.for_samples else before.samples
        return replace(before, unseen=unseen, samples=samples)
    # Usage has to be strictly above the threshold, so that a full host does not exceed a threshold of 100 %.
    if usage > amount:
        return ThresholdStreak(before.samples + 1, 0, snapshot.time)
    return ThresholdStreak(0, 0, before.quiet_since)


def restart_streaks(streaks: Streaks, watermarks: Iterable[str]) -> Streaks:
    """Set the eviction streaks of ``watermarks`` to 0 after their evicted guests have left.

    So the watermarks evict further guests only after new measurements.
    """
    names = frozenset(watermarks)
    return {
        watch: replace(streak, samples=0)
        if watch.watermark in names and watch.action is WatermarkAction.EVICT
        else streak
        for watch, streak in streaks.items()
    }


def is_confirmed(streaks: Streaks, watermark: WatermarkSection, action: WatermarkAction, domain: str) -> bool:
    """Whether a watermark can act: usage has been above its threshold for ``for_samples`` rounds."""
    return (
        streaks.get(WatermarkWatch(watermark.name, action, domain), ThresholdStreak()).samples
        >= watermark.for_samples
    )


def is_overloaded(streaks: Streaks) -> bool:
    """Whether usage is above any threshold of throttling, reclaim or eviction, even for one round."""
    return any(
        streak.samples > 0
        for watch, streak in streaks.items()
        # Limits of running guests can be raised while new guests are kept away.
        if watch.action is not WatermarkAction.DISABLE_SCHEDULING
    )


def is_blind(streak: ThresholdStreak, watermark: WatermarkSection) -> bool:
    """Whether usage counts as unknown: samples have been missing for ``for_samples`` rounds."""
    return streak.unseen >= watermark.for_samples


def is_quiet(streak: ThresholdStreak, watermark: WatermarkSection, time: float, cool_down: float) -> bool:
    """Whether limits can be raised: usage was not above the threshold for ``cool_down`` seconds."""
    # One missing sample does not count as quiet, because usage can be high. A metric that stays unknown
    # counts as quiet, because guests would otherwise stay throttled for ever. A metric from outside the
    # kernel never counts as quiet while it is unknown: either its source answers again, or an operator
    # removes the section.
    seen = streak.unseen == 0 or (is_blind(streak, watermark) and not watermark.external)
    return seen and streak.samples == 0 and time - streak.quiet_since >= cool_down


def find_near_watermarks(rules: WatermarkRules, host: UsageSnapshot) -> tuple[WatermarkSection, ...]:
    """The watermarks that need values of guests to decide in this round, or in one of the next rounds.

    :param host: the usage of the host, measured without guests.
    """
    return tuple(
        watermark
        for watermark, sampling in _watermark_samplings(rules)
        if sampling is GuestSampling.ALWAYS or _exceeds_share(watermark, host, sampling.value)
    )


def lacks_rates(rules: WatermarkRules, snapshot: UsageSnapshot, rated: Set[str]) -> bool:
    """Whether this round needs rates of guests that it does not have.

    :param rated: names of the metrics that were measured for guests in the previous round, too.
    """
    return any(
        sampling is GuestSampling.NEAR
        and _exceeds_share(watermark, snapshot, 1.0)
        and not rated >= {metric.name for metric in rules.needed_metrics([watermark])}
        for watermark, sampling in _watermark_samplings(rules)
    )


def _watermark_samplings(rules: WatermarkRules) -> list[tuple[WatermarkSection, GuestSampling]]:
    return [(one, rules.registry[one.metric].guest_sampling) for one in rules.watermarks]


def _exceeds_share(watermark: WatermarkSection, host: UsageSnapshot, share: float) -> bool:
    """Whether the usage of any domain is above this share of the lowest threshold."""
    return any(
        usage > share * amount
        for series, usage in host.host.items()
        if series.metric == watermark.metric
        for action in ABOVE
        if (amount := watermark.threshold_amount(action, host, series.domain)) is not None
    )


_TOLERANCE: Final = 1e-9
"""Relative tolerance of usage. The errors of a hundred additions and subtractions of floats are smaller."""


@dataclass(frozen=True, slots=True)
class ThresholdExceeded:
    """A confirmed breach: usage of a metric on one domain is above a watermark's threshold for an action.

    - ``amount`` is the threshold in the metric's unit.
    - ``target`` is the usage to reach: the threshold minus a margin. The gap is the usage above ``target``.
    """

    action: WatermarkAction
    watermark: WatermarkSection
    metric: WatermarkMetric
    series: MetricSeries
    amount: float
    target: float

    @property
    def is_quantified(self) -> bool:
        """Whether the amount that the action frees can be computed."""
        throttles = self.action is WatermarkAction.THROTTLE_DOWN
        return self.metric.throttle_quantified if throttles else self.metric.evict_quantified

    @property
    def guest_order(self) -> Sorter:
        """The order of guests: that of the watermark, else that of the metric, else ``GENERAL_ORDER``."""
        return self.watermark.order or self.metric.sorter or GENERAL_ORDER

    @property
    def order_series(self) -> MetricSeries:
        """The metric and domain by which guests are ordered; for an expression, its first metric."""
        # Guests have no usage of an expression, only of its metrics.
        return self.series._replace(metric=self.metric.measured_names[0])

    @property
    def used_lever(self) -> ThrottleLever:
        """The lever by which guests are throttled for the metric."""
        assert self.metric.lever is not None, "such a threshold is refused when it is read"
        return self.metric.lever

    @property
    def used_knob(self) -> ThrottleControl:
        """How guests are throttled: by the metric's lever, on the domain with the breach."""
        return ThrottleControl(self.used_lever.name, self.series.domain)

    def throttle_action(self, guest: str, limit: float) -> ThrottleAction:
        """The action that sets a guest's limit because of this breach."""
        return ThrottleAction(guest, self.used_knob, limit, self.metric.name, self.watermark.name)

    def is_closed(self, usage: float) -> bool:
        """Whether ``usage``, in the metric's unit, is at or below the target."""
        # Usage is compared with a tolerance, so that an error of rounding does not lead to another step.
        return usage <= self.target + _TOLERANCE * max(1.0, abs(self.target))

    def find_candidates(self, snapshot: UsageSnapshot, untouchable: frozenset[str]) -> Iterator[GuestUsage]:
        """The guests that the watermark selects and on which the action is possible.

        :param untouchable: uuids of guests on which no action is possible in this round.
        """
        # A limit is a part of the guest's allotment, so a guest without an allotment cannot be throttled.
        knob = None if self.action is WatermarkAction.EVICT else self.used_knob
        for guest in snapshot.guests.values():
            if (
                guest.uuid not in untouchable
                and self.watermark.selects_guest(guest)
                and (knob is None or knob in guest.allotments)
            ):
                yield guest

    def is_measured(self, guest: GuestUsage) -> bool:
        """Whether a guest's use is known.

        For throttling, its use of the lever's metric has to be known, too.
        """
        if (
            self.action is WatermarkAction.THROTTLE_DOWN
            and self.used_lever.guest_consumption(guest, self.series.domain) is None
        ):
            return False
        return self.series in guest.usage


def find_breaches(
    rules: WatermarkRules, action: WatermarkAction, snapshot: UsageSnapshot, streaks: Streaks
) -> list[ThresholdExceeded]:
    """The confirmed breaches of thresholds for ``action``, in the order in which they are handled.

    Breaches of metrics with a higher ``action_priority`` come first. For one metric, lower thresholds come
    first. Actions that bring usage below the lowest threshold bring it below the other thresholds as well.
    The other thresholds matter only if their watermarks select other guests.

    :param snapshot: the usage expected after earlier actions of the round.
    """
    found = []
    for watermark in rules.watermarks:
        for series, usage in snapshot.host.items():
            if series.metric != watermark.metric:
                continue
            amount = watermark.threshold_amount(action, snapshot, series.domain)
            if (
                amount is None
                or usage <= amount
                or not is_confirmed(streaks, watermark, action, series.domain)
            ):
                continue
            metric, target = rules.registry[watermark.metric], amount - (usage - amount) * rules.margin
            found.append(ThresholdExceeded(action, watermark, metric, series, amount, target))
    # The name comes last, so that two rounds have the same order.
    return sorted(
        found, key=lambda one: (-one.metric.action_priority, one.series, one.amount, one.watermark.name)
    )
