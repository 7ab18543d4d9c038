"""Where guests run of which nobody knows what they may use, or to which no policy gives a place."""

from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest import CpuAssignment
from compute_agent.policy.base import CpuSupply, GuestRequest, ProviderDemand
from compute_agent.policy.running_guests import confine, keep, may_stay
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(nodes=2, cores=4)
SETS = CpuSets(frozenset({1, 2, 5, 6}), frozenset({3, 7}), frozenset({7}))
ONE, TWO = frozenset({1}), frozenset({2})
SHARED = frozenset({3, 7})
HALF = CpuAssignment((ONE, frozenset({3})), frozenset({7}), (1,))
"""A guest CPU that is dedicated, and one that floats on less than it might."""


def supply(*held):
    return CpuSupply(TOPOLOGY, SETS, {"other": frozenset(held)})


def request(*amounts, vcpus=2):
    zone = frozenset(range(4))
    return GuestRequest(
        "guest", vcpus, tuple(ProviderDemand("node 0", zone, pcpu, vcpu) for pcpu, vcpu in amounts)
    )


class TestKeep:
    """A guest that has dedicated CPUs."""

    def test_what_floats_stays_where_it_is_as_long_as_nobody_knows_what_it_may_use(self):
        assert keep(supply(), request(), HALF).vcpu_cpus == (ONE, {3})

    def test_what_floats_is_where_the_allocation_says_once_that_is_known(self):
        wide = CpuAssignment((ONE, SHARED), frozenset({7}), (1,))
        assert keep(supply(), request((1, 1)), wide).vcpu_cpus == (ONE, {3})

    def test_what_floats_leaves_the_cpus_that_others_hold(self):
        wide = CpuAssignment((ONE, SHARED), frozenset({7}), (1,))
        assert keep(supply(7), request(), wide).vcpu_cpus == (ONE, {3})

    def test_a_cpu_that_went_offline_is_not_floated_on(self):
        wide = CpuAssignment((ONE, frozenset({3, 99})), frozenset({7}), (1,))
        assert keep(supply(), request(), wide).vcpu_cpus == (ONE, {3})

    def test_one_without_dedicated_cpus_or_with_somebody_elses_keeps_nothing(self):
        assert keep(supply(), request(), CpuAssignment((SHARED, SHARED), SHARED)) is None
        assert keep(supply(1), request(), HALF) is None


class TestConfine:
    """A guest without a place."""

    def test_it_is_on_the_shared_cpus_that_nobody_holds(self):
        assert confine(supply(3), request()) == CpuAssignment((frozenset({7}),) * 2, frozenset({7}))

    def test_or_on_any_that_nobody_holds_with_its_emulator(self):
        assert confine(supply(3, 7), request()) == CpuAssignment(
            (frozenset(TOPOLOGY.online - SHARED),) * 2, frozenset(TOPOLOGY.online - SHARED)
        )

    def test_it_has_none_where_others_hold_all(self):
        assert confine(supply(*TOPOLOGY.online), request()) is None


class TestMayStay:
    """A guest of which nothing is known."""

    def test_in_nobodys_way(self):
        assert may_stay(HALF, frozenset({2}), TOPOLOGY.online)

    def test_neither_its_cpus_nor_its_emulators_may_be_somebodys(self):
        assert not may_stay(HALF, frozenset({3}), TOPOLOGY.online)
        assert not may_stay(HALF, frozenset({7}), TOPOLOGY.online)

    def test_it_needs_a_cpu_that_is_online_unless_it_holds_some(self):
        floating = CpuAssignment((TWO,), TWO)
        assert may_stay(floating, frozenset(), frozenset({2, 3}))
        assert not may_stay(floating, frozenset(), frozenset({3}))
        assert may_stay(HALF, frozenset(), frozenset({4}))
