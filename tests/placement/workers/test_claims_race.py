"""Tests of many clients that claim resources of the same few hosts: no claim is refused while capacity is
left.

The same holds for the places that the policy of a group leaves. A list of claims is granted as a whole or not
at all. `PLACEMENT_RACING_CLAIMS` is the number of claims that race.
"""

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import requests

from tests.databases import DatabaseServer
from tests.examples import examples
from tests.placement.serving import HEADERS, RunningService, service

pytestmark = pytest.mark.slow

CLAIMS = int(os.environ.get("PLACEMENT_RACING_CLAIMS", examples(650)))
"""Minimum number of granted claims in all races."""
CLIENTS = 8
WORKERS = 4
HOSTS = 6
NODES = 2
PER_NODE = 10
CAPACITY = HOSTS * NODES * PER_NODE
PER_HOST = NODES * PER_NODE
GROUPS = 4
"""Number of simultaneous anti-affinity groups; two clients claim for each."""
MEMBERS = PER_HOST // GROUPS
"""Maximum members of such a group on one host; the groups together fill it."""
QUERY = "resources1=PCPU:1"
NO_CANDIDATE = "placement.ext.no_candidate"


@dataclass(frozen=True)
class Race:
    """One race: clients claim resources for the project of the race until the project holds ``places``."""

    places: int
    fields: dict[str, Any] = field(default_factory=dict)
    project: str = field(default_factory=lambda: str(uuid4()))

    def room(self, running: RunningService) -> int:
        """Return the amount that is still free."""
        usages = running.get(f"/usages?project_id={self.project}")["usages"]
        used: int = sum(each.get("PCPU", 0) for each in usages.values())
        return self.places - used


def alone() -> list[Race]:
    """Return one race for the whole capacity."""
    return [Race(CAPACITY)]


def apart() -> list[Race]:
    """Return races for groups that have a few members on each host."""
    policy = {"policy": "anti-affinity", "max_per_host": MEMBERS}
    return [Race(HOSTS * MEMBERS, {"group": {"name": str(uuid4()), **policy}}) for _ in range(GROUPS)]


def together() -> list[Race]:
    """Return a race for one group that has to stay on one host."""
    return [Race(PER_HOST, {"group": {"name": str(uuid4()), "policy": "affinity"}})]


@dataclass
class ClaimClient(threading.Thread):
    """A client that claims for one or two consumers in turn until no room is left. Half of the clients prefer
    full hosts.
    """

    running: RunningService
    race: Race
    order: dict[str, float]
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
        """Send a claim and return whether it succeeded. The request is repeated if its worker was killed."""
        body = {
            "claims": [
                {
                    "consumer_uuid": each,
                    "consumer_generation": None,
                    "query": QUERY,
                    "order": self.order,
                    **self.race.fields,
                    **owner(self.race.project),
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
            self.answers[f"{answer.status_code} {code} for {len(consumers)}"] += 1
            if answer.status_code == 201 or (repeated and code == "placement.concurrent_update"):
                self.claimed.append(consumers)
                return True
            if code == NO_CANDIDATE:
                # no client releases anything, so capacity that is free now was free at the refusal
                free = self.race.room(self.running)
                if free >= len(consumers):
                    self.failures.append(f"no candidate for {len(consumers)} while {free} are free")
                return False
            if answer.status_code != 503:
                self.failures.append(f"{answer.status_code} {answer.text}")
                return False


def owner(project: str) -> dict[str, str]:
    return {"project_id": project, "user_id": "user", "consumer_type": "INSTANCE"}


def make_hosts(running: RunningService) -> list[str]:
    """Create the hosts; return the uuids of their nodes, which have the claimed resource."""
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


def run(running: RunningService, races: list[Race], rng: random.Random) -> list[ClaimClient]:
    """Let all clients send claims until no room is left, and kill a worker meanwhile."""
    clients = [
        ClaimClient(running, races[number % len(races)], {"pack": 1} if number // len(races) % 2 else {})
        for number in range(CLIENTS)
    ]
    for client in clients:
        client.start()
    clients[0].join(rng.uniform(0, 0.3))
    workers = running.workers()
    if len(workers) == WORKERS:
        os.kill(rng.choice(workers), signal.SIGKILL)
        clients[0].answers["workers killed"] += 1
    for client in clients:
        client.join(timeout=300)
        assert not client.is_alive()
    assert [each for client in clients for each in client.failures] == []
    return clients


def held(running: RunningService, nodes: list[str]) -> Iterator[dict[str, int]]:
    """Yield the amounts that each consumer holds, host by host."""
    for start in range(0, len(nodes), NODES):
        found: Counter[str] = Counter()
        for uuid in nodes[start : start + NODES]:
            shown = running.get(f"/resource_providers/{uuid}/allocations")["allocations"]
            found.update({consumer: each["resources"]["PCPU"] for consumer, each in shown.items()})
        yield found


def give_back(running: RunningService, race: Race, consumers: list[str]) -> None:
    body = {each: {"allocations": {}, "consumer_generation": 1, **owner(race.project)} for each in consumers}
    answer = requests.post(f"{running.base}/allocations", headers=HEADERS, json=body, timeout=60)
    assert answer.status_code == 204, answer.text


def test_no_claim_is_refused_while_capacity_is_left(
    database_server: DatabaseServer, database_url: str, tmp_path: Path
) -> None:
    rng = random.Random(CLAIMS)
    answers: Counter[str] = Counter()
    granted: Counter[str] = Counter()
    with service(database_url, tmp_path, WORKERS) as running:
        nodes = make_hosts(running)
        while granted.total() < CLAIMS:
            for kind in (alone, apart, together):
                races = kind()
                clients = run(running, races, rng)
                by_host = list(held(running, nodes))
                for race in races:
                    # the consumers with a confirmed claim hold exactly the capacity
                    lists = [each for client in clients if client.race is race for each in client.claimed]
                    consumers = [each for consumers in lists for each in consumers]
                    here = [{each: found[each] for each in consumers if each in found} for found in by_host]
                    assert len(consumers) == race.places
                    assert sorted(each for found in here for each in found) == sorted(consumers)
                    if kind is apart:
                        assert [len(found) for found in here] == [MEMBERS] * HOSTS
                    if kind is together:
                        assert sorted(map(len, here)) == [0] * (HOSTS - 1) + [PER_HOST]
                    give_back(running, race, consumers)
                    granted[f"{kind.__name__}, at once"] += sum(len(each) for each in lists if len(each) > 1)
                    granted[f"{kind.__name__}, singly"] += sum(len(each) for each in lists if len(each) == 1)
                assert sum(sum(found.values()) for found in by_host) == sum(race.places for race in races)
                answers.update(sum((client.answers for client in clients), Counter()))
    print(
        f"{database_server.kind}: granted {granted.total()}: {dict(granted)}; {dict(sorted(answers.items()))}"
    )
    assert answers[f"409 {NO_CANDIDATE} for 1"] > 0
