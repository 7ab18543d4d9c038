"""Tests of moving a running guest to better CPUs."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy import POLICIES
from compute_agent.policy.base import (
    CpuSupply,
    GuestRequest,
    PlacementRefusal,
    ProviderDemand,
    build_assignment,
)
from compute_agent.policy.running_guests import best_move, move_cost, place_cost
from tests.compute_agent.inventory.machines import machine
from tests.examples import examples

TOPOLOGY = machine(packages=2, nodes=2, l3=2, cores=2, threads=2)
"""32 CPUs: 4 in an L3 domain, 8 in a NUMA node, 16 in a package."""
SUPPLY = CpuSupply(TOPOLOGY, CpuSets(TOPOLOGY.online, frozenset(), frozenset()))
POLICY = POLICIES["topology-aware"]


class RebalancedHost:
    """A host with guests by name, with their requests, assignments and held CPUs."""

    def __init__(self, **guests):
        self.requests, self.assignments = {}, {}
        for name, cpus in guests.items():
            self.add(name, cpus)

    def add(self, name, cpus, thread_policy=ThreadPolicy.PREFER):
        demand = ProviderDemand("host", TOPOLOGY.online, len(cpus))
        request = GuestRequest(name, len(cpus), (demand,), thread_policy)
        self.requests[name] = request
        self.assignments[name] = build_assignment(self.supply, request, tuple(cpus))

    @property
    def supply(self):
        return replace(SUPPLY, holdings={name: it.held_cpus for name, it in self.assignments.items()})

    def move(self, min_gain=1.0, policy=POLICY):
        guests = [(self.requests[name], it) for name, it in self.assignments.items()]
        return best_move(self.supply, policy, guests, min_gain)

    def cost(self):
        """The cost of all guests' assignments. A core that two guests share counts once."""
        both, crossed = (
            sum(place_cost(supply, self.requests[name], it) for name, it in self.assignments.items())
            for supply in (self.supply, SUPPLY)
        )
        return crossed + (both - crossed) / 2


@pytest.mark.parametrize(
    ("cpus", "cost"),
    [
        ((0, 1, 2, 3), 0.0),
        ((2, 3, 4, 5), 1.0),
        ((0, 1, 8, 9), 1.0 + 3.0),
        ((0, 1, 16, 17), 1.0 + 3.0 + 6.0),
        ((0, 4, 8, 16), 3 * 1.0 + 2 * 3.0 + 6.0),
    ],
)
def test_each_zone_crossed_has_its_cost(cpus, cost):
    assert RebalancedHost(a=cpus).cost() == cost


def test_a_shared_core_costs_each_of_the_guests():
    host = RebalancedHost(a=(0, 2), b=(1,), c=(3,))
    costs = {name: place_cost(host.supply, host.requests[name], it) for name, it in host.assignments.items()}
    assert costs == {"a": 2.0, "b": 1.0, "c": 1.0}


def test_a_guest_that_crosses_packages_is_brought_together():
    host = RebalancedHost(a=(0, 1, 16, 17))
    move = host.move()
    assert move.guest == "a"
    assert place_cost(host.supply, host.requests["a"], move.assignment) == 0.0
    assert move.gain == 10.0 - 2.0 * (1 / 2)


def test_the_guest_with_the_larger_gain_is_moved():
    host = RebalancedHost(a=(0, 1, 8, 9), b=(4, 5, 24, 25))
    assert host.move().guest == "b"


def test_the_first_of_equal_guests_is_moved():
    assert RebalancedHost(b=(0, 1, 8, 9), a=(16, 17, 24, 25)).move().guest == "b"


def test_guests_that_stay_do_not_block_other_moves():
    """One guest has nothing to gain, one is refused, and one would get its present CPUs again."""
    host = RebalancedHost(
        well=(0, 1, 2, 3), refused=(4, 5, 8, 9), again=(12, 13, 16, 17), last=(20, 21, 28, 29)
    )

    def policy(supply, request):
        match request.guest:
            case "refused":
                return PlacementRefusal("no")
            case "again":
                return host.assignments["again"]
        return POLICY(supply, request)

    assert host.move(policy=policy).guest == "last"


@pytest.mark.parametrize(
    ("before", "after", "cost"),
    [
        ({0, 1}, {0, 1}, 0.0),
        ({0, 1}, {0}, 1.0),
        ({0, 1}, {2}, 2.0),
        ({0}, {0, 1}, 0.0),
        ({0, 1, 2, 3}, {3, 4}, 1.5),
        ({0}, set(), 0.0),
        (set(), {0}, 0.0),
    ],
)
def test_a_move_costs_the_part_of_its_memory_that_the_guest_leaves(before, after, cost):
    assignment = RebalancedHost(a=(0, 1)).assignments["a"]
    nodes = (replace(assignment, mems=frozenset(mems)) for mems in (before, after))
    assert move_cost(*nodes) == cost


def test_memory_on_the_old_node_counts_against_a_move():
    """A guest crosses L3 domains, because other guests use a part of each L3 domain of its node. A move to
    another node costs more for its memory than it gains.
    """
    host = RebalancedHost(a=(2, 3, 4, 5), b=(0,), c=(6,))
    assert host.move(min_gain=1.0) is None
    unbound = replace(host.assignments["a"], mems=frozenset())
    guests = [(host.requests["a"], unbound)]
    move = best_move(host.supply, POLICY, guests, 1.0)
    assert move.gain == 1.0
    assert move_cost(host.assignments["a"], move.assignment) == 2.0


def test_two_guests_on_one_core_are_moved_apart():
    host = RebalancedHost(a=(0,), b=(1,))
    host.requests["b"] = replace(host.requests["b"], thread_policy=ThreadPolicy.SPREAD)
    move = host.move()
    assert (move.guest, move.gain) == ("b", 1.0)
    assert not TOPOLOGY.threads_of(0) & move.assignment.held_cpus


def test_a_gain_below_the_threshold_moves_no_guest():
    host = RebalancedHost(a=(2, 3, 4, 5))
    assert host.move(min_gain=1.0).gain == 1.0
    assert host.move(min_gain=1.01) is None


def test_the_policy_is_not_called_for_guests_without_cost():
    def policy(supply, request):
        raise AssertionError

    assert RebalancedHost(a=(0, 1, 2, 3), b=(4, 5)).move(policy=policy) is None


def test_a_refusal_moves_no_guest():
    host = RebalancedHost(a=(0, 1, 16, 17))
    host.requests["a"] = replace(host.requests["a"], demands=(ProviderDemand("host", frozenset({0}), 4),))
    assert host.move() is None


@st.composite
def hosts(draw):
    """A strategy for hosts with guests on arbitrary CPUs."""
    cpus = draw(st.permutations(sorted(TOPOLOGY.online)))
    host = RebalancedHost()
    for name in "abcdefgh"[: draw(st.integers(1, 8))]:
        count = draw(st.integers(1, 8))
        if count > len(cpus):
            break
        host.add(name, cpus[:count], draw(st.sampled_from([ThreadPolicy.PREFER, ThreadPolicy.SPREAD])))
        cpus = cpus[count:]
    return host


@settings(deadline=None, max_examples=examples(30))
@given(hosts(), st.sampled_from([0.5, 1.0, 2.0, 5.0]), st.sampled_from(["topology-aware", "static"]))
def test_moves_end_and_each_lowers_the_cost_by_its_gain(host, min_gain, policy):
    rounds, cost = 0, host.cost()
    limit = cost / min_gain
    while (move := host.move(min_gain, POLICIES[policy])) is not None:
        rounds += 1
        assert rounds <= limit
        assert move.gain >= min_gain
        before = dict(host.assignments)
        host.assignments[move.guest] = move.assignment
        assert len(move.assignment.dedicated) == len(before[move.guest].dedicated)
        others = [cpu for name, it in before.items() if name != move.guest for cpu in it.held_cpus]
        assert move.assignment.held_cpus.isdisjoint(others)
        assert host.cost() <= cost - move.gain + 1e-9
        cost = host.cost()


@settings(deadline=None, max_examples=examples(30))
@given(hosts())
def test_the_move_is_the_best_of_all_guests(host):
    """The check moves each guest alone to the CPUs that the policy chooses, and compares the gains."""
    gains = []
    for name, current in host.assignments.items():
        new = POLICY(host.supply, host.requests[name])
        costs = [place_cost(host.supply, host.requests[name], it) for it in (current, new)]
        gains.append(costs[0] - costs[1] - move_cost(current, new))
    move = host.move(min_gain=0.5)
    assert (move.gain if move else 0.0) == (max(gains) if max(gains) >= 0.5 else 0.0)
