"""Explains why a claim cannot be placed, with the reasons of hosts, and with changes that would help.

A request with a topology is explained as if the claim had no consumer. Checks of single providers do not show
whether an amount fits that is split over zones. So each change to a claim with a topology is tested by
placing the changed claim.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from placement import microversion
from placement.exceptions import NoCandidate
from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.claim import (
    ClaimScenario,
    WantedClaim,
    known_ids,
    sharing_providers,
    stays_at_its_host,
)
from placement.search.claims.placement import UnplacedClaim, choices_at_hosts
from placement.search.claims.split_choices import full_amounts, is_splittable
from placement.search.claims.topology import SPLIT, TopologyPolicy
from placement.search.diagnosis.clauses import RequestClause
from placement.search.diagnosis.explanation import (
    NearestMiss,
    RequestExplanation,
    TopologyFit,
    explain_request,
    gather_found,
)
from placement.search.diagnosis.relaxations import RequestRelaxation, TriedRelaxations
from placement.search.diagnosis.sentences import (
    counted_noun,
    explanation_document,
    explanation_sentence,
    of_both,
)
from placement.search.request import CandidatesRequest
from placement.store import allocations


def fitting_roots(world: ClaimScenario, wanted: WantedClaim, budget: SearchBudget) -> Iterator[int]:
    """Yield the roots of the hosts on which the claim fits."""
    # the seed is fixed, so that equal questions get equal answers; hosts need no random order here
    roots, at = choices_at_hosts(world, wanted, budget, random.Random(0))
    for root in roots:
        if any(choice is not None for choice in at(root)):
            yield root


def has_place(world: ClaimScenario, wanted: WantedClaim, budget: SearchBudget) -> bool:
    """Return whether the claim fits on some host."""
    return next(fitting_roots(world, wanted, budget), None) is not None


def looser_topologies(
    world: ClaimScenario, wanted: WantedClaim, budget: SearchBudget
) -> Iterator[TopologyPolicy]:
    """Yield the least strict topology policy, if the claim fits with that policy."""
    # only the least strict policy is tried: if it gives the claim no place, no other policy does
    most = TopologyPolicy.BEST_EFFORT
    if wanted.topology is not most and has_place(world, replace(wanted, topology=most), budget):
        yield most


def tried_relaxations(world: ClaimScenario, wanted: WantedClaim, budget: SearchBudget) -> TriedRelaxations:
    """Return a search for changes that let a claim fit, which tries to place the claim with each change."""

    def serving_roots(changed: CandidatesRequest) -> Iterator[int]:
        # a relaxed claim still has to ask for a class that the topology can split
        if wanted.topology is None or is_splittable(changed):
            yield from fitting_roots(world, replace(wanted, request=changed), budget)

    def amounts_to_try(clause: RequestClause) -> set[int]:
        # a clause about resources names exactly one class
        (name,) = clause.names
        is_split = clause.group == "" and name in SPLIT
        return full_amounts(world.snapshot, name, wanted.topology if is_split else None, budget)

    return TriedRelaxations(world.snapshot, wanted.request, serving_roots, amounts_to_try, budget)


_MAX_SAID: Final = 5
"""Maximum number of allocations of a reservation that a message names."""


def claim_refusal(
    wanted: Sequence[WantedClaim], unplaced: UnplacedClaim, budget: SearchBudget
) -> NoCandidate:
    """Return the error for the first claim that cannot be placed, with the explanation."""
    each, world = wanted[unplaced.number], unplaced.world
    prefix = _no_candidate(wanted, unplaced)
    # both the request and its fallback are explained, because an operator cannot know which of the two
    # matters
    ways = each.all_ways
    left, left_out = _hosts_left(world, ways)
    # an avoided sharing provider gives nothing, whichever host it shares with
    snapshot = _without_pools(world.snapshot, each)
    try:
        found = [
            explain_request(snapshot, way.request, budget, left, relaxing=each.topology is None)
            for way in ways
        ]
    # the refusal is certain, so the client does not wait for further reasons
    except BudgetExhausted:
        return NoCandidate(f"{prefix}; the reasons would take too long to find.", None)
    found = [_try_relaxations(world, *both, budget) for both in zip(ways, found, strict=True)]
    # in this snapshot avoided sharing providers only look full, so the explanation has to call them avoided
    found = [_mark_avoided(world.snapshot, each, explanation) for explanation in found]
    # if the claim excludes all hosts, there is no host that a search could explain
    if left_out and not left:
        said = f"no host may be chosen: {_count_hosts(left_out)}"
    else:
        if each.topology is not None:
            no_place = TopologyFit(each.topology, 0, 0)
            found = [_explain_split(world, *both, no_place, budget) for both in zip(ways, found, strict=True)]
        said = of_both(*map(explanation_sentence, found))
        # the explanation ignores groups, so its fitting hosts include hosts that the policy of the group
        # excludes
        if each.topology is None and any(explanation.fitting for explanation in found):
            said = f"{_full_reason(each)} excludes all hosts that fit; otherwise: {said}"
        if left_out:
            said += f"; {_count_hosts(left_out)}"
    shown = {
        "microversion": microversion.text(each.version),
        **explanation_document(*found),
        # these two fields replace those of the document, because the document ignores groups and excluded
        # hosts
        "summary": said,
        "warnings": list(each.warnings),
    }
    warned = f" Ignored parts of the flavor: {'; '.join(each.warnings)}." if each.warnings else ""
    return NoCandidate(f"{prefix}: {said}.{warned}", shown)


def _try_relaxations(
    world: ClaimScenario, wanted: WantedClaim, explanation: RequestExplanation, budget: SearchBudget
) -> RequestExplanation:
    """Return the explanation with only those relaxations after which the claim can be placed.

    Without sharing providers, each relaxation helps the claim. With sharing providers, a choice for the
    relaxed request perhaps uses an avoided sharing provider. Or the choice takes all amounts from sharing
    providers, although the group of the claim does not allow these hosts.
    """
    # a test places the whole claim again, so relaxations are tested only if sharing providers could make them
    # fail
    if SHARES not in world.snapshot.by_trait or (not wanted.avoid and wanted.group is None):
        return explanation
    kept = list[RequestRelaxation]()
    tried = map(tried_relaxations(world, wanted, budget).try_change, explanation.relaxations)
    is_complete = gather_found((each for each in tried if each is not None), kept)
    incomplete = dict.fromkeys((*explanation.incomplete, *([] if is_complete else ["relaxations"])))
    return replace(explanation, relaxations=tuple(kept), incomplete=tuple(incomplete))


def explain_topology(
    snapshot: ModelSnapshot, wanted: WantedClaim, budget: SearchBudget
) -> RequestExplanation:
    """Return the explanation of a request with a topology, as a claim without a consumer.

    :raises BudgetExhausted: the budget did not suffice for the conditions on single providers.
    """
    world = ClaimScenario.from_members(snapshot, {}, [wanted])
    explanation = explain_request(snapshot, wanted.request, budget, relaxing=False)
    fit = _count_fitting(world, wanted, explanation.hosts, budget)
    return _explain_split(world, wanted, explanation, fit, budget)


def _count_fitting(
    world: ClaimScenario, wanted: WantedClaim, hosts: int, budget: SearchBudget
) -> TopologyFit:
    """Return the number of hosts on which the claim fits, or bounds of it if the budget is spent."""
    fitting, left = 0, hosts
    with suppress(BudgetExhausted):  # hosts that were not tried may have a place
        roots, at = choices_at_hosts(world, wanted, budget, random.Random(0))
        possible = list(roots)
        left = len(possible)
        for root in possible:
            has_choice = any(choice is not None for choice in at(root))
            fitting += has_choice
            left -= not has_choice
    return TopologyFit(str(wanted.topology), fitting, left)


def _explain_split(
    world: ClaimScenario,
    wanted: WantedClaim,
    explanation: RequestExplanation,
    fit: TopologyFit,
    budget: SearchBudget,
) -> RequestExplanation:
    """Return the explanation with the hosts that fit the topology, and with changes that would help."""
    # these lists grow with each result, so that earlier results remain if the budget ends
    changes, others, incomplete = (
        list[RequestRelaxation](),
        list[TopologyPolicy](),
        list(explanation.incomplete),
    )
    # if the two bounds differ, some hosts were not tried
    if fit.fitting < fit.at_most:
        incomplete.append("topology")
    # no change is needed if the request has a place
    is_complete = bool(fit.fitting) or (
        # looser policies come first: such a policy is the smallest change, and one search tests it
        not fit.at_most
        and gather_found(looser_topologies(world, wanted, budget), others)
        and gather_found(tried_relaxations(world, wanted, budget).find_changes(), changes)
    )
    if not is_complete:
        incomplete.append("relaxations")
    return replace(
        explanation,
        relaxations=tuple(changes),
        incomplete=tuple(dict.fromkeys(incomplete)),
        topology=replace(fit, looser=next(iter(others), None)),
    )


def reservation_refusal(
    wanted: Sequence[WantedClaim], unplaced: UnplacedClaim, reserved: Sequence[allocations.Allocation]
) -> NoCandidate:
    """Return the error for a claim that has no place within the amounts of its reservation."""
    # the message names only some hosts, because a reservation may have a thousand
    holds = ", ".join(
        f"{held.used} {held.resource_class} of {held.provider}" for held in reserved[:_MAX_SAID]
    )
    more = f" and {len(reserved) - _MAX_SAID} more" if len(reserved) > _MAX_SAID else ""
    return NoCandidate(
        f"{_no_candidate(wanted, unplaced)} within the reservation, which holds {holds or 'nothing'}{more}.",
        None,
    )


def _hosts_left(
    world: ClaimScenario, ways: Sequence[WantedClaim]
) -> tuple[frozenset[int], Mapping[str, int]]:
    """Return the roots of the hosts that a claim allows, and how many hosts each of its fields excludes."""
    wanted = ways[0]
    snapshot, group, beside = world.snapshot, wanted.group, world.members_beside(wanted.group)
    left, left_out = set(snapshot.roots()), dict[str, int]()
    # the size of the group is checked only if each choice stays at its host; otherwise roots of sharing
    # providers would also count as hosts of the group
    full = set[int]()
    if group is not None and all(stays_at_its_host(snapshot, way.request) for way in ways):
        full = {root for root in left if not group.allows_hosts((root,), beside)}
    # each excluded host counts only for the first reason that applies
    for by, roots in (
        ("allowed_hosts", left - known_ids(snapshot, wanted.only) if wanted.only is not None else set()),
        ("excluded_hosts", known_ids(snapshot, wanted.avoid)),
        (_full_reason(wanted), full),
    ):
        if gone := left & roots:
            left_out[by] = len(gone)
            left -= gone
    return frozenset(left), left_out


def _full_reason(wanted: WantedClaim) -> str:
    """Return the words for the reason that excludes hosts because of other claims there."""
    # the claims of a reservation join no group that a client knows
    return "different_hosts" if wanted.is_reservation else "its group"


def _without_pools(snapshot: ModelSnapshot, wanted: WantedClaim) -> ModelSnapshot:
    """Return the snapshot in which sharing providers of avoided hosts have no free amounts."""
    # most claims avoid nothing, and need no copy of the snapshot
    if not wanted.avoid:
        return snapshot
    avoided = known_ids(snapshot, wanted.avoid)
    used = {
        pool.id: {name: inventory.capacity for name, inventory in pool.inventories.items()}
        for pool in sharing_providers(snapshot)
        if pool.root_id in avoided
    }
    return snapshot.with_usage(used) if used else snapshot


def _mark_avoided(
    snapshot: ModelSnapshot, wanted: WantedClaim, explanation: RequestExplanation
) -> RequestExplanation:
    """Change the explanation so that avoided sharing providers are called "avoided" instead of full."""
    avoided = known_ids(snapshot, wanted.avoid)

    def is_avoided(miss: NearestMiss) -> bool:
        return miss.provider is not None and miss.provider.root_id in avoided

    reasons = tuple(
        replace(
            each,
            examples=tuple(replace(miss, found=None) if is_avoided(miss) else miss for miss in each.examples),
            # the usage of avoided providers was set to their capacity, so only reasons about capacity can
            # come from them
            is_avoided=each.clause.condition == "capacity" and is_avoided(each.examples[0]),
        )
        for each in explanation.reasons
    )
    return replace(explanation, reasons=reasons) if avoided else explanation


def _count_hosts(left_out: Mapping[str, int]) -> str:
    (first, count), *others = left_out.items()
    said = f"{counted_noun(count, 'host')} {'is' if count == 1 else 'are'} excluded by {first}"
    return said + "".join(f", {number:,} by {by}" for by, number in others)


def _no_candidate(wanted: Sequence[WantedClaim], unplaced: UnplacedClaim) -> str:
    each = wanted[unplaced.number]
    if each.is_reservation:
        # a claim of a search for windows has no consumer
        whole = "reservation" if each.consumer else "request"
        if len(wanted) == 1:
            return f"There is no candidate for the {whole}"
        # claims with a count are repetitions of the same object
        number = len({id(one) for one in wanted[: unplaced.number + 1]})
        beside = f" in addition to {unplaced.number} that fit" if unplaced.number else ""
        return (
            f"There is no candidate for claim {number} of the {whole}{beside}, of {len(wanted)} with counts"
        )
    which = f"claim {unplaced.number + 1} of {len(wanted)}, " if len(wanted) > 1 else ""
    return f"There is no candidate for {which}consumer {each.consumer}"
