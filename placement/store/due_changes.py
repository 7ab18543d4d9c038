"""Changes that are due by the clock of the database: expired consumers are released, and windows begin.

No process waits for these times. The next worker that needs the amounts makes the changes that are due
(:func:`write_with_room`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import sqlalchemy as sa

from placement.db import buckets, clock
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.tables import consumers, is_planned, reservations
from placement.exceptions import ConcurrentUpdate, Conflict, ConsumerExists
from placement.store import allocations, claimants, expiries, time_events, time_schedule, window_promises
from placement.store import consumers as consumer_store
from placement.store.claims import CapacityExceeded, TimeShifts, largest_amount, shifts_of_needs
from placement.store.consumers import RESERVING_CONSUMERS
from placement.store.reservations import window_claim
from placement.store.time_profile import TimeWindow, overlaps_sentence
from placement.store.time_skyline import make_skylines

T = TypeVar("T")
# a release locks buckets, so a long one would make claims wait
_AT_ONCE: Final = 100
"""Maximum number of expired consumers that one transaction releases."""
# a request can name any number of providers, each with a thousand windows
_MAX_SHIFTED: Final = 20
"""Maximum number of providers of a refused write for which other times are computed."""


def write_with_room(
    database: ServiceDatabase, work: Callable[[WriteTransaction], T], own: Collection[str] = ()
) -> T:
    """Run a write.

    If the write fails while expired allocations exist, release these allocations and run the write again.

    :param own: consumers with present amounts that the write replaces; these amounts refuse no write.
    :raises Conflict: the write conflicts with the state after the release.
    """
    # the loop ends at some point, because each round releases an allocation or raises an error
    while True:
        try:
            return database.write(work)
        except Conflict as conflict:
            if isinstance(conflict, ConcurrentUpdate) and not isinstance(conflict, ConsumerExists):
                raise  # the claim fails for another reason than missing room
            # this runs in a new transaction, because the failed transaction holds no locks any more
            with database.read() as conn:
                some = any(conn.execute(query.limit(1)).first() for query in consumer_store.EXPIRED_UUIDS)
                overlaps = "" if some else _describe_overlaps(conn, conflict, own)
            if some and give_back_expired(database):
                continue
            conflict.add_overlaps(overlaps)
            raise


def _describe_overlaps(conn: sa.Connection, conflict: Conflict, own: Collection[str]) -> str:
    """Return sentences about the windows that need the amounts of a refused write, or an empty text.

    If the write has no end time, the sentences also have a smaller amount that fits, and other times at which
    the whole write fits.
    """
    if not isinstance(conflict, CapacityExceeded):
        return ""
    key = conflict.provider, conflict.resource_class
    needs = conflict.needs
    if len({each.provider for each in needs}) > _MAX_SHIFTED:
        needs = [each for each in needs if each.provider == conflict.provider]
    providers = {conflict.provider, *(each.provider for each in needs)}
    schedule = time_schedule.read_schedule(conn, {*own, *conflict.claimants}, providers)
    # the refused write has no end time, so each later window matters
    some = [each for each in schedule.amounts if each.key == key]
    overlaps = overlaps_sentence(some, TimeWindow(schedule.now, math.inf))
    refused = [each for each in needs if (each.provider, each.resource_class) == key]
    if not overlaps or not refused:
        return overlaps
    skylines = make_skylines(schedule.amounts, schedule.holds)
    most = largest_amount(refused[0], skylines, schedule.now)
    if most is None:
        # without windows, the amount would not fit either
        return ""
    smaller = f" At most {most} of '{conflict.resource_class}' fit there without an end time." if most else ""
    shifts = TimeShifts() if needs is not conflict.needs else shifts_of_needs(needs, skylines, schedule.now)
    return f"{overlaps}{smaller}" + (f" The requested amounts fit {shifts.text}." if shifts.text else "")


def give_back_expired(database: ServiceDatabase) -> int:
    """Release expired reservations and claims, and start due windows; return the number of consumers.

    Afterwards all workers read the next expiry from the database.
    """
    # the work takes two transactions, because each locks its consumers before its providers. If the worker
    # dies in between, another worker begins the windows; their room is held meanwhile
    return database.write(_give_back_expired) + database.write(begin_windows)


_due: Final = (
    sa.select(consumers.c.uuid)
    .select_from(RESERVING_CONSUMERS)
    .where(
        is_planned(consumers.c.id),
        reservations.c.starts_at <= clock.ServerNow(),
    )
    # in this order, PostgreSQL reads only windows that have begun, as for EXPIRED_UUIDS
    .order_by(reservations.c.starts_at)
    .limit(_AT_ONCE)
)
_times: Final = (
    sa.select(consumers.c.uuid, reservations.c.starts_at, reservations.c.expires_at)
    .select_from(RESERVING_CONSUMERS)
    .where(consumers.c.uuid.in_(sa.bindparam("uuids", expanding=True)))
)


def window_times(conn: sa.Connection, uuids: Collection[str]) -> dict[str, TimeWindow]:
    """Return the reserved times of these windows, by uuid, including windows that are over."""
    return {
        uuid: TimeWindow(starts_at, ends_at)
        for uuid, starts_at, ends_at in conn.execute(_times, {"uuids": sorted(uuids)})
    }


def begin_windows(tx: WriteTransaction) -> int:
    """Turn planned allocations of windows that have begun into allocations; return the number of windows."""
    due = sorted(tx.conn.execute(_due).scalars())
    if not due:
        return 0
    locked = claimants.lock_consumers(tx, due)
    # a window that another worker has begun in the meantime has no planned allocations under these locks
    begun = _write_held(tx, locked, {each.consumer for each in locked.planned})
    tx.lock_buckets([buckets.RESERVATIONS])
    return begun


class UnseenReturns(ConcurrentUpdate):
    """The error (409) for windows with returned amounts that are no allocations yet.

    The client cannot have known these amounts, because the generation of a window stays the same when amounts
    return to it.
    """

    def __init__(self, windows: Sequence[str]) -> None:
        super().__init__(
            f"Claims have given amounts back to the reservations {', '.join(windows)} since their last"
            " change. Please read the reservations, and try again with their new generations."
        )
        self.windows = windows


def refuse_returns(tx: WriteTransaction, locked: claimants.LockedConsumers) -> None:
    """Refuse a write of locked windows with returned amounts that are no allocations yet.

    The caller has locked the buckets of their providers, and calls :func:`write_seen`.

    :raises UnseenReturns: there are such windows.
    """
    # returned amounts become allocations with the next write of their window, and a claim ends without such a
    # write
    promised, written = Counter[str](), Counter[str]()
    for each in window_promises.promised_amounts(tx.conn, {each.consumer for each in locked.promised}):
        promised[each.held.consumer] += each.held.used
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
    """Write all amounts that some locked windows hold as allocations; return the number of these windows."""
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
        # the times are read under the locks, because another worker may have moved the end of a window
        # meanwhile
        times = window_times(tx.conn, uuids)
        claims = [window_claim(tx, row, chosen, times[row.uuid]) for row in rows]
        # holds have kept the room of these windows free since the booking, so this write is never refused
        allocations.write_claims(tx, claims, chosen, are_promised=True)
    return len(rows)


def _give_back_expired(tx: WriteTransaction) -> int:
    # one call releases at most 100 of each kind; later calls release the rest
    found = [
        uuid
        for query in consumer_store.EXPIRED_UUIDS
        for uuid in tx.conn.execute(query.limit(_AT_ONCE)).scalars()
    ]
    # this removes rows of confirmed claims, so that the query below does not read them each time
    expiries.forget_confirmed(tx)
    if found:
        # the claim is read again under the locks, because it may have been confirmed meanwhile
        consumer_store.lock(tx, found)
        found = [
            uuid
            for query in consumer_store.EXPIRED_UUIDS
            for uuid in tx.conn.execute(query.where(consumers.c.uuid.in_(found))).scalars()
        ]
        allocations.give_back(tx, found)
    # the counter is incremented in any case, so that workers read the next expiry
    tx.lock_buckets([buckets.RESERVATIONS])
    if found:
        # old claims are deleted under the lock of the bucket, so that no two transactions delete the same
        # rows
        time_events.forget_ended(tx, clock.server_time(tx.conn))
    return len(found)
