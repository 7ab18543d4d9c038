"""Reads the block devices of the host, and finds devices by patterns for their names.

The names are read from /sys/block and /dev/disk/by-id.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compute_agent.host.kernel_files import SysFiles

_BY_ID: Final = "by-id/"
_BY_ID_FOLDER: Final = "dev/disk/by-id"
_IO_COST: Final = "sys/fs/cgroup/io.cost.qos"
_NUMBER_PATH: Final = "/dev/block/"
_MAX_LAYERS: Final = 32
"""The maximum number of devices below each other, such as an encrypted volume on a logical volume."""


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """A whole disk of the host.

    :ivar name: the kernel's name, such as ``sda``.
    :ivar number: the device number ``MAJOR:MINOR``.
    :ivar by_weight: whether the device divides its bandwidth by the weights of cgroups.
    """

    name: str
    number: str
    by_weight: bool = False


@dataclass(frozen=True, slots=True)
class BlockDevices:
    """All block devices of the host.

    :ivar links: the name of the disk for each name in /dev/disk/by-id.
    """

    devices: tuple[BlockDevice, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)

    def match_devices(self, pattern: str) -> tuple[BlockDevice, ...]:
        """The devices that match a name or pattern: ``vda``, ``/dev/nvme*n1``, ``by-id/wwn-0x5*``."""
        wanted = pattern.removeprefix("/dev/").removeprefix("disk/")
        if wanted.startswith(_BY_ID):
            found = {
                disk for link, disk in self.links.items() if fnmatch.fnmatchcase(f"{_BY_ID}{link}", wanted)
            }
            return tuple(one for one in self.devices if one.name in found)
        return tuple(one for one in self.devices if fnmatch.fnmatchcase(one.name, wanted))

    def describe_unmatched(self, patterns: Sequence[str]) -> list[str]:
        """A message for each name or pattern that matches no device."""
        there = ", ".join(device.name for device in self.devices) or "none"
        return [
            f"this host has no device {pattern}; it has {there}"
            for pattern in patterns
            if not self.match_devices(pattern)
        ]


def read_block_devices(root: Path) -> BlockDevices:
    """Read the block devices of the host with its files below ``root``.

    Without files, the result is empty.
    """
    files = SysFiles(root)
    costed = _costed_devices(files)
    devices, parts = [], {}
    for name in files.list_names("sys/block"):
        folder = f"sys/block/{name}"
        if not (number := files.text(f"{folder}/dev")):
            continue  # The device was removed after the folder was listed.
        # The scheduler bfq divides bandwidth by weights of its own. io.cost divides bandwidth by weights
        # under any scheduler (cgroup-v2.rst, io.weight).
        scheduler = files.text(f"{folder}/queue/scheduler") or ""
        devices.append(BlockDevice(name, number, "[bfq]" in scheduler or number in costed))
        parts[name] = name
        # A partition is a folder of its disk, so the name of a partition also stands for its disk.
        parts |= {part: name for part in files.list_names(folder) if part.startswith(name)}
    links = {}
    for link in files.list_names(_BY_ID_FOLDER):
        target = os.path.basename(os.path.realpath(root / _BY_ID_FOLDER / link))
        # A link to a partition stands for the whole disk.
        if target in parts:
            links[link] = parts[target]
    return BlockDevices(tuple(devices), links)


def _costed_devices(files: SysFiles) -> frozenset[str]:
    """The numbers (``MAJOR:MINOR``) of devices with io.cost enabled (see cgroup-v2.rst, io.cost.qos)."""
    lines = (files.text(_IO_COST) or "").splitlines()
    return frozenset(line.split()[0] for line in lines if "enable=1" in line.split())


def find_limited_device(root: Path, path: str) -> str:
    """The number of the device that systemd limits for a path; empty if it is not known.

    A file stands for the device of its file system, and a partition for its disk. A device that is made from
    one disk alone, such as a logical volume, stands for this disk. The function follows
    ``lookup_block_device`` in src/core/cgroup.c of systemd 252.
    """
    number = path.removeprefix(_NUMBER_PATH)
    if number == path:
        try:
            found = os.stat(root / path.lstrip("/"))
        except OSError:
            return ""
        device = found.st_rdev if stat.S_ISBLK(found.st_mode) else found.st_dev
        # File systems without a device of their own, such as btrfs, have numbers with the major number 0.
        if stat.S_ISCHR(found.st_mode) or not os.major(device):
            return ""
        number = f"{os.major(device)}:{os.minor(device)}"
    files, devices = SysFiles(root), "sys/dev/block"
    for _ in range(_MAX_LAYERS):
        folder = f"{devices}/{number}/slaves"
        below = [root / folder / name for name in files.list_names(folder)]
        # A device with several devices below counts only if these are partitions of one disk.
        if len({_whole_disk(one) for one in below}) != 1:
            break
        number = _device_number(below[0]) or number
    return _whole_disk(root / devices / number) or number


def _whole_disk(device: Path) -> str:
    """The number of a disk, or of the disk of a partition; empty if the device is gone."""
    folder = device.resolve()
    return _device_number(folder.parent if (folder / "partition").exists() else folder)


def _device_number(folder: Path) -> str:
    return SysFiles(folder).text("dev") or ""
