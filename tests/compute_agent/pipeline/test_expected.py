"""Guests that are about to start: what is done for them before they are guests."""

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
    ReconcileGuests,
    WorldChanged,
)
from compute_agent.pipeline.guest_cache import CachedGuest, GuestCache
from tests.compute_agent.builders import build_guest
from tests.compute_agent.pipeline.fake_host import WORLD, FakeHost
from tests.compute_agent.pipeline.test_worker import Recorder

HOLDS = {"node0": {"VCPU": 1, "LLC": 4}}
HERE = os.getpid()  # a process that is there for as long as the test


class Early(Recorder):
    """A controller that may act before a start is over."""

    name = "early"
    acts_early = True
    awaits = True


@pytest.fixture
def rig():
    return FakeHost()


@pytest.fixture
def controllers(rig):
    controllers = Recorder(), Early()
    rig.handle(WorldChanged(WORLD, controllers))
    return controllers


def draft(pid=0):
    return build_guest("a", pid=pid)


def started(rig, pid):
    guest = draft(pid)
    rig.driver.running["a"] = guest
    rig.handle(GuestStarted(guest, HOLDS, 2.0, started=True))


def test_what_acts_early_makes_room_for_it_and_takes_its_process(rig, controllers):
    late, early = controllers
    rig.handle(GuestExpected(draft(), HOLDS))
    assert (late.synced[-1:], early.synced[-1]) == ([set()], {"a"})
    assert early.applied == {}
    rig.handle(GuestAppeared(draft(HERE)))
    assert (early.applied["a"].guest.pid, early.applied["a"].allocation) == (HERE, HOLDS)
    assert late.applied == {}
    assert rig.pipeline.guest_views() == []


def test_it_is_expected_once(rig, controllers):
    rig.handle(GuestExpected(draft(), HOLDS))
    rig.handle(GuestAppeared(draft(HERE)))
    started(rig, HERE)
    (view,) = rig.pipeline.guest_views()
    assert view.cache_delay is not None
    assert rig.metric("cache_group_seconds_count") == 1
    rig.handle(GuestStopped(draft(HERE)))
    assert controllers[1].synced[-1] == set()


def test_what_is_told_late_of_the_start_before_does_not_undo_an_announcement(rig, controllers):
    ended = 2**22 + 1  # no process has such an id
    for found in ([], [GuestAppeared(draft(HERE))]):
        for event in (GuestExpected(draft(), HOLDS), *found):
            rig.handle(event)
        started(rig, ended)
        del rig.driver.running["a"]
        rig.handle(GuestStopped(draft(ended)))
        assert controllers[1].synced[-1] == {"a"}


def test_one_that_was_not_announced_has_the_age_of_its_process(rig, controllers):
    started(rig, HERE)
    assert rig.pipeline.guest_views()[0].cache_delay > 0


def test_nothing_is_measured_where_nothing_acts_early_or_it_could_not(rig, controllers):
    _, early = controllers
    early.broken = OSError(28, "No space left on device")
    started(rig, HERE)
    assert rig.pipeline.guest_views()[0].cache_delay is None
    other = FakeHost()
    other.handle(WorldChanged(WORLD, (Recorder(),)))
    started(other, HERE)
    assert other.pipeline.guest_views()[0].cache_delay is None


def test_what_cannot_be_done_for_a_process_is_said_and_tried_again_at_its_start(rig, controllers):
    rig.handle(GuestExpected(draft(), HOLDS))
    controllers[1].broken = OSError(16, "Device or resource busy")
    with pytest.raises(DriverError, match="early: "):
        rig.handle(GuestAppeared(draft(HERE)))
    controllers[1].broken = None
    started(rig, HERE)
    assert rig.pipeline.guest_views()[0].pending == ()


def test_a_process_that_nobody_expects_is_left_alone(rig, controllers):
    rig.handle(GuestAppeared(draft(HERE)))
    assert controllers[1].applied == {}


@pytest.mark.parametrize("event", [GuestExpected(draft(), HOLDS), GuestAppeared(draft(HERE))])
def test_before_it_is_known_what_runs_nobody_is_told_that_it_was_done(rig, monkeypatch, event):
    rig.pipeline.start({})
    rig.pipeline.stop()
    rig.new_pipeline()

    def away():
        raise DriverError("libvirtd is away")

    monkeypatch.setattr(rig.driver, "guests", away)
    rig.pipeline.start({})
    rig.pipeline.stop()
    with pytest.raises(DriverError, match="libvirtd is away"):
        rig.handle(event)


def test_a_guest_of_that_uuid_that_still_runs_is_the_one_until_it_has_left(rig, controllers):
    started(rig, HERE)
    rig.handle(GuestExpected(draft(), {"node0": {"VCPU": 2}}))
    assert controllers[1].applied["a"].allocation == HOLDS
    rig.handle(GuestStopped(draft(HERE)))
    assert controllers[1].synced[-1] == {"a"}


def test_who_does_not_come_or_ends_is_forgotten(rig):
    now = [0.0]
    one = enforcer.ExpectedGuests(GuestCache(frozenset()), lambda: now[0])
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


def test_a_reconcile_takes_away_what_was_made_for_who_did_not_come(rig, controllers, monkeypatch):
    monkeypatch.setattr(enforcer, "KEPT_SECONDS", -1.0)
    rig.handle(GuestExpected(draft(), HOLDS))
    rig.handle(ReconcileGuests())
    assert controllers[1].synced[-1] == set()


def test_it_is_not_expected_while_it_is_a_guest():
    cache = GuestCache(frozenset())
    one = enforcer.ExpectedGuests(cache)
    one.add(draft(), HOLDS)
    cache.add(CachedGuest(draft(HERE)))
    assert one.waiting_guests() == []
