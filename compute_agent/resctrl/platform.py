"""What a mount can do, as plain frozen values."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.resctrl.masks import Mask, MaskRules

UNLIMITED_MBPS: Final = 2**32 - 1
"""What a group without a cap shows with mba_MBps."""


class Vendor(enum.StrEnum):
    """Whose hardware it is: percents, units and masks differ."""

    INTEL = "intel"
    AMD = "amd"
    ARM = "arm"


_VENDORS: Final = {"GenuineIntel": Vendor.INTEL, "AuthenticAMD": Vendor.AMD, "HygonGenuine": Vendor.AMD}


def vendor_of(cpuinfo: str) -> Vendor | None:
    """Whose processor a /proc/cpuinfo tells of; None where it does not."""
    match = re.search(r"^vendor_id\s*:\s*(\S+)", cpuinfo, re.MULTILINE)
    if match:
        return _VENDORS.get(match[1])
    return Vendor.ARM if re.search(r"^CPU implementer\s*:", cpuinfo, re.MULTILINE) else None


@dataclass(frozen=True, slots=True)
class CacheControl:
    """Allocation of one level of cache (info/L3, or info/L3CODE and L3DATA; the same for L2).

    ``resources`` are the lines of schemata: ``("L3",)``, or ``("L3CODE", "L3DATA")`` with code and data
    prioritization. ``shareable`` are the ways that devices fill, too. ``way_bytes`` is by cache id, and empty
    where the kernel tells no sizes.
    """

    level: int
    resources: tuple[str, ...]
    ids: tuple[int, ...]
    rules: MaskRules
    shareable: Mask
    closids: int
    way_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def cdp(self) -> bool:
        """Whether code and data have masks of their own."""
        return len(self.resources) > 1


@dataclass(frozen=True, slots=True)
class BandwidthControl:
    """Allocation of memory bandwidth (info/MB, or info/SMBA for slow memory).

    ``minimum`` and ``granularity`` are as the kernel tells them, in its unit. ``maximum`` is the highest
    value by domain id that the kernel was seen to have, which is that of the default group unless somebody
    cut it. ``in_mbps``: values are MiB/s that a control loop of the kernel keeps (mount option mba_MBps).
    """

    resource: str
    ids: tuple[int, ...]
    minimum: int
    granularity: int
    closids: int
    maximum: Mapping[int, int] = field(default_factory=dict)
    in_mbps: bool = False


@dataclass(frozen=True, slots=True)
class Monitoring:
    """Counters (info/L3_MON). ``features`` are event names such as ``llc_occupancy``.

    ``assign_modes`` are the counter assignment modes with the one in force, ``assign_mode``; both are empty
    before Linux 6.18. ``counters`` is the number of assignable ones by L3 id.
    """

    rmids: int
    features: frozenset[str]
    assign_modes: tuple[str, ...] = ()
    assign_mode: str = ""
    counters: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Platform:
    """Everything a mount offers; what it has not is None."""

    vendor: Vendor
    l3: CacheControl | None = None
    l2: CacheControl | None = None
    mb: BandwidthControl | None = None
    smba: BandwidthControl | None = None
    monitoring: Monitoring | None = None

    @property
    def closids(self) -> int:
        """How many control groups there can be, the default group included: the least of all resources."""
        controls = [control.closids for control in (self.l3, self.l2, self.mb, self.smba) if control]
        return min(controls, default=0)

    @property
    def groups(self) -> int:
        """How many control groups the kernel can make: each needs a CLOSID, and an RMID if there are any."""
        return min(self.closids, self.monitoring.rmids) if self.monitoring else self.closids

    @property
    def caches(self) -> tuple[int, ...]:
        """The ids of the L3 caches of which ways or bandwidth can be controlled."""
        return self.l3.ids if self.l3 else self.mb.ids if self.mb else ()

    def mb_domain(self, l3_id: int) -> int | None:
        """The MB domain of an L3 cache: the one of the same id; where ids differ, the one of the same rank.

        None where the platform does not tell (as many L3 caches as MB domains there are not).
        """
        if self.mb is None:
            return None
        if l3_id in self.mb.ids:
            return l3_id
        if self.l3 is None or l3_id not in self.l3.ids or len(self.l3.ids) != len(self.mb.ids):
            return None
        return self.mb.ids[self.l3.ids.index(l3_id)]
