"""What changed since a cursor: providers, and who holds something of them now."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from placement.db import buckets
from placement.db.database import WriteTransaction
from placement.db.tables import allocations, change_buckets, consumers, deleted_providers, resource_providers
from placement.store.cursor import ChangeCursor, too_old
from placement.store.expired import COUNTS

KEPT: Final = 64
"""Of each bucket so many deletions are remembered."""

_rp = resource_providers.c
_dp = deleted_providers.c


@dataclass(frozen=True, slots=True)
class ChangedHolder:
    """A consumer that holds something of a provider."""

    uuid: str
    generation: int


@dataclass(frozen=True, slots=True)
class ChangedProvider:
    """A provider that changed, and all consumers that hold something of it now.

    If it is not ``described`` anew, nothing changed but how much of it is used.
    """

    uuid: str
    generation: int
    described: bool
    holders: tuple[ChangedHolder, ...]


@dataclass(frozen=True, slots=True)
class ProviderChanges:
    """What changed until the cursor; there may be ``more``.

    A provider that is among the ``deleted`` and among the others was deleted and made again.
    """

    cursor: ChangeCursor
    providers: Sequence[ChangedProvider] = ()
    deleted: Sequence[str] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class _StampedRow:
    id: int
    uuid: str
    generation: int
    bucket: int
    change_seq: int
    described_seq: int


def note_deletion(tx: WriteTransaction, uuid: str) -> None:
    """Remember that a (locked) provider is gone, and forget those that went long before it."""
    bucket = buckets.bucket_of(uuid)
    of_bucket = sa.select(_dp.uuid, _dp.change_seq).where(_dp.bucket == bucket)
    kept = of_bucket.order_by(_dp.change_seq.desc()).limit(KEPT - 1)
    seqs = [row.change_seq for row in tx.conn.execute(kept)]
    if len(seqs) == KEPT - 1:
        old = sa.and_(_dp.bucket == bucket, _dp.change_seq < seqs[-1])
        tx.conn.execute(sa.delete(deleted_providers).where(old))
    values = {"uuid": uuid, "bucket": bucket, "change_seq": buckets.counter(sa.literal(bucket))}
    tx.conn.execute(sa.insert(deleted_providers).values(values))


def now(conn: sa.Connection, history: str) -> ChangeCursor:
    """The cursor since which nothing changed."""
    return ChangeCursor.of(_counters(conn), history)


def since(conn: sa.Connection, history: str, cursor: ChangeCursor, limit: int) -> ProviderChanges:
    """The first changes since a cursor, of about so many providers.

    :param history: of the database, as :class:`~placement.db.position.DatabaseVersion` has it.
    :raises Gone: nobody knows any more what changed since then.
    """
    counters = _counters(conn)
    known = cursor.counters_before(counters, history)
    _check_remembered(conn, known)
    found = _stamped(conn, known, limit)
    until = dict(counters)
    if len(found) >= limit:
        last = found[-1]
        until |= {bucket: seq for bucket, seq in known.items() if bucket > last.bucket}
        until[last.bucket] = last.change_seq
    deleted = _deleted(conn, known, until)
    holders = _holders(conn, [each.id for each in found])
    providers = [
        ChangedProvider(
            each.uuid,
            each.generation,
            each.described_seq > known[each.bucket],
            tuple(holders.get(each.id, ())),
        )
        for each in found
    ]
    return ProviderChanges(ChangeCursor.of(until, history), providers, deleted, more=until != counters)


def _counters(conn: sa.Connection) -> dict[int, int]:
    return {
        row.id: row.counter for row in conn.execute(sa.select(change_buckets.c.id, change_buckets.c.counter))
    }


def _check_remembered(conn: sa.Connection, known: Mapping[int, int]) -> None:
    """:raises Gone: a provider may have been deleted since, of which nobody knows."""
    query = sa.select(_dp.bucket, sa.func.count(), sa.func.min(_dp.change_seq)).group_by(_dp.bucket)
    for bucket, count, first in conn.execute(query):
        if count >= KEPT and bucket in known and known[bucket] < first:
            raise too_old("too many resource providers were deleted since")


def _stamped(conn: sa.Connection, known: Mapping[int, int], limit: int) -> list[_StampedRow]:
    """The first so many providers that changed, by bucket, and all that changed with the last of them."""
    query = sa.select(
        _rp.id, _rp.uuid, _rp.generation, _rp.bucket, _rp.change_seq, _rp.described_seq
    ).order_by(_rp.bucket, _rp.change_seq, _rp.id)
    later = [sa.and_(_rp.bucket == bucket, _rp.change_seq > seq) for bucket, seq in known.items()]
    if not later:
        return []
    rows = [_StampedRow(*row) for row in conn.execute(query.where(sa.or_(*later)).limit(limit))]
    if len(rows) == limit:
        last = rows[-1]
        same = (_rp.bucket == last.bucket, _rp.change_seq == last.change_seq, _rp.id > last.id)
        rows += [_StampedRow(*row) for row in conn.execute(query.where(*same))]
    return rows


def _deleted(conn: sa.Connection, known: Mapping[int, int], until: Mapping[int, int]) -> list[str]:
    query = sa.select(_dp.uuid, _dp.bucket, _dp.change_seq).order_by(_dp.bucket, _dp.change_seq)
    return [
        row.uuid
        for row in conn.execute(query.where(_dp.bucket.in_(sorted(known))))
        if known[row.bucket] < row.change_seq <= until[row.bucket]
    ]


def _holders(conn: sa.Connection, provider_ids: Collection[int]) -> dict[int, list[ChangedHolder]]:
    if not provider_ids:
        return {}
    query = (
        sa.select(allocations.c.provider_id, consumers.c.uuid, consumers.c.generation)
        .select_from(allocations)
        .join(consumers, consumers.c.id == allocations.c.consumer_id)
        .where(allocations.c.provider_id.in_(provider_ids), COUNTS)
        .distinct()
        .order_by(allocations.c.provider_id, consumers.c.uuid)
    )
    found: dict[int, list[ChangedHolder]] = {}
    for provider_id, uuid, generation in conn.execute(query):
        found.setdefault(provider_id, []).append(ChangedHolder(uuid, generation))
    return found
