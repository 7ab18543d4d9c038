"""Candidates as patterns that like trees have in common, and their order within a root.

Nova takes the first candidate of the host that it has chosen, so candidates that keep together come first.
The order changes neither which candidates there are nor how many of each root.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

from placement.read_model.trees import ProviderSet, TreeStructure
from placement.search.budget import SearchBudget
from placement.search.rules import RequestRules


class CandidatePattern(NamedTuple):
    """One way to serve a request, as the positions of providers in a set of them.

    ``resources`` are the amounts by resource class by position, ``mappings`` the
    positions that serve each suffix, in the order of the request.
    """

    resources: Mapping[int, Mapping[str, int]]
    mappings: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, rules: RequestRules, chosen: Sequence[int]) -> CandidatePattern:
        """The pattern that serves each need of the rules at the position chosen for it."""
        resources: dict[int, Mapping[str, int]] = {}
        mappings: dict[str, tuple[int, ...]] = {}
        for need, amounts, at in zip(rules.needs, rules.amounts, chosen, strict=True):
            suffix = need.suffix
            served = mappings.get(suffix)
            if served is None:
                mappings[suffix] = (at,)
            elif at not in served:
                mappings[suffix] = (*served, at)
            if amounts:
                before = resources.get(at)
                resources[at] = amounts if before is None else rules.sum_of(before, amounts)
        return cls(resources, mappings)


class PatternBatch(tuple[CandidatePattern, ...]):
    """Patterns of candidates that follow one another; equal only to itself.

    Like trees have the same batch, so that what is made of one is made once.
    """

    __slots__ = ()
    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


Offer = tuple[ProviderSet, PatternBatch]
"""Such candidates of one set of providers."""


class AllocationCandidate(NamedTuple):
    """One way to serve a request: a pattern, and the set of providers that follow it."""

    provider_set: ProviderSet
    pattern: CandidatePattern

    @property
    def resources(self) -> dict[int, Mapping[str, int]]:
        """The amounts by resource class by provider id."""
        members = self.provider_set.members
        return {members[at].id: amounts for at, amounts in self.pattern.resources.items()}

    @property
    def mappings(self) -> dict[str, tuple[int, ...]]:
        """The ids of the providers that serve each suffix, in the order of the request."""
        members = self.provider_set.members
        served = self.pattern.mappings.items()
        return {suffix: tuple(members[at].id for at in positions) for suffix, positions in served}


def candidates_of(offers: Iterable[Offer]) -> Iterator[AllocationCandidate]:
    """The candidates one by one."""
    return (
        AllocationCandidate(provider_set, pattern)
        for provider_set, patterns in offers
        for pattern in patterns
    )


_Branches = tuple[int | None, ...]


def topology_first(offers: Sequence[Offer], budget: SearchBudget | None = None) -> list[Offer]:
    """The same candidates; where those of one root stood, those come first that cross fewest branches.

    A branch is a child of the root with all that is below it, such as a NUMA node with its caches and
    devices. Of as many branches fewer providers come first; else the order stays as it is. Like batches
    are ordered once, so that what is made of one is still made once.

    :param budget: whose search it was: where there is much to put in order others have their turn.
    """
    budget = budget or SearchBudget()
    budget.spend_anyway(len(offers) // 16)
    if len({provider_set for provider_set, _ in offers}) < len(offers):
        return _of_several_batches(offers, budget)
    where = {batch: provider_set for provider_set, batch in offers if len(batch) > 1}
    if len({provider_set.shape for provider_set, _ in offers}) > 1:
        return _of_several_shapes(offers, budget)
    ordered = {batch: _order_batches(branches_of(each), (batch,), budget)[0] for batch, each in where.items()}
    return [(each, ordered.get(batch, batch)) for each, batch in offers] if ordered else [*offers]


def _of_several_shapes(offers: Iterable[Offer], budget: SearchBudget) -> list[Offer]:
    of_shapes: dict[tuple[PatternBatch, TreeStructure], PatternBatch] = {}
    of_branches: dict[tuple[PatternBatch, _Branches], PatternBatch] = {}
    found = []
    for offer in offers:
        provider_set, batch = offer
        if len(batch) > 1:
            shape = provider_set.shape
            ordered = of_shapes.get((batch, shape))
            if ordered is None:
                branches = branches_of(provider_set)
                ordered = of_branches.get((batch, branches))
                if ordered is None:
                    (ordered,) = _order_batches(branches, (batch,), budget)
                    of_branches[batch, branches] = ordered
                of_shapes[batch, shape] = ordered
            if ordered is not batch:
                offer = (provider_set, ordered)
        found.append(offer)
    return found


def _of_several_batches(offers: Sequence[Offer], budget: SearchBudget) -> list[Offer]:
    of_root: dict[ProviderSet, list[PatternBatch]] = {}
    for provider_set, batch in offers:
        of_root.setdefault(provider_set, []).append(batch)
    known: dict[tuple[tuple[PatternBatch, ...], _Branches], Sequence[PatternBatch]] = {}
    left: dict[ProviderSet, Iterator[PatternBatch]] = {}
    for provider_set, batches in of_root.items():
        if len(batches) > 1 or len(batches[0]) > 1:
            key = (tuple(batches), branches_of(provider_set))
            if key not in known:
                known[key] = _order_batches(key[1], key[0], budget)
            left[provider_set] = iter(known[key])
    return [(each, next(left[each]) if each in left else batch) for each, batch in offers]


def _order_batches(
    branches: _Branches, batches: Sequence[PatternBatch], budget: SearchBudget
) -> Sequence[PatternBatch]:
    """Batches as large as these, with the patterns of all of them in order."""
    branch = branches.__getitem__
    #: by how many branches something is taken of, and how many providers
    by_spread: dict[tuple[int, int], list[CandidatePattern]] = {}
    last, in_order = (0, 0), True
    for batch in batches:
        for pattern in batch:
            used = pattern.resources
            found = {*map(branch, used)}
            spread = (len(found) - (None in found), len(used))
            in_order, last = in_order and last <= spread, spread
            by_spread.setdefault(spread, []).append(pattern)
        budget.spend_anyway(len(batch))
    if in_order:
        return batches
    rest = chain.from_iterable([by_spread[spread] for spread in sorted(by_spread)])
    return [PatternBatch(islice(rest, len(batch))) for batch in batches]


def branches_of(provider_set: ProviderSet) -> _Branches:
    """The topmost provider of the branch, by position; None for the root and for sharing providers."""
    shared = len(provider_set.members) - provider_set.own
    branches = provider_set.shape.branches
    return branches + (None,) * shared if shared else branches
