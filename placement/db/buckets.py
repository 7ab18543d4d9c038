"""Change counters: what serialises writers and what tells readers that something changed.

Every provider belongs to one of :data:`PROVIDERS` buckets for good, chosen by its
uuid; one more bucket stands for the names of resource classes and traits, and one
for the shape of trees. A transaction that writes to a provider first increments the counter of its bucket
and so holds that row's lock until it ends. Two things follow:

- transactions that touch the same provider come one after the other, and what
  one reads after it has the lock stays true until it commits;
- within a bucket, counters become visible in their order, so that "everything
  stamped with more than I have seen" misses nothing. (A sequence shared by
  concurrent transactions would: they commit out of order.)
"""

from collections.abc import Iterable
from typing import Final
from zlib import crc32

import sqlalchemy as sa

from placement.db.tables import change_buckets

PROVIDERS: Final = 256
NAMES: Final = 256
TREES: Final = 257
ALL: Final = (*range(PROVIDERS), NAMES, TREES)


def bucket_of(uuid: str) -> int:
    """The bucket of the provider with this uuid."""
    return crc32(uuid.encode()) % PROVIDERS


def lock(conn: sa.Connection, buckets: Iterable[int]) -> None:
    """Increment the counters of the buckets, in an order that cannot deadlock."""
    ordered = sorted(set(buckets))
    if not ordered:
        return
    if len(ordered) > 1 and conn.dialect.name != "sqlite":
        conn.execute(_in_order, {"buckets": ordered}).all()
    conn.execute(_increment, {"buckets": ordered})


_chosen: Final = change_buckets.c.id.in_(sa.bindparam("buckets", expanding=True))
_in_order: Final = (
    sa.select(change_buckets.c.id).where(_chosen).order_by(change_buckets.c.id).with_for_update()
)
_increment: Final = sa.update(change_buckets).where(_chosen).values(counter=change_buckets.c.counter + 1)


def count_deletion(conn: sa.Connection, bucket: int) -> None:
    """Say that a provider of the (locked) bucket is gone, as no stamp can."""
    conn.execute(
        sa.update(change_buckets)
        .where(change_buckets.c.id == bucket)
        .values(deletions=change_buckets.c.deletions + 1)
    )
