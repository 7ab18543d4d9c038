"""Reservations: consumers with allocations for later claims, until a time of the database's clock.

A reservation is a consumer of the type :data:`TYPE`, with a row in the table of reservations. Like every
consumer, it disappears with its last allocation. An expired reservation is released by the next worker that
reads, or that needs its amounts (:func:`write_with_room`). So no separate process has to release it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeVar

import sqlalchemy as sa

from placement.db import buckets, clock
from placement.db.batch import KEPT_SIZES, PreparedStatement, bind_parameters, bind_values
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.tables import RESERVATION, consumers, reservations, resource_classes
from placement.exceptions import (
    NO_RESERVATION,
    ConcurrentUpdate,
    Conflict,
    ConsumerExists,
    InvalidRequest,
    NotFound,
)
from placement.store import allocations, expired, expiries
from placement.store import consumers as consumer_store
from placement.store.claims import ConsumerClaim
from placement.store.consumers import ANY_GENERATION, ConsumerOwnership

T = TypeVar("T")

# the type of reservations: they are consumers, so that usages and allocations show them
TYPE: Final = RESERVATION
# a release locks buckets, so a long one would make claims wait
_AT_ONCE: Final = 100
"""Maximum number of expired consumers that one transaction releases."""


@dataclass(frozen=True, slots=True)
class CapacityReservation:
    """A reservation that has not expired; ``expires_at`` is in seconds since 1970 by the database's clock.

    Only members of ``group`` may take amounts from it; None allows all claims of its project.
    """

    uuid: str
    project_id: str
    user_id: str
    generation: int
    group: str | None
    expires_at: float

    def serves_claim(self, project_id: str, group: str | None) -> bool:
        """Return whether a claim of this project, for a consumer of this group, may use the reservation."""
        # the project is checked even with the right uuid, which is no secret and must not give access to the
        # reservation
        return project_id == self.project_id and self.group in (None, group)


@dataclass(frozen=True, slots=True)
class ReservationEnd:
    """The expiry of a reservation, either a time or seconds from now; the other field is None."""

    at: float | None
    seconds: float | None


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
    )
    .select_from(_holds)
    .where(consumers.c.consumer_type == TYPE, reservations.c.expires_at > clock.ServerNow())
)
_one: Final = _shown.where(consumers.c.uuid == sa.bindparam("uuid"))


def find_reservation(conn: sa.Connection, uuid: str) -> CapacityReservation | None:
    """Return the reservation with this uuid; None if it does not exist or has expired."""
    row = conn.execute(_one, {"uuid": uuid}).first()
    return None if row is None else CapacityReservation(*row)


def list_reservations(
    conn: sa.Connection, project_id: str | None, group: str | None, after: str | None, limit: int
) -> list[CapacityReservation]:
    """Return reservations of a project and a group in the order of uuids, beginning after a uuid."""
    # pages begin after a uuid and not after a number of rows, so that added or removed reservations do not
    # shift pages
    query = _shown.order_by(consumers.c.uuid).limit(limit)
    if project_id is not None:
        query = query.where(consumers.c.project_id == project_id)
        # the length is compared, too, because MariaDB ignores trailing blanks in comparisons
        query = query.where(sa.func.length(consumers.c.project_id) == sa.func.length(project_id))
    if group is not None:
        query = query.where(reservations.c.claim_group == group)
    if after is not None:
        query = query.where(consumers.c.uuid > after)
    return [CapacityReservation(*row) for row in conn.execute(query)]


def no_reservation(uuid: str) -> NotFound:
    """Return the error for an unknown reservation."""
    return NotFound(
        f"There is no reservation {uuid}: it never existed, it has expired, or claims have taken all of it."
    )


@dataclass(frozen=True, slots=True)
class WrittenReservation:
    """A reservation at the end of a transaction, with its allocations.

    It is read in the transaction, because it may expire before a later read.
    """

    reservation: CapacityReservation
    held: Sequence[allocations.Allocation]


def make_reservation(
    tx: WriteTransaction, consumer: str, group: str | None, end: ReservationEnd
) -> WrittenReservation:
    """Turn a consumer that this transaction has created, with its allocations, into a reservation.

    :raises InvalidRequest: the end of the reservation is not in the future.
    """
    # the counter is incremented, so that all workers read the next expiry again
    tx.lock_buckets([buckets.RESERVATIONS])
    # the condition has the uuid, because the id of the new consumer is not known yet
    which = sa.select(consumers.c.id).where(consumers.c.uuid == consumer).scalar_subquery()
    values = {"consumer_id": which, "claim_group": group, "expires_at": _time_of(end)}
    tx.conn.execute(sa.insert(reservations).values(values))
    # the reservation is read after the write, because the database computes the end by its own clock
    return _read_written(tx, consumer)


def change_end(tx: WriteTransaction, uuid: str, generation: int, end: ReservationEnd) -> WrittenReservation:
    """Change the end of a reservation; its generation increases by one.

    :raises NotFound: there is no such reservation.
    :raises ConcurrentUpdate: the generation is not the present one.
    :raises InvalidRequest: the new end is in the past.
    """
    # locks the consumer before the bucket, as every transaction does
    row = _lock_reservation(tx, uuid)
    consumer_store.check_generation(row, generation)
    consumer_store.advance_consumer(
        tx, row, ConsumerOwnership(row.project_id, row.user_id, row.consumer_type)
    )
    tx.lock_buckets([buckets.RESERVATIONS])
    query = sa.update(reservations).where(reservations.c.consumer_id == row.id)
    tx.conn.execute(query.values(expires_at=_time_of(end)))
    return _read_written(tx, uuid)


def delete(tx: WriteTransaction, uuid: str) -> None:
    """Release all allocations that a reservation still has.

    :raises NotFound: there is no such reservation.
    """
    # the consumer with this uuid may be no reservation any more
    _lock_reservation(tx, uuid)
    allocations.delete(tx, uuid)


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
        raise InvalidRequest("A reservation has to end in the future, by the clock of the database.")
    return WrittenReservation(found, allocations.of_consumers(tx.conn, [uuid]))


def _lock_reservation(tx: WriteTransaction, uuid: str) -> consumer_store.ConsumerRow:
    """Lock the consumer of a reservation until the transaction ends.

    :raises NotFound: there is no such reservation.
    """
    rows = consumer_store.rows(consumer_store.lock(tx, [uuid]))
    # checked under the lock of the consumer, so that no other transaction ends the reservation after the
    # check
    if not rows or find_reservation(tx.conn, uuid) is None:
        raise no_reservation(uuid)
    return rows[0]


def remaining_claim(
    tx: WriteTransaction,
    reservation: str,
    claims: Sequence[ConsumerClaim],
    groups: Mapping[str, str],
    locked: allocations.LockedConsumers,
) -> ConsumerClaim | None:
    """Return the allocations that remain in a locked reservation after these claims, as its new claim.

    :param groups: the names of the groups that the consumers join.
    :returns: None if the reservation does not hold enough.
    :raises Conflict: there is no reservation that serves the claims.
    """
    row, found = locked.consumers.get(reservation), find_reservation(tx.conn, reservation)
    for claim in claims:
        project_id, group = claim.owner.project_id, groups.get(claim.consumer)
        # the reservation is checked before the search, and again here under the lock, because it may have
        # changed
        if row is None or found is None or not found.serves_claim(project_id, group):
            raise unusable_reservation(reservation, project_id)
    # this line is for the type checker: there is at least one claim, and the loop has refused it if the
    # consumer is missing
    assert row is not None
    held = [each for each in locked.holdings if each.consumer == reservation]
    names = _class_names(tx, {each.class_id for each in held})
    left = Counter({(each.provider, names[each.class_id]): each.used for each in held})
    for claim in claims:
        for provider, taken in claim.resources.items():
            for name, amount in taken.items():
                left[provider, name] -= amount
    # The result is None instead of a conflict, because the caller searches again within the remaining amounts
    if any(amount < 0 for amount in left.values()):
        return None
    resources: dict[str, dict[str, int]] = {}
    for (provider, name), amount in left.items():
        # amounts of 0 are left out, because they would keep a consumer that should disappear
        if amount:
            resources.setdefault(provider, {})[name] = amount
    owner = ConsumerOwnership(row.project_id, row.user_id, row.consumer_type)
    # min_unit, max_unit and step_size do not apply to the rest of a reservation
    return ConsumerClaim(reservation, resources, ANY_GENERATION, owner, in_any_portions=True)


def unusable_reservation(reservation: str, project_id: str) -> Conflict:
    """Return the error for a claim that may not use a reservation; the message does not reveal the owner."""
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
    """Run a write. If it fails while expired allocations exist, release them and run the write again.

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
            if not some or not give_back_expired(database):
                raise


def give_back_expired(database: ServiceDatabase) -> int:
    """Release allocations of expired reservations and claims; return the number of released consumers.

    Afterwards all workers read the next expiry from the database.
    """
    return database.write(_give_back_expired)


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
    return len(found)
