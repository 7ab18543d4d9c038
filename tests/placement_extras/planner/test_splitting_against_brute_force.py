"""Tests that the number of guests that a topology policy splits is within the bounds, in random small
clouds.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import HealthCheck, given, reject, settings

from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.claim import WantedClaim
from placement.search.claims.topology import TopologyPolicy
from placement_extras.planner.capacity import CloudHosts, FlavorCapacity
from placement_extras.planner.packing import FitBounds
from placement_extras.planner.split_count import count_split
from tests.examples import examples
from tests.placement.search.claims.strategies import queries, wants, worlds_of_topologies
from tests.placement.search.claims.topology_judge import State, allowed_ways, tree, zone_ids
from tests.placement.search.snapshots import Spec, build, build_scenario

_MAX_STATES = 3_000
"""States of a host, after which a random example is left out."""
exhaustive = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def guests_at(snapshot: ModelSnapshot, wanted: WantedClaim, root: int) -> int:
    """The largest number of guests at a host, over all orders and all ways that the policy allows."""

    @cache
    def most_from(state: State) -> int:
        if most_from.cache_info().currsize > _MAX_STATES:
            reject()
        now = build_scenario(used_by(snapshot, state))
        after = {next_state(state, way) for _, way in allowed_ways(now, wanted, root)}
        return max((1 + most_from(each) for each in after), default=0)

    return most_from(frozenset())


def next_state(state: State, way: State) -> State:
    total = {(provider_id, name): amount for provider_id, name, amount in state}
    for provider_id, name, amount in way:
        total[provider_id, name] = total.get((provider_id, name), 0) + amount
    return frozenset((*key, amount) for key, amount in total.items())


def used_by(snapshot: ModelSnapshot, state: State) -> ModelSnapshot:
    """The snapshot in which guests hold these amounts."""
    more: dict[int, dict[str, int]] = {}
    for provider_id, name, amount in state:
        more.setdefault(provider_id, {})[name] = amount
    return ModelSnapshot(
        replace(
            each,
            used={
                name: each.used.get(name, 0) + more.get(each.id, {}).get(name, 0) for name in each.inventories
            },
        )
        for each in snapshot
    )


def hosts_with_pool() -> ModelSnapshot:
    """Two hosts with two zones of 6 PCPU each, and a disk of 5 GB that they share."""
    pool = Spec("pool", None, {"DISK_GB": 5}, [SHARES], aggregates=["rack"])
    specs = [pool]
    for name in ("one", "two"):
        specs.append(Spec(name, aggregates=["rack"]))
        specs += [Spec(f"{name}_{number}", name, {"PCPU": 6}, [ZONE]) for number in range(2)]
    return build(*specs)


def test_hosts_that_share_a_pool_take_it_from_each_other() -> None:
    wanted = wants("resources=PCPU:4,DISK_GB:1", TopologyPolicy.BEST_EFFORT)
    found = count(hosts_with_pool(), wanted)
    # each host has PCPU for 3 guests, and the pool has disk for 5
    assert found.fit == FitBounds(5, 5)
    assert (found.hosts, found.candidate_hosts) == (2, 2)
    assert found.worst is not None
    assert (found.worst.name, found.without_worst) == ("pool", FitBounds(0, 0))
    (rack,) = found.by_aggregate.values()
    assert rack == FitBounds(5, 5)


def test_a_pool_that_fails_takes_its_guests_with_it() -> None:
    pool = Spec("pool", None, {"DISK_GB": 5, "PCPU": 4}, [SHARES, ZONE], aggregates=["rack"])
    host = [Spec("one", aggregates=["rack"]), Spec("one_0", "one", {"PCPU": 8}, [ZONE])]
    found = count(build(pool, *host), wants("resources=PCPU:4,DISK_GB:1", TopologyPolicy.BEST_EFFORT))
    assert found.fit == FitBounds(3, 3)
    assert found.worst is not None
    assert (found.worst.name, found.without_worst) == ("pool", FitBounds(0, 0))


def test_hosts_without_time_have_bounds() -> None:
    specs = []
    for name in ("one", "two"):
        specs.append(Spec(name, None, {"DISK_GB": 9}))
        specs += [Spec(f"{name}_{number}", name, {"PCPU": 6}, [ZONE]) for number in range(2)]
    snapshot, wanted = build(*specs), wants("resources=PCPU:4,DISK_GB:1", TopologyPolicy.BEST_EFFORT)
    cloud = CloudHosts(snapshot, SearchBudget())
    found = count_split(cloud, wanted.request, TopologyPolicy.BEST_EFFORT, SpentBudget())
    assert (found.fit, found.uncounted_hosts) == (FitBounds(0, 6), 2)
    assert (found.hosts, found.candidate_hosts) == (0, 0)


def test_coupled_hosts_without_time_have_bounds() -> None:
    wanted = wants("resources=PCPU:4,DISK_GB:1", TopologyPolicy.BEST_EFFORT)
    cloud = CloudHosts(hosts_with_pool(), SearchBudget())
    found = count_split(cloud, wanted.request, TopologyPolicy.BEST_EFFORT, SpentBudget())
    assert (found.fit, found.uncounted_hosts) == (FitBounds(0, 5), 3)  # the pool is a tree, too


class SpentBudget(SearchBudget):
    """A budget that is already spent."""

    def spend(self, steps: int = 1) -> None:
        raise BudgetExhausted


def count(snapshot: ModelSnapshot, wanted: WantedClaim) -> FlavorCapacity:
    assert wanted.topology is not None
    cloud = CloudHosts(snapshot, SearchBudget())
    return count_split(cloud, wanted.request, wanted.topology, cloud.budget)


@exhaustive
@given(worlds_of_topologies, queries)
def test_the_number_of_guests_is_between_the_bounds(asked: tuple[Any, Any], query: str) -> None:
    world, topology = asked
    snapshot, wanted = world.snapshot, wants(query, topology)
    roots = [each.id for each in snapshot if each.parent_id is None]
    expected = {root: guests_at(snapshot, wanted, root) for root in roots}
    found = count(snapshot, wanted)
    total = sum(expected.values())
    assert found.fit.lower_bound <= total <= found.fit.upper_bound
    assert found.candidate_hosts == sum(map(bool, expected.values()))
    empty = ModelSnapshot(replace(each, used={}) for each in snapshot)
    assert found.hosts == sum(bool(allowed_ways(build_scenario(empty), wanted, root)) for root in roots)
    if found.worst is not None:
        left = total - expected[found.worst.id]
        assert found.without_worst.lower_bound <= left <= found.without_worst.upper_bound
    one_each = all(
        len(zone_ids(snapshot, root))
        == sum("DISK_GB" not in each.inventories for each in tree(snapshot, root))
        for root in roots
    )
    one_zone = all(len(zone_ids(snapshot, root)) == 1 for root in roots)
    if one_each and len(wanted.request.groups) == 1 and (one_zone or topology is TopologyPolicy.SINGLE_NUMA):
        assert found.fit == FitBounds(total, total)
