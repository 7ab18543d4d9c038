"""Reservations: consumers that keep allocations for later claims, until a time of the database's clock.

A reservation is a consumer of the type :data:`TYPE`, with a row in the table of reservations. Like every
consumer, it disappears with its last allocation. The amounts of an expired reservation are released by the
next worker that reads the reservation or needs these amounts (:func:`write_with_room`). So no separate
process has to release expired reservations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from placement.db import buckets, clock
from placement.db.batch import KEPT_SIZES, PreparedStatement, bind_parameters, bind_values
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.tables import (
    RESERVATION,
    consumers,
    planned_allocations,
    reservations,
    resource_classes,
)
from placement.exceptions import (
    NO_RESERVATION,
    ConcurrentUpdate,
    Conflict,
    ConsumerExists,
    EndTooLate,
    InvalidRequest,
    NotFound,
)
from placement.store import (
    allocations,
    claimants,
    expired,
    expiries,
    holds,
    time_events,
    window_history,
    window_promises,
)
from placement.store import consumers as consumer_store
from placement.store.booking_limits import BookingLimits
from placement.store.claims import CapacityExceeded, ConsumerClaim, claimed_amounts
from placement.store.consumers import ANY_GENERATION
from placement.store.time_profile import (
    AT_ONCE,
    NO_MARGINS,
    EndAction,
    TimedAmount,
    TimeWindow,
    WindowMargins,
    by_key,
    first_growth,
    iso_time,
    overlaps_sentence,
)

T = TypeVar("T")

# the type of reservations: they are consumers, so that usages and allocations show them
TYPE: Final = RESERVATION
NO_LIMITS: Final = BookingLimits()
# a release locks buckets, so a long one would make claims wait
_AT_ONCE: Final = 100
"""Maximum number of expired consumers that one transaction releases."""


ProjectCheck = Callable[[str], bool]
"""A function that returns whether a caller may change reservations of a project."""


def any_project(_: str) -> bool:
    """Return True: the caller may change reservations of any project."""
    return True


class ReservationState(StrEnum):
    """The state of a reservation that has not expired.

    In the state ``CLEANING``, the reservation still has its amounts, but claims can no longer use them.
    """

    PENDING = "pending"
    ACTIVE = "active"
    CLEANING = "cleaning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CapacityReservation:
    """A reservation that has not expired; its times are in seconds since 1970 by the database's clock.

    Only members of ``group`` may take amounts from the reservation; None allows all claims of its project. A
    reservation with a start (``starts_at``) is called a window. A window keeps its amounts from ``starts_at``
    up to ``expires_at``, which includes the lead and the cleaning time. While a window is pending
    (``is_pending``), its amounts are planned allocations. ``now`` is the time when the reservation was read.
    Before its start, a window that ``is_movable`` may move to an equivalent host.
    """

    uuid: str
    project_id: str
    user_id: str
    generation: int
    group: str | None
    expires_at: float
    starts_at: float | None = None
    is_pending: bool = False
    now: float = 0.0
    lead_time: int = 0
    cleaning_time: int = 0
    is_maintenance: bool = False
    on_end: EndAction = EndAction.NONE
    is_movable: bool = False

    @property
    def window_margins(self) -> WindowMargins:
        """Return the lead time and the cleaning time of the window."""
        return WindowMargins(self.lead_time, self.cleaning_time)

    @property
    def usable(self) -> TimeWindow:
        """Return the time in which claims may use the reservation.

        Without ``starts_at``, this time begins at 0.
        """
        return self.window_margins.usable_window(TimeWindow(self.starts_at or AT_ONCE, self.expires_at))

    @property
    def state(self) -> ReservationState:
        """Return the state of the reservation at the time when it was read from the database."""
        if not self.has_begun or (self.lead_time and self.now < self.usable.starts_at):
            return ReservationState.PENDING
        return ReservationState.ACTIVE if self.now < self.usable.ends_at else ReservationState.CLEANING

    @property
    def time_ahead(self) -> TimeWindow:
        """Return the time for which the reservation keeps its amounts, from the time when it was read."""
        return TimeWindow(max(self.now, self.starts_at or self.now), self.expires_at)

    @property
    def has_begun(self) -> bool:
        """Return whether the window had already begun when it was read from the database."""
        # the clock decides, even if no request has made the planned amounts allocations yet
        return self.starts_at is None or not self.is_pending or self.starts_at <= self.now

    def refuse_time(self, window: TimeWindow | None) -> None:
        """Refuse claims outside of the time of this window.

        A reservation without a start accepts claims at all times.

        :raises Conflict: the window has not begun, or the claim has no end time, or the claim ends after the
            window.
        """
        if self.starts_at is None:
            return
        usable = self.usable
        if self.state is ReservationState.PENDING:
            raise Conflict(
                f"The reservation {self.uuid} begins at {iso_time(usable.starts_at)}; no claim takes from it"
                " before.",
                NO_RESERVATION,
            )
        # another window may hold the same room afterwards
        if window is None or window.ends_at > usable.ends_at:
            raise Conflict(
                f"The reservation {self.uuid} is a window, which ends at {iso_time(usable.ends_at)}: a claim"
                " from it needs an ends_at of at most this time.",
                NO_RESERVATION,
            )

    def serves_claim(self, project_id: str, group: str | None) -> bool:
        """Return whether a claim of this project, for a consumer of this group, may use the reservation."""
        # the project is checked even with the right uuid, which is no secret and must not give access to the
        # reservation
        return project_id == self.project_id and self.group in (None, group)


@dataclass(frozen=True, slots=True)
class ReservationEnd:
    """The expiry of a reservation, either as a time or as seconds from now; the other field is None."""

    at: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ReservationChange:
    """A change of a reservation: its new end time, and the amounts that it keeps, by provider and class.

    ``on_end`` applies to later claims from the reservation. A field with the value None leaves its part of
    the reservation unchanged.
    """

    end: ReservationEnd | None
    kept: Mapping[str, Mapping[str, int]] | None = None
    on_end: EndAction | None = None


_holds: Final = reservations.join(consumers, consumers.c.id == reservations.c.consumer_id)
# the type is a condition, because a consumer that has got another type is no reservation any more
_shown: Final = (
    sa.select(
        consumers.c.uuid,
        consumers.c.project_id,
        consumers.c.user_id,
        consumers.c.generation,
        reservations.c.claim_group,
        reservations.c.expires_at,
        reservations.c.starts_at,
        consumers.c.id.in_(sa.select(planned_allocations.c.consumer_id)),
        clock.ServerNow(),
        reservations.c.lead_time,
        reservations.c.cleaning_time,
        reservations.c.is_maintenance,
        reservations.c.on_end,
        reservations.c.is_movable,
    )
    .select_from(_holds)
    .where(consumers.c.consumer_type == TYPE, reservations.c.expires_at > clock.ServerNow())
)
_one: Final = _shown.where(consumers.c.uuid == sa.bindparam("uuid"))


def find_reservation(conn: sa.Connection, uuid: str) -> CapacityReservation | None:
    """Return the reservation with this uuid; None if it does not exist or has expired."""
    row = conn.execute(_one, {"uuid": uuid}).first()
    return None if row is None else _reservation_of(row)


def _reservation_of(row: Sequence[Any]) -> CapacityReservation:
    *_, on_end, is_movable = row
    return replace(CapacityReservation(*row), on_end=EndAction(on_end), is_movable=bool(is_movable))


def list_reservations(
    conn: sa.Connection, project_id: str | None, group: str | None, after: str | None, limit: int
) -> list[CapacityReservation]:
    """Return reservations of a project and a group, sorted by uuid, beginning after the uuid ``after``."""
    # pages begin after a uuid and not after a number of rows, so that added or removed reservations do not
    # shift pages
    query = _shown.order_by(consumers.c.uuid).limit(limit)
    if project_id is not None:
        query = query.where(consumer_store.is_of_project(project_id))
    if group is not None:
        query = query.where(reservations.c.claim_group == group)
    if after is not None:
        query = query.where(consumers.c.uuid > after)
    return [_reservation_of(row) for row in conn.execute(query)]


def no_reservation(uuid: str) -> NotFound:
    """Return the error for an unknown reservation."""
    return NotFound(
        f"There is no reservation {uuid}: it never existed, it has ended or was cancelled, or claims have"
        " taken all of it. The lists with the states ended and cancelled have former windows."
    )


@dataclass(frozen=True, slots=True)
class ReservedAmounts:
    """The present or planned amounts of reservations, and the amounts that claims have taken from windows.

    The consumers of all amounts are the reservations.
    """

    held: Sequence[allocations.Allocation]
    claimed: Sequence[allocations.Allocation] = ()


@dataclass(frozen=True, slots=True)
class WrittenReservation:
    """A reservation at the end of a transaction, with its allocations.

    The transaction reads the reservation, because the reservation may expire before a later read.
    """

    reservation: CapacityReservation
    amounts: ReservedAmounts


def make_reservation(
    tx: WriteTransaction,
    consumer: str,
    group: str | None,
    end: ReservationEnd,
    starts_at: float | None = None,
    limits: BookingLimits = NO_LIMITS,
    margins: WindowMargins = NO_MARGINS,
    on_end: EndAction = EndAction.NONE,
    *,
    is_maintenance: bool = False,
    is_movable: bool = False,
) -> WrittenReservation:
    """Turn a consumer that this transaction has created, with its allocations, into a reservation.

    :param starts_at: the start of a window. If the start is in the future, the allocations are planned.
    :param margins: the lead time and the cleaning time, which claims cannot use.
    :param on_end: the action on a guest at the end time of its claim from the reservation.
    :param is_movable: whether a window may move to an equivalent host before its start.
    :raises InvalidRequest: the end of the reservation is not in the future.
    :raises Conflict: the reservation exceeds a limit.
    """
    # the counter is incremented, so that all workers read the next expiry again
    tx.lock_buckets([buckets.RESERVATIONS])
    # the condition has the uuid, because the id of the new consumer is not known yet
    which = sa.select(consumers.c.id).where(consumers.c.uuid == consumer).scalar_subquery()
    values: dict[str, Any] = {"consumer_id": which, "claim_group": group, "starts_at": starts_at}
    values |= {"lead_time": margins.lead, "cleaning_time": margins.cleaning}
    values |= {"on_end": on_end, "is_maintenance": is_maintenance, "is_movable": is_movable}
    values["expires_at"] = _time_of(end)
    tx.conn.execute(sa.insert(reservations).values(values))
    # the reservation is read after the write, because the database computes the end by its own clock
    written = _read_written(tx, consumer)
    # a client may use the uuid of a deleted window again
    window_history.forget_window(tx, consumer)
    if starts_at is not None:
        _note_booking(tx, written)
    if limits.max_number is not None:
        # counted under the lock of the bucket, so that the number includes each other booking
        limits.check_number(count_living(tx.conn, written.reservation.project_id))
    _check_limits(tx, written.reservation, limits)
    return written


def _note_booking(tx: WriteTransaction, written: WrittenReservation) -> None:
    found, promised = written.reservation, Counter[str]()
    for each in written.amounts.held:
        promised[each.resource_class] += each.used
    window_history.note_booking(
        tx,
        window_history.WindowRecord(
            found.uuid,
            found.project_id,
            found.user_id,
            found.group,
            TimeWindow(found.starts_at or AT_ONCE, found.expires_at),
            found.window_margins,
            promised,
            found.on_end,
        ),
        found.now,
    )


def count_living(conn: sa.Connection, project_id: str) -> int:
    """Return the number of reservations of a project that have not ended yet."""
    query = (
        sa.select(sa.func.count())
        .select_from(reservations)
        .join(consumers, consumers.c.id == reservations.c.consumer_id)
        .where(consumer_store.is_of_project(project_id), reservations.c.expires_at > clock.ServerNow())
    )
    return conn.execute(query).scalar_one()


def _check_limits(tx: WriteTransaction, written: CapacityReservation, limits: BookingLimits) -> None:
    """Refuse a written reservation that exceeds a limit; the caller has locked the bucket of reservations."""
    begin = written.now if written.starts_at is None else written.starts_at
    limits.check_time(TimeWindow(begin, written.expires_at), written.now)
    if limits.needs_amounts:
        # read under the lock of the bucket, so that it includes each other booking
        every = holds.project_amounts(tx.conn, written.project_id)
        own = [each for each in every if each.consumer == written.uuid]
        others = [each for each in every if each.consumer != written.uuid]
        limits.check_amounts(written.project_id, others, own, written.now)


def _change_locked(
    tx: WriteTransaction,
    uuid: str,
    generation: int,
    change: ReservationChange,
    limits: BookingLimits,
    may_change: ProjectCheck,
) -> WrittenReservation:
    # locks the consumer before the bucket, as every transaction does
    row, found = _lock_reservation(tx, uuid, may_change)
    consumer_store.check_generation(row, generation)
    end, window = change.end, None
    if found.starts_at is not None:
        ends_at = found.expires_at
        if end is not None:
            ends_at = found.now + (end.seconds or 0.0) if end.at is None else end.at
            if ends_at <= found.usable.starts_at:
                raise InvalidRequest("A reservation has to end after its start.")
            ends_at += found.cleaning_time
            window_history.note_end(tx, uuid, ends_at)
            end = ReservationEnd(ends_at, None)
        window = TimeWindow(found.starts_at, ends_at)
    if change.kept is None and (window is None or end is None):
        # neither times nor amounts change
        consumer_store.advance_consumer(tx, row, consumer_store.present_owner(row))
    else:
        _write_again(tx, row, window, change.kept)
    tx.lock_buckets([buckets.RESERVATIONS])
    query = sa.update(reservations).where(reservations.c.consumer_id == row.id)
    if end is not None:
        tx.conn.execute(query.values(expires_at=_time_of(end)))
    if change.on_end is not None:
        tx.conn.execute(query.values(on_end=change.on_end))
        window_history.note_end_action(tx, uuid, change.on_end)
    written = _read_written(tx, uuid)
    # an earlier end is possible even if the limits are lower than before
    if written.reservation.expires_at > found.expires_at:
        _check_limits(tx, written.reservation, limits)
    return written


def change_reservation(
    database: ServiceDatabase,
    uuid: str,
    generation: int,
    change: ReservationChange,
    limits: BookingLimits = NO_LIMITS,
    may_change: ProjectCheck = any_project,
) -> WrittenReservation:
    """Change a reservation in a separate transaction; the generation of the reservation increases by one.

    The cleaning time of a window then begins at the new end time.

    :param may_change: a function that returns whether the caller may change reservations of a project.
    :raises NotFound: no reservation that the caller may change has this uuid.
    :raises ConcurrentUpdate: ``generation`` is not the current generation, or the amounts of a window change
        while claims have given amounts back to it since this generation. Then the generation increases.
    :raises InvalidRequest: the new end is in the past, or not after the start of the window, or the
        reservation does not have the amounts that it should keep.
    :raises EndTooLate: the amounts of a window are not free until its new end time.
    :raises Conflict: the new end time exceeds a limit.
    """
    try:
        return write_seen(
            database, lambda tx: _change_locked(tx, uuid, generation, change, limits, may_change)
        )
    except CapacityExceeded as refusal:
        # the refused transaction is over, so this one reads the amounts before it
        found, latest, others = database.write(lambda tx: _latest_end(tx, uuid, change.kept))
        latest_end = iso_time(latest - found.cleaning_time)
        reason = (
            " A maintenance ends later only if no guest holds a part of its hosts: move the guests, or book a"
            " further maintenance that begins at its end."
            if found.is_maintenance
            else ""
        )
        refused = EndTooLate(
            f"The room of the reservation {uuid} is not free until then: it may end at {latest_end} at the"
            f" latest.{reason}",
            latest_end,
        )
        refused.add_overlaps(overlaps_sentence(others, TimeWindow(latest, math.inf)))
        raise refused from refusal


def _latest_end(
    tx: WriteTransaction, uuid: str, kept: Mapping[str, Mapping[str, int]] | None
) -> tuple[CapacityReservation, float, list[TimedAmount]]:
    """Return a window, its latest possible expiry, and the timed amounts of other consumers.

    The expiry is in seconds since 1970.

    :param kept: the amounts that the window keeps; None means that it keeps all amounts.
    """
    _, found = _lock_reservation(tx, uuid)
    start, endless = found.starts_at or AT_ONCE, TimeWindow(found.starts_at or AT_ONCE, math.inf)
    reserved = reserved_amounts(tx.conn, [found])
    held = {
        (each.provider, each.resource_class): each.used
        if kept is None
        else min(each.used, kept.get(each.provider, {}).get(each.resource_class, 0))
        for each in reserved.held
    }
    claimed = {(each.provider, each.resource_class) for each in reserved.claimed}
    keys = sorted(claimed.union(key for key, used in held.items() if used))
    supplies, class_ids = allocations.read_supplies(tx, {provider for provider, _ in keys})
    schedule = holds.read_schedule(tx.conn, of_providers=supplies)
    by_provider = by_key(schedule.amounts)
    latest, others = math.inf, []
    for key in keys:
        provider, name = key
        some = by_provider.get(key, [])
        capacity, used = supplies[provider].balance_of(class_ids.get(name))
        timed = sum(one.used for one in some if one.has_begun)
        timed += sum(amount for held_key, amount in schedule.holds if held_key == key)
        room = capacity - (used - timed)
        beside = [one for one in some if one.consumer != uuid]
        longer = [TimedAmount(uuid, *key, held.get(key, 0), endless, not found.is_pending)]
        longer += [
            # claims give these amounts back at their ends
            replace(one, window=replace(one.window, ends_at=math.inf))
            for one in some
            if one.consumer == uuid and one.is_return and one.window.starts_at > start
        ]
        ahead = TimeWindow(found.expires_at, math.inf)
        latest = min(latest, first_growth(some, [*beside, *longer], room, ahead))
        others += beside
    return found, latest, others


def delete(tx: WriteTransaction, uuid: str, may_change: ProjectCheck = any_project) -> None:
    """Release all allocations that a reservation still has.

    :raises NotFound: there is no such reservation that the caller may change.
    """
    # the consumer with this uuid may be no reservation any more
    _lock_reservation(tx, uuid, may_change)
    allocations.delete(tx, uuid)


def _write_again(
    tx: WriteTransaction,
    row: consumer_store.ConsumerRow,
    window: TimeWindow | None,
    kept: Mapping[str, Mapping[str, int]] | None,
) -> None:
    """Write the amounts of a reservation again, for another time window, or only a part of the amounts."""
    locked = claimants.lock_consumers(tx, [row.uuid])
    tx.lock(locked.providers)
    if kept is not None:
        refuse_returns(tx, locked)
    claim = window_claim(tx, row, locked, window)
    for provider, resources in (kept or {}).items():
        for name, amount in resources.items():
            held = claim.resources.get(provider, {}).get(name, 0)
            if amount > held:
                raise InvalidRequest(
                    f"The reservation {row.uuid} holds {held} {name} of resource provider {provider}, so it"
                    f" cannot keep {amount}."
                )
    allocations.write_claims(tx, [claim if kept is None else replace(claim, resources=kept)], locked)


def window_claim(
    tx: WriteTransaction,
    row: consumer_store.ConsumerRow,
    locked: claimants.LockedConsumers,
    window: TimeWindow | None,
) -> ConsumerClaim:
    """Return the claim of a locked reservation for its amounts, whether the window has begun or not.

    The caller has locked the buckets of its providers.
    """
    owner = consumer_store.present_owner(row)
    resources: dict[str, dict[str, int]] = {}
    if any(each.consumer == row.uuid for each in locked.promised):
        for each in window_promises.promised_amounts(tx.conn, [row.uuid]):
            if each.held_part.used:
                resources.setdefault(each.provider, {})[each.resource_class] = each.held_part.used
    else:
        own = [each for each in (*locked.holdings, *locked.planned) if each.consumer == row.uuid]
        names = _class_names(tx, {each.class_id for each in own})
        for holding in own:
            resources.setdefault(holding.provider, {})[names[holding.class_id]] = holding.used
    return ConsumerClaim(row.uuid, resources, ANY_GENERATION, owner, in_any_portions=True, window=window)


def _time_of(end: ReservationEnd) -> sa.ColumnElement[float]:
    return (
        # seconds are added in the statement, because the clocks of workers differ
        clock.ServerNow() + sa.literal(end.seconds, sa.Double)
        if end.at is None
        else sa.literal(end.at, sa.Double)
    )


def _read_written(tx: WriteTransaction, uuid: str) -> WrittenReservation:
    found = find_reservation(tx.conn, uuid)
    # a reservation that now ends in the past is not found, and the error rolls back the transaction
    if found is None:
        raise InvalidRequest(
            "A reservation has to end in the future, by the clock of the database; DELETE ends it at once."
        )
    return WrittenReservation(found, reserved_amounts(tx.conn, [found]))


def held_amounts(
    conn: sa.Connection, found: Collection[CapacityReservation]
) -> Sequence[allocations.Allocation]:
    """Return the amounts of these reservations, without the amounts that claims have taken."""
    return reserved_amounts(conn, found).held


def reserved_amounts(conn: sa.Connection, found: Collection[CapacityReservation]) -> ReservedAmounts:
    """Return the amounts of these reservations, and the amounts that claims have taken from windows.

    A pending window has its planned allocations. An amount that a claim has given back belongs to the window
    again.
    """
    held: list[allocations.Allocation] = []
    if uuids := [each.uuid for each in found]:
        held += allocations.of_consumers(conn, uuids)
    if pending := [each.uuid for each in found if each.is_pending]:
        held += allocations.planned_of(conn, pending)
    # only windows that have begun have promises
    windows = [each.uuid for each in found if each.starts_at is not None and not each.is_pending]
    promised = window_promises.promised_amounts(conn, windows)
    used = {each.window for each in promised}
    held = [each for each in held if each.consumer not in used]
    held += [each.held_part for each in promised if each.used > each.claimed]
    return ReservedAmounts(held, [each.claimed_part for each in promised if each.claimed])


def amounts_for_claims(
    conn: sa.Connection, found: CapacityReservation, repeated: Collection[str]
) -> list[allocations.Allocation]:
    """Return the amounts that claims may take from a reservation, with the amounts of replaced claims.

    :param repeated: consumers that may have claims from the reservation, which new claims replace.
    """
    amounts = reserved_amounts(conn, [found])
    if not amounts.claimed or not repeated:
        return list(amounts.held)
    total = window_promises.taken_by(conn, found.uuid, repeated)
    some = {(each.provider, each.resource_class): each for each in (*amounts.claimed, *amounts.held)}
    for each in amounts.held:
        total[each.provider, each.resource_class] += each.used
    return [replace(each, used=total[key]) for key, each in some.items() if total[key]]


def _lock_reservation(
    tx: WriteTransaction, uuid: str, may_change: ProjectCheck = any_project
) -> tuple[consumer_store.ConsumerRow, CapacityReservation]:
    """Lock the consumer of a reservation until the transaction ends.

    :raises NotFound: there is no such reservation that the caller may change.
    """
    rows = consumer_store.rows(consumer_store.lock(tx, [uuid]))
    # checked under the lock of the consumer, so that no other transaction ends the reservation after the
    # check
    found = find_reservation(tx.conn, uuid) if rows else None
    # another project may have made a reservation with the uuid of a deleted one
    if found is None or not may_change(found.project_id):
        raise no_reservation(uuid)
    return rows[0], found


def divided_claims(
    tx: WriteTransaction,
    reservation: str,
    claims: Sequence[ConsumerClaim],
    groups: Mapping[str, str],
    locked: claimants.LockedConsumers,
) -> list[ConsumerClaim] | None:
    """Return claims from a locked reservation, and a claim of the reservation for the amounts that remain.

    The claims last until the end of the cleaning time that the reservation requires.

    :param groups: the names of the groups that the consumers join.
    :returns: None if the reservation has too little of an amount.
    :raises Conflict: no reservation with this uuid serves the claims.
    """
    row, found = locked.consumers.get(reservation), find_reservation(tx.conn, reservation)
    for claim in claims:
        project_id, group = claim.owner.project_id, groups.get(claim.consumer)
        # the reservation is checked before the search, and again here under the lock, because it may have
        # changed
        if row is None or found is None or not found.serves_claim(project_id, group):
            raise unusable_reservation(reservation, project_id)
        found.refuse_time(claim.window)
    # this line is for the type checker: there is at least one claim, and the loop has refused it if the
    # consumer is missing
    assert row is not None
    assert found is not None
    window = None if found.starts_at is None else TimeWindow(found.starts_at, found.expires_at)
    # min_unit, max_unit and step_size do not apply to the rest of a reservation
    left = window_claim(tx, row, locked, window)
    rest = Counter({(provider, name): amount for _, provider, name, amount in claimed_amounts([left])})
    if window is not None:
        # a claim that is repeated may use its amounts again
        rest += window_promises.taken_by(tx.conn, reservation, [claim.consumer for claim in claims])
    for claim in claims:
        for provider, taken in claim.resources.items():
            for name, amount in taken.items():
                rest[provider, name] -= amount
    # The result is None instead of a conflict, because the caller searches again within the remaining amounts
    if any(amount < 0 for amount in rest.values()):
        return None
    resources: dict[str, dict[str, int]] = {}
    for (provider, name), amount in rest.items():
        # amounts of 0 are left out, because they would keep a consumer that should disappear
        if amount:
            resources.setdefault(provider, {})[name] = amount
    return [*(_from_reservation(claim, found) for claim in claims), replace(left, resources=resources)]


def _from_reservation(claim: ConsumerClaim, reservation: CapacityReservation) -> ConsumerClaim:
    if claim.window is None or reservation.starts_at is None:
        return claim
    return replace(
        claim,
        window=replace(claim.window, ends_at=claim.window.ends_at + reservation.cleaning_time),
        cleaning_time=reservation.cleaning_time,
        taken_from=reservation.uuid,
    )


def unusable_reservation(reservation: str, project_id: str) -> Conflict:
    """Return the error for a claim that may not use a reservation.

    The message hides the reservation's owner.
    """
    return Conflict(
        f"There is no reservation {reservation} that this claim of project {project_id} may take from: it"
        " may have expired, or be for another group, or claims may have taken all of it.",
        NO_RESERVATION,
    )


def _class_names(tx: WriteTransaction, class_ids: Iterable[int]) -> Mapping[int, str]:
    chosen = sorted(class_ids)
    rows = tx.queue(_class_lookup(len(chosen)), bind_values("id", chosen)).rows
    return {class_id: name for class_id, name in rows}  # noqa: C416  # rows are not pairs to dict()


@lru_cache(KEPT_SIZES)
def _class_lookup(count: int) -> PreparedStatement:
    chosen = resource_classes.c.id.in_(bind_parameters("id", count, sa.Integer))
    return PreparedStatement(sa.select(resource_classes.c.id, resource_classes.c.name).where(chosen))


def write_with_room(database: ServiceDatabase, work: Callable[[WriteTransaction], T]) -> T:
    """Run a write.

    If the write fails while expired allocations exist, release these allocations and run the write again.

    :raises Conflict: the write conflicts with the state after the release.
    """
    # ends at some point, because each round releases an allocation or raises an error
    while True:
        try:
            return database.write(work)
        except Conflict as conflict:
            if isinstance(conflict, ConcurrentUpdate) and not isinstance(conflict, ConsumerExists):
                raise  # the claim fails for another reason than missing room
            # this runs in a new transaction, because the failed transaction holds no locks any more
            with database.read() as conn:
                some = any(conn.execute(query.limit(1)).first() for query in expired.UUIDS)
                overlaps = "" if some else _describe_overlaps(conn, conflict)
            if some and give_back_expired(database):
                continue
            conflict.add_overlaps(overlaps)
            raise


def _describe_overlaps(conn: sa.Connection, conflict: Conflict) -> str:
    """Return a sentence about the windows that need the amounts of a refused write, or an empty text."""
    if not isinstance(conflict, CapacityExceeded):
        return ""
    schedule = holds.read_schedule(conn, of_providers=[conflict.provider])
    # the write has no end, so each later window matters
    some = [each for each in schedule.amounts if each.resource_class == conflict.resource_class]
    return overlaps_sentence(some, TimeWindow(schedule.now, math.inf))


def give_back_expired(database: ServiceDatabase) -> int:
    """Release expired reservations and claims, and start due windows; return the number of consumers.

    Afterwards all workers read the next expiry from the database.
    """
    # two transactions, because each locks its consumers before its providers; a worker that dies in between
    # leaves the windows to the next one, and their room is held meanwhile
    return database.write(_give_back_expired) + database.write(begin_windows)


_due: Final = (
    sa.select(consumers.c.uuid)
    .select_from(_holds)
    .where(
        consumers.c.id.in_(sa.select(planned_allocations.c.consumer_id)),
        reservations.c.starts_at <= clock.ServerNow(),
    )
    .order_by(consumers.c.uuid)
    .limit(_AT_ONCE)
)
_times: Final = (
    sa.select(consumers.c.uuid, reservations.c.starts_at, reservations.c.expires_at)
    .select_from(_holds)
    .where(consumers.c.uuid.in_(sa.bindparam("uuids", expanding=True)))
)


def window_times(conn: sa.Connection, uuids: Collection[str]) -> dict[str, TimeWindow]:
    """Return the reserved times of these windows, by uuid, including windows that are over."""
    return {
        uuid: TimeWindow(starts_at, ends_at)
        for uuid, starts_at, ends_at in conn.execute(_times, {"uuids": sorted(uuids)})
    }


def begin_windows(tx: WriteTransaction) -> int:
    """Turn the planned allocations of windows that have begun into allocations; return their number."""
    due = sorted(tx.conn.execute(_due).scalars())
    if not due:
        return 0
    locked = claimants.lock_consumers(tx, due)
    # under the locks of the consumers a window that another worker has begun has no planned allocations
    begun = _write_held(tx, locked, {each.consumer for each in locked.planned})
    tx.lock_buckets([buckets.RESERVATIONS])
    return begun


class UnseenReturns(ConcurrentUpdate):
    """The error for windows that have got amounts back, which are no allocations yet: 409.

    The client cannot have meant these amounts, because the windows have the same generation without them.
    """

    def __init__(self, windows: Sequence[str]) -> None:
        super().__init__(
            f"Claims have given amounts back to the reservations {', '.join(windows)} since the present"
            " generations. Please read the reservations, and try again with their new generations."
        )
        self.windows = windows


def refuse_returns(tx: WriteTransaction, locked: claimants.LockedConsumers) -> None:
    """Refuse a write of locked windows that have got amounts back, which are no allocations yet.

    The caller has locked the buckets of their providers, and calls :func:`write_seen`.

    :raises UnseenReturns: there are such windows.
    """
    # each write of a window makes its amounts allocations, and claims end without a write of their window
    promised, written = Counter[str](), Counter[str]()
    for each in window_promises.promised_amounts(tx.conn, {each.consumer for each in locked.promised}):
        promised[each.window] += each.held_part.used
    for holding in locked.holdings:
        written[holding.consumer] += holding.used
    if returned := sorted(uuid for uuid, used in promised.items() if used > written[uuid]):
        raise UnseenReturns(returned)


def write_seen(database: ServiceDatabase, work: Callable[[WriteTransaction], T]) -> T:
    """Run a write as :func:`write_with_room` does.

    If the write fails because of :class:`UnseenReturns`, turn these amounts into allocations, so that the
    client sees them.
    """
    try:
        return write_with_room(database, work)
    except UnseenReturns as refusal:
        windows = refusal.windows
        database.write(lambda tx: _write_returns(tx, windows))
        raise


def _write_returns(tx: WriteTransaction, uuids: Collection[str]) -> None:
    locked = claimants.lock_consumers(tx, uuids)
    _write_held(tx, locked, {each.consumer for each in locked.promised})


def _write_held(tx: WriteTransaction, locked: claimants.LockedConsumers, uuids: Collection[str]) -> int:
    """Write all that some locked windows hold as their allocations; return the number of these windows."""
    rows = [row for row in locked.consumers.values() if row.uuid in uuids]
    chosen = replace(
        locked,
        consumers={row.uuid: row for row in rows},
        holdings=[each for each in locked.holdings if each.consumer in uuids],
        planned=[each for each in locked.planned if each.consumer in uuids],
        promised=[each for each in locked.promised if each.consumer in uuids],
        timed=frozenset(uuids),
    )
    if rows:
        tx.lock(chosen.providers)
        # under the locks, because another worker may have moved the end of a window meanwhile
        times = window_times(tx.conn, uuids)
        claims = [window_claim(tx, row, chosen, times[row.uuid]) for row in rows]
        # their room is held since the booking, so this write is never refused
        allocations.write_claims(tx, claims, chosen, are_promised=True)
    return len(rows)


def _give_back_expired(tx: WriteTransaction) -> int:
    # one call releases at most 100 of each kind; later calls release the rest
    found = [
        uuid
        for query in expired.UUIDS
        for uuid in tx.conn.execute(query.order_by(consumers.c.uuid).limit(_AT_ONCE)).scalars()
    ]
    # removes rows of confirmed claims, so that the query below does not read them each time
    expiries.forget_confirmed(tx)
    if found:
        # the claim is read again under the locks, because it may have been confirmed meanwhile
        consumer_store.lock(tx, found)
        found = [
            uuid
            for query in expired.UUIDS
            for uuid in tx.conn.execute(query.where(consumers.c.uuid.in_(found))).scalars()
        ]
        allocations.give_back(tx, found)
    # the counter is incremented in any case, so that workers read the next expiry
    tx.lock_buckets([buckets.RESERVATIONS])
    if found:
        # under the lock of the bucket, so that no two transactions delete the same rows
        time_events.forget_ended(tx, expiries.server_time(tx.conn))
    return len(found)
