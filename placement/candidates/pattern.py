"""What a search finds: candidates, as what those of like trees have in common."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from placement.candidates.rules import RequestRules
from placement.model.trees import ProviderSet


class CandidatePattern(NamedTuple):
    """One way to serve a request, as the positions of providers in a set of them.

    ``resources`` are the amounts by resource class by position, ``mappings`` the
    positions that serve each suffix, in the order of the request.
    """

    resources: Mapping[int, Mapping[str, int]]
    mappings: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, rules: RequestRules, chosen: Sequence[int]) -> "CandidatePattern":
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
