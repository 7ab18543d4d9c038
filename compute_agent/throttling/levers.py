"""Levers: ways to limit a guest, the steps of a limit, and the expected use of a guest under a limit.

The functions only compute limits, for watermarks and interference. The executor sets the limits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from compute_agent.model import resource
from compute_agent.model.resource import ThrottleControl
from compute_agent.usage.snapshot import GuestAllotment, GuestUsage, MetricSeries

# Limits are nested by guest and then by ThrottleControl, because all limits of a guest are compared with the
# worker's limits at once.
GuestLimits = dict[str, dict[ThrottleControl, float]]
"""The limits of all guests, by uuid of the guest and by ``ThrottleControl``, such as the CPU quota.

A limit is in the lever's unit, such as cores.
"""

_TOLERANCE: Final = 1e-9
"""Tolerance of rounding, in granules.

For example, 0.3 / 0.1 is 2.999... as a float, and has to count as 3.
"""

_AT_LIMIT: Final = 0.9
"""A limit does not slow down a guest that uses less than this part of the limit."""


@dataclass(frozen=True, slots=True)
class ThrottleSteps:
    """The size of one step of throttling, and the lowest limit of a guest, as fractions (0.2 is 20 %).

    - ``step`` is the part by which one step down reduces the current limit.
    - ``min_share`` is the part of its allotment that a guest keeps under any limit.
    """

    step: float = 0.2
    min_share: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.step < 1 or not 0 < self.min_share <= 1:
            raise ValueError(f"step {self.step} or min_share {self.min_share} is not a share")


def lowest_limit(allotment: GuestAllotment, steps: ThrottleSteps) -> float:
    """The lowest limit that a guest can get: ``min_share`` of its allotment, in the lever's unit."""
    # The limit is rounded up, so that the guest keeps at least its share. If granules are coarse, the result
    # of rounding can exceed the allotment.
    return min(_round_up(allotment.full * steps.min_share, allotment.granule), allotment.full)


def step_down(limit: float | None, allotment: GuestAllotment, steps: ThrottleSteps) -> float | None:
    """The next lower limit of a guest, in the lever's unit; None if ``limit`` is already the lowest.

    :param limit: the present limit in the lever's unit; None for a guest that is not throttled.
    """
    present = allotment.full if limit is None else limit
    # The limit is rounded down to a granule. If the limit was rounded up, a step from a small limit would
    # return the same limit.
    wanted = math.floor(present * (1 - steps.step) / allotment.granule + _TOLERANCE) * allotment.granule
    lower = max(wanted, lowest_limit(allotment, steps))
    return lower if lower < present - _TOLERANCE else None


def step_up(limit: float, allotment: GuestAllotment, steps: ThrottleSteps) -> float | None:
    """The next higher limit, in the lever's unit; None if the step reaches the guest's allotment."""
    # The step is the inverse of a step down, and is rounded up. So N steps down and N steps up end at or
    # above the first limit.
    higher = _round_up(limit / (1 - steps.step), allotment.granule)
    return higher if higher < allotment.full - _TOLERANCE else None


MEMORY_STEP: Final = 256 * 2**20
"""Maximum number of bytes by which one step changes a memory limit. While the limit is written, the kernel
reclaims the memory (cgroup-v2.rst, memory.high). With a larger step, a slow swap device would block the
worker for longer."""


def memory_down(limit: float | None, allotment: GuestAllotment, steps: ThrottleSteps) -> float | None:
    """The next lower limit of memory, by :func:`step_down`, but at most ``MEMORY_STEP`` lower than now."""
    lower = step_down(limit, allotment, steps)
    present = allotment.full if limit is None else limit
    return None if lower is None else max(lower, present - MEMORY_STEP)


def memory_up(limit: float, allotment: GuestAllotment, steps: ThrottleSteps) -> float | None:
    """The next higher limit of memory, by :func:`step_up`, but at most ``MEMORY_STEP`` higher than now."""
    higher = step_up(limit, allotment, steps)
    if higher is None and allotment.full - limit <= MEMORY_STEP:
        return None
    return limit + MEMORY_STEP if higher is None else min(higher, limit + MEMORY_STEP)


StepDown = Callable[[float | None, GuestAllotment, ThrottleSteps], float | None]
StepUp = Callable[[float, GuestAllotment, ThrottleSteps], float | None]


@dataclass(frozen=True, slots=True)
class ThrottleLever:
    """One way to limit a guest, such as its CPU quota.

    - ``metric`` is the name of the metric that the limit reduces directly.
    - ``unit`` is the unit of limits, for messages.
    - ``down`` and ``up`` compute the next lower and the next higher limit.
    - ``gradual``: the limit falls by at most one step in a round. The next step follows only after the use
      has fallen to the limit.
    - ``set_limit`` takes the guest's uuid, the L3 cache and the limit. The function sets the limit, or
      removes it if the limit is None; it raises an exception on failure. Levers of other packages have this
      function if no controller of the agent can set their limits. If ``set_limit`` is None, the agent's
      worker sets limits.
    """

    name: str
    metric: str
    unit: str
    down: StepDown = step_down
    up: StepUp = step_up
    gradual: bool = False
    set_limit: Callable[[str, str, float | None], None] | None = None

    def guest_consumption(self, guest: GuestUsage, domain: str) -> float | None:
        """A guest's use of the lever's ``metric``; None if unknown.

        :param domain: the L3 cache on which the use is measured; empty for the whole host.
        """
        return guest.usage.get(MetricSeries(self.metric, domain))


CPU_QUOTA: Final = ThrottleLever(resource.CPU_QUOTA, "cpu_usage", "cores")
MEMORY_BANDWIDTH: Final = ThrottleLever(resource.MEMORY_BANDWIDTH, "memory_bandwidth", "percent")
CACHE_WAYS: Final = ThrottleLever(resource.CACHE_WAYS, "llc_occupancy", "ways")
MEMORY_HIGH: Final = ThrottleLever(
    resource.MEMORY_HIGH, "memory_usage", "bytes", memory_down, memory_up, gradual=True
)
BLOCKIO: Final = ThrottleLever(resource.BLOCKIO, "io_pressure", "percent")
"""The lever that limits block I/O. Its limits are percentages of the weight and the rates of the guest's
class of block I/O.

For a guest without such a class, the limits are percentages of the default weight.
"""


def left_by(use: float, before: float | None, after: float, allotment: GuestAllotment) -> float:
    """The expected use of a guest after its limit is lowered from ``before`` (None: no limit) to ``after``.

    ``use`` is the measured use of the guest, in the unit of the lever's metric. The limits are in the lever's
    unit.
    """
    if allotment.per_unit is not None:
        return min(use, after * allotment.per_unit)
    # The use per unit of limit is unknown, so the use is assumed to shrink in proportion to the limit.
    return use * min(1.0, after / (allotment.full if before is None else before))


def taken_by(use: float, before: float, after: float | None, allotment: GuestAllotment) -> float:
    """The highest expected use of a guest after its limit rises from ``before`` to ``after`` (None: removed).

    ``use`` is the measured use, in the unit of the lever's metric. The use of a guest that uses less than 90
    % of its limit does not change, because the limit did not slow it down.
    """
    risen = allotment.full if after is None else after
    if allotment.per_unit is None:
        return use * max(1.0, risen / before)
    if use < before * allotment.per_unit * _AT_LIMIT:
        return use
    return max(use, risen * allotment.per_unit)


def _round_up(amount: float, granule: float) -> float:
    return math.ceil(amount / granule - _TOLERANCE) * granule
