"""A lock for migrations on MySQL and MariaDB.

The lock also works if several nodes of a cluster accept writes.

PostgreSQL and SQLite do not need this lock, because their own locks end with the process that holds them. A
lock of MySQL's ``GET_LOCK`` exists only on one node, and so does a lock of a transaction. But a row is copied
to all nodes, and the cluster accepts only one of two simultaneous writes to it. So the lock is a row with the
name of its owner. While the owner runs, it increments a number in the row (the *beat*). If the beat has not
changed for :data:`LEASE` seconds, a waiting process takes over the lock. So the lock does not depend on the
clocks of different machines. If the owner was connected to the same server and its connection is gone, the
waiting process takes over the lock immediately. The table of the lock exists as long as a process holds the
lock.

Only :mod:`placement.db.migration` uses this module. The module is separate, because migrations need the lock
only on MySQL and MariaDB.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import errors
from placement.exceptions import Unavailable

LOG = logging.getLogger(__name__)
T = TypeVar("T")

LEASE: Final = 15.0
"""Seconds without an increment of the beat after which another process takes over the lock."""
_BEAT: Final = 2.0
"""Seconds between two increments of the beat."""
_LOOK: Final = 0.2
"""Seconds between two checks of a lock that another process holds."""
_ATTEMPTS: Final = 10
"""Maximum number of attempts for a statement that conflicts with another one."""
# the table is locked, for example, while a backup reads it
_WAIT: Final = 30
"""Maximum seconds to wait until statements can use the lock's table (MySQL's metadata lock)."""

_NAME: Final = "placement_migration_lock"
_CREATION: Final = (
    f"CREATE TABLE IF NOT EXISTS {_NAME} (id INT PRIMARY KEY, owner VARCHAR(255) NOT NULL,"
    " user VARCHAR(255) NOT NULL, connection BIGINT NOT NULL, beat BIGINT NOT NULL) ENGINE = InnoDB"
)
_FREE_ROW: Final = f"INSERT IGNORE INTO {_NAME} VALUES (1, '', '', 0, 0)"
_LOOK_AT: Final = sa.text(f"SELECT owner, user, connection, beat FROM {_NAME}")
_TAKE: Final = sa.text(
    f"UPDATE {_NAME} SET owner = :me, user = CURRENT_USER(), connection = :connection, beat = beat + 1"
    " WHERE owner = :owner AND beat = :beat"
)
_COUNT_UP: Final = sa.text(f"UPDATE {_NAME} SET beat = beat + 1 WHERE owner = :me")
_GONE: Final = sa.text(
    "SELECT CURRENT_USER() = :user AND NOT EXISTS"
    " (SELECT 1 FROM information_schema.processlist WHERE id = :connection)"
)


class _LockRow(NamedTuple):
    owner: str
    user: str
    connection: int
    beat: int


@contextmanager
def hold_lock(source: sa.Engine, conn: sa.Connection, timeout: float) -> Iterator[None]:
    """Hold the lock in this context, so that no other process migrates.

    :param source: the engine for a further connection, which writes the row of the lock.
    :param conn: the connection of the migration, which executes statements only while the lock is held.
    :raises Unavailable: another process held the lock for ``timeout`` seconds, or took it over.
    """
    with source.execution_options(isolation_level="AUTOCOMMIT").connect() as own:
        own.exec_driver_sql(f"SET SESSION lock_wait_timeout = {_WAIT}")
        in_cluster = getattr(own.connection.driver_connection, "in_cluster", False)
        # the row has the id of the migration's connection. If the migrating process dies, this connection
        # exists until the server has finished the current statement.
        lock = ProcessLock(
            own, conn.execute(sa.select(sa.func.connection_id())).scalar_one(), in_cluster=in_cluster
        )
        conn.rollback()
        lock.take_lock(timeout)

        def guard_statement(*event: object) -> None:
            lock.confirm_lock()

        sa.event.listen(conn, "before_cursor_execute", guard_statement)
        beating = threading.Thread(target=lock.keep_beating, name="migration lock", daemon=True)
        beating.start()
        try:
            yield
        finally:
            sa.event.remove(conn, "before_cursor_execute", guard_statement)
            lock.ended.set()
            beating.join()
            lock.release()


class ProcessLock:
    """The lock for migrations, as one process uses it. Two threads use its connection, one at a time."""

    def __init__(self, conn: sa.Connection, migrating: int, *, in_cluster: bool) -> None:
        self._conn = conn
        self._migrating = migrating
        self._in_cluster = in_cluster
        # the name has a random part, because containers often have equal host names and process ids
        self._me = f"{socket.gethostname()}:{os.getpid()}:{token_hex(8)}"
        self._using = threading.Lock()
        self._confirmed = 0.0
        self.ended = threading.Event()

    def take_lock(self, timeout: float) -> None:
        """Wait until this process holds the lock, or raise Unavailable after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        watched: _LockRow | None = None
        stood_still = 0.0
        while True:
            began = time.monotonic()
            row = self._retry_step(self._read_row)
            if row is not None:
                if row != watched:
                    watched, stood_still = row, 0.0
                free = not row.owner or stood_still > LEASE or self._is_gone(row)
                if free and self._take_row(row):
                    if row.owner:
                        LOG.warning(
                            "the migration by %s was interrupted; this migration takes over its lock",
                            row.owner,
                        )
                    return
            if time.monotonic() > deadline:
                owner = (watched and watched.owner) or "another process"
                raise Unavailable(
                    f"The migration of the database by {owner} has not ended within {timeout:g} seconds."
                )
            time.sleep(_LOOK)
            # each check adds at most one second. If this process was stopped for longer, it has not watched
            # the row meanwhile.
            stood_still += min(time.monotonic() - began, 1.0)

    def _read_row(self) -> _LockRow:
        """Return the row of the lock; create the row if it is missing."""
        self._conn.exec_driver_sql(_CREATION)
        self._conn.exec_driver_sql(_FREE_ROW)
        return _LockRow(*self._conn.execute(_LOOK_AT).one())

    def _is_gone(self, row: _LockRow) -> bool:
        """Return whether the owner's connection is gone. In a cluster this is unknown, so return False."""
        if self._in_cluster:
            return False
        # the condition requires the same user, because the process list shows connections of other users only
        # to privileged users
        values = {"user": row.user, "connection": row.connection}
        return bool(self._conn.execute(_GONE, values).scalar_one())

    def _take_row(self, row: _LockRow) -> bool:
        values = {
            "me": self._me,
            "connection": self._migrating,
            "owner": row.owner,
            "beat": row.beat,
        }
        # the time is read before the statement, because other processes can count the lease from the
        # statement on
        self._confirmed = time.monotonic()
        return bool(self._retry_step(lambda: self._conn.execute(_TAKE, values).rowcount))

    def _retry_step(self, step: Callable[[], T]) -> T | None:
        """Run a step, again after a conflict. Return its result, or None if the lock's table is missing."""
        for attempt in range(_ATTEMPTS):
            try:
                return step()
            except exc.DBAPIError as error:
                if errors.is_missing_table(error):
                    return None
                # of two simultaneous writes, a cluster refuses one with a deadlock error; this step can then
                # succeed in another attempt
                if attempt == _ATTEMPTS - 1 or error.connection_invalidated or not errors.is_conflict(error):
                    raise
            time.sleep(_LOOK)
        raise AssertionError("not reached")

    def confirm_lock(self) -> None:
        """Raise Unavailable if this process has lost the lock. A check is made at most every 2 seconds."""
        if time.monotonic() - self._confirmed > _BEAT and not self._count_up():
            raise Unavailable(
                "Another process took over this migration, because this one showed no sign of life"
                f" for {LEASE:g} seconds. Run the command again: it continues the migration."
            )

    def _count_up(self) -> bool:
        with self._using:
            began = time.monotonic()
            if not self._retry_step(lambda: self._conn.execute(_COUNT_UP, {"me": self._me}).rowcount):
                return False
            self._confirmed = began
            return True

    def keep_beating(self) -> None:
        """Increment the beat until the lock is released. If this fails, :meth:`confirm_lock` notices it."""
        while not self.ended.wait(_BEAT):
            with suppress(exc.SQLAlchemyError):
                self._count_up()

    def release(self) -> None:
        """Release the lock. If this fails, another process can take over the lock after the lease."""
        with suppress(exc.SQLAlchemyError):
            # the table is removed only if this process still owns the lock
            if self._count_up():
                self._conn.exec_driver_sql(f"DROP TABLE {_NAME}")
