"""Tests of starting guests: what drivers report reaches the worker, and announced guests are found."""

import threading
from concurrent.futures import Future
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from compute_agent.drivers.base import ChangeKind, GuestChange
from compute_agent.loops import arrivals
from compute_agent.loops.arrivals import GuestEvents, PreStartHook
from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest import ConsumerAllocations
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.messages import DriverError
from compute_agent.pipeline.events import GuestAppeared, GuestExpected, ReconcileGuests
from tests.compute_agent.builders import build_guest
from tests.compute_agent.loops.configurations import configuration
from tests.compute_agent.pipeline.fake_host import HOST_STATE, SETS, FakeHost

REFUSING = replace(
    HOST_STATE, cpu_sets=CpuSets(SETS.dedicated, frozenset(), frozenset()), refuse_unplaced=True
)


@pytest.mark.parametrize(
    ("kind", "runs"),
    [(ChangeKind.STARTED, False), (ChangeKind.FOUND, True), (ChangeKind.CHANGED, True)],
)
def test_only_a_guest_that_started_is_stopped_for_want_of_a_place(kind, runs):
    rig = FakeHost(REFUSING)
    nothing = SimpleNamespace(get_allocations=lambda uuid: SimpleNamespace(resources={}))
    arrivals = GuestEvents(configuration(client=nothing), rig.pipeline, lambda: None)
    rig.pipeline.start()
    guest = rig.driver.create_guest("free", "free", GuestSettings(), ())
    arrivals.report_change(GuestChange(kind, guest))
    arrivals.hand_over_changes()
    rig.pipeline.submit(ReconcileGuests()).result(30)
    rig.pipeline.stop()
    assert ("free" in rig.driver.running) is runs


GUEST = build_guest("a", pid=0)
HELD = {"node0": {"VCPU": 1}}


class Pipeline:
    """A pipeline that only records the submitted events."""

    def __init__(self):
        self.submitted = SimpleQueue()
        self.unclaimed_holdings = {}
        self.host_state = SimpleNamespace(root_known=True, own_part=lambda held: held)

    def submit(self, event):
        self.submitted.put(event)
        done = Future()
        done.set_result(None)
        return done


class Expecting:
    """A driver that fails at its first searches for announced guests."""

    def __init__(self, failures=0):
        self.failures = failures

    def expect_guest(self, description):
        return GUEST

    def find_appeared(self):
        if self.failures:
            self.failures -= 1
            raise DriverError("libvirtd is away")
        return [GUEST], False


def announcing(pipeline, expecting, allocations):
    conf = configuration(client=SimpleNamespace(get_allocations=allocations))
    return PreStartHook(conf, pipeline, expecting)


def test_a_failed_search_for_an_announced_guest_is_repeated(monkeypatch):
    monkeypatch.setattr(arrivals, "_TROUBLED_PAUSE", 0.0)
    pipeline = Pipeline()
    loop = announcing(pipeline, Expecting(failures=2), lambda uuid: ConsumerAllocations("a", HELD))
    loop.announce_guest("", 30)
    loop.start()  # later: no guest appears before its announcement is taken, which it waits for
    assert pipeline.submitted.get(timeout=30) == GuestExpected(GUEST, HELD)
    assert pipeline.submitted.get(timeout=5) == GuestAppeared(GUEST)
    loop.stop()


def test_a_placement_that_hangs_does_not_keep_a_guest_from_its_group(monkeypatch):
    """The guest starts with its last known allocation, and the number of threads is limited."""
    monkeypatch.setattr(arrivals, "_MAX_ASKING", 1)
    pipeline, asked, answers = Pipeline(), [], threading.Event()

    def hanging(uuid):
        asked.append(uuid)
        answers.wait(30)
        return ConsumerAllocations("a", {})

    pipeline.unclaimed_holdings["a"] = SimpleNamespace(allocation=HELD)
    loop = announcing(pipeline, Expecting(), hanging)
    for _ in range(2):
        loop.announce_guest("", 0.02)
        assert not answers.is_set()
        assert pipeline.submitted.get(timeout=5) == GuestExpected(GUEST, HELD)
    answers.set()
    assert asked == ["a"]
