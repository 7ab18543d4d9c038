"""Read a mount: what the platform can do (``info``), and which groups there are."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from compute_agent.resctrl import schemata
from compute_agent.resctrl.filesystem import Filesystem, ResctrlError
from compute_agent.resctrl.masks import BadMaskError, Mask, MaskRules
from compute_agent.resctrl.platform import (
    UNLIMITED_MBPS,
    BandwidthControl,
    CacheControl,
    Monitoring,
    Platform,
    Vendor,
    vendor_of,
)
from compute_agent.resctrl.schemata import BadSchemataError, Schemata

LOG = logging.getLogger(__name__)

DEFAULT_GROUP: Final = ""
"""The name of the default group: the root of the mount."""

NOT_GROUPS: Final = frozenset({"info", "mon_data", "mon_groups"})


@dataclass(frozen=True, slots=True)
class Group:
    """A control group as it is. ``mode`` is ``shareable`` where the kernel tells none."""

    name: str
    schemata: Schemata
    mode: str = "shareable"
    monitoring_groups: tuple[str, ...] = ()

    @property
    def locked(self) -> bool:
        """Whether the kernel keeps everybody else out of its cache ways."""
        return self.mode in ("exclusive", "pseudo-locked")


@dataclass(frozen=True, slots=True)
class Present:
    """The groups that exist, by name; that of the default group is DEFAULT_GROUP."""

    groups: Mapping[str, Group] = field(default_factory=dict)

    @property
    def default(self) -> Group:
        """The group of all tasks that are in no other."""
        return self.groups[DEFAULT_GROUP]


def read_platform(files: Filesystem, cpuinfo: str = "", options: frozenset[str] = frozenset()) -> Platform:
    """What the mount offers. ``cpuinfo`` is the text of /proc/cpuinfo, ``options`` are those of the mount.

    Where the first does not name the vendor, bandwidth in other units than percent tells AMD, and everything
    else counts as Intel. Files of ``info`` that are missing or make no sense cost that resource, and a log
    line.

    :raises ResctrlError: the default group's schemata cannot be read.
    :raises BadSchemataError: it makes no sense.
    """
    default = schemata.parse(files.read("schemata"))
    present = set(files.folders("info"))
    mb, smba = (
        _bandwidth(files, name, default, options) if name in present else None for name in ("MB", "SMBA")
    )
    vendor = vendor_of(cpuinfo)
    if vendor is None:
        in_units = mb is not None and not mb.in_mbps and max(mb.maximum.values(), default=0) > 100
        vendor = Vendor.AMD if in_units else Vendor.INTEL
    # Before Linux 6.7 there is no file that tells about holes: Intel had none, the others always.
    l3, l2 = (_cache(files, level, default, sparse=vendor is not Vendor.INTEL) for level in (3, 2))
    return Platform(vendor, l3, l2, mb, smba, _monitoring(files) if "L3_MON" in present else None)


def read_groups(files: Filesystem) -> Present:
    """All control groups. One that goes away meanwhile is left out.

    :raises ResctrlError: the mount cannot be read.
    """
    groups = {DEFAULT_GROUP: _group(files, DEFAULT_GROUP)}
    for name in files.folders():
        if name in NOT_GROUPS:
            continue
        try:
            groups[name] = _group(files, name)
        except ResctrlError as error:
            LOG.debug("Group %s cannot be read: %s", name, error)
        except BadSchemataError as error:
            LOG.warning("Group %s has a schemata that makes no sense and is left alone: %s", name, error)
            groups[name] = Group(name, Schemata())
    return Present(groups)


def read_schemata(files: Filesystem, group: str) -> Schemata:
    """The schemata of a group now.

    :raises ResctrlError:
    :raises BadSchemataError:
    """
    return schemata.parse(files.read(inside(group, "schemata")))


def inside(group: str, name: str) -> str:
    """The path of a file or folder of a group."""
    return f"{group}/{name}" if group else name


def _group(files: Filesystem, name: str) -> Group:
    return Group(
        name,
        read_schemata(files, name),
        files.read_optional(inside(name, "mode")) or "shareable",
        files.folders(inside(name, "mon_groups")),
    )


def _cache(files: Filesystem, level: int, default: Schemata, sparse: bool) -> CacheControl | None:
    """Control over the caches of a level; with code and data prioritization both are said to be alike."""
    resources = tuple(name for name in (f"L{level}", f"L{level}CODE", f"L{level}DATA") if default.ids(name))
    if not resources:
        return None
    folder = f"info/{resources[0]}"
    try:
        all_ways = Mask.parse(files.read(f"{folder}/cbm_mask"))
        closids = int(files.read(f"{folder}/num_closids"))
        min_bits = int(files.read(f"{folder}/min_cbm_bits"))
        shareable = Mask.parse(files.read_optional(f"{folder}/shareable_bits") or "0")
    except (ResctrlError, BadMaskError, ValueError) as error:
        LOG.warning("No control over level %d caches: %s", level, error)
        return None
    text = files.read_optional(f"{folder}/sparse_masks")
    return CacheControl(
        level=level,
        resources=resources,
        ids=default.ids(resources[0]),
        rules=MaskRules(all_ways, max(1, min_bits), sparse if text is None else text == "1"),
        shareable=shareable & all_ways,
        closids=closids,
        way_bytes=_way_bytes(files, resources[0], default),
    )


def _way_bytes(files: Filesystem, resource: str, default: Schemata) -> dict[int, int]:
    try:
        sizes = schemata.parse_sizes(files.read("size")).get(resource, {})
    except (ResctrlError, BadSchemataError):
        return {}
    ways = {domain: (default.get(resource, domain) or 0).bit_count() for domain in sizes}
    return {domain: size // ways[domain] for domain, size in sizes.items() if size and ways[domain]}


def _bandwidth(
    files: Filesystem, resource: str, default: Schemata, options: frozenset[str]
) -> BandwidthControl | None:
    if not default.ids(resource):
        return None
    folder = f"info/{resource}"
    try:
        closids = int(files.read(f"{folder}/num_closids"))
        minimum = int(files.read(f"{folder}/min_bandwidth"))
        granularity = int(files.read(f"{folder}/bandwidth_gran"))
    except (ResctrlError, ValueError) as error:
        LOG.warning("No control over bandwidth %s: %s", resource, error)
        return None
    maximum = _maximum(files, resource, default.lines[resource])
    return BandwidthControl(
        resource=resource,
        ids=default.ids(resource),
        minimum=minimum,
        granularity=max(1, granularity),
        closids=closids,
        maximum=maximum,
        in_mbps=resource == "MB" and ("mba_MBps" in options or UNLIMITED_MBPS in maximum.values()),
    )


def _maximum(files: Filesystem, resource: str, default: Mapping[int, int]) -> dict[int, int]:
    """The highest value of any group, so that a default group that somebody cut does not hide it."""
    highest = dict(default)
    for name in files.folders():
        if name not in NOT_GROUPS:
            try:
                values = read_schemata(files, name).lines.get(resource, {})
            except (ResctrlError, BadSchemataError):
                continue
            highest = {domain: max(value, values.get(domain, 0)) for domain, value in highest.items()}
    return highest


def _monitoring(files: Filesystem) -> Monitoring | None:
    folder = "info/L3_MON"
    try:
        rmids = int(files.read(f"{folder}/num_rmids"))
        features = frozenset(files.read(f"{folder}/mon_features").split())
    except (ResctrlError, ValueError) as error:
        LOG.warning("No monitoring: %s", error)
        return None
    modes = (files.read_optional(f"{folder}/mbm_assign_mode") or "").split()
    counters = files.read_optional(f"{folder}/num_mbm_cntrs") or ""
    return Monitoring(
        rmids=rmids,
        features=features,
        assign_modes=tuple(mode.strip("[]") for mode in modes),
        assign_mode=next((mode.strip("[]") for mode in modes if mode.startswith("[")), ""),
        counters={int(d): int(n) for d, n in re.findall(r"([0-9]+)=([0-9]+)", counters)},
    )
