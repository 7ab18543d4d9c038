"""Giving back all that one consumer holds: what clients do most often beside claiming.

Where the database takes several statements at once, none of them waits for the answer to another: the first
locks the consumer and leaves its id, or none, in a setting of the transaction, by which the others find what
is to be locked, stamped and deleted. So what the first has not locked is not touched, though the consumer may
be made between two statements. Elsewhere it is asked what is held first.
"""

from typing import Final

import sqlalchemy as sa

from placement.db import buckets
from placement.db.batch import PreparedStatement, StatementAnswer
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.tables import allocations, change_buckets, consumers, resource_providers
from placement.store.allocations import delete, missing
from placement.store.expired import COUNTS

_NOBODY: Final = "0"
_SETTING: Final[sa.ColumnElement[str]] = sa.literal_column("'placement.released'")


def release(database: ServiceDatabase, consumer: str) -> None:
    """Give back all that a consumer holds, in a transaction of its own.

    :raises NotFound: when it holds nothing, or its time is over.
    """

    def work(tx: WriteTransaction) -> StatementAnswer | None:
        if tx.sends_at_once:
            return _at_once(tx, consumer)
        delete(tx, consumer)
        return None

    released = database.write(work)
    if released is not None and released.scalars == [_NOBODY]:
        raise missing(consumer)


def _at_once(tx: WriteTransaction, consumer: str) -> StatementAnswer:
    """Queue all of it; the answer is the id of the consumer, as a text, or that there is :data:`_NOBODY`."""
    locked = tx.queue(_lock, {"consumer": consumer})
    tx.queue(_count, {"step": buckets.step()})
    tx.queue(_stamp, {"now": tx.now})
    tx.queue(_removal, {})
    tx.queue(_end, {})
    return locked


_released: Final = sa.cast(sa.func.current_setting(_SETTING), sa.BigInteger)
_held: Final = sa.select(allocations.c.provider_id).where(allocations.c.consumer_id == _released)
_lock: Final = PreparedStatement(
    sa.select(
        sa.func.set_config(
            _SETTING,
            sa.func.coalesce(
                sa.cast(
                    sa.select(consumers.c.id)
                    .where(consumers.c.uuid == sa.bindparam("consumer", type_=sa.String), COUNTS)
                    .with_for_update()
                    .scalar_subquery(),
                    sa.String,
                ),
                sa.literal_column(f"'{_NOBODY}'"),
            ),
            sa.literal_column("true"),  # until the transaction ends
        )
    )
)
_count: Final = PreparedStatement(
    buckets.increment_in_order(
        sa.select(change_buckets.c.id).where(
            change_buckets.c.id.in_(
                sa.select(resource_providers.c.bucket).where(resource_providers.c.id.in_(_held))
            )
        )
    )
)
_stamp: Final = PreparedStatement(
    sa.update(resource_providers)
    .where(resource_providers.c.id.in_(_held))
    .values(
        change_seq=buckets.counter(resource_providers.c.bucket),
        updated_at=sa.bindparam("now", type_=sa.Double),
    )
)
"""As of :meth:`~placement.db.database.WriteTransaction.changed`: usage alone, and no new generation."""
_removal: Final = PreparedStatement(sa.delete(allocations).where(allocations.c.consumer_id == _released))
_end: Final = PreparedStatement(sa.delete(consumers).where(consumers.c.id == _released))
