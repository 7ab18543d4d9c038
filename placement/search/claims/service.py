"""Finds hosts for claims and writes the claims in one call.

If another client takes the same resources first (a lost race), the service repeats the search and the write.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import thread_time
from typing import TypeVar

from placement.db import clock
from placement.db.batch import StatementBatch
from placement.db.database import WriteTransaction
from placement.exceptions import InvalidRequest, NoCandidate, Unavailable
from placement.read_model.feed import ModelView
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import BudgetExhausted, SearchBudget
from placement.search.claims.availability import (
    during_window,
    place_in_window,
    skylines_in,
    times_by_way,
)
from placement.search.claims.claim import (
    ClaimScenario,
    WantedClaim,
    within_reservation,
    without_allocations,
)
from placement.search.claims.claim_context import (
    RECENT,
    ClaimContext,
    check_claim_names,
    describe_overlaps,
    name_amounts,
    overlapping_providers,
    possible_providers,
)
from placement.search.claims.host_rooms import Skylines
from placement.search.claims.joint_windows import place_jointly
from placement.search.claims.longest_stay import StaySpan, find_latest_end, place_longest, prolong_stay
from placement.search.claims.placement import PlacedClaim, UnplacedClaim, place_claims
from placement.search.claims.refusal import claim_refusal, reservation_refusal
from placement.search.claims.shift_search import find_shifts
from placement.search.claims.window_moves import MovedPlaces, place_by_moves
from placement.search.claims.window_preemptions import place_preempting
from placement.search.claims.windows_in_way import WITHOUT_END, read_planned
from placement.store import allocations, claim_commit, consumers, due_changes, expiries, reservations
from placement.store.claims import ConsumerClaim
from placement.store.groups import Members
from placement.store.time_profile import HoldRefusal, iso_time
from placement.store.time_schedule import read_schedule
from placement.store.time_shifts import MIN_STAY
from placement.store.time_skyline import SkylinesByProvider, make_skylines

T = TypeVar("T")

LOG = logging.getLogger(__name__)


class ClaimService:
    """Places wanted claims and writes them."""

    def __init__(self, context: ClaimContext) -> None:
        self._context = context

    def claim_places(
        self,
        wanted: Sequence[WantedClaim],
        *,
        dry_run: bool = False,
        reservation: str | None = None,
        also: Callable[[WriteTransaction], None] | None = None,
    ) -> list[PlacedClaim]:
        """Place and write all claims, or none of them; with ``dry_run``, only return the choices.

        :param reservation: the reservation from which the claims take all amounts.
        :param also: a function for further writes, which is called in the transaction that writes the claims.
        :raises NoCandidate: not all claims can be placed together.
        :raises Conflict: the reservation does not exist, or the claims are not allowed to use it.
        :raises ConcurrentUpdate: a consumer has another generation than the given one.
        :raises InvalidRequest: a resource class, trait, root or attribute that the claims name does not
            exist, or the search takes too long.
        :raises Unavailable: every attempt lost a race, or groups or windows changed during its search.
        """
        # the code uses one budget for all attempts, because the client waits for all of them
        end = thread_time() + self._context.search_seconds
        at_once = not dry_run and reservation is None and _take_any_place(wanted)
        makes_room, was_repeated = not dry_run and _is_booking(wanted), False
        # attempt 0 uses a recent snapshot; its failure only shows that the snapshot was outdated, so the next
        # attempt does not count as a retry
        for attempt in range(0 if at_once else 1, self._context.retries + 2):
            placed = self._place_at_once(wanted, end - thread_time()) if at_once else None
            at_once = False
            moved: MovedPlaces | None = None
            if placed is None:
                counters = self._read_counters() if makes_room else None
                try:
                    placed = self._place_now(wanted, end - thread_time(), reservation)
                except NoCandidate:
                    if not makes_room:
                        raise
                    placed, moved = self._make_room(wanted, end - thread_time())
                    if not placed:
                        # claims may have ended and windows may have moved between the searches for room
                        if was_repeated or self._read_counters() == counters:
                            raise
                        was_repeated, placed = True, None
            if placed is None:
                LOG.debug(
                    "Attempt %d of a claim is repeated, because groups, windows or providers have changed",
                    attempt,
                )
                continue
            # a dry run checks generations here, because it never reaches the transaction that checks them
            if dry_run:
                self._check_generations(wanted)
                return self._as_if_now(placed)
            try:
                return self._write_claims(placed, reservation, also, moved)
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

    def _read_counters(self) -> tuple[int, Mapping[int, int]]:
        """Return numbers that differ after a change of any provider or of its timed amounts."""
        with self._context.model.fresh_view() as view:
            return view.reread, view.bucket_counters()

    def _add_windows(self, refusal: NoCandidate, wanted: Sequence[WantedClaim], members: Members) -> None:
        """Add the windows that prevent claims without an end time, and the times at which the claims fit."""
        end = thread_time() + self._context.reason_seconds
        # the refusal is certain, so a failure of the database after it must not replace it
        with suppress(Unavailable):
            refusal.add_overlaps(self._describe_windows(wanted, members))
        # the amounts that a known consumer gives up at these times are not read
        if refusal.has_overlaps and all(each.generation is None for each in wanted):
            shifts = find_shifts(self._context, wanted, members, end - thread_time())
            if _is_reservation(wanted[0]):
                subject = "reservation fits"
            else:
                subject = "claim fits" if len(wanted) == 1 else "claims fit"
            refusal.add_shifts(
                **shifts.shown_times, sentence=f" The {subject} {shifts.text}." if shifts.text else ""
            )

    def _describe_windows(self, wanted: Sequence[WantedClaim], members: Members) -> str:
        """Return a sentence with windows that prevent claims without an end time; empty if there are none."""
        possible = possible_providers(self._context.model, wanted)
        planned = read_planned(self._context.database, wanted, possible)
        if planned is None:
            return ""
        with self._context.model.recent_view(RECENT) as view:
            empty = planned.without_amounts(view.snapshot)
            budget = self._context.make_budget(view, self._context.reason_seconds)
            with suppress(BudgetExhausted):
                world = ClaimScenario.from_members(empty, members, wanted)
                if isinstance(place_claims(world, wanted, budget, self._context.rng), UnplacedClaim):
                    return ""
        return name_amounts(planned.schedule.amounts, planned.providers, wanted, WITHOUT_END)

    def _as_if_now(self, placed: list[PlacedClaim]) -> list[PlacedClaim]:
        """Return the placed claims with the expiry times that they would get if they were written now."""
        # the clock of the database is read only if some claim expires
        if all(each.wanted.expires_in is None for each in placed):
            return placed
        with self._context.database.read() as conn:
            now = clock.server_time(conn)
        return [
            each if (seconds := each.wanted.expires_in) is None else replace(each, expires_at=now + seconds)
            for each in placed
        ]

    def _write_claims(
        self,
        placed: Sequence[PlacedClaim],
        reservation: str | None,
        also: Callable[[WriteTransaction], None] | None,
        moved: MovedPlaces | None = None,
    ) -> list[PlacedClaim]:
        """Write the claims, and the moves that make room, in one transaction, or raise LostRace."""
        claims = _consumer_claims(placed)
        # the transaction checks all providers of a choice, because a provider that gives no amounts may have
        # lost a required trait
        chosen = {provider.uuid: provider for each in placed for provider in each.choice.providers}
        moves = () if moved is None else moved.moves
        joining = [
            claim_commit.GroupMembership(each.wanted.consumer, each.wanted.group, each.choice.hosts)
            for each in placed
            if each.wanted.group is not None and not _is_reservation(each.wanted)
        ]

        expiring = {
            each.wanted.consumer: each.wanted.expires_in
            for each in placed
            if each.wanted.expires_in is not None
        }

        preempted = [consumer for each in placed for consumer in each.preempted]

        def write_all(tx: WriteTransaction) -> dict[str, float]:
            times = claim_commit.commit_claims(
                tx, claims, chosen, joining, reservation, expiring, preempted, moves
            )
            if also is not None:
                also(tx)
            return times

        # expired reservations may occupy amounts that the choice needs
        times = due_changes.write_with_room(self._context.database, write_all)
        return [replace(each, expires_at=times.get(each.wanted.consumer)) for each in placed]

    def _place_at_once(self, wanted: Sequence[WantedClaim], seconds: float) -> list[PlacedClaim] | None:
        """Return choices from a recent snapshot; if None, the current state may still have some."""
        if wanted[0].window is not None:
            # a search with the current amounts can follow, and needs most of the time
            return self._place_timed(wanted, seconds / 4)
        # reading a recent view mostly sends no query; if it is outdated, the transaction refuses the choice.
        # A name that the recent snapshot lacks may exist in the current state
        with suppress(InvalidRequest), self._context.model.recent_view(RECENT) as view:
            check_claim_names(view, wanted)
            # the members of groups are an empty dict, because _take_any_place() excludes claims of groups
            placed = self._place_in(view, view.snapshot, {}, wanted, seconds)
            if not isinstance(placed, UnplacedClaim):
                return placed
        # the generation is checked before the next search, because a wrong generation explains a refusal
        # better than the search does
        self._check_generations(wanted)
        return None

    def _place_timed(self, wanted: Sequence[WantedClaim], seconds: float) -> list[PlacedClaim] | None:
        """Return the place of a claim with an end time by the amounts in memory; None if it is uncertain."""
        with suppress(InvalidRequest), self._context.timetable.recent_view(RECENT) as timed:
            if timed is None:
                return None
            check_claim_names(timed.view, wanted)
            span = StaySpan.from_wanted(wanted[0], timed.view.clock)
            # no later step checks the end of a claim, and the clock of the view is late
            if span is not None and span.min_end > timed.view.clock + RECENT:
                snapshot, skylines = timed.view.snapshot, timed.skylines
                return self._place_in_window(timed.view, snapshot, skylines, wanted, span, seconds) or None
        return None

    def _place_now(
        self, wanted: Sequence[WantedClaim], seconds: float, reservation: str | None
    ) -> list[PlacedClaim] | None:
        """Return choices from the current state.

        The result is None if no choices are found, and groups or windows have changed during the search.

        After a change of groups or windows, it is unknown whether all claims could have been placed at the
        same moment.

        :raises NoCandidate: not all claims can be placed together.
        """
        # members are read before the view and again after the search, so that any change in between is
        # noticed
        held, members = self._held_amounts(wanted), self._group_members(wanted)
        try:
            return self._search_fresh(wanted, held, members, seconds, reservation)
        except NoCandidate as error:
            # a wrong generation is reported first: a client with outdated data cannot use the other reasons
            self._check_generations(wanted)
            # members have changed during the search, so there may be a place now, and the refusal is not
            # certain
            if self._group_members(wanted) != members:
                return None
            LOG.info("The search for a claim found no host: %s", error.detail)
            raise

    def _search_fresh(
        self,
        wanted: Sequence[WantedClaim],
        held: Sequence[allocations.Allocation],
        members: Members,
        seconds: float,
        reservation: str | None,
    ) -> list[PlacedClaim] | None:
        # reserved amounts are read before the view: if another claim takes reserved amounts in between, the
        # write fails and is repeated
        source, reserved = None, None
        if reservation is not None:
            source, reserved = self._reserved_amounts(reservation, wanted)
        # all claims of a call have the same times; within a reservation nothing depends on other windows
        is_timed = wanted[0].window is not None and reserved is None
        # a hold grows when a claim loses its end time
        loses_end = wanted[0].window is None and reserved is None and self._has_ends(held)
        own = self._skylines_without(wanted, held) if is_timed or loses_end else {}
        concerned = possible_providers(self._context.model, wanted) if is_timed else ()
        end = thread_time() + seconds
        with self._context.timetable.fresh_view(concerned, self._context.check_awaited) as timed:
            view, skylines = timed.view, timed.skylines
            span = StaySpan.from_wanted(wanted[0], view.clock)
            check_claim_names(view, wanted)
            window = None if span is None else span.shortest_window
            budget = self._context.make_budget(view, seconds)
            found: list[PlacedClaim] | None = None
            # a consumer may use the amounts that it holds now, because its new claim replaces them
            snapshot = without_allocations(view.snapshot, held) if held else view.snapshot
            if loses_end:
                snapshot = during_window(snapshot, skylines_in(snapshot, own), WITHOUT_END, budget)
            if source is not None and reserved is not None:
                snapshot, roots = within_reservation(snapshot, reserved)
                wanted = [
                    replace(
                        each,
                        only=roots if each.only is None else roots & each.only,
                        on_end=each.on_end or source.on_end,
                    )
                    for each in wanted
                ]
            elif span is not None:
                if own:
                    skylines = {**skylines, **skylines_in(snapshot, own)}
                found = self._place_in_window(view, snapshot, skylines, wanted, span, end - thread_time())
                if found:
                    return found
                untimed = snapshot
                snapshot = during_window(untimed, skylines, span.shortest_window, budget)
            placed = (
                self._place_in(view, snapshot, members, wanted, end - thread_time())
                if found is None
                else UnplacedClaim(0, ClaimScenario.from_members(snapshot, members, wanted))
            )
            if not isinstance(placed, UnplacedClaim):
                if span is None or wanted[0].min_duration is None:
                    return placed
                budget = self._context.make_budget(view, end - thread_time())
                return prolong_stay(untimed, skylines, members, placed, span, budget, self._context.rng)
            if reserved is not None:
                raise reservation_refusal(wanted, placed, reserved)
            budget = self._context.make_budget(view, self._context.reason_seconds)
            refusal = claim_refusal(wanted, placed, budget)
            some = [] if window is None else overlapping_providers(snapshot, skylines, wanted, window)
            latest = None
            if some and span is not None:
                latest = self._latest_end(untimed, skylines, members, wanted, span, budget)
        if loses_end and own != self._skylines_without(wanted, held):
            return None
        if is_timed and (
            self._context.timetable.has_changed(timed) or own != self._skylines_without(wanted, held)
        ):
            return None
        if window is not None:
            refusal.add_overlaps(describe_overlaps(self._context.database, some, wanted, window))
            if latest is not None:
                refusal.add_latest_end(iso_time(latest), len(wanted))
        elif reserved is None:
            self._add_windows(refusal, wanted, members)
        raise refusal

    def _latest_end(
        self,
        snapshot: ModelSnapshot,
        skylines: Skylines,
        members: Members,
        wanted: Sequence[WantedClaim],
        span: StaySpan,
        budget: SearchBudget,
    ) -> float | None:
        """Return the latest common end of refused claims; None if no end was found.

        A booking, and a preemptible claim, need a minimum duration, and get another answer.

        :param budget: the rest of the time for the reasons of the refusal.
        """
        one, min_end = wanted[0], span.begin + MIN_STAY
        if one.min_duration or _is_reservation(one) or min_end >= span.max_end:
            return None
        stays = StaySpan(span.begin, min_end, span.max_end)
        with suppress(BudgetExhausted):
            return find_latest_end(snapshot, skylines, members, wanted, stays, budget, self._context.rng)
        return None

    def _make_room(
        self, wanted: Sequence[WantedClaim], seconds: float
    ) -> tuple[list[PlacedClaim], MovedPlaces | None]:
        """Return places for which windows move or preemptible claims end, and the moves; perhaps no place."""
        # a booking always has a time
        (one, *others), span, end = wanted, self._span_ahead(wanted), thread_time() + seconds
        if span is None:
            return [], None
        # moves are tried first, because a move takes nothing away from any consumer. This search uses half of
        # the time. Moves make room on one host only, which rarely suffices for several claims
        if not others:
            concerned = possible_providers(self._context.model, wanted)
            moved = place_by_moves(self._context, one, concerned, span, seconds / 2)
            if moved is not None:
                return list(moved.placed), moved
        try:
            return place_preempting(self._context, wanted, span, end - thread_time()), None
        except BudgetExhausted:
            raise self._too_long() from None

    def _span_ahead(self, wanted: Sequence[WantedClaim]) -> StaySpan | None:
        """Return the possible times of the claims, from now on; None if the claims have no end time."""
        # all claims of a call have the same times
        if wanted[0].window is None:
            return None
        with self._context.database.read() as conn:
            return StaySpan.from_wanted(wanted[0], clock.server_time(conn))

    def _skylines_without(
        self, wanted: Sequence[WantedClaim], held: Sequence[allocations.Allocation]
    ) -> SkylinesByProvider:
        """Return the skylines of the providers of some consumers, without the amounts of these consumers."""
        providers = {each.provider for each in held}
        if not providers:
            return {}
        with self._context.database.read() as conn:
            schedule = read_schedule(conn, {each.consumer for each in wanted}, providers)
        found = make_skylines(schedule.amounts, schedule.holds)
        return {each: found.get(each, {}) for each in providers}

    def _place_in_window(
        self,
        view: ModelView,
        snapshot: ModelSnapshot,
        skylines: Skylines,
        wanted: Sequence[WantedClaim],
        span: StaySpan,
        seconds: float,
    ) -> list[PlacedClaim] | None:
        """Return places on any host with room at that time; empty if it is certain that no host has room.

        The result is None if the caller has to search in another way.
        """
        (one, *others) = wanted
        if others and _is_reservation(one):
            window = span.shortest_window
            joint = self._within_budget(
                view,
                seconds,
                lambda budget: place_jointly(snapshot, skylines, wanted, window, budget, self._context.rng),
            )
            return joint or None
        if others or one.order or one.group or one.alternates:
            return None
        if one.min_duration is not None:
            longest = self._within_budget(
                view,
                seconds,
                lambda budget: place_longest(snapshot, skylines, one, span, budget, self._context.rng),
            )
            return longest or None
        return self._within_budget(
            view,
            seconds,
            lambda budget: place_in_window(
                snapshot,
                skylines,
                one,
                span.shortest_window,
                budget,
                self._context.rng,
                times_by_way(snapshot, skylines, one, span.shortest_window.duration_seconds, budget),
                view.clock,
            ),
        )

    def _place_in(
        self,
        view: ModelView,
        snapshot: ModelSnapshot,
        members: Members,
        wanted: Sequence[WantedClaim],
        seconds: float,
    ) -> list[PlacedClaim] | UnplacedClaim:
        """Place the claims in the given snapshot; return their choices."""
        world = ClaimScenario.from_members(snapshot, members, wanted)
        return self._within_budget(
            view, seconds, lambda budget: place_claims(world, wanted, budget, self._context.rng)
        )

    def _within_budget(self, view: ModelView, seconds: float, place: Callable[[SearchBudget], T]) -> T:
        """Return the result of a search within a budget, or raise InvalidRequest if it takes too long."""
        try:
            return place(self._context.make_budget(view, seconds))
        except BudgetExhausted:
            raise self._too_long() from None

    def _too_long(self) -> InvalidRequest:
        return InvalidRequest.too_long(
            "No place was found",
            self._context.search_seconds,
            "candidates_deadline",
            ": ask for fewer groups, or for fewer claims at once.",
        )

    def _reserved_amounts(
        self, reservation: str, wanted: Sequence[WantedClaim]
    ) -> tuple[reservations.CapacityReservation, list[allocations.Allocation]]:
        """Return the reservation and its amounts.

        :raises Conflict: there is no such reservation, or a claim is not allowed to use it: the reservation
            is for another project, another group or another time.
        """
        found, held = self._find_reserved(reservation, wanted, may_be_window=False)
        if found is not None and found.starts_at is not None:
            # a fresh view releases claims from the window that have ended, and lets a window begin that is
            # due
            with self._context.model.fresh_view():
                pass
            found, held = self._find_reserved(reservation, wanted)
        for each in wanted:
            group = None if each.group is None else each.group.name
            if found is None or not found.serves_claim(each.owner.project_id, group):
                raise reservations.unusable_reservation(reservation, each.owner.project_id)
            found.refuse_time(each.window)
        # this line is for the type checker: there is at least one claim
        assert found is not None
        return found, held

    def _find_reserved(
        self, reservation: str, wanted: Sequence[WantedClaim], *, may_be_window: bool = True
    ) -> tuple[reservations.CapacityReservation | None, list[allocations.Allocation]]:
        """Return the reservation with its amounts, and with the amounts that repeated claims give back.

        :param may_be_window: whether to read the amounts of a window, too; it may have thousands of claims.
        """
        with self._context.database.read() as conn:
            found = reservations.find_reservation(conn, reservation)
            if found is None or not (may_be_window or found.starts_at is None):
                return found, []
            known = [each.consumer for each in wanted if each.generation is not None]
            return found, reservations.amounts_for_claims(conn, found, known)

    def _held_amounts(self, wanted: Sequence[WantedClaim]) -> list[allocations.Allocation]:
        """Return the allocations that the new claims can use again; refuse a wrong generation."""
        # a new consumer holds nothing, so there is nothing to read
        known = {each.consumer: each.generation for each in wanted if each.generation is not None}
        if not known:
            return []
        with self._context.database.read() as conn:
            held = allocations.of_consumers(conn, known)
        if known != {each.consumer: each.consumer_generation for each in held}:
            self._check_generations(wanted)
        return held

    def _has_ends(self, held: Sequence[allocations.Allocation]) -> bool:
        """Return whether a consumer with these allocations has a claim with an end time."""
        if not held:
            return False
        with self._context.database.read() as conn:
            return expiries.any_ends(conn, {each.consumer for each in held})

    def _group_members(self, wanted: Sequence[WantedClaim]) -> Members:
        """Return the members of all groups that the claims join."""
        names = {each.group.name for each in wanted if each.group is not None and not _is_reservation(each)}
        if not names:
            return {}
        with self._context.database.read() as conn:
            return claim_commit.group_members(
                StatementBatch(conn).add(*claim_commit.group_lookup(names)).rows
            )

    def _check_generations(self, wanted: Sequence[WantedClaim]) -> None:
        with self._context.database.read() as conn:
            for each in wanted:
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


def _is_reservation(wanted: WantedClaim) -> bool:
    """Return whether this is a claim of a new reservation, which joins no group."""
    return wanted.owner.consumer_type == reservations.TYPE


def _is_booking(wanted: Sequence[WantedClaim]) -> bool:
    """Return whether these are the claims of a new window."""
    return wanted[0].window is not None and _is_reservation(wanted[0])


def _consumer_claims(placed: Sequence[PlacedClaim]) -> list[ConsumerClaim]:
    """Return the claims to write; the claims of a reservation become one claim of all their amounts."""
    by_consumer: dict[str, list[PlacedClaim]] = {}
    for each in placed:
        by_consumer.setdefault(each.wanted.consumer, []).append(each)
    return [_consumer_claim(each) for each in by_consumer.values()]


def _consumer_claim(placed: Sequence[PlacedClaim]) -> ConsumerClaim:
    (first, *others), resources = placed, dict[str, Counter[str]]()
    for each in placed:
        for provider, amounts in each.choice.resources:
            resources.setdefault(provider.uuid, Counter()).update(amounts)
    wanted = first.wanted
    return ConsumerClaim(
        wanted.consumer,
        resources,
        wanted.generation,
        wanted.owner,
        # each placed claim respects min_unit, max_unit and step_size by itself; the sums need not
        in_any_portions=bool(others),
        window=wanted.window,
        on_end=wanted.end_action,
        kept_until=wanted.kept_until,
    )
