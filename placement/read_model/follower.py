"""Reads the state of the model from the database, and then follows changes of the database.

The state is read in one transaction with a consistent snapshot of the database. If the state contradicts the
database, the worker drops the state (:mod:`placement.read_model.feed`).
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import buckets
from placement.db.batch import PreparedStatement, StatementBatch
from placement.db.tables import change_buckets, resource_providers
from placement.exceptions import Unavailable
from placement.read_model import rows
from placement.read_model.provider import Provider
from placement.read_model.snapshot import ModelSnapshot


@dataclass
class ModelState:
    """The snapshot of all providers, and the counters of the database at the time of this snapshot.

    - ``stamps`` has the number of the last change of each provider, by bucket and provider id.
    - ``next_expiry`` is the time when the next reservation or claim expires, by the clock of the database.
    - ``shared`` replaces equal values by one object.
    - ``whole`` is False while changes of the database are being applied. If the database fails in that time,
      ``whole`` stays False, and no request may use the state.
    """

    names: rows.NameTable
    snapshot: ModelSnapshot = field(default_factory=ModelSnapshot)
    counters: dict[int, int] = field(default_factory=dict)
    deletions: dict[int, int] = field(default_factory=dict)
    stamps: dict[int, dict[int, int]] = field(default_factory=dict)
    next_expiry: float = math.inf
    shared: rows.SharedValues = field(default_factory=rows.SharedValues)
    whole: bool = True
    _totals: dict[int, int] = field(default_factory=dict)
    """The sums in the fingerprints of buckets, by bucket, updated with each change."""

    def counters_sum(self) -> int:
        """Return the sum of all counters, as the database computes it (:mod:`placement.db.position`)."""
        return sum(self.counters.values())

    def put(self, row: rows.ProviderVersion, provider: Provider) -> None:
        """Add or replace a provider, together with the number of its last change (its stamp)."""
        self.snapshot.put(provider)
        self.note_stamp(row, provider)

    def note_stamp(self, row: rows.ProviderVersion, provider: Provider) -> None:
        """Record the number of the last change of a provider (its stamp)."""
        # the two numbers are usually equal, so one object serves as both numbers; this saves memory, because
        # a large cloud has a million of these numbers
        described = provider.described_seq
        seq = described if row.change_seq == described else row.change_seq
        stamps = self.stamps.setdefault(row.bucket, {})
        if row.bucket in self._totals:
            self._totals[row.bucket] += rows.fingerprint_summand(seq) - rows.fingerprint_summand(
                stamps.get(provider.id, 0)
            )
        stamps[provider.id] = seq

    def keep_only(self, bucket: int, ids: set[int]) -> None:
        """Drop all providers of a bucket, except the providers with these ids."""
        stamps = self.stamps.setdefault(bucket, {})
        self._totals.pop(bucket, None)
        for provider_id in stamps.keys() - ids:
            del stamps[provider_id]
            self.snapshot.remove(provider_id)

    def bucket_fingerprint(self, bucket: int) -> rows.BucketFingerprint:
        """Return the number of providers of a bucket, and the sum of their stamps."""
        stamps = self.stamps.get(bucket, {})
        if bucket not in self._totals:
            self._totals[bucket] = sum(map(rows.fingerprint_summand, stamps.values()))
        return rows.BucketFingerprint(len(stamps), self._totals[bucket])


LOG = logging.getLogger(__name__)

_counters: Final = PreparedStatement(sa.select(change_buckets))

_EMPTY: Final = rows.BucketFingerprint(0, 0)
ANOTHER_HISTORY: Final = (
    "the database has another history (restored from a backup, or failed over to "
    "a server without the last changes)"
)

# above this share of changed providers, reading whole tables is faster than reading providers by id
_FULL_READ_SHARE: Final = 0.5
"""Up to this share of changed providers, only the changed providers are read. Above this share, all providers
are read again.
"""


class FullReread(NamedTuple):
    """The reason to read the whole database again. ``is_odd`` means that only a fault can be the reason."""

    reason: str
    is_odd: bool = True


def read_all(conn: sa.Connection) -> ModelState:
    """Read all providers.

    :raises Unavailable: the database has no change counters, so later changes could not be found.
    :raises sqlalchemy.exc.SQLAlchemyError: the database does not answer.
    """
    state = ModelState(rows.read_names(conn))
    for bucket, counter, deletions in conn.execute(sa.select(change_buckets)):
        state.counters[bucket] = counter
        state.deletions[bucket] = deletions
    if (reason := buckets.explain_missing(state.counters)) is not None:
        LOG.error("The worker cannot read the changes of the database, and answers 503: %s", reason)
        raise Unavailable(reason)
    # garbage collections during the read would repeatedly examine all objects made so far
    with without_collection():
        providers = []
        for row, provider in rows.read_all(conn, state.names, state.shared):
            state.note_stamp(row, provider)
            providers.append(provider)
        state.snapshot = ModelSnapshot(providers)
        state.snapshot.whole_trees()
    state.next_expiry = rows.read_next_expiry(conn)
    LOG.info("Loaded the read model: %d resource providers", len(state.snapshot))
    return state


def follow_database(conn: sa.Connection, state: ModelState) -> FullReread | None:
    """Apply the changes of the database to the state; return the reason for a full read, or None.

    :raises sqlalchemy.exc.SQLAlchemyError: the database does not answer.
    """
    if not state.whole:
        return FullReread("the database failed while the model followed it", is_odd=False)
    # the update changes a copy if long requests still read the snapshot
    if state.snapshot.pin_count:
        state.snapshot = state.snapshot.copy()
    else:
        state.snapshot.merge_layers()
    try:
        return _apply_changes(conn, state)
    except exc.SQLAlchemyError:
        raise
    except Exception:
        # everything is read again, because the state may differ from the database
        LOG.exception("The read model could not be updated from the database")
        return FullReread("its content is inconsistent")


def _apply_changes(conn: sa.Connection, state: ModelState) -> FullReread | None:
    """Apply the changes of the database; return the reason why a full read is needed, or None."""
    batch = StatementBatch(conn)
    rows_of_buckets = batch.add(_counters, {}).rows
    now = {bucket: (counter, deletions) for bucket, counter, deletions in rows_of_buckets}
    moved = {bucket: new for bucket, new in now.items() if new[0] != state.counters.get(bucket)}
    # the epoch comes first, because after an import or a repair the other counters prove nothing
    if moved.pop(buckets.EPOCH, None) is not None:
        return FullReread("the database has a new epoch")
    # if a bucket is missing or has a smaller counter, the database was restored
    if state.counters.keys() - now.keys() or any(
        new[0] < state.counters.get(bucket, 0) for bucket, new in moved.items()
    ):
        return FullReread(f"{ANOTHER_HISTORY}: change counters went back")
    # the value is False until the end, because no request may use the state that an error leaves behind
    state.whole = False
    if moved.pop(buckets.NAMES, None) is not None:
        names = rows.read_names(conn)
        # a renamed class needs a full read, because unchanged providers would keep the old name
        if any(name in state.snapshot.by_class for name in state.names.classes.keys() - names.classes.keys()):
            return FullReread("a resource class that is in use was renamed", is_odd=False)
        # names are read before the providers, because rows of providers refer to names by id
        state.names = names
        state.counters[buckets.NAMES] = now[buckets.NAMES][0]
    # the counter only tells that the next expiry has changed, so the time of the expiry is read
    if buckets.RESERVATIONS in moved:
        state.next_expiry = rows.read_next_expiry(conn)
        state.counters[buckets.RESERVATIONS] = moved.pop(buckets.RESERVATIONS)[0]
    for bucket, (_, deletions) in moved.items():
        if deletions != state.deletions[bucket]:
            _forget_deleted(conn, state, bucket)
    if moved:
        known = {bucket: state.counters[bucket] for bucket in moved}
        changed = rows.read_changed(batch, known)
        count = len(changed.providers)
        # up to 100 providers are always read by id, which is quick
        if count > 100 and count > _FULL_READ_SHARE * len(state.snapshot):
            return FullReread(f"{count} of {len(state.snapshot)} resource providers changed", is_odd=False)
        _apply(conn, state, changed)
        for bucket in moved:
            if state.bucket_fingerprint(bucket) != changed.fingerprints.get(bucket, _EMPTY):
                return FullReread(f"{ANOTHER_HISTORY}: unchanged providers differ from those read before")
    for bucket, (counter, deletions) in moved.items():
        state.counters[bucket] = counter
        state.deletions[bucket] = deletions
    # trees are made before the state counts as whole: if providers form no valid trees, an error here leads
    # to a full read
    state.snapshot.whole_trees()
    state.whole = True
    return None


def _apply(conn: sa.Connection, state: ModelState, changed: rows.ChangedBuckets) -> None:
    """Apply the changed providers to the state; if only usage has changed, read only the usage."""
    used = rows.sum_up(changed.used, state.names)
    described, usage = [], []
    for row in changed.providers:
        known = state.snapshot.providers.get(row.id)
        if known is None or row.described_seq != known.described_seq or not _is_unmoved(row, known):
            described.append(row)
        else:
            usage.append((row, known))
    for row, provider in rows.read_some(conn, described, state.names, state.shared):
        state.put(row, provider)
    for row, known in usage:
        # a provider without a row of usage has lost all its allocations
        new = used.get(row.id, rows.NOTHING)
        state.put(row, replace(known, generation=row.generation, updated_at=row.updated_at, used=new))


def _forget_deleted(conn: sa.Connection, state: ModelState, bucket: int) -> None:
    # deleted rows leave no stamps, so the ids of the remaining rows are read to find them
    query = sa.select(resource_providers.c.id).where(resource_providers.c.bucket == bucket)
    state.keep_only(bucket, set(conn.execute(query).scalars()))


@contextmanager
def without_collection() -> Iterator[None]:
    """Exclude objects made in this context from garbage collection; they live as long as the worker."""
    # garbage is collected before the freeze, because frozen garbage would never be freed
    gc.collect()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _is_unmoved(row: rows.ProviderVersion, known: Provider) -> bool:
    """Return whether the name, the parent and the root of the provider are unchanged."""
    return (row.uuid, row.name, row.parent_id, row.root_id) == (
        known.uuid,
        known.name,
        known.parent_id,
        known.root_id,
    )
