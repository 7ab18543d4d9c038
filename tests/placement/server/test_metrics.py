"""Metrics of several workers: each worker answers for all."""

import re
from pathlib import Path

import pytest
import requests

from placement.db import migration
from tests import databases
from tests.placement.serving import service

pytestmark = pytest.mark.slow


def test_each_worker_answers_with_the_metrics_of_all(tmp_path: Path) -> None:
    with databases.create("sqlite") as server:
        url = server.fresh_database()
        migration.upgrade_schema(url)
        with service(url, tmp_path, workers=3, database_options="[metrics]\nenabled = true") as running:
            for _ in range(30):  # each on a connection of its own
                answer = requests.get(
                    f"{running.base}/resource_providers",
                    headers={"X-Auth-Token": "admin", "Connection": "close"},
                    timeout=60,
                )
                assert answer.status_code == 200
            told = {requests.get(f"{running.base}/metrics", timeout=60).text for _ in range(6)}
    line = r'^placement_requests_total\{operation="GET /resource_providers",status="200"\} (.*)$'
    (count,) = {float(found) for text in told for found in re.findall(line, text, re.MULTILINE)}
    assert count >= 31  # and those until it was started
