"""Tests of lending free dedicated CPUs to floating guests, each CPU to one pool."""

from hypothesis import given
from hypothesis import strategies as st

from compute_agent.model.cpuset import CpuSets
from compute_agent.policy.shared_cpus import PoolBorrower, lend_cpus
from tests.compute_agent.inventory.machines import machine

TOPOLOGY = machine(cores=4, threads=2)
ALL = TOPOLOGY.online
SETS = CpuSets(ALL - {0, 1}, frozenset({0, 1}), frozenset({0, 1}), pooled=frozenset({1}))


def test_the_example_of_the_module():
    pool = PoolBorrower("a", frozenset({1}), ALL, 3)
    assert lend_cpus(TOPOLOGY, SETS, frozenset({6}), [pool], False) == {"a": {4, 5}}
    assert lend_cpus(TOPOLOGY, SETS, frozenset({6}), [pool], True)[""] == {2, 3, 7}


def test_a_pool_borrows_its_own_dedicated_cpus_first_and_none_of_other_pools():
    sets = CpuSets(ALL - {0, 1}, frozenset({0, 1}), frozenset(), pooled=frozenset({0, 1, 2, 6, 7}))
    pools = [
        PoolBorrower("a", frozenset({0, 2}), ALL, 3),
        PoolBorrower("b", frozenset({1, 6, 7}), frozenset({1, 6, 7}), 9),
    ]
    assert lend_cpus(TOPOLOGY, sets, frozenset(), pools, True) == {"a": {2, 5}, "b": {6, 7}, "": {3, 4}}


@given(
    st.lists(st.sampled_from("dsh"), min_size=8, max_size=8),
    st.lists(st.sampled_from(["", "a", "b"]), min_size=8, max_size=8),
    st.frozensets(st.integers(0, 7)),
    st.lists(st.integers(1, 8), min_size=2, max_size=2),
    st.booleans(),
)
def test_held_and_lent_cpus_are_not_lent_again(kinds, pools, held, most, to_others):
    dedicated, shared = (frozenset(cpu for cpu, kind in enumerate(kinds) if kind == which) for which in "ds")
    cpus = {
        name: frozenset(cpu for cpu, pool in enumerate(pools) if pool == name) & (dedicated | shared)
        for name in "ab"
    }
    pooled = cpus["a"] | cpus["b"]
    sets = CpuSets(dedicated, shared, shared, pooled=pooled)
    borrowers = [PoolBorrower(name, cpus[name], ALL, limit) for name, limit in zip("ab", most, strict=True)]
    found = lend_cpus(TOPOLOGY, sets, held, borrowers, to_others)
    assert sum(map(len, found.values())) == len(frozenset().union(*found.values()))
    for name, lent in found.items():
        assert lent <= dedicated - held
        assert lent.isdisjoint(pooled - cpus.get(name, frozenset()))
    for name, limit in zip("ab", most, strict=True):
        own = cpus[name] & shared
        assert len(own | found[name]) <= max(limit, len(own))
    if to_others:
        assert found[""] == dedicated - held - pooled - found["a"] - found["b"]
