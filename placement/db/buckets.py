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
from functools import lru_cache
from typing import Final
from zlib import crc32

import sqlalchemy as sa

from placement.db.batch import KEPT_SIZES, Batch, Prepared, placed, places
from placement.db.tables import change_buckets

PROVIDERS: Final = 256
NAMES: Final = 256
TREES: Final = 257
ALL: Final = (*range(PROVIDERS), NAMES, TREES)


def bucket_of(uuid: str) -> int:
    """The bucket of the provider with this uuid."""
    return crc32(uuid.encode()) % PROVIDERS


def counter(bucket: sa.ColumnElement[int]) -> sa.ScalarSelect[int]:
    """The present counter of the bucket, as part of a statement."""
    return sa.select(change_buckets.c.counter).where(change_buckets.c.id == bucket).scalar_subquery()


def lock(batch: Batch, buckets: Iterable[int], *, in_order: bool) -> None:
    """Increment the counters of the buckets.

    :param in_order: whether an update of several might lock them in an order that deadlocks.
    """
    chosen = sorted(set(buckets))
    if not chosen:
        return
    values = placed("bucket", chosen)
    if len(chosen) > 1 and in_order:
        batch.add(_in_order(len(chosen)), values)
    batch.add(_increment(len(chosen)), values)


def _chosen(count: int) -> sa.ColumnElement[bool]:
    return change_buckets.c.id.in_(places("bucket", count, sa.Integer))


@lru_cache(KEPT_SIZES)
def _in_order(count: int) -> Prepared:
    ordered = sa.select(change_buckets.c.id).where(_chosen(count)).order_by(change_buckets.c.id)
    return Prepared(ordered.with_for_update())


@lru_cache(KEPT_SIZES)
def _increment(count: int) -> Prepared:
    return Prepared(
        sa.update(change_buckets).where(_chosen(count)).values(counter=change_buckets.c.counter + 1)
    )


def count_deletion(batch: Batch, bucket: int) -> None:
    """Say that a provider of the (locked) bucket is gone, as no stamp can."""
    batch.add(_count_deletion, {"bucket": bucket})


_count_deletion: Final = Prepared(
    sa.update(change_buckets)
    .where(change_buckets.c.id == sa.bindparam("bucket"))
    .values(deletions=change_buckets.c.deletions + 1)
)
