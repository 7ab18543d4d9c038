"""Splits a request into its clauses, and builds a request without given clauses."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from placement.read_model.provider import Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.conditions import (
    ProviderCheck,
    ProviderCondition,
    ProviderNeed,
    group_conditions,
    keep_pieces,
    needs_of,
    root_conditions,
)
from placement.search.request import CandidatesRequest, RequestGroup


@dataclass(frozen=True, slots=True)
class RequestClause:
    """One statement of a request.

    - ``condition`` is the name of a condition from the documentation of this package.
    - ``group`` is the suffix of the group.
    - ``names`` has the resource class, traits, aggregates, uuid of a tree, or suffixes that the clause names.
    - ``amount`` is the requested amount.
    """

    # the class is frozen and hashable, because clauses are keys of reasons and members of sets
    condition: str
    group: str = ""
    names: tuple[str, ...] = ()
    amount: int | None = None


@dataclass(frozen=True, slots=True)
class ClauseCheck:
    """A check of one provider for a clause. A request without the clause ``drop`` does not need this check.

    Some clauses are checked together with earlier clauses of the same condition. In this case ``ways`` has
    the alternative checks of this clause alone. A provider has to pass the same alternative for all these
    clauses.
    """

    clause: RequestClause
    # may differ from ``clause``: leaving out the clause of an amount also leaves out all other checks of this
    # amount
    drop: RequestClause
    met_by: ProviderCheck
    ways: tuple[ProviderCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestPart:
    """A part of a request that exactly one provider serves, as a list of checks in the documented order.

    ``capacities`` maps each class to the index of its check that depends on usage. ``gone_without`` has sets
    of clauses: a request without all clauses of one of these sets does not have this part.
    """

    need: ProviderNeed
    checks: tuple[ClauseCheck, ...]
    capacities: Mapping[str, int]
    gone_without: tuple[frozenset[RequestClause], ...]


def resource_clause(group: str, name: str) -> RequestClause:
    """Return the clause by which a group asks for a class."""
    return RequestClause("resources", group, (name,))


def parts_of(snapshot: ModelSnapshot, request: CandidatesRequest) -> tuple[RequestPart, ...]:
    """Return the parts of a request: each group with a suffix, and each class of the unsuffixed group."""
    return tuple(
        _make_part(snapshot, request, need)
        for need in needs_of(request)
        if need.resources or not need.unsuffixed
    )


def _make_part(snapshot: ModelSnapshot, request: CandidatesRequest, need: ProviderNeed) -> RequestPart:
    checks = (*_on_inventories(need), *_on_providers(snapshot, need))
    capacities = {
        check.clause.names[0]: index
        for index, check in enumerate(checks)
        if check.clause.condition == "capacity"
    }
    asked = frozenset(resource_clause(need.suffix, name) for name, _ in need.resources)
    subtrees = {_same_subtree(suffixes) for suffixes in request.same_subtrees if need.suffix in suffixes}
    # a group without resources exists only if a same_subtree names it and it states another condition
    gone = (asked | subtrees, asked | {check.drop for check in checks}) if subtrees else (asked,)
    return RequestPart(need, checks, capacities, gone)


def _on_inventories(need: ProviderNeed) -> Iterator[ClauseCheck]:
    def make_check(condition: str, name: str, amount: int, met_by: ProviderCheck) -> ClauseCheck:
        clause = RequestClause(condition, need.suffix, (name,), amount)
        return ClauseCheck(clause, resource_clause(need.suffix, name), met_by)

    # the code uses one loop for each kind of check, because explanations check all resource classes before
    # any amount
    for name, amount in need.resources:
        yield make_check("resource_class", name, amount, partial(_has_class, name=name))
    for name, amount in need.resources:
        yield make_check("capacity", name, amount, partial(_has_free, name=name, amount=amount))
    for name, amount in need.resources:
        for condition, met in _PORTIONS.items():
            yield make_check(
                condition, name, amount, partial(_has_portion, name=name, amount=amount, met=met)
            )


# the next two results are True without an inventory, because a missing inventory already counts for
# resource_class
def _has_free(provider: Provider, name: str, amount: int) -> bool:
    inventory = provider.inventories.get(name)
    return inventory is None or provider.used.get(name, 0) + amount <= inventory.capacity


def _has_portion(provider: Provider, name: str, amount: int, met: Callable[[Inventory, int], bool]) -> bool:
    inventory = provider.inventories.get(name)
    return inventory is None or met(inventory, amount)


def _has_class(provider: Provider, name: str) -> bool:
    return name in provider.inventories


_PORTIONS: Final[Mapping[str, Callable[[Inventory, int], bool]]] = {
    "min_unit": lambda inventory, amount: amount >= inventory.min_unit,
    "max_unit": lambda inventory, amount: amount <= inventory.max_unit,
    "step_size": lambda inventory, amount: amount % inventory.step_size == 0,
}


def clause_of(piece: ProviderCondition, group: str = "") -> RequestClause:
    """Return the clause that states a piece of a condition, for the group with this suffix or for roots."""
    return RequestClause(piece.name, group, tuple(sorted(piece.sets[0])))


def _on_providers(snapshot: ModelSnapshot, need: ProviderNeed) -> Iterator[ClauseCheck]:
    """Yield a check for each piece of a need's conditions; a relaxation may leave out a single piece."""
    for condition in need.conditions:
        for number, piece in enumerate(condition.single_pieces(), start=1):
            clause, ways = clause_of(piece, need.suffix), piece.alternative_checks(snapshot)
            if len(ways) == 1:
                yield ClauseCheck(clause, clause, ways[0])
            else:
                # the piece is checked together with earlier pieces: the provider has to pass the same
                # alternative for all of them
                upto = replace(condition, sets=condition.sets[:number])
                yield ClauseCheck(clause, clause, partial(upto.met_by, snapshot=snapshot), ways)


def root_checks(snapshot: ModelSnapshot, request: CandidatesRequest) -> tuple[ClauseCheck, ...]:
    """Return the checks that the root of a tree has to pass."""
    found = []
    for condition in root_conditions(request):
        for piece in condition.single_pieces():
            clause = clause_of(piece)
            # each piece has a check of its own, so that a relaxation can leave out a single trait
            found.append(ClauseCheck(clause, clause, partial(piece.met_by, snapshot=snapshot)))
    return tuple(found)


def checks_together(snapshot: ModelSnapshot, request: CandidatesRequest) -> tuple[ClauseCheck, ...]:
    """Return the checks that all providers of a group together have to pass."""
    found = []
    for group in request.groups:
        for condition in group_conditions(group):
            # conditions on single providers are checked in the parts
            for piece in condition.single_pieces() if condition.met_together else ():
                clause = clause_of(piece, group.suffix)
                found.append(ClauseCheck(clause, clause, partial(piece.met_by, snapshot=snapshot)))
    return tuple(found)


TOGETHER: Final = RequestClause("all_groups")
"""The clause that one candidate must serve all parts at once, so that no amount counts twice."""


def joint_clauses(request: CandidatesRequest) -> Iterator[tuple[RequestClause, CandidatesRequest]]:
    """Yield each clause about several groups, with a request that has this clause and all earlier clauses."""
    # each request has all earlier clauses, so that a host counts at the first clause that it fails
    yield TOGETHER, replace(request, same_subtrees=(), group_policy=None)
    for number, suffixes in enumerate(request.same_subtrees, start=1):
        upto = replace(request, same_subtrees=request.same_subtrees[:number], group_policy=None)
        yield _same_subtree(suffixes), upto
    # with fewer than two groups, isolation changes nothing, and the check would never fail
    if _has_isolation(request):
        yield RequestClause("group_policy", names=("isolate",)), request


def droppable_clauses(snapshot: ModelSnapshot, request: CandidatesRequest) -> tuple[RequestClause, ...]:
    """Return the distinct clauses that a relaxation may leave out, in order."""
    found = [check.drop for part in parts_of(snapshot, request) for check in part.checks]
    found += [check.drop for check in root_checks(snapshot, request)]
    found += [check.drop for check in checks_together(snapshot, request)]
    found += [_same_subtree(suffixes) for suffixes in request.same_subtrees]
    if _has_isolation(request):
        found.append(RequestClause("group_policy", names=("isolate",)))
    # a dict drops duplicates, because all checks of an amount have the same clause
    return tuple(dict.fromkeys(found))


def without_clauses(
    request: CandidatesRequest,
    left_out: Collection[RequestClause],
    amounts: Mapping[RequestClause, int] | None = None,
) -> CandidatesRequest | None:
    """Return the request without some of its clauses; None if the request then asks for no resources.

    A group with a suffix but without resources stays only if a ``same_subtree`` names the group and the group
    has another condition. Removed groups are also removed from ``same_subtree``, so that a query string can
    state the result.

    :param amounts: smaller amounts for clauses that ask for a resource class and stay in the request.
    """
    # the suffixes are compared with the suffixes of the original request, which identify the clause
    subtrees = [suffixes for suffixes in request.same_subtrees if _same_subtree(suffixes) not in left_out]
    named = frozenset[str]().union(*subtrees)
    # first amounts and conditions are removed, and after that the groups that have none left
    groups = [_group_without(group, left_out, amounts or {}) for group in request.groups]
    groups = [
        group
        for group in groups
        if group.resources or (group.suffix in named and group != RequestGroup(group.suffix))
    ]
    suffixes_left = frozenset(group.suffix for group in groups)
    # the API refuses a query without resources
    if not any(group.resources for group in groups):
        return None
    # "none" instead of None, because the API requires a group_policy for several groups with suffixes
    shared = RequestClause("group_policy", names=("isolate",)) in left_out
    return replace(
        keep_pieces(request, lambda piece: clause_of(piece) not in left_out),
        groups=tuple(groups),
        same_subtrees=tuple(left for suffixes in subtrees if (left := suffixes & suffixes_left)),
        group_policy="none" if shared else request.group_policy,
    )


def _group_without(
    group: RequestGroup, left_out: Collection[RequestClause], amounts: Mapping[RequestClause, int]
) -> RequestGroup:
    suffix = group.suffix
    left = {
        name: amounts.get(resource_clause(suffix, name), amount)
        for name, amount in group.resources.items()
        if resource_clause(suffix, name) not in left_out
    }
    return replace(keep_pieces(group, lambda piece: clause_of(piece, suffix) not in left_out), resources=left)


def _same_subtree(suffixes: frozenset[str]) -> RequestClause:
    return RequestClause("same_subtree", names=tuple(sorted(suffixes)))


def _has_isolation(request: CandidatesRequest) -> bool:
    return request.group_policy == "isolate" and sum(group.suffix != "" for group in request.groups) > 1
