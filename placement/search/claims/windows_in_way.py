"""Finds windows without which a request without an end time would have a place.

The room of a window counts as used as soon as the window is booked. So a request has no place on a host with
too small a rest, although nothing uses the room of the window yet. The search takes a small snapshot of some
hosts with windows ahead, without the amounts of windows and of claims with an end time. If the request fits
there, these windows and claims are in its way.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from placement.db.database import ServiceDatabase
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted
from placement.search.claims.availability import NEVER, members_of, skylines_in, snapshot_during
from placement.search.claims.claim import ClaimScenario, WantedClaim
from placement.search.claims.claim_context import MAX_EXPLAINED, RECENT, ClaimContext, wanted_classes
from placement.search.claims.refusal import fitting_roots
from placement.store.time_profile import AT_ONCE, TimedAmount, TimeWindow, first_overlaps, name_overlaps
from placement.store.time_schedule import TimeSchedule, planned_providers, read_schedule
from placement.store.time_skyline import make_skylines

WITHOUT_END: Final = TimeWindow(AT_ONCE, math.inf)
"""The time of a claim without an end time."""


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
            for request in wanted.all_requests:
                roots.update(fitting_roots(world, replace(wanted, request=request), budget))
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
