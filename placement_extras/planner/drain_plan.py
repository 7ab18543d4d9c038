"""Finds new places for the guests of hosts that are drained or that fail.

Only :mod:`placement_extras.planner.handler` uses this module. The handler parses and answers requests; the
plan is a pure function over the read model.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from placement.read_model.provider import Provider
from placement.search.budget import SearchBudget, yielding_slices
from placement_extras.planner.cluster_simulation import ClusterSimulation, Host, HostedConsumer
from placement_extras.planner.migration_plan import MigrationStep
from placement_extras.planner.packing import FitBounds, Way, most_by_volume
from placement_extras.planner.trials import TrialJournal, TriesExhausted

_MAX_TRIES: Final = 5_000
"""Maximum number of tries of the second search, which tries to place more guests than the first pass has
placed. After these tries, the result has bounds instead of an exact number.
"""
# with more places, the second search would reach its maximum number of tries without a result
_MAX_PLACES: Final = 200
"""The second search runs only if all guests together have at most this number of possible places."""
MAX_UNPLACED: Final = 100
"""Maximum number of guests without a new place that an answer lists."""
MAX_STEPS: Final = 1000
"""Maximum number of moves to new places that an answer lists."""

_GuestPlace = tuple[HostedConsumer, Provider, Way]
"""A guest with the root of its new host, and the way in which it is placed there."""


@dataclass(frozen=True, slots=True)
class UnplacedGuest:
    """A guest of a drained host that has no new place. ``root`` is the root of its drained host.

    ``alone`` tells whether the guest would have a new place if no other guest were displaced.
    """

    guest: HostedConsumer
    root: Provider
    alone: bool


@dataclass(frozen=True, slots=True)
class DisplacedGuests:
    """The number of guests of drained hosts, bounds for the number of them that fit, and unplaced guests.

    ``steps`` has the moves of the other guests. The guests leave the drained hosts for other hosts, so the
    moves can be made in any order.
    """

    guests: int
    fit: FitBounds
    unplaced: tuple[UnplacedGuest, ...]
    steps: tuple[MigrationStep, ...]


def displace_guests(board: ClusterSimulation, guests: Sequence[HostedConsumer]) -> DisplacedGuests:
    """Return how many of these guests fit on other hosts, after all of them have left their hosts.

    In a first pass, each guest takes the first place with room; the largest guests come first. If guests
    without a place are left, a second search tries all places for all guests, within limits.

    :param board: the simulated cluster, without the hosts of these guests.
    """
    for guest in guests:
        board.budget.spend(len(guest.held))
        board.take_amounts(guest.held.items(), -1)
    # large guests come first, because they have the fewest places; small guests fit into the gaps
    largest = _largest_first(guests, board.budget)
    places, left = _place_guests(board, largest)
    # the guests of the first pass are removed, because the second search begins without displaced guests
    for _, _, way in places:
        board.take_amounts(way, -1)
    if not left:
        return DisplacedGuests(
            len(guests), FitBounds(len(guests), len(guests)), (), _list_steps(board, places)
        )
    # guests with the same request have the same answer, which is computed once, because a cloud has few
    # flavors
    alone = {
        request: _FirstPlaces(board, guest).next_place() is not None
        for request, guest in {id(each.request): each for each in left}.items()
    }
    # a guest without a place when no other guest is placed has no place in any plan
    upper_bound = len(guests) - sum([not alone[id(each.request)] for each in left])
    # the sums of free amounts give another upper bound; it is only needed if guests are left
    upper_bound = min(upper_bound, _by_volume(board, guests))
    # a request that was not tried alone has a place, because the first pass has placed all its guests
    search = _DrainSearch(board, [each for each in largest if alone.get(id(each.request), True)])
    if len(guests) - len(left) < upper_bound:
        upper_bound, found = search.find_places(len(guests) - len(left), upper_bound)
        if found is not None:
            places, placed = found, {guest for guest, _, _ in found}
            left = [each for each in largest if each not in placed]
    fit = FitBounds(len(guests) - len(left), upper_bound)
    named = tuple(
        [
            UnplacedGuest(each, board.drained_root(each.held), alone.get(id(each.request), True))
            for each in left[:MAX_UNPLACED]
        ]
    )
    return DisplacedGuests(len(guests), fit, named, _list_steps(board, places))


def _list_steps(board: ClusterSimulation, places: Sequence[_GuestPlace]) -> tuple[MigrationStep, ...]:
    """Return the moves of guests to their new places."""
    return tuple(
        [
            MigrationStep.from_way(board, guest, board.drained_root(guest.held), root, way)
            for guest, root, way in places[:MAX_STEPS]
        ]
    )


def _largest_first(guests: Sequence[HostedConsumer], budget: SearchBudget) -> list[HostedConsumer]:
    """Sort guests by size, the largest first.

    Each amount of a guest is a share of the largest amount of its class. The size is the largest share.
    """
    asked = [(each, each.total_amounts) for some in yielding_slices(guests, budget) for each in some]
    most: dict[str, int] = {}
    for some in yielding_slices(asked, budget):
        for _, amounts in some:
            for name, amount in amounts.items():
                most[name] = max(amount, most.get(name, 1))
    sizes = [
        (-max([amount / most[name] for name, amount in amounts.items()]), each.consumer, each)
        for some in yielding_slices(asked, budget)
        for each, amounts in some
    ]
    return [each for _, _, each in sorted(sizes, key=itemgetter(0, 1))]


def _place_guests(
    board: ClusterSimulation, guests: Sequence[HostedConsumer]
) -> tuple[list[_GuestPlace], list[HostedConsumer]]:
    """Place each guest at the first host with room; return their places, and unplaced guests."""
    taken, left = list[_GuestPlace](), []
    # guests with equal requests share the object of the request, and so one search
    places: dict[int, _FirstPlaces] = {}
    for guest in guests:
        if id(guest.request) not in places:
            places[id(guest.request)] = _FirstPlaces(board, guest)
        place = places[id(guest.request)].next_place()
        if place is None:
            left.append(guest)
        else:
            root, way = place
            board.take_amounts(way)
            taken.append((guest, root, way))
    return taken, left


class _FirstPlaces:
    """Finds the first host with room for each guest of one request. A host that is full stays full."""

    def __init__(self, board: ClusterSimulation, guest: HostedConsumer) -> None:
        self._board = board
        self._request = guest.request
        self._hosts: Iterator[Host] = board.candidate_hosts(guest.request)
        self._host = next(self._hosts, None)

    def next_place(self) -> tuple[Provider, Way] | None:
        """Return the first host with room for the next guest, and a way to place it; None if all are full."""
        while self._host is not None:
            self._board.budget.spend()
            way = next(self._board.room_at(self._request, self._host), None)
            if way is not None:
                return self._host[0].root, way
            self._host = next(self._hosts, None)
        return None


def _by_volume(board: ClusterSimulation, guests: Sequence[HostedConsumer]) -> int:
    """Return an upper bound for the number of guests that fit, from the sums of free amounts."""
    asked: dict[str, Counter[int]] = {}
    for guest in guests:
        for name, amount in guest.total_amounts.items():
            asked.setdefault(name, Counter())[amount] += 1
    there = dict.fromkeys(asked, 0)
    requests = {id(each.request): each.request for each in guests}.values()
    serving = {
        member.id: member
        for tree, shared in board.each_host()
        # the sums leave out hosts that can serve none of the guests
        if any(board.serves_request(request, (tree, shared)) for request in requests)
        for member in (*tree.members, *shared)
    }
    for member in serving.values():
        for name in member.inventories:
            if name in there:
                there[name] += max(0, board.free((member.id, name)))
    return most_by_volume(len(guests), asked, there)


class _DrainSearch:
    """Tries all places for all guests, if the guests have only few possible places."""

    def __init__(self, board: ClusterSimulation, guests: Sequence[HostedConsumer]) -> None:
        self._board = board
        self.guests = guests
        self._journal = TrialJournal(board.budget, _MAX_TRIES)
        self._places: list[_GuestPlace] = []

    def find_places(self, known: int, upper_bound: int) -> tuple[int, list[_GuestPlace] | None]:
        """Search for places for more than ``known`` guests; at most ``upper_bound`` guests have places.

        Return a new upper bound, and the places; None if no search found places for more guests.
        """
        if not self._is_small():
            return upper_bound, None
        # the number of guests that the next search is allowed to leave without a place
        spare = len(self.guests) - known - 1
        least = len(self.guests) - upper_bound
        best: list[_GuestPlace] | None = None
        try:
            # each search has to place more guests than the search before, until no solution exists
            while spare >= least:
                if self._try_guests(0, spare):
                    best = self._places.copy()
                    spare = len(self.guests) - len(best) - 1
                else:
                    least = spare + 1
                self._journal.undo_changes()
        except TriesExhausted:
            self._journal.undo_changes()
        return len(self.guests) - least, best

    def _is_small(self) -> bool:
        places = 0
        for guest in self.guests:
            for _ in self._board.find_rooms(guest.request):
                places += 1
                if places > _MAX_PLACES:
                    return False
        return True

    def _try_guests(self, number: int, spare: int) -> bool:
        """Try to place the guests from index ``number`` on; up to ``spare`` of them can stay without a place.

        Return whether this succeeds. The placed guests then stay at their places.
        """
        self._journal.count_try()
        if number == len(self.guests):
            return True
        guest = self.guests[number]
        for root, way in self._journal.try_each(self._board.find_rooms(guest.request)):
            self._board.take_amounts(way)
            self._journal.record_undo(self._board.take_amounts, way, -1)
            self._places.append((guest, root, way))
            self._journal.record_undo(self._places.pop)
            if self._try_guests(number + 1, spare):
                return True
        # at last, the guest is left without a place, because no place for it has led to a result
        return spare > 0 and self._try_guests(number + 1, spare - 1)
