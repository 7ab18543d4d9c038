"""Moves windows that have not begun to equivalent hosts, so that a further window has room.

A *movable* window is bound to no host before it begins. If no host has room for a booking, a host perhaps has
room after some movable windows have moved to equivalent hosts. Hosts are *equivalent* if their trees have the
same structure, traits and aggregates. So the search need not know the requests of the moved windows: an
equivalent host satisfies them, too. Attributes of hosts only order the hosts of a request, and some of them
differ on each host. So attributes do not matter. The traits of disabled hosts do not matter either: windows
leave a disabled host. But no window moves to a disabled host.

The search is limited: it reads the windows of some random hosts. It then tries to move the smallest windows
of each host alone, and all windows of a host together if they are few. So it can miss a possible place. A
move never changes the amounts or the time of a window, and the transaction of the booking checks all moves
again.

A maintenance takes the room of the windows on its host. So after its booking, movable windows that overlap it
move to equivalent hosts with room (:func:`move_away`). The other windows stay, and are degraded. If a worker stops
before the moves, the next change of the maintenance makes them.

A worked example
    Hosts ``a`` and ``b`` are equivalent, with 8 VCPU each. Each host has a window of 4 VCPU from 9:00 to
    10:00. A booking of 8 VCPU from 9:00 to 10:00 has no place. Without its window, ``a`` has room, and ``b``
    has 4 VCPU left for this window. So the window of ``a`` moves to ``b``, and the booking gets ``a``.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import thread_time
from typing import Final

from placement.exceptions import Conflict, InvalidRequest
from placement.read_model.provider import STATUS_TRAITS, Provider
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.availability import (
    NEVER,
    allowed_roots,
    snapshot_during,
    times_by_way,
    usage_during,
)
from placement.search.claims.claim import ClaimScenario, WantedClaim
from placement.search.claims.claim_context import ClaimContext
from placement.search.claims.host_rooms import NO_SKYLINES, Skylines
from placement.search.claims.longest_stay import StaySpan
from placement.search.claims.placement import PlacedClaim, UnplacedClaim, place_claims
from placement.store.time_profile import TimedAmount, TimeWindow
from placement.store.time_schedule import TimeSchedule, read_schedule
from placement.store.time_skyline import make_skylines
from placement.store.window_moves import WindowMove, movable_windows, write_move

MAX_HOSTS: Final = 32
"""Maximum number of hosts of which a search reads the windows."""
_MAX_SINGLE: Final = 8
"""Maximum number of windows of a host that a search tries to move alone."""
_MAX_TOGETHER: Final = 8
"""Maximum number of windows that move for one booking."""


@dataclass(frozen=True, slots=True)
class MovedPlaces:
    """The place of a new window, and the moves that make room for it."""

    placed: Sequence[PlacedClaim]
    moves: Sequence[WindowMove]


def hosts_without_windows(
    snapshot: ModelSnapshot,
    skylines: Skylines,
    wanted: WantedClaim,
    window: TimeWindow,
    budget: SearchBudget,
    rng: random.Random,
) -> list[int]:
    """Return the roots of some hosts that would possibly have room for a claim without any timed amounts."""
    ways = times_by_way(snapshot, skylines, wanted, window.duration_seconds, budget)
    roots = sorted(allowed_roots(snapshot, wanted, budget))
    rng.shuffle(roots)
    start = NEVER.starts_at
    fitting = (root for root in roots if any(way.first_start(root, start, start) <= start for way in ways))
    return list(islice(fitting, MAX_HOSTS))


class WindowMover:
    """Finds moves that make room for one claim in a window.

    :param schedule: the timed amounts and holds of the hosts.
    :param movable: the consumers of windows that are allowed to move.
    """

    def __init__(
        self,
        snapshot: ModelSnapshot,
        skylines: Skylines,
        schedule: TimeSchedule,
        movable: Collection[str],
        budget: SearchBudget,
        rng: random.Random,
    ) -> None:
        self._snapshot = snapshot
        self._skylines = skylines
        self._schedule = schedule
        self._movable = movable
        self._budget = budget
        self._rng = rng

    def find_moves(self, roots: Sequence[int], wanted: WantedClaim, window: TimeWindow) -> MovedPlaces | None:
        """Return the place of a claim at one of these hosts, with the moves that make room, or None."""
        for root in (each for each in roots if each in self._snapshot.trees):
            tree = self._snapshot.whole_trees()[root]
            own = {each.uuid for each in tree.members}
            here = [each for each in self._schedule.amounts if each.provider in own]
            for moving in _moving_sets(here, self._movable, window):
                found = self._place_without(tree, here, moving, wanted, window)
                if found is not None:
                    return found
        return None

    def find_departures(self, tree: HostTree, window: TimeWindow) -> Iterator[WindowMove]:
        """Yield moves of the windows of a host that overlap another window, the largest windows first."""
        own = {each.uuid for each in tree.members}
        here = [each for each in self._schedule.amounts if each.provider in own]
        taken: Counter[tuple[int, str]] = Counter()
        for consumer in reversed(_moving_consumers(here, self._movable, window)):
            found = self._new_host(tree, [each for each in here if each.consumer == consumer], taken)
            if found is not None:
                yield found

    def _place_without(
        self,
        tree: HostTree,
        here: Sequence[TimedAmount],
        moving: Sequence[str],
        wanted: WantedClaim,
        window: TimeWindow,
    ) -> MovedPlaces | None:
        staying = [each for each in here if each.consumer not in moving]
        own = {each.uuid for each in tree.members}
        holds = [(key, used) for key, used in self._schedule.holds if key[0] in own]
        left = make_skylines(staying, holds)
        skylines = {
            **self._skylines,
            **{each.id: left.get(each.uuid, NO_SKYLINES) for each in tree.members},
        }
        snapshot = snapshot_during(self._snapshot, (tree.root.id,), skylines, window)
        self._budget.spend(len(snapshot))
        placed = place_claims(
            ClaimScenario.from_members(snapshot, {}, [wanted]), [wanted], self._budget, self._rng
        )
        if isinstance(placed, UnplacedClaim):
            return None
        taken: Counter[tuple[int, str]] = Counter()
        moves = []
        for consumer in moving:
            amounts = [each for each in here if each.consumer == consumer]
            found = self._new_host(tree, amounts, taken)
            if found is None:
                return None
            moves.append(found)
        return MovedPlaces(placed, moves)

    def _new_host(
        self, tree: HostTree, amounts: Sequence[TimedAmount], taken: Counter[tuple[int, str]]
    ) -> WindowMove | None:
        """Return a move of a window of a tree to a new host; add the window's amounts to ``taken``."""
        positions = {each.uuid: at for at, each in enumerate(tree.members)}
        for target in self._alike_hosts(tree):
            wanted = [(target.members[positions[each.provider]], each) for each in amounts]
            if all(self._has_room(provider, each, taken) for provider, each in wanted):
                before, after = defaultdict[str, dict[str, int]](dict), defaultdict[str, dict[str, int]](dict)
                for provider, each in wanted:
                    taken[provider.id, each.resource_class] += each.used
                    before[each.provider][each.resource_class] = each.used
                    after[provider.uuid][each.resource_class] = each.used
                described = {each.id: each.described_seq for each in target.members}
                return WindowMove(amounts[0].consumer, amounts[0].window, before, after, described)
        return None

    def _alike_hosts(self, tree: HostTree) -> Iterator[HostTree]:
        trees = self._snapshot.whole_trees()
        roots = self._snapshot.roots()
        first, likeness = self._rng.randrange(len(roots)), _likeness_of(tree)
        for number in range(len(roots)):
            self._budget.spend()
            other = trees[roots[(first + number) % len(roots)]]
            is_disabled = any(STATUS_TRAITS & each for each in other.kind.traits)
            if other is not tree and not is_disabled and _likeness_of(other) == likeness:
                yield other

    def _has_room(
        self, provider: Provider, amount: TimedAmount, taken: Mapping[tuple[int, str], int]
    ) -> bool:
        name = amount.resource_class
        here = self._skylines.get(provider.id, NO_SKYLINES)
        used = usage_during(provider, here, amount.window).get(name, 0) + taken.get((provider.id, name), 0)
        return provider.inventories[name].accepts_amount(amount.used, used)


def _likeness_of(tree: HostTree) -> Hashable:
    """Return a key that is equal for equivalent hosts."""
    return tree.shape, tuple(each - STATUS_TRAITS for each in tree.kind.traits), tree.aggregates


def _moving_sets(
    here: Sequence[TimedAmount], movable: Collection[str], window: TimeWindow
) -> Iterator[Sequence[str]]:
    """Yield sets of windows of a host to move: single windows by ascending amounts, then all together."""
    small = _moving_consumers(here, movable, window)
    for consumer in small[:_MAX_SINGLE]:
        yield [consumer]
    if 1 < len(small) <= _MAX_TOGETHER:
        yield small


def _moving_consumers(
    here: Sequence[TimedAmount], movable: Collection[str], window: TimeWindow
) -> Sequence[str]:
    """Return the movable windows of a host that overlap another window, by ascending amounts."""
    totals: Counter[str] = Counter()
    for each in here:
        if not each.has_begun and each.consumer in movable and each.window.has_overlap(window):
            totals[each.consumer] += each.used
    return sorted(totals, key=lambda consumer: (totals[consumer], consumer))


def move_away(context: ClaimContext, host: str, window: TimeWindow) -> Iterator[str]:
    """Move the movable windows that overlap a maintenance to equivalent hosts; yield their uuids.

    Each move is a transaction. If another write comes first, the search is repeated, within the limits of all
    searches. A window without another place stays.

    :param host: the uuid of any provider of the host.
    """
    end = thread_time() + context.search_seconds
    for _ in range(context.retries + 1):
        is_complete = True
        for each in _find_departures(context, host, window, end - thread_time()):
            has_moved = False
            # another client may have taken the room, or have changed or deleted the new host
            with suppress(Conflict, InvalidRequest):
                has_moved = context.database.write(partial(write_move, move=each))
            if has_moved:
                yield each.consumer
            is_complete &= has_moved
        if is_complete:
            break


def _find_departures(
    context: ClaimContext, host: str, window: TimeWindow, seconds: float
) -> Sequence[WindowMove]:
    """Return moves of windows of a host that overlap another window."""
    with context.timetable.fresh_view(None, context.check_awaited) as timed:
        snapshot = timed.view.snapshot
        found = snapshot.get(host)
        if found is None:
            return []
        root = found.root_id
        roots = {each.uuid: root for each in snapshot.whole_trees()[root].members}
    with context.database.read() as conn:
        schedule = read_schedule(conn, of_providers=roots)
        pending = {each.consumer for each in schedule.amounts if not each.has_begun}
        movable = movable_windows(conn, pending, roots)
    moves = list[WindowMove]()
    if movable:
        with (
            suppress(BudgetExhausted),
            context.timetable.fresh_view(None, context.check_awaited) as timed,
        ):
            snapshot = timed.view.snapshot
            budget = context.make_budget(timed.view, seconds)
            search = WindowMover(snapshot, timed.skylines, schedule, movable, budget, context.rng)
            if root in snapshot.trees:
                moves.extend(search.find_departures(snapshot.whole_trees()[root], window))
    return moves


def place_by_moves(
    context: ClaimContext,
    wanted: WantedClaim,
    concerned: Collection[str] | None,
    span: StaySpan,
    seconds: float,
) -> MovedPlaces | None:
    """Return a place of a window for which moves of other windows make room; None if no place is found.

    :param concerned: the uuids of the providers that the claim may use; None for all.
    :param span: the time of the window from now on.
    :param seconds: the limit of CPU time.
    """
    window, end = span.shortest_window, thread_time() + seconds
    hosts, roots = list[int](), dict[str, int]()
    with suppress(BudgetExhausted), context.timetable.fresh_view(concerned, context.check_awaited) as timed:
        snapshot = timed.view.snapshot
        budget = context.make_budget(timed.view, seconds)
        hosts = hosts_without_windows(snapshot, timed.skylines, wanted, window, budget, context.rng)
        trees = snapshot.whole_trees()
        roots = {each.uuid: root for root in hosts for each in trees[root].members}
    if not hosts:
        return None
    # the database is read outside of the view, so that no other request waits for the database
    with context.database.read() as conn:
        schedule = read_schedule(conn, of_providers=roots)
        pending = {each.consumer for each in schedule.amounts if not each.has_begun}
        movable = movable_windows(conn, pending, roots)
    if not movable:
        return None
    with suppress(BudgetExhausted), context.timetable.fresh_view(None, context.check_awaited) as timed:
        budget = context.make_budget(timed.view, end - thread_time())
        search = WindowMover(timed.view.snapshot, timed.skylines, schedule, movable, budget, context.rng)
        return search.find_moves(hosts, wanted, window)
    return None
