"""Tests that an agent reports the CPUs of guests to Placement if the option is set."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from compute_agent.inventory.attributes import GuestCpuMap, guest_attributes, is_ours
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.loops import host_attributes
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.loops.host_attributes import acting_at, add_positions
from compute_agent.model.guest import CpuAssignment
from compute_agent.throttling.watermarks.metrics import MetricRegistry
from compute_agent.throttling.watermarks.sections import WatermarkRules, WatermarkSection
from compute_agent.throttling.watermarks.thresholds import WatermarkThreshold
from tests.compute_agent.loops.configurations import configuration

ONE, TWO = (f"00000000-0000-4000-8000-{number:012}" for number in (1, 2))
ROOT = ProviderNode("host", "r", None, attributes={"cpu_capacity": 1.0})
BELOW = ProviderNode("host_NUMA_0", "n", "r")


BUSY = WatermarkSection(
    "busy",
    "cpu_usage",
    throttle_down=WatermarkThreshold(90, relative=True),
    evict=WatermarkThreshold(99, relative=True),
)


def view(uuid, cpus):
    assignment = None if cpus is None else CpuAssignment((frozenset(cpus),), frozenset())
    return SimpleNamespace(guest=SimpleNamespace(uuid=uuid), assignment=assignment)


def told(wanted, views, *, beside=False):
    options = SimpleNamespace(compute=SimpleNamespace(report_positions=wanted))
    settings = SimpleNamespace(rules=WatermarkRules(MetricRegistry(), (BUSY,)))
    conf = configuration(options, settings=settings)
    before = ProviderTree((ROOT, BELOW), beside=beside)
    tree = add_positions(ConfigurationInForce(conf), lambda: views, before)
    return [dict(node.attributes or {}) for node in tree.nodes]


def test_guests_and_watermarks_are_reported_on_the_first_provider_of_the_agent_by_option():
    views = [view(ONE, {4, 5, 6}), view(TWO, None)]
    wanted = {f"position.{ONE}": "cpus 4-6", "watermark.busy": "cpu_usage: evict 99%, throttle_down 90%"}
    assert told(False, views) == [{"cpu_capacity": 1.0}, {}]
    assert told(True, views) == [{"cpu_capacity": 1.0} | wanted, {}]
    assert told(True, views, beside=True) == [{"cpu_capacity": 1.0}, wanted]
    assert all(map(is_ours, wanted))


def test_ways_are_reported_by_cache(monkeypatch):
    monkeypatch.setattr(
        host_attributes, "ways_of", lambda conf: {ONE: {1: (frozenset({8, 9}), 12), 0: (frozenset(), 12)}}
    )
    (root, _) = told(True, [view(ONE, {4})])
    assert root[f"position.{ONE}"] == "cpus 4; L3 0:  of 12; L3 1: 8-9 of 12"


def test_very_many_guests_long_lists_and_odd_names_leave_room_for_attributes_of_others():
    guests = [
        GuestCpuMap(f"00000000-0000-4000-8000-{n:012}", frozenset(range(n, 900, 2))) for n in range(300)
    ]
    found = guest_attributes([*guests, GuestCpuMap("no uuid", frozenset())], {"ok": "x" * 999, "not/ok": "x"})
    assert len(found) == 101
    assert {len(text) for text in found.values()} == {255}
    assert "watermark.ok" in found


def test_a_watermark_in_preview_is_marked():
    assert acting_at(replace(BUSY, preview=True)).endswith("(preview)")


@pytest.mark.parametrize("name", ["fleet.group", f"position.{ONE}", "watermark.busy", "numa_distance.x"])
def test_names_of_positions_are_known_as_the_agents(name):
    assert is_ours(name)
