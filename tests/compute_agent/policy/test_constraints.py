"""Tests of placing guests within the limits of their definitions, checked by brute force."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest import CpuAssignment, GuestCell, PlacementConstraints
from compute_agent.model.guest_settings import EmulatorPolicy, ThreadPolicy
from compute_agent.policy import POLICIES
from compute_agent.policy.base import CpuSupply, GuestRequest, PlacementRefusal, ProviderDemand
from compute_agent.policy.constraints import give_out, limits_of, refit_within
from tests.compute_agent.builders import cpu_set
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(nodes=2, cores=4)
SETS = CpuSets(frozenset({1, 2, 5, 6}), frozenset({3, 7}), frozenset({3, 7}))
SUPPLY = CpuSupply(TOPOLOGY, SETS)
ALL = TOPOLOGY.online
PLACING = ["static", "topology-aware"]


def pins(**by_number):
    return PlacementConstraints(
        pins=tuple((int(name[1:]), frozenset(allowed)) for name, allowed in by_number.items())
    )


def cells(*nodes):
    """The constraints of a guest that has a cell of two guest CPUs on each of these NUMA nodes."""
    return PlacementConstraints(
        cells=tuple(GuestCell(cpu_set(2 * n, 2 * n + 1), cpu_set(node)) for n, node in enumerate(nodes))
    )


def flat(vcpus, pcpu=0, vcpu=0, constraints=None, **fields):
    return GuestRequest(
        "g",
        vcpus,
        (ProviderDemand("h", ALL, pcpu, vcpu),),
        constraints=constraints or PlacementConstraints(),
        **fields,
    )


def place(request, policy="topology-aware", supply=SUPPLY):
    return POLICIES[policy](supply, request)


class TestConstraintLimits:
    """The host CPUs that each guest CPU may use."""

    def test_a_guest_without_demands_has_no_limits(self):
        assert limits_of(TOPOLOGY, PlacementConstraints(), 2) == ()
        assert limits_of(TOPOLOGY, PlacementConstraints(emulator=cpu_set(1)), 2) == (ALL, ALL)

    def test_strict_memory_keeps_guest_cpus_near(self):
        assert limits_of(TOPOLOGY, PlacementConstraints(cpu_set(1)), 2) == (cpu_set(4, 5, 6, 7),) * 2

    def test_each_cell_is_near_its_own_memory(self):
        low, high = cpu_set(0, 1, 2, 3), cpu_set(4, 5, 6, 7)
        assert limits_of(TOPOLOGY, cells(1, 0), 4) == (high, high, low, low)
        assert limits_of(TOPOLOGY, cells(1, 0), 1) == (high,)

    def test_nodes_without_cpus_limit_nothing(self):
        assert limits_of(TOPOLOGY, PlacementConstraints(cpu_set(9)), 1) == (ALL,)

    def test_pins_count_within_that(self):
        demanded = PlacementConstraints(cpu_set(0), pins=((0, cpu_set(2, 5)), (7, cpu_set(1))))
        assert limits_of(TOPOLOGY, demanded, 2) == (cpu_set(2), cpu_set(0, 1, 2, 3))


@pytest.mark.parametrize("policy", PLACING)
class TestPlaces:
    """The CPUs that guests with demands get."""

    def test_memory_of_a_node_brings_its_cpus(self, policy):
        found = place(flat(2, pcpu=2, constraints=PlacementConstraints(cpu_set(1))), policy)
        assert (found.held_cpus, found.mems) == ({5, 6}, {1})

    def test_cells_get_cpus_of_their_nodes_in_their_order(self, policy):
        found = place(flat(4, pcpu=4, constraints=cells(1, 0)), policy)
        assert [min(one) for one in found.vcpu_cpus[:2]] in ([5, 6], [6, 5])
        assert found.held_cpus == {1, 2, 5, 6}
        assert found.mems == {0, 1}

    def test_two_of_four_zones_with_room_are_taken_as_the_cells_want_it(self, policy):
        supply = CpuSupply(TOPOLOGY, CpuSets(cpu_set(0, 1, 2, 4, 5, 6), cpu_set(3, 7), cpu_set(3, 7)))
        found = place(flat(4, pcpu=4, constraints=cells(0, 1)), policy, supply)
        assert [one <= cpu_set(0, 1, 2) for one in found.vcpu_cpus] == [True, True, False, False]

    def test_pins_are_where_they_are_said_to_be(self, policy):
        found = place(flat(2, pcpu=2, constraints=pins(v0=[6], v1=[1])), policy)
        assert (found.vcpu_cpus, found.dedicated) == ((cpu_set(6), cpu_set(1)), (6, 1))

    def test_a_mixed_guest_is_dedicated_where_its_pins_say(self, policy):
        found = place(flat(2, pcpu=1, vcpu=1, constraints=pins(v1=[2])), policy)
        assert (found.vcpu_cpus, found.dedicated) == ((cpu_set(3, 7), cpu_set(2)), (2,))

    def test_one_that_floats_does_so_within_its_limits(self, policy):
        found = place(flat(2, vcpu=2, constraints=PlacementConstraints(cpu_set(1))), policy)
        assert (found.vcpu_cpus, found.dedicated, found.mems) == ((cpu_set(7),) * 2, (), {1})

    def test_one_that_holds_nothing_floats_within_its_limits(self, policy):
        found = place(GuestRequest("g", 1, constraints=PlacementConstraints(cpu_set(0))), policy)
        assert found.vcpu_cpus == (cpu_set(3),)

    def test_an_emulator_with_a_cpu_of_its_own_is_where_it_is_pinned(self, policy):
        demanded = PlacementConstraints(pins=((0, cpu_set(5)),), emulator=cpu_set(2))
        request = flat(1, pcpu=2, constraints=demanded, emulator_policy=EmulatorPolicy.ISOLATE)
        found = place(request, policy)
        assert (found.vcpu_cpus, found.emulator_cpus, found.held_cpus) == ((cpu_set(5),), {2}, {2, 5})

    @pytest.mark.parametrize(
        ("request_", "why"),
        [
            (flat(1, pcpu=1, constraints=pins(v0=[9])), "guest CPU 0 may use only CPUs that are offline"),
            (flat(1, pcpu=1, constraints=pins(v0=[0])), "its zones have no 1 free dedicated CPUs"),
            (flat(2, pcpu=2, constraints=pins(v0=[1], v1=[1])), "its zones have no 2 free dedicated CPUs"),
            (
                flat(3, pcpu=3, constraints=PlacementConstraints(cpu_set(0))),
                "among the CPUs 0-3 that its guest CPUs",
            ),
            (
                flat(1, vcpu=1, constraints=pins(v0=[1])),
                "guest CPU 0 may use CPUs 1, but the guest floats on 3,7",
            ),
        ],
    )
    def test_impossible_demands_leave_the_guest_with_a_reason(self, policy, request_, why):
        found = place(request_, policy)
        assert isinstance(found, PlacementRefusal)
        assert found.leave
        assert why in found.reason

    def test_cpus_of_others_are_not_taken(self, policy):
        supply = CpuSupply(TOPOLOGY, SETS, {"other": cpu_set(5)})
        assert isinstance(place(flat(1, pcpu=1, constraints=pins(v0=[5])), policy, supply), PlacementRefusal)
        assert place(flat(1, pcpu=1, constraints=pins(v0=[5, 6])), policy, supply).held_cpus == {6}


def test_isolated_cores_are_chosen_within_the_limits():
    topology = machine(nodes=2, cores=2, threads=2)
    supply = CpuSupply(topology, CpuSets(topology.online, frozenset(), frozenset()))
    near = next(node.cpus for node in topology.numa_nodes if node.id == 1)
    request = GuestRequest(
        "g",
        1,
        (ProviderDemand("h", topology.online, 2),),
        ThreadPolicy.ISOLATE,
        constraints=PlacementConstraints(cpu_set(1)),
    )
    found = place(request, supply=supply)
    assert found.held_cpus <= near
    assert (len(found.held_cpus), len(found.withheld), len(found.vcpu_cpus[0])) == (2, 1, 1)


class TestConstrainedRefit:
    """A running guest stays as long as its CPUs meet its definition."""

    def test_a_running_guest_stays_within_its_limits(self):
        request = flat(2, pcpu=2, constraints=pins(v0=[6, 5]))
        current = CpuAssignment((cpu_set(6), cpu_set(1)), cpu_set(3, 7), (6, 1), mems=cpu_set(0, 1))
        assert refit_within(SUPPLY, request, current) == current

    @pytest.mark.parametrize("demanded", [PlacementConstraints(), pins(v0=[1])])
    def test_a_running_guest_moves_when_its_allocation_changes(self, demanded):
        request = flat(1, pcpu=2, constraints=demanded)
        assert refit_within(SUPPLY, request, CpuAssignment((cpu_set(1),), cpu_set(3, 7), (1,))) is None

    def test_a_running_guest_moves_when_its_definition_changes(self):
        request = flat(1, pcpu=1, constraints=pins(v0=[5]))
        assert refit_within(SUPPLY, request, CpuAssignment((cpu_set(1),), cpu_set(3, 7), (1,))) is None


SOME = st.frozensets(st.sampled_from(sorted(ALL)), min_size=1)


@st.composite
def cases(draw):
    limits = tuple(draw(st.lists(SOME, min_size=1, max_size=4)))
    zones = [
        (draw(st.frozensets(st.sampled_from([0, 1, 2, 4, 5, 6]))) & near, draw(st.integers(0, 2)))
        for near in (cpu_set(0, 1, 2, 3), cpu_set(4, 5, 6, 7))
    ]
    return zones, draw(st.frozensets(st.sampled_from([3, 7]))), limits


@given(cases())
def test_cpus_are_given_out_if_brute_force_finds_a_way(case):
    zones, floating, limits = case
    found = give_out(zones, floating, limits)
    free = sorted(frozenset().union(*(inside for inside, _ in zones)))
    ways = (
        way
        for way in itertools.product([None, *free], repeat=len(limits))
        if all(
            cpu in limit if cpu is not None else limit & floating
            for cpu, limit in zip(way, limits, strict=True)
        )
        and all(sum(cpu in inside for cpu in way if cpu is not None) == amount for inside, amount in zones)
        and len({cpu for cpu in way if cpu is not None}) == sum(cpu is not None for cpu in way)
    )
    assert (found is None) == (next(ways, None) is None)
    if found is not None:
        assert len(set(found.values())) == len(found)
        assert all(cpu in limits[number] for number, cpu in found.items())
        assert all(sum(cpu in inside for cpu in found.values()) == amount for inside, amount in zones)
        assert all(limits[number] & floating for number in range(len(limits)) if number not in found)


@given(
    st.integers(0, 4),
    st.integers(0, 2),
    st.frozensets(st.integers(0, 1)),
    st.dictionaries(st.integers(0, 5), SOME),
    st.sampled_from(PLACING),
    st.frozensets(st.sampled_from([1, 2, 5, 6])),
)
def test_guest_cpus_stay_in_their_limits_and_off_held_cpus(pcpu, vcpu, nodes, pinned, policy, taken):
    vcpus = max(1, pcpu + vcpu)
    constraints = PlacementConstraints(nodes, pins=tuple(sorted(pinned.items())))
    supply = CpuSupply(TOPOLOGY, SETS, {"other": taken})
    request = flat(vcpus, pcpu, vcpu, constraints)
    found = place(request, policy, supply)
    limits = limits_of(TOPOLOGY, constraints, vcpus)
    if isinstance(found, PlacementRefusal):
        assert found.leave or not limits
        return
    assert len(found.vcpu_cpus) == vcpus
    assert len(found.held_cpus) == pcpu
    assert found.held_cpus <= SETS.dedicated - taken
    assert all(one for one in found.vcpu_cpus)
    assert all(one <= limit for one, limit in zip(found.vcpu_cpus, limits, strict=False))
    assert refit_within(supply, request, found) == found
