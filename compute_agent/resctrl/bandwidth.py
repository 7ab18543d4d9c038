"""What engines share: rounding up to steps, and the error for bandwidth that nobody knows."""

from __future__ import annotations

import math
from typing import Final

BYTES_PER_GB: Final = 10**9
BYTES_PER_MIB: Final = 2**20


class BandwidthUnknownError(ValueError):
    """A percent of something unknown: the text says which option tells it."""


def step_up(value: float, minimum: int, step: int) -> int:
    """The smallest ``minimum + N * step`` that is at least ``value``."""
    return minimum + max(0, math.ceil((value - minimum) / step)) * step
