"""Tests of attributes in reports: CPUs of guests, thresholds, heartbeats, and the use of caches."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from compute_agent.inventory.attributes import (
    CacheLoad,
    GuestCpuMap,
    GuestLoad,
    RequestedLimit,
    guest_attributes,
    is_ours,
    neighbour_attributes,
)
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.loops import host_attributes
from compute_agent.loops.base import ConfigurationInForce
from compute_agent.loops.host_attributes import (
    NeighbourReporter,
    acting_at,
    add_heartbeat,
    add_positions,
    limits_of_guests,
)
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.resource import CPU_QUOTA, ThrottleControl
from compute_agent.monitoring.monitor import CacheMonitor
from compute_agent.monitoring.readings import MonitorTarget
from compute_agent.resctrl.mount import ResctrlHandle, ResctrlOptions
from compute_agent.throttling.interference.cases import InterferenceCase
from compute_agent.throttling.watermarks.metrics import MetricRegistry
from compute_agent.throttling.watermarks.sections import WatermarkAction, WatermarkRules, WatermarkSection
from compute_agent.throttling.watermarks.thresholds import WatermarkThreshold
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.monitoring.counting import mount

ONE, TWO, THREE = (f"00000000-0000-4000-8000-{number:012}" for number in (1, 2, 3))
ROOT = ProviderNode("host", "7f3c0d6b-2a91-4c1e-8d5b-9a6f4e2c1d03", None, attributes={"cpu_capacity": 1.0})
BELOW = ProviderNode("host_NUMA_0", "n", "r")


BUSY = WatermarkSection(
    "busy",
    "cpu_usage",
    {
        WatermarkAction.THROTTLE_DOWN: WatermarkThreshold(90, relative=True),
        WatermarkAction.EVICT: WatermarkThreshold(99, relative=True),
    },
)


def view(uuid, cpus):
    assignment = None if cpus is None else CpuAssignment((frozenset(cpus),), frozenset())
    return SimpleNamespace(guest=SimpleNamespace(uuid=uuid), assignment=assignment)


def reported(wanted, views, *, beside=False):
    options = SimpleNamespace(compute=SimpleNamespace(report_positions=wanted))
    settings = SimpleNamespace(rules=WatermarkRules(MetricRegistry(), (BUSY,)))
    conf = configuration(options, settings=settings)
    before = ProviderTree((ROOT, BELOW), beside=beside)
    tree = add_positions(ConfigurationInForce(conf), lambda: views, before)
    return [dict(node.attributes or {}) for node in tree.nodes]


def test_guests_and_watermarks_are_reported_on_the_first_provider_of_the_agent_by_option():
    views = [view(ONE, {4, 5, 6}), view(TWO, None)]
    wanted = {f"position.{ONE}": "cpus 4-6", "watermark.busy": "cpu_usage: evict 99%, throttle_down 90%"}
    assert reported(False, views) == [{"cpu_capacity": 1.0}, {}]
    assert reported(True, views) == [{"cpu_capacity": 1.0} | wanted, {}]
    assert reported(True, views, beside=True) == [{"cpu_capacity": 1.0}, wanted]
    assert all(map(is_ours, wanted))


def test_ways_are_reported_by_cache(monkeypatch):
    monkeypatch.setattr(
        host_attributes, "ways_of", lambda conf: {ONE: {1: (frozenset({8, 9}), 12), 0: (frozenset(), 12)}}
    )
    (root, _) = reported(True, [view(ONE, {4})])
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


def beats(now, interval=600, *, beside=False, reports=60):
    compute = SimpleNamespace(heartbeat_interval=interval, update_resources_interval=reports)
    conf = configuration(SimpleNamespace(compute=compute))
    tree = ProviderTree((ROOT, BELOW), beside=beside)
    found = add_heartbeat(ConfigurationInForce(conf), tree, lambda: now)
    return [dict(node.attributes or {}) for node in found.nodes]


def test_no_heartbeat_is_reported_without_the_option():
    assert beats(1e9, 0) == [{"cpu_capacity": 1.0}, {}]


def test_the_heartbeat_changes_once_an_interval():
    values = [beats(1_700_000_000 + second)[0] for second in range(0, 6000, 10)]
    assert len({each["agent.reported_at"] for each in values}) in (10, 11)
    for second, each in zip(range(0, 6000, 10), values, strict=True):
        now = 1_700_000_000 + second
        assert each["agent.reported_at"] <= now < each["agent.reported_at"] + 600
        assert each["agent.report_due"] == each["agent.reported_at"] + 1800
        assert each["cpu_capacity"] == 1.0


def test_the_heartbeat_is_not_due_before_the_next_report():
    ((root), _) = beats(1e9, 10, reports=60)
    assert root["agent.report_due"] == root["agent.reported_at"] + 180


def test_the_heartbeat_beside_nova_is_on_the_first_provider_of_the_agent():
    root, below = beats(1e9, beside=True)
    assert root == {"cpu_capacity": 1.0}
    assert below.keys() == {"agent.reported_at", "agent.report_due"}
    assert all(map(is_ours, below))


LS = MonitorTarget("", "LS", "a.class.LS")
MIB = 1 << 20


class Host:
    """A host with two caches and two guests of one QoS class. The test sets counters and the time."""

    def __init__(self, folder, interval=600, gbps=10.0):
        self.tree = mount(folder / "tree")
        self.tree.files.make_folder("a.class.LS")
        self.monitor = CacheMonitor(self.tree.files, self.tree.platform, "a.")
        self.now, self.limits, self.cases = 1_700_000_000.0, {}, []
        compute = SimpleNamespace(neighbours_interval=interval, update_resources_interval=60)
        control = ResctrlHandle(self.tree.files, self.tree.platform, None, ResctrlOptions("a.", 2, gbps))
        self.reporter = NeighbourReporter(
            ConfigurationInForce(configuration(SimpleNamespace(compute=compute), control)),
            self.measure,
            lambda: self.limits,
            lambda: self.cases,
            lambda: self.now,
        )

    def measure(self):
        if self.monitor is None:
            return None
        guests = [MonitorTarget(uuid, "LS", "a.class.LS") for uuid in (ONE, TWO)]
        return self.monitor.measure_targets([LS, *guests], self.now - 1_600_000_000)

    def count(self, uuid, cache, total, occupancy):
        self.tree.files.count(f"a.class.LS/mon_groups/a.mon.{uuid}", cache, total, 0, occupancy)

    def told(self):
        (root,) = self.reporter.add_to_tree(ProviderTree((ROOT,))).nodes
        return {name: value for name, value in root.attributes.items() if name != "cpu_capacity"}


def test_bandwidths_are_means_over_the_interval_and_change_with_it(tmp_path):
    host = Host(tmp_path)
    first = host.told()
    assert first["neighbour.cache.0"] == "0 MiB of 16"
    host.now += 60
    host.count(ONE, 0, 60 * 300_000_000, 3 * MIB)
    host.count(TWO, 1, 60 * 12_340_000, MIB // 2)
    second = host.told()
    assert second == {
        "neighbour.measured_at": first["neighbour.measured_at"],
        "neighbour.valid_until": first["neighbour.measured_at"] + 1800,
        "neighbour.cache.0": "300 MB/s of 10000, 3 MiB of 16",
        "neighbour.cache.1": "12.3 MB/s of 10000, 0.5 MiB of 16",
        "neighbour.guest.0": f"{ONE} LS: 300 MB/s, 3 MiB",
        "neighbour.guest.1": f"{TWO} LS: 12.3 MB/s, 0.5 MiB",
    }
    assert all(map(is_ours, second))
    host.count(ONE, 0, 600 * 100_000_000, 2 * MIB)
    reports = []
    for _ in range(20):
        host.now += 60
        reports.append(host.told())
    assert reports.count(second) in range(1, 11)
    assert len({each["neighbour.measured_at"] for each in reports}) in (2, 3)
    assert reports[-1]["neighbour.guest.0"] == f"{ONE} LS: 0 MB/s, 2 MiB"


def test_bandwidths_are_unknown_after_another_monitor_began(tmp_path):
    host = Host(tmp_path)
    host.told()
    host.now += 60
    host.monitor = CacheMonitor(host.tree.files, host.tree.platform, "a.")
    host.count(ONE, 0, 1000, MIB)
    assert host.told()["neighbour.cache.0"] == "1 MiB of 16"
    # Two reports may come within one reading.
    assert host.told()["neighbour.cache.0"] == "1 MiB of 16"
    host.now += 10
    host.count(ONE, 0, 10_000_000, MIB)
    assert host.told()["neighbour.cache.0"] == "1 MB/s of 10000, 1 MiB of 16"


def test_a_host_without_counters_and_limits_reports_nothing(tmp_path):
    host = Host(tmp_path)
    host.monitor = None
    assert host.told() == {}
    assert Host(tmp_path / "other", interval=0).told() == {}


def test_limits_name_the_guests_that_profit(tmp_path):
    host = Host(tmp_path, gbps=None)
    host.monitor = None
    bandwidth = [ThrottleControl("memory_bandwidth", domain) for domain in "01"]
    host.limits = {
        "interference": {ONE: dict.fromkeys(bandwidth, 10.0), TWO: {ThrottleControl(CPU_QUOTA): 1.0}},
        "watermarks": {ONE: {ThrottleControl(CPU_QUOTA): 2.0}},
        "by hand": {THREE: {}},
    }
    host.cases = [InterferenceCase("busy", THREE, ONE, bandwidth[0], 0.9, 1.0, (10.0,))]
    host.cases.append(InterferenceCase("busy", TWO, ONE, bandwidth[1], 0.9, 1.0, (10.0,), depth=0))
    told = host.told()
    assert (
        told["neighbour.limit.0"]
        == f"{ONE} cpu_quota: watermarks; memory_bandwidth: interference for {THREE}"
    )
    assert told["neighbour.limit.1"] == f"{TWO} cpu_quota: interference"
    assert told.keys() == {"neighbour.limit.0", "neighbour.limit.1"} | {
        *("neighbour.measured_at", "neighbour.valid_until")
    }


def test_many_guests_caches_and_limits_leave_room_for_attributes_of_others():
    uuids = [f"00000000-0000-4000-8000-{number:012}" for number in range(300)]
    guests = [
        GuestLoad(uuid, "LS", CacheLoad(bandwidth=number * 1e6, occupancy=(300 - number) * MIB))
        for number, uuid in enumerate(uuids)
    ]
    guests += [
        GuestLoad("no uuid", "LS", CacheLoad(1e12)),
        GuestLoad(uuids[0][:-1] + "a", "", CacheLoad(0, 0)),
    ]
    limits = {
        uuid: [RequestedLimit(f"lever{number}", "interference", tuple(uuids)) for number in range(9)]
        for uuid in uuids
    }
    told = neighbour_attributes(0.0, 600, dict.fromkeys(range(99), CacheLoad(1.0)), guests, limits)
    assert len(told) == 64 + 6 + 20 + 2
    guests = [str(value)[:36] for name, value in told.items() if name.startswith("neighbour.guest.")]
    assert guests == [*uuids[:3], *uuids[-3:]]
    assert max(len(str(value)) for value in told.values()) <= 255


@pytest.mark.parametrize(
    ("guest", "text"),
    [
        (GuestLoad(ONE, "", CacheLoad(1.5e6)), f"{ONE} 1.5 MB/s"),
        (GuestLoad(ONE, "a: b", CacheLoad(None, 1.0)), f"{ONE} 0 MiB"),
        (GuestLoad(ONE, "BE", CacheLoad(123_456_789_012.0, 40 * MIB)), f"{ONE} BE: 123456.8 MB/s, 40 MiB"),
    ],
)
def test_the_use_of_a_guest_is_text(guest, text):
    assert str(guest) == text


def test_a_guest_that_is_limited_by_two_triggers_has_both():
    quota = {ThrottleControl(CPU_QUOTA): 1.0}
    found = limits_of_guests({"watermarks": {ONE: quota}, "interference": {ONE: quota}}, ())
    assert [str(each) for each in sorted(found[ONE])] == ["cpu_quota: interference", "cpu_quota: watermarks"]
