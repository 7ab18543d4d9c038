"""/sys/block and /dev/disk/by-id: the block devices of the host, and which of them a name means."""

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
    """A whole disk; ``number`` is ``MAJOR:MINOR``. ``by_weight``: it divides what it can do by weights."""

    name: str
    number: str
    by_weight: bool = False


@dataclass(frozen=True, slots=True)
class BlockDevices:
    """All of them, in the order of their names; ``links`` has the disk of each name in /dev/disk/by-id."""

    devices: tuple[BlockDevice, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)

    def matching(self, pattern: str) -> tuple[BlockDevice, ...]:
        """The devices that a name or a pattern means: ``vda``, ``/dev/nvme*n1``, ``by-id/wwn-0x5*``."""
        wanted = pattern.removeprefix("/dev/").removeprefix("disk/")
        if wanted.startswith(_BY_ID):
            found = {
                disk for link, disk in self.links.items() if fnmatch.fnmatchcase(f"{_BY_ID}{link}", wanted)
            }
            return tuple(one for one in self.devices if one.name in found)
        return tuple(one for one in self.devices if fnmatch.fnmatchcase(one.name, wanted))

    def unknown(self, patterns: Sequence[str]) -> list[str]:
        """The names and patterns that mean none."""
        return [pattern for pattern in patterns if not self.matching(pattern)]

    def lacking(self, patterns: Sequence[str]) -> list[str]:
        """The same, a sentence each."""
        there = ", ".join(device.name for device in self.devices) or "none"
        return [f"this host has no device {pattern}; there are {there}" for pattern in self.unknown(patterns)]


def read_block_devices(root: Path) -> BlockDevices:
    """The block devices of the host whose files are below ``root``; none where it tells none."""
    folder = root / "sys/block"
    costed = _costed(root)
    devices, parts = [], {}
    for name in _names(folder):
        number = (kernel_files.read_optional(f"{folder}/{name}/dev") or "").strip()
        if not number:
            continue
        scheduler = kernel_files.read_optional(f"{folder}/{name}/queue/scheduler") or ""
        devices.append(BlockDevice(name, number, "[bfq]" in scheduler or number in costed))
        parts[name] = name
        parts |= {part: name for part in _names(folder / name) if part.startswith(name)}
    links = {}
    by_id = root / "dev/disk/by-id"
    for link in _names(by_id):
        target = os.path.basename(os.path.realpath(by_id / link))
        if target in parts:
            links[link] = parts[target]
    return BlockDevices(tuple(devices), links)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _costed(root: Path) -> frozenset[str]:
    """The devices on which io.cost is on (Documentation/admin-guide/cgroup-v2.rst)."""
    lines = (kernel_files.read_optional(str(root / _IO_COST)) or "").splitlines()
    return frozenset(line.split()[0] for line in lines if "enable=1" in line.split())
