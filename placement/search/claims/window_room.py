"""Makes room for a window that has no place: windows move, or preemptible claims end.

These searches run only if the usual search has found no place. Moves are tried first, because a move takes
nothing away from any consumer.

Moves
    A *movable* window is bound to no host before it begins. If no host has room for a booking, a host perhaps
    has room after some movable windows have moved to equivalent hosts. Hosts are *equivalent* if their trees
    have the same structure, traits and aggregates (:mod:`placement.read_model.tree_classes`). So the
    search need not know the requests of the moved windows: an equivalent host satisfies them, too. A window
    on several hosts moves from one of them to a further host, with all its amounts there. Attributes of hosts
    only order the hosts of a request, and some of them differ on each host. So attributes do not matter.

    The search is limited: it reads the windows of some hosts. It then tries to move the smallest windows of
    each host alone, and all windows of a host together if they are few. Its CPU time has a limit of its own,
    so that a refusal in a full cloud takes only a little longer. So it can miss a possible place. A move
    never changes the amounts or the time of a window, and the transaction of the booking checks all moves
    again.

    A maintenance takes the room of the windows on its host. So after its booking, movable windows that
    overlap it move to equivalent hosts with room (:func:`move_away`). The other windows stay, and are
    degraded. If a worker stops before the moves, the next change of the maintenance makes them.

    In a full cloud, most searches for a new host fail. After a failure, a window with at least the same
    amounts and times finds no new host either. So the search remembers failures, and tries such a window only
    on the host that was left out of the failed search: the former host of the failed window.

Ends of preemptible claims
    A preemptible claim ends at the start of the window if its amounts are needed then
    (:mod:`placement.store.window_room`). The search reads the preemptible claims between two views of the
    read model, so that no other request waits for the database. The transaction of the booking checks all
    these claims again.

A worked example
    Hosts ``a`` and ``b`` are equivalent, with 8 VCPU each. Each host has a window of 4 VCPU from 9:00 to
    10:00. A booking of 8 VCPU from 9:00 to 10:00 has no place. Without its window, ``a`` has room, and ``b``
    has 4 VCPU left for this window. So the window of ``a`` moves to ``b``, and the booking gets ``a``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import thread_time
from typing import Final

from placement.exceptions import Conflict, InvalidRequest
from placement.read_model.provider import Provider
from placement.read_model.trees import HostTree
from placement.search.budget import BudgetExhausted
from placement.search.claims.availability import (
    NEVER,
    allowed_roots,
    members_of,
    place_during,
    place_on_hosts,
    skylines_in,
    times_by_way,
)
from placement.search.claims.claim import (
    WantedClaim,
    taken_amounts,
    wanted_classes,
)
from placement.search.claims.claim_context import ClaimContext, possible_providers
from placement.search.claims.host_rooms import NO_SKYLINES, TimedSearch
from placement.search.claims.longest_stay import StaySpan
from placement.search.claims.placement import PlacedClaim
from placement.search.roots import begin_anywhere
from placement.store.claims import ByProvider
from placement.store.time_profile import HoldKey, TimedAmount, TimeWindow
from placement.store.time_schedule import TimeSchedule, read_schedule
from placement.store.time_skyline import SkylinesByClass, make_skylines
from placement.store.window_room import (
    WindowMove,
    any_preemptible,
    choose_preempted,
    movable_windows,
    read_preemptible,
    write_move,
)

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
    """The places of a new window's claims, and the moves that make room for it."""

    placed: list[PlacedClaim]
    moves: Sequence[WindowMove]


def make_room(
    context: ClaimContext, wanted: Sequence[WantedClaim], span: StaySpan, seconds: float
) -> MovedPlaces | None:
    """Return places for which windows move or preemptible claims end, with the moves; None without places.

    :param span: the time of the window from now on.
    :param seconds: the limit of CPU time.
    """
    (one, *others), end = wanted, thread_time() + seconds
    # moves are tried first, because a move takes nothing away from any consumer. This search uses half of the
    # time. Moves make room on one host only, which rarely suffices for several claims
    if not others:
        concerned = possible_providers(context.model, wanted)
        moved = place_by_moves(context, one, concerned, span, seconds / 2)
        if moved is not None:
            return moved
    placed = place_preempting(context, wanted, span, end - thread_time())
    return MovedPlaces(placed, ()) if placed else None


def hosts_without_windows(search: TimedSearch, wanted: WantedClaim, window: TimeWindow) -> list[int]:
    """Return the roots of some hosts that would possibly have room for a claim without any timed amounts."""
    found = list[int]()
    # hosts that were found before the end of the budget are enough for a try
    with suppress(BudgetExhausted):
        ways = times_by_way(search, wanted, window.duration_seconds)
        roots, start = sorted(allowed_roots(search, wanted)), NEVER.starts_at
        for root in begin_anywhere(roots, search.rng):
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
        self, search: TimedSearch, schedule: TimeSchedule, movable: Mapping[str, ByProvider]
    ) -> None:
        self._search = search
        self._snapshot = search.snapshot
        self._movable = movable
        self._targets = MoveTargets(search)
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
                left = replace(self._search, skylines=self._skylines_without(tree, here, moving))
                ways, start = times_by_way(left, wanted, window.duration_seconds), window.starts_at
                # the sums of the host exclude most claims
                if all(each.first_start(root, start, start) > start for each in ways):
                    continue
                # new hosts are searched first, because in a full cloud there are none
                taken = Taken()
                moves = self._moves_of(tree, here, moving, taken)
                if len(moves) == len(moving):
                    # a window of a sharing provider moves to another one, which the claim perhaps uses, too
                    arriving = [
                        (self._snapshot.providers[at].uuid, {name: amount})
                        for (at, name), amount in taken.items()
                    ]
                    placed = place_on_hosts(left, (root,), [wanted], window, arriving=arriving)
                    if placed:
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
            each.id: self._search.skylines[each.id]
            for each in members_of(self._snapshot, ())
            if each.id in self._search.skylines
        }
        return shared | {each.id: left.get(each.uuid, NO_SKYLINES) for each in tree.members}

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
            mover = WindowMover(context.search_in(timed, seconds), *found_movable)
            if (tree := timed.view.snapshot.whole_trees().get(root)) is not None:
                moves.extend(mover.find_departures(tree, window))
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
        search = context.search_in(timed, min(seconds, _HOSTS_SECONDS))
        hosts, trees = hosts_without_windows(search, wanted, window), search.snapshot.whole_trees()
        providers = [each.uuid for root in hosts for each in trees[root].members]
    if not hosts or (movable := _read_movable(context, providers)) is None:
        return None
    with suppress(BudgetExhausted), context.timetable.fresh_view(None, context.check_awaited) as timed:
        search = context.search_in(timed, min(end - thread_time(), _SEARCH_SECONDS))
        return WindowMover(search, *movable).find_moves(hosts, wanted, window)
    return None


Taken = Counter[tuple[int, str]]
"""Amounts that earlier moves of the same search take, by provider id and by resource class."""


@dataclass(frozen=True, slots=True)
class WindowFootprint:
    """The amounts of a window by position of the provider and by class, and the equivalent hosts."""

    amounts: Mapping[tuple[int, str], int]
    window: TimeWindow
    roots: Sequence[int]

    def needs_less(self, other: WindowFootprint) -> bool:
        """Return whether this window fits on each host on which the other window fits."""
        return (
            # the index of equivalent hosts has one object for all hosts of a kind
            self.roots is other.roots
            and other.window.starts_at <= self.window.starts_at
            and self.window.ends_at <= other.window.ends_at
            and all(used <= other.amounts.get(key, 0) for key, used in self.amounts.items())
        )


class MoveTargets:
    """Finds equivalent hosts with room for windows, in one state of the read model."""

    def __init__(self, search: TimedSearch) -> None:
        self._search = search
        self._trees = search.snapshot.whole_trees()
        self._hosts = search.snapshot.equivalent_hosts()
        #: footprints without a new host, each with the root of its former host
        self._failed: list[tuple[WindowFootprint, int]] = []

    def find_move(
        self, tree: HostTree, amounts: Sequence[TimedAmount], taken: Taken, held: ByProvider
    ) -> WindowMove | None:
        """Return a move of a window from a tree to a new host; add the moved amounts to ``taken``.

        :param amounts: the amounts of the window in this tree, which move together.
        :param held: the amounts of the window at all providers. The new host has none of them, because the
            client perhaps needs different hosts.
        """
        positions = {each.uuid: at for at, each in enumerate(tree.members)}
        elsewhere = {provider: each for provider, each in held.items() if provider not in positions}
        avoided = {tree.root.id}.union(
            provider.root_id
            for each in elsewhere
            if (provider := self._search.snapshot.get(each)) is not None
        )
        footprint = WindowFootprint(
            {(positions[each.provider], each.resource_class): each.used for each in amounts},
            amounts[0].window,
            self._hosts.roots_like(tree),
        )
        for target in self._targets_of(footprint, avoided):
            wanted = [(target.members[positions[each.provider]], each) for each in amounts]
            if all(self._has_room(provider, each, taken) for provider, each in wanted):
                moved = defaultdict[str, dict[str, int]](dict)
                for provider, each in wanted:
                    taken[provider.id, each.resource_class] += each.used
                    moved[provider.uuid][each.resource_class] = each.used
                described = {each.id: each.described_seq for each in target.members}
                after = elsewhere | moved
                return WindowMove(amounts[0].consumer, amounts[0].window, held, after, described)
        # beside the amounts of other moves, or without some other hosts, a failure says nothing about the
        # window alone
        if not taken and len(avoided) == 1:
            self._failed.append((footprint, tree.root.id))
        return None

    def _targets_of(self, footprint: WindowFootprint, avoided: Set[int]) -> Iterator[HostTree]:
        self._search.budget.spend(len(self._failed))
        left_out = {root for failed, root in self._failed if failed.needs_less(footprint)}
        roots = footprint.roots
        if left_out:
            # each failed search has left out one host, and two of these searches leave out no common host
            roots = [each for each in left_out if len(left_out) == 1 and each in roots]
        for root in begin_anywhere(roots, self._search.rng):
            self._search.budget.spend()
            if root not in avoided:
                yield self._trees[root]

    def _has_room(self, provider: Provider, amount: TimedAmount, taken: Taken) -> bool:
        name = amount.resource_class
        used = provider.used.get(name, 0) + taken[provider.id, name]
        skyline = self._search.skylines.get(provider.id, NO_SKYLINES).get(name)
        if skyline is not None:
            used += skyline.largest_sum(amount.window) - skyline.counted
        # min_unit, max_unit and step_size are those of the former host. They apply to each claim of a window
        # alone, and not to the sum of its claims on a host
        return used + amount.used <= provider.inventories[name].capacity


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
        search, snapshot = context.search_in(timed, seconds), timed.view.snapshot
        roots = {root for each in distinct for root in allowed_roots(search, each)}
        possible = {each.uuid for each in members_of(snapshot, roots)}
        # if all providers are possible, one statement without a condition on providers reads their claims
        concerned = None if len(possible) == len(snapshot.providers) else possible
    with context.database.read() as conn:
        lent = read_preemptible(conn, wanted_classes(distinct), concerned, span.begin)
    if lent is None:
        return []
    shortened = make_skylines(lent.shortened_amounts, lent.schedule.holds)
    with context.timetable.fresh_view(concerned, context.check_awaited) as timed:
        search = context.search_in(timed, end - thread_time())
        snapshot, skylines = search.snapshot, {**search.skylines, **skylines_in(search.snapshot, shortened)}
        placed = place_during(replace(search, skylines=skylines), {}, wanted, window)
        if not placed:
            return []
        limits = {
            (snapshot.providers[provider_id].uuid, name): (
                snapshot.providers[provider_id].free(name) + skyline.counted - amount
            )
            for (provider_id, name), amount in taken_amounts(each.choice for each in placed).items()
            if (skyline := skylines.get(provider_id, NO_SKYLINES).get(name)) is not None
        }
        preempted = choose_preempted(lent, limits, window, search.budget.spend)
    first, *others = placed
    return [] if preempted is None else [replace(first, preempted=preempted), *others]
