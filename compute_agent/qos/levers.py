"""How guests are throttled: limits that go down and up by steps, and what a limit leaves of a guest's use.

Everything here is arithmetic; whoever carries out a plan sets the limits (see ``executor``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from compute_agent.model import resource
from compute_agent.qos.snapshot import GuestAllotment, GuestUsage, MetricSeries

_TOLERANCE: Final = 1e-9
"""So that 0.3 / 0.1 is 3 granules."""

_AT_LIMIT: Final = 0.9
"""A guest that uses less than this part of its limit is not held back by it."""


@dataclass(frozen=True, slots=True)
class ThrottleSteps:
    """How far a step goes, and how low: both within 0..1.

    ``step`` is the part of its limit that a step takes, ``min_share`` the part of its entitlement that a
    guest keeps.
    """

    step: float = 0.2
    min_share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.step < 1 or not 0 < self.min_share <= 1:
            raise ValueError(f"step {self.step} or min_share {self.min_share} is no share")


def floor(entitlement: GuestAllotment, steps: ThrottleSteps) -> float:
    """The lowest limit that a guest can get."""
    return min(_rounded_up(entitlement.full * steps.min_share, entitlement.granule), entitlement.full)


def step_down(limit: float | None, entitlement: GuestAllotment, steps: ThrottleSteps) -> float | None:
    """The next lower limit (``limit`` None: not throttled yet); None at the floor."""
    present = entitlement.full if limit is None else limit
    wanted = math.floor(present * (1 - steps.step) / entitlement.granule + _TOLERANCE) * entitlement.granule
    lower = max(wanted, floor(entitlement, steps))
    return lower if lower < present - _TOLERANCE else None


def step_up(limit: float, entitlement: GuestAllotment, steps: ThrottleSteps) -> float | None:
    """The next higher limit; None where it is taken away, as the guest has all that it is entitled to."""
    higher = _rounded_up(limit / (1 - steps.step), entitlement.granule)
    return higher if higher < entitlement.full - _TOLERANCE else None


StepDown = Callable[[float | None, GuestAllotment, ThrottleSteps], float | None]
StepUp = Callable[[float, GuestAllotment, ThrottleSteps], float | None]


@dataclass(frozen=True, slots=True)
class ThrottleLever:
    """One way to throttle. ``metric`` is the metric that it limits directly.

    ``set_limit`` (guest, domain, limit or None) sets a limit where the agent itself does not know how to: for
    metrics that come from elsewhere. It raises an exception when it fails.
    """

    name: str
    metric: str
    unit: str
    down: StepDown = step_down
    up: StepUp = step_up
    set_limit: Callable[[str, str, float | None], None] | None = None

    def consumption(self, guest: GuestUsage, domain: str) -> float | None:
        """What a guest uses of what the lever limits; None if it is not known."""
        return guest.usage.get(MetricSeries(self.metric, domain))


CPU_QUOTA: Final = ThrottleLever(resource.CPU_QUOTA, "cpu_usage", "cores")
MEMORY_BANDWIDTH: Final = ThrottleLever(resource.MEMORY_BANDWIDTH, "memory_bandwidth", "percent")
CACHE_WAYS: Final = ThrottleLever(resource.CACHE_WAYS, "llc_occupancy", "ways")


BLOCKIO: Final = ThrottleLever(resource.BLOCKIO, "io_pressure", "percent")
"""Of the weight and the rates of its class of block I/O, or of the weight that all have."""


def left_by(use: float, before: float | None, after: float, entitlement: GuestAllotment) -> float:
    """What is left of ``use`` when the limit goes down from ``before`` (None: no limit) to ``after``."""
    if entitlement.per_unit is not None:
        return min(use, after * entitlement.per_unit)
    return use * min(1.0, after / (entitlement.full if before is None else before))


def taken_by(use: float, before: float, after: float | None, entitlement: GuestAllotment) -> float:
    """The most that a guest may come to use when its limit rises from ``before`` to ``after`` (None: away).

    A guest that stays well below its limit has all it wants, and takes no more.
    """
    risen = entitlement.full if after is None else after
    if entitlement.per_unit is None:
        return use * max(1.0, risen / before)
    if use < before * entitlement.per_unit * _AT_LIMIT:
        return use
    return max(use, risen * entitlement.per_unit)


def _rounded_up(amount: float, granule: float) -> float:
    return math.ceil(amount / granule - _TOLERANCE) * granule
