"""Giving back: in the reverse order of throttling, by steps, and not so far as to cause a new breach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from compute_agent.model.resource import ThrottleControl
from compute_agent.qos.actions import RestoreAction
from compute_agent.qos.rules import QosRules
from compute_agent.qos.snapshot import MetricSeries, UsageSnapshot
from compute_agent.qos.state import QosState
from compute_agent.qos.streaks import Streaks, ThresholdStreak, overloaded, quiet
from compute_agent.qos.watermarks import WatermarkAction, WatermarkSection

_COSTLY: Final = (WatermarkAction.EVICT, WatermarkAction.THROTTLE_DOWN)


@dataclass(frozen=True, slots=True)
class _RestoreGate:
    """Whether a knob may be given back now, and how far usage of the series that it moves may rise.

    ``up`` is where giving back stops, ``down`` where guests would be throttled or evicted. ``precise``: what
    giving back leads to can be computed; else one guest gets one step in a round. ``orphan``: nothing that
    the knob moves has a watermark any more.
    """

    open: bool = True
    precise: bool = True
    orphan: bool = False
    up: Mapping[MetricSeries, float] = field(default_factory=dict)
    down: Mapping[MetricSeries, float] = field(default_factory=dict)


def plan_restores(
    rules: QosRules, snapshot: UsageSnapshot, streaks: Streaks, state: QosState, untouchable: frozenset[str]
) -> list[RestoreAction]:
    """The limits to raise or take away."""
    plan = []
    knobs = {one.knob for one in state.throttles}
    calm = not overloaded(streaks)
    gates = {
        knob: _gate(rules, snapshot, streaks, state, knob) if calm else _RestoreGate(False) for knob in knobs
    }
    begun: set[ThrottleControl] = set()
    for one in reversed(state.throttles):
        guest = snapshot.guests.get(one.guest)
        if guest is None or one.guest in untouchable:
            continue
        gate, lever = gates[one.knob], rules.registry.levers.get(one.knob.lever)
        entitlement = guest.entitlements.get(one.knob)
        if guest.protected or entitlement is None or lever is None or (calm and gate.orphan):
            plan.append(RestoreAction(one.guest, one.knob, None))
        elif gate.open and (one.knob not in begun or (gate.precise and _within(snapshot, gate.up))):
            limit = lever.up(one.limit, entitlement, rules.steps)
            then = rules.restored(snapshot, one.guest, one.knob, one.limit, limit)
            if _within(then, gate.down):
                begun.add(one.knob)
                snapshot = then
                plan.append(RestoreAction(one.guest, one.knob, limit))
    return plan


def forgiven(rules: QosRules, snapshot: UsageSnapshot, streaks: Streaks, state: QosState) -> QosState:
    """The state without the relapses of levers that have not been needed for twice as long as they waited."""
    in_use = {one.knob.lever for one in state.throttles}
    return state.forgiven(
        {
            lever
            for lever in (state.relapses.keys() | state.giving_back) - in_use
            if all(
                snapshot.time - streak.quiet_since >= 2 * _cool_down(rules, watermark, state, lever)
                for metric in rules.registry.moved_by(lever)
                for watermark, streak in _watched(rules, streaks, metric.name)
            )
        }
    )


def _gate(
    rules: QosRules, snapshot: UsageSnapshot, streaks: Streaks, state: QosState, knob: ThrottleControl
) -> _RestoreGate:
    gate = _RestoreGate(orphan=True)
    for metric in rules.registry.moved_by(knob.lever):
        series = MetricSeries(metric.name, knob.domain)
        watched = _watched(rules, streaks, metric.name, knob.domain)
        down = _lowest(rules, _COSTLY, snapshot, series)
        up = _lowest(rules, (WatermarkAction.THROTTLE_UP,), snapshot, series)
        if not all(
            quiet(streak, watermark, snapshot.time, _cool_down(rules, watermark, state, knob.lever))
            for watermark, streak in watched
        ):
            return _RestoreGate(False)
        if rules.of_metric(metric.name, WatermarkAction.THROTTLE_DOWN):
            gate = replace(gate, orphan=False)
        if series not in snapshot.host or up is None or down is None:
            # No watermark, or what cannot be seen any more: nobody stays throttled for that.
            gate = replace(gate, precise=gate.precise and not watched)
            continue
        if snapshot.host[series] >= up:
            return _RestoreGate(False)
        if metric.throttle_quantified:
            gate = replace(gate, up={**gate.up, series: up}, down={**gate.down, series: down})
        else:
            gate = replace(gate, precise=False)
    return gate


def _watched(
    rules: QosRules, streaks: Streaks, metric: str, domain: str | None = None
) -> list[tuple[WatermarkSection, ThresholdStreak]]:
    """What is known of the watermarks of a metric that throttle or evict, on one domain or on all."""
    by_name = {watermark.name: watermark for watermark in rules.watermarks if watermark.metric == metric}
    return [
        (by_name[watch.watermark], streak)
        for watch, streak in streaks.items()
        if watch.watermark in by_name and watch.action in _COSTLY and domain in (None, watch.domain)
    ]


def _lowest(
    rules: QosRules, actions: tuple[WatermarkAction, ...], snapshot: UsageSnapshot, series: MetricSeries
) -> float | None:
    amounts = [
        watermark.amount(action, snapshot, series.domain)
        for action in actions
        for watermark in rules.of_metric(series.metric, action)
    ]
    return min((amount for amount in amounts if amount is not None), default=None)


def _cool_down(rules: QosRules, watermark: WatermarkSection, state: QosState, lever: str) -> float:
    """Seconds of quiet before something is given back.

    After each relapse it is longer, where nobody can compute beforehand what giving back leads to.
    """
    if rules.registry[watermark.metric].throttle_quantified:
        return watermark.cool_down
    return float(watermark.cool_down * 2 ** state.relapses.get(lever, 0))


def _within(snapshot: UsageSnapshot, limits: Mapping[MetricSeries, float]) -> bool:
    return all(snapshot.host[series] <= limit for series, limit in limits.items())
