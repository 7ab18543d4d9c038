"""The version of a database: the sum of its change counters, and the history of these counters.

A history is the sequence of all changes since the database was created or restored. A restored backup begins
another history, which can have equal counters by chance. So the query for the counters also reads the
identity of the server:

- for PostgreSQL, the system identifier, the timeline, and the id of the table of counters. Each promotion
  changes the timeline, and a restored dump has another id of the table;
- for a Galera node, the id of the cluster; for any other MariaDB or MySQL server, the id of the server;
- for SQLite, the device and inode of the file.

The same query reads the server's clock, by which reservations expire. The service reads the version before
every answer, in the fastest way that the driver allows.
"""

import logging
import os
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from placement.db import clock, errors
from placement.db.errors import WrongServer
from placement.db.tables import change_buckets

HISTORY: Final = "placement.history"
"""The key under which the pool stores the history of a connection."""

_SUM: Final = sa.select(sa.func.sum(change_buckets.c.counter))

_OF_POSTGRESQL: Final = """
SELECT ({sum}), pg_is_in_recovery(), (SELECT system_identifier FROM pg_control_system()),
  CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) END,
  to_regclass('change_buckets')::oid, {clock}
"""
"""The query for PostgreSQL. Its row has the sum of the counters, whether the server is a standby, the system
identifier, the timeline, the id of the table, and the time. All users are allowed to read these values by
default. Only a primary server has a timeline here.
"""
#: the query without the identity of the server. Some servers, such as hosted ones, do not permit the
#: functions that show this identity.
_OF_POSTGRESQL_AT_LEAST: Final = (
    "SELECT ({sum}), pg_is_in_recovery(), to_regclass('change_buckets')::oid, {clock}"
)
#: SQLSTATEs of errors about functions that the user is not allowed to call, or that the server does not have
_UNTOLD: Final = {"42501", "0A000", "42883"}
# the identity of a MySQL server does not change during a connection, so mysql.py reads it once
_OF_MYSQL: Final = "SELECT ({sum}), @@global.read_only, {clock}"
_OF_SQLITE: Final = "SELECT ({sum}), {clock}"


@dataclass(frozen=True, slots=True)
class DatabaseVersion:
    """The sum of all change counters, and the id of their history.

    If two versions are equal, nothing has changed between them. ``clock`` is the time of the database when
    the version was read, in seconds since 1970 (UTC).
    """

    total: int
    history: str
    clock: float = field(compare=False)


def question_for(dialect: sa.Dialect, *, least: bool = False) -> str:
    """Return the statement that reads the version. Its row is an argument of :func:`of_row`.

    :param least: whether the statement leaves out the identity of the server (see :func:`is_untold`).
    """
    parts = {"sum": _SUM.compile(dialect=dialect), "clock": clock.ServerNow().compile(dialect=dialect)}
    if least and dialect.name == "postgresql":
        return _OF_POSTGRESQL_AT_LEAST.format(**parts)
    of_kind = {"postgresql": _OF_POSTGRESQL, "mysql": _OF_MYSQL, "mariadb": _OF_MYSQL}
    return of_kind.get(dialect.name, _OF_SQLITE).format(**parts)


def is_untold(error: BaseException) -> bool:
    """Return whether an error of the driver possibly means that the server does not show its identity."""
    return getattr(error, "sqlstate", None) in _UNTOLD


def of_row(dialect: sa.Dialect, row: Sequence[Any], noted: str) -> DatabaseVersion:
    """Return the version from the row that a server has returned.

    :param noted: the history that was stored with the connection, for servers other than PostgreSQL.
    :raises WrongServer: the server does not accept writes.
    """
    total, others, time = int(row[0] or 0), [_text(value) for value in row[1:-1]], float(row[-1])
    if dialect.name == "postgresql":
        standby, *history = others
        # the value is "t" if libpq has returned it as text, and "True" if a driver has returned a Python
        # value
        if standby in ("t", "True"):
            raise WrongServer("the server is a standby")
        return DatabaseVersion(total, "/".join(history), time)
    # MySQL returns a number, and some releases of MariaDB return a word. Only 0 and OFF mean that the server
    # accepts writes.
    if others and others[0] not in ("0", "OFF"):
        raise WrongServer("the server is read-only")
    return DatabaseVersion(total, noted, time)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else "" if value is None else str(value)


def of_file(path: str | None) -> str:
    """Return the identity of the file with this name; empty if the file does not exist."""
    try:
        found = os.stat(path or "")
    except OSError:
        return ""
    return f"{found.st_dev}/{found.st_ino}"


def is_same_file(path: str | None, noted: str) -> bool:
    """Return whether the file with this name is still the file of a connection.

    :param noted: the identity of the file at the time of the connection.
    :raises sqlite3.OperationalError: no file has this name any more, so a new connection would create an
        empty file.
    """
    present = of_file(path)
    if noted and not present:
        raise sqlite3.OperationalError(f"the file of the database is gone: {path}")
    return present == noted


LOG = logging.getLogger(__name__)


class _KeptConnection(NamedTuple):
    """The connection of a thread, the history of its database, and the number of calls of ``give_up``."""

    connection: Any
    history: str
    round: int


class ChangeProbe:
    """Reads the version of the database. For this, each thread keeps a connection in autocommit mode."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._dialect = engine.dialect
        self._is_file, self._path = engine.dialect.name == "sqlite", engine.url.database
        self._question = question_for(engine.dialect)
        # this query precedes every answer, so libpq is called directly if possible: a direct call takes 0.09
        # ms, and a cursor takes 0.13 ms
        self._ask = self._ask_directly if engine.dialect.driver == "psycopg" else self._ask_by_cursor
        # each thread has its own connection, so that no answer has to wait for a connection of a pool
        self._local = threading.local()
        self._round = 0

    def position(self) -> DatabaseVersion:
        """Return the version, which differs after each change of the database's content.

        If the connection was lost since the last call, a new connection is made.

        :raises placement.db.errors.WrongServer: the server is a standby, or read-only.
        :raises sqlalchemy.exc.SQLAlchemyError: the database does not answer, or refuses the question.
        """
        try:
            try:
                return self._ask_kept()
            except self._dialect.loaded_dbapi.Error as error:
                least = question_for(self._dialect, least=True)
                if self._question == least or not is_untold(error):
                    raise
                # hosted servers sometimes forbid the functions for the identity of the server, so the query
                # is tried without it; the other values are sufficient
                answer = self._asked_for(least)
                LOG.warning(
                    "the service cannot read the identity of the database server, so it detects a change to"
                    " another server only by the change counters: %s",
                    error,
                )
                return answer
        except self._dialect.loaded_dbapi.Error as error:
            raise errors.of_driver(self._dialect, error, None) from error

    def _asked_for(self, question: str) -> DatabaseVersion:
        """Try another query for the version, and return its answer; if it succeeds, use it from now on."""
        before, self._question = self._question, question
        try:
            return self._ask_kept()
        except BaseException:
            self._question = before
            raise

    def give_up(self) -> None:
        """Make every thread open a new connection before its next query."""
        # a thread cannot close connections of other threads. So this thread changes a number, which each
        # thread compares with the number of its connection.
        self._round += 1

    def _ask_kept(self) -> DatabaseVersion:
        kept: _KeptConnection | None = getattr(self._local, "kept", None)
        if kept is not None:
            answer = None
            if kept.round == self._round:
                # after an error, a new connection is tried: perhaps the kept connection is lost, or its
                # server has become a standby
                with suppress(self._dialect.loaded_dbapi.Error, errors.WrongServer):
                    answer = self._ask(kept)
            # the connection is checked after the answer, because the server or the file is perhaps replaced
            # during the query
            if self._is_current(kept) and answer is not None:
                return answer
            self._local.kept = None
            kept.connection.invalidate()
        connection = self._engine.raw_connection()
        kept = _KeptConnection(connection, connection.info[HISTORY], self._round)
        try:
            answer = self._ask(kept)
        except BaseException:
            kept.connection.invalidate()
            raise
        self._local.kept = kept
        return answer

    def _is_current(self, kept: _KeptConnection) -> bool:
        """Return whether a connection can be used again.

        This is not so after :meth:`give_up`, or if another SQLite file has replaced that of the connection.
        """
        if kept.round != self._round:
            return False
        return not self._is_file or is_same_file(self._path, kept.history)

    def _ask_directly(self, kept: _KeptConnection) -> DatabaseVersion:
        row = kept.connection.driver_connection.ask_question(self._question.encode())
        return of_row(self._dialect, row, "")

    def _ask_by_cursor(self, kept: _KeptConnection) -> DatabaseVersion:
        with closing(kept.connection.cursor()) as cursor:
            cursor.execute(self._question)
            row = cursor.fetchone()
        return of_row(self._dialect, row, kept.history)

    def close(self) -> None:
        """Close this thread's connection."""
        kept: _KeptConnection | None = getattr(self._local, "kept", None)
        self._local.kept = None
        if kept is not None:
            kept.connection.close()
