"""Stored samples: an SQLite database that the agent writes and other processes can read at the same time.

A sample is the use of one L3 cache by one target, a guest or a class. The store limits the age of samples and
the size of the file. Failures of the store are logged and counted, and never stop the measurement.
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
from typing import Any, Final
from urllib.parse import quote

from compute_agent.files import check_own
from compute_agent.monitoring.readings import LOCAL, TOTAL, MonitorReading, rates_of_targets


@dataclass(frozen=True, slots=True)
class StoredSample:
    """The use of an L3 cache by a guest, or by a class (empty ``guest``).

    A target without monitoring has a single sample without ``cache_id``, if its CPU use is known.

    :ivar time: the time of the sample in seconds since the epoch.
    :ivar occupancy: occupancy of the cache in bytes; None if unknown.
    :ivar local: bandwidth to memory of the cache's own NUMA node, in bytes a second since the previous
        sample; None if unknown.
    :ivar total: bandwidth to all memory, in bytes a second since the previous sample; None if unknown.
    :ivar cpu: CPU use of the whole target in cores, equal in the samples of all its caches; None if unknown.
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
    """Compute the samples to store from the reading ``now``.

    :param before: the reading from which the last samples were stored; None means that no samples were stored
        before.
    :param time: the time at which the reading ``now`` was taken, in seconds since the epoch.
    """
    # Rates are means over the whole time since the last samples, and not the rates of the last round.
    rates = rates_of_targets(before, now)
    for use in now.targets:
        target = use.target
        known = rates.get(target.key, {})
        labels = (time, target.guest, target.name, target.qos_class)
        caches = use.caches
        for cache, now_used in sorted(caches.items()):
            local, total = (
                None if rate is None else known.get((cache, kind))
                for kind, rate in ((LOCAL, now_used.local), (TOTAL, now_used.total))
            )
            yield StoredSample(*labels, cache, now_used.occupancy, local, total, target.cpu)
        if not caches and target.cpu is not None:
            yield StoredSample(*labels, cpu=target.cpu)


FILE: Final = "samples.db"
"""Name of the database file in the agent's state folder."""

VERSION: Final = 1
"""Version of the tables, stored as ``user_version`` in the database."""

# The value is not NULL, because a table without row ids allows no NULL in its primary key.
NO_CACHE: Final = -1
"""The cache id that samples without a cache have in the database."""

# The tables have no row ids, so that rows are stored in the order of the primary key. A reader needs the
# samples of one target since a given time.
_TABLES: Final = {
    "targets": """
CREATE TABLE targets (
    id INTEGER PRIMARY KEY,
    guest VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    class VARCHAR NOT NULL,
    UNIQUE (guest, name, class)
)""",
    "samples": """
CREATE TABLE samples (
    target_id INTEGER NOT NULL,
    time FLOAT NOT NULL,
    cache_id INTEGER NOT NULL,
    occupancy INTEGER,
    local FLOAT,
    total FLOAT,
    cpu FLOAT,
    PRIMARY KEY (target_id, time, cache_id)
) WITHOUT ROWID""",
}
"""The statements that create the tables, by the name of the table."""


def connect_to_write(path: Path, lock_seconds: float) -> sqlite3.Connection:
    """Open or create the file without transactions; writes wait ``lock_seconds`` for other processes."""
    # The module of the standard library is used, because SQLAlchemy would take 18 MB in each agent.
    connection = sqlite3.connect(path, timeout=lock_seconds, isolation_level=None, check_same_thread=False)
    # A commit does not wait for the disk. After a power cut, the last samples are perhaps lost, but the file
    # is not damaged.
    connection.execute("PRAGMA synchronous = NORMAL")
    # The log grows while a reader has an open transaction, and is cut to 4 MiB afterwards.
    connection.execute("PRAGMA journal_size_limit = 4194304")
    return connection


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open the file to read.

    A file without a write-ahead log is opened as immutable, because this needs no right to write.
    """
    alone = not path.with_name(f"{path.name}-wal").exists()
    where = f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if alone else ''}"
    return sqlite3.connect(where, uri=True, timeout=5)


LOG = logging.getLogger(__name__)

LOCK_SECONDS: Final = 0.5
"""Seconds for which a write waits for a lock of another process; afterwards the next flush tries again."""

# The maximum limits the memory of the agent while the disk is full.
MAX_PENDING: Final = 100_000
"""Maximum number of samples in memory while the file cannot be written; the oldest ones are dropped."""

_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""Error codes of SQLite for a file that is damaged or no database."""

_THINNING: Final = 10
"""Number of parts into which the stored time is divided. If the file is too large, the samples of the oldest
part are deleted.
"""


class OtherContentError(Exception):
    """The file has the database of another program, or another version of the tables."""


class SampleStore:
    """Writes samples to the database file. Only one thread may use this object."""

    def __init__(self, path: Path, retention: float, max_bytes: int) -> None:
        """Set the limits; flush() opens the file.

        :param retention: the age in seconds at which samples are deleted.
        :param max_bytes: the maximum size of the database file in bytes.
        """
        self.path = path
        self.retention = retention
        self.max_bytes = max_bytes
        self.failures = 0
        """The number of failed writes since the start of the agent."""
        self._pending: deque[StoredSample] = deque(maxlen=MAX_PENDING)
        self._connection: sqlite3.Connection | None = None
        self._targets: dict[tuple[str, str, str], int] = {}
        self._trouble = ""

    def add(self, samples: Iterable[StoredSample]) -> None:
        """Queue samples for the next flush()."""
        self._pending.extend(samples)

    def flush(self, time: float) -> None:
        """Write queued samples in one transaction, and delete samples that are too old.

        Samples that cannot be written stay in the queue. A damaged or foreign file is renamed and replaced by
        a new file.

        :param time: the present time in seconds since the epoch.
        """
        if not self._pending:
            return
        try:
            try:
                self._write(time)
            except (sqlite3.DatabaseError, OtherContentError) as error:
                if not self._put_aside(error):
                    raise
                self._write(time)
        except (sqlite3.Error, OtherContentError, OSError) as error:
            self.failures += 1
            self.close()
            trouble = str(error)
            if trouble != self._trouble:
                LOG.warning("Samples cannot be written to %s for now: %s", self.path, trouble)
            self._trouble = trouble
        else:
            self._pending.clear()
            if self._trouble:
                LOG.info("Samples are written to %s again", self.path)
            self._trouble = ""

    def close(self) -> None:
        """Close the file; the next flush() opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._targets.clear()

    def _write(self, time: float) -> None:
        if self._connection is None:
            check_own(self.path)
            self._connection = connect_to_write(self.path, LOCK_SECONDS)
            _prepare_file(self._connection)
        connection = self._connection
        with _write_transaction(connection):
            rows = list(self._rows(connection, self._pending))
            # OR REPLACE is needed, because two samples can have the same time after the clock was set back.
            # The later sample counts.
            connection.executemany("INSERT OR REPLACE INTO samples VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            if _forget_before(connection, time - self.retention):
                self._targets.clear()
        # Old samples are deleted in transactions of their own, so that the new samples are stored even if a
        # deletion fails.
        while _bytes_used(connection) > self.max_bytes:
            with _write_transaction(connection):
                _thin_out(connection)
            self._targets.clear()
        # The statement returns free pages to the file system. A full VACUUM would copy the whole file. Each
        # step of the statement frees one page, so that all its rows are read.
        connection.execute("PRAGMA incremental_vacuum").fetchall()

    def _rows(
        self, connection: sqlite3.Connection, samples: Iterable[StoredSample]
    ) -> Iterator[tuple[float | None, ...]]:
        for sample in samples:
            key = (sample.guest, sample.name, sample.qos_class)
            if key not in self._targets:
                self._targets[key] = _target_id(connection, *key)
            yield (
                self._targets[key],
                sample.time,
                NO_CACHE if sample.cache_id is None else sample.cache_id,
                sample.occupancy,
                sample.local,
                sample.total,
                sample.cpu,
            )

    def _put_aside(self, error: Exception) -> bool:
        """Rename a damaged or foreign file, so that it can be examined; return whether it was renamed."""
        # The low byte of an extended result code is the primary code (sqlite.org/rescode.html).
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code not in _DAMAGED and not isinstance(error, OtherContentError):
            return False
        self.close()
        aside = self.path.with_name(f"{self.path.name}.unusable")
        os.replace(self.path, aside)
        # The write-ahead log moves, too: SQLite would otherwise apply it to the new file.
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{self.path}-wal", f"{aside}-wal")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.path}-shm")
        LOG.warning(
            "The file of samples cannot be used. The agent has renamed it to %s, and starts a new file: %s",
            aside,
            error,
        )
        return True


@contextlib.contextmanager
def _write_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit the statements of the ``with`` block, or undo them after an exception."""
    # IMMEDIATE makes this statement wait for a lock of another process, before anything is written that could
    # be lost.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        # SQLite ends the transaction by itself after some errors, such as a full disk.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _one_number(connection: sqlite3.Connection, query: str) -> Any:
    """The first column of the query's first row."""
    return connection.execute(query).fetchone()[0]


def _prepare_file(connection: sqlite3.Connection) -> None:
    version = _one_number(connection, "PRAGMA user_version")
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    if version == 0 and not tables:
        # The pragma comes before the first table and outside of a transaction, because it has no effect
        # otherwise.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        with _write_transaction(connection):
            for statement in _TABLES.values():
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {VERSION}")
    elif version != VERSION or not set(_TABLES) <= set(tables):
        raise OtherContentError(f"it has version {version} and the tables {', '.join(tables) or 'none'}")


def _target_id(connection: sqlite3.Connection, guest: str, name: str, qos_class: str) -> int:
    key = (guest, name, qos_class)
    connection.execute("INSERT OR IGNORE INTO targets (guest, name, class) VALUES (?, ?, ?)", key)
    query = "SELECT id FROM targets WHERE guest = ? AND name = ? AND class = ?"
    return int(connection.execute(query, key).fetchone()[0])


def _forget_before(connection: sqlite3.Connection, time: float) -> bool:
    """Delete samples before ``time``, and targets without samples; return whether targets were deleted."""
    # With the ids of targets in the condition, SQLite finds old samples by the primary key, without a scan.
    connection.execute(
        "DELETE FROM samples WHERE target_id IN (SELECT id FROM targets) AND time < ?", (time,)
    )
    gone = connection.execute(
        "DELETE FROM targets WHERE NOT EXISTS (SELECT 1 FROM samples WHERE target_id = targets.id)"
    )
    return gone.rowcount > 0


def _thin_out(connection: sqlite3.Connection) -> None:
    """Delete the samples of the oldest tenth of the time for which samples are stored.

    :raises OtherContentError: the file has no samples.
    """
    # The ends are read by target, so that SQLite finds each end by the primary key.
    first, last = (
        _one_number(
            connection,
            f"SELECT {end}((SELECT {end}(time) FROM samples WHERE target_id = targets.id)) FROM targets",
        )
        for end in ("min", "max")
    )
    if first is None or last is None:
        raise OtherContentError("it is too large although it has no samples")
    _forget_before(connection, first + max((last - first) / _THINNING, 1.0))


def _bytes_used(connection: sqlite3.Connection) -> int:
    size, pages, free = (
        int(_one_number(connection, f"PRAGMA {name}"))
        for name in ("page_size", "page_count", "freelist_count")
    )
    return size * (pages - free)
