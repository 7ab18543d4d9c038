"""Tests of what the worker prepares for guests that are about to start."""

import os
from dataclasses import replace

import pytest

from compute_agent.model.messages import DriverError
from compute_agent.pipeline import enforcer
from compute_agent.pipeline.events import (
    GuestAppeared,
    GuestExpected,
    GuestStarted,
    GuestStopped,
    HostStateChanged,
    ReconcileGuests,
)
from compute_agent.pipeline.guest_cache import CachedGuest, GuestCache
from tests.compute_agent.builders import build_guest
from tests.compute_agent.pipeline.fake_host import HOST_STATE, FakeHost, Recorder

HOLDS = {"node0": {"VCPU": 1, "LLC": 4}}
HERE = os.getpid()  # a process that is there for as long as the test


class Early(Recorder):
    """A controller that may act before the start of a guest is complete."""

    name = "early"
    acts_early = True
    awaits = True


@pytest.fixture
def rig():
    return FakeHost()


@pytest.fixture
def controllers(rig):
    controllers = Recorder(), Early()
    rig.handle(HostStateChanged(HOST_STATE, controllers))
    return controllers


def draft(pid=0):
    return build_guest("a", pid=pid)


def started(rig, pid):
    guest = draft(pid)
    rig.driver.running["a"] = guest
    rig.handle(GuestStarted(guest, HOLDS, 2.0, started=True))


def test_early_controllers_prepare_for_an_expected_guest_and_apply_to_its_process(rig, controllers):
    late, early = controllers
    rig.handle(GuestExpected(draft(), HOLDS))
    assert (late.synced[-1:], early.synced[-1]) == ([set()], {"a"})
    assert early.applied == {}
    rig.handle(GuestAppeared(draft(HERE)))
    assert (early.applied["a"].guest.pid, early.applied["a"].allocation) == (HERE, HOLDS)
    assert late.applied == {}
    assert rig.pipeline.guest_views() == []


def test_a_guest_is_expected_once(rig, controllers):
    rig.handle(GuestExpected(draft(), HOLDS))
    rig.handle(GuestAppeared(draft(HERE)))
    started(rig, HERE)
    (view,) = rig.pipeline.guest_views()
    assert view.cache_delay is not None
    assert rig.metric("cache_group_seconds_count") == 1
    rig.handle(GuestStopped(draft(HERE)))
    assert controllers[1].synced[-1] == set()


def test_late_events_of_the_previous_start_do_not_undo_an_announcement(rig, controllers):
    ended = 2**22 + 1  # no process has such an id
    for found in ([], [GuestAppeared(draft(HERE))]):
        for event in (GuestExpected(draft(), HOLDS), *found):
            rig.handle(event)
        started(rig, ended)
        del rig.driver.running["a"]
        rig.handle(GuestStopped(draft(ended)))
        assert controllers[1].synced[-1] == {"a"}


def test_the_delay_of_an_unannounced_guest_is_the_age_of_its_process(rig, controllers):
    started(rig, HERE)
    assert rig.pipeline.guest_views()[0].cache_delay > 0


def test_no_delay_is_measured_without_a_working_early_controller(rig, controllers):
    _, early = controllers
    early.broken = OSError(28, "No space left on device")
    started(rig, HERE)
    assert rig.pipeline.guest_views()[0].cache_delay is None
    other = FakeHost()
    other.handle(HostStateChanged(HOST_STATE, (Recorder(),)))
    started(other, HERE)
    assert other.pipeline.guest_views()[0].cache_delay is None


def test_a_failed_preparation_of_a_process_is_reported_and_repeated_at_its_start(rig, controllers):
    rig.handle(GuestExpected(draft(), HOLDS))
    controllers[1].broken = OSError(16, "Device or resource busy")
    with pytest.raises(DriverError, match="early: "):
        rig.handle(GuestAppeared(draft(HERE)))
    controllers[1].broken = None
    started(rig, HERE)
    assert rig.pipeline.guest_views()[0].pending == ()


def test_an_unexpected_process_is_left_alone(rig, controllers):
    rig.handle(GuestAppeared(draft(HERE)))
    assert controllers[1].applied == {}


@pytest.mark.parametrize("event", [GuestExpected(draft(), HOLDS), GuestAppeared(draft(HERE))])
def test_an_announcement_fails_while_the_running_guests_are_unknown(rig, monkeypatch, event):
    rig.take_over()
    rig.new_pipeline()

    def away():
        raise DriverError("libvirtd is away")

    monkeypatch.setattr(rig.driver, "guests", away)
    rig.take_over()
    with pytest.raises(DriverError, match="libvirtd is away"):
        rig.handle(event)


def test_a_running_guest_of_the_same_uuid_counts_until_it_has_left(rig, controllers):
    started(rig, HERE)
    rig.handle(GuestExpected(draft(), {"node0": {"VCPU": 2}}))
    assert controllers[1].applied["a"].allocation == HOLDS
    rig.handle(GuestStopped(draft(HERE)))
    assert controllers[1].synced[-1] == {"a"}


def test_expected_guests_that_do_not_come_or_end_are_forgotten(rig):
    now = [0.0]
    one = enforcer.ExpectedGuests(GuestCache(frozenset(), HOST_STATE), lambda: now[0])
    one.add(draft(), HOLDS)
    one.add(replace(draft(), uuid="b"), HOLDS)
    one.note_process(replace(draft(HERE), uuid="b"))
    one.add(replace(draft(), uuid="c"), HOLDS)
    one.note_process(replace(draft(2**22 + 1), uuid="c"))  # no process has such an id
    assert [each.guest.uuid for each in one.waiting_guests()] == ["a", "b"]
    now[0] = enforcer.KEPT_SECONDS
    assert [each.guest.uuid for each in one.waiting_guests()] == ["b"]
    now[0] = enforcer.STARTING_SECONDS
    assert one.waiting_guests() == []


def test_a_reconciliation_removes_preparations_for_guests_that_did_not_come(rig, controllers, monkeypatch):
    monkeypatch.setattr(enforcer, "KEPT_SECONDS", -1.0)
    rig.handle(GuestExpected(draft(), HOLDS))
    rig.handle(ReconcileGuests())
    assert controllers[1].synced[-1] == set()


def test_a_running_guest_is_not_expected():
    cache = GuestCache(frozenset(), HOST_STATE)
    one = enforcer.ExpectedGuests(cache)
    one.add(draft(), HOLDS)
    cache.add(CachedGuest(draft(HERE)))
    assert one.waiting_guests() == []
