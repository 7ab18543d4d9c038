"""Tests of monitoring groups, and of readings from their counters."""

import errno
import logging
import subprocess
import sys
from dataclasses import replace

import pytest

from compute_agent.model.messages import GuestGoneError
from compute_agent.monitoring.monitor import SYNC_SECONDS, CacheMonitor
from compute_agent.monitoring.readings import CacheUse, MonitorTarget
from compute_agent.resctrl import groups
from compute_agent.resctrl.filesystem import ResctrlError
from tests.compute_agent.monitoring.counting import mount
from tests.compute_agent.resctrl import fake

LS, BE = (MonitorTarget("", name, f"a.class.{name}") for name in ("LS", "BE"))


def monitored_guest(name, qos_class="LS", group=None, priority=0, threads=()):
    return MonitorTarget(name, qos_class, group or f"a.class.{qos_class}", priority, name, lambda: threads)


@pytest.fixture
def tree(tmp_path):
    """A fake resctrl tree, made by mount(), with groups for the QoS classes LS and BE."""

    def tree(machine=fake.INTEL, counters=None):
        made = mount(tmp_path / "tree", machine, counters)
        for one in (LS, BE):
            made.files.make_folder(one.group)
        return made

    return tree


def uses(reading):
    return {use.target.guest or use.target.qos_class: use for use in reading.targets}


@pytest.fixture
def process():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield child
    child.kill()
    child.wait()


def test_bandwidth_is_what_was_counted_between_two_rounds(tree):
    made = tree()
    monitor = CacheMonitor(made.files, made.platform, "a.")
    targets = [LS, BE, monitored_guest("one"), monitored_guest("two")]
    first = uses(monitor.measure_targets(targets, 100.0))
    assert first["one"].caches[1] == CacheUse(occupancy=0)
    made.files.count("a.class.LS/mon_groups/a.mon.one", 1, total=8000, local=6000, occupancy=4096)
    made.files.count("a.class.LS", 0, total=2000, occupancy=1024)
    reading = monitor.measure_targets(targets, 104.0)
    second = uses(reading)
    assert second["one"].caches == {0: CacheUse(0, 0.0, 0.0), 1: CacheUse(4096, 1500.0, 2000.0)}
    assert second["one"].moved_bytes == {
        (0, "total"): 0,
        (0, "local"): 0,
        (1, "total"): 8000,
        (1, "local"): 6000,
    }
    assert second["two"].caches[1] == CacheUse(0, 0.0, 0.0)
    # the class has what its guests have, and the host has what all classes have
    assert second["LS"].caches == {0: CacheUse(1024, 0.0, 500.0), 1: CacheUse(4096, 1500.0, 2000.0)}
    assert second["BE"].caches[1].total == 0.0
    assert reading.host_caches == {0: CacheUse(1024, 0.0, 500.0), 1: CacheUse(4096, 1500.0, 2000.0)}
    moved = reading.host_moved_bytes
    assert (reading.begun, moved[0, "total"], moved[1, "local"]) == (100.0, 2000, 6000)
    assert monitor.newest is reading


def test_bytes_of_the_host_stay_when_a_control_group_ends(tree):
    made = tree()
    monitor = CacheMonitor(made.files, made.platform, "a.")
    monitor.measure_targets([LS, BE], 100.0)
    made.files.count("a.class.BE", 0, total=700)
    monitor.measure_targets([LS, BE], 101.0)
    groups.remove_group(made.files, "a.class.BE")
    made.files.count("a.class.LS", 0, total=50)
    monitor.measure_targets([LS], 102.0)
    made.files.count("", 0, total=3)
    assert monitor.measure_targets([LS], 103.0).host_moved_bytes[0, "total"] == 753


def test_classes_that_share_a_group_have_what_their_guests_have_together(tree):
    made = tree()
    monitor = CacheMonitor(made.files, made.platform, "a.")
    classes = [MonitorTarget("", "LSR", ""), MonitorTarget("", "LS", ""), BE]
    one, two, other = (
        MonitorTarget(name, qos_class, "") for name, qos_class in (("1", "LS"), ("2", "LS"), ("3", "LSR"))
    )
    targets = [*classes, one, two, other]
    monitor.measure_targets(targets, 100.0)
    for name, total in (("1", 4000), ("2", 2000), ("3", 1000)):
        made.files.count(f"mon_groups/a.mon.{name}", 1, total=total, local=total, occupancy=total)
    found = uses(monitor.measure_targets(targets, 102.0))
    assert found["LS"].caches[1] == CacheUse(6000, 3000.0, 3000.0)
    assert found["LSR"].caches[1] == CacheUse(1000, 500.0, 500.0)
    assert (found["LS"].moved_bytes[1, "total"], found["LSR"].moved_bytes[1, "total"]) == (6000, 1000)
    targets.remove(one)  # the guest ended, and its traffic still counts
    found = uses(monitor.measure_targets(targets, 104.0))
    assert (found["LS"].caches[1].total, found["LS"].moved_bytes[1, "total"]) == (0.0, 6000)
    made.files.count("mon_groups/a.mon.2", 1, total=500)
    assert uses(monitor.measure_targets(targets, 106.0))["LS"].moved_bytes[1, "total"] == 6500


def test_the_default_group_and_foreign_groups_count_for_the_host(tree):
    made = tree()
    made.files.make_folder("theirs")
    monitor = CacheMonitor(made.files, made.platform, "a.")
    monitor.measure_targets([], 0.0)
    made.files.count("", 0, total=100, occupancy=10)
    made.files.count("theirs", 0, total=300, occupancy=30)
    made.files.count("a.class.BE", 0, total=500, occupancy=50)
    assert monitor.measure_targets([], 1.0).host_caches[0] == CacheUse(90, 0.0, 900.0)


def test_a_guest_alone_in_its_control_group_needs_no_monitoring_group(tree):
    made = tree()
    made.files.make_folder("a.guest.one")
    made.files.make_folder("a.wish.x")
    monitor = CacheMonitor(made.files, made.platform, "a.")
    targets = [
        monitored_guest("one", group="a.guest.one"),
        monitored_guest("two", group="a.wish.x"),
        monitored_guest("three", group="a.wish.x"),
    ]
    monitor.measure_targets(targets, 0.0)
    assert made.files.monitoring_groups() == [
        "a.wish.x/mon_groups/a.mon.three",
        "a.wish.x/mon_groups/a.mon.two",
    ]
    made.files.count("a.guest.one", 0, total=100)
    assert uses(monitor.measure_targets(targets, 1.0))["one"].caches[0].total == 100.0


def test_totals_go_on_when_a_guest_comes_to_another_group(tree):
    made = tree()
    made.files.make_folder("a.guest.one")
    monitor = CacheMonitor(made.files, made.platform, "a.")
    shared = [LS, monitored_guest("one")]
    monitor.measure_targets(shared, 0.0)
    made.files.count("a.class.LS/mon_groups/a.mon.one", 0, total=1000)
    monitor.measure_targets(shared, 1.0)
    made.files.show("a.guest.one", 0, "mbm_total_bytes", 77)
    own = [LS, monitored_guest("one", group="a.guest.one")]
    use = uses(monitor.measure_targets(own, 2.0))["one"]
    assert (use.caches[0].total, use.moved_bytes[0, "total"]) == (None, 1000)
    assert made.files.monitoring_groups() == []
    made.files.count("a.guest.one", 0, total=500)
    use = uses(monitor.measure_targets(own, 3.0))["one"]
    assert (use.caches[0].total, use.moved_bytes[0, "total"]) == (500.0, 1500)


@pytest.mark.parametrize("text", ["Unavailable", "Unassigned", "Error", ""])
def test_a_counter_without_a_number_is_unknown_and_bridged(tree, text):
    made = tree()
    monitor = CacheMonitor(made.files, made.platform, "a.")
    group = "a.class.LS/mon_groups/a.mon.one"
    targets = [LS, monitored_guest("one")]
    monitor.measure_targets(targets, 0.0)
    made.files.count(group, 0, total=1000)
    monitor.measure_targets(targets, 1.0)
    made.files.show(group, 0, "mbm_total_bytes", text)
    use = uses(monitor.measure_targets(targets, 2.0))["one"]
    assert (use.caches[0].total, use.moved_bytes[0, "total"]) == (None, 1000)
    made.files.show(group, 0, "mbm_total_bytes", 4000)
    use = uses(monitor.measure_targets(targets, 3.0))["one"]
    assert (use.caches[0].total, use.moved_bytes[0, "total"]) == (1500.0, 4000)  # 3000 bytes in two seconds


@pytest.mark.parametrize(
    ("before", "now", "rate"), [(2**64 - 100, 50, 150.0), (10**15, 700, 700.0), (10**15, 0, 0.0)]
)
def test_totals_never_decrease_when_counters_wrap_or_reset(tree, before, now, rate):
    made = tree()
    monitor = CacheMonitor(made.files, made.platform, "a.")
    made.files.show("a.class.LS", 0, "mbm_total_bytes", before)
    monitor.measure_targets([LS], 0.0)
    made.files.show("a.class.LS", 0, "mbm_total_bytes", now)
    use = uses(monitor.measure_targets([LS], 1.0))["LS"]
    assert (use.caches[0].total, use.moved_bytes[0, "total"]) == (rate, rate)


def test_threads_of_a_guest_come_into_its_group_and_those_that_appear_later_too(tree, process):
    made = tree()
    files = made.files
    files.write_file("a.class.LS/tasks", f"{process.pid}\n")
    monitor = CacheMonitor(files, made.platform, "a.")
    threads = [process.pid]
    targets = [LS, monitored_guest("one", threads=threads)]
    monitor.measure_targets(targets, 0.0)
    group = "a.class.LS/mon_groups/a.mon.one"
    assert groups.read_tasks(files, group) == {process.pid}
    late = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        threads.append(late.pid)  # not yet in the control group
        monitor.measure_targets(targets, SYNC_SECONDS)
        assert groups.read_tasks(files, group) == {process.pid}
        files.write_file("a.class.LS/tasks", f"{late.pid}\n")
        monitor.measure_targets(targets, 2 * SYNC_SECONDS)
        assert groups.read_tasks(files, group) == {process.pid, late.pid}
    finally:
        late.kill()
        late.wait()


@pytest.mark.parametrize("error", [GuestGoneError("gone"), FileNotFoundError("/proc/1/task")])
def test_a_guest_that_is_just_ending_costs_nothing_but_itself(tree, error):
    made = tree()

    def gone():
        raise error

    monitor = CacheMonitor(made.files, made.platform, "a.")
    targets = [replace(monitored_guest("one"), threads=gone), monitored_guest("two")]
    assert set(uses(monitor.measure_targets([LS, *targets], 0.0))["two"].caches) == {0, 1}


def test_groups_of_ended_guests_are_removed_and_foreign_groups_stay(tree):
    made = tree()
    files = made.files
    for path in (
        "mon_groups/a.mon.orphan",
        "mon_groups/theirs",
        "a.class.BE/mon_groups/a.mon.orphan2",
        "a.class.LS/mon_groups/theirs",
        "a.class.LS/mon_groups/a.mon.one",
    ):
        files.make_folder(path)
    files.show("a.class.LS/mon_groups/a.mon.one", 0, "llc_occupancy", 123)
    monitor = CacheMonitor(files, made.platform, "a.")
    use = uses(monitor.measure_targets([LS, BE, monitored_guest("one"), monitored_guest("two")], 0.0))["one"]
    assert use.caches[0].occupancy == 123  # taken over as it was
    kept = ["a.class.LS/mon_groups/theirs", "mon_groups/theirs"]
    assert files.monitoring_groups() == sorted(
        [*kept, "a.class.LS/mon_groups/a.mon.one", "a.class.LS/mon_groups/a.mon.two"]
    )
    assert "two" not in uses(monitor.measure_targets([LS, BE, monitored_guest("one")], 1.0))
    assert files.monitoring_groups() == sorted([*kept, "a.class.LS/mon_groups/a.mon.one"])
    monitor.measure_targets([], 2.0)
    assert files.monitoring_groups() == kept


def test_a_group_removed_by_another_program_is_made_again(tree):
    made = tree()
    monitor = CacheMonitor(made.files, made.platform, "a.")
    targets = [LS, monitored_guest("one")]
    monitor.measure_targets(targets, 0.0)
    made.files.remove_folder("a.class.LS")
    # files that are open in a folder tell nothing of its end; those of a kernel do
    monitor.measure_targets(targets, 1.0)
    monitor.measure_targets(targets, SYNC_SECONDS)
    assert uses(monitor.newest)["one"].caches == {}
    made.files.make_folder("a.class.LS")
    monitor.measure_targets(targets, 2 * SYNC_SECONDS)
    assert set(uses(monitor.newest)["one"].caches) == {0, 1}


def test_files_that_fail_are_opened_again(tree, monkeypatch):
    made = tree()
    monitor = CacheMonitor(made.files, made.platform, "a.")
    targets = [LS, monitored_guest("one")]
    monitor.measure_targets(targets, 0.0)
    with monkeypatch.context() as patch:
        patch.setattr("os.pread", lambda *_: (_ for _ in ()).throw(OSError(errno.ENODEV, "gone")))
        assert uses(monitor.measure_targets(targets, 1.0))["one"].caches == {}
    assert set(uses(monitor.measure_targets(targets, 2.0))["one"].caches) == {0, 1}


def test_without_file_descriptors_to_spare_counters_are_opened_for_each_reading(tree, monkeypatch):
    monkeypatch.setattr("compute_agent.resctrl.monitoring.descriptors_to_keep", lambda: 3)
    made = tree()
    monitor = CacheMonitor(made.files, made.platform, "a.")
    monitor.measure_targets([LS], 0.0)
    made.files.count("a.class.LS", 1, total=10, local=5, occupancy=1)
    assert uses(monitor.measure_targets([LS], 1.0))["LS"].caches[1] == CacheUse(1, 5.0, 10.0)


def test_a_cache_leaves_and_returns_with_its_cpus(tree):
    made = tree()
    monitor = CacheMonitor(made.files, made.platform, "a.")
    monitor.measure_targets([LS], 0.0)
    for group in ("", "a.class.LS", "a.class.BE"):
        data = made.files.root / group / "mon_data"
        (data / "mon_L3_01").rename(data / "away")
    assert set(uses(monitor.measure_targets([LS], SYNC_SECONDS))["LS"].caches) == {0}
    for group in ("", "a.class.LS", "a.class.BE"):
        data = made.files.root / group / "mon_data"
        (data / "away").rename(data / "mon_L3_01")
    assert set(uses(monitor.measure_targets([LS], 2 * SYNC_SECONDS))["LS"].caches) == {0, 1}


def test_a_mount_that_is_gone_is_an_error(tree):
    made = tree()
    monitor = CacheMonitor(made.files, made.platform, "a.")
    (made.files.root / "schemata").unlink()
    with pytest.raises(ResctrlError):
        monitor.measure_targets([LS], 0.0)


# RMIDs


def small(rmids, closids=3):
    return replace(fake.INTEL, rmids=rmids, closids=closids, mb_closids=closids)


@pytest.mark.parametrize(
    ("rmids", "monitored"), [(3, []), (4, ["high"]), (5, ["high", "low-a"]), (6, ["high", "low-a", "low-b"])]
)
def test_when_rmids_run_out_guests_of_higher_priority_have_them(tree, rmids, monitored, caplog):
    made = tree(small(rmids))
    monitor = CacheMonitor(made.files, made.platform, "a.")
    guests = [monitored_guest("low-b"), monitored_guest("low-a"), monitored_guest("high", priority=5)]
    with caplog.at_level(logging.WARNING):
        for time in (0.0, 1.0, SYNC_SECONDS, 2 * SYNC_SECONDS):
            found = uses(monitor.measure_targets([LS, BE, *guests], time))
    assert sorted(name for name, use in found.items() if use.caches) == sorted(["LS", "BE", *monitored])
    assert monitor.groups.unmonitored_guests == {one.guest for one in guests} - set(monitored)
    scarce = len(monitored) < 3
    assert monitor.groups.exhaustion_count == scarce
    assert len([record for record in caplog.records if "too few RMIDs" in record.message]) == scarce


def test_a_monitored_guest_takes_precedence_over_new_ones_of_its_priority(tree):
    made = tree(small(4))
    monitor = CacheMonitor(made.files, made.platform, "a.")
    monitor.measure_targets([LS, BE, monitored_guest("z")], 0.0)
    monitor.measure_targets([LS, BE, monitored_guest("z"), monitored_guest("a")], 1.0)
    assert monitor.groups.unmonitored_guests == {"a"}
    monitor.measure_targets([LS, BE, monitored_guest("z"), monitored_guest("a", priority=1)], 2.0)
    assert monitor.groups.unmonitored_guests == {"z"}
    monitor.measure_targets([LS, BE, monitored_guest("a", priority=1)], 3.0)
    assert monitor.groups.unmonitored_guests == frozenset()
    assert monitor.groups.exhaustion_count == 1


def test_rmids_are_left_for_control_groups_to_come(tree):
    made = tree(small(8, closids=8))  # 3 control groups now, up to 8: 5 to spare, 3 of them kept back
    monitor = CacheMonitor(made.files, made.platform, "a.")
    guests = [monitored_guest(name) for name in "abcdef"]
    monitor.measure_targets([LS, BE, *guests], 0.0)
    assert len(made.files.monitoring_groups()) == 2
    for number in range(3):
        made.files.make_folder(f"a.guest.{number}")


def test_an_rmid_that_is_busy_costs_the_least_important_guest_for_a_while(tree, monkeypatch):
    made = tree()
    files = made.files
    make = type(files).make_folder
    busy = {"a.class.LS/mon_groups/a.mon.a"}

    def refuse(path):
        if path in busy:
            raise ResctrlError(errno.EBUSY, path)
        make(files, path)

    monkeypatch.setattr(files, "make_folder", refuse)
    monitor = CacheMonitor(files, made.platform, "a.")
    monitor.measure_targets([LS, monitored_guest("a"), monitored_guest("b")], 0.0)
    assert monitor.groups.unmonitored_guests == {"a"}
    busy.clear()
    monitor.measure_targets([LS, monitored_guest("a"), monitored_guest("b")], SYNC_SECONDS)
    assert monitor.groups.unmonitored_guests == frozenset()


# Counters that have to be assigned


def test_counters_go_to_control_groups_then_to_guests_by_priority(tree):
    made = tree(counters=5)  # default, LS, BE need one each for all bandwidth
    monitor = CacheMonitor(made.files, made.platform, "a.")
    guests = [monitored_guest("low"), monitored_guest("high", priority=5), monitored_guest("mid", priority=3)]
    monitor.measure_targets([LS, BE, *guests], 0.0)
    groups = [
        "",
        "a.class.LS",
        "a.class.BE",
        "a.class.LS/mon_groups/a.mon.high",
        "a.class.LS/mon_groups/a.mon.mid",
    ]
    for group in groups:
        assert made.files.assigned(group) == {(0, "mbm_total_bytes"), (1, "mbm_total_bytes")}, group
    # in a group without a counter it would be missing from its class
    assert monitor.groups.unmonitored_guests == {"low"}
    made.files.count("a.class.LS", 0, total=7)
    made.files.count("a.class.LS/mon_groups/a.mon.high", 0, total=5)
    found = uses(monitor.measure_targets([LS, BE, *guests], 1.0))
    assert (found["high"].caches[0].total, found["high"].caches[0].local) == (5.0, None)
    assert found["LS"].caches[0].total == 12.0


def test_where_counters_last_local_bandwidth_has_them_as_well(tree):
    made = tree(counters=7)
    monitor = CacheMonitor(made.files, made.platform, "a.")
    monitor.measure_targets([LS, BE, monitored_guest("one")], 0.0)
    assert made.files.assigned("a.class.LS/mon_groups/a.mon.one") >= {
        (0, "mbm_total_bytes"),
        (1, "mbm_total_bytes"),
    }
    local = [
        group
        for group in ("", "a.class.LS", "a.class.BE")
        if (1, "mbm_local_bytes") in made.files.assigned(group)
    ]
    assert len(local) == 3
    assert made.files.left == {0: 0, 1: 0}


def test_counters_of_others_are_not_taken(tree):
    made = tree(counters=8)
    made.files.make_folder("theirs")
    theirs = made.files.assigned("theirs")
    assert len(theirs) == 4
    monitor = CacheMonitor(made.files, made.platform, "a.")
    guests = [monitored_guest(name) for name in "abcdef"]
    monitor.measure_targets([LS, BE, *guests], 0.0)
    assert made.files.assigned("theirs") == theirs
    assert len(monitor.groups.unmonitored_guests) == 3


def test_a_round_without_changes_opens_no_file(tree, monkeypatch):
    made = tree()
    monitor = CacheMonitor(made.files, made.platform, "a.")
    targets = [LS, BE, *(monitored_guest(f"g{number}") for number in range(10))]
    monitor.measure_targets(targets, 0.0)

    def refuse(*_, **__):
        raise AssertionError("something is opened")

    monkeypatch.setattr("os.open", refuse)
    monkeypatch.setattr("io.open", refuse)
    monkeypatch.setattr("os.scandir", refuse)
    assert all(set(use.caches) == {0, 1} for use in monitor.measure_targets(targets, 1.0).targets)
