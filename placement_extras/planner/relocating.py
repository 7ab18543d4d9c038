"""Who is where says the database, where there is room the read model: what it takes both to find out.

What is read of one may be newer than of the other, so that a guest who comes, goes or moves meanwhile may be
counted twice or not at all.
"""

from collections.abc import Callable, Collection, Sequence
from time import thread_time
from typing import Final

from placement.db.database import ServiceDatabase
from placement.exceptions import InvalidRequest
from placement.model.feed import ModelView, ReadModel
from placement.model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.request import CandidatesRequest
from placement.store.holders import HeldAmount, held_beside
from placement_extras.planner.board import ClusterSimulation
from placement_extras.planner.draining import DisplacedGuests, displace
from placement_extras.planner.guests import HostedConsumer, guests_of
from placement_extras.planner.moving import MigrationPlan, make_room, nearest

MAX_HELD: Final = 50_000
"""Amounts that are read of those who are on the hosts in question."""


class GuestRelocator:
    """Finds places elsewhere for guests.

    :param seconds: of work for all that is asked.
    :param check_awaited: called again and again; what it raises ends the work.
    """

    def __init__(
        self, model: ReadModel, database: ServiceDatabase, seconds: float, check_awaited: Callable[[], None]
    ) -> None:
        self._model = model
        self._database = database
        self._end = thread_time() + seconds
        self._check_awaited = check_awaited

    def displaced(self, hosts: Collection[str]) -> DisplacedGuests:
        """Whether those on some hosts, by the uuids of their roots, have a place on the others.

        :raises InvalidRequest: there are too many of them.
        :raises placement.search.budget.BudgetExhausted: it takes too long.
        """
        with self._model.fresh() as view:
            members = _members(view.snapshot, _ids(view.snapshot, hosts))
        held, complete = self._held(members)
        if not complete:
            raise InvalidRequest(
                f"Those on the hosts to be left aside hold more than {MAX_HELD} amounts: name fewer hosts."
            )
        with self._model.fresh() as view:
            avoided, budget = _ids(view.snapshot, hosts), self._budget(view)
            guests = _on(view.snapshot, avoided, held, budget)
            return displace(ClusterSimulation(view.snapshot, budget, avoided), guests)

    def room_for(self, request: CandidatesRequest, avoided: Collection[str]) -> MigrationPlan:
        """The fewest moves that make room for a guest; nobody goes to the avoided hosts, or comes from them.

        :raises placement.search.budget.BudgetExhausted: it takes too long.
        """
        with self._model.fresh() as view:
            board = ClusterSimulation(view.snapshot, self._budget(view), _ids(view.snapshot, avoided))
            roots = {tree.root.id for tree, _ in nearest(board, request)}
            members = _members(view.snapshot, roots)
        held, complete = self._held(members)
        with self._model.fresh() as view:
            board = ClusterSimulation(view.snapshot, self._budget(view), _ids(view.snapshot, avoided))
            hosts = [host for host in board.hosts if host[0].root.id in roots]
            guests = _on(view.snapshot, roots, held, board.budget)
            return make_room(board, request, hosts, guests, all_known=complete)

    def _held(self, provider_ids: Collection[int]) -> tuple[list[HeldAmount], bool]:
        with self._database.read() as conn:
            return held_beside(conn, provider_ids, MAX_HELD)

    def _budget(self, view: ModelView) -> SearchBudget:
        return SearchBudget(self._end - thread_time(), give_way=view.giving_way_after(self._check_awaited))


def _ids(snapshot: ModelSnapshot, uuids: Collection[str]) -> set[int]:
    """Of those of the providers that are there."""
    return {snapshot.by_uuid[uuid] for uuid in uuids if uuid in snapshot.by_uuid}


def _members(snapshot: ModelSnapshot, roots: Collection[int]) -> set[int]:
    return {member for root in roots for member in snapshot.trees.get(root, ())}


def _on(
    snapshot: ModelSnapshot, roots: Collection[int], held: Sequence[HeldAmount], budget: SearchBudget
) -> list[HostedConsumer]:
    """Those who hold something of these hosts."""
    providers = snapshot.providers
    return [
        guest
        for guest in guests_of(snapshot, held, budget)
        if any(providers[provider_id].root_id in roots for provider_id, _ in guest.held)
    ]
