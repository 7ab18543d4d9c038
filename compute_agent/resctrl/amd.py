"""AMD QoS: bandwidth of an L3 domain in units of 1/8 GB/s, shared by all tasks of a group."""

from __future__ import annotations

import math
from typing import Final

from compute_agent.resctrl.bandwidth import step_up
from compute_agent.resctrl.platform import BandwidthControl

UNITS_PER_GB: Final = 8


class AmdEngine:
    """100 % is ``memory_bandwidth_gbps``, or else the maximum that the default group has."""

    shares_cap = True
    min_percent = 1
    percent_step = 1

    def __init__(self, control: BandwidthControl, memory_bandwidth_gbps: float | None) -> None:
        self._control = control
        self._gbps = memory_bandwidth_gbps

    def bandwidth(self, domain: int, percent: int) -> int:
        """So many eighths of 10^9 bytes a second."""
        control = self._control
        # The hardware takes 0, which would stop the guest.
        minimum = max(1, control.minimum)
        value = step_up(math.ceil(self._full(domain) * percent / 100), minimum, control.granularity)
        return min(value, control.maximum[domain])

    def percent(self, domain: int, value: int) -> int:
        """The part of what the domain can do."""
        return min(100, int(value * 100 / self._full(domain)))

    def agrees(self, written: int, read: int) -> bool:
        """Whether it is the same: this kernel rounds nothing."""
        return written == read

    def _full(self, domain: int) -> float:
        maximum = self._control.maximum[domain]
        return maximum if self._gbps is None else min(maximum, self._gbps * UNITS_PER_GB)
