"""Searches for times at which claims fit.

``POST /ext/v1/availability`` asks for the earliest windows. The refusal of claims without an end time names
other times at which they would fit (:func:`find_shifts`), if windows are in their way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from time import thread_time
from typing import Final

from placement.db import clock
from placement.exceptions import Conflict, InvalidRequest, NoCandidate, Unavailable
from placement.search.budget import BudgetExhausted
from placement.search.claims.availability import (
    NEVER,
    FreeWindow,
    StartSpan,
    during_window,
    find_free,
    find_joint,
    place_in_window,
    times_by_way,
)
from placement.search.claims.claim import ClaimScenario, WantedClaim
from placement.search.claims.claim_context import (
    ClaimContext,
    check_claim_names,
    possible_providers,
)
from placement.search.claims.host_rooms import HostTimes, TimedSearch
from placement.search.claims.longest_stay import StaySpan, find_latest_end
from placement.search.claims.placement import UnplacedClaim, place_claims
from placement.search.claims.refusal import (
    WITHOUT_END,
    claim_refusal,
    describe_overlaps,
    overlapping_providers,
)
from placement.store.booking_limits import BookingLimits
from placement.store.claims import MIN_STAY, TimeShifts
from placement.store.groups import Members
from placement.store.time_profile import MAX_AHEAD, TimeWindow, iso_time
from placement.store.time_skyline import whole_milliseconds


@dataclass(frozen=True, slots=True)
class WantedTime:
    """The ``duration`` of a wanted window, in seconds, and the times between which it has to lie.

    Without ``not_before``, the window may begin now. Without ``deadline``, it may begin as late as the
    service allows.
    """

    duration: float
    not_before: float | None = None
    deadline: float | None = None

    def span_at(self, now: float, limits: BookingLimits) -> StartSpan:
        """Return the possible starts of the window.

        :raises InvalidRequest: no start is possible.
        :raises Conflict: a limit excludes every start.
        """
        begin = whole_milliseconds(now if self.not_before is None else max(now, self.not_before))
        last = now + MAX_AHEAD
        if self.deadline is not None:
            # sums of floats differ from the decimal numbers of a body by less than a microsecond
            last = min(last, self.deadline - self.duration + 1e-6)
        if begin > last:
            raise InvalidRequest(
                "No window of this duration lies between not_before and deadline, and begins within"
                f" {MAX_AHEAD / 86_400:.0f} days; the time of the database is {iso_time(now)}."
            )
        limits.check_time(TimeWindow(begin, begin + self.duration), now)
        if limits.max_ahead is not None:
            last = min(last, now + limits.max_ahead)
        return StartSpan(begin, last, self.duration)


@dataclass(frozen=True, slots=True)
class FoundWindows:
    """The free windows of a search, or its refusal; ``is_complete`` is False if time ran out."""

    windows: Sequence[FreeWindow]
    is_complete: bool = True
    refusal: NoCandidate | None = None


def search_windows(
    context: ClaimContext,
    wanted: Sequence[WantedClaim],
    time: WantedTime,
    limit: int,
    limits: BookingLimits,
    *,
    explain: bool = False,
    is_repeated: bool = False,
) -> FoundWindows:
    """Return the earliest windows in which the claims of new consumers fit at the same time.

    :param limits: the limits on reservations, of which only duration and horizon apply, because the
        search has no project.
    :param explain: whether a refusal explains why no window can ever suffice.
    :param is_repeated: whether an earlier search found nothing while windows changed.
    :raises InvalidRequest: a resource class, trait or root that a claim names does not exist, no start
        is possible, or the search takes too long to find any window.
    """
    found: list[FreeWindow] = []
    try:
        concerned = possible_providers(context.model, wanted)
        with context.database.read() as conn:
            now = clock.server_time(conn)
        try:
            span = time.span_at(now, limits)
        except Conflict as refused:
            return FoundWindows((), refusal=NoCandidate(refused.detail, None))
        with context.timetable.fresh_view(concerned, context.check_awaited) as timed:
            check_claim_names(timed.view, wanted)
            search = context.search_in(timed, context.search_seconds)
            ways = ways_of(search, wanted, span)
            found += islice(find_each_window(search, wanted, span, ways), limit)
            if found:
                return FoundWindows(found)
            reasons = context.search_in(timed, context.reason_seconds)
            refusal, depends_on_time = _explain_times(reasons, wanted, span, ways, explain=explain)
            ahead, some = TimeWindow(span.begin, span.last + span.duration), list[str]()
            if depends_on_time:
                some = overlapping_providers(search.snapshot, search.skylines, wanted, ahead)
    except BudgetExhausted:
        if not found:
            raise InvalidRequest.too_long(
                "No window was found",
                context.search_seconds,
                "candidates_deadline",
                ": name hosts in allowed_hosts, or ask for fewer claims or groups, or a nearer deadline.",
            ) from None
        return FoundWindows(found, is_complete=False)
    # the answer is only advice, so one repetition suffices
    if not is_repeated and context.timetable.has_changed(timed):
        return search_windows(context, wanted, time, limit, limits, explain=explain, is_repeated=True)
    if some:
        refusal.add_overlaps(describe_overlaps(context.database, some, wanted, ahead))
    return FoundWindows(found, refusal=refusal)


def find_earliest(
    context: ClaimContext, wanted: Sequence[WantedClaim], refused: TimeWindow, limits: BookingLimits
) -> float | None:
    """Return the earliest start of a refused window, at which its claims fit for the same duration.

    The result is None if the search finds no start that the limits allow, within the time for the reasons
    of a refusal.

    :param refused: the held time of the window; no earlier start is searched.
    """
    # answers show milliseconds
    time = WantedTime(round(refused.duration_seconds, 3), refused.starts_at)
    # only the time is searched, so the best host does not matter
    wanted = [replace(each, order=(), window=None) for each in wanted]
    # the refusal is certain, so no error of this search may replace it
    with suppress(BudgetExhausted, Conflict, InvalidRequest, Unavailable):
        concerned = possible_providers(context.model, wanted)
        with context.database.read() as conn:
            span = time.span_at(clock.server_time(conn), limits)
        with context.timetable.fresh_view(concerned, context.check_awaited) as timed:
            search = context.search_in(timed, context.reason_seconds)
            for found in find_each_window(search, wanted, span, ways_of(search, wanted, span)):
                return found.starts_at
    return None


def _explain_times(
    search: TimedSearch,
    wanted: Sequence[WantedClaim],
    span: StartSpan,
    ways: Sequence[HostTimes],
    *,
    explain: bool,
) -> tuple[NoCandidate, bool]:
    """Return why no window is free: the claims fit on no host, or other consumers use all resources.

    The second value tells whether windows, or claims that end, use these resources.

    :param search: a search with the time for the reasons of a refusal.
    :param ways: the host times of a single claim.
    """
    # the claims have the most room without any timed amounts. If this test takes too long, the windows
    # remain as the likely reason
    with suppress(BudgetExhausted):
        unplaced = _never_placed(search, wanted, ways, explain=explain)
        if isinstance(unplaced, UnplacedClaim):
            refusal = claim_refusal(wanted, unplaced, search.budget)
            refusal.detail += " Windows, and claims that end, are not the reason."
            return refusal, False
        if unplaced:
            refusal = NoCandidate(
                "No host has room for the request at any time, even without all windows and claims"
                " that end. With 'explain', the answer has the reasons.",
                None,
            )
            return refusal, False
    until = iso_time(span.last + span.duration)
    refusal = NoCandidate(
        f"No window of {span.duration:.0f} seconds is free between {iso_time(span.begin)} and {until}.",
        None,
    )
    return refusal, True


def _never_placed(
    search: TimedSearch, wanted: Sequence[WantedClaim], ways: Sequence[HostTimes], *, explain: bool
) -> UnplacedClaim | bool:
    """Return whether the claims would fit on no host even without any timed amounts.

    :param explain: return the claim without a place, if there is one.
    """
    is_alone = len(wanted) == 1
    if is_alone:
        # few hosts are read for a single claim
        if place_in_window(search, wanted[0], NEVER, ways, NEVER.starts_at):
            return False
        # computing the usage of all hosts without timed amounts costs more than the search
        if not explain:
            return True
    world = ClaimScenario.from_members(during_window(search, NEVER), {}, wanted)
    placed = UnplacedClaim(0, world) if is_alone else place_claims(world, wanted, search.budget, search.rng)
    if not isinstance(placed, UnplacedClaim):
        return False
    return placed if explain else True


def ways_of(search: TimedSearch, wanted: Sequence[WantedClaim], span: StartSpan) -> Sequence[HostTimes]:
    """Return the host times of a single claim; several claims have none."""
    return times_by_way(search, wanted[0], span.duration) if len(wanted) == 1 else ()


def find_each_window(
    search: TimedSearch, wanted: Sequence[WantedClaim], span: StartSpan, ways: Sequence[HostTimes]
) -> Iterator[FreeWindow]:
    """Return the windows of claims; those of a single claim are host by host."""
    if len(wanted) > 1:
        return find_joint(search, wanted, span)
    return find_free(search, wanted[0], span, ways)


# a refusal without these times is better than a late one
_MAX_WAIT: Final = 0.5
"""Maximum seconds for which a refusal waits for timed amounts that are not in memory yet."""


def find_shifts(
    context: ClaimContext, wanted: Sequence[WantedClaim], members: Members, seconds: float
) -> TimeShifts:
    """Return other times at which refused claims of new consumers have places.

    The earliest start of claims that join a group with members is not searched, because it is unknown which
    members the group will have then.

    :param members: the present members of the groups that the claims join.
    :param seconds: maximum CPU time of the search.
    """
    end, latest = thread_time() + seconds, None
    # the shifts are only advice, so no error of their search may replace the answer
    try:
        concerned = possible_providers(context.model, wanted)
        with (
            suppress(BudgetExhausted),
            context.timetable.fresh_view(concerned, context.check_awaited, max_wait=_MAX_WAIT) as timed,
        ):
            now = timed.view.clock
            span = StaySpan(now, now + MIN_STAY, math.floor(now + MAX_AHEAD))
            # the search for the earliest start uses the rest of the time
            latest = find_latest_end(context.search_in(timed, seconds / 2), members, wanted, span)
    except Unavailable:
        return TimeShifts()
    earliest = None
    if not members:
        rest = replace(context, reason_seconds=end - thread_time())
        # no limit of reservations applies to claims
        earliest = find_earliest(rest, wanted, WITHOUT_END, BookingLimits())
    return TimeShifts(earliest, latest)
