"""Tries all assignments of providers to needs, by backtracking.

The providers are those of one tree, and the sharing providers of its aggregates.

A depth-first search chooses one provider for each need. The search checks each choice against capacities and
rules, and leaves a branch as soon as it cannot be completed. The search does not compute the product of all
options, but one result at a time, when the caller asks for the next result. After a while without a result
the search *rests*: it yields None, so that the caller can search other trees first.

Hosts have many equal devices. If four of sixteen equal providers are full and the remaining groups do not
fit, the result is the same for any other four. The search remembers this *dead end* for all equivalent
assignments. Of many equivalent results, the search yields one result before the others
(:mod:`placement.search.symmetry`).

The two search loops of this module undo a choice by themselves, without a journal of changes. These loops run
for each tree of each request. A journal of changes, which the planner uses, would add a function call to
every choice. The two loops are generators, so that they search for a candidate only when the caller asks for
it.

:mod:`placement.search.compiled_request` uses this module for candidates, and explanations use it to check
whether positions fit. Tests compare it with brute force. The module knows providers and rules, but neither
patterns nor caches.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Final, NamedTuple

from placement.read_model.provider import Provider
from placement.search.rules import NeedAssignment, RequestRules, fits_at_all, subtree_tops
from placement.search.symmetry import AssignmentKinds, RememberedAssignments

# up to this number, trying all assignments costs less than proving first that the needs cannot fit
SMALL: Final = 256
"""Up to this number of assignments, the search begins without checking whether the needs fit at all."""
# checking one pair of needs takes two lookups in lineages, while the general search checks each assignment by
# all rules
SMALL_IN_PAIRS: Final = 4096
"""Largest number of assignments for which :func:`pairwise_assignments` is used."""
# most of these assignments are left out, because they are equivalent to others or break a rule, and quick
# proofs come first
SMALL_BY_KINDS: Final = 32_768
"""The same maximum as :data:`SMALL_IN_PAIRS`, for a search that leaves out equivalent assignments."""
# up to this number, listing all costs less than finding them one by one, also if only some are needed
_MAX_LISTED: Final = 1024
"""Maximum number of assignments of :func:`list_assignments`."""
_CHOICES_BEFORE_REST: Final = 256
"""Number of choices without a result after which a search first rests, so that other trees are searched. Each
rest doubles this number.
"""


class OptionPlaces(NamedTuple):
    """The options of each need as positions in ``members``.

    ``lineages`` has by position the positions of the provider and its ancestors. Positions of sharing
    providers are missing.
    """

    members: Sequence[Provider]
    options: Sequence[Sequence[int]]
    lineages: Sequence[Sequence[int]]


def complete_assignments(
    rules: RequestRules,
    places: OptionPlaces,
    rng: random.Random | None = None,
    kinds: AssignmentKinds | None = None,
    *,
    distinct_only: bool = False,
    in_pairs: bool = False,
) -> Iterator[tuple[int, ...] | None]:
    """Yield each complete assignment exactly once: the position of a provider for each need.

    With ``rng``, the assignments come in random order. With ``kinds``, one assignment of each set of
    equivalent assignments comes first, and the other assignments of the set come later. A yielded None means
    that the search rests, so that the caller can search other trees first.

    :param distinct_only: whether to yield only one of several assignments that differ in equal devices or
        groups. This needs ``kinds``.
    :param in_pairs: whether each rule compares two needs at a time, and the places have the lineages of all
        options of same_subtree rules. This needs ``kinds``.
    """
    members, options = places.members, places.options
    if rng is not None:
        # options are shuffled before the search, so that the first results are a random choice of all results
        options = [rng.sample(found, len(found)) for found in options]
    providers = [[members[at] for at in found] for found in options]
    settled = rules.traits_settled(providers)
    if settled is False:
        return
    # no rule relates the needs to each other, so every combination of options is an assignment
    if rules.independent and settled and kinds is None:
        yield from product(*options)
    elif (small := count_ways(options, SMALL) <= SMALL) or fits_at_all(
        rules.needs, providers, rules.isolate, budget=rules.budget
    ):
        if kinds is not None and in_pairs:
            run = _run_of_places(rules, places, _order_needs(rules, providers), kinds, distinct_only)
        else:
            run = partial(_run_by_positions, rules, places, providers, small)
        yield from run() if kinds is None else _distinct_first(run, members, kinds, distinct_only)


def _distinct_first(
    run: Callable[..., Iterator[tuple[int, ...] | None]],
    members: Sequence[Provider],
    kinds: AssignmentKinds,
    distinct_only: bool,
) -> Iterator[tuple[int, ...] | None]:
    """Yield all assignments, and first those that differ in more than equal devices and groups.

    The first pass yields one assignment of each set that differs only in units of pools. The second pass
    yields one assignment of each set of equivalent assignments.

    The third pass yields one assignment for each way to distribute the amounts over providers. The last pass
    yields all other assignments. The search rests between these passes, so that the caller first gets one
    assignment from each other tree.
    """
    # the first pass needs pools, the second pass needs equal providers, and the third pass equal needs
    passes: list[Iterator[tuple[int, ...] | None]] = []
    pools = None if distinct_only else kinds.in_pools
    distinct = RememberedAssignments(kinds)
    if pools is not None:
        # ``kinds`` is left out in this pass: it orders equal needs by provider, while ``visited`` ignores
        # which members of a pool are used
        passes.append(run(visited=RememberedAssignments(pools)))
    if kinds.any_providers_equal:
        passes.append(run(visited=distinct, kinds=kinds))
    if kinds.any_needs_equal:
        passes.append(run(kinds=kinds))
    if distinct_only:
        yield from passes[0]
        return
    yielded: set[tuple[int, ...]] = set()
    for number, ways in enumerate(passes):
        for chosen in ways:
            if chosen is None:
                # these passes only decide the order: the complete search at the end of this function finds
                # all ways that they have missed. Proving that a pass has no more ways would take more time
                # than finding an answer
                if yielded:
                    break
                yield None
            elif chosen not in yielded:
                yielded.add(chosen)
                if pools is not None and number == 0:
                    # the next pass leaves out the ways that are equivalent to this one
                    distinct.add([members[at] for at in chosen])
                yield chosen
        if not yielded:
            return
        yield None
        if pools is None and number == 0:
            # the search rests once more here, because without pools all further ways are equivalent to
            # earlier ones. In trees with pools, the second pass also yields ways that are not equivalent
            yield None
    for chosen in run():
        if chosen is None or chosen not in yielded:
            yield chosen


def _run_by_positions(
    rules: RequestRules,
    places: OptionPlaces,
    options: Sequence[Sequence[Provider]],
    small: bool,
    visited: RememberedAssignments | None = None,
    kinds: AssignmentKinds | None = None,
) -> Iterator[tuple[int, ...] | None]:
    """Yield the assignments of :func:`_run_through` as positions."""
    at = {places.members[at].id: at for found in places.options for at in found}
    for chosen in _run_through(rules, options, small, visited, kinds):
        yield None if chosen is None else tuple([at[provider.id] for provider in chosen])


def _run_of_places(
    rules: RequestRules,
    places: OptionPlaces,
    order: Sequence[int],
    kinds: AssignmentKinds,
    distinct_only: bool,
) -> Callable[..., Iterator[tuple[int, ...] | None]]:
    """Return a replacement of :func:`_run_by_positions` that compares two needs at a time."""
    # units of pools are equivalent only for the needs that follow, so with pools each choice is remembered
    if distinct_only or kinds.in_pools is None:
        listed = list_assignments(rules, places, order)
        if listed is not None:
            return partial(_run_listed, places.members, listed, order)
    return partial(pairwise_assignments, rules, places, order)


def _run_listed(
    members: Sequence[Provider],
    listed: Sequence[tuple[int, ...]],
    order: Sequence[int],
    visited: RememberedAssignments | None = None,
    kinds: AssignmentKinds | None = None,
) -> Iterator[tuple[int, ...]]:
    """Yield the assignments of :func:`_run_by_positions` in the same order, from a list of all assignments.

    The first of several equivalent assignments is also the first in the list. So it is enough to remember
    complete assignments.
    """
    equal = [
        (order[before], order[depth])
        for depth, before in enumerate(_equal_before(kinds, order))
        if before >= 0
    ]
    for found in listed:
        # options are in ascending order of their positions
        for one, other in equal:
            if found[one] > found[other]:
                break
        else:
            if visited is None or visited.add([members[at] for at in found]):
                yield found


def list_assignments(
    rules: RequestRules, places: OptionPlaces, order: Sequence[int] = ()
) -> list[tuple[int, ...]] | None:
    """Return all assignments of :func:`pairwise_assignments` in the same order; None if there are too many.

    Each step adds one need to all assignments, which takes a tenth of the time of single choices.
    """
    _, options, lineages = places
    order = order or _mates_together(rules, options)
    found: list[tuple[int, ...]] = [()]
    suffixed: list[int] = []
    for depth, index in enumerate(order):
        here, before, suffix = options[index], len(found), rules.needs[index].suffix
        mates = [order.index(other) for other in {*_subtree_mates(rules, index)} if other in order[:depth]]
        if mates:
            near = {
                other: [at for at in here if at in lineages[other] or other in lineages[at]]
                for other in {ways[mates[0]] for ways in found}
            }
            found = [(*ways, at) for ways in found for at in near[ways[mates[0]]]]
            for mate in mates[1:]:
                found = [
                    ways
                    for ways in found
                    if ways[mate] in lineages[ways[-1]] or ways[-1] in lineages[ways[mate]]
                ]
        elif before * len(here) > _MAX_LISTED:
            return None
        else:
            found = [(*ways, at) for ways in found for at in here]
        if rules.isolate and not rules.needs[index].unsuffixed:
            for other in suffixed:
                found = [ways for ways in found if ways[other] != ways[-1]]
            suffixed.append(depth)
        if len(found) > _MAX_LISTED:
            return None
        rules.budget.spend(1 + len(found) // 8)
        if not found:
            rules.budget.dead_ends[suffix] = rules.budget.dead_ends.get(suffix, 0) + before
            return found
    in_order = [order.index(index) for index in range(len(order))]
    return found if in_order == [*range(len(order))] else list(map(itemgetter(*in_order), found))


def pairwise_assignments(
    rules: RequestRules,
    places: OptionPlaces,
    order: Sequence[int] = (),
    visited: RememberedAssignments | None = None,
    kinds: AssignmentKinds | None = None,
) -> Iterator[tuple[int, ...] | None]:
    """Yield the assignments of :func:`complete_assignments` by comparing two needs at a time.

    The result is only correct if each rule compares two needs at a time (``rules.pairwise``).

    :param order: the indexes of the needs in the order of the search; by default an order by their rules.
    :param visited: see :func:`_run_through`, which also explains ``kinds``.
    """
    # needs of one same_subtree rule follow one another, so that an incompatible pair is found before other
    # needs are tried
    members, options, lineages = places
    budget, order = rules.budget, order or _mates_together(rules, options)
    equal_before = _equal_before(kinds, order)
    before = [
        [other for other in _subtree_mates(rules, index) if other in order[:at]]
        for at, index in enumerate(order)
    ]
    distinct = [rules.isolate and not rules.needs[index].unsuffixed for index in order]
    # the code uses a stack of iterators instead of recursion, which would be slow for requests with hundreds
    # of groups
    chosen = [-1] * len(order)
    taken: set[int] = set()
    left: list[Iterator[int]] = [iter(options[order[0]])]
    any_way = [False] * len(order)  # by depth, whether the need had a valid option since it was reached
    choices_before_rest = choices_left = _CHOICES_BEFORE_REST
    while left:
        depth = len(left) - 1
        index, alone, mates = order[depth], distinct[depth], before[depth]
        for at in left[-1]:
            if alone and at in taken:
                continue
            # the tests of a pair are inlined, because they run for each option of each need
            lineage = lineages[at] if mates else ()
            for other in mates:
                if chosen[other] not in lineage and at not in lineages[chosen[other]]:
                    break
            else:
                budget.spend()
                choices_left -= 1
                chosen[index] = at
                if visited is None or visited.add([None if at < 0 else members[at] for at in chosen]):
                    break
        else:
            left.pop()
            chosen[index] = -1
            if not any_way[depth]:
                suffix = rules.needs[index].suffix
                budget.dead_ends[suffix] = budget.dead_ends.get(suffix, 0) + 1
            any_way[depth] = False
            if left and distinct[depth - 1]:
                taken.discard(chosen[order[depth - 1]])
            continue
        any_way[depth] = True
        if depth + 1 == len(order):
            choices_left = choices_before_rest
            yield tuple(chosen)
            continue
        if alone:
            taken.add(at)
        following, equal = options[order[depth + 1]], equal_before[depth + 1]
        if equal >= 0:
            following = following[following.index(chosen[order[equal]]) :]
        left.append(iter(following))
        # the distance between rests doubles, so that a tree without results does not rest again and again
        if choices_left < 0:
            choices_before_rest = choices_left = 2 * choices_before_rest
            yield None


def pairs_fit(
    rules: RequestRules, options: Sequence[Sequence[int]], lineages: Sequence[Sequence[int]]
) -> bool | None:
    """Return whether there is an assignment, found only by positions; None if this check cannot decide.

    :param options: for each need the positions of its options, which are not empty.
    :param lineages: for each position of the tree, the positions of the provider and its ancestors. Positions
        of sharing providers follow.
    """
    if not rules.pairwise or count_ways(options, SMALL_IN_PAIRS) > SMALL_IN_PAIRS:
        return None
    if rules.independent:
        return True
    # the ancestors of sharing providers are in other trees
    if any(max(options[index]) >= len(lineages) for rule in rules.subtrees for index in rule):
        return None
    # rules without a common need do not affect each other, so each rule is checked on its own
    if not rules.isolate and all(len(each) <= 1 for each in rules.subtrees_of):
        rules.budget.spend(sum(map(len, rules.subtrees)))
        return all(subtree_tops(rule, options, lineages) for rule in rules.subtrees)
    found = pairwise_assignments(rules, OptionPlaces((), options, lineages))
    return any(each is not None for each in found)


def _equal_before(kinds: AssignmentKinds | None, order: Sequence[int]) -> list[int]:
    """For each depth of the search, return the nearest smaller depth with a need of the same kind, or -1."""
    last: dict[int, int] = {}
    found = [-1] * len(order)
    if kinds is None:
        return found
    for depth, index in enumerate(order):
        kind = kinds.of_needs[index]
        found[depth] = last.get(kind, -1)
        last[kind] = depth
    return found


def _subtree_mates(rules: RequestRules, index: int) -> Iterator[int]:
    """Yield the indexes of the needs that a ``same_subtree`` rule ties to a need."""
    return (other for rule in rules.subtrees_of[index] for other in rule if other != index)


def _mates_together(rules: RequestRules, options: Sequence[Sequence[int]]) -> list[int]:
    """Return indexes of needs, fewest options first, with needs of one same_subtree rule adjacent."""
    order: list[int] = []
    for first in sorted(range(len(options)), key=lambda index: len(options[index])):
        for index in (first, *_subtree_mates(rules, first)):
            if index not in order:
                order.append(index)
    return order


def count_ways(options: Sequence[Sequence[object]], limit: int) -> int:
    """Return the number of ways to give each need one of its options; exact only up to the limit."""
    found = 1
    for each in options:
        found *= len(each)
        # counting ends at the limit, because the product for hundreds of groups would be a huge number
        if found > limit:
            break
    return found


def _order_needs(rules: RequestRules, options: Sequence[Sequence[Provider]]) -> list[int]:
    """Return the indexes of the needs in the order in which the search chooses providers for them.

    Needs of the unsuffixed group come first if one of their options has a trait that the group requires. Then
    come needs with few options. Of needs with equally many options, those for the largest share of a
    contested class come first. The share refers to the sum of all needs for the class.
    """
    rules.budget.spend(len(rules.unsuffixed_traits) * sum(map(len, options)))

    def sort_key(index: int) -> tuple[bool, int, int]:
        decides = rules.needs[index].unsuffixed and any(
            not provider.traits.isdisjoint(traits)
            for traits in rules.unsuffixed_traits
            for provider in options[index]
        )
        # needs with the fewest options come first, which keeps the tree of choices narrow near its root
        return not decides, len(options[index]), -rules.share_ranks[index]

    return sorted(range(len(options)), key=sort_key)


def _run_through(
    rules: RequestRules,
    options: Sequence[Sequence[Provider]],
    small: bool,
    visited: RememberedAssignments | None = None,
    kinds: AssignmentKinds | None = None,
) -> Iterator[Sequence[Provider] | None]:
    """Yield all complete assignments of providers to needs, and None when the search rests.

    The search does not use recursion, because requests may have hundreds of groups. Most requests never meet
    a dead end. After the first dead end, or a rest after a failed choice, the search checks before each step
    whether the remaining needs can have a provider. A small search omits these checks.

    :param visited: remembers all assignments; the search continues only the first of several equivalent
        assignments.
    :param kinds: equal needs get their providers only in the order of the options, not in each permutation.
    """
    assignment, order, budget = NeedAssignment(rules, options), _order_needs(rules, options), rules.budget
    equal_before = _equal_before(kinds, order)
    tried = [0] * len(order)  # by depth, number of options tried for the need
    found = 0
    found_before = [0] * len(order)  # by depth, number of results when the search reached the depth
    skipped = [False] * len(order)  # by depth, whether an assignment was left out as already visited
    kinds_tried: list[set[int]] = [set() for _ in order]  # by depth, kinds of tried providers without a need
    proves = False  # whether each step first checks that the remaining needs can be served
    # whether some need ran out of options; without such a failure, a rest only means that there are many
    # needs
    turned_back = False
    dead_ends: RememberedAssignments | None = None
    choices_before_rest = choices_left = _CHOICES_BEFORE_REST
    # steps are spent in portions, because a call for each choice would cost more than a cheap choice
    choices_per_look = max(1, 16 // assignment.steps)
    depth = 0
    while depth >= 0:
        if depth == len(order):
            found += 1
            choices_left = choices_before_rest
            yield [provider for provider in assignment.chosen if provider is not None]
            depth -= 1
            continue
        if choices_left < 0:
            choices_before_rest = choices_left = 2 * choices_before_rest
            # with ``kinds``, a failure may result from the order of equal needs and proves no dead end, so
            # only a rest starts the checks
            proves = proves or (turned_back and not small)
            yield None
        index = order[depth]
        # undo the last choice at this depth; release() does nothing if no provider was chosen
        assignment.release(index)
        serving = set() if visited is None else {at.id for at in assignment.chosen if at is not None}
        while tried[depth] < len(options[index]):
            provider = options[index][tried[depth]]
            tried[depth] += 1
            if visited is not None and provider.id not in serving:
                # comparing kinds is cheaper than comparing whole assignments, and skips most of many equal
                # devices
                kind = visited.kinds.of_providers[provider.id]
                if kind in kinds_tried[depth]:
                    continue
                kinds_tried[depth].add(kind)
            choices_left -= 1
            if choices_left % choices_per_look == 0:
                budget.spend(choices_per_look * assignment.steps)
            if assignment.allows_provider(index, provider):
                assignment.take_provider(index, provider)
                if visited is not None and not visited.add(assignment.chosen):
                    skipped[depth] = True
                elif not proves or (
                    (dead_ends is None or assignment.chosen not in dead_ends)
                    and assignment.can_complete(order[depth + 1 :])
                ):
                    break
                assignment.release(index)
        if assignment.chosen[index] is not None:
            depth += 1
            if depth < len(order):
                before = equal_before[depth]
                # options before the provider of the previous equal need are skipped; this provider itself may
                # serve both needs
                tried[depth] = 0 if before < 0 else tried[before] - 1
                found_before[depth] = found
                kinds_tried[depth].clear()
            continue
        if skipped[depth]:
            # the skipped assignment may have results, so this assignment is not proven to be a dead end
            skipped[depth] = False
            if depth:
                skipped[depth - 1] = True
        elif found == found_before[depth]:
            # for a small search, remembering dead ends costs more than trying again; with ``kinds``, another
            # order of equal needs may have a result
            if not small and kinds is None:
                if dead_ends is None:
                    dead_ends = RememberedAssignments(AssignmentKinds(rules, options))
                dead_ends.add(assignment.chosen)
                proves = True
            suffix = rules.needs[index].suffix
            budget.dead_ends[suffix] = budget.dead_ends.get(suffix, 0) + 1
        turned_back = True
        depth -= 1
