"""Tests that guests are placed near the PCI devices that they hold, and that vanished devices cause
events.
"""

import logging
from dataclasses import replace

import pytest

from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode
from compute_agent.model.guest import Guest, GuestIdentity
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.events import HostStateChanged, StartGuest
from compute_agent.pipeline.host_state import request_for
from tests.compute_agent.pipeline.fake_host import HOST_STATE, TREE, FakeHost

GPU = ProviderNode(
    "h_0000:81:00.0",
    "gpu",
    "root",
    {"CUSTOM_GPU": ProviderInventory(1)},
    attributes={"numa_node": 1.0},
    device="0000:81:00.0",
    device_class="CUSTOM_GPU",
)
WITH_GPU = replace(HOST_STATE, tree=replace(TREE, nodes=(*TREE.nodes, GPU)))
HELD = {"root": {"PCPU": 2}, "gpu": {"CUSTOM_GPU": 1}}


@pytest.mark.parametrize(("held", "cpus"), [(HELD, {5, 6}), ({"root": {"PCPU": 2}}, {1, 2})])
def test_a_guest_gets_cpus_and_memory_of_the_node_of_its_device(held, cpus):
    host = FakeHost(WITH_GPU)
    host.take_over()
    host.handle(StartGuest("a", "a", GuestSettings(2), ("sleep", "9"), held, 1.0))
    assert host.observed("a") == cpus
    (view,) = host.pipeline.guest_views()
    assert view.assignment.mems == ({1} if cpus == {5, 6} else {0})


@pytest.mark.parametrize(("policy", "only"), [("required", True), ("preferred", False), ("", False)])
def test_the_policy_of_the_flavor_decides_whether_another_node_will_do(policy, only):
    specs = {"hw:pci_numa_affinity_policy": policy} if policy else {}
    guest = Guest("a", "fake", "a", 1, identity=GuestIdentity(extra_specs=specs))
    request = request_for(WITH_GPU, guest, HELD)
    assert (request.near, request.near_only) == ({1}, only)


def test_devices_of_nova_in_a_definition_count():
    tree = replace(TREE, device_attributes={"0000:0a:00.0": {"numa_node": 0.0}, "0000:0b:00.0": {}})
    guest = Guest("a", "fake", "a", 1, devices=frozenset({"0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"}))
    assert request_for(replace(HOST_STATE, tree=tree), guest, {}).near == {0}


def test_a_device_that_vanishes_while_it_is_held_is_an_event_and_so_is_its_return(caplog):
    host = FakeHost(WITH_GPU)
    host.take_over()
    host.handle(StartGuest("a", "web", GuestSettings(2), ("sleep", "9"), HELD, 1.0))
    host.run("b", (0, 1, 0))
    with caplog.at_level(logging.INFO):
        host.handle(HostStateChanged(HOST_STATE))
        host.handle(HostStateChanged(HOST_STATE))
        host.handle(HostStateChanged(WITH_GPU))
    told = [record.message for record in caplog.records if "PCI" in record.message]
    assert told == [
        "Guest web (a) holds the PCI device 0000:81:00.0, which is gone, or not offered any more",
        "The PCI device that guest web (a) held is back: 0000:81:00.0",
    ]
    # The guest keeps its place: another node would be no nearer to its devices.
    assert host.observed("a") == {5, 6}
