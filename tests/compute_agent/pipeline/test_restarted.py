"""Tests of a guest that restarts while Placement is unavailable: it keeps the allocation of the last
report.
"""

import pytest

from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.events import AllocationsRead, GuestStarted, GuestStopped, ReconcileGuests
from tests.compute_agent.pipeline.fake_host import FakeHost


@pytest.fixture
def rig():
    """A host on which a guest with two dedicated CPUs has just stopped."""
    rig = FakeHost()
    guest = rig.run("a", (0, 2, 0), vcpus=2).guest
    rig.driver.discard(guest)
    rig.handle(GuestStopped(guest))
    return rig


def starts(rig):
    """Start the guest while Placement does not answer."""
    rig.handle(GuestStarted(rig.driver.create_guest("a", "a", GuestSettings(2), ()), None, 2.0))


def test_a_restarted_guest_gets_dedicated_cpus_again(rig):
    starts(rig)
    assert rig.observed("a") == {1, 2}
    (view,) = rig.pipeline.guest_views()
    assert view.allocation == {"node0": {"PCPU": 2, "VCPU": 0}}
    assert rig.pipeline.unclaimed_holdings == {}


def test_a_restarted_guest_gets_its_cpus_again_after_two_restarts_of_the_agent(rig):
    rig.restart()
    rig.restart()
    starts(rig)
    assert rig.observed("a") == {1, 2}


def test_a_guest_with_a_missed_start_gets_its_cpus_again(rig):
    rig.driver.create_guest("a", "a", GuestSettings(2), ())
    rig.handle(ReconcileGuests())
    assert rig.observed("a") == {1, 2}


def test_a_guest_with_a_missed_end_and_start_gets_its_cpus_again(rig):
    starts(rig)
    rig.driver.discard(rig.driver.running["a"])
    again = rig.driver.create_guest("a", "a", GuestSettings(2), ())
    rig.handle(ReconcileGuests())
    assert rig.observed("a") == {1, 2}
    assert rig.pipeline.guest_views()[0].guest.pid == again.pid


def test_a_consumer_without_an_earlier_guest_here_gets_its_cpus(rig):
    rig.handle(AllocationsRead({}, 2.0, {"new": {"node1": {"PCPU": 1}}}))
    rig.handle(GuestStarted(rig.driver.create_guest("new", "new", GuestSettings(), ()), None, 3.0))
    assert rig.observed("new") == {5}


def test_the_next_report_of_placement_counts(rig):
    starts(rig)
    rig.handle(AllocationsRead({"a": {}}, 3.0))
    assert rig.observed("a") == {3, 7}


def test_an_allocation_that_placement_has_removed_is_not_kept(rig):
    rig.handle(AllocationsRead({}, 2.0, {}))
    starts(rig)
    assert rig.observed("a") == {3, 7}
    assert rig.pipeline.guest_views()[0].allocation is None


def test_a_guest_with_unknown_allocation_does_not_count_as_unallocated(rig):
    rig.handle(AllocationsRead({}, 2.0, {}))
    starts(rig)
    rig.pipeline.update_gauges()
    assert (rig.metric("unallocated_guests"), rig.metric("unknown_guests")) == (0, 1)
