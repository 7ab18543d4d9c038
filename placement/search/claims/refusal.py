"""Explains why a claim cannot be placed: reasons of hosts, changes that would help, and windows in its way.

A request with a topology is explained as if the claim had no consumer. Checks of single providers do not show
whether an amount fits that is split over zones. So each change to a claim with a topology is tested by
placing the changed claim.

The room of a window counts as used as soon as the window is booked. So a request has no place on a host with
too small a rest, although nothing uses the room of the window yet. The search takes a small snapshot of some
hosts with windows ahead, without the amounts of windows and of claims with an end time. If the request fits
there, these windows and claims are in its way.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from placement import microversion
from placement.db.database import ServiceDatabase
from placement.exceptions import NoCandidate, Unavailable
from placement.read_model.provider import SHARES
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.availability import NEVER, members_of, skylines_in, snapshot_during
from placement.search.claims.claim import (
    ClaimScenario,
    WantedClaim,
    known_ids,
    sharing_providers,
    stays_at_its_host,
    wanted_classes,
)
from placement.search.claims.claim_context import RECENT, ClaimContext, possible_providers
from placement.search.claims.host_rooms import Skylines
from placement.search.claims.placement import UnplacedClaim, choices_at_hosts, place_claims
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
from placement.store.groups import Members
from placement.store.time_profile import (
    AT_ONCE,
    TimedAmount,
    TimeWindow,
    first_overlaps,
    name_overlaps,
    overlaps_sentence,
)
from placement.store.time_schedule import TimeSchedule, planned_providers, read_overlaps, read_schedule
from placement.store.time_skyline import make_skylines
from placement.store.window_room import preemptible_claims

# a message names few windows, and no reader compares the windows of a whole cloud
MAX_EXPLAINED: Final = 20
"""Maximum number of providers for which a refusal names windows."""
WITHOUT_END: Final = TimeWindow(AT_ONCE, math.inf)
"""The time of a claim without an end time."""


def fitting_roots(world: ClaimScenario, wanted: WantedClaim, budget: SearchBudget) -> Iterator[int]:
    """Yield the roots of the hosts on which the claim fits."""
    # the seed is fixed, so that equal questions get equal answers; hosts need no random order here
    roots, at = choices_at_hosts(world, wanted, budget, random.Random(0))
    for root in roots:
        if any(choice is not None for choice in at(root)):
            yield root


def looser_topologies(
    world: ClaimScenario, wanted: WantedClaim, budget: SearchBudget
) -> Iterator[TopologyPolicy]:
    """Yield the least strict topology policy, if the claim fits with that policy."""
    # only the least strict policy is tried: if it gives the claim no place, no other policy does
    most = TopologyPolicy.BEST_EFFORT
    if wanted.topology is not most:
        # one host with a place suffices
        for _ in islice(fitting_roots(world, replace(wanted, topology=most), budget), 1):
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


@dataclass(frozen=True, slots=True)
class PlannedTimes:
    """The timed amounts of some providers of which windows ahead will take amounts.

    ``providers`` has the uuids of at most :data:`MAX_EXPLAINED` such providers.
    """

    providers: Sequence[str]
    schedule: TimeSchedule

    def without_amounts(self, snapshot: ModelSnapshot) -> ModelSnapshot:
        """Return a small snapshot of the hosts of these providers, as if there were no timed amounts."""
        skylines = skylines_in(snapshot, make_skylines(self.schedule.amounts, self.schedule.holds))
        roots = {snapshot.providers[each].root_id for each in skylines}
        return snapshot_during(snapshot, roots, skylines, NEVER)


def read_planned(
    database: ServiceDatabase, wanted: Sequence[WantedClaim], possible: Collection[str] | None
) -> PlannedTimes | None:
    """Return the timed amounts of some providers with windows ahead; None if there are no such providers.

    :param possible: the uuids of the providers that the claims may use; None means all providers.
    """
    with database.read() as conn:
        providers = planned_providers(conn, wanted_classes(wanted), possible, MAX_EXPLAINED)
        if not providers:
            return None
        schedule = read_schedule(conn, {each.consumer for each in wanted}, providers)
    return PlannedTimes(providers, schedule)


@dataclass(frozen=True, slots=True)
class NamedWindow:
    """A window, or a claim with an end time, that is in the way of a request.

    ``starts_at`` is None if the consumer already holds its amounts. ``amounts`` are those of the wanted
    classes, by uuid of the provider and by class. ``roots`` are the uuids of the roots of these providers.
    """

    consumer: str
    starts_at: float | None
    ends_at: float
    roots: Sequence[str]
    amounts: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class WindowsInWay:
    """Windows, and claims with an end time, without which a request would have a place.

    ``text`` names ``windows``, and tells whether there are others.
    """

    windows: Sequence[NamedWindow] = ()
    text: str = ""


def find_windows_in_way(context: ClaimContext, wanted: WantedClaim, seconds: float) -> WindowsInWay | None:
    """Return some windows without which a request that has no place now would have a place.

    :param seconds: maximum CPU time of the search.
    :returns: None if the time is spent before any host with room is found.
    """
    planned = read_planned(context.database, [wanted], None)
    if planned is None:
        return WindowsInWay()
    with context.model.recent_view(RECENT) as view:
        empty = planned.without_amounts(view.snapshot)
        world = ClaimScenario.from_members(empty, {}, [wanted])
        budget, roots, is_complete = context.make_budget(view, seconds), set[int](), False
        with suppress(BudgetExhausted):
            for way in wanted.all_ways:
                roots.update(fitting_roots(world, way, budget))
            is_complete = True
    if not roots:
        return WindowsInWay() if is_complete else None
    names = wanted_classes([wanted])
    hosts = {each.uuid: empty.providers[each.root_id].uuid for each in members_of(empty, roots)}
    amounts = [
        each for each in planned.schedule.amounts if each.provider in hosts and each.resource_class in names
    ]
    shown, left = first_overlaps(amounts, WITHOUT_END)
    return WindowsInWay(
        [_named_window(each, amounts, hosts) for each in shown],
        # further hosts may have other windows
        name_overlaps(shown, left if is_complete and len(planned.providers) < MAX_EXPLAINED else None),
    )


def _named_window(shown: TimedAmount, amounts: Sequence[TimedAmount], hosts: dict[str, str]) -> NamedWindow:
    by_provider: dict[str, dict[str, int]] = {}
    for each in amounts:
        if (each.consumer, each.window.ends_at) == (shown.consumer, shown.window.ends_at):
            here = by_provider.setdefault(each.provider, {})
            here[each.resource_class] = here.get(each.resource_class, 0) + each.used
    return NamedWindow(
        shown.consumer,
        shown.window.starts_at if shown.is_ahead else None,
        shown.window.ends_at,
        sorted({hosts[each] for each in by_provider}),
        by_provider,
    )


def describe_windows(context: ClaimContext, wanted: Sequence[WantedClaim], members: Members) -> str:
    """Return a sentence with windows that prevent claims without an end time; empty if there are none.

    :param members: the present members of the groups that the claims join.
    """
    possible = possible_providers(context.model, wanted)
    planned = read_planned(context.database, wanted, possible)
    if planned is None:
        return ""
    with context.model.recent_view(RECENT) as view:
        empty = planned.without_amounts(view.snapshot)
        budget = context.make_budget(view, context.reason_seconds)
        with suppress(BudgetExhausted):
            world = ClaimScenario.from_members(empty, members, wanted)
            if isinstance(place_claims(world, wanted, budget, context.rng), UnplacedClaim):
                return ""
    return name_amounts(planned.schedule.amounts, planned.providers, wanted, WITHOUT_END)


def describe_overlaps(
    database: ServiceDatabase, providers: Sequence[str], wanted: Sequence[WantedClaim], window: TimeWindow
) -> str:
    """Return a sentence that names timed amounts of other consumers that overlap a window.

    The sentence is a part of a refusal. It is empty if the database does not answer.
    """
    # the refusal is certain, so a failure of the database after it must not replace it
    with suppress(Unavailable), database.read() as conn:
        amounts = read_overlaps(conn, window, {each.consumer for each in wanted}, providers)
        return name_amounts(amounts, providers, wanted, window, lambda some: preemptible_claims(conn, some))
    return ""


def name_amounts(
    amounts: Iterable[TimedAmount],
    providers: Sequence[str],
    wanted: Sequence[WantedClaim],
    window: TimeWindow,
    choose_preemptible: Callable[[Collection[str]], Collection[str]] = lambda _: (),
) -> str:
    """Return a sentence that names timed amounts of these providers during a window.

    :param choose_preemptible: a function that returns those of some consumers that have preemptible claims.
    """
    names = wanted_classes(wanted)
    some = [each for each in amounts if each.resource_class in names]
    return overlaps_sentence(some, window, choose_preemptible, are_all=len(providers) < MAX_EXPLAINED)


def overlapping_providers(
    snapshot: ModelSnapshot, skylines: Skylines, wanted: Sequence[WantedClaim], window: TimeWindow
) -> list[str]:
    """Return the uuids of some providers with timed amounts of the wanted classes during a window."""
    names = wanted_classes(wanted)
    found = (
        snapshot.providers[each].uuid
        for each, here in skylines.items()
        if any(name in names and skyline.largest_sum(window) for name, skyline in here.items())
    )
    return list(islice(found, MAX_EXPLAINED))
