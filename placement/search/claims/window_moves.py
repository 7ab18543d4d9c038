"""Moves windows that have not begun to equivalent hosts, so that a further window has room.

A *movable* window is bound to no host before it begins. If no host has room for a booking, a host perhaps has
room after some movable windows have moved to equivalent hosts. Hosts are *equivalent* if their trees have the
same structure, traits and aggregates (:mod:`placement.read_model.equivalent_hosts`). So the search need not
know the requests of the moved windows: an equivalent host satisfies them, too. A window on several hosts
moves from one of them to a further host, with all its amounts there. Attributes of hosts only order the hosts
of a request, and some of them differ on each host. So attributes do not matter.

The search is limited: it reads the windows of some hosts. It then tries to move the smallest windows of each
host alone, and all windows of a host together if they are few. Its CPU time has a limit of its own, so that a
refusal in a full cloud takes only a little longer. So it can miss a possible place. A
move never changes the amounts or the time of a window, and the transaction of the booking checks all moves
again.

A maintenance takes the room of the windows on its host. So after its booking, movable windows that overlap it
move to equivalent hosts with room (:func:`move_away`). The other windows stay, and are degraded. If a worker
stops before the moves, the next change of the maintenance makes them.

A worked example
    Hosts ``a`` and ``b`` are equivalent, with 8 VCPU each. Each host has a window of 4 VCPU from 9:00 to
    10:00. A booking of 8 VCPU from 9:00 to 10:00 has no place. Without its window, ``a`` has room, and ``b``
    has 4 VCPU left for this window. So the window of ``a`` moves to ``b``, and the booking gets ``a``.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from time import thread_time
from typing import Final

from placement.exceptions import Conflict, InvalidRequest
from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import HostTree
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.availability import (
    NEVER,
    allowed_roots,
    members_of,
    snapshot_during,
    times_by_way,
)
from placement.search.claims.claim import ClaimScenario, WantedClaim, with_more_used
from placement.search.claims.claim_context import ClaimContext
from placement.search.claims.host_rooms import NO_SKYLINES, Skylines
from placement.search.claims.longest_stay import StaySpan
from placement.search.claims.move_targets import MoveTargets, Taken
from placement.search.claims.placement import PlacedClaim, UnplacedClaim, place_claims
from placement.store.time_profile import HoldKey, TimedAmount, TimeWindow
from placement.store.time_schedule import TimeSchedule, read_schedule
from placement.store.time_skyline import SkylinesByClass, make_skylines
from placement.store.window_moves import ByProvider, WindowMove, movable_windows, write_move

MAX_HOSTS: Final = 32
"""Maximum number of hosts of which a search reads the windows."""
_MAX_SINGLE: Final = 8
"""Maximum number of windows of a host that a search tries to move alone."""
_MAX_TOGETHER: Final = 8
"""Maximum number of windows that move for one booking."""
_HOSTS_SECONDS: Final = 0.005
"""Maximum CPU time, in seconds, of the choice of hosts of which a search reads the windows."""
# in a full cloud most bookings are refused, and should be refused soon
_SEARCH_SECONDS: Final = 0.01
"""Maximum CPU time, in seconds, of the search for moves for a booking."""

AmountsByConsumer = Mapping[str, Sequence[TimedAmount]]
"""The timed amounts of a host by consumer."""


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
    found = list[int]()
    # hosts that were found before the end of the budget are enough for a try
    with suppress(BudgetExhausted):
        ways = times_by_way(snapshot, skylines, wanted, window.duration_seconds, budget)
        roots, start = sorted(allowed_roots(snapshot, wanted, budget)), NEVER.starts_at
        first = rng.randrange(len(roots)) if roots else 0
        for root in chain(roots[first:], roots[:first]):
            if any(way.first_start(root, start, start) <= start for way in ways):
                found.append(root)
            if len(found) == MAX_HOSTS:
                break
    return found


class WindowMover:
    """Finds moves that make room for one claim in a window.

    :param schedule: the timed amounts and holds of the hosts.
    :param movable: the windows that are allowed to move, with all their amounts.
    """

    def __init__(
        self,
        snapshot: ModelSnapshot,
        skylines: Skylines,
        schedule: TimeSchedule,
        movable: Mapping[str, ByProvider],
        budget: SearchBudget,
        rng: random.Random,
    ) -> None:
        self._snapshot = snapshot
        self._skylines = skylines
        self._movable = movable
        self._budget = budget
        self._rng = rng
        self._targets = MoveTargets(snapshot, skylines, budget, rng)
        self._amounts = defaultdict[str, list[TimedAmount]](list)
        self._holds = defaultdict[str, list[tuple[HoldKey, int]]](list)
        for amount in schedule.amounts:
            self._amounts[amount.provider].append(amount)
        for key, used in schedule.holds:
            self._holds[key[0]].append((key, used))

    def find_moves(self, roots: Sequence[int], wanted: WantedClaim, window: TimeWindow) -> MovedPlaces | None:
        """Return the place of a claim at one of these hosts, with the moves that make room, or None."""
        for root in (each for each in roots if each in self._snapshot.trees):
            tree = self._snapshot.whole_trees()[root]
            here = self._amounts_by_consumer(tree)
            for moving in _moving_sets(here, self._movable, window):
                left = self._skylines_without(tree, here, moving)
                if not self._has_room(tree, left, wanted, window):
                    continue
                # new hosts are searched first, because in a full cloud there are none
                taken = Taken()
                moves = self._moves_of(tree, here, moving, taken)
                if len(moves) == len(moving):
                    placed = self._place_claim(tree, left, taken, wanted, window)
                    if not isinstance(placed, UnplacedClaim):
                        moved = tuple(sorted(moving))
                        return MovedPlaces([replace(each, moved=moved) for each in placed], moves)
        return None

    def find_departures(self, tree: HostTree, window: TimeWindow) -> Iterator[WindowMove]:
        """Yield moves of the windows of a host that overlap another window, the largest windows first."""
        here, taken = self._amounts_by_consumer(tree), Taken()
        for consumer in reversed(_moving_consumers(here, self._movable, window)):
            found = self._targets.find_move(tree, here[consumer], taken, self._movable[consumer])
            if found is not None:
                yield found

    def _amounts_by_consumer(self, tree: HostTree) -> AmountsByConsumer:
        found = defaultdict[str, list[TimedAmount]](list)
        for member in tree.members:
            for each in self._amounts.get(member.uuid, ()):
                found[each.consumer].append(each)
        return found

    def _skylines_without(
        self, tree: HostTree, here: AmountsByConsumer, moving: Collection[str]
    ) -> dict[int, SkylinesByClass]:
        """Return the skylines of a host without some windows, and those of sharing providers."""
        staying = (each for consumer, some in here.items() if consumer not in moving for each in some)
        holds = (each for member in tree.members for each in self._holds.get(member.uuid, ()))
        left = make_skylines(staying, holds)
        shared = {
            each.id: self._skylines[each.id]
            for each in members_of(self._snapshot, ())
            if each.id in self._skylines
        }
        return shared | {each.id: left.get(each.uuid, NO_SKYLINES) for each in tree.members}

    def _has_room(self, tree: HostTree, skylines: Skylines, wanted: WantedClaim, window: TimeWindow) -> bool:
        """Return whether the sums of a host do not exclude the claim."""
        root, start = tree.root.id, window.starts_at
        ways = times_by_way(self._snapshot, skylines, wanted, window.duration_seconds, self._budget)
        return any(each.first_start(root, start, start) <= start for each in ways)

    def _moves_of(
        self, tree: HostTree, here: AmountsByConsumer, moving: Sequence[str], taken: Taken
    ) -> list[WindowMove]:
        """Return moves of the first windows of some, until a window has no new host; fill ``taken``."""
        moves = list[WindowMove]()
        for consumer in moving:
            found = self._targets.find_move(tree, here[consumer], taken, self._movable[consumer])
            if found is None:
                break
            moves.append(found)
        return moves

    def _place_claim(
        self, tree: HostTree, skylines: Skylines, taken: Taken, wanted: WantedClaim, window: TimeWindow
    ) -> list[PlacedClaim] | UnplacedClaim:
        """Place a claim on a host beside the amounts that moved windows take from their new hosts."""
        snapshot = snapshot_during(self._snapshot, (tree.root.id,), skylines, window)
        self._budget.spend(len(snapshot))
        # a window of a sharing provider moves to another one, which the claim perhaps uses, too
        arriving = ((self._snapshot.providers[at].uuid, {name: used}) for (at, name), used in taken.items())
        snapshot = with_more_used(snapshot, arriving)
        world = ClaimScenario.from_members(snapshot, {}, [wanted])
        return place_claims(world, [wanted], self._budget, self._rng)


def _moving_sets(
    here: AmountsByConsumer, movable: Collection[str], window: TimeWindow
) -> Iterator[Sequence[str]]:
    """Yield sets of windows of a host to move: single windows by ascending amounts, then all together."""
    small = _moving_consumers(here, movable, window)
    for consumer in small[:_MAX_SINGLE]:
        yield [consumer]
    if 1 < len(small) <= _MAX_TOGETHER:
        yield small


def _moving_consumers(here: AmountsByConsumer, movable: Collection[str], window: TimeWindow) -> Sequence[str]:
    """Return the movable windows of a host that overlap another window, by ascending amounts."""
    totals = {
        consumer: sum(each.used for each in amounts)
        for consumer, amounts in here.items()
        if consumer in movable and not amounts[0].has_begun and amounts[0].window.has_overlap(window)
    }
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
        providers = [each.uuid for each in snapshot.whole_trees()[root].members]
    found_movable, moves = _read_movable(context, providers), list[WindowMove]()
    if found_movable is not None:
        with (
            suppress(BudgetExhausted),
            context.timetable.fresh_view(None, context.check_awaited) as timed,
        ):
            snapshot = timed.view.snapshot
            budget = context.make_budget(timed.view, seconds)
            search = WindowMover(snapshot, timed.skylines, *found_movable, budget, context.rng)
            if root in snapshot.trees:
                moves.extend(search.find_departures(snapshot.whole_trees()[root], window))
    return moves


def _read_movable(
    context: ClaimContext, providers: Collection[str]
) -> tuple[TimeSchedule, Mapping[str, ByProvider]] | None:
    """Return the timed amounts of providers, and the movable windows among them with all their amounts.

    The result is None if no window is movable. Callers have no view of the read model, so that no other
    request waits for the database.
    """
    with context.database.read() as conn:
        # few clouds have movable windows, and only these clouds pay for the read of all amounts
        movable = movable_windows(conn, providers)
        return (read_schedule(conn, of_providers=providers), movable) if movable else None


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
    with context.timetable.fresh_view(concerned, context.check_awaited) as timed:
        snapshot = timed.view.snapshot
        budget = context.make_budget(timed.view, min(seconds, _HOSTS_SECONDS))
        hosts = hosts_without_windows(snapshot, timed.skylines, wanted, window, budget, context.rng)
        trees = snapshot.whole_trees()
        providers = [each.uuid for root in hosts for each in trees[root].members]
    if not hosts or (movable := _read_movable(context, providers)) is None:
        return None
    with suppress(BudgetExhausted), context.timetable.fresh_view(None, context.check_awaited) as timed:
        budget = context.make_budget(timed.view, min(end - thread_time(), _SEARCH_SECONDS))
        search = WindowMover(timed.view.snapshot, timed.skylines, *movable, budget, context.rng)
        return search.find_moves(hosts, wanted, window)
    return None
