"""Change counters in the database. They order writers, and show readers what has changed.

A *bucket* is a group of objects with a change counter. The uuid of a provider determines its bucket, one of
:data:`PROVIDER_BUCKETS` buckets, for ever. Other buckets stand for the names of resource classes and traits,
for the parents of providers, and for the expiry of reservations and claims. The bucket :data:`EPOCH` stands
for the whole database. The name of a group of consumers determines which of the :data:`GROUP_BUCKETS` is the
bucket of the group. Before a transaction writes to a provider, it increments the counter of the provider's
bucket. So the transaction locks the row of this counter until it ends. The lock has two effects:

- Two transactions on the same provider run one after the other. Data that a transaction reads under the lock
  do not change until its commit.
- Readers see the values of one counter in ascending order. The *stamp* of a provider's row is the value of
  the counter at its last change. So a query for all stamps above a known value finds each later change. A
  database sequence would not guarantee this, because a transaction with a higher number can commit earlier.

Each increment is a random number, so a counter also identifies the history of its database. A restore from a
backup sets counters back, and so does a failover that loses the last changes. Later changes then lead to
other values than before. (By chance, the values are equal after about one of a million restores, until the
next change.)

Operations that increment no counters renew the epoch, so that every worker reads everything again. Such
operations are imports, repairs, migrations, and a command that operators run after a restore. The epoch is a
random number from a large range. With a small range, two databases that continue from the same backup could
get the same epoch.
"""

from collections.abc import Container, Iterable
from secrets import randbelow
from typing import Any, Final
from zlib import crc32

import sqlalchemy as sa

from placement.db.batch import PreparedStatement, StatementBatch, StatementFamily
from placement.db.tables import change_buckets

PROVIDER_BUCKETS: Final = 256
"""The number of buckets of providers, with ids from 0 on."""
NAMES: Final = 256
"""The bucket of the names of resource classes and traits."""
TREES: Final = 257
"""The bucket of the parents of all providers. A transaction locks this bucket to change a parent."""
EPOCH: Final = 258
"""The bucket that stands for the whole database."""
GROUP_BUCKETS: Final = range(EPOCH + 1, EPOCH + 65)
"""The buckets of groups of consumers."""
RESERVATIONS: Final = GROUP_BUCKETS.stop
"""The bucket of the expiry times of reservations and claims."""
ALL: Final = (*range(PROVIDER_BUCKETS), NAMES, TREES, EPOCH, *GROUP_BUCKETS, RESERVATIONS)
"""The ids of all buckets. The table ``change_buckets`` has a row for each bucket."""

# the sum of the epoch and all counters has to fit into a signed integer of 64 bits
_EPOCHS: Final = 1 << 60
"""Number of possible epochs."""
# the mean step is half of this maximum, so 64 bits are enough for the sum of a trillion steps
_MAX_STEP: Final = 1 << 24
"""The largest step of a counter."""


def bucket_of(uuid: str) -> int:
    """Return the bucket to which the provider with this uuid belongs."""
    # CRC-32 is used, because Python's hash() returns different values in different processes
    return crc32(uuid.encode()) % PROVIDER_BUCKETS


def bucket_of_group(name: str) -> int:
    """Return the bucket to which the group of consumers with this name belongs."""
    return GROUP_BUCKETS[crc32(name.encode()) % len(GROUP_BUCKETS)]


def missing_buckets(present: Container[int]) -> list[int]:
    """Return the buckets that have no row in the table."""
    return [bucket for bucket in ALL if bucket not in present]


def explain_missing(present: Container[int]) -> str | None:
    """Return an error about missing rows of buckets, with the remedy; None if no row is missing."""
    count = len(missing_buckets(present))
    if not count:
        return None
    return (
        f"The table change_buckets of the database lacks {count} of its {len(ALL)} rows: they were"
        " deleted. Run 'placement-manage db sync', which creates them again."
    )


def present_counter(bucket: sa.ColumnElement[int]) -> sa.ScalarSelect[int]:
    """Return a sub-query for the current value of a bucket's counter."""
    return sa.select(change_buckets.c.counter).where(change_buckets.c.id == bucket).scalar_subquery()


def random_step() -> int:
    """Return a random number by which a counter is incremented."""
    return 1 + randbelow(_MAX_STEP)


def lock(batch: StatementBatch, buckets: Iterable[int], *, in_order: bool) -> None:
    """Increment the counters of these buckets. This also locks the buckets until the transaction ends.

    :param in_order: whether the rows have to be locked in ascending order. A plain UPDATE locks rows in any
        order, so two transactions could wait for each other.
    """
    # all transactions lock in this order, so that two transactions never wait for each other
    chosen = sorted(set(buckets))
    if not chosen:
        return
    in_order = in_order and len(chosen) > 1
    # for databases other than PostgreSQL, a separate statement before the UPDATE locks the rows in order
    if in_order and not batch.sends_at_once:
        batch.add(*_IN_ORDER.bind_list(chosen))
    # on PostgreSQL, a common table expression in the UPDATE locks the rows in order
    increment = _INCREMENT_IN_ORDER if in_order and batch.sends_at_once else _INCREMENT
    batch.add(*increment.bind_list(chosen, step=random_step()))


def increment_in_order(chosen: sa.Select[Any]) -> sa.Update:
    """Return a statement for PostgreSQL that increments counters by ``step``, in ascending order of ids.

    :param chosen: a query that selects the ids of buckets from :data:`~placement.db.tables.change_buckets`.
    """
    locked = chosen.order_by(change_buckets.c.id).with_for_update().cte("locked")
    new = change_buckets.c.counter + sa.bindparam("step", type_=sa.BigInteger)
    return sa.update(change_buckets).where(change_buckets.c.id == locked.c.id).values(counter=new)


_ids: Final = sa.select(change_buckets.c.id)
_IN_ORDER: Final = StatementFamily(
    change_buckets.c.id, _ids.order_by(change_buckets.c.id).with_for_update().where
)
_INCREMENT_IN_ORDER: Final = StatementFamily(
    change_buckets.c.id, lambda chosen: increment_in_order(_ids.where(chosen))
)
_INCREMENT: Final = StatementFamily(
    change_buckets.c.id,
    sa.update(change_buckets)
    .values(counter=change_buckets.c.counter + sa.bindparam("step", type_=sa.BigInteger))
    .where,
)


def renew_epoch(batch: StatementBatch) -> None:
    """Make all workers read all content of the database again after the commit."""
    batch.add(_renewal, {"bucket": EPOCH, "epoch": 1 + randbelow(_EPOCHS)})


_renewal: Final = PreparedStatement(
    sa.update(change_buckets)
    .where(change_buckets.c.id == sa.bindparam("bucket"))
    .values(counter=sa.bindparam("epoch"))
)


def count_deletion(batch: StatementBatch, bucket: int) -> None:
    """Increment the number of deleted providers of a locked bucket, because a deleted row has no stamp."""
    batch.add(_count_deletion, {"bucket": bucket})


_count_deletion: Final = PreparedStatement(
    sa.update(change_buckets)
    .where(change_buckets.c.id == sa.bindparam("bucket"))
    .values(deletions=change_buckets.c.deletions + 1)
)
