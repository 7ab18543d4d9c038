"""Tests of transactions: they are repeated after a lost race, and never if they may have succeeded. Failures
are reported.
"""

import gc
import sqlite3
import threading
import weakref
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy import exc

from placement.db import buckets, engine
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.engine import PoolOptions
from placement.db.tables import change_buckets, consumers
from placement.exceptions import Unavailable
from tests.databases import DatabaseServer

ONE = "00000001-0000-4000-8000-000000000000"
TWO = "00000002-0000-4000-8000-000000000000"


@pytest.fixture
def database(database_url: str) -> Iterator[ServiceDatabase]:
    database = ServiceDatabase(database_url, PoolOptions(lock_timeout=5))
    yield database
    database.close()


def insert_consumer(tx: WriteTransaction, uuid: str = ONE) -> None:
    tx.conn.execute(
        sa.insert(consumers).values(uuid=uuid, project_id="p", user_id="u", generation=1, updated_at=tx.now)
    )


def ask(tx: WriteTransaction) -> None:
    assert tx.conn.execute(sa.select(sa.literal(1))).scalar_one() == 1


def count(database: ServiceDatabase) -> int:
    with database.read() as conn:
        return int(conn.execute(sa.select(sa.func.count()).select_from(consumers)).scalar_one())


def test_a_write_is_visible_afterwards_and_its_result_is_returned(database: ServiceDatabase) -> None:
    def work(tx: WriteTransaction) -> str:
        insert_consumer(tx)
        return "done"

    assert database.write(work) == "done"
    assert count(database) == 1


def test_an_error_of_the_work_undoes_all_of_it(database: ServiceDatabase) -> None:
    def work(tx: WriteTransaction) -> None:
        insert_consumer(tx)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.write(work)
    assert count(database) == 0


def test_a_row_that_both_inserted_makes_the_loser_start_again(database: ServiceDatabase) -> None:
    attempts = []

    def work(tx: WriteTransaction) -> int:
        attempts.append(1)
        if len(attempts) == 1:
            raise exc.IntegrityError("INSERT", {}, Exception("duplicate"))
        insert_consumer(tx)
        return len(attempts)

    assert database.write(work) == 2
    assert count(database) == 1


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Disable garbage collection, so that objects in reference cycles live until the test ends."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def open_cursors() -> set[int]:
    """The cursors of SQLite that still have a statement, and therefore keep their connection."""
    found = set()
    for each in gc.get_objects():
        if isinstance(each, sqlite3.Cursor):
            try:
                each.fetchone()
            except sqlite3.ProgrammingError:
                continue  # it is closed
            found.add(id(each))
    return found


@pytest.mark.usefixtures("uncollected")
def test_a_statement_that_failed_leaves_no_open_cursor(database: ServiceDatabase) -> None:
    row = {"uuid": ONE, "project_id": "p", "user_id": "u", "generation": 1, "updated_at": 0.5}
    attempts = []

    def work(tx: WriteTransaction) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            tx.insert(consumers, [row, row])
        else:
            tx.insert(consumers, [row])

    before = open_cursors()
    database.write(work)
    assert len(attempts) == 2
    assert open_cursors() == before


@pytest.mark.usefixtures("uncollected")
def test_the_error_of_an_attempt_is_forgotten_when_the_next_succeeds(database: ServiceDatabase) -> None:
    seen: list[weakref.ref[Exception]] = []

    def work(tx: WriteTransaction) -> None:
        if not seen:
            error = exc.IntegrityError("INSERT", {}, Exception("duplicate"))
            seen.append(weakref.ref(error))
            try:
                raise error
            finally:
                del error  # or this frame keeps it
        insert_consumer(tx)

    database.write(work)
    assert [reference() for reference in seen] == [None]
    assert count(database) == 1


def test_endless_contention_is_unavailable_in_the_end(database: ServiceDatabase) -> None:
    def work(tx: WriteTransaction) -> None:
        raise exc.IntegrityError("INSERT", {}, Exception("duplicate"))

    with pytest.raises(Unavailable):
        database.write(work)


@pytest.fixture
def late_database(database_url: str) -> Iterator[ServiceDatabase]:
    """A database that gives writes no time for further attempts."""
    late = ServiceDatabase(database_url, PoolOptions(lock_timeout=0))
    yield late
    late.close()


def test_an_optimistic_write_is_repeated_however_long_it_waited(late_database: ServiceDatabase) -> None:
    database = late_database
    attempts: list[bool] = []

    def work(tx: WriteTransaction) -> None:
        attempts.append(tx.optimistic)
        if tx.optimistic:
            raise exc.IntegrityError("INSERT", {}, Exception("no such provider"))
        insert_consumer(tx)

    database.write(work)
    assert (attempts, count(database)) == ([True, False], 1)

    def lose(tx: WriteTransaction) -> None:
        attempts.append(tx.optimistic)
        raise exc.IntegrityError("INSERT", {}, Exception("duplicate"))

    attempts.clear()
    with pytest.raises(Unavailable):
        database.write(lose)
    assert attempts == [True, False]


def test_a_row_without_a_required_value_is_a_defect_and_not_repeated(
    database: ServiceDatabase,
) -> None:
    attempts = []

    def work(tx: WriteTransaction) -> None:
        attempts.append(1)
        values = {"uuid": ONE, "project_id": None, "user_id": "u", "generation": 1, "updated_at": tx.now}
        tx.insert(consumers, [values])

    with pytest.raises(exc.IntegrityError):
        database.write(work)
    assert len(attempts) == 1
    assert count(database) == 0


def test_writers_of_one_provider_come_one_after_the_other(database: ServiceDatabase) -> None:
    inside = []

    def work(tx: WriteTransaction) -> None:
        tx.lock([ONE])
        ask(tx)
        inside.append("in")
        threading.Event().wait(0.02)
        inside.append("out")

    threads = [threading.Thread(target=database.write, args=(work,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside == ["in", "out"] * 4


def test_opposite_orders_of_locking_do_not_end_in_failure(
    database: ServiceDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so that the counter tells how often it was incremented
    monkeypatch.setattr(buckets, "random_step", lambda: 1)

    def work(uuids: list[str]) -> None:
        def both(tx: WriteTransaction) -> None:
            for uuid in uuids:
                tx.lock([uuid])
                ask(tx)
                threading.Event().wait(0.02)

        database.write(both)

    assert buckets.bucket_of(ONE) != buckets.bucket_of(TWO)
    threads = [threading.Thread(target=work, args=(order,)) for order in ([ONE, TWO], [TWO, ONE])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as conn:
        query = sa.select(change_buckets.c.counter).where(change_buckets.c.id == buckets.bucket_of(ONE))
        assert conn.execute(query).scalar_one() == 2


def test_a_read_sees_one_state_whatever_is_committed_meanwhile(database: ServiceDatabase) -> None:
    with database.read() as conn:
        query = sa.select(sa.func.count()).select_from(consumers)
        assert conn.execute(query).scalar_one() == 0
        database.write(insert_consumer)
        assert conn.execute(query).scalar_one() == 0
    assert count(database) == 1


def test_a_restarted_server_is_found_again(
    database: ServiceDatabase, database_server: DatabaseServer, database_url: str
) -> None:
    database.write(insert_consumer)
    before = database.position()
    database_server.restart()
    assert database.position() == before
    assert count(database) == 1
    database_server.restart()
    database.write(lambda tx: insert_consumer(tx, TWO))
    assert count(database) == 2


@pytest.fixture
def distrustful(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceDatabase]:
    """A database object that tests a connection before each use, because some servers restart in less than
    0.1 s.
    """
    monkeypatch.setattr(engine, "_TRUSTED_SECONDS", 0.0)
    database = ServiceDatabase(database_url, PoolOptions(lock_timeout=5))
    yield database
    database.close()


def test_writes_that_are_one_batch_find_a_restarted_server_after_a_pause(
    distrustful: ServiceDatabase, database_server: DatabaseServer
) -> None:
    for consumer in (ONE, TWO):
        row = {"uuid": consumer, "project_id": "p", "user_id": "u", "generation": 1, "updated_at": 0.0}
        distrustful.write(lambda tx, row=row: tx.insert(consumers, [row]))  # type: ignore[misc]  # binds early
        database_server.restart()
    assert count(distrustful) == 2


def test_a_server_that_is_down_is_unavailable(
    database: ServiceDatabase, database_server: DatabaseServer
) -> None:
    if database_server.kind == "sqlite":
        pytest.skip("SQLite has no server")
    database_server.stop()
    try:
        with pytest.raises(Unavailable):
            database.position()
        with pytest.raises(Unavailable), database.read():
            pass
        with pytest.raises(Unavailable):
            database.write(insert_consumer)
    finally:
        database_server.start()
    assert count(database) == 0
