"""Tests of policy topology-aware, checked by brute force on small machines."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.guest_settings import EmulatorPolicy, ThreadPolicy
from compute_agent.policy.base import CpuSupply, GuestRequest, PlacementRefusal, ProviderDemand
from compute_agent.policy.policies import place_by_topology
from tests.compute_agent.inventory.machines import machine
from tests.examples import examples

FAR_AND_NEAR = {
    0: {0: 10, 1: 12, 2: 32, 3: 32},
    1: {0: 12, 1: 10, 2: 32, 3: 20},
    2: {0: 32, 1: 32, 2: 10, 3: 12},
    3: {0: 32, 1: 20, 2: 12, 3: 10},
}

MACHINES = (
    machine(cores=4, threads=2),
    machine(nodes=2, cores=4),
    machine(nodes=2, l3=2, cores=1, threads=2),
    machine(packages=2, nodes=2, cores=1, threads=2),
    machine(nodes=2, cores=2, threads=2, l3_spans_nodes=True),
    machine(packages=2, l3=2, cores=2),
    machine(packages=2, cores=2, threads=2, offline=frozenset({3})),
    machine(l3=3, cores=1, threads=3),
    machine(nodes=4, cores=2, distances=FAR_AND_NEAR),
    machine(nodes=2, cores=1, threads=4),
)


def supply_of(topology, dedicated=None, **holdings):
    dedicated = topology.online if dedicated is None else frozenset(dedicated)
    sets = CpuSets(dedicated, topology.online - dedicated, topology.online - dedicated)
    return CpuSupply(topology, sets, {name: frozenset(cpus) for name, cpus in holdings.items()})


def ask(supply, count, policy=ThreadPolicy.PREFER, vcpus=None, **fields):
    zone = fields.pop("zone", supply.topology.online)
    demand = ProviderDemand("zone", frozenset(zone), pcpu=count)
    return place_by_topology(supply, GuestRequest("guest", vcpus or count, (demand,), policy, **fields))


@st.composite
def situations(draw):
    topology = draw(st.sampled_from(MACHINES))
    cpus = sorted(topology.online)
    dedicated = draw(st.sets(st.sampled_from(cpus), min_size=1))
    held = draw(st.sets(st.sampled_from(cpus), max_size=5))
    zone = draw(st.sampled_from([topology.online, *(node.cpus for node in topology.numa_nodes)]))
    return supply_of(topology, dedicated, other=held), frozenset(zone), draw(st.integers(1, 5))


def satisfies(topology, free, cpus, policy, vcpus=1):
    """Whether a choice of CPUs meets the definition of the thread policy."""
    cores = [core.cpus & cpus for core in topology.cores if core.cpus & cpus]
    match policy:
        case ThreadPolicy.ISOLATE:
            return len(cores) >= vcpus and all(
                threads == topology.threads_of(min(threads)) for threads in cores
            )
        case ThreadPolicy.REQUIRE:
            lonely = [threads for threads in cores if len(threads) == 1]
            with_siblings = [core.cpus & free for core in topology.cores if core.cpus & cpus]
            return len(lonely) <= 1 and all(len(threads) > 1 for threads in with_siblings)
        case _:
            return True


def zones_crossed(topology, chosen):
    """The numbers of NUMA nodes, L3 domains and packages of a choice, and the distances between its nodes.
    The most important number comes first.
    """
    nodes = sorted({topology.node_of(cpu) for cpu in chosen})
    return (
        len(nodes),
        sum(bool(cache.cpus & chosen) for cache in topology.l3_domains),
        sum(bool(package.cpus & chosen) for package in topology.packages),
        sum(topology.distances.get(a, {}).get(b, 20) for a, b in combinations(nodes, 2)),
    )


def cores_spoilt(topology, free, chosen, policy):
    """The number of cores of a choice, and the number of cores that are left partly used. With thread policy
    spread, these are the threads that share a core, and the cores shared with other guests. The most
    important number comes first.
    """
    cores = [core.cpus for core in topology.cores if core.cpus & chosen]
    if policy is ThreadPolicy.SPREAD:
        return len(chosen) - len(cores), sum(not core <= free for core in cores)
    left = free - chosen
    return len(cores), sum(bool(core.cpus & left) and not core.cpus <= left for core in topology.cores)


@settings(max_examples=examples(400), deadline=None)
@given(situations(), st.sampled_from(ThreadPolicy), st.integers(1, 5))
def test_a_placed_guest_has_exactly_its_cpus_free_and_in_its_zone(situation, policy, vcpus):
    supply, zone, count = situation
    vcpus = min(vcpus, count)
    free = (supply.cpu_sets.dedicated & zone) - supply.holdings["other"]
    found = ask(supply, count, policy, vcpus, zone=zone)
    possible = any(
        satisfies(supply.topology, free, frozenset(cpus), policy, vcpus)
        for cpus in combinations(sorted(free), count)
    )
    assert isinstance(found, CpuAssignment) == possible
    if isinstance(found, CpuAssignment):
        chosen = frozenset(found.dedicated)
        assert len(found.dedicated) == len(chosen) == count
        assert chosen <= free
        assert satisfies(supply.topology, free, chosen, policy, vcpus)
        assert found.held_cpus == chosen
        assert found.cpus == chosen - found.withheld


@settings(max_examples=examples(400), deadline=None)
@given(situations(), st.sampled_from(ThreadPolicy), st.integers(1, 5))
def test_no_other_choice_crosses_fewer_zones_or_breaks_fewer_cores(situation, policy, vcpus):
    """The choice crosses the fewest zones, and inside one L3 domain of a node it breaks the fewest cores.

    The other criteria only order candidates.
    """
    supply, zone, count = situation
    vcpus = min(vcpus, count)
    topology = supply.topology
    free = (supply.cpu_sets.dedicated & zone) - supply.holdings["other"]
    choices = [
        cpus
        for cpus in map(frozenset, combinations(sorted(free), count))
        if satisfies(topology, free, cpus, policy, vcpus)
    ]
    found = ask(supply, count, policy, vcpus, zone=zone)
    if not choices:
        assert isinstance(found, PlacementRefusal)
        return
    chosen = frozenset(found.dedicated)
    crossed = zones_crossed(topology, chosen)
    assert crossed == min(zones_crossed(topology, cpus) for cpus in choices)
    if crossed[:2] == (1, 1):
        assert cores_spoilt(topology, free, chosen, policy) == min(
            cores_spoilt(topology, free, cpus, policy)
            for cpus in choices
            if zones_crossed(topology, cpus) == crossed
        )


def test_siblings_go_together_and_whole_cores_stay_whole():
    supply = supply_of(machine(cores=4, threads=2), other={0})
    assert ask(supply, 2).dedicated == (2, 3)
    assert ask(supply, 1).dedicated == (1,)
    assert set(ask(supply, 3).dedicated) == {1, 2, 3}


def test_a_guest_goes_to_the_tightest_cache_that_has_room():
    supply = supply_of(machine(l3=3, cores=4), other={0, 4, 5})
    assert ask(supply, 2).dedicated == (6, 7)
    assert ask(supply, 3).dedicated == (1, 2, 3)
    assert ask(supply, 4).dedicated == (8, 9, 10, 11)


def test_near_nodes_come_before_far_ones():
    distances = {0: {0: 10, 1: 32, 2: 16}, 1: {0: 32, 1: 10, 2: 32}, 2: {0: 16, 1: 32, 2: 10}}
    supply = supply_of(machine(nodes=3, cores=2, distances=distances))
    assert set(ask(supply, 4).dedicated) == {0, 1, 4, 5}


def test_memory_is_bound_to_the_nodes_of_the_cpus():
    supply = supply_of(machine(nodes=2, cores=4))
    assert ask(supply, 2, zone={4, 5, 6, 7}).mems == {1}


class TestIsolate:
    """The allocation includes whole cores, one for each guest CPU."""

    def test_the_siblings_are_paid_for_and_kept_empty(self):
        found = ask(supply_of(machine(cores=4, threads=2)), 4, ThreadPolicy.ISOLATE, vcpus=2)
        assert found.dedicated == (0, 1, 2, 3)
        assert found.vcpu_cpus == ({0}, {2})
        assert found.withheld == {1, 3}
        assert found.held_cpus == {0, 1, 2, 3}

    @pytest.mark.parametrize(("vcpus", "pcpu", "needed"), [(2, 2, 4), (2, 3, 4), (3, 5, 6)])
    def test_an_allocation_that_does_not_pay_for_the_siblings_is_refused(self, vcpus, pcpu, needed):
        refused = ask(supply_of(machine(cores=4, threads=2)), pcpu, ThreadPolicy.ISOLATE, vcpus)
        assert refused == PlacementRefusal(
            f"thread policy isolate takes whole cores: the guest needs {needed} PCPU on cores of 2 threads,"
            f" but its allocation has {pcpu}"
        )

    def test_the_emulator_needs_a_cpu_and_not_a_whole_core(self):
        refused = ask(
            supply_of(machine(cores=4, threads=2)),
            3,
            ThreadPolicy.ISOLATE,
            vcpus=2,
            emulator_policy=EmulatorPolicy.ISOLATE,
        )
        assert refused == PlacementRefusal(
            "thread policy isolate takes whole cores: the guest needs 5 PCPU on cores of 2 threads,"
            " but its allocation has 3"
        )

    def test_without_hyperthreads_there_is_nothing_more_to_pay(self):
        found = ask(supply_of(machine(cores=4)), 2, ThreadPolicy.ISOLATE)
        assert (found.dedicated, found.withheld) == ((0, 1), frozenset())

    def test_a_sibling_that_is_offline_is_not_paid_for(self):
        supply = supply_of(machine(cores=2, threads=2, offline=frozenset({1, 3})))
        assert ask(supply, 2, ThreadPolicy.ISOLATE).dedicated == (0, 2)

    def test_a_core_of_which_others_have_a_thread_is_of_no_use(self):
        supply = supply_of(machine(cores=2, threads=2), dedicated={0, 1, 2})
        assert ask(supply, 2, ThreadPolicy.ISOLATE, vcpus=1).dedicated == (0, 1)
        refused = ask(supply_of(supply.topology, other={0}), 2, ThreadPolicy.ISOLATE, vcpus=2)
        assert isinstance(refused, PlacementRefusal)

    def test_cpus_in_two_zones_are_whole_cores_in_each(self):
        topology = machine(nodes=2, cores=2, threads=2)
        demands = tuple(ProviderDemand(f"node {node.id}", node.cpus, pcpu=2) for node in topology.numa_nodes)
        found = place_by_topology(
            supply_of(topology, other={0}), GuestRequest("guest", 2, demands, ThreadPolicy.ISOLATE)
        )
        assert found.dedicated == (2, 3, 4, 5)
        assert found.vcpu_cpus == ({2}, {4})
        refused = place_by_topology(
            supply_of(topology), GuestRequest("guest", 3, demands, ThreadPolicy.ISOLATE)
        )
        assert isinstance(refused, PlacementRefusal)

    @pytest.mark.parametrize(
        ("pcpu", "dedicated", "withheld"), [(5, (0, 1, 2, 3, 4), {1, 3}), (6, (0, 1, 2, 3, 4, 5), {1, 3, 5})]
    )
    def test_the_cpu_of_the_emulator_may_share_its_core_with_others_or_not(self, pcpu, dedicated, withheld):
        found = ask(
            supply_of(machine(cores=4, threads=2)),
            pcpu,
            ThreadPolicy.ISOLATE,
            vcpus=2,
            emulator_policy=EmulatorPolicy.ISOLATE,
        )
        assert found.dedicated == dedicated
        assert found.vcpu_cpus == ({0}, {2})
        assert found.emulator_cpus == {4}
        assert found.withheld == withheld

    def test_the_cpu_of_the_emulator_is_rather_on_a_core_that_is_broken_already(self):
        supply = supply_of(machine(cores=4, threads=2), other={0})
        policies = {"policy": ThreadPolicy.ISOLATE, "emulator_policy": EmulatorPolicy.ISOLATE}
        found = ask(supply, 3, vcpus=1, **policies)
        assert found.vcpu_cpus == ({2},)
        assert found.emulator_cpus == {1}


def test_require_is_refused_without_siblings():
    found = ask(supply_of(machine(cores=4)), 2, ThreadPolicy.REQUIRE)
    assert isinstance(found, PlacementRefusal)
    assert "require" in found.reason


def test_siblings_are_any_two_threads_of_a_core():
    supply = supply_of(machine(cores=2, threads=4), other={0, 1, 4, 5, 6})
    assert ask(supply, 2, ThreadPolicy.REQUIRE).dedicated == (2, 3)
    assert isinstance(ask(supply, 3, ThreadPolicy.REQUIRE), PlacementRefusal)


def test_spread_shares_a_core_only_when_no_free_core_is_left():
    supply = supply_of(machine(cores=3, threads=2), other={0})
    assert set(ask(supply, 2, ThreadPolicy.SPREAD).dedicated) == {2, 4}
    assert set(ask(supply, 3, ThreadPolicy.SPREAD).dedicated) == {1, 2, 4}
    assert set(ask(supply, 5, ThreadPolicy.SPREAD).dedicated) == {1, 2, 3, 4, 5}


def test_an_isolated_emulator_has_a_cpu_of_its_own():
    supply = supply_of(machine(cores=4))
    found = ask(supply, 3, vcpus=2, emulator_policy=EmulatorPolicy.ISOLATE)
    assert found.vcpu_cpus == ({0}, {1})
    assert found.emulator_cpus == {2}
    refused = ask(supply, 1, emulator_policy=EmulatorPolicy.ISOLATE)
    assert isinstance(refused, PlacementRefusal)


def test_too_few_free_cpus_are_counted_and_named():
    found = ask(supply_of(machine(cores=4), other={0, 1}), 3)
    assert found == PlacementRefusal("zone has 2 free dedicated CPUs (2-3), but 3 are needed")


def test_the_input_is_not_changed():
    supply = supply_of(machine(cores=4), other={0})
    before = repr(supply)
    ask(supply, 2)
    assert repr(supply) == before


@pytest.mark.parametrize(
    ("emulator", "needed"),
    [(EmulatorPolicy.SHARE, 6), (EmulatorPolicy.ISOLATE, 5)],
    ids=["three guest CPUs", "two guest CPUs and one of emulator threads, which needs no whole core"],
)
def test_a_refused_isolated_guest_is_given_the_number_of_pcpu_it_needs(
    emulator: EmulatorPolicy, needed: int
) -> None:
    supply = supply_of(machine(cores=4, threads=2))
    refused = ask(supply, 3, ThreadPolicy.ISOLATE, emulator_policy=emulator)
    assert isinstance(refused, PlacementRefusal)
    assert f"the guest needs {needed} PCPU on cores of 2 threads, but its allocation has 3" in str(refused)


def test_an_isolated_guest_with_enough_pcpu_is_refused_for_taken_cores() -> None:
    refused = ask(supply_of(machine(cores=3, threads=2), other={0, 2}), 4, ThreadPolicy.ISOLATE, vcpus=2)
    assert isinstance(refused, PlacementRefusal)
    assert "zone has 4 free dedicated CPUs, but not 4 that satisfy thread policy isolate" in str(refused)


UNEVEN = machine(l3=2, cores=6, offline=frozenset({6, 7, 8}))
"""An L3 domain of CPUs 0-5, and one of CPUs 9-11."""


@pytest.mark.parametrize(
    ("held", "count", "domain"),
    [
        pytest.param(
            {0}, 2, range(6), id="of a broken domain rather than of a whole one, though it has more left"
        ),
        pytest.param(
            {0}, 3, range(9, 12), id="a whole domain that is used up is not broken: the tightest fit"
        ),
        pytest.param(set(), 2, range(9, 12), id="of two whole ones that which has the fewest left"),
    ],
)
def test_large_holes_are_left_for_the_next_guest(held: set[int], count: int, domain: range) -> None:
    found = ask(supply_of(UNEVEN, other=held), count)
    assert isinstance(found, CpuAssignment)
    assert set(found.dedicated) <= set(domain)


@pytest.mark.parametrize("held", [set(), {0, 1}, {4, 5}])
def test_a_guest_of_two_nodes_stays_in_one_package_if_it_can(held: set[int]) -> None:
    topology = machine(packages=2, nodes=2, cores=1, threads=2)
    found = ask(supply_of(topology, other=held), 4)
    assert isinstance(found, CpuAssignment)
    packages = [package.cpus for package in topology.packages if package.cpus & set(found.dedicated)]
    assert packages == [frozenset(found.dedicated)]


@pytest.mark.parametrize(
    ("l3", "offline", "held", "count", "whole"),
    [
        pytest.param(3, {8, 9, 14}, {0, 1}, 5, range(5, 8), id="of two domains"),
        pytest.param(4, {13, 14, 19}, {0, 1}, 10, range(10, 13), id="of three domains"),
    ],
)
def test_a_guest_of_several_domains_ends_in_a_broken_one_and_leaves_a_whole_one_whole(
    l3: int, offline: set[int], held: set[int], count: int, whole: range
) -> None:
    """A tighter fit would break another cache. A cache that becomes full does not count as broken."""
    found = ask(supply_of(machine(l3=l3, cores=5, offline=frozenset(offline)), other=held), count)
    assert isinstance(found, CpuAssignment)
    assert len(found.dedicated) == count
    assert set(found.dedicated).isdisjoint(whole)
