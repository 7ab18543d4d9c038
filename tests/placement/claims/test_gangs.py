"""Many that are claimed together, of one group: that there is no place for all is found out in time."""

import random
from dataclasses import replace

import pytest

from placement.candidates.budget import Budget
from placement.claims.placing import Unplaced, place
from placement.claims.wanted import Wanted
from placement.claims.world import World
from placement.flavors.flavor import Rules
from placement.model.snapshot import Snapshot
from placement.model.trees import ZONE
from placement.schemas import explanation
from placement.store.consumers import Owner
from placement.store.groups import Group, Policy
from tests.placement.candidates.snapshots import Spec, build

SIZE = 32
SECONDS = 5.0
"""Of work, after which a search is refused: trying all ways would take years."""


def asks(query: str) -> explanation.Asked:
    return explanation.parse({"query": query, "flavor": None, "microversion": "1.39"}, Rules())


def gang(size: int, policy: Policy, **fields: int) -> list[Wanted]:
    asked = asks("resources1=PCPU:1")
    owner, group = Owner("project", "user", "INSTANCE"), Group("gang", policy, **fields)
    return [
        Wanted(str(number), None, owner, asked.request, asked.version, group=group) for number in range(size)
    ]


def unlike(hosts: int) -> Snapshot:
    """Hosts of two NUMA nodes, no two of which have as much free."""
    nodes = [
        Spec(f"h{host}_{node}", f"h{host}", {"PCPU": 100}, [ZONE], used={"PCPU": host})
        for host in range(hosts)
        for node in range(2)
    ]
    return build(*(Spec(f"h{host}") for host in range(hosts)), *nodes)


@pytest.mark.parametrize(("hosts", "limit"), [(SIZE, 1), (SIZE // 2, 2)])
def test_a_gang_is_kept_apart_on_as_many_hosts_as_it_needs_and_no_fewer(hosts: int, limit: int) -> None:
    wanted = gang(SIZE, Policy.ANTI_AFFINITY, max_per_root=limit)
    found = place(World(unlike(hosts)), wanted, Budget(SECONDS), random.Random(1))
    assert isinstance(found, list)
    roots = [each.choice.root.id for each in found]
    assert sorted(roots) == sorted([*set(roots)] * limit)
    lacking = place(World(unlike(hosts - 1)), wanted, Budget(SECONDS), random.Random(1))
    assert isinstance(lacking, Unplaced)
    assert lacking.number == SIZE - limit


def test_a_gang_that_no_host_has_room_for_is_refused() -> None:
    rooms = [Spec("h"), *(Spec(f"h_{node}", "h", {"PCPU": 10}, [ZONE]) for node in range(2))]
    others = [Spec("o"), *(Spec(f"o_{node}", "o", {"PCPU": 9 + node}, [ZONE]) for node in range(2))]
    world = World(build(*rooms, *others))
    placed = place(world, gang(20, Policy.AFFINITY), Budget(SECONDS), random.Random(1))
    assert isinstance(placed, list)
    assert {each.choice.root.name for each in placed} == {"h"}
    assert isinstance(place(world, gang(21, Policy.AFFINITY), Budget(SECONDS), random.Random(1)), Unplaced)


def test_hosts_of_what_claims_fall_back_to_count() -> None:
    world = World(build(Spec("one", None, {"PCPU": 4}), Spec("other", None, {"VCPU": 4})))
    fallback = asks("resources=VCPU:1").request
    wanted = [replace(each, fallback=fallback) for each in gang(2, Policy.ANTI_AFFINITY)]
    placed = place(world, wanted, Budget(SECONDS), random.Random(1))
    assert isinstance(placed, list)
    assert [each.choice.root.name for each in placed] == ["one", "other"]
