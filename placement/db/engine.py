"""Engines with their connection pools, set up alike for the three kinds of database.

Drivers need not be installed: each is imported by the function that makes connections of its database.
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


def connector(driver: str) -> Callable[..., Any] | None:
    """What makes connections: a function of the timeout for answers and of what the driver's own one takes.

    None for a driver that nobody tried here: the server's timeouts count, and the system's.

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

_RETURNED: Final = "placement.returned"
_TRUSTED_SECONDS: Final = 0.1  # servers take longer to restart
_GRACE: Final = 1.0  # seconds for a server to say that a statement took too long
_KEEPALIVES: Final = 3
_SECONDS_BETWEEN_TRIES: Final = 0.01


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Sizes and times (seconds) of the connection pools, and limits for locks.

    ``lock_timeout`` bounds each wait for a lock, ``retries`` how often a
    transaction that lost to another one runs again. A connection has to be made within ``connect_timeout``,
    a statement to end within ``statement_timeout``, and the next one of a transaction to come within
    ``idle_timeout``, or the server ends it; zero is no limit for these two. ``wsrep_sync_wait`` is that of
    MariaDB (statements before which a node of a Galera cluster applies what others have committed).
    """

    max_pool_size: int = 5
    max_overflow: int = 50
    pool_timeout: float = 30.0
    connection_recycle_time: int = 3600
    lock_timeout: float = 10.0
    retries: int = 10
    connect_timeout: int = 5
    statement_timeout: float = 20.0
    idle_timeout: float = 5.0
    wsrep_sync_wait: int = 7


WHOLE_DATABASE: Final = PoolOptions(statement_timeout=0, idle_timeout=600)
"""For what goes through whole databases."""


def create(url: str | URL, isolation_level: str, options: PoolOptions, *, ping: bool = False) -> sa.Engine:
    """An engine whose every transaction has this isolation level.

    On SQLite, where a transaction is a snapshot anyway, the level only matters
    as ``AUTOCOMMIT``; transactions of connections with the execution option
    :data:`WRITES` take the write lock when they begin, so that they never have
    to give up half way. A connection that died in the pool is replaced before it
    is used: always with ``ping``, else if it has not been used for a moment.

    A server that is gone without a word, or behind a network that swallows everything, is noticed by the
    operating system (PostgreSQL) or by the answer that does not come: a second after the server itself
    would have ended the statement, or after ``connect_timeout`` where a connection is only asked
    whether it lives.

    :raises ImportError: the driver that the URL names is not installed; the message says what to do.
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
            connect_args=_limits(parsed, options),
        )
        connect = connector(made.dialect.driver)
    except ImportError as error:
        raise ImportError(errors.missing_driver(parsed, error)) from error
    session = _session(parsed, options)
    answer_timeout = options.statement_timeout + _GRACE if options.statement_timeout else None

    @sa.event.listens_for(made, "do_connect")
    def _connect(dialect: object, record: object, cargs: Sequence[Any], cparams: Mapping[str, Any]) -> Any:
        return connect(answer_timeout, *cargs, **cparams, **session) if connect else None

    @sa.event.listens_for(made, "connect")
    def _note(connection: Any, record: Any) -> None:
        record.info[position.HISTORY] = getattr(connection, "history", "")

    @sa.event.listens_for(made, "handle_error")
    def _leave(context: sa.engine.ExceptionContext) -> None:
        if errors.is_elsewhere(context.original_exception):
            context.is_disconnect = True

    _ping(made, 0.0 if ping else _TRUSTED_SECONDS, options.connect_timeout if connect else None)
    return made


def check(url: str) -> None:
    """Whether engines can be made, which is known before any server is asked.

    :raises ValueError: it is no URL, or its database or driver is not installed; the text names the option.
    """
    try:
        create(url, "AUTOCOMMIT", PoolOptions()).dispose()
    except (sa.exc.ArgumentError, ImportError) as error:
        raise ValueError(f"[placement_database] connection cannot be used: {error}") from error


def _session(url: URL, options: PoolOptions) -> dict[str, Any]:
    """What our connections are told beside what the driver's own take."""
    return {} if url.get_backend_name() == "postgresql" else {"wsrep_sync_wait": options.wsrep_sync_wait}


def _limits(url: URL, options: PoolOptions) -> dict[str, Any]:
    """Parameters of connections, where the URL does not give others."""
    ours = _postgresql(options) if url.get_backend_name() == "postgresql" else _mysql(options)
    chosen = {name: value for name, value in ours.items() if name not in url.query}
    if "options" in ours and "options" in url.query:
        chosen["options"] = f"{ours['options']} {url.query['options']}"  # the last one of a name counts
    return chosen


def _postgresql(options: PoolOptions) -> dict[str, Any]:
    """Parameters of libpq ("Connection Strings" in its documentation), and in ``options`` of the server."""
    settings = {
        "lock_timeout": options.lock_timeout,
        "statement_timeout": options.statement_timeout,
        "idle_in_transaction_session_timeout": options.idle_timeout,
    }
    return {
        "options": " ".join(f"-c {name}={int(seconds * 1000)}" for name, seconds in settings.items()),
        "connect_timeout": options.connect_timeout,
        "tcp_user_timeout": options.connect_timeout * 1000,
        "keepalives_idle": options.connect_timeout,
        "keepalives_interval": max(1, options.connect_timeout // _KEEPALIVES),
        "keepalives_count": _KEEPALIVES,
        "target_session_attrs": "read-write",  # of several hosts the one that is no standby; of one host, too
    }


def _mysql(options: PoolOptions) -> dict[str, Any]:
    """Parameters of PyMySQL. What is in the comment is read by MariaDB only."""
    ours = {
        "max_statement_time": f"{options.statement_timeout:g}",
        "idle_transaction_timeout": round(options.idle_timeout),
    }
    of_mariadb = "".join(f", {name}={value}" for name, value in ours.items())
    lock_timeout = max(1, int(options.lock_timeout))
    return {
        "init_command": f"SET SESSION innodb_lock_wait_timeout={lock_timeout} /*M!100300 {of_mariadb} */",
        "connect_timeout": options.connect_timeout,
    }


def _ping(engine: sa.Engine, trusted: float, timeout: float | None) -> None:
    """Ask connections whether they live when they have not been used for so many seconds.

    The last batch of a transaction carries its commit, and on a connection that turns out to be dead
    its outcome is unknown. Asking each time would cost a round trip for each transaction.

    :param timeout: seconds in which the answer has to come; None where connections have no such timeout.
    """

    @sa.event.listens_for(engine, "checkin")
    def _checkin(connection: Any, record: Any) -> None:
        record.info[_RETURNED] = time.monotonic()

    @sa.event.listens_for(engine, "checkout")
    def _checkout(connection: Any, record: Any, proxy: object) -> None:
        returned = record.info.get(_RETURNED)
        if returned is None or time.monotonic() - returned < trusted:
            return
        dbapi = engine.dialect.dbapi
        assert dbapi is not None
        try:
            with nullcontext() if timeout is None else _brief(connection, timeout):
                engine.dialect.do_ping(connection)
        except dbapi.Error as error:
            raise sa.exc.InvalidatePoolError from error


@contextmanager
def _brief(connection: Any, timeout: float) -> Iterator[None]:
    """One of our connections, with another timeout for answers in this context."""
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
        connect_args={"timeout": options.lock_timeout, "check_same_thread": False},
    )

    @sa.event.listens_for(engine, "do_connect")
    def _make(dialect: object, record: object, arguments: list[Any], options: object) -> None:
        _make_private(str(arguments[0]))

    @sa.event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, record: Any) -> None:
        record.info[position.HISTORY] = position.of_file(url.database)
        connection.isolation_level = None  # transactions begin where we say
        _write_ahead(connection, options.lock_timeout)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    @sa.event.listens_for(engine, "checkout")
    def _checkout(connection: object, record: Any, proxy: object) -> None:
        # Who has a file open that was replaced would go on to read it, and to write into it.
        if not position.is_same_file(url.database, record.info[position.HISTORY]):
            raise sa.exc.InvalidatePoolError

    if isolation_level != "AUTOCOMMIT":

        @sa.event.listens_for(engine, "begin")
        def _begin(connection: sa.Connection) -> None:
            writes = connection.get_execution_options().get(WRITES, False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _write_ahead(connection: sqlite3.Connection, timeout: float) -> None:
    """Switch to the write-ahead log. Where others write in another mode, SQLite refuses at once."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
        time.sleep(_SECONDS_BETWEEN_TRIES)


def _make_private(path: str) -> None:
    """Make the file of a database, where there is none, for the owner and the group alone.

    SQLite gives its other files the mode of this one.
    """
    if path == ":memory:" or path.startswith("file:"):
        return
    with suppress(OSError):  # it is there, or SQLite says better why it cannot be made
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640))
