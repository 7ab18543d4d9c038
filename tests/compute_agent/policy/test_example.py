"""Tests that the example in the documentation of the package is right."""

import pytest

from compute_agent.model.cpuset import CpuSets
from compute_agent.model.guest_settings import ThreadPolicy
from compute_agent.policy import POLICIES
from compute_agent.policy.base import CpuSupply, GuestRequest, PlacementRefusal, ProviderDemand
from tests.compute_agent.inventory.machines import machine

HOST = machine(packages=1, nodes=1, l3=2, cores=2, threads=2)
SUPPLY = CpuSupply(HOST, CpuSets(HOST.online, frozenset(), frozenset()), {"first": frozenset({0})})


def place(pcpu, thread_policy=ThreadPolicy.PREFER):
    request = GuestRequest("next", pcpu, (ProviderDemand("node", HOST.online, pcpu=pcpu),), thread_policy)
    return POLICIES["topology-aware"](SUPPLY, request)


@pytest.mark.parametrize(("pcpu", "cpus"), [(1, (1,)), (2, (2, 3)), (3, (2, 3, 1)), (4, (4, 5, 6, 7))])
def test_the_worked_example_of_the_documentation(pcpu, cpus):
    assert place(pcpu).dedicated == cpus


def test_isolated_cores_that_the_allocation_does_not_pay_for_are_refused():
    refused = place(2, ThreadPolicy.ISOLATE)
    assert isinstance(refused, PlacementRefusal)
    assert "needs 4 PCPU on cores of 2 threads" in refused.reason
