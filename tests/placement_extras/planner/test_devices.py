"""Tests of capacity and stranded amounts of hosts with devices below their NUMA nodes."""

from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placement.read_model.snapshot import ModelSnapshot
from placement.schemas.candidates import parse_candidates
from placement.search.budget import SearchBudget
from placement.search.request import CandidatesRequest, RequestGroup
from placement.store.holders import HeldAmount
from placement_extras.planner import proportions
from placement_extras.planner.capacity import CloudHosts, FlavorCapacity, count_flavor
from placement_extras.planner.cluster_simulation import ClusterSimulation, guests_of
from placement_extras.planner.drain_plan import displace_guests
from placement_extras.planner.migration_plan import make_room, nearest_hosts
from placement_extras.planner.packing import FitBounds
from placement_extras.planner.proportions import FlavorProportion, count_sets
from tests.examples import examples
from tests.placement.search.device_hosts import device_requests, unlike_hosts
from tests.placement.search.snapshots import Spec, build
from tests.placement_extras.planner import brute

exhaustive = settings(
    max_examples=examples(80),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)

NEAR = (
    ("resources_cpu", "PCPU:8"),
    ("required_node", "HW_NUMA_ROOT"),
    ("same_subtree", "_node,_cpu,_gpu"),
    ("resources_gpu", "CUSTOM_GPU:1"),
    ("group_policy", "none"),
)


def host(name: str, free_cpus: tuple[int, int], devices: int = 4) -> list[Spec]:
    """A host with two NUMA nodes of 16 CPUs. Each node has a number of free devices."""
    specs = [Spec(name)]
    for node, free in enumerate(free_cpus):
        specs.append(Spec(f"{name}n{node}", name, {"PCPU": 16}, ["HW_NUMA_ROOT"], used={"PCPU": 16 - free}))
        specs += [Spec(f"{name}n{node}d{at}", f"{name}n{node}", {"CUSTOM_GPU": 1}) for at in range(devices)]
    return specs


def counted(snapshot: ModelSnapshot, *parameters: tuple[str, str]) -> FlavorCapacity:
    budget = SearchBudget(10)
    return count_flavor(CloudHosts(snapshot, budget), parse_candidates(parameters, (1, 39)))


def test_devices_of_a_node_without_cpus_are_stranded() -> None:
    found = counted(build(*host("a", (16, 0)), *host("b", (7, 7))), *NEAR)
    # two guests on the first node; the other six devices have no CPUs on their node
    assert found.fit == FitBounds(2, 2)
    assert found.candidate_hosts == 1
    (short,) = found.shortages
    assert (short.classes, short.stranded) == (("PCPU",), {"CUSTOM_GPU": 8})
    assert [each.root.name for each in short.examples] == ["b"]


@pytest.mark.parametrize(("asked", "guests"), [(1, 8), (2, 4), (3, 2), (4, 2)])
def test_guests_with_several_equal_devices_are_counted(asked: int, guests: int) -> None:
    groups = [(f"resources_g{at}", "CUSTOM_GPU:1") for at in range(asked)]
    together = ",".join(["_node", *(f"_g{at}" for at in range(asked))])
    node = (("required_node", "HW_NUMA_ROOT"), ("same_subtree", together), ("group_policy", "none"))
    found = counted(build(*host("a", (16, 16))), *groups, *node)
    assert found.fit == FitBounds(guests, guests)


@exhaustive
@given(unlike_hosts(), device_requests())
def test_devices_are_counted_as_brute_force_does(snapshot: ModelSnapshot, request: CandidatesRequest) -> None:
    found = count_flavor(CloudHosts(snapshot, SearchBudget()), request)
    expected = brute.most(snapshot, request)
    assert found.fit == FitBounds(expected, expected)
    serving = [root for root in brute.roots(snapshot) if brute.serves_when_empty(snapshot, request, root.id)]
    assert found.hosts == len(serving)
    assert sum(each.hosts for each in found.shortages) == found.hosts - found.candidate_hosts


@exhaustive
@given(unlike_hosts(), device_requests(), device_requests(), st.integers(1, 2))
def test_sets_of_guests_with_devices_are_counted_as_brute_force_does(
    snapshot: ModelSnapshot, one: CandidatesRequest, other: CandidatesRequest, number: int
) -> None:
    cloud = CloudHosts(snapshot, SearchBudget())
    shares = [
        FlavorProportion((request,), guests, count_flavor(cloud, request).fit.upper_bound)
        for request, guests in ((one, number), (other, 1))
    ]
    expected = brute.most_sets(snapshot, [(one,), (other,)], (number, 1))
    found = count_sets(cloud, shares)
    assert found.lower_bound <= expected <= found.upper_bound
    with patch.object(proportions, "_MAX_TRIES", 1_000_000):  # it is not given up
        assert count_sets(cloud, shares) == FitBounds(expected, expected)


@pytest.mark.parametrize(
    ("nodes", "asked", "guests"), [(1, 8, 2), (2, 8, 2), (2, 6, 2), (4, 3, 5), (4, 16, 1)]
)
def test_guests_with_many_of_sixteen_devices_take_few_steps(nodes: int, asked: int, guests: int) -> None:
    specs = [Spec("a")]
    for node in range(nodes):
        specs.append(Spec(f"n{node}", "a", traits=["HW_NUMA_ROOT"]))
        specs += [Spec(f"n{node}d{at}", f"n{node}", {"CUSTOM_GPU": 1}) for at in range(16 // nodes)]
    snapshot = build(*specs)
    groups = tuple([RequestGroup(f"_{at}", {"CUSTOM_GPU": 1}) for at in range(asked)])
    budget = CountedSteps()
    found = count_flavor(CloudHosts(snapshot, budget), CandidatesRequest(groups))
    assert found.fit == FitBounds(guests, guests)
    assert budget.steps < 200_000


@pytest.mark.parametrize(("asked", "free", "guests"), [(8, 8, 16), (3, 8, 42), (5, 7, 22), (16, 1, 1)])
def test_guests_with_many_functions_of_sixteen_cards_take_few_steps(
    asked: int, free: int, guests: int
) -> None:
    cards = [Spec(f"d{at}", "n", {"SRIOV_NET_VF": 8}, used={"SRIOV_NET_VF": 8 - free}) for at in range(16)]
    snapshot = build(Spec("a"), Spec("n", "a", traits=["HW_NUMA_ROOT"]), *cards)
    groups = tuple([RequestGroup(f"_{at}", {"SRIOV_NET_VF": 1}) for at in range(asked)])
    budget = CountedSteps()
    found = count_flavor(CloudHosts(snapshot, budget), CandidatesRequest(groups))
    assert found.fit == FitBounds(guests, guests)
    assert budget.steps < 20_000


def test_flavors_with_unlike_pools_take_few_steps() -> None:
    # the two devices with the trait are a pool of one flavor, and a part of a pool of the other
    devices = [Spec(f"d{at}", "n", {"CUSTOM_GPU": 1}, ["T1"] if at < 2 else []) for at in range(18)]
    snapshot = build(Spec("a"), Spec("n", "a", traits=["HW_NUMA_ROOT"]), *devices)
    eight = CandidatesRequest(tuple([RequestGroup(f"_{at}", {"CUSTOM_GPU": 1}) for at in range(8)]))
    marked = CandidatesRequest((RequestGroup("_marked", {"CUSTOM_GPU": 1}, (frozenset({"T1"}),)),))
    budget = CountedSteps()
    shares = [FlavorProportion((eight,), 1, 2), FlavorProportion((marked,), 1, 2)]
    assert count_sets(CloudHosts(snapshot, budget), shares) == FitBounds(2, 2)
    assert budget.steps < 20_000


def test_devices_that_give_unlike_amounts_to_two_flavors_are_counted() -> None:
    devices = [Spec(f"d{at}", "n", {"CUSTOM_GPU": 3}) for at in range(4)]
    snapshot = build(Spec("a"), Spec("n", "a", traits=["HW_NUMA_ROOT"]), *devices)
    two, three = (CandidatesRequest((RequestGroup("_d", {"CUSTOM_GPU": each}),)) for each in (2, 3))
    shares = [FlavorProportion((request,), 1, 4) for request in (two, three)]
    assert count_sets(CloudHosts(snapshot, SearchBudget()), shares) == FitBounds(2, 2)


def test_sets_on_hosts_with_many_ways_have_bounds() -> None:
    specs = []
    for name in map(str, range(20)):
        nodes = [Spec(f"{name}n{node}", name, {"PCPU": 3 + node}) for node in range(7)]
        devices = [Spec(f"{name}d{at}", f"{name}n0", {"CUSTOM_GPU": 1}) for at in range(20)]
        specs += [Spec(name), *nodes, *devices]
    gpu = RequestGroup("_gpu", {"CUSTOM_GPU": 1})
    cpus = tuple([RequestGroup(f"_{at}", {"PCPU": 2}) for at in range(3)])
    wide, narrow = CandidatesRequest((*cpus, gpu), group_policy="isolate"), CandidatesRequest((gpu,))
    budget = CountedSteps()
    shares = [FlavorProportion((request,), 1, 400) for request in (wide, narrow)]
    found = count_sets(CloudHosts(build(*specs), budget), shares)
    assert 100 <= found.lower_bound <= found.upper_bound <= 140
    # to pack one flavor alone on each host would take 80,000
    assert budget.steps < 5_000


@pytest.mark.parametrize("size", [1, 4])
def test_guests_with_many_of_sixteen_devices_move_in_few_steps(size: int) -> None:
    """Each of three hosts has 16 devices with a number of units. Each of its two guests has 4 devices."""
    specs, held, units = [], [], 4 * size
    for host in range(3):
        specs.append(Spec(f"cn{host}"))
        for device in range(16):
            used = {"CUSTOM_GPU": size} if device < 8 else {}
            specs.append(Spec(f"cn{host}d{device}", f"cn{host}", {"CUSTOM_GPU": size}, used=used))
            if used:
                consumer = f"{host:04}{device // 4:04}-0000-4000-8000-000000000000"
                held.append(HeldAmount(consumer, "INSTANCE", len(specs), "CUSTOM_GPU", size))
    snapshot = build(*specs)
    guests = guests_of(snapshot, held, SearchBudget())
    budget = CountedSteps()
    leaving = [each for each in guests if each.hosts == {1}]
    found = displace_guests(ClusterSimulation(snapshot, budget, {1}), leaving)
    assert (len(leaving), found.fit) == (2, FitBounds(2, 2))
    # one guest more than there is room for
    found = displace_guests(ClusterSimulation(snapshot, budget, {1}), [*leaving, *leaving, leaving[0]])
    assert found.fit == FitBounds(4, 4)
    asked = tuple([RequestGroup(f"_{at}", {"CUSTOM_GPU": 1}) for at in range(10 * size)])
    request = CandidatesRequest(asked)
    board = ClusterSimulation(snapshot, budget)
    plan = make_room(board, request, nearest_hosts(board, request), guests, all_known=True)
    assert plan.moves is not None
    assert (len(plan.moves), plan.lower_bound) == (1, 1)
    assert sum(amounts["CUSTOM_GPU"] for amounts in plan.moves[0].allocations.values()) == units
    assert budget.steps < 20_000


class CountedSteps(SearchBudget):
    """A budget without limits that only counts steps."""

    steps = 0

    def spend(self, steps: int = 1) -> None:
        """Count steps."""
        self.steps += steps
