"""Averages of the CPU use of guests over minutes, and the events for the worker."""

import types
from pathlib import Path

import pytest

from compute_agent.classes.guest_classes import QosClass, QosClasses
from compute_agent.loops.usage import CpuAverage, CpuUse, smooth_averages
from compute_agent.pipeline.guest_cache import GuestView
from tests.compute_agent.builders import build_guest
from tests.compute_agent.fakes import FakeDriver


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
        self.append(dict(event.use))


@pytest.fixture
def events(tmp_path):
    return Events(tmp_path)


@pytest.fixture
def policy():
    """The options of [policy]."""
    return types.SimpleNamespace(load_aware=True, load_minutes=1.0)


@pytest.fixture
def loop(events, policy):
    options = types.SimpleNamespace(policy=policy, host=types.SimpleNamespace(root="/"))
    conf = types.SimpleNamespace(
        options=options, settings=types.SimpleNamespace(classes=QosClasses({"LS": QosClass("LS", 1)}, 9))
    )
    return CpuUse(conf, events, FakeDriver({0}))


def used(folder, seconds):
    (folder / "cpu.stat").write_text(f"usage_usec {int(seconds * 1e6)}\n")


def test_use_is_reported_after_enough_measurements_and_withdrawn(tmp_path, loop, policy, events):
    for number in range(4):
        used(tmp_path, 7.5 * number)
        loop.measure_use(15.0 * number)
    assert events == []
    used(tmp_path, 30)
    loop.measure_use(60.0)
    assert events == [{"a": pytest.approx(0.5)}]
    policy.load_aware = False
    loop.measure_use(75.0)
    loop.measure_use(90.0)
    assert events[1:] == [{}]
