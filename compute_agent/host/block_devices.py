"""Reads the block devices of the host, and finds devices by patterns for their names.

The names are read from /sys/block and /dev/disk/by-id.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compute_agent.host import kernel_files

_BY_ID: Final = "by-id/"
_IO_COST: Final = "sys/fs/cgroup/io.cost.qos"


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

    def unmatched_patterns(self, patterns: Sequence[str]) -> list[str]:
        """The names and patterns that match no device."""
        return [pattern for pattern in patterns if not self.match_devices(pattern)]

    def describe_unmatched(self, patterns: Sequence[str]) -> list[str]:
        """A message for each name or pattern that matches no device."""
        there = ", ".join(device.name for device in self.devices) or "none"
        return [
            f"this host has no device {pattern}; it has {there}"
            for pattern in self.unmatched_patterns(patterns)
        ]


def read_block_devices(root: Path) -> BlockDevices:
    """Read the block devices of the host with its files below ``root``.

    Without files, the result is empty.
    """
    folder = root / "sys/block"
    costed = _costed_devices(root)
    devices, parts = [], {}
    for name in _list_names(folder):
        number = (kernel_files.read_optional(f"{folder}/{name}/dev") or "").strip()
        if not number:
            continue  # The device was removed after the folder was listed.
        # The scheduler bfq divides bandwidth by weights of its own. io.cost divides bandwidth by weights
        # under any scheduler (cgroup-v2.rst, io.weight).
        scheduler = kernel_files.read_optional(f"{folder}/{name}/queue/scheduler") or ""
        devices.append(BlockDevice(name, number, "[bfq]" in scheduler or number in costed))
        parts[name] = name
        # A partition is a folder of its disk, so the name of a partition also stands for its disk.
        parts |= {part: name for part in _list_names(folder / name) if part.startswith(name)}
    links = {}
    by_id = root / "dev/disk/by-id"
    for link in _list_names(by_id):
        target = os.path.basename(os.path.realpath(by_id / link))
        # A link to a partition stands for the whole disk.
        if target in parts:
            links[link] = parts[target]
    return BlockDevices(tuple(devices), links)


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _costed_devices(root: Path) -> frozenset[str]:
    """The numbers (``MAJOR:MINOR``) of devices with io.cost enabled (see cgroup-v2.rst, io.cost.qos)."""
    lines = (kernel_files.read_optional(str(root / _IO_COST)) or "").splitlines()
    return frozenset(line.split()[0] for line in lines if "enable=1" in line.split())
