"""Backtracking: tries all ways to serve a request from one tree and the providers that share with it.

A depth-first search chooses one provider for each need. The search checks each choice against capacities and
rules, and leaves a branch as soon as it cannot be completed. The search builds no product of all options; the
caller takes as many results as it wants. After a while without a result the search *rests*: it yields None,
so that the caller can look elsewhere first.

Hosts have many equivalent devices. If four of sixteen are full and the remaining groups have no place, it
does not matter which four are full. The search remembers such a *dead end* up to a renaming of equivalent
providers.

The two loops here take back choices without a journal of changes. The loops run for each tree of each
request, and a journal, as the planner has one, would add a call to every choice. Both loops are generators,
so that candidates are found on demand.

Only :mod:`placement.search.compiled_request` uses it, and tests compare it with brute force. This module
knows providers and rules, but neither patterns nor caches.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator, Sequence
from itertools import product
from typing import Final

from placement.read_model.provider import Provider
from placement.search.rules import NeedAssignment, RequestRules, available_amount, fits_at_all

# a dead end has some hundred bytes, and requests of several threads search at once
MAX_DEAD_ENDS: Final = 100_000
"""The number of dead ends remembered below one root."""


class DeadEnds:
    """The dead ends of one tree."""

    def __init__(self, assignment: NeedAssignment) -> None:
        self._assignment = assignment
        self._known: set[Hashable] = set()
        kinds: dict[Hashable, int] = {}
        # needs of one kind are exchangeable, and so are providers of one kind
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
        # the parents of all members of the trees, not only of the options: any of them may be above an option
        # a provider with children is a kind of its own: its lineage matters to rules
        self._parents = {everyone[each].parent_id for root in roots for each in members[root]}
        kinds = {}
        self._kind_of_provider = {
            provider_id: kinds.setdefault(self._provider_signature(provider, serves[provider_id]), len(kinds))
            for provider_id, provider in providers.items()
        }

    def add(self) -> None:
        """Remember that the current assignment cannot be completed."""
        # beyond the limit the search stays right, and is only slower
        if len(self._known) < MAX_DEAD_ENDS:
            self._known.add(self._chosen_kinds())

    def is_reached(self) -> bool:
        """Return whether the assignment is equivalent to one that could not be completed."""
        return self._chosen_kinds() in self._known

    def _chosen_kinds(self) -> Hashable:
        """Return the chosen providers, and the needs that each serves, as kinds.

        Needs are served in a fixed order, so that this also determines the needs that are left.
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
        """Return a key: two providers with equal keys can be swapped in any assignment.

        Equivalent providers are leaves below the same parent, or have no relatives at all.
        """
        rules = self._assignment.rules
        # its own id as the signature: it is like no other one
        if provider.id in self._parents:
            return provider.id
        classes = sorted({name for index in serves for name, _ in rules.needs[index].resources})
        return (
            provider.parent_id,
            tuple(serves),
            tuple(available_amount(provider, name) for name in classes),
            tuple(not provider.traits.isdisjoint(traits) for traits in rules.unsuffixed_traits),
        )


# proofs of infeasibility, and dead ends, cost more than trying this many
SMALL: Final = 256
"""At most this number of assignments is tried one by one, without a proof first."""
# a pair is two lookups in lineages, where an assignment of providers runs through all rules
SMALL_IN_PAIRS: Final = 4096
"""The same limit for the search that compares two needs at a time."""
_CHOICES_BEFORE_REST: Final = 256
"""Number of choices without a result before the first rest; it doubles with each rest."""


def complete_assignments(
    rules: RequestRules, options: Sequence[Sequence[Provider]], rng: random.Random | None = None
) -> Iterator[Sequence[Provider] | None]:
    """Yield every way to serve the needs, each once: one of its options for each need.

    With ``rng`` they come in random order. None means that the search rests.

    :raises placement.search.budget.BudgetExhausted: the search has taken too long.
    """
    if rng is not None:
        # shuffled before the search, so that any prefix of the results is random
        options = [rng.sample(providers, len(providers)) for providers in options]
    settled = rules.traits_settled(options)
    if settled is False:
        return
    # no rule ties the needs together, so that each choice goes with each
    if rules.independent and settled:
        yield from product(*options)
    elif (small := count_ways(options, SMALL) <= SMALL) or fits_at_all(
        rules.needs, options, rules.isolate, budget=rules.budget
    ):
        assignment = NeedAssignment(rules, options)
        for complete in _run_through(assignment, _order_needs(rules, options), small):
            yield [provider for provider in assignment.chosen if provider is not None] if complete else None


def pairwise_assignments(
    rules: RequestRules, options: Sequence[Sequence[int]], lineages: Sequence[Sequence[int]]
) -> Iterator[tuple[int, ...] | None]:
    """Yield the assignments of :func:`complete_assignments`, as positions.

    The rules have to compare two needs at a time only.

    :param lineages: by position, the positions of the provider and its ancestors.
    """
    # mates follow one another: two that do not fit together are found before others are tried
    budget, order = rules.budget, _mates_together(rules, options)
    before = [
        [other for other in _subtree_mates(rules, index) if other in order[:at]]
        for at, index in enumerate(order)
    ]
    distinct = [rules.isolate and not rules.needs[index].unsuffixed for index in order]
    # an explicit stack of iterators: requests have up to hundreds of groups, and recursion is slow
    chosen = [0] * len(order)
    taken: set[int] = set()
    left: list[Iterator[int]] = [iter(options[order[0]])]
    any_way = [False] * len(order)  # by depth, whether there was one since the need was reached
    choices_before_rest = choices_left = _CHOICES_BEFORE_REST
    while left:
        depth = len(left) - 1
        index, alone, mates = order[depth], distinct[depth], before[depth]
        for at in left[-1]:
            if alone and at in taken:
                continue
            # the tests of a pair are inlined, as they run for each option of each need
            lineage = lineages[at] if mates else ()
            for other in mates:
                if chosen[other] not in lineage and at not in lineages[chosen[other]]:
                    break
            else:
                break
        else:
            left.pop()
            if not any_way[depth]:
                suffix = rules.needs[index].suffix
                budget.dead_ends[suffix] = budget.dead_ends.get(suffix, 0) + 1
            any_way[depth] = False
            if left and distinct[depth - 1]:
                taken.discard(chosen[order[depth - 1]])
            continue
        budget.spend()
        choices_left -= 1
        chosen[index] = at
        any_way[depth] = True
        if depth + 1 == len(order):
            choices_left = choices_before_rest
            yield tuple(chosen)
            continue
        if alone:
            taken.add(at)
        left.append(iter(options[order[depth + 1]]))
        # doubled, so that a hopeless tree takes ever less of the time of the others
        if choices_left < 0:
            choices_before_rest = choices_left = 2 * choices_before_rest
            yield None


def _subtree_mates(rules: RequestRules, index: int) -> Iterator[int]:
    """Yield the needs that a ``same_subtree`` rule ties to a need."""
    return (other for rule in rules.subtrees_of[index] for other in rule if other != index)


def _mates_together(rules: RequestRules, options: Sequence[Sequence[int]]) -> list[int]:
    """Return the indexes of the needs: few options first, and needs of one rule next to each other."""
    order: list[int] = []
    for first in sorted(range(len(options)), key=lambda index: len(options[index])):
        for index in (first, *_subtree_mates(rules, first)):
            if index not in order:
                order.append(index)
    return order


def count_ways(options: Sequence[Sequence[object]], limit: int) -> int:
    """Return the number of ways to choose an option for each need, or some number above the limit."""
    found = 1
    for each in options:
        found *= len(each)
        # the product of hundreds of groups is a huge number
        if found > limit:
            break
    return found


def _order_needs(rules: RequestRules, options: Sequence[Sequence[Provider]]) -> list[int]:
    """Return the indexes of the needs: those that decide on traits first, then those with few options.

    Of needs that contest a class the larger ones come first, while much is free.
    """
    rules.budget.spend(len(rules.unsuffixed_traits) * sum(map(len, options)))

    def sort_key(index: int) -> tuple[bool, int, float]:
        need = rules.needs[index]
        decides = need.unsuffixed and any(
            not provider.traits.isdisjoint(traits)
            for traits in rules.unsuffixed_traits
            for provider in options[index]
        )
        shares = [
            amount / rules.contested[name] for name, amount in need.resources if name in rules.contested
        ]
        # fewest options first keeps the tree of choices narrow near its root
        return not decides, len(options[index]), -max(shares, default=0)

    return sorted(range(len(options)), key=sort_key)


def _run_through(assignment: NeedAssignment, order: Sequence[int], small: bool) -> Iterator[bool]:
    """Run through all complete assignments. Yields True at each one, and False when the search rests.

    There is no recursion, as requests may have hundreds of groups. Most requests never meet a dead end. After
    the first assignment the search checks that the other needs have a place before each step, unless it is
    small.
    """
    options, budget = assignment.options, assignment.rules.budget
    tried = [0] * len(order)  # options of the need at each depth
    found = 0
    found_before = [0] * len(order)  # when each depth was entered
    dead_ends: DeadEnds | None = None
    choices_before_rest = choices_left = _CHOICES_BEFORE_REST
    # budget is spent in portions: a call for each choice would cost more than cheap choices
    choices_per_look = max(1, 16 // assignment.steps)
    depth = 0
    while depth >= 0:
        if depth == len(order):
            found += 1
            choices_left = choices_before_rest
            yield True
            depth -= 1
            continue
        if choices_left < 0:
            choices_before_rest = choices_left = 2 * choices_before_rest
            yield False
        index = order[depth]
        if tried[depth] == 0:
            found_before[depth] = found
        # the choice of the last visit: a new need has none, and release ignores that
        assignment.release(index)
        while tried[depth] < len(options[index]):
            provider = options[index][tried[depth]]
            tried[depth] += 1
            choices_left -= 1
            if choices_left % choices_per_look == 0:
                budget.spend(choices_per_look * assignment.steps)
            if assignment.allows_provider(index, provider):
                assignment.take_provider(index, provider)
                if dead_ends is None or (
                    not dead_ends.is_reached() and assignment.can_complete(order[depth + 1 :])
                ):
                    break
                assignment.release(index)
        if assignment.chosen[index] is not None:
            depth += 1
            continue
        if found == found_before[depth]:
            # for a small search the memory of dead ends costs more than trying again
            if not small:
                dead_ends = dead_ends or DeadEnds(assignment)
                dead_ends.add()
            suffix = assignment.rules.needs[index].suffix
            budget.dead_ends[suffix] = budget.dead_ends.get(suffix, 0) + 1
        tried[depth] = 0
        depth -= 1
