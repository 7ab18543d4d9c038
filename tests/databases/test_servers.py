"""The test servers fulfil their interface."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.databases import DatabaseServer
from tests.databases.mariadb import MariaDB


@pytest.fixture
def url(database_server: DatabaseServer) -> Iterator[str]:
    url = database_server.fresh_database()
    _run(url, "CREATE TABLE parents (id INTEGER PRIMARY KEY)")
    _run(url, "CREATE TABLE children (parent_id INTEGER NOT NULL REFERENCES parents (id))")
    _run(url, "INSERT INTO parents VALUES (1)")
    _run(url, "INSERT INTO children VALUES (1)")
    yield url
    database_server.drop_database(url)


def _run(url: str, statement: str) -> list[tuple[int, ...]]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA foreign_keys = ON")
        result = connection.exec_driver_sql(statement)
        return [tuple(row) for row in result] if result.returns_rows else []


def _tables(url: str) -> list[str]:
    return sorted(sa.inspect(sa.create_engine(url, poolclass=sa.NullPool)).get_table_names())


def test_a_fresh_database_is_empty(database_server: DatabaseServer, url: str) -> None:
    fresh = database_server.fresh_database()
    assert _tables(fresh) == []
    assert _tables(url) == ["children", "parents"]
    database_server.drop_database(fresh)


def test_a_clone_has_the_rows_and_constraints_of_its_source(
    database_server: DatabaseServer, url: str
) -> None:
    clone = database_server.clone(url)
    assert _run(clone, "SELECT parent_id FROM children") == [(1,)]
    with pytest.raises(sa.exc.IntegrityError):
        _run(clone, "INSERT INTO children VALUES (2)")
    database_server.drop_database(clone)


def test_a_clone_changes_independently_of_its_source(database_server: DatabaseServer, url: str) -> None:
    clone = database_server.clone(url)
    _run(clone, "INSERT INTO parents VALUES (2)")
    assert _run(url, "SELECT id FROM parents") == [(1,)]
    database_server.drop_database(clone)


def test_a_restored_database_has_its_old_content_and_open_connections_see_it(
    database_server: DatabaseServer, url: str
) -> None:
    backup = database_server.backup(url)
    _run(url, "INSERT INTO parents VALUES (2)")
    user = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool).connect()
    query = "SELECT id FROM parents ORDER BY id"
    assert [tuple(row) for row in user.exec_driver_sql(query)] == [(1,), (2,)]
    database_server.restore(url, backup)
    assert [tuple(row) for row in user.exec_driver_sql(query)] == [(1,)]
    user.close()


def test_a_database_in_use_can_be_dropped(database_server: DatabaseServer, url: str) -> None:
    clone = database_server.clone(url)
    user = sa.create_engine(clone, poolclass=sa.NullPool).connect()
    user.exec_driver_sql("SELECT * FROM parents")
    database_server.drop_database(clone)
    user.invalidate()
    user.close()
    assert _run(url, "SELECT id FROM parents") == [(1,)]


def test_committed_rows_are_there_after_a_restart(database_server: DatabaseServer, url: str) -> None:
    database_server.restart()
    assert _run(url, "SELECT id FROM parents") == [(1,)]


def test_committed_rows_are_there_after_a_kill(database_server: DatabaseServer, url: str) -> None:
    database_server.kill()
    if database_server.kind != "sqlite":
        with pytest.raises(sa.exc.OperationalError):
            _run(url, "SELECT id FROM parents")
    database_server.start()
    assert _run(url, "SELECT id FROM parents") == [(1,)]


def test_each_mariadb_server_has_its_own_temporary_tables(database_server: DatabaseServer, url: str) -> None:
    if database_server.kind != "mariadb":
        pytest.skip("only MariaDB removes temporary tables of others when it starts")
    assert isinstance(database_server, MariaDB)
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        folder = connection.exec_driver_sql("SELECT @@tmpdir").scalar_one()
    assert folder == str(database_server.folder)
