"""What is kept of readings: a sample for each target and cache.

The file of samples: an SQLite database that one agent writes while anybody reads.

Writes samples, keeps them as long and as many as wanted, and never lets its troubles out.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from compute_agent.files import check_own
from compute_agent.monitoring.reading import LOCAL, TOTAL, MonitorReading


@dataclass(frozen=True, slots=True)
class StoredSample:
    """A target on an L3 cache at ``time`` (seconds since the epoch).

    Occupancy is in bytes, bandwidths are in bytes a second since the sample before; None where it is not
    known. ``cpu`` is in cores, over the whole target, and the same in the samples of all its caches. Of a
    target that is not monitored there is one sample, without a ``cache_id``, if its use of CPU is known.
    """

    time: float
    guest: str
    name: str
    qos_class: str
    cache_id: int | None = None
    occupancy: int | None = None
    local: float | None = None
    total: float | None = None
    cpu: float | None = None


def to_samples(before: MonitorReading | None, now: MonitorReading, time: float) -> Iterator[StoredSample]:
    """The samples of a reading that was taken at ``time``; ``before`` is the one that was kept last."""
    last = {(use.target.key, use.begun): use.moved for use in before.targets} if before else {}
    seconds = now.time - before.time if before else 0.0
    for use in now.targets:
        target = use.target
        moved = last.get((target.key, use.begun), {})
        labels = (time, target.guest, target.name, target.qos_class)
        for cache, now_used in sorted(use.caches.items()):
            local, total = (
                (use.moved[cache, kind] - moved[cache, kind]) / seconds
                if rate is not None and (cache, kind) in moved and seconds > 0
                else None
                for kind, rate in ((LOCAL, now_used.local), (TOTAL, now_used.total))
            )
            yield StoredSample(*labels, cache, now_used.occupancy, local, total, target.cpu)
        if not use.caches and target.cpu is not None:
            yield StoredSample(*labels, cpu=target.cpu)


FILE: Final = "samples.db"
"""Its name in the state folder."""

VERSION: Final = 1
"""Of the tables, as ``user_version``."""

NO_CACHE: Final = -1
"""The cache id of samples that are of no cache."""

METADATA: Final = sa.MetaData()

TARGETS: Final = sa.Table(
    "targets",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("guest", sa.String, nullable=False),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("class", sa.String, nullable=False, key="qos_class"),
    sa.UniqueConstraint("guest", "name", "qos_class"),
)

# In the order of its primary key: what is read is one target's, from a time on.
SAMPLES: Final = sa.Table(
    "samples",
    METADATA,
    sa.Column("target_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Float, primary_key=True),
    sa.Column("cache_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("occupancy", sa.Integer),
    sa.Column("local", sa.Float),
    sa.Column("total", sa.Float),
    sa.Column("cpu", sa.Float),
    sqlite_with_rowid=False,
)


def engine_to_write(path: Path, lock_seconds: float) -> sa.Engine:
    """An engine that waits ``lock_seconds`` for others, and makes the file if there is none."""
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": lock_seconds}
    )

    @sa.event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, record: object) -> None:
        # A power cut may cost the last samples, never the file; and the disk is not waited for at each write.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA journal_size_limit = 4194304")

    return engine


def engine_to_read(path: Path) -> sa.Engine:
    """An engine that changes nothing.

    Without a writer there is no log beside the file, and whoever may not make one reads the file alone.
    """
    alone = not path.with_name(f"{path.name}-wal").exists()
    where = f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if alone else ''}"
    return sa.create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(where, uri=True, timeout=5), poolclass=sa.NullPool
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
