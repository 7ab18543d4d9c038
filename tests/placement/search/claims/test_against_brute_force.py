"""Tests that claims are placed exactly when a brute-force search finds places, in random small clouds."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.claims.claim import ClaimScenario, HostChoice, Order, WantedClaim
from placement.search.claims.placement import PlacedClaim, UnplacedClaim, place_claims
from placement.store.groups import ConsumerGroup, GroupPolicy
from tests.examples import examples
from tests.placement.search import brute
from tests.placement.search.claims.strategies import OWNER
from tests.placement.search.snapshots import build_scenario
from tests.placement.search.strategies import requests, snapshots

SHARES = "MISC_SHARES_VIA_AGGREGATE"
GROUPS = (
    ConsumerGroup("one", GroupPolicy.AFFINITY),
    ConsumerGroup("one", GroupPolicy.ANTI_AFFINITY),
    ConsumerGroup("one", GroupPolicy.SOFT_AFFINITY),
    ConsumerGroup("two", GroupPolicy.ANTI_AFFINITY),
    ConsumerGroup("two", GroupPolicy.ANTI_AFFINITY, 2),
)
ORDERS: tuple[Order, ...] = ((), (("pack", 1.0),), (("spread", 1.0), ("best_fit", 0.5)))
pytestmark = pytest.mark.usefixtures("wide_from_the_start")
Members = Mapping[str, Mapping[int, int]]
"""By group how many are where."""


@st.composite
def situations(draw: st.DrawFn) -> tuple[ClaimScenario, list[WantedClaim]]:
    snapshot = draw(snapshots())
    roots = [provider.uuid for provider in snapshot if provider.parent_id is None]
    some = st.frozensets(st.sampled_from(roots), min_size=1)
    root_ids = st.sampled_from([snapshot.by_uuid[root] for root in roots])
    members = {
        name: draw(st.dictionaries(root_ids, st.integers(1, 2), max_size=2)) for name in ("one", "two")
    }
    wanted = []
    for number in range(draw(st.integers(1, 3))):
        request = draw(requests(snapshot))
        named = frozenset[str]().union(*request.same_subtrees)
        assume(all(group.resources or group.suffix in named for group in request.groups))
        wanted.append(
            WantedClaim(
                consumer=str(number),
                generation=None,
                owner=OWNER,
                request=request,
                version=(1, 39),
                only=draw(st.sampled_from((None, None, draw(some)))),
                avoid=draw(st.sampled_from((frozenset(), frozenset(), draw(some)))),
                alternates=draw(st.integers(0, 3)),
                group=draw(st.none() | st.sampled_from(GROUPS)),
                order=draw(st.sampled_from(ORDERS)),
            )
        )
    return build_scenario(snapshot, members), wanted


def hosts(snapshot: ModelSnapshot, found: brute.Found) -> set[int]:
    """The roots of a choice that groups count as its hosts. Sharing providers are no hosts, unless the choice
    has nothing else.
    """
    taken = [snapshot.providers[provider_id] for provider_id, _, _ in found[0]]
    alone = [each for each in taken if SHARES not in each.traits]
    return {each.root_id for each in alone or taken}


def is_allowed(
    snapshot: ModelSnapshot, members: Members, group: ConsumerGroup | None, found: brute.Found
) -> bool:
    if group is None:
        return True
    here, others = hosts(snapshot, found), members.get(group.name, {})
    if group.policy is GroupPolicy.AFFINITY:
        return not others or any(others.get(host) for host in here)
    if group.policy is GroupPolicy.ANTI_AFFINITY:
        return not any(others.get(host, 0) + 1 > group.max_per_host for host in here)
    return True


def ways(snapshot: ModelSnapshot, members: Members, wanted: WantedClaim) -> set[tuple[int, brute.Found]]:
    """All choices for a wanted claim, by the root where they are anchored."""
    found = set()
    for root in snapshot:
        if root.parent_id is not None or not brute.root_is_right(root, wanted.request):
            continue
        if (wanted.only is not None and root.uuid not in wanted.only) or root.uuid in wanted.avoid:
            continue
        for assignment in brute.assignments(snapshot, root, wanted.request):
            taken = {provider.root_id for _, name, _, provider in assignment if name is not None}
            if {snapshot.providers[each].uuid for each in taken} & wanted.avoid:
                continue
            if all(rule(snapshot, wanted.request, assignment) for rule in brute.RULES):
                found.add((root.id, brute.comparable(assignment)))
    return {each for each in found if is_allowed(snapshot, members, wanted.group, each[1])}


def after(snapshot: ModelSnapshot, found: brute.Found) -> ModelSnapshot:
    """The snapshot in which a consumer holds this choice."""
    used = {provider.id: dict(provider.used) for provider in snapshot}
    for provider_id, name, amount in found[0]:
        used[provider_id][name] = used[provider_id].get(name, 0) + amount
    return ModelSnapshot(replace(provider, used=used[provider.id]) for provider in snapshot)


def joined(snapshot: ModelSnapshot, members: Members, wanted: WantedClaim, found: brute.Found) -> Members:
    """The members of groups after the consumer of this claim has joined its group at this choice."""
    if wanted.group is None:
        return members
    count = Counter(members.get(wanted.group.name, {}))
    count.update(hosts(snapshot, found))
    return {**members, wanted.group.name: count}


def fits(snapshot: ModelSnapshot, members: Members, wanted: list[WantedClaim]) -> bool:
    """Whether there is a way to place all claims together."""
    if not wanted:
        return True
    first, *others = wanted
    return any(
        fits(after(snapshot, found), joined(snapshot, members, first, found), others)
        for _, found in ways(snapshot, members, first)
    )


def comparable(choice: HostChoice) -> tuple[int, brute.Found]:
    taken = {
        (provider.id, name, amount)
        for provider, amounts in choice.resources
        for name, amount in amounts.items()
    }
    served = {(suffix, each.id) for suffix, providers in choice.mappings.items() for each in providers}
    return choice.root.id, (frozenset(taken), frozenset(served))


def check_placed(world: ModelSnapshot, members: Members, placed: list[PlacedClaim]) -> None:
    """Check that each choice, and its alternates on other hosts, fit beside all earlier choices."""
    for each in placed:
        possible = ways(world, members, each.wanted)
        found = comparable(each.choice)
        # a candidate of sharing providers alone is the same wherever it is anchored
        assert found[1] in {way for _, way in possible}
        roots = [comparable(other)[0] for other in each.alternates]
        assert all(comparable(other) in possible for other in each.alternates)
        assert len({found[0], *roots}) == 1 + len(roots) <= 1 + each.wanted.alternates
        members = joined(world, members, each.wanted, found[1])
        world = after(world, found[1])


@settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
@given(situations(), st.integers(0, 99))
def test_all_are_placed_together_exactly_if_there_is_a_way(
    situation: tuple[ClaimScenario, list[WantedClaim]], seed: int
) -> None:
    world, wanted = situation
    found = place_claims(world, wanted, SearchBudget(), random.Random(seed))
    if isinstance(found, UnplacedClaim):
        assert not fits(world.snapshot, world.groups, wanted)
        assert not ways(found.world.snapshot, found.world.groups, wanted[found.number])
    else:
        assert [each.wanted for each in found] == wanted
        check_placed(world.snapshot, world.groups, found)
