"""Tests of the block devices of a host, and of patterns that select them by name."""

import pytest

from compute_agent.host.block_devices import BlockDevice, BlockDevices, read_block_devices


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
    assert devices.unmatched_patterns([pattern]) == ([] if names else [pattern])


def test_a_host_without_block_files_has_no_disks(tmp_path):
    assert read_block_devices(tmp_path) == BlockDevices()
