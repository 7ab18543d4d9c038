"""Explains why a claim has no place: reasons among the hosts that may be chosen, and changes that would help.

Conditions of one provider do not say how much is too much of an amount that is divided over zones. So each
change to such a claim is tried by placing it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from placement import microversion
from placement.exceptions import NoCandidate
from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.claim import ClaimScenario, WantedClaim, stays_at_its_host
from placement.search.claims.placing import UnplacedClaim, choices_at_hosts
from placement.search.claims.splitting import full_amounts, is_splittable
from placement.search.claims.topology import SPLIT, TopologyPolicy
from placement.search.diagnosis.clauses import RequestClause
from placement.search.diagnosis.explanation import NearestMiss, RequestExplanation, explain, gather
from placement.search.diagnosis.relaxations import RequestRelaxation, TriedRelaxations
from placement.search.diagnosis.sentences import best, document, of_both, plural, sentence
from placement.search.request import CandidatesRequest
from placement.store import allocations, reservations


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


def tried_relaxations(world: ClaimScenario, wanted: WantedClaim, budget: SearchBudget) -> TriedRelaxations:
    """The relaxations of a claim, each tried by placing it."""

    def serving(changed: CandidatesRequest) -> Iterator[int]:
        # by a topology a claim has to ask for something that is split
        if wanted.topology is None or is_splittable(changed):
            yield from fitting(world, replace(wanted, request=changed), budget)

    def amounts(clause: RequestClause) -> set[int]:
        (name,) = clause.names
        is_split = clause.group == "" and name in SPLIT
        return full_amounts(world.snapshot, name, wanted.topology if is_split else None, budget)

    return TriedRelaxations(world.snapshot, wanted.request, serving, amounts, budget)


_MAX_SAID: Final = 5
"""Of all that a reservation holds so much is named."""


def refusal(wanted: Sequence[WantedClaim], unplaced: UnplacedClaim, budget: SearchBudget) -> NoCandidate:
    """Why the first of those without a place has none."""
    each, world = wanted[unplaced.number], unplaced.world
    prefix = _no_candidate(wanted, unplaced)
    ways = [each] if each.fallback is None else [each, replace(each, request=each.fallback)]
    left, left_out = _hosts_left(world, ways)
    snapshot = _without_pools(world.snapshot, each)
    try:
        found = [explain(snapshot, way.request, budget, left, relaxing=each.topology is None) for way in ways]
    except BudgetExhausted:
        return NoCandidate(f"{prefix}; why would take too long to find out.", None)
    found = [_try_relaxations(world, *both, budget) for both in zip(ways, found, strict=True)]
    found = [_mark_avoided(world.snapshot, each, explanation) for explanation in found]
    texts = list(map(sentence, found))
    if left_out and not left:
        said = f"no host may be chosen: {_count_hosts(left_out)}"
    else:
        if each.topology is not None:
            split = [_explain_split(world, *both, budget) for both in zip(ways, found, strict=True)]
            found, texts = [explanation for explanation, _ in split], [text for _, text in split]
        said = of_both(*texts)
        if each.topology is None and any(explanation.fitting for explanation in found):
            said = f"all hosts that would do are left out by its group; without that: {said}"
        if left_out:
            said += f"; {_count_hosts(left_out)}"
    shown = {
        "microversion": microversion.text(each.version),
        **document(*found),
        "sentence": said,
        "warnings": list(each.warnings),
    }
    warned = f" Of the flavor was ignored: {'; '.join(each.warnings)}." if each.warnings else ""
    return NoCandidate(f"{prefix}: {said}.{warned}", shown)


def _try_relaxations(
    world: ClaimScenario, wanted: WantedClaim, explanation: RequestExplanation, budget: SearchBudget
) -> RequestExplanation:
    """The explanation with only the relaxations with which there is a place, and as many hosts as have one.

    Where nothing shares, the hosts that are left tell that. Else a choice may take of a pool that is avoided,
    or be of pools alone, which its group may not allow.
    """
    if SHARES not in world.snapshot.by_trait or (not wanted.avoid and wanted.group is None):
        return explanation
    kept = list[RequestRelaxation]()
    tried = map(tried_relaxations(world, wanted, budget).try_change, explanation.relaxations)
    is_complete = gather((each for each in tried if each is not None), kept)
    incomplete = dict.fromkeys((*explanation.incomplete, *([] if is_complete else ["relaxations"])))
    return replace(explanation, relaxations=tuple(kept), incomplete=tuple(incomplete))


def _explain_split(
    world: ClaimScenario, wanted: WantedClaim, explanation: RequestExplanation, budget: SearchBudget
) -> tuple[RequestExplanation, str]:
    """Why there is no place by a topology: the explanation without one, with what would help with it."""
    changes, others = list[RequestRelaxation](), list[TopologyPolicy]()
    is_complete = gather(topologies(world, wanted, budget), others) and gather(
        tried_relaxations(world, wanted, budget).find_changes(), changes
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
    """The refusal of a claim for which a reservation does not hold enough."""
    holds = ", ".join(
        f"{held.used} {held.resource_class} of {held.provider}" for held in reserved[:_MAX_SAID]
    )
    more = f" and {len(reserved) - _MAX_SAID} more" if len(reserved) > _MAX_SAID else ""
    return NoCandidate(
        f"{_no_candidate(wanted, unplaced)} within the reservation, which holds {holds}{more}.",
        None,
    )


def _hosts_left(
    world: ClaimScenario, ways: Sequence[WantedClaim]
) -> tuple[frozenset[int], Mapping[str, int]]:
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


def _mark_avoided(
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


def _count_hosts(left_out: Mapping[str, int]) -> str:
    (first, count), *others = left_out.items()
    said = f"{plural(count, 'host')} {'is' if count == 1 else 'are'} left out by {first}"
    return said + "".join(f", {number:,} by {by}" for by, number in others)


def _no_candidate(wanted: Sequence[WantedClaim], unplaced: UnplacedClaim) -> str:
    each = wanted[unplaced.number]
    if each.owner.consumer_type == reservations.TYPE:
        return "There is no candidate for the reservation"
    which = f"claim {unplaced.number + 1} of {len(wanted)}, " if len(wanted) > 1 else ""
    return f"There is no candidate for {which}consumer {each.consumer}"
