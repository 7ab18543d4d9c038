"""Tests of providers of reclaimed capacity."""

from dataclasses import replace

import pytest

from compute_agent.inventory.cpu_sets import CpuOptions, resolve_cpu_sets
from compute_agent.inventory.derive import BESIDE, SHAPES, InventorySettings, derive_provider_tree
from compute_agent.inventory.memory import with_offers
from compute_agent.model.resource import RECLAIMED_MEMORY, RECLAIMED_VCPU
from tests.compute_agent.inventory.machines import machine

ROOT = "8f0c0000-0000-4000-8000-000000000000"
TOPOLOGY = machine(nodes=2, cores=4)
SETS = resolve_cpu_sets(CpuOptions(cpu_dedicated_set="0-1,4-5", cpu_shared_set="2-3,6"), TOPOLOGY)


def tree(shape, reclaimed=True):
    return derive_provider_tree(
        TOPOLOGY, SETS, InventorySettings(provider_tree=shape, reclaimed=reclaimed), ROOT, "host"
    )


@pytest.mark.parametrize("shape", ["numa", "l3"])
def test_below_each_numa_node_is_one_of_which_all_is_reserved(shape):
    found = tree(shape).providers_of(RECLAIMED_VCPU)
    assert [(node.name, tree(shape).get(node.parent).name) for node in found] == [
        ("host_NUMA_0_RECLAIMED", "host_NUMA_0"),
        ("host_NUMA_1_RECLAIMED", "host_NUMA_1"),
    ]
    amounts = [node.inventories[RECLAIMED_VCPU] for node in found]
    assert [(one.total, one.reserved, one.max_unit, one.allocation_ratio) for one in amounts] == [
        (2, 2, 2, 1.0),
        (1, 1, 1, 1.0),
    ]
    assert len({node.uuid for node in tree(shape).nodes}) == len(tree(shape).nodes)


@pytest.mark.parametrize("shape", ["flat", BESIDE])
def test_without_providers_of_numa_nodes_there_is_one_below_the_root(shape):
    (node,) = tree(shape).providers_of(RECLAIMED_VCPU)
    assert (node.name, node.parent, node.inventories[RECLAIMED_VCPU].total) == ("host_RECLAIMED", ROOT, 3)


def test_memory_is_there_if_asked_for():
    def memory(shape, asked=True):
        wanted = InventorySettings(provider_tree=shape, reclaimed=True, reclaimed_memory=asked)
        return derive_provider_tree(TOPOLOGY, SETS, wanted, ROOT, "host").providers_of(RECLAIMED_MEMORY)

    found = [node.inventories[RECLAIMED_MEMORY] for node in memory("numa")]
    assert [(one.total, one.reserved, one.max_unit) for one in found] == [(8192 - 256,) * 3] * 2
    for shape in ("flat", BESIDE):
        (node,) = memory(shape)
        assert (node.name, node.inventories[RECLAIMED_MEMORY].total) == ("host_RECLAIMED", 2 * 8192 - 512)
    assert memory(BESIDE, asked=False) == ()
    assert memory("numa", asked=False) == ()


@pytest.mark.parametrize("shape", [*SHAPES, BESIDE])
def test_all_else_is_as_without_them(shape):
    assert tree(shape).nodes[: len(tree(shape, reclaimed=False).nodes)] == tree(shape, reclaimed=False).nodes


def test_offers_move_what_is_reserved_within_what_there_is():
    first, second = tree("numa").providers_of(RECLAIMED_VCPU)
    for offer, reserved in ((0, 2), (1, 1), (2, 0), (9, 0), (-3, 2)):
        moved = with_offers(tree("numa"), {first.uuid: offer, "another": 1})
        assert moved.get(first.uuid).inventories[RECLAIMED_VCPU].reserved == reserved
        assert moved.get(second.uuid) == second


def test_cpus_of_pools_are_not_offered():
    pooled = replace(SETS, pooled=frozenset({2, 6}))
    found = derive_provider_tree(
        TOPOLOGY, pooled, InventorySettings(reclaimed=True), ROOT, "host"
    ).providers_of(RECLAIMED_VCPU)
    assert [(node.name, node.inventories[RECLAIMED_VCPU].total) for node in found] == [
        ("host_NUMA_0_RECLAIMED", 1)
    ]
