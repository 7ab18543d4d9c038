"""ARM MPAM: percents that the kernel turns into fractions of a few bits, and back when they are read."""

from __future__ import annotations

from compute_agent.resctrl.intel import IntelEngine


class ArmEngine(IntelEngine):
    """Percents with the steps that the kernel tells; the cap is for all tasks of a group together.

    What is read back is the fraction that the hardware has, which may be off by one step.
    """

    shares_cap = True

    def agrees(self, written: int, read: int) -> bool:
        """Whether it is at most one step off."""
        return abs(written - read) <= self.percent_step
