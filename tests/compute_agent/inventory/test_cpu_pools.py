"""Tests of the CPUs of pools, and of inventories of pools and of the remaining CPUs of their zones."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compute_agent.host.topology import HostTopology
from compute_agent.inventory.cpu_pools import FILE_NAME, keep_pools, lay_out_pools, recall_pools
from compute_agent.inventory.derive import SHAPES, InventorySettings, derive_provider_tree
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuPool, CpuSets
from compute_agent.model.messages import ConfigError
from tests.compute_agent.inventory.machines import machine

ROOT = "5a8f3e6c-9d5f-4ab0-8f3d-2a6c9a3a1f00"
TOPOLOGY = machine(nodes=2, cores=4, threads=2)
"""CPUs 0-7 and 8-15, in cores of two."""


def sets(dedicated: str, shared: str) -> CpuSets:
    return CpuSets(cpuset.parse(dedicated), cpuset.parse(shared), cpuset.parse(shared))


SETS = sets("2-7,10-15", "0-1,8-9")


def positions(*pools: CpuPool, cpu_sets: CpuSets = SETS, topology: HostTopology = TOPOLOGY) -> dict[str, str]:
    return {name: cpuset.format(cpus) for name, cpus in lay_out_pools(pools, cpu_sets, topology).items()}


def tree(
    *pools: CpuPool, shape: str = "numa", cpu_sets: CpuSets = SETS, topology: HostTopology = TOPOLOGY
) -> ProviderTree:
    laid = lay_out_pools(pools, cpu_sets, topology)
    cpu_sets = replace(cpu_sets, pooled=frozenset[int]().union(*laid.values()))
    settings = InventorySettings(provider_tree=shape, reserved_host_memory_mb=0)
    return derive_provider_tree(topology, cpu_sets, settings, ROOT, "h", None, laid)


def cpus_offered(found: ProviderTree) -> dict[str, tuple[int, int]]:
    offered = {
        node.name: tuple(
            node.inventories[name].total if name in node.inventories else 0 for name in ("PCPU", "VCPU")
        )
        for node in found.nodes
    }
    return {name: (pcpu, vcpu) for name, (pcpu, vcpu) in offered.items() if pcpu or vcpu}


@pytest.mark.parametrize(
    ("pool", "where"),
    [
        (CpuPool("a", cpuset.parse("0,4-5")), "0,4-5"),
        (CpuPool("a", dedicated_cpus=2), "6-7"),
        (CpuPool("a", dedicated_cpus=3), "5-7"),
        (CpuPool("a", dedicated_cpus=2, shared_cpus=1), "0,6-7"),
        (CpuPool("a", dedicated_cpus=2, per_node=True), "6-7,14-15"),
    ],
)
def test_a_pool_has_the_cpus_that_it_names_or_the_last_cores_of_its_node(pool: CpuPool, where: str) -> None:
    if where == "5-7":  # a whole core, and a thread of the one before it
        where = "4,6-7"
    assert positions(pool) == {"a": where}


def test_pools_that_name_cpus_come_first_then_the_others_by_name() -> None:
    pools = (
        CpuPool("b", dedicated_cpus=2),
        CpuPool("c", dedicated_cpus=4),
        CpuPool("z", cpuset.parse("6-7")),
    )
    assert positions(*pools) == {"b": "4-5", "c": "12-15", "z": "6-7"}


@pytest.mark.parametrize(
    ("pools", "reason"),
    [
        ((CpuPool("a", cpuset.parse("16")),), "16 are neither in"),
        ((CpuPool("a", cpuset.parse("4-5")), CpuPool("b", cpuset.parse("5"))), r"5 are in \[cpu_pool:a\]"),
        ((CpuPool("a", dedicated_cpus=7),), "one NUMA node has to have 7"),
        ((CpuPool("a", cpuset.parse("2-3")), CpuPool("b", dedicated_cpus=6, per_node=True)), "every NUMA"),
        ((CpuPool("a-b", dedicated_cpus=1), CpuPool("a_b", dedicated_cpus=1)), "the same trait"),
    ],
)
def test_pools_that_cannot_be_are_refused(pools: tuple[CpuPool, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        positions(*pools)


def test_pools_do_not_go_with_the_legacy_set() -> None:
    both = cpuset.parse("0-7")
    with pytest.raises(ConfigError, match="vcpu_pin_set"):
        positions(CpuPool("a", dedicated_cpus=1), cpu_sets=CpuSets(both, both, both))


def test_a_pool_is_a_provider_in_each_zone_and_the_zone_offers_the_rest() -> None:
    found = tree(CpuPool("gold", cpuset.parse("0,6-7,14-15")))
    assert cpus_offered(found) == {
        "h_NUMA_0": (4, 1),
        "h_NUMA_1": (4, 2),
        "h_NUMA_0_POOL_gold": (2, 1),
        "h_NUMA_1_POOL_gold": (2, 0),
    }
    pool = next(node for node in found.nodes if node.name == "h_NUMA_0_POOL_gold")
    zone = next(node for node in found.nodes if node.name == "h_NUMA_0")
    assert (pool.parent, pool.pool, pool.cpus) == (zone.uuid, "gold", {0, 6, 7})
    assert pool.traits == {"CUSTOM_CPU_POOL_GOLD"}
    assert pool.inventories["VCPU"].allocation_ratio == zone.inventories["VCPU"].allocation_ratio
    assert cpus_offered(tree(CpuPool("gold", cpuset.parse("6-7")), shape="flat")) == {
        "h": (10, 4),
        "h_POOL_gold": (2, 0),
    }


@st.composite
def worlds(draw: st.DrawFn) -> tuple[HostTopology, CpuSets, tuple[CpuPool, ...]]:
    topology = machine(
        nodes=draw(st.integers(1, 3)), l3=draw(st.integers(1, 2)), cores=2, threads=draw(st.integers(1, 2))
    )
    kinds = draw(
        st.lists(st.sampled_from("dsh"), min_size=len(topology.online), max_size=len(topology.online))
    )
    dedicated, shared = (
        frozenset(cpu for cpu, kind in enumerate(kinds) if kind == wanted) for wanted in "ds"
    )
    pools = [
        CpuPool(
            name,
            dedicated_cpus=draw(st.integers(0, 3)),
            shared_cpus=draw(st.integers(0, 2)),
            per_node=draw(st.booleans()),
        )
        for name in "ab"
    ]
    named = draw(st.frozensets(st.sampled_from(sorted(dedicated | shared) or [0]), max_size=3))
    if named <= dedicated | shared:
        pools.append(CpuPool("c", named))
    pools = [pool for pool in pools if pool.cpus or pool.dedicated_cpus or pool.shared_cpus]
    return topology, CpuSets(dedicated, shared, shared), tuple(pools)


@given(worlds(), st.sampled_from(SHAPES))
def test_no_cpu_is_in_two_pools_and_inventories_are_what_there_is(
    world: tuple[HostTopology, CpuSets, tuple[CpuPool, ...]], shape: str
) -> None:
    topology, cpu_sets, pools = world
    try:
        laid = lay_out_pools(pools, cpu_sets, topology)
    except ConfigError:
        return
    for pool in pools:
        cpus = laid[pool.name]
        assert all(cpus.isdisjoint(other) for name, other in laid.items() if name != pool.name)
        if not pool.cpus:
            times = len(topology.numa_nodes) if pool.per_node else 1
            assert len(cpus & cpu_sets.dedicated) == pool.dedicated_cpus * times
            assert len(cpus & cpu_sets.shared) == pool.shared_cpus * times
            if not pool.per_node:
                assert len(topology.nodes_of(cpus)) == 1
    found = tree(*pools, shape=shape, cpu_sets=cpu_sets, topology=topology)
    offered = cpus_offered(found)
    assert sum(pcpu for pcpu, _ in offered.values()) == len(cpu_sets.dedicated)
    assert sum(vcpu for _, vcpu in offered.values()) == len(cpu_sets.shared)
    pooled = frozenset[int]().union(*laid.values())
    for node in found.nodes:
        own = node.cpus if node.pool else node.cpus - pooled
        pcpu, vcpu = offered.get(node.name, (0, 0))
        assert pcpu <= len(own & cpu_sets.dedicated)
        assert vcpu <= len(own & cpu_sets.shared)


def test_a_pool_that_is_gone_is_remembered_where_it_was(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with_pool, without = tree(CpuPool("gold", cpuset.parse("6-7"))), tree()
    assert recall_pools(tmp_path, without, TOPOLOGY) == ()
    keep_pools(tmp_path, with_pool)
    assert recall_pools(tmp_path, with_pool, TOPOLOGY) == ()
    keep_pools(tmp_path, without)
    (former,) = recall_pools(tmp_path, without, TOPOLOGY)
    gold = with_pool.nodes[-1]
    assert (former.uuid, former.parent, former.pool, former.cpus) == (gold.uuid, gold.parent, "gold", {6, 7})
    assert not former.inventories


@pytest.mark.parametrize("content", ["", "[]", "{", '{"x": {}}', f'{{"{ROOT}": {{"cpus": "a"}}}}', "\xff"])
def test_a_file_that_tells_no_pools_is_put_aside(tmp_path, content, caplog) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / FILE_NAME).write_text(content, encoding="latin-1")
    assert recall_pools(tmp_path, tree(), TOPOLOGY) == ()
    assert "the CPUs of removed pools are not known" in caplog.text
    found = tree(CpuPool("gold", cpuset.parse("6-7")))
    keep_pools(tmp_path, found)
    assert len(recall_pools(tmp_path, tree(), TOPOLOGY)) == 1


def test_a_pool_has_those_of_its_cpus_that_are_online():
    online = replace(sets("2-6,10-15", "0-1,8-9"), offline=frozenset({7}))
    host = machine(nodes=2, cores=4, threads=2, offline=frozenset({7}))
    assert positions(CpuPool("a", cpuset.parse("4-7")), cpu_sets=online, topology=host) == {"a": "4-6"}
    assert positions(CpuPool("a", frozenset({7})), cpu_sets=online, topology=host) == {"a": ""}
    with pytest.raises(ConfigError, match="neither in"):
        positions(CpuPool("a", cpuset.parse("7,16")), cpu_sets=online, topology=host)
