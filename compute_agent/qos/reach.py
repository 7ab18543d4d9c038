"""Which watermarks nobody can keep on a host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from compute_agent.conf.qos import WATERMARK
from compute_agent.qos.metrics import Registry
from compute_agent.qos.watermarks import Watermark


def out_of_reach(
    watermarks: Iterable[Watermark],
    registry: Registry,
    unmeasured: Mapping[str, str],
    powerless: Mapping[str, str],
) -> Iterator[str]:
    """What will not come of the watermarks, a sentence each.

    ``unmeasured`` has the reason by metric that cannot be measured here, ``powerless`` by lever that moves
    nothing.
    """
    for watermark in watermarks:
        section, lever = f"[{WATERMARK}{watermark.name}]", registry[watermark.metric].lever
        if reason := unmeasured.get(watermark.metric):
            yield f"{section} metric = {watermark.metric}: nothing is ever done, as {reason}"
        elif watermark.throttle_down and lever and (reason := powerless.get(lever.name)):
            yield f"{section} throttle_down: nobody is throttled, as {reason}"
