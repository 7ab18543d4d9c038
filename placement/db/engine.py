"""Makes SQLAlchemy engines that behave in the same way for all kinds of databases.

Only the driver for the kind of database in the URL is imported, so other drivers need not be installed.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

from placement.db import errors, position


def find_connector(driver: str) -> Callable[..., Any] | None:
    """Return a function that connects to a database. Its first argument is the timeout for answers.

    For a driver that we do not test, return None. Only the timeouts of the server and of the operating system
    then apply.

    :raises ImportError: the driver is not installed.
    """
    if driver == "psycopg":
        from placement.db import postgresql

        return postgresql.connect
    if driver == "pymysql":
        from placement.db import mysql

        return mysql.connect
    return None


WRITES: Final = "placement_writes"
"""Execution option of connections with which a transaction takes SQLite's write lock when it begins."""

_RETURNED: Final = "placement.returned"
# a restart of a server takes longer, so the server cannot have restarted in this time
_TRUSTED_SECONDS: Final = 0.1
"""Seconds after its last use in which a connection is used again without a test."""
_GRACE: Final = 1.0
"""Seconds by which the wait for an answer is longer than the server's limit for a statement. In this time,
the server can report that the statement took too long.
"""
_KEEPALIVES: Final = 3
"""Number of unanswered TCP keepalives after which a connection counts as lost."""
_SECONDS_BETWEEN_TRIES: Final = 0.01


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Sizes and times (in seconds) of connection pools, and limits for statements and locks.

    - ``lock_timeout`` limits how long a statement waits for a lock.
    - ``retries`` is the maximum number of times that a transaction runs again after conflicts.
    - ``connect_timeout`` limits the time to connect.
    - ``statement_timeout`` limits each statement, and ``idle_timeout`` limits the time between two statements
      of a transaction. The server ends a statement or transaction that takes longer. Zero means no limit.
    - ``wsrep_sync_wait`` is a variable of MariaDB. It has the kinds of statements before which a node of a
      Galera cluster applies all commits of other nodes.
    """

    max_pool_size: int = 5
    # the usual default of oslo.db, which operators know
    max_overflow: int = 50
    pool_timeout: float = 30.0
    connection_recycle_time: int = 3600
    lock_timeout: float = 10.0
    retries: int = 10
    connect_timeout: int = 5
    statement_timeout: float = 20.0
    idle_timeout: float = 5.0
    # bit 1 stands for reads, bit 2 for updates and deletions, bit 4 for insertions
    wsrep_sync_wait: int = 7


WHOLE_DATABASE: Final = PoolOptions(statement_timeout=0, idle_timeout=600)
"""Limits for operations on whole databases, such as migrations."""


def create_engine(
    url: str | URL, isolation_level: str, options: PoolOptions, *, ping: bool = False
) -> sa.Engine:
    """Return an engine with this isolation level for all its transactions.

    On SQLite, each transaction is a snapshot, so only the level ``AUTOCOMMIT`` has an effect. With the
    execution option :data:`WRITES`, a transaction takes the write lock of SQLite when it begins, so that it
    does not fail later because of another writer.

    A broken connection of the pool is replaced before it is used. If ``ping`` is set, a connection is tested
    before each use. Otherwise a connection is tested only if it was unused for a moment.

    A server can disappear silently, for example if the network drops all packets. On PostgreSQL, the
    operating system detects the loss of the connection. On other databases, the wait for an answer ends one
    second after the server's own limit for the statement. A test of a connection waits at most
    ``connect_timeout``.

    :raises ImportError: the driver of the URL is not installed. The message has the remedy.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _create_sqlite(parsed, isolation_level, options)
    try:
        made = sa.create_engine(
            parsed,
            isolation_level=isolation_level,
            pool_size=options.max_pool_size,
            max_overflow=options.max_overflow,
            pool_timeout=options.pool_timeout,
            pool_recycle=options.connection_recycle_time,
            connect_args=_limit_arguments(parsed, options),
        )
        # the driver is read from the dialect, because not each URL contains the driver
        connect = find_connector(made.dialect.driver)
    except ImportError as error:
        raise ImportError(errors.missing_driver(parsed, error)) from error
    session = _session_arguments(parsed, options)
    answer_timeout = options.statement_timeout + _GRACE if options.statement_timeout else None

    @sa.event.listens_for(made, "do_connect")
    def _connect(dialect: object, record: object, cargs: Sequence[Any], cparams: Mapping[str, Any]) -> Any:
        # if the result is None, SQLAlchemy connects in its usual way
        return connect(answer_timeout, *cargs, **cparams, **session) if connect else None

    @sa.event.listens_for(made, "connect")
    def _note_history(connection: Any, record: Any) -> None:
        record.info[position.HISTORY] = getattr(connection, "history", "")

    @sa.event.listens_for(made, "handle_error")
    def _mark_disconnect(context: sa.engine.ExceptionContext) -> None:
        if errors.is_elsewhere(context.original_exception):
            # with this flag, SQLAlchemy drops the connection, which leads to a standby or a read-only server
            context.is_disconnect = True

    _test_unused(made, 0.0 if ping else _TRUSTED_SECONDS, options.connect_timeout if connect else None)
    return made


def check_url(url: str) -> None:
    """Check that engines for a URL can be created, without connecting to a server.

    :raises ValueError: the URL is invalid, or its driver is not installed. The message has the option.
    """
    try:
        create_engine(url, "AUTOCOMMIT", PoolOptions()).dispose()
    except (sa.exc.ArgumentError, ImportError) as error:
        raise ValueError(f"[placement_database] connection cannot be used: {error}") from error


def _session_arguments(url: URL, options: PoolOptions) -> dict[str, Any]:
    """Return arguments of our connection classes that the driver itself does not have."""
    return {} if url.get_backend_name() == "postgresql" else {"wsrep_sync_wait": options.wsrep_sync_wait}


def _limit_arguments(url: URL, options: PoolOptions) -> dict[str, Any]:
    """Return the connection parameters for these limits; values in the URL take precedence."""
    ours = (
        _postgresql_arguments(options)
        if url.get_backend_name() == "postgresql"
        else _mysql_arguments(options)
    )
    chosen = {name: value for name, value in ours.items() if name not in url.query}
    if "options" in ours and "options" in url.query:
        # the options in the URL come last, because the last of several values counts
        chosen["options"] = f"{ours['options']} {url.query['options']}"
    return chosen


def _postgresql_arguments(options: PoolOptions) -> dict[str, Any]:
    """Return the limits as parameters of libpq ("Connection Strings" in its documentation)."""
    settings = {
        "lock_timeout": options.lock_timeout,
        "statement_timeout": options.statement_timeout,
        "idle_in_transaction_session_timeout": options.idle_timeout,
    }
    return {
        # the server applies these limits, so that locks are freed even if the worker hangs. It overestimates
        # lookups by key, so it would compile statements, often for longer than their execution
        "options": " ".join(
            ("-c jit=off", *(f"-c {name}={int(seconds * 1000)}" for name, seconds in settings.items()))
        ),
        "connect_timeout": options.connect_timeout,
        # with these parameters, the operating system ends a connection if the server does not acknowledge
        # data or keepalives in time
        "tcp_user_timeout": options.connect_timeout * 1000,
        "keepalives_idle": options.connect_timeout,
        "keepalives_interval": max(1, options.connect_timeout // _KEEPALIVES),
        "keepalives_count": _KEEPALIVES,
        # with this parameter, libpq chooses the primary server if the URL has several hosts, and does not
        # accept a standby
        "target_session_attrs": "read-write",
    }


def _mysql_arguments(options: PoolOptions) -> dict[str, Any]:
    """Return the limits as parameters of PyMySQL.

    A part of ``init_command`` is in a comment that only MariaDB executes.
    """
    ours = {
        # this variable allows fractions of seconds
        "max_statement_time": f"{options.statement_timeout:g}",
        "idle_transaction_timeout": round(options.idle_timeout),
    }
    of_mariadb = "".join(f", {name}={value}" for name, value in ours.items())
    # InnoDB allows only a whole number of seconds, which is at least 1
    lock_timeout = max(1, int(options.lock_timeout))
    return {
        "init_command": f"SET SESSION innodb_lock_wait_timeout={lock_timeout} /*M!100300 {of_mariadb} */",
        "connect_timeout": options.connect_timeout,
    }


def _test_unused(engine: sa.Engine, trusted: float, timeout: float | None) -> None:
    """Make the pool test each connection that was unused for ``trusted`` seconds.

    :param timeout: maximum seconds of a test; None if the class of connections has no timeout for answers.
    """

    @sa.event.listens_for(engine, "checkin")
    def _note_return(connection: Any, record: Any) -> None:
        record.info[_RETURNED] = time.monotonic()

    # If a connection is lost during a commit, the outcome of the commit is unknown. The last batch of a
    # transaction includes its commit, so a lost connection must be detected before. Only unused connections
    # are tested, because a test before each transaction would cost a round trip.
    @sa.event.listens_for(engine, "checkout")
    def _test_connection(connection: Any, record: Any, proxy: object) -> None:
        # the value is None for a new connection, on which the server has just answered
        returned = record.info.get(_RETURNED)
        if returned is None or time.monotonic() - returned < trusted:
            return
        dbapi = engine.dialect.dbapi
        # the type checker does not know that an engine with a connection has loaded its driver
        assert dbapi is not None
        try:
            with nullcontext() if timeout is None else _brief_timeout(connection, timeout):
                engine.dialect.do_ping(connection)
        except dbapi.Error as error:
            raise sa.exc.InvalidatePoolError from error


@contextmanager
def _brief_timeout(connection: Any, timeout: float) -> Iterator[None]:
    """Set another timeout for the answers on a connection during this context."""
    usual, connection.answer_timeout = connection.answer_timeout, timeout
    try:
        yield
    finally:
        connection.answer_timeout = usual


def _create_sqlite(url: URL, isolation_level: str, options: PoolOptions) -> sa.Engine:
    engine = sa.create_engine(
        url,
        poolclass=sa.pool.QueuePool,
        pool_size=options.max_pool_size,
        max_overflow=options.max_overflow,
        pool_timeout=options.pool_timeout,
        # without check_same_thread=False, sqlite3 would refuse the use of a connection in a second thread.
        # This use is safe, because the pool gives a connection to one thread at a time.
        connect_args={"timeout": options.lock_timeout, "check_same_thread": False},
    )

    @sa.event.listens_for(engine, "do_connect")
    def _make_file(dialect: object, record: object, arguments: list[Any], options: object) -> None:
        _make_private(str(arguments[0]))

    @sa.event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, record: Any) -> None:
        record.info[position.HISTORY] = position.of_file(url.database)
        connection.isolation_level = None  # with None, the driver does not begin transactions itself
        try:
            _write_ahead(connection, options.lock_timeout)
            # with NORMAL, which some builds have by default in WAL mode, a power failure can lose the last
            # commits
            connection.execute("PRAGMA synchronous = FULL")
            # by default, SQLite does not check foreign keys, but optimistic writes need these checks
            # (doc/developer/decisions/foreign-keys.md)
            connection.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error:
            connection.close()  # SQLAlchemy 2.0 leaves a connection open if a listener fails
            raise

    @sa.event.listens_for(engine, "checkout")
    def _check_file(connection: object, record: Any, proxy: object) -> None:
        # the file is checked at each use, because the connection of a replaced file still reads and writes
        # the old file
        if not position.is_same_file(url.database, record.info[position.HISTORY]):
            raise sa.exc.InvalidatePoolError

    if isolation_level != "AUTOCOMMIT":

        @sa.event.listens_for(engine, "begin")
        def _begin_transaction(connection: sa.Connection) -> None:
            writes = connection.get_execution_options().get(WRITES, False)
            # IMMEDIATE takes the write lock here. Otherwise SQLite refuses the first write of the transaction
            # if another transaction has written meanwhile.
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _write_ahead(connection: sqlite3.Connection, timeout: float) -> None:
    """Switch the SQLite file to the write-ahead log. SQLite refuses this while another connection writes."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # the busy timeout of the connection does not apply to a change of the journal mode
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _make_private(path: str) -> None:
    """Create the file of a database if it is missing, so that only its owner and group can read it."""
    if path == ":memory:" or path.startswith("file:"):
        return
    # errors are ignored: the file perhaps exists already, and SQLite reports all other errors itself
    with suppress(OSError):
        # SQLite gives the same mode to the other files of the database
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640))
