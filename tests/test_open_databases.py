"""Tests close services, and fail if they leave a connection open."""

import gc
import re
import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from placement.db.database import ServiceDatabase
from placement.exceptions import Unavailable
from tests.databases import DatabaseServer
from tests.open_databases import OpenDatabases
from tests.placement.running import Admin, application


def open_one() -> sa.Engine:
    """Make an engine with one connection, which its pool keeps."""
    engine = sa.create_engine("sqlite://")
    engine.connect().close()
    return engine


def leave_one(watched: OpenDatabases) -> None:
    with watched.scope():
        open_one()


def test_a_connection_that_is_left_open_is_reported_with_the_line_that_made_its_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.open_databases._SECONDS", 0.0)
    with OpenDatabases.watched() as watched:
        with pytest.raises(AssertionError, match=rf"made at {re.escape(__file__)}:\d+: 1$"):
            leave_one(watched)
        with watched.scope():
            open_one().dispose()


def test_an_engine_of_an_outer_scope_may_connect_in_an_inner_one() -> None:
    with OpenDatabases.watched() as watched:
        engine = sa.create_engine("sqlite://")
        with watched.scope():
            engine.connect().close()
        engine.dispose()


def test_services_are_closed_at_the_end_of_their_scope(sqlite_url: str) -> None:
    with OpenDatabases.watched() as watched:
        with watched.scope():
            assert Admin(application(sqlite_url))("GET", "/resource_providers").status_code == 200
            held = watched.open_connections()
            assert held
        assert watched.open_connections() == []
        for each in held:
            with pytest.raises(sqlite3.ProgrammingError, match="closed"):
                each.cursor()


def test_services_on_a_database_are_closed_before_it_is_dropped(sqlite_url: str, tmp_path: Path) -> None:
    with OpenDatabases.watched() as watched:
        for url in (sqlite_url, f"sqlite:///{tmp_path}/other"):
            with ServiceDatabase(url).read():
                pass
        assert len(watched.open_connections()) == 2
        watched.close_services(sqlite_url)
        assert len(watched.open_connections()) == 1


def test_a_connection_in_use_is_closed_with_its_service(sqlite_url: str) -> None:
    with OpenDatabases.watched() as watched, watched.scope():
        reading = ServiceDatabase(sqlite_url).read()
        connection = reading.__enter__()
        assert len(watched.open_connections()) == 1
    with pytest.raises(sa.exc.ProgrammingError, match="closed"):
        connection.exec_driver_sql("SELECT 1")
    with pytest.raises(Unavailable):
        reading.__exit__(None, None, None)


def test_a_service_without_its_database_is_collected_silently(
    database_server: DatabaseServer, database_template: str, caplog: pytest.LogCaptureFixture
) -> None:
    url = database_server.clone(database_template)
    assert Admin(application(url))("GET", "/resource_providers").status_code == 200
    database_server.drop_database(url)
    gc.collect()
    assert [each for each in caplog.records if each.name.startswith("sqlalchemy")] == []
