"""A slow and simple count of guests, with which the fast count is compared. It tries every order of claims.

A random cloud with too many orders is left out (:func:`hypothesis.reject`).
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cache

from hypothesis import reject

from placement.read_model.provider import SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.request import CandidatesRequest
from tests.placement.search import brute

_MAX_STATES = 20_000
"""Maximum number of states of a cloud after claims; each state takes about a tenth of a millisecond."""
Amounts = frozenset[tuple[int, str, int]]
PLENTY = 10_000
State = frozenset[tuple[int, str, int]]
"""The amounts that guests have taken in addition to the former usage, by provider id and class."""


def most(
    snapshot: ModelSnapshot,
    request: CandidatesRequest,
    avoided: Collection[int] = (),
    on: Collection[int] | None = None,
    among: ModelSnapshot | None = None,
) -> int:
    """The largest number of guests that fit, over all orders of their claims.

    :param on: the roots of the hosts on which guests may be.
    :param among: the snapshot that decides which amounts a guest may take at all.
    """
    cloud = without(snapshot, avoided)
    candidates = choices(cloud if among is None else among, request, on)

    @cache
    def more(state: State) -> int:
        if more.cache_info().currsize > _MAX_STATES:
            reject()
        found = (
            1 + more(after) for amounts in candidates if (after := claim(cloud, state, amounts)) is not None
        )
        return max(found, default=0)

    return more(frozenset())


def choices(
    snapshot: ModelSnapshot, request: CandidatesRequest, on: Collection[int] | None = None
) -> set[Amounts]:
    """Return the sets of amounts that one guest may take, on the hosts with these roots."""
    return {
        brute.comparable(assignment)[0]
        for root in snapshot
        if root.parent_id is None and brute.root_is_right(root, request) and (on is None or root.id in on)
        for assignment in brute.assignments(snapshot, root, request)
        if all(rule(snapshot, request, assignment) for rule in brute.RULES)
    }


def most_sets(
    snapshot: ModelSnapshot, flavors: Sequence[Sequence[CandidatesRequest]], numbers: Sequence[int]
) -> int:
    """Return how many sets of guests fit. A set has a number of guests of each flavor; any request of its
    flavor may serve a guest.
    """
    candidates = [
        set[Amounts]().union(*(choices(snapshot, request) for request in requests)) for requests in flavors
    ]

    @cache
    def fit(state: State, left: tuple[int, ...]) -> bool:
        if fit.cache_info().currsize > _MAX_STATES:
            reject()
        number = next((number for number, guests in enumerate(left) if guests), None)
        if number is None:
            return True
        rest = (*left[:number], left[number] - 1, *left[number + 1 :])
        return any(
            (after := claim(snapshot, state, amounts)) is not None and fit(after, rest)
            for amounts in candidates[number]
        )

    sets = 0
    while fit(frozenset(), tuple((sets + 1) * number for number in numbers)):
        sets += 1
    return sets


def claim(snapshot: ModelSnapshot, state: State, amounts: Amounts) -> State | None:
    """Return the state after a guest has taken its amounts; None if too little is free."""
    taken = {(provider_id, name): amount for provider_id, name, amount in state}
    for provider_id, name, amount in amounts:
        taken[provider_id, name] = taken.get((provider_id, name), 0) + amount
        provider = snapshot.providers[provider_id]
        inventory = provider.inventories[name]
        capacity = int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
        if taken[provider_id, name] + provider.used.get(name, 0) > capacity:
            return None
    return frozenset((*key, amount) for key, amount in taken.items())


def serves_when_empty(snapshot: ModelSnapshot, request: CandidatesRequest, root: int) -> bool:
    """Whether a host could serve a guest if the host and the providers that share with it were unused."""
    empty = when_empty(snapshot, root)
    return any(claim(empty, frozenset(), amounts) is not None for amounts in choices(empty, request, {root}))


def without(snapshot: ModelSnapshot, roots: Collection[int]) -> ModelSnapshot:
    """The snapshot without the trees of these roots."""
    return ModelSnapshot(each for each in snapshot if each.root_id not in roots)


def roots(snapshot: ModelSnapshot) -> Sequence[Provider]:
    return [each for each in snapshot if each.parent_id is None]


def when_empty(snapshot: ModelSnapshot, root: int) -> ModelSnapshot:
    """The snapshot as if one tree, and the providers that share with it, were unused."""
    return ModelSnapshot(
        replace(each, used={}) if each.root_id == root or SHARES in each.traits else each for each in snapshot
    )


def when_nothing_is_used(snapshot: ModelSnapshot) -> ModelSnapshot:
    """The snapshot as if all trees were unused."""
    return ModelSnapshot(replace(each, used={}) for each in snapshot)


def with_plenty(snapshot: ModelSnapshot, classes: Collection[str]) -> ModelSnapshot:
    """The snapshot with more of some classes than all guests together could take."""
    return ModelSnapshot(
        replace(
            each,
            inventories={
                name: replace(inventory, total=PLENTY, allocation_ratio=1.0) if name in classes else inventory
                for name, inventory in each.inventories.items()
            },
        )
        for each in snapshot
    )
