"""Tests of the thread of monitoring, and of its values for watermarks and Prometheus."""

import logging
import math
import sqlite3
import threading
import time

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.monitoring import loop
from compute_agent.monitoring.loop import (
    STALE_ROUNDS,
    MonitoringCollector,
    MonitoringSettings,
    MonitorLoop,
    due_at,
)
from compute_agent.monitoring.monitor import CacheMonitor
from compute_agent.monitoring.readings import CacheReading, MonitoredCaches, MonitorTarget, build_targets
from compute_agent.monitoring.samples import SampleStore
from compute_agent.resctrl.filesystem import ResctrlError
from tests.compute_agent.monitoring.counting import mount
from tests.waits import wait_for

LS = MonitorTarget("", "LS", "a.class.LS")
ONE = MonitorTarget("one", "LS", "a.class.LS", name="web", cpu=0.5)
GROUP = "a.class.LS/mon_groups/a.mon.one"
SETTINGS = MonitoringSettings(interval=1.0, store_interval=10.0)


class Bench:
    """A monitoring loop without a thread: tests make its rounds."""

    def __init__(self, folder):
        self.mount = mount(folder / "tree")
        self.files = self.mount.files
        self.files.make_folder("a.class.LS")
        self.targets = [LS, ONE]
        self.ask = lambda: self.targets
        self.store = SampleStore(folder / "samples.db", 1e9, 10**9)
        monitor = CacheMonitor(self.files, self.mount.platform, "a.")
        self.loop = MonitorLoop(lambda: self.ask(), self.store, SETTINGS)
        self.loop.monitor_with(monitor)
        self.registry = CollectorRegistry()
        self.registry.register(MonitoringCollector(self.loop))
        self.start = time.monotonic()

    def round(self, second):
        """Run the round of a second from now on; the loop's clock advances, too."""
        self.loop.run_round(self.start + second, 1000.0 + second)

    def stored(self):
        self.store.flush(0.0)
        with sqlite3.connect(self.store.path) as connection:
            query = "SELECT time, guest, cache_id, occupancy, local, total, cpu FROM samples, targets"
            return connection.execute(f"{query} WHERE id = target_id ORDER BY 1, 2, 3").fetchall()

    def metric(self, name, **labels):
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.loop.stop()


def test_samples_are_means_over_the_time_between_them(bench):
    for second in range(21):
        if second:
            bench.files.count(GROUP, 1, total=1000 if second <= 10 else 3000, local=500, occupancy=second)
        bench.round(second)
    one = [row for row in bench.stored() if row[1] == "one" and row[2] == 1]
    assert one == [
        (1000.0, "one", 1, 0, None, None, 0.5),
        (1010.0, "one", 1, 10, 500.0, 1000.0, 0.5),
        (1020.0, "one", 1, 20, 500.0, 3000.0, 0.5),
    ]
    assert [row[5] for row in bench.stored() if row[1] == "" and row[2] == 1] == [None, 1000.0, 3000.0]


def test_counters_without_numbers_are_stored_as_unknown(bench):
    for second in (0, 10):
        bench.round(second)
    bench.files.show(GROUP, 0, "mbm_total_bytes", "Unavailable")
    bench.round(20)
    assert [row[5] for row in bench.stored() if row[1:3] == ("one", 0)] == [None, 0.0, None]


def test_a_returning_guest_is_counted_from_its_start(bench):
    bench.round(0)
    bench.files.count(GROUP, 0, total=5000)
    bench.round(10)
    bench.targets = [LS]
    bench.round(11)
    bench.targets = [LS, ONE]
    bench.round(12)
    bench.files.count(GROUP, 0, total=700)
    bench.round(20)
    bench.files.count(GROUP, 0, total=300)
    bench.round(30)
    assert [row[5] for row in bench.stored() if row[1:3] == ("one", 0)] == [None, 500.0, None, 30.0]


def test_a_guest_that_is_not_monitored_leaves_its_use_of_cpu(bench):
    bench.targets = [
        MonitorTarget("two", "LS", "a.class.gone", cpu=3.0),
        MonitorTarget("three", "LS", "a.class.gone"),
    ]
    bench.round(0)
    assert bench.stored() == [(1000.0, "two", -1, None, None, None, 3.0)]


def test_without_a_store_interval_nothing_is_kept(bench):
    bench.loop.reload(MonitoringSettings(store_interval=0.0))
    bench.round(0)
    bench.loop.stop()
    assert not bench.store.path.exists()


def test_troubles_of_others_are_told_once_and_cost_nothing_more(bench, caplog):
    bench.round(0)

    def broken():
        raise RuntimeError("who are they?")

    ask, bench.ask = bench.ask, broken
    with caplog.at_level(logging.INFO):
        bench.round(1)
        bench.round(2)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert len(bench.loop.newest_reading().targets) == 2  # those of the last round
        bench.targets, bench.ask = [LS], ask
        bench.round(3)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert len(bench.loop.newest_reading().targets) == 1


def test_groups_stay_while_the_guests_are_unknown(bench):
    bench.files.make_folder("a.class.LS/mon_groups/a.mon.one")
    targets, bench.targets = bench.targets, None
    bench.round(0)
    assert bench.files.monitoring_groups() == [GROUP]
    assert bench.loop.newest_reading() is None
    bench.targets = targets
    bench.round(1)
    bench.targets = None  # a new controller has taken over
    bench.round(2)
    assert len(bench.loop.newest_reading().targets) == 2
    assert bench.files.monitoring_groups() == [GROUP]


def test_a_mount_that_is_gone_is_told_once_and_readings_of_before_do_not_last(bench, caplog, monkeypatch):
    bench.start -= 100
    bench.round(0)
    (bench.files.root / "schemata").rename(bench.files.root / "away")
    with caplog.at_level(logging.WARNING):
        for second in (10, 20, 30):
            bench.round(second)
    assert len([record for record in caplog.records if "cannot be measured" in record.message]) == 1
    assert bench.loop.newest_reading() is None
    (bench.files.root / "away").rename(bench.files.root / "schemata")
    bench.round(100)
    assert bench.loop.newest_reading() is not None


def test_a_reading_of_long_ago_tells_nothing(bench):
    bench.start -= STALE_ROUNDS + 1
    bench.round(0)
    assert bench.loop.newest_reading() is None
    bench.loop.round_seconds = 60.0  # it could not be any newer
    assert bench.loop.newest_reading() is not None
    bench.loop.round_seconds = 0.0
    bench.round(STALE_ROUNDS)
    assert bench.loop.newest_reading() is not None


# When counters are read


@pytest.mark.parametrize(
    ("wanted_until", "kept_at", "store_interval", "due"),
    [
        (105.0, 100.0, 10.0, 101.0),  # readings are requested
        (99.0, 100.0, 10.0, 110.0),  # only samples are due
        (99.0, 100.0, 1.0, 101.0),
        (99.0, 95.0, 10.0, 105.0),
        (99.0, 100.0, 3600.0, 110.0),  # samples are rare, but the groups are compared at the usual interval
        (99.0, -math.inf, 10.0, 101.0),  # no sample could be taken yet
        (99.0, 100.0, 0.0, 110.0),  # only the comparison of groups is due
        (105.0, 100.0, 0.0, 101.0),
    ],
)
def test_counters_are_read_as_often_as_requested(wanted_until, kept_at, store_interval, due):
    assert due_at(100.0, 100.0, wanted_until, kept_at, MonitoringSettings(1.0, store_interval)) == due


@pytest.mark.parametrize("meanwhile", [(), (3600.0,), (0.0, 5.0, 20.0)])
def test_another_interval_of_samples_is_in_force_at_once_however_often_it_is_changed(bench, meanwhile):
    for second in (0, 4):
        bench.round(second)
    for interval in meanwhile:
        bench.loop.reload(MonitoringSettings(1.0, interval))
    bench.loop.reload(MonitoringSettings(1.0, 6.0))
    for second in (5, 6, 11, 12):
        bench.round(second)
    assert [row[0] for row in bench.stored() if row[1:3] == ("one", 0)] == [1000.0, 1006.0, 1012.0]


def test_samples_start_again_after_storage_was_off(bench):
    bench.round(0)
    bench.loop.reload(MonitoringSettings(1.0, 0.0))
    bench.round(1)
    bench.loop.reload(SETTINGS)
    bench.round(2)
    assert [row[0] for row in bench.stored() if row[1:3] == ("one", 0)] == [1000.0, 1002.0]


@pytest.fixture
def first(bench, monkeypatch):
    """The first reading of a loop without requests for a long time. The next caller waits for another
    reading.
    """
    monkeypatch.setattr(loop, "STALE_SECONDS", 60.0)
    bench.loop.settings = MonitoringSettings(interval=0.05, store_interval=1e6)
    bench.loop.start()
    wait_for(lambda: bench.loop.rounds)  # not only measured, but over
    first = bench.loop.monitor.newest
    wait_for(lambda: time.monotonic() - first.time > 0.2)
    return first


def test_a_request_after_a_long_time_gets_a_current_reading(bench, first, monkeypatch):
    monkeypatch.setattr(loop, "ASKED_SECONDS", 30.0)
    bench.files.count(GROUP, 1, total=8000)
    [of_guest] = [use for use in bench.loop.newest_reading().targets if use.target == ONE]
    assert of_guest.moved_bytes[1, "total"] == 8000


def test_a_new_guest_is_seen_without_a_request(bench):
    bench.targets = [LS]
    bench.loop.settings = MonitoringSettings(interval=0.01, store_interval=1e6)
    bench.loop.start()
    wait_for(lambda: bench.loop.monitor and bench.loop.monitor.newest)
    bench.targets = [LS, ONE]
    wait_for(lambda: len(bench.loop.monitor.newest.targets) == 2)
    assert bench.files.monitoring_groups() == [GROUP]


@pytest.fixture
def released(bench):
    """An event. The current round hangs until a test sets it."""
    hanging, released = threading.Event(), threading.Event()

    def hang():
        hanging.set()
        released.wait(30)
        return []

    bench.ask = hang
    bench.loop.start()
    assert hanging.wait(30)
    return released


def test_a_request_gets_no_reading_while_a_round_hangs(bench, released, monkeypatch):
    monkeypatch.setattr(loop, "ASKED_SECONDS", 0.01)
    assert bench.loop.newest_reading() is None
    released.set()


def test_a_rare_caller_waits_for_a_slow_round(bench, first, monkeypatch):
    monkeypatch.setattr(loop, "ASKED_SECONDS", 0.001)
    bench.loop.round_seconds = 15.0
    assert bench.loop.newest_reading().time > first.time


# Watermarks


def test_watermarks_have_rates_sizes_and_capacity(bench):
    reader = MonitoredCaches(bench.loop.newest_reading)
    reader.set_platform(bench.mount.platform, 10.0)
    assert reader.read() == CacheReading()
    bench.round(0)
    bench.files.count(GROUP, 1, total=8000, occupancy=300)
    bench.files.count("", 1, total=1000, occupancy=50)
    bench.round(2)
    assert reader.read() == CacheReading(
        bandwidth={"0": 0.0, "1": 4500.0},
        bandwidth_capacity={"0": 1e10, "1": 1e10},
        occupancy={"0": 0.0, "1": 350.0},
        cache_size={"0": 16.0 * 2**20, "1": 16.0 * 2**20},
        guest_bandwidth={"one": {"0": 0.0, "1": 4000.0}},
        guest_occupancy={"one": {"0": 0.0, "1": 300.0}},
    )
    reader.set_platform(bench.mount.platform, None)
    assert reader.read().bandwidth_capacity == {}


def test_unmeasured_values_are_missing(bench):
    bench.round(0)
    for cache in (0, 1):
        for event in ("mbm_total_bytes", "llc_occupancy"):
            bench.files.show(GROUP, cache, event, "Unavailable")
            bench.files.show("a.class.LS", cache, event, "Unavailable")
            bench.files.show("", cache, event, "Unavailable")
    reader = MonitoredCaches(bench.loop.newest_reading)
    reader.set_platform(bench.mount.platform, 10.0)
    bench.round(1)
    reading = reader.read()
    assert (reading.bandwidth, reading.bandwidth_capacity, reading.occupancy) == ({}, {}, {})
    assert (reading.guest_bandwidth, reading.guest_occupancy) == ({}, {})


# Prometheus

MOVED = "compute_agent_memory_bandwidth_bytes_total"
OCCUPANCY = "compute_agent_llc_occupancy_bytes"


def test_metrics_have_guests_and_classes(bench):
    bench.round(0)
    bench.files.count(GROUP, 1, total=8000, local=700, occupancy=300)
    bench.round(1)
    labels = {"class": "LS", "cache_id": "1"}
    assert bench.metric(OCCUPANCY, guest="one", **labels) == 300
    assert bench.metric(MOVED, guest="one", kind="total", **labels) == 8000
    assert bench.metric(MOVED, guest="one", kind="local", **labels) == 700
    assert bench.metric(MOVED, guest="", kind="total", **labels) == 8000
    bench.files.show(GROUP, 1, "mbm_total_bytes", 10)  # the kernel's counter was reset
    bench.round(2)
    assert bench.metric(MOVED, guest="one", kind="total", **labels) == 8010


def test_the_series_of_an_ended_guest_ends(bench):
    bench.round(0)
    labels = {"guest": "one", "class": "LS", "cache_id": "0"}
    assert bench.metric(OCCUPANCY, **labels) == 0
    bench.targets = [LS]
    bench.round(1)
    assert bench.metric(OCCUPANCY, **labels) is None
    assert bench.metric(MOVED, kind="total", **labels) is None


def test_metrics_count_unmonitored_guests_and_failed_writes(bench, monkeypatch):
    assert bench.metric("compute_agent_unmonitored_guests") == 0
    monkeypatch.setattr(
        bench.files, "make_folder", lambda path: (_ for _ in ()).throw(ResctrlError(28, path, "Out of RMIDs"))
    )
    bench.store.path.mkdir()
    bench.round(0)
    assert bench.metric("compute_agent_unmonitored_guests") == 1
    assert bench.metric("compute_agent_monitoring_exhaustions_total") == 1
    assert bench.metric("compute_agent_sample_write_failures_total") == 1


def test_a_round_that_hangs_does_not_keep_the_agent_from_stopping(bench, released, caplog):
    bench.loop.stop(timeout=0.01)
    assert "hangs" in caplog.text
    released.set()
    wait_for(lambda: not bench.loop.is_running)


# Targets


def test_targets_are_the_guests_in_their_groups_and_the_classes():
    guests = [
        Guest(uuid, "process", f"vm-{uuid}", 7, GuestSettings(qos_class="BE", priority=3))
        for uuid in ("a", "b")
    ]
    classes = {"BE": "x.class.BE"}
    found = build_targets(guests, lambda guest: [guest.pid], classes, {"a": "x.class.BE"}, {"a": 1.5})
    assert found == [MonitorTarget("", "BE", "x.class.BE"), MonitorTarget("a", "BE", "x.class.BE", 3)]
    assert (found[1].name, found[1].cpu, found[1].threads()) == ("vm-a", 1.5, [7])
    alone = build_targets(guests, lambda guest: [], {}, None)
    assert [(target.guest, target.group, target.cpu) for target in alone] == [
        ("a", "", None),
        ("b", "", None),
    ]
