"""All ways to serve a request from one tree and what shares with it.

A depth-first search with backtracking over the needs, one provider for each,
that leaves a branch as soon as it cannot be completed: capacity and the rules
on groups are checked with every choice, not at the end. Nothing here builds a
product of all options; the caller takes as many results as it wants.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from placement.candidates.feasibility import fits_at_all
from placement.candidates.needs import Need
from placement.candidates.request import CandidatesRequest
from placement.model.world import Provider, World

Choice = tuple[Provider, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to serve a request.

    ``root`` is the id of the root of the anchoring tree, ``resources`` the
    amounts by resource class by provider id, ``mappings`` the ids of the
    providers that serve each suffix, in the order of the request.
    """

    root: int
    resources: Mapping[int, Mapping[str, int]]
    mappings: Mapping[str, tuple[int, ...]]


class Combiner:
    """Knows the rules of one request; :meth:`combine` applies them to one tree."""

    def __init__(self, world: World, request: CandidatesRequest, needs: Sequence[Need]) -> None:
        self._world = world
        self._needs = needs
        self._isolate = request.group_policy == "isolate"
        self._nested = request.nested
        rules = [
            [index for index, need in enumerate(needs) if need.suffix in suffixes]
            for suffixes in request.same_subtrees
        ]
        #: of each need the same_subtree rules that it is part of
        self._subtrees_of = [[rule for rule in rules if index in rule] for index in range(len(needs))]
        #: what the providers of the group without a suffix must have together
        self._together = next((group.required for group in request.groups if group.suffix == ""), ())

    def combine(
        self, root: int, options: Sequence[Sequence[Provider]], rng: random.Random | None = None
    ) -> Iterator[Candidate]:
        """Every candidate of a tree, each once, given the providers that serve each need.

        With ``rng`` the candidates come in random order.
        """
        if rng is not None:
            options = [rng.sample(providers, len(providers)) for providers in options]
        if not fits_at_all(self._needs, options, self._isolate):
            return
        for choice in self._choices(options):
            yield self._candidate(root, choice)

    def _choices(self, options: Sequence[Sequence[Provider]]) -> Iterator[list[Provider]]:
        """Depth first, without recursion as requests may have hundreds of groups."""
        needs = self._needs
        order = self._order(options)
        chosen: list[Provider | None] = [None] * len(needs)
        taken: dict[tuple[int, str], int] = {}
        position = [0] * len(order)
        depth = 0
        careful = False
        while depth >= 0:
            if depth == len(order):
                yield [provider for provider in chosen if provider is not None]
                depth -= 1
                continue
            index = order[depth]
            self._release(index, chosen, taken)
            providers = options[index]
            while position[depth] < len(providers):
                provider = providers[position[depth]]
                position[depth] += 1
                if self._allowed(index, provider, chosen, taken, options):
                    self._take(index, provider, chosen, taken)
                    if careful and not self._can_complete(order[depth + 1 :], chosen, taken, options):
                        self._release(index, chosen, taken)
                        continue
                    break
            if chosen[index] is not None:
                depth += 1
            else:
                careful = True  # a dead end was reached: look ahead from now on
                position[depth] = 0
                depth -= 1

    def _order(self, options: Sequence[Sequence[Provider]]) -> list[int]:
        """Needs that decide on traits first, then those with few options."""

        def key(index: int) -> tuple[bool, int]:
            decides = self._needs[index].collective and any(
                not provider.traits.isdisjoint(traits)
                for traits in self._together
                for provider in options[index]
            )
            return (not decides, len(options[index]))

        return sorted(range(len(options)), key=key)

    def _take(
        self, index: int, provider: Provider, chosen: list[Provider | None], taken: dict[tuple[int, str], int]
    ) -> None:
        chosen[index] = provider
        for name, amount in self._needs[index].resources:
            key = (provider.id, name)
            taken[key] = taken.get(key, 0) + amount

    def _release(self, index: int, chosen: list[Provider | None], taken: dict[tuple[int, str], int]) -> None:
        provider = chosen[index]
        if provider is None:
            return
        chosen[index] = None
        for name, amount in self._needs[index].resources:
            taken[provider.id, name] -= amount

    def _allowed(
        self,
        index: int,
        provider: Provider,
        chosen: Sequence[Provider | None],
        taken: Mapping[tuple[int, str], int],
        options: Sequence[Sequence[Provider]],
    ) -> bool:
        """Whether the rules let the provider serve this need beside what is chosen already."""
        need = self._needs[index]
        for name, amount in need.resources:
            before = taken.get((provider.id, name), 0)
            if before and not _accepts(provider, name, before + amount):
                return False
        if self._isolate and not need.collective:
            for other, at in zip(self._needs, chosen, strict=True):
                if at is not None and at.id == provider.id and not other.collective:
                    return False
        if not self._nested and any(
            at is not None and at.root_id == provider.root_id and at.id != provider.id for at in chosen
        ):
            return False
        if need.collective and self._together and not self._traits_in_reach(index, provider, chosen, options):
            return False
        return all(
            self._subtree_in_reach(rule, index, provider, chosen, options)
            for rule in self._subtrees_of[index]
        )

    def _traits_in_reach(
        self,
        index: int,
        provider: Provider,
        chosen: Sequence[Provider | None],
        options: Sequence[Sequence[Provider]],
    ) -> bool:
        """Whether each set of required traits is met by the group or still can be."""
        for traits in self._together:
            if not provider.traits.isdisjoint(traits):
                continue
            if not any(
                not at.traits.isdisjoint(traits)
                for other, need in enumerate(self._needs)
                if need.collective and other != index
                for at in _possible(other, chosen, options)
            ):
                return False
        return True

    def _subtree_in_reach(
        self,
        rule: Sequence[int],
        index: int,
        provider: Provider,
        chosen: Sequence[Provider | None],
        options: Sequence[Sequence[Provider]],
    ) -> bool:
        """Whether one provider of the rule is, or can become, an ancestor of all the others."""
        above = self._lineage(provider)
        for other in rule:
            at = chosen[other]
            if at is not None:
                above &= self._lineage(at)
        return provider.id in above or any(
            at.id in above for other in rule if other != index for at in _possible(other, chosen, options)
        )

    def _lineage(self, provider: Provider) -> set[int]:
        """The ids of the provider and all its ancestors."""
        found = {provider.id}
        parent = provider.parent_id
        while parent is not None:
            found.add(parent)
            parent = self._world.providers[parent].parent_id
        return found

    def _can_complete(
        self,
        rest: Sequence[int],
        chosen: Sequence[Provider | None],
        taken: Mapping[tuple[int, str], int],
        options: Sequence[Sequence[Provider]],
    ) -> bool:
        """Whether the needs that are left have, each and together, a place left."""
        left = [
            [at for at in options[index] if self._allowed(index, at, chosen, taken, options)]
            for index in rest
        ]
        return all(left) and fits_at_all([self._needs[index] for index in rest], left, self._isolate, taken)

    def _candidate(self, root: int, choice: Sequence[Provider]) -> Candidate:
        resources: dict[int, dict[str, int]] = {}
        mappings: dict[str, tuple[int, ...]] = {}
        for need, provider in zip(self._needs, choice, strict=True):
            served = mappings.get(need.suffix, ())
            if provider.id not in served:
                mappings[need.suffix] = (*served, provider.id)
            if need.resources:
                amounts = resources.setdefault(provider.id, {})
                for name, amount in need.resources:
                    amounts[name] = amounts.get(name, 0) + amount
        return Candidate(root, resources, mappings)


def _possible(
    index: int, chosen: Sequence[Provider | None], options: Sequence[Sequence[Provider]]
) -> Sequence[Provider]:
    """The provider chosen for a need, or all that may be."""
    at = chosen[index]
    return options[index] if at is None else (at,)


def _accepts(provider: Provider, name: str, total: int) -> bool:
    """Whether the sum of what several groups take from a provider is within its bounds."""
    inventory = provider.inventories[name]
    return total <= inventory.max_unit and provider.used.get(name, 0) + total <= inventory.capacity
