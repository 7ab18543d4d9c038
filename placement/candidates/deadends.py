"""Remembers what could not be completed, up to a renaming of like providers.

Hosts have many devices that are all the same. When four of sixteen are full
and the rest of the groups cannot be served, it does not matter which four: a
search that has seen one such dead end need not walk into the others.
"""

from collections.abc import Hashable, Sequence
from typing import Final

from placement.candidates.feasibility import available
from placement.candidates.rules import NeedAssignment
from placement.model.provider import Provider

MAX_DEAD_ENDS: Final = 100_000
"""How many dead ends are remembered below one root, to bound the memory."""


class DeadEnds:
    """The dead ends of one tree."""

    def __init__(self, assignment: NeedAssignment) -> None:
        self._assignment = assignment
        self._known: set[Hashable] = set()
        kinds: dict[Hashable, int] = {}
        self._kind_of_need = [
            kinds.setdefault(self._need_signature(index), len(kinds))
            for index in range(len(assignment.options))
        ]
        serves: dict[int, list[int]] = {}
        providers: dict[int, Provider] = {}
        for index, found in enumerate(assignment.options):
            for provider in found:
                providers[provider.id] = provider
                serves.setdefault(provider.id, []).append(index)
        members = assignment.rules.snapshot.trees
        everyone = assignment.rules.snapshot.providers
        roots = {provider.root_id for provider in providers.values()}
        self._parents = {everyone[each].parent_id for root in roots for each in members[root]}
        kinds = {}
        self._kind_of_provider = {
            provider_id: kinds.setdefault(self._provider_signature(provider, serves[provider_id]), len(kinds))
            for provider_id, provider in providers.items()
        }

    def add(self) -> None:
        """The assignment as it is cannot be completed."""
        if len(self._known) < MAX_DEAD_ENDS:
            self._known.add(self._state())

    def reached(self) -> bool:
        """Whether the assignment is like one that could not be completed."""
        return self._state() in self._known

    def _state(self) -> Hashable:
        """What is chosen, as kinds of needs and providers.

        As needs are served in a fixed order, this also says which are left.
        """
        served: dict[int, list[int]] = {}
        for kind, at in zip(self._kind_of_need, self._assignment.chosen, strict=True):
            if at is not None:
                served.setdefault(at.id, []).append(kind)
        return tuple(
            sorted(
                (self._kind_of_provider[provider_id], *sorted(those)) for provider_id, those in served.items()
            )
        )

    def _need_signature(self, index: int) -> Hashable:
        rules = self._assignment.rules
        need = rules.needs[index]
        return (
            need.resources,
            need.unsuffixed,
            tuple(provider.id for provider in self._assignment.options[index]),
            tuple(tuple(rule) for rule in rules.subtrees_of[index]),
        )

    def _provider_signature(self, provider: Provider, serves: Sequence[int]) -> Hashable:
        """Two providers of the same signature can be swapped in any assignment.

        They are leaves below the same parent, or have no relatives at all.
        """
        rules = self._assignment.rules
        if provider.id in self._parents:
            return provider.id
        classes = sorted({name for index in serves for name, _ in rules.needs[index].resources})
        return (
            provider.parent_id,
            tuple(serves),
            tuple(available(provider, name) for name in classes),
            tuple(not provider.traits.isdisjoint(traits) for traits in rules.unsuffixed_traits),
        )
