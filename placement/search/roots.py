"""Finds the trees that can serve a request, starting from its rarest condition or scarcest resource.

A candidate is anchored at one tree: each of its providers is in this tree, or is a sharing provider of the
tree. A sharing provider of a tree has the trait MISC_SHARES_VIA_AGGREGATE, and a common aggregate with a
member of the tree.
"""

import random
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import prod
from typing import Final, NamedTuple

from placement.read_model.index import MergedIds
from placement.read_model.provider import SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.conditions import IndexedNames, ProviderCondition, ProviderNeed, all_conditions
from placement.search.request import CandidatesRequest

# the index by free amounts is not in the order of ids, so its roots would have to be sorted
_MUCH_RARER: Final = 0.5
"""The index by free amounts is used only if it finds few roots: less than this share of the roots from the
most selective other index.
"""
# each check evaluates all conditions; for more providers, the checks would cost more than they save
_MANY: Final = 64
"""Number of sharing providers above which they are not checked in advance."""
# looking up a name in an index is not worth its time if most trees have the name
_MAX_SELECTIVE: Final = 0.7
"""Above this share of trees a condition is not selective enough to use its index."""


class TreeSharing(NamedTuple):
    """Sharing providers of a tree that are outside of the tree, in ascending order of their ids."""

    providers: Sequence[Provider]
    uuids: tuple[bytes, ...]
    ids: tuple[int, ...]

    @classmethod
    def of_providers(cls, providers: Sequence[Provider]) -> "TreeSharing":
        """Return these sharing providers with their uuids and ids."""
        return cls(
            providers,
            tuple([each.uuid.encode() for each in providers]),
            tuple([each.id for each in providers]),
        )


NOT_SHARED: Final = TreeSharing((), (), ())
"""Stands for no sharing providers."""


class SharingProviders:
    """The sharing providers (trait MISC_SHARES_VIA_AGGREGATE), by aggregate.

    :param needs: keep only sharing providers that possibly serve one of these needs of the request; None
        keeps all.
    """

    def __init__(
        self, snapshot: ModelSnapshot, budget: SearchBudget, needs: Iterable[ProviderNeed] | None = None
    ) -> None:
        self.providers: Collection[int] = snapshot.by_trait.get(SHARES, set())
        #: the budget of the request
        self.budget = budget
        self._snapshot = snapshot
        #: whether sharing providers alone could serve all needs
        self.suffice = bool(self.providers)
        if self.providers and needs is not None:
            # the keys are the amounts and conditions of needs, so that equal needs are looked up once
            serving = [
                self._find_serving(need) for need in {need.serving_terms: need for need in needs}.values()
            ]
            self.suffice = all(serving)
            self.providers = set().union(*serving)
        self._known: dict[frozenset[str], TreeSharing] = {}

    def _find_serving(self, need: ProviderNeed) -> set[int]:
        """Return the sharing providers that possibly serve the need.

        Amounts and conditions are checked only if few sharing providers have the requested classes.
        """
        found = set(self.providers)
        for name, _ in need.resources:
            found &= self._snapshot.by_class.get(name, set())
        if len(found) > _MANY:
            return found
        # spend_anyway() replaces spend(): the search has no results yet that an exceeded budget could return
        self.budget.spend_anyway(len(found))
        return {each for each in found if need.served_by(self._snapshot.providers[each], self._snapshot)}

    @cached_property
    def resource_classes(self) -> set[str]:
        """The resource classes of all sharing providers."""
        return {name for each in self.providers for name in self._snapshot.providers[each].inventories}

    @cached_property
    def _by_aggregate(self) -> dict[str, set[int]]:
        sharing: dict[str, set[int]] = {}
        for provider_id in self.providers:
            self.budget.spend()
            for aggregate in self._snapshot.providers[provider_id].aggregates:
                sharing.setdefault(aggregate, set()).add(provider_id)
        return sharing

    @cached_property
    def _aggregate_names(self) -> frozenset[str]:
        return frozenset(self._by_aggregate)

    @cached_property
    def roots(self) -> set[int]:
        """The roots of the trees that contain sharing providers."""
        return {self._snapshot.providers[provider_id].root_id for provider_id in self.providers}

    def by_root(self) -> dict[int, tuple[str, ...]]:
        """Return for the root of each tree the aggregates that connect the tree with sharing providers."""
        found: dict[int, tuple[str, ...]] = {}
        for aggregate in self._by_aggregate:
            roots = self._snapshot.roots_having(self._snapshot.by_aggregate, aggregate).ids
            self.budget.spend(1 + len(roots) // 16)
            # all tuples have the aggregates in the same order, so that callers can use the tuples as keys:
            # hosts with equal tuples have the same sharing providers
            added: dict[int, tuple[str, ...]] = dict.fromkeys(roots, (aggregate,))
            for root in found.keys() & added.keys():
                added[root] = (*found[root], aggregate)
            found.update(added)
        return found

    def sharing_through(self, aggregates: Iterable[str], without: Iterable[int] = frozenset()) -> TreeSharing:
        """Return the sharing providers in any of these aggregates, except some providers."""
        found = set().union(*[self._by_aggregate[aggregate] for aggregate in aggregates]).difference(without)
        self.budget.spend(len(found))
        return TreeSharing.of_providers([self._snapshot.providers[each] for each in sorted(found)])

    def with_tree(self, root: int) -> TreeSharing:
        """Return the sharing providers of a tree; the caller counts a step for each tree."""
        # the lists are keyed by the common aggregates, so that all trees of one rack share one list
        via = self._aggregate_names & self._snapshot.whole_trees()[root].all_aggregates
        known = self._known.get(via)
        if known is None:
            known = self._known[via] = self.sharing_through(via)
        # providers of the tree itself are left out, so this tree needs a list of its own
        if known.ids and root in self.roots:
            return self.sharing_through(via, self._snapshot.trees[root])
        return known

    def anchor_roots(self, provider_id: int) -> Iterator[int]:
        """Yield the roots of all trees that can use a sharing provider; a root can occur twice."""
        for aggregate in self._snapshot.providers[provider_id].aggregates:
            for member in self._snapshot.by_aggregate[aggregate]:
                self.budget.spend()
                yield self._snapshot.providers[member].root_id


# if a share p of the roots passes, the probability that all draws fail is (1 - p) to this power
_DRAWS: Final = 8
"""Number of random draws after which all roots are filtered at once."""


@dataclass(frozen=True, slots=True)
class RootFilter:
    """The ids of distinct roots, and a filter that a root passes if each selective condition allows the root.

    Iteration yields ids in ascending order; ``ids`` need not be in order.
    """

    ids: Sequence[int] = ()
    selective: Sequence[Sequence[Container[int]]] = ()
    in_order: bool = True

    def __iter__(self) -> Iterator[int]:
        return self._filter_selective(self.ids if self.in_order else sorted(self.ids))

    def only_among(self, ids: Container[int]) -> "RootFilter":
        """Return a filter of the roots that are also in ``ids``."""
        return replace(self, ids=[each for each in self.ids if each in ids])

    def from_anywhere(self, rng: random.Random) -> Iterator[int]:
        """Iterate once over the passing roots, in a circle; each is equally likely to be the first one."""
        # roots are drawn at random until one passes: each passing root has the same probability, and not all
        # roots are filtered
        for _ in range(_DRAWS if self.ids else 0):
            first = rng.randrange(len(self.ids))
            # the other roots follow in order; a random first root is enough to make concurrent claims begin
            # at different hosts
            if any(self._filter_selective((self.ids[first],))):
                return self._filter_selective(_rotate_ids(self.ids, first))
        return begin_anywhere([*self._filter_selective(self.ids)], rng)

    def _filter_selective(self, ids: Iterable[int]) -> Iterator[int]:
        return _in_all(ids, self.selective) if self.selective else iter(ids)


def begin_anywhere(ids: Sequence[int], rng: random.Random) -> Iterator[int]:
    """Return all ids in a circle that begins at a random one, so that concurrent searches spread."""
    return _rotate_ids(ids, rng.randrange(len(ids))) if ids else iter(())


def _rotate_ids(ids: Sequence[int], first: int) -> Iterator[int]:
    """Return all ids, beginning at this position and wrapping around."""
    return map(ids.__getitem__, chain(range(first, len(ids)), range(first)))


def possible_roots(
    snapshot: ModelSnapshot,
    request: CandidatesRequest,
    needs: Iterable[ProviderNeed],
    sharing: SharingProviders,
    *,
    by_free: bool = True,
) -> RootFilter:
    """Return the roots of trees at which a candidate can be anchored.

    The rarest condition or resource is looked up in its index, and all other selective conditions filter
    these roots. The result contains each root that has a candidate, and perhaps also roots that have none.

    :param by_free: whether free amounts count; if not, the result is for any usage.
    """
    needs = tuple(needs)
    # classes of sharing providers are left out, because a tree with too little of such a class can use that
    # of these providers
    scarcest = min(
        (
            (snapshot.free_index(name), amount)
            for need in needs
            for name, amount in need.resources
            if by_free and (not sharing.providers or name not in sharing.resource_classes)
        ),
        key=lambda asked: asked[0].count_roots(asked[1]),
        default=None,
    )
    # counting is a bisection, because the index by free amounts is sorted
    having = scarcest[0].count_roots(scarcest[1]) if scarcest else len(snapshot.trees)
    if having == 0:
        return RootFilter()
    conditions = all_conditions(request, needs)
    named = [
        _anchor_roots(snapshot, members, sharing)
        for each in conditions
        if (members := each.named_providers(snapshot)) is not None
    ]
    if named:
        # in_tree leaves so few trees that reading another index is not worth its time
        return RootFilter(sorted(set.intersection(*named)))
    wanted = [
        _SelectiveNames(snapshot, each, sharing) for each in _indexed_names(snapshot, conditions, needs)
    ]
    # the rarest condition comes first: the search iterates over its roots, and the other conditions filter
    # these roots
    wanted.sort(key=lambda each: each.size)
    if wanted and wanted[0].size == 0:
        return RootFilter()
    rarest = wanted[0].size if wanted else len(snapshot.trees)
    # the index by free amounts is not ordered by root id, so its roots have to be sorted
    by_amount = scarcest is not None and having < rarest * _MUCH_RARER
    found: Sequence[int]
    if scarcest and by_amount:
        found, others = scarcest[0].roots_with(scarcest[1]), wanted
    else:
        found, others = wanted[0].roots() if wanted else snapshot.roots(), wanted[1:]
    # a name that sharing providers have cannot filter trees, because these providers also serve trees without
    # the name
    telling = [
        each.sets for each in others if each.of_roots and each.share(len(snapshot.trees)) < _MAX_SELECTIVE
    ]
    return RootFilter(found, telling, in_order=not by_amount)


def _in_all(roots: Iterable[int], wanted: Sequence[Sequence[Container[int]]]) -> Iterator[int]:
    """Yield the roots that are, for each condition, in at least one of its sets."""
    # nested loops replace any() and all(), because generators would take longer than the lookups
    for root in roots:
        for any_of in wanted:
            for one in any_of:
                if root in one:
                    break
            else:
                break
        else:
            yield root


def _indexed_names(
    snapshot: ModelSnapshot, conditions: Iterable[ProviderCondition], needs: Iterable[ProviderNeed]
) -> Iterator[IndexedNames]:
    """Yield all names of a request that can be looked up in an index, each once."""
    for condition in conditions:
        yield from condition.indexed_names(snapshot)
    for name in dict.fromkeys([name for need in needs for name, _ in need.resources]):
        yield IndexedNames(snapshot.by_class, (name,))


def _anchor_roots(snapshot: ModelSnapshot, members: set[int], sharing: SharingProviders) -> set[int]:
    """Return the roots of all trees at which a candidate with one of these providers can be anchored."""
    sharing.budget.spend(len(members))
    # a provider may serve its own tree, and each tree that it shares with
    roots = {snapshot.providers[provider_id].root_id for provider_id in members}
    for provider_id in members.intersection(sharing.providers):
        roots.update(sharing.anchor_roots(provider_id))
    return roots


class _SelectiveNames:
    """Names in a condition. Each candidate needs a provider with at least one of these names."""

    def __init__(self, snapshot: ModelSnapshot, what: IndexedNames, sharing: SharingProviders) -> None:
        self._snapshot = snapshot
        self._what = what
        self._sharing = sharing
        #: for each name, the ids of all providers that have it
        self.sets = [what.index[name] for name in what.names if name in what.index]
        # the sizes of the sets count only if the code below intersects whole sets
        sharing.budget.spend(sum(map(len, self.sets)) if what.spans_trees else 1)
        each = [snapshot.roots_having(what.index, name) for name in what.names]
        self._roots = [roots for roots in each if roots.ids]
        self._sharing_it = self._who_shares() if sharing.providers and not what.at_root else set()
        self.size = sum([len(roots.ids) for roots in self._roots])
        for provider_id in self._sharing_it:
            aggregates = snapshot.providers[provider_id].aggregates
            self.size += sum([len(snapshot.by_aggregate[aggregate]) for aggregate in aggregates])
        #: whether the root alone decides if a tree has one of the names, not names of other members
        self.of_roots = not self._sharing_it and all(roots.alone for roots in self._roots)

    def _who_shares(self) -> set[int]:
        """Return the sharing providers that have one of the names."""
        sharing, providers = self._sharing, self._snapshot.providers
        found = {each for members in self.sets for each in members.intersection(sharing.providers)}
        if self._what.spans_trees:
            roots = {root for members in self.sets for root in members.intersection(sharing.roots)}
            found.update(
                [each for each in sharing.providers if providers[each].root_id in roots] if roots else ()
            )
        return found

    def share(self, trees: int) -> float:
        """Estimate the share of trees that have at least one of the names, as if names were independent."""
        # the number is only an estimate, because names of one set are often not independent
        return 1 - prod([1 - len(roots.ids) / trees for roots in self._roots])

    def roots(self) -> Sequence[int]:
        """Return the roots of all trees with one of the names, in ascending order."""
        if len(self._roots) == 1 and not self._sharing_it:
            return self._roots[0].ids
        if not self._sharing_it:
            # the ids are merged lazily, because a limit mostly ends the iteration early
            return MergedIds([roots.ids for roots in self._roots])
        found = {root for roots in self._roots for root in roots.ids}
        for provider_id in self._sharing_it:
            found.update(self._sharing.anchor_roots(provider_id))
        return sorted(found)
