"""What is promised of what is left: down at once, up slowly, and written seldom."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

_ROUNDING: Final = 1e-9

GROWTH: Final = 0.1
"""The part of the capacity by which an offer grows in ``GROWTH_SECONDS`` at most, and whenever it does."""

GROWTH_SECONDS: Final = 300.0

STEP: Final = 0.1
"""The part of what is published by which that has to grow to be published anew; one CPU at least."""

ABOVE_SECONDS: Final = 900.0
"""How long there has to be more before more is published."""


@dataclass(frozen=True, slots=True)
class CapacityOffer:
    """What is promised of a zone: ``published`` in whole CPUs.

    ``level`` is what could be, in cores, as of ``time``; ``above_since`` is since when enough more could be
    published (0: it cannot), and ``above`` the least that it could have been since then.
    """

    published: int = 0
    level: float = 0.0
    time: float = 0.0
    above_since: float = 0.0
    above: int = 0

    def after(self, left: float, capacity: float, time: float, growth: float = GROWTH) -> CapacityOffer:
        """The offer when the others leave ``left`` of ``capacity`` CPUs.

        ``growth`` is the part of these by which it grows at most.
        """
        elapsed = max(0.0, time - self.time) if self.time else 0.0
        grown = self.level + growth * capacity * min(elapsed / GROWTH_SECONDS, 1.0)
        level = max(0.0, min(left, grown, capacity))
        whole = math.floor(level + _ROUNDING)
        if whole < self.published:
            return CapacityOffer(whole, level, time)
        if whole < self.published + step_of(self.published):
            return replace(self, level=level, time=time, above_since=0.0)
        # What was in a gap nobody knows, and after a change of the clock it cannot be told how long it was.
        if not self.above_since or not 0 <= time - self.time <= GROWTH_SECONDS:
            return replace(self, level=level, time=time, above_since=time, above=whole)
        above = min(self.above, whole)
        if time - self.above_since < ABOVE_SECONDS:
            return replace(self, level=level, time=time, above=above)
        most = self.published + max(math.floor(growth * capacity), step_of(self.published))
        return CapacityOffer(min(above, most), level, time)


def step_of(published: int) -> int:
    """The CPUs by which an offer grows at least when it is published anew."""
    return max(1, math.ceil(STEP * published - _ROUNDING))
