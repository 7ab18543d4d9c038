"""Stored samples: an SQLite database that one agent writes while other processes read.

A sample is the use of one cache by one target. The store bounds age and size of the file. Failures of the
store are logged and counted, and never stop measurement.
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
from compute_agent.monitoring.readings import LOCAL, TOTAL, MonitorReading


@dataclass(frozen=True, slots=True)
class StoredSample:
    """The use of an L3 cache by a target at ``time`` (seconds since the epoch).

    A target without monitoring has one sample, without a ``cache_id``, if its CPU use is known.

    :ivar occupancy: bytes; None if unknown.
    :ivar local: bytes a second since the sample before; None if unknown. The same holds for ``total``.
    :ivar cpu: cores of the whole target, the same in the samples of all its caches.
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
    """The samples of a reading.

    :param before: the reading of the last stored samples.
    :param time: the time of ``now`` in seconds since the epoch.
    """
    # Rates are means over the whole time between samples, rather than the rate of the last second.
    last = {(use.target.key, use.begun): use.moved_bytes for use in before.targets} if before else {}
    seconds = now.time - before.time if before else 0.0
    for use in now.targets:
        target = use.target
        moved = last.get((target.key, use.begun), {})
        labels = (time, target.guest, target.name, target.qos_class)
        for cache, now_used in sorted(use.caches.items()):
            local, total = (
                (use.moved_bytes[cache, kind] - moved[cache, kind]) / seconds
                if rate is not None and (cache, kind) in moved and seconds > 0
                else None
                for kind, rate in ((LOCAL, now_used.local), (TOTAL, now_used.total))
            )
            yield StoredSample(*labels, cache, now_used.occupancy, local, total, target.cpu)
        if not use.caches and target.cpu is not None:
            yield StoredSample(*labels, cpu=target.cpu)


FILE: Final = "samples.db"
"""Name of the file in the state folder."""

VERSION: Final = 1
"""Version of the tables, stored as ``user_version``."""

# A column of a primary key cannot be NULL in a table without row ids.
NO_CACHE: Final = -1
"""The cache id of samples without a cache."""

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

# Stored in the order of its primary key: readers want one target's samples from a time on.
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
    """An engine that makes the file if it is missing, and waits ``lock_seconds`` for locks of others."""
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=str(path)), connect_args={"timeout": lock_seconds}
    )

    @sa.event.listens_for(engine, "connect")
    def _set_pragmas(connection: sqlite3.Connection, record: object) -> None:
        # A power cut may cost the last samples, never the file, and a commit does not wait for the disk.
        connection.execute("PRAGMA synchronous = NORMAL")
        # A reader that stays open lets the log grow; afterwards it is cut to 4 MiB.
        connection.execute("PRAGMA journal_size_limit = 4194304")

    return engine


def engine_to_read(path: Path) -> sa.Engine:
    """An engine that changes nothing.

    Without a log beside the file, the file is opened as immutable, which needs no write permission.
    """
    alone = not path.with_name(f"{path.name}-wal").exists()
    where = f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if alone else ''}"
    return sa.create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(where, uri=True, timeout=5), poolclass=sa.NullPool
    )


LOG = logging.getLogger(__name__)

LOCK_SECONDS: Final = 0.5
"""Seconds for which a write waits for a lock of another process. Then the next flush tries again."""

# Bounds the memory of the agent while the disk is full.
MAX_PENDING: Final = 100_000
"""Maximum number of samples in memory while the file cannot be written. The oldest are dropped."""

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

_THINNING: Final = 10
"""The number of parts of the stored time. The oldest part is dropped when the file is too large."""


class OtherContentError(Exception):
    """The file is another database, or has another version."""


class SampleStore:
    """The samples of a state folder. Only one thread may use it."""

    def __init__(self, path: Path, retention: float, max_bytes: int) -> None:
        """Make a store without opening the file. ``retention`` is in seconds."""
        self.path = path
        self.retention = retention
        self.max_bytes = max_bytes
        self.failures = 0
        """The number of failed writes since the start."""
        self._pending: deque[StoredSample] = deque(maxlen=MAX_PENDING)
        self._engine: sa.Engine | None = None
        self._targets: dict[tuple[str, str, str], int] = {}
        self._trouble = ""

    def add(self, samples: Iterable[StoredSample]) -> None:
        """Add samples to the next flush."""
        self._pending.extend(samples)

    def flush(self, time: float) -> None:
        """Write pending samples in one transaction, and drop old ones.

        Samples that cannot be written stay pending. A damaged or foreign file is put aside.

        :param time: seconds since the epoch.
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
        """Close the file. The next flush opens it again."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None
            self._targets.clear()

    def _write(self, time: float) -> None:
        if self._engine is None:
            check_own(self.path)
            self._engine = engine_to_write(self.path, LOCK_SECONDS)
            _prepare_file(self._engine)
        with self._engine.begin() as connection:
            rows = list(self._rows(connection, self._pending))
            # A clock that was set back gives a time twice: the later sample counts.
            connection.execute(insert(SAMPLES).prefix_with("OR REPLACE"), rows)
            if _forget_before(connection, time - self.retention):
                self._targets.clear()
        # In transactions of their own, so that readers see the new samples in any case.
        while _bytes_used(self._engine) > self.max_bytes:
            with self._engine.begin() as connection:
                _thin_out(connection)
            self._targets.clear()
        with self._engine.begin() as connection:
            # Returns free pages to the file system; a full VACUUM would copy the file.
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
        """Rename a damaged or foreign file, so that it can be examined. Returns whether it was one."""
        # The low byte of an extended code is the primary one (sqlite.org/rescode.html).
        code = getattr(getattr(error, "orig", None), "sqlite_errorcode", 0) & 0xFF
        if code not in _DAMAGED and not isinstance(error, OtherContentError):
            return False
        self.close()
        aside = self.path.with_name(f"{self.path.name}.unusable")
        os.replace(self.path, aside)
        # The log belongs to the old file; with the new one SQLite would apply it there.
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{self.path}-wal", f"{aside}-wal")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.path}-shm")
        reason = getattr(error, "orig", error)
        LOG.warning("A new file of samples is started; the old one is now %s: %s", aside, reason)
        return True


def _prepare_file(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        version = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
        tables = sa.inspect(connection).get_table_names()
        if version == 0 and not tables:
            # Before the first table, or it would have no effect.
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
    """Drop old samples, and targets without any left. Returns whether targets were dropped."""
    # With the targets' ids in the condition, the primary key finds the old samples without a scan.
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
        raise OtherContentError("it is too large although it has no samples")
    _forget_before(connection, first + max((last - first) / _THINNING, 1.0))


def _bytes_used(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        size, pages, free = (
            int(connection.exec_driver_sql(f"PRAGMA {name}").scalar_one())
            for name in ("page_size", "page_count", "freelist_count")
        )
    return size * (pages - free)
