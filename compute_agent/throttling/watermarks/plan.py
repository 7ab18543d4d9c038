"""Plans: the actions of one round of watermarks, in order, computed from a snapshot of usage.

All functions are pure; an executor carries out the plan. The order of actions is: the scheduling switch,
evictions, reclaims of memory, throttles, restores. A restore raises a limit by a step. Limits are restored
only in rounds without a breach, in the reverse order of throttling, and only if no new breach is expected.

A rehearsal computes the actions of watermarks at a given usage of the host. It replaces the usage of the host
by this amount for as many rounds as the watermarks need before they act. Guests keep their measured use.
Watermarks in preview are treated as watermarks in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from compute_agent.model.resource import ThrottleControl
from compute_agent.throttling.levers import MEMORY_STEP, lowest_limit
from compute_agent.throttling.watermarks.breaches import (
    Streaks,
    ThresholdExceeded,
    ThresholdStreak,
    find_breaches,
    is_confirmed,
    is_overloaded,
    is_quiet,
    observe_usage,
)
from compute_agent.throttling.watermarks.metrics import GENERAL_ORDER, sort_guests
from compute_agent.throttling.watermarks.sections import WatermarkAction, WatermarkRules, WatermarkSection
from compute_agent.throttling.watermarks.state import (
    EvictAction,
    ReclaimAction,
    RestoreAction,
    SwitchScheduling,
    ThrottleAction,
    WatermarkAct,
    WatermarkState,
    takes_away,
)
from compute_agent.throttling.watermarks.thresholds import parse_usage
from compute_agent.usage.snapshot import GuestUsage, MetricSeries, UsageSnapshot


def make_plan(
    rules: WatermarkRules,
    snapshot: UsageSnapshot,
    streaks: Streaks,
    state: WatermarkState,
    excluded: frozenset[str] = frozenset(),
    unevictable: frozenset[str] = frozenset(),
    resting: frozenset[str] = frozenset(),
) -> tuple[WatermarkAct, ...]:
    """The actions of this round, in order. Guests that are being evicted count as if they had left.

    :param streaks: the number of successive rounds above each threshold, including ``snapshot``.
    :param excluded: uuids of guests on which no action is allowed.
    :param unevictable: uuids of guests that can be throttled but not evicted.
    :param resting: uuids of guests from which the agent reclaims no memory now, because it reclaimed some a
        few seconds ago.
    """
    # The use of guests that are being evicted is subtracted, so that this use causes no other eviction.
    for guest in state.evicting_guests:
        snapshot = rules.after_eviction(snapshot, guest)
    untouchable = excluded | state.evicting_guests
    # Evictions come before throttles. So a guest that leaves is not throttled, and other guests are throttled
    # only for the remaining gap.
    switch = plan_switch(rules, snapshot, streaks, state)
    evictions, snapshot = plan_evictions(rules, snapshot, streaks, untouchable | unevictable, state)
    untouchable |= {eviction.guest for eviction in evictions}
    reclaims = plan_reclaims(rules, snapshot, streaks, untouchable | resting)
    throttles = plan_throttles(rules, snapshot, streaks, state, untouchable)
    restores = plan_restores(rules, snapshot, streaks, state, untouchable)
    return (*switch, *evictions, *reclaims, *throttles, *restores)


def plan_switch(
    rules: WatermarkRules, snapshot: UsageSnapshot, streaks: Streaks, state: WatermarkState
) -> list[SwitchScheduling]:
    """The action that keeps new guests away or lets them in again, if the switch has to change."""
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
    # One confirmed watermark is enough to keep new guests away. All watermarks have to be quiet to let new
    # guests in.
    if asking:
        return [] if state.scheduling_off else [SwitchScheduling(True, tuple(sorted(asking)))]
    # None (unknown) leads to an explicit switch: after the loss of the state file, the trait that keeps
    # guests away is perhaps still in Placement.
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
    """The guests to evict, and the usage that is expected after these guests have left."""
    found = find_breaches(rules, WatermarkAction.EVICT, snapshot, streaks)
    plan: list[EvictAction] = []
    # If the effect cannot be computed, the agent cannot know how many evictions are enough. So all guests
    # that the sections select are evicted.
    if not _can_be_precise(found, snapshot, untouchable):
        for guest in _selected_guests(found, snapshot, untouchable):
            # The first watermark that selects a guest is the reason for its eviction, and the options of this
            # watermark apply.
            breach = next(one for one in found if one.watermark.selector.selects_guest(guest))
            if _has_room(breach.watermark, state):
                action = _evict_guest(breach, guest)
                plan.append(action)
                state = state.after_action(action)
                snapshot = rules.after_eviction(snapshot, guest.uuid)
        return plan, snapshot
    for breach in found:
        guests = breach.find_candidates(snapshot, untouchable)
        for guest in sort_guests(guests, breach.guest_order, breach.series):
            if breach.is_closed(snapshot.host[breach.series]):
                break
            # The eviction of a guest without a known use of the series might free nothing.
            if guest.usage.get(breach.series, 0.0) > 0:
                plan.append(_evict_guest(breach, guest))
                snapshot = rules.after_eviction(snapshot, guest.uuid)
    return plan, snapshot


def _evict_guest(breach: ThresholdExceeded, guest: GuestUsage) -> EvictAction:
    watermark = breach.watermark
    return EvictAction(guest.uuid, breach.metric.name, watermark.name, watermark.evict_grace)


def _has_room(watermark: WatermarkSection, state: WatermarkState) -> bool:
    """Whether the watermark's maximum of simultaneous evictions allows another eviction."""
    if watermark.evict_at_once is None:
        return True
    # Evictions in progress count, because their effect shows only after they have ended. An eviction without
    # a known watermark counts for every watermark.
    leaving = [one for one in state.evictions if one.watermark in ("", watermark.name)]
    return len(leaving) < watermark.evict_at_once


def plan_reclaims(
    rules: WatermarkRules, snapshot: UsageSnapshot, streaks: Streaks, untouchable: frozenset[str]
) -> list[ReclaimAction]:
    """The amounts of memory to reclaim because of confirmed breaches, from as many guests as close the gap.

    At most ``MEMORY_STEP`` is reclaimed from a guest, and the guest keeps at least its lowest possible limit.
    The kernel can find less unused memory than requested, so limits are planned as if nothing was reclaimed.
    """
    plan: dict[str, ReclaimAction] = {}
    for breach in find_breaches(rules, WatermarkAction.RECLAIM, snapshot, streaks):
        gap, steps = snapshot.host[breach.series] - breach.target, rules.steps_of(breach.watermark)
        guests = breach.find_candidates(snapshot, untouchable | plan.keys())
        for guest in sort_guests(guests, breach.guest_order, breach.series):
            spare = guest.usage.get(breach.series, 0.0) - lowest_limit(
                guest.allotments[breach.used_knob], steps
            )
            amount = int(min(gap, spare, MEMORY_STEP))
            if amount > 0:
                plan[guest.uuid] = ReclaimAction(
                    guest.uuid, amount, breach.metric.name, breach.watermark.name
                )
                gap -= amount
    return list(plan.values())


def plan_throttles(
    rules: WatermarkRules,
    snapshot: UsageSnapshot,
    streaks: Streaks,
    state: WatermarkState,
    untouchable: frozenset[str],
) -> list[ThrottleAction]:
    """The limits to set because of breaches.

    If the effects can be computed, the limits are just enough to close the gaps. Otherwise each selected
    guest gets one step.
    """
    found = find_breaches(rules, WatermarkAction.THROTTLE_DOWN, snapshot, streaks)
    if not _can_be_precise(found, snapshot, untouchable):
        first = _of_highest_priority(found)
        # Each guest gets one step. The next round measures whether the steps were enough.
        selected = _selected_guests(found, snapshot, untouchable)
        # Limits are set only for the metric with the highest priority, because the steps can also reduce the
        # usage of other metrics.
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
            # The use of a guest is unknown, for example, if the guest has just started. Such a guest is
            # throttled only if throttling other guests was not enough.
            if not breach.is_measured(guest):
                unknown.append(guest)
                continue
            throttle = _steps_needed(rules, breach, snapshot, guest.uuid, state)
            if throttle is not None:
                # Later guests and breaches are planned with the usage expected under this limit.
                before = state.limit_of(guest.uuid, breach.used_knob)
                snapshot = rules.after_throttle(
                    snapshot, guest.uuid, breach.used_knob, before, throttle.limit
                )
                state = state.after_action(throttle)
                plan.append(throttle)
        if not breach.is_closed(snapshot.host[breach.series]):
            # The guests with a known use were not enough, so each guest with an unknown use gets one step.
            steps = [_one_step(rules, breach, guest, state) for guest in unknown]
            plan += [step for step in steps if step is not None]
    return _merge_throttles(plan)


def _can_be_precise(
    found: Sequence[ThresholdExceeded], snapshot: UsageSnapshot, untouchable: frozenset[str]
) -> bool:
    """Whether the effect of all actions on the breaches can be computed.

    The metrics of all breaches have to be quantified. For each breach with guests that can be limited, the
    use of at least one of these guests has to be known.
    """
    for breach in found:
        measured = map(breach.is_measured, breach.find_candidates(snapshot, untouchable))
        # If no candidate has a known use, nothing can be computed, even for a quantified metric.
        if not breach.is_quantified or not (next(measured, True) or any(measured)):
            return False
    return True


def _of_highest_priority(found: Sequence[ThresholdExceeded]) -> ThresholdExceeded:
    return max(found, key=lambda one: one.metric.action_priority)


def _selected_guests(
    found: Sequence[ThresholdExceeded], snapshot: UsageSnapshot, untouchable: frozenset[str]
) -> list[GuestUsage]:
    """The guests that at least one exceeded watermark selects, in the order for actions."""
    chosen = [
        guest
        for guest in snapshot.guests.values()
        if guest.uuid not in untouchable and any(one.watermark.selector.selects_guest(guest) for one in found)
    ]
    first = _of_highest_priority(found)
    # The general order is the default here, because a guest's use does not show how much an action frees.
    return sort_guests(chosen, first.watermark.order or GENERAL_ORDER, first.order_series)


_REACHED: Final = 1.02
"""A limit of memory falls by another step only if the guest's use is at most this multiple of the limit. With
a larger use, the kernel is still reclaiming memory for the last step.
"""


def _steps_needed(
    rules: WatermarkRules,
    breach: ThresholdExceeded,
    snapshot: UsageSnapshot,
    uuid: str,
    state: WatermarkState,
) -> ThrottleAction | None:
    """The limit of a guest that ends a breach, or the lowest possible one; None if it frees nothing."""
    guest, present = snapshot.guests[uuid], snapshot.host[breach.series]
    before = limit = state.limit_of(uuid, breach.used_knob)
    steps, is_gradual = rules.steps_of(breach.watermark), breach.used_lever.gradual
    if is_gradual and before is not None and guest.usage[breach.series] > before * _REACHED:
        return None
    usage = present
    # Several steps are taken at once, because the effect can be computed, and with one step in a round the
    # host would stay overloaded for longer.
    while not breach.is_closed(usage):
        lower = breach.used_lever.down(limit, guest.allotments[breach.used_knob], steps)
        if lower is None:
            break
        limit = lower
        share = rules.share_left(guest, breach.used_knob, before, limit)
        usage = present - guest.usage[breach.series] * (1 - share)
        if is_gradual and usage < present:
            break
    # A limit above the use of a guest frees nothing now, and would only slow the guest down later.
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
    """Keep only the lowest limit of each guest and ``ThrottleControl``, in the place of the last."""
    merged: dict[tuple[str, ThrottleControl], ThrottleAction] = {}
    for throttle in plan:
        # The throttle is removed and inserted again, so that it comes last, because limits are raised in the
        # reverse order.
        earlier = merged.pop((throttle.guest, throttle.knob), throttle)
        merged[throttle.guest, throttle.knob] = min(earlier, throttle, key=lambda one: one.limit)
    return list(merged.values())


_COSTLY: Final = (WatermarkAction.EVICT, WatermarkAction.THROTTLE_DOWN)
"""The actions that restrict running guests. The action that keeps new guests away is not among them."""


@dataclass(frozen=True, slots=True)
class _RestoreGate:
    """Whether limits of one lever and domain can be raised in this round, and how far.

    - ``open``: limits can be raised.
    - ``precise``: the effect of raised limits can be computed. If not, one guest gets one step in a round.
    - ``orphan``: no watermark in force throttles guests by this lever and domain any more.
    - ``up``: for each series (a metric on one domain), the usage above which no further limit is raised.
    - ``down``: for each series, the usage above which guests would be throttled or evicted again.
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
    """The limits to raise or remove, in the reverse order in which they were set."""
    plan = []
    knobs = {one.knob for one in state.throttles}
    # During a breach of any metric no limit is raised, because a lever can affect several metrics.
    calm = not is_overloaded(streaks)
    gates = {
        knob: _restore_gate(rules, snapshot, streaks, state, knob) if calm else _RestoreGate(False)
        for knob in knobs
    }
    # The levers and domains of which a limit is raised in this round.
    begun: set[ThrottleControl] = set()
    for one in reversed(state.throttles):
        guest = snapshot.guests.get(one.guest)
        # The guest has ended, is being evicted, or had an action in this round.
        if guest is None or one.guest in untouchable:
            continue
        gate, lever = gates[one.knob], rules.registry.levers.get(one.knob.lever)
        allotment = guest.allotments.get(one.knob)
        # A limit is removed without a cool-down if it has lost its reason: the guest is protected now, can no
        # longer be limited in this way, or the section was removed.
        if guest.protected or allotment is None or lever is None or (calm and gate.orphan):
            plan.append(RestoreAction(one.guest, one.knob, None))
        elif gate.open and (one.knob not in begun or (gate.precise and _stays_within(snapshot, gate.up))):
            limit = lever.up(one.limit, allotment, rules.restore_steps(one.knob.lever))
            then = rules.after_restore(snapshot, one.guest, one.knob, one.limit, limit)
            # A limit is raised only if the expected usage is no breach.
            if _stays_within(then, gate.down):
                begun.add(one.knob)
                snapshot = then
                plan.append(RestoreAction(one.guest, one.knob, limit))
    return plan


def forgive_relapses(
    rules: WatermarkRules, snapshot: UsageSnapshot, streaks: Streaks, state: WatermarkState
) -> WatermarkState:
    """The state without relapses of those levers that had no breach for twice their cool-down."""
    in_use = {one.knob.lever for one in state.throttles}
    return state.without_relapses(
        {
            lever
            for lever in (state.relapses.keys() | state.giving_back) - in_use
            # The time is twice the cool-down, because limits are raised after one cool-down. With a single
            # cool-down, the count would be reset before a relapse can happen.
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
        # ``rules`` contains only watermarks in force. So limits of a section that is now in preview are
        # removed.
        if rules.of_metric(metric.name, WatermarkAction.THROTTLE_DOWN):
            gate = replace(gate, orphan=False)
        if series not in snapshot.host or up is None or down is None:
            # A series without thresholds, or without a measured value, does not prevent restores. If it has a
            # watermark, its usage is unknown, so limits are raised by single steps.
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
    """The watermarks of a metric, with their streaks of throttling and eviction; None means all domains."""
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
    """The seconds without a breach after which limits of a lever are raised."""
    # If the effect can be computed, limits are raised only if no breach follows. A relapse is then caused by
    # new demand, so it does not make the time longer.
    if rules.registry[watermark.metric].throttle_quantified:
        return watermark.cool_down
    # Otherwise each relapse doubles the time. At most MAX_RELAPSES relapses count.
    return float(watermark.cool_down * 2 ** state.relapses.get(lever, 0))


def _stays_within(snapshot: UsageSnapshot, limits: Mapping[MetricSeries, float]) -> bool:
    return all(snapshot.host[series] <= limit for series, limit in limits.items())


def rehearse_usage(
    rules: WatermarkRules, snapshot: UsageSnapshot, state: WatermarkState, metric: str, usage: str
) -> list[WatermarkAct]:
    """The restricting actions of the first round in which all watermarks of ``metric`` can act.

    :param usage: the imagined usage of each domain, written like a threshold: ``12G``, ``80%``.
    :raises ValueError: no watermark has the metric, the metric is not measured, its capacity is unknown, or
        ``usage`` is not an amount of the metric.
    """
    watched = [one for one in rules.watermarks if one.metric == metric]
    if not watched:
        names = ", ".join(sorted({one.metric for one in rules.watermarks})) or "none"
        raise ValueError(f"no watermark watches {metric}; the watermarks here watch {names}")
    found = rules.registry[metric]
    amount = parse_usage(usage, found.unit, found.has_capacity)
    measured = [series for series in snapshot.host if series.metric == metric]
    if not measured:
        raise ValueError(f"{metric} is not measured yet: try again after the next round")
    imagined = {
        series: known
        for series in measured
        if (known := amount.absolute_amount(snapshot.capacity.get(series))) is not None
    }
    if not imagined:
        raise ValueError(
            f"the capacity for {metric} is not known; give a number such as 12G, not a percentage"
        )
    snapshot = replace(snapshot, host={**snapshot.host, **imagined})
    streaks: Streaks = {}
    for _ in range(max(one.for_samples for one in watched)):
        streaks = observe_usage(streaks, watched, snapshot)
    plan = make_plan(replace(rules, watermarks=tuple(watched)), snapshot, streaks, state)
    return [action for action in plan if takes_away(action)]
