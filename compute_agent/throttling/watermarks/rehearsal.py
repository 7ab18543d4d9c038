"""Computes the actions that watermarks would take if the host used a given amount of a metric.

The rehearsal replaces the usage of the host by this amount for as many rounds as the watermarks need before
they act. Guests keep their measured use. Watermarks in preview are treated as watermarks in force.
"""

from __future__ import annotations

from dataclasses import replace

from compute_agent.throttling.actions import WatermarkAct, takes_away
from compute_agent.throttling.watermarks.breaches import Streaks, observe_usage
from compute_agent.throttling.watermarks.plan import make_plan
from compute_agent.throttling.watermarks.sections import WatermarkRules
from compute_agent.throttling.watermarks.state import WatermarkState
from compute_agent.throttling.watermarks.thresholds import parse_usage
from compute_agent.usage.snapshot import UsageSnapshot


def rehearse_usage(
    rules: WatermarkRules, snapshot: UsageSnapshot, state: WatermarkState, metric: str, usage: str
) -> list[WatermarkAct]:
    """The restricting actions of the first round in which all watermarks of ``metric`` may act.

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
