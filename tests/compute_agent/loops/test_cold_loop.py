"""Tests of probes for cold memory on a fake kernel, with one guest that has cold memory and one that needs
all its memory.
"""

import errno
import os
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from compute_agent.classes.guest_classes import QosClass, QosClasses
from compute_agent.loops import usage
from compute_agent.loops.usage import COLD_PAUSE, ColdMemoryLoop
from compute_agent.model.resource import RECLAIMED_MEMORY
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.reclaim.cold_memory import CALM_SECONDS
from tests.compute_agent.builders import build_guest
from tests.compute_agent.fakes import FakeDriver

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
def loop(kernel, tmp_path):
    capacity = SimpleNamespace(cold_memory=True, cold_pressure=0.1)
    options = SimpleNamespace(capacity=capacity, host=SimpleNamespace(root=str(tmp_path)))
    conf = SimpleNamespace(options=options, settings=SimpleNamespace(classes=CLASSES))
    return ColdMemoryLoop(conf, kernel, FakeDriver({0}), CollectorRegistry(), lambda: kernel.now)


def rounds(kernel, loop, count):
    for _ in range(count):
        kernel.pass_time(COLD_PAUSE)
        loop.run_round()


def test_cold_memory_goes_to_swap_and_used_memory_stays(kernel, loop):
    kernel.add("idle", 4 * GIB, GIB)
    kernel.add("busy", 4 * GIB, 4 * GIB)
    rounds(kernel, loop, 1500)
    assert kernel.used["idle"] < 2.2 * GIB
    assert kernel.used["busy"] > 3.99 * GIB
    # A guest that waits is probed less often, and waits for less than a hundredth of the time.
    assert kernel.waited["idle"] == 0
    assert kernel.waited["busy"] < 0.5 * kernel.now
    assert loop.cold_memory.keys() == {"idle"}
    assert loop.cold_memory["idle"] == pytest.approx(kernel.swap["idle"], abs=10 * MIB)


def test_swap_counts_as_used_as_soon_as_a_guest_waits(kernel, loop):
    kernel.add("idle", 4 * GIB, GIB)
    rounds(kernel, loop, int(CALM_SECONDS / COLD_PAUSE) + 10)
    assert loop.cold_memory["idle"] > 0
    kernel.hot["idle"] = 4 * GIB
    rounds(kernel, loop, 1)
    assert loop.cold_memory == {}
    # Everything is given back as the guest uses its memory.
    assert kernel.swap["idle"] < 10 * MIB


def test_probes_leave_swap_to_watermarks_and_spare_other_guests(kernel, loop):
    kernel.add("idle", 4 * GIB, GIB)
    kernel.add("rest", 4 * GIB, GIB, {"host": {RECLAIMED_MEMORY: 4096}})
    kernel.add("dedicated", 4 * GIB, GIB, {"host": {"PCPU": 1, "MEMORY_MB": 4096}})
    kernel.free_swap = 24
    rounds(kernel, loop, 5)
    assert set(kernel.swap.values()) == {0}
    kernel.free_swap = 26
    rounds(kernel, loop, 5)
    assert kernel.swap["idle"] > 0
    assert kernel.swap["dedicated"] == 0


def test_a_kernel_without_reclaim_is_logged_once(kernel, loop, caplog):
    kernel.add("idle", 4 * GIB, GIB)
    kernel.refused = {"idle"}
    rounds(kernel, loop, 10)
    assert caplog.text.count("memory.reclaim needs Linux 5.19") == 1
    assert loop.cold_memory == {}
