"""Finds places of windows for which preemptible claims end early (:mod:`placement.store.preemptions`).

This search runs only if the usual search has found no place. It reads the preemptible claims between two
views of the read model, so that no other request waits for the database. The transaction of the booking
checks all these claims again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import thread_time

from placement.search.claims.availability import allowed_roots, members_of, place_during, skylines_in
from placement.search.claims.claim import WantedClaim, taken_amounts
from placement.search.claims.claim_context import ClaimContext, wanted_classes
from placement.search.claims.host_rooms import NO_SKYLINES
from placement.search.claims.longest_stay import StaySpan
from placement.search.claims.placement import PlacedClaim
from placement.store.preemptions import any_preemptible, choose_preempted, read_preemptible
from placement.store.time_skyline import make_skylines


def place_preempting(
    context: ClaimContext, wanted: Sequence[WantedClaim], span: StaySpan, seconds: float
) -> list[PlacedClaim]:
    """Return places of a window's claims; the first place has the preemptible claims that have to end.

    The result is empty if there are no places.

    :param span: the time of the window from now on.
    :param seconds: the limit of CPU time.
    """
    window, end = span.shortest_window, thread_time() + seconds
    with context.database.read() as conn:
        if not any_preemptible(conn, span.begin):
            return []
    # equal claims are the same object
    distinct = {id(each): each for each in wanted}.values()
    with context.timetable.fresh_view((), context.check_awaited) as timed:
        snapshot = timed.view.snapshot
        budget = context.make_budget(timed.view, seconds)
        roots = {root for each in distinct for root in allowed_roots(snapshot, each, budget)}
        possible = {each.uuid for each in members_of(snapshot, roots)}
        # if all providers are possible, one statement without a condition on providers reads their claims
        concerned = None if len(possible) == len(snapshot.providers) else possible
    with context.database.read() as conn:
        lent = read_preemptible(conn, wanted_classes(distinct), concerned, span.begin)
    if lent is None:
        return []
    shortened = make_skylines(lent.shortened_amounts, lent.schedule.holds)
    with context.timetable.fresh_view(concerned, context.check_awaited) as timed:
        snapshot = timed.view.snapshot
        budget = context.make_budget(timed.view, end - thread_time())
        skylines = {**timed.skylines, **skylines_in(snapshot, shortened)}
        placed = place_during(snapshot, skylines, {}, wanted, window, budget, context.rng)
        if not placed:
            return []
        limits = {
            (snapshot.providers[provider_id].uuid, name): (
                snapshot.providers[provider_id].free(name) + skyline.counted - amount
            )
            for (provider_id, name), amount in taken_amounts(each.choice for each in placed).items()
            if (skyline := skylines.get(provider_id, NO_SKYLINES).get(name)) is not None
        }
        preempted = choose_preempted(lent, limits, window, budget.spend)
    first, *others = placed
    return [] if preempted is None else [replace(first, preempted=preempted), *others]
