"""Tests of workers on a database that a later version of the service migrates meanwhile."""

import os
import signal
from pathlib import Path

import pytest
import requests

from placement.db import buckets, migration
from tests.placement.serving import HEADERS, RunningService, service
from tests.placement.sql import execute_sql
from tests.waits import wait_for

pytestmark = pytest.mark.slow


def migrate_elsewhere(url: str, revision: str) -> None:
    """Change the revision and the epoch of the database, as ``db sync`` of a later version does."""
    execute_sql(
        url,
        f"UPDATE alembic_version SET version_num = '{revision}'",
        f"UPDATE change_buckets SET counter = counter + 1 WHERE id = {buckets.EPOCH}",
    )


def replace_worker(running: RunningService) -> None:
    """Kill the worker, and wait for the process that replaces it."""
    (before,) = running.workers()
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: running.workers() not in ([], [before]))


@pytest.mark.parametrize("options", ["", "sync_on_startup = true"])
def test_old_workers_serve_on_a_newer_schema_of_the_same_thousand(
    database_url: str, tmp_path: Path, options: str
) -> None:
    with service(database_url, tmp_path, 1, database_options=options) as running:
        migrate_elsewhere(database_url, "0999")
        running.wait(200)
        replace_worker(running)
        running.wait(200)
        assert migration.version(database_url) == "0999"
        migrate_elsewhere(database_url, "1000")
        replace_worker(running)
        running.wait(503)
        answer = requests.get(f"{running.base}/resource_providers", headers=HEADERS, timeout=60)
        assert "revision 1000 of a later version" in answer.json()["errors"][0]["detail"]
    log = (tmp_path / "service.log").read_text()
    assert "WARNING placement.api.service" in log
    assert "at revision 0999, which a later version of this service made; upgrade this service, too" in log
