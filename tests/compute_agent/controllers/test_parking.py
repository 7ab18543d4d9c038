"""Tests of parking: idle dedicated cores go offline and return. No crash, full disk or lost state loses a
core.
"""

import errno
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.cpu_class import CpuClassController
from compute_agent.controllers.cpu_class_plan import (
    ClassBinding,
    CpuClasses,
    ParkingRules,
    choose_parked,
    idle_since,
)
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuClass, CpuSets, FormerValues, ParkMode
from compute_agent.model.guest import PlacementConstraints
from tests.compute_agent.builders import build_guest
from tests.compute_agent.controllers.builders import Store, class_target
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.power_trees import CPUS, epyc, xeon

HOST = machine(packages=2, l3=2, cores=2, threads=2)
"""CPUs 0-15: cores of two, four L3 caches of two cores, two nodes."""
DEDICATED = frozenset(range(2, 16))


@given(
    used=st.frozensets(st.sampled_from(sorted(HOST.online))),
    cpus=st.frozensets(st.sampled_from(sorted(HOST.online))),
    parked=st.frozensets(st.sampled_from(sorted(HOST.online))),
    fresh=st.frozensets(st.sampled_from(sorted(HOST.online))),
    mode=st.sampled_from(ParkMode),
)
def test_only_whole_idle_cores_are_parked_and_no_domain_goes_dark(used, cpus, parked, fresh, mode):
    rules = ParkingRules(mode, 60.0, HOST, cpus)
    since = {cpu: 100.0 if cpu in fresh else 0.0 for cpu in cpus - used}
    found = choose_parked(rules, used, parked, since, 100.0)
    assert found <= cpus - used
    for core in HOST.cores:
        assert not found & core.cpus or core.cpus <= found
        if core.cpus & found:
            assert core.cpus & parked or not core.cpus & fresh
    if mode is ParkMode.OFFLINE:
        assert 0 not in found
        assert all(cache.cpus - found for cache in HOST.l3_domains)
        assert all(node.cpus - found for node in HOST.numa_nodes)
        again = choose_parked(rules, used, found, since, 100.0)
        assert again == found
    else:
        idle = [core.cpus for core in HOST.cores if core.cpus <= cpus - used]
        assert found == frozenset().union(*(core for core in idle if core & parked or not core & fresh))


def test_a_cpu_is_idle_since_it_was_used_last():
    since = idle_since({}, DEDICATED, frozenset({2}), 10.0)
    since = idle_since(since, DEDICATED, frozenset({3}), 20.0)
    assert since[2] == 20.0
    since = idle_since(since, DEDICATED, frozenset({3}), 30.0)
    assert since == dict.fromkeys(DEDICATED - {2, 3}, 10.0) | {2: 20.0}


SETS = CpuSets(frozenset(range(2, 8)), frozenset({0, 1}), frozenset({0, 1}))
EIGHT = machine(cores=4, threads=2)
FAST = CpuClass("fast", "performance")


class ParkingHost:
    """The controller on a host with four cores. It is made again at each start of the agent."""

    def __init__(self, files, mode=ParkMode.OFFLINE, **idle):
        self.files, self.store, self.driver = files, Store(), FakeDriver(range(8))
        self.idle = CpuClass("idle", park=mode, park_after=60.0, **idle)
        self.now = 0.0
        self.before = self.snapshot()
        self.start()

    def start(self, parks=True):
        rules = ParkingRules(self.idle.park, 60.0, EIGHT, SETS.dedicated) if parks else None
        classes = {"fast": FAST} | ({"idle": self.idle} if parks else {})
        configured = CpuClasses(classes, {"LSR": ClassBinding(20, FAST)}, SETS, rules)
        self.drifts = []
        self.controller = CpuClassController(
            self.driver, configured, self.store, self.files, lambda: self.drifts.append(1), lambda: self.now
        )

    def snapshot(self):
        names = ("cpu*/online", "cpu*/cpuidle/*/disable", "cpufreq/policy*/scaling_governor", "online")
        paths = [path for name in names for path in (self.files.root / CPUS).glob(name)]
        return {str(path.relative_to(self.files.root)): path.read_text().strip() for path in paths}

    def sync(self, *targets, after=0.0):
        self.now += after
        self.controller.sync(targets, ())
        return self.controller.status

    @property
    def online(self):
        return self.files.read(f"{CPUS}/online")


@pytest.fixture
def host(tmp_path):
    return ParkingHost(xeon(tmp_path))


def test_idle_cores_go_offline_after_a_while_and_come_online_for_a_guest(host):
    assert host.sync().parked == frozenset()
    assert host.sync(after=59.0).parked == frozenset()
    assert host.sync(after=1.0).parked == {2, 3, 4, 5, 6, 7}
    assert host.online == "0-1"
    status = host.sync(class_target("a", "LSR", 4))
    assert (host.online, status.parked, status.refusals) == ("0-1,4-5", {2, 3, 6, 7}, ())
    assert host.files.read(f"{CPUS}/cpufreq/policy4/scaling_governor") == "performance"
    assert host.sync(after=60.0).parked == {2, 3, 6, 7}
    assert host.sync(after=60.0).parked == {2, 3, 4, 5, 6, 7}
    assert host.drifts == []


def test_a_core_with_a_used_sibling_is_never_parked(host):
    host.sync(class_target("a", "LS", 3))
    host.sync(class_target("a", "LS", 3), after=1000.0)
    assert host.online == "0-3"


@pytest.mark.parametrize(
    ("target", "online"),
    [
        (GuestTarget(build_guest("a"), None, frozenset(range(8))), "0-1"),
        (
            GuestTarget(
                replace(
                    build_guest("a"), pid=0, constraints=PlacementConstraints(pins=((0, frozenset({6})),))
                ),
                None,
                frozenset(range(8)),
            ),
            "0-1,6-7",
        ),
    ],
    ids=["anywhere", "about to start on CPU 6"],
)
def test_guests_without_a_place_keep_the_cpus_that_they_are_pinned_to(host, target, online, monkeypatch):
    monkeypatch.setattr(host.driver, "observed_cpus", lambda guest: frozenset(range(8)))
    host.sync(after=60.0)
    host.sync(after=60.0)
    host.sync(target)
    assert host.online == online


def test_a_guest_that_others_pinned_keeps_its_cpus(host, monkeypatch):
    monkeypatch.setattr(host.driver, "observed_cpus", lambda guest: frozenset({5}))
    stray = GuestTarget(build_guest("a"), None, frozenset(range(8)))
    host.sync(stray)
    host.sync(stray, after=60.0)
    assert host.online == "0-1,4-5"


def test_while_a_guest_is_lost_nothing_more_is_parked_and_guests_still_wake_cores(host):
    host.sync(class_target("a", "LS", 2))
    host.sync(class_target("a", "LS", 2), after=60.0)
    host.driver.lost_guests = lambda: {"a": "not known"}
    host.start()
    host.sync(after=60.0)
    host.sync(after=60.0)
    assert host.online == "0-3"
    host.sync(class_target("b", "LS", 6))
    assert host.online == "0-3,6-7"


def test_release_brings_all_cpus_online(host):
    host.sync()
    host.sync(after=60.0)
    (item,) = host.controller.release((), frozenset(range(8)))
    assert "CPUs 2-7 offline" in item.detail
    item.give_back()
    assert host.snapshot() == host.before
    assert host.store.former_values.values == {}


def test_a_configuration_without_parking_brings_all_cpus_online(host):
    host.sync()
    host.sync(after=60.0)
    host.start(parks=False)
    host.sync()
    assert host.snapshot() == host.before


def test_cpus_are_woken_though_the_state_was_lost(host):
    host.sync()
    host.sync(after=60.0)
    host.store.former_values = FormerValues()
    host.start()
    assert host.sync().parked == {2, 3, 4, 5, 6, 7}
    host.sync(class_target("a", "LS", 2))
    assert host.online == "0-3"
    host.start(parks=False)
    host.sync()
    assert host.online == "0-7"


def test_a_full_disk_leaves_cpus_online(host):
    host.sync()
    host.store.broken = OSError(errno.ENOSPC, "disk full")
    with pytest.raises(OSError, match="disk full"):
        host.sync(after=60.0)
    assert host.online == "0-7"


def test_a_cpu_that_does_not_go_offline_is_told_and_tried_again(host):
    host.sync()
    host.files.broken[f"{CPUS}/cpu5/online"] = errno.EBUSY
    assert host.sync(after=60.0).refusals == (
        "CPU 5: online = 0: the kernel does not accept it: Device or resource busy",
    )
    host.files.broken.clear()
    assert host.sync().refusals == ()
    assert host.online == "0-1"


def test_a_cpu_that_does_not_come_online_is_told_and_tried_again(host):
    host.sync()
    host.sync(after=60.0)
    host.files.broken[f"{CPUS}/cpu5/online"] = errno.EIO
    (refusal,) = host.sync(class_target("a", "LS", 5)).refusals
    assert "cpu5/online = 1: the kernel does not accept it" in refusal
    host.files.broken.clear()
    assert host.sync(class_target("a", "LS", 5)).refusals == ()
    assert host.online == "0-1,4-5"


def test_planned_parking_is_listed_without_a_write(host):
    host.sync()
    host.now += 60.0
    planned = [
        (row.subject, row.change) for row in host.controller.plan_changes([class_target("a", "LS", 2)], ())
    ]
    assert planned == [("CPUs 4-7", "online 1 -> 0")]
    assert host.snapshot() == host.before


def test_parked_cores_have_the_governor_of_the_class(tmp_path):
    host = ParkingHost(epyc(tmp_path, shared=2), ParkMode.GOVERNOR)
    governor = f"{CPUS}/cpufreq/policy4/scaling_governor"
    host.sync()
    assert host.files.read(governor) == "schedutil"
    assert host.sync(after=60.0).parked == {2, 3, 4, 5, 6, 7}
    assert (host.files.read(governor), host.online) == ("powersave", "0-7")
    host.sync(class_target("a", "LS", 5))
    assert host.files.read(governor) == "schedutil"
    assert host.snapshot()[f"{CPUS}/cpufreq/policy6/scaling_governor"] == "powersave"


def test_parked_cores_have_the_deepest_idle_state_alone(tmp_path):
    host = ParkingHost(xeon(tmp_path), ParkMode.C_STATE, disabled_c_states=("C6",))

    def disabled(cpu):
        return "".join(host.files.read(f"{CPUS}/cpu{cpu}/cpuidle/state{state}/disable") for state in range(4))

    host.sync()
    assert disabled(4) == "0001"
    host.sync(after=60.0)
    assert disabled(4) == "1101"
    host.sync(class_target("a", "LS", 5))
    assert (disabled(4), disabled(5), disabled(6)) == ("0001", "0000", "1101")


@pytest.mark.parametrize("mode", ParkMode)
def test_histories_with_crashes_end_with_all_cpus_as_they_were(tmp_path, mode):
    """After a crash at any write no CPU is lost, and each guest has its CPUs."""
    chance = random.Random(7)
    for number in range(6):
        root = tmp_path / str(number)
        root.mkdir()
        host = ParkingHost(xeon(root), mode)
        write, left = host.files.write, [0]

        def crash(path, text, write=write, left=left):
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            write(path, text)

        host.files.write = crash
        for _ in range(30):
            cpus = list(range(2, 8))
            chance.shuffle(cpus)
            guests = [class_target(name, "LS", cpus.pop()) for name in "ab" if chance.random() < 0.5]
            held = frozenset().union(*(one.assignment.held_cpus for one in guests))
            left[0] = chance.choice([0, 0, 1, 2, 5])
            try:
                host.sync(*guests, after=chance.choice([0.0, 40.0, 90.0]))
            except KeyboardInterrupt:
                left[0] = 0
                host.start()
                host.sync(*guests)
            left[0] = 0
            assert held <= cpuset.parse(host.online)
            host.sync(*guests)
            assert host.controller.status.parked.isdisjoint(held)
        host.start(parks=False)
        host.sync()
        assert host.snapshot() == host.before
