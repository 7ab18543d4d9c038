"""Tests of demands in guests' definitions: they are met, or reported while the guest stays where it is."""

from dataclasses import replace

import pytest

from compute_agent.model.guest import PlacementConstraints
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.events import AllocationsRead, GuestStarted, ReconcileGuests
from tests.compute_agent.builders import find_view
from tests.compute_agent.pipeline.fake_host import ALL, FakeHost

NODE1 = PlacementConstraints(frozenset({1}))


@pytest.fixture
def rig():
    rig = FakeHost()
    rig.take_over()
    return rig


def boot(rig, uuid, constraints, vcpus=1, held=None):
    guest = rig.driver.create_guest(uuid, uuid, GuestSettings(vcpus), ())
    guest = rig.driver.running[uuid] = replace(guest, constraints=constraints)
    rig.handle(GuestStarted(guest, held, 1.0, started=True))
    return guest


def test_a_guest_is_placed_near_memory_that_its_definition_binds(rig):
    boot(rig, "a", NODE1, held={"root": {"PCPU": 1}})
    assert rig.observed("a") == {5}
    boot(rig, "b", NODE1, held={"root": {"VCPU": 1}})
    assert rig.observed("b") == {7}
    boot(rig, "c", NODE1, held={})
    assert rig.observed("c") == {7}


def test_a_demand_that_cannot_be_met_is_reported_and_the_guest_left(rig):
    boot(rig, "a", NODE1, held={"node0": {"PCPU": 1}})
    assert rig.observed("a") == ALL
    assert find_view(rig.pipeline, "a").refusal == (
        "its definition cannot be met: its zones have no 1 free dedicated CPUs among the CPUs 4-7"
        " that its guest CPUs may use; it is left where it is"
    )


def test_a_guest_is_placed_when_its_demand_can_be_met(rig):
    boot(rig, "a", NODE1, held={"node0": {"PCPU": 1}})
    rig.handle(AllocationsRead({"a": {"node1": {"PCPU": 1}}}, 2.0))
    assert (rig.observed("a"), find_view(rig.pipeline, "a").refusal) == ({5}, "")


def test_a_placed_guest_keeps_its_cpus_when_its_definition_demands_the_impossible(rig):
    guest = boot(rig, "a", NODE1, held={"node1": {"PCPU": 1}})
    other = rig.driver.running["a"] = replace(
        guest, constraints=PlacementConstraints(pins=((0, frozenset({0})),))
    )
    rig.handle(GuestStarted(other, None))
    assert rig.observed("a") == {5}
    rig.run("b", (1, 1, 0))
    assert rig.observed("b") == {6}


def test_a_guest_with_unknown_allocation_is_left(rig):
    rig.run("b", (0, 1, 0))
    boot(rig, "a", NODE1)
    rig.handle(ReconcileGuests())
    assert rig.observed("a") == ALL


def test_a_restart_leaves_a_guest_with_demands_where_it_is(rig):
    boot(rig, "a", PlacementConstraints(pins=((0, frozenset({6})),)), held={"root": {"PCPU": 1}})
    assert rig.observed("a") == {6}
    rig.driver.writes = 0
    rig.restart()
    assert (rig.observed("a"), rig.driver.writes) == ({6}, 0)
