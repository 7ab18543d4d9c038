"""What the daemon tells monitoring about its guests."""

from types import SimpleNamespace

import pytest

from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.daemon.monitored import monitor_targets
from compute_agent.drivers.base import Guest, GuestSettings
from compute_agent.monitoring.targets import MonitorTarget
from compute_agent.qos.snapshot import GuestUsage, Series, Snapshot
from compute_agent.resctrl.control import Options, open_control
from compute_agent.resctrl.mount import Mount
from compute_agent.resctrl.rules import DEFAULT_CLASSES
from tests.compute_agent.resctrl import fake


@pytest.fixture
def controller(tmp_path):
    fake.FakeResctrl.of(fake.INTEL, tmp_path / "tree")
    control = open_control(Mount(tmp_path / "tree", frozenset()), Options("x."))
    return ResctrlController(DRIVER, control, DEFAULT_CLASSES)


DRIVER = SimpleNamespace(thread_ids=lambda guest: {guest.pid, guest.pid + 1})


def view(uuid, qos_class, priority=0):
    settings = GuestSettings(qos_class=qos_class, priority=priority)
    return SimpleNamespace(guest=Guest(uuid, "process", f"vm-{uuid}", 10, settings))


def test_guests_are_in_the_groups_that_the_controller_gave_them(controller):
    controller.membership = {"a": "x.guest.a", "b": "x.class.BE"}
    usage = {"a": GuestUsage("a", "LS", 10, usage={Series("cpu_usage"): 1.5}), "b": GuestUsage("b", "BE", 0)}
    views = [view("a", "LS", 7), view("b", "BE"), view("new", "LS")]
    targets = monitor_targets([object(), controller], views, DRIVER, Snapshot(1.0, {}, usage))
    assert targets == [
        MonitorTarget("", "LSR", "x.class.LSR"),
        MonitorTarget("", "LS", "x.class.LS"),
        MonitorTarget("", "BE", "x.class.BE"),
        MonitorTarget("a", "LS", "x.guest.a", 7),
        MonitorTarget("b", "BE", "x.class.BE"),
    ]
    assert [(target.name, target.cpu) for target in targets[3:]] == [("vm-a", 1.5), ("vm-b", None)]
    assert targets[3].threads() == {10, 11}


def test_without_a_controller_all_are_in_the_default_group():
    assert monitor_targets([], [view("a", "LS")], DRIVER) == [MonitorTarget("a", "LS", "")]
