"""Tests of finding the resctrl mount, or the reason why there is none."""

import os
import sys

import pytest

from compute_agent.resctrl import mount
from compute_agent.resctrl.mount import NoMountError, ResctrlMount, open_mount


def machine(root, filesystems="nodev\tresctrl\n", mounts=""):
    (root / "proc").mkdir()
    (root / "proc/filesystems").write_text("nodev\tsysfs\n\text4\n" + filesystems)
    (root / "proc/mounts").write_text("sysfs /sys sysfs rw,nosuid 0 0\n" + mounts)
    return root


def test_an_existing_mount_is_used_at_any_path(tmp_path):
    root = machine(tmp_path, mounts="resctrl /mnt/my\\040rdt resctrl rw,relatime,cdp,mba_MBps 0 0\n")
    found = open_mount(root, mount=True)
    assert found.path == root / "mnt/my rdt"
    assert found.options == {"rw", "relatime", "cdp", "mba_MBps"}
    assert not found.read_only


def test_lines_of_mounts_with_too_few_fields_are_skipped(tmp_path):
    root = machine(tmp_path, mounts="resctrl /one resctrl\n\nresctrl /two resctrl rw\n")
    assert open_mount(root).path == root / "two"


@pytest.mark.parametrize(
    ("filesystems", "mounts", "reason"),
    [
        ("", "", "not supported"),
        ("nodev\tresctrl\n", "", "not mounted"),
        (
            "nodev\tresctrl\n",
            "resctrl /sys/fs/resctrl resctrl ro,relatime 0 0\n",
            "mounted read-only at .*/sys/fs/resctrl",
        ),
    ],
)
def test_a_missing_mount_has_a_reason(filesystems, mounts, reason, tmp_path):
    with pytest.raises(NoMountError, match=reason):
        open_mount(machine(tmp_path, filesystems, mounts))


def test_a_machine_without_proc_has_no_mount(tmp_path):
    with pytest.raises(NoMountError, match="not supported"):
        open_mount(tmp_path, mount=True)


def test_a_captured_tree_counts_as_a_mount(tmp_path):
    (tmp_path / "sys/fs/resctrl").mkdir(parents=True)
    (tmp_path / "sys/fs/resctrl/schemata").write_text("L3:0=f\n")
    assert open_mount(tmp_path) == ResctrlMount(tmp_path / "sys/fs/resctrl", frozenset(), captured=True)


def test_the_filesystem_is_mounted_only_on_request(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(mount, "make_mount", lambda path, options: calls.append((path, options)))
    root = machine(tmp_path)
    with pytest.raises(NoMountError):
        open_mount(root)
    assert calls == []
    found = open_mount(root, mount=True, options="cdp,mba_MBps")
    assert calls == [(root / "sys/fs/resctrl", "cdp,mba_MBps")]
    assert found.options == {"cdp", "mba_MBps"}


@pytest.mark.skipif(sys.platform != "linux", reason="mount(2) of Linux")
def test_a_failed_mount_has_the_kernels_reason(tmp_path):
    with pytest.raises(NoMountError) as caught:
        mount.make_mount(tmp_path / "none", "cdp")
    assert "cannot be mounted" in str(caught.value)
    assert "with options 'cdp'" in str(caught.value)
    assert str(caught.value).rpartition(": ")[2] in {os.strerror(n) for n in range(1, 134)}
