"""Tests that an agent sends one heartbeat to Placement in each interval, if the option is set."""

from types import SimpleNamespace

from compute_agent.inventory.attributes import is_ours
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.loops.host_attributes import add_heartbeat
from tests.compute_agent.loops.configurations import configuration

ROOT = ProviderNode("host", "7f3c0d6b-2a91-4c1e-8d5b-9a6f4e2c1d03", None, attributes={"cpu_capacity": 1.0})
BELOW = ProviderNode("host_NUMA_0", "n", "r")


def told(now, interval=600, *, beside=False, reports=60):
    compute = SimpleNamespace(heartbeat_interval=interval, update_resources_interval=reports)
    conf = configuration(SimpleNamespace(compute=compute))
    tree = ProviderTree((ROOT, BELOW), beside=beside)
    found = add_heartbeat(ConfigurationInForce(conf), tree, lambda: now)
    return [dict(node.attributes or {}) for node in found.nodes]


def test_no_heartbeat_is_reported_without_the_option():
    assert told(1e9, 0) == [{"cpu_capacity": 1.0}, {}]


def test_the_heartbeat_changes_once_an_interval():
    values = [told(1_700_000_000 + second)[0] for second in range(0, 6000, 10)]
    assert len({each["agent.reported_at"] for each in values}) in (10, 11)
    for second, each in zip(range(0, 6000, 10), values, strict=True):
        now = 1_700_000_000 + second
        assert each["agent.reported_at"] <= now < each["agent.reported_at"] + 600
        assert each["agent.report_due"] == each["agent.reported_at"] + 1800
        assert each["cpu_capacity"] == 1.0


def test_the_heartbeat_is_not_due_before_the_next_report():
    ((root), _) = told(1e9, 10, reports=60)
    assert root["agent.report_due"] == root["agent.reported_at"] + 180


def test_the_heartbeat_beside_nova_is_on_the_first_provider_of_the_agent():
    root, below = told(1e9, beside=True)
    assert root == {"cpu_capacity": 1.0}
    assert below.keys() == {"agent.reported_at", "agent.report_due"}
    assert all(map(is_ours, below))
