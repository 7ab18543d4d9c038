"""Claiming: what is wanted is placed and written, again and again until nobody else was faster."""

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import thread_time
from typing import Final

from placement.db.batch import StatementBatch
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.exceptions import InvalidRequest, NoCandidate, Unavailable
from placement.read_model.feed import ModelView, ReadModel
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.claim import ClaimScenario, HostChoice, WantedClaim, giving_back, within
from placement.search.claims.placing import PlacedClaim, UnplacedClaim, place
from placement.search.claims.refusal import not_within, refusal
from placement.search.claims.scores import ATTRIBUTE
from placement.search.host_filter import named_roots
from placement.search.request import check_names
from placement.store import allocations, claim_commit, consumers, expiries, reservations
from placement.store.claims import ConsumerClaim
from placement.store.groups import Members

LOG = logging.getLogger(__name__)

# a writer that is faster than this loses a race in the database and looks again, so that nothing is decided
# wrongly
_RECENT: Final = 0.1
"""So many seconds old may be what a place is chosen by that the database still has to confirm."""


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """Limits of one call.

    Seconds of work for all that it searches, and to explain that nothing was found; how often it looks again
    when somebody else was faster.
    """

    searching: float
    explaining: float
    retries: int


class ClaimService:
    """Claims what is wanted in one call.

    :param check_awaited: called again and again during long searches. What it raises ends the call.
    """

    def __init__(
        self,
        model: ReadModel,
        database: ServiceDatabase,
        limits: ClaimLimits,
        check_awaited: Callable[[], None],
    ) -> None:
        self._model = model
        self._database = database
        self._limits = limits
        self._check_awaited = check_awaited
        self._rng = random.Random()

    def claim(
        self,
        wanted: Sequence[WantedClaim],
        *,
        dry_run: bool = False,
        reservation: str | None = None,
        also: Callable[[WriteTransaction], None] | None = None,
    ) -> list[PlacedClaim]:
        """Have each consumer hold what it wants, or none of them; with ``dry_run`` only say what it would be.

        :param reservation: what all that they take is moved from.
        :param also: what else happens in the transaction that puts the claims into effect.
        :raises NoCandidate: there is no place for all of them.
        :raises Conflict: there is no such reservation for them.
        :raises ConcurrentUpdate: a consumer's generation is not the given one.
        :raises InvalidRequest: a class, a trait, a root or a number that they name does not exist, or the
            search takes too long.
        :raises Unavailable: others were faster each time.
        """
        end = thread_time() + self._limits.searching
        at_once = not dry_run and reservation is None and all(map(_takes_any_place, wanted))
        # what is chosen by an old state is tried beside the attempts: that it is old is nobody's doing
        for attempt in range(0 if at_once else 1, self._limits.retries + 2):
            placed = self._place_at_once(wanted, end - thread_time()) if at_once else None
            if at_once and placed is None:  # or it would be found out after all that a refusal takes
                self._check_generations(wanted)
            at_once = False
            if placed is None:
                placed = self._place_now(wanted, end - thread_time(), reservation)
            if placed is None:
                LOG.debug("claim attempt %d: there are other members now", attempt)
                continue
            if dry_run:
                self._check_generations(wanted)
                return self._as_if_now(placed)
            try:
                return self._write_claims(placed, reservation, also)
            # the transaction wrote nothing: all is decided again by what is known now
            except claim_commit.LostRace as error:
                LOG.debug("claim attempt %d lost a race: %s", attempt, error)
        raise Unavailable(
            f"Others were faster each of {attempt} times ([placement] allocation_conflict_retry_count). "
            "Please try again."
        )

    def _as_if_now(self, placed: list[PlacedClaim]) -> list[PlacedClaim]:
        """The same, with the time when those that expire would do so if they were written now."""
        # one statement less for claims that stay
        if all(each.wanted.expires_in is None for each in placed):
            return placed
        with self._database.read() as conn:
            now = expiries.now(conn)
        return [
            each if (seconds := each.wanted.expires_in) is None else replace(each, expires_at=now + seconds)
            for each in placed
        ]

    def _write_claims(
        self,
        placed: Sequence[PlacedClaim],
        reservation: str | None,
        also: Callable[[WriteTransaction], None] | None,
    ) -> list[PlacedClaim]:
        """Write them; the same, with the time when those expire that do.

        :raises LostRace: the choice is no longer good.
        """
        claims = [_consumer_claim(each.wanted, each.choice) for each in placed]
        chosen = {provider.uuid: provider for each in placed for provider in each.choice.providers}
        joining = [
            claim_commit.GroupMembership(each.wanted.consumer, each.wanted.group, each.choice.hosts)
            for each in placed
            if each.wanted.group is not None
        ]

        expiring = {
            each.wanted.consumer: each.wanted.expires_in
            for each in placed
            if each.wanted.expires_in is not None
        }

        def work(tx: WriteTransaction) -> dict[str, float]:
            times = claim_commit.bind(tx, claims, chosen, joining, reservation, expiring)
            if also is not None:
                also(tx)
            return times

        times = reservations.making_room(self._database, work)
        return [replace(each, expires_at=times.get(each.wanted.consumer)) for each in placed]

    def _place_at_once(self, wanted: Sequence[WantedClaim], seconds: float) -> list[PlacedClaim] | None:
        """Places by what was known a moment ago, None if there were none: there may be by now."""
        # mostly without a query: a choice that is out of date is refused by the transaction
        with self._model.recent(_RECENT) as view:
            try:
                self._check_names(view, wanted)
                placed = self._place_in(view, view.snapshot, {}, wanted, seconds)
            except InvalidRequest:  # there may be such a name by now
                return None
        return None if isinstance(placed, UnplacedClaim) else placed

    def _place_now(
        self, wanted: Sequence[WantedClaim], seconds: float, reservation: str | None
    ) -> list[PlacedClaim] | None:
        """Places by what is known now.

        None if others joined or left the groups meanwhile: nobody knows whether there was one beside those
        who were there at one time.

        :raises NoCandidate: there is no place.
        """
        # before the view: if they change in between, the second look at the members tells
        held, members = self._held_amounts(wanted), self._group_members(wanted)
        try:
            return self._search_fresh(wanted, held, members, seconds, reservation)
        except NoCandidate as error:
            self._check_generations(wanted)  # if one is not what the client knows, nothing follows
            # there may have been a place beside those who are members now
            if self._group_members(wanted) != members:
                return None
            LOG.info("%s", error.detail)
            raise

    def _search_fresh(
        self,
        wanted: Sequence[WantedClaim],
        held: Sequence[allocations.Allocation],
        members: Members,
        seconds: float,
        reservation: str | None,
    ) -> list[PlacedClaim]:
        reserved = None if reservation is None else self._reserved_amounts(reservation, wanted)
        with self._model.fresh() as view:
            self._check_names(view, wanted)
            # a consumer that moves may take what it holds now
            snapshot = giving_back(view.snapshot, held) if held else view.snapshot
            if reserved is not None:
                snapshot, roots = within(snapshot, reserved)
                wanted = [
                    replace(each, only=roots if each.only is None else roots & each.only) for each in wanted
                ]
            placed = self._place_in(view, snapshot, members, wanted, seconds)
            if isinstance(placed, UnplacedClaim):
                if reserved is not None:
                    raise not_within(wanted, placed, reserved)
                budget = SearchBudget(
                    self._limits.explaining, give_way=view.giving_way_after(self._check_awaited)
                )
                raise refusal(wanted, placed, budget)
        return placed

    def _place_in(
        self,
        view: ModelView,
        snapshot: ModelSnapshot,
        members: Members,
        wanted: Sequence[WantedClaim],
        seconds: float,
    ) -> list[PlacedClaim] | UnplacedClaim:
        """Where they have a place in that snapshot.

        :raises InvalidRequest: the search takes too long.
        """
        budget = SearchBudget(seconds, give_way=view.giving_way_after(self._check_awaited))
        try:
            return place(ClaimScenario.of(snapshot, members, wanted), wanted, budget, self._rng)
        except BudgetExhausted:
            raise InvalidRequest.too_long(
                "No place was found",
                self._limits.searching,
                "candidates_deadline",
                ": ask for fewer groups, or for fewer claims at once.",
            ) from None

    def _reserved_amounts(
        self, reservation: str, wanted: Sequence[WantedClaim]
    ) -> list[allocations.Allocation]:
        """The allocations of the reservation.

        :raises Conflict: not all who want something may take from it.
        """
        with self._database.read() as conn:
            found = reservations.find(conn, reservation)
            held = allocations.of_consumer(conn, reservation)
        for each in wanted:
            group = None if each.group is None else each.group.name
            if found is None or not found.serves(each.owner.project_id, group):
                raise reservations.unusable(reservation, each.owner.project_id)
        return held

    def _held_amounts(self, wanted: Sequence[WantedClaim]) -> list[allocations.Allocation]:
        """The allocations of consumers that exist: they give these back, so that they are free for them.

        :raises ConcurrentUpdate: a consumer's generation is not the given one.
        """
        # a new consumer holds nothing, so that there is nothing to read
        known = {each.consumer: each.generation for each in wanted if each.generation is not None}
        if not known:
            return []
        with self._database.read() as conn:
            held = allocations.of_consumers(conn, known)
        if known != {each.consumer: each.consumer_generation for each in held}:
            self._check_generations(wanted)
        return held

    def _group_members(self, wanted: Sequence[WantedClaim]) -> Members:
        """The members of the groups that any of them wants to join."""
        names = {each.group.name for each in wanted if each.group is not None}
        if not names:
            return {}
        with self._database.read() as conn:
            return claim_commit.group_members(
                StatementBatch(conn).add(*claim_commit.group_lookup(names)).rows
            )

    def _check_generations(self, wanted: Sequence[WantedClaim]) -> None:
        with self._database.read() as conn:
            for each in wanted:
                consumers.check_generation(consumers.find(conn, each.consumer), each.generation)

    def _check_names(self, view: ModelView, wanted: Sequence[WantedClaim]) -> None:
        """Make sure that what they name exists.

        :raises InvalidRequest: a class, a trait, a root or a number among the attributes does not.
        """
        snapshot = view.snapshot
        for each in wanted:
            check_names(each.request, view.names.classes, view.names.traits)
            named_roots(snapshot, each.only or (), "allowed_hosts names")
            named_roots(snapshot, each.avoid, "excluded_hosts names")
            for name, _ in each.order:
                attribute = name.removeprefix(ATTRIBUTE)
                if attribute != name and snapshot.attribute_range(attribute) is None:
                    raise InvalidRequest(
                        f"No provider has a number called {attribute} among its attributes, by which"
                        " the order goes."
                    )


def _takes_any_place(wanted: WantedClaim) -> bool:
    """Whether what is chosen depends on nothing but that it fits: a new consumer, anywhere."""
    depends = wanted.order or wanted.group or wanted.topology or wanted.fallback
    return wanted.generation is None and not depends


def _consumer_claim(wanted: WantedClaim, choice: HostChoice) -> ConsumerClaim:
    resources = {provider.uuid: amounts for provider, amounts in choice.resources}
    return ConsumerClaim(wanted.consumer, resources, wanted.generation, wanted.owner)
