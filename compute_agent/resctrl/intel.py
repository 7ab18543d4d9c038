"""Intel RDT: percents of a throttling delay, or MiB/s that a control loop in the kernel keeps.

Steps are ``min_bandwidth + N * bandwidth_gran``, and the kernel rounds to the next one.
"""

from __future__ import annotations

from compute_agent.resctrl.bandwidth import BYTES_PER_GB, BYTES_PER_MIB, BandwidthUnknownError, step_up
from compute_agent.resctrl.platform import UNLIMITED_MBPS, BandwidthControl


class IntelEngine:
    """Bandwidth in percent. The throttle is each core's own, so that tasks of a group do not share a cap."""

    shares_cap = False

    def __init__(self, control: BandwidthControl) -> None:
        self._minimum = control.minimum
        self._step = control.granularity

    @property
    def min_percent(self) -> int:
        """The kernel's minimum; never 0, which would stop the guest."""
        return max(1, self._minimum)

    @property
    def percent_step(self) -> int:
        """The kernel's granularity."""
        return self._step

    def bandwidth(self, domain: int, percent: int) -> int:
        """The next step from there on, as the hardware rounds up."""
        return min(100, step_up(percent, self._minimum, self._step))

    def percent(self, domain: int, value: int) -> int:
        """The value itself."""
        return min(100, value)

    def agrees(self, written: int, read: int) -> bool:
        """Whether it is the same: values are written in steps of the hardware."""
        return written == read


class IntelMbpsEngine:
    """Bandwidth in MiB/s (mount option mba_MBps).

    Without ``memory_bandwidth_gbps``, only 100 % has a value.
    """

    shares_cap = True
    min_percent = 1
    percent_step = 1

    def __init__(self, control: BandwidthControl, memory_bandwidth_gbps: float | None) -> None:
        self._step = control.granularity
        self._full = None if memory_bandwidth_gbps is None else memory_bandwidth_gbps * BYTES_PER_GB

    def bandwidth(self, domain: int, percent: int) -> int:
        """So many MiB a second.

        :raises BandwidthUnknownError: nobody has told what 100 % is.
        """
        if self._full is None:
            if percent >= 100:
                return UNLIMITED_MBPS
            raise BandwidthUnknownError(
                f"{percent} % of a bandwidth that is not known: memory_bandwidth_gbps has to tell it"
            )
        return step_up(self._full * percent / 100 / BYTES_PER_MIB, self._step, self._step)

    def percent(self, domain: int, value: int) -> int:
        """The part of ``memory_bandwidth_gbps``; 100 where nothing is limited."""
        if self._full is None or value >= UNLIMITED_MBPS:
            return 100
        return min(100, int(value * BYTES_PER_MIB * 100 / self._full))

    def agrees(self, written: int, read: int) -> bool:
        """Whether it is the same; some kernels round the unlimited value to a step."""
        return written == read or (written == UNLIMITED_MBPS and abs(written - read) < self._step)
