"""Tests that migrations of MySQL and MariaDB run one after the other, even if one of the processes dies or
stops.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from placement.db import engine, migration, migration_lock
from placement.db.engine import PoolOptions
from placement.exceptions import Unavailable
from tests.databases import DatabaseServer

pytestmark = pytest.mark.mysql


@pytest.fixture
def source(database_server: DatabaseServer, blank_database_url: str) -> Iterator[sa.Engine]:
    if database_server.kind != "mariadb":
        pytest.skip("transactions of this database can keep others out")
    made = engine.create_engine(blank_database_url, "READ COMMITTED", PoolOptions())
    yield made
    made.dispose()


def tables(source: sa.Engine) -> list[str]:
    return sa.inspect(source).get_table_names()


def test_one_at_a_time_holds_it_and_nothing_is_left_of_it(source: sa.Engine) -> None:
    inside: list[str] = []

    def hold(name: str) -> None:
        with source.connect() as conn, migration_lock.hold_lock(source, conn, 60):
            inside.append(name)
            time.sleep(0.3)
            inside.append(name)

    threads = [threading.Thread(target=hold, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(inside) == 6
    assert inside[::2] == inside[1::2]
    assert tables(source) == []


def test_the_error_of_a_long_wait_names_the_owner(source: sa.Engine) -> None:
    with (
        source.connect() as conn,
        source.connect() as other,
        migration_lock.hold_lock(source, conn, 60),
        pytest.raises(Unavailable, match=f"{os.getpid()}.* has not ended within 1 seconds"),
        migration_lock.hold_lock(source, other, 1),
    ):
        pass


def _hold_for_ever(url: str) -> None:
    with migration.exclusive_connection(url):
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_lock_of_a_killed_process_is_taken_over_at_once(
    source: sa.Engine, blank_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migration_lock, "LEASE", 10_000.0)
    process = multiprocessing.get_context("spawn").Process(target=_hold_for_ever, args=(blank_database_url,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert tables(source) != []
    migration.upgrade_schema(blank_database_url)
    assert migration.version(blank_database_url) == migration.newest_revision()


def test_a_process_that_stopped_loses_the_lock_and_runs_no_further_statement(
    source: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen process still exists, but renews its lock no longer."""
    monkeypatch.setattr(migration_lock, "LEASE", 0.5)
    monkeypatch.setattr(migration_lock.ProcessLock, "keep_beating", lambda lock: None)
    monkeypatch.setattr(migration_lock, "_BEAT", 0.0)
    with source.connect() as frozen, migration_lock.hold_lock(source, frozen, 60):
        frozen.exec_driver_sql("CREATE TABLE mine (id INT)")
        with source.connect() as other, migration_lock.hold_lock(source, other, 60):
            other.exec_driver_sql("CREATE TABLE theirs (id INT)")
            with pytest.raises(Unavailable, match="Another process took over this migration"):
                frozen.exec_driver_sql("CREATE TABLE never (id INT)")
            other.exec_driver_sql("CREATE TABLE theirs_too (id INT)")
    assert tables(source) == ["mine", "theirs", "theirs_too"]
