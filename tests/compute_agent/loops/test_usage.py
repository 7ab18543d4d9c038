"""Tests of means of the CPU use of guests, of their reports to the worker, and of cold memory."""

import errno
import os
import types
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.classes.guest_classes import QosClass, QosClasses
from compute_agent.files import secure_folder
from compute_agent.loops import usage
from compute_agent.loops.usage import COLD_PAUSE, ColdMemoryLoop, CpuAverage, CpuUse, smooth_averages
from compute_agent.model.resource import RECLAIMED_MEMORY
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.policy.load_profiles import WEEK_HOURS
from compute_agent.reclaim.zone import CALM_SECONDS
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


GIB, MIB = 2**30, 2**20
CLASSES = QosClasses({"LS": QosClass("LS", 10), "BE": QosClass("BE", 0)}, 10)


class FakeMemory:
    """A fake kernel. A guest waits for a second for each MiB that it reads back from swap."""

    def __init__(self, folder):
        self.folder, self.now, self.guests, self.free_swap = folder, 0.0, {}, 100
        self.views, self.used, self.hot, self.swap, self.waited, self.refused = [], {}, {}, {}, {}, set()

    def add(self, uuid, used, hot, allocation=None):
        group = self.folder / uuid
        group.mkdir()
        (group / "memory.reclaim").touch()
        guest = build_guest(uuid, pid=1, cgroup=str(group))
        held = {"host": {"VCPU": 1, "MEMORY_MB": 4096}} if allocation is None else allocation
        self.views.append(GuestView(guest, held, None, "", "", (), {}, ()))
        self.used[uuid], self.hot[uuid], self.swap[uuid], self.waited[uuid] = used, hot, 0, 0.0

    def guest_views(self):
        return self.views

    def reclaim(self, group, amount, seconds, monotonic):
        uuid = os.path.basename(group)
        if uuid in self.refused:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.used[uuid] -= amount
        self.swap[uuid] += amount
        return amount

    def pass_time(self, seconds):
        """Let time pass: guests read back the memory that they use, and wait meanwhile."""
        self.now += seconds
        for uuid, used in self.used.items():
            missing = max(0, self.hot[uuid] - used)
            self.used[uuid] += missing
            self.swap[uuid] -= missing
            self.waited[uuid] += missing / MIB
        self.write()

    def write(self):
        for uuid in self.used:
            group = self.folder / uuid
            (group / "memory.current").write_text(f"{self.used[uuid]}\n")
            (group / "memory.swap.current").write_text(f"{self.swap[uuid]}\n")
            total = int(self.waited[uuid] * 1e6)
            (group / "memory.pressure").write_text(f"some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n")
        (self.folder / "proc").mkdir(exist_ok=True)
        (self.folder / "proc/meminfo").write_text(f"SwapTotal: 100 kB\nSwapFree: {self.free_swap} kB\n")


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    made = FakeMemory(tmp_path)
    monkeypatch.setattr(usage, "reclaim_memory", made.reclaim)
    return made


@pytest.fixture
def cold_loop(kernel, tmp_path):
    capacity = SimpleNamespace(cold_memory=True, cold_pressure=0.1)
    options = SimpleNamespace(capacity=capacity, host=SimpleNamespace(root=str(tmp_path)))
    conf = SimpleNamespace(options=options, settings=SimpleNamespace(classes=CLASSES))
    return ColdMemoryLoop(conf, kernel, FakeDriver({0}), CollectorRegistry(), lambda: kernel.now)


def rounds(kernel, cold_loop, count):
    for _ in range(count):
        kernel.pass_time(COLD_PAUSE)
        cold_loop.run_round()


def test_cold_memory_goes_to_swap_and_used_memory_stays(kernel, cold_loop):
    kernel.add("idle", 4 * GIB, GIB)
    kernel.add("busy", 4 * GIB, 4 * GIB)
    rounds(kernel, cold_loop, 1500)
    assert kernel.used["idle"] < 2.2 * GIB
    assert kernel.used["busy"] > 3.99 * GIB
    # A guest that waits is probed less often, and waits for less than a hundredth of the time.
    assert kernel.waited["idle"] == 0
    assert kernel.waited["busy"] < 0.5 * kernel.now
    assert cold_loop.cold_memory.keys() == {"idle"}
    assert cold_loop.cold_memory["idle"] == pytest.approx(kernel.swap["idle"], abs=10 * MIB)


def test_swap_counts_as_used_as_soon_as_a_guest_waits(kernel, cold_loop):
    kernel.add("idle", 4 * GIB, GIB)
    rounds(kernel, cold_loop, int(CALM_SECONDS / COLD_PAUSE) + 10)
    assert cold_loop.cold_memory["idle"] > 0
    kernel.hot["idle"] = 4 * GIB
    rounds(kernel, cold_loop, 1)
    assert cold_loop.cold_memory == {}
    # Everything is given back as the guest uses its memory.
    assert kernel.swap["idle"] < 10 * MIB


def test_probes_leave_swap_to_watermarks_and_spare_other_guests(kernel, cold_loop):
    kernel.add("idle", 4 * GIB, GIB)
    kernel.add("rest", 4 * GIB, GIB, {"host": {RECLAIMED_MEMORY: 4096}})
    kernel.add("dedicated", 4 * GIB, GIB, {"host": {"PCPU": 1, "MEMORY_MB": 4096}})
    kernel.free_swap = 24
    rounds(kernel, cold_loop, 5)
    assert set(kernel.swap.values()) == {0}
    kernel.free_swap = 26
    rounds(kernel, cold_loop, 5)
    assert kernel.swap["idle"] > 0
    assert kernel.swap["dedicated"] == 0


def test_a_kernel_without_reclaim_is_logged_once(kernel, cold_loop, caplog):
    kernel.add("idle", 4 * GIB, GIB)
    kernel.refused = {"idle"}
    rounds(kernel, cold_loop, 10)
    assert caplog.text.count("memory.reclaim needs Linux 5.19") == 1
    assert cold_loop.cold_memory == {}
