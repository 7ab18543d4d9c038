"""The capabilities of a resctrl mount, as frozen values."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.resctrl.schemata import MaskRules, WayMask

# The value of the kernel's MBA_MAX_MBPS, which is U32_MAX.
UNLIMITED_MBPS: Final = 2**32 - 1
"""The bandwidth value of a group without a cap, with the mount option mba_MBps."""


class CpuVendor(enum.StrEnum):
    """The vendor of the processor, which determines the units of bandwidth and the rules for masks."""

    INTEL = "intel"
    AMD = "amd"
    ARM = "arm"


_VENDORS: Final = {
    "GenuineIntel": CpuVendor.INTEL,
    "AuthenticAMD": CpuVendor.AMD,
    "HygonGenuine": CpuVendor.AMD,  # Hygon builds processors under a licence of AMD.
}


def vendor_of(cpuinfo: str) -> CpuVendor | None:
    """The vendor in a text of /proc/cpuinfo; None if the text names no known vendor."""
    match = re.search(r"^vendor_id\s*:\s*(\S+)", cpuinfo, re.MULTILINE)
    if match:
        return _VENDORS.get(match[1])
    # On ARM, cpuinfo contains the number of the implementer, because many companies make cores with MPAM.
    return CpuVendor.ARM if re.search(r"^CPU implementer\s*:", cpuinfo, re.MULTILINE) else None


@dataclass(frozen=True, slots=True)
class CacheControl:
    """The control of one level of cache (info/L3, or info/L3CODE and L3DATA; the same for L2).

    :ivar resources: the lines of schemata: ``("L3",)``, or ``("L3CODE", "L3DATA")`` with code and data
        prioritization (CDP).
    :ivar ids: the ids of the caches of this level.
    :ivar rules: the rules for masks that these caches accept.
    :ivar shareable: the ways that PCI devices fill, too.
    :ivar closids: the number of CLOSIDs (classes of service) of this resource.
    :ivar way_bytes: the bytes of a way by cache id; empty if the kernel shows no sizes.
    """

    resources: tuple[str, ...]
    ids: tuple[int, ...]
    rules: MaskRules
    shareable: WayMask
    closids: int
    way_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def has_cdp(self) -> bool:
        """Whether code and data have separate masks (CDP)."""
        return len(self.resources) > 1


@dataclass(frozen=True, slots=True)
class BandwidthControl:
    """The control of memory bandwidth (info/MB, or info/SMBA for slow memory).

    :ivar minimum: the smallest value (``min_bandwidth``), in the kernel's unit.
    :ivar granularity: the step between values (``bandwidth_gran``), in the kernel's unit.
    :ivar maximum: the highest value that any group has, by domain id. Usually this is the value of the
        default group.
    :ivar in_mbps: whether values are in MiB/s, and a control loop of the kernel keeps them (mount option
        mba_MBps).
    """

    ids: tuple[int, ...]
    minimum: int
    granularity: int
    closids: int
    maximum: Mapping[int, int] = field(default_factory=dict)
    in_mbps: bool = False


@dataclass(frozen=True, slots=True)
class MonitoringFeatures:
    """The monitoring capabilities of L3 caches (info/L3_MON).

    :ivar rmids: the number of RMIDs, the ids of monitored groups.
    :ivar features: the names of events, such as ``llc_occupancy``.
    :ivar assign_mode: the present mode of counter assignment; empty before Linux 6.18.
    """

    rmids: int
    features: frozenset[str]
    assign_mode: str = ""


@dataclass(frozen=True, slots=True)
class ResctrlPlatform:
    """The controls of a resctrl mount. A control that the hardware or the kernel lacks is None."""

    vendor: CpuVendor
    l3: CacheControl | None = None
    l2: CacheControl | None = None
    mb: BandwidthControl | None = None
    smba: BandwidthControl | None = None
    monitoring: MonitoringFeatures | None = None

    @property
    def closid_count(self) -> int:
        """The maximum number of CLOSIDs, including that of the default group."""
        # A group has one CLOSID for all resources, so the resource with the fewest CLOSIDs limits their
        # number.
        controls = [control.closids for control in (self.l3, self.l2, self.mb, self.smba) if control]
        return min(controls, default=0)

    @property
    def max_groups(self) -> int:
        """The maximum number of control groups. Each needs a CLOSID, and for monitoring also an RMID."""
        return min(self.closid_count, self.monitoring.rmids) if self.monitoring else self.closid_count

    @property
    def cache_ids(self) -> tuple[int, ...]:
        """The ids of the L3 caches of which ways or bandwidth can be controlled."""
        return self.l3.ids if self.l3 else self.mb.ids if self.mb else ()

    def mb_domain(self, l3_id: int) -> int | None:
        """The bandwidth domain of an L3 cache; None if it is not known.

        Usually the domain has the same id as the cache. If no domain has this id, but there are as many
        domains as caches, the result is the domain at the same position.
        """
        if self.mb is None:
            return None
        # On x86 a bandwidth domain has the id of its L3 cache; on other hardware the ids can differ.
        if l3_id in self.mb.ids:
            return l3_id
        if self.l3 is None or l3_id not in self.l3.ids or len(self.l3.ids) != len(self.mb.ids):
            return None
        return self.mb.ids[self.l3.ids.index(l3_id)]
