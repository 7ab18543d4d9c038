"""Finds other times at which claims without an end time would fit, if windows are in their way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from time import thread_time
from typing import Final

from placement.exceptions import Unavailable
from placement.search.budget import BudgetExhausted
from placement.search.claims.claim import WantedClaim
from placement.search.claims.claim_context import ClaimContext, possible_providers
from placement.search.claims.longest_stay import StaySpan, find_latest_end
from placement.search.claims.window_search import WindowSearch
from placement.search.claims.windows_in_way import WITHOUT_END
from placement.store.booking_limits import BookingLimits
from placement.store.groups import Members
from placement.store.time_profile import MAX_AHEAD
from placement.store.time_shifts import MIN_STAY, TimeShifts

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
            budget = context.make_budget(timed.view, seconds / 2)
            latest = find_latest_end(
                timed.view.snapshot, timed.skylines, members, wanted, span, budget, context.rng
            )
    except Unavailable:
        return TimeShifts()
    earliest = None
    if not members:
        rest = replace(context, reason_seconds=end - thread_time())
        # no limit of reservations applies to claims
        earliest = WindowSearch(rest).find_earliest(wanted, WITHOUT_END, BookingLimits())
    return TimeShifts(earliest, latest)
