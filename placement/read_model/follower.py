"""Reads the state of the model from the database, and follows the database from there.

All of it is read in one snapshot of the database. :mod:`placement.read_model.feed` says what it means when
something does not fit.
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
    """A snapshot and the point in the history of the database that it shows.

    ``stamps`` has, by bucket and id, when each provider changed last, in any way. At ``next_expiry``, by the
    clock of the database, a reservation is to be given back. While changes are applied it is not ``whole``,
    nor afterwards if the database broke off in between. What is read into it is ``shared`` where it is equal.
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
    """Of buckets the sums in their fingerprints, where somebody asked for these."""

    def counters_sum(self) -> int:
        """What the database says where it stands (:mod:`placement.db.position`)."""
        return sum(self.counters.values())

    def put(self, row: rows.ProviderVersion, provider: Provider) -> None:
        """Take up a provider as the row shows it."""
        self.snapshot.put(provider)
        self.stamp(row, provider)

    def stamp(self, row: rows.ProviderVersion, provider: Provider) -> None:
        """Note when a provider changed last."""
        # most changed in both ways at once: one number is kept once
        described = provider.described_seq
        seq = described if row.change_seq == described else row.change_seq
        stamps = self.stamps.setdefault(row.bucket, {})
        if row.bucket in self._totals:
            self._totals[row.bucket] += rows.summand(seq) - rows.summand(stamps.get(provider.id, 0))
        stamps[provider.id] = seq

    def keep_only(self, bucket: int, ids: set[int]) -> None:
        """Forget the other providers of the bucket."""
        stamps = self.stamps.setdefault(bucket, {})
        self._totals.pop(bucket, None)
        for provider_id in stamps.keys() - ids:
            del stamps[provider_id]
            self.snapshot.remove(provider_id)

    def fingerprint(self, bucket: int) -> rows.BucketFingerprint:
        """That of the providers of the bucket."""
        stamps = self.stamps.get(bucket, {})
        if bucket not in self._totals:
            self._totals[bucket] = sum(map(rows.summand, stamps.values()))
        return rows.BucketFingerprint(len(stamps), self._totals[bucket])


LOG = logging.getLogger(__name__)

_counters: Final = PreparedStatement(sa.select(change_buckets))

_EMPTY: Final = rows.BucketFingerprint(0, 0)
ANOTHER_HISTORY: Final = (
    "the database does not go on from where it was (restored from a backup, or failed over to "
    "a server that lacked the last changes)"
)

_FULL_READ_SHARE: Final = 0.5  # of all providers changed: reading everything is cheaper


class FullReread(NamedTuple):
    """Why only reading everything anew can help."""

    reason: str
    is_odd: bool = True


def read_all(conn: sa.Connection) -> ModelState:
    """All that the database has.

    :raises Unavailable: it lacks counters of changes, so that it could not be followed.
    :raises sqlalchemy.exc.SQLAlchemyError: it does not answer.
    """
    state = ModelState(rows.read_names(conn))
    for bucket, counter, deletions in conn.execute(sa.select(change_buckets)):
        state.counters[bucket] = counter
        state.deletions[bucket] = deletions
    if (reason := buckets.explain_missing(state.counters)) is not None:
        LOG.error("the database cannot be followed: %s", reason)
        raise Unavailable(reason)
    with nothing_but_to_keep():
        providers = []
        for row, provider in rows.read_all(conn, state.names, state.shared):
            state.stamp(row, provider)
            providers.append(provider)
        state.snapshot = ModelSnapshot(providers)
        state.snapshot.whole_trees()
    state.next_expiry = rows.read_next_expiry(conn)
    LOG.info("read model loaded: %d resource providers", len(state.snapshot))
    return state


def follow(conn: sa.Connection, state: ModelState) -> FullReread | None:
    """Bring the state up to date; why that does not help, and only reading everything anew can, or None.

    :raises sqlalchemy.exc.SQLAlchemyError: the database does not answer.
    """
    if not state.whole:
        return FullReread("the database broke off while the model followed it", is_odd=False)
    if state.snapshot.keepers:
        state.snapshot = state.snapshot.copy()
    try:
        return _follow(conn, state)
    except exc.SQLAlchemyError:
        raise
    except Exception:  # whatever is wrong with the model, the database knows better
        LOG.exception("the read model could not follow the database")
        return FullReread("what it has does not fit together")


def _follow(conn: sa.Connection, state: ModelState) -> FullReread | None:
    """Apply what changed; why that does not do, or None."""
    batch = StatementBatch(conn)
    rows_of_buckets = batch.add(_counters, {}).rows
    now = {bucket: (counter, deletions) for bucket, counter, deletions in rows_of_buckets}
    moved = {bucket: new for bucket, new in now.items() if new[0] != state.counters.get(bucket)}
    if moved.pop(buckets.EPOCH, None) is not None:
        return FullReread("the database has a new epoch")
    if state.counters.keys() - now.keys() or any(
        new[0] < state.counters.get(bucket, 0) for bucket, new in moved.items()
    ):
        return FullReread(f"{ANOTHER_HISTORY}: change counters went back")
    state.whole = False
    if moved.pop(buckets.NAMES, None) is not None:
        names = rows.read_names(conn)
        if any(name in state.snapshot.by_class for name in state.names.classes.keys() - names.classes.keys()):
            return FullReread("a resource class that is in use was renamed", is_odd=False)
        state.names = names
        state.counters[buckets.NAMES] = now[buckets.NAMES][0]
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
        if count > 100 and count > _FULL_READ_SHARE * len(state.snapshot):
            return FullReread(f"{count} of {len(state.snapshot)} resource providers changed", is_odd=False)
        _apply(conn, state, changed)
        for bucket in moved:
            if state.fingerprint(bucket) != changed.fingerprints.get(bucket, _EMPTY):
                return FullReread(f"{ANOTHER_HISTORY}: what did not change is not what was read before")
    for bucket, (counter, deletions) in moved.items():
        state.counters[bucket] = counter
        state.deletions[bucket] = deletions
    state.snapshot.whole_trees()  # now, so that trees which do not fit together are found out here
    state.whole = True
    return None


def _apply(conn: sa.Connection, state: ModelState, changed: rows.ChangedBuckets) -> None:
    """Take up the changed providers; those of which only the usage changed with less reading."""
    used = rows.sum_up(changed.used, state.names)
    described, usage = [], []
    for row in changed.providers:
        known = state.snapshot.providers.get(row.id)
        if known is None or row.described_seq != known.described_seq or not _same(row, known):
            described.append(row)
        else:
            usage.append((row, known))
    for row, provider in rows.read_some(conn, described, state.names, state.shared):
        state.put(row, provider)
    for row, known in usage:
        new = used.get(row.id, rows.NOTHING)
        state.put(row, replace(known, generation=row.generation, updated_at=row.updated_at, used=new))


def _forget_deleted(conn: sa.Connection, state: ModelState, bucket: int) -> None:
    query = sa.select(resource_providers.c.id).where(resource_providers.c.bucket == bucket)
    state.keep_only(bucket, set(conn.execute(query).scalars()))


@contextmanager
def nothing_but_to_keep() -> Iterator[None]:
    """What is made here stays while the worker lives: no garbage is looked for in it, now or later."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _same(row: rows.ProviderVersion, known: Provider) -> bool:
    """Whether the provider is still called and placed as it was."""
    return (row.uuid, row.name, row.parent_id, row.root_id) == (
        known.uuid,
        known.name,
        known.parent_id,
        known.root_id,
    )
