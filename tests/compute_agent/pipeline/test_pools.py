"""Tests of guests in CPU pools: their CPUs, refusals, and changes of pools while guests run.

NUMA node 0 has CPUs 0-3, node 1 has CPUs 4-7. CPUs 0 and 4 are shared, all other CPUs dedicated. Pool gold
has CPUs 2, 3 and 4.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute_agent.inventory.cpu_pools import lay_out_pools
from compute_agent.inventory.derive import InventorySettings, derive_provider_tree
from compute_agent.inventory.provider_tree import child_uuid
from compute_agent.model.cpuset import CpuPool, CpuSets
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.events import AllocationsRead, GuestStopped, HostStateChanged, StartGuest
from compute_agent.pipeline.host_state import HostState
from compute_agent.pipeline.worker import GuestRefusedError
from compute_agent.policy import POLICIES
from tests.compute_agent.builders import find_view
from tests.compute_agent.pipeline import fake_host

TOPOLOGY = fake_host.TOPOLOGY
ROOT = "5a8f3e6c-9d5f-4ab0-8f3d-2a6c9a3a1f00"
NODE = {number: child_uuid(ROOT, f"NUMA_{number}") for number in (0, 1)}
GOLD = {number: child_uuid(ROOT, f"NUMA_{number}_POOL_gold") for number in (0, 1)}


def host_state(*pools, former=(), policy="topology-aware"):
    shared = frozenset({0, 4})
    sets = CpuSets(TOPOLOGY.online - shared, shared, shared)
    laid = lay_out_pools(pools, sets, TOPOLOGY)
    sets = replace(sets, pooled=frozenset().union(*laid.values()))
    tree = derive_provider_tree(
        TOPOLOGY, sets, InventorySettings(reserved_host_memory_mb=0), ROOT, "h", None, laid
    )
    gone = tuple(replace(node, inventories={}) for node in former if tree.get(node.uuid) is None)
    return HostState(TOPOLOGY, sets, tree, POLICIES[policy], former=gone, pools=pools)


def gold(cpus=(2, 3, 4), **how):
    return CpuPool("gold", frozenset(cpus), **how)


class PooledHost(fake_host.FakeHost):
    def hold(self, uuid, allocation, vcpus=1, **how):
        event = StartGuest(uuid, uuid, GuestSettings(vcpus, **how), ("sleep", "9"), allocation, 1.0)
        return self.handle(event)

    def cpus(self):
        return {view.guest.uuid: set(view.assignment.cpus) for view in self.pipeline.guest_views()}

    def view(self, uuid):
        return find_view(self.pipeline, uuid)


def test_only_members_run_in_the_pool():
    rig = PooledHost(host_state(gold()))
    rig.hold("in", {GOLD[0]: {"PCPU": 2}}, 2)
    rig.hold("floating in", {GOLD[1]: {"VCPU": 1}})
    rig.hold("rest", {NODE[0]: {"PCPU": 1}})
    rig.hold("floating", {NODE[0]: {"VCPU": 1}})
    rig.hold("nothing", {})
    assert rig.cpus() == {"in": {2, 3}, "floating in": {4}, "rest": {1}, "floating": {0}, "nothing": {0}}
    with pytest.raises(GuestRefusedError, match="h_NUMA_0 has 0 free dedicated CPUs"):
        rig.hold("too many", {NODE[0]: {"PCPU": 1}})
    assert set(rig.view("in").assignment.emulator_cpus) == {0}, "the shared CPUs of no pool"


def test_a_guest_without_a_place_stays_off_the_pool():
    rig = PooledHost(host_state(gold((0, 4))))
    rig.hold("a", {NODE[0]: {"PCPU": 1}})
    rig.handle(AllocationsRead({"a": {}}, 2.0))
    assert rig.cpus() == {"a": {1, 2, 3, 5, 6, 7}}, "there are no shared CPUs of no pool"


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        (gold(classes=frozenset({"LS", "LSR"})), "admits guests of LS, LSR, but the guest is of BE"),
        (gold(max_guests=1), "admits 1 guests, and has 1"),
    ],
)
def test_a_guest_that_the_pool_does_not_admit_is_refused(pool, reason):
    rig = PooledHost(host_state(pool))
    rig.hold("a", {GOLD[0]: {"PCPU": 1}})
    with pytest.raises(GuestRefusedError, match=reason):
        rig.hold("b", {GOLD[0]: {"PCPU": 1}}, qos_class="BE")
    rig.hold("c", {NODE[0]: {"PCPU": 1}}, qos_class="BE")
    # A guest that already runs does not move into the pool, and loses nothing.
    rig.handle(AllocationsRead({"a": {GOLD[0]: {"PCPU": 1}}, "c": {GOLD[0]: {"PCPU": 1}}}, 2.0))
    assert rig.cpus()["a"] == {2}
    assert reason in rig.view("c").refusal
    rig.handle(GuestStopped(rig.view("a").guest))
    assert bool(rig.view("c").refusal) == (pool.max_guests is None)


def test_a_new_pool_takes_no_cpu_from_a_guest():
    rig = PooledHost(host_state())
    rig.hold("a", {NODE[0]: {"PCPU": 3}}, 3)
    rig.hold("b", {NODE[1]: {"VCPU": 1}})
    rig.handle(HostStateChanged(host_state(gold())))
    assert rig.cpus()["a"] == {1, 2, 3}
    assert "CPUs 2-3 are not of the pool" in rig.view("a").stray
    assert rig.cpus()["b"] == {0}, "no shared CPU of its zone is left for it"
    with pytest.raises(GuestRefusedError, match="h_NUMA_0_POOL_gold has 0 free"):
        rig.hold("c", {GOLD[0]: {"PCPU": 1}})


def test_a_pool_that_shrinks_or_goes_leaves_its_members_where_they_are():
    before = host_state(gold((1, 2, 3)))
    rig = PooledHost(before)
    rig.hold("a", {GOLD[0]: {"PCPU": 3}}, 3)
    rig.handle(HostStateChanged(host_state(gold((1, 2)))))
    assert rig.cpus()["a"] == {1, 2, 3}
    assert "CPU 3 is not of the pool" in rig.view("a").stray
    rig.handle(HostStateChanged(host_state(former=before.tree.nodes)))
    assert rig.cpus()["a"] == {1, 2, 3}
    # A reshape moves the guest's amounts to the provider of the zone.
    rig.handle(AllocationsRead({"a": {NODE[0]: {"PCPU": 3}}}, 2.0))
    assert (rig.cpus()["a"], rig.view("a").stray) == ({1, 2, 3}, "")


def test_guests_of_a_pool_keep_their_cpus_over_a_restart_of_the_agent():
    here = host_state(gold())
    rig = PooledHost(here)
    rig.hold("a", {GOLD[0]: {"PCPU": 2}}, 2)
    rig.hold("b", {GOLD[1]: {"VCPU": 1}})
    before = rig.cpus()
    rig.restart(host_state=here)
    assert rig.cpus() == before


def test_a_pool_grows_by_idle_cpus_and_returns_them_to_guests_that_hold_them():
    rig = PooledHost(host_state(gold((4, 7), max_cpus=3)))
    rig.hold("floats", {GOLD[1]: {"VCPU": 1}})
    assert rig.cpus()["floats"] == {4, 6, 7}
    rig.hold("a", {NODE[1]: {"PCPU": 2}}, 2)
    assert rig.cpus() == {"floats": {4, 7}, "a": {5, 6}}
    rig.hold("b", {GOLD[1]: {"PCPU": 1}})
    assert rig.cpus() == {"floats": {4}, "a": {5, 6}, "b": {7}}
    rig.handle(GuestStopped(rig.view("a").guest))
    assert rig.cpus() == {"floats": {4, 5, 6}, "b": {7}}


def test_guests_under_static_plus_float_on_all_cpus_that_no_guest_holds():
    rig = PooledHost(host_state(policy="static-plus"))
    rig.hold("floats", {NODE[0]: {"VCPU": 1}})
    rig.hold("mixed", {NODE[0]: {"PCPU": 1, "VCPU": 1}}, 2)
    assert rig.cpus() == {"floats": {0, 2, 3}, "mixed": {0, 1, 2, 3}}
    assert rig.view("mixed").assignment.vcpu_cpus == ({1}, {0, 2, 3})
    before = rig.cpus()
    rig.restart(saved={}, host_state=host_state(policy="static-plus"))
    assert rig.cpus()["floats"] == before["floats"], "nobody takes what it floats on for its own"
    assert not rig.view("floats").assignment.held_cpus


def test_static_pools_has_no_place_for_guests_outside_of_pools():
    rig = PooledHost(host_state(gold((2, 3)), policy="static-pools"))
    rig.hold("a", {GOLD[0]: {"PCPU": 1}})
    with pytest.raises(GuestRefusedError, match="guests run only in pools, but it holds CPUs of h_NUMA_0"):
        rig.hold("b", {NODE[0]: {"PCPU": 1}})
    rig.handle(AllocationsRead({"a": {NODE[0]: {"VCPU": 1}}}, 2.0))
    assert rig.cpus() == {"a": {0, 4}}
    assert "guests run only in pools" in rig.view("a").refusal


POOLS = st.frozensets(st.integers(0, 7), max_size=5).map(lambda cpus: (gold(cpus),) if cpus else ())
CHANGES = st.one_of(
    st.tuples(st.just("pool"), POOLS),
    st.tuples(
        st.just("start"),
        st.tuples(st.sampled_from([*NODE.values(), *GOLD.values()]), st.integers(0, 2), st.integers(0, 1)),
    ),
    st.tuples(st.just("stop"), st.integers(0, 9)),
)


@settings(max_examples=60)
@given(st.lists(CHANGES, max_size=8))
def test_no_change_of_pools_takes_cpus_from_a_guest(changes):
    here = host_state()
    rig = PooledHost(here)
    former = {}
    for number, (what, detail) in enumerate(changes):
        before = {view.guest.uuid: view.assignment.held_cpus for view in rig.pipeline.guest_views()}
        if what == "pool":
            former |= {node.uuid: node for node in here.tree.nodes if node.pool}
            here = host_state(*detail, former=former.values())
            rig.handle(HostStateChanged(here))
        elif what == "start":
            provider, pcpu, vcpu = detail
            if here.tree.get(provider) is not None and pcpu + vcpu:
                try:
                    rig.hold(f"g{number}", {provider: {"PCPU": pcpu, "VCPU": vcpu}}, pcpu + vcpu)
                except GuestRefusedError:
                    pass
                else:
                    own = here.own_cpus(here.tree.get(provider))
                    view = rig.view(f"g{number}")
                    assert view.assignment.cpus <= own
        elif views := rig.pipeline.guest_views():
            rig.handle(GuestStopped(views[detail % len(views)].guest))
        held = {view.guest.uuid: view.assignment.held_cpus for view in rig.pipeline.guest_views()}
        assert all(cpus == before[uuid] for uuid, cpus in held.items() if uuid in before)
        assert sum(map(len, held.values())) == len(frozenset().union(*held.values()))
        for view in rig.pipeline.guest_views():
            others = frozenset().union(*(cpus for uuid, cpus in held.items() if uuid != view.guest.uuid))
            assert view.assignment.cpus.isdisjoint(others)
            if not view.assignment.held_cpus and not any(uuid in GOLD.values() for uuid in view.allocation):
                open_shared = here.cpu_sets.open_shared - others
                assert view.assignment.cpus <= open_shared or not open_shared
