"""Many claim the same few hosts, each in one call: all there is goes to somebody before one is sent away.

So it is with the places that the policy of a group leaves. `PLACEMENT_RACING_CLAIMS=100000` has so many
claims race.
"""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests

from tests.databases import DatabaseServer
from tests.examples import examples
from tests.placement.serving import HEADERS, Service, service

pytestmark = pytest.mark.slow

CLAIMS = int(os.environ.get("PLACEMENT_RACING_CLAIMS", examples(240)))
CLIENTS = 8
WORKERS = 4
HOSTS = 6
NODES = 2
PER_NODE = 10
CAPACITY = HOSTS * NODES * PER_NODE
PER_HOST = NODES * PER_NODE
MEMBERS = 2
"""How many of a group that is kept apart one host may have."""
PLACES = HOSTS * MEMBERS
OWNER = {"project_id": "project", "user_id": "user", "consumer_type": "INSTANCE"}
QUERY = "resources1=PCPU:1"
NO_CANDIDATE = "placement.ext.no_candidate"


@dataclass
class Client(threading.Thread):
    """Claims until there is no room: one or two at once, in turn.

    ``fields`` are more of each claim, and ``room`` says how many could be claimed yet.
    """

    running: Service
    room: Callable[[], int]
    fields: dict[str, Any]
    claimed: list[list[str]] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.session = requests.Session()
        self.session.headers.update(HEADERS)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        try:
            size = 2
            while size:
                if self.claim([str(uuid4()) for _ in range(size)]):
                    size = 3 - size
                else:
                    size -= 1
        except Exception as error:
            self.failures.append(repr(error))

    def claim(self, consumers: list[str]) -> bool:
        """Whether they have a place; the request is repeated if a worker that had it in hand was killed."""
        body = {
            "claims": [
                {
                    "consumer_uuid": each,
                    "consumer_generation": None,
                    "query": QUERY,
                    **self.fields,
                    **OWNER,
                }
                for each in consumers
            ]
        }
        repeated = False
        while True:
            try:
                answer = self.session.post(f"{self.running.base}/ext/v1/claims", json=body, timeout=60)
            except requests.RequestException:
                self.answers["connection lost"] += 1
                repeated = True
                continue
            code = answer.json()["errors"][0]["code"] if answer.status_code >= 400 else ""
            self.answers[f"{answer.status_code} {code}".strip()] += 1
            if answer.status_code == 201 or (repeated and code == "placement.concurrent_update"):
                self.claimed.append(consumers)
                return True
            if code == NO_CANDIDATE:
                # nobody gives anything back, so what is free now was free when it was said
                free = self.room()
                if free >= len(consumers):
                    self.failures.append(f"no candidate for {len(consumers)} while {free} are free")
                return False
            if answer.status_code != 503:
                self.failures.append(f"{answer.status_code} {answer.text}")
                return False


def used(running: Service, nodes: list[str]) -> list[int]:
    found = [running.get(f"/resource_providers/{uuid}/usages")["usages"] for uuid in nodes]
    return [sum(each.values()) for each in found]


def used_by_host(running: Service, nodes: list[str]) -> list[int]:
    found = used(running, nodes)
    return [sum(found[start : start + NODES]) for start in range(0, len(found), NODES)]


def make_hosts(running: Service) -> list[str]:
    """The uuids of the nodes that have what is claimed."""
    session = requests.Session()
    session.headers.update(HEADERS)
    nodes = []
    for number in range(HOSTS):
        path = f"{running.base}/resource_providers"
        root = session.post(path, json={"name": f"host-{number}"}, timeout=30).json()["uuid"]
        for node in range(NODES):
            body = {"name": f"host-{number}-{node}", "parent_provider_uuid": root}
            uuid = session.post(path, json=body, timeout=30).json()["uuid"]
            inventories = {"PCPU": {"total": PER_NODE}}
            body = {"resource_provider_generation": 0, "inventories": inventories}
            session.put(f"{path}/{uuid}/inventories", json=body, timeout=30).raise_for_status()
            nodes.append(uuid)
    return nodes


def fill(
    running: Service, room: Callable[[], int], fields: dict[str, Any], rng: random.Random
) -> list[Client]:
    """Have all clients claim until there is no room; meanwhile a worker is killed."""
    # half of them want the same: the host that is fullest
    clients = [
        Client(running, room, {**fields, "order": {"pack": 1} if number % 2 else {}})
        for number in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    clients[0].join(rng.uniform(0, 0.3))
    workers = running.workers()
    if len(workers) == WORKERS:
        os.kill(rng.choice(workers), signal.SIGKILL)
    for client in clients:
        client.join(timeout=300)
        assert not client.is_alive()
    assert [each for client in clients for each in client.failures] == []
    return clients


def consumers_of(clients: list[Client]) -> list[str]:
    return [consumer for client in clients for each in client.claimed for consumer in each]


def give_back(running: Service, consumers: list[str]) -> None:
    for consumer in consumers:
        path = f"{running.base}/allocations/{consumer}"
        assert requests.delete(path, headers=HEADERS, timeout=60).status_code == 204


def held(running: Service, consumer: str) -> int:
    shown = running.get(f"/allocations/{consumer}")["allocations"]
    return sum(sum(each["resources"].values()) for each in shown.values())


def test_all_is_claimed_before_anybody_is_sent_away(
    database_server: DatabaseServer, database_url: str, tmp_path: Path
) -> None:
    rng = random.Random(CLAIMS)
    answers: Counter[str] = Counter()
    with service(database_url, tmp_path, WORKERS) as running:
        nodes = make_hosts(running)
        for _ in range(max(1, CLAIMS // CAPACITY)):
            clients = fill(running, lambda: CAPACITY - sum(used(running, nodes)), {}, rng)
            # all that there is, and no more, is held by those who were told so
            assert used(running, nodes) == [PER_NODE] * len(nodes)
            claimed = consumers_of(clients)
            assert len(claimed) == CAPACITY
            assert [held(running, consumer) for consumer in claimed] == [1] * CAPACITY
            give_back(running, claimed)
            answers.update(sum((client.answers for client in clients), Counter()))
    print(f"{database_server.kind}: {dict(answers)}")
    assert answers[f"409 {NO_CANDIDATE}"] > 0


def test_all_places_that_a_group_leaves_are_taken_and_no_more(
    database_server: DatabaseServer, database_url: str, tmp_path: Path
) -> None:
    rng = random.Random(CLAIMS)
    answers: Counter[str] = Counter()
    with service(database_url, tmp_path, WORKERS) as running:
        nodes = make_hosts(running)
        for _ in range(max(1, CLAIMS // CAPACITY)):
            apart = {"name": str(uuid4()), "policy": "anti-affinity", "max_per_root": MEMBERS}
            clients = fill(running, lambda: PLACES - sum(used(running, nodes)), {"group": apart}, rng)
            assert used_by_host(running, nodes) == [MEMBERS] * HOSTS
            assert len(consumers_of(clients)) == PLACES
            give_back(running, consumers_of(clients))
            answers.update(sum((client.answers for client in clients), Counter()))

            together = {"name": str(uuid4()), "policy": "affinity"}
            clients = fill(running, lambda: PER_HOST - sum(used(running, nodes)), {"group": together}, rng)
            assert sorted(used_by_host(running, nodes)) == [0] * (HOSTS - 1) + [PER_HOST]
            assert len(consumers_of(clients)) == PER_HOST
            give_back(running, consumers_of(clients))
            answers.update(sum((client.answers for client in clients), Counter()))
    print(f"{database_server.kind}: {dict(answers)}")
    assert answers[f"409 {NO_CANDIDATE}"] > 0
