"""Explains a request by brute force, for comparison with the fast explanation.

tests/placement/search/brute.py defines a candidate.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import combinations, product
from types import MappingProxyType

from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.diagnosis.clauses import (
    RequestClause,
    droppable_clauses,
    resource_clause,
    without_clauses,
)
from placement.search.request import CandidatesRequest, RequestGroup
from tests.placement.search import brute

MOST = 13
"""No inventory of the random worlds has more than this."""


def hosts(snapshot: ModelSnapshot) -> list[Provider]:
    return [provider for provider in snapshot if provider.parent_id is None]


def reachable(snapshot: ModelSnapshot, root: Provider) -> list[Provider]:
    return [provider for provider in snapshot if brute.is_reachable(snapshot, root, provider)]


def serves(snapshot: ModelSnapshot, root: Provider, request: CandidatesRequest) -> bool:
    """Whether a candidate for the request is anchored at this root."""
    return brute.root_is_right(root, request) and any(
        all(rule(snapshot, request, assignment) for rule in brute.RULES)
        for assignment in brute.assignments(snapshot, root, request)
    )


def fitting(snapshot: ModelSnapshot, request: CandidatesRequest | None) -> int:
    return 0 if request is None else sum(serves(snapshot, root, request) for root in hosts(snapshot))


def passing(
    snapshot: ModelSnapshot, group: RequestGroup, amounts: dict[str, int], clauses: list[RequestClause]
) -> set[int]:
    """The ids of the providers that meet all these clauses of a group."""
    return {
        provider.id
        for provider in snapshot
        if all(meets(snapshot, group, amounts, provider, clause, clauses) for clause in clauses)
    }


def meets(
    snapshot: ModelSnapshot,
    group: RequestGroup,
    amounts: dict[str, int],
    provider: Provider,
    clause: RequestClause,
    before: list[RequestClause],
) -> bool:
    name = clause.names[0]
    inventory = provider.inventories.get(name)
    match clause.condition:
        case "resource_class":
            return inventory is not None
        case "capacity":
            capacity = int((inventory.total - inventory.reserved) * inventory.allocation_ratio)
            return amounts[name] + provider.used.get(name, 0) <= capacity
        case "min_unit":
            return amounts[name] >= inventory.min_unit
        case "max_unit":
            return amounts[name] <= inventory.max_unit
        case "step_size":
            return amounts[name] % inventory.step_size == 0
        case "required":
            return any(trait in provider.traits for trait in clause.names)
        case "forbidden":
            return name not in provider.traits
        case "outside" | "inside":
            above = [snapshot.providers[each] for each in brute.ancestry(snapshot, provider.id)]
            return any(name in each.traits for each in above) == (clause.condition == "inside")
        case "in_tree":
            return snapshot.providers[provider.root_id].uuid == tree_of(snapshot, name)
    members = [provider]
    if group.suffix == "":
        members.append(snapshot.providers[provider.root_id])
    if clause.condition == "forbidden_aggregates":
        return not any(name in member.aggregates for member in members)
    assert clause.condition == "member_of"
    asked = [each for each in before[: before.index(clause) + 1] if each.condition == "member_of"]
    return any(
        all(any(one in member.aggregates for one in each.names) for each in asked) for member in members
    )


def tree_of(snapshot: ModelSnapshot, uuid: str) -> str | None:
    """The uuid of the root of the tree that contains the provider with this uuid."""
    member = next((each for each in snapshot if each.uuid == uuid), None)
    return None if member is None else snapshot.providers[member.root_id].uuid


def relaxations(
    snapshot: ModelSnapshot, request: CandidatesRequest, most: int
) -> set[frozenset[RequestClause]]:
    """All minimal sets of up to ``most`` clauses such that the request fits if these clauses change.

    A change removes a clause, or reduces its amount.
    """
    found: set[frozenset[RequestClause]] = set()
    clauses = droppable_clauses(snapshot, request)
    for size in range(1, most + 1):
        for changed in map(frozenset, combinations(clauses, size)):
            if not any(other <= changed for other in found) and any(
                fitting(snapshot, each) for each in changes(request, changed)
            ):
                found.add(changed)
    return found


def changes(
    request: CandidatesRequest, changed: Collection[RequestClause]
) -> Iterator[CandidatesRequest | None]:
    """Yield the request in all ways without these clauses, or with smaller amounts in them."""
    asked = {
        resource_clause(group.suffix, name): amount
        for group in request.groups
        for name, amount in group.resources.items()
    }
    lessened = [clause for clause in changed if clause in asked]
    for choice in product(*(range(asked[clause]) for clause in lessened)):
        amounts = {clause: amount for clause, amount in zip(lessened, choice, strict=True) if amount}
        yield without_clauses(request, set(changed) - amounts.keys(), amounts)


def largest(
    snapshot: ModelSnapshot,
    request: CandidatesRequest,
    clause: RequestClause,
    most: int = MOST,
    left_out: Collection[RequestClause] = (),
    amounts: Mapping[RequestClause, int] = MappingProxyType({}),
) -> int | None:
    """The largest amount of a class, up to ``most``, with which the request fits beside the other changes."""
    fits = [
        amount
        for amount in range(1, most + 1)
        if fitting(snapshot, without_clauses(request, left_out, {**amounts, clause: amount}))
    ]
    return max(fits, default=None)


def is_query(request: CandidatesRequest) -> bool:
    """Whether a query string can state the request: a group without resources has another condition and is in
    a ``same_subtree``.
    """
    named = frozenset[str]().union(*request.same_subtrees)
    return all(
        group.resources or (group.suffix in named and group != RequestGroup(group.suffix))
        for group in request.groups
    )
