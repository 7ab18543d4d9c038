"""Resource classes, settings of block I/O, memory and CPU time of guests, and throttle controls."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from compute_agent.model.guest_settings import BEST_EFFORT, LATENCY_SENSITIVE_RESERVED

RESCTRL_GROUP: Final = "CUSTOM_RESCTRL_GROUP"
"""The resource class of resctrl groups."""

MEMORY: Final = "MEMORY_MB"
"""OpenStack's resource class of memory."""

RECLAIMED_VCPU: Final = "CUSTOM_RECLAIMED_VCPU"
"""The resource class of shared CPUs that guests hold but do not use."""

RECLAIMED_MEMORY: Final = "CUSTOM_RECLAIMED_MEMORY_MB"
"""The resource class of memory that guests hold but do not use."""


HUGE_PAGES: Final[Mapping[int, str]] = {
    64: "CUSTOM_HUGE_PAGES_64KB",
    2048: "CUSTOM_HUGE_PAGES_2MB",
    32768: "CUSTOM_HUGE_PAGES_32MB",
    524288: "CUSTOM_HUGE_PAGES_512MB",
    1048576: "CUSTOM_HUGE_PAGES_1GB",
    16777216: "CUSTOM_HUGE_PAGES_16GB",
}
"""Resource classes of huge pages by size in KiB. Amounts are numbers of pages.

The sizes are those of Linux on x86, ARM and POWER. OpenStack has no class for huge pages, and no trait for
the size of a page.
"""


@dataclass(frozen=True, slots=True)
class ResourceClass:
    """A resource class of inventories of a host.

    :ivar host_owned: whether an inventory on a provider of the agent always belongs to the agent. An
        inventory of other classes belongs to the agent only if a file records that the agent made it.
    :ivar movable: whether inventories and allocations move to other providers when the shape of the tree
        changes. Cache ways and bandwidth do not move, because they always belong to one L3 domain.
    :ivar exclusive: whether no other consumer shares an allocated amount, so that the class cannot be
        overcommitted.
    :ivar cpu: whether amounts are CPUs, which the agent assigns.
    :ivar stock_name: the custom class that replaces this class on an OpenStack Placement that does not know
        it; empty if all releases know the class.
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
"""Custom resource classes for an OpenStack Placement without LLC and MBA, by the class that they replace."""


def _all_names(classes: Iterable[ResourceClass]) -> frozenset[str]:
    return frozenset(name for one in classes for name in (one.name, one.stock_name) if name)


OWN_CLASSES: Final = _all_names(RESOURCE_CLASSES)
"""The classes with a meaning to the agent: all names of the table, including ``stock_name``."""

HOST_OWNED: Final = _all_names(one for one in RESOURCE_CLASSES if one.host_owned)
"""Names of the ``host_owned`` classes, including ``stock_name``."""

MOVABLE: Final = frozenset(one.name for one in RESOURCE_CLASSES if one.movable)
"""Names of the ``movable`` classes."""

EXCLUSIVE: Final = _all_names(one for one in RESOURCE_CLASSES if one.exclusive)
"""Names of the ``exclusive`` classes, including ``stock_name``."""

CPU_CLASSES: Final = frozenset(one.name for one in RESOURCE_CLASSES if one.cpu)
"""Names of the classes with CPUs as amounts."""


DEFAULT_WEIGHT: Final = 100
"""The default of ``io.weight`` of a cgroup in the kernel."""

GUEST_DISKS: Final = "guest"
"""The word that stands for the guest's own disks in an option with a list of devices."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Limits of a guest's I/O on one device, in bytes and operations a second; None means no limit."""

    read_bytes: int | None = None
    write_bytes: int | None = None
    read_operations: int | None = None
    write_operations: int | None = None

    def __bool__(self) -> bool:
        return self != DeviceRates()

    @property
    def all_rates(self) -> tuple[int | None, int | None, int | None, int | None]:
        """The four rates: bytes read, bytes written, read operations, write operations."""
        return self.read_bytes, self.write_bytes, self.read_operations, self.write_operations

    def scaled_rates(self, percent: float) -> DeviceRates:
        """The rates multiplied by ``percent`` / 100, and at least 2, because the kernel refuses 0 and 1."""
        return DeviceRates(
            *(None if one is None else max(int(one * percent / 100), 2) for one in self.all_rates)
        )


@dataclass(frozen=True, slots=True)
class BlockIo:
    """Settings of block I/O of one guest.

    :ivar weight: weight relative to other guests; None means the kernel's default.
    :ivar rates: limits on each device in ``devices``.
    :ivar latency_us: target latency on each device in ``devices``, in microseconds. The kernel slows other
        guests down to reach the target. None means no target.
    :ivar devices: devices of the host, as ``MAJOR:MINOR``.
    :ivar own_disks: whether the settings apply to the guest's own disks, too.
    """

    weight: int | None = None
    rates: DeviceRates = DeviceRates()
    latency_us: int | None = None
    devices: frozenset[str] = frozenset()
    own_disks: bool = False

    def scaled_limits(self, percent: float) -> BlockIo:
        """The settings of a throttled guest: weight and rates multiplied by ``percent`` / 100."""
        weight = DEFAULT_WEIGHT if self.weight is None else self.weight
        return replace(
            self, weight=max(int(weight * percent / 100), 1), rates=self.rates.scaled_rates(percent)
        )


@dataclass(frozen=True, slots=True)
class BlockIoClass:
    """A section ``[blockio_class:NAME]``: a :class:`BlockIo` with patterns or :data:`GUEST_DISKS`."""

    name: str
    weight: int | None = None
    rates: DeviceRates = DeviceRates()
    latency_us: int | None = None
    devices: tuple[str, ...] = ()

    @property
    def host_devices(self) -> list[str]:
        """The names and patterns in ``devices``, without :data:`GUEST_DISKS`."""
        return [each for each in self.devices if each != GUEST_DISKS]


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """The memory settings of a guest class. Amounts are percent of a guest's allocation of ``MEMORY_MB``.

    :ivar high: above this amount, the kernel slows the guest down and reclaims its memory; None means no
        limit.
    :ivar low: while the guest uses less than this amount, the kernel reclaims memory of other guests first.
    :ivar oom_score_adj: adjustment for the kernel's OOM killer, from -1000 to 1000. A process with a higher
        value is killed earlier.
    :ivar limit_mb: the limit of a guest without an allocation of memory, in MiB; None means no limit.
    """

    high: int | None = None
    low: int = 0
    oom_score_adj: int = 100
    minimum: int = 0
    oom_group: bool = False
    limit_mb: int | None = None


class CoreScope(enum.StrEnum):
    """The guests that may run on a core at the same time as a guest of the class (core scheduling)."""

    NONE = "none"
    """All guests and processes may run on the core."""
    GUEST = "guest"
    """Only threads of the guest itself may run on the core."""
    CLASS = "class"
    """Only guests of the same class may run on the core."""


BEST_EFFORT_WEIGHT: Final = 1
"""The default weight of each CPU of a guest in best-effort classes. Other classes have the default 100."""


@dataclass(frozen=True, slots=True)
class CpuShare:
    """Settings of CPU time of a class of guests.

    :ivar cpu_weight: weight of each VCPU and PCPU of a guest; None means 100, or 1 for ``BE`` and classes
        with the same or a lower rank.
    :ivar cpu_idle: whether guests run only while no other guest needs their CPUs (``cpu.idle``).
    :ivar cpu_burst: unused CPU time that a guest can save and use later, in percent of its quota; None means
        the guest saves none.
    :ivar reclaimed_cap: maximum CPU use of a guest in percent of its reclaimed CPUs; None means no limit.
    :ivar realtime_priority: realtime priority of guest CPUs on dedicated CPUs; None means the kernel's usual
        scheduling.
    :ivar core_scheduling: the guests that may run on a core at the same time as a guest of the class.
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
"""Memory settings of built-in classes that differ from the defaults of :class:`MemoryShare`.

No ``oom_score_adj`` is below 0, because daemons of the host have 0, and should survive guests. A process also
needs CAP_SYS_RESOURCE to lower the value.
"""


# The names of the built-in levers. The state file contains these names, so a name must not change between
# releases.
CPU_QUOTA: Final = "cpu_quota"
MEMORY_BANDWIDTH: Final = "memory_bandwidth"
CACHE_WAYS: Final = "cache_ways"
BLOCKIO: Final = "blockio"
MEMORY_HIGH: Final = "memory_high"


class ThrottleControl(NamedTuple):
    """A lever, such as the CPU quota, on one domain: the id of an L3 cache, or "" for the host."""

    lever: str
    domain: str = ""

    def __str__(self) -> str:
        return f"{self.lever} on domain {self.domain}" if self.domain else self.lever
