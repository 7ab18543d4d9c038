"""Tests of database servers that answer but accept no writes: standby servers and former primary servers."""

from collections.abc import Iterator

import psycopg
import pymysql
import pytest
from sqlalchemy import exc
from sqlalchemy.engine import make_url

from placement.db import migration
from placement.db.database import ServiceDatabase, WriteTransaction
from placement.exceptions import Unavailable
from tests import databases
from tests.databases import ServerMissing
from tests.databases.standby import StandbyPair


def touch(tx: WriteTransaction) -> None:
    tx.lock_names()


@pytest.fixture(scope="module")
def pair() -> Iterator[StandbyPair]:
    try:
        made = StandbyPair()
    except ServerMissing as error:
        pytest.skip(str(error))
    with made:
        yield made


@pytest.fixture(scope="module")
def of_both(pair: StandbyPair) -> str:
    """The URL of a database that names both servers."""
    url = pair.fresh_database()
    migration.upgrade_schema(url)
    return url


def only(url: str, port: int, **parameters: str) -> str:
    """The URL of the database on one of the servers."""
    single = make_url(url).difference_update_query(["host"]).set(host="127.0.0.1", port=port)
    return single.update_query_dict(parameters).render_as_string(hide_password=False)


def connections(port: int, name: str | None) -> int:
    with psycopg.connect(f"host=127.0.0.1 port={port} user=placement dbname=postgres") as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
        row = connection.execute(query, (name,)).fetchone()
        assert row is not None
        return int(row[0])


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.parametrize("parameters", [{}, {"target_session_attrs": "any"}], ids=["default", "any"])
def test_no_connection_stays_on_a_standby_until_it_is_promoted(
    pair: StandbyPair, of_both: str, parameters: dict[str, str]
) -> None:
    url = only(of_both, pair.standby.port, **parameters)
    database = ServiceDatabase(url)
    name = make_url(url).database
    for _ in range(2):
        with pytest.raises(Unavailable):
            database.position()
        assert connections(pair.standby.port, name) == 0
        with pytest.raises(Unavailable):
            database.write(touch)
        assert connections(pair.standby.port, name) == 0
    both = ServiceDatabase(of_both)
    before = both.position()
    both.write(touch)
    pair.primary.kill()
    pair.fail_over()
    pair.restore()
    assert database.position().history == both.position().history != before.history
    assert database.position() == both.position()
    assert both.position().total > before.total
    database.write(touch)
    database.close()
    both.close()


@pytest.mark.postgresql
def test_a_server_without_an_identity_is_asked_for_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    try:
        server = databases.create("postgresql")
    except ServerMissing as error:
        pytest.skip(str(error))
    with server:
        url = make_url(server.fresh_database())
        text = url.render_as_string(hide_password=False)
        migration.upgrade_schema(text)

        def owner(statement: str) -> None:
            with psycopg.connect(text.replace("+psycopg", ""), autocommit=True) as connection:
                connection.execute(statement.encode())

        owner("CREATE ROLE plain LOGIN")
        owner("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        database = ServiceDatabase(url.set(username="plain").render_as_string(hide_password=False))
        with pytest.raises(exc.ProgrammingError, match="permission denied"):
            database.position()  # the identity of the table: nothing else helps
        owner("GRANT ALL ON ALL TABLES IN SCHEMA public TO plain")
        before = database.position()
        database.write(touch)
        after = database.position()
        assert after.total > before.total
        assert after.history == before.history
        told = [record for record in caplog.records if "cannot read the identity of" in record.message]
        assert len(told) == 1
        database.close()


@pytest.mark.slow
@pytest.mark.mysql
def test_a_mariadb_server_that_was_made_read_only_is_left_with_all_connections() -> None:
    try:
        server = databases.create("mariadb")
    except ServerMissing as error:
        pytest.skip(str(error))
    with server:
        url = make_url(server.fresh_database())
        port = url.port or 0

        def root(statement: str) -> list[tuple[int, ...]]:
            with pymysql.connect(host="127.0.0.1", port=port, user="root", ssl_disabled=True) as connection:
                cursor = connection.cursor()
                cursor.execute(statement)
                return [tuple(row) for row in cursor.fetchall()]

        root("CREATE USER plain@'127.0.0.1'")
        root("GRANT ALL ON *.* TO plain@'127.0.0.1'")
        root("REVOKE READ ONLY ADMIN, SUPER ON *.* FROM plain@'127.0.0.1'")
        plain = url.set(username="plain").render_as_string(hide_password=False)
        migration.upgrade_schema(plain)
        database = ServiceDatabase(plain)
        before = database.position()
        database.write(touch)
        with database.read():
            pass
        mine = "SELECT id FROM information_schema.processlist WHERE user = 'plain'"
        assert len(root(mine)) == 3
        root("SET GLOBAL read_only = 1")
        for _ in range(2):
            with pytest.raises(Unavailable):
                database.write(touch)
            with pytest.raises(Unavailable):
                database.position()
            assert root(mine) == []
        root("SET GLOBAL read_only = 0")
        assert database.position().total > before.total
        database.write(touch)
        database.close()
