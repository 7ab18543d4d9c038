"""Resource classes that the agent reports, in one table; block I/O, memory shares and controls of guests."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from compute_agent.model.guest_settings import BEST_EFFORT, LATENCY_SENSITIVE_RESERVED

RESCTRL_GROUP: Final = "CUSTOM_RESCTRL_GROUP"
"""The resource class of resctrl groups."""

MEMORY: Final = "MEMORY_MB"
"""OpenStack's resource class of memory."""

RECLAIMED_VCPU: Final = "CUSTOM_RECLAIMED_VCPU"
"""The resource class of shared CPUs that their holders leave unused."""

RECLAIMED_MEMORY: Final = "CUSTOM_RECLAIMED_MEMORY_MB"
"""The resource class of memory that its holders leave unused."""


HUGE_PAGES: Final[Mapping[int, str]] = {
    64: "CUSTOM_HUGE_PAGES_64KB",
    2048: "CUSTOM_HUGE_PAGES_2MB",
    32768: "CUSTOM_HUGE_PAGES_32MB",
    524288: "CUSTOM_HUGE_PAGES_512MB",
    1048576: "CUSTOM_HUGE_PAGES_1GB",
    16777216: "CUSTOM_HUGE_PAGES_16GB",
}
"""Resource classes of huge pages by size in KiB: the sizes of Linux on x86, ARM and POWER. Amounts are pages.

OpenStack has no class for them, and no trait for the size of a page.
"""


@dataclass(frozen=True, slots=True)
class ResourceClass:
    """A resource class of inventories of a host.

    :ivar host_owned: whether an inventory on one of the agent's providers is the agent's, even if no file
        remembers that the agent made it.
    :ivar movable: whether inventories and allocations move to other providers when the shape of the tree
        changes. Cache ways and bandwidth do not move, because they always belong to one L3 domain.
    :ivar exclusive: whether one holder has the amount alone, so that the amount cannot be sold twice.
    :ivar cpu: whether amounts are CPUs, which the agent assigns.
    :ivar stock_name: the custom class that stands for this class on an OpenStack Placement that does not know
        this class.
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
"""The custom class in place of each class that a stock OpenStack Placement does not know."""

OWN_CLASSES: Final = frozenset(
    name for one in RESOURCE_CLASSES for name in (one.name, one.stock_name) if name
)
"""All classes of the table, under either name: allocations of these have a meaning to the agent."""

HOST_OWNED: Final = frozenset(
    name for one in RESOURCE_CLASSES if one.host_owned for name in (one.name, one.stock_name) if name
)
"""Classes of inventories that are the agent's on its own providers, under either name."""

MOVABLE: Final = frozenset(one.name for one in RESOURCE_CLASSES if one.movable)
"""Classes of inventories that move when the shape of the tree changes."""

EXCLUSIVE: Final = frozenset(
    name for one in RESOURCE_CLASSES if one.exclusive for name in (one.name, one.stock_name) if name
)
"""Classes that cannot be sold twice, under either name."""

CPU_CLASSES: Final = frozenset(one.name for one in RESOURCE_CLASSES if one.cpu)
"""Classes with CPUs as amounts."""


DEFAULT_WEIGHT: Final = 100
"""The kernel's io.weight of a cgroup without one."""

GUEST_DISKS: Final = "guest"
"""The word for the guest's own disks in a list of devices."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Upper limits of a guest's I/O on one device, in bytes and operations a second. None is not a limit."""

    read_bytes: int | None = None
    write_bytes: int | None = None
    read_operations: int | None = None
    write_operations: int | None = None

    def __bool__(self) -> bool:
        return self != DeviceRates()

    @property
    def all_rates(self) -> tuple[int | None, int | None, int | None, int | None]:
        """Rates of bytes read and written, then of operations."""
        return self.read_bytes, self.write_bytes, self.read_operations, self.write_operations

    def scaled_rates(self, percent: float) -> DeviceRates:
        """The limits at ``percent`` of their values, each at least 1, as the kernel refuses 0."""
        return DeviceRates(
            *(None if one is None else max(int(one * percent / 100), 1) for one in self.all_rates)
        )


@dataclass(frozen=True, slots=True)
class BlockIo:
    """Settings of block I/O of one guest.

    :ivar weight: weight beside other guests; None is the default.
    :ivar rates: limits on each of the devices.
    :ivar latency_us: target latency on the devices, in microseconds. The kernel slows other guests down to
        reach the target.
    :ivar devices: devices of the host, as ``MAJOR:MINOR``.
    :ivar own_disks: whether the settings apply to the guest's own disks, too.
    """

    weight: int | None = None
    rates: DeviceRates = DeviceRates()
    latency_us: int | None = None
    devices: frozenset[str] = frozenset()
    own_disks: bool = False

    def scaled_limits(self, percent: float) -> BlockIo:
        """Weight and rates at ``percent`` of their values, for a guest that is throttled."""
        weight = DEFAULT_WEIGHT if self.weight is None else self.weight
        return replace(
            self, weight=max(int(weight * percent / 100), 1), rates=self.rates.scaled_rates(percent)
        )


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
        """Names and patterns of devices of the host."""
        return [each for each in self.devices if each != GUEST_DISKS]


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """Settings of memory of a class of guests, in percent of what a guest holds of ``MEMORY_MB``.

    :ivar high: above this amount the kernel slows the guest down and reclaims its memory; None is not a
        limit.
    :ivar low: up to this amount the kernel reclaims memory of other guests first.
    :ivar oom_score_adj: the kernel's, -1000 to 1000. Processes with a higher one are killed first.
    """

    high: int | None = None
    low: int = 0
    oom_score_adj: int = 100


class CoreScope(enum.StrEnum):
    """The guests that may run on one core at the same time as a guest of a class (core scheduling)."""

    NONE = "none"
    """All guests and processes."""
    GUEST = "guest"
    """None but the guest itself."""
    CLASS = "class"
    """Guests of its class."""


BEST_EFFORT_WEIGHT: Final = 1
"""The weight of each CPU of a guest that gives way to all others, a hundredth of the usual weight."""


@dataclass(frozen=True, slots=True)
class CpuShare:
    """Settings of CPU time of a class of guests beside others.

    :ivar cpu_weight: weight of each VCPU and PCPU of a guest; None: 100, or 1 for ``BE`` and below.
    :ivar cpu_idle: guests run only where no guest beside them wants to.
    :ivar cpu_burst: percent of a guest's quota that the guest may save up and use later.
    :ivar reclaimed_cap: percent of its reclaimed CPUs that a guest gets at most; None is not a limit.
    :ivar realtime_priority: realtime priority of guest CPUs on dedicated CPUs; None: the usual schedule.
    :ivar core_scheduling: which others may use the cores of a guest while it runs there.
    """

    cpu_weight: int | None = None
    cpu_idle: bool = False
    cpu_burst: int | None = None
    reclaimed_cap: int | None = None
    realtime_priority: int | None = None
    core_scheduling: CoreScope = CoreScope.NONE


DEFAULT_SHARES: Final[Mapping[str, MemoryShare]] = {
    BEST_EFFORT: MemoryShare(oom_score_adj=500),
    LATENCY_SENSITIVE_RESERVED: MemoryShare(low=100, oom_score_adj=0),
}
"""Shares of built-in classes that differ from the defaults of a class.

None is below 0: the host's daemons have 0 and are to survive guests, and a lower value takes a privilege.
"""


CPU_QUOTA: Final = "cpu_quota"
MEMORY_BANDWIDTH: Final = "memory_bandwidth"
CACHE_WAYS: Final = "cache_ways"
BLOCKIO: Final = "blockio"


class ThrottleControl(NamedTuple):
    """A lever, by its name, on one domain of the host: an L3 cache id as text, or "" for the whole host."""

    lever: str
    domain: str = ""

    def __str__(self) -> str:
        return f"{self.lever} on domain {self.domain}" if self.domain else self.lever
