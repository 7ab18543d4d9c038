"""Plans: the actions of one round of watermarks, in order, computed from a snapshot of usage.

All functions are pure; an executor carries out the plan. The order of actions is: the scheduling switch,
evictions, reclaims of memory, throttles, restores. A restore raises a limit by a step. Limits are restored
only in rounds without a breach, in the reverse order of throttling, and only if no new breach is expected.

A rehearsal computes the actions of watermarks at a given usage of the host. It replaces the usage of the host
by this amount for as many rounds as the watermarks need before they act. Guests keep their measured use.
Watermarks in preview are treated as watermarks in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    planner = _RoundPlanner(rules, snapshot, streaks, state, excluded | state.evicting_guests)
    # Evictions come before throttles. So a guest that leaves is not throttled, and other guests are throttled
    # only for the remaining gap.
    return (
        *planner.plan_switch(),
        *planner.plan_evictions(unevictable),
        *planner.plan_reclaims(resting),
        *planner.plan_throttles(),
        *planner.plan_restores(),
    )


def forgive_relapses(
    rules: WatermarkRules, snapshot: UsageSnapshot, streaks: Streaks, state: WatermarkState
) -> WatermarkState:
    """The state without relapses of those levers that had no breach for twice their cool-down."""
    calm = _RoundPlanner(rules, snapshot, streaks, state, frozenset()).list_calm_levers()
    return state.without_relapses(frozenset(calm))


_REACHED: Final = 1.02
"""A limit of memory falls by another step only if the guest's use is at most this multiple of the limit. With
a larger use, the kernel is still reclaiming memory for the last step.
"""

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


class _RoundPlanner:
    """Plans the actions of one round.

    ``snapshot`` and ``state`` are the usage and the limits that are expected after the planned evictions and
    throttles, so that later actions take the earlier ones into account.
    """

    def __init__(
        self,
        rules: WatermarkRules,
        snapshot: UsageSnapshot,
        streaks: Streaks,
        state: WatermarkState,
        untouchable: frozenset[str],
    ) -> None:
        """``untouchable`` are the uuids of guests on which no action is possible in this round."""
        self._rules = rules
        self._snapshot = snapshot
        self._streaks = streaks
        self._state = state
        self._untouchable = untouchable

    def plan_switch(self) -> list[SwitchScheduling]:
        """The action that keeps new guests away or lets them in again, if the switch has to change."""
        action = WatermarkAction.DISABLE_SCHEDULING
        watches = [
            (watermark, watch)
            for watermark in self._rules.watermarks
            for watch in self._streaks
            if (watch.watermark, watch.action) == (watermark.name, action) and action in watermark.thresholds
        ]
        asking = {
            watermark.name
            for watermark, watch in watches
            if is_confirmed(self._streaks, watermark, action, watch.domain)
        }
        # One confirmed watermark is enough to keep new guests away. All watermarks have to be quiet to let
        # new guests in.
        if asking:
            return [] if self._state.scheduling_off else [SwitchScheduling(True, tuple(sorted(asking)))]
        # None (unknown) leads to an explicit switch: after the loss of the state file, the trait that keeps
        # guests away is perhaps still in Placement.
        if self._state.scheduling_off is False or not all(
            is_quiet(self._streaks[watch], watermark, self._snapshot.time, watermark.cool_down)
            for watermark, watch in watches
        ):
            return []
        return [SwitchScheduling(False)]

    def plan_evictions(self, unevictable: frozenset[str]) -> list[EvictAction]:
        """The guests to evict."""
        kept = self._untouchable | unevictable
        found = self._find_breaches(WatermarkAction.EVICT)
        plan: list[EvictAction] = []
        if self._can_be_precise(found, kept):
            for breach in found:
                for guest in self._sort_candidates(breach, kept):
                    if self._is_closed(breach):
                        break
                    # The eviction of a guest without a known use of the series might free nothing.
                    if guest.usage.get(breach.series, 0.0) > 0:
                        plan.append(self._evict_guest(breach, guest))
        else:
            # The agent cannot know how many evictions are enough. So all guests that the sections select are
            # evicted.
            for guest in self._select_guests(found, kept):
                # The first watermark that selects a guest is the reason for its eviction, and the options of
                # this watermark apply.
                breach = next(one for one in found if one.watermark.selects_guest(guest))
                if self._has_room(breach.watermark):
                    plan.append(self._evict_guest(breach, guest))
        self._untouchable |= {eviction.guest for eviction in plan}
        return plan

    def _evict_guest(self, breach: ThresholdExceeded, guest: GuestUsage) -> EvictAction:
        watermark = breach.watermark
        action = EvictAction(guest.uuid, breach.metric.name, watermark.name, watermark.evict_grace)
        self._state = self._state.after_action(action)
        self._snapshot = self._rules.after_eviction(self._snapshot, guest.uuid)
        return action

    def _has_room(self, watermark: WatermarkSection) -> bool:
        """Whether the watermark's maximum of simultaneous evictions allows another eviction."""
        if watermark.evict_at_once is None:
            return True
        # Evictions in progress count, because their effect shows only after they have ended. An eviction
        # without a known watermark counts for every watermark.
        leaving = [one for one in self._state.evictions if one.watermark in ("", watermark.name)]
        return len(leaving) < watermark.evict_at_once

    def plan_reclaims(self, resting: frozenset[str]) -> list[ReclaimAction]:
        """The amounts of memory to reclaim because of confirmed breaches, from guests that close the gap.

        At most ``MEMORY_STEP`` is reclaimed from a guest, and the guest keeps at least its lowest possible
        limit. The kernel can find less unused memory than requested, so limits are planned as if nothing was
        reclaimed.
        """
        plan: dict[str, ReclaimAction] = {}
        for breach in self._find_breaches(WatermarkAction.RECLAIM):
            watermark = breach.watermark
            gap, steps = self._snapshot.host[breach.series] - breach.target, self._rules.steps_of(watermark)
            for guest in self._sort_candidates(breach, self._untouchable | resting | plan.keys()):
                lowest = lowest_limit(guest.allotments[breach.used_knob], steps)
                amount = int(min(gap, guest.usage.get(breach.series, 0.0) - lowest, MEMORY_STEP))
                if amount > 0:
                    plan[guest.uuid] = ReclaimAction(guest.uuid, amount, breach.metric.name, watermark.name)
                    gap -= amount
        return list(plan.values())

    def plan_throttles(self) -> list[ThrottleAction]:
        """The limits to set because of breaches.

        If the effects can be computed, the limits are just enough to close the gaps. Otherwise each selected
        guest gets one step.
        """
        found = self._find_breaches(WatermarkAction.THROTTLE_DOWN)
        if not self._can_be_precise(found, self._untouchable):
            first = _of_highest_priority(found)
            # Each guest gets one step. The next round measures whether the steps were enough.
            selected = self._select_guests(found, self._untouchable)
            # Limits are set only for the metric with the highest priority, because the steps can also reduce
            # the usage of other metrics.
            same = [breach for breach in found if breach.metric is first.metric]
            return _merge_throttles(self._one_step(breach, guest) for guest in selected for breach in same)
        plan: list[ThrottleAction | None] = []
        for breach in found:
            unknown = []
            for guest in self._sort_candidates(breach, self._untouchable):
                if self._is_closed(breach):
                    break
                # The use of a guest is unknown, for example, if the guest has just started. Such a guest is
                # throttled only if throttling other guests was not enough.
                if not breach.is_measured(guest):
                    unknown.append(guest)
                    continue
                throttle = self._steps_needed(breach, guest.uuid)
                if throttle is not None:
                    # Later guests and breaches are planned with the usage expected under this limit.
                    before = self._state.limit_of(guest.uuid, breach.used_knob)
                    self._snapshot = self._rules.after_throttle(
                        self._snapshot, guest.uuid, breach.used_knob, before, throttle.limit
                    )
                    self._state = self._state.after_action(throttle)
                    plan.append(throttle)
            if not self._is_closed(breach):
                # The guests with a known use were not enough, so each other guest gets one step.
                plan += [self._one_step(breach, guest) for guest in unknown]
        return _merge_throttles(plan)

    def _find_breaches(self, action: WatermarkAction) -> list[ThresholdExceeded]:
        return find_breaches(self._rules, action, self._snapshot, self._streaks)

    def _is_closed(self, breach: ThresholdExceeded) -> bool:
        return breach.is_closed(self._snapshot.host[breach.series])

    def _sort_candidates(self, breach: ThresholdExceeded, kept: frozenset[str]) -> list[GuestUsage]:
        return sort_guests(breach.find_candidates(self._snapshot, kept), breach.guest_order, breach.series)

    def _can_be_precise(self, found: Sequence[ThresholdExceeded], kept: frozenset[str]) -> bool:
        """Whether the effect of all actions on the breaches can be computed.

        The metrics of all breaches have to be quantified. For each breach with guests that can be limited,
        the use of at least one of these guests has to be known.
        """
        for breach in found:
            measured = map(breach.is_measured, breach.find_candidates(self._snapshot, kept))
            # If no candidate has a known use, nothing can be computed, even for a quantified metric.
            if not breach.is_quantified or not (next(measured, True) or any(measured)):
                return False
        return True

    def _select_guests(self, found: Sequence[ThresholdExceeded], kept: frozenset[str]) -> list[GuestUsage]:
        """The guests that at least one exceeded watermark selects, in the order for actions."""
        chosen = [
            guest
            for guest in self._snapshot.guests.values()
            if guest.uuid not in kept and any(one.watermark.selects_guest(guest) for one in found)
        ]
        first = _of_highest_priority(found)
        # The general order is the default here, because a guest's use does not show how much an action frees.
        return sort_guests(chosen, first.watermark.order or GENERAL_ORDER, first.order_series)

    def _steps_needed(self, breach: ThresholdExceeded, uuid: str) -> ThrottleAction | None:
        """The limit of a guest that ends a breach, or the lowest possible one; None if it frees nothing."""
        guest, present = self._snapshot.guests[uuid], self._snapshot.host[breach.series]
        before = limit = self._state.limit_of(uuid, breach.used_knob)
        steps, is_gradual = self._rules.steps_of(breach.watermark), breach.used_lever.gradual
        if is_gradual and before is not None and guest.usage[breach.series] > before * _REACHED:
            return None
        usage = present
        # Several steps are taken at once, because the effect can be computed, and with one step in a round
        # the host would stay overloaded for longer.
        while not breach.is_closed(usage):
            lower = breach.used_lever.down(limit, guest.allotments[breach.used_knob], steps)
            if lower is None:
                break
            limit = lower
            share = self._rules.share_left(guest, breach.used_knob, before, limit)
            usage = present - guest.usage[breach.series] * (1 - share)
            if is_gradual and usage < present:
                break
        # A limit above the use of a guest frees nothing now, and would only slow the guest down later.
        return None if limit is None or usage >= present else breach.throttle_action(uuid, limit)

    def _one_step(self, breach: ThresholdExceeded, guest: GuestUsage) -> ThrottleAction | None:
        allotment = guest.allotments.get(breach.used_knob)
        if allotment is None:
            return None
        before = self._state.limit_of(guest.uuid, breach.used_knob)
        limit = breach.used_lever.down(before, allotment, self._rules.steps_of(breach.watermark))
        return None if limit is None else breach.throttle_action(guest.uuid, limit)

    def plan_restores(self) -> list[RestoreAction]:
        """The limits to raise or remove, in the reverse order in which they were set."""
        rules, plan = self._rules, []
        # During a breach of any metric no limit is raised, because a lever can affect several metrics.
        calm = not is_overloaded(self._streaks)
        gates = {
            knob: self._restore_gate(knob) if calm else _RestoreGate(False)
            for knob in {one.knob for one in self._state.throttles}
        }
        # The levers and domains of which a limit is raised in this round.
        begun: set[ThrottleControl] = set()
        for one in reversed(self._state.throttles):
            guest = self._snapshot.guests.get(one.guest)
            # The guest has ended, is being evicted, or had an action in this round.
            if guest is None or one.guest in self._untouchable:
                continue
            gate, lever = gates[one.knob], rules.registry.levers.get(one.knob.lever)
            allotment = guest.allotments.get(one.knob)
            # A limit is removed without a cool-down if it has lost its reason: the guest is protected now,
            # can no longer be limited in this way, or the section was removed.
            if guest.protected or allotment is None or lever is None or (calm and gate.orphan):
                plan.append(RestoreAction(one.guest, one.knob, None))
            elif gate.open and (
                one.knob not in begun or (gate.precise and _stays_within(self._snapshot, gate.up))
            ):
                limit = lever.up(one.limit, allotment, rules.restore_steps(one.knob.lever))
                then = rules.after_restore(self._snapshot, one.guest, one.knob, one.limit, limit)
                # A limit is raised only if the expected usage is no breach.
                if _stays_within(then, gate.down):
                    begun.add(one.knob)
                    self._snapshot = then
                    plan.append(RestoreAction(one.guest, one.knob, limit))
        return plan

    def list_calm_levers(self) -> Iterator[str]:
        """The levers that raised limits, have none in force, and had no breach for twice their cool-down."""
        known = self._state.relapses.keys() | self._state.giving_back
        for lever in known - {one.knob.lever for one in self._state.throttles}:
            # The time is twice the cool-down, because limits are raised after one cool-down. With a single
            # cool-down, the count would be reset before a relapse can happen.
            if all(
                self._snapshot.time - streak.quiet_since >= 2 * self._cool_down(watermark, lever)
                for metric in self._rules.registry.metrics_moved_by(lever)
                for watermark, streak in self._watched_streaks(metric.name)
            ):
                yield lever

    def _restore_gate(self, knob: ThrottleControl) -> _RestoreGate:
        gate, snapshot = _RestoreGate(orphan=True), self._snapshot
        for metric in self._rules.registry.metrics_moved_by(knob.lever):
            series = MetricSeries(metric.name, knob.domain)
            watched = self._watched_streaks(metric.name, knob.domain)
            down = self._lowest_amount(_COSTLY, series)
            up = self._lowest_amount((WatermarkAction.THROTTLE_UP,), series)
            if not all(
                is_quiet(streak, watermark, snapshot.time, self._cool_down(watermark, knob.lever))
                for watermark, streak in watched
            ):
                return _RestoreGate(False)
            # The rules contain only watermarks in force. So limits of a section that is now in preview are
            # removed.
            if self._rules.of_metric(metric.name, WatermarkAction.THROTTLE_DOWN):
                gate = replace(gate, orphan=False)
            if series not in snapshot.host or up is None or down is None:
                # A series without thresholds, or without a measured value, does not prevent restores. If it
                # has a watermark, its usage is unknown, so limits are raised by single steps.
                gate = replace(gate, precise=gate.precise and not watched)
            elif snapshot.host[series] >= up:
                return _RestoreGate(False)
            elif metric.throttle_quantified:
                gate = replace(gate, up={**gate.up, series: up}, down={**gate.down, series: down})
            else:
                gate = replace(gate, precise=False)
        return gate

    def _watched_streaks(
        self, metric: str, domain: str | None = None
    ) -> list[tuple[WatermarkSection, ThresholdStreak]]:
        """The watermarks of a metric, with their streaks of throttling and eviction; None: all domains."""
        by_name = {one.name: one for one in self._rules.watermarks if one.metric == metric}
        return [
            (by_name[watch.watermark], streak)
            for watch, streak in self._streaks.items()
            if watch.watermark in by_name and watch.action in _COSTLY and domain in (None, watch.domain)
        ]

    def _lowest_amount(self, actions: tuple[WatermarkAction, ...], series: MetricSeries) -> float | None:
        amounts = [
            watermark.threshold_amount(action, self._snapshot, series.domain)
            for action in actions
            for watermark in self._rules.of_metric(series.metric, action)
        ]
        return min((amount for amount in amounts if amount is not None), default=None)

    def _cool_down(self, watermark: WatermarkSection, lever: str) -> float:
        """The seconds without a breach after which limits of a lever are raised."""
        # If the effect can be computed, limits are raised only if no breach follows. A relapse is then caused
        # by new demand, so it does not make the time longer.
        if self._rules.registry[watermark.metric].throttle_quantified:
            return watermark.cool_down
        # Otherwise each relapse doubles the time. At most MAX_RELAPSES relapses count.
        return float(watermark.cool_down * 2 ** self._state.relapses.get(lever, 0))


def _of_highest_priority(found: Sequence[ThresholdExceeded]) -> ThresholdExceeded:
    return max(found, key=lambda one: one.metric.action_priority)


def _merge_throttles(plan: Iterable[ThrottleAction | None]) -> list[ThrottleAction]:
    """Keep only the lowest limit of each guest and ``ThrottleControl``, in the place of the last."""
    merged: dict[tuple[str, ThrottleControl], ThrottleAction] = {}
    for throttle in filter(None, plan):
        # The throttle is removed and inserted again, so that it comes last, because limits are raised in the
        # reverse order.
        earlier = merged.pop((throttle.guest, throttle.knob), throttle)
        merged[throttle.guest, throttle.knob] = min(earlier, throttle, key=lambda one: one.limit)
    return list(merged.values())


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
