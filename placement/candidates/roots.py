"""Which trees can serve a request, found from the rarest thing it asks for.

A candidate is anchored at one tree: its providers are members of that tree or
share with it, that is, have the trait MISC_SHARES_VIA_AGGREGATE and an
aggregate in common with any member of the tree.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from placement.candidates.budget import Budget
from placement.candidates.conditions import InAggregates, InTree
from placement.candidates.needs import Need
from placement.candidates.request import CandidatesRequest
from placement.model.index import Index
from placement.model.provider import SHARES, Provider
from placement.model.snapshot import Snapshot

_MUCH_RARER: Final = 0.5
"""Roots by what is free have to be sorted first, others are kept in order."""


class Sharing:
    """The sharing providers by aggregate, as far as they matter to a request."""

    def __init__(self, snapshot: Snapshot, budget: Budget) -> None:
        self.providers = snapshot.by_trait.get(SHARES, set())
        #: what may be spent on the request
        self.budget = budget
        self._snapshot = snapshot

    @cached_property
    def _by_aggregate(self) -> dict[str, set[int]]:
        sharing: dict[str, set[int]] = {}
        for provider_id in self.providers:
            self.budget.spend()
            for aggregate in self._snapshot.providers[provider_id].aggregates:
                sharing.setdefault(aggregate, set()).add(provider_id)
        return sharing

    def with_tree(self, root: int) -> list[Provider]:
        """The providers outside the tree that share with it, in ascending order of their ids."""
        found: set[int] = set()
        members = self._snapshot.trees[root]
        for member in members:
            for aggregate in self._snapshot.providers[member].aggregates:
                found |= self._by_aggregate.get(aggregate, set())
        self.budget.spend(len(members) + len(found))
        return [self._snapshot.providers[provider_id] for provider_id in sorted(found - members)]

    def anchors(self, provider_id: int) -> Iterator[int]:
        """The roots of all trees that a sharing provider shares with; some may come twice."""
        for aggregate in self._snapshot.providers[provider_id].aggregates:
            for member in self._snapshot.by_aggregate[aggregate]:
                self.budget.spend()
                yield self._snapshot.providers[member].root_id


def possible_roots(
    snapshot: Snapshot, request: CandidatesRequest, needs: Iterable[Need], sharing: Sharing
) -> Iterable[int]:
    """The ids of roots at which candidates may be anchored, in ascending order, each once.

    Of everything the request asks for only the rarest is looked up here, so
    the result may hold roots that serve nothing; it misses none that does.
    """
    needs = tuple(needs)
    scarcest = min(
        ((snapshot.free_index(name), amount) for need in needs for name, amount in need.resources),
        key=lambda asked: asked[0].count(asked[1]),
        default=None,
    )
    having = scarcest[0].count(scarcest[1]) if scarcest else len(snapshot.trees)
    if having == 0:
        return ()
    if not sharing.providers:
        kept = _unshared_roots(snapshot, request, needs)
        return scarcest[0].roots(scarcest[1]) if scarcest and having < len(kept) * _MUCH_RARER else kept
    size, providers, anchored = min(
        _seeds(snapshot, request, needs, sharing.budget), key=lambda seed: seed[0]
    )
    if size == 0:
        return ()
    sharing.budget.spend(size)
    provider_ids = providers()
    if not anchored:
        return sorted(
            provider_id for provider_id in provider_ids if snapshot.providers[provider_id].parent_id is None
        )
    roots = {snapshot.providers[provider_id].root_id for provider_id in provider_ids}
    for provider_id in sharing.providers.intersection(provider_ids):
        roots.update(sharing.anchors(provider_id))
    return sorted(roots)


def _unshared_roots(snapshot: Snapshot, request: CandidatesRequest, needs: Sequence[Need]) -> Sequence[int]:
    """As :func:`possible_roots` where nothing is shared, from roots that the snapshot keeps in order."""
    for members in _trees_named(snapshot, needs):
        return sorted({snapshot.providers[provider_id].root_id for provider_id in members})
    rarest = min(
        (
            [snapshot.roots_having(each.index, name) for name in each.names]
            for each in _indexed(snapshot, request, needs)
        ),
        key=lambda any_roots: sum(map(len, any_roots)),
        default=None,
    )
    if rarest is None:
        return sorted(snapshot.trees)
    return rarest[0] if len(rarest) == 1 else sorted(set().union(*rarest))


@dataclass(frozen=True, slots=True)
class _Indexed:
    """Something that a provider of every candidate has: one of the names in an index of the snapshot.

    ``at_root``: that provider is the root of the anchoring tree. ``spans_trees``:
    what the root has counts for all providers of its tree.
    """

    index: Index[str]
    names: Collection[str]
    at_root: bool = False
    spans_trees: bool = False


def _indexed(snapshot: Snapshot, request: CandidatesRequest, needs: Iterable[Need]) -> Iterator[_Indexed]:
    """All that a request asks for and an index has; what several needs have in common comes once."""
    for trait in request.root_required:
        yield _Indexed(snapshot.by_trait, (trait,), at_root=True)
    for group in request.groups:
        for any_trait in group.required:
            yield _Indexed(snapshot.by_trait, any_trait)
    for need in needs:
        for name, _ in need.resources:
            yield _Indexed(snapshot.by_class, (name,))
    for any_aggregate, or_root in dict.fromkeys(
        (any_aggregate, condition.or_root)
        for need in needs
        for condition in need.conditions
        if isinstance(condition, InAggregates)
        for any_aggregate in condition.member_of
    ):
        yield _Indexed(snapshot.by_aggregate, any_aggregate, spans_trees=or_root)


def _trees_named(snapshot: Snapshot, needs: Iterable[Need]) -> Iterator[set[int]]:
    """For each need that asks for one tree the providers of that tree."""
    for need in needs:
        for condition in need.conditions:
            if isinstance(condition, InTree):
                member = snapshot.get(condition.uuid)
                yield snapshot.trees[member.root_id] if member else set()


Seed = tuple[int, Callable[[], Iterable[int]], bool]


def _seeds(
    snapshot: Snapshot, request: CandidatesRequest, needs: Sequence[Need], budget: Budget
) -> Iterator[Seed]:
    """Sets of providers of which every candidate has one: size, ids, and whether they may also share.

    A set that may not share holds the root of the anchoring tree itself.
    """
    for each in _indexed(snapshot, request, needs):
        sets = [each.index.get(name, set()) for name in each.names]
        budget.spend(sum(map(len, sets)) if each.spans_trees else 1)
        if each.spans_trees:
            sets = [_with_trees(snapshot, members) for members in sets]
        yield _seed(sets, anchored=not each.at_root)
    for members in _trees_named(snapshot, needs):
        yield _seed([members])


def _seed(sets: list[set[int]], *, anchored: bool = True) -> Seed:
    return sum(map(len, sets)), lambda: set().union(*sets), anchored


def _with_trees(snapshot: Snapshot, members: set[int]) -> set[int]:
    """The providers, and of those that are roots all of their trees."""
    return members.union(*(snapshot.trees.get(member, set()) for member in members))
