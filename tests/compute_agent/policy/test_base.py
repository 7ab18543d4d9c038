"""What all policies do alike, staying put, and recognising what an earlier agent did."""

import pytest

from compute_agent.inventory.cpu_sets import CpuSets
from compute_agent.policy import POLICIES
from compute_agent.policy.base import (
    Assignment,
    Demand,
    Refusal,
    Request,
    Supply,
    ThreadPolicy,
    refit,
)
from compute_agent.policy.readback import read_back
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(nodes=2, cores=4)
SETS = CpuSets(frozenset({1, 2, 5, 6}), frozenset({3, 7}), frozenset({3, 7}))
ZONES = {node.id: node.cpus for node in TOPOLOGY.numa_nodes}

static, aware, none = POLICIES["static"], POLICIES["topology-aware"], POLICIES["none"]


def supply(sets=SETS, **holdings):
    return Supply(TOPOLOGY, sets, {name: frozenset(cpus) for name, cpus in holdings.items()})


def request(*amounts, vcpus=1, policy=ThreadPolicy.PREFER):
    demands = tuple(Demand(f"node {n}", ZONES[n], pcpu, vcpu) for n, pcpu, vcpu in amounts)
    return Request("guest", vcpus, demands, policy)


def test_static_takes_the_lowest_free_cpus_of_each_zone():
    found = static(supply(other={1}), request((0, 1, 0), (1, 2, 0), vcpus=3))
    assert found.dedicated == (2, 5, 6)
    assert found.vcpu_cpus == ({2}, {5}, {6})
    assert found.emulator_cpus == {3, 7}
    assert found.mems == {0, 1}


def test_static_refuses_thread_policies_it_does_not_know():
    refused = static(supply(), request((0, 1, 0), policy=ThreadPolicy.ISOLATE))
    assert "isolate" in refused.reason


def test_none_leaves_guests_alone():
    assert none(supply(), request((0, 1, 0))) is None


@pytest.mark.parametrize("policy", [static, aware])
class TestPlacing:
    """Shared, mixed and unallocated guests."""

    def test_a_shared_guest_floats_over_its_zone(self, policy):
        found = policy(supply(), request((1, 0, 2), vcpus=2))
        assert found.vcpu_cpus == ({7}, {7})
        assert found.dedicated == ()
        assert found.mems == frozenset()

    def test_a_guest_without_allocation_floats_over_all_shared_cpus(self, policy):
        assert policy(supply(), request(vcpus=2)).vcpu_cpus == ({3, 7}, {3, 7})

    def test_a_mixed_guest_has_both(self, policy):
        found = policy(supply(), request((0, 1, 1), vcpus=2))
        assert found.vcpu_cpus == ({1}, {3})
        assert found.emulator_cpus == {3}
        assert found.dedicated == (1,)

    def test_more_guest_cpus_than_amounts_take_turns(self, policy):
        assert policy(supply(), request((0, 2, 0), vcpus=3)).vcpu_cpus == ({1}, {2}, {1})

    def test_fewer_guest_cpus_than_amounts_have_several_each(self, policy):
        assert policy(supply(), request((0, 2, 0), vcpus=1)).vcpu_cpus == ({1, 2},)

    def test_a_dedicated_guest_on_a_host_without_shared_cpus(self, policy):
        sets = CpuSets(SETS.dedicated, frozenset(), frozenset())
        found = policy(supply(sets), request((0, 2, 0), vcpus=2))
        assert found.emulator_cpus == {1, 2}
        assert policy(supply(sets), request()) == Refusal(
            "the host has no shared CPUs, and the guest holds no PCPU"
        )


class TestRefit:
    """A running guest stays as long as its CPUs serve it."""

    def place(self, *amounts, vcpus):
        return static(supply(), request(*amounts, vcpus=vcpus))

    def test_it_keeps_cpus_that_are_not_those_it_would_get_now(self):
        current = static(supply(other={1}), request((0, 1, 0)))
        assert refit(supply(guest={2}), request((0, 1, 0)), current) == current

    def test_it_keeps_cpus_that_left_the_dedicated_set(self):
        current = self.place((0, 1, 0), vcpus=1)
        smaller = CpuSets(frozenset({5, 6}), SETS.shared, SETS.emulator)
        assert refit(supply(smaller, guest={1}), request((0, 1, 0)), current) == current

    def test_its_shared_part_follows_the_shared_set(self):
        current = self.place((0, 1, 1), vcpus=2)
        larger = CpuSets(SETS.dedicated, frozenset({0, 3, 7}), frozenset({0, 3, 7}))
        found = refit(supply(larger, guest={1}), request((0, 1, 1), vcpus=2), current)
        assert found.vcpu_cpus == ({1}, {0, 3})

    @pytest.mark.parametrize(
        "changed", [request((0, 2, 0)), request((1, 1, 0)), request((0, 0, 1)), request()]
    )
    def test_another_allocation_needs_another_place(self, changed):
        assert refit(supply(guest={1}), changed, self.place((0, 1, 0), vcpus=1)) is None

    def test_cpus_that_somebody_else_holds_too_do_not_serve(self):
        current = self.place((0, 1, 0), vcpus=1)
        assert refit(supply(guest={1}, other={1}), request((0, 1, 0)), current) is None

    def test_an_isolated_guest_keeps_its_threads_when_its_allocation_comes_to_count_their_siblings(self):
        topology = machine(cores=4, threads=2)
        sets = CpuSets(frozenset(range(6)), frozenset({6, 7}), frozenset({6, 7}))
        two = Supply(topology, sets, {})

        def isolated(pcpu):
            demand = Demand("host", topology.online, pcpu)
            return Request("guest", 2, (demand,), ThreadPolicy.ISOLATE)

        found = read_back(two, isolated(2), frozenset({1, 3}))
        kept = refit(two, isolated(4), found)
        assert kept.vcpu_cpus == ({1}, {3})
        assert kept.withheld == {0, 2}

    def test_a_guest_that_lost_its_allocation_does_not_keep_dedicated_cpus(self):
        current = self.place((0, 1, 0), vcpus=1)
        assert refit(supply(guest={1}), request(), current) is None


class TestReadBack:
    """Assignments recognised in the affinity of a running guest."""

    @pytest.mark.parametrize(
        ("amounts", "vcpus"),
        [(((0, 2, 0),), 2), (((0, 1, 0), (1, 1, 0)), 2), (((0, 0, 1), (1, 0, 1)), 2), (((0, 1, 1),), 2)],
    )
    def test_what_was_placed_is_recognised_and_kept(self, amounts, vcpus):
        wanted = request(*amounts, vcpus=vcpus)
        placed = aware(supply(other={5}) if amounts[0][1] != 1 else supply(), wanted)
        found = read_back(supply(), request(vcpus=vcpus), placed.cpus)
        assert isinstance(found, Assignment)
        assert found.cpus == placed.cpus
        assert set(found.dedicated) == set(placed.dedicated)
        again = refit(supply(guest=found.held), wanted, found)
        assert again is not None
        assert again.cpus == placed.cpus

    @pytest.mark.parametrize(
        "observed", [range(8), {0}, {0, 1}], ids=["all CPUs", "a CPU of the host", "one of both"]
    )
    def test_what_nobody_placed_is_not_recognised(self, observed):
        assert read_back(supply(), request(), frozenset(observed)) is None

    def test_cpus_of_another_guest_are_not_taken(self):
        assert read_back(supply(other={1}), request(), frozenset({1, 2})) is None

    def test_all_of_the_legacy_pin_set_is_shared(self):
        sets = CpuSets(frozenset({1, 2}), frozenset({1, 2}), frozenset({1, 2}))
        assert read_back(supply(sets), request(), frozenset({1, 2})).dedicated == ()
        assert read_back(supply(sets), request(), frozenset({1})).dedicated == (1,)
