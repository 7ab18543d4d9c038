"""The resource classes that the agent reports, in one table.

It says what each of them is, wherever somebody has to know.

What a guest may have of block devices.

What a class of guests means for their memory.

What a guest is throttled with: a lever, on one domain of the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from compute_agent.model.guest_settings import BEST_EFFORT, LATENCY_SENSITIVE_RESERVED

RESCTRL_GROUP: Final = "CUSTOM_RESCTRL_GROUP"
"""The resource class of resctrl groups."""

MEMORY: Final = "MEMORY_MB"
"""OpenStack's resource class of memory."""

RECLAIMED_VCPU: Final = "CUSTOM_RECLAIMED_VCPU"
"""The resource class of shared CPUs as far as those who hold them leave them unused."""

RECLAIMED_MEMORY: Final = "CUSTOM_RECLAIMED_MEMORY_MB"
"""The same of memory."""


HUGE_PAGES: Final[Mapping[int, str]] = {
    64: "CUSTOM_HUGE_PAGES_64KB",
    2048: "CUSTOM_HUGE_PAGES_2MB",
    32768: "CUSTOM_HUGE_PAGES_32MB",
    524288: "CUSTOM_HUGE_PAGES_512MB",
    1048576: "CUSTOM_HUGE_PAGES_1GB",
    16777216: "CUSTOM_HUGE_PAGES_16GB",
}
"""By size in KiB the resource class of huge pages, in pages: those that Linux has on x86, ARM and POWER.

OpenStack has no class for them, and no trait for the size of a page.
"""


@dataclass(frozen=True, slots=True)
class ResourceClass:
    """A class of the inventories of a host.

    ``host_owned``: an inventory of it on one of our providers is ours even where nobody remembers who put it
    there. ``movable``: it lies elsewhere in other shapes of the tree, and so do allocations of it; cache ways
    and bandwidth are of one L3 domain for good. ``exclusive``: what one holds of it nobody else has, so that
    it cannot be sold more than once. ``cpu``: its amounts are CPUs, which the agent itself hands
    out. ``stock_name``: what stands for it on a stock OpenStack Placement, which does not know it.
    """

    name: str
    host_owned: bool = False
    movable: bool = False
    exclusive: bool = False
    cpu: bool = False
    stock_name: str = ""


RESOURCE_CLASSES: Final = (
    ResourceClass("PCPU", host_owned=True, movable=True, exclusive=True, cpu=True),
    ResourceClass("VCPU", host_owned=True, movable=True, cpu=True),
    ResourceClass(MEMORY, host_owned=True, movable=True),
    ResourceClass("DISK_GB"),
    ResourceClass("LLC", host_owned=True, exclusive=True, stock_name="CUSTOM_LLC"),
    ResourceClass("MBA", host_owned=True, exclusive=True, stock_name="CUSTOM_MBA"),
    ResourceClass(RESCTRL_GROUP, exclusive=True),
    ResourceClass(RECLAIMED_VCPU, exclusive=True, cpu=True),
    ResourceClass(RECLAIMED_MEMORY, exclusive=True),
    *(ResourceClass(name, host_owned=True, movable=True, exclusive=True) for name in HUGE_PAGES.values()),
)

STOCK_NAMES: Final[Mapping[str, str]] = {
    one.name: one.stock_name for one in RESOURCE_CLASSES if one.stock_name
}
"""By name what stands for it on a stock OpenStack Placement."""

OWN_CLASSES: Final = frozenset(
    name for one in RESOURCE_CLASSES for name in (one.name, one.stock_name) if name
)
"""All of them, under either name: what holds them has a meaning to the agent."""

HOST_OWNED: Final = frozenset(
    name for one in RESOURCE_CLASSES if one.host_owned for name in (one.name, one.stock_name) if name
)
"""The classes that are the agent's on its own providers, under either name."""

MOVABLE: Final = frozenset(one.name for one in RESOURCE_CLASSES if one.movable)
"""The classes that lie elsewhere in other shapes of the tree."""

EXCLUSIVE: Final = frozenset(
    name for one in RESOURCE_CLASSES if one.exclusive for name in (one.name, one.stock_name) if name
)
"""The classes that cannot be sold more than once, under either name."""

CPU_CLASSES: Final = frozenset(one.name for one in RESOURCE_CLASSES if one.cpu)
"""The classes whose amounts are CPUs."""


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


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """Amounts are percent of what a guest holds of ``MEMORY_MB``.

    Above ``high`` it is slowed down and has to give back (None: never), up to ``low`` it is spared while
    others have something to give. ``oom_score_adj`` is the kernel's, -1000 to 1000: guests with more of it
    are killed first where memory runs out.
    """

    high: int | None = None
    low: int = 0
    oom_score_adj: int = 100


DEFAULT_SHARES: Final[Mapping[str, MemoryShare]] = {
    BEST_EFFORT: MemoryShare(oom_score_adj=500),
    LATENCY_SENSITIVE_RESERVED: MemoryShare(low=100, oom_score_adj=0),
}
"""The shares of the classes that exist without configuration, where they are others than of any class.

Guests are killed before the host's own daemons, which have 0; and less than 0 takes a privilege.
"""


CPU_QUOTA: Final = "cpu_quota"
MEMORY_BANDWIDTH: Final = "memory_bandwidth"
CACHE_WAYS: Final = "cache_ways"
BLOCKIO: Final = "blockio"


class ThrottleControl(NamedTuple):
    """A lever, by its name, on one domain of the host: an L3 cache id as text, or "" for all of the host."""

    lever: str
    domain: str = ""

    def __str__(self) -> str:
        return f"{self.lever} on domain {self.domain}" if self.domain else self.lever
