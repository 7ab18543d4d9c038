"""Tests of `/healthcheck`, which queries the database within a time limit. Clients need no token."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from placement.api.middleware import add_layers
from placement.db import migration
from tests.waits import wait_for


@pytest.fixture
def api_on(handlers: Any, conf: Any, client_of: Callable[..., Any]) -> Callable[[str], Any]:
    """A function that makes a client of the service with a health check of this database."""

    def api_on(url: str) -> Any:
        add_layers(None, conf)  # makes the options of the health check known
        conf.set_override("connection", url, "placement_database")
        conf.set_override("backends", ["placement_database"], "healthcheck")
        return client_of(add_layers(handlers, conf))

    return api_on


def test_a_database_that_answers_is_healthy(api_on: Any, database_url: str) -> None:
    api = api_on(database_url)
    for _ in range(3):
        assert api.get("/healthcheck", status=200).text == "OK"
    api.request("/healthcheck", method="HEAD", status=204)


def test_the_database_is_not_asked_without_the_backend(
    handlers: Any, conf: Any, client_of: Callable[..., Any]
) -> None:
    conf.set_override("connection", "postgresql+psycopg://nobody@127.0.0.1:1/none", "placement_database")
    client_of(add_layers(handlers, conf)).get("/healthcheck", status=200)


def test_a_database_that_refuses_is_named_without_its_secrets(api_on: Any) -> None:
    api = api_on("postgresql+psycopg://somebody:secret@127.0.0.1:1/placement")
    assert api.get("/healthcheck", status=503).text == "the database is not available"


def test_a_database_that_does_not_answer_is_reported_in_time_and_asked_once(api_on: Any) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=20) as swallowing:
        api = api_on(f"postgresql+psycopg://nobody@127.0.0.1:{swallowing.getsockname()[1]}/none")
        for _ in range(5):
            assert api.get("/healthcheck", status=503).text == "the database does not answer"
        api.get("/", headers={"X-Auth-Token": "ann"}, status=200)
        swallowing.settimeout(5)
        connection, _ = swallowing.accept()
        swallowing.setblocking(False)
        with pytest.raises(BlockingIOError):
            swallowing.accept()
        connection.close()


def test_a_database_with_another_schema_is_unhealthy_until_it_is_migrated(
    api_on: Any, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/placement.sqlite"
    migration.upgrade_schema(url, "0001")
    api = api_on(url)
    words = "the database does not have a schema that this version can work with"
    assert api.get("/healthcheck", status=503).text == words
    migration.upgrade_schema(url)
    wait_for(lambda: api.get("/healthcheck", expect_errors=True).text == "OK")
