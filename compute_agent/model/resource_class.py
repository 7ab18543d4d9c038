"""The resource classes that the agent reports, in one table.

It says what each of them is, wherever somebody has to know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

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
