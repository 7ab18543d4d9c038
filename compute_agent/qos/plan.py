"""From a snapshot to a plan: what is to be done in this round, in this order, and nothing in excess.

Pure functions; nothing has happened until somebody carries the plan out. Order: scheduling switch, evict,
throttle down; restore (see ``restore``) only in a round without breach.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from compute_agent.model.resource import ThrottleControl
from compute_agent.qos import sorters
from compute_agent.qos.actions import Act, EvictAction, SwitchScheduling, ThrottleAction
from compute_agent.qos.levers import ThrottleLever
from compute_agent.qos.metrics import WatermarkMetric
from compute_agent.qos.restore import plan_restores
from compute_agent.qos.rules import QosRules
from compute_agent.qos.snapshot import GuestUsage, MetricSeries, UsageSnapshot
from compute_agent.qos.state import QosState
from compute_agent.qos.streaks import Streaks, confirmed, quiet
from compute_agent.qos.watermarks import WatermarkAction, WatermarkSection

_TOLERANCE: Final = 1e-9
"""Relative; adding and subtracting the same use a hundred times leaves less."""


@dataclass(frozen=True, slots=True)
class ThresholdExceeded:
    """Usage that is above a watermark's threshold for an action, which is at ``amount``.

    ``target`` is where it should come to: the threshold, less the margin. What is above it is the gap.
    """

    action: WatermarkAction
    watermark: WatermarkSection
    metric: WatermarkMetric
    series: MetricSeries
    amount: float
    target: float

    @property
    def quantified(self) -> bool:
        """Whether what the action frees can be computed."""
        throttles = self.action is WatermarkAction.THROTTLE_DOWN
        return self.metric.throttle_quantified if throttles else self.metric.evict_quantified

    @property
    def lever(self) -> ThrottleLever:
        """What guests are throttled with."""
        assert self.metric.lever is not None, "such a threshold is refused when it is read"
        return self.metric.lever

    @property
    def knob(self) -> ThrottleControl:
        """The lever on the domain that the breach is on."""
        return ThrottleControl(self.lever.name, self.series.domain)

    def closed(self, usage: float) -> bool:
        """Whether a usage is down to the target."""
        return usage <= self.target + _TOLERANCE * max(1.0, abs(self.target))

    def candidates(self, snapshot: UsageSnapshot, untouchable: frozenset[str]) -> list[GuestUsage]:
        """The guests that the action can be taken on."""
        return [
            guest
            for guest in snapshot.guests.values()
            if guest.uuid not in untouchable
            and self.watermark.selector.selects(guest)
            and (self.action is WatermarkAction.EVICT or self.knob in guest.entitlements)
        ]

    def measured(self, guest: GuestUsage) -> bool:
        """Whether it is known what a guest uses."""
        if (
            self.action is WatermarkAction.THROTTLE_DOWN
            and self.lever.consumption(guest, self.series.domain) is None
        ):
            return False
        return self.series in guest.usage


def make_plan(
    rules: QosRules,
    snapshot: UsageSnapshot,
    streaks: Streaks,
    state: QosState,
    excluded: frozenset[str] = frozenset(),
    unevictable: frozenset[str] = frozenset(),
) -> tuple[Act, ...]:
    """What to do now, in order.

    ``streaks`` include the snapshot already. Guests in ``excluded`` are left alone, those in ``unevictable``
    are not evicted. Guests that are being evicted count as gone.
    """
    for guest in state.evicting:
        snapshot = rules.evicted(snapshot, guest)
    untouchable = excluded | state.evicting
    switch = plan_switch(rules, snapshot, streaks, state)
    evictions, snapshot = plan_evictions(rules, snapshot, streaks, untouchable | unevictable)
    untouchable |= {eviction.guest for eviction in evictions}
    throttles = plan_throttles(rules, snapshot, streaks, state, untouchable)
    restores = plan_restores(rules, snapshot, streaks, state, untouchable)
    return (*switch, *evictions, *throttles, *restores)


def plan_switch(
    rules: QosRules, snapshot: UsageSnapshot, streaks: Streaks, state: QosState
) -> list[SwitchScheduling]:
    """The scheduling switch, where it has to be turned."""
    action = WatermarkAction.DISABLE_SCHEDULING
    watermarks = [watermark for watermark in rules.watermarks if watermark.threshold(action) is not None]
    watches = [
        (watermark, watch)
        for watermark in watermarks
        for watch in streaks
        if (watch.watermark, watch.action) == (watermark.name, action)
    ]
    asking = {
        watermark.name for watermark, watch in watches if confirmed(streaks, watermark, action, watch.domain)
    }
    if asking:
        return [] if state.scheduling_off else [SwitchScheduling(True, tuple(sorted(asking)))]
    if state.scheduling_off is False or not all(
        quiet(streaks[watch], watermark, snapshot.time, watermark.cool_down) for watermark, watch in watches
    ):
        return []
    return [SwitchScheduling(False)]


def plan_evictions(
    rules: QosRules, snapshot: UsageSnapshot, streaks: Streaks, untouchable: frozenset[str]
) -> tuple[list[EvictAction], UsageSnapshot]:
    """The guests to evict, with the snapshot that is expected when they have gone."""
    found = breaches(rules, WatermarkAction.EVICT, snapshot, streaks)
    plan: list[EvictAction] = []
    if not _precise(found, snapshot, untouchable):
        first = _of_highest_priority(found)
        for guest in _all_of(found, snapshot, untouchable):
            plan.append(EvictAction(guest.uuid, first.metric.name, first.watermark.name))
            snapshot = rules.evicted(snapshot, guest.uuid)
        return plan, snapshot
    for breach in found:
        guests = breach.candidates(snapshot, untouchable)
        for guest in sorters.ordered(guests, breach.metric.sorter or sorters.GENERAL, breach.series):
            if breach.closed(snapshot.host[breach.series]):
                break
            if guest.usage.get(breach.series, 0.0) > 0:
                plan.append(EvictAction(guest.uuid, breach.metric.name, breach.watermark.name))
                snapshot = rules.evicted(snapshot, guest.uuid)
    return plan, snapshot


def plan_throttles(
    rules: QosRules, snapshot: UsageSnapshot, streaks: Streaks, state: QosState, untouchable: frozenset[str]
) -> list[ThrottleAction]:
    """The limits to set."""
    found = breaches(rules, WatermarkAction.THROTTLE_DOWN, snapshot, streaks)
    if not _precise(found, snapshot, untouchable):
        first = _of_highest_priority(found)
        everybody = _all_of(found, snapshot, untouchable)
        same = [breach for breach in found if breach.metric is first.metric]
        steps = [_one_step(rules, breach, guest, state) for guest in everybody for breach in same]
        return _merged(step for step in steps if step is not None)
    plan: list[ThrottleAction] = []
    for breach in found:
        guests = breach.candidates(snapshot, untouchable)
        unknown = []
        for guest in sorters.ordered(guests, breach.metric.sorter or sorters.GENERAL, breach.series):
            if breach.closed(snapshot.host[breach.series]):
                break
            if not breach.measured(guest):
                unknown.append(guest)
                continue
            throttle = _steps_needed(rules, breach, snapshot, guest.uuid, state)
            if throttle is not None:
                before = state.limit(guest.uuid, breach.knob)
                snapshot = rules.throttled(snapshot, guest.uuid, breach.knob, before, throttle.limit)
                state = state.after(throttle)
                plan.append(throttle)
        if not breach.closed(snapshot.host[breach.series]):
            # Nobody else is left: a step for each of those of which nobody can tell what it frees.
            steps = [_one_step(rules, breach, guest, state) for guest in unknown]
            plan += [step for step in steps if step is not None]
    return _merged(plan)


def breaches(
    rules: QosRules, action: WatermarkAction, snapshot: UsageSnapshot, streaks: Streaks
) -> list[ThresholdExceeded]:
    """The watermarks that usage has been above for long enough, and still is in ``snapshot``.

    Those of the highest action priority come first, and of one metric the lowest threshold, which decides;
    those above it matter only where they select guests that it does not.
    """
    found = []
    for watermark in rules.watermarks:
        for series, usage in snapshot.host.items():
            if series.metric != watermark.metric:
                continue
            amount = watermark.amount(action, snapshot, series.domain)
            if amount is None or usage <= amount or not confirmed(streaks, watermark, action, series.domain):
                continue
            metric, target = rules.registry[watermark.metric], amount - (usage - amount) * rules.margin
            found.append(ThresholdExceeded(action, watermark, metric, series, amount, target))
    return sorted(
        found, key=lambda one: (-one.metric.action_priority, one.series, one.amount, one.watermark.name)
    )


def _precise(
    found: Sequence[ThresholdExceeded], snapshot: UsageSnapshot, untouchable: frozenset[str]
) -> bool:
    """Whether it can be told when it is enough: all is quantified, and of each metric some use is known."""
    for breach in found:
        guests = breach.candidates(snapshot, untouchable)
        if not breach.quantified or (guests and not any(map(breach.measured, guests))):
            return False
    return True


def _of_highest_priority(found: Sequence[ThresholdExceeded]) -> ThresholdExceeded:
    return max(found, key=lambda one: one.metric.action_priority)


def _all_of(
    found: Sequence[ThresholdExceeded], snapshot: UsageSnapshot, untouchable: frozenset[str]
) -> list[GuestUsage]:
    """The guests that any of the watermarks in breach selects."""
    chosen = [
        guest
        for guest in snapshot.guests.values()
        if guest.uuid not in untouchable and any(one.watermark.selector.selects(guest) for one in found)
    ]
    return sorters.ordered(chosen, sorters.GENERAL, found[0].series)


def _steps_needed(
    rules: QosRules, breach: ThresholdExceeded, snapshot: UsageSnapshot, uuid: str, state: QosState
) -> ThrottleAction | None:
    """As many steps as it takes to close a breach, or down to the floor; None if that frees nothing."""
    guest, present = snapshot.guests[uuid], snapshot.host[breach.series]
    before = limit = state.limit(uuid, breach.knob)
    usage = present
    while not breach.closed(usage):
        lower = breach.lever.down(limit, guest.entitlements[breach.knob], rules.steps)
        if lower is None:
            break
        limit = lower
        share = rules.share_left(guest, breach.knob, before, limit)
        usage = present - guest.usage[breach.series] * (1 - share)
    if limit is None or usage >= present:
        return None
    return ThrottleAction(uuid, breach.knob, limit, breach.metric.name, breach.watermark.name)


def _one_step(
    rules: QosRules, breach: ThresholdExceeded, guest: GuestUsage, state: QosState
) -> ThrottleAction | None:
    entitlement = guest.entitlements.get(breach.knob)
    if entitlement is None:
        return None
    limit = breach.lever.down(state.limit(guest.uuid, breach.knob), entitlement, rules.steps)
    if limit is None:
        return None
    return ThrottleAction(guest.uuid, breach.knob, limit, breach.metric.name, breach.watermark.name)


def _merged(plan: Iterable[ThrottleAction]) -> list[ThrottleAction]:
    """One limit for a guest and a knob: the last and lowest, where several breaches asked for one."""
    merged: dict[tuple[str, ThrottleControl], ThrottleAction] = {}
    for throttle in plan:
        earlier = merged.pop((throttle.guest, throttle.knob), throttle)
        merged[throttle.guest, throttle.knob] = min(earlier, throttle, key=lambda one: one.limit)
    return list(merged.values())
