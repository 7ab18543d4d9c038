"""Writes samples, keeps them as long and as many as wanted, and never lets its troubles out."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from compute_agent.files import check_own
from compute_agent.monitoring.samples import StoredSample
from compute_agent.monitoring.tables import (
    METADATA,
    NO_CACHE,
    SAMPLES,
    TARGETS,
    VERSION,
    engine_to_write,
)

LOG = logging.getLogger(__name__)

LOCK_SECONDS: Final = 0.5
"""How long a write waits for somebody who has locked the file; then it is tried again with the next."""

MAX_PENDING: Final = 100_000
"""Samples that are kept in memory while the file cannot be written; then the oldest are dropped."""

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_THINNING: Final = 10
"""Parts of the time that is kept, of which the oldest goes when samples take too much room."""


class OtherContentError(Exception):
    """The file is a database of something else, or of another version."""


class SampleStore:
    """The samples of a state folder. To be used by one thread."""

    def __init__(self, path: Path, retention: float, max_bytes: int) -> None:
        """``retention`` is in seconds. Nothing is opened before the first write."""
        self.path = path
        self.retention = retention
        self.max_bytes = max_bytes
        self.failures = 0
        """Writes that failed since the start."""
        self._pending: deque[StoredSample] = deque(maxlen=MAX_PENDING)
        self._engine: sa.Engine | None = None
        self._targets: dict[tuple[str, str, str], int] = {}
        self._trouble = ""

    def add(self, samples: Iterable[StoredSample]) -> None:
        """Have samples written with the next flush()."""
        self._pending.extend(samples)

    def flush(self, time: float) -> None:
        """Write what is pending, in one transaction, and drop what is too old.

        ``time`` is in seconds since the epoch.

        What cannot be written stays pending. A file that is damaged, or is something else, is put aside.
        """
        if not self._pending:
            return
        try:
            try:
                self._write(time)
            except (sa.exc.DatabaseError, OtherContentError) as error:
                if not self._put_aside(error):
                    raise
                self._write(time)
        except (sa.exc.SQLAlchemyError, OtherContentError, OSError) as error:
            self.failures += 1
            self.close()
            trouble = str(getattr(error, "orig", error))
            if trouble != self._trouble:
                LOG.warning("Samples cannot be written to %s for now: %s", self.path, trouble)
            self._trouble = trouble
        else:
            self._pending.clear()
            if self._trouble:
                LOG.info("Samples are written to %s again", self.path)
            self._trouble = ""

    def close(self) -> None:
        """Let go of the file."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None
            self._targets.clear()

    def _write(self, time: float) -> None:
        if self._engine is None:
            check_own(self.path)
            self._engine = engine_to_write(self.path, LOCK_SECONDS)
            _prepare(self._engine)
        with self._engine.begin() as connection:
            rows = list(self._rows(connection, self._pending))
            connection.execute(insert(SAMPLES).prefix_with("OR REPLACE"), rows)
            if _forget_before(connection, time - self.retention):
                self._targets.clear()
        while _bytes_used(self._engine) > self.max_bytes:
            with self._engine.begin() as connection:
                _thin_out(connection)
            self._targets.clear()
        with self._engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA incremental_vacuum")

    def _rows(
        self, connection: sa.Connection, samples: Iterable[StoredSample]
    ) -> Iterator[dict[str, object]]:
        for sample in samples:
            key = (sample.guest, sample.name, sample.qos_class)
            if key not in self._targets:
                self._targets[key] = _target_id(connection, *key)
            yield {
                "target_id": self._targets[key],
                "time": sample.time,
                "cache_id": NO_CACHE if sample.cache_id is None else sample.cache_id,
                "occupancy": sample.occupancy,
                "local": sample.local,
                "total": sample.total,
                "cpu": sample.cpu,
            }

    def _put_aside(self, error: Exception) -> bool:
        """Rename a file that is of no use, so that it can be looked at. False if it is not that."""
        code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0) & 0xFF
        if code not in _DAMAGED and not isinstance(error, OtherContentError):
            return False
        self.close()
        aside = self.path.with_name(f"{self.path.name}.unusable")
        os.replace(self.path, aside)
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{self.path}-wal", f"{aside}-wal")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.path}-shm")
        reason = getattr(error, "orig", error)
        LOG.warning("Samples begin anew; the old file is %s now: %s", aside, reason)
        return True


def _prepare(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        tables = sa.inspect(connection).get_table_names()
        if version == 0 and not tables:
            connection.exec_driver_sql("PRAGMA auto_vacuum = INCREMENTAL")
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
            METADATA.create_all(connection)
            connection.exec_driver_sql(f"PRAGMA user_version = {VERSION}")
        elif version != VERSION or not set(METADATA.tables) <= set(tables):
            raise OtherContentError(f"it has version {version} and the tables {', '.join(tables) or 'none'}")


def _target_id(connection: sa.Connection, guest: str, name: str, qos_class: str) -> int:
    values = {"guest": guest, "name": name, "qos_class": qos_class}
    connection.execute(insert(TARGETS).values(values).on_conflict_do_nothing())
    columns = TARGETS.c
    found = connection.execute(
        sa.select(columns.id).where(
            columns.guest == guest, columns.name == name, columns.qos_class == qos_class
        )
    )
    return int(found.scalar_one())


def _forget_before(connection: sa.Connection, time: float) -> bool:
    """Drop old samples, and targets that have no others. True if targets were dropped."""
    # Target by target, as the samples are in this order: nothing else has to be looked at.
    of_targets = SAMPLES.c.target_id.in_(sa.select(TARGETS.c.id))
    connection.execute(sa.delete(SAMPLES).where(of_targets, SAMPLES.c.time < time))
    gone = connection.execute(
        sa.delete(TARGETS).where(~sa.exists().where(SAMPLES.c.target_id == TARGETS.c.id))
    )
    return gone.rowcount > 0


def _thin_out(connection: sa.Connection) -> None:
    """Drop the oldest part of the samples."""
    of_target = SAMPLES.c.target_id == TARGETS.c.id
    first, last = (
        connection.execute(
            sa.select(of(sa.select(of(SAMPLES.c.time)).where(of_target).scalar_subquery()))
        ).scalar()
        for of in (sa.func.min, sa.func.max)
    )
    if first is None or last is None:
        raise OtherContentError("it is too large without a sample in it")
    _forget_before(connection, first + max((last - first) / _THINNING, 1.0))


def _bytes_used(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        size, pages, free = (
            int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
            for name in ("page_size", "page_count", "freelist_count")
        )
    return size * (pages - free)
