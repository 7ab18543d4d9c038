"""Levers: steps of limits down and up, and the remaining use of a guest under a limit.

Pure arithmetic for watermarks and interference; an executor sets the limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from compute_agent.model import resource
from compute_agent.usage.snapshot import GuestAllotment, GuestUsage, MetricSeries

_TOLERANCE: Final = 1e-9
"""Relative to a granule, so that 0.3 / 0.1 is 3 granules and not 2."""

_AT_LIMIT: Final = 0.9
"""A limit does not slow down a guest that uses less than this part of the limit."""


@dataclass(frozen=True, slots=True)
class ThrottleSteps:
    """The sizes of steps, both from 0 to 1.

    ``step`` is the part of the limit that one step takes away, ``min_share`` the part of the allotment that a
    guest keeps.
    """

    step: float = 0.2
    min_share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.step < 1 or not 0 < self.min_share <= 1:
            raise ValueError(f"step {self.step} or min_share {self.min_share} is not a share")


def lowest_limit(allotment: GuestAllotment, steps: ThrottleSteps) -> float:
    """The lowest limit that a guest can get."""
    # Upwards: a guest keeps its share at least, and a coarse granule may be more than all that it has.
    return min(_round_up(allotment.full * steps.min_share, allotment.granule), allotment.full)


def step_down(limit: float | None, allotment: GuestAllotment, steps: ThrottleSteps) -> float | None:
    """The next lower limit (``limit`` None: not throttled yet); None at the floor."""
    # The first step goes down from all that the guest may use.
    present = allotment.full if limit is None else limit
    # Downwards to a whole granule: upwards, a step of a small limit would end where it began.
    wanted = math.floor(present * (1 - steps.step) / allotment.granule + _TOLERANCE) * allotment.granule
    lower = max(wanted, lowest_limit(allotment, steps))
    return lower if lower < present - _TOLERANCE else None


def step_up(limit: float, allotment: GuestAllotment, steps: ThrottleSteps) -> float | None:
    """The next higher limit; None without a limit, when the guest has its whole allotment."""
    # The inverse of a step down, so that as many steps up as were taken down end at or above the beginning.
    higher = _round_up(limit / (1 - steps.step), allotment.granule)
    return higher if higher < allotment.full - _TOLERANCE else None


StepDown = Callable[[float | None, GuestAllotment, ThrottleSteps], float | None]
StepUp = Callable[[float, GuestAllotment, ThrottleSteps], float | None]


@dataclass(frozen=True, slots=True)
class ThrottleLever:
    """One way to throttle. ``metric`` is the metric that it limits directly.

    ``set_limit`` (guest, domain, limit or None) sets a limit that no controller of the agent can set, for
    metrics of other packages. The function raises an exception on failure.
    """

    name: str
    metric: str
    unit: str
    down: StepDown = step_down
    up: StepUp = step_up
    set_limit: Callable[[str, str, float | None], None] | None = None

    def guest_consumption(self, guest: GuestUsage, domain: str) -> float | None:
        """The use of a guest that the lever limits; None if it is unknown."""
        return guest.usage.get(MetricSeries(self.metric, domain))


CPU_QUOTA: Final = ThrottleLever(resource.CPU_QUOTA, "cpu_usage", "cores")
MEMORY_BANDWIDTH: Final = ThrottleLever(resource.MEMORY_BANDWIDTH, "memory_bandwidth", "percent")
CACHE_WAYS: Final = ThrottleLever(resource.CACHE_WAYS, "llc_occupancy", "ways")
BLOCKIO: Final = ThrottleLever(resource.BLOCKIO, "io_pressure", "percent")
"""Percent of the weight and the rates of the guest's class of block I/O, or of the default weight."""


def left_by(use: float, before: float | None, after: float, allotment: GuestAllotment) -> float:
    """The rest of ``use`` when the limit goes down from ``before`` (None: no limit) to ``after``."""
    if allotment.per_unit is not None:
        return min(use, after * allotment.per_unit)
    # Use is taken to shrink as the limit does: nothing says how much one unit of limit lets through.
    return use * min(1.0, after / (allotment.full if before is None else before))


def taken_by(use: float, before: float, after: float | None, allotment: GuestAllotment) -> float:
    """Maximum additional use of a guest when its limit rises from ``before`` to ``after`` (None: no limit).

    A guest well below its limit takes no more.
    """
    risen = allotment.full if after is None else after
    if allotment.per_unit is None:
        return use * max(1.0, risen / before)
    if use < before * allotment.per_unit * _AT_LIMIT:
        return use
    return max(use, risen * allotment.per_unit)


def _round_up(amount: float, granule: float) -> float:
    return math.ceil(amount / granule - _TOLERANCE) * granule
