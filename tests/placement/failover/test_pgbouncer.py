"""Tests that the service works through PgBouncer, which in one mode uses another connection for each
transaction.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from placement.cmd import manage
from placement.db import migration
from tests.databases import ServerMissing
from tests.databases.pgbouncer import PgBouncer
from tests.databases.postgresql import PostgreSQL
from tests.placement.failover.judge import FailoverLoad
from tests.placement.serving import service

pytestmark = [pytest.mark.slow, pytest.mark.postgresql]


@pytest.fixture(scope="module", params=["session", "transaction"])
def pooler(request: pytest.FixtureRequest) -> Iterator[PgBouncer]:
    try:
        server = PostgreSQL(durable=False)
        with server, PgBouncer(request.param, server.port) as pooler:
            yield pooler
    except ServerMissing as error:
        pytest.skip(str(error))


@pytest.fixture
def url(pooler: PgBouncer) -> str:
    """The URL of a migrated database, through PgBouncer."""
    made = make_url(pooler.fresh_database())
    if pooler.mode == "transaction":
        made = made.update_query_dict({"prepare_threshold": "none"})
    url = made.render_as_string(hide_password=False)
    migration.upgrade_schema(url)
    return url


def test_claims_by_several_workers_keep_the_books(url: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        services = []
        for name in "ab":
            own = tmp_path / name
            own.mkdir()
            services.append(stack.enter_context(service(url, own, 2)))
        load = FailoverLoad(services, 1)
        with load:
            time.sleep(6)
        load.check_books()
    print(load.judge.counts)
    assert load.judge.wrong == []
    assert load.judge.counts["PUT 204"] > 10
    assert not [name for name in load.judge.counts if name.endswith((" 500", " 503"))]


@pytest.mark.parametrize(
    "command", [["db", "sync"], ["db", "renew-epoch"], ["audit"], ["heal"]], ids=" ".join
)
def test_commands_of_operators_work(url: str, tmp_path: Path, command: list[str]) -> None:
    config = tmp_path / "placement.conf"
    config.write_text(f"[placement_database]\nconnection = {url}\n")
    for _ in range(3):
        assert manage.main(["--config-file", str(config), *command]) == 0
