"""Tests of the code that all policies share: placing guests, keeping running guests, and recognising
assignments.
"""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.guest_settings import EmulatorPolicy, ThreadPolicy
from compute_agent.policy import POLICIES
from compute_agent.policy.base import (
    CpuSupply,
    GuestRequest,
    PlacementRefusal,
    ProviderDemand,
    refit_assignment,
)
from compute_agent.policy.running_guests import read_back
from tests.compute_agent.inventory.machines import machine
from tests.examples import examples

TOPOLOGY = machine(nodes=2, cores=4)
SETS = CpuSets(frozenset({1, 2, 5, 6}), frozenset({3, 7}), frozenset({3, 7}))
ZONES = {node.id: node.cpus for node in TOPOLOGY.numa_nodes}

static, aware, none = POLICIES["static"], POLICIES["topology-aware"], POLICIES["none"]


def supply(sets=SETS, **holdings):
    return CpuSupply(TOPOLOGY, sets, {name: frozenset(cpus) for name, cpus in holdings.items()})


def request(*amounts, vcpus=1, policy=ThreadPolicy.PREFER):
    demands = tuple(ProviderDemand(f"node {n}", ZONES[n], pcpu, vcpu) for n, pcpu, vcpu in amounts)
    return GuestRequest("guest", vcpus, demands, policy)


def test_static_takes_the_lowest_free_cpus_of_each_zone():
    found = static(supply(other={1}), request((0, 1, 0), (1, 2, 0), vcpus=3))
    assert found.dedicated == (2, 5, 6)
    assert found.vcpu_cpus == ({2}, {5}, {6})
    assert found.emulator_cpus == {3, 7}
    assert found.mems == {0, 1}


@pytest.mark.parametrize("policy", [static, aware])
@pytest.mark.parametrize(
    ("amounts", "dedicated"),
    [
        ([(0, 0, 1), (1, 2, 0)], (5, 6)),
        ([(0, 1, 0), (1, 0, 1), (1, 1, 0)], (1, 5)),
        ([(0, 1, 0), (0, 1, 0)], (1, 2)),
    ],
    ids=["shared ones first", "shared ones between", "twice of one zone"],
)
def test_each_zone_gives_the_dedicated_cpus_that_are_asked_of_it(policy, amounts, dedicated):
    found = policy(supply(), request(*amounts, vcpus=len(dedicated)))
    assert found.dedicated == dedicated


@given(
    st.frozensets(st.integers(0, 15), max_size=16),
    st.integers(1, 8),
    st.sampled_from(ThreadPolicy),
    st.integers(1, 3),
)
def test_static_follows_thread_policies_and_places_every_guest_that_fits(free, pcpu, policy, threads):
    """The policy refuses the same guests as topology-aware, and ignores zones."""
    topology = machine(nodes=2, l3=2, cores=2, threads=threads)
    free &= topology.online
    sets = CpuSets(free, frozenset(), frozenset())
    vcpus = max(1, pcpu // threads) if policy is ThreadPolicy.ISOLATE else pcpu
    wanted = GuestRequest("guest", vcpus, (ProviderDemand("host", topology.online, pcpu),), policy)
    found, other = (place(CpuSupply(topology, sets), wanted) for place in (static, aware))
    assert isinstance(found, PlacementRefusal) == isinstance(other, PlacementRefusal)
    if isinstance(found, PlacementRefusal):
        return
    own = frozenset(found.dedicated)
    assert len(own) == pcpu == len(found.dedicated)
    assert own <= free
    by_core = [topology.threads_of(cpu) & own for cpu in own]
    if policy is ThreadPolicy.PREFER:
        assert own == frozenset(sorted(free)[:pcpu])
    elif policy is ThreadPolicy.REQUIRE:
        assert all(len(topology.threads_of(cpu) & free) > 1 for cpu in own)
    elif policy is ThreadPolicy.ISOLATE:
        assert all(core == topology.threads_of(min(core)) for core in by_core)
    else:
        cores = {topology.threads_of(cpu) for cpu in free}
        assert len(set(by_core)) == min(pcpu, len(cores))


def test_policy_none_leaves_guests_in_place():
    assert none(supply(), request((0, 1, 0))) is None


@pytest.mark.parametrize("policy", [static, aware])
def test_a_dedicated_order_that_was_allocated_vcpu_is_refused(policy):
    """Such allocations come from nova-scheduler's second query. A floating guest is refused, too."""
    ordered = dataclasses.replace(request((0, 0, 2), vcpus=2), dedicated=2)
    refused = policy(supply(), ordered)
    assert "the flavor wants 2 dedicated CPUs, but the allocation has VCPU and no PCPU" in refused.reason
    assert "disable_fallback_pcpu_query" in refused.reason
    shared = policy(supply(), request((0, 0, 2), vcpus=2))
    assert refit_assignment(supply(), ordered, shared) is None
    assert policy(supply(), dataclasses.replace(ordered, demands=())).vcpu_cpus == ({3, 7}, {3, 7})
    paid = dataclasses.replace(request((0, 2, 0), vcpus=2), dedicated=2)
    assert set(policy(supply(), paid).dedicated) == {1, 2}


@pytest.mark.parametrize("policy", [static, aware])
class TestPlacing:
    """Guests with shared CPUs, with both kinds of CPUs, and without an allocation."""

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

    def test_guest_cpus_share_dedicated_cpus_where_amounts_are_smaller(self, policy):
        assert policy(supply(), request((0, 2, 0), vcpus=3)).vcpu_cpus == ({1}, {2}, {1})

    def test_fewer_guest_cpus_than_amounts_have_several_each(self, policy):
        assert policy(supply(), request((0, 2, 0), vcpus=1)).vcpu_cpus == ({1, 2},)

    def test_emulator_threads_are_in_the_nodes_of_their_guest_where_zones_are_larger(self, policy):
        whole = ProviderDemand("host", TOPOLOGY.online, 2)
        found = policy(supply(other={1, 2}), GuestRequest("guest", 2, (whole,)))
        assert (found.held_cpus, found.emulator_cpus) == ({5, 6}, {7})
        # A node without shared CPUs has none to give.
        sets = CpuSets(SETS.dedicated, frozenset({3}), frozenset({3}))
        assert policy(supply(sets, other={1, 2}), GuestRequest("guest", 2, (whole,))).emulator_cpus == {3}

    def test_emulator_threads_are_in_the_node_of_a_cache_without_shared_cpus(self, policy):
        cache = ProviderDemand("L3 2", frozenset({5, 6}), 2)
        assert policy(supply(), GuestRequest("guest", 2, (cache,))).emulator_cpus == {7}

    def test_a_dedicated_guest_on_a_host_without_shared_cpus(self, policy):
        sets = CpuSets(SETS.dedicated, frozenset(), frozenset())
        found = policy(supply(sets), request((0, 2, 0), vcpus=2))
        assert found.emulator_cpus == {1, 2}
        assert policy(supply(sets), request()) == PlacementRefusal(
            "the host has no shared CPUs, and the guest holds no PCPU"
        )


class TestRefit:
    """A running guest keeps its CPUs as long as they serve its request."""

    def place(self, *amounts, vcpus):
        return static(supply(), request(*amounts, vcpus=vcpus))

    def test_a_guest_keeps_cpus_that_differ_from_a_new_choice(self):
        current = static(supply(other={1}), request((0, 1, 0)))
        assert refit_assignment(supply(guest={2}), request((0, 1, 0)), current) == current

    def test_a_guest_keeps_cpus_that_have_left_the_dedicated_set(self):
        current = self.place((0, 1, 0), vcpus=1)
        smaller = CpuSets(frozenset({5, 6}), SETS.shared, SETS.emulator)
        assert refit_assignment(supply(smaller, guest={1}), request((0, 1, 0)), current) == current

    def test_its_shared_part_follows_the_shared_set(self):
        current = self.place((0, 1, 1), vcpus=2)
        larger = CpuSets(SETS.dedicated, frozenset({0, 3, 7}), frozenset({0, 3, 7}))
        found = refit_assignment(supply(larger, guest={1}), request((0, 1, 1), vcpus=2), current)
        assert found.vcpu_cpus == ({1}, {0, 3})

    @pytest.mark.parametrize(
        "changed", [request((0, 2, 0)), request((1, 1, 0)), request((0, 0, 1)), request()]
    )
    def test_another_allocation_needs_another_place(self, changed):
        assert refit_assignment(supply(guest={1}), changed, self.place((0, 1, 0), vcpus=1)) is None

    def test_cpus_that_another_guest_also_holds_do_not_serve(self):
        current = self.place((0, 1, 0), vcpus=1)
        assert refit_assignment(supply(guest={1}, other={1}), request((0, 1, 0)), current) is None

    def test_guest_cpus_stay_on_their_cpus_whatever_the_order(self):
        wanted = request((0, 2, 1), vcpus=3)
        placed = self.place((0, 2, 1), vcpus=3)
        swapped = dataclasses.replace(
            placed, vcpu_cpus=(frozenset({3}), frozenset({2}), frozenset({1})), dedicated=(1, 2)
        )
        assert refit_assignment(supply(guest={1, 2}), wanted, swapped).vcpu_cpus == ({3}, {2}, {1})
        larger = CpuSets(SETS.dedicated, frozenset({0, 3, 7}), frozenset({0, 3, 7}))
        assert refit_assignment(supply(larger, guest={1, 2}), wanted, swapped).vcpu_cpus == ({0, 3}, {2}, {1})

    def test_a_guest_that_lost_its_allocation_does_not_keep_dedicated_cpus(self):
        current = self.place((0, 1, 0), vcpus=1)
        assert refit_assignment(supply(guest={1}), request(), current) is None


THREADS = machine(cores=4, threads=2)
CORES = CpuSets(frozenset(range(6)), frozenset({6, 7}), frozenset({6, 7}))


def isolated(pcpu, vcpus=2, emulator=EmulatorPolicy.SHARE):
    demand = ProviderDemand("host", THREADS.online, pcpu)
    return GuestRequest("guest", vcpus, (demand,), ThreadPolicy.ISOLATE, emulator)


class TestIsolatedGuestsThatRun:
    """The empty siblings of isolated guests are kept and recognised."""

    def supply(self, topology=THREADS, sets=CORES, **holdings):
        return CpuSupply(topology, sets, {name: frozenset(cpus) for name, cpus in holdings.items()})

    def test_a_guest_keeps_its_empty_siblings(self):
        placed = aware(self.supply(), isolated(4))
        assert refit_assignment(self.supply(guest=placed.held_cpus), isolated(4), placed) == placed

    def test_a_guest_keeps_its_threads_when_its_allocation_comes_to_count_siblings(self):
        found = read_back(self.supply(), isolated(2), frozenset({1, 3}))
        assert (found.dedicated, found.withheld) == ((1, 3, 0, 2), {0, 2})
        kept = refit_assignment(self.supply(guest=found.held_cpus), isolated(4), found)
        assert kept.vcpu_cpus == ({1}, {3})
        assert kept.withheld == {0, 2}

    def test_siblings_that_its_allocation_does_not_pay_for_are_refused(self):
        found = read_back(self.supply(), isolated(2), frozenset({1, 3}))
        assert refit_assignment(self.supply(guest=found.held_cpus), isolated(2), found) is None
        assert "needs 4 PCPU" in aware(self.supply(guest=found.held_cpus), isolated(2)).reason

    def test_siblings_that_another_guest_has_are_not_its_own(self):
        found = read_back(self.supply(other={0}), isolated(2), frozenset({1, 3}))
        assert found.held_cpus == {1, 2, 3}
        assert refit_assignment(self.supply(other={0}, guest=found.held_cpus), isolated(3), found) is None

    @pytest.mark.parametrize(("pcpu", "held"), [(5, {1, 3, 0, 2, 4}), (6, {1, 3, 0, 2, 4, 5})])
    def test_the_emulator_keeps_its_cpu_with_or_without_its_sibling(self, pcpu, held):
        wanted = isolated(pcpu, emulator=EmulatorPolicy.ISOLATE)
        found = read_back(self.supply(), wanted, frozenset({1, 3, 4}))
        kept = refit_assignment(self.supply(guest=found.held_cpus), wanted, found)
        assert (kept.vcpu_cpus, kept.emulator_cpus) == (({1}, {3}), {4})
        assert kept.held_cpus == held

    def test_a_floating_guest_needs_a_place_when_it_comes_to_hold_dedicated_cpus(self):
        wanted = isolated(5, emulator=EmulatorPolicy.ISOLATE)
        shared = aware(self.supply(), dataclasses.replace(wanted, demands=()))
        assert refit_assignment(self.supply(guest=shared.held_cpus), wanted, shared) is None

    def test_a_guest_stays_when_an_empty_sibling_goes_offline(self):
        placed = aware(self.supply(), isolated(4))
        without = machine(cores=4, threads=2, offline=frozenset({1}))
        kept = refit_assignment(self.supply(without, guest=placed.held_cpus), isolated(4), placed)
        assert kept.vcpu_cpus == placed.vcpu_cpus == ({0}, {2})

    def test_a_guest_is_refused_when_a_sibling_outside_of_its_allocation_comes_online(self):
        without = machine(cores=4, threads=2, offline=frozenset({1, 3}))
        placed = aware(self.supply(without), isolated(2))
        assert placed.dedicated == (0, 2)
        assert refit_assignment(self.supply(guest=placed.held_cpus), isolated(2), placed) is None


class TestReadBack:
    """Assignments are recognised from the affinity of running guests."""

    @pytest.mark.parametrize(
        ("amounts", "vcpus"),
        [(((0, 2, 0),), 2), (((0, 1, 0), (1, 1, 0)), 2), (((0, 0, 1), (1, 0, 1)), 2), (((0, 1, 1),), 2)],
    )
    def test_a_placed_guest_is_recognised_and_kept(self, amounts, vcpus):
        wanted = request(*amounts, vcpus=vcpus)
        placed = aware(supply(other={5}) if amounts[0][1] != 1 else supply(), wanted)
        found = read_back(supply(), request(vcpus=vcpus), placed.cpus)
        assert isinstance(found, CpuAssignment)
        assert found.cpus == placed.cpus
        assert set(found.dedicated) == set(placed.dedicated)
        again = refit_assignment(supply(guest=found.held_cpus), wanted, found)
        assert again is not None
        assert again.cpus == placed.cpus

    @pytest.mark.parametrize(
        "observed", [range(8), {0}, {0, 1}], ids=["all CPUs", "a CPU of the host", "one of both"]
    )
    def test_a_guest_that_was_never_placed_is_not_recognised(self, observed):
        assert read_back(supply(), request(), frozenset(observed)) is None

    def test_cpus_of_another_guest_are_not_taken(self):
        assert read_back(supply(other={1}), request(), frozenset({1, 2})) is None

    def test_all_of_the_legacy_pin_set_is_shared(self):
        sets = CpuSets(frozenset({1, 2}), frozenset({1, 2}), frozenset({1, 2}))
        assert read_back(supply(sets), request(), frozenset({1, 2})).dedicated == ()
        assert read_back(supply(sets), request(), frozenset({1})).dedicated == (1,)

    def test_guest_cpus_are_where_the_kernel_has_their_threads(self):
        seen = {0: frozenset({5}), 1: frozenset({1}), 2: frozenset({2})}
        found = read_back(supply(), request(vcpus=3), frozenset({1, 2, 3, 5, 7}), seen)
        assert found.vcpu_cpus == ({5}, {1}, {2})
        assert found.dedicated == (5, 1, 2)
        assert found.emulator_cpus == {3, 7}
        kept = refit_assignment(supply(guest=found.held_cpus), request((0, 2, 0), (1, 1, 0), vcpus=3), found)
        assert kept.vcpu_cpus == found.vcpu_cpus

    def test_floating_guest_cpus_may_be_any(self):
        seen = {0: frozenset({3}), 1: frozenset({1})}
        found = read_back(supply(), request(vcpus=2), frozenset({1, 3}), seen)
        assert (found.vcpu_cpus, found.emulator_cpus) == (({3}, {1}), {3})
        kept = refit_assignment(supply(guest=found.held_cpus), request((0, 1, 1), vcpus=2), found)
        assert kept.vcpu_cpus == ({3}, {1})

    def test_the_cpu_of_the_emulator_is_what_no_guest_cpu_has(self):
        seen = {0: frozenset({2}), 1: frozenset({5})}
        alone = dataclasses.replace(request(vcpus=2), emulator_policy=EmulatorPolicy.ISOLATE)
        found = read_back(supply(), alone, frozenset({1, 2, 5}), seen)
        assert (found.vcpu_cpus, found.emulator_cpus) == (({2}, {5}), {1})
        wanted = dataclasses.replace(
            request((0, 2, 0), (1, 1, 0), vcpus=2), emulator_policy=EmulatorPolicy.ISOLATE
        )
        kept = refit_assignment(supply(guest=found.held_cpus), wanted, found)
        assert (kept.vcpu_cpus, kept.emulator_cpus) == (found.vcpu_cpus, {1})

    @pytest.mark.parametrize(
        ("emulator", "observed", "dedicated"),
        [
            (EmulatorPolicy.SHARE, {1, 2, 5}, (2, 5)),
            (EmulatorPolicy.ISOLATE, {1, 2, 5}, (2, 5, 1)),
            (EmulatorPolicy.ISOLATE, {1, 2, 5, 6}, (2, 5)),
        ],
    )
    def test_where_others_float_on_dedicated_cpus_one_more_than_bound_is_an_isolated_emulators(
        self, emulator, observed, dedicated
    ):
        sets = CpuSets(frozenset({1, 2, 5, 6}), frozenset(), frozenset({1, 2, 5, 6}))
        seen = {0: frozenset({2}), 1: frozenset({5})}
        asked = dataclasses.replace(request(vcpus=2), emulator_policy=emulator)
        assert read_back(supply(sets), asked, frozenset(observed), seen).dedicated == dedicated

    @pytest.mark.parametrize(
        ("emulator", "observed", "dedicated"),
        [
            (EmulatorPolicy.SHARE, {1}, {1}),
            (EmulatorPolicy.SHARE, {1, 2}, {1, 2}),
            (EmulatorPolicy.SHARE, {1, 2, 5}, set()),
            (EmulatorPolicy.ISOLATE, {1, 2, 5}, {1, 2, 5}),
            (EmulatorPolicy.ISOLATE, {1, 2, 5, 6}, set()),
        ],
    )
    def test_where_others_float_on_dedicated_cpus_no_more_than_threads_to_pin_are_a_guests_own(
        self, emulator, observed, dedicated
    ):
        sets = CpuSets(frozenset({1, 2, 5, 6}), frozenset(), frozenset({1, 2, 5, 6}))
        asked = dataclasses.replace(request(vcpus=2), emulator_policy=emulator)
        assert set(read_back(supply(sets), asked, frozenset(observed)).dedicated) == dedicated

    @pytest.mark.parametrize("seen", [{}, {0: frozenset({2})}, {1: frozenset({2}), 2: frozenset({1})}])
    def test_without_all_guest_cpus_they_are_in_ascending_order(self, seen):
        found = read_back(supply(), request(vcpus=2), frozenset({1, 2}), seen)
        assert found.vcpu_cpus == ({1}, {2})

    def test_a_guest_cpu_on_a_cpu_of_the_host_is_not_recognised(self):
        assert read_back(supply(), request(), frozenset({1}), {0: frozenset({0})}) is None


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_lost_positions_come_back_exactly(data):
    """An assignment is read back from the kernel, and kept without a move, with any policy and any order of
    threads.
    """
    sets = CpuSets(frozenset(range(12)), frozenset({12, 13, 14, 15}), frozenset({12, 13, 14, 15}))
    topology = machine(nodes=2, cores=4, threads=2)
    policy = data.draw(st.sampled_from(ThreadPolicy))
    emulator = data.draw(st.sampled_from(EmulatorPolicy))
    vcpus = data.draw(st.integers(1, 4))
    floating = data.draw(st.integers(0, vcpus - 1))
    pinned = vcpus - floating
    pcpu = pinned * (2 if policy is ThreadPolicy.ISOLATE else 1) + (emulator is EmulatorPolicy.ISOLATE)
    demands = (ProviderDemand("host", topology.online, pcpu, floating),)
    others = {"other": frozenset(data.draw(st.sets(st.integers(0, 11), max_size=3)))}
    wanted = GuestRequest("guest", vcpus, demands, policy, emulator)
    placed = aware(CpuSupply(topology, sets, others), wanted)
    if isinstance(placed, PlacementRefusal):
        return
    placed = dataclasses.replace(placed, vcpu_cpus=tuple(data.draw(st.permutations(placed.vcpu_cpus))))
    observed = placed.cpus | placed.emulator_cpus
    threads = dict(enumerate(placed.vcpu_cpus))
    unknown = dataclasses.replace(wanted, demands=())
    found = read_back(CpuSupply(topology, sets, others), unknown, observed, threads)
    assert found.vcpu_cpus == placed.vcpu_cpus
    assert found.emulator_cpus == placed.emulator_cpus
    kept = refit_assignment(CpuSupply(topology, sets, others | {"guest": found.held_cpus}), wanted, found)
    assert kept.vcpu_cpus == placed.vcpu_cpus
    assert kept.emulator_cpus == placed.emulator_cpus
    assert kept.held_cpus == placed.held_cpus
