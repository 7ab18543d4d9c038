"""The differences between processors behind one interface: what a percent of bandwidth means to each."""

from __future__ import annotations

from typing import Protocol

from compute_agent.resctrl.amd import AmdEngine
from compute_agent.resctrl.arm import ArmEngine
from compute_agent.resctrl.intel import IntelEngine, IntelMbpsEngine
from compute_agent.resctrl.platform import Platform, Vendor


class Engine(Protocol):
    """Bandwidth of the domains of one mount, in percent and in the values that schemata take."""

    shares_cap: bool
    """Whether a cap holds for all tasks of a group together, rather than for each processor they run on."""

    @property
    def min_percent(self) -> int:
        """The smallest percent that can be had."""
        ...

    @property
    def percent_step(self) -> int:
        """How far apart the percents are that differ in their effect."""
        ...

    def bandwidth(self, domain: int, percent: int) -> int:
        """The schemata value for a percent, rounded up to the hardware's next step.

        :raises BandwidthUnknownError: where nobody has told what 100 % is.
        """
        ...

    def percent(self, domain: int, value: int) -> int:
        """What a schemata value means in percent, rounded down, at most 100."""
        ...

    def agrees(self, written: int, read: int) -> bool:
        """Whether the kernel, asked for ``written``, may show ``read``: it may round on its own."""
        ...


def choose(platform: Platform, memory_bandwidth_gbps: float | None = None) -> Engine | None:
    """The engine for a mount; None where bandwidth cannot be controlled.

    ``memory_bandwidth_gbps``: what 100 % is in each domain, in 10^9 bytes a second, where values are
    absolute.
    """
    if platform.mb is None:
        return None
    if platform.mb.in_mbps:
        return IntelMbpsEngine(platform.mb, memory_bandwidth_gbps)
    if platform.vendor is Vendor.AMD:
        return AmdEngine(platform.mb, memory_bandwidth_gbps)
    if platform.vendor is Vendor.ARM:
        return ArmEngine(platform.mb)
    return IntelEngine(platform.mb)
