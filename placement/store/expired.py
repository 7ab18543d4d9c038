"""SQL conditions and queries for consumers that have expired by the clock of the database.

A reservation or an unconfirmed claim expires at its expiry time, even if no worker reads the database at that
time. Queries that show consumers add the condition :data:`COUNTS`. A writer that needs the amounts of expired
consumers releases these amounts (:mod:`placement.store.due_changes`).
"""

from typing import Final

import sqlalchemy as sa

from placement.db import clock
from placement.db.tables import RESERVATION, claim_expiries, consumers, reservations

EXPIRES: Final = sa.and_(
    consumers.c.id == claim_expiries.c.consumer_id,
    # rows count only for the current generation: so any write of allocations ends the expiry without another
    # statement
    consumers.c.generation == claim_expiries.c.generation,
)
"""SQL condition: the claim of a consumer has an expiry time, valid for the consumer's current generation.
After a change of the generation, the row with the expiry time has no effect.
"""

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
UUIDS: Final = (
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
COUNTS: Final = sa.and_(
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
