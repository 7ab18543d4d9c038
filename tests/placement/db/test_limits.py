"""Tests that no transaction waits for ever, neither for a silent database nor for a worker that holds its
locks.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import pytest
import sqlalchemy as sa

from placement.db.batch import PreparedStatement
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.engine import WHOLE_DATABASE, PoolOptions
from placement.db.tables import consumers
from placement.exceptions import Unavailable
from tests.databases import DatabaseServer
from tests.databases.proxy import Proxy

ONE = "00000001-0000-4000-8000-000000000000"
LIMITS = PoolOptions(connect_timeout=2, statement_timeout=1, lock_timeout=1, idle_timeout=1)
ROW = {"uuid": ONE, "project_id": "p", "user_id": "u", "generation": 1, "updated_at": 0.5}
COUNT = PreparedStatement(sa.select(sa.func.count()).select_from(consumers))


@pytest.fixture
def server_url(database_server: DatabaseServer, database_url: str) -> str:
    if database_server.kind == "sqlite":
        pytest.skip("SQLite has no server")
    return database_url


@pytest.fixture
def proxy(server_url: str) -> Iterator[Proxy]:
    with Proxy(server_url) as proxy:
        yield proxy


@pytest.fixture
def database(proxy: Proxy) -> Iterator[ServiceDatabase]:
    database = ServiceDatabase(proxy.url, LIMITS)
    assert count(database) == 0
    yield database
    database.close()


def count(database: ServiceDatabase) -> int:
    with database.read() as conn:
        return int(conn.execute(sa.select(sa.func.count()).select_from(consumers)).scalar_one())


def queued(tx: WriteTransaction) -> object:
    return tx.queue(COUNT, {}).scalars


def executed(tx: WriteTransaction) -> object:
    return tx.conn.execute(sa.select(consumers.c.id)).all()


@pytest.mark.parametrize("ask", [queued, executed])
def test_a_transaction_without_an_answer_to_a_statement_is_aborted(
    database: ServiceDatabase, proxy: Proxy, ask: Callable[[WriteTransaction], object]
) -> None:
    def work(tx: WriteTransaction) -> None:
        tx.insert(consumers, [ROW])
        ask(tx)
        proxy.swallow()
        ask(tx)

    with pytest.raises(Unavailable):
        database.write(work)
    proxy.carry()
    database.write(ask)
    assert count(database) == 0


def test_a_commit_that_is_swallowed_is_never_repeated(database: ServiceDatabase, proxy: Proxy) -> None:
    attempts = []

    def work(tx: WriteTransaction) -> None:
        attempts.append(1)
        tx.insert(consumers, [ROW])
        proxy.swallow()

    with pytest.raises(Unavailable):
        database.write(work)
    proxy.carry()
    assert len(attempts) == 1


def read_swallowed(database: ServiceDatabase, proxy: Proxy) -> None:
    with database.read() as conn:
        proxy.swallow()
        conn.execute(sa.select(consumers)).all()


def test_a_read_without_an_answer_to_its_query_is_aborted(database: ServiceDatabase, proxy: Proxy) -> None:
    with pytest.raises(Unavailable):
        read_swallowed(database, proxy)
    proxy.carry()
    assert count(database) == 0


def test_the_question_before_every_answer_is_given_up(database: ServiceDatabase, proxy: Proxy) -> None:
    before = database.position()
    proxy.swallow()
    with pytest.raises(Unavailable):
        database.position()
    proxy.carry()
    assert database.position() == before


_ASKED = {
    "postgresql": "SELECT setting FROM pg_settings WHERE name IN "
    "('idle_in_transaction_session_timeout', 'lock_timeout', 'statement_timeout') ORDER BY name",
    "mariadb": "SELECT @@idle_transaction_timeout UNION ALL SELECT @@innodb_lock_wait_timeout "
    "UNION ALL SELECT @@max_statement_time",
}


def test_the_server_knows_the_limits_of_writers_and_readers(
    database_server: DatabaseServer, server_url: str
) -> None:
    unit = 1000 if database_server.kind == "postgresql" else 1
    query = _ASKED[database_server.kind]
    options = PoolOptions(statement_timeout=7, lock_timeout=4, idle_timeout=3)
    for chosen, writer, reader in (
        (options, [3, 4, 11], [0, 4, 7]),
        (WHOLE_DATABASE, [600, 10, 0], [0, 10, 0]),
    ):
        database = ServiceDatabase(server_url, chosen)
        found = database.write(lambda tx: tx.conn.exec_driver_sql(query).scalars().all())
        assert [float(each) / unit for each in found] == writer
        with database.read() as conn:
            found = conn.exec_driver_sql(query).scalars().all()
            assert [float(each) / unit for each in found] == reader
        database.close()


def test_parameters_in_the_url_count_more(database_server: DatabaseServer, server_url: str) -> None:
    if database_server.kind != "postgresql":
        pytest.skip("PostgreSQL takes settings in the URL")
    settings = "-c work_mem=5MB -c lock_timeout=77"
    url = sa.make_url(server_url).update_query_dict({"options": settings}).render_as_string()
    database = ServiceDatabase(url)
    answers = {"work_mem": "5MB", "lock_timeout": "77ms", "statement_timeout": "20s", "jit": "off"}
    for name, expected in answers.items():
        with database.read() as conn:
            assert conn.exec_driver_sql(f"SHOW {name}").scalar_one() == expected
    database.close()


def _freeze(url: str, told: Connection) -> None:
    """Lock the bucket of a provider and stop, as a process on a frozen host; count the attempts."""
    attempts = []

    def work(tx: WriteTransaction) -> None:
        attempts.append(1)
        tx.lock([ONE])
        queued(tx)
        if len(attempts) == 1:
            told.send("locked")
            os.kill(os.getpid(), signal.SIGSTOP)
        tx.insert(consumers, [ROW])

    database = ServiceDatabase(url, PoolOptions(idle_timeout=2, lock_timeout=60))
    database.write(work)
    database.close()
    told.send(len(attempts))


def test_a_worker_that_is_frozen_in_a_transaction_keeps_others_waiting_no_longer_than_allowed(
    server_url: str,
) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    frozen = context.Process(target=_freeze, args=(server_url, theirs))
    frozen.start()
    database = ServiceDatabase(server_url, PoolOptions(lock_timeout=60))
    try:
        assert ours.poll(60)
        assert ours.recv() == "locked"

        def work(tx: WriteTransaction) -> object:
            tx.lock([ONE])
            return queued(tx)

        assert database.write(work) == [0]
        assert frozen.is_alive()  # it still is frozen
        os.kill(frozen.pid or 0, signal.SIGCONT)
        assert ours.poll(60)
        assert ours.recv() == 2  # its first attempt was rolled back, and repeated
        assert count(database) == 1
    finally:
        os.kill(frozen.pid or 0, signal.SIGCONT)
        frozen.join(60)
        database.close()
