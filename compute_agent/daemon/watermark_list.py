"""The watermarks as the command line shows them: a row for each threshold, on each domain of the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from compute_agent.loops.watermarks import WatermarkStatus
from compute_agent.qos.metrics import WatermarkMetric
from compute_agent.qos.snapshot import MetricSeries
from compute_agent.qos.streaks import WatermarkWatch, quiet
from compute_agent.qos.watermarks import WatermarkAction, WatermarkSection


def watermark_rows(status: WatermarkStatus) -> list[dict[str, Any]]:
    """All watermarks, by section.

    ``usage``, ``amount`` (the threshold) and ``gap`` are in the metric's unit, None where they are not known;
    ``gap`` is also None where the threshold is not exceeded. ``streak`` is the number of rounds in a row in
    breach, of the ``for_samples`` that it takes to act. ``in_force`` is what is done for the metric now; of
    the watermarks that keep new guests away only those in breach say so, or else those within their
    cool-down.
    """
    rows: list[dict[str, Any]] = []
    for watermark in sorted(status.rules.watermarks, key=lambda one: one.name):
        measured = {} if status.snapshot is None else status.snapshot.host
        domains = sorted(series.domain for series in measured if series.metric == watermark.metric)
        for domain in domains or [""]:
            for action in WatermarkAction:
                if watermark.threshold(action) is not None:
                    rows.append(_row(status, watermark, action, domain))
    return rows


def _row(
    status: WatermarkStatus, watermark: WatermarkSection, action: WatermarkAction, domain: str
) -> dict[str, Any]:
    snapshot = status.snapshot
    usage = None if snapshot is None else snapshot.host.get(MetricSeries(watermark.metric, domain))
    amount = None if snapshot is None else watermark.amount(action, snapshot, domain)
    gap = None
    if usage is not None and amount is not None:
        gap = amount - usage if action is WatermarkAction.THROTTLE_UP else usage - amount
    watched = status.streaks.get(WatermarkWatch(watermark.name, action, domain))
    metric = status.rules.registry[watermark.metric]
    return {
        "section": watermark.name,
        "metric": watermark.metric,
        "unit": metric.unit.value,
        "domain": domain,
        "mode": "preview" if watermark.preview else "act",
        "action": action.value,
        "line": str(watermark.threshold(action)),
        "amount": _rounded(amount),
        "usage": _rounded(usage),
        "gap": _rounded(gap) if gap is not None and gap > 0 else None,
        "streak": 0 if watched is None else watched.samples,
        "for_samples": watermark.for_samples,
        "in_force": [] if watermark.preview else list(_in_force(status, watermark, metric, action, domain)),
    }


def _in_force(
    status: WatermarkStatus,
    watermark: WatermarkSection,
    metric: WatermarkMetric,
    action: WatermarkAction,
    domain: str,
) -> Iterator[str]:
    state = status.state
    match action:
        case WatermarkAction.DISABLE_SCHEDULING if state.scheduling_off:
            yield from _kept_away(status, watermark, domain)
        case WatermarkAction.EVICT:
            yield from (f"{one.guest} leaves" for one in state.evictions if one.metric == metric.name)
        case WatermarkAction.THROTTLE_DOWN if metric.lever is not None:
            for one in state.throttles:
                if one.knob == (metric.lever.name, domain):
                    yield f"{one.guest} has {one.limit:g} {metric.lever.unit}"


def _kept_away(status: WatermarkStatus, watermark: WatermarkSection, domain: str) -> Iterator[str]:
    """Whether it is this watermark for which new guests are kept away.

    It is in breach, or, if none is, it has been within its cool-down. Before the first round it could be any.
    """
    switch = WatermarkAction.DISABLE_SCHEDULING
    streak = status.streaks.get(WatermarkWatch(watermark.name, switch, domain))
    in_breach = any(one.samples for watch, one in status.streaks.items() if watch.action is switch)
    if status.snapshot is None or streak is None or streak.samples:
        yield "new guests are kept away"
    elif not in_breach and not quiet(streak, watermark, status.snapshot.time, watermark.cool_down):
        left = watermark.cool_down - (status.snapshot.time - streak.quiet_since)
        yield f"new guests are kept away for {max(left, 0):.0f} s more"


def _rounded(amount: float | None) -> float | None:
    return None if amount is None else round(amount, 3)
