"""Breaches: usage above a threshold, its duration in rounds, and the choice of breaches for actions.

Pure functions from state to state. A *watch* is one watermark on one domain for one action; its *streak* is
the number of rounds with usage above the threshold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.levers import ThrottleLever
from compute_agent.throttling.watermarks.metrics import GENERAL_ORDER, Sorter, WatermarkMetric
from compute_agent.throttling.watermarks.sections import (
    ABOVE,
    WatermarkAction,
    WatermarkRules,
    WatermarkSection,
)
from compute_agent.usage.snapshot import GuestUsage, MetricSeries, UsageSnapshot


class WatermarkWatch(NamedTuple):
    """One watermark on one domain for one action."""

    watermark: str
    action: WatermarkAction
    domain: str


@dataclass(frozen=True, slots=True)
class ThresholdStreak:
    """The number of successive ``samples`` above the watermark, up to the latest one.

    ``unseen`` is the number of the latest rounds without a sample.

    ``quiet_since`` is the time of the latest breach, or else when watching began.
    """

    samples: int = 0
    unseen: int = 0
    quiet_since: float = 0.0


# By watch, since each domain is confirmed and becomes quiet by itself.
Streaks = Mapping[WatermarkWatch, ThresholdStreak]


def observe_usage(
    streaks: Streaks,
    watermarks: Iterable[WatermarkSection],
    snapshot: UsageSnapshot,
    expected: Iterable[MetricSeries] = (),
) -> dict[WatermarkWatch, ThresholdStreak]:
    """The streaks after another snapshot, of all domains that have been seen or are ``expected``.

    A round without a sample changes nothing, as one reading may fail. After ``for_samples`` such rounds the
    watermark is no longer watched, and does not count as in breach.
    """
    after: dict[WatermarkWatch, ThresholdStreak] = {}
    for watermark in watermarks:
        # A domain that is missing in this round keeps its streak: one reading may fail.
        domains = {one.domain for one in (*snapshot.host, *expected) if one.metric == watermark.metric}
        domains |= {watch.domain for watch in streaks if watch.watermark == watermark.name}
        for action in ABOVE:
            # Before the first sample the whole host stands for all domains, so that quiet is counted from the
            # start.
            for domain in domains or {""}:
                watch = WatermarkWatch(watermark.name, action, domain)
                if watermark.threshold_for(action) is not None:
                    # Quiet from now on, not since ever: nothing is known of the time before.
                    before = streaks.get(watch, ThresholdStreak(quiet_since=snapshot.time))
                    after[watch] = _next_streak(before, watermark, watch, snapshot)
    return after


def _next_streak(
    before: ThresholdStreak, watermark: WatermarkSection, watch: WatermarkWatch, snapshot: UsageSnapshot
) -> ThresholdStreak:
    usage = snapshot.host.get(MetricSeries(watermark.metric, watch.domain))
    amount = watermark.threshold_amount(watch.action, snapshot, watch.domain)
    # Relative thresholds have no amount where the capacity is not known.
    if usage is None or amount is None:
        unseen = before.unseen + 1
        samples = 0 if unseen >= watermark.for_samples else before.samples
        return replace(before, unseen=unseen, samples=samples)
    # Strictly above: a line at 100 % is never reached by a host that is just full.
    if usage > amount:
        return ThresholdStreak(before.samples + 1, 0, snapshot.time)
    return ThresholdStreak(0, 0, before.quiet_since)


def restart_streaks(streaks: Streaks, watermarks: Iterable[str]) -> Streaks:
    """The streaks after guests have left for these watermarks: the next eviction is confirmed again."""
    names = frozenset(watermarks)
    return {
        watch: replace(streak, samples=0)
        if watch.watermark in names and watch.action is WatermarkAction.EVICT
        else streak
        for watch, streak in streaks.items()
    }


def is_confirmed(streaks: Streaks, watermark: WatermarkSection, action: WatermarkAction, domain: str) -> bool:
    """Whether a watermark has been in breach for long enough to act."""
    return (
        streaks.get(WatermarkWatch(watermark.name, action, domain), ThresholdStreak()).samples
        >= watermark.for_samples
    )


def is_overloaded(streaks: Streaks) -> bool:
    """Whether usage is above a watermark with an action that restricts guests, regardless of the duration."""
    return any(
        streak.samples > 0
        for watch, streak in streaks.items()
        # That new guests are kept away says nothing against giving back.
        if watch.action is not WatermarkAction.DISABLE_SCHEDULING
    )


def is_blind(streak: ThresholdStreak, watermark: WatermarkSection) -> bool:
    """Whether samples have been missing for so long that the watermark is no longer watched."""
    return streak.unseen >= watermark.for_samples


def is_quiet(streak: ThresholdStreak, watermark: WatermarkSection, time: float, cool_down: float) -> bool:
    """Whether the time without a breach is long enough to give limits back."""
    # One round without a sample does not count as quiet. If samples are missing for long, it does, or guests
    # would stay throttled for ever. A source outside the host comes back, or its section is removed.
    seen = streak.unseen == 0 or (is_blind(streak, watermark) and not watermark.external)
    return seen and streak.samples == 0 and time - streak.quiet_since >= cool_down


_TOLERANCE: Final = 1e-9
"""Relative; adding and subtracting the same use a hundred times leaves less."""


@dataclass(frozen=True, slots=True)
class ThresholdExceeded:
    """Usage that is above a watermark's threshold for an action, which is at ``amount``.

    ``target`` is the usage to reach: the threshold, less the margin. The usage above it is the gap.
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
        """The order in which guests are acted on."""
        return self.watermark.order or self.metric.sorter or GENERAL_ORDER

    @property
    def used_lever(self) -> ThrottleLever:
        """The lever that throttles guests."""
        assert self.metric.lever is not None, "such a threshold is refused when it is read"
        return self.metric.lever

    @property
    def used_knob(self) -> ThrottleControl:
        """The lever on the domain with the breach."""
        return ThrottleControl(self.used_lever.name, self.series.domain)

    def is_closed(self, usage: float) -> bool:
        """Whether a usage is at or below the target."""
        # Else a gap of a billionth would cost a guest another step.
        return usage <= self.target + _TOLERANCE * max(1.0, abs(self.target))

    def find_candidates(self, snapshot: UsageSnapshot, untouchable: frozenset[str]) -> list[GuestUsage]:
        """The guests to which the action can apply."""
        return [
            guest
            for guest in snapshot.guests.values()
            if guest.uuid not in untouchable
            and self.watermark.selector.selects_guest(guest)
            # Without an allotment of the control no limit is known to be one.
            and (self.action is WatermarkAction.EVICT or self.used_knob in guest.allotments)
        ]

    def is_measured(self, guest: GuestUsage) -> bool:
        """Whether the use of a guest is known."""
        if (
            self.action is WatermarkAction.THROTTLE_DOWN
            and self.used_lever.guest_consumption(guest, self.series.domain) is None
        ):
            return False
        return self.series in guest.usage


def find_breaches(
    rules: WatermarkRules, action: WatermarkAction, snapshot: UsageSnapshot, streaks: Streaks
) -> list[ThresholdExceeded]:
    """The watermarks that usage has exceeded for long enough, and still exceeds in ``snapshot``.

    The most urgent action comes first, and for each metric the lowest threshold, which decides. Higher
    thresholds matter only if they select guests that the lowest one does not.
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
    # The name last, so that two rounds of one host agree.
    return sorted(
        found, key=lambda one: (-one.metric.action_priority, one.series, one.amount, one.watermark.name)
    )
