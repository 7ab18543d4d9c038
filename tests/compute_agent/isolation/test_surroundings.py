"""Tests of boot options and other programs that affect quiet CPUs and shared CPUs."""

import pytest

from compute_agent.agent.config_warnings import config_warnings
from compute_agent.agent.host_access import HostResctrl
from compute_agent.isolation.surroundings import (
    ACTIVE_PROFILE,
    BootIsolation,
    boot_warnings,
    read_boot_isolation,
    writer_warnings,
)
from compute_agent.model.cpuset import CpuSets
from tests.compute_agent.isolation.fake_irqbalance import FakeBalancer

ISOLATED = "sys/devices/system/cpu/isolated"
TICKLESS = "sys/devices/system/cpu/nohz_full"


def put(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def sets(dedicated, shared):
    return CpuSets(frozenset(dedicated), frozenset(shared), frozenset(shared))


@pytest.mark.parametrize(
    ("line", "unbalanced", "tickless"),
    [
        ("quiet isolcpus=2-3,6 nohz_full=3", {2, 3, 6}, {3}),
        ("isolcpus=nohz,domain,managed_irq,2-3", {2, 3}, set()),
        ("isolcpus=managed_irq,2-3", set(), set()),
        ("isolcpus=1 isolcpus=2", {2}, set()),
        ("isolcpus= nohz_full", set(), set()),
        ("isolcpus=all \x00", set(), set()),
    ],
)
def test_boot_options_have_the_cpus_that_the_kernel_makes_of_them(tmp_path, line, unbalanced, tickless):
    put(tmp_path, "proc/cmdline", line)
    assert read_boot_isolation(tmp_path) == BootIsolation(frozenset(unbalanced), frozenset(tickless))


def test_the_files_of_the_kernel_are_truer_than_the_boot_line(tmp_path):
    put(tmp_path, "proc/cmdline", "isolcpus=all nohz_full=all")
    put(tmp_path, ISOLATED, "4-5\n")
    put(tmp_path, TICKLESS, "  (null)\n")
    assert read_boot_isolation(tmp_path) == BootIsolation(frozenset({4, 5}))


def test_a_host_without_these_files_has_no_boot_options(tmp_path):
    assert read_boot_isolation(tmp_path) == BootIsolation()


def test_shared_cpus_in_boot_options_are_told_and_dedicated_ones_are_not():
    boot = BootIsolation(frozenset({1, 2}), frozenset({0, 1, 2}))
    first, second = boot_warnings(boot, sets({2, 3}, {0, 1}))
    assert first.startswith("shared CPU 1 in isolcpus of the boot line: the kernel does not balance")
    assert second.startswith("shared CPU 0 in nohz_full of the boot line")
    assert list(boot_warnings(boot, sets({0, 1, 2}, {3}))) == []


def test_tuned_is_told_with_its_profile_while_it_runs(tmp_path):
    put(tmp_path, ACTIVE_PROFILE, "cpu-partitioning\x1b\n mine\n")
    assert writer_warnings(tmp_path) == []
    put(tmp_path, "proc/77/comm", "tuned\n")
    [sentence] = writer_warnings(tmp_path)
    assert sentence.startswith("TuneD runs with profile cpu-partitioning")
    assert "\x1b" not in sentence
    (tmp_path / ACTIVE_PROFILE).unlink()
    assert writer_warnings(tmp_path)[0].startswith("TuneD runs and may write")


def test_the_profile_of_tuned_has_a_limit(tmp_path):
    put(tmp_path, ACTIVE_PROFILE, "x" * 100_000)
    put(tmp_path, "proc/77/comm", "tuned\n")
    assert len(writer_warnings(tmp_path)[0]) < 500


def test_irqbalance_is_told_where_it_has_no_socket(tmp_path):
    put(tmp_path, "proc/78/comm", "irqbalance\n")
    [sentence] = writer_warnings(tmp_path)
    assert sentence.startswith("irqbalance runs without a socket")
    balancer = FakeBalancer(tmp_path, 78)
    try:
        assert writer_warnings(tmp_path) == []
    finally:
        balancer.end(leaves_socket=True)
    assert writer_warnings(tmp_path) == [sentence]


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("", False),
        ("[qos_class:LSR]\nisolation = shared\n", False),
        ("[qos_class:LSR]\nisolation = quiet\n", True),
        ("[guest_rule:r]\nmatch_name = *\nisolation = alone\n", True),
    ],
)
def test_other_writers_matter_where_the_configuration_asks_for_quiet_cpus(load, tmp_path, text, is_told):
    put(tmp_path, "proc/77/comm", "tuned\n")
    conf = load(f"{text}[host]\nroot = {tmp_path}\n")
    warnings = config_warnings(conf, None, HostResctrl(None, "off"), "process")
    assert any("TuneD" in warning for warning in warnings) is is_told
