"""Tests of exchanges with PostgreSQL in which something fails: the connection is usable afterwards, or is
replaced.
"""

import threading
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa

from placement.db.batch import PreparedStatement, bind_parameters
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.engine import PoolOptions
from placement.db.postgresql import PostgresqlConnection
from placement.db.tables import consumers
from placement.exceptions import InvalidRequest

pytestmark = pytest.mark.postgresql

COUNT = PreparedStatement(sa.select(sa.func.count()).select_from(consumers))
HALF = PreparedStatement(sa.select(1 / sa.bindparam("number", type_=sa.Integer)))
ECHO = PreparedStatement(
    sa.select(sa.bindparam("text", type_=sa.Text), sa.cast(sa.bindparam("real"), sa.Double))
)
SLEEP = PreparedStatement(sa.select(sa.func.pg_backend_pid(), sa.cast(sa.func.pg_sleep(30), sa.Text)))


@pytest.fixture
def database(database_url: str) -> Iterator[ServiceDatabase]:
    if not database_url.startswith("postgresql"):
        pytest.skip("only PostgreSQL is talked to like this")
    database = ServiceDatabase(database_url, PoolOptions(max_pool_size=1, max_overflow=0, retries=1))
    yield database
    database.close()


def ask(
    database: ServiceDatabase, statement: PreparedStatement, **values: object
) -> list[tuple[object, ...]]:
    return list(database.write(lambda tx: tx.queue(statement, values)).rows)


def echoed(database: ServiceDatabase, text: str | None, real: float) -> list[tuple[object, ...]]:
    return ask(database, ECHO, text=text, real=real)


@pytest.mark.parametrize("text", ["", "$1 %s 'x' \\", "Zoë ✓", None, "x" * 5_000_000])
def test_values_come_back_as_they_went(database: ServiceDatabase, text: str | None) -> None:
    for real in (0.1, 1e300, 1763650000.123456):
        assert echoed(database, text, real) == [(text, real)]


def test_large_batches_are_read_while_they_are_written(database: ServiceDatabase) -> None:
    def work(tx: WriteTransaction) -> list[int]:
        answers = [tx.queue(ECHO, {"text": str(number % 10) * 100_000, "real": 1.0}) for number in range(100)]
        return [len(answer.scalars[0]) for answer in answers]

    assert database.write(work) == [100_000] * 100


def test_a_write_in_one_exchange_leaves_no_transaction_to_end(
    database: ServiceDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ask(database, COUNT)  # also connects
    # psycopg itself waits for each answer with this method
    monkeypatch.setattr(PostgresqlConnection, "wait", None)
    assert ask(database, COUNT) == before


def test_a_nul_is_refused(database: ServiceDatabase) -> None:
    with pytest.raises(InvalidRequest, match="value that the database cannot"):
        echoed(database, "a\0b", 1.0)
    assert echoed(database, "ab", 1.0) == [("ab", 1.0)]


def test_statements_of_many_values_run(database: ServiceDatabase) -> None:
    many = PreparedStatement(sa.select(sa.literal("3").in_(bind_parameters("text", 200))))
    assert ask(database, many, **{f"text_{number}": str(number) for number in range(200)}) == [(True,)]


def test_a_failure_keeps_what_was_prepared(database: ServiceDatabase) -> None:
    assert ask(database, HALF, number=1) == [(1,)]
    with pytest.raises(InvalidRequest):  # division by zero is an error of data
        ask(database, HALF, number=0)
    with pytest.raises(sa.exc.ProgrammingError):
        ask(database, PreparedStatement(sa.select(sa.literal_column("nothing"))))
    assert ask(database, HALF, number=1) == [(1,)]


def test_a_session_that_forgot_its_statements_is_taught_them_again(database: ServiceDatabase) -> None:
    assert ask(database, COUNT) == [(0,)]
    database.write(lambda tx: tx.conn.exec_driver_sql("DEALLOCATE ALL").close())
    assert ask(database, COUNT) == [(0,)]


def test_earlier_statements_of_the_connection_are_in_the_same_transaction(
    database: ServiceDatabase,
) -> None:
    row = {"uuid": "x", "project_id": "p", "user_id": "u", "generation": 1, "updated_at": 0.5}

    def work(tx: WriteTransaction) -> None:
        tx.conn.execute(sa.insert(consumers).values(row))
        assert tx.queue(COUNT, {}).scalars == [1]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.write(work)
    assert ask(database, COUNT) == [(0,)]


def test_a_connection_that_is_ended_in_an_exchange_is_replaced(database: ServiceDatabase) -> None:
    attempts = []
    waiting = threading.Event()

    def end_it() -> None:
        waiting.wait(10)
        with psycopg.connect(database.url.replace("+psycopg", ""), autocommit=True) as other:
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(%' "
            while not other.execute(ended + "AND wait_event = 'PgSleep'").fetchall():
                pass

    def work(tx: WriteTransaction) -> list[int]:
        attempts.append(1)
        if len(attempts) > 1:
            return list(tx.queue(COUNT, {}).scalars)
        waiting.set()
        return list(tx.queue(SLEEP, {}).scalars)

    thread = threading.Thread(target=end_it)
    thread.start()
    assert database.write(work) == [0]
    thread.join()
    assert ask(database, COUNT) == [(0,)]
