"""When the next report is due: not when those of all other hosts are.

A service that was away is missed by all hosts within one interval. Would all of them wait equally long from
then on, they would come back together, again and again; so each pause is drawn at random, about its length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FIRST_PAUSE: Final = 1.0
_SPREAD: Final = 0.1
"""Intervals differ by so much: hosts that were all started at once drift apart within some rounds."""
_LEAST: Final = 0.5
"""The least part of a pause after failures."""


def pause(failures: int, interval: float, longest: float, draw: Callable[[], float]) -> float:
    """Seconds until the next report, after so many failures in a row.

    After none it is the ``interval``, more or less by a tenth. After failures it doubles each time, up to the
    ``longest``, and is any part of that from the half upwards.

    :param draw: a random number from 0 to 1.
    """
    if failures == 0:
        return interval * (1 - _SPREAD + 2 * _SPREAD * draw())
    whole = min(FIRST_PAUSE * 2.0 ** min(failures - 1, 30), longest)
    return whole * (_LEAST + (1 - _LEAST) * draw())
