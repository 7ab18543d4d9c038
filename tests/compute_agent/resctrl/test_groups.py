"""Tests of reading resctrl mounts, including captured trees and damaged trees."""

import errno
import logging
import os
import shutil

import pytest

from compute_agent.resctrl.filesystem import ResctrlError, ResctrlFilesystem
from compute_agent.resctrl.groups import DEFAULT_GROUP, read_groups
from compute_agent.resctrl.mount import read_platform
from compute_agent.resctrl.platform import UNLIMITED_MBPS, CpuVendor, vendor_of
from compute_agent.resctrl.schemata import BadSchemataError, WayMask
from tests.compute_agent.resctrl import fake


@pytest.mark.parametrize(
    ("archive", "facts"),
    [
        (
            "full",
            {
                "l3": (0, 1, 2, 3),
                "ways": 20,
                "shareable": "c0000",
                "closids": 8,
                "mb": (10, 10),
                "rmids": 192,
            },
        ),
        (
            "l2l3mb",
            {"l3": (0, 1), "ways": 20, "shareable": "c0001", "closids": 8, "mb": (10, 10), "rmids": 512},
        ),
        ("l2cdp", {"l3": (0,), "ways": 12, "shareable": "400", "closids": 4, "mb": None, "rmids": None}),
        ("nol3", {"l3": None, "closids": 8, "mb": (10, 10), "rmids": 192}),
        (
            "nomb",
            {"l3": (0, 1, 2, 3), "ways": 20, "shareable": "c0000", "closids": 16, "mb": None, "rmids": 192},
        ),
    ],
)
def test_captured_machines_are_read(captured, archive, facts):
    platform = captured(archive).platform
    assert platform.vendor is CpuVendor.INTEL
    assert (platform.l3.ids if platform.l3 else None) == facts["l3"]
    if platform.l3:
        assert len(platform.l3.rules.all_ways) == facts["ways"]
        assert str(platform.l3.shareable) == facts["shareable"]
        assert not platform.l3.rules.sparse
        assert not platform.l3.has_cdp
    assert platform.closid_count == platform.max_groups == facts["closids"]
    mb = platform.mb
    assert ((mb.minimum, mb.granularity) if mb else None) == facts["mb"]
    assert (platform.monitoring.rmids if platform.monitoring else None) == facts["rmids"]


def test_details_of_captured_machines(captured):
    full = captured("full")
    assert full.platform.l3.way_bytes == dict.fromkeys(range(4), 57671680 // 20)
    assert full.platform.monitoring.features == {"llc_occupancy", "mbm_total_bytes", "mbm_local_bytes"}
    assert list(full.present.groups) == [
        DEFAULT_GROUP,
        "Guaranteed",
        "goresctrl.Guaranteed",
        "goresctrl.Stale",
        "non_goresctrl.Group",
    ]
    assert "non_goresctrl.group" in full.present.groups["goresctrl.Stale"].monitoring_groups


def test_code_and_data_of_level_2(captured):
    l2 = captured("l2cdp").platform.l2
    assert l2.has_cdp
    assert l2.resources == ("L2CODE", "L2DATA")
    assert l2.way_bytes == dict.fromkeys(range(4), 65536)


def test_forty_caches_of_level_2(captured):
    l2 = captured("l2l3mb").platform.l2
    assert l2.ids == tuple(range(40))
    assert l2.rules.all_ways == WayMask(0xFFFF)


@pytest.mark.parametrize(
    ("cpuinfo", "vendor"),
    [
        ("processor\t: 0\nvendor_id\t: GenuineIntel\n", CpuVendor.INTEL),
        ("vendor_id\t: AuthenticAMD\n", CpuVendor.AMD),
        ("vendor_id\t: HygonGenuine\n", CpuVendor.AMD),
        ("processor\t: 0\nCPU implementer\t: 0x41\n", CpuVendor.ARM),
        ("vendor_id\t: CentaurHauls\n", None),
        ("", None),
    ],
)
def test_the_vendor_comes_from_cpuinfo(cpuinfo, vendor):
    assert vendor_of(cpuinfo) == vendor


def tree(tmp_path, machine=fake.INTEL):
    return fake.FakeResctrl.of(machine, tmp_path / "tree")


@pytest.mark.parametrize(("machine", "vendor"), [(fake.INTEL, CpuVendor.INTEL), (fake.AMD, CpuVendor.AMD)])
def test_without_cpuinfo_the_unit_of_bandwidth_shows_the_vendor(machine, vendor, tmp_path):
    assert read_platform(tree(tmp_path, machine)).vendor is vendor


@pytest.mark.parametrize(
    ("cpuinfo", "text", "sparse"),
    [
        ("vendor_id: GenuineIntel", None, False),
        ("vendor_id: AuthenticAMD", None, True),
        ("CPU implementer: 0x41", None, True),
        ("vendor_id: GenuineIntel", "1\n", True),
        ("vendor_id: AuthenticAMD", "0\n", False),
    ],
)
def test_the_kernel_or_else_the_vendor_allows_holes(cpuinfo, text, sparse, tmp_path):
    files = tree(tmp_path)
    path = files.root / "info/L3/sparse_masks"
    path.unlink() if text is None else path.write_text(text)
    assert read_platform(files, cpuinfo).l3.rules.sparse is sparse


def test_megabytes_are_recognised_by_mount_option_or_unlimited_value(tmp_path):
    files = tree(tmp_path, fake.INTEL_MBPS)
    assert read_platform(files).mb.in_mbps
    files.make_folder("group")
    files.write_file("schemata", "MB:0=1000;1=1000\n")
    assert read_platform(files).mb.in_mbps  # another group has it
    assert read_platform(files).mb.maximum == {0: UNLIMITED_MBPS, 1: UNLIMITED_MBPS}
    files.remove_folder("group")
    assert read_platform(files, "", frozenset({"rw", "mba_MBps"})).mb.in_mbps


def test_bandwidth_of_far_memory_is_never_in_megabytes(tmp_path):
    """Only AMD processors have bandwidth of far memory, in eighths of 1 GB/s, while the mount option for MB/s
    exists only for Intel.
    """
    files = tree(tmp_path, fake.AMD)
    shutil.copytree(files.root / "info/MB", files.root / "info/SMBA")
    path = files.root / "schemata"
    path.write_text(path.read_text() + "SMBA:0=2048;1=2048\n")
    assert not read_platform(files, "", frozenset({"rw", "mba_MBps"})).smba.in_mbps


def test_counter_assignment_is_read(tmp_path):
    files = tree(tmp_path)
    folder = files.root / "info/L3_MON"
    (folder / "mbm_assign_mode").write_text("[mbm_event]\ndefault\n")
    assert read_platform(files).monitoring.assign_mode == "mbm_event"


@pytest.mark.parametrize(
    ("path", "content", "lost"),
    [
        ("info/L3/cbm_mask", "oops", "l3"),
        ("info/L3/num_closids", None, "l3"),
        ("info/MB/min_bandwidth", "", "mb"),
        ("info/L3_MON/num_rmids", "many", "monitoring"),
    ],
)
def test_a_file_that_cannot_be_parsed_disables_its_resource_with_a_log_line(
    path, content, lost, tmp_path, caplog
):
    files = tree(tmp_path)
    if content is None:
        (files.root / path).unlink()
    else:
        (files.root / path).write_text(content)
    with caplog.at_level(logging.WARNING):
        platform = read_platform(files)
    for name in ("l3", "mb", "monitoring"):
        assert (getattr(platform, name) is None) == (name == lost)
    assert len(caplog.records) == 1


def test_sizes_may_be_missing(tmp_path):
    files = tree(tmp_path)
    (files.root / "size").unlink()
    assert read_platform(files).l3.way_bytes == {}


def test_the_size_of_a_way_does_not_depend_on_the_default_groups_mask(tmp_path):
    files = tree(tmp_path)
    before = read_platform(files).l3.way_bytes
    files.write_file("schemata", "L3:0=f;1=3\n")
    assert read_platform(files).l3.way_bytes == before == {0: 2**20, 1: 2**20}


def test_a_folder_that_is_no_mount_is_an_error(tmp_path):
    with pytest.raises(ResctrlError) as caught:
        read_platform(ResctrlFilesystem(tmp_path))
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(ResctrlError):
        read_groups(ResctrlFilesystem(tmp_path / "none"))
    (tmp_path / "schemata").write_text("L3 what\n")
    with pytest.raises(BadSchemataError):
        read_platform(ResctrlFilesystem(tmp_path))


def test_reading_continues_after_removed_and_unreadable_groups(tmp_path, caplog):
    files = tree(tmp_path)
    files.make_folder("odd")
    files.make_folder("gone")
    (files.root / "odd/schemata").write_text("L3:0=xyz\n")
    os.unlink(files.root / "gone/schemata")
    groups = read_groups(files).groups
    assert set(groups) == {DEFAULT_GROUP, "odd"}
    assert not groups["odd"].schemata
    assert "odd" in caplog.text


def test_an_error_has_the_number_and_the_path(tmp_path):
    (tmp_path / "info").mkdir()
    (tmp_path / "info/last_cmd_status").write_text("Mask out of range\n")
    for operation, arguments in (
        ("make_folder", ["a/b"]),
        ("remove_folder", ["a/b"]),
        ("write_file", ["a/b", "x"]),
        ("read_file", ["a/b"]),
    ):
        with pytest.raises(ResctrlError) as caught:
            getattr(ResctrlFilesystem(tmp_path), operation)(*arguments)
        error = caught.value
        assert (error.errno, error.filename) == (errno.ENOENT, str(tmp_path / "a/b"))
        assert error.status == ""  # that of an earlier command is not ours
        assert isinstance(error, OSError)


def test_an_error_has_the_reason_that_the_kernel_added(tmp_path, monkeypatch):
    (tmp_path / "info").mkdir()
    status = tmp_path / "info/last_cmd_status"
    status.write_text("Out of CLOSIDs\n")

    def mkdir(path):
        status.write_text("Out of CLOSIDs\nOut of RMIDs\n")
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr("pathlib.Path.mkdir", mkdir)
    with pytest.raises(ResctrlError) as caught:
        ResctrlFilesystem(tmp_path).make_folder("a")
    assert caught.value.status == "Out of RMIDs"
    assert str(caught.value).endswith("a': Out of RMIDs")


def test_an_error_of_a_write_has_all_lines_of_the_reason(tmp_path, monkeypatch):
    (tmp_path / "info").mkdir()
    (tmp_path / "tasks").write_text("")
    (tmp_path / "info/last_cmd_status").write_text("No task 7\nError while processing task 7\n")

    def write(handle, data):
        raise OSError(errno.ESRCH, "")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(ResctrlError) as caught:
        ResctrlFilesystem(tmp_path).write_file("tasks", "7\n")
    assert caught.value.errno == errno.ESRCH
    assert caught.value.status == "No task 7; Error while processing task 7"
