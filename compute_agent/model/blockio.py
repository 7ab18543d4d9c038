"""What a guest may have of block devices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

DEFAULT_WEIGHT: Final = 100

GUEST_DISKS: Final = "guest"
"""Stands for the guest's own disks where devices are named."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """The most that a guest gets of one device in a second, in bytes and operations; None: no limit."""

    read_bytes: int | None = None
    write_bytes: int | None = None
    read_operations: int | None = None
    write_operations: int | None = None

    def __bool__(self) -> bool:
        return self != DeviceRates()

    @property
    def amounts(self) -> tuple[int | None, int | None, int | None, int | None]:
        """Bytes read and written, then operations."""
        return self.read_bytes, self.write_bytes, self.read_operations, self.write_operations

    def scaled(self, percent: float) -> DeviceRates:
        """So many percent of it, and at least one of each."""
        return DeviceRates(
            *(None if one is None else max(int(one * percent / 100), 1) for one in self.amounts)
        )


@dataclass(frozen=True, slots=True)
class BlockIo:
    """What one guest is to have: ``weight`` beside others (None: as all), ``rates`` on each of the devices.

    ``devices`` are those of the host, as ``MAJOR:MINOR``; ``own_disks``: the rates hold on those of the
    guest, too. ``latency_us``: others are slowed down so that it waits no longer than that on these devices.
    """

    weight: int | None = None
    rates: DeviceRates = DeviceRates()
    latency_us: int | None = None
    devices: frozenset[str] = frozenset()
    own_disks: bool = False

    def scaled(self, percent: float) -> BlockIo:
        """So many percent of it: for a guest that is throttled."""
        weight = DEFAULT_WEIGHT if self.weight is None else self.weight
        return replace(self, weight=max(int(weight * percent / 100), 1), rates=self.rates.scaled(percent))


@dataclass(frozen=True, slots=True)
class BlockIoClass:
    """A section ``[blockio_class:NAME]``.

    ``devices`` are names, patterns of names, or :data:`GUEST_DISKS`.
    """

    name: str
    weight: int | None = None
    rates: DeviceRates = DeviceRates()
    latency_us: int | None = None
    devices: tuple[str, ...] = ()

    @property
    def host_devices(self) -> list[str]:
        """The names and patterns that mean devices of the host."""
        return [each for each in self.devices if each != GUEST_DISKS]
