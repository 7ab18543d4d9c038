"""A lock for migrations on MySQL and MariaDB.

The lock also works if several nodes of a cluster accept writes.

PostgreSQL and SQLite do not need it, because their locks end with the process that holds them. A lock of
MySQL's ``GET_LOCK`` exists on one node only, and so does a lock of a transaction. A row, however, is copied
to all nodes, and the cluster accepts only one of two simultaneous writes. So the lock is a row with the name
of its owner. While the owner runs, it increments a number in the row (the *beat*). A waiting process takes
over the lock if the beat has not changed for :data:`LEASE` seconds. So the lock does not depend on the clocks
of different machines. On the same server, a migration takes over the lock at once if the connection of the
owner is gone. The table of the lock exists while a process holds the lock.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from secrets import token_hex
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import errors
from placement.exceptions import Unavailable

LOG = logging.getLogger(__name__)
T = TypeVar("T")

LEASE: Final = 15.0
"""Seconds without a new beat after which another process takes over the lock."""
_BEAT: Final = 2.0
"""Seconds between two increments of the beat."""
_LOOK: Final = 0.2
"""Seconds between two checks of a lock that another process holds."""
_ATTEMPTS: Final = 10
"""Number of attempts for a statement that conflicts with another one."""
# a backup may be reading the table at that time
_WAIT: Final = 30
"""Seconds to wait for the metadata lock of the lock's table."""
_NO_SUCH_TABLE: Final = 1146

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

    :param source: a function that makes the connection which writes the row of the lock.
    :param conn: the connection of the migration, which executes statements only while the lock is held.
    :raises Unavailable: another process held the lock for ``timeout`` seconds, or took it over.
    """
    with source.execution_options(isolation_level="AUTOCOMMIT").connect() as own:
        own.exec_driver_sql(f"SET SESSION lock_wait_timeout = {_WAIT}")
        in_cluster = getattr(own.connection.driver_connection, "in_cluster", False)
        # the row names the connection of the migration: if its client dies, the connection exists until the
        # server has finished the current statement
        lock = _ProcessLock(
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


class _ProcessLock:
    """The lock for migrations of one process; two threads use its connection, one at a time."""

    def __init__(self, conn: sa.Connection, migrating: int, *, in_cluster: bool) -> None:
        self._conn = conn
        self._migrating = migrating
        self._in_cluster = in_cluster
        # this is a random part, because containers often have the same host name and process id
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
            # each check adds at most a second, because a process that was stopped has not watched the row
            # meanwhile
            stood_still += min(time.monotonic() - began, 1.0)

    def _read_row(self) -> _LockRow:
        """Return the row of the lock; make the row if it is missing."""
        self._conn.exec_driver_sql(_CREATION)
        self._conn.exec_driver_sql(_FREE_ROW)
        return _LockRow(*self._conn.execute(_LOOK_AT).one())

    def _is_gone(self, row: _LockRow) -> bool:
        """Return whether the owner's connection is gone; those of other cluster nodes are not visible."""
        if self._in_cluster:
            return False
        # the condition is False for connections of other users, because the process list shows them only to
        # privileged users
        values = {"user": row.user, "connection": row.connection}
        return bool(self._conn.execute(_GONE, values).scalar_one())

    def _take_row(self, row: _LockRow) -> bool:
        values = {
            "me": self._me,
            "connection": self._migrating,
            "owner": row.owner,
            "beat": row.beat,
        }
        # the lease counts from the time before the statement, because other processes may count the lease
        # from that moment
        self._confirmed = time.monotonic()
        return bool(self._retry_step(lambda: self._conn.execute(_TAKE, values).rowcount))

    def _retry_step(self, step: Callable[[], T]) -> T | None:
        """Run a step, and repeat it after conflicts; return its result, or None if the table is missing."""
        for attempt in range(_ATTEMPTS):
            try:
                return step()
            except exc.DBAPIError as error:
                if _is_no_table(error):
                    return None
                # a cluster reports a deadlock to the loser of two simultaneous writes, and the step may
                # succeed again
                if attempt == _ATTEMPTS - 1 or error.connection_invalidated or not errors.is_conflict(error):
                    raise
            time.sleep(_LOOK)
        raise AssertionError("not reached")

    def confirm_lock(self) -> None:
        """Raise Unavailable if this process has lost the lock; a check counts for 2 seconds."""
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
        """Increment the beat until the lock is released; :meth:`confirm_lock` notices a failure here."""
        while not self.ended.wait(_BEAT):
            with suppress(exc.SQLAlchemyError):
                self._count_up()

    def release(self) -> None:
        """Release the lock; if that fails, another process takes over the lock after the lease."""
        with suppress(exc.SQLAlchemyError):
            # only the owner removes the table, because another process may have taken over the lock
            if self._count_up():
                self._conn.exec_driver_sql(f"DROP TABLE {_NAME}")


def _is_no_table(error: exc.DBAPIError) -> bool:
    original: Any = error.orig
    return bool(original.args) and original.args[0] == _NO_SUCH_TABLE
