"""Tests of finding the cgroups that libvirt makes, by paths from its documentation.

test_driver.py has tests with real groups.
"""

from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from compute_agent.drivers.base import CpuLimits
from compute_agent.drivers.libvirt.running_domain import DomainGroup, DomainTuning, find_group, parse_group

SCOPE = "machine.slice/machine-qemu\\x2d1\\x2da.scope"


@pytest.fixture
def find(tmp_path):
    """A function that finds the group of a process from the text of its /proc/PID/cgroup."""
    return partial(parse_group, mounts={"": tmp_path / "unified", "cpu": tmp_path / "cpu"})


def test_on_a_host_with_systemd_the_scope_and_the_group_below_it_count(find, tmp_path):
    scope = tmp_path / "unified" / SCOPE
    assert find(f"0::/{SCOPE}/libvirt/emulator\n") == DomainGroup((scope, scope / "libvirt"), True)


def test_before_libvirt_7_1_there_is_the_scope_alone(find, tmp_path):
    assert find(f"0::/{SCOPE}/emulator\n") == DomainGroup((tmp_path / "unified" / SCOPE,), True)


def test_without_systemd_it_is_the_group_of_the_domain(find, tmp_path):
    path = "machine/qemu-1-a.libvirt-qemu"
    text = f"4:memory:/\n1:cpu,cpuacct:/{path}/emulator\n0::/\n"
    assert find(text) == DomainGroup((tmp_path / "cpu" / path,), False)


@pytest.mark.parametrize(
    "text", ["0::/user.slice/session-1.scope\n", "1:cpu:/\n0::/\n", "", "0::/../../x/emulator\n"]
)
def test_a_process_in_no_group_of_libvirts_has_none(find, text):
    assert find(text) is None


def test_a_process_that_ended_has_none():
    assert find_group(2**22 + 1) is None


class TestUnified:
    @pytest.fixture
    def group(self, tmp_path):
        folders = tmp_path / "scope", tmp_path / "scope/libvirt"
        for folder in folders:
            folder.mkdir()
            (folder / "cpu.weight").write_text("100\n")
            (folder / "cpu.max").write_text("max 100000\n")
        return DomainGroup(folders, True)

    def test_the_weight_is_that_of_the_scope(self, group):
        (group.folders[0] / "cpu.weight").write_text("300\n")
        assert group.read_limits() == CpuLimits(300)
        assert group.libvirt_shares(300) == 300

    def test_the_weight_is_at_least_the_lowest_that_libvirt_accepts(self, group):
        assert group.within_kernel(CpuLimits(1)) == CpuLimits(2)
        assert group.within_kernel(CpuLimits()) == CpuLimits()

    def test_the_lowest_quota_on_the_way_counts(self, group):
        for folder, quota in zip(group.folders, ("150000 100000\n", "50000 100000\n"), strict=True):
            (folder / "cpu.max").write_text(quota)
        assert group.read_limits() == CpuLimits(100, 0.5)

    def test_without_the_controller_or_the_domain_there_are_no_limits(self, group, tmp_path):
        for folder in group.folders:
            (folder / "cpu.max").unlink()
        assert group.read_limits() is None
        assert DomainGroup((tmp_path / "gone",), True).read_limits() is None
        assert DomainGroup((tmp_path / "gone",), False).read_limits() is None


def test_every_weight_survives_the_way_through_shares_of_version_1(tmp_path):
    group = DomainGroup((tmp_path,), False)
    (tmp_path / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu.cfs_period_us").write_text("100000\n")
    for weight in (*range(1, 400), 9_999, 10_000):
        (tmp_path / "cpu.shares").write_text(f"{group.libvirt_shares(weight)}\n")
        assert group.read_limits() == CpuLimits(weight)
    assert group.libvirt_shares(100) == 1024


def test_a_quota_is_set_after_its_period():
    # libvirt takes the parameters in this order, and a quota has another meaning with the former period.
    domain, libvirt = Mock(), Mock()
    tuning = DomainTuning(libvirt, domain, frozenset({0}))
    tuning.limit(CpuLimits(100), CpuLimits(100, 1.5), DomainGroup((Path("/none"),), True))
    [(parameters, flag)] = [call.args for call in domain.setSchedulerParametersFlags.call_args_list]
    assert list(parameters.items()) == [("global_period", 100_000), ("global_quota", 150_000)]
    assert flag is libvirt.VIR_DOMAIN_AFFECT_LIVE
