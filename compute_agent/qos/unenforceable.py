"""Which watermarks nobody can keep on a host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from compute_agent.conf.qos import WATERMARK
from compute_agent.qos.metrics import MetricRegistry
from compute_agent.qos.watermarks import WatermarkSection


def unenforceable(
    watermarks: Iterable[WatermarkSection],
    registry: MetricRegistry,
    unmeasured_metrics: Mapping[str, str],
    unusable_levers: Mapping[str, str],
) -> Iterator[str]:
    """What will not come of the watermarks, a sentence each.

    ``unmeasured_metrics`` has the reason by metric that cannot be measured here, ``unusable_levers`` by lever
    that moves nothing.
    """
    for watermark in watermarks:
        section, lever = f"[{WATERMARK}{watermark.name}]", registry[watermark.metric].lever
        if reason := unmeasured_metrics.get(watermark.metric):
            yield f"{section} metric = {watermark.metric}: nothing is ever done, as {reason}"
        elif watermark.throttle_down and lever and (reason := unusable_levers.get(lever.name)):
            yield f"{section} throttle_down: nobody is throttled, as {reason}"
