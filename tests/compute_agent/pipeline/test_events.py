"""Tests that decisions of the worker are recorded as events with their reasons."""

import pytest

from compute_agent.events.event import EventRecorder
from compute_agent.pipeline.events import AllocationsRead, GuestStopped, ReconcileGuests
from compute_agent.pipeline.worker import GuestRefusedError
from tests.compute_agent.pipeline.fake_host import HOST_STATE, FakeHost


class RecordingHost(FakeHost):
    def new_pipeline(self, host_state=HOST_STATE):
        self.events = []
        self.recorder = EventRecorder(self.events.append)
        super().new_pipeline(host_state)

    def told(self):
        told = [(event.kind, event.guest, event.text) for event in self.events]
        self.events.clear()
        return told


@pytest.fixture
def rig():
    return RecordingHost()


def test_a_placement_names_the_allocation_as_its_reason(rig):
    rig.run("a", (0, 2, 0), vcpus=2)
    assert rig.events[0].reason == (
        "it holds 2 PCPU, 0 VCPU of h_0 (node0); policy topology-aware left 2 of 4 dedicated CPUs free"
    )
    assert rig.told() == [("start", "a", "Guest a (pid 100) started on dedicated CPUs 1-2")]


def test_refusals_and_new_placements_after_changed_allocations_are_events(rig):
    guest = rig.run("a", (0, 2, 0), vcpus=2).guest
    with pytest.raises(GuestRefusedError):
        rig.run("b", (0, 1, 0))
    assert [one[:2] for one in rig.told()] == [("start", "a"), ("refuse", "b")]
    rig.handle(AllocationsRead({"a": {"node1": {"PCPU": 2}}}, 2.0))
    assert rig.told() == [
        ("hold", "a", "The allocation of guest a is now: 2 PCPU of h_1 (node1)"),
        ("place", "a", "Guest a runs on dedicated CPUs 5-6"),
    ]
    rig.handle(GuestStopped(guest))
    assert rig.told() == [("leave", "a", "Guest a has left this host")]


def test_a_repair_of_a_foreign_change_is_an_event(rig):
    guest = rig.run("a", (0, 1, 0)).guest
    rig.told()
    rig.driver.affinities["a"][guest.pid] = frozenset({7})
    rig.handle(ReconcileGuests())
    assert [one[:2] for one in rig.told()] == [("repair", "a")]
