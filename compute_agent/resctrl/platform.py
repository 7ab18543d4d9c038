"""The capabilities of a mount as frozen values."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.resctrl.schemata import MaskRules, WayMask

# The kernel's MBA_MAX_MBPS, which is U32_MAX.
UNLIMITED_MBPS: Final = 2**32 - 1
"""Value of a group without a cap, with the mount option mba_MBps."""


class CpuVendor(enum.StrEnum):
    """Vendor of the processor. Percents, units and masks differ between vendors."""

    INTEL = "intel"
    AMD = "amd"
    ARM = "arm"


_VENDORS: Final = {
    "GenuineIntel": CpuVendor.INTEL,
    "AuthenticAMD": CpuVendor.AMD,
    "HygonGenuine": CpuVendor.AMD,  # processors under a licence of AMD
}


def vendor_of(cpuinfo: str) -> CpuVendor | None:
    """The vendor that a text of /proc/cpuinfo names; None without one."""
    match = re.search(r"^vendor_id\s*:\s*(\S+)", cpuinfo, re.MULTILINE)
    if match:
        return _VENDORS.get(match[1])
    # ARM's cpuinfo has numbers of implementers instead: many companies make cores with MPAM.
    return CpuVendor.ARM if re.search(r"^CPU implementer\s*:", cpuinfo, re.MULTILINE) else None


@dataclass(frozen=True, slots=True)
class CacheControl:
    """Allocation of one level of cache (info/L3, or info/L3CODE and L3DATA; the same for L2).

    :ivar resources: lines of schemata, ``("L3",)``, or ``("L3CODE", "L3DATA")`` with code and data
        prioritization (CDP).
    :ivar shareable: ways that devices fill, too.
    :ivar way_bytes: bytes of a way by cache id; empty where the kernel shows no sizes.
    """

    level: int
    resources: tuple[str, ...]
    ids: tuple[int, ...]
    rules: MaskRules
    shareable: WayMask
    closids: int
    way_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def has_cdp(self) -> bool:
        """Whether code and data have separate masks."""
        return len(self.resources) > 1


@dataclass(frozen=True, slots=True)
class BandwidthControl:
    """Allocation of memory bandwidth (info/MB, or info/SMBA for slow memory).

    :ivar minimum: ``min_bandwidth`` in the kernel's unit; ``granularity`` is ``bandwidth_gran``.
    :ivar maximum: the highest value seen by domain id, which is the default group's unless it was lowered.
    :ivar in_mbps: values are MiB/s kept by a control loop of the kernel (mount option mba_MBps).
    """

    resource: str
    ids: tuple[int, ...]
    minimum: int
    granularity: int
    closids: int
    maximum: Mapping[int, int] = field(default_factory=dict)
    in_mbps: bool = False


@dataclass(frozen=True, slots=True)
class MonitoringFeatures:
    """Counters (info/L3_MON).

    :ivar features: event names such as ``llc_occupancy``.
    :ivar assign_modes: modes of counter assignment, of which ``assign_mode`` is current; empty before Linux
        6.18.
    :ivar counters: assignable counters by L3 cache id.
    """

    rmids: int
    features: frozenset[str]
    assign_modes: tuple[str, ...] = ()
    assign_mode: str = ""
    counters: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResctrlPlatform:
    """The controls of a mount. A missing one is None."""

    vendor: CpuVendor
    l3: CacheControl | None = None
    l2: CacheControl | None = None
    mb: BandwidthControl | None = None
    smba: BandwidthControl | None = None
    monitoring: MonitoringFeatures | None = None

    @property
    def closid_count(self) -> int:
        """Maximum number of CLOSIDs, with that of the default group."""
        # A group has one CLOSID for all resources, so the smallest number of any resource counts.
        controls = [control.closids for control in (self.l3, self.l2, self.mb, self.smba) if control]
        return min(controls, default=0)

    @property
    def max_groups(self) -> int:
        """Maximum number of control groups: each needs a CLOSID, and an RMID where the hardware monitors."""
        return min(self.closid_count, self.monitoring.rmids) if self.monitoring else self.closid_count

    @property
    def cache_ids(self) -> tuple[int, ...]:
        """The ids of the L3 caches with control of ways or bandwidth."""
        return self.l3.ids if self.l3 else self.mb.ids if self.mb else ()

    def mb_domain(self, l3_id: int) -> int | None:
        """The MB domain of an L3 cache: that with the same id, or with the same rank where ids differ.

        None if their numbers differ, because the kernel does not show which belong together.
        """
        if self.mb is None:
            return None
        # On x86 an MB domain has the id of its L3 cache; elsewhere the two may be numbered apart.
        if l3_id in self.mb.ids:
            return l3_id
        if self.l3 is None or l3_id not in self.l3.ids or len(self.l3.ids) != len(self.mb.ids):
            return None
        return self.mb.ids[self.l3.ids.index(l3_id)]
