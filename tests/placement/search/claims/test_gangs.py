"""Many that are claimed together, of one group: that there is no place for all is found out in time."""

import random
from dataclasses import replace

import pytest

from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.schemas import explanation
from placement.search.budget import SearchBudget
from placement.search.claims.claim import ClaimScenario, WantedClaim
from placement.search.claims.placing import UnplacedClaim, place
from placement.store.consumers import ConsumerOwnership
from placement.store.groups import ConsumerGroup, GroupPolicy
from tests.placement.search.snapshots import Spec, build

SIZE = 32
SECONDS = 5.0
"""Of work, after which a search is refused: trying all ways would take years."""


def asks(query: str) -> explanation.AskedCandidates:
    return explanation.parse({"query": query, "flavor": None, "microversion": "1.39"}, {})


def gang(size: int, policy: GroupPolicy, **fields: int) -> list[WantedClaim]:
    asked = asks("resources1=PCPU:1")
    owner, group = ConsumerOwnership("project", "user", "INSTANCE"), ConsumerGroup("gang", policy, **fields)
    return [
        WantedClaim(str(number), None, owner, asked.request, asked.version, group=group)
        for number in range(size)
    ]


def unlike(hosts: int) -> ModelSnapshot:
    """Hosts of two NUMA nodes, no two of which have as much free."""
    nodes = [
        Spec(f"h{host}_{node}", f"h{host}", {"PCPU": 100}, [ZONE], used={"PCPU": host})
        for host in range(hosts)
        for node in range(2)
    ]
    return build(*(Spec(f"h{host}") for host in range(hosts)), *nodes)


@pytest.mark.parametrize(("hosts", "limit"), [(SIZE, 1), (SIZE // 2, 2)])
def test_a_gang_is_kept_apart_on_as_many_hosts_as_it_needs_and_no_fewer(hosts: int, limit: int) -> None:
    wanted = gang(SIZE, GroupPolicy.ANTI_AFFINITY, max_per_host=limit)
    found = place(ClaimScenario(unlike(hosts)), wanted, SearchBudget(SECONDS), random.Random(1))
    assert isinstance(found, list)
    roots = [each.choice.root.id for each in found]
    assert sorted(roots) == sorted([*set(roots)] * limit)
    lacking = place(ClaimScenario(unlike(hosts - 1)), wanted, SearchBudget(SECONDS), random.Random(1))
    assert isinstance(lacking, UnplacedClaim)
    assert lacking.number == SIZE - limit


def test_a_gang_that_no_host_has_room_for_is_refused() -> None:
    rooms = [Spec("h"), *(Spec(f"h_{node}", "h", {"PCPU": 10}, [ZONE]) for node in range(2))]
    others = [Spec("o"), *(Spec(f"o_{node}", "o", {"PCPU": 9 + node}, [ZONE]) for node in range(2))]
    world = ClaimScenario(build(*rooms, *others))
    placed = place(world, gang(20, GroupPolicy.AFFINITY), SearchBudget(SECONDS), random.Random(1))
    assert isinstance(placed, list)
    assert {each.choice.root.name for each in placed} == {"h"}
    assert isinstance(
        place(world, gang(21, GroupPolicy.AFFINITY), SearchBudget(SECONDS), random.Random(1)), UnplacedClaim
    )


def test_hosts_of_what_claims_fall_back_to_count() -> None:
    world = ClaimScenario(build(Spec("one", None, {"PCPU": 4}), Spec("other", None, {"VCPU": 4})))
    fallback = asks("resources=VCPU:1").request
    wanted = [replace(each, fallback=fallback) for each in gang(2, GroupPolicy.ANTI_AFFINITY)]
    placed = place(world, wanted, SearchBudget(SECONDS), random.Random(1))
    assert isinstance(placed, list)
    assert [each.choice.root.name for each in placed] == ["one", "other"]
