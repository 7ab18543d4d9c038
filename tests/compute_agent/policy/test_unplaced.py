"""Tests of guests without an allocation, and of guests that no policy can place."""

from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest import CpuAssignment
from compute_agent.policy.base import CpuSupply, GuestRequest, ProviderDemand
from compute_agent.policy.running_guests import confine_guest, keep_dedicated, may_stay
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(nodes=2, cores=4)
SETS = CpuSets(frozenset({1, 2, 5, 6}), frozenset({3, 7}), frozenset({7}))
ONE, TWO = frozenset({1}), frozenset({2})
SHARED = frozenset({3, 7})
HALF = CpuAssignment((ONE, frozenset({3})), frozenset({7}), (1,))
"""A dedicated guest CPU, and one that floats on fewer CPUs than it might."""


def supply(*held):
    return CpuSupply(TOPOLOGY, SETS, {"other": frozenset(held)})


def request(*amounts, vcpus=2):
    zone = frozenset(range(4))
    return GuestRequest(
        "guest", vcpus, tuple(ProviderDemand("node 0", zone, pcpu, vcpu) for pcpu, vcpu in amounts)
    )


class TestKeep:
    """A guest that already has dedicated CPUs."""

    def test_the_floating_part_stays_while_the_allocation_is_unknown(self):
        assert keep_dedicated(supply(), request(), HALF).vcpu_cpus == (ONE, {3})

    def test_the_floating_part_follows_a_known_allocation(self):
        wide = CpuAssignment((ONE, SHARED), frozenset({7}), (1,))
        assert keep_dedicated(supply(), request((1, 1)), wide).vcpu_cpus == (ONE, {3})

    def test_the_floating_part_leaves_cpus_that_others_hold(self):
        wide = CpuAssignment((ONE, SHARED), frozenset({7}), (1,))
        assert keep_dedicated(supply(7), request(), wide).vcpu_cpus == (ONE, {3})

    def test_a_cpu_that_went_offline_is_not_floated_on(self):
        wide = CpuAssignment((ONE, frozenset({3, 99})), frozenset({7}), (1,))
        assert keep_dedicated(supply(), request(), wide).vcpu_cpus == (ONE, {3})

    def test_a_guest_without_dedicated_cpus_of_its_own_keeps_nothing(self):
        assert keep_dedicated(supply(), request(), CpuAssignment((SHARED, SHARED), SHARED)) is None
        assert keep_dedicated(supply(1), request(), HALF) is None


class TestConfine:
    """A guest that cannot be placed is confined."""

    def test_a_confined_guest_is_on_free_shared_cpus(self):
        assert confine_guest(supply(3), request()) == CpuAssignment((frozenset({7}),) * 2, frozenset({7}))

    def test_a_confined_guest_and_its_emulator_are_on_any_free_cpus_without_shared_ones(self):
        assert confine_guest(supply(3, 7), request()) == CpuAssignment(
            (frozenset(TOPOLOGY.online - SHARED),) * 2, frozenset(TOPOLOGY.online - SHARED)
        )

    def test_a_confined_guest_has_no_place_where_others_hold_all(self):
        assert confine_guest(supply(*TOPOLOGY.online), request()) is None


class TestMayStay:
    """A guest without an allocation may stay if no other guest holds its CPUs."""

    def test_in_nobodys_way(self):
        assert may_stay(HALF, frozenset({2}), TOPOLOGY.online)

    def test_neither_its_cpus_nor_its_emulators_may_be_somebodys(self):
        assert not may_stay(HALF, frozenset({3}), TOPOLOGY.online)
        assert not may_stay(HALF, frozenset({7}), TOPOLOGY.online)

    def test_a_guest_without_held_cpus_needs_an_online_cpu(self):
        floating = CpuAssignment((TWO,), TWO)
        assert may_stay(floating, frozenset(), frozenset({2, 3}))
        assert not may_stay(floating, frozenset(), frozenset({3}))
        assert may_stay(HALF, frozenset(), frozenset({4}))
