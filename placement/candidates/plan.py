"""How a request is served by trees of one kind: searched once, followed by all of them.

A tree differs from others of its kind in what is free. Only what matters to the
request is compared: which of its providers still have enough for what may be asked
of them, and, of classes that several parts of the request ask for, how much there
is, up to the sum of these parts. Trees alike in that have candidates of the same
patterns.
"""

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain, tee
from operator import itemgetter
from typing import Any

from placement.candidates.combine import combine
from placement.candidates.needs import Need
from placement.candidates.pattern import Pattern
from placement.candidates.rules import Rules
from placement.model.trees import Kind, Place, Tree
from placement.model.world import Provider

#: of a provider that may serve a need: its position, and slots and amounts of what it has to have free
_Option = tuple[int, tuple[tuple[int, int], ...]]


class Plan:
    """What a request may do with trees of one kind, and what it did so far.

    :param tree: any of these trees; traits, aggregates and tree that the request asks
        for have to be the same in all.
    :param shared: the providers that share with all of them.
    """

    def __init__(self, rules: Rules, tree: Tree, shared: Sequence[Provider]) -> None:
        self._rules = rules
        outside = list(enumerate(shared, start=len(tree.members)))
        self._options = [
            [*_own_options(rules, need, tree), *_shared_options(rules, need, outside)] for need in rules.needs
        ]
        #: whether a tree with enough free would have candidates, as far as each need alone tells
        self.hopeful = all(self._options)
        demands = set(chain.from_iterable(free for found in self._options for _, free in found))
        self._contested = _contested(rules.needs, tree.kind, {slot for slot, _ in demands})
        self._relevant = _picker(sorted({slot for slot, _ in demands}))
        self._by_relevant: dict[Hashable, Iterator[Pattern]] = {}
        self._by_likeness: dict[Hashable, Iterator[Pattern]] = {}

    def patterns(
        self, place: Place, free: tuple[int, ...], rng: random.Random | None = None
    ) -> Iterator[Pattern]:
        """The patterns of all candidates of a tree, found as they are asked for.

        :param place: the tree and what shares with it, ``free`` as :attr:`Tree.free`.
        :param rng: for a random order of their own.
        """
        if rng is not None:
            options = self._having_enough(free)
            return self._combined(place, options, rng) if all(options) else iter(())
        relevant = self._relevant(free)
        known = self._by_relevant.get(relevant)
        if known is None:
            known = self._by_relevant[relevant] = self._alike(place, free)
        return tee(known, 2)[1]

    def _alike(self, place: Place, free: tuple[int, ...]) -> Iterator[Pattern]:
        """The patterns from the first on, never advanced themselves."""
        options = self._having_enough(free)
        if not all(options):
            return _NONE
        likeness = (
            *map(tuple, options),
            *[total if free[slot] > total else free[slot] for slot, total in self._contested],
        )
        known = self._by_likeness.get(likeness)
        if known is None:
            known = self._by_likeness[likeness] = tee(self._combined(place, options), 1)[0]
        return known

    def _having_enough(self, free: tuple[int, ...]) -> list[list[int]]:
        """For each need the positions of those that can serve it now."""
        return [
            [at for at, demands in found if all(free[slot] >= amount for slot, amount in demands)]
            for found in self._options
        ]

    def _combined(
        self, place: Place, options: Sequence[Sequence[int]], rng: random.Random | None = None
    ) -> Iterator[Pattern]:
        members = place.members
        positions = {provider.id: at for at, provider in enumerate(members)}
        for chosen in combine(self._rules, [[members[at] for at in found] for found in options], rng):
            yield Pattern.of(self._rules, [positions[provider.id] for provider in chosen])


_NONE: Iterator[Pattern] = tee((), 1)[0]


def _own_options(rules: Rules, need: Need, tree: Tree) -> Iterator[_Option]:
    kind = tree.kind
    for at, provider in enumerate(tree.members):
        if need.suits(provider, rules.world):
            demands = tuple([(kind.slots[at, name], amount) for name, amount in need.resources])
            if all(amount <= kind.capacities[slot] for slot, amount in demands):
                yield at, demands


def _shared_options(rules: Rules, need: Need, outside: Sequence[tuple[int, Provider]]) -> Iterator[_Option]:
    return ((at, ()) for at, provider in outside if need.served_by(provider, rules.world))


def _contested(needs: Sequence[Need], kind: Kind, slots: set[int]) -> list[tuple[int, int]]:
    """The slots of classes that several needs ask for, each with the sum that they ask for."""
    amounts: dict[str, list[int]] = {}
    for need in needs:
        for name, amount in need.resources:
            amounts.setdefault(name, []).append(amount)
    return [
        (slot, sum(amounts[name]))
        for (_, name), slot in kind.slots.items()
        if slot in slots and len(amounts[name]) > 1
    ]


def _picker(slots: Sequence[int]) -> Callable[[tuple[int, ...]], Any]:
    return itemgetter(*slots) if slots else lambda _: ()
