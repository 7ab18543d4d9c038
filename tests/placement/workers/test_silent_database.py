"""Tests of a database that does not answer: requests fail within time limits, and succeed when it answers
again.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.databases import DatabaseServer
from tests.databases.proxy import Proxy
from tests.placement.serving import HEADERS, RunningService, service
from tests.waits import wait_for

pytestmark = pytest.mark.slow

HOST = "00000001-0000-4000-8000-000000000000"
LIMITS = "connect_timeout = {}\nstatement_timeout = 2\nlock_timeout = 2\nidle_in_transaction_timeout = 2\n"
HANGING = 60  # seconds after which a test gives up


@pytest.fixture
def proxy(database_server: DatabaseServer, database_url: str) -> Iterator[Proxy]:
    if database_server.kind == "sqlite":
        pytest.skip("SQLite has no server, and no network in between")
    with Proxy(database_url) as proxy:
        yield proxy


@pytest.fixture
def connect_timeout() -> int:
    return 2


@pytest.fixture
def running(proxy: Proxy, tmp_path: Path, connect_timeout: int) -> Iterator[RunningService]:
    """One worker that has read one host."""
    with service(proxy.url, tmp_path, 1, database_options=LIMITS.format(connect_timeout)) as running:
        assert ask(running, "POST", "/resource_providers", json={"name": "host", "uuid": HOST}) == 200
        assert put_inventory(running) == 200
        yield running


def ask(running: RunningService, method: str, path: str, **options: Any) -> int:
    return requests.request(
        method, running.base + path, headers=HEADERS, timeout=HANGING, **options
    ).status_code


def put_inventory(running: RunningService, generation: int = 0) -> int:
    body = {"resource_provider_generation": generation, "inventories": {"VCPU": {"total": 8}}}
    return ask(running, "PUT", f"/resource_providers/{HOST}/inventories", json=body)


def status_after_outage(running: RunningService, path: str) -> int:
    """Return the status of the first answer that is not 503."""

    def ask_again() -> int | None:
        return None if (status := ask(running, "GET", path)) == 503 else status

    status = wait_for(ask_again, f"GET {path} is not answered with 503")
    assert status is not None  # for the type checker: wait_for returns a true value
    return status


def test_requests_get_503_and_succeed_when_the_network_carries_again(
    proxy: Proxy, running: RunningService
) -> None:
    for first in ("read", "write"):
        proxy.swallow()
        if first == "read":
            assert ask(running, "GET", "/resource_providers") == 503
        assert put_inventory(running, 1) == 503
        assert ask(running, "GET", f"/allocations/{HOST}") == 503
        proxy.carry()
        assert status_after_outage(running, f"/resource_providers/{HOST}/inventories") == 200
    generation = running.get(f"/resource_providers/{HOST}")["generation"]
    assert put_inventory(running, generation) == 200


@pytest.mark.parametrize("connect_timeout", [10])
def test_one_request_waits_for_the_database_and_others_fail_at_once(
    proxy: Proxy, running: RunningService
) -> None:
    proxy.swallow()
    assert ask(running, "GET", "/resource_providers") == 503  # the worker has detected the silence
    answers: list[int] = []
    waiting = [
        threading.Thread(target=lambda: answers.append(ask(running, "GET", "/resource_providers")))
        for _ in range(8)  # the worker handles at most four of them at a time
    ]
    for thread in waiting:
        thread.start()
    assert ask(running, "GET", "/") == 200
    assert ask(running, "GET", "/healthcheck") == 200
    assert put_inventory(running, 1) == 503
    assert sum(thread.is_alive() for thread in waiting) >= 1
    proxy.carry()
    for thread in waiting:
        thread.join()
    assert answers.count(503) >= 7
    assert status_after_outage(running, "/resource_providers") == 200


def test_a_worker_started_meanwhile_answers_requests_without_database(proxy: Proxy, tmp_path: Path) -> None:
    proxy.swallow()
    with service(proxy.url, tmp_path, 1, database_options=LIMITS.format(2), ready=503) as running:
        assert ask(running, "GET", "/") == 200
        assert ask(running, "GET", "/healthcheck") == 200
        proxy.carry()
        assert status_after_outage(running, "/resource_providers") == 200
