"""Finds places of windows for which preemptible claims end early (:mod:`placement.store.preemptions`).

This search follows a search without a place, so a booking with free room never pays for it. It reads the
claims between two views of the read model, so that no other request waits for the database. The transaction
that books checks all of them again.
"""

from __future__ import annotations

from dataclasses import replace
from time import thread_time

from placement.search.claims.availability import allowed_roots, during_window, members_of, skylines_in
from placement.search.claims.claim import ClaimScenario, WantedClaim
from placement.search.claims.claim_context import ClaimContext, wanted_classes
from placement.search.claims.host_rooms import NO_SKYLINES
from placement.search.claims.longest_stay import StaySpan
from placement.search.claims.placement import PlacedClaim, UnplacedClaim, place_claims
from placement.store.preemptions import choose_preempted, read_preemptible
from placement.store.time_skyline import make_skylines


def place_preempting(
    context: ClaimContext, wanted: WantedClaim, span: StaySpan, seconds: float
) -> list[PlacedClaim]:
    """Return the place of a window, with the preemptible claims that have to end; empty if there is no place.

    :param span: the time of the window from now on.
    :param seconds: the limit of CPU time.
    :raises BudgetExhausted: the time is spent.
    """
    window, end = span.shortest_window, thread_time() + seconds
    with context.timetable.fresh_view((), context.check_awaited) as timed:
        snapshot = timed.view.snapshot
        budget = context.make_budget(timed.view, seconds)
        roots = allowed_roots(snapshot, wanted, budget)
        possible = {each.uuid for each in members_of(snapshot, roots)}
        # without conditions one statement reads the claims of all providers
        concerned = None if len(possible) == len(snapshot.providers) else possible
    with context.database.read() as conn:
        lent = read_preemptible(conn, wanted_classes([wanted]), concerned, span.begin)
    if lent is None:
        return []
    shortened = make_skylines(lent.shortened_amounts, lent.schedule.holds)
    with context.timetable.fresh_view(concerned, context.check_awaited) as timed:
        snapshot = timed.view.snapshot
        budget = context.make_budget(timed.view, end - thread_time())
        skylines = {**timed.skylines, **skylines_in(snapshot, shortened)}
        during = during_window(snapshot, skylines, window)
        placed = place_claims(ClaimScenario.from_members(during, {}, [wanted]), [wanted], budget, context.rng)
        if isinstance(placed, UnplacedClaim):
            return []
        (one,) = placed
        limits = {
            (provider.uuid, name): snapshot.providers[provider.id].free(name) + skyline.counted - amount
            for provider, amounts in one.choice.resources
            for name, amount in amounts.items()
            if (skyline := skylines.get(provider.id, NO_SKYLINES).get(name)) is not None
        }
        preempted = choose_preempted(lent, limits, window, budget.spend)
    return [] if preempted is None else [replace(one, preempted=preempted)]
