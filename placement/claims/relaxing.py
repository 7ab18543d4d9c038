"""Which one change would have a claim fit that may be split: tried by what places it.

What may be split is divided over zones, so that no condition of one provider says how much is too much.
Amounts are found by halving: one that is found fits, and of most topologies no larger one does.
"""

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Final

from placement.candidates.budget import SearchBudget
from placement.candidates.request import CandidatesRequest
from placement.claims.placing import choices_at_hosts
from placement.claims.splitting import is_splittable
from placement.claims.topology import TopologyPolicy
from placement.claims.wanted import WantedClaim
from placement.claims.world import ClaimScenario
from placement.explanations.clauses import RequestClause, droppable, resources, without
from placement.explanations.relaxing import MAX_RELAXATIONS, RequestRelaxation, smallest
from placement.model.snapshot import ModelSnapshot

_STARTS: Final = (1, 2, 4)
"""So many times the least amount of a provider is where halving begins: spread over zones that may not do."""
_MAX_STEPS: Final = 3
"""Of no more steps of inventories multiples are tried: providers mostly agree."""


def fitting(world: ClaimScenario, wanted: WantedClaim, budget: SearchBudget) -> Iterator[int]:
    """The roots of the hosts that have a place for it.

    :raises Exhausted: the budget is spent.
    """
    roots, at = choices_at_hosts(world, wanted, budget, random.Random(0))
    for root in roots:
        if any(choice is not None for choice in at(root)):
            yield root


def fits(world: ClaimScenario, wanted: WantedClaim, budget: SearchBudget) -> bool:
    """Whether there is a place for it.

    :raises Exhausted: the budget is spent.
    """
    return next(fitting(world, wanted, budget), None) is not None


def topologies(world: ClaimScenario, wanted: WantedClaim, budget: SearchBudget) -> Iterator[TopologyPolicy]:
    """The topology that allows most, if one that has no place by its own has one by that.

    :raises Exhausted: the budget is spent.
    """
    most = TopologyPolicy.BEST_EFFORT
    if wanted.topology is not most and fits(world, replace(wanted, topology=most), budget):
        yield most


def relaxations(
    world: ClaimScenario, wanted: WantedClaim, budget: SearchBudget
) -> Iterator[RequestRelaxation]:
    """The changes of one clause with which a claim has a place that has none as it is.

    :raises Exhausted: it takes too long to find the next.
    """
    request, found = wanted.request, 0
    asked = {
        resources(group.suffix, name): amount
        for group in request.groups
        for name, amount in group.resources.items()
    }
    for clause in droppable(world.snapshot, request):
        relaxation = None
        if clause in asked:
            relaxation = _lessened(world, wanted, clause, asked[clause], budget)
        if relaxation is None:
            relaxation = _relaxation(world, wanted, (clause,), {}, budget)
        if relaxation is not None:
            yield relaxation
            found += 1
            if found == MAX_RELAXATIONS:
                return


def _lessened(
    world: ClaimScenario, wanted: WantedClaim, clause: RequestClause, asked: int, budget: SearchBudget
) -> RequestRelaxation | None:
    """The one that asks for less of a class; None if none does."""

    def is_enough(amount: int) -> bool:
        changed = _changed(wanted, (), {clause: amount})
        return changed is not None and fits(world, changed, budget)

    best = 0
    for least, step in _portions(world.snapshot, clause.names[0], budget):
        most = (asked - 1) // step
        starts = (least // step * times for times in _STARTS)
        below = next((start for start in starts if start <= most and is_enough(start * step)), None)
        if below is None:
            continue
        # up from there in strides that double, as most hosts have far less than may be asked for
        above = most + 1
        for stride in (1 << each for each in count()):
            if below + stride >= above:
                break
            if is_enough((below + stride) * step):
                below += stride
            else:
                above = below + stride
        while above - below > 1:
            middle = (below + above) // 2
            if is_enough(middle * step):
                below = middle
            else:
                above = middle
        best = max(best, below * step)
    return _relaxation(world, wanted, (), {clause: best}, budget) if best else None


def _portions(snapshot: ModelSnapshot, name: str, budget: SearchBudget) -> list[tuple[int, int]]:
    """The least amounts that providers give of a class, with the steps in which they give it."""
    having = snapshot.by_class.get(name, ())
    budget.spend(1 + len(having) // 4)
    inventories = (snapshot.providers[each].inventories[name] for each in having)
    found = {(smallest(each.min_unit, each.step_size), each.step_size) for each in inventories}
    return sorted(found)[:_MAX_STEPS]


def _changed(
    wanted: WantedClaim, left_out: Collection[RequestClause], amounts: Mapping[RequestClause, int]
) -> WantedClaim | None:
    """What is wanted with these changes; None if nothing of it may be split any more."""
    request: CandidatesRequest | None = without(wanted.request, left_out, amounts)
    return None if request is None or not is_splittable(request) else replace(wanted, request=request)


def _relaxation(
    world: ClaimScenario,
    wanted: WantedClaim,
    left_out: tuple[RequestClause, ...],
    amounts: Mapping[RequestClause, int],
    budget: SearchBudget,
) -> RequestRelaxation | None:
    """The relaxation with these changes; None if no host has a place then."""
    changed = _changed(wanted, left_out, amounts)
    hosts = 0 if changed is None else sum(1 for _ in fitting(world, changed, budget))
    shown = tuple(replace(clause, amount=amount) for clause, amount in amounts.items())
    return RequestRelaxation(left_out, shown, hosts) if hosts else None
