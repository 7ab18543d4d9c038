"""Codecs of memory bandwidth: percent to the values of schemata and back, for each kind of hardware.

- Intel RDT takes percents of a throttling delay. Steps are ``min_bandwidth + N * bandwidth_gran``, and the
  kernel rounds up to the next one.
- With the mount option ``mba_MBps``, a control loop in the kernel keeps MiB/s.
- AMD QoS takes units of 1/8 GB/s for an L3 domain, shared by all tasks of a group.
- ARM MPAM takes percents, which the kernel turns into fractions of a few bits, and back when they are read.
"""

from __future__ import annotations

import math
from typing import Final, Protocol

from compute_agent.resctrl.platform import UNLIMITED_MBPS, BandwidthControl, CpuVendor, ResctrlPlatform

BYTES_PER_GB: Final = 10**9
BYTES_PER_MIB: Final = 2**20

UNITS_PER_GB: Final = 8
"""AMD's unit of bandwidth is 1/8 GB/s."""


class BandwidthUnknownError(ValueError):
    """A percent of an unknown bandwidth. The message names the option that gives it."""


def round_up_to_step(value: float, minimum: int, step: int) -> int:
    """The smallest ``minimum + N * step`` that is at least ``value``."""
    # Up, as the kernel rounds: a guest gets at least the requested bandwidth.
    return minimum + max(0, math.ceil((value - minimum) / step)) * step


class BandwidthCodec(Protocol):
    """Converts the bandwidth of a mount's domains between percent and the values of schemata."""

    shares_cap: bool
    """Whether a cap applies to all tasks of a group together, rather than to each processor they run on."""

    @property
    def min_percent(self) -> int:
        """The smallest possible percent."""
        ...

    @property
    def percent_step(self) -> int:
        """The distance between percents with different effects."""
        ...

    def encode_percent(self, domain: int, percent: int) -> int:
        """The schemata value of a percent, rounded up to the hardware's next step.

        :raises BandwidthUnknownError: the value of 100 % is unknown.
        """
        ...

    def decode_value(self, domain: int, value: int) -> int:
        """The percent of a schemata value, rounded down, at most 100."""
        ...

    def is_same_value(self, written: int, read: int) -> bool:
        """Whether ``read`` is the kernel's rounding of ``written``."""
        ...


class IntelCodec:
    """Bandwidth in percent. Each core has its own throttle, so the tasks of a group share no cap."""

    # A group of two guests on different cores has twice the bandwidth of one.
    shares_cap = False

    def __init__(self, control: BandwidthControl) -> None:
        self._minimum = control.minimum
        self._step = control.granularity

    @property
    def min_percent(self) -> int:
        """The kernel's minimum, but at least 1: 0 would stop the guest."""
        return max(1, self._minimum)

    @property
    def percent_step(self) -> int:
        """The kernel's granularity in percent."""
        return self._step

    def encode_percent(self, domain: int, percent: int) -> int:
        """The percent rounded up to the hardware's next step."""
        # Steps from the minimum need not meet 100, which is always accepted.
        return min(100, round_up_to_step(percent, self._minimum, self._step))

    def decode_value(self, domain: int, value: int) -> int:
        """The value, which is a percent."""
        return min(100, value)

    def is_same_value(self, written: int, read: int) -> bool:
        """Whether both are equal: values are written in steps of the hardware, so nothing is rounded."""
        return written == read


class IntelMbpsCodec:
    """Bandwidth in MiB/s (mount option mba_MBps).

    Only 100 % has a value without ``memory_bandwidth_gbps``.
    """

    # The kernel's loop measures the bandwidth of a whole group and throttles the group.
    shares_cap = True
    min_percent = 1
    percent_step = 1

    def __init__(self, control: BandwidthControl, memory_bandwidth_gbps: float | None) -> None:
        self._step = control.granularity
        self._full = None if memory_bandwidth_gbps is None else memory_bandwidth_gbps * BYTES_PER_GB

    def encode_percent(self, domain: int, percent: int) -> int:
        """The bandwidth in MiB a second.

        :raises BandwidthUnknownError: ``memory_bandwidth_gbps`` is not set.
        """
        if self._full is None:
            if percent >= 100:
                return UNLIMITED_MBPS
            raise BandwidthUnknownError(f"{percent} % of an unknown bandwidth: set memory_bandwidth_gbps")
        # The first step is the minimum: 0 MiB/s would stop the guest.
        return round_up_to_step(self._full * percent / 100 / BYTES_PER_MIB, self._step, self._step)

    def decode_value(self, domain: int, value: int) -> int:
        """The percent of ``memory_bandwidth_gbps``; 100 without a limit."""
        if self._full is None or value >= UNLIMITED_MBPS:
            return 100  # without a known 100 % the agent never writes another value
        return min(100, int(value * BYTES_PER_MIB * 100 / self._full))

    def is_same_value(self, written: int, read: int) -> bool:
        """Whether both are equal. Some kernels round the unlimited value down to a step."""
        return written == read or (written == UNLIMITED_MBPS and abs(written - read) < self._step)


class AmdCodec:
    """Bandwidth in 1/8 GB/s. 100 % is ``memory_bandwidth_gbps``, or else the maximum of the default group."""

    # The hardware caps the traffic of a CLOSID between a whole L3 domain and memory.
    shares_cap = True
    min_percent = 1
    percent_step = 1

    def __init__(self, control: BandwidthControl, memory_bandwidth_gbps: float | None) -> None:
        self._control = control
        self._gbps = memory_bandwidth_gbps

    def encode_percent(self, domain: int, percent: int) -> int:
        """The bandwidth in eighths of 10^9 bytes a second."""
        control = self._control
        # The hardware accepts 0, which would stop the guest.
        minimum = max(1, control.minimum)
        value = round_up_to_step(
            math.ceil(self._full_units(domain) * percent / 100), minimum, control.granularity
        )
        # The kernel refuses a value above the hardware's maximum.
        return min(value, control.maximum[domain])

    def decode_value(self, domain: int, value: int) -> int:
        """The percent of the domain's full bandwidth."""
        return min(100, int(value * 100 / self._full_units(domain)))

    def is_same_value(self, written: int, read: int) -> bool:
        """Whether both are equal: the kernel rounds nothing here."""
        return written == read

    def _full_units(self, domain: int) -> float:
        maximum = self._control.maximum[domain]
        # An option above the hardware's maximum would make 90 % the same as 100 %.
        return maximum if self._gbps is None else min(maximum, self._gbps * UNITS_PER_GB)


class ArmCodec(IntelCodec):
    """Percents in the kernel's steps, as a cap on all tasks of a group together.

    The kernel shows the fraction that the hardware has, which may be off by one step.
    """

    shares_cap = True

    def is_same_value(self, written: int, read: int) -> bool:
        """Whether both are at most one step apart."""
        return abs(written - read) <= self.percent_step


def choose_codec(
    platform: ResctrlPlatform, memory_bandwidth_gbps: float | None = None
) -> BandwidthCodec | None:
    """The codec of a mount; None where bandwidth cannot be controlled.

    :param memory_bandwidth_gbps: 100 % of each domain in 10^9 bytes a second, where values are absolute.
    """
    if platform.mb is None:
        return None
    if platform.mb.in_mbps:  # before the vendor: the mount option changes Intel's unit
        return IntelMbpsCodec(platform.mb, memory_bandwidth_gbps)
    if platform.vendor is CpuVendor.AMD:
        return AmdCodec(platform.mb, memory_bandwidth_gbps)
    if platform.vendor is CpuVendor.ARM:
        return ArmCodec(platform.mb)
    return IntelCodec(platform.mb)
