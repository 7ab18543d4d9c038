"""Tests of controller isolation: guests' isolation levels become demands, and remaining work is reported."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.controllers.isolation import (
    IsolationController,
    IsolationSettings,
    count_isolation,
    isolation_level,
)
from compute_agent.isolation.decision import KERNEL_MANAGED
from compute_agent.isolation.facts import DEFAULT_MASK
from compute_agent.isolation.shell import HostIsolator
from compute_agent.model.guest_settings import IsolationLevel
from compute_agent.model.messages import DriverError
from tests.compute_agent.controllers.builders import class_target
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.isolation.fake_kernel import IsolationHost

SETTINGS = IsolationSettings({"LSR": IsolationLevel.QUIET}, frozenset(range(2, 8)))


class GuestHost(IsolationHost):
    """A host with a driver and the controller."""

    def __init__(self, folder):
        super().__init__(folder)
        self.driver = FakeDriver(range(8))
        self.controller = IsolationController(self.driver, SETTINGS, self.store, self.kernel)


@pytest.fixture
def host(tmp_path):
    host = GuestHost(tmp_path)
    host.kernel.add_interrupt(30, "eth0", {2, 3})
    host.kernel.add_interrupt(31, "nvme0q3", {3}, managed=True)
    return host


def with_level(target, level, **settings):
    changed = replace(target.guest.settings, isolation=level, **settings)
    return replace(target, guest=replace(target.guest, settings=changed))


def default_mask(host):
    return host.kernel.masks()[DEFAULT_MASK]


def test_the_level_is_that_of_the_guest_or_else_of_its_class(host):
    levels = [
        (class_target("a", "LSR", 2), {0, 1}),
        (class_target("a", "LS", 2), set(range(8))),
        (with_level(class_target("a", "LS", 2), IsolationLevel.QUIET), {0, 1}),
        (with_level(class_target("a", "LSR", 2), IsolationLevel.SHARED), set(range(8))),
        (with_level(class_target("a", "LSR", 2), IsolationLevel.UNSET, preserve=True), set(range(8))),
    ]
    for target, expected in levels:
        host.controller.sync((target,), ())
        assert default_mask(host) == expected


def test_no_guest_is_isolated_without_the_controller(host):
    target = with_level(class_target("a", "LSR", 2), IsolationLevel.ALONE)
    assert isolation_level((host.controller,), target.guest.settings) is IsolationLevel.ALONE
    assert isolation_level((), target.guest.settings) is IsolationLevel.SHARED


def test_a_guest_is_refused_the_masks_that_stay_on_its_own_cpus(host):
    host.controller.sync((class_target("a", "LSR", 2), class_target("b", "LSR", 3)), ())
    assert host.controller.refused == {"b": (f"interrupt 31 (nvme0q3): {KERNEL_MANAGED}",)}
    assert host.controller.status.quiet == {2, 3}


def test_a_guest_without_dedicated_cpus_is_told(host):
    host.controller.sync((class_target("a", "LSR"),), ())
    [sentence] = host.controller.refused["a"]
    assert sentence == "isolation = quiet is for dedicated CPUs, and the guest holds none"
    assert host.kernel.writes == []


def test_a_guest_that_is_alone_has_a_partition_as_soon_as_its_pins_are_set(host):
    groups = host.kernel.cgroups
    for name, cpus in (("guests", ""), ("guests/guest-a", "0-7")):
        groups.add(name, cpus)
    target = with_level(class_target("a", "LS", 2), IsolationLevel.ALONE)
    guest = replace(target.guest, cgroup="/sys/fs/cgroup/guests/guest-a")
    target = replace(target, guest=guest)
    host.controller.sync((target,), ())
    assert (groups.state("guests/guest-a"), host.controller.refused) == ("member", {})
    host.kernel.change("sys/fs/cgroup/guests/guest-a/cpuset.cpus", {2})
    assert host.controller.apply(target)
    assert not host.controller.apply(target)
    assert (groups.state("guests/guest-a"), host.controller.status.alone) == ("isolated", {2})
    groups.permitted = False
    groups.settle()
    host.controller.sync((target,), ())
    assert host.controller.refused == {"a": ("alone: control group guest-a: Enable partition not permitted",)}
    [item] = host.controller.release((), frozenset(range(8)))
    item.give_back()
    assert groups.state("guests/guest-a") == "member"


def test_cpus_of_a_lost_guest_stay_quiet(host):
    host.controller.sync((class_target("a", "LSR", 2),), ())
    host.driver.lost_reasons = {"a": "its record cannot be read"}
    host.controller.sync((), ())
    assert default_mask(host) == {0, 1}
    host.driver.lost_reasons = {}
    host.controller.sync((), ())
    assert default_mask(host) == set(range(8))


def test_a_plan_names_changes_and_writes_nothing(host):
    before = host.kernel.texts()
    planned = [
        (each.where, each.subject, each.change)
        for each in host.controller.plan_changes((class_target("a", "LSR", 2),), ())
    ]
    assert planned == [
        ("isolation", "default mask of interrupts and 3 more", "0-7 -> 0-1"),
        ("isolation", "interrupt 30 (eth0)", "2-3 -> 3"),
    ]
    assert host.kernel.texts() == before
    assert not host.file.exists()


def test_a_release_gives_all_back_whatever_the_configuration_says(host):
    before = host.kernel.texts()
    host.controller.sync((class_target("a", "LSR", 2),), ())
    host.start()
    releasing = IsolationController(host.driver, IsolationSettings(), host.store, host.kernel)
    [item] = releasing.release((), frozenset(range(8)))
    assert (item.kind, item.name, item.detail) == (
        "isolation",
        "host",
        "5 masks of interrupts, of the kernel's work and of control groups",
    )
    item.give_back()
    assert host.kernel.texts() == before
    assert list(releasing.release((), frozenset(range(8)))) == []


def test_a_release_fails_if_the_kernel_does_not_take_an_original(host):
    host.controller.sync((class_target("a", "LSR", 2, 3),), ())
    host.kernel.managed.add(host.kernel.irq(30))
    [item] = host.controller.release((), frozenset(range(8)))
    with pytest.raises(DriverError, match=r"interrupt 30 \(eth0\)"):
        item.give_back()


def test_a_reload_takes_the_originals_of_the_controller_before_it(host):
    before = host.kernel.texts()
    host.controller.sync((class_target("a", "LSR", 2),), ())
    host.start()
    after = IsolationController(host.driver, SETTINGS, host.store, host.kernel)
    after.sync((), ())
    assert host.kernel.texts() == before


def test_the_agent_keeps_off_the_cpus_of_realtime_guests_before_these_have_a_priority(host, monkeypatch):
    seen = []
    monkeypatch.setattr(HostIsolator, "acts_here", True)
    own_threads = SimpleNamespace(keep_off=seen.append)
    settings = replace(SETTINGS, realtime=frozenset({"RT"}))
    made = IsolationController(host.driver, settings, host.store, host.kernel, own_threads=own_threads)
    quiet, realtime = class_target("a", "LSR", 2), class_target("b", "RT", 3)
    made.sync([quiet, class_target("c", "LS", 4)], ())
    made.apply(realtime)
    made.apply(realtime)
    made.sync([quiet, realtime], ())
    made.sync([], ())
    assert seen == [{2}, {2, 3}, {2, 3}, set()]
    # The masks of a captured tree are those of another machine.
    monkeypatch.undo()
    made.sync([quiet, realtime], ())
    assert len(seen) == 4


def test_metrics_count_quiet_cpus_and_all_that_does_not_keep_off(host):
    registry = CollectorRegistry()
    count_isolation(registry, SimpleNamespace(controllers=(host.controller,)))

    def values():
        names = ("quiet_cpus", "alone_cpus", "stuck_masks", "refusing_balancers")
        return [registry.get_sample_value(f"compute_agent_{name}") for name in names]

    assert values() == [0, 0, 0, 0]
    host.kernel.balancers = RefusingBalancers()
    host.controller = IsolationController(host.driver, SETTINGS, host.store, host.kernel)
    registry = CollectorRegistry()
    count_isolation(registry, SimpleNamespace(controllers=(host.controller,)))
    host.controller.sync((class_target("a", "LSR", 2, 3),), ())
    assert values() == [2, 0, 1, 1]
    [sentence] = host.controller.status.balancers
    assert sentence == "irqbalance (process 7) may put interrupts on quiet CPUs again: it refuses"


class RefusingBalancers:
    """An irqbalance that accepts no command."""

    def read_bans(self):
        return {}, {"irqbalance7.sock@1": "it refuses"}
