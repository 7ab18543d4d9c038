"""The ways in which a flavor may be served at a host."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from placement.model.provider import Provider
from placement.model.snapshot import ModelSnapshot
from placement.model.trees import HostTree, TreeStructure
from placement.search.budget import SearchBudget
from placement.search.candidate_search import when_empty
from placement.search.candidates import CandidatePattern, PatternBatch
from placement.search.request import CandidatesRequest

Slot = Any
"""Of a host's own inventories the slot in its tree; of what it shares, provider id and class."""

Way = tuple[tuple[Slot, int], ...]
"""Slots and amounts, in the order of the slots: what one guest takes."""


@dataclass(eq=False, slots=True)
class FlavorFootprints:
    """All ways of a flavor at hosts of one shape, none of them worse than another.

    ``classes`` are the resource classes of their slots. Ways are ``coupled`` where what
    shares with the host serves a part of one of them.
    """

    ways: tuple[Way, ...]
    classes: Mapping[Slot, str]
    coupled: bool

    def without(self, names: Collection[str], budget: SearchBudget) -> "FlavorFootprints":
        """The ways where nothing of some classes is asked for."""
        classes = {slot: name for slot, name in self.classes.items() if name not in names}
        left = {tuple([part for part in way if part[0] in classes]) for way in self.ways}
        return FlavorFootprints(tuple(_best(left - {()}, budget)), classes, self.coupled)

    def within(self, capacities: Mapping[Slot, int] | Sequence[int]) -> tuple[Way, ...]:
        """Those for which there would be enough if nothing were used."""
        return tuple([way for way in self.ways if all(capacities[slot] >= part for slot, part in way)])

    def only(self, ways: tuple[Way, ...]) -> "FlavorFootprints":
        """Some of the ways."""
        return FlavorFootprints(
            ways, {slot: self.classes[slot] for way in ways for slot, _ in way}, self.coupled
        )


NO_WAYS: Final = FlavorFootprints((), {}, coupled=False)


class FootprintFinder:
    """Finds the ways of a flavor, once for hosts that are alike."""

    def __init__(self, snapshot: ModelSnapshot, request: CandidatesRequest, budget: SearchBudget) -> None:
        self._budget = budget
        self._patterns: Callable[[HostTree, Sequence[Provider]], PatternBatch] = when_empty(
            snapshot, request, budget
        )
        self._found: dict[tuple[PatternBatch, TreeStructure], FlavorFootprints] = {}

    def at(self, tree: HostTree, shared: Sequence[Provider]) -> FlavorFootprints:
        """The ways at a host, given what shares with it.

        :raises placement.search.budget.BudgetExhausted: it takes too long.
        """
        patterns = self._patterns(tree, shared)
        if not patterns:
            return NO_WAYS
        key = (patterns, tree.kind.shape)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._ways(patterns, tree, shared)
        return found

    def _ways(self, patterns: PatternBatch, tree: HostTree, shared: Sequence[Provider]) -> FlavorFootprints:
        slots = tree.kind.shape.slots
        classes: dict[Slot, str] = {}

        def taken(pattern: CandidatePattern) -> Way:
            self._budget.spend(1 + len(pattern.resources))
            way: dict[Any, int] = {}
            for at, amounts in pattern.resources.items():
                for name, amount in amounts.items():
                    slot: Slot = slots[at, name] if at < tree.own else (shared[at - tree.own].id, name)
                    classes[slot] = name
                    way[slot] = amount
            return tuple(sorted(way.items(), key=_order))

        found = {taken(pattern) for pattern in patterns}
        coupled = any(
            at >= tree.own for pattern in patterns for served in pattern.mappings.values() for at in served
        )
        return FlavorFootprints(tuple(_best(found, self._budget)), classes, coupled)


def _order(part: tuple[Any, int]) -> tuple[bool, Any]:
    return isinstance(part[0], tuple), part[0]


def _best(ways: Iterable[Way], budget: SearchBudget) -> list[Way]:
    """Those than which none is better."""
    kept: list[dict[Any, int]] = []
    for way in sorted(map(dict, ways), key=lambda way: (len(way), sum(way.values()))):
        budget.spend(1 + len(kept))
        if not any(all(way.get(slot, 0) >= amount for slot, amount in other.items()) for other in kept):
            kept.append(way)
    return sorted([tuple(way.items()) for way in kept], key=repr)
