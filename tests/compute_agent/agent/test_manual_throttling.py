"""Tests of limits and evictions that an operator orders by hand."""

import threading
from dataclasses import replace

import pytest

from compute_agent.agent.operator_orders import OWNER, ManualThrottling
from compute_agent.agent.protocol import RequestError
from compute_agent.events.event import EventRecorder
from compute_agent.loops import note_files
from compute_agent.loops.note_files import EVICTION_NOTES, EVICTIONS_FILE, EvictionStore
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import CPU_QUOTA, ThrottleControl
from compute_agent.throttling.evictions import EvictionInterruptedError
from tests.compute_agent.builders import build_guest
from tests.waits import wait_for

QUOTA = ThrottleControl(CPU_QUOTA)
WEB = "3f1c9a5e-0000-4000-8000-000000000000"


class ThrottledHost:
    """A host that accepts limits and evictions of guests. A test can make these fail or wait."""

    def __init__(self, folder):
        self.limits, self.left, self.events = {}, [], []
        self.failure, self.may_leave = None, threading.Event()
        self.folder, self.machine, self.boot = folder, "a", "first"
        self.has_taken_over, self.running, self.lost = True, [], {}
        self.start_agent()

    def start_agent(self):
        """Start an agent with the notes of the last one. Its thread does not run."""
        recorder, store = EventRecorder(self.events.append), EvictionStore(self.folder, self.machine)
        self.acting = ManualThrottling(self, self, recorder, self, store, self.boot, lambda: self.lost)

    def guests(self):
        return self.running

    def interrupt(self, guest):
        """Let the agent end while it evicts a guest."""
        self.failure = EvictionInterruptedError("the agent ends")
        self.may_leave.set()
        self.acting.evict_guest(guest)
        self.running, self.failure = [guest], None
        self.start_agent()

    def noted(self):
        return EVICTION_NOTES.parse((self.folder / EVICTIONS_FILE).read_bytes()).keys()

    def set_limit(self, owner, guest, knob, limit):
        if self.failure:
            raise self.failure
        self.limits[owner, guest, knob] = limit

    def stop_guest(self, uuid):
        self.may_leave.wait(60)
        if self.failure:
            raise self.failure

    def give_back(self, uuid):
        self.left.append(uuid)

    def evicts(self, guest):
        """Evict a guest, unless its eviction has begun already."""
        try:
            self.acting.evict_guest(guest)
        except RequestError:
            return False
        return True

    def kinds(self):
        return [(event.kind, event.outcome, event.reason) for event in self.events]


@pytest.fixture
def host(tmp_path):
    return ThrottledHost(tmp_path)


def test_a_guest_is_limited_and_released_with_an_event_each(host):
    guest = build_guest("a")
    host.acting.limit_cpus(guest, 0.5)
    assert host.limits == {(OWNER, "a", QUOTA): 0.5}
    host.acting.limit_cpus(guest, None)
    assert host.limits == {(OWNER, "a", QUOTA): None}
    assert host.kinds() == [("throttle_down", "done", OWNER), ("throttle_up", "done", OWNER)]


def test_a_limit_that_the_kernel_does_not_take_is_refused_without_an_event(host):
    host.failure = DriverError("it has no group")
    with pytest.raises(RequestError, match="it has no group"):
        host.acting.limit_cpus(build_guest("a"), 0.5)
    assert host.events == []


def test_a_guest_is_evicted_once(host):
    guest = build_guest("a")
    host.acting.evict_guest(guest)
    with pytest.raises(RequestError, match="is being evicted already"):
        host.acting.evict_guest(guest)
    host.may_leave.set()
    wait_for(lambda: host.events)
    assert (host.left, host.kinds()) == (["a"], [("evict", "done", OWNER)])


def test_an_eviction_that_fails_is_an_event_and_can_be_tried_again(host):
    guest, host.failure = build_guest("a"), DriverError("it still runs")
    host.may_leave.set()
    host.acting.evict_guest(guest)
    wait_for(lambda: host.events)
    assert (host.left, host.kinds()) == ([], [("evict", "failed", OWNER)])
    host.failure = None
    wait_for(lambda: host.evicts(guest))
    wait_for(lambda: host.left == ["a"])


def test_a_preserved_guest_is_neither_limited_nor_evicted(host):
    guest = build_guest("a", preserve=True)
    for act in (lambda: host.acting.limit_cpus(guest, 1.0), lambda: host.acting.evict_guest(guest)):
        with pytest.raises(RequestError, match="--no-preserve"):
            act()


class TestRestarts:
    def test_the_next_agent_continues_an_eviction(self, host, caplog):
        host.interrupt(build_guest(WEB))
        assert (host.noted(), host.events) == ({WEB}, [])
        host.acting.resume_evictions()
        wait_for(lambda: not host.noted())
        assert (host.left, host.kinds()) == ([WEB], [("evict", "done", OWNER)])

    def test_the_thread_of_the_next_agent_continues_it(self, host):
        host.interrupt(build_guest(WEB))
        host.acting.start()
        wait_for(lambda: host.left == [WEB])
        host.acting.stop()

    def test_the_allocation_of_a_guest_that_has_left_is_given_back(self, host):
        host.interrupt(build_guest(WEB))
        host.running = []
        host.acting.resume_evictions()
        wait_for(lambda: host.left == [WEB])

    @pytest.mark.parametrize("change", ["pid", "boot", "preserve"])
    def test_a_guest_that_was_started_again_or_is_preserved_stays(self, host, change):
        host.interrupt(build_guest(WEB))
        if change == "boot":
            host.boot = "second"
            host.start_agent()
        elif change == "pid":
            host.running = [replace(host.running[0], pid=host.running[0].pid + 1)]
        else:
            host.running = [build_guest(WEB, preserve=True)]
        host.acting.resume_evictions()
        assert (host.noted(), host.left, host.events) == (set(), [], [])

    @pytest.mark.parametrize("reason", ["starts", "lost"])
    def test_an_eviction_waits_until_the_guests_are_known(self, host, reason):
        host.interrupt(build_guest(WEB))
        host.has_taken_over, host.lost = (
            reason == "lost",
            {WEB: "libvirtd is away"} if reason == "lost" else {},
        )
        host.acting.resume_evictions()
        assert (host.noted(), host.left) == ({WEB}, [])
        host.has_taken_over, host.lost = True, {}
        host.acting.resume_evictions()
        wait_for(lambda: host.left == [WEB])

    def test_an_agent_on_a_copied_folder_evicts_nothing(self, host):
        host.interrupt(build_guest(WEB))
        host.machine = "b"
        host.start_agent()
        host.acting.resume_evictions()
        assert (host.noted(), host.left) == ({WEB}, [])

    def test_a_full_disk_does_not_prevent_an_eviction(self, host, monkeypatch, caplog):
        def fail(*arguments):
            raise OSError("No space left on device")

        monkeypatch.setattr(note_files, "write_durably", fail)
        host.may_leave.set()
        host.acting.evict_guest(build_guest(WEB))
        wait_for(lambda: host.left == [WEB])
        assert "would forget the evictions in a crash" in caplog.text

    def test_damaged_notes_are_renamed(self, host, caplog):
        (host.folder / EVICTIONS_FILE).write_bytes(b"{")
        host.start_agent()
        host.acting.resume_evictions()
        assert "does not continue the evictions" in caplog.text
        assert host.left == []
