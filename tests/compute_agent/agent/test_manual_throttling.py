"""Tests of limits and evictions that an operator orders by hand."""

import threading

import pytest

from compute_agent.agent.manual_throttling import OWNER, ManualThrottling
from compute_agent.agent.protocol import RequestError
from compute_agent.events.event import EventRecorder
from compute_agent.model.messages import DriverError
from compute_agent.model.resource import CPU_QUOTA, ThrottleControl
from tests.compute_agent.builders import build_guest
from tests.waits import wait_for

QUOTA = ThrottleControl(CPU_QUOTA)


class ThrottledHost:
    """A host that accepts limits and evictions of guests. A test can make these fail or wait."""

    def __init__(self):
        self.limits, self.left, self.events = {}, [], []
        self.failure, self.may_leave = None, threading.Event()
        self.acting = ManualThrottling(self, self, EventRecorder(self.events.append))

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
def host():
    return ThrottledHost()


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
