"""Tests of batches: either all statements run, in order, or none, and each answer belongs to its
statement.
"""

import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from placement.db.batch import (
    PreparedStatement,
    StatementFamily,
    bind_parameters,
    bind_rows,
    bind_values,
    split_rows,
)
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.engine import PoolOptions
from placement.db.tables import consumers
from placement.exceptions import Unavailable
from tests.databases import DatabaseServer

COUNT = PreparedStatement(sa.select(sa.func.count()).select_from(consumers))
PROJECT = PreparedStatement(
    sa.select(consumers.c.project_id, consumers.c.generation + 1).where(
        consumers.c.uuid == sa.bindparam("uuid")
    )
)


@pytest.fixture
def database(database_url: str) -> Iterator[ServiceDatabase]:
    database = ServiceDatabase(database_url)
    yield database
    database.close()


def consumer(number: int, project: str = "p") -> dict[str, object]:
    uuid = f"{number:08d}-0000-4000-8000-000000000000"
    return {"uuid": uuid, "project_id": project, "user_id": "u", "generation": 1, "updated_at": 0.5}


def count(database: ServiceDatabase) -> int:
    return int(database.write(lambda tx: tx.queue(COUNT, {}).scalars[0]))


def test_each_answer_is_that_of_its_statement_at_its_place(database: ServiceDatabase) -> None:
    def work(tx: WriteTransaction) -> list[object]:
        before = tx.queue(COUNT, {})
        tx.insert(consumers, [consumer(1, "one"), consumer(2, "two % of {all}")])
        answers = [tx.queue(PROJECT, {"uuid": consumer(number)["uuid"]}) for number in (2, 1, 3)]
        after = tx.queue(COUNT, {})
        return [list(map(tuple, each.rows)) for each in (after, *answers, before)]

    expected = [[(2,)], [("two % of {all}", 2)], [("one", 2)], [], [(0,)]]
    assert database.write(work) == expected


def test_queued_statements_run_before_the_connection_is_used(database: ServiceDatabase) -> None:
    def work(tx: WriteTransaction) -> int:
        tx.insert(consumers, [consumer(1)])
        return int(tx.conn.execute(sa.select(sa.func.count()).select_from(consumers)).scalar_one())

    assert database.write(work) == 1


def test_statements_without_a_reader_run_before_the_commit(database: ServiceDatabase) -> None:
    database.write(lambda tx: tx.insert(consumers, [consumer(1)]))
    assert count(database) == 1


def test_rows_beyond_the_size_of_a_statement_are_inserted(database: ServiceDatabase) -> None:
    database.write(lambda tx: tx.insert(consumers, [consumer(number) for number in range(1234)]))
    assert count(database) == 1234


def test_a_statement_that_fails_undoes_the_others_of_its_batch(database: ServiceDatabase) -> None:
    def work(tx: WriteTransaction) -> None:
        tx.insert(consumers, [consumer(1)])
        tx.insert(consumers, [consumer(2), consumer(2)])
        tx.insert(consumers, [consumer(3)])

    with pytest.raises(Unavailable):  # it never gets better
        database.write(work)
    assert count(database) == 0


def test_an_error_before_anything_was_sent_leaves_nothing(database: ServiceDatabase) -> None:
    def work(tx: WriteTransaction) -> None:
        tx.insert(consumers, [consumer(1)])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        database.write(work)
    assert count(database) == 0


def test_connections_that_died_in_the_pool_are_all_replaced(
    database_url: str, database_server: DatabaseServer
) -> None:
    database = ServiceDatabase(database_url, PoolOptions(max_pool_size=4, retries=1))
    together = threading.Barrier(4)

    def work(tx: WriteTransaction) -> int:
        found = int(tx.queue(COUNT, {}).scalars[0])
        together.wait(10)
        return found

    try:
        if database_server.kind != "sqlite":  # of which only one can write
            threads = [threading.Thread(target=database.write, args=(work,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            database_server.restart()
        assert [count(database) for _ in range(4)] == [0] * 4
    finally:
        database.close()


def test_places_are_filled_in_the_order_of_the_values() -> None:
    assert [parameter.key for parameter in bind_parameters("uuid", 2)] == ["uuid_0", "uuid_1"]
    assert bind_values("uuid", ["a", "b"]) == {"uuid_0": "a", "uuid_1": "b"}
    assert bind_rows([{"x": 1, "y": 2}, {"x": 3, "y": 4}]) == {"x_0": 1, "y_0": 2, "x_1": 3, "y_1": 4}
    assert [len(chunk) for chunk in split_rows(range(1001))] == [500, 500, 1]


@pytest.mark.parametrize("number", [1, 2, 3, 8, 9])
def test_a_family_selects_exactly_the_given_values(database: ServiceDatabase, number: int) -> None:
    family = StatementFamily(consumers.c.uuid, sa.select(consumers.c.uuid).order_by(consumers.c.uuid).where)
    rows = [consumer(each) for each in range(12)]

    def work(tx: WriteTransaction) -> list[object]:
        tx.insert(consumers, rows)
        return tx.queue(*family.bind_list(row["uuid"] for row in rows[:number])).scalars

    assert database.write(work) == [row["uuid"] for row in rows[:number]]


def test_a_family_compiles_one_statement_for_each_power_of_two() -> None:
    family = StatementFamily(consumers.c.uuid, sa.delete(consumers).where)
    assert len({family.bind_list(map(str, range(number)))[0] for number in range(1, 65)}) == 7


def test_a_family_keeps_no_statement_for_very_many_values() -> None:
    family = StatementFamily(consumers.c.uuid, sa.delete(consumers).where)
    first, values = family.bind_list(map(str, range(5000)))
    assert len(values) == 5000
    assert family.bind_list(map(str, range(5000)))[0] is not first
