"""A database that does not answer: requests are told so within limits, and all is well when it does again."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.databases import DatabaseServer
from tests.databases.proxy import Proxy
from tests.placement.serving import HEADERS, Service, service

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
def running(proxy: Proxy, tmp_path: Path, connect_timeout: int) -> Iterator[Service]:
    """One worker that knows one host."""
    with service(proxy.url, tmp_path, 1, database_options=LIMITS.format(connect_timeout)) as running:
        assert ask(running, "POST", "/resource_providers", json={"name": "host", "uuid": HOST}) == 200
        assert put_inventory(running) == 200
        yield running


def ask(running: Service, method: str, path: str, **options: Any) -> int:
    return requests.request(
        method, running.base + path, headers=HEADERS, timeout=HANGING, **options
    ).status_code


def put_inventory(running: Service, generation: int = 0) -> int:
    body = {"resource_provider_generation": generation, "inventories": {"VCPU": {"total": 8}}}
    return ask(running, "PUT", f"/resource_providers/{HOST}/inventories", json=body)


def eventually(running: Service, path: str) -> int:
    """The first answer that is not 503."""
    deadline = time.monotonic() + HANGING
    while (status := ask(running, "GET", path)) == 503 and time.monotonic() < deadline:
        time.sleep(0.1)
    return status


def test_requests_are_told_so_and_succeed_when_the_network_carries_again(
    proxy: Proxy, running: Service
) -> None:
    for first in ("read", "write"):
        proxy.swallow()
        if first == "read":
            assert ask(running, "GET", "/resource_providers") == 503
        assert put_inventory(running, 1) == 503
        assert ask(running, "GET", f"/allocations/{HOST}") == 503
        proxy.carry()
        assert eventually(running, f"/resource_providers/{HOST}/inventories") == 200
    generation = running.get(f"/resource_providers/{HOST}")["generation"]
    assert put_inventory(running, generation) == 200


@pytest.mark.parametrize("connect_timeout", [10])
def test_one_request_waits_for_the_database_and_others_are_answered_meanwhile(
    proxy: Proxy, running: Service
) -> None:
    proxy.swallow()
    assert ask(running, "GET", "/resource_providers") == 503  # now it is known
    answers: list[int] = []
    waiting = [
        threading.Thread(target=lambda: answers.append(ask(running, "GET", "/resource_providers")))
        for _ in range(8)  # of which the worker has in hand no more than four
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
    assert eventually(running, "/resource_providers") == 200


def test_a_worker_that_starts_meanwhile_answers_what_needs_no_database(proxy: Proxy, tmp_path: Path) -> None:
    proxy.swallow()
    with service(proxy.url, tmp_path, 1, database_options=LIMITS.format(2), ready=503) as running:
        assert ask(running, "GET", "/") == 200
        assert ask(running, "GET", "/healthcheck") == 200
        proxy.carry()
        assert eventually(running, "/resource_providers") == 200
