"""A slow and simple judge of claims: it tries all ways to place each claim beside the earlier ones.

Like the judge of candidates (:mod:`tests.placement.search.brute`), it shares no code with the search.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.search.claims.claim import HostChoice, WantedClaim
from placement.search.claims.placement import PlacedClaim
from placement.store.groups import ConsumerGroup, GroupPolicy
from tests.placement.search import brute

Members = Mapping[str, Mapping[int, int]]
"""By group how many are where."""


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
    """All choices for a wanted claim or its fallback, by the root where they are anchored."""
    found = set()
    roots = [each for each in snapshot if each.parent_id is None and each.uuid not in wanted.avoid]
    for root, request in product(roots, wanted.all_requests):
        if not brute.root_is_right(root, request):
            continue
        if wanted.only is not None and root.uuid not in wanted.only:
            continue
        for assignment in brute.assignments(snapshot, root, request):
            taken = {provider.root_id for _, name, _, provider in assignment if name is not None}
            if {snapshot.providers[each].uuid for each in taken} & wanted.avoid:
                continue
            if all(rule(snapshot, request, assignment) for rule in brute.RULES):
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


def fits(snapshot: ModelSnapshot, members: Members, wanted: Sequence[WantedClaim]) -> bool:
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


def check_placed(world: ModelSnapshot, members: Members, placed: Sequence[PlacedClaim]) -> None:
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
