"""Converts memory bandwidth, in percent or MB/s, to values in schemata and back, for each kind of hardware.

- Intel RDT takes the percent of a throttling delay. Values are ``min_bandwidth + N * bandwidth_gran``, and
  the kernel rounds up to the next such value.
- With the mount option ``mba_MBps``, values are MiB/s, which a control loop in the kernel keeps.
- AMD QoS takes units of 1/8 GB/s for an L3 domain, which all tasks of a group share.
- ARM MPAM takes percents. The kernel converts the values to fractions of a few bits, and back when they are
  read.

A function that encodes a bandwidth raises BandwidthUnknownError if the hardware has no value for it, or if
the value depends on the option ``memory_bandwidth_gbps``, which is not set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

from compute_agent.resctrl.platform import UNLIMITED_MBPS, BandwidthControl, CpuVendor, ResctrlPlatform

BYTES_PER_MB: Final = 10**6
BYTES_PER_GB: Final = 10**9
BYTES_PER_MIB: Final = 2**20

UNITS_PER_GB: Final = 8
"""The number of units of AMD's bandwidth values in 1 GB/s; one unit is 1/8 GB/s."""


class BandwidthUnknownError(ValueError):
    """A value cannot be computed, because the full bandwidth is unknown.

    The message names the option to set.
    """


@dataclass(frozen=True, slots=True, order=True)
class BandwidthRate:
    """A bandwidth in MB/s (10^6 bytes a second), for hardware with absolute values."""

    mbps: int

    def __str__(self) -> str:
        return f"{self.mbps} MB/s"


BandwidthCap = int | BandwidthRate
"""A limit of memory bandwidth: a percent of the full bandwidth, or a rate."""


def is_below_full(cap: BandwidthCap | None) -> bool:
    """Whether a bandwidth cap limits a group. A cap of None or 100 % does not limit a group."""
    return isinstance(cap, BandwidthRate) or (cap is not None and cap < 100)


def encode_cap(codec: BandwidthCodec, domain: int, cap: BandwidthCap) -> int:
    """The schemata value for a cap, rounded up to the next value of the hardware."""
    return (
        codec.encode_rate(domain, cap)
        if isinstance(cap, BandwidthRate)
        else codec.encode_percent(domain, cap)
    )


def percent_of_cap(codec: BandwidthCodec, domain: int, cap: BandwidthCap) -> int:
    """The percent of bandwidth that a cap allows, rounded down, but at least the smallest percent."""
    if isinstance(cap, BandwidthRate):
        return max(codec.min_percent, codec.decode_value(domain, codec.encode_rate(domain, cap)))
    return cap


def round_up_to_step(value: float, minimum: int, step: int) -> int:
    """The smallest ``minimum + N * step`` that is at least ``value``."""
    # The value is rounded up, as in the kernel, so that a guest gets at least the requested bandwidth.
    return minimum + max(0, math.ceil((value - minimum) / step)) * step


class BandwidthCodec(Protocol):
    """Converts bandwidths of the domains of a mount between percent and values of schemata.

    A codec inherits from this class. The defaults are those of hardware with absolute values.
    """

    shares_cap: bool = True
    """Whether a cap limits all tasks of a group together; otherwise it limits each core separately."""

    min_percent: int = 1
    """The smallest bandwidth limit that can be set, in percent."""

    percent_step: int = 1
    """The step between two bandwidth limits, in percent; a smaller change of a limit has no effect."""

    def encode_percent(self, domain: int, percent: int) -> int:
        """The schemata value for a percent of bandwidth, rounded up to the next value of the hardware.

        :param domain: the id of the bandwidth domain, which on x86 is the id of its L3 cache.
        """
        ...

    def encode_rate(self, domain: int, rate: BandwidthRate) -> int:
        """The schemata value for a rate, rounded up to the next value of the hardware."""
        ...

    def decode_value(self, domain: int, value: int) -> int:
        """The percent of bandwidth for a schemata value, rounded down and at most 100."""
        ...

    def is_same_value(self, written: int, read: int) -> bool:
        """Whether the value that was read equals the written value, apart from the kernel's rounding."""
        # By default the kernel rounds nothing, because the agent writes only values that the hardware has.
        return written == read


class IntelCodec(BandwidthCodec):
    """The codec of Intel RDT, in percent. The hardware throttles each core, so tasks share no cap."""

    # Two guests of one group on different cores can each use the full cap.
    shares_cap = False

    def __init__(self, control: BandwidthControl) -> None:
        self._minimum = control.minimum
        # The minimum is at least 1, because 0 would stop the guest.
        self.min_percent = max(1, control.minimum)
        self.percent_step = control.granularity

    def encode_percent(self, domain: int, percent: int) -> int:
        """The percent, rounded up to the next value of the hardware."""
        # The hardware's steps can skip 100, which the kernel always accepts.
        return min(100, round_up_to_step(percent, self._minimum, self.percent_step))

    def encode_rate(self, domain: int, rate: BandwidthRate) -> int:
        """Raise an error, because the processor throttles each core by a delay, and has no rates."""
        raise BandwidthUnknownError(f"{rate} needs AMD, or the mount option mba_MBps: set a percent")

    def decode_value(self, domain: int, value: int) -> int:
        """Return the value unchanged, because it is a percent already."""
        return min(100, value)


class IntelMbpsCodec(BandwidthCodec):
    """The codec of mba_MBps, in MiB/s. Without ``memory_bandwidth_gbps`` it knows only rates and 100 %.

    The kernel's control loop measures the bandwidth of a whole group, and throttles the group.
    """

    def __init__(self, control: BandwidthControl, memory_bandwidth_gbps: float | None) -> None:
        self._step = control.granularity
        self._full = None if memory_bandwidth_gbps is None else memory_bandwidth_gbps * BYTES_PER_GB

    def encode_percent(self, domain: int, percent: int) -> int:
        """The bandwidth in MiB/s."""
        if self._full is None:
            if percent >= 100:
                return UNLIMITED_MBPS
            raise BandwidthUnknownError(f"{percent} % of an unknown bandwidth: set memory_bandwidth_gbps")
        # The result is at least one step, because 0 MiB/s would stop the guest.
        return round_up_to_step(self._full * percent / 100 / BYTES_PER_MIB, self._step, self._step)

    def encode_rate(self, domain: int, rate: BandwidthRate) -> int:
        """The rate in MiB/s, at least one step."""
        return round_up_to_step(rate.mbps * BYTES_PER_MB / BYTES_PER_MIB, self._step, self._step)

    def decode_value(self, domain: int, value: int) -> int:
        """The percent of ``memory_bandwidth_gbps``; 100 for a group without a limit."""
        if self._full is None or value >= UNLIMITED_MBPS:
            return 100  # Without a known full bandwidth, a value cannot be converted to percent.
        return min(100, int(value * BYTES_PER_MIB * 100 / self._full))

    def is_same_value(self, written: int, read: int) -> bool:
        """Whether both values are equal, or both mean "no limit".

        The kernel rounds the value for "no limit" down.
        """
        return written == read or (written == UNLIMITED_MBPS and abs(written - read) < self._step)


class AmdCodec(BandwidthCodec):
    """The codec of AMD QoS, in units of 1/8 GB/s.

    100 % is ``memory_bandwidth_gbps``, but at most the highest value that any group has. The hardware limits
    the traffic of a CLOSID between a whole L3 domain and memory.
    """

    def __init__(self, control: BandwidthControl, memory_bandwidth_gbps: float | None) -> None:
        self._control = control
        self._gbps = memory_bandwidth_gbps

    def encode_percent(self, domain: int, percent: int) -> int:
        """The bandwidth in units of 1/8 GB/s (10^9 bytes a second)."""
        return self._supported_units(domain, math.ceil(self._full_units(domain) * percent / 100))

    def encode_rate(self, domain: int, rate: BandwidthRate) -> int:
        """The rate in units of 1/8 GB/s, at most the hardware's maximum."""
        return self._supported_units(domain, rate.mbps * BYTES_PER_MB * UNITS_PER_GB / BYTES_PER_GB)

    def _supported_units(self, domain: int, units: float) -> int:
        control = self._control
        # The hardware accepts 0, but 0 would stop the guest. The kernel refuses a value above the hardware's
        # maximum.
        value = round_up_to_step(units, max(1, control.minimum), control.granularity)
        return min(value, control.maximum[domain])

    def decode_value(self, domain: int, value: int) -> int:
        """The percent of the full bandwidth of the domain."""
        return min(100, int(value * 100 / self._full_units(domain)))

    def _full_units(self, domain: int) -> float:
        maximum = self._control.maximum[domain]
        # The bandwidth is limited to the hardware's maximum: with a higher full bandwidth, percents below 100
        # could have no effect.
        return maximum if self._gbps is None else min(maximum, self._gbps * UNITS_PER_GB)


class ArmCodec(IntelCodec):
    """The codec of ARM MPAM: percent for all tasks together.

    The kernel can show a value that is one step off.
    """

    shares_cap = True

    def is_same_value(self, written: int, read: int) -> bool:
        """Whether the values differ by at most one step of the hardware."""
        return abs(written - read) <= self.percent_step


def choose_codec(
    platform: ResctrlPlatform, memory_bandwidth_gbps: float | None = None
) -> BandwidthCodec | None:
    """The codec for the hardware of a mount; None if bandwidth cannot be controlled.

    :param memory_bandwidth_gbps: the bandwidth of a domain that is 100 %, in 10^9 bytes a second, for
        hardware with absolute values; None if unknown.
    """
    if platform.mb is None:
        return None
    # The mount option is checked before the vendor, because the mount option changes Intel's unit.
    if platform.mb.in_mbps:
        return IntelMbpsCodec(platform.mb, memory_bandwidth_gbps)
    if platform.vendor is CpuVendor.AMD:
        return AmdCodec(platform.mb, memory_bandwidth_gbps)
    if platform.vendor is CpuVendor.ARM:
        return ArmCodec(platform.mb)
    return IntelCodec(platform.mb)
