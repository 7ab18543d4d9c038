"""CPUs that stay free for consumers whose guest is not there yet."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.inventory.cpu_sets import CpuSets
from compute_agent.policy.base import Assignment, Demand, Refusal, Request, Supply, ThreadPolicy
from compute_agent.policy.reserved import infringes
from compute_agent.policy.topology_aware import place_by_topology
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(nodes=2, cores=4, threads=2)
SUPPLY = Supply(TOPOLOGY, CpuSets(frozenset(range(16)), frozenset(), frozenset()))
NODES = [node.cpus for node in TOPOLOGY.numa_nodes]


def demand(node, pcpu):
    return Demand(f"node{node}", NODES[node], pcpu)


def place(request, reserved, supply=SUPPLY):
    chosen = place_by_topology(supply, request)
    assert isinstance(chosen, Assignment)
    return infringes(supply, request, chosen, reserved)


def isolated(count):
    return Request("new", count, (demand(0, 2 * count),), ThreadPolicy.ISOLATE)


def test_siblings_are_not_withheld_from_somebody_who_was_promised_them():
    refusal = place(isolated(3), {"absent": [demand(0, 3)]})
    assert isinstance(refusal, Refusal)
    assert refusal.reason == (
        "node0 has 8 free dedicated CPUs; 6 are needed, siblings included, and 3 are kept for allocations"
        " without a guest"
    )


def test_what_is_left_beside_the_reserved_may_be_withheld():
    assert place(isolated(3), {"absent": [demand(0, 2)]}) is None


def test_reservations_in_other_zones_do_not_matter():
    assert place(isolated(3), {"absent": [demand(1, 8)]}) is None


def test_a_consumer_does_not_stand_in_its_own_way():
    assert place(isolated(3), {"new": [demand(0, 3)]}) is None


def test_reservations_within_a_larger_zone_count_there_too():
    host = Demand("host", TOPOLOGY.online, 9)
    assert place(isolated(1), {"a": [host], "b": [demand(1, 6)]}) is not None
    assert place(isolated(1), {"a": [host], "b": [demand(1, 5)]}) is None


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 8), st.sampled_from(ThreadPolicy))
def test_who_was_promised_cpus_finds_them(count, promised, policy):
    """Whoever is placed without infringing anything leaves room for what was reserved."""
    if count + promised > 8:
        return  # Placement does not give that away
    newcomer = Request("new", count, (demand(0, count),), policy)
    chosen = place_by_topology(SUPPLY, newcomer)
    reserved = {"absent": [demand(0, promised)]}
    if isinstance(chosen, Refusal) or infringes(SUPPLY, newcomer, chosen, reserved):
        return
    after = dataclasses.replace(SUPPLY, holdings={"new": chosen.held})
    absent = Request("absent", max(promised, 1), (demand(0, promised),))
    if promised:
        assert isinstance(place_by_topology(after, absent), Assignment)
