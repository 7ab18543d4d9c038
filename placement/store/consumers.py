"""Reads, locks and writes consumers, which hold allocations, and the generations of consumers.

A reservation or an unconfirmed claim expires at its expiry time by the clock of the database, even if no
worker reads the database at that time. Queries that show consumers add the condition :data:`NOT_EXPIRED`.
A writer that needs the amounts of expired consumers releases them (:mod:`placement.store.due_changes`).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.batch import PreparedStatement, StatementAnswer, StatementFamily, split_rows
from placement.db.database import WriteTransaction
from placement.db.tables import (
    IS_TREE_ROOT,
    RESERVATION,
    WINDOW_HOLD,
    ConsumerId,
    allocations,
    claim_expiries,
    consumers,
    is_same_text,
    planned_allocations,
    reservations,
    resource_providers,
    root_providers,
    window_promises,
)
from placement.exceptions import ConcurrentUpdate, ConsumerExists, InvalidRequest
from placement.store import window_history

EXPIRES: Final = sa.and_(
    consumers.c.id == claim_expiries.c.consumer_id,
    # rows count only for the current generation: so any write of allocations ends the expiry without another
    # statement
    consumers.c.generation == claim_expiries.c.generation,
)
"""SQL condition: the claim of a consumer has an expiry time, valid for the consumer's current generation.
After a change of the generation, the row with the expiry time has no effect.
"""

EXPIRING_CONSUMERS: Final = claim_expiries.join(consumers, EXPIRES)
"""The consumers of claims with an expiry time, joined with it."""
RESERVING_CONSUMERS: Final = reservations.join(consumers, consumers.c.id == reservations.c.consumer_id)
"""The consumers of reservations, joined with these."""

_HAS_EXPIRED: Final = (
    sa.and_(
        consumers.c.id == reservations.c.consumer_id,
        consumers.c.consumer_type == RESERVATION,
        # the clock of the database decides, so that all workers agree
        reservations.c.expires_at <= clock.ServerNow(),
    ),
    sa.and_(EXPIRES, claim_expiries.c.expires_at <= clock.ServerNow()),
)

# PostgreSQL estimates that a third of all rows has expired. With an order by time, it reads the expired rows
# from the index of times; otherwise it would read all rows: 0.2 s with 100,000 windows, at each expiry.
EXPIRED_UUIDS: Final = (
    sa.select(consumers.c.uuid)
    .select_from(reservations.join(consumers, _HAS_EXPIRED[0]))
    .order_by(reservations.c.expires_at),
    sa.select(consumers.c.uuid)
    .select_from(claim_expiries.join(consumers, _HAS_EXPIRED[1]))
    .order_by(claim_expiries.c.expires_at),
)
"""Queries for the uuids of expired consumers, in the order of their expiry: reservations, and claims."""

# Both conditions are correlated lookups by primary key. PostgreSQL estimates that a third of all reservations
# has expired, so it would read the whole table for NOT IN: 50 ms with 500,000 windows, for the allocations of
# one consumer.
NOT_EXPIRED: Final = sa.and_(
    *(~sa.select(sa.literal(1)).where(expired).correlate(consumers).exists() for expired in _HAS_EXPIRED)
)
"""SQL condition: the consumer has not expired."""

IS_TIMED: Final = sa.or_(
    # these are correlated lookups by primary key, because a cloud may have many claims with an end time
    sa.select(sa.literal(1))
    .where(reservations.c.consumer_id == consumers.c.id, reservations.c.starts_at.is_not(None))
    .correlate(consumers)
    .exists(),
    sa.select(sa.literal(1)).where(EXPIRES, claim_expiries.c.is_final).correlate(consumers).exists(),
)
"""SQL condition: the allocations of the consumer have a known end time, so the amounts of holds depend on
them.
"""


class AnyGeneration(Enum):
    """The type of :data:`ANY_GENERATION`, a value that stands for any generation."""

    ANY_GENERATION = "any"


ANY_GENERATION: Final = AnyGeneration.ANY_GENERATION
Generation = int | AnyGeneration | None
"""The generation of a consumer as a request gives it: a number, None for a new consumer, or
ANY_GENERATION.
"""

_columns: Final = (
    consumers.c.id,
    consumers.c.uuid,
    consumers.c.project_id,
    consumers.c.user_id,
    consumers.c.consumer_type,
    consumers.c.generation,
)
_by_uuid: Final = sa.select(*_columns).where(consumers.c.uuid == sa.bindparam("uuid"), NOT_EXPIRED)


@dataclass(frozen=True, slots=True)
class ConsumerOwnership:
    """The project and the user of a consumer, and its type; a type of None is shown as ``unknown``.

    ``unsaid`` names the fields that the microversion of the request does not have. An existing consumer keeps
    its values of the fields in ``unsaid``.
    """

    project_id: str
    user_id: str
    consumer_type: str | None
    # a request must not erase these fields: for instance, a client below microversion 1.38 cannot send a type
    unsaid: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ConsumerRow:
    """The row of a consumer in the database."""

    id: int
    uuid: str
    project_id: str
    user_id: str
    consumer_type: str | None
    generation: int


def check_consumer_type(consumer: str, consumer_type: str | None) -> None:
    """Raise InvalidRequest for the type of holds, because only the service makes consumers of this type."""
    # if a client could make a consumer of this type, no client could change or delete this consumer later
    if consumer_type == WINDOW_HOLD:
        raise InvalidRequest(
            f"The consumer {consumer} cannot have the type {WINDOW_HOLD}: only the service makes consumers of"
            " this type, which keep resources free for reservations."
        )


def owner_after(present: ConsumerRow, owner: ConsumerOwnership) -> ConsumerOwnership:
    """Return the owner of an existing consumer after a request, which keeps the fields in ``unsaid``."""
    # in the common case the same object is returned, because this runs for each claim
    return (
        replace(owner, **{name: getattr(present, name) for name in owner.unsaid}) if owner.unsaid else owner
    )


def present_owner(row: ConsumerRow) -> ConsumerOwnership:
    """Return the current project, user and type of a consumer."""
    return ConsumerOwnership(row.project_id, row.user_id, row.consumer_type)


def find_consumer(conn: sa.Connection, uuid: str) -> ConsumerRow | None:
    """Return the consumer with this uuid; None if it does not exist or has expired."""
    # NOT_EXPIRED leaves out expired consumers
    row = conn.execute(_by_uuid, {"uuid": uuid}).first()
    return None if row is None else ConsumerRow(*row)


def is_of_project(project: sa.ColumnElement[str] | str) -> sa.ColumnElement[bool]:
    """Return the SQL condition that a consumer belongs to a project, given by its id or as a parameter."""
    return is_same_text(consumers.c.project_id, project)


def lock(tx: WriteTransaction, uuids: Collection[str]) -> StatementAnswer:
    """Lock consumers until this transaction ends; the function :func:`rows` reads the answer."""
    # uuids are sorted, because all transactions lock consumers in this order
    return tx.queue(*_LOCKING_LOOKUP.bind_list(sorted(uuids)))


def rows(locked: StatementAnswer) -> list[ConsumerRow]:
    """Return the rows of the locked consumers by uuid; a uuid without a consumer is missing."""
    return [ConsumerRow(*each) for each in locked.rows]


# the rows include expired consumers, because writers have to see their rows
_LOCKING_LOOKUP: Final = StatementFamily(
    consumers.c.uuid, sa.select(*_columns).order_by(consumers.c.uuid).with_for_update().where
)


def check_generation(present: ConsumerRow | None, given: Generation) -> None:
    """Refuse a request with another generation than the consumer's.

    ``present`` is None if the consumer does not exist.

    :raises ConcurrentUpdate: the generations differ; the message has both generations. ConsumerExists if
        ``given`` is None, but the consumer exists.
    """
    expected = None if present is None else present.generation
    if given is not ANY_GENERATION and given != expected:
        # the error has a class of its own, because the caller of a claim can release an expired consumer and
        # continue
        refusal = ConsumerExists if given is None else ConcurrentUpdate
        raise refusal(
            "consumer generation conflict - "
            f"expected {'null' if expected is None else expected} but got {given}"
        )


def create_consumers(tx: WriteTransaction, owners: Mapping[str, ConsumerOwnership]) -> None:
    """Create consumers at generation 1; ``owners`` has their owners by uuid."""
    rows = [
        {
            "uuid": uuid,
            "project_id": owner.project_id,
            "user_id": owner.user_id,
            "consumer_type": owner.consumer_type,
            "generation": 1,
            "updated_at": tx.now,
        }
        # uuids are sorted, because an insertion locks its rows, and all transactions lock in this order
        for uuid, owner in sorted(owners.items())
    ]
    tx.insert(consumers, rows)


def advance_consumer(tx: WriteTransaction, row: ConsumerRow, owner: ConsumerOwnership) -> None:
    """Increase the generation and write the owner; a reservation ends if it gets another type."""
    # the new type may end a reservation, because PUT /allocations may change any consumer
    if row.consumer_type == RESERVATION != owner.consumer_type:
        tx.queue(_no_reservation, {"consumer": row.id})
        window_history.note_deletion(tx, row.uuid)
    values = {
        "consumer": row.id,
        "project": owner.project_id,
        "user": owner.user_id,
        "type": owner.consumer_type,
        "now": tx.now,
    }
    tx.queue(_advance, values)


_no_reservation: Final = PreparedStatement(
    sa.delete(reservations).where(reservations.c.consumer_id == sa.bindparam("consumer"))
)
_advance: Final = PreparedStatement(
    sa.update(consumers)
    .where(consumers.c.id == sa.bindparam("consumer"))
    .values(
        generation=consumers.c.generation + 1,
        project_id=sa.bindparam("project"),
        user_id=sa.bindparam("user"),
        consumer_type=sa.bindparam("type"),
        updated_at=sa.bindparam("now"),
    )
)


def remove(tx: WriteTransaction, ids: Iterable[int]) -> None:
    """Delete the consumers with these ids, which no longer have allocations."""
    # the function returns early, because a statement without consumers would be a useless round trip
    if chosen := list(ids):
        tx.queue(*_REMOVAL.bind_list(chosen))


_REMOVAL: Final = StatementFamily(consumers.c.id, sa.delete(consumers).where)


def remove_amounts(tx: WriteTransaction, table: sa.Table, ids: Collection[int]) -> None:
    """Queue the removal of all rows that consumers have in a table of amounts."""
    # the function returns early, because a statement without consumers would be a useless round trip
    if ids:
        tx.queue(*_amounts_removal(table).bind_list(ids))


@cache
def _amounts_removal(table: sa.Table) -> StatementFamily:
    # the condition uses the consumer's id, because this is the first column of the primary key
    return StatementFamily(table.c.consumer_id, sa.delete(table).where)


def remove_amounts_at(
    tx: WriteTransaction, table: sa.Table, consumer_id: int, providers: Collection[int]
) -> None:
    """Queue the removal of the rows that a consumer has in a table of amounts, at some providers."""
    if providers:
        tx.queue(*_partial_removal(table).bind_list(sorted(providers), consumer=consumer_id))


@cache
def _partial_removal(table: sa.Table) -> StatementFamily:
    of_consumer = sa.delete(table).where(table.c.consumer_id == sa.bindparam("consumer", type_=ConsumerId))
    return StatementFamily(table.c.provider_id, of_consumer.where)


def find_roots(conn: sa.Connection, uuids: Collection[str]) -> Mapping[str, Sequence[str]]:
    """Return the sorted uuids of the roots of all trees from which consumers have, or will have, amounts.

    Consumers without amounts are missing. The roots of a window include those where claims use all amounts of
    the window. The root of a sharing provider is included.
    """
    found: dict[str, set[str]] = {}
    for chunk in split_rows(sorted(uuids)):
        for query in _ROOTS:
            for consumer, root in conn.execute(query, {"uuids": chunk}):
                found.setdefault(consumer, set()).add(root)
    return {consumer: sorted(roots) for consumer, roots in found.items()}


def _roots_query(amounts: sa.Table) -> sa.Select[Any]:
    return (
        sa.select(consumers.c.uuid, root_providers.c.uuid)
        .distinct()
        .select_from(consumers)
        .join(amounts, amounts.c.consumer_id == consumers.c.id)
        .join(resource_providers, resource_providers.c.id == amounts.c.provider_id)
        .join(root_providers, IS_TREE_ROOT)
        .where(consumers.c.uuid.in_(sa.bindparam("uuids", expanding=True)))
    )


_ROOTS: Final = tuple(map(_roots_query, (allocations, planned_allocations, window_promises)))
