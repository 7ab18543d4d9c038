"""Watermarks over time: how long usage has been above each threshold. State in, state out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from compute_agent.qos.snapshot import MetricSeries, UsageSnapshot
from compute_agent.qos.watermarks import ABOVE, WatermarkAction, WatermarkSection


class WatermarkWatch(NamedTuple):
    """One watermark on one domain for one action."""

    watermark: str
    action: WatermarkAction
    domain: str


@dataclass(frozen=True, slots=True)
class ThresholdStreak:
    """``samples`` in a row above the watermark, the latest included.

    ``unseen`` rounds in a row were without a sample.

    ``quiet_since`` is the time of the latest breach, or else when watching began.
    """

    samples: int = 0
    unseen: int = 0
    quiet_since: float = 0.0


Streaks = Mapping[WatermarkWatch, ThresholdStreak]


def observe(
    streaks: Streaks,
    watermarks: Iterable[WatermarkSection],
    snapshot: UsageSnapshot,
    expected: Iterable[MetricSeries] = (),
) -> dict[WatermarkWatch, ThresholdStreak]:
    """What is known after another snapshot, of all domains that have been seen or are ``expected``.

    A round without a sample changes nothing, as one reading may fail; when there are ``for_samples`` of them,
    or more, the watermark is not watched any more, and does not count as in breach.
    """
    after: dict[WatermarkWatch, ThresholdStreak] = {}
    for watermark in watermarks:
        domains = {one.domain for one in (*snapshot.host, *expected) if one.metric == watermark.metric}
        domains |= {watch.domain for watch in streaks if watch.watermark == watermark.name}
        for action in ABOVE:
            for domain in domains or {""}:
                watch = WatermarkWatch(watermark.name, action, domain)
                if watermark.threshold(action) is not None:
                    before = streaks.get(watch, ThresholdStreak(quiet_since=snapshot.time))
                    after[watch] = _next(before, watermark, watch, snapshot)
    return after


def _next(
    before: ThresholdStreak, watermark: WatermarkSection, watch: WatermarkWatch, snapshot: UsageSnapshot
) -> ThresholdStreak:
    usage = snapshot.host.get(MetricSeries(watermark.metric, watch.domain))
    amount = watermark.amount(watch.action, snapshot, watch.domain)
    if usage is None or amount is None:
        unseen = before.unseen + 1
        samples = 0 if unseen >= watermark.for_samples else before.samples
        return replace(before, unseen=unseen, samples=samples)
    if usage > amount:
        return ThresholdStreak(before.samples + 1, 0, snapshot.time)
    return ThresholdStreak(0, 0, before.quiet_since)


def confirmed(streaks: Streaks, watermark: WatermarkSection, action: WatermarkAction, domain: str) -> bool:
    """Whether a watermark has been in breach for long enough to act."""
    return (
        streaks.get(WatermarkWatch(watermark.name, action, domain), ThresholdStreak()).samples
        >= watermark.for_samples
    )


def overloaded(streaks: Streaks) -> bool:
    """Whether usage is above a watermark that costs guests something, for however short a time."""
    return any(
        streak.samples > 0
        for watch, streak in streaks.items()
        if watch.action is not WatermarkAction.DISABLE_SCHEDULING
    )


def blind(streak: ThresholdStreak, watermark: WatermarkSection) -> bool:
    """Whether there has been no sample for so long that the watermark is not watched any more."""
    return streak.unseen >= watermark.for_samples


def quiet(streak: ThresholdStreak, watermark: WatermarkSection, time: float, cool_down: float) -> bool:
    """Whether it has been quiet long enough to give something back, as far as can be seen."""
    seen = streak.unseen == 0 or blind(streak, watermark)
    return seen and streak.samples == 0 and time - streak.quiet_since >= cool_down
