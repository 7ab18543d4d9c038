"""Candidates as patterns of positions that equivalent trees share, and the order of the candidates of a root.

Nova takes the first candidate of the host that it has selected. So the order puts candidates first that cross
few branches of a tree. Ordering neither adds nor removes candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Final, NamedTuple

from placement.read_model.trees import ProviderSet, TreePart
from placement.search.budget import SearchBudget
from placement.search.rules import RequestRules


@dataclass(frozen=True, eq=False, slots=True)
class PatternForm:
    """The part of a pattern that shows which needs have the same provider, without the providers.

    Few forms exist, so patterns share form objects, and an answer renders each form once. In a form, the
    index of the first need at a provider stands for this provider. ``resources`` is a dict from providers to
    their amounts by resource class. ``mappings`` has for each suffix the providers of its group, in the order
    of the request. ``all_give`` tells whether each provider gives an amount.
    """

    resources: Mapping[int, Mapping[str, int]]
    mappings: Mapping[str, tuple[int, ...]]
    all_give: bool

    @classmethod
    def from_firsts(cls, rules: RequestRules, firsts: Sequence[int]) -> PatternForm:
        """Return the form in which the need with index i has the same provider as the need ``firsts[i]``."""
        resources: dict[int, Mapping[str, int]] = {}
        mappings: dict[str, tuple[int, ...]] = {}
        for need, amounts, at in zip(rules.needs, rules.amounts, firsts, strict=True):
            suffix = need.suffix
            # the providers are a tuple instead of a set, because answers list the providers of a group in the
            # order of the request
            served = mappings.get(suffix)
            if served is None:
                mappings[suffix] = (at,)
            elif at not in served:
                mappings[suffix] = (*served, at)
            # a group named by same_subtree may ask for no resources, and only state conditions on its
            # provider
            if amounts:
                before = resources.get(at, {})
                more = {name: before.get(name, 0) + amount for name, amount in amounts.items()}
                resources[at] = {**before, **more}
        return cls(resources, mappings, resources.keys() == {*firsts})


class CandidatePattern(NamedTuple):
    """One way to serve a request: the provider at ``positions[i]`` of a provider set serves need i."""

    positions: tuple[int, ...]
    form: PatternForm

    @property
    def resources(self) -> dict[int, Mapping[str, int]]:
        """A dict from each used position to its amounts by resource class."""
        return {self.positions[first]: amounts for first, amounts in self.form.resources.items()}

    @property
    def mappings(self) -> dict[str, tuple[int, ...]]:
        """For each suffix, the positions of the providers of its group, in the order of the request."""
        served = self.form.mappings.items()
        return {suffix: tuple([self.positions[first] for first in firsts]) for suffix, firsts in served}

    @property
    def giving_positions(self) -> Iterable[int]:
        """The positions of providers from which an amount is taken; a position can occur twice."""
        return self.positions if self.form.all_give else self.resources


class PatternBatch(tuple[CandidatePattern, ...]):
    """Consecutive patterns of candidates; equivalent trees share the batch, so it is rendered only once."""

    __slots__ = ()
    # batches are keys of dictionaries, and hashing their patterns would cost more than the cache saves
    __eq__ = object.__eq__
    # overrides the method of tuple, which would compare the patterns
    __ne__ = object.__ne__
    __hash__ = object.__hash__


class OptionSet(ProviderSet):
    """The providers of a provider set that are options of a request; unlike trees can share its patterns."""

    __slots__ = ("part", "whole")

    def __init__(self, whole: ProviderSet, part: TreePart) -> None:
        self.whole = whole
        self.part = part
        self.members = part.pick(whole.members)
        self.shape = whole.shape

    @property
    def own_count(self) -> int:
        """The number of these providers that belong to the tree."""
        return self.part.own_count

    @property
    def uuids(self) -> tuple[bytes, ...]:
        """The uuids of these providers."""
        return self.part.pick(self.whole.uuids)

    @property
    def own_lineages(self) -> Sequence[tuple[int, ...]]:
        """For each of these providers in the tree, the positions of the provider and its ancestors."""
        return self.part.lineages

    @property
    def member_branches(self) -> tuple[int | None, ...]:
        """For each position, a number of its branch; None for root and sharing providers."""
        return self.part.branches


class UnusedPatterns(NamedTuple):
    """All patterns that trees of one structure would have without any usage.

    Each pool in ``pools`` has the positions of equal devices, and the amount that a need takes from one
    device. If several patterns differ only in devices of one pool, ``patterns`` has only one of these
    patterns.
    """

    patterns: PatternBatch
    pools: tuple[tuple[tuple[int, ...], int], ...] = ()


Offer = tuple[ProviderSet, PatternBatch]
"""A provider set (a tree with its sharing providers), and patterns of its candidates."""


class AllocationCandidate(NamedTuple):
    """One way to serve a request: a pattern of positions, and the provider set in which the positions are."""

    provider_set: ProviderSet
    pattern: CandidatePattern

    @property
    def resources(self) -> dict[int, Mapping[str, int]]:
        """A dict from the id of each provider to its amounts by resource class."""
        members = self.provider_set.members
        return {members[at].id: amounts for at, amounts in self.pattern.resources.items()}

    @property
    def mappings(self) -> dict[str, tuple[int, ...]]:
        """The ids of the providers that serve the group of each suffix, in the order of the request."""
        members = self.provider_set.members
        served = self.pattern.mappings.items()
        return {suffix: tuple(members[at].id for at in positions) for suffix, positions in served}


def candidates_of(offers: Iterable[Offer]) -> Iterator[AllocationCandidate]:
    """Yield the candidates of all batches, one at a time."""
    return (
        AllocationCandidate(provider_set, pattern)
        for provider_set, patterns in offers
        for pattern in patterns
    )


_Branches = tuple[int | None, ...]
_BITS: Final = 32
"""Number of bits for the number of providers of a candidate."""


def topology_first(offers: Sequence[Offer], budget: SearchBudget | None = None) -> list[Offer]:
    """Reorder the candidates of each root: candidates that cross the fewest branches come first.

    A branch is a child of the root with all descendants of this child, such as a NUMA node with its caches
    and devices. Of candidates that cross equally many branches, those with the fewest providers come first.
    Candidates that are equal in both respects keep their order. Each batch is ordered once, so that
    equivalent trees still share one batch.

    :param budget: the budget of the search. The pauses of the budget let other threads run during a long
        answer.
    """
    budget = budget or SearchBudget()
    budget.spend_anyway(len(offers) // 16)
    # if a provider set has several batches, they are ordered together; below, each set has exactly one batch
    if len({provider_set for provider_set, _ in offers}) < len(offers):
        return _of_several_batches(offers, budget)
    #: unlike trees with the same branches get the same batch, so that rendering makes one template for them
    known: dict[tuple[PatternBatch, _Branches], PatternBatch] = {}
    found = []
    for offer in offers:
        provider_set, batch = offer
        # only batches of several patterns need an order
        if len(batch) > 1:
            key = batch, provider_set.member_branches
            ordered = known.get(key)
            if ordered is None:
                (ordered,) = _order_batches(key[1], (batch,), budget)
                known[key] = ordered
            # an unchanged order keeps the offer object, which saves making a tuple
            if ordered is not batch:
                offer = provider_set, ordered
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
            key = (tuple(batches), provider_set.member_branches)
            if key not in known:
                known[key] = _order_batches(key[1], key[0], budget)
            left[provider_set] = iter(known[key])
    return [(each, next(left[each]) if each in left else batch) for each, batch in offers]


def _order_batches(
    branches: _Branches, batches: Sequence[PatternBatch], budget: SearchBudget
) -> Sequence[PatternBatch]:
    """Return the patterns of all batches in order, divided into batches of the same lengths as before."""
    branch = branches.__getitem__
    patterns = [*chain.from_iterable(batches)]
    budget.spend_anyway(len(patterns))
    spreads = []
    for positions, form in patterns:
        found = {*map(branch, positions if form.all_give else [positions[at] for at in form.resources])}
        # The value None stands for the root and for sharing providers, which are not branches. One number has
        # both counts, because numbers are compared faster than tuples
        spreads.append((len(found) - (None in found) << _BITS) + len(form.resources))
    # most batches are in order already; then equivalent trees keep the batch that the search has cached
    if spreads == sorted(spreads):
        return batches
    rest = iter([patterns[at] for at in sorted(range(len(patterns)), key=spreads.__getitem__)])
    return [PatternBatch(islice(rest, len(batch))) for batch in batches]
