"""Tests of sections [cpu_pool:NAME]: their meaning, and refused values."""

import pytest
from oslo_config import cfg

from compute_agent import conf as conf_of
from compute_agent.classes.cpu_classes import parse_cpu_pools
from compute_agent.model.cpuset import CpuPool
from compute_agent.model.messages import ConfigError

CLASSES = ("BE", "LS", "LSR")


@pytest.fixture
def pools(tmp_path):
    def parse(text):
        (tmp_path / "agent.ini").write_text(text)
        return parse_cpu_pools(conf_of.load(config_files=[str(tmp_path / "agent.ini")]), CLASSES)

    return parse


def test_pools_are_read_in_the_order_of_their_names(pools):
    assert pools(
        "[cpu_pool:gold]\ncpus = 4-6,^5\nguest_classes = LSR, LS\nmax_guests = 3\nmax_cpus = 8\n"
        "[cpu_pool:bulk]\ndedicated_cpus = 2\nshared_cpus = 1\nper_node = true\n[cpu_pool:NAME]\n"
    ) == (
        CpuPool("bulk", dedicated_cpus=2, shared_cpus=1, per_node=True),
        CpuPool("gold", frozenset({4, 6}), max_cpus=8, classes=frozenset({"LS", "LSR"}), max_guests=3),
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cpus = 4-", r"\[cpu_pool:a\] cpus: bad CPU set"),
        ("cpus = 4\nshared_cpus = 1", "either cpus, such as 4-7, or a number"),
        ("max_guests = 4", "either cpus, such as 4-7, or a number"),
        ("cpus = 4\nper_node = true", "per_node: the option needs"),
        ("cpus = 4\nguest_classes = LS, gold", "there is no class gold; there are BE, LS, LSR"),
        ("cpus = 4\nmax_guests = 0", "max_guests"),
        ("cpu = 4", "cpu: there is no such option"),
    ],
)
def test_impossible_pools_are_refused_with_section_and_option(pools, text, reason):
    with pytest.raises((ConfigError, cfg.Error), match=reason):
        pools(f"[cpu_pool:a]\n{text}\n")
