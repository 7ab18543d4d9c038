"""Plans: the necessary actions of a round, in order, from a snapshot.

Pure functions; an executor carries the plan out. The order is scheduling switch, evict, throttle down.
Restoring comes only in a round without breach: in the reverse order of throttling, by steps, and only so far
that no new breach is expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.actions import (
    EvictAction,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    WatermarkAct,
)
from compute_agent.throttling.watermarks.breaches import (
    Streaks,
    ThresholdExceeded,
    ThresholdStreak,
    find_breaches,
    is_confirmed,
    is_overloaded,
    is_quiet,
)
from compute_agent.throttling.watermarks.metrics import GENERAL_ORDER, sort_guests
from compute_agent.throttling.watermarks.sections import WatermarkAction, WatermarkRules, WatermarkSection
from compute_agent.throttling.watermarks.state import WatermarkState
from compute_agent.usage.snapshot import GuestUsage, MetricSeries, UsageSnapshot


def make_plan(
    rules: WatermarkRules,
    snapshot: UsageSnapshot,
    streaks: Streaks,
    state: WatermarkState,
    excluded: frozenset[str] = frozenset(),
    unevictable: frozenset[str] = frozenset(),
) -> tuple[WatermarkAct, ...]:
    """The actions of this round, in order.

    ``streaks`` include the snapshot already. Guests in ``excluded`` are left alone, those in ``unevictable``
    are not evicted. Guests that are being evicted count as gone.
    """
    # Its use is freed soon: counting it would have another guest evicted for the same shortage.
    for guest in state.evicting_guests:
        snapshot = rules.after_eviction(snapshot, guest)
    untouchable = excluded | state.evicting_guests
    # Cheapest first: a guest that does not come need not be throttled, and one that leaves need not be.
    switch = plan_switch(rules, snapshot, streaks, state)
    evictions, snapshot = plan_evictions(rules, snapshot, streaks, untouchable | unevictable, state)
    untouchable |= {eviction.guest for eviction in evictions}
    throttles = plan_throttles(rules, snapshot, streaks, state, untouchable)
    restores = plan_restores(rules, snapshot, streaks, state, untouchable)
    return (*switch, *evictions, *throttles, *restores)


def plan_switch(
    rules: WatermarkRules, snapshot: UsageSnapshot, streaks: Streaks, state: WatermarkState
) -> list[SwitchScheduling]:
    """The change of the scheduling switch, if one is necessary."""
    action = WatermarkAction.DISABLE_SCHEDULING
    watermarks = [watermark for watermark in rules.watermarks if watermark.threshold_for(action) is not None]
    watches = [
        (watermark, watch)
        for watermark in watermarks
        for watch in streaks
        if (watch.watermark, watch.action) == (watermark.name, action)
    ]
    asking = {
        watermark.name
        for watermark, watch in watches
        if is_confirmed(streaks, watermark, action, watch.domain)
    }
    # Any one watermark keeps new guests away, and all have to be quiet before they are let in.
    if asking:
        return [] if state.scheduling_off else [SwitchScheduling(True, tuple(sorted(asking)))]
    # None is not False: after the loss of the state file the trait may be there, and is removed explicitly.
    if state.scheduling_off is False or not all(
        is_quiet(streaks[watch], watermark, snapshot.time, watermark.cool_down)
        for watermark, watch in watches
    ):
        return []
    return [SwitchScheduling(False)]


def plan_evictions(
    rules: WatermarkRules,
    snapshot: UsageSnapshot,
    streaks: Streaks,
    untouchable: frozenset[str],
    state: WatermarkState,
) -> tuple[list[EvictAction], UsageSnapshot]:
    """The guests to evict, with the snapshot that is expected when they have gone."""
    found = find_breaches(rules, WatermarkAction.EVICT, snapshot, streaks)
    plan: list[EvictAction] = []
    # Without a figure there is no place to stop at: the operator has chosen these guests by the section.
    if not _can_be_precise(found, snapshot, untouchable):
        first = _of_highest_priority(found)
        selected = _selected_guests(found, snapshot, untouchable)
        for guest in selected[: _evictions_left(found, state)]:
            plan.append(_evict_guest(first, guest))
            snapshot = rules.after_eviction(snapshot, guest.uuid)
        return plan, snapshot
    for breach in found:
        guests = breach.find_candidates(snapshot, untouchable)
        for guest in sort_guests(guests, breach.guest_order, breach.series):
            if breach.is_closed(snapshot.host[breach.series]):
                break
            # A guest that uses none of it would be ended for nothing.
            if guest.usage.get(breach.series, 0.0) > 0:
                plan.append(_evict_guest(breach, guest))
                snapshot = rules.after_eviction(snapshot, guest.uuid)
    return plan, snapshot


def _evict_guest(breach: ThresholdExceeded, guest: GuestUsage) -> EvictAction:
    watermark = breach.watermark
    return EvictAction(guest.uuid, breach.metric.name, watermark.name, watermark.evict_grace)


def _evictions_left(found: Sequence[ThresholdExceeded], state: WatermarkState) -> int | None:
    """The number of guests that may be told to leave now; None: all."""
    limits = [one.watermark.evict_at_once for one in found if one.watermark.evict_at_once is not None]
    # Those that are leaving count: what they free shows when they have left.
    return max(0, min(limits) - len(state.evictions)) if limits else None


def plan_throttles(
    rules: WatermarkRules,
    snapshot: UsageSnapshot,
    streaks: Streaks,
    state: WatermarkState,
    untouchable: frozenset[str],
) -> list[ThrottleAction]:
    """The limits to set."""
    found = find_breaches(rules, WatermarkAction.THROTTLE_DOWN, snapshot, streaks)
    if not _can_be_precise(found, snapshot, untouchable):
        first = _of_highest_priority(found)
        # One step for all in each round: the pressure of the next round says whether that was enough.
        selected = _selected_guests(found, snapshot, untouchable)
        # The other metrics wait: their levers may be moved by this one already.
        same = [breach for breach in found if breach.metric is first.metric]
        steps = [_one_step(rules, breach, guest, state) for guest in selected for breach in same]
        return _merge_throttles(step for step in steps if step is not None)
    plan: list[ThrottleAction] = []
    for breach in found:
        guests = breach.find_candidates(snapshot, untouchable)
        unknown = []
        for guest in sort_guests(guests, breach.guest_order, breach.series):
            if breach.is_closed(snapshot.host[breach.series]):
                break
            # Just started, say. It waits until guests with a known use were not enough.
            if not breach.is_measured(guest):
                unknown.append(guest)
                continue
            throttle = _steps_needed(rules, breach, snapshot, guest.uuid, state)
            if throttle is not None:
                # The next breach, and the next guest, see what this limit frees.
                before = state.limit_of(guest.uuid, breach.used_knob)
                snapshot = rules.after_throttle(
                    snapshot, guest.uuid, breach.used_knob, before, throttle.limit
                )
                state = state.after_action(throttle)
                plan.append(throttle)
        if not breach.is_closed(snapshot.host[breach.series]):
            # No other guest is left: one step for each of those with an effect that cannot be computed.
            steps = [_one_step(rules, breach, guest, state) for guest in unknown]
            plan += [step for step in steps if step is not None]
    return _merge_throttles(plan)


def _can_be_precise(
    found: Sequence[ThresholdExceeded], snapshot: UsageSnapshot, untouchable: frozenset[str]
) -> bool:
    """Whether the end of throttling can be computed: all metrics are quantified, and each has a known use."""
    for breach in found:
        guests = breach.find_candidates(snapshot, untouchable)
        # Guests that are all unknown are as good as a metric that is not quantified.
        if not breach.is_quantified or (guests and not any(map(breach.is_measured, guests))):
            return False
    return True


def _of_highest_priority(found: Sequence[ThresholdExceeded]) -> ThresholdExceeded:
    return max(found, key=lambda one: one.metric.action_priority)


def _selected_guests(
    found: Sequence[ThresholdExceeded], snapshot: UsageSnapshot, untouchable: frozenset[str]
) -> list[GuestUsage]:
    """The guests that any of the watermarks in breach selects."""
    chosen = [
        guest
        for guest in snapshot.guests.values()
        if guest.uuid not in untouchable and any(one.watermark.selector.selects_guest(guest) for one in found)
    ]
    first = _of_highest_priority(found)
    # No use says what an action frees here, unless the operator wants it to.
    return sort_guests(chosen, first.watermark.order or GENERAL_ORDER, first.series)


def _steps_needed(
    rules: WatermarkRules,
    breach: ThresholdExceeded,
    snapshot: UsageSnapshot,
    uuid: str,
    state: WatermarkState,
) -> ThrottleAction | None:
    """The steps that close a breach, or lead down to the lowest limit; None if they free nothing."""
    guest, present = snapshot.guests[uuid], snapshot.host[breach.series]
    before = limit = state.limit_of(uuid, breach.used_knob)
    steps = rules.steps_of(breach.watermark)
    usage = present
    # Several steps at once: where the effect can be computed, waiting a round for each would leave the host
    # overloaded meanwhile.
    while not breach.is_closed(usage):
        lower = breach.used_lever.down(limit, guest.allotments[breach.used_knob], steps)
        if lower is None:
            break
        limit = lower
        share = rules.share_left(guest, breach.used_knob, before, limit)
        usage = present - guest.usage[breach.series] * (1 - share)
    # A limit above what a guest uses frees nothing, and would only be in its way later.
    if limit is None or usage >= present:
        return None
    return ThrottleAction(uuid, breach.used_knob, limit, breach.metric.name, breach.watermark.name)


def _one_step(
    rules: WatermarkRules, breach: ThresholdExceeded, guest: GuestUsage, state: WatermarkState
) -> ThrottleAction | None:
    allotment = guest.allotments.get(breach.used_knob)
    if allotment is None:
        return None
    before, steps = state.limit_of(guest.uuid, breach.used_knob), rules.steps_of(breach.watermark)
    limit = breach.used_lever.down(before, allotment, steps)
    if limit is None:
        return None
    return ThrottleAction(guest.uuid, breach.used_knob, limit, breach.metric.name, breach.watermark.name)


def _merge_throttles(plan: Iterable[ThrottleAction]) -> list[ThrottleAction]:
    """One limit for each guest and control: the last and lowest, if several breaches request one."""
    merged: dict[tuple[str, ThrottleControl], ThrottleAction] = {}
    for throttle in plan:
        # Popped, not replaced: the place in the plan is that of the latest, which is restored first.
        earlier = merged.pop((throttle.guest, throttle.knob), throttle)
        merged[throttle.guest, throttle.knob] = min(earlier, throttle, key=lambda one: one.limit)
    return list(merged.values())


# Guests pay for these; that new guests are kept away costs none of them anything.
_COSTLY: Final = (WatermarkAction.EVICT, WatermarkAction.THROTTLE_DOWN)


@dataclass(frozen=True, slots=True)
class _RestoreGate:
    """Whether limits of a control may be given back now, and the maximum usage of its series afterwards.

    - ``up`` is where giving back stops, ``down`` where guests would be throttled or evicted.
    - ``precise``: the effect of raising limits can be computed; otherwise one guest gets one step in a round.
    - ``orphan``: no series of the control has a watermark any longer.
    """

    open: bool = True
    precise: bool = True
    orphan: bool = False
    up: Mapping[MetricSeries, float] = field(default_factory=dict)
    down: Mapping[MetricSeries, float] = field(default_factory=dict)


def plan_restores(
    rules: WatermarkRules,
    snapshot: UsageSnapshot,
    streaks: Streaks,
    state: WatermarkState,
    untouchable: frozenset[str],
) -> list[RestoreAction]:
    """The limits to raise or remove."""
    plan = []
    knobs = {one.knob for one in state.throttles}
    # One breach anywhere is enough: levers of one metric move others as well.
    calm = not is_overloaded(streaks)
    gates = {
        knob: _restore_gate(rules, snapshot, streaks, state, knob) if calm else _RestoreGate(False)
        for knob in knobs
    }
    # Controls of which a step was given back in this round.
    begun: set[ThrottleControl] = set()
    for one in reversed(state.throttles):
        guest = snapshot.guests.get(one.guest)
        # It is gone or leaving, or an action failed for it in this round.
        if guest is None or one.guest in untouchable:
            continue
        gate, lever = gates[one.knob], rules.registry.levers.get(one.knob.lever)
        allotment = guest.allotments.get(one.knob)
        # Nothing of these justifies a limit any more, so that no cool-down is waited for: the guest has
        # dedicated CPUs by now, the control is gone, or its section is.
        if guest.protected or allotment is None or lever is None or (calm and gate.orphan):
            plan.append(RestoreAction(one.guest, one.knob, None))
        elif gate.open and (one.knob not in begun or (gate.precise and _stays_within(snapshot, gate.up))):
            limit = lever.up(one.limit, allotment, rules.restore_steps(one.knob.lever))
            then = rules.after_restore(snapshot, one.guest, one.knob, one.limit, limit)
            # Given back up to the line at which it would be taken again, and not beyond.
            if _stays_within(then, gate.down):
                begun.add(one.knob)
                snapshot = then
                plan.append(RestoreAction(one.guest, one.knob, limit))
    return plan


def forgive_relapses(
    rules: WatermarkRules, snapshot: UsageSnapshot, streaks: Streaks, state: WatermarkState
) -> WatermarkState:
    """The state without relapses of levers that were not needed for twice their waiting time."""
    in_use = {one.knob.lever for one in state.throttles}
    return state.without_relapses(
        {
            lever
            for lever in (state.relapses.keys() | state.giving_back) - in_use
            # Twice: once is what giving back waits for, so that it would always be forgiven before it counts.
            if all(
                snapshot.time - streak.quiet_since >= 2 * _cool_down(rules, watermark, state, lever)
                for metric in rules.registry.metrics_moved_by(lever)
                for watermark, streak in _watched_streaks(rules, streaks, metric.name)
            )
        }
    )


def _restore_gate(
    rules: WatermarkRules,
    snapshot: UsageSnapshot,
    streaks: Streaks,
    state: WatermarkState,
    knob: ThrottleControl,
) -> _RestoreGate:
    gate = _RestoreGate(orphan=True)
    for metric in rules.registry.metrics_moved_by(knob.lever):
        series = MetricSeries(metric.name, knob.domain)
        watched = _watched_streaks(rules, streaks, metric.name, knob.domain)
        down = _lowest_amount(rules, _COSTLY, snapshot, series)
        up = _lowest_amount(rules, (WatermarkAction.THROTTLE_UP,), snapshot, series)
        if not all(
            is_quiet(streak, watermark, snapshot.time, _cool_down(rules, watermark, state, knob.lever))
            for watermark, streak in watched
        ):
            return _RestoreGate(False)
        # A section in preview does not count: what it took before it was put there is given back.
        if rules.of_metric(metric.name, WatermarkAction.THROTTLE_DOWN):
            gate = replace(gate, orphan=False)
        if series not in snapshot.host or up is None or down is None:
            # No watermark, or a series that cannot be seen any more: no guest stays throttled for that.
            # Blind, so by single steps; a metric without any watermark does not matter.
            gate = replace(gate, precise=gate.precise and not watched)
            continue
        if snapshot.host[series] >= up:
            return _RestoreGate(False)
        if metric.throttle_quantified:
            gate = replace(gate, up={**gate.up, series: up}, down={**gate.down, series: down})
        else:
            gate = replace(gate, precise=False)
    return gate


def _watched_streaks(
    rules: WatermarkRules, streaks: Streaks, metric: str, domain: str | None = None
) -> list[tuple[WatermarkSection, ThresholdStreak]]:
    """The streaks of watermarks of a metric that throttle or evict, on one domain or on all."""
    by_name = {watermark.name: watermark for watermark in rules.watermarks if watermark.metric == metric}
    return [
        (by_name[watch.watermark], streak)
        for watch, streak in streaks.items()
        if watch.watermark in by_name and watch.action in _COSTLY and domain in (None, watch.domain)
    ]


def _lowest_amount(
    rules: WatermarkRules, actions: tuple[WatermarkAction, ...], snapshot: UsageSnapshot, series: MetricSeries
) -> float | None:
    amounts = [
        watermark.threshold_amount(action, snapshot, series.domain)
        for action in actions
        for watermark in rules.of_metric(series.metric, action)
    ]
    return min((amount for amount in amounts if amount is not None), default=None)


def _cool_down(
    rules: WatermarkRules, watermark: WatermarkSection, state: WatermarkState, lever: str
) -> float:
    """Seconds without a breach before limits are given back."""
    # Giving back stops at the line by computation: a relapse then is new demand, and no mistake.
    if rules.registry[watermark.metric].throttle_quantified:
        return watermark.cool_down
    # Each relapse makes the time longer if the effect cannot be computed.
    return float(watermark.cool_down * 2 ** state.relapses.get(lever, 0))


def _stays_within(snapshot: UsageSnapshot, limits: Mapping[MetricSeries, float]) -> bool:
    return all(snapshot.host[series] <= limit for series, limit in limits.items())
