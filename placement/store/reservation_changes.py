"""Writes reservations: books them, changes their ends and amounts, and deletes them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import sqlalchemy as sa

from placement.db import buckets, clock
from placement.db.batch import PreparedStatement
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.tables import consumers, reservations
from placement.exceptions import EndTooLate, InvalidRequest, Unavailable
from placement.store import allocations, claimants, time_schedule, window_history
from placement.store import consumers as consumer_store
from placement.store.booking_limits import BookingLimits
from placement.store.claim_ends import latest_expiry
from placement.store.claims import CapacityExceeded
from placement.store.consumers import RESERVING_CONSUMERS
from placement.store.due_changes import refuse_returns, write_seen
from placement.store.reservations import (
    CapacityReservation,
    WrittenReservation,
    find_reservation,
    no_reservation,
    reserved_amounts,
    window_claim,
)
from placement.store.time_profile import (
    AT_ONCE,
    NO_MARGINS,
    EndAction,
    TimedAmount,
    TimeWindow,
    WindowMargins,
    iso_time,
    overlaps_sentence,
)

NO_LIMITS: Final = BookingLimits()
ProjectCheck = Callable[[str], bool]
"""A function that returns whether a caller may change reservations of a project."""


def any_project(_: str) -> bool:
    """Return True: the caller may change reservations of any project."""
    return True


@dataclass(frozen=True, slots=True)
class ReservationEnd:
    """The expiry of a reservation, either as a time or as seconds from now; the other field is None."""

    at: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class ReservationChange:
    """A new end, the amounts to keep, the action at the end of later claims, and movability.

    A field that is None leaves its part of the reservation unchanged.
    """

    end: ReservationEnd | None
    kept: Mapping[str, Mapping[str, int]] | None = None
    on_end: EndAction | None = None
    is_movable: bool | None = None


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
    values: dict[str, Any] = {"consumer": consumer, "claim_group": group, "starts_at": starts_at}
    values |= {"lead_time": margins.lead, "cleaning_time": margins.cleaning}
    values |= {"on_end": on_end.value, "is_maintenance": is_maintenance, "is_movable": is_movable}
    values["end"] = end.seconds if end.at is None else end.at
    tx.queue(_INSERT_FOR if end.at is None else _INSERT_UNTIL, values)
    # the reservation is read after the write, because the database computes the end by its own clock
    written = _read_written(tx, consumer)
    # a client may use the uuid of a deleted window again
    window_history.forget_window(tx, consumer)
    if starts_at is not None:
        _note_booking(tx, written)
    if limits.max_number is not None:
        # reservations are counted under the lock of the bucket, so that the number includes each other
        # booking
        limits.check_number(count_living(tx.conn, written.reservation.project_id))
    _check_limits(tx, written.reservation, limits)
    return written


def _insert_reservation(expires_at: sa.ColumnElement[float]) -> PreparedStatement:
    # the condition has the uuid, because the id of the new consumer is not known yet
    which = sa.select(consumers.c.id).where(consumers.c.uuid == sa.bindparam("consumer")).scalar_subquery()
    columns = (
        *("claim_group", "starts_at", "lead_time", "cleaning_time"),
        *("on_end", "is_maintenance", "is_movable"),
    )
    own = {name: sa.bindparam(name, type_=reservations.c[name].type) for name in columns}
    return PreparedStatement(
        sa.insert(reservations).values({"consumer_id": which, "expires_at": expires_at, **own})
    )


_END: Final = sa.bindparam("end", type_=sa.Double)
_INSERT_UNTIL: Final = _insert_reservation(_END)
# seconds are added in the statement, because the clocks of workers differ
_INSERT_FOR: Final = _insert_reservation(clock.ServerNow() + _END)


def _note_booking(tx: WriteTransaction, written: WrittenReservation) -> None:
    found, promised = written.reservation, Counter[str]()
    for each in written.amounts.held:
        promised[each.resource_class] += each.used
    window = {
        "uuid": found.uuid,
        "project_id": found.project_id,
        "user_id": found.user_id,
        "claim_group": found.group,
        "starts_at": found.starts_at,
        "expires_at": found.expires_at,
        "lead_time": found.lead_time,
        "cleaning_time": found.cleaning_time,
        "on_end": found.on_end.value,
    }
    window_history.note_booking(tx, window, promised, found.now)


def count_living(conn: sa.Connection, project_id: str) -> int:
    """Return the number of reservations of a project that have not ended yet."""
    query = (
        sa.select(sa.func.count())
        .select_from(RESERVING_CONSUMERS)
        .where(consumer_store.is_of_project(project_id), reservations.c.expires_at > clock.ServerNow())
    )
    return conn.execute(query).scalar_one()


def _check_limits(tx: WriteTransaction, written: CapacityReservation, limits: BookingLimits) -> None:
    """Refuse a written reservation that exceeds a limit; the caller has locked the bucket of reservations."""
    begin = written.now if written.starts_at is None else written.starts_at
    limits.check_time(TimeWindow(begin, written.expires_at), written.now)
    if limits.needs_amounts:
        # the amounts are read under the lock of the bucket, so that they include each other booking
        every = time_schedule.project_amounts(tx.conn, written.project_id)
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
    # this locks the consumer before the bucket, as every transaction does
    row, found = _lock_reservation(tx, uuid, may_change)
    consumer_store.check_generation(row, generation)
    if change.is_movable and (found.starts_at is None or found.is_maintenance):
        raise InvalidRequest("Only a reservation with starts_at that is no maintenance can be movable.")
    end, window = change.end, None
    if found.starts_at is not None:
        ends_at = found.expires_at
        if end is not None:
            # answers show milliseconds, and a claim may end at the shown time
            ends_at = round(found.now + (end.seconds or 0.0), 3) if end.at is None else end.at
            if ends_at <= found.usable.starts_at:
                raise InvalidRequest("A reservation has to end after its start.")
            ends_at += found.cleaning_time
            window_history.note_end(tx, uuid, ends_at)
            end = ReservationEnd(ends_at, None)
        window = TimeWindow(found.starts_at, ends_at)
    if change.kept is None and (window is None or end is None):
        # in this case neither times nor amounts change
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
    if change.is_movable is not None:
        # a booking that has chosen a move checks this again under the lock of the consumer
        tx.conn.execute(query.values(is_movable=change.is_movable))
    written = _read_written(tx, uuid)
    # a change to an earlier end is allowed even if the limits are lower than before
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
    :raises ConcurrentUpdate: ``generation`` is not the current generation, or the change sets the amounts of
        a window to which claims have given amounts back since this generation. In the second case the
        generation increases.
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
        detail = f"The room of the reservation {uuid} is not free until then"
        try:
            # the refused transaction was rolled back, so this transaction reads the amounts without the
            # change
            found, latest, others = database.write(lambda tx: _latest_end(tx, uuid, change.kept))
        except Unavailable:
            # the refusal is certain, so a failure of the database after it must not replace it
            refused = EndTooLate(f"{detail}.", None)
            refused.has_overlaps = refusal.has_overlaps
            raise refused from refusal
        latest_end = iso_time(latest - found.cleaning_time)
        reason = (
            " A maintenance ends later only if no guest holds a part of its hosts: move the guests, or book a"
            " further maintenance that begins at its end."
            if found.is_maintenance
            else ""
        )
        refused = EndTooLate(f"{detail}: it may end at {latest_end} at the latest.{reason}", latest_end)
        refused.add_overlaps(overlaps_sentence(others, TimeWindow(latest, math.inf)))
        raise refused from refusal


def _latest_end(
    tx: WriteTransaction, uuid: str, kept: Mapping[str, Mapping[str, int]] | None
) -> tuple[CapacityReservation, float, list[TimedAmount]]:
    """Return a window, its latest possible expiry, and the timed amounts of other consumers.

    :param kept: the amounts that the window keeps; None means all its amounts.
    """
    _, found = _lock_reservation(tx, uuid)
    reserved = reserved_amounts(tx.conn, [found])
    held = {
        (each.provider, each.resource_class): each.used
        if kept is None
        else min(each.used, kept.get(each.provider, {}).get(each.resource_class, 0))
        for each in reserved.held
    }
    amounts = {(each.provider, each.resource_class): 0 for each in reserved.claimed}
    for key, used in held.items():
        if used:
            amounts[key] = used
    present = TimeWindow(found.starts_at or AT_ONCE, found.expires_at)
    latest, others = latest_expiry(tx, uuid, amounts, present, has_begun=not found.is_pending)
    return found, latest, others


def delete_reservation(tx: WriteTransaction, uuid: str, may_change: ProjectCheck = any_project) -> None:
    """Release all amounts of a reservation; raise NotFound if the caller must not change it."""
    # the consumer with this uuid may be no reservation any more
    _lock_reservation(tx, uuid, may_change)
    allocations.delete(tx, uuid)


def _write_again(
    tx: WriteTransaction,
    row: consumer_store.ConsumerRow,
    window: TimeWindow | None,
    kept: Mapping[str, Mapping[str, int]] | None,
) -> None:
    """Write the amounts of a reservation again: for another time window, or only those to keep."""
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


def _lock_reservation(
    tx: WriteTransaction, uuid: str, may_change: ProjectCheck = any_project
) -> tuple[consumer_store.ConsumerRow, CapacityReservation]:
    """Lock the consumer of a reservation, or raise NotFound if the caller must not change it."""
    rows = consumer_store.rows(consumer_store.lock(tx, [uuid]))
    # the reservation is read under the lock of the consumer, so that no other transaction ends it after the
    # check
    found = find_reservation(tx.conn, uuid) if rows else None
    # another project may have made a reservation with the uuid of a deleted one
    if found is None or not may_change(found.project_id):
        raise no_reservation(uuid)
    return rows[0], found
