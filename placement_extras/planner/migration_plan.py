"""Finds the fewest moves of guests to other hosts that make room for one more guest of a flavor."""

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
"""Maximum number of hosts from which guests may move. The hosts that lack least for the flavor are chosen."""
MAX_MOVES: Final = 64
"""Maximum number of moves in a plan."""
_MAX_TRIES: Final = 2_000
"""Maximum number of single moves that the search tries in order to find a plan with fewer moves."""
WINDOW_HOLD: Final = "WINDOW_HOLD"
"""The type of consumers that keep amounts of a provider free for windows."""
_STAYING: Final = frozenset(("RESERVATION", WINDOW_HOLD, "MIGRATION"))
"""Types of consumers that no plan moves."""


@dataclass(frozen=True, slots=True)
class MigrationStep:
    """The move of one guest from a host to another host, and the amounts that it takes there.

    Hosts are given by their roots.

    ``allocations`` has these amounts, by uuid of the provider and by class.
    """

    guest: HostedConsumer
    source: Provider
    target: Provider
    way: Way
    allocations: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """Moves in order, after which a guest of the flavor fits on ``host``.

    Each moved guest has room at its destination at the time of its move. At least ``lower_bound`` moves are
    necessary. ``lower_bound`` is None if moves cannot make room. ``moves`` is None if no plan is known.
    """

    moves: tuple[MigrationStep, ...] | None
    host: Provider | None
    lower_bound: int | None


def plan_with_fewest(makings: Iterable[MigrationPlan]) -> MigrationPlan:
    """Return the plan with the fewest moves; of equal plans, return the first.

    :param makings: the plans to choose from, at least one, each a result of :func:`make_room`.
    """
    found = list(makings)
    # a result without a plan loses to each result that has one
    least = min(found, key=lambda each: math.inf if each.moves is None else len(each.moves))
    bounds = [each.lower_bound for each in found if each.lower_bound is not None]
    return replace(least, lower_bound=min(bounds, default=None))


def nearest_hosts(board: ClusterSimulation, request: CandidatesRequest) -> list[Host]:
    """Return the hosts that lack the least for a guest of the request; the guests of these hosts may move."""
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
    """Return the fewest known moves that make room for a guest.

    :param hosts: the hosts from which guests may move, by :func:`nearest_hosts`.
    :param guests: the guests on these hosts that may move.
    :param all_known: whether ``guests`` contains all guests of these hosts.
    """
    room = next(board.find_rooms(request), None)
    if room is not None:
        return MigrationPlan((), room[0], 0)
    search = _MigrationSearch(board, request, hosts, guests)
    found = search.run()
    partly = len(hosts) < len(board.hosts)
    if not all_known or search.missing_targets or (partly and board.shares):
        # moves were found for known guests; the unknown guests might allow fewer moves
        return MigrationPlan(found.moves, found.host, 1)
    if partly and found.lower_bound is not None:
        # a move of an unknown guest can only help as the second move or later
        return MigrationPlan(found.moves, found.host, min(found.lower_bound, 2))
    return found


class _TargetHost:
    """A host with a place for the flavor when empty, and the ways to place a guest of the flavor there."""

    def __init__(self, host: Host, ways: Sequence[Way]) -> None:
        self.root = host[0].root
        self.host = host
        self.ways = ways


class _MigrationSearch:
    """Searches for moves of guests; it tries moves in the simulation, and undoes all of them at the end."""

    def __init__(
        self,
        board: ClusterSimulation,
        request: CandidatesRequest,
        hosts: Sequence[Host],
        guests: Sequence[HostedConsumer],
    ) -> None:
        self._board = board
        found = [_TargetHost(each, board.ways_at(request, each)) for each in hosts]
        self._targets = [each for each in found if each.ways]
        known = {tree.root.id for tree, _ in hosts}
        #: whether other hosts could serve the flavor, too
        self.missing_targets = len(hosts) < len(board.hosts) and any(
            host[0].root.id not in known and board.ways_at(request, host) for host in board.hosts
        )
        # a guest on several hosts has no single place to leave, so it stays
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
        """Return the plan with the fewest moves, or the best so far if the search takes too long."""
        least = self._least_moves()
        if math.isinf(least):
            return MigrationPlan(None, None, None)
        best: tuple[tuple[MigrationStep, ...], Provider] | None = None
        # hosts that need the fewest moves come first, because their result limits the search at the other
        # hosts
        for target in sorted(self._targets, key=self._needs_leaving):
            most = MAX_MOVES if best is None else len(best[0]) - 1
            if self._needs_leaving(target) > most or (best is not None and len(best[0]) == least):
                break
            moves = self._empty_host(target, most)
            if moves is not None:
                best = moves, target.root
        bound = int(least)
        # the limit grows by one move at a time; each step without a result proves that more moves are needed
        while bound <= MAX_MOVES and (best is None or bound < len(best[0])):
            # a state that failed may succeed now, because one more move is allowed
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
        """Return a lower bound of the number of guests that must leave before the flavor fits at a host."""
        # the bound is cached until a guest moves to this host or leaves it
        known = self._needed.get(target.root.id)
        if known is None:
            known = self._needed[target.root.id] = min(map(self._needs_for, target.ways))
        return known

    def _needs_for(self, way: Way) -> float:
        return max([self._leaving_count(slot, amount) for slot, amount in way])

    def _leaving_count(self, slot: Slot, amount: int) -> float:
        """Return a lower bound of the number of guests that must leave before an amount of a slot is free."""
        lacking, number = amount - self._board.free(slot), 0
        if lacking <= 0:
            return 0
        self._board.budget.spend()
        # the guests with the largest amounts come first, so no smaller number of guests can free the amount
        for held in sorted(self._holders_of(slot).values(), reverse=True):
            lacking, number = lacking - held, number + 1
            if lacking <= 0:
                return number
        return math.inf

    def _holders_of(self, slot: Slot) -> Mapping[HostedConsumer, int]:
        """Return the guests with allocations of a slot or of a pool's devices, and how much each can free."""
        if not isinstance(slot, DevicePool):
            return self._holders.get(slot, {})
        found: dict[HostedConsumer, int] = {}
        for each in slot.slots:
            for guest, held in self._holders.get(each, {}).items():
                # the amount is rounded up, because a guest may hold the part of a unit that keeps the whole
                # unit from being usable
                found[guest] = found.get(guest, 0) + -(-held // slot.unit) * slot.unit
        return found

    def _least_moves(self) -> float:
        return min(map(self._needs_leaving, self._targets), default=math.inf)

    def _empty_host(self, target: _TargetHost, most: int) -> tuple[MigrationStep, ...] | None:
        """Move those guests away that use most of what is missing; None if ``most`` moves are not enough."""
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
        """Yield the guests that may leave a host, each with a new place; the most helpful come first."""
        way = min(target.ways, key=self._needs_for)
        missing = {slot: amount - self._board.free(slot) for slot, amount in way}
        lacking = [(amount, self._holders_of(slot)) for slot, amount in missing.items() if amount > 0]
        helpful = {guest for _, holders in lacking for guest in holders}

        def help_of(guest: HostedConsumer) -> float:
            return sum(min(1, holders.get(guest, 0) / amount) for amount, holders in lacking)

        # the uuid is the last sort key, so that the same cloud always gets the same plan
        for guest in sorted(helpful, key=lambda each: (-help_of(each), each.consumer)):
            where = next(self._places_elsewhere(guest), None)
            if where is not None:
                yield guest, where

    def _places_elsewhere(self, guest: HostedConsumer) -> Iterator[tuple[Provider, Way]]:
        """Return a guest's places on other hosts; its own amounts at sharing providers count as free."""
        rooms = self._board.find_rooms(guest.request, self._holders)
        if self._board.shares:
            held = self._holding[guest].items()
            self._board.take_amounts(held, -1)
            # the list is complete here, because the guest's own amounts count as free only until the next
            # line
            found = list(rooms)
            self._board.take_amounts(held)
            rooms = iter(found)
        return (
            (root, way) for root, way in rooms if root.id != self._at[guest] and self._is_at(root.id, way)
        )

    def _is_at(self, root: int, slots: Iterable[tuple[Slot, int]]) -> bool:
        """Return whether a guest with these slots uses the host, and not only its sharing providers."""
        providers = self._board.snapshot.providers
        return any(
            providers[slot[0]].root_id == root and SHARES not in providers[slot[0]].traits
            for slot, _ in slots
        )

    def _try_moves(self, left: int) -> bool:
        """Return whether as many moves make room, which then stay; TriesExhausted means unknown."""
        least = self._least_moves()
        if not least:
            return True
        if least > left:
            # with an infinite bound no number of moves makes room, so the search has not cut off a solution
            self._cut = self._cut or not math.isinf(least)
            return False
        state = frozenset(
            [(each, tuple(self._holding[each].items())) for each in {move.guest for move in self._moves}]
        )
        # the order of moves does not matter, only the places of the guests after them
        if self._seen.get(state, -1) >= left:
            return False
        self._seen[state] = left
        for guest in self._worth_moving(left, tight=least == left):
            places = self._places_elsewhere(guest)
            if left == 1 and not self._board.shares:
                # the last move makes room because its guest leaves, so any place for this guest is equally
                # good
                places = islice(places, 1)
            for where in self._journal.try_each(places):
                self._journal.count_try()
                self._move_guest(guest, where)
                if self._try_moves(left - 1):
                    return True
        return False

    def _worth_moving(self, left: int, *, tight: bool) -> list[HostedConsumer]:
        """Return the guests for the next move; with ``tight``, it has to free an amount of a short slot."""
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
        # the left-out guests may help if one more move is allowed
        self._cut = self._cut or len(found) < len(self._guests)
        return list(found)

    def _move_guest(self, guest: HostedConsumer, where: tuple[Provider, Way]) -> bool:
        root, way = where
        source = self._board.snapshot.providers[self._at[guest]]
        allocations: dict[str, dict[str, int]] = {}
        for (provider_id, name), amount in way:
            uuid = self._board.snapshot.providers[provider_id].uuid
            allocations.setdefault(uuid, {})[name] = amount
        self._moves.append(MigrationStep(guest, source, root, way, allocations))
        # the last entry is undone first, so the guest returns before its move is removed from the list
        self._journal.record_undo(self._moves.pop)
        self._journal.record_undo(self._put_guest, guest, source.id, self._holding[guest])
        self._put_guest(guest, root.id, dict(way))
        return True

    def _put_guest(self, guest: HostedConsumer, root: int, amounts: dict[Slot, int]) -> None:
        """Replace the amounts of a guest by other amounts at the given host."""
        self._board.take_amounts(self._holding[guest].items(), -1)
        for slot in self._holding[guest]:
            del self._holders[slot][guest]
        # the guests of both hosts have changed, so their bounds are computed again
        roots = (self._at[guest], root)
        self._holding[guest], self._at[guest] = amounts, root
        self._note_holder(guest)
        self._board.take_amounts(amounts.items())
        if self._board.shares:
            # the bound of any host may include an amount of a shared provider
            self._needed.clear()
        for each in roots:
            self._needed.pop(each, None)

    def _note_holder(self, guest: HostedConsumer) -> None:
        for slot, amount in self._holding[guest].items():
            self._holders.setdefault(slot, {})[guest] = amount
