"""How a request is served by trees that differ only in what is free: searched once, followed by all.

Of what is free only what matters to the request is compared: which providers still
have enough for what may be asked of them, and, of classes that several parts of the
request ask for, how much there is, up to the sum of these parts. Trees alike in that
have candidates of the same patterns.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, tee
from operator import itemgetter
from typing import Any

from placement.candidates.budget import Exhausted
from placement.candidates.combine import combine
from placement.candidates.needs import Need
from placement.candidates.pattern import Pattern, PatternBatch
from placement.candidates.rules import Rules
from placement.model.provider import Provider
from placement.model.trees import ProviderSet, Tree

_Option = tuple[int, tuple[tuple[int, int], ...]]
"""Of a provider that may serve a need: its position, and slots and amounts of what it has to have free."""


class Plan:
    """What a request may do with trees of one shape, and what it did so far.

    :param tree: any of these trees; traits, aggregates and tree that the request asks
        for have to be the same in all.
    :param shared: the providers that share with all of them.
    :param batch: how many patterns are looked for at once.
    """

    def __init__(self, rules: Rules, tree: Tree, shared: Sequence[Provider], batch: int) -> None:
        self._rules = rules
        self._batch = batch
        self._options: list[list[_Option]] = []
        for need, like in zip(rules.needs, rules.first_alike, strict=True):
            if like < len(self._options):
                self._options.append(self._options[like])
            else:
                options = [
                    *_own_options(rules, need, tree),
                    *_shared_options(rules, need, shared, len(tree.members)),
                ]
                self._options.append(options)
                if not options:
                    break
        #: whether a tree with enough free would have candidates, as far as each need alone tells
        self.hopeful = len(self._options) == len(rules.needs) and all(self._options)
        #: what a look at all of them costs
        self._steps = sum(map(len, self._options))
        #: the needs, those first that the last trees could not serve
        self._hardest_first = list(range(len(self._options)))
        #: whether nothing of the trees themselves is of use
        self.only_shared = all(at >= len(tree.members) for options in self._options for at, _ in options)
        slots = sorted({slot for options in self._options for _, demands in options for slot, _ in demands})
        self._relevant = _picker(slots)
        self._by_relevant: dict[Hashable, Iterable[PatternBatch]] = {}
        self._by_likeness: dict[Hashable, Iterable[PatternBatch]] = {}
        #: slots of classes that several needs ask for, and the sum of what they ask for
        self._contested = [
            (slot, asked)
            for name, asked in rules.contested.items()
            for _, slot in tree.kind.shape.having.get(name, ())
            if slot in slots
        ]

    def batches(
        self, provider_set: ProviderSet, free: tuple[int, ...], rng: random.Random | None = None
    ) -> Iterable[PatternBatch]:
        """The patterns of all candidates of a tree, found as they are asked for.

        An empty batch says that the search rests: other trees may have more to give.

        :param provider_set: the tree and what shares with it, ``free`` as :attr:`Tree.free`.
        :param rng: for a random order of their own.
        """
        if rng is not None:
            options = self._having_enough(free)
            return self._in_batches(self._patterns(provider_set, options, rng)) if options else ()
        relevant = self._relevant(free)
        known = self._by_relevant.get(relevant)
        if known is None:
            known = self._by_relevant[relevant] = self._alike(provider_set, free)
        return known if type(known) is tuple else tee(known, 2)[1]

    def _alike(self, provider_set: ProviderSet, free: tuple[int, ...]) -> Iterable[PatternBatch]:
        """The patterns of all trees like this one: all in a tuple, or an iterator to start copies from."""
        options = self._having_enough(free)
        if options is None:
            return ()
        likeness = (
            *map(tuple, options),
            *[asked if free[slot] > asked else free[slot] for slot, asked in self._contested],
        )
        known = self._by_likeness.get(likeness)
        if known is None:
            patterns = self._patterns(provider_set, options)
            first, more = self._next_batch(patterns)
            if more:
                known = tee(chain((first,), self._in_batches(patterns)), 1)[0]
            else:
                known = (first,) if first else ()
            self._by_likeness[likeness] = known
        return known

    def _having_enough(self, free: tuple[int, ...]) -> list[list[int]] | None:
        """For each need the positions of those that can serve it now; None if one has none."""
        having: list[list[int]] = [[] for _ in self._options]
        self._rules.budget.spend(self._steps)
        for rank, index in enumerate(self._hardest_first):
            here = having[index]
            for at, demands in self._options[index]:
                for slot, amount in demands:
                    if free[slot] < amount:
                        break
                else:
                    here.append(at)
            if not here:
                self._hardest_first.insert(0, self._hardest_first.pop(rank))
                return None
        return having

    def _patterns(
        self, provider_set: ProviderSet, options: Sequence[Sequence[int]], rng: random.Random | None = None
    ) -> Iterator[Pattern | None]:
        members, budget = provider_set.members, self._rules.budget
        positions = {provider.id: at for at, provider in enumerate(members)}
        for chosen in combine(self._rules, [[members[at] for at in found] for found in options], rng):
            if chosen is None:
                yield None
            else:
                budget.spend(len(chosen))
                yield Pattern.of(self._rules, [positions[provider.id] for provider in chosen])

    def _in_batches(self, patterns: Iterator[Pattern | None]) -> Iterator[PatternBatch]:
        more = True
        while more:
            batch, more = self._next_batch(patterns)
            if batch or more:
                yield batch

    def _next_batch(self, patterns: Iterator[Pattern | None]) -> tuple[PatternBatch, bool]:
        """The next patterns, as far as the search goes without a rest, and whether there may be more."""
        batch: list[Pattern] = []
        try:
            for pattern in patterns:
                if pattern is None:
                    return PatternBatch(batch), True
                batch.append(pattern)
                if len(batch) == self._batch:
                    return PatternBatch(batch), True
        except Exhausted:
            if not batch:
                raise
        return PatternBatch(batch), False


def _own_options(rules: Rules, need: Need, tree: Tree) -> Iterator[_Option]:
    shape, members = tree.kind.shape, tree.members
    having = shape.having.get(need.resources[0][0], ()) if need.resources else None
    positions = range(len(members)) if having is None else [at for at, _ in having]
    rules.budget.spend(len(positions))
    for at in positions:
        if need.suits(members[at], rules.snapshot):
            demands = tuple([(shape.slots[at, name], amount) for name, amount in need.resources])
            if all(amount <= shape.capacities[slot] for slot, amount in demands):
                yield at, demands


def _shared_options(rules: Rules, need: Need, shared: Sequence[Provider], first: int) -> Iterator[_Option]:
    rules.budget.spend(len(shared))
    return ((at, ()) for at, each in enumerate(shared, first) if need.served_by(each, rules.snapshot))


def _picker(slots: Sequence[int]) -> Callable[[tuple[int, ...]], Any]:
    return itemgetter(*slots) if slots else lambda _: ()
