"""Tests of counters, rates, and the choice of monitored guests when RMIDs are too few."""

import errno
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.resctrl import monitoring
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.groups import ControlGroup, ResctrlGroups, read_groups
from compute_agent.resctrl.monitoring import (
    LOCAL_BYTES,
    OCCUPANCY,
    TOTAL_BYTES,
    CounterFiles,
    CounterSample,
    MonitoredGroup,
)
from compute_agent.resctrl.platform import CacheControl, CpuVendor, MonitoringFeatures, ResctrlPlatform
from compute_agent.resctrl.schemata import MaskRules, Schemata, WayMask
from tests.compute_agent.resctrl import fake


def increase(before, now):
    totals = monitoring.BandwidthTotals()
    for time, value in enumerate((before, now)):
        totals.add_sample(CounterSample(float(time), {(0, TOTAL_BYTES): value}))
    return totals.bytes[0, TOTAL_BYTES]


@pytest.mark.parametrize(
    ("before", "now", "grown"),
    [
        (100, 150, 50),
        (100, 100, 0),
        (2**64 - 10, 5, 15),  # wrapped around
        (10**15, 700, 700),  # reset
        (2**63, 0, 0),
        (2**64 - 3, 2**48 - 4, 2**48 - 1),  # the largest plausible increase
        (2**64 - 3, 2**48 - 3, 2**48 - 3),  # one more: reset, so the value is the increase
        (0, 2**48 + 1, 2**48 + 1),  # an increase without a wrap has no limit
        (None, 5, 0),
        (5, None, 0),
    ],
)
def test_a_counter_that_goes_down_has_wrapped_or_was_reset(before, now, grown):
    assert increase(before, now) == grown


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40))
@settings(deadline=None)
def test_any_plausible_increase_is_found_over_a_wrap(before, grown):
    assert increase(before, (before + grown) % 2**64) == grown


def test_totals_only_grow_and_bridge_readings_without_a_number():
    totals = monitoring.BandwidthTotals()
    values = (1000, 1500, None, 1800, 50, None, 60)
    rates = [
        totals.add_sample(CounterSample(float(time), {(0, TOTAL_BYTES): value, (0, OCCUPANCY): 1})).get(
            (0, TOTAL_BYTES)
        )
        for time, value in enumerate(values)
    ]
    assert totals.bytes == {(0, TOTAL_BYTES): 500 + 300 + 50 + 10}
    assert rates == [None, 500.0, None, 150.0, 50.0, None, 5.0]


def test_rates_are_bytes_a_second_of_bandwidth_counters():
    totals = monitoring.BandwidthTotals()
    before = {(0, TOTAL_BYTES): 1000, (0, OCCUPANCY): 5, (1, TOTAL_BYTES): None}
    now = {(0, TOTAL_BYTES): 5000, (0, OCCUPANCY): 9, (1, TOTAL_BYTES): 7, (0, LOCAL_BYTES): 3}
    assert totals.add_sample(CounterSample(10.0, before)) == {}
    assert totals.add_sample(CounterSample(12.0, now)) == {(0, TOTAL_BYTES): 2000.0}
    assert totals.add_sample(CounterSample(12.0, now)) == {}  # no time has passed


def test_totals_continue_with_the_counters_of_another_group():
    totals = monitoring.BandwidthTotals()
    totals.add_sample(CounterSample(0.0, {(0, TOTAL_BYTES): 10}))
    totals.add_sample(CounterSample(1.0, {(0, TOTAL_BYTES): 30}))
    totals.start_again()
    assert totals.add_sample(CounterSample(2.0, {(0, TOTAL_BYTES): 5000})) == {}
    totals.add_sample(CounterSample(3.0, {(0, TOTAL_BYTES): 5001}))
    assert totals.bytes == {(0, TOTAL_BYTES): 21}


def read_counters(files, group, time):
    with closing(CounterFiles(files)) as counters:
        return counters.read_sample(group, time)


def test_counters_of_a_captured_machine(captured):
    files = captured("full").files
    sample = read_counters(files, "", 1.0)
    assert sample.values[0, TOTAL_BYTES] == 264830976
    assert sample.values[0, OCCUPANCY] == 32440320
    assert {cache for cache, _ in sample.values} == {0, 1, 2, 3}
    assert len(sample.values) == 12
    group = monitoring.monitoring_group("goresctrl.Stale", "non_goresctrl.group")
    assert len(read_counters(files, group, 1.0).values) == 12


@pytest.fixture
def files(tmp_path):
    return fake.FakeResctrl.of(fake.INTEL, tmp_path / "tree")


def test_counters_without_numbers_have_no_value(files):
    folder = files.root / "mon_data/mon_L3_01"
    (folder / TOTAL_BYTES).write_text("Unavailable\n")
    (folder / LOCAL_BYTES).unlink()
    (folder / OCCUPANCY).write_text("nonsense\n")
    (folder / "mon_sub_L3_01").mkdir()
    (files.root / "mon_data/mon_PERF_PKG_00").mkdir()  # of kernels to come
    values = read_counters(files, "", 1.0).values
    assert {key: value for key, value in values.items() if key[0] == 1} == {
        (1, OCCUPANCY): None,
        (1, TOTAL_BYTES): None,
    }
    assert len(values) == 5


def test_a_removed_group_has_no_counters(files):
    with pytest.raises(ResctrlError) as caught:
        read_counters(files, "none", 1.0)
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize(
    ("number", "made"), [(errno.ENOSPC, False), (errno.EBUSY, False), (errno.EEXIST, True)]
)
def test_without_an_rmid_there_is_no_monitoring_group(files, number, made, monkeypatch):
    def refuse(path):
        raise ResctrlError(number, path)

    monkeypatch.setattr(files, "make_folder", refuse)
    assert monitoring.make_monitoring_group(files, "", "a") is made


def test_other_failures_to_make_a_monitoring_group_are_raised(files):
    with pytest.raises(ResctrlError):
        monitoring.make_monitoring_group(files, "none", "a")


WATCHED = [
    MonitoredGroup("low", priority=1),
    MonitoredGroup("high", priority=9),
    MonitoredGroup("BE", is_class=True),
    MonitoredGroup("alone", priority=0, own_group=True),
    MonitoredGroup("LS", is_class=True, own_group=True),
]


@pytest.mark.parametrize(
    ("rmids", "chosen"),
    [
        (0, ["LS", "alone"]),
        (1, ["BE", "LS", "alone"]),
        (2, ["BE", "LS", "high", "alone"]),
        (3, ["BE", "LS", "high", "low", "alone"]),
        (99, ["BE", "LS", "high", "low", "alone"]),
    ],
)
def test_classes_are_monitored_first_then_guests_by_priority(rmids, chosen):
    assert monitoring.choose_monitored(rmids, WATCHED) == chosen


def test_control_groups_and_foreign_groups_use_rmids():
    platform = ResctrlPlatform(CpuVendor.INTEL, monitoring=MonitoringFeatures(8, frozenset()))
    groups = {
        "": ControlGroup("", Schemata(), monitoring_groups=("theirs", "ours.a")),
        "x": ControlGroup("x", Schemata(), monitoring_groups=("ours.b", "theirs")),
    }
    assert monitoring.spare_rmids(platform, ResctrlGroups(groups), lambda name: name.startswith("ours.")) == 4
    assert (
        monitoring.spare_rmids(ResctrlPlatform(CpuVendor.INTEL), ResctrlGroups(groups), lambda name: True)
        == 0
    )


@pytest.mark.parametrize(
    ("closids", "there", "used"), [(4, 4, 60), (16, 4, 48), (64, 4, 30), (16, 16, 48), (3, 4, 60)]
)
def test_rmids_are_left_for_later_control_groups(closids, there, used):
    cache = CacheControl(("L3",), (0,), MaskRules(WayMask(0xFF)), WayMask(0), closids)
    platform = ResctrlPlatform(CpuVendor.INTEL, l3=cache, monitoring=MonitoringFeatures(64, frozenset()))
    present = ResctrlGroups({f"g{number}": ControlGroup(f"g{number}", Schemata()) for number in range(there)})
    assert monitoring.rmids_to_use(platform, present, lambda name: True) == used


def test_a_monitored_guest_keeps_its_group_before_others_of_its_priority():
    two = [MonitoredGroup("a"), MonitoredGroup("b", monitored=True)]
    assert monitoring.choose_monitored(1, two) == ["b"]
    assert monitoring.choose_monitored(1, [*two, MonitoredGroup("c", priority=1)]) == ["c"]


def test_monitoring_groups_follow_their_guests(files):
    for group in ("one", "two"):
        files.make_folder(group)
    for path in (
        "mon_groups/ours.a",
        "one/mon_groups/ours.b",
        "one/mon_groups/theirs",
        "two/mon_groups/ours.c",
    ):
        files.make_folder(path)
    wanted = {"ours.a": "", "ours.b": "two", "ours.d": "one", "ours.e": "gone"}
    stale, missing = monitoring.monitoring_changes(
        read_groups(files), wanted, lambda name: name.startswith("ours.")
    )
    assert stale == ("one/mon_groups/ours.b", "two/mon_groups/ours.c")
    assert missing == ("one/mon_groups/ours.d", "two/mon_groups/ours.b")
    for path in stale:
        files.remove_folder(path)
    for path in missing:
        files.make_folder(path)
    del wanted["ours.e"]
    assert monitoring.monitoring_changes(read_groups(files), wanted, lambda name: "ours." in name) == ((), ())
