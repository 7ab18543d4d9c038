"""Finds the earliest windows in which several claims have room at the same time, for the whole duration.

As for a single claim (:mod:`placement.search.claims.availability`), only the first allowed start and the end
times of timed amounts can be earliest starts. The search tests these starts in the order of time. The search
skips a start if the sums of amounts leave too little room for all equal claims. The search places
all claims together in a snapshot of the remaining hosts, with the usage during the window.

A worked example
    Hosts ``a`` and ``b`` have 8 VCPU. A window takes host ``a`` until 10:00, and another window takes host
    ``b`` until 11:00. Two claims of 4 VCPU both fit on ``a`` at 10:00. If the claims need different hosts,
    they fit at 11:00.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from placement.read_model.provider import SHARES
from placement.search.claims.availability import (
    FreeWindow,
    StartSpan,
    allowed_roots,
    free_window,
    members_of,
    place_on_hosts,
    times_by_way,
)
from placement.search.claims.claim import KnownSearches, WantedClaim
from placement.search.claims.host_rooms import HostTimes, TimedSearch
from placement.search.claims.placement import PlacedClaim
from placement.store.groups import GroupPolicy
from placement.store.time_profile import TimeWindow
from placement.store.time_skyline import whole_milliseconds

# the snapshot of a few hosts is made faster than that of a cloud, and mostly suffices
_TRIED_FIRST: Final = 64
"""Number of hosts for each claim that the search tries before all others."""


def find_joint(search: TimedSearch, wanted: Sequence[WantedClaim], span: StartSpan) -> Iterator[FreeWindow]:
    """Yield free windows of claims, the earliest first.

    Each window begins after the free time of the previous window.
    """
    # the seed is fixed, so that equal questions get equal answers
    search = replace(search, rng=random.Random(0))
    hosts = _JointHosts(search, wanted, span)
    ends = _ends_ahead(search, hosts.roots, span.begin)
    start = span.begin
    while start <= span.last:
        search.budget.spend()
        if (later := hosts.first_start(start)) > start:
            start = later
            continue
        placed = hosts.place_during(span.window_at(start))
        if not placed:
            start = whole_milliseconds(next((each for each in ends if each > start), math.inf))
            continue
        found = free_window(search, placed, start)
        yield found
        start = whole_milliseconds(found.free_until)


def place_jointly(
    search: TimedSearch, wanted: Sequence[WantedClaim], window: TimeWindow
) -> list[PlacedClaim]:
    """Return places of all claims during one window; empty if the claims do not all fit.

    The claims must not join a stored group, so that only the hosts and the times matter.
    """
    start = window.starts_at
    span = StartSpan(start, start, window.duration_seconds)
    hosts = _JointHosts(search, wanted, span)
    return [] if hosts.first_start(start) > start else hosts.place_during(window)


def _ends_ahead(search: TimedSearch, roots: Iterable[int], begin: float) -> Iterator[float]:
    """Yield the end times of timed amounts of hosts and of sharing providers, in ascending order."""
    # this is a generator, so that nothing is read unless some start has too little room
    concerned = {each.id for each in members_of(search.snapshot, roots)}
    here = (search.skylines[each] for each in sorted(concerned) if each in search.skylines)
    yield from heapq.merge(*(one.falls_after(begin) for each in here for one in each.values()))


@dataclass(slots=True)
class _ClaimHosts:
    """The possible hosts of ``count`` equal claims, with at most one of them on each host if ``are_apart``.

    ``ready`` has the hosts that possibly have room now, each with a start before which it has no room.
    ``waiting`` has the other hosts, as pairs of such a start and the root.
    """

    times: Sequence[HostTimes]
    count: int
    ready: dict[int, float]
    last: float
    are_apart: bool
    waiting: list[tuple[float, int]] = field(default_factory=list)

    def possible_at(self, start: float) -> Iterator[int]:
        """Yield the roots of hosts that sums do not exclude at a start.

        From call to call, the start must not decrease.
        """
        while self.waiting and self.waiting[0][0] <= start:
            known, root = heapq.heappop(self.waiting)
            self.ready[root] = known
        # a caller mostly needs few of thousands of hosts, and a copy of the keys makes no objects
        for root in list(self.ready):
            known = self.ready[root]
            if known < start:
                known = min([each.first_start(root, start, self.last) for each in self.times])
                self.ready[root] = known
            if known > start:
                del self.ready[root]
                if known <= self.last:
                    heapq.heappush(self.waiting, (known, root))
                continue
            yield root

    def first_start(self, start: float) -> float:
        """Return the first start, at ``start`` or later, at which hosts possibly have room for all claims.

        The result is infinity if there is no such start.

        The result can be too early, but is never too late.
        """
        found, roots = 0.0, list[int]()
        for root in self.possible_at(start):
            # a part of the claims may use the fallback
            found += 1 if self.are_apart else sum(each.count_at(root, start) for each in self.times)
            roots.append(root)
            if found >= self.count:
                return start
        # either a further host has room, or a host with room gets more of it
        ends = [] if self.are_apart else [each.next_end(root, start) for each in self.times for root in roots]
        return min([*ends, *(each for each, _ in self.waiting[:1])], default=math.inf)


class _JointHosts:
    """The hosts that possibly have room for several claims, according to the sums of free amounts."""

    def __init__(self, search: TimedSearch, wanted: Sequence[WantedClaim], span: StartSpan) -> None:
        self._search = search
        self._wanted = wanted
        self._searches = KnownSearches(search.snapshot)
        # equal claims share one list of hosts
        likeness: dict[Hashable, WantedClaim] = {}
        counts: Counter[Hashable] = Counter()
        key: Hashable
        for each in wanted:
            key = (id(each.request), id(each.fallback), each.topology, each.only, each.avoid)
            likeness.setdefault(key, each)
            counts[key] += 1
        self._by_claim: list[_ClaimHosts] = []
        self.roots: set[int] = set()
        has_pools = SHARES in search.snapshot.by_trait
        for key, each in likeness.items():
            allowed = sorted(allowed_roots(search.snapshot, each, search.budget))
            self.roots.update(allowed)
            times = times_by_way(search, each, span.duration)
            is_apart = each.group is not None and each.group.policy is GroupPolicy.ANTI_AFFINITY
            # a claim that takes all amounts from sharing providers counts only on the hosts of these
            # providers
            count = 1 if has_pools else counts[key]
            ready = dict.fromkeys(allowed, -math.inf)
            self._by_claim.append(_ClaimHosts(times, count, ready, span.last, is_apart))

    def first_start(self, start: float) -> float:
        """Return the first start, at ``start`` or later, that no claim excludes.

        The result is infinity if there is no such start.
        """
        return max(each.first_start(start) for each in self._by_claim)

    def place_during(self, window: TimeWindow) -> list[PlacedClaim]:
        """Return the places of all claims during a window; empty if they do not fit at the same time."""
        for roots in self._possible_roots(window.starts_at):
            if placed := place_on_hosts(self._search, roots, self._wanted, window, self._searches):
                return placed
        return []

    def _possible_roots(self, start: float) -> Iterator[Sequence[int]]:
        """Yield lists of roots where the claims possibly fit at a start: first a few roots, then all."""
        few = {
            root
            for each in self._by_claim
            for root in islice(each.possible_at(start), max(_TRIED_FIRST, 2 * each.count))
        }
        yield sorted(few)
        every = {root for each in self._by_claim for root in each.possible_at(start)}
        if len(every) > len(few):
            yield sorted(every)
