"""Tests of clients that create and remove the same objects at the same time: answers are right, and no
request fails.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests

from tests.databases import DatabaseServer
from tests.examples import examples
from tests.placement.serving import HEADERS, RunningService, service

pytestmark = pytest.mark.slow

CLIENTS = 8
ROUNDS = examples(40)
UUIDS = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(3)]
HOST = "00000001-0000-4000-8000-0000000000aa"
OWNER = {"project_id": "project", "user_id": "user", "consumer_type": "INSTANCE"}


class RacingClient(requests.Session):
    """A client that sends requests and counts the answers."""

    def __init__(self, running: RunningService, answers: Counter[tuple[str, int]]) -> None:
        super().__init__()
        self.headers.update(HEADERS)
        self._base = running.base
        self._answers = answers

    def ask(self, method: str, path: str, **options: Any) -> None:
        response = self.request(method, self._base + path, timeout=120, **options)
        self._answers[method, response.status_code] += 1


@pytest.fixture
def running(database_server: DatabaseServer, database_url: str, tmp_path: Path) -> Iterator[RunningService]:
    with service(database_url, tmp_path, 2) as running:
        yield running


def race(running: RunningService, once: Callable[[RacingClient, str], None]) -> Counter[tuple[str, int]]:
    """Let each client send the same requests about the same few objects; count the answers by request and
    status.
    """
    counted = []

    def run() -> None:
        answers: Counter[tuple[str, int]] = Counter()
        client = RacingClient(running, answers)
        for number in range(ROUNDS):
            once(client, UUIDS[number % len(UUIDS)])
        counted.append(answers)

    threads = [threading.Thread(target=run) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counted) == CLIENTS
    return sum(counted, Counter())


def test_clients_create_and_remove_the_same_providers(running: RunningService) -> None:
    def once(client: RacingClient, uuid: str) -> None:
        client.ask("POST", "/resource_providers", json={"name": uuid, "uuid": uuid})
        client.ask("DELETE", f"/resource_providers/{uuid}")

    answers = race(running, once)
    assert set(answers) <= {("POST", 200), ("POST", 409), ("DELETE", 204), ("DELETE", 404)}
    # each confirmed creation was undone once
    assert answers["POST", 200] == answers["DELETE", 204] > 0
    assert running.get("/resource_providers")["resource_providers"] == []


def test_clients_create_and_remove_the_same_consumers(running: RunningService) -> None:
    setup = RacingClient(running, Counter())
    setup.ask("POST", "/resource_providers", json={"name": "host", "uuid": HOST})
    inventory = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}}
    setup.ask("PUT", f"/resource_providers/{HOST}/inventories", json=inventory)
    body = {"allocations": {HOST: {"resources": {"VCPU": 1}}}, "consumer_generation": None, **OWNER}

    def once(client: RacingClient, uuid: str) -> None:
        client.ask("PUT", f"/allocations/{uuid}", json=body)
        client.ask("DELETE", f"/allocations/{uuid}")

    answers = race(running, once)
    assert set(answers) <= {("PUT", 204), ("PUT", 409), ("DELETE", 204), ("DELETE", 404)}
    assert answers["PUT", 204] == answers["DELETE", 204] > 0
    assert running.get(f"/resource_providers/{HOST}/usages")["usages"] == {"VCPU": 0}


@pytest.mark.parametrize("kind", ["traits", "resource_classes"])
def test_clients_create_and_remove_the_same_names(running: RunningService, kind: str) -> None:
    names = {uuid: f"CUSTOM_{uuid[:8]}" for uuid in UUIDS}

    def once(client: RacingClient, uuid: str) -> None:
        client.ask("PUT", f"/{kind}/{names[uuid]}")
        client.ask("DELETE", f"/{kind}/{names[uuid]}")

    answers = race(running, once)
    assert set(answers) <= {("PUT", 201), ("PUT", 204), ("DELETE", 204), ("DELETE", 404)}
    # each created name was removed once, and each removal was confirmed to one client
    assert answers["PUT", 201] == answers["DELETE", 204] > 0
    listed = running.get(f"/{kind}")[kind]
    assert not {each if kind == "traits" else each["name"] for each in listed} & set(names.values())


def test_claims_are_not_refused_while_other_names_come_and_go(running: RunningService) -> None:
    setup = RacingClient(running, Counter())
    setup.ask("POST", "/resource_providers", json={"name": "host", "uuid": HOST})
    inventory = {"resource_provider_generation": 0, "inventories": {"VCPU": {"total": 8}}}
    setup.ask("PUT", f"/resource_providers/{HOST}/inventories", json=inventory)
    allocations = {HOST: {"resources": {"VCPU": 1}}}

    def once(client: RacingClient, uuid: str) -> None:
        client.ask("PUT", "/resource_classes/CUSTOM_COMES")
        consumer = str(uuid4())
        body = {"allocations": allocations, "consumer_generation": None, **OWNER}
        client.ask("POST", "/allocations", json={consumer: body})
        client.ask(
            "POST", "/allocations", json={consumer: {**body, "allocations": {}, "consumer_generation": 1}}
        )
        client.ask("DELETE", "/resource_classes/CUSTOM_COMES")

    answers = race(running, once)
    assert answers["POST", 204] == sum(count for (method, _), count in answers.items() if method == "POST")
    assert running.get(f"/resource_providers/{HOST}/usages")["usages"] == {"VCPU": 0}
