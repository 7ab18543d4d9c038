"""A rehearsal: the actions that would follow if the host used a certain amount of a metric for long enough.

Guests keep the use that was measured, and the rest is the host's own. Watermarks in preview act as the
others.
"""

from __future__ import annotations

from dataclasses import replace

from compute_agent.throttling.actions import WatermarkAct, takes_away
from compute_agent.throttling.watermarks.breaches import Streaks, observe_usage
from compute_agent.throttling.watermarks.plan import make_plan
from compute_agent.throttling.watermarks.sections import WatermarkRules, parse_threshold
from compute_agent.throttling.watermarks.state import WatermarkState
from compute_agent.usage.snapshot import UsageSnapshot


def rehearse_usage(
    rules: WatermarkRules, snapshot: UsageSnapshot, state: WatermarkState, metric: str, usage: str
) -> list[WatermarkAct]:
    """The actions of the round in which all watermarks of a metric are confirmed at this ``usage``.

    :raises ValueError: there is no such metric, it is not measured, or the usage is not an amount of it.
    """
    watched = [one for one in rules.watermarks if one.metric == metric]
    if not watched:
        names = ", ".join(sorted({one.metric for one in rules.watermarks})) or "none"
        raise ValueError(f"no watermark watches {metric}; the watermarks here watch {names}")
    amount = parse_threshold(usage, rules.registry[metric].unit)
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
