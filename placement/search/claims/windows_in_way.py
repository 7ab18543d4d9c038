"""Finds and names windows that are in the way of a request.

The room of a window counts as used as soon as the window is booked. So a request has no place on a host with
too small a rest, although nothing uses the room of the window yet. The search takes a small snapshot of some
hosts with windows ahead, without the amounts of windows and of claims with an end time. If the request fits
there, these windows and claims are in its way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Final

from placement.db.database import ServiceDatabase
from placement.exceptions import Unavailable
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted
from placement.search.claims.availability import NEVER, members_of, skylines_in, snapshot_during
from placement.search.claims.claim import ClaimScenario, WantedClaim, wanted_classes
from placement.search.claims.claim_context import RECENT, ClaimContext, possible_providers
from placement.search.claims.host_rooms import Skylines
from placement.search.claims.placement import UnplacedClaim, place_claims
from placement.search.claims.refusal import fitting_roots
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
