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

_claims: Final = (
    sa.select(consumers.c.id)
    .select_from(claim_expiries.join(consumers, EXPIRES))
    # the clock of the database, so that all workers agree
    .where(claim_expiries.c.expires_at <= clock.ServerNow())
)
_reservations: Final = (
    sa.select(consumers.c.id)
    .select_from(reservations.join(consumers, consumers.c.id == reservations.c.consumer_id))
    .where(consumers.c.consumer_type == RESERVATION, reservations.c.expires_at <= clock.ServerNow())
)
UUIDS: Final = tuple(query.with_only_columns(consumers.c.uuid) for query in (_reservations, _claims))
"""Queries for the uuids of expired consumers: reservations, and claims."""

# the condition uses NOT IN with two small sub-queries instead of an outer join, which would change the main
# query
COUNTS: Final = consumers.c.id.not_in(_reservations) & consumers.c.id.not_in(_claims)
"""SQL condition: the consumer has not expired."""

IS_TIMED: Final = sa.or_(
    # correlated lookups by primary key, because a cloud may have many claims with an end time
    sa.select(sa.literal(1))
    .where(reservations.c.consumer_id == consumers.c.id, reservations.c.starts_at.is_not(None))
    .correlate(consumers)
    .exists(),
    sa.select(sa.literal(1)).where(EXPIRES, claim_expiries.c.is_final).correlate(consumers).exists(),
)
"""SQL condition: the allocations of the consumer have a known end time, so the amounts of holds depend on
them.
"""
