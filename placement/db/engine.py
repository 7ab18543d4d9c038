"""Engines for the three kinds of database, set up alike."""

import os
import sqlite3
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

WRITES: Final = "placement_writes"

_RETURNED: Final = "placement.returned"
_TRUSTED_SECONDS: Final = 0.1  # servers take longer to restart


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """Sizes and times (seconds) of the connection pools, and patience with other transactions.

    ``lock_timeout`` bounds each wait for a lock, ``retries`` how often a
    transaction that lost to another one runs again.
    """

    max_pool_size: int = 5
    max_overflow: int = 50
    pool_timeout: float = 30.0
    connection_recycle_time: int = 3600
    lock_timeout: float = 10.0
    retries: int = 10


def create(url: str | URL, isolation_level: str, options: PoolOptions, *, ping: bool = False) -> sa.Engine:
    """An engine whose every transaction has this isolation level.

    On SQLite, where a transaction is a snapshot anyway, the level only matters
    as ``AUTOCOMMIT``; transactions of connections with the execution option
    :data:`WRITES` take the write lock when they begin, so that they never have
    to give up half way. A connection that died in the pool is replaced before it
    is used: always with ``ping``, else if it has not been used for a moment.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _create_sqlite(parsed, isolation_level, options)
    seconds = options.lock_timeout
    if parsed.get_backend_name() == "postgresql":
        connect_args: dict[str, Any] = {"options": f"-c lock_timeout={int(seconds * 1000)}"}
    else:
        connect_args = {"init_command": f"SET SESSION innodb_lock_wait_timeout={max(1, int(seconds))}"}
    made = sa.create_engine(
        parsed,
        isolation_level=isolation_level,
        pool_size=options.max_pool_size,
        max_overflow=options.max_overflow,
        pool_timeout=options.pool_timeout,
        pool_recycle=options.connection_recycle_time,
        pool_pre_ping=ping,
        connect_args=connect_args,
    )
    if not ping:
        _ping_after_pauses(made)
    return made


def _ping_after_pauses(engine: sa.Engine) -> None:
    """Ask connections whether they live when they have not been used for a while.

    The last batch of a transaction carries its commit, and on a connection that turns out to be dead
    its outcome is unknown. Asking each time would cost a round trip for each transaction.
    """

    @sa.event.listens_for(engine, "checkin")
    def _checkin(connection: Any, record: Any) -> None:
        record.info[_RETURNED] = time.monotonic()

    @sa.event.listens_for(engine, "checkout")
    def _checkout(connection: Any, record: Any, proxy: object) -> None:
        returned = record.info.get(_RETURNED)
        if returned is None or time.monotonic() - returned < _TRUSTED_SECONDS:
            return
        dbapi = engine.dialect.dbapi
        assert dbapi is not None
        try:
            engine.dialect.do_ping(connection)
        except dbapi.Error as error:
            raise sa.exc.InvalidatePoolError from error


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
    def _connect(connection: sqlite3.Connection, record: object) -> None:
        connection.isolation_level = None  # transactions begin where we say
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    if isolation_level != "AUTOCOMMIT":

        @sa.event.listens_for(engine, "begin")
        def _begin(connection: sa.Connection) -> None:
            writes = connection.get_execution_options().get(WRITES, False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _make_private(path: str) -> None:
    """Make the file of a database, where there is none, for the owner and the group alone.

    SQLite gives its other files the mode of this one.
    """
    if path == ":memory:" or path.startswith("file:"):
        return
    with suppress(OSError):  # it is there, or SQLite says better why it cannot be made
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640))
