"""Places preemptible claims where they can last longest.

A *preemptible* claim uses resources that a reservation needs later. Such a claim begins now, lasts at least a
given time, and ends when the reservation needs the resources. After the given time, a window that is booked
later may end the claim earlier (:mod:`placement.store.window_room`). A *stay* is the window of such a claim.

A stay that is possible until some end time is also possible until each earlier end time. So the longest stay
ends when timed amounts begin, or at the last possible end time. A bisection over these instants finds the
longest stay at a host. The sums of amounts of each host limit its stays
(:class:`~placement.search.claims.host_rooms.HostTimes`), so the search tests only few hosts.

A worked example
    It is 9:00. Host ``a`` is reserved from 10:00 on, host ``b`` is reserved from 12:00 on, and host ``c`` is
    full until 9:30. A claim for at least an hour, and until 18:00 at the latest, gets host ``b`` and ends at
    12:00.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from placement.exceptions import InvalidRequest
from placement.search.budget import BudgetExhausted
from placement.search.claims.availability import (
    allowed_roots,
    members_of,
    place_during,
    place_jointly,
    place_on_hosts,
)
from placement.search.claims.claim import WantedClaim, wanted_classes
from placement.search.claims.host_rooms import NO_SKYLINES, HostTimes, TimedSearch
from placement.search.claims.placement import PlacedClaim
from placement.store.groups import Members
from placement.store.time_profile import AT_ONCE, MAX_AHEAD, TimeWindow, check_window, iso_time

# a longer stay is only a preference, so the search for it must not cost much more than the search for a place
_MAX_SEARCHED: Final = 64
"""Maximum number of hosts that the search tests for a longer stay after it has found one stay."""

Stay = tuple[Sequence[PlacedClaim], float]
"""Places of claims, and the time until which the claims can stay there."""
PlaceUntil = Callable[[float], Sequence[PlacedClaim]]
"""A function that returns places where claims can stay until a given time; empty if no place is possible."""


@dataclass(frozen=True, slots=True)
class StaySpan:
    """Possible stays: they begin at ``begin``, and end between ``min_end`` and ``max_end``, both included."""

    begin: float
    min_end: float
    max_end: float

    @classmethod
    def from_wanted(cls, wanted: WantedClaim, now: float) -> StaySpan | None:
        """Return the possible stays of a claim; None if the claim has no end time.

        The only end of a claim that is not preemptible is the end of its window.

        :raises InvalidRequest: no stay is possible.
        """
        window, min_duration = wanted.window, wanted.min_duration
        if window is None:
            return None
        if min_duration is None:
            ahead = check_window(window, now)
            return cls(ahead.starts_at, ahead.ends_at, ahead.ends_at)
        # the end time is limited, because a claim without an end time would exclude all later windows from
        # its amounts. The limit is a whole second, which answers show exactly
        last = min(window.ends_at, math.floor(now + MAX_AHEAD))
        if now + min_duration > last:
            raise InvalidRequest(
                f"A preemptible claim lasts at least its min_duration, so ends_at has to be at least"
                f" {min_duration:.0f} seconds from now; the time of the database is {iso_time(now)}."
            )
        return cls(now, now + min_duration, last)

    @property
    def shortest_window(self) -> TimeWindow:
        """The shortest possible stay."""
        return TimeWindow(self.begin, self.min_end)

    def window_until(self, end: float) -> TimeWindow:
        """Return the stay that ends at this time."""
        return TimeWindow(self.begin, end)


def with_end(
    placed: Iterable[PlacedClaim], wanted: Sequence[WantedClaim], span: StaySpan, end: float
) -> list[PlacedClaim]:
    """Return placed claims with a new end time.

    :param wanted: the same claims as they were requested, with their fallbacks.
    """
    window = TimeWindow(AT_ONCE, end)
    return [
        replace(each, wanted=replace(one, window=window, kept_until=span.min_end))
        for each, one in zip(placed, wanted, strict=True)
    ]


def possible_ends(
    search: TimedSearch, providers: Iterable[int], names: Iterable[str], span: StaySpan
) -> list[float]:
    """Return the possible end times of longest stays on some providers, in ascending order."""
    found, classes = {span.max_end}, frozenset(names)
    for each in providers:
        search.budget.spend()
        for name, skyline in search.skylines.get(each, NO_SKYLINES).items():
            if name in classes:
                found.update(skyline.rises_within(span.min_end, span.max_end))
    return sorted(found)


def place_until_last(ends: Sequence[float], place: PlaceUntil, found: Stay | None = None) -> Stay | None:
    """Return the places for the latest possible end time, with this time; None if no end time is possible.

    :param ends: the end times to try, in ascending order.
    :param found: places that are already known for an earlier end time.
    :raises BudgetExhausted: the budget is spent, and no places are known.
    """
    low, high = 0, len(ends)
    # the last end is tried first, because it is mostly possible
    middle = high - 1
    while low < high:
        try:
            placed = place(ends[middle])
        except BudgetExhausted:
            if found is None:
                raise
            break
        if placed:
            found, low = (placed, ends[middle]), middle + 1
        else:
            high = middle
        middle = (low + high) // 2
    return found


def prolong_stay(
    search: TimedSearch, members: Members, placed: Sequence[PlacedClaim], span: StaySpan
) -> list[PlacedClaim]:
    """Return places for several preemptible claims with the longest common stay.

    :param placed: places for the shortest stay; they are the result if the search finds no longer one.
    """
    wanted = [each.wanted for each in placed]

    def place_all(end: float) -> Sequence[PlacedClaim]:
        return place_during(search, members, wanted, span.window_until(end))

    # the places for the shortest stay are good enough, so no error may replace them
    ends = [span.max_end]
    with suppress(BudgetExhausted):
        ends = possible_ends(search, search.skylines, wanted_classes(wanted), span)
    found = place_until_last(ends, place_all, (placed, span.min_end))
    # this line is for the type checker: some places are known
    assert found is not None
    return with_end(found[0], wanted, span, found[1])


def place_longest(search: TimedSearch, wanted: WantedClaim, span: StaySpan) -> list[PlacedClaim]:
    """Return the place of a preemptible claim with the longest stay; empty if there is no place.

    The claim must have no order, no group and no alternates, so that only the length of the stay matters. The
    fallback of the claim is served only if its request has no place on any host. After the search has found a
    place, it tests a limited number of hosts for a longer stay.
    """
    for one in wanted.all_ways:
        if found := _HostStays(search, one, span).find_longest():
            placed, end = found
            return with_end(placed, [wanted], span, end)
    return []


def find_latest_end(
    search: TimedSearch, members: Members, wanted: Sequence[WantedClaim], span: StaySpan
) -> float | None:
    """Return the latest end until which claims have places now; None if they have none.

    Several claims end together. The search for them tries each end with all of them.

    :param members: the present members of the groups that the claims join.
    :param span: the possible stays; the claims have no places until ``max_end``.
    """
    # only the length of the stay matters
    wanted = [replace(each, order=(), alternates=0) for each in wanted]
    (one, *others) = wanted
    if not (others or one.group):
        placed = place_longest(search, one, span)
        return min((time.ends_at for each in placed if (time := each.wanted.window)), default=None)

    def place_all(end: float) -> Sequence[PlacedClaim]:
        window = span.window_until(end)
        if not members:
            return place_jointly(search, wanted, window)
        search.budget.spend(len(search.skylines))
        return place_during(search, members, wanted, window)

    # mostly the claims have no places at all, and then one search suffices
    if not place_all(span.min_end):
        return None
    *ends, _ = possible_ends(search, search.skylines, wanted_classes(wanted), span)
    found = place_until_last(ends, place_all)
    return None if found is None else found[1]


class _HostStays:
    """Finds the host on which a claim can stay longest."""

    def __init__(self, search: TimedSearch, wanted: WantedClaim, span: StaySpan) -> None:
        self._search = search
        self._wanted = wanted
        self._span = span
        self._times = HostTimes(search, wanted, span.min_end - span.begin)

    def find_longest(self) -> Stay | None:
        """Return the place with the longest stay, and the end time of this stay."""
        roots = sorted(allowed_roots(self._search, self._wanted))
        # concurrent claims mostly try different hosts first
        self._search.rng.shuffle(roots)
        begin, last = self._span.begin, self._span.max_end
        bounds: list[tuple[float, int, int]] = []
        for number, root in enumerate(roots):
            if self._times.first_start(root, begin, begin) > begin:
                continue
            bound = self._times.latest_end(root, begin)
            # no stay is longer than one until the last end time, so the remaining hosts need not be read
            if bound >= last and (placed := self._place_at(root, last)):
                return placed, last
            heapq.heappush(bounds, (-min(bound, last), number, root))
        best: Stay | None = None
        searched = 0
        while bounds:
            bound, _, root = heapq.heappop(bounds)
            if best is not None and (best[1] >= -bound or searched >= _MAX_SEARCHED):
                break
            searched += best is not None
            try:
                best = self._find_at(root, self._span.min_end if best is None else best[1], -bound) or best
            except BudgetExhausted:
                if best is None:
                    raise
                break
        return best

    def _find_at(self, root: int, above: float, bound: float) -> Stay | None:
        """Return the place with the longest stay on a host, if this stay ends at ``above`` or later."""
        providers = [each.id for each in members_of(self._search.snapshot, (root,))]
        span = replace(self._span, min_end=above, max_end=bound)
        classes = self._wanted.request.total_amounts
        return place_until_last(
            possible_ends(self._search, providers, classes, span),
            lambda end: self._place_at(root, end),
        )

    def _place_at(self, root: int, end: float) -> Sequence[PlacedClaim]:
        wanted = replace(self._wanted, only=frozenset({self._search.snapshot.providers[root].uuid}))
        return place_on_hosts(self._search, (root,), [wanted], self._span.window_until(end))
