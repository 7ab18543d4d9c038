"""Explains why a claim has no place: reasons among the hosts that may be chosen, and changes that would help.

Conditions of one provider do not say how much is too much of an amount that is divided over zones. So each
change to such a claim is tried by placing it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from placement import microversion
from placement.exceptions import NoCandidate
from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.claim import ClaimScenario, WantedClaim, stays_at_its_host
from placement.search.claims.placing import UnplacedClaim, choices_at_hosts
from placement.search.claims.splitting import is_splittable
from placement.search.claims.topology import TopologyPolicy
from placement.search.diagnosis.clauses import RequestClause, droppable, resources, without
from placement.search.diagnosis.explanation import NearestMiss, RequestExplanation, explain, gather
from placement.search.diagnosis.relaxations import MAX_RELAXATIONS, RequestRelaxation, smallest
from placement.search.diagnosis.sentences import best, document, of_both, plural, sentence
from placement.search.request import CandidatesRequest
from placement.store import allocations, reservations

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


_MAX_SAID: Final = 5
"""Of all that a reservation holds so much is named."""


def refusal(wanted: Sequence[WantedClaim], unplaced: UnplacedClaim, budget: SearchBudget) -> NoCandidate:
    """Why the first of those without a place has none."""
    each, world = wanted[unplaced.number], unplaced.world
    prefix = _no_candidate(wanted, unplaced)
    ways = [each] if each.fallback is None else [each, replace(each, request=each.fallback)]
    left, left_out = _left(world, ways)
    snapshot = _without_pools(world.snapshot, each)
    try:
        found = [explain(snapshot, way.request, budget, left, relaxing=each.topology is None) for way in ways]
    except BudgetExhausted:
        return NoCandidate(f"{prefix}; why would take too long to find out.", None)
    found = [_tried(world, *both, budget) for both in zip(ways, found, strict=True)]
    found = [_with_avoided(world.snapshot, each, explanation) for explanation in found]
    texts = list(map(sentence, found))
    if left_out and not left:
        said = f"no host may be chosen: {_counts(left_out)}"
    else:
        if each.topology is not None:
            split = [_split(world, *both, budget) for both in zip(ways, found, strict=True)]
            found, texts = [explanation for explanation, _ in split], [text for _, text in split]
        said = of_both(*texts)
        if each.topology is None and any(explanation.fitting for explanation in found):
            said = f"all hosts that would do are left out by its group; without that: {said}"
        if left_out:
            said += f"; {_counts(left_out)}"
    shown = {
        "microversion": microversion.text(each.version),
        **document(*found),
        "sentence": said,
        "warnings": list(each.warnings),
    }
    warned = f" Of the flavor was ignored: {'; '.join(each.warnings)}." if each.warnings else ""
    return NoCandidate(f"{prefix}: {said}.{warned}", shown)


def _tried(
    world: ClaimScenario, wanted: WantedClaim, explanation: RequestExplanation, budget: SearchBudget
) -> RequestExplanation:
    """The explanation with only the relaxations with which there is a place, and as many hosts as have one.

    Where nothing shares, the hosts that are left tell that. Else a choice may take of a pool that is avoided,
    or be of pools alone, which its group may not allow.
    """
    if SHARES not in world.snapshot.by_trait or (not wanted.avoid and wanted.group is None):
        return explanation
    kept = list[RequestRelaxation]()
    is_complete = gather(_helping(world, wanted, explanation.relaxations, budget), kept)
    incomplete = dict.fromkeys((*explanation.incomplete, *([] if is_complete else ["relaxations"])))
    return replace(explanation, relaxations=tuple(kept), incomplete=tuple(incomplete))


def _helping(
    world: ClaimScenario, wanted: WantedClaim, relaxations: Iterable[RequestRelaxation], budget: SearchBudget
) -> Iterator[RequestRelaxation]:
    """Those of the relaxations that help, with the number of hosts that then have a place."""
    for each in relaxations:
        amounts = {resources(one.group, one.names[0]): one.amount or 0 for one in each.amounts}
        request = without(wanted.request, each.left_out, amounts)
        if request is not None:
            hosts = sum(1 for _ in fitting(world, replace(wanted, request=request), budget))
            if hosts:
                yield replace(each, hosts=hosts)


def _split(
    world: ClaimScenario, wanted: WantedClaim, explanation: RequestExplanation, budget: SearchBudget
) -> tuple[RequestExplanation, str]:
    """Why there is no place by a topology: the explanation without one, with what would help with it."""
    changes, others = list[RequestRelaxation](), list[TopologyPolicy]()
    is_complete = gather(topologies(world, wanted, budget), others) and gather(
        relaxations(world, wanted, budget), changes
    )
    said = [f"by topology {wanted.topology} there is no place"]
    said += [f"{other} would do" for other in others]
    said += [best(changes)] if changes else []
    said += [] if is_complete else ["what else would help takes too long to find out"]
    text = f"{', '.join(said)}; without a topology {sentence(explanation)}"
    incomplete = dict.fromkeys((*explanation.incomplete, *([] if is_complete else ["relaxations"])))
    return replace(explanation, relaxations=tuple(changes), incomplete=tuple(incomplete)), text


def not_within(
    wanted: Sequence[WantedClaim], unplaced: UnplacedClaim, reserved: Sequence[allocations.Allocation]
) -> NoCandidate:
    """That a reservation does not hold what is wanted."""
    holds = ", ".join(
        f"{held.used} {held.resource_class} of {held.provider}" for held in reserved[:_MAX_SAID]
    )
    more = f" and {len(reserved) - _MAX_SAID} more" if len(reserved) > _MAX_SAID else ""
    return NoCandidate(
        f"{_no_candidate(wanted, unplaced)} within the reservation, which holds {holds}{more}.",
        None,
    )


def _left(world: ClaimScenario, ways: Sequence[WantedClaim]) -> tuple[frozenset[int], Mapping[str, int]]:
    """The roots of the hosts that may be chosen, and how many others are left out by what."""
    wanted = ways[0]
    snapshot, group, beside = world.snapshot, wanted.group, world.beside(wanted.group)
    left, left_out = set(snapshot.roots()), dict[str, int]()
    named = {root for root in left if wanted.only and snapshot.providers[root].uuid in wanted.only}
    avoided = {root for root in left if snapshot.providers[root].uuid in wanted.avoid}
    full = set[int]()
    if group is not None and all(stays_at_its_host(snapshot, way.request) for way in ways):
        full = {root for root in left if not group.allows((root,), beside)}
    for by, roots in (
        ("only", left - named if wanted.only is not None else set()),
        ("avoid", avoided),
        ("its group", full),
    ):
        if gone := left & roots:
            left_out[by] = len(gone)
            left -= gone
    return frozenset(left), left_out


def _without_pools(snapshot: ModelSnapshot, wanted: WantedClaim) -> ModelSnapshot:
    """The snapshot in which what is shared by roots that are avoided has nothing free."""
    if not wanted.avoid:
        return snapshot
    avoided = {snapshot.by_uuid.get(uuid) for uuid in wanted.avoid}
    pools = [snapshot.providers[each] for each in snapshot.by_trait.get(SHARES, ())]
    used = {
        pool.id: {name: inventory.capacity for name, inventory in pool.inventories.items()}
        for pool in pools
        if pool.root_id in avoided
    }
    return snapshot.using(used) if used else snapshot


def _with_avoided(
    snapshot: ModelSnapshot, wanted: WantedClaim, explanation: RequestExplanation
) -> RequestExplanation:
    """The explanation that says of pools that they are avoided, and not that nothing is free there."""
    avoided = {snapshot.by_uuid.get(uuid) for uuid in wanted.avoid}

    def is_avoided(miss: NearestMiss) -> bool:
        return miss.provider is not None and miss.provider.root_id in avoided

    reasons = tuple(
        replace(
            each,
            examples=tuple(replace(miss, found=None) if is_avoided(miss) else miss for miss in each.examples),
            is_avoided=each.clause.condition == "capacity" and is_avoided(each.examples[0]),
        )
        for each in explanation.reasons
    )
    return replace(explanation, reasons=reasons) if avoided else explanation


def _counts(left_out: Mapping[str, int]) -> str:
    (first, count), *others = left_out.items()
    said = f"{plural(count, 'host')} {'is' if count == 1 else 'are'} left out by {first}"
    return said + "".join(f", {number:,} by {by}" for by, number in others)


def _no_candidate(wanted: Sequence[WantedClaim], unplaced: UnplacedClaim) -> str:
    each = wanted[unplaced.number]
    if each.owner.consumer_type == reservations.TYPE:
        return "There is no candidate for the reservation"
    which = f"claim {unplaced.number + 1} of {len(wanted)}, " if len(wanted) > 1 else ""
    return f"There is no candidate for {which}consumer {each.consumer}"
