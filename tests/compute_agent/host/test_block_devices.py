"""Tests of the block devices of a host, and of patterns that select them by name."""

import os
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from compute_agent.host import block_devices
from compute_agent.host.block_devices import (
    BlockDevice,
    BlockDevices,
    find_limited_device,
    read_block_devices,
)


@pytest.fixture
def root(tmp_path):
    """The files of a host with two NVMe disks, one with a partition, and a disk with names in by-id."""
    for name, number, scheduler in (
        ("nvme0n1", "259:0", "[none] mq-deadline"),
        ("nvme1n1", "259:5", "none [bfq]"),
        ("sda", "8:0", "[mq-deadline] bfq"),
    ):
        folder = tmp_path / "sys/block" / name
        (folder / "queue").mkdir(parents=True)
        (folder / "dev").write_text(f"{number}\n")
        (folder / "queue/scheduler").write_text(f"{scheduler}\n")
    (tmp_path / "sys/block/sda/sda1").mkdir()
    links = tmp_path / "dev/disk/by-id"
    links.mkdir(parents=True)
    (links / "wwn-0x5000").symlink_to("../../sda")
    (links / "ata-DISK-part1").symlink_to("../../sda1")
    (links / "dm-name-root").symlink_to("../../dm-0")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/io.cost.qos").write_text("8:0 enable=1 ctrl=auto\n259:0 enable=0 ctrl=auto\n")
    return tmp_path


def test_disks_are_listed_with_their_support_of_weights(root):
    assert read_block_devices(root).devices == (
        BlockDevice("nvme0n1", "259:0", by_weight=False),
        BlockDevice("nvme1n1", "259:5", by_weight=True),
        BlockDevice("sda", "8:0", by_weight=True),
    )


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("sda", ["sda"]),
        ("/dev/sda", ["sda"]),
        ("nvme*n1", ["nvme0n1", "nvme1n1"]),
        ("*", ["nvme0n1", "nvme1n1", "sda"]),
        ("by-id/wwn-0x5000", ["sda"]),
        ("by-id/wwn-*", ["sda"]),
        ("/dev/disk/by-id/ata-DISK-part1", ["sda"]),
        ("by-id/dm-name-root", []),
        ("sdb", []),
        ("by-id/nvme-*", []),
    ],
)
def test_names_patterns_and_ids_match_disks(root, pattern, names):
    devices = read_block_devices(root)
    assert [one.name for one in devices.match_devices(pattern)] == names
    assert bool(devices.describe_unmatched([pattern])) == (not names)


def test_a_host_without_block_files_has_no_disks(tmp_path):
    assert read_block_devices(tmp_path) == BlockDevices()


DEVICES = {
    "8:0": ("sda", ()),
    "8:1": ("sda/sda1", ()),
    "8:2": ("sda/sda2", ()),
    "8:16": ("sdb", ()),
    "253:0": ("crypt", ("8:1",)),
    "253:1": ("volume", ("253:0",)),
    "253:2": ("verity", ("8:1", "8:2")),
    "9:0": ("mirror", ("8:0", "8:16")),
    "259:0": ("mirror/mirrorp1", ()),
}
"""The folder of each device below /sys/block, and the devices that it is made from."""


@pytest.fixture
def layers(tmp_path):
    """The files of a host with partitions, an encrypted volume, and a mirror of two disks."""
    folders = {number: tmp_path / "sys/block" / name for number, (name, _) in DEVICES.items()}
    numbers = tmp_path / "sys/dev/block"
    numbers.mkdir(parents=True)
    for number, folder in folders.items():
        folder.mkdir(parents=True)
        (folder / "dev").write_text(f"{number}\n")
        if folder.parent.name != "block":
            (folder / "partition").write_text("1\n")
        else:
            (folder / "slaves").mkdir()
        (numbers / number).symlink_to(folder)
    for number, (_, below) in DEVICES.items():
        for one in below:
            (folders[number] / "slaves" / folders[one].name).symlink_to(folders[one])
    return tmp_path


@pytest.mark.parametrize(
    ("number", "limited"),
    [
        ("8:0", "8:0"),
        ("8:1", "8:0"),
        ("253:0", "8:0"),
        ("253:1", "8:0"),
        ("253:2", "8:0"),
        ("9:0", "9:0"),
        ("259:0", "9:0"),
        # A device that is gone
        ("8:99", "8:99"),
    ],
)
def test_systemd_limits_the_disk_below_a_device(layers, number, limited):
    assert find_limited_device(layers, f"/dev/block/{number}") == limited


def test_a_file_stands_for_the_device_of_its_file_system(layers, monkeypatch):
    # The type of a file, its own number, and that of its file system
    modes = {
        "/dev/sdb": (stat.S_IFBLK, os.makedev(8, 16), 0),
        "/srv/db": (stat.S_IFREG, 0, os.makedev(253, 1)),
        "/dev/null": (stat.S_IFCHR, os.makedev(1, 3), 0),
        "/btrfs": (stat.S_IFDIR, 0, os.makedev(0, 40)),
    }
    usual = os.stat

    def look_at(path, **options):
        name = f"/{Path(path).relative_to(layers)}"
        if name not in modes:
            return usual(path, **options)
        mode, device, holder = modes[name]
        return SimpleNamespace(st_mode=mode, st_rdev=device, st_dev=holder)

    monkeypatch.setattr(block_devices.os, "stat", look_at)
    found = {name: find_limited_device(layers, name) for name in (*modes, "/dev/sdz")}
    assert found == {"/dev/sdb": "8:16", "/srv/db": "8:0", "/dev/null": "", "/btrfs": "", "/dev/sdz": ""}
