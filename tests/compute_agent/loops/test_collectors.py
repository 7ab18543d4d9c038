"""Tests of collectors of installed packages: their amounts are offered, and wrong reports do no harm and are
shown.
"""

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from compute_agent.events.event import EventRecorder
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.loops.collectors import HANGING_SECONDS, CollectorLoops, with_kept
from compute_agent.model.messages import ConfigError
from compute_agent.reclaim.collectors import (
    CLASSES_FORMAT,
    MAX_MEASUREMENTS,
    MAX_VALID_SECONDS,
    ClassMeasurement,
    CollectedAmount,
    CollectedClasses,
    check_collectors,
    check_measurement,
    installed_collectors,
)
from tests.waits import wait_for

EXAMPLE = Path(__file__).parents[1] / "example_collector"
LICENCE, SLOT = "CUSTOM_LICENCE", "CUSTOM_SLOT"
TREE = ProviderTree(
    (
        ProviderNode("host", "root", None, {SLOT: ProviderInventory(4)}),
        ProviderNode("host_NUMA_0", "n0", "root", {LICENCE: ProviderInventory(100, 10)}),
        ProviderNode(
            "host_NUMA_1", "n1", "root", {LICENCE: ProviderInventory(50), "VCPU": ProviderInventory(8)}
        ),
    )
)


class ReportedMeasurements:
    """A collector that returns the measurements of a test. A callable among them is called."""

    def __init__(self, *told, classes=(LICENCE,)):
        self.resource_classes = classes
        self.told = told

    def collect(self):
        return self.told[0]() if self.told and callable(self.told[0]) else self.told


class CollectingHost:
    def __init__(self, folder, monkeypatch, **collectors):
        self.folder, self.now, self.events = folder, 3.6e9, []
        self.collectors = collectors
        self.points = {
            name: SimpleNamespace(name=name, load=lambda name=name: self.collectors[name])
            for name in collectors
        }
        monkeypatch.setattr("compute_agent.loops.collectors.installed_collectors", lambda: self.points)
        self.new_loop()

    def new_loop(self):
        """Make another loop, as a restarted agent does."""
        recorder = EventRecorder(self.events.append)
        self.loop = CollectorLoops(
            list(self.collectors), self.folder, recorder, CollectorRegistry(), lambda: self.now
        )

    def minutes(self, count=1):
        for _ in range(count):
            self.now += 60
            for runner in self.loop.runners.values():
                runner.call_collector()
            self.loop.run_round(TREE)

    def told(self, name, zone="NUMA_0", amount=50.0, margin=0.0, valid=600.0):
        return ClassMeasurement(name, zone, amount, margin, self.now + valid)

    def withheld(self):
        return {
            (node.name.removeprefix("host"), name): amount
            for node in self.loop.add_to_tree(TREE).nodes
            for name, amount in node.withheld.items()
        }


@pytest.fixture
def rig(tmp_path, monkeypatch):
    return lambda **collectors: CollectingHost(tmp_path, monkeypatch, **collectors)


def test_measurements_above_the_limit_are_dropped_and_the_collector_is_in_trouble(rig):
    one = rig(
        one=ReportedMeasurements(
            lambda: (ClassMeasurement(LICENCE, f"{n}", 1, 0, 4e9) for n in range(MAX_MEASUREMENTS + 9))
        )
    )
    one.minutes()
    (runner,) = one.loop.runners.values()
    assert (len(runner.heard.told), "more than 1000" in runner.failure_text) == (MAX_MEASUREMENTS, True)


def test_unreported_amounts_are_withheld_and_reported_ones_offered_after_a_quarter_of_an_hour(rig):
    rig = rig(one=ReportedMeasurements())
    rig.collectors["one"].told = (lambda: [rig.told(LICENCE, amount=60.5, margin=20)],)
    rig.minutes()
    assert rig.withheld() == {("_NUMA_0", LICENCE): 90, ("_NUMA_1", LICENCE): 50}
    rig.minutes(25)
    assert rig.withheld() == {("_NUMA_0", LICENCE): 50, ("_NUMA_1", LICENCE): 50}
    (event,) = rig.events
    assert event.text == "The provider host_NUMA_0 offers 40 of 90 CUSTOM_LICENCE (before: 0)"
    assert event.reason == "one reports 60.5, with a margin of 20"
    assert [row["amount"] for row in rig.loop.list_rows(TREE)] == [40.5, 40, 0.0, 0]


def test_smaller_amounts_apply_at_once_and_expired_ones_are_withheld_before_the_next_round(rig):
    rig = rig(one=ReportedMeasurements())
    told = [60.0]
    rig.collectors["one"].told = (lambda: [rig.told(LICENCE, amount=told[0], valid=120.0)],)
    rig.minutes(25)
    assert rig.withheld()["_NUMA_0", LICENCE] == 30
    told[0] = 5.0
    rig.minutes()
    assert rig.withheld()["_NUMA_0", LICENCE] == 85
    rig.now += 121
    assert rig.withheld()["_NUMA_0", LICENCE] == 90


def test_reports_count_after_a_restart_until_they_expire(rig):
    rig = rig(one=ReportedMeasurements())
    rig.collectors["one"].told = (lambda: [rig.told(LICENCE)],)
    rig.minutes(25)
    rig.loop.stop()
    rig.new_loop()
    assert rig.withheld()["_NUMA_0", LICENCE] == 40
    assert with_kept(TREE, ["one"], rig.folder, rig.now).nodes[1].withheld == {LICENCE: 40}
    assert with_kept(TREE, [], rig.folder, rig.now) == TREE
    rig.points["one"].load = lambda: 1 / 0
    rig.minutes()
    assert rig.withheld()["_NUMA_0", LICENCE] == 40
    assert "one: it failed: ZeroDivisionError" in rig.loop.failure_texts[0]
    rig.minutes(10)
    assert rig.withheld()["_NUMA_0", LICENCE] == 90


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no word")


def mute():
    raise Mute


def endless():
    while True:
        yield object()


def twice(rig):
    return [rig.told(LICENCE), rig.told(LICENCE)]


@pytest.mark.parametrize(
    ("collect", "said"),
    [
        (lambda rig: exec("raise SystemExit(3)"), "it failed: SystemExit: 3"),
        (lambda rig: 1 / 0, "it failed: ZeroDivisionError"),
        (lambda rig: exec("raise ValueError('a\\x1b[31m\\nb' * 9999)"), "it failed: ValueError: a\ufffd[31m"),
        (lambda rig: None, "it failed: TypeError"),
        (lambda rig: mute(), "it failed: Mute"),
        (lambda rig: endless(), "it reported a object, not a ClassMeasurement"),
        (lambda rig: [rig.told(LICENCE, amount=float("nan"))], "amount of CUSTOM_LICENCE is nan"),
        (lambda rig: [rig.told(LICENCE, amount=-1)], "amount of CUSTOM_LICENCE is -1"),
        (lambda rig: [rig.told(LICENCE, margin="x")], "margin of CUSTOM_LICENCE is 'x'"),
        (lambda rig: [rig.told(LICENCE, valid=-1)], "was already out of date"),
        (lambda rig: [rig.told("VCPU", "NUMA_1")], "it reported 'VCPU' in 'NUMA_1', but its classes are"),
        (lambda rig: [rig.told(LICENCE, zone=0)], "it reported 'CUSTOM_LICENCE' in 0"),
        (lambda rig: [rig.told([])], "it reported [] in 'NUMA_0'"),
        (twice, "it reported CUSTOM_LICENCE of 'NUMA_0' twice"),
        (lambda rig: [rig.told(LICENCE, zone="NUMA_7")], "of NUMA_7, which has no inventory of it"),
    ],
)
def test_a_broken_collector_is_shown_and_its_classes_are_withheld(rig, collect, said, caplog):
    rig = rig(one=ReportedMeasurements(), other=ReportedMeasurements(classes=(SLOT,)))
    rig.collectors["one"].told = (lambda: collect(rig),)
    rig.collectors["other"].told = (lambda: [rig.told(SLOT, "", 3)],)
    rig.minutes(25)
    (trouble,) = rig.loop.failure_texts
    assert said in trouble
    assert trouble.isprintable()
    assert len(trouble) < 1200
    assert caplog.text.count("The collector one of [capacity] collectors fails: ") == 1  # not every minute
    if collect is not twice:
        assert rig.withheld()["_NUMA_0", LICENCE] == 90
    assert rig.withheld()["", SLOT] == 1


def test_an_amount_above_the_inventory_is_limited_to_it_and_shown(rig):
    rig = rig(one=ReportedMeasurements())
    rig.collectors["one"].told = (lambda: [rig.told(LICENCE, amount=1e9)],)
    rig.minutes(25)
    assert rig.withheld()["_NUMA_0", LICENCE] == 0
    assert (
        "it reported 1e+09 CUSTOM_LICENCE of NUMA_0, more than the inventory's 100"
        in rig.loop.failure_texts[0]
    )


def test_the_first_of_two_collectors_of_one_class_counts_and_the_conflict_is_shown(rig):
    rig = rig(one=ReportedMeasurements(), two=ReportedMeasurements())
    rig.collectors["one"].told = (lambda: [rig.told(LICENCE, amount=10)],)
    rig.collectors["two"].told = (lambda: [rig.told(LICENCE, amount=90)],)
    rig.minutes(25)
    assert rig.withheld()["_NUMA_0", LICENCE] == 80
    assert rig.loop.failure_texts == ("[capacity] collectors: two: one reports CUSTOM_LICENCE already",)


def test_a_collector_that_hangs_delays_no_other_and_is_abandoned(rig, monkeypatch):
    rig = rig(one=ReportedMeasurements(), other=ReportedMeasurements(classes=(SLOT,)))
    called, release = threading.Event(), threading.Event()

    def hang():
        called.set()
        release.wait(30)
        return [rig.told(LICENCE)]

    rig.collectors["one"].told = (hang,)
    rig.collectors["other"].told = (lambda: [rig.told(SLOT, "", 3)],)
    try:
        rig.loop.start()
        assert called.wait(10)
        hanging = rig.loop.runners["one"]
        later = time.monotonic() + HANGING_SECONDS + 1
        monkeypatch.setattr("compute_agent.loops.collectors.time", SimpleNamespace(monotonic=lambda: later))
        rig.loop.run_round(TREE)
        assert "one: it has not answered for 2 minutes" in rig.loop.failure_texts[0]
        rig.loop.use_collectors(["other"])
        rig.loop.run_round(TREE)
        assert rig.loop.failure_texts == ()
        assert ("_NUMA_0", LICENCE) not in rig.withheld()
        rig.loop.stop()
    finally:
        release.set()
    wait_for(lambda: not hanging.is_running)


def test_the_example_collector_is_found_by_its_metadata_and_reports(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    assert "licences" in installed_collectors()
    check_collectors(["licences"])
    (tmp_path / "licences").write_text("NUMA_0 40\n")
    monkeypatch.setenv("LICENCES", str(tmp_path / "licences"))
    clock = [time.time()]
    loop = CollectorLoops(["licences"], tmp_path, EventRecorder(), CollectorRegistry(), lambda: clock[0])
    (runner,) = loop.runners.values()
    for minute in range(6):
        clock[0] += 60 if minute else 0
        runner.call_collector()
        loop.run_round(TREE)
    assert loop.failure_texts == ()
    assert loop.known["licences"].collected[LICENCE, "n0"].usable_amount(clock[0]) == 36.0


def test_a_collector_that_is_removed_during_a_round_withholds_nothing(rig):
    rig = rig(one=ReportedMeasurements(classes=(LICENCE,)))
    rig.minutes()
    known = rig.loop.known
    assert rig.withheld()
    rig.loop.use_collectors([])
    rig.loop.known = known  # as the round does that had begun before
    assert (rig.withheld(), rig.loop.list_rows(TREE)) == ({}, [])


def test_a_collector_that_is_not_installed_is_refused():
    with pytest.raises(ConfigError, match=r"no installed package has a collector wat"):
        check_collectors(["wat"])


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"version": 9}', b'{"version": 1, "collectors": {"a": {"classes": 1}}}']
)
def test_other_content_of_the_file_is_refused(content):
    with pytest.raises(ValueError, match=r"."):
        CLASSES_FORMAT.parse(content)


numbers = st.floats() | st.integers() | st.sampled_from([0.0, 50.0, 3.6e9, 3.6e9 + 500])


@given(st.lists(st.tuples(numbers, numbers, numbers, st.floats(-1e4, 1e4)), max_size=30))
def test_offers_never_exceed_the_reports_and_the_inventory(steps):
    now, collected, least = 3.6e9, CollectedAmount(), 0.0
    for amount, margin, until, elapsed in steps:
        now += elapsed
        try:
            told = check_measurement(ClassMeasurement(LICENCE, "", amount, margin, until), {LICENCE}, now)
        except ValueError:
            told = None
        collected = collected.with_measurement(told, 90, now)
        least = collected.amount - collected.margin
        assert 0 <= collected.offered_amount(now) <= max(0.0, min(least, 90))
        assert collected.valid_until <= max(now + MAX_VALID_SECONDS, collected.valid_until)
        assert collected.offered_amount(now + MAX_VALID_SECONDS + 1) == 0
        again = CLASSES_FORMAT.parse(
            CLASSES_FORMAT.dump({"c": CollectedClasses(frozenset({LICENCE}), {(LICENCE, "n"): collected})})
        )
        kept = again["c"].collected[LICENCE, "n"]
        assert replace(kept, offer=collected.offer) == collected
