"""Change counters, which serialise writers and tell readers that something has changed.

Every provider belongs to one of :data:`PROVIDER_BUCKETS` buckets for good, chosen by its uuid. Further
buckets stand for the names of resource classes and traits, for the parents in trees, and for the expiry of
reservations. One bucket, :data:`EPOCH`, stands for the whole database. Groups of consumers have
:data:`GROUP_BUCKETS` buckets, chosen by the name of the group. A transaction that writes to a provider first
increments the counter of its bucket, and so holds the lock of that row until it ends. Two things follow:

- Transactions on the same provider run one after the other. Data read under the lock stay true until the
  commit.
- Within a bucket, counters become visible in ascending order. So a query for all stamps above a known counter
  misses no change. A sequence would not give this order, because transactions that share it commit out of
  order.

Each increment is a random number, so a counter also identifies the history of its database. A restore from a
backup, or a failover that loses the last changes, sets counters back. Later changes then lead to other
counters. (The chance of equal ones is one in some million restores, and lasts until the next change.)

Operations that bypass the counters renew the epoch, so that every worker reads everything again: an import, a
repair, a migration, an operator after a restore. The epoch is not a counter, but a random number from a large
range. If two databases continue from one backup, plain counters could become equal; sums of random numbers do
not.
"""

from collections.abc import Container, Iterable
from functools import lru_cache
from secrets import randbelow
from typing import Any, Final
from zlib import crc32

import sqlalchemy as sa

from placement.db.batch import KEPT_SIZES, PreparedStatement, StatementBatch, bind_parameters, bind_values
from placement.db.tables import change_buckets

PROVIDER_BUCKETS: Final = 256
"""Number of buckets of providers, which have the ids from 0 on."""
NAMES: Final = 256
"""The bucket of the names of resource classes and traits."""
TREES: Final = 257
"""The bucket of the parents of all providers; moves in trees lock it."""
EPOCH: Final = 258
"""The bucket of the whole database."""
GROUP_BUCKETS: Final = range(EPOCH + 1, EPOCH + 65)
"""The buckets of groups of consumers."""
RESERVATIONS: Final = GROUP_BUCKETS.stop
"""The bucket of the times at which reservations and claims expire."""
ALL: Final = (*range(PROVIDER_BUCKETS), NAMES, TREES, EPOCH, *GROUP_BUCKETS, RESERVATIONS)
"""The ids of all buckets; the table ``change_buckets`` has a row for each."""

# the sum of the epoch and all counters has to fit into a signed integer of 64 bits
_EPOCHS: Final = 1 << 60
"""Number of possible epochs."""
# 64 bits hold the sum of a trillion steps, which on average have half of this size
_MAX_STEP: Final = 1 << 24
"""The largest step of a counter."""


def bucket_of(uuid: str) -> int:
    """Return the bucket of the provider with this uuid."""
    # not Python's hash(), which differs between processes
    return crc32(uuid.encode()) % PROVIDER_BUCKETS


def bucket_of_group(name: str) -> int:
    """Return the bucket of the group of consumers with this name."""
    return GROUP_BUCKETS[crc32(name.encode()) % len(GROUP_BUCKETS)]


def missing_buckets(present: Container[int]) -> list[int]:
    """Return the buckets without a row in the table."""
    return [bucket for bucket in ALL if bucket not in present]


def explain_missing(present: Container[int]) -> str | None:
    """Return which rows a database with the given buckets lacks, and the remedy; None if it lacks none."""
    count = len(missing_buckets(present))
    if not count:
        return None
    return (
        f"The table change_buckets of the database lacks {count} of its {len(ALL)} rows: they were"
        " deleted. Run 'placement-manage db sync', which creates them again."
    )


def present_counter(bucket: sa.ColumnElement[int]) -> sa.ScalarSelect[int]:
    """Return the present counter of the bucket, as part of a statement."""
    return sa.select(change_buckets.c.counter).where(change_buckets.c.id == bucket).scalar_subquery()


def random_step() -> int:
    """Return a step for a counter: an unpredictable number."""
    return 1 + randbelow(_MAX_STEP)


def lock(batch: StatementBatch, buckets: Iterable[int], *, in_order: bool) -> None:
    """Increment the counters of these buckets, which locks the buckets.

    :param in_order: whether an update of several rows could lock them in different orders, and so deadlock.
    """
    # all transactions lock in this order, because two that wait for each other would deadlock
    chosen = sorted(set(buckets))
    if not chosen:
        return
    values = bind_values("bucket", chosen)
    in_order = in_order and len(chosen) > 1
    # on other databases, a separate statement first locks the rows in order
    if in_order and not batch.sends_at_once:
        batch.add(_in_order(len(chosen)), values)
    # PostgreSQL may lock the rows of an UPDATE in any order; a common table expression that locks first fixes
    # the order
    increment = _increment_in_order if in_order and batch.sends_at_once else _increment_statement
    batch.add(increment(len(chosen)), {**values, "step": random_step()})


def increment_in_order(chosen: sa.Select[Any]) -> sa.Update:
    """Return a statement that increments counters by ``step``, in ascending order of ids; for PostgreSQL.

    :param chosen: selects the ids of the buckets, from :data:`~placement.db.tables.change_buckets`.
    """
    locked = chosen.order_by(change_buckets.c.id).with_for_update().cte("locked")
    new = change_buckets.c.counter + sa.bindparam("step", type_=sa.BigInteger)
    return sa.update(change_buckets).where(change_buckets.c.id == locked.c.id).values(counter=new)


def _is_chosen(count: int) -> sa.ColumnElement[bool]:
    return change_buckets.c.id.in_(bind_parameters("bucket", count, sa.Integer))


@lru_cache(KEPT_SIZES)
def _in_order(count: int) -> PreparedStatement:
    ordered = sa.select(change_buckets.c.id).where(_is_chosen(count)).order_by(change_buckets.c.id)
    return PreparedStatement(ordered.with_for_update())


@lru_cache(KEPT_SIZES)
def _increment_in_order(count: int) -> PreparedStatement:
    return PreparedStatement(increment_in_order(sa.select(change_buckets.c.id).where(_is_chosen(count))))


@lru_cache(KEPT_SIZES)
def _increment_statement(count: int) -> PreparedStatement:
    new = change_buckets.c.counter + sa.bindparam("step", type_=sa.BigInteger)
    return PreparedStatement(sa.update(change_buckets).where(_is_chosen(count)).values(counter=new))


def renew_epoch(batch: StatementBatch) -> None:
    """Make all workers read all content again after the commit."""
    batch.add(_renewal, {"bucket": EPOCH, "epoch": 1 + randbelow(_EPOCHS)})


_renewal: Final = PreparedStatement(
    sa.update(change_buckets)
    .where(change_buckets.c.id == sa.bindparam("bucket"))
    .values(counter=sa.bindparam("epoch"))
)


def count_deletion(batch: StatementBatch, bucket: int) -> None:
    """Count a deleted provider of the (locked) bucket, because a deleted row has no stamp."""
    batch.add(_count_deletion, {"bucket": bucket})


_count_deletion: Final = PreparedStatement(
    sa.update(change_buckets)
    .where(change_buckets.c.id == sa.bindparam("bucket"))
    .values(deletions=change_buckets.c.deletions + 1)
)
