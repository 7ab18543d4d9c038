"""Lists the providers that changed after a cursor, for clients that follow the database.

A cursor is a text that encodes the last counter of each bucket that a client has seen. The client sends the
cursor back unchanged.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

import sqlalchemy as sa

from placement.db import buckets
from placement.db.buckets import EPOCH, PROVIDER_BUCKETS
from placement.db.database import WriteTransaction
from placement.db.tables import allocations, change_buckets, consumers, deleted_providers, resource_providers
from placement.exceptions import CURSOR_TOO_OLD, Gone, InvalidRequest
from placement.store.consumers import NOT_EXPIRED

# the first byte of a cursor, which identifies the format, so that later releases can change it
_VERSION: Final = 1
# each change adds about 2**23 to a counter, so about 16 million changes of a bucket fit into half of the
# range
_BITS: Final = 48
"""Number of bits of each counter in a cursor."""
# the format is big endian and without padding, so that all machines encode cursors in the same way
_HEAD: Final = struct.Struct(">BQI")
_SIZE: Final = _HEAD.size + PROVIDER_BUCKETS * _BITS // 8


@dataclass(frozen=True, slots=True)
class ChangeCursor:
    """A position in the changes of a database: epoch, history, and the low bits of each bucket's counter."""

    epoch: int
    history: int
    counters: tuple[int, ...]

    @classmethod
    def from_counters(cls, counters: Mapping[int, int], history: str) -> ChangeCursor:
        """Return the cursor that encodes these counters, given by bucket."""
        # the low bits are enough, and 256 whole counters would make a cursor of 2.7 kB
        kept = tuple(counters[bucket] % (1 << _BITS) for bucket in range(PROVIDER_BUCKETS))
        # a checksum is enough, because it only has to tell histories apart
        return cls(counters[EPOCH], crc32(history.encode()), kept)

    @classmethod
    def parse(cls, text: str) -> ChangeCursor:
        """Return the cursor that a text encodes, or raise InvalidRequest."""
        try:
            # __str__() leaves the padding out, because an equals sign in a query has to be escaped
            data = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        except ValueError:
            # all texts that are no cursors get the same error message
            data = b""
        if len(data) != _SIZE or data[0] != _VERSION:
            raise InvalidRequest("'since' is not a cursor of this service.")
        _, epoch, history = _HEAD.unpack_from(data)
        step = _BITS // 8
        parts = (data[at : at + step] for at in range(_HEAD.size, _SIZE, step))
        return cls(epoch, history, tuple(int.from_bytes(part, "big") for part in parts))

    def __str__(self) -> str:
        """Return the cursor as a text, which :meth:`parse` reads."""
        parts = b"".join(each.to_bytes(_BITS // 8, "big") for each in self.counters)
        data = _HEAD.pack(_VERSION, self.epoch, self.history) + parts
        # the alphabet is URL-safe, because clients put the cursor into a query string
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")

    def counters_before(self, now: Mapping[int, int], history: str) -> dict[int, int]:
        """Return the full counters at the cursor, for each bucket that has changed since the cursor.

        :raises Gone: the current counters are lower than the counters of the cursor, for instance after a
            restore. Or the database has another history.
        """
        if (self.epoch, self.history) != (now[EPOCH], crc32(history.encode())):
            raise too_old("the database has another history or epoch, as after a restore or a failover")
        found: dict[int, int] = {}
        for bucket, low in enumerate(self.counters):
            # the difference is modulo the range, because the low bits may have wrapped around since the
            # cursor
            since = (now[bucket] - low) % (1 << _BITS)
            # a difference of more than half the range means that the counter is below the cursor
            if since >= 1 << (_BITS - 1):
                raise too_old("change counters went back")
            if since:
                found[bucket] = now[bucket] - since
        return found


def too_old(why: str) -> Gone:
    """Return the error for a cursor that is too old, because later changes are no longer known."""
    return Gone(
        f"The changes since this cursor are no longer known: {why}. Send a request without 'since' for a new"
        " cursor, read everything that you need again, and continue with the new cursor.",
        CURSOR_TOO_OLD,
    )


# deletions are rare; the last records of a bucket are kept without a time limit
KEPT: Final = 64
"""Number of deleted providers that are remembered for each bucket."""

_rp = resource_providers.c
_dp = deleted_providers.c


@dataclass(frozen=True, slots=True)
class ChangedHolder:
    """A consumer with allocations of a changed provider."""

    uuid: str
    generation: int


@dataclass(frozen=True, slots=True)
class ChangedProvider:
    """A changed provider with its current consumers; ``described`` is False if only usage has changed."""

    uuid: str
    generation: int
    described: bool
    holders: tuple[ChangedHolder, ...]


@dataclass(frozen=True, slots=True)
class ProviderChanges:
    """Changed and deleted providers up to ``cursor``; ``more`` tells whether there are further changes.

    A provider that is listed as both deleted and changed was deleted and created again.
    """

    cursor: ChangeCursor
    providers: Sequence[ChangedProvider] = ()
    deleted: Sequence[str] = ()
    more: bool = False


def note_deletion(tx: WriteTransaction, uuid: str) -> None:
    """Record the deletion of a locked provider, and drop the oldest records of deletions in its bucket."""
    bucket = buckets.bucket_of(uuid)
    of_bucket = sa.select(_dp.uuid, _dp.change_seq).where(_dp.bucket == bucket)
    # the number is one less than the maximum, to leave room for the new record
    kept = of_bucket.order_by(_dp.change_seq.desc()).limit(KEPT - 1)
    seqs = [row.change_seq for row in tx.conn.execute(kept)]
    if len(seqs) == KEPT - 1:
        old = sa.and_(_dp.bucket == bucket, _dp.change_seq < seqs[-1])
        tx.conn.execute(sa.delete(deleted_providers).where(old))
    # the counter already includes this transaction's increment, so that the stamp is above all existing
    # cursors
    values = {"uuid": uuid, "bucket": bucket, "change_seq": buckets.present_counter(sa.literal(bucket))}
    tx.conn.execute(sa.insert(deleted_providers).values(values))


def current_cursor(conn: sa.Connection, history: str) -> ChangeCursor:
    """Return the cursor that follows all changes so far."""
    return ChangeCursor.from_counters(_read_counters(conn), history)


def changes_since(conn: sa.Connection, history: str, cursor: ChangeCursor, limit: int) -> ProviderChanges:
    """Return the first changes after a cursor.

    :param history: the history of the database, as in :class:`~placement.db.position.DatabaseVersion`.
    :param limit: approximate maximum number of providers in the answer.
    :raises Gone: some changes since the cursor are not known any more.
    """
    # the counters are read first, in the snapshot of all other queries, so that the new cursor is below all
    # later commits
    counters = _read_counters(conn)
    known = cursor.counters_before(counters, history)
    # an error is better than an answer with missing deletions
    _check_remembered(conn, known)
    found = _stamped_rows(conn, known, limit)
    until = dict(counters)
    # rows come bucket by bucket: the last row's bucket is read up to its stamp, and all later buckets are not
    # read yet
    if len(found) >= limit:
        last = found[-1]
        until |= {bucket: seq for bucket, seq in known.items() if bucket > last.bucket}
        until[last.bucket] = last.change_seq
    # deletions have the same upper limits as changes, so that each deletion is reported exactly once
    deleted = _deleted_uuids(conn, known, until)
    holders = _changed_holders(conn, [each.id for each in found])
    providers = [
        ChangedProvider(
            each.uuid,
            each.generation,
            each.described_seq > known[each.bucket],
            tuple(holders.get(each.id, ())),
        )
        for each in found
    ]
    return ProviderChanges(
        ChangeCursor.from_counters(until, history), providers, deleted, more=until != counters
    )


def _read_counters(conn: sa.Connection) -> dict[int, int]:
    query = sa.select(change_buckets.c.id, change_buckets.c.counter)
    return {row.id: row.counter for row in conn.execute(query)}


def _check_remembered(conn: sa.Connection, known: Mapping[int, int]) -> None:
    """Raise Gone if records of deletions since the cursor were dropped."""
    query = sa.select(_dp.bucket, sa.func.count(), sa.func.min(_dp.change_seq)).group_by(_dp.bucket)
    for bucket, count, first in conn.execute(query):
        # records are dropped only in buckets with the maximum number of records
        if count >= KEPT and bucket in known and known[bucket] < first:
            raise too_old("too many resource providers were deleted since then")


def _stamped_rows(conn: sa.Connection, known: Mapping[int, int], limit: int) -> list[sa.Row[Any]]:
    """Return at most about ``limit`` changed providers, ordered by the bucket of their counter.

    The result includes all providers that changed in the same transaction as the last provider of the result.
    """
    query = sa.select(
        _rp.id, _rp.uuid, _rp.generation, _rp.bucket, _rp.change_seq, _rp.described_seq
    ).order_by(_rp.bucket, _rp.change_seq, _rp.id)
    # each bucket has a condition of its own, because each has its own counter
    later = [sa.and_(_rp.bucket == bucket, _rp.change_seq > seq) for bucket, seq in known.items()]
    if not later:
        return []
    rows = [*conn.execute(query.where(sa.or_(*later)).limit(limit))]
    # all providers with the last stamp are included, because a cursor cannot be between providers with one
    # stamp
    if len(rows) == limit:
        last = rows[-1]
        same = (_rp.bucket == last.bucket, _rp.change_seq == last.change_seq, _rp.id > last.id)
        rows += conn.execute(query.where(*same))
    return rows


def _deleted_uuids(conn: sa.Connection, known: Mapping[int, int], until: Mapping[int, int]) -> list[str]:
    query = sa.select(_dp.uuid, _dp.bucket, _dp.change_seq).order_by(_dp.bucket, _dp.change_seq)
    return [
        row.uuid
        # records are filtered in Python, because a bucket has at most 64 records, and conditions for all
        # buckets would make a long statement
        for row in conn.execute(query.where(_dp.bucket.in_(sorted(known))))
        if known[row.bucket] < row.change_seq <= until[row.bucket]
    ]


def _changed_holders(conn: sa.Connection, provider_ids: Collection[int]) -> dict[int, list[ChangedHolder]]:
    if not provider_ids:
        return {}
    query = (
        sa.select(allocations.c.provider_id, consumers.c.uuid, consumers.c.generation)
        .select_from(allocations)
        .join(consumers, consumers.c.id == allocations.c.consumer_id)
        .where(allocations.c.provider_id.in_(provider_ids), NOT_EXPIRED)
        # the rows are distinct, because a consumer has a row for each resource class
        .distinct()
        .order_by(allocations.c.provider_id, consumers.c.uuid)
    )
    found: dict[int, list[ChangedHolder]] = {}
    for provider_id, uuid, generation in conn.execute(query):
        found.setdefault(provider_id, []).append(ChangedHolder(uuid, generation))
    return found
