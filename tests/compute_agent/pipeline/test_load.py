"""Tests that the measured CPU use of guests reaches the policy. With the option, the policy moves one of two
busy guests to another core.

NUMA node 0 has CPUs 0-7 in cores of two threads. All CPUs except 0 and 1 are dedicated.
"""

from dataclasses import replace

import pytest

from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.model.cpuset import CpuSets
from compute_agent.pipeline.events import GuestStopped, ReconcileGuests, UseMeasured
from compute_agent.pipeline.host_state import HostState
from compute_agent.policy import POLICIES
from compute_agent.policy.load_profiles import LoadProfile
from tests.compute_agent.inventory.machines import machine
from tests.compute_agent.pipeline.fake_host import FakeHost

TOPOLOGY = machine(cores=4, threads=2)
SHARED = frozenset({0, 1})
TREE = ProviderTree(
    (
        ProviderNode("h", "root", None, cpus=TOPOLOGY.online),
        ProviderNode("h_0", "node0", "root", cpus=TOPOLOGY.online),
    )
)
HOST_STATE = HostState(
    TOPOLOGY, CpuSets(TOPOLOGY.online - SHARED, SHARED, SHARED), TREE, POLICIES["topology-aware"]
)


def constant_use(cores):
    """The CPU use of guests that use the same number of cores in each hour."""
    return UseMeasured({uuid: LoadProfile.from_mean(used) for uuid, used in cores.items()})


@pytest.mark.parametrize(
    ("rebalance_gain", "use", "moved"),
    [
        (None, {"a": 1.0, "b": 1.0}, False),
        (2.0, {}, False),
        (2.0, {"a": 1.0, "b": 0.3}, False),
        (2.0, {"a": 1.0, "b": 0.9}, True),
    ],
)
def test_a_guest_leaves_a_core_that_two_keep_busy(rebalance_gain, use, moved):
    rig = FakeHost(replace(HOST_STATE, rebalance_gain=rebalance_gain))
    for uuid in "ab":
        rig.run(uuid, (0, 1, 0))
    assert {uuid: rig.observed(uuid) for uuid in "ab"} == {"a": {2}, "b": {3}}
    rig.handle(constant_use(use))
    assert rig.observed("a") | rig.observed("b") == {2, 3}, "measuring alone moves nobody"
    rig.handle(ReconcileGuests())
    assert (rig.observed("a") | rig.observed("b") != {2, 3}) == moved
    places = {uuid: rig.observed(uuid) for uuid in "ab"}
    rig.handle(ReconcileGuests())
    assert {uuid: rig.observed(uuid) for uuid in "ab"} == places


def test_a_new_guest_comes_beside_the_least_busy():
    rig = FakeHost(HOST_STATE)
    for uuid in "abcd":
        rig.run(uuid, (0, 1, 0))
    for uuid in "bd":  # of the cores 2-3, 4-5 and 6-7 two are broken now
        rig.handle(GuestStopped(rig.driver.running[uuid]))
    assert (rig.observed("a"), rig.observed("c")) == ({2}, {4})
    rig.handle(constant_use({"a": 0.8, "c": 0.1}))
    rig.run("new", (0, 1, 0))
    assert rig.observed("new") == {5}
