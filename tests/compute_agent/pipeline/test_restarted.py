"""A guest that is restarted while Placement is away keeps what it held when Placement was last heard."""

import pytest

from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.events import AllocationsRead, GuestStarted, GuestStopped, ReconcileGuests
from tests.compute_agent.pipeline.fake_host import FakeHost


@pytest.fixture
def rig():
    """A guest with two dedicated CPUs has stopped."""
    rig = FakeHost()
    guest = rig.run("a", (0, 2, 0), vcpus=2).guest
    rig.driver.discard(guest)
    rig.handle(GuestStopped(guest))
    return rig


def starts(rig):
    """Somebody starts it, and Placement does not answer."""
    rig.handle(GuestStarted(rig.driver.create_guest("a", "a", GuestSettings(2), ()), None, 2.0))


def test_it_gets_dedicated_cpus_again(rig):
    starts(rig)
    assert rig.observed("a") == {1, 2}
    (view,) = rig.pipeline.guest_views()
    assert view.allocation == {"node0": {"PCPU": 2, "VCPU": 0}}
    assert rig.pipeline.unclaimed_holdings == {}


def test_so_it_does_when_the_agent_was_restarted_between_even_twice(rig):
    rig.restart()
    rig.restart()
    starts(rig)
    assert rig.observed("a") == {1, 2}


def test_so_it_does_when_nobody_told_of_its_start(rig):
    rig.driver.create_guest("a", "a", GuestSettings(2), ())
    rig.handle(ReconcileGuests())
    assert rig.observed("a") == {1, 2}


def test_so_it_does_when_it_ended_and_started_and_nobody_told(rig):
    starts(rig)
    rig.driver.discard(rig.driver.running["a"])
    again = rig.driver.create_guest("a", "a", GuestSettings(2), ())
    rig.handle(ReconcileGuests())
    assert rig.observed("a") == {1, 2}
    assert rig.pipeline.guest_views()[0].guest.pid == again.pid


def test_so_does_a_consumer_whose_guest_never_ran_here(rig):
    rig.handle(AllocationsRead({}, 2.0, {"new": {"node1": {"PCPU": 1}}}))
    rig.handle(GuestStarted(rig.driver.create_guest("new", "new", GuestSettings(), ()), None, 3.0))
    assert rig.observed("new") == {5}


def test_what_placement_says_next_counts(rig):
    starts(rig)
    rig.handle(AllocationsRead({"a": {}}, 3.0))
    assert rig.observed("a") == {3, 7}


def test_what_placement_has_taken_away_is_not_kept(rig):
    rig.handle(AllocationsRead({}, 2.0, {}))
    starts(rig)
    assert rig.observed("a") == {3, 7}
    assert rig.pipeline.guest_views()[0].allocation is None


def test_unknown_is_not_counted_as_unallocated(rig):
    rig.handle(AllocationsRead({}, 2.0, {}))
    starts(rig)
    rig.pipeline.update_gauges()
    assert (rig.metric("unallocated_guests"), rig.metric("unknown_guests")) == (0, 1)
