"""Finds the smallest number of moves of guests that make room for one more guest of a flavor."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Final

from placement.read_model.provider import SHARES, Provider
from placement.search.request import CandidatesRequest
from placement_extras.planner.cluster_simulation import ClusterSimulation, Host, HostedConsumer
from placement_extras.planner.packing import DevicePool, Slot, Way
from placement_extras.planner.trials import TrialJournal, TriesExhausted

MAX_HOSTS: Final = 64
"""Maximum number of hosts from which guests can be moved. These are the hosts that lack the smallest amounts
for a guest of the flavor.
"""
MAX_MOVES: Final = 64
"""Maximum number of moves in a plan."""
_MAX_TRIES: Final = 2_000
"""Maximum number of single moves that the search tries in order to find a plan with fewer moves."""
WINDOW_HOLD: Final = "WINDOW_HOLD"
"""The type of the consumers that keep room at a provider free for windows."""
_STAYING: Final = frozenset(("RESERVATION", WINDOW_HOLD, "MIGRATION"))
"""Types of consumers that no plan moves."""


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """The move of one guest from a host to another host.

    ``source`` and ``target`` are the roots of the hosts. ``allocations`` has the amounts that the guest takes
    at its new host, by the uuid of the provider and by class.
    """

    guest: HostedConsumer
    source: Provider
    target: Provider
    allocations: Mapping[str, Mapping[str, int]]

    @classmethod
    def from_way(
        cls, board: ClusterSimulation, guest: HostedConsumer, source: Provider, target: Provider, way: Way
    ) -> MigrationStep:
        """Return the move of a guest that takes these amounts at its new host."""
        allocations: dict[str, dict[str, int]] = {}
        for (provider_id, name), amount in way:
            allocations.setdefault(board.snapshot.providers[provider_id].uuid, {})[name] = amount
        return cls(guest, source, target, allocations)


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """Moves, in the order in which they are made. Afterwards, a guest of the flavor fits on ``host``.

    Each guest has room at its new host at the time of its move. At least ``lower_bound`` moves are necessary.
    ``lower_bound`` is None if moves cannot make room. ``moves`` is None if no plan is known.
    """

    moves: tuple[MigrationStep, ...] | None
    host: Provider | None
    lower_bound: int | None


def plan_with_fewest(makings: Iterable[MigrationPlan]) -> MigrationPlan:
    """Return the plan with the fewest moves; of several such plans, return the first.

    :param makings: at least one plan. Each plan is a result of :func:`make_room`.
    """
    found = list(makings)
    # a result without moves is chosen only if no result has moves
    least = min(found, key=lambda each: math.inf if each.moves is None else len(each.moves))
    bounds = [each.lower_bound for each in found if each.lower_bound is not None]
    return replace(least, lower_bound=min(bounds, default=None))


def nearest_hosts(board: ClusterSimulation, request: CandidatesRequest) -> list[Host]:
    """Return the hosts that lack the smallest amounts for a guest with this request."""
    order = count()

    def lacking_share(host: Host) -> tuple[float, int]:
        board.budget.spend()
        lacks = [
            sum(max(0, amount - board.free(slot)) / amount for slot, amount in way)
            for way in board.ways_at(request, host)
        ]
        return min(lacks, default=math.inf), next(order)

    return heapq.nsmallest(MAX_HOSTS, board.hosts, key=lacking_share)


def make_room(
    board: ClusterSimulation,
    request: CandidatesRequest,
    hosts: Sequence[Host],
    guests: Sequence[HostedConsumer],
    *,
    all_known: bool,
) -> MigrationPlan:
    """Return the plan with the fewest moves, of all plans found, that makes room for a guest.

    :param hosts: the hosts from which guests can be moved: the result of :func:`nearest_hosts`.
    :param guests: guests on these hosts.
    :param all_known: whether ``guests`` contains all guests on these hosts.
    """
    room = next(board.find_rooms(request), None)
    if room is not None:
        return MigrationPlan((), room[0], 0)
    search = _MigrationSearch(board, request, hosts, guests)
    found = search.run()
    partly = len(hosts) < len(board.hosts)
    if not all_known or search.missing_targets or (partly and board.shares):
        # the search has moved only known guests; moves of unknown guests could perhaps make room with fewer
        # moves
        return MigrationPlan(found.moves, found.host, 1)
    if partly and found.lower_bound is not None:
        # a single move of a guest on another host cannot make room, because it frees nothing on these hosts
        return MigrationPlan(found.moves, found.host, min(found.lower_bound, 2))
    return found


@dataclass(frozen=True, slots=True)
class _TargetHost:
    """A host that could serve the flavor when empty, with the ways to place a guest of the flavor there."""

    root: Provider
    ways: Sequence[Way]


class _MigrationSearch:
    """Searches for moves of guests. The search tries moves in the simulation, and undoes them at the end."""

    def __init__(
        self,
        board: ClusterSimulation,
        request: CandidatesRequest,
        hosts: Sequence[Host],
        guests: Sequence[HostedConsumer],
    ) -> None:
        self._board = board
        found = [_TargetHost(each[0].root, board.ways_at(request, each)) for each in hosts]
        self._targets = [each for each in found if each.ways]
        known = {tree.root.id for tree, _ in hosts}
        #: whether any host that is not one of ``hosts`` could also serve the flavor when empty
        self.missing_targets = len(hosts) < len(board.hosts) and any(
            host[0].root.id not in known and board.ways_at(request, host) for host in board.hosts
        )
        # a guest with allocations from several hosts is not moved, because a move leaves exactly one host
        self._guests = [
            each
            for each in guests
            if len(each.hosts) == 1
            and each.hosts <= known
            and each.consumer_type not in _STAYING
            and self._is_at(next(iter(each.hosts)), each.held.items())
        ]
        self._at = {each: next(iter(each.hosts)) for each in self._guests}
        self._holding: dict[HostedConsumer, dict[Slot, int]] = {
            each: dict(each.held) for each in self._guests
        }
        self._holders: dict[Slot, dict[HostedConsumer, int]] = {}
        for guest in self._guests:
            self._note_holder(guest)
        self._needed: dict[int, float] = {}
        self._moves: list[MigrationStep] = []
        self._journal = TrialJournal(board.budget, _MAX_TRIES)
        self._cut = False
        self._seen: dict[frozenset[tuple[HostedConsumer, Way]], int] = {}

    def run(self) -> MigrationPlan:
        """Return the plan with the fewest moves; if the search takes too long, the best plan found so far."""
        least = self._least_moves()
        if math.isinf(least):
            return MigrationPlan(None, None, None)
        best: tuple[tuple[MigrationStep, ...], Provider] | None = None
        # hosts that need the fewest moves come first, because the length of their plan limits the search at
        # the other hosts
        for target in sorted(self._targets, key=self._needs_leaving):
            most = MAX_MOVES if best is None else len(best[0]) - 1
            if self._needs_leaving(target) > most or (best is not None and len(best[0]) == least):
                break
            moves = self._empty_host(target, most)
            if moves is not None:
                best = moves, target.root
        bound = int(least)
        # the number of moves grows by one at a time. If no plan has this number of moves, more are necessary.
        while bound <= MAX_MOVES and (best is None or bound < len(best[0])):
            # states that have failed are tried again, because one more move is allowed now
            self._seen.clear()
            self._cut = False
            try:
                found = self._try_moves(bound)
                if found:
                    root = next(each.root for each in self._targets if not self._needs_leaving(each))
                    best = tuple(self._moves), root
            except TriesExhausted:
                break
            finally:
                self._journal.undo_changes()
            if found:
                break
            if not self._cut and best is None:
                return MigrationPlan(None, None, None)
            bound += 1
        if best is None:
            return MigrationPlan(None, None, bound)
        return MigrationPlan(*best, bound)

    def _needs_leaving(self, target: _TargetHost) -> float:
        """Return a lower bound for the guests that must leave a host before the flavor fits there."""
        # the bound is cached until a guest moves to or from this host
        known = self._needed.get(target.root.id)
        if known is None:
            known = self._needed[target.root.id] = min(map(self._needs_for, target.ways))
        return known

    def _needs_for(self, way: Way) -> float:
        return max([self._leaving_count(slot, amount) for slot, amount in way])

    def _leaving_count(self, slot: Slot, amount: int) -> float:
        """Return a lower bound for the number of guests that must leave before a slot has a free amount."""
        lacking, number = amount - self._board.free(slot), 0
        if lacking <= 0:
            return 0
        self._board.budget.spend()
        # guests with the largest amounts leave first, so a smaller number of guests cannot free the amount
        for held in sorted(self._holders_of(slot).values(), reverse=True):
            lacking, number = lacking - held, number + 1
            if lacking <= 0:
                return number
        return math.inf

    def _holders_of(self, slot: Slot) -> Mapping[HostedConsumer, int]:
        """Return the guests that use a slot or a pool's devices, each with the amount that it can free."""
        if not isinstance(slot, DevicePool):
            return self._holders.get(slot, {})
        found: dict[HostedConsumer, int] = {}
        for each in slot.slots:
            for guest, held in self._holders.get(each, {}).items():
                # the amount is rounded up to whole units. If a guest uses only a part of a unit, the whole
                # unit becomes usable when the guest leaves.
                found[guest] = found.get(guest, 0) + -(-held // slot.unit) * slot.unit
        return found

    def _least_moves(self) -> float:
        return min(map(self._needs_leaving, self._targets), default=math.inf)

    def _empty_host(self, target: _TargetHost, most: int) -> tuple[MigrationStep, ...] | None:
        """Move guests away, those that free most of the missing amounts first.

        Return the moves; None if ``most`` moves are not enough.
        """
        try:
            while self._needs_leaving(target):
                if len(self._moves) + self._needs_leaving(target) > most:
                    return None
                if not any(self._move_guest(guest, where) for guest, where in self._leaving_ways(target)):
                    return None
            return tuple(self._moves)
        finally:
            self._journal.undo_changes()

    def _leaving_ways(self, target: _TargetHost) -> Iterator[tuple[HostedConsumer, tuple[Provider, Way]]]:
        """Yield the guests that can leave a host, each with a new place.

        Guests that free most of the missing amounts come first.
        """
        way = min(target.ways, key=self._needs_for)
        missing = {slot: amount - self._board.free(slot) for slot, amount in way}
        lacking = [(amount, self._holders_of(slot)) for slot, amount in missing.items() if amount > 0]
        helpful = {guest for _, holders in lacking for guest in holders}

        def help_of(guest: HostedConsumer) -> float:
            return sum(min(1, holders.get(guest, 0) / amount) for amount, holders in lacking)

        # among equally helpful guests, uuids decide, so that equal clouds get equal plans
        for guest in sorted(helpful, key=lambda each: (-help_of(each), each.consumer)):
            where = next(self._places_elsewhere(guest), None)
            if where is not None:
                yield guest, where

    def _places_elsewhere(self, guest: HostedConsumer) -> Iterator[tuple[Provider, Way]]:
        """Return a guest's places on other hosts. Its own amounts from sharing providers count as free."""
        rooms = self._board.find_rooms(guest.request, self._holders)
        if self._board.shares:
            held = self._holding[guest].items()
            self._board.take_amounts(held, -1)
            # all places are found here, because the next line takes the guest's own amounts again
            found = list(rooms)
            self._board.take_amounts(held)
            rooms = iter(found)
        return (
            (root, way) for root, way in rooms if root.id != self._at[guest] and self._is_at(root.id, way)
        )

    def _is_at(self, root: int, slots: Iterable[tuple[Slot, int]]) -> bool:
        """Return whether a guest with these slots uses more of the host than its sharing providers."""
        providers = self._board.snapshot.providers
        return any(
            providers[slot[0]].root_id == root and SHARES not in providers[slot[0]].traits
            for slot, _ in slots
        )

    def _try_moves(self, left: int) -> bool:
        """Return whether ``left`` more moves can make room. If so, these moves stay made.

        :raises TriesExhausted: the search has ended before this was known.
        """
        least = self._least_moves()
        if not least:
            return True
        if least > left:
            # if the bound is infinite, no number of moves makes room, so this branch contains no solution
            self._cut = self._cut or not math.isinf(least)
            return False
        state = frozenset(
            [(each, tuple(self._holding[each].items())) for each in {move.guest for move in self._moves}]
        )
        # a state consists of the places of the moved guests; the order of the moves does not matter
        if self._seen.get(state, -1) >= left:
            return False
        self._seen[state] = left
        for guest in self._worth_moving(left, tight=least == left):
            places = self._places_elsewhere(guest)
            if left == 1 and not self._board.shares:
                # the last move makes room because its guest leaves a host, so one place for this guest is
                # enough
                places = islice(places, 1)
            for where in self._journal.try_each(places):
                self._journal.count_try()
                self._move_guest(guest, where)
                if self._try_moves(left - 1):
                    return True
        return False

    def _worth_moving(self, left: int, *, tight: bool) -> list[HostedConsumer]:
        """Return the guests for the next move.

        If ``tight`` is set, no move can be spared: the next move has to free an amount that is missing.
        """
        if not tight:
            return self._guests
        found = {
            guest: None
            for target in self._targets
            if self._needs_leaving(target) == left
            for way in target.ways
            for slot, amount in way
            if self._board.free(slot) < amount
            for guest in self._holders_of(slot)
        }
        # moves of the other guests can perhaps help if one more move is allowed
        self._cut = self._cut or len(found) < len(self._guests)
        return list(found)

    def _move_guest(self, guest: HostedConsumer, where: tuple[Provider, Way]) -> bool:
        root, way = where
        source = self._board.snapshot.providers[self._at[guest]]
        self._moves.append(MigrationStep.from_way(self._board, guest, source, root, way))
        # the last entry is undone first: the guest returns, and then its move is removed from the list
        self._journal.record_undo(self._moves.pop)
        self._journal.record_undo(self._put_guest, guest, source.id, self._holding[guest])
        self._put_guest(guest, root.id, dict(way))
        return True

    def _put_guest(self, guest: HostedConsumer, root: int, amounts: dict[Slot, int]) -> None:
        """Replace the amounts of a guest by other amounts, at the host with this root."""
        self._board.take_amounts(self._holding[guest].items(), -1)
        for slot in self._holding[guest]:
            del self._holders[slot][guest]
        # the guests of both hosts have changed, so their bounds are computed again
        roots = (self._at[guest], root)
        self._holding[guest], self._at[guest] = amounts, root
        self._note_holder(guest)
        self._board.take_amounts(amounts.items())
        if self._board.shares:
            # the bound of each host can depend on amounts of a sharing provider
            self._needed.clear()
        for each in roots:
            self._needed.pop(each, None)

    def _note_holder(self, guest: HostedConsumer) -> None:
        for slot, amount in self._holding[guest].items():
            self._holders.setdefault(slot, {})[guest] = amount
