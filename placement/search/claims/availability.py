"""Finds the earliest windows in which one claim fits, or in which several claims fit at the same time.

Nouns
    A *host time* is a host together with a start time at which the request possibly fits on the host. A *free
    window* has a choice for each claim; all choices are possible together from a start time until an end
    time.

The search tests only few starts. If a request fits in a window, it also fits in a window that starts earlier,
unless a timed amount ends between the two starts. So only the first allowed start and the end times
of timed amounts are possible starts. Sums of amounts of each host exclude most possible starts
(:class:`~placement.search.claims.host_rooms.HostTimes`). The placement of claims tests the remaining starts
in the order of time, in a snapshot of one host with the usage during the window.

A worked example
    Two hosts have 8 VCPU each. On ``a``, windows take 6 VCPU from 10:00 to 11:00 and 4 VCPU from 11:00 to
    13:00; on ``b``, a window takes 8 VCPU from 9:00 to 12:00. It is 9:30, and a request wants VCPU:4 for two
    hours. The possible starts on ``a`` are 9:30, 11:00 and 13:00; those on ``b`` are 9:30 and 12:00. At 9:30
    neither host has 4 VCPU free. The earliest free window begins at 11:00 on ``a``, and has no end.

Several claims
    The same instants are possible starts of windows for several claims. The search skips a start if the sums
    of amounts leave too little room for all equal claims. It places all claims together in a snapshot of the
    remaining hosts.

    Hosts ``a`` and ``b`` have 8 VCPU. A window takes host ``a`` until 10:00, and another window takes host
    ``b`` until 11:00. Two claims of 4 VCPU both fit on ``a`` at 10:00. If the claims need different hosts,
    they fit at 11:00.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Final

from placement.read_model.provider import SHARES, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.search.claims.claim import (
    ClaimScenario,
    HostChoice,
    KnownSearches,
    WantedClaim,
    known_ids,
    sharing_providers,
    taken_amounts,
    with_more_used,
)
from placement.search.claims.host_rooms import NO_SKYLINES, HostTimes, Skylines, TimedSearch
from placement.search.claims.placement import PlacedClaim, UnplacedClaim, place_claims
from placement.search.conditions import all_conditions, needs_of
from placement.search.equivalence import tree_reader
from placement.search.roots import SharingProviders, begin_anywhere, possible_roots
from placement.store.groups import GroupPolicy, Members
from placement.store.time_profile import TimeWindow
from placement.store.time_skyline import SkylinesByClass, SkylinesByProvider, whole_milliseconds

# a small first step suffices if some host is free soon, and then few breakpoints are read
_STEPS: Final = (0.0, 1 / 4096, 1 / 1024, 1 / 256, 1 / 64, 1 / 16, 1 / 4, 1.0)
"""Shares of the time from the first to the last possible start; each step of the search tests the starts up
to one of these shares.
"""
_CONSIDERED: Final = 64
"""Number of hosts with room at the same start that the search compares, to yield the tightest fit first."""
_PLACED_AT_ONCE: Final = 8
"""Number of hosts in the small snapshot in which the search places one claim, after the best host."""
# the snapshot of a few hosts is made faster than that of a cloud, and mostly suffices
_TRIED_FIRST: Final = 64
"""Number of hosts for each claim that the search tries before all others."""


NEVER: Final = TimeWindow(1e12, 1e12 + 1)
"""A window that begins after the end of all timed amounts."""


@dataclass(frozen=True, slots=True)
class StartSpan:
    """The possible starts of windows of ``duration`` seconds: from ``begin`` to ``last``, both included."""

    begin: float
    last: float
    duration: float

    def window_at(self, start: float) -> TimeWindow:
        """Return the window that begins at this start."""
        return TimeWindow(start, start + self.duration)


@dataclass(frozen=True, slots=True)
class FreeWindow:
    """Choices, one for each claim, that are possible together from ``starts_at`` until ``free_until``.

    The window is free for ever if ``free_until`` is infinite.
    """

    choices: tuple[HostChoice, ...]
    starts_at: float
    free_until: float


def snapshot_during(
    snapshot: ModelSnapshot, roots: Iterable[int], skylines: Skylines, window: TimeWindow
) -> ModelSnapshot:
    """Return a small snapshot of some hosts and all sharing providers, with their usage during a window."""
    some = _usable_roots(snapshot, roots)
    used = {
        each: usage_during(snapshot.providers[each], skylines[each], window)
        for root in some
        for each in snapshot.trees[root]
        if each in skylines
    }
    return snapshot.trees_alone(some, used)


def members_of(snapshot: ModelSnapshot, roots: Iterable[int]) -> Iterator[Provider]:
    """Yield all providers that a claim on these hosts can use, including all sharing providers."""
    return (
        snapshot.providers[each] for root in _usable_roots(snapshot, roots) for each in snapshot.trees[root]
    )


def _usable_roots(snapshot: ModelSnapshot, roots: Iterable[int]) -> set[int]:
    """Return the roots of these hosts and of the trees of all sharing providers."""
    return {*roots, *(each.root_id for each in sharing_providers(snapshot))}


def skylines_in(snapshot: ModelSnapshot, by_uuid: SkylinesByProvider) -> Skylines:
    """Return the skylines of those providers that the snapshot contains."""
    # an operator may have deleted a provider since its amounts were read
    return {snapshot.by_uuid[uuid]: each for uuid, each in by_uuid.items() if uuid in snapshot.by_uuid}


def during_window(search: TimedSearch, window: TimeWindow) -> ModelSnapshot:
    """Return a copy of the snapshot with the usage that a claim for a window has to count.

    The original snapshot must not change while the result is used. The skylines are those of all consumers,
    except consumers that claim again. Pauses let other threads run; a spent budget is no error.
    """
    snapshot, used = search.snapshot, {}
    for each, here in search.skylines.items():
        search.budget.spend_anyway()
        used[each] = usage_during(snapshot.providers[each], here, window)
    return snapshot.with_usage(used)


def place_during(
    search: TimedSearch, members: Members, wanted: Sequence[WantedClaim], window: TimeWindow
) -> list[PlacedClaim]:
    """Return places of all claims during a window, by the usage of all hosts; empty if there are none.

    :param members: the present members of the groups that the claims join.
    """
    world = ClaimScenario.from_members(during_window(search, window), members, wanted)
    placed = place_claims(world, wanted, search.budget, search.rng)
    return [] if isinstance(placed, UnplacedClaim) else placed


def place_on_hosts(
    search: TimedSearch,
    roots: Iterable[int],
    wanted: Sequence[WantedClaim],
    window: TimeWindow,
    searches: KnownSearches | None = None,
    arriving: Sequence[tuple[str, Mapping[str, int]]] = (),
) -> list[PlacedClaim]:
    """Return places of all claims on some hosts during a window; empty if there are none.

    :param searches: searches of earlier calls for the same claims.
    :param arriving: further used amounts during the window, by uuid of the provider.
    """
    here = snapshot_during(search.snapshot, roots, search.skylines, window)
    if arriving:
        here = with_more_used(here, arriving)
    search.budget.spend(len(here))
    world = ClaimScenario.from_members(here, {}, wanted, searches)
    placed = place_claims(world, wanted, search.budget, search.rng)
    return [] if isinstance(placed, UnplacedClaim) else placed


def usage_during(provider: Provider, here: SkylinesByClass, window: TimeWindow) -> dict[str, int]:
    """Return the used amounts of a provider as a claim for a window has to count them."""
    used = {**provider.used}
    for name, each in here.items():
        used[name] = used.get(name, 0) - each.counted + each.largest_sum(window)
    return used


def times_by_way(search: TimedSearch, wanted: WantedClaim, duration: float) -> list[HostTimes]:
    """Return objects that find possible starts of windows: one for a claim's request, one for its fallback.

    The returned objects remember the free amounts of hosts, so searches for the same claim should share these
    objects.
    """
    return [HostTimes(search, each, duration) for each in wanted.all_ways]


def find_free(
    search: TimedSearch, wanted: WantedClaim, span: StartSpan, ways: Sequence[HostTimes]
) -> Iterator[FreeWindow]:
    """Yield free windows of a claim, the earliest first.

    If several windows have the same start, the tightest fit comes first.

    At the first possible start, the search compares the tightness of hosts only within small groups.

    After the end of a free window, the same host may have another window.

    :param ways: the result of :func:`times_by_way` for the claim and the duration.
    """
    test = _WindowTest(search, wanted, span)
    due: list[tuple[float, float, int]] = []
    roots = sorted(allowed_roots(search, wanted))
    possible = (
        ways[0].possible_roots(roots)
        if len(ways) == 1
        else sorted({root for each in ways for root in each.possible_roots(roots)})
    )
    asked: Iterable[tuple[float, int]] = ((span.begin, root) for root in possible)
    waiting: list[tuple[float, int]] = []

    def add_start(after: float, root: int, until: float) -> None:
        start = min([each.first_start(root, after, until) for each in ways])
        if start <= until:
            heapq.heappush(due, (start, min([each.tight_end(root, start) for each in ways]), root))
        elif start <= span.last:
            waiting.append((start, root))

    def place_due(until: float) -> Iterator[FreeWindow]:
        while due:
            start, _, root = heapq.heappop(due)
            found = test.find_window(root, start)
            if found is not None:
                yield found
            after = test.next_end(root, start) if found is None else whole_milliseconds(found.free_until)
            if after <= span.last:
                add_start(after, root, until)

    for step in _STEPS:
        until = span.begin + step * (span.last - span.begin)
        for after, root in asked:
            if after > until:
                waiting.append((after, root))
                continue
            add_start(after, root, until)
            # no start is earlier than the first one, so not every host has to be read for it
            if step == 0 and len(due) >= _CONSIDERED:
                yield from place_due(until)
        yield from place_due(until)
        asked, waiting = waiting, []


def place_in_window(
    search: TimedSearch, wanted: WantedClaim, window: TimeWindow, ways: Sequence[HostTimes], now: float
) -> list[PlacedClaim]:
    """Return the claim placed in a window, on a host with a tight fit; empty if no host has room.

    The fit is the tightest where the free time around the window, from now on, is the shortest.

    The claim must have no order, no group and no alternates, so that any host is good enough. The fallback of
    the claim is used only if its request has no place on any host.

    :param ways: the result of :func:`times_by_way` for the claim and the duration of the window.
    """
    roots = [*begin_anywhere(sorted(allowed_roots(search, wanted)), search.rng)]
    for one, times in zip(wanted.all_ways, ways, strict=True):
        for chosen in _tight_hosts(times, times.possible_roots(roots), window.starts_at, now):
            if placed := place_on_hosts(search, chosen, [one], window):
                return [replace(each, wanted=wanted) for each in placed]
    return []


def _tight_hosts(times: HostTimes, roots: Iterable[int], start: float, now: float) -> Iterator[Sequence[int]]:
    """Yield hosts that possibly have room from a start on, in small groups sorted by tightness.

    The first group is the best host alone.
    """
    rest = iter(roots)
    while some := list(islice(rest, _CONSIDERED)):
        tight = sorted(
            (times.tight_gaps(root, start, now), root)
            for root in some
            if times.first_start(root, start, start) <= start
        )
        ordered = [root for _, root in tight]
        # the placement chooses any of the hosts that it gets, so it gets the best one alone
        if ordered:
            yield ordered[:1]
        for begin in range(1, len(ordered), _PLACED_AT_ONCE):
            yield ordered[begin : begin + _PLACED_AT_ONCE]


def allowed_roots(search: TimedSearch, wanted: WantedClaim) -> set[int]:
    """Return the roots of hosts that can satisfy the claim at some time, regardless of current usage."""
    found, snapshot = set[int](), search.snapshot
    for request in wanted.all_requests:
        sharing = SharingProviders(snapshot, search.budget)
        found.update(possible_roots(snapshot, request, needs_of(request), sharing, by_free=False))
    if wanted.only is not None:
        found &= known_ids(snapshot, wanted.only)
    return found - known_ids(snapshot, wanted.avoid)


def free_window(search: TimedSearch, placed: Iterable[PlacedClaim], start: float) -> FreeWindow:
    """Return the window in which the choices of placed claims, possible at a start, stay possible."""
    choices, until = tuple([each.choice for each in placed]), math.inf
    for (provider_id, name), total in taken_amounts(choices).items():
        if (skyline := search.skylines.get(provider_id, NO_SKYLINES).get(name)) is not None:
            most = search.snapshot.providers[provider_id].free(name) + skyline.counted - total
            until = min(until, skyline.fits_until(most, start))
    return FreeWindow(choices, start, until)


class _WindowTest:
    """Tests whether a claim fits on a host during a window, by placing the claim there."""

    def __init__(self, search: TimedSearch, wanted: WantedClaim, span: StartSpan) -> None:
        # the seed is fixed, so that equal questions get equal answers
        self._search = replace(search, rng=random.Random(0))
        self._snapshot = search.snapshot
        self._skylines = search.skylines
        self._wanted = wanted
        self._span = span
        self._searches = KnownSearches(self._snapshot)
        self._pools = sorted(self._snapshot.by_trait.get(SHARES, ()))
        #: the states of hosts on which the claim has no place
        self._failed: set[Hashable] = set()
        self._read_tree = tree_reader(
            chain.from_iterable(all_conditions(each, needs_of(each)) for each in wanted.all_requests)
        )

    def find_window(self, root: int, start: float) -> FreeWindow | None:
        """Return the free window that begins at ``start`` on a host; None if the claim does not fit then."""
        window = self._span.window_at(start)
        # most searches have no failures, and need no states
        if self._failed and self._state_of(root, window) in self._failed:
            return None
        wanted = replace(self._wanted, only=frozenset({self._snapshot.providers[root].uuid}))
        placed = place_on_hosts(self._search, (root,), [wanted], window, self._searches)
        if not placed:
            if (state := self._state_of(root, window)) is not None:
                self._failed.add(state)
            return None
        return free_window(self._search, placed, start)

    def next_end(self, root: int, time: float) -> float:
        """Return the first end after ``time`` of an amount of the host or of a sharing provider."""
        ends = (
            skyline.next_end(time)
            for each in (*self._snapshot.trees[root], *self._pools)
            for skyline in self._skylines.get(each, NO_SKYLINES).values()
        )
        return whole_milliseconds(min(ends, default=math.inf))

    def _state_of(self, root: int, window: TimeWindow) -> Hashable:
        """Return a key of everything that decides whether the claim fits on a host in a window.

        The result is None if other hosts matter, too.
        """
        if self._pools or self._wanted.topology is not None:
            return None
        tree = self._snapshot.whole_trees()[root]
        free = tuple(self._free_amounts(member, window) for member in tree.members)
        return self._read_tree(tree), tree.kind, free

    def _free_amounts(self, provider: Provider, window: TimeWindow) -> Hashable:
        here = self._skylines.get(provider.id)
        used = provider.used if here is None else usage_during(provider, here, window)
        return tuple((name, each.capacity - used.get(name, 0)) for name, each in provider.inventories.items())


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
            allowed = sorted(allowed_roots(search, each))
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
