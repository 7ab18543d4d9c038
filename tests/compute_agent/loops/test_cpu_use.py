"""Tests of means of the CPU use of guests over minutes, and of the events that report them to the worker."""

import types
from pathlib import Path

import pytest

from compute_agent.classes.guest_classes import QosClass, QosClasses
from compute_agent.files import secure_folder
from compute_agent.loops.usage import CpuAverage, CpuUse, smooth_averages
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.policy.load_profiles import WEEK_HOURS
from tests.compute_agent.builders import build_guest
from tests.compute_agent.fakes import FakeDriver

# 2026-06-01 0:00, a Monday, in UTC
MONDAY = 1780272000.0


@pytest.fixture(autouse=True)
def in_utc(monkeypatch):
    """Set the time zone to UTC, because hours of the week depend on the host's time zone."""
    monkeypatch.setenv("TZ", "UTC")


def test_averages_follow_use_and_forget_guests_that_are_gone():
    first = smooth_averages({}, {"a": 1.0, "b": 0.5}, 15, 60)
    assert first == {"a": CpuAverage(1.0, 15), "b": CpuAverage(0.5, 15)}
    then = smooth_averages(first, {"a": 0.0}, 15, 60)
    assert then.keys() == {"a"}
    assert then["a"].seconds == 30
    assert then["a"].cores == pytest.approx(0.7788, abs=1e-4)
    for _ in range(40):
        then = smooth_averages(then, {"a": 0.25}, 15, 60)
    assert then["a"].cores == pytest.approx(0.25, abs=1e-3)


class Events(list):
    """A pipeline with one guest that records its events."""

    def __init__(self, group: Path):
        guest = build_guest("a", pid=1, cgroup=str(group))
        self.guests = [GuestView(guest, {}, None, "", "", (), {}, ())]

    def guest_views(self):
        return self.guests

    def submit(self, event):
        self.append({guest: sum(profile.hours) / WEEK_HOURS for guest, profile in event.use.items()})
        self.recent = {guest: profile.hours[0] for guest, profile in event.recent.items()}


@pytest.fixture
def events(tmp_path):
    return Events(tmp_path)


@pytest.fixture
def policy():
    """The options in [policy]."""
    return types.SimpleNamespace(load_aware=True, load_minutes=1.0)


@pytest.fixture
def make_loop(events, policy, tmp_path):
    """Make a loop. A second call makes another loop for the same state folder."""

    def make():
        host = types.SimpleNamespace(root="/")
        options = types.SimpleNamespace(policy=policy, host=host, state_path=str(tmp_path / "state"))
        settings = types.SimpleNamespace(classes=QosClasses({"LS": QosClass("LS", 1)}, 9))
        return CpuUse(types.SimpleNamespace(options=options, settings=settings), events, FakeDriver({0}))

    secure_folder(tmp_path / "state")
    return make


@pytest.fixture
def loop(make_loop):
    return make_loop()


def used(folder, seconds):
    (folder / "cpu.stat").write_text(f"usage_usec {int(seconds * 1e6)}\n")


def test_use_is_reported_after_enough_measurements_and_withdrawn(tmp_path, loop, policy, events):
    for number in range(4):
        used(tmp_path, 7.5 * number)
        loop.measure_use(15.0 * number, MONDAY)
    assert events == []
    used(tmp_path, 30)
    loop.measure_use(60.0, MONDAY)
    assert events == [{"a": pytest.approx(0.5)}]
    policy.load_aware = False
    loop.measure_use(75.0, MONDAY)
    loop.measure_use(90.0, MONDAY)
    assert events[1:] == [{}]


def test_small_changes_of_the_mean_are_no_events(tmp_path, loop, events):
    seconds = 0.0
    for number, part in enumerate([0.5] * 5 + [0.55] * 40 + [0.7] * 40):
        used(tmp_path, seconds)
        loop.measure_use(15.0 * number, MONDAY)
        seconds += 15 * part
    assert len(events) < 10
    assert events[-1] == {"a": pytest.approx(0.7, abs=0.05)}
    assert events.recent == {"a": pytest.approx(events[-1]["a"])}


def test_hours_are_learnt_and_kept_for_the_next_agent(tmp_path, make_loop, events):
    """The guest uses a CPU from 8 to 20 o'clock. The next agent knows this before it has seen the guest."""
    loop, seconds = make_loop(), 0.0
    used(tmp_path, 0)
    loop.measure_use(0.0, MONDAY)
    for step in range(1, 26 * 4):
        hour = (step - 1) // 4 % 24
        seconds += 900.0 * (8 <= hour < 20)
        used(tmp_path, seconds)
        loop.measure_use(900.0 * step, MONDAY + 900.0 * step - 1)
    assert events[-1] == {"a": pytest.approx(0.5)}
    assert events.recent == {"a": pytest.approx(0, abs=0.05)}
    events.clear()
    events.guests = []
    make_loop().measure_use(0.0, MONDAY + 3 * 86400)
    assert events == [{"a": pytest.approx(0.5)}]
    assert events.recent == {}


def test_a_file_that_cannot_be_used_is_put_aside(tmp_path, make_loop, events):
    path = tmp_path / "state" / "cpu_use.json"
    path.write_text('{"version": 2, "guests": {}}')
    make_loop().measure_use(0.0, MONDAY)
    assert events == []
    assert len(list(path.parent.glob("cpu_use.json.damaged-*"))) == 1
