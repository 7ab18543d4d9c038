"""Sends claims on few providers from several clients to several worker processes, and kills some of the
processes.

Each client owns its consumers, so the client knows their expected allocations: those of the last confirmed
request. If a worker was killed during a later request, the allocations of this request are also possible.
"""

import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import requests

from tests.placement.serving import HEADERS, RunningService, service

CLASSES = {"PCPU": 12, "LLC": 11}
OWNER = {"project_id": "project", "user_id": "user", "consumer_type": "INSTANCE"}

Resources = dict[str, dict[str, int]]


@dataclass
class StressClient(threading.Thread):
    """One client with its own consumers, which sends random claims until stopped."""

    service: RunningService
    providers: list[str]
    number: int
    stopped: threading.Event
    answers: Counter[str] = field(default_factory=Counter)
    possible: dict[str, list[Resources]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.rng = random.Random(self.number)
        self.consumers = [f"{self.number:08d}-0000-4000-8000-{n:012d}" for n in range(6)]
        self.possible = {consumer: [{}] for consumer in self.consumers}
        self.session = requests.Session()
        self.session.headers.update(HEADERS)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                self.step(self.rng.choice(self.consumers))
        except Exception as error:
            self.failures.append(repr(error))

    def step(self, consumer: str) -> None:
        held = self.settle(consumer)
        wanted: Resources = {}
        if not held or self.rng.random() < 0.5:
            wanted = {
                uuid: {name: self.rng.randint(1, 3) for name in CLASSES}
                for uuid in self.rng.sample(self.providers, self.rng.randint(1, 2))
            }
        body = {
            "allocations": {uuid: {"resources": resources} for uuid, resources in wanted.items()},
            "consumer_generation": self.generation,
            **OWNER,
        }
        self.possible[consumer] = [held, wanted]
        try:
            response = self.session.put(f"{self.service.base}/allocations/{consumer}", json=body, timeout=60)
        except requests.RequestException:
            self.answers["connection lost"] += 1
            return
        self.answers[str(response.status_code)] += 1
        if response.status_code == 204:
            self.possible[consumer] = [wanted]
        elif response.status_code == 409 and "capacity" in response.text:
            self.possible[consumer] = [held]
        else:
            self.failures.append(f"PUT: {response.status_code} {response.text}")

    def settle(self, consumer: str) -> Resources:
        """Read the allocations of a consumer, and check that they are one of the possible states."""
        shown = self.service.get(f"/allocations/{consumer}")
        self.generation = shown.get("consumer_generation")
        held = {uuid: each["resources"] for uuid, each in shown["allocations"].items()}
        if held not in self.possible[consumer]:
            self.failures.append(f"{consumer} holds {held}, possible: {self.possible[consumer]}")
        return held


@dataclass
class StressOutcome:
    """The counts and the errors of a run."""

    answers: Counter[str]
    kills: int
    seconds: float
    failures: list[str]


def run(
    url: str, folder: Path, *, seconds: float, kills: int, clients: int = 6, workers: int = 3
) -> StressOutcome:
    """Send claims to the service for ``seconds``, kill a worker ``kills`` times meanwhile, and check all
    sums.
    """
    with service(url, folder, workers) as running:
        providers = _make_providers(running)
        stopped = threading.Event()
        load = [StressClient(running, providers, number, stopped) for number in range(clients)]
        watch = _Watch(running, providers, stopped)
        for thread in (*load, watch):
            thread.start()
        began = time.monotonic()
        killed = 0
        while killed < kills or time.monotonic() - began < seconds:
            time.sleep(random.uniform(0.05, 0.4))
            if killed < kills and len(candidates := running.workers()) == workers:
                os.kill(random.choice(candidates), signal.SIGKILL)
                killed += 1
        stopped.set()
        for thread in (*load, watch):
            thread.join(timeout=120)
        failures = watch.failures + [each for client in load for each in client.failures]
        failures += _wrong_books(running, providers, load)
        answers = sum((client.answers for client in load), Counter())
        return StressOutcome(answers, killed, time.monotonic() - began, failures)


def _make_providers(running: RunningService) -> list[str]:
    uuids = []
    for number in range(4):
        made = requests.post(
            f"{running.base}/resource_providers", json={"name": f"host-{number}"}, headers=HEADERS, timeout=30
        ).json()
        body = {
            "resource_provider_generation": 0,
            "inventories": {name: {"total": total} for name, total in CLASSES.items()},
        }
        path = f"{running.base}/resource_providers/{made['uuid']}/inventories"
        requests.put(path, json=body, headers=HEADERS, timeout=30).raise_for_status()
        uuids.append(made["uuid"])
    return uuids


@dataclass
class _Watch(threading.Thread):
    """Checks repeatedly whether capacity is exceeded or a generation decreases."""

    service: RunningService
    providers: list[str]
    stopped: threading.Event
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        seen: dict[str, int] = {}
        while not self.stopped.is_set():
            for uuid in self.providers:
                shown = self.service.get(f"/resource_providers/{uuid}/usages")
                for name, used in shown["usages"].items():
                    if used > CLASSES[name]:
                        self.failures.append(f"{used} of {CLASSES[name]} {name} used on {uuid}")
                if shown["resource_provider_generation"] < seen.get(uuid, 0):
                    self.failures.append(f"the generation of {uuid} went back")
                seen[uuid] = shown["resource_provider_generation"]
            time.sleep(0.02)


def _wrong_books(running: RunningService, providers: list[str], load: list[StressClient]) -> list[str]:
    """Compare the final allocations and usages; return descriptions of the errors."""
    wrong = []
    totals: Counter[tuple[str, str]] = Counter()
    claims = 0
    for client in load:
        for consumer in client.consumers:
            held = client.settle(consumer)
            totals.update({(uuid, name): n for uuid, each in held.items() for name, n in each.items()})
        claims += client.answers["204"]
        wrong += client.failures
    for uuid in providers:
        usages = running.get(f"/resource_providers/{uuid}/usages")["usages"]
        wrong += [
            f"{name} on {uuid}: usage {used}, allocations {totals[uuid, name]}"
            for name, used in usages.items()
            if used != totals[uuid, name]
        ]
    return wrong
