"""Change counters: what serialises writers and what tells readers that something changed.

Every provider belongs to one of :data:`PROVIDER_BUCKETS` buckets for good, chosen by its
uuid; one more bucket stands for the names of resource classes and traits, one for
the shape of trees, one for when reservations expire, one, the :data:`EPOCH`, for all there is,
and :data:`GROUP_BUCKETS` for groups of consumers, by their names. A transaction that
writes to a provider first increments the counter of its bucket and so holds that
row's lock until it ends. Two things follow:

- transactions that touch the same provider come one after the other, and what
  one reads after it has the lock stays true until it commits;
- within a bucket, counters become visible in their order, so that "everything
  stamped with more than I have read" misses nothing. (A sequence shared by
  concurrent transactions would: they commit out of order.)

Each increment is a random number, so that a counter also tells one history from
another: a database that was restored from a backup, or whose standby took over before
it had everything, does not come to the same counters again by other changes. (By chance
it does, once in some million restores, and then only until the next change.)

The epoch is renewed by what changes data behind the back of the others (an import, a
repair, a migration, an operator after a restore), so that every worker reads everything
anew. It is no counter: each one is a number drawn from so many that no two histories ever
come to the same, as two would that both went up from where a backup was made.
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
NAMES: Final = 256
TREES: Final = 257
EPOCH: Final = 258
GROUP_BUCKETS: Final = range(EPOCH + 1, EPOCH + 65)
RESERVATIONS: Final = GROUP_BUCKETS.stop
ALL: Final = (*range(PROVIDER_BUCKETS), NAMES, TREES, EPOCH, *GROUP_BUCKETS, RESERVATIONS)

_EPOCHS: Final = 1 << 60  # with all counters it adds up to less than 64 bits hold
_MAX_STEP: Final = 1 << 24  # a trillion of them, on average half as large, is what 64 bits hold


def bucket_of(uuid: str) -> int:
    """The bucket of the provider with this uuid."""
    return crc32(uuid.encode()) % PROVIDER_BUCKETS


def bucket_of_group(name: str) -> int:
    """The bucket of the group of consumers with this name."""
    return GROUP_BUCKETS[crc32(name.encode()) % len(GROUP_BUCKETS)]


def missing(present: Container[int]) -> list[int]:
    """The buckets that are not among these, which the table has."""
    return [bucket for bucket in ALL if bucket not in present]


def explain_missing(present: Container[int]) -> str | None:
    """Why a database whose table has these buckets cannot be worked with, and what to do; None if it can."""
    count = len(missing(present))
    if not count:
        return None
    return (
        f"The table change_buckets of the database lacks {count} of its {len(ALL)} rows, as if somebody had"
        " deleted them: run 'placement-manage db sync', which puts them back."
    )


def counter(bucket: sa.ColumnElement[int]) -> sa.ScalarSelect[int]:
    """The present counter of the bucket, as part of a statement."""
    return sa.select(change_buckets.c.counter).where(change_buckets.c.id == bucket).scalar_subquery()


def step() -> int:
    """By how much a counter goes up: a number that nobody can guess."""
    return 1 + randbelow(_MAX_STEP)


def lock(batch: StatementBatch, buckets: Iterable[int], *, in_order: bool) -> None:
    """Increment the counters of the buckets.

    :param in_order: whether an update of several might lock them in an order that deadlocks.
    """
    chosen = sorted(set(buckets))
    if not chosen:
        return
    values = bind_values("bucket", chosen)
    in_order = in_order and len(chosen) > 1
    if in_order and not batch.sends_at_once:
        batch.add(_in_order(len(chosen)), values)
    increment = _increment_in_order if in_order and batch.sends_at_once else _increment
    batch.add(increment(len(chosen)), {**values, "step": step()})


def increment_in_order(chosen: sa.Select[Any]) -> sa.Update:
    """Increments the counters of buckets, in ascending order, by ``step``; for PostgreSQL.

    :param chosen: selects their ids, from :data:`~placement.db.tables.change_buckets`.
    """
    locked = chosen.order_by(change_buckets.c.id).with_for_update().cte("locked")
    new = change_buckets.c.counter + sa.bindparam("step", type_=sa.BigInteger)
    return sa.update(change_buckets).where(change_buckets.c.id == locked.c.id).values(counter=new)


def _chosen(count: int) -> sa.ColumnElement[bool]:
    return change_buckets.c.id.in_(bind_parameters("bucket", count, sa.Integer))


@lru_cache(KEPT_SIZES)
def _in_order(count: int) -> PreparedStatement:
    ordered = sa.select(change_buckets.c.id).where(_chosen(count)).order_by(change_buckets.c.id)
    return PreparedStatement(ordered.with_for_update())


@lru_cache(KEPT_SIZES)
def _increment_in_order(count: int) -> PreparedStatement:
    return PreparedStatement(increment_in_order(sa.select(change_buckets.c.id).where(_chosen(count))))


@lru_cache(KEPT_SIZES)
def _increment(count: int) -> PreparedStatement:
    new = change_buckets.c.counter + sa.bindparam("step", type_=sa.BigInteger)
    return PreparedStatement(sa.update(change_buckets).where(_chosen(count)).values(counter=new))


def renew_epoch(batch: StatementBatch) -> None:
    """Have all workers read everything anew, once this is committed."""
    batch.add(_renewal, {"bucket": EPOCH, "epoch": 1 + randbelow(_EPOCHS)})


_renewal: Final = PreparedStatement(
    sa.update(change_buckets)
    .where(change_buckets.c.id == sa.bindparam("bucket"))
    .values(counter=sa.bindparam("epoch"))
)


def count_deletion(batch: StatementBatch, bucket: int) -> None:
    """Say that a provider of the (locked) bucket is gone, as no stamp can."""
    batch.add(_count_deletion, {"bucket": bucket})


_count_deletion: Final = PreparedStatement(
    sa.update(change_buckets)
    .where(change_buckets.c.id == sa.bindparam("bucket"))
    .values(deletions=change_buckets.c.deletions + 1)
)
