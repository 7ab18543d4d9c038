"""Tests of guests in resctrl groups, on a fake tree that refuses the same writes as the kernel."""

import errno
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.classes.guest_classes import DEFAULT_CLASSES
from compute_agent.controllers.resctrl import at_its_caches
from compute_agent.loops.monitoring import MonitorTargets
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import ThrottleControl
from compute_agent.monitoring.monitor import CacheMonitor
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.groups import DEFAULT_GROUP
from compute_agent.resctrl.schemata import WayMask
from compute_agent.resctrl.share_spec import ShareSpec, WayRange
from tests.compute_agent.controllers.resctrl_host import CLASS_GROUPS, ONLINE, GuestThreads, ResctrlHost
from tests.compute_agent.resctrl import fake


@pytest.fixture(scope="module")
def tids():
    threads = GuestThreads(24)
    yield threads.ids
    threads.close()


@pytest.fixture
def make_rig(tmp_path, tids):
    def make_rig(machine=fake.INTEL, **options):
        return ResctrlHost(fake.FakeResctrl.of(machine, tmp_path / "resctrl"), machine, tids, **options)

    return make_rig


@pytest.fixture
def rig(make_rig):
    return make_rig()


def test_a_guest_that_another_program_pins_gets_its_ways_where_it_runs(rig):
    cpus = {0: frozenset(range(4)), 1: frozenset(range(4, 8))}
    rig.zones = tuple(
        replace(zone, cpus=cpus[min(zone.l3_ids)] if zone.parent else ONLINE) for zone in rig.zones
    )
    rig.guest("a", {"l3-1": {"LLC": 4, "MBA": 30}})
    pinned = CpuAssignment((frozenset({2}),), frozenset({7}), (2,), given=True)
    rig.targets["a"] = replace(rig.targets["a"], assignment=pinned)
    rig.work()
    assert len(rig.mask(rig.group("a"), 0)) == 4
    assert rig.bandwidth(rig.group("a"), 0) == 30
    assert not rig.mask(rig.group("a"), 0) & rig.mask("", 0)
    assert rig.mask(rig.group("a"), 1) & rig.mask("", 1)
    rig.targets["a"] = replace(rig.targets["a"], assignment=replace(pinned, vcpu_cpus=(frozenset({5}),)))
    rig.work()
    assert len(rig.mask(rig.group("a"), 1)) == 4
    assert not rig.mask(rig.group("a"), 1) & rig.mask("", 1)


def test_an_allocation_becomes_a_group_with_exclusive_ways_and_bandwidth_on_its_domain(rig):
    rig.guest("a", {"l3-1": {"LLC": 4, "MBA": 30}, "root": {"PCPU": 2}})
    rig.guest("b", {})
    assert rig.work()["a"]
    assert rig.group("a") == "compute-agent.guest.a"
    mask = rig.mask(rig.group("a"), 1)
    assert (len(mask), mask.is_contiguous) == (4, True)
    assert (rig.bandwidth(rig.group("a"), 1), rig.bandwidth(rig.group("a"), 0)) == (30, 100)
    for other in ("", *CLASS_GROUPS):
        assert not rig.mask(other, 1) & mask
        assert len(rig.mask(other, 0)) == (5 if other.endswith("BE") else 16)
    assert rig.group("b") == DEFAULT_GROUP
    assert rig.inside("a")
    assert rig.inside("b")
    assert rig.controller.refused == {}


def test_names_of_a_stock_server_count_as_well(rig):
    rig.guest("a", {"l3-0": {"CUSTOM_LLC": 3, "CUSTOM_MBA": 50}})
    rig.work()
    assert len(rig.mask(rig.group("a"), 0)) == 3
    assert rig.bandwidth(rig.group("a"), 0) == 50


def test_the_group_goes_with_the_guest_and_its_ways_are_everybodys_again(rig):
    rig.guest("a", {"l3-0": {"LLC": 4}})
    rig.work()
    rig.files.make_folder("compute-agent.guest.a/mon_groups/compute-agent.mon.a")
    rig.end("a")
    rig.sync()
    assert rig.groups() == CLASS_GROUPS
    assert len(rig.mask("", 0)) == 16


def test_changed_caches_of_classes_are_events_of_the_host(rig):
    rig.work()
    rig.events.clear()
    rig.guest("a", {"l3-1": {"LLC": 4}})
    rig.work()
    assert {(event.kind, event.outcome, event.guest) for event in rig.events} == {("cache", "done", "")}
    assert {event.text for event in rig.events} == {
        "Guests of class LS, LSR share these parts of caches and bandwidth: L3:1=fff0",
        "Guests of class BE share these parts of caches and bandwidth: L3:1=f0",
    }
    rig.events.clear()
    rig.work()
    assert rig.events == []


def test_a_sync_without_changes_writes_nothing_and_reads_no_schemata_twice(rig, monkeypatch):
    rig.guest("a", {"l3-0": {"LLC": 4}})
    rig.guest("b", {})
    rig.work()
    monkeypatch.setattr(rig.files, "write_file", None)
    assert rig.drift() == {"a": None, "b": None}
    assert rig.work() == {"a": False, "b": False}


def test_drift_of_threads_is_seen_and_repaired(rig):
    rig.guest("a", {"l3-0": {"LLC": 4}})
    rig.work()
    rig.files.write_file("tasks", f"{rig.driver.threads['a'][0]}\n")
    stray = rig.driver.threads["a"][0]
    assert rig.drift() == {"a": f"1 threads outside of resctrl group compute-agent.guest.a, such as {stray}"}
    assert rig.controller.apply(rig.targets["a"]) is True
    assert rig.drift() == {"a": None}


def test_a_thread_that_ended_meanwhile_is_no_drift(rig, monkeypatch):
    rig.guest("a", {}, threads=3)
    rig.work()
    rig.files.write_file("tasks", f"{rig.driver.threads['a'][0]}\n")
    told = iter([rig.driver.threads["a"], rig.driver.threads["a"][1:]])
    monkeypatch.setattr(rig.driver, "thread_ids", lambda guest: frozenset(next(told)))
    assert rig.drift() == {"a": None}


def test_a_changed_schemata_is_repaired_and_counts_as_drift_of_those_in_the_group(rig):
    rig.guest("a", {"l3-0": {"LLC": 4}})
    rig.guest("b", {})
    rig.work()
    before = rig.mask(rig.group("a"), 0)
    rig.files.write_file("compute-agent.guest.a/schemata", "L3:0=ffff\n")
    assert rig.drift() == {
        "a": "its resctrl group compute-agent.guest.a was changed by another program",
        "b": None,
    }
    assert rig.mask(rig.group("a"), 0) == before
    assert rig.drift() == {"a": None, "b": None}


def test_a_group_removed_by_another_program_is_made_again(rig):
    rig.guest("a", {"l3-0": {"LLC": 4}})
    rig.work()
    rig.files.remove_folder("compute-agent.guest.a")
    assert "was changed by another program" in rig.drift()["a"]
    rig.controller.apply(rig.targets["a"])
    assert len(rig.mask(rig.group("a"), 0)) == 4
    assert rig.inside("a")


def test_a_restart_keeps_masks_and_removes_orphans_of_ours_only(rig):
    for uuid in ("a", "b", "c"):
        rig.guest(uuid, {"l3-0": {"LLC": 3, "MBA": 40}})
    rig.work()
    rig.files.make_folder("somebody")
    rig.end("b")
    before = {uuid: rig.mask(rig.group(uuid), 0) for uuid in ("a", "c")}
    rig.restart()
    # What they hold is not known yet.
    rig.guest("a", None)
    rig.guest("c", None)
    assert rig.work() == {"a": False, "c": False}
    assert {uuid: rig.mask(rig.group(uuid), 0) for uuid in ("a", "c")} == before
    assert [rig.bandwidth(rig.group(uuid), 0) for uuid in ("a", "c")] == [40, 40]
    assert rig.groups() == CLASS_GROUPS | {"somebody", "compute-agent.guest.a", "compute-agent.guest.c"}
    rig.guest("a", {"l3-0": {"LLC": 3, "MBA": 40}})
    rig.guest("c", {})
    rig.work()
    assert rig.mask(rig.group("a"), 0) == before["a"]
    assert rig.group("c") == DEFAULT_GROUP
    assert rig.inside("c")


def test_threads_follow_when_another_guest_leaves_room(make_rig):
    rig = make_rig(fake.FakeMachine(closids=3, mb_closids=3))
    rig.guest("a", {"l3-0": {"LLC": 4}})
    rig.guest("b", {"l3-0": {"LLC": 4}})
    rig.work()
    assert rig.controller.refused == {"b": ("all 3 resctrl groups are taken",)}
    assert (rig.group("b"), rig.inside("b")) == (DEFAULT_GROUP, True)
    rig.end("a")
    rig.sync()
    assert rig.controller.refused == {}
    assert len(rig.mask(rig.group("b"), 0)) == 4
    assert rig.inside("b")


def test_a_request_for_too_many_ways_is_refused_and_the_other_rules_apply(rig):
    rig.guest("a", {"l3-0": {"LLC": 10}})
    rig.work()
    rig.guest("b", {"l3-0": {"LLC": 10, "MBA": 30}})
    rig.work()
    assert rig.controller.refused == {"b": ("L3 cache 0: 10 exclusive ways do not fit: 4 of 14 are left",)}
    assert rig.bandwidth(rig.group("b"), 0) == 30
    assert not rig.mask(rig.group("b"), 0) & rig.mask(rig.group("a"), 0)


def test_when_the_kernel_has_no_room_all_others_get_theirs_and_it_is_tried_again(rig, monkeypatch):
    make = rig.files.make_folder

    def full(path):
        if path.endswith("guest.b"):
            raise ResctrlError(errno.EBUSY, path)
        make(path)

    monkeypatch.setattr(rig.files, "make_folder", full)
    rig.guest("a", {"l3-0": {"LLC": 4}})
    rig.work()
    rig.guest("b", {"l3-0": {"LLC": 4}})
    rig.work()
    assert rig.controller.refused == {"b": ("all 3 resctrl groups are taken",)}
    assert len(rig.mask(rig.group("a"), 0)) == 4
    monkeypatch.setattr(rig.files, "make_folder", make)
    rig.sync()
    assert len(rig.mask(rig.group("b"), 0)) == 4
    assert rig.inside("b")
    assert rig.controller.refused == {}


@pytest.mark.parametrize("group", ["", "compute-agent.class.BE", "compute-agent.guest.a"])
def test_a_refused_write_of_one_group_holds_up_that_group_alone(rig, monkeypatch, group):
    rig.guest("a", {"l3-0": {"LLC": 4}})
    rig.guest("c", {}, qos_class="BE")
    rig.work()
    write = rig.files.write_file

    def refuse(path, text):
        if path == (f"{group}/schemata" if group else "schemata"):
            raise ResctrlError(errno.EINVAL, path, "no")
        write(path, text)

    monkeypatch.setattr(rig.files, "write_file", refuse)
    rig.guest("a", {"l3-0": {"LLC": 2}})
    rig.guest("b", {"l3-1": {"LLC": 12}})
    rig.guest("d", {"l3-1": {"MBA": 40}})
    for _ in range(2):
        with pytest.raises(DriverError, match="no"):
            rig.sync()
        for target in rig.targets.values():
            rig.controller.apply(target)
        assert rig.inside("b")
    own = rig.mask("compute-agent.guest.a", 0)
    assert len(own) == (4 if group.endswith("a") else 2)
    assert not own & rig.mask("", 0)
    if group.endswith("a"):
        assert "no" in rig.controller.refused["a"][0]
    assert rig.bandwidth("compute-agent.guest.d", 1) == 40
    # The ways that b is to have can still be filled by the group that was held up.
    assert f"held by resctrl group {group or '(default)'}" in rig.controller.refused["b"][0]
    monkeypatch.setattr(rig.files, "write_file", write)
    rig.work()
    assert rig.controller.refused == {}
    assert (len(rig.mask("compute-agent.guest.a", 0)), len(rig.mask("compute-agent.guest.b", 1))) == (2, 12)
    assert rig.mask("", 1) == WayMask(0xFFFF) - rig.mask("compute-agent.guest.b", 1)


def test_a_group_that_the_kernel_does_not_make_leaves_its_guest_with_the_next_rule(rig, monkeypatch):
    make = rig.files.make_folder

    def refuse(path):
        if path.endswith("guest.a"):
            raise ResctrlError(errno.EPERM, path, "never")
        make(path)

    monkeypatch.setattr(rig.files, "make_folder", refuse)
    rig.guest("a", {"l3-0": {"LLC": 4}})
    rig.guest("b", {"l3-1": {"LLC": 4}})
    rig.work()
    assert rig.group("a") == DEFAULT_GROUP
    assert rig.inside("a")
    assert "its resctrl group cannot be made" in rig.controller.refused["a"][0]
    assert len(rig.mask(rig.group("b"), 1)) == 4
    assert len(rig.mask("", 0)) == 16  # no way is kept for a guest without a group
    monkeypatch.setattr(rig.files, "make_folder", make)
    rig.work()
    assert len(rig.mask("compute-agent.guest.a", 0)) == 4
    assert rig.controller.refused == {}


def test_guests_of_a_higher_priority_get_the_groups_that_are_left(make_rig):
    rig = make_rig(fake.FakeMachine(closids=3, mb_closids=3))
    rig.guest("a", {"l3-0": {"LLC": 4}})
    rig.guest("b", {"l3-0": {"LLC": 4}}, priority=7)
    rig.work()
    assert list(rig.controller.refused) == ["a"]


def test_four_closids_give_two_guests_ways_of_their_own_and_all_keep_their_counters(make_rig):
    rig = make_rig(fake.FakeMachine(closids=4, mb_closids=4))
    rig.guest("a", {"l3-0": {"LLC": 4}})
    rig.guest("b", {"l3-0": {"LLC": 4}})
    rig.guest("plain", {})
    rig.guest("served", {}, qos_class="LSR")
    rig.guest("batch", {}, qos_class="BE")
    rig.work()
    assert rig.controller.refused == {}
    assert rig.groups() == {*CLASS_GROUPS, "compute-agent.guest.a", "compute-agent.guest.b"}
    one, two = (rig.mask(rig.group(uuid), 0) for uuid in "ab")
    others = [rig.mask(group, 0) for group in ("", *CLASS_GROUPS)]
    assert (len(one), len(two), bool(one & two)) == (4, 4, False)
    assert not any(mask & (one | two) for mask in others)
    guests = [target.guest for target in rig.targets.values()]
    targets = MonitorTargets(rig.driver).build_targets([rig.controller], guests)
    reading = CacheMonitor(rig.files, rig.platform, rig.options.prefix).measure_targets(targets, 0.0)
    assert {use.target.key for use in reading.targets if use.caches} == {target.key for target in targets}
    rig.guest("c", {"l3-0": {"LLC": 2}})
    rig.work()
    assert list(rig.controller.refused) == ["c"]
    assert all(rig.drift()[uuid] is None for uuid in rig.targets)


def test_a_guest_that_holds_a_group_comes_before_those_that_do_not(make_rig):
    rig = make_rig(fake.FakeMachine(closids=3, mb_closids=3))
    rig.guest("a", {"l3-0": {"LLC": 4}}, priority=7)
    rig.work()
    rig.guest("b", {"root": {"CUSTOM_RESCTRL_GROUP": 1}}, resctrl='{"MB": {"schemata": {"percent": 20}}}')
    rig.work()
    assert list(rig.controller.refused) == ["a"]
    assert rig.bandwidth(rig.group("b"), 0) == 20
    assert rig.inside("a")
    assert rig.inside("b")


def test_an_annotation_counts_where_there_is_no_allocation_and_its_change_takes_effect(rig):
    rig.guest("a", {}, resctrl='{"MB": {"schemata": {"percent": 20}}}')
    rig.work()
    first = rig.group("a")
    assert (rig.bandwidth(first, 0), rig.inside("a")) == (20, True)
    rig.guest("a", {}, resctrl='{"MB": {"schemata": {"percent": 60}}}')
    rig.work()
    assert (rig.bandwidth(rig.group("a"), 0), rig.inside("a")) == (60, True)
    assert first not in rig.groups()


def test_a_bad_annotation_is_refused_with_the_reason_and_the_guest_stays_in_its_class(rig):
    rig.guest("a", {}, qos_class="BE", resctrl='{"L9": {}}')
    rig.work()
    assert rig.group("a") == "compute-agent.class.BE"
    assert rig.controller.refused == {
        "a": ("the annotation has an unknown key 'L9': it may have LLC, MB, L2",)
    }


def test_ways_held_on_a_provider_that_is_no_cache_are_refused(rig):
    rig.guest("a", {"root": {"LLC": 2}})
    rig.work()
    assert rig.controller.refused == {
        "a": ("2 LLC of provider root, which is not the provider of an L3 cache",)
    }


def test_limits_hold_guests_down_equal_ones_in_one_group(rig):
    limits = {ThrottleControl("memory_bandwidth", "0"): 40.0, ThrottleControl("cache_ways", "1"): 2.0}
    for uuid in ("a", "b", "c"):
        rig.guest(uuid, {}, qos_class="BE", limits=limits if uuid != "c" else {})
    rig.work()
    group = rig.group("a")
    assert group == rig.group("b") != rig.group("c") == "compute-agent.class.BE"
    assert (rig.bandwidth(group, 0), rig.bandwidth(group, 1)) == (40, 100)
    assert (len(rig.mask(group, 0)), len(rig.mask(group, 1))) == (5, 2)
    rig.guest("a", {}, qos_class="BE")
    rig.guest("b", {}, qos_class="BE")
    rig.work()
    assert rig.group("a") == "compute-agent.class.BE"
    assert rig.inside("a")
    assert group not in rig.groups()


def test_limits_cut_what_was_allocated(rig):
    limits = {ThrottleControl("memory_bandwidth", "0"): 20.0, ThrottleControl("cache_ways", "0"): 2.0}
    rig.guest("a", {"l3-0": {"LLC": 4, "MBA": 50}}, limits=limits)
    rig.work()
    assert (len(rig.mask(rig.group("a"), 0)), rig.bandwidth(rig.group("a"), 0)) == (2, 20)
    rig.guest("a", {"l3-0": {"LLC": 4, "MBA": 50}})
    rig.work()
    assert (len(rig.mask(rig.group("a"), 0)), rig.bandwidth(rig.group("a"), 0)) == (4, 50)


def test_a_limit_for_which_there_is_no_group_is_an_error(make_rig):
    rig = make_rig(fake.FakeMachine(closids=2, mb_closids=2))
    rig.guest("a", {}, limits={ThrottleControl("memory_bandwidth", "0"): 40.0})
    rig.sync()
    with pytest.raises(DriverError, match="guest a cannot be limited: all 2 resctrl groups are taken"):
        rig.controller.apply(rig.targets["a"])
    assert rig.inside("a")


def test_a_limit_above_what_a_guest_has_is_in_effect_whatever_else_it_lacks(rig):
    limits = {ThrottleControl("memory_bandwidth", "0"): 100.0}
    rig.guest("a", {}, resctrl="nonsense", limits=limits)
    rig.work()
    assert rig.inside("a")
    assert rig.group("a") == DEFAULT_GROUP


def test_a_class_that_names_a_cache_that_is_not_there_is_told_and_used_elsewhere(make_rig, caplog):
    wish = ShareSpec(WayRange(0, 50), {7: WayRange(0, 10)})
    rig = make_rig(classes={"LS": wish})
    rig.sync()
    rig.sync()
    assert caplog.text.count("compute-agent.class.LS: LLC has no cache id 7: the ids are 0, 1") == 1
    assert len(rig.mask("compute-agent.class.LS", 0)) == 8


def test_a_mount_that_makes_no_sense_is_an_error_of_the_driver(rig):
    (rig.files.root / "schemata").write_text("L3:0=xyz\n")
    with pytest.raises(DriverError, match="xyz"):
        rig.sync()


def test_a_mount_that_cannot_be_read_leaves_guests_alone_until_it_can(rig, monkeypatch):
    def broken(path):
        raise ResctrlError(errno.EIO, path)

    rig.guest("a", {"l3-0": {"LLC": 4}})
    with monkeypatch.context() as patch:
        patch.setattr(rig.files, "read_file", broken)
        with pytest.raises(ResctrlError):
            rig.sync()
        assert rig.controller.apply(rig.targets["a"]) is False
        assert rig.controller.describe_drift(rig.targets["a"]) is None
    rig.sync()
    assert rig.inside("a")


def test_classes_of_a_new_controller_change_the_groups(rig):
    rig.guest("a", {}, qos_class="BE")
    rig.work()
    rig.restart({**DEFAULT_CLASSES, "BE": DEFAULT_CLASSES["LS"]})
    rig.work()
    assert (rig.groups(), rig.group("a"), rig.inside("a")) == (set(), DEFAULT_GROUP, True)
    rig.restart({"BE": DEFAULT_CLASSES["BE"]})
    rig.work()
    assert rig.groups() == {"compute-agent.class.BE"}
    assert rig.inside("a")


def test_a_group_of_others_that_can_fill_exclusive_ways_is_told_once(rig, caplog):
    rig.files.make_folder("somebody")
    rig.guest("a", {"l3-0": {"LLC": 4}})
    rig.work()
    rig.guest("b", {})
    rig.work()
    text = "resctrl group somebody of another program can fill ways of L3 cache 0 that only"
    assert caplog.text.count(text) == 1
    assert rig.mask("somebody", 0) == WayMask.from_range(0, 16)


def test_a_host_of_amd_counts_in_eighths_of_gigabytes(make_rig):
    rig = make_rig(fake.AMD)
    rig.guest("a", {"l3-0": {"MBA": 30}})
    rig.work()
    assert rig.bandwidth(rig.group("a"), 0) == 615
    rig.restart()
    rig.guest("a", None)
    rig.work()
    assert rig.bandwidth(rig.group("a"), 0) == 615


@pytest.mark.parametrize(
    ("amounts", "shares", "expected"),
    [
        ({0: 4}, {0: 2}, {0: 4}),
        ({0: 4}, {1: 2}, {1: 4}),
        ({0: 4}, {0: 1, 1: 3}, {0: 4}),
        ({0: 4, 2: 2}, {0: 3, 1: 1}, {0: 4, 1: 2}),
        ({0: 4, 2: 2}, {0: 3}, {0: 6}),
        ({2: 2}, {0: 1, 1: 3}, {1: 2}),
        ({2: 2}, {}, {2: 2}),
        ({}, {0: 1}, {}),
    ],
)
def test_amounts_of_other_caches_go_to_a_cache_that_the_guest_runs_on(amounts, shares, expected):
    assert at_its_caches(amounts, shares) == expected


AMOUNTS = st.dictionaries(st.integers(0, 4), st.integers(1, 9))


@given(AMOUNTS, AMOUNTS)
def test_amounts_stay_the_same_and_lie_on_caches_that_the_guest_runs_on(amounts, shares):
    found = at_its_caches(amounts, shares)
    assert sum(found.values()) == sum(amounts.values())
    assert not shares or found.keys() <= shares.keys()
    assert all(found[cache] >= amounts[cache] for cache in amounts.keys() & shares.keys())
