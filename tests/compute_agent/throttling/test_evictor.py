"""Tests of the threads in which evictions run."""

import threading
import time

from compute_agent.throttling.evictions import EvictionFailedError, GuestEvictor
from tests.waits import wait_for


def finished(evictor, count=1):
    """Wait for evictions to end, and return them."""
    over = {}

    def are_over():
        nonlocal over
        over |= evictor.finished_evictions()
        return len(over) >= count

    wait_for(are_over, f"{count} evictions are over", evidence=lambda: over)
    return over


def test_allocation_is_given_back_after_the_guest_has_left():
    calls = []
    evictor = GuestEvictor(
        lambda guest, grace: calls.append(("stop", guest)), lambda guest: calls.append(("give", guest))
    )
    evictor.begin_eviction("a")
    assert finished(evictor) == {"a": None}
    assert calls == [("stop", "a"), ("give", "a")]
    assert evictor.finished_evictions() == {}


def test_allocation_is_kept_when_the_guest_stays():
    def stop(guest, grace):
        raise EvictionFailedError("it does not want to")

    given = []
    evictor = GuestEvictor(stop, given.append)
    evictor.begin_eviction("a")
    assert str(finished(evictor)["a"]) == "it does not want to"
    assert given == []


def test_allocation_that_cannot_be_given_back_is_a_failure():
    def give_back(guest):
        raise OSError("placement is away")

    evictor = GuestEvictor(lambda guest, grace: None, give_back)
    evictor.begin_eviction("a")
    assert str(finished(evictor)["a"]) == "placement is away"


def test_guest_is_told_once_while_it_is_leaving_and_may_be_told_again_afterwards():
    go, told = threading.Event(), []

    def stop(guest, grace):
        told.append(guest)
        go.wait(30)

    evictor = GuestEvictor(stop, lambda guest: None)
    evictor.begin_eviction("a")
    evictor.begin_eviction("a")
    go.set()
    finished(evictor)
    assert told == ["a"]
    evictor.begin_eviction("a")
    finished(evictor)
    assert told == ["a", "a"]


def test_way_of_a_metric_replaces_the_stop():
    told = []
    evictor = GuestEvictor(lambda guest, grace: told.append("stop"), lambda guest: told.append("give back"))
    evictor.begin_eviction("a", lambda guest: told.append(f"own {guest}"))
    finished(evictor)
    assert told == ["own a", "give back"]


def test_evictions_do_not_keep_the_agent_from_ending():
    evictor = GuestEvictor(lambda guest, grace: time.sleep(60), lambda guest: None)
    evictor.begin_eviction("a")
    (thread,) = [one for one in threading.enumerate() if one.name == "evict-a"]
    assert thread.daemon
