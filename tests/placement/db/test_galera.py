"""Tests of a Galera cluster with each worker on another node."""

import multiprocessing
import threading
import time
import uuid
from collections.abc import Iterator, Sequence

import pytest
import sqlalchemy as sa

from placement.db import migration
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.db.engine import PoolOptions
from placement.exceptions import Unavailable
from tests.databases import ServerMissing
from tests.databases.galera import Galera
from tests.placement.running import Admin, application
from tests.waits import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.mysql]

_ROUNDS = 100
_CHANGES = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[Galera]:
    try:
        made = Galera()
    except ServerMissing as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture
def nodes(cluster: Galera) -> Iterator[Sequence[ServiceDatabase]]:
    """A migrated database, through each node of the cluster."""
    urls = cluster.fresh_database()
    migration.upgrade_schema(urls[0])
    made = [ServiceDatabase(url) for url in urls]
    yield made
    for each in made:
        each.close()


def test_a_node_shows_at_once_what_another_has_confirmed(nodes: Sequence[ServiceDatabase]) -> None:
    first, second, third = nodes
    for _ in range(_ROUNDS):
        before = second.position()
        first.write(lambda tx: tx.lock_names())
        assert second.position().total > before.total
        assert second.position() == third.position() == first.position()


def test_a_writer_sees_what_another_node_has_confirmed_whatever_it_does_first(
    nodes: Sequence[ServiceDatabase],
) -> None:
    first, second, _ = nodes
    for number in range(_ROUNDS):
        first.write(
            lambda tx, number=number: tx.conn.exec_driver_sql(  # type: ignore[misc]  # binds early
                f"INSERT INTO traits (name, updated_at) VALUES ('CUSTOM_{number}', 0)"
            ).close()
        )
        gone = second.write(
            lambda tx, number=number: (
                tx.conn.exec_driver_sql(  # type: ignore[misc]  # binds early
                    f"DELETE FROM traits WHERE name = 'CUSTOM_{number}'"
                ).rowcount
            )
        )
        assert gone == 1


def test_writers_of_one_bucket_on_different_nodes_lose_nothing(nodes: Sequence[ServiceDatabase]) -> None:
    first, *_ = nodes
    first.write(
        lambda tx: tx.conn.exec_driver_sql(
            "INSERT INTO traits (name, updated_at) VALUES ('CUSTOM_N', 0)"
        ).close()
    )

    def count_up(database: ServiceDatabase) -> None:
        for _ in range(20):

            def work(tx: WriteTransaction) -> None:
                tx.lock_names()
                query = "SELECT updated_at FROM traits WHERE name = 'CUSTOM_N'"
                value = tx.conn.exec_driver_sql(query).scalar_one()
                tx.conn.exec_driver_sql(
                    f"UPDATE traits SET updated_at = {value + 1} WHERE name = 'CUSTOM_N'"
                ).close()

            while True:
                try:
                    database.write(work)
                    break
                except Unavailable:
                    time.sleep(0.01)

    threads = [threading.Thread(target=count_up, args=(node,)) for node in nodes for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for node in nodes:
        with node.read() as conn:
            query = "SELECT updated_at FROM traits WHERE name = 'CUSTOM_N'"
            assert conn.exec_driver_sql(query).scalar_one() == 20 * len(threads)


def test_reads_are_answered_while_another_node_changes_the_schema(cluster: Galera) -> None:
    """A change of the schema ends transactions on the other nodes, those that only read among them."""
    urls = cluster.fresh_database()
    migration.upgrade_schema(urls[0])
    services = [Admin(application(url)) for url in urls[1:]]
    answers: list[int] = []
    is_over = threading.Event()

    def read(admin: Admin) -> None:
        while not is_over.is_set():
            answers.append(admin("GET", f"/allocations/{uuid.uuid4()}").status_code)

    threads = [threading.Thread(target=read, args=(each,)) for each in services for _ in range(2)]
    engine = sa.create_engine(urls[0])
    try:
        for thread in threads:
            thread.start()
        for number in range(_CHANGES):
            with engine.begin() as conn:
                conn.exec_driver_sql(
                    f"ALTER TABLE consumers ADD COLUMN added_{number} INTEGER, ALGORITHM=COPY"
                )
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        engine.dispose()
    assert set(answers) == {200}


def test_a_node_that_is_cut_off_is_unavailable_and_right_when_it_is_back(
    cluster: Galera, nodes: Sequence[ServiceDatabase]
) -> None:
    first, second, _ = nodes
    before = second.position()
    cluster.nodes[1].isolate(True)
    try:
        first.write(lambda tx: tx.lock_names())
        with pytest.raises(Unavailable):
            second.position()
        with pytest.raises(Unavailable):
            second.write(lambda tx: tx.lock_names())
        with pytest.raises(Unavailable), second.read():
            pass
    finally:
        cluster.nodes[1].isolate(False)
    wait_for(cluster.nodes[1].is_ready)
    assert second.position() == first.position() != before


def test_the_server_decides_if_nodes_do_not_wait_for_each_other(cluster: Galera) -> None:
    database = ServiceDatabase(cluster.fresh_database()[0], PoolOptions(wsrep_sync_wait=0))
    with database.read() as conn:
        assert conn.exec_driver_sql("SELECT @@wsrep_sync_wait").scalar_one() == 0
    database.close()


def test_migrations_by_way_of_all_nodes_at_once_all_succeed(cluster: Galera) -> None:
    urls = cluster.fresh_database()
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=migration.upgrade_schema, args=(url,)) for url in (*urls, *urls)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 6
    for url in urls:
        assert migration.version(url) == migration.newest_revision()
