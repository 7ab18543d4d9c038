"""Tests that the memory of guests comes from the NUMA nodes of their allocation, whatever CPUs they have.

Node 0 has CPUs 0-3, node 1 CPUs 4-7, node 2 has memory and no CPU.
"""

import os
from dataclasses import replace

import pytest

from compute_agent.agent.documents import guest_document, guests_document
from compute_agent.controllers.memory import MemoryController
from compute_agent.host.topology import NumaNode
from compute_agent.inventory.provider_tree import ProviderNode, ProviderTree
from compute_agent.model.guest_settings import GuestSettings, MemoryType
from compute_agent.pipeline.events import (
    AllocationsRead,
    GuestAppeared,
    GuestExpected,
    GuestStarted,
    HostStateChanged,
    ReconcileGuests,
    StartGuest,
)
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.policy import POLICIES
from tests.compute_agent.builders import build_guest
from tests.compute_agent.pipeline import fake_host

NODES = (*fake_host.TOPOLOGY.numa_nodes, NumaNode(2, frozenset(), 1 << 20))
TYPES = {0: MemoryType.DRAM, 1: MemoryType.DRAM, 2: MemoryType.HBM}
TOPOLOGY = replace(fake_host.TOPOLOGY, numa_nodes=NODES, memory_types=TYPES)
TREE = ProviderTree(
    (
        ProviderNode("h", "root", None, cpus=TOPOLOGY.online, numa_nodes=frozenset({0, 1, 2})),
        *(
            ProviderNode(f"h_{n.id}", f"node{n.id}", "root", cpus=n.cpus, numa_nodes=frozenset({n.id}))
            for n in NODES
        ),
    )
)
HOST_STATE = replace(fake_host.HOST_STATE, topology=TOPOLOGY, tree=TREE)


class MemoryHost(fake_host.FakeHost):
    """A fake host with a pipeline that also binds memory."""

    def new_pipeline(self, host_state=HOST_STATE):
        controllers = (MemoryController(self.driver, host_state.topology.memory_types),)
        self.pipeline = GuestPipeline(host_state, self.driver, controllers, self.save_state, self.metrics)

    def hold(self, allocation, uuid="a", vcpus=1, **settings):
        settings = GuestSettings(vcpus, **settings)
        return self.handle(StartGuest(uuid, uuid, settings, ("sleep", "9"), allocation, 1.0))

    def nodes(self, uuid="a"):
        return set(self.driver.nodes.get(uuid, ()))


@pytest.fixture
def rig():
    return MemoryHost(HOST_STATE)


@pytest.mark.parametrize(
    ("allocation", "nodes"),
    [
        ({"node0": {"PCPU": 1, "MEMORY_MB": 64}}, {0}),
        ({"node0": {"PCPU": 1}, "node1": {"MEMORY_MB": 64}}, {1}),
        ({"node0": {"PCPU": 1, "MEMORY_MB": 64}, "node2": {"MEMORY_MB": 64}}, {0, 2}),
        ({"node0": {"VCPU": 1, "MEMORY_MB": 64}}, {0}),
        ({"node0": {"VCPU": 1}, "node2": {"MEMORY_MB": 64}}, {2}),
        # The root is any node: dedicated CPUs have their own, others none.
        ({"node1": {"PCPU": 1}, "root": {"MEMORY_MB": 64}}, {1}),
        ({"node1": {"VCPU": 1}, "root": {"MEMORY_MB": 64}}, set()),
        ({"node1": {"PCPU": 1}}, {1}),
        ({"node1": {"VCPU": 1}}, set()),
    ],
)
def test_memory_comes_from_the_nodes_in_the_allocation_of_memory(rig, allocation, nodes):
    rig.hold(allocation)
    assert rig.nodes() == nodes


@pytest.mark.parametrize(
    ("allocation", "wanted", "nodes", "refused"),
    [
        # If the allocation names no node, the kind of memory decides.
        ({"node0": {"VCPU": 1}, "root": {"MEMORY_MB": 64}}, "hbm", {2}, False),
        ({"node0": {"PCPU": 1}, "root": {"MEMORY_MB": 64}}, "dram", {0, 1}, False),
        ({"node1": {"VCPU": 1}}, "any", set(), False),
        # The nodes of the allocation with this kind of memory, or all nodes of the allocation without such a
        # node.
        ({"node0": {"VCPU": 1, "MEMORY_MB": 64}, "node2": {"MEMORY_MB": 64}}, "hbm", {2}, False),
        ({"node0": {"VCPU": 1, "MEMORY_MB": 64}}, "hbm", {0}, True),
        ({"node0": {"PCPU": 1, "MEMORY_MB": 64}}, "cxl", {0}, True),
        ({"node0": {"VCPU": 1}, "root": {"MEMORY_MB": 64}}, "pmem", set(), True),
    ],
)
def test_memory_is_of_the_kind_that_the_guest_asks_for(rig, allocation, wanted, nodes, refused):
    rig.hold(allocation, memory_type=MemoryType(wanted))
    assert rig.nodes() == nodes
    (view,) = rig.pipeline.guest_views()
    assert bool(view.refused) is refused
    if refused:
        remedy = "trait CUSTOM_MEMORY_TIER_HBM" if wanted == "hbm" else "this host has none of that type"
        assert f"memory of type {wanted}" in view.refused[0]
        assert remedy in view.refused[0]


def test_memory_goes_along_when_the_guest_holds_that_of_another_node(rig):
    rig.hold({"node0": {"VCPU": 1, "MEMORY_MB": 64}})
    rig.handle(AllocationsRead({"a": {"node0": {"VCPU": 1}, "node2": {"MEMORY_MB": 64}}}, 2.0))
    assert rig.nodes() == {2}


def test_memory_is_not_bound_to_a_node_without_memory(rig):
    without = replace(TOPOLOGY, numa_nodes=(*NODES[:2], replace(NODES[2], memory_kib=0)))
    rig.new_pipeline(replace(HOST_STATE, topology=without))
    rig.hold({"node0": {"PCPU": 1}, "node2": {"MEMORY_MB": 64}})
    assert rig.nodes() == {0}


def test_a_zone_of_memory_that_is_not_that_of_the_cpus_is_shown(rig):
    rig.hold({"node0": {"PCPU": 1}, "node2": {"MEMORY_MB": 64}})
    rig.hold({"node1": {"PCPU": 1, "MEMORY_MB": 64}}, uuid="b")
    rig.pipeline.update_gauges()
    far, near = rig.pipeline.guest_views()
    shown = [guest_document(view, HOST_STATE.policy) for view in (far, near)]
    assert [(one["cpu_numa_nodes"], one["numa_nodes"]) for one in shown] == [("0", "2"), ("1", "1")]
    assert guests_document([far, near], HOST_STATE.policy)["remote_memory_guests"] == ["a"]
    assert rig.metric("remote_memory_guests") == 1


@pytest.mark.parametrize("allocation", [{"node0": {"VCPU": 1}}, {"node0": {"PCPU": 1}}])
def test_an_agent_without_state_and_placement_leaves_memory_where_it_is(rig, allocation):
    """Without a state file, and while Placement is unavailable, the allocation of the guest is unknown."""
    allocation["node2"] = {"MEMORY_MB": 64}
    cpus = rig.hold(allocation).assignment.cpus
    rig.driver.affinities["a"] = dict.fromkeys(rig.driver.affinities["a"], cpus)
    rig.restart(saved={})
    rig.handle(ReconcileGuests())
    assert rig.nodes() == {2}
    rig.handle(AllocationsRead({"a": {"node0": allocation["node0"]}}, 2.0))
    assert rig.nodes() == ({0} if "PCPU" in allocation["node0"] else set())


FOLLOWING = replace(HOST_STATE, policy=POLICIES["follow"])


class FollowingHost(MemoryHost):
    """A fake host with guests that another program pins, such as Nova."""

    def new_pipeline(self, host_state=FOLLOWING):
        controllers = (MemoryController(self.driver, host_state.topology.memory_types, binds_all=False),)
        self.pipeline = GuestPipeline(host_state, self.driver, controllers, self.save_state, self.metrics)

    def boot(self, kind="any", bound=(), uuid="a"):
        guest = self.driver.create_guest(uuid, uuid, GuestSettings(1, memory_type=MemoryType(kind)), ())
        self.driver.nodes[uuid] = frozenset(bound)
        self.handle(GuestStarted(guest, {"root": {"VCPU": 1, "MEMORY_MB": 64}}, 1.0, started=True))
        (view,) = self.pipeline.guest_views()
        return view


@pytest.mark.parametrize(
    ("kind", "bound", "nodes", "refusal"),
    [
        ("hbm", (), {2}, ""),
        ("hbm", {2}, {2}, ""),
        ("dram", (), {0, 1}, ""),
        ("any", (), set(), ""),
        ("any", {2}, {2}, ""),
        ("hbm", {0}, {0}, "remove hw:numa_nodes from its flavor"),
        ("cxl", (), set(), "this host has none of that type"),
    ],
)
def test_memory_of_a_guest_that_nova_placed_is_of_its_kind_unless_nova_bound_it(kind, bound, nodes, refusal):
    rig = FollowingHost(FOLLOWING)
    rig.take_over()
    view = rig.boot(kind, bound)
    assert rig.nodes() == nodes
    assert set(view.assignment.mems) == nodes
    assert [refusal in reason for reason in view.refused] == ([True] if refusal else [])
    rig.handle(ReconcileGuests())
    assert rig.nodes() == nodes
    assert rig.metric("drift_repairs_total", controller="memory") is None


def test_the_memory_of_an_expected_guest_is_bound_before_it_gets_its_cache_group(rig):
    order = []

    class Group(fake_host.Recorder):
        acts_early = awaits = True

        def apply(self, target):
            order.append(dict(rig.driver.nodes))
            return True

    rig.handle(HostStateChanged(HOST_STATE, (Group(), MemoryController(rig.driver))))
    rig.handle(GuestExpected(build_guest("a", pid=0), {"node0": {"PCPU": 1}, "node1": {"MEMORY_MB": 64}}))
    assert rig.driver.nodes == {}
    rig.handle(GuestAppeared(build_guest("a", pid=os.getpid())))
    assert order == [{"a": frozenset({1})}]
