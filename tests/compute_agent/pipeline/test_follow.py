"""Tests of a pipeline with policy ``follow``: guests keep the pins of another program, and the agent reads
them.
"""

from dataclasses import replace

import pytest

from compute_agent.controllers.cpu import CpuController
from compute_agent.drivers.base import CpuLimits
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.events import (
    AllocationsRead,
    GuestStarted,
    HostStateChanged,
    MoveGuest,
    ReconcileGuests,
)
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.policy import POLICIES
from tests.compute_agent.builders import find_view
from tests.compute_agent.pipeline import fake_host
from tests.compute_agent.pipeline.fake_host import HOST_STATE

FOLLOWING = replace(HOST_STATE, policy=POLICIES["follow"])
SHARED = frozenset({3, 7})


class NovaPinnedHost(fake_host.FakeHost):
    """A host on which Nova pins the guests."""

    def new_pipeline(self, host_state=FOLLOWING):
        controllers = (CpuController(self.driver, {"BE"}),)
        self.pipeline = GuestPipeline(host_state, self.driver, controllers, self.save_state, self.metrics)

    def boot(self, uuid, pins, emulator=SHARED, held=None):
        guest = self.driver.create_guest(uuid, uuid, GuestSettings(len(pins)), ())
        self.pin(uuid, pins, emulator)
        self.handle(GuestStarted(guest, held or {}, 1.0, started=True))

    def pin(self, uuid, pins, emulator=SHARED):
        everything = emulator.union(*pins)
        self.driver.affinities[uuid] = dict.fromkeys(self.driver.affinities[uuid], everything)
        self.driver.vcpu_cpus[uuid] = dict(enumerate(pins))
        self.driver.emulator_cpus[uuid] = emulator

    def assignment(self, uuid):
        return find_view(self.pipeline, uuid).assignment


@pytest.fixture
def rig():
    rig = NovaPinnedHost(FOLLOWING)
    rig.take_over()
    return rig


def one(*numbers):
    return tuple(frozenset({number}) for number in numbers)


def test_the_pins_of_a_guest_count_and_not_its_allocation(rig):
    rig.boot("a", one(6, 2), held={"node0": {"PCPU": 2}})
    assert rig.assignment("a").vcpu_cpus == one(6, 2)
    assert rig.assignment("a").dedicated == (6, 2)
    assert rig.observed("a") == {2, 6, 3, 7}
    assert rig.driver.writes == 0


def test_the_agent_sets_the_weight_of_followed_guests(rig):
    rig.boot("a", one(6, 2), held={"node0": {"PCPU": 2}})
    assert rig.driver.limits["a"] == CpuLimits(200)


def test_a_guest_without_allocation_stays_too(rig):
    rig.boot("a", one(1))
    assert rig.assignment("a").dedicated == (1,)
    rig.handle(AllocationsRead({"a": {"node1": {"VCPU": 1}}}, 2.0))
    assert rig.assignment("a").dedicated == (1,)
    assert rig.driver.writes == 0


def test_pins_that_change_are_followed_at_the_next_pass(rig):
    rig.boot("a", one(1))
    rig.pin("a", one(5))
    rig.handle(ReconcileGuests())
    assert rig.assignment("a").dedicated == (5,)
    assert rig.metric("drift_repairs_total", controller="cpu") is None


def test_a_cpu_that_nova_brings_online_counts_before_the_host_is_read_again(rig):
    everything = FOLLOWING.topology.usable
    online = {"now": everything - {1, 5}}
    rig.pipeline = GuestPipeline(
        replace(FOLLOWING, powered=FOLLOWING.cpu_sets.dedicated),
        rig.driver,
        (),
        rig.save_state,
        rig.metrics,
        read_online=lambda: online["now"],
    )
    rig.take_over()
    rig.handle(ReconcileGuests())
    assert rig.pipeline.host_state.topology.parked == {1, 5}
    assert rig.pipeline.host_state.cpu_sets.dedicated >= {1, 5}
    rig.boot("a", one(1))
    assert find_view(rig.pipeline, "a").stray == "CPU 1 is offline"
    online["now"] = everything - {5}
    rig.handle(ReconcileGuests())
    assert rig.assignment("a").dedicated == (1,)
    assert find_view(rig.pipeline, "a").stray == ""
    assert rig.pipeline.host_state.topology.parked == {5}


def test_guests_on_the_same_cpu_both_stay(rig):
    rig.boot("a", one(1))
    rig.boot("b", one(1))
    rig.handle(ReconcileGuests())
    assert (rig.assignment("a").dedicated, rig.assignment("b").dedicated) == ((1,), (1,))
    assert [view.refusal for view in rig.pipeline.guest_views()] == ["", ""]
    assert rig.driver.writes == 0


def test_a_command_moves_no_followed_guest(rig):
    rig.boot("a", one(0))
    assert rig.handle(MoveGuest("a")) is None
    assert rig.assignment("a").vcpu_cpus == one(0)


def test_pins_that_changed_during_a_restart_are_followed(rig):
    rig.boot("a", one(1), held={"node0": {"PCPU": 1}})
    rig.pin("a", one(2))
    rig.restart(host_state=FOLLOWING)
    assert rig.assignment("a").dedicated == (2,)


def test_the_pins_of_a_found_guest_are_followed(rig):
    guest = rig.driver.create_guest("a", "a", GuestSettings(1), ())
    rig.pin("a", one(5))
    rig.handle(ReconcileGuests())
    assert (guest.uuid, rig.assignment("a").dedicated) == ("a", (5,))


def test_another_policy_continues_from_the_followed_pins_and_back(rig):
    rig.boot("a", one(2), held={"node0": {"PCPU": 1}})
    rig.handle(HostStateChanged(HOST_STATE))
    assert rig.assignment("a").dedicated == (2,)
    assert not rig.assignment("a").given
    rig.handle(HostStateChanged(FOLLOWING))
    assert rig.assignment("a").given
