"""The kept states of zones, for agents that need not measure for a day."""

import time
from collections.abc import Mapping

from compute_agent.reclaim.estimate import ZoneHistory, ZoneReading
from compute_agent.reclaim.offers import CapacityOffer, ZoneState


def day_of_use(use: Mapping[str, float], offered: int) -> ZoneState:
    """The state of a zone after a day with the same use by each guest or the system (SYSTEM)."""
    now, history = time.time(), ZoneHistory()
    for minute in range(-25 * 60, 0):
        history = history.with_reading(ZoneReading(now + 60 * minute, sum(use.values()), use), 80)
    return ZoneState(history, CapacityOffer(offered, float(offered), now))
