"""Tests of guests without room for their claim: they have class BE until they have an allocation."""

from dataclasses import replace

import pytest

from compute_agent.classification.resolution import ClassificationPolicy
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.events import (
    AllocationsRead,
    ConfigureGuest,
    GuestStarted,
    GuestStopped,
    HostStateChanged,
    ReconcileGuests,
    RoomRefused,
)
from compute_agent.pipeline.state import AgentState, dump, parse
from tests.compute_agent.builders import find_view
from tests.compute_agent.pipeline.fake_host import HOST_STATE, FakeHost

WAITING = replace(HOST_STATE, classification=ClassificationPolicy(waits_for_room=True))


def classes(rig, uuid="a"):
    """The class of a guest, and the class that it gets with its claim."""
    guest = find_view(rig.pipeline, uuid).guest
    return guest.settings.qos_class, guest.deferred_class


def start(rig, **settings):
    guest = rig.driver.create_guest("a", "a", GuestSettings(**{"qos_class": "LSR", **settings}), ())
    rig.handle(GuestStarted(guest, {}, 1.0, started=True))
    return guest


@pytest.fixture
def rig():
    """A host with a guest, and a refusal of its claim."""
    rig = FakeHost(WAITING)
    start(rig)
    assert classes(rig) == ("LSR", "")
    rig.handle(RoomRefused("a"))
    return rig


def test_a_guest_has_class_be_until_it_has_an_allocation(rig):
    assert classes(rig) == ("BE", "LSR")
    rig.handle(RoomRefused("a"))
    rig.handle(ReconcileGuests())
    assert classes(rig) == ("BE", "LSR")
    assert find_view(rig.pipeline, "a").guest.claimed_settings == GuestSettings(qos_class="LSR")
    rig.handle(AllocationsRead({"a": {"node0": {"PCPU": 1}}}, 2.0))
    assert classes(rig) == ("LSR", "")


def test_a_guest_that_loses_its_allocation_has_its_own_class_until_the_next_refusal(rig):
    rig.handle(AllocationsRead({"a": {"node0": {"PCPU": 1}}}, 2.0))
    rig.handle(AllocationsRead({"a": {}}, 3.0))
    assert classes(rig) == ("LSR", "")
    rig.handle(RoomRefused("a"))
    assert classes(rig) == ("BE", "LSR")


def test_a_restarted_agent_leaves_the_class_until_placement_answers(rig):
    saved = parse(dump(AgentState(guests=rig.saved))).guests
    rig.restart(saved, WAITING)
    assert classes(rig) == ("BE", "LSR")
    rig.handle(AllocationsRead({"a": {}}, 2.0))
    assert classes(rig) == ("BE", "LSR")
    rig.handle(AllocationsRead({"a": {"node0": {"PCPU": 1}}}, 3.0))
    assert classes(rig) == ("LSR", "")


def test_a_guest_with_a_missed_end_and_start_keeps_the_class_until_placement_answers(rig):
    rig.driver.discard(rig.driver.running["a"])
    again = rig.driver.create_guest("a", "a", GuestSettings(qos_class="LSR"), ())
    rig.handle(GuestStarted(again, None, started=True))
    assert classes(rig) == ("BE", "LSR")


def test_a_preserved_guest_keeps_its_class():
    rig = FakeHost(WAITING)
    start(rig, preserve=True)
    rig.handle(RoomRefused("a"))
    assert classes(rig) == ("LSR", "")


def test_a_class_that_is_set_by_hand_waits_for_the_claim(rig):
    rig.handle(ConfigureGuest("a", {"qos_class": "LS"}))
    assert classes(rig) == ("BE", "LS")
    rig.handle(ConfigureGuest("a", {"qos_class": "BE"}))
    assert classes(rig) == ("BE", "")


def test_a_host_that_stops_to_claim_gives_guests_their_class_back(rig):
    rig.handle(HostStateChanged(HOST_STATE))
    assert classes(rig) == ("LSR", "")
    rig.handle(HostStateChanged(WAITING))
    assert classes(rig) == ("BE", "LSR")


def test_a_refusal_for_a_guest_that_has_ended_or_has_an_allocation_changes_nothing(rig):
    rig.handle(AllocationsRead({"a": {"node0": {"PCPU": 1}}}, 2.0))
    rig.handle(RoomRefused("a"))
    assert classes(rig) == ("LSR", "")
    guest = rig.driver.running["a"]
    rig.driver.discard(guest)
    rig.handle(GuestStopped(guest))
    rig.handle(RoomRefused("a"))
    assert rig.pipeline.guest_views() == []
