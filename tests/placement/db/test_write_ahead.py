"""Tests that the service waits, within a limit, for an SQLite file that another program writes without a
write-ahead log.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from placement.db.engine import PoolOptions, create_engine


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection in the middle of a transaction, without a write-ahead log."""
    with closing(
        sqlite3.connect(tmp_path / "stock.sqlite", isolation_level=None, check_same_thread=False)
    ) as connection:
        connection.execute("CREATE TABLE things (id INTEGER)")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO things VALUES (1)")
        yield connection


def test_the_connection_waits_for_a_writer_to_end(writer: sqlite3.Connection, tmp_path: Path) -> None:
    engine = create_engine(
        f"sqlite:///{tmp_path}/stock.sqlite", "READ COMMITTED", PoolOptions(lock_timeout=30.0)
    )
    ending = threading.Timer(0.3, lambda: writer.execute("COMMIT"))
    ending.start()
    try:
        with engine.connect() as conn:
            assert conn.execute(sa.text("SELECT count(*) FROM things")).scalar_one() == 1
            assert conn.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
    finally:
        ending.join()
        engine.dispose()


def test_a_writer_that_does_not_end_is_not_waited_for_longer(
    writer: sqlite3.Connection, tmp_path: Path
) -> None:
    engine = create_engine(
        f"sqlite:///{tmp_path}/stock.sqlite", "READ COMMITTED", PoolOptions(lock_timeout=0.1)
    )
    with pytest.raises(sa.exc.OperationalError, match="locked"):
        engine.connect()
    engine.dispose()
