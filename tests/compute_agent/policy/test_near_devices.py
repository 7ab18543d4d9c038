"""Tests that a guest gets CPUs on the NUMA nodes of its PCI devices, as far as these nodes have enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest import CpuAssignment
from compute_agent.policy import POLICIES
from compute_agent.policy.base import CpuSupply, GuestRequest, PlacementRefusal, ProviderDemand
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(packages=2, nodes=2, cores=4)
ALL = TOPOLOGY.online
SETS = CpuSets(dedicated=ALL, shared=frozenset(), emulator=frozenset())
NODES = {node.id: node.cpus for node in TOPOLOGY.numa_nodes}


def request(pcpu, near, near_only=False, zone=ALL):
    demand = ProviderDemand("host", zone, pcpu)
    return GuestRequest("guest", pcpu, (demand,), near=frozenset(near), near_only=near_only)


@pytest.mark.parametrize("name", ["static", "topology-aware"])
@given(
    held=st.frozensets(st.sampled_from(sorted(ALL)), max_size=14),
    near=st.frozensets(st.sampled_from(sorted(NODES)), min_size=1, max_size=3),
    pcpu=st.integers(1, 6),
    only=st.booleans(),
)
def test_a_guest_is_near_its_devices_if_they_have_enough_cpus(name, held, near, pcpu, only):
    supply = CpuSupply(TOPOLOGY, SETS, {"other": held})
    free = ALL - held
    close = free & frozenset().union(*(NODES[node] for node in near))
    found = POLICIES[name](supply, request(pcpu, near, only))
    if len(close) >= pcpu:
        assert isinstance(found, CpuAssignment)
        assert found.held_cpus <= close
        assert found.mems <= near
    elif only or len(free) < pcpu:
        assert isinstance(found, PlacementRefusal)
    else:
        assert found == POLICIES[name](supply, request(pcpu, ()))


def test_a_refusal_names_the_nodes_of_the_devices():
    supply = CpuSupply(TOPOLOGY, SETS, {"other": NODES[1]})
    found = POLICIES["topology-aware"](supply, request(2, [1], near_only=True))
    assert isinstance(found, PlacementRefusal)
    assert found.reason == (
        "NUMA nodes 1 of its PCI devices have 0 free dedicated CPUs of host, but 2 are needed"
    )


@pytest.mark.parametrize("zone", [NODES[0], NODES[1]])
def test_cpus_of_an_allocated_node_are_taken_wherever_the_device_is(zone):
    found = POLICIES["topology-aware"](CpuSupply(TOPOLOGY, SETS), request(2, [1], True, zone))
    assert isinstance(found, CpuAssignment)
    assert found.held_cpus <= zone


@pytest.mark.parametrize(
    ("only", "near", "cpus"), [(True, [1], {6, 7}), (False, [1], {2, 3, 6, 7}), (True, [2], {2, 3, 6, 7})]
)
def test_a_floating_guest_stays_on_the_nodes_of_its_devices_if_it_has_to(only, near, cpus):
    sets = CpuSets(ALL - {2, 3, 6, 7}, frozenset({2, 3, 6, 7}), frozenset({2, 3, 6, 7}))
    demand = ProviderDemand("host", ALL, vcpu=1)
    floating = GuestRequest("guest", 1, (demand,), near=frozenset(near), near_only=only)
    found = POLICIES["topology-aware"](CpuSupply(TOPOLOGY, sets), floating)
    assert isinstance(found, CpuAssignment)
    assert found.cpus == cpus
    assert found.mems == ({TOPOLOGY.node_of(cpu) for cpu in cpus} if only else set())
