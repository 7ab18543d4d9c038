"""Tests of guests with both dedicated and floating guest CPUs: the flavor names the positions of the
dedicated ones.
"""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest import PlacementConstraints
from compute_agent.model.guest_settings import EmulatorPolicy, GuestSettings
from compute_agent.pipeline.events import AllocationsRead, GuestStarted, ReconcileGuests
from compute_agent.policy import POLICIES
from compute_agent.policy.base import CpuSupply, GuestRequest, ProviderDemand, refit_assignment
from compute_agent.policy.constraints import within_constraints
from tests.compute_agent.builders import find_view
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.pipeline.fake_host import FakeHost

TOPOLOGY = machine(cores=8)
SETS = CpuSets(frozenset(range(2, 8)), frozenset({0, 1}), frozenset({0, 1}))


def placed(vcpus, mask, policy="topology-aware", emulator=EmulatorPolicy.SHARE, **fields):
    own = len(mask) + (emulator is EmulatorPolicy.ISOLATE)
    demand = ProviderDemand("node", TOPOLOGY.online, own, vcpus - len(mask))
    request = GuestRequest(
        "guest", vcpus, (demand,), emulator_policy=emulator, dedicated_vcpus=frozenset(mask), **fields
    )
    supply = CpuSupply(TOPOLOGY, SETS)
    return supply, request, within_constraints(POLICIES[policy])(supply, request)


@given(
    mask=st.frozensets(st.integers(0, 4), min_size=1, max_size=4),
    policy=st.sampled_from(["static", "topology-aware"]),
    emulator=st.sampled_from(EmulatorPolicy),
    memory=st.sampled_from([frozenset(), frozenset({0})]),
)
def test_the_guest_cpus_of_the_mask_are_dedicated_and_the_others_float(mask, policy, emulator, memory):
    found = placed(5, mask, policy, emulator, constraints=PlacementConstraints(memory))[-1]
    for number, cpus in enumerate(found.vcpu_cpus):
        assert (len(cpus) == 1 and cpus <= SETS.dedicated) if number in mask else cpus == SETS.shared
    assert len(frozenset().union(*(found.vcpu_cpus[number] for number in mask))) == len(mask)
    assert found.emulator_cpus.isdisjoint(frozenset().union(*(found.vcpu_cpus[number] for number in mask)))


@pytest.mark.parametrize("mask", [{0, 1, 2}, {9}], ids=["more than are held", "beyond the guest"])
def test_a_mask_that_contradicts_the_allocation_is_ignored(mask):
    supply = CpuSupply(TOPOLOGY, SETS)
    demand = ProviderDemand("node", TOPOLOGY.online, 1, 2)
    request = GuestRequest("guest", 3, (demand,), dedicated_vcpus=frozenset(mask))
    found = POLICIES["static"](supply, request)
    assert found.vcpu_cpus == ({2}, SETS.shared, SETS.shared)


def test_a_guest_that_was_pinned_otherwise_keeps_its_cpus_and_gets_its_kinds():
    for mask in combinations(range(3), 2):
        supply, request, found = placed(3, mask)
        before = replace(found, vcpu_cpus=tuple(found.vcpu_cpus[number - 1] for number in range(3)))
        after = refit_assignment(supply, request, before)
        assert after.dedicated == found.dedicated
        assert [number for number, cpus in enumerate(after.vcpu_cpus) if cpus <= SETS.dedicated] == [*mask]
        assert refit_assignment(supply, request, found) == found


@pytest.fixture
def rig():
    rig = FakeHost()
    rig.take_over()
    return rig


def test_a_running_guest_is_pinned_by_its_mask_and_stays_so_after_a_restart(rig):
    guest = rig.driver.create_guest("a", "a", GuestSettings(3), ())
    rig.driver.running["a"] = replace(guest, dedicated_vcpus=frozenset({1}))
    rig.handle(GuestStarted(rig.driver.running["a"], {"node0": {"PCPU": 1, "VCPU": 2}}, 1.0, started=True))
    assignment = find_view(rig.pipeline, "a").assignment
    assert assignment.vcpu_cpus == ({3}, {1}, {3})
    rig.restart()
    rig.handle(ReconcileGuests())
    rig.handle(AllocationsRead({"a": {"node0": {"PCPU": 1, "VCPU": 2}}}, 2.0))
    assert find_view(rig.pipeline, "a").assignment.vcpu_cpus == ({3}, {1}, {3})
