"""Tests of many claims of one group in one call: the search finds within its budget that they do not fit
together.
"""

import random
from dataclasses import replace

import pytest

from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.schemas import candidates
from placement.search.budget import SearchBudget
from placement.search.claims.claim import WantedClaim
from placement.search.claims.placement import UnplacedClaim, place_claims
from placement.store.consumers import ConsumerOwnership
from placement.store.groups import ConsumerGroup, GroupPolicy
from tests.placement.search.snapshots import Spec, build, build_scenario

SIZE = 32
SECONDS = 5.0
"""Seconds of work after which a search is refused, because a trial of all ways would take years."""


def asks(query: str) -> candidates.AskedCandidates:
    return candidates.parse_body({"query": query, "flavor": None, "microversion": "1.39"}, {})


def gang(size: int, policy: GroupPolicy, **fields: int) -> list[WantedClaim]:
    asked = asks("resources1=PCPU:1")
    owner, group = ConsumerOwnership("project", "user", "INSTANCE"), ConsumerGroup("gang", policy, **fields)
    return [
        WantedClaim(str(number), None, owner, asked.request, asked.version, group=group)
        for number in range(size)
    ]


def unlike(hosts: int) -> ModelSnapshot:
    """A snapshot of hosts with two NUMA nodes each. No two hosts have equal free amounts."""
    nodes = [
        Spec(f"h{host}_{node}", f"h{host}", {"PCPU": 100}, [ZONE], used={"PCPU": host})
        for host in range(hosts)
        for node in range(2)
    ]
    return build(*(Spec(f"h{host}") for host in range(hosts)), *nodes)


@pytest.mark.parametrize(("hosts", "limit"), [(SIZE, 1), (SIZE // 2, 2)])
def test_anti_affinity_uses_one_host_per_member(hosts: int, limit: int) -> None:
    wanted = gang(SIZE, GroupPolicy.ANTI_AFFINITY, max_per_host=limit)
    found = place_claims(build_scenario(unlike(hosts)), wanted, SearchBudget(SECONDS), random.Random(1))
    assert isinstance(found, list)
    roots = [each.choice.root.id for each in found]
    assert sorted(roots) == sorted([*set(roots)] * limit)
    lacking = place_claims(build_scenario(unlike(hosts - 1)), wanted, SearchBudget(SECONDS), random.Random(1))
    assert isinstance(lacking, UnplacedClaim)
    assert lacking.number == SIZE - limit


def test_a_gang_without_room_is_refused() -> None:
    rooms = [Spec("h"), *(Spec(f"h_{node}", "h", {"PCPU": 10}, [ZONE]) for node in range(2))]
    others = [Spec("o"), *(Spec(f"o_{node}", "o", {"PCPU": 9 + node}, [ZONE]) for node in range(2))]
    world = build_scenario(build(*rooms, *others))
    placed = place_claims(world, gang(20, GroupPolicy.AFFINITY), SearchBudget(SECONDS), random.Random(1))
    assert isinstance(placed, list)
    assert {each.choice.root.name for each in placed} == {"h"}
    assert isinstance(
        place_claims(world, gang(21, GroupPolicy.AFFINITY), SearchBudget(SECONDS), random.Random(1)),
        UnplacedClaim,
    )


def test_hosts_of_the_fallback_count() -> None:
    world = build_scenario(build(Spec("one", None, {"PCPU": 4}), Spec("other", None, {"VCPU": 4})))
    fallback = asks("resources=VCPU:1").request
    wanted = [replace(each, fallback=fallback) for each in gang(2, GroupPolicy.ANTI_AFFINITY)]
    placed = place_claims(world, wanted, SearchBudget(SECONDS), random.Random(1))
    assert isinstance(placed, list)
    assert [each.choice.root.name for each in placed] == ["one", "other"]
