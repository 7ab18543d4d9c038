"""Tests of the targets of monitoring, which the daemon builds from its guests."""

import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from compute_agent.classes.guest_classes import DEFAULT_CLASSES
from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.loops.monitoring import MonitorTargets
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.monitoring.monitor import CacheMonitor
from compute_agent.monitoring.readings import MonitorTarget
from compute_agent.resctrl.groups import read_tasks
from compute_agent.resctrl.mount import ResctrlMount, ResctrlOptions, open_handle
from compute_agent.usage.snapshot import GuestUsage, MetricSeries, UsageSnapshot
from tests.compute_agent.resctrl import fake


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
