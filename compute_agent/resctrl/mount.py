"""Finds or makes the resctrl mount, and reads its capabilities.

An existing mount is used with its present options. A missing mount is made only if the operator asks for it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compute_agent.resctrl import layout
from compute_agent.resctrl.bandwidth import BandwidthCodec, choose_codec
from compute_agent.resctrl.filesystem import ResctrlError, ResctrlFilesystem, read_text
from compute_agent.resctrl.groups import NOT_GROUPS, ResctrlGroups, read_schemata
from compute_agent.resctrl.platform import (
    UNLIMITED_MBPS,
    BandwidthControl,
    CacheControl,
    CpuVendor,
    MonitoringFeatures,
    ResctrlPlatform,
    vendor_of,
)
from compute_agent.resctrl.schemata import (
    BadMaskError,
    BadSchemataError,
    MaskRules,
    Schemata,
    WayMask,
    parse_schemata,
    parse_sizes,
)

LOG = logging.getLogger(__name__)

MOUNT_POINT: Final = "sys/fs/resctrl"


@dataclass(frozen=True, slots=True)
class ResctrlMount:
    """A mounted resctrl filesystem.

    :ivar options: the mount options, such as ``cdp``.
    :ivar captured: whether the files are copies from another machine. Nothing can be written to copies.
    """

    path: Path
    options: frozenset[str]
    captured: bool = False

    @property
    def read_only(self) -> bool:
        """Whether the mount is read-only, so that groups cannot be changed."""
        return "ro" in self.options


class NoMountError(Exception):
    """The host has no usable resctrl filesystem.

    The text is the reason, short enough for one line of the log.
    """


def open_mount(root: Path = Path("/"), mount: bool = False, options: str = "") -> ResctrlMount:
    """Find the writable resctrl mount of a machine, or make one.

    :param root: the folder that contains the files of the machine.
    :param mount: whether to mount the filesystem at sys/fs/resctrl if it is not mounted.
    :param options: the options for a new mount, such as ``cdp,mba_MBps``.
    :raises NoMountError: resctrl is not supported, not mounted, mounted read-only, or refused by the kernel.
    """
    found = find_mount(root)
    if found is None:
        if not is_supported(root):
            raise NoMountError("resctrl is not supported by this processor or kernel")
        if not mount:
            raise NoMountError("resctrl is not mounted")
        make_mount(root / MOUNT_POINT, options)
        # Below another root, proc/mounts can be a copy that does not contain the new mount.
        found = find_mount(root) or ResctrlMount(
            root / MOUNT_POINT, frozenset(filter(None, options.split(",")))
        )
    if found.read_only:
        raise NoMountError(f"resctrl is mounted read-only at {found.path}")
    return found


def is_supported(root: Path) -> bool:
    """Whether the kernel has resctrl, on hardware that can control or monitor caches or bandwidth."""
    return any(line.split()[-1:] == ["resctrl"] for line in read_text(root / "proc/filesystems").splitlines())


def find_mount(root: Path) -> ResctrlMount | None:
    """The first resctrl mount in proc/mounts, or copied files at sys/fs/resctrl; None if nothing is found.

    The files of another machine may have been copied to sys/fs/resctrl. Copied files have no entry in
    proc/mounts, so the existence of the folder is enough.
    """
    for line in read_text(root / "proc/mounts").splitlines():
        fields = line.split()
        # The fields are those of fstab(5): source, mount point, type, options.
        if len(fields) >= 4 and fields[2] == "resctrl":
            # The kernel writes blanks and backslashes of a path as octal escapes, such as \\040.
            where = fields[1].encode().decode("unicode_escape")
            return ResctrlMount(root / where.lstrip("/"), frozenset(fields[3].split(",")))
    tree = root / MOUNT_POINT
    return ResctrlMount(tree, frozenset(), captured=True) if (tree / "schemata").is_file() else None


def make_mount(path: Path, options: str) -> None:
    """Mount resctrl with mount(2).

    :raises NoMountError: the kernel refuses the mount; the text has its reason.
    """
    # The mount is made through libc, because Python's os module has no mount(), and a container can lack the
    # command of util-linux.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"resctrl", os.fsencode(path), b"resctrl", 0, options.encode() or None) != 0:
        number = ctypes.get_errno()
        with_options = f" with options {options!r}" if options else ""
        raise NoMountError(f"resctrl cannot be mounted at {path}{with_options}: {os.strerror(number)}")


@dataclass(frozen=True, slots=True)
class ResctrlOptions:
    """The operator's options for resctrl.

    :ivar prefix: the beginning of the names of all groups that belong to the agent.
    :ivar shared_ways: the number of cache ways that are never exclusive to a group.
    :ivar memory_bandwidth_gbps: the full bandwidth of a domain (100 %), in 10^9 bytes a second; None if
        unknown. Only hardware with absolute values needs this option.
    """

    prefix: str = "compute-agent."
    shared_ways: int = 2
    memory_bandwidth_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class ResctrlHandle:
    """A resctrl mount, with its capabilities and the operator's options.

    :ivar codec: converts bandwidths; None means that bandwidth cannot be controlled.
    :ivar writable: whether the agent can write the mount; False for files that were copied from another host.
    """

    files: ResctrlFilesystem
    platform: ResctrlPlatform
    codec: BandwidthCodec | None
    options: ResctrlOptions
    writable: bool = True

    def build_layout(self, present: ResctrlGroups) -> layout.ResctrlLayout:
        """Partition the caches. Ways that existing foreign groups have locked are left out."""
        return layout.build_layout(
            self.platform, self.codec, present, self.options.prefix, self.options.shared_ways
        )

    def is_ours(self, group: str) -> bool:
        """Whether a group belongs to the agent, by its name."""
        return group.startswith(self.options.prefix)


def open_handle(mount: ResctrlMount, options: ResctrlOptions, root: Path = Path("/")) -> ResctrlHandle:
    """Read the capabilities of a mount.

    :param root: the folder that contains ``proc`` of the machine.
    :raises ResctrlError: a file of the mount cannot be read.
    :raises BadSchemataError: the schemata of the default group cannot be parsed.
    """
    files = ResctrlFilesystem(mount.path)
    cpuinfo = read_text(root / "proc/cpuinfo")
    platform = read_platform(files, cpuinfo, mount.options)
    codec = choose_codec(platform, options.memory_bandwidth_gbps)
    return ResctrlHandle(files, platform, codec, options, not mount.captured)


def read_platform(
    files: ResctrlFilesystem, cpuinfo: str = "", options: frozenset[str] = frozenset()
) -> ResctrlPlatform:
    """The capabilities of a mount.

    If ``cpuinfo`` does not name the vendor, a bandwidth value above 100 means AMD, and any other value Intel.
    A resource is logged and left out if one of its files in ``info`` is missing or cannot be parsed.

    :param cpuinfo: the text of /proc/cpuinfo.
    :param options: the mount options of the resctrl filesystem, such as ``cdp``.
    :raises BadSchemataError: the schemata of the default group cannot be parsed.
    """
    # The ids come from the schemata: info does not contain them, and they have gaps where a socket has no
    # online CPU.
    default = parse_schemata(files.read_file("schemata"))
    present = set(files.list_folders("info"))
    mb, smba = (
        _read_bandwidth_control(files, name, default, options) if name in present else None
        for name in ("MB", "SMBA")
    )
    vendor = vendor_of(cpuinfo)
    if vendor is None:
        # AMD's full bandwidth is at least 2048 units of 1/8 GB/s, far above any percent.
        in_units = mb is not None and not mb.in_mbps and max(mb.maximum.values(), default=0) > 100
        vendor = CpuVendor.AMD if in_units else CpuVendor.INTEL
    # The file sparse_masks exists since Linux 6.7. Before that, only Intel refused masks with holes.
    l3, l2 = (
        _read_cache_control(files, level, default, sparse=vendor is not CpuVendor.INTEL) for level in (3, 2)
    )
    return ResctrlPlatform(vendor, l3, l2, mb, smba, _read_monitoring(files) if "L3_MON" in present else None)


def _read_cache_control(
    files: ResctrlFilesystem, level: int, default: Schemata, sparse: bool
) -> CacheControl | None:
    """Read the control of the caches of one level.

    With CDP, the files for code and for data have the same content, so only one of them is read.
    """
    resources = tuple(
        name for name in (f"L{level}", f"L{level}CODE", f"L{level}DATA") if default.domain_ids(name)
    )
    if not resources:
        return None
    folder = f"info/{resources[0]}"
    try:
        all_ways = WayMask.parse_hex(files.read_file(f"{folder}/cbm_mask"))
        closids = int(files.read_file(f"{folder}/num_closids"))
        min_bits = int(files.read_file(f"{folder}/min_cbm_bits"))
        # Older kernels have no such file; then no way is known to be shared with devices.
        shareable = WayMask.parse_hex(files.read_optional(f"{folder}/shareable_bits") or "0")
    # Each level is read by itself: a file that cannot be read must not disable the rest of resctrl.
    except (ResctrlError, BadMaskError, ValueError) as error:
        LOG.warning("Level %d caches cannot be controlled: %s", level, error)
        return None
    text = files.read_optional(f"{folder}/sparse_masks")
    return CacheControl(
        resources=resources,
        ids=default.domain_ids(resources[0]),
        # On AMD, the kernel shows 0, because masks can be empty there. The agent gives each group at least
        # one way.
        rules=MaskRules(all_ways, max(1, min_bits), sparse if text is None else text == "1"),
        shareable=shareable & all_ways,
        closids=closids,
        way_bytes=_read_way_bytes(files, resources[0], default),
    )


def _read_way_bytes(files: ResctrlFilesystem, resource: str, default: Schemata) -> dict[int, int]:
    try:
        sizes = parse_sizes(files.read_file("size")).get(resource, {})
    except (ResctrlError, BadSchemataError):
        # The size of a way is only used for a trait and for display, so the cache can be controlled without
        # it.
        return {}
    # The file "size" is about the mask of the group, which perhaps does not contain all ways.
    ways = {domain: (default.get_value(resource, domain) or 0).bit_count() for domain in sizes}
    return {domain: size // ways[domain] for domain, size in sizes.items() if size and ways[domain]}


def _read_bandwidth_control(
    files: ResctrlFilesystem, resource: str, default: Schemata, options: frozenset[str]
) -> BandwidthControl | None:
    if not default.domain_ids(resource):
        return None
    folder = f"info/{resource}"
    try:
        closids = int(files.read_file(f"{folder}/num_closids"))
        minimum = int(files.read_file(f"{folder}/min_bandwidth"))
        granularity = int(files.read_file(f"{folder}/bandwidth_gran"))
    except (ResctrlError, ValueError) as error:
        LOG.warning("Memory bandwidth (%s) cannot be controlled: %s", resource, error)
        return None
    maximum = _read_maximum(files, resource, default.lines[resource])
    return BandwidthControl(
        ids=default.domain_ids(resource),
        minimum=minimum,
        # The number is at least 1, because it is used as a divisor, and files of a wrong copy can contain 0.
        granularity=max(1, granularity),
        closids=closids,
        maximum=maximum,
        # Files that were copied from another machine have no mount options, but the value for "no limit"
        # shows the unit. SMBA has no mba_MBps.
        in_mbps=resource == "MB" and ("mba_MBps" in options or UNLIMITED_MBPS in maximum.values()),
    )


def _read_maximum(files: ResctrlFilesystem, resource: str, default: Mapping[int, int]) -> dict[int, int]:
    """The highest bandwidth value that any group has, by bandwidth domain."""
    # All groups are read, because no file shows the hardware's maximum, and an operator may have lowered the
    # value of the default group.
    highest = dict(default)
    for name in files.list_folders():
        if name not in NOT_GROUPS:
            try:
                values = read_schemata(files, name).lines.get(resource, {})
            except (ResctrlError, BadSchemataError):
                continue  # The group was removed meanwhile, or is about to be pseudo-locked.
            highest = {domain: max(value, values.get(domain, 0)) for domain, value in highest.items()}
    return highest


def _read_monitoring(files: ResctrlFilesystem) -> MonitoringFeatures | None:
    folder = "info/L3_MON"
    try:
        rmids = int(files.read_file(f"{folder}/num_rmids"))
        features = frozenset(files.read_file(f"{folder}/mon_features").split())
    except (ResctrlError, ValueError) as error:
        LOG.warning("Caches and bandwidth cannot be monitored: %s", error)
        return None
    # The kernel marks the present mode by brackets, as in "[mbm_event]".
    mode = re.search(r"\[(.*?)\]", files.read_optional(f"{folder}/mbm_assign_mode") or "")
    return MonitoringFeatures(rmids, features, mode[1] if mode else "")
