"""What a request says, clause by clause, and the request without some of its clauses."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from placement.read_model.provider import Inventory, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.conditions import (
    HasTraits,
    InAggregates,
    InTree,
    ProviderCondition,
    ProviderNeed,
    needs_of,
)
from placement.search.request import CandidatesRequest, RequestGroup


@dataclass(frozen=True, slots=True)
class RequestClause:
    """One thing that a request says.

    ``condition`` is one of those that the package's documentation lists. ``group`` is the suffix, ``names``
    are the resource class, the traits, the aggregates, the uuid of the tree or the suffixes, ``amount`` is
    what is asked for.
    """

    condition: str
    group: str = ""
    names: tuple[str, ...] = ()
    amount: int | None = None


@dataclass(frozen=True, slots=True)
class ClauseCheck:
    """What one provider has to be because of a clause; by leaving out ``drop`` a request asks it no more.

    Where the clause is checked together with those before it, ``alone`` has what it asks for by itself: of
    the provider, and in the group without a suffix of its root, of which one has to meet all such clauses.
    """

    clause: RequestClause
    drop: RequestClause
    met_by: Callable[[Provider], bool]
    alone: tuple[Callable[[Provider], bool], ...] = ()


@dataclass(frozen=True, slots=True)
class RequestPart:
    """What exactly one provider serves, as a list of checks in the documented order.

    ``capacities`` has the indexes, by class, of those checks that depend on what is used. The part is
    gone where all of one of ``gone_without`` are left out.
    """

    need: ProviderNeed
    checks: tuple[ClauseCheck, ...]
    capacities: Mapping[str, int]
    gone_without: tuple[frozenset[RequestClause], ...]


def resources(group: str, name: str) -> RequestClause:
    """The clause that a group asks for a class at all."""
    return RequestClause("resources", group, (name,))


def parts_of(snapshot: ModelSnapshot, request: CandidatesRequest) -> tuple[RequestPart, ...]:
    """The parts of a request: a group with a suffix is one, the group without one for each class."""
    groups = {group.suffix: group for group in request.groups}
    return tuple(
        _part(snapshot, request, groups[need.suffix], need)
        for need in needs_of(request)
        if need.resources or not need.unsuffixed
    )


def _part(
    snapshot: ModelSnapshot, request: CandidatesRequest, group: RequestGroup, need: ProviderNeed
) -> RequestPart:
    checks = (*_on_inventories(need), *_on_providers(snapshot, group, need))
    capacities = {
        check.clause.names[0]: index
        for index, check in enumerate(checks)
        if check.clause.condition == "capacity"
    }
    asked = frozenset(resources(need.suffix, name) for name, _ in need.resources)
    subtrees = {_same_subtree(suffixes) for suffixes in request.same_subtrees if need.suffix in suffixes}
    # a group without resources is asked for in a same_subtree alone, and while it says anything else
    gone = (asked | subtrees, asked | {check.drop for check in checks}) if subtrees else (asked,)
    return RequestPart(need, checks, capacities, gone)


def _on_inventories(need: ProviderNeed) -> Iterator[ClauseCheck]:
    def check(
        condition: str, name: str, amount: int, met: Callable[[Provider, Inventory], bool]
    ) -> ClauseCheck:
        def met_by(provider: Provider) -> bool:
            inventory = provider.inventories.get(name)
            return inventory is None or met(provider, inventory)

        return ClauseCheck(
            RequestClause(condition, need.suffix, (name,), amount), resources(need.suffix, name), met_by
        )

    for name, amount in need.resources:
        yield ClauseCheck(
            RequestClause("resource_class", need.suffix, (name,), amount),
            resources(need.suffix, name),
            lambda provider, name=name: name in provider.inventories,  # type: ignore[misc]  # binds early
        )
    for name, amount in need.resources:
        yield check(
            "capacity",
            name,
            amount,
            lambda provider, inventory, name=name, amount=amount: (  # type: ignore[misc]  # as above
                provider.used.get(name, 0) + amount <= inventory.capacity
            ),
        )
    for name, amount in need.resources:
        for condition, met in _PORTIONS.items():
            yield check(
                condition,
                name,
                amount,
                lambda _, inventory, met=met, amount=amount: met(inventory, amount),  # type: ignore[misc]  # as above
            )


_PORTIONS: Final[Mapping[str, Callable[[Inventory, int], bool]]] = {
    "min_unit": lambda inventory, amount: amount >= inventory.min_unit,
    "max_unit": lambda inventory, amount: amount <= inventory.max_unit,
    "step_size": lambda inventory, amount: amount % inventory.step_size == 0,
}


def _check(snapshot: ModelSnapshot, clause: RequestClause, condition: ProviderCondition) -> ClauseCheck:
    """That a provider meets a condition, as a clause says that can be left out by itself."""
    return ClauseCheck(clause, clause, lambda provider: condition.met_by(provider, snapshot))


def _on_providers(snapshot: ModelSnapshot, group: RequestGroup, need: ProviderNeed) -> Iterator[ClauseCheck]:
    """Each condition of :mod:`placement.search.conditions` in pieces that can be left out."""
    check = partial(_check, snapshot)
    suffix, or_root = need.suffix, need.unsuffixed
    if not need.unsuffixed:
        for traits in group.required:
            yield check(_any_of("required", suffix, traits), HasTraits((traits,)))
    for trait in sorted(group.forbidden):
        yield check(RequestClause("forbidden", suffix, (trait,)), HasTraits((), frozenset({trait})))
    if group.in_tree is not None:
        yield check(RequestClause("in_tree", suffix, (group.in_tree,)), InTree(group.in_tree))
    for number, aggregates in enumerate(group.member_of, start=1):
        # with those before: a provider and its root are not asked to be in one each
        together = InAggregates(group.member_of[:number], frozenset(), or_root=or_root)
        alone = partial(InAggregates((aggregates,), frozenset(), or_root=False).met_by, snapshot=snapshot)
        by_root = partial(_root_meets, snapshot, alone)
        yield replace(
            check(_any_of("member_of", suffix, aggregates), together),
            alone=(alone, by_root) if or_root else (alone,),
        )
    for aggregate in sorted(group.forbidden_aggregates):
        forbidden = InAggregates((), frozenset({aggregate}), or_root=or_root)
        yield check(RequestClause("forbidden_aggregates", suffix, (aggregate,)), forbidden)


def _root_meets(snapshot: ModelSnapshot, met_by: Callable[[Provider], bool], provider: Provider) -> bool:
    return met_by(snapshot.providers[provider.root_id])


def on_roots(snapshot: ModelSnapshot, request: CandidatesRequest) -> tuple[ClauseCheck, ...]:
    """What the root of a tree has to be."""
    check = partial(_check, snapshot)
    return (
        *(
            check(RequestClause("root_required", names=(trait,)), HasTraits((frozenset({trait}),)))
            for trait in sorted(request.root_required)
        ),
        *(
            check(RequestClause("root_forbidden", names=(trait,)), HasTraits((), frozenset({trait})))
            for trait in sorted(request.root_forbidden)
        ),
    )


def pieces(request: CandidatesRequest) -> tuple[ProviderCondition, ...]:
    """Conditions, each once: where a tree meets them decides on whatever asks for some of what this does.

    Beside these there is the tree that is asked for, and what providers have and are used of.
    """
    found: list[ProviderCondition] = [HasTraits((frozenset({trait}),)) for trait in request.root_required]
    found += [HasTraits((), frozenset({trait})) for trait in request.root_forbidden]
    for group in request.groups:
        found += [HasTraits((traits,)) for traits in group.required]
        found += [HasTraits((), frozenset({trait})) for trait in group.forbidden]
        found += [InAggregates((each,), frozenset(), or_root=False) for each in group.member_of]
        found += [InAggregates((), frozenset({each}), or_root=False) for each in group.forbidden_aggregates]
    return tuple(dict.fromkeys(found))


def traits_together(request: CandidatesRequest) -> tuple[tuple[RequestClause, frozenset[str]], ...]:
    """What the providers of the group without a suffix must have together."""
    return tuple(
        (_any_of("required", "", traits), traits)
        for group in request.groups
        if group.suffix == ""
        for traits in group.required
    )


TOGETHER: Final = RequestClause("together")
"""All parts have to be served at once: no amount is given twice."""


def combinations(request: CandidatesRequest) -> Iterator[tuple[RequestClause, CandidatesRequest]]:
    """What ties the parts to one another, in order: each clause with the request up to it."""
    yield TOGETHER, replace(request, same_subtrees=(), group_policy=None)
    for number, suffixes in enumerate(request.same_subtrees, start=1):
        upto = replace(request, same_subtrees=request.same_subtrees[:number], group_policy=None)
        yield _same_subtree(suffixes), upto
    if _isolates(request):
        yield RequestClause("group_policy", names=("isolate",)), request


def droppable(snapshot: ModelSnapshot, request: CandidatesRequest) -> tuple[RequestClause, ...]:
    """All clauses that may be left out, each once, in order."""
    found = [check.drop for part in parts_of(snapshot, request) for check in part.checks]
    found += [check.drop for check in on_roots(snapshot, request)]
    found += [clause for clause, _ in traits_together(request)]
    found += [_same_subtree(suffixes) for suffixes in request.same_subtrees]
    if _isolates(request):
        found.append(RequestClause("group_policy", names=("isolate",)))
    return tuple(dict.fromkeys(found))


def without(
    request: CandidatesRequest,
    left_out: Collection[RequestClause],
    amounts: Mapping[RequestClause, int] | None = None,
) -> CandidatesRequest | None:
    """The request without some of its clauses; None if it asks for no resources then.

    A group with a suffix that asks for no resources is none any more, unless a ``same_subtree`` names it and
    it says something yet; no ``same_subtree`` names one that is none. What is left can be asked by a query.

    :param amounts: for clauses of resources another amount, where they are not left out.
    """
    subtrees = [suffixes for suffixes in request.same_subtrees if _same_subtree(suffixes) not in left_out]
    named = frozenset[str]().union(*subtrees)
    groups = [_group_without(group, left_out, amounts or {}) for group in request.groups]
    groups = [
        group
        for group in groups
        if group.resources or (group.suffix in named and group != RequestGroup(group.suffix))
    ]
    suffixes_left = frozenset(group.suffix for group in groups)
    if not any(group.resources for group in groups):
        return None
    shared = RequestClause("group_policy", names=("isolate",)) in left_out
    return replace(
        request,
        groups=tuple(groups),
        same_subtrees=tuple(left for suffixes in subtrees if (left := suffixes & suffixes_left)),
        group_policy="none" if shared else request.group_policy,
        root_required=_kept("root_required", request.root_required, left_out),
        root_forbidden=_kept("root_forbidden", request.root_forbidden, left_out),
    )


def _group_without(
    group: RequestGroup, left_out: Collection[RequestClause], amounts: Mapping[RequestClause, int]
) -> RequestGroup:
    suffix = group.suffix
    in_tree = group.in_tree
    if in_tree is not None and RequestClause("in_tree", suffix, (in_tree,)) in left_out:
        in_tree = None
    return replace(
        group,
        resources={
            name: amounts.get(resources(suffix, name), amount)
            for name, amount in group.resources.items()
            if resources(suffix, name) not in left_out
        },
        required=tuple(each for each in group.required if _any_of("required", suffix, each) not in left_out),
        forbidden=_kept("forbidden", group.forbidden, left_out, suffix),
        member_of=tuple(
            each for each in group.member_of if _any_of("member_of", suffix, each) not in left_out
        ),
        forbidden_aggregates=_kept("forbidden_aggregates", group.forbidden_aggregates, left_out, suffix),
        in_tree=in_tree,
    )


def _kept(
    condition: str, names: frozenset[str], left_out: Collection[RequestClause], group: str = ""
) -> frozenset[str]:
    return frozenset(name for name in names if RequestClause(condition, group, (name,)) not in left_out)


def _any_of(condition: str, group: str, names: frozenset[str]) -> RequestClause:
    return RequestClause(condition, group, tuple(sorted(names)))


def _same_subtree(suffixes: frozenset[str]) -> RequestClause:
    return RequestClause("same_subtree", names=tuple(sorted(suffixes)))


def _isolates(request: CandidatesRequest) -> bool:
    return request.group_policy == "isolate" and sum(group.suffix != "" for group in request.groups) > 1
