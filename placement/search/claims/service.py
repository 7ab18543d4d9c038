"""Finds hosts for claims and writes the claims in one call.

If another client takes the same resources first (a lost race), the service repeats the search and the write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import thread_time

from placement.db import clock
from placement.db.batch import StatementBatch
from placement.db.database import WriteTransaction
from placement.exceptions import InvalidRequest, NoCandidate, Unavailable
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.availability import (
    during_window,
    place_in_window,
    place_jointly,
    skylines_in,
    times_by_way,
)
from placement.search.claims.claim import ClaimScenario, WantedClaim, without_allocations
from placement.search.claims.claim_context import (
    RECENT,
    ClaimContext,
    check_claim_names,
    possible_providers,
)
from placement.search.claims.host_rooms import TimedSearch
from placement.search.claims.longest_stay import StaySpan, find_latest_end, place_longest, prolong_stay
from placement.search.claims.placement import PlacedClaim, UnplacedClaim, consumer_claims, place_claims
from placement.search.claims.refusal import (
    WITHOUT_END,
    claim_refusal,
    describe_overlaps,
    describe_windows,
    overlapping_providers,
    reservation_refusal,
)
from placement.search.claims.reserved_amounts import read_reserved, within_reservation
from placement.search.claims.timetable import TimedView
from placement.search.claims.window_room import MovedPlaces, make_room
from placement.search.claims.window_search import find_shifts
from placement.store import allocations, claim_commit, consumers, due_changes, expiries, reservations
from placement.store.claims import MIN_STAY
from placement.store.groups import GroupMembership, Members, group_lookup, group_members
from placement.store.time_profile import HoldRefusal, TimeWindow, iso_time
from placement.store.time_schedule import read_schedule
from placement.store.time_skyline import SkylinesByProvider, make_skylines
from placement.store.window_room import WindowMove

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _KnownAmounts:
    """The amounts that a search reads from the database before it has a view of the read model.

    ``held`` has the allocations of the claimants, ``members`` those of their groups, and ``source`` and
    ``reserved`` the reservation with its amounts. If the claims are timed, or a claimant loses its end time,
    ``own`` has the skylines of the claimants' providers without the claimants.
    """

    held: Sequence[allocations.Allocation]
    members: Members
    source: reservations.CapacityReservation | None
    reserved: Sequence[allocations.Allocation]
    is_timed: bool
    loses_end: bool
    own: SkylinesByProvider


@dataclass(frozen=True, slots=True)
class _SearchRefusal:
    """The refusal of claims in a view, still without texts that need the database.

    ``window`` is the time of the claims, and ``overlapping`` has providers with timed amounts then.
    ``latest_end`` is the latest common end with which the claims would fit.
    """

    error: NoCandidate
    window: TimeWindow | None = None
    overlapping: Sequence[str] = ()
    latest_end: float | None = None


class ClaimService:
    """Places the wanted claims of one call, and writes them.

    :param reservation: the reservation from which the claims take all amounts.
    """

    def __init__(
        self, context: ClaimContext, wanted: Sequence[WantedClaim], reservation: str | None = None
    ) -> None:
        self._context = context
        self._wanted = wanted
        self._reservation = reservation
        # all attempts share one limit of CPU time, because the client waits for all of them
        self._end = thread_time() + context.search_seconds

    def claim_places(
        self, *, dry_run: bool = False, also: Callable[[WriteTransaction], None] | None = None
    ) -> list[PlacedClaim]:
        """Place and write all claims, or none of them; with ``dry_run``, only return the choices.

        :param also: a function for further writes, which is called in the transaction that writes the claims.
        :raises NoCandidate: not all claims can be placed together.
        :raises Conflict: the reservation does not exist, or the claims are not allowed to use it.
        :raises ConcurrentUpdate: a consumer has another generation than the given one.
        :raises InvalidRequest: a resource class, trait, root or attribute that the claims name does not
            exist, or the search takes too long.
        :raises Unavailable: every attempt lost a race, or groups or windows changed during its search.
        """
        at_once = not dry_run and self._reservation is None and _take_any_place(self._wanted)
        makes_room, was_repeated = not dry_run and self._wanted[0].is_booking, False
        # attempt 0 uses a recent snapshot; its failure only shows that the snapshot was outdated, so the next
        # attempt does not count as a retry
        for attempt in range(0 if at_once else 1, self._context.retries + 2):
            placed = self._place_at_once() if at_once else None
            at_once = False
            moves: Sequence[WindowMove] = ()
            if placed is None:
                counters = self._read_counters() if makes_room else None
                try:
                    placed = self._place_now()
                except NoCandidate:
                    if not makes_room:
                        raise
                    room = self._make_room()
                    if room is not None:
                        placed, moves = room.placed, room.moves
                    # claims may have ended and windows may have moved between the searches for room
                    elif was_repeated or self._read_counters() == counters:
                        raise
                    else:
                        was_repeated = True
            if placed is None:
                LOG.debug(
                    "Attempt %d of a claim is repeated, because groups, windows or providers have changed",
                    attempt,
                )
                continue
            # a dry run checks generations here, because it never reaches the transaction that checks them
            if dry_run:
                self._check_generations()
                return self._as_if_now(placed)
            try:
                return self._write_claims(placed, moves, also)
            # nothing was written, so the next attempt decides everything again from the current state
            except claim_commit.LostRace as error:
                LOG.debug(
                    "Attempt %d of a claim failed, because another write came first: %s", attempt, error
                )
            except HoldRefusal:
                # outdated amounts hide that a host is full at some time
                if attempt:
                    raise
        raise Unavailable(
            f"The claim lost a race against other writes in each of {attempt} attempts"
            " ([placement] allocation_conflict_retry_count). Please try again."
        )

    @property
    def _seconds_left(self) -> float:
        """The rest of the CPU time for all searches."""
        return self._end - thread_time()

    def _read_counters(self) -> tuple[int, Mapping[int, int]]:
        """Return numbers that differ after a change of any provider or of its timed amounts."""
        with self._context.model.fresh_view() as view:
            return view.reread, view.bucket_counters()

    def _add_windows(self, refusal: NoCandidate, members: Members) -> None:
        """Add the windows that prevent claims without an end time, and the times at which the claims fit."""
        wanted, end = self._wanted, thread_time() + self._context.reason_seconds
        # the refusal is certain, so a failure of the database after it must not replace it
        with suppress(Unavailable):
            refusal.add_overlaps(describe_windows(self._context, wanted, members))
        # the amounts that a known consumer gives up at these times are not read
        if refusal.has_overlaps and all(each.generation is None for each in wanted):
            shifts = find_shifts(self._context, wanted, members, end - thread_time())
            if wanted[0].is_reservation:
                subject = "reservation fits"
            else:
                subject = "claim fits" if len(wanted) == 1 else "claims fit"
            refusal.add_shifts(
                **shifts.shown_times, sentence=f" The {subject} {shifts.text}." if shifts.text else ""
            )

    def _as_if_now(self, placed: Sequence[PlacedClaim]) -> list[PlacedClaim]:
        """Return the placed claims with the expiry times that they would get if they were written now."""
        # the clock of the database is read only if some claim expires
        if all(each.wanted.expires_in is None for each in placed):
            return [*placed]
        with self._context.database.read() as conn:
            now = clock.server_time(conn)
        return [
            each if (seconds := each.wanted.expires_in) is None else replace(each, expires_at=now + seconds)
            for each in placed
        ]

    def _write_claims(
        self,
        placed: Sequence[PlacedClaim],
        moves: Sequence[WindowMove],
        also: Callable[[WriteTransaction], None] | None,
    ) -> list[PlacedClaim]:
        """Write the claims, and the moves that make room, in one transaction, or raise LostRace."""
        claims = consumer_claims(placed)
        # the transaction checks all providers of a choice, because a provider that gives no amounts may have
        # lost a required trait
        chosen = {provider.uuid: provider for each in placed for provider in each.choice.providers}
        joining = [
            GroupMembership(each.wanted.consumer, each.wanted.group, each.choice.hosts)
            for each in placed
            if each.wanted.group is not None and not each.wanted.is_reservation
        ]
        expiring = {
            each.wanted.consumer: each.wanted.expires_in
            for each in placed
            if each.wanted.expires_in is not None
        }
        preempted = [consumer for each in placed for consumer in each.preempted]

        def write_all(tx: WriteTransaction) -> dict[str, float]:
            times = claim_commit.commit_claims(
                tx, claims, chosen, joining, self._reservation, expiring, preempted, moves
            )
            if also is not None:
                also(tx)
            return times

        # expired reservations may occupy amounts that the choice needs
        times = due_changes.write_with_room(self._context.database, write_all)
        if not times:
            return [*placed]
        return [replace(each, expires_at=times.get(each.wanted.consumer)) for each in placed]

    def _place_at_once(self) -> list[PlacedClaim] | None:
        """Return choices from a recent snapshot; if None, the current state may still have some."""
        if self._wanted[0].window is not None:
            return self._place_timed()
        # reading a recent view mostly sends no query; if it is outdated, the transaction refuses the choice.
        # A name that the recent snapshot lacks may exist in the current state
        with suppress(InvalidRequest, BudgetExhausted), self._context.model.recent_view(RECENT) as view:
            check_claim_names(view, self._wanted)
            budget = self._context.make_budget(view, self._seconds_left)
            # the members of groups are an empty dict, because _take_any_place() excludes claims of groups
            placed = self._place_all(view.snapshot, {}, budget)
            if not isinstance(placed, UnplacedClaim):
                return placed
        # the generation is checked before the next search, because a wrong generation explains a refusal
        # better than the search does
        self._check_generations()
        return None

    def _place_timed(self) -> list[PlacedClaim] | None:
        """Return the place of a claim with an end time by the amounts in memory; None if it is uncertain."""
        with (
            suppress(InvalidRequest, BudgetExhausted),
            self._context.timetable.recent_view(RECENT) as timed,
        ):
            if timed is None:
                return None
            check_claim_names(timed.view, self._wanted)
            span = StaySpan.from_wanted(self._wanted[0], timed.view.clock)
            # no later step checks the end of a claim, and the clock of the view is late
            if span is not None and span.min_end > timed.view.clock + RECENT:
                # a search with the current amounts can follow, and needs most of the time
                search = self._context.search_in(timed, self._seconds_left / 4)
                return self._place_in_window(search, span, timed.view.clock) or None
        return None

    def _place_now(self) -> list[PlacedClaim] | None:
        """Return choices from the current state.

        The result is None if no choices are found, and groups or windows have changed during the search.

        After a change of groups or windows, it is unknown whether all claims could have been placed at the
        same moment.

        :raises NoCandidate: not all claims can be placed together.
        """
        # members are read before the view and again after the search, so that any change in between is
        # noticed
        held, members = self._held_amounts(), self._group_members()
        try:
            return self._search_fresh(held, members)
        except BudgetExhausted:
            raise self._too_long() from None
        except NoCandidate as error:
            # a wrong generation is reported first: a client with outdated data cannot use the other reasons
            self._check_generations()
            # members have changed during the search, so there may be a place now, and the refusal is not
            # certain
            if self._group_members() != members:
                return None
            LOG.info("The search for a claim found no host: %s", error.detail)
            raise

    def _search_fresh(
        self, held: Sequence[allocations.Allocation], members: Members
    ) -> list[PlacedClaim] | None:
        known = self._read_known(held, members)
        concerned = possible_providers(self._context.model, self._wanted) if known.is_timed else ()
        with self._context.timetable.fresh_view(concerned, self._context.check_awaited) as timed:
            found = self._search_view(timed, known)
        if not isinstance(found, _SearchRefusal):
            return found
        # amounts that have changed during the search make the refusal uncertain
        if known.is_timed and self._context.timetable.has_changed(timed):
            return None
        if (known.is_timed or known.loses_end) and known.own != self._skylines_without(held):
            return None
        self._add_times(found, members)
        raise found.error

    def _read_known(self, held: Sequence[allocations.Allocation], members: Members) -> _KnownAmounts:
        """Return the amounts that a search reads from the database before its view.

        If another claim takes reserved amounts between this and the view, the write fails and is repeated.
        """
        source: reservations.CapacityReservation | None = None
        reserved: Sequence[allocations.Allocation] = ()
        if self._reservation is not None:
            source, reserved = read_reserved(self._context, self._reservation, self._wanted)
        # all claims of a call have the same times; within a reservation nothing depends on other windows
        is_timed = self._wanted[0].window is not None and source is None
        # a hold grows when a claim loses its end time
        loses_end = self._wanted[0].window is None and source is None and self._has_ends(held)
        own = self._skylines_without(held) if is_timed or loses_end else {}
        return _KnownAmounts(held, members, source, reserved, is_timed, loses_end, own)

    def _search_view(self, timed: TimedView, known: _KnownAmounts) -> list[PlacedClaim] | _SearchRefusal:
        """Place the claims in a view with the amounts of all times; return their places, or the refusal.

        :raises BudgetExhausted: the search takes too long.
        """
        view, wanted = timed.view, self._wanted
        span = StaySpan.from_wanted(wanted[0], view.clock)
        check_claim_names(view, wanted)
        # the limit includes the CPU time in which the view reads timed amounts
        search = self._context.search_in(timed, self._seconds_left)
        # a consumer may use the amounts that it holds now, because its new claim replaces them
        if known.held:
            search = replace(search, snapshot=without_allocations(search.snapshot, known.held))
        own = skylines_in(search.snapshot, known.own)
        if known.loses_end:
            search = replace(search, snapshot=during_window(replace(search, skylines=own), WITHOUT_END))
        if known.source is not None:
            return self._place_reserved(search, known.source, known)
        if span is None:
            placed = self._place_all(search.snapshot, known.members, search.budget)
            if not isinstance(placed, UnplacedClaim):
                return placed
            budget = self._context.make_budget(view, self._context.reason_seconds)
            return _SearchRefusal(claim_refusal(wanted, placed, budget))
        if own:
            search = replace(search, skylines={**search.skylines, **own})
        found = self._place_in_window(search, span, view.clock)
        if found:
            return found
        within = during_window(search, span.shortest_window)
        placed = (
            self._place_all(within, known.members, search.budget)
            if found is None
            else UnplacedClaim(0, ClaimScenario.from_members(within, known.members, wanted))
        )
        if not isinstance(placed, UnplacedClaim):
            if wanted[0].min_duration is None:
                return placed
            return prolong_stay(search, known.members, placed, span)
        budget = self._context.make_budget(view, self._context.reason_seconds)
        error, window = claim_refusal(wanted, placed, budget), span.shortest_window
        some, latest = overlapping_providers(within, search.skylines, wanted, window), None
        if some:
            latest = self._latest_end(replace(search, budget=budget), known.members, span)
        return _SearchRefusal(error, window, some, latest)

    def _place_reserved(
        self, search: TimedSearch, source: reservations.CapacityReservation, known: _KnownAmounts
    ) -> list[PlacedClaim]:
        """Place claims within the amounts of their reservation, or raise NoCandidate."""
        within, roots = within_reservation(search.snapshot, known.reserved)
        wanted = [
            replace(
                each,
                only=roots if each.only is None else roots & each.only,
                on_end=each.on_end or source.on_end,
            )
            for each in self._wanted
        ]
        world = ClaimScenario.from_members(within, known.members, wanted)
        placed = place_claims(world, wanted, search.budget, search.rng)
        if isinstance(placed, UnplacedClaim):
            raise reservation_refusal(wanted, placed, known.reserved)
        return placed

    def _add_times(self, found: _SearchRefusal, members: Members) -> None:
        """Add to the refusal what the database knows of other consumers' times, and times that would fit."""
        error, window = found.error, found.window
        if window is None:
            self._add_windows(error, members)
            return
        error.add_overlaps(describe_overlaps(self._context.database, found.overlapping, self._wanted, window))
        if found.latest_end is not None:
            error.add_latest_end(iso_time(found.latest_end), len(self._wanted))

    def _latest_end(self, search: TimedSearch, members: Members, span: StaySpan) -> float | None:
        """Return the latest common end of refused claims; None if no end was found.

        A booking, and a preemptible claim, need a minimum duration, and get another answer.

        :param search: a search with the rest of the time for the reasons of the refusal.
        """
        one, min_end = self._wanted[0], span.begin + MIN_STAY
        if one.min_duration or one.is_reservation or min_end >= span.max_end:
            return None
        stays = StaySpan(span.begin, min_end, span.max_end)
        with suppress(BudgetExhausted):
            return find_latest_end(search, members, self._wanted, stays)
        return None

    def _make_room(self) -> MovedPlaces | None:
        """Return places for which windows move or preemptible claims end; None without such places."""
        with self._context.database.read() as conn:
            span = StaySpan.from_wanted(self._wanted[0], clock.server_time(conn))
        # this line is for the type checker: a booking has a time
        assert span is not None
        try:
            return make_room(self._context, self._wanted, span, self._seconds_left)
        except BudgetExhausted:
            raise self._too_long() from None

    def _skylines_without(self, held: Sequence[allocations.Allocation]) -> SkylinesByProvider:
        """Return the skylines of the providers of these allocations, without the amounts of the claimants."""
        providers = {each.provider for each in held}
        if not providers:
            return {}
        with self._context.database.read() as conn:
            schedule = read_schedule(conn, {each.consumer for each in self._wanted}, providers)
        found = make_skylines(schedule.amounts, schedule.holds)
        return {each: found.get(each, {}) for each in providers}

    def _place_in_window(self, search: TimedSearch, span: StaySpan, now: float) -> list[PlacedClaim] | None:
        """Return places on any host with room at that time; empty if it is certain that no host has room.

        The result is None if the caller has to search in another way.
        """
        (one, *others), window = self._wanted, span.shortest_window
        if others and one.is_reservation:
            return place_jointly(search, self._wanted, window) or None
        if others or one.order or one.group or one.alternates:
            return None
        if one.min_duration is not None:
            return place_longest(search, one, span) or None
        ways = times_by_way(search, one, window.duration_seconds)
        return place_in_window(search, one, window, ways, now)

    def _place_all(
        self, snapshot: ModelSnapshot, members: Members, budget: SearchBudget
    ) -> list[PlacedClaim] | UnplacedClaim:
        """Place the claims in the given snapshot; return their choices."""
        world = ClaimScenario.from_members(snapshot, members, self._wanted)
        return place_claims(world, self._wanted, budget, self._context.rng)

    def _too_long(self) -> InvalidRequest:
        advice = ": ask for fewer groups, or for fewer claims at once."
        seconds = self._context.search_seconds
        return InvalidRequest.too_long("No place was found", seconds, "candidates_deadline", advice)

    def _held_amounts(self) -> list[allocations.Allocation]:
        """Return the allocations that the new claims can use again; refuse a wrong generation."""
        # a new consumer holds nothing, so there is nothing to read
        known = {each.consumer: each.generation for each in self._wanted if each.generation is not None}
        if not known:
            return []
        with self._context.database.read() as conn:
            held = allocations.of_consumers(conn, known)
        if known != {each.consumer: each.consumer_generation for each in held}:
            self._check_generations()
        return held

    def _has_ends(self, held: Sequence[allocations.Allocation]) -> bool:
        """Return whether a consumer with these allocations has a claim with an end time."""
        if not held:
            return False
        with self._context.database.read() as conn:
            return expiries.any_ends(conn, {each.consumer for each in held})

    def _group_members(self) -> Members:
        """Return the members of all groups that the claims join."""
        wanted = self._wanted
        names = {each.group.name for each in wanted if each.group is not None and not each.is_reservation}
        if not names:
            return {}
        with self._context.database.read() as conn:
            rows = StatementBatch(conn).add(*group_lookup(names)).rows
        return group_members(rows)

    def _check_generations(self) -> None:
        with self._context.database.read() as conn:
            for each in self._wanted:
                consumers.check_generation(consumers.find_consumer(conn, each.consumer), each.generation)


def _take_any_place(wanted: Sequence[WantedClaim]) -> bool:
    """Return whether any host will do for the claims of new consumers."""
    # a claim with one of these fields depends on the current state: on the members of the group, the best
    # host, or the proof that the first request has no place
    if any(
        each.generation is not None or each.order or each.group or each.topology or each.fallback
        for each in wanted
    ):
        return False
    # hosts are compared for the longest stay and for alternates; several claims, and claims that name hosts,
    # mostly gain nothing
    (one, *others) = wanted
    return one.window is None or not (others or one.only or one.alternates or one.min_duration)
