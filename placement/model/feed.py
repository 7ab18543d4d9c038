"""Keeping a worker's :class:`~placement.model.world.World` equal to the database.

Before it answers, a worker asks for the sum of all change counters. Counters only
grow, so an equal sum means that nothing changed. Otherwise it finds the buckets
whose counters moved and reads the providers that were stamped since, all in one
snapshot of the database.
"""

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import sqlalchemy as sa

from placement.db import buckets
from placement.db.batch import Batch, Prepared
from placement.db.database import Database
from placement.db.tables import change_buckets, resource_providers
from placement.model import rows
from placement.model.world import Provider, World

LOG = logging.getLogger(__name__)

_counters: Final = Prepared(sa.select(change_buckets))

_FULL_READ_SHARE: Final = 0.5  # of all providers changed: reading everything is cheaper


@dataclass(frozen=True)
class View:
    """What a request may look at while it holds the model: providers and names."""

    world: World
    names: rows.Names


@dataclass
class _State:
    """A world and the point in the history of the database that it shows."""

    names: rows.Names
    world: World = field(default_factory=World)
    counters: dict[int, int] = field(default_factory=dict)
    deletions: dict[int, int] = field(default_factory=dict)
    members: dict[int, set[int]] = field(default_factory=dict)

    def counters_sum(self) -> int:
        return sum(self.counters.values())


class Model:
    """The read model of one worker process.

    Searches are pure Python, so threads of one process would wait for each other
    anyway: they do it here, on one lock, and each sees a world that stands still.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.RLock()
        self._state: _State | None = None
        self._sum = -1
        self._shared = rows.Shared()

    @contextmanager
    def fresh(self) -> Iterator[View]:
        """The model with every change that was committed before this call.

        :raises placement.exceptions.Unavailable: when the database does not answer.
        """
        with self._lock:
            self._refresh()
            assert self._state is not None
            yield View(self._state.world, self._state.names)

    def _refresh(self) -> None:
        if self._state is not None and self._database.counters_sum() == self._sum:
            return
        with self._database.read() as conn:
            try:
                state = self._follow(conn, self._state) if self._state is not None else None
            except Exception:  # whatever is wrong with the model, the database knows better
                LOG.exception("the read model could not follow the database and is read anew")
                state = None
            self._state = state or self._read_all(conn)
        self._sum = self._state.counters_sum()

    def _read_all(self, conn: sa.Connection) -> _State:
        self._shared = rows.Shared()
        state = _State(rows.read_names(conn))
        for bucket, counter, deletions in conn.execute(sa.select(change_buckets)):
            state.counters[bucket] = counter
            state.deletions[bucket] = deletions
        for bucket, provider in rows.read_all(conn, state.names, self._shared):
            state.world.put(provider)
            state.members.setdefault(bucket, set()).add(provider.id)
        state.world.whole_trees()
        # What was read stays for as long as the worker lives: garbage collections need not walk through it.
        gc.collect()
        gc.freeze()
        LOG.info("read model loaded: %d resource providers", len(state.world))
        return state

    def _follow(self, conn: sa.Connection, state: _State) -> _State | None:
        """Apply what changed; None when only reading everything anew can help."""
        batch = Batch(conn)
        rows_of_buckets = batch.add(_counters, {}).rows
        now = {bucket: (counter, deletions) for bucket, counter, deletions in rows_of_buckets}
        moved = {bucket: new for bucket, new in now.items() if new[0] != state.counters.get(bucket)}
        if any(new[0] < state.counters.get(bucket, 0) for bucket, new in moved.items()):
            LOG.warning("change counters went back: was the database restored from a copy?")
            return None
        if moved.pop(buckets.NAMES, None) is not None:
            names = rows.read_names(conn)
            if any(
                name in state.world.by_class for name in state.names.classes.keys() - names.classes.keys()
            ):
                LOG.info("a resource class that is in use was renamed")
                return None
            state.names = names
            state.counters[buckets.NAMES] = now[buckets.NAMES][0]
        for bucket, (_, deletions) in moved.items():
            if deletions != state.deletions[bucket]:
                self._forget_deleted(conn, state, bucket)
        if moved:
            seen = {bucket: state.counters[bucket] for bucket in moved}
            changed, used = rows.read_changed(batch, seen)
            if len(changed) > 100 and len(changed) > _FULL_READ_SHARE * len(state.world):
                return None
            self._apply(conn, state, changed, rows.sum_up(used, state.names))
        for bucket, (counter, deletions) in moved.items():
            state.counters[bucket] = counter
            state.deletions[bucket] = deletions
        state.world.whole_trees()  # now, so that trees which do not fit together are found out here
        return state

    def _apply(
        self,
        conn: sa.Connection,
        state: _State,
        changed: list[rows.Row],
        used: dict[int, dict[str, int]],
    ) -> None:
        """Take up the changed providers; those of which only the usage changed with less reading."""
        described, usage = [], []
        for row in changed:
            known = state.world.providers.get(row.id)
            if known is None or row.described_seq > state.counters[row.bucket] or not _same(row, known):
                described.append(row)
            else:
                usage.append((row, known))
        for bucket, provider in rows.read_some(conn, described, state.names, self._shared):
            state.world.put(provider)
            state.members.setdefault(bucket, set()).add(provider.id)
        for row, known in usage:
            new = used.get(row.id, rows.NOTHING)
            state.world.put(replace(known, generation=row.generation, updated_at=row.updated_at, used=new))

    def _forget_deleted(self, conn: sa.Connection, state: _State, bucket: int) -> None:
        query = sa.select(resource_providers.c.id).where(resource_providers.c.bucket == bucket)
        remaining = set(conn.execute(query).scalars())
        for number in state.members.get(bucket, set()) - remaining:
            state.world.remove(number)
        state.members[bucket] = state.members.get(bucket, set()) & remaining


def _same(row: rows.Row, known: Provider) -> bool:
    """Whether the provider is still called and placed as it was."""
    return (row.uuid, row.name, row.parent_id, row.root_id) == (
        known.uuid,
        known.name,
        known.parent_id,
        known.root_id,
    )
