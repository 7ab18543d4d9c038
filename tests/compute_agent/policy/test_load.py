"""Policies and rebalance go by how busy guests keep their CPUs, where that was measured.

Two threads a core: CPUs 0-1, 2-3, 4-5, 6-7; all are dedicated.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy import POLICIES
from compute_agent.policy.base import CpuSupply, GuestRequest, ProviderDemand, build_assignment
from compute_agent.policy.running_guests import best_move, place_cost
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(cores=4, threads=2)
SUPPLY = CpuSupply(TOPOLOGY, CpuSets(TOPOLOGY.online, frozenset(), frozenset()))


def request(name, count=1, policy=ThreadPolicy.PREFER):
    return GuestRequest(name, count, (ProviderDemand("host", TOPOLOGY.online, count),), policy)


def supply(holdings, use=None):
    held = {guest: frozenset(cpus) for guest, cpus in holdings.items()}
    busy = {cpu: cores for guest, cores in (use or {}).items() for cpu in held[guest]}
    return replace(SUPPLY, holdings=held, busy=busy)


HELD = {"a": [0], "b": [2], "c": [4], "d": [6]}


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("static", ThreadPolicy.SPREAD),
        ("topology-aware", ThreadPolicy.SPREAD),
        ("topology-aware", ThreadPolicy.PREFER),
    ],
)
def test_a_guest_is_placed_beside_the_least_busy_cpu(name, policy):
    place = POLICIES[name]
    one, two = request("new", 1, policy), request("new", 2, policy)
    use = {"a": 0.9, "b": 0.5, "c": 0.1, "d": 0.7}
    assert place(supply(HELD), one).dedicated == (1,)
    assert place(supply(HELD, use), one).dedicated == (5,)
    assert set(place(supply(HELD, use), two).dedicated) == {3, 5}


@pytest.mark.parametrize("policy", [ThreadPolicy.PREFER, ThreadPolicy.SPREAD, ThreadPolicy.ISOLATE])
@pytest.mark.parametrize("name", ["static", "topology-aware"])
def test_cpus_that_are_set_apart_are_for_guests_that_are_alone(name, policy):
    here = replace(SUPPLY, set_apart=frozenset({2, 3}))
    usual, alone = request("usual", 2, policy), replace(request("alone", 2, policy), alone=True)
    if policy is ThreadPolicy.ISOLATE:
        usual, alone = (replace(one, vcpus=1) for one in (usual, alone))
    assert not {2, 3} & set(POLICIES[name](here, usual).dedicated)
    # One thread of each core counts more than the boot options.
    expected = {2, 0} if policy is ThreadPolicy.SPREAD else {2, 3}
    assert set(POLICIES[name](here, alone).dedicated) == expected
    # Others get them last, and never lack a CPU.
    six = replace(here, holdings={"others": frozenset({0, 1, 4, 5, 6, 7})})
    assert POLICIES[name](six, request("late", 2)).dedicated == (2, 3)


def test_whole_cores_come_before_idle_siblings_for_spread():
    found = POLICIES["topology-aware"](supply({"a": [0]}, {"a": 0.0}), request("new", 1, ThreadPolicy.SPREAD))
    assert found.dedicated == (2,)


def moved(holdings, use, min_gain=2.0):
    here = supply(holdings, use)
    guests = [
        (request(name, len(cpus)), build_assignment(here, request(name, len(cpus)), tuple(cpus)))
        for name, cpus in holdings.items()
    ]
    return best_move(here, POLICIES["topology-aware"], guests, min_gain)


def test_two_busy_guests_on_one_core_are_separated():
    found = moved({"a": [0], "b": [1]}, {"a": 0.9, "b": 0.8})
    assert (found.guest, found.gain) == ("a", pytest.approx(3.2))
    assert found.assignment.held_cpus.isdisjoint({0, 1})


@pytest.mark.parametrize(
    ("holdings", "use"),
    [
        ({"a": [0], "b": [1]}, {}),
        ({"a": [0], "b": [1]}, {"a": 0.9}),
        ({"a": [0], "b": [1]}, {"a": 0.9, "b": 0.4}),
        ({"a": [0], "b": [2]}, {"a": 1.0, "b": 1.0}),
        ({"a": [0, 1]}, {"a": 1.0}),
    ],
)
def test_no_guest_moves_where_threads_do_not_contend(holdings, use):
    assert moved(holdings, use) is None


@given(
    st.lists(st.integers(0, 3), min_size=8, max_size=8),
    st.lists(st.sampled_from([None, 0.0, 0.3, 0.6, 1.0]), min_size=3, max_size=3),
)
def test_moves_by_contention_end_and_each_has_a_gain(owners, measured):
    """Each move lowers the costs of all guests by its gain, while use is constant."""
    holdings = {
        f"g{guest}": tuple(cpu for cpu, owner in enumerate(owners) if owner == guest) for guest in range(3)
    }
    holdings = {guest: cpus for guest, cpus in holdings.items() if cpus}
    use = {
        f"g{guest}": cores
        for guest, cores in enumerate(measured)
        if cores is not None and f"g{guest}" in holdings
    }

    def cost():
        here = supply(holdings, use)
        own = [
            place_cost(
                here, request(guest, len(cpus)), build_assignment(here, request(guest, len(cpus)), cpus)
            )
            for guest, cpus in holdings.items()
        ]
        return sum(own) / 2  # all of it is of pairs here

    for _ in range(30):
        before = cost()
        found = moved(holdings, use, min_gain=0.5)
        if found is None:
            return
        holdings[found.guest] = found.assignment.dedicated
        assert cost() == pytest.approx(before - found.gain)
    raise AssertionError("guests are moved again and again")
