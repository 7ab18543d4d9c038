"""Tests of monitoring: its targets, and its start and reload by the agent."""

import sqlite3
import subprocess
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from oslo_config import cfg
from prometheus_client import CollectorRegistry

from compute_agent.classes.guest_classes import DEFAULT_CLASSES
from compute_agent.conf import host as host_options
from compute_agent.conf import monitoring as monitoring_options
from compute_agent.conf import register_module
from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.loops.monitoring import CacheMonitoring, MonitorTargets
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.monitoring.loop import MonitoringSettings
from compute_agent.monitoring.monitor import CacheMonitor
from compute_agent.monitoring.readings import CacheReading, MonitorTarget
from compute_agent.resctrl.groups import read_tasks
from compute_agent.resctrl.mount import ResctrlHandle, ResctrlMount, ResctrlOptions, open_handle
from compute_agent.usage.snapshot import GuestUsage, MetricSeries, UsageSnapshot
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.monitoring.counting import mount
from tests.compute_agent.resctrl import fake
from tests.waits import wait_for


@pytest.fixture
def controller(tmp_path):
    fake.FakeResctrl.of(fake.INTEL, tmp_path / "tree")
    control = open_handle(ResctrlMount(tmp_path / "tree", frozenset()), ResctrlOptions("x."))
    return ResctrlController(DRIVER, control, DEFAULT_CLASSES)


CPU = MetricSeries("cpu_usage")
DRIVER = SimpleNamespace(thread_ids=lambda guest: {guest.pid, guest.pid + 1})


def named_guest(uuid, qos_class, priority=0):
    settings = GuestSettings(qos_class=qos_class, priority=priority)
    return Guest(uuid, "process", f"vm-{uuid}", 10, settings)


def test_guests_are_in_the_groups_that_the_controller_gave_them(controller):
    controller.class_groups = {"LSR": "", "LS": "", "BE": "x.class.BE"}
    controller.membership = {"a": "x.guest.a", "b": "x.class.BE"}
    usage = {"a": GuestUsage("a", "LS", 10, usage={CPU: 1.5}), "b": GuestUsage("b", "BE", 0)}
    guests = [named_guest("a", "LS", 7), named_guest("b", "BE"), named_guest("new", "LS")]
    targets = list(
        MonitorTargets(DRIVER).build_targets([object(), controller], guests, UsageSnapshot(1.0, {}, usage))
    )
    assert targets == [
        MonitorTarget("", "LSR", ""),
        MonitorTarget("", "LS", ""),
        MonitorTarget("", "BE", "x.class.BE"),
        MonitorTarget("a", "LS", "x.guest.a", 7),
        MonitorTarget("b", "BE", "x.class.BE"),
    ]
    assert [(target.name, target.cpu) for target in targets[3:]] == [("vm-a", 1.5), ("vm-b", None)]
    assert targets[3].threads() == {10, 11}


def test_guests_have_no_target_before_a_controller_has_synced(controller):
    assert MonitorTargets(DRIVER).build_targets([controller], [named_guest("a", "LS")]) is None
    controller.class_groups = {"LSR": "", "LS": "", "BE": "x.class.BE"}
    assert [target.qos_class for target in MonitorTargets(DRIVER).build_targets([controller], [])] == [
        "LSR",
        "LS",
        "BE",
    ]


def list_threads(guest):
    """The threads of a process guest with one thread."""
    return frozenset({guest.pid})


def test_controller_and_monitoring_do_not_disturb_each_other(controller, tmp_path):
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    try:
        settings = GuestSettings(qos_class="LS")
        guests = [Guest(f"g{child.pid}", "process", "vm", child.pid, settings) for child in children]
        driver = SimpleNamespace(thread_ids=list_threads, recent_threads=list_threads)
        control = replace(controller.control, files=fake.FakeResctrl(tmp_path / "tree"))
        controller = ResctrlController(driver, control, DEFAULT_CLASSES)
        wanted = [GuestTarget(guest, None, frozenset()) for guest in guests]
        controller.sync(wanted, ())
        for target in wanted:
            controller.apply(target)
        monitor = CacheMonitor(control.files, control.platform, "x.")
        for time in (0.0, 10.0, 20.0):
            monitor.measure_targets(MonitorTargets(driver).build_targets([controller], guests), time)
            controller.sync(wanted, ())
            assert [controller.describe_drift(target) for target in wanted] == [None, None]
        for guest in guests:
            group = f"mon_groups/x.mon.{guest.uuid}"
            assert read_tasks(control.files, group) == {guest.pid}
        assert monitor.groups.unmonitored_guests == frozenset()
    finally:
        for child in children:
            child.kill()
            child.wait()


def test_without_a_controller_all_are_in_the_default_group():
    assert MonitorTargets(DRIVER).build_targets([], [named_guest("a", "LS")]) == (
        MonitorTarget("a", "LS", ""),
    )


def test_targets_are_rebuilt_only_after_a_change_of_their_input(controller):
    controller.class_groups, controller.membership = {"LS": ""}, {"a": ""}
    made, guests = MonitorTargets(DRIVER), [named_guest("a", "LS")]
    first = made.build_targets([controller], guests)
    controller.class_groups = {"LS": ""}
    assert made.build_targets([controller], [*guests]) is first
    controller.membership = {"a": "x.guest.a"}
    moved = made.build_targets([controller], guests)
    assert [target.group for target in moved] == ["", "x.guest.a"]
    used = made.build_targets(
        [controller], guests, UsageSnapshot(1.0, {}, {"a": GuestUsage("a", "LS", 0, usage={CPU: 1.5})})
    )
    assert used[-1].cpu == 1.5
    assert made.build_targets([controller], [named_guest("a", "LS", 7)])[-1].priority == 7


LS = MonitorTarget("", "LS", "a.class.LS")
ONE = MonitorTarget("one", "LS", "a.class.LS", name="web", cpu=0.5)
GROUP = "a.class.LS/mon_groups/a.mon.one"


@pytest.fixture
def conf(tmp_path):
    def conf(**options):
        conf = cfg.ConfigOpts()
        for module in (host_options, monitoring_options):
            register_module(conf, module)
        conf([], default_config_files=[])
        conf.set_override("state_path", str(tmp_path))
        for name, value in options.items():
            conf.set_override(name, value, "monitoring")
        return conf

    return conf


@pytest.fixture
def control(tmp_path):
    """A resctrl mount as the daemon has it. Each call makes another object, as a reload does."""
    made = mount(tmp_path / "tree")
    made.files.make_folder("a.class.LS")

    def control(**changes):
        values = {
            "files": made.files,
            "platform": made.platform,
            "codec": None,
            "options": ResctrlOptions("a."),
        }
        return ResctrlHandle(**values | changes)

    return control


FAST = {"interval": "0.02", "store_interval": "0.02"}


def test_monitoring_measures_from_start_to_stop_and_follows_the_configuration(conf, control, tmp_path):
    files = control().files
    files.make_folder("mon_groups/a.mon.orphan")
    monitoring = CacheMonitoring(
        configuration(conf(**FAST), control()), lambda: [LS, ONE], CollectorRegistry()
    )
    assert monitoring.reader.read() == CacheReading()
    monitoring.start()
    wait_for(lambda: "one" in monitoring.reader.read().guest_bandwidth)
    assert files.monitoring_groups() == [GROUP]
    assert monitoring.reader.read().bandwidth_capacity == {}
    assert monitoring.reason_off == ""
    monitoring.reload(configuration(conf(interval="0"), control()))
    assert monitoring.reason_off == "[monitoring] interval is 0"
    assert monitoring.reader.read() == CacheReading()
    wait_for(lambda: files.monitoring_groups() == [] and monitoring.loop.monitor.newest is None)
    monitoring.reload(
        configuration(conf(**FAST), control(options=ResctrlOptions("a.", memory_bandwidth_gbps=5.0)))
    )
    wait_for(lambda: "one" in monitoring.reader.read().guest_bandwidth)
    assert monitoring.reader.read().bandwidth_capacity == {"0": 5e9, "1": 5e9}
    monitoring.stop()
    assert files.monitoring_groups() == [GROUP]  # for the next agent
    with sqlite3.connect(tmp_path / "samples.db") as connection:
        assert connection.execute("SELECT count(*) FROM samples").fetchone()[0] > 4


def test_totals_go_on_over_a_change_of_the_configuration(conf, control):
    monitoring = CacheMonitoring(configuration(conf(**FAST), control()), lambda: [LS], CollectorRegistry())
    monitoring.loop.run_round(time.monotonic(), 0.0)
    monitor = monitoring.loop.monitor
    monitoring.reload(configuration(conf(), control()))
    monitoring.loop.run_round(time.monotonic(), 0.0)
    assert monitoring.loop.monitor is monitor
    monitoring.stop()


def test_a_mount_may_come_and_go(conf, control):
    monitoring = CacheMonitoring(configuration(conf(**FAST), None), lambda: [LS, ONE], CollectorRegistry())
    monitoring.start()
    assert monitoring.reason_off == "there is no resctrl with counters"
    assert monitoring.reader.read() == CacheReading()
    monitoring.reload(configuration(conf(**FAST), control()))
    wait_for(lambda: "one" in monitoring.reader.read().guest_bandwidth)
    monitoring.reload(configuration(conf(**FAST), None))
    wait_for(lambda: monitoring.reader.read() == CacheReading())
    monitoring.stop()


@pytest.mark.parametrize("what", ["captured", "without counters"])
def test_a_mount_that_cannot_be_measured_is_left_alone(conf, control, what):
    platform = replace(control().platform, monitoring=None)
    unfit = control(writable=False) if what == "captured" else control(platform=platform)
    monitoring = CacheMonitoring(configuration(conf(**FAST), unfit), lambda: [LS, ONE], CollectorRegistry())
    assert monitoring.reason_off
    monitoring.loop.run_round(time.monotonic(), 0.0)
    assert unfit.files.monitoring_groups() == []
    monitoring.stop()


def test_monitoring_that_is_off_removes_groups_of_an_earlier_agent(conf, control):
    files = control().files
    files.make_folder("mon_groups/a.mon.orphan")
    monitoring = CacheMonitoring(
        configuration(conf(interval="0"), control()), lambda: [LS, ONE], CollectorRegistry()
    )
    monitoring.start()
    wait_for(lambda: files.monitoring_groups() == [])
    monitoring.stop()


def test_settings_are_in_seconds_and_bytes(conf):
    options = conf(interval="1m", retention="2d", store_max_mb=3, store_interval="5")
    assert MonitoringSettings.from_options(options) == MonitoringSettings(60.0, 5.0, 172800.0, 3_000_000)
    assert MonitoringSettings.from_options(conf()) == MonitoringSettings()
