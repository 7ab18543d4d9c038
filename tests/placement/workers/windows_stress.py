"""Books, claims, moves, deletes and changes inventories from several clients, and kills worker processes.

After each kill and at the end, :mod:`tests.placement.workers.window_tables` looks at each instant ahead.
"""

import os
import random
import signal
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import requests

from tests.placement.builders import OWNER, claim_body, inventories_body
from tests.placement.moving_clock import after
from tests.placement.serving import HEADERS, RunningService, service
from tests.placement.workers.window_tables import find_broken_promises

CAPACITY: Final = 8
_FIXED_HOSTS: Final = 3
_MIN_ACCEPTED: Final = 60
"""Minimum number of accepted requests of a run, however slow the machine is."""
NEEDED: Final = ("book: 201", "claim: 201", "lend: 201", "draw: 201", "leave: 204", "release: 204")
"""Answers that each run contains at least once."""
_MAX_SECONDS: Final = 240
"""Maximum duration of a run that still waits for one of ``NEEDED``."""
_OUTCOMES: Final = {200, 201, 204, 404, 409, 503}
"""Statuses of the answers: 404 if the consumer has ended meanwhile, 503 if other clients were faster."""


@dataclass
class WindowClient(threading.Thread):
    """One client that sends random requests about windows until stopped; times are seconds from now."""

    service: RunningService
    hosts: list[str]
    seed: int
    stopped: threading.Event
    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    accepted: int = 0
    windows: list[str] = field(default_factory=list)
    guests: list[str] = field(default_factory=list)
    # windows that began at once
    begun: list[str] = field(default_factory=list)
    # claims from windows, with their windows
    drawn: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.rng = random.Random(self.seed)
        self.session = requests.Session()
        self.session.headers.update(HEADERS)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        steps = [self.book] * 5 + [self.claim] * 3 + [self.lend, self.hold, self.draw, self.move, self.resize]
        steps += [self.release] * 3 + [self.draw, self.leave] * 3 + [self.redraw]
        try:
            while not self.stopped.is_set():
                self.rng.choice(steps)()
        except Exception as error:
            self.failures.append(repr(error))

    def send(self, said: str, method: str, path: str, body: dict[str, Any] | None = None) -> bool:
        """Send a request; return whether it was accepted."""
        try:
            answer = self.session.request(method, self.service.base + path, json=body, timeout=60)
        except requests.RequestException:
            self.answers[f"{said}: connection lost"] += 1
            # the request may have been carried out
            return True
        self.answers[f"{said}: {answer.status_code}"] += 1
        # a short window may be over before the request is handled
        is_late = answer.status_code == 400 and "has to end" in answer.text
        if answer.status_code not in _OUTCOMES and not is_late:
            self.failures.append(f"{said}: {answer.status_code} {answer.text}")
        self.accepted += answer.ok
        return answer.ok

    def any_start(self) -> float:
        # some windows begin and end during the run
        return self.rng.choice([0.0, self.rng.uniform(0.2, 3), self.rng.randint(1, 6) * 3600.0])

    def any_length(self) -> float:
        return self.rng.choice([self.rng.uniform(0.3, 3), 3600.0, 7200.0])

    def book(self) -> None:
        start, key = self.any_start(), str(uuid.uuid4())
        body = {"query": f"resources=VCPU:{self.rng.randint(1, 5)}", "uuid": key}
        body |= {"project_id": "project", "user_id": "user"}
        body |= {"starts_at": after(start), "expires_at": after(start + self.any_length())}
        if self.send("book", "POST", "/ext/v1/reservations", body):
            self.windows.append(key)
            if not start:
                self.begun.append(key)

    def claim(self, said: str = "claim", **fields: Any) -> None:
        key = str(uuid.uuid4())
        wanted = {"consumer_uuid": key, "consumer_generation": None, **OWNER}
        wanted["query"] = f"resources=VCPU:{self.rng.randint(1, 3)}"
        body = {"claims": [wanted], "ends_at": after(self.any_length()), **fields}
        if self.send(said, "POST", "/ext/v1/claims", body):
            self.guests.append(key)

    def lend(self) -> None:
        duration = self.rng.choice([1, 2, 5400])
        self.claim("lend", ends_at=after(duration + 9000), preemptible={"min_duration": duration})

    def draw(self) -> None:
        if self.windows:
            window = self.rng.choice(self.begun[-3:] or self.windows)
            self.draw_from(window, "draw", str(uuid.uuid4()), None)

    def redraw(self) -> None:
        """Repeat a claim from its window, with other amounts and another end."""
        if self.drawn:
            key, window = self.rng.choice(self.drawn)
            self.draw_from(window, "redraw", key, 1)

    def draw_from(self, window: str, said: str, key: str, generation: int | None) -> None:
        wanted = {"consumer_uuid": key, "consumer_generation": generation, **OWNER}
        wanted["query"] = f"resources=VCPU:{self.rng.randint(1, 3)}"
        length = self.rng.choice([self.rng.uniform(0.3, 3), 1800.0])
        body = {"claims": [wanted], "ends_at": after(length), "reservation": window}
        if self.send(said, "POST", "/ext/v1/claims", body) and generation is None:
            self.drawn.append((key, window))

    def leave(self) -> None:
        """Delete a claim from a window before its end."""
        if self.drawn:
            key, _ = self.drawn.pop(self.rng.randrange(len(self.drawn)))
            self.send("leave", "DELETE", f"/allocations/{key}")

    def hold(self) -> None:
        key, host = str(uuid.uuid4()), self.rng.choice(self.hosts)
        if self.send("hold", "PUT", f"/allocations/{key}", claim_body({host: {"VCPU": 1}})):
            self.guests.append(key)

    def move(self) -> None:
        if self.windows:
            path = f"/ext/v1/reservations/{self.rng.choice(self.windows)}"
            body = {"generation": self.rng.randint(1, 2), "expires_at": after(self.rng.choice([2.0, 9000.0]))}
            self.send("move", "PUT", path, body)

    def resize(self) -> None:
        """Lower or raise the inventory of the last host."""
        path = f"/resource_providers/{self.hosts[-1]}"
        try:
            found = self.session.get(self.service.base + path, timeout=60)
        except requests.RequestException:
            return
        if found.ok:
            body = inventories_body(found.json()["generation"], VCPU=self.rng.randint(2, CAPACITY))
            self.send("resize", "PUT", f"{path}/inventories", body)

    def release(self) -> None:
        chosen = self.rng.choice([self.windows, self.guests])
        if chosen:
            key = chosen.pop(self.rng.randrange(len(chosen)))
            self.send("release", "DELETE", f"/allocations/{key}")


@dataclass
class WindowsOutcome:
    """The counts and the errors of a run, and the number of looks at all instants."""

    answers: Counter[str]
    kills: int
    looks: int
    failures: list[str]


def run(url: str, folder: Path, *, seconds: float, kills: int, workers: int = 3) -> WindowsOutcome:
    """Send requests for ``seconds``, kill a worker ``kills`` times meanwhile, and look at all instants."""
    with service(url, folder, workers) as running:
        hosts = [_make_host(running, number) for number in range(_FIXED_HOSTS + 1)]
        # the last host has had the largest capacity before its inventory is lowered
        most = {hosts[-1]: CAPACITY}
        stopped = threading.Event()
        load = [WindowClient(running, hosts, seed, stopped) for seed in range(4)]
        for thread in load:
            thread.start()
        failures: list[str] = []
        missing = True
        began, killed, looks, seen, all_accepted = time.monotonic(), 0, 0, 0, 0
        while killed < kills or time.monotonic() - began < seconds or all_accepted < _MIN_ACCEPTED or missing:
            time.sleep(random.uniform(0.05, 0.4))
            is_in_time = time.monotonic() - began < _MAX_SECONDS
            missing = is_in_time and any(not _count_answers(load)[each] for each in NEEDED)
            all_accepted = sum(client.accepted for client in load)
            # on a slow machine new workers need some time before they accept requests
            ready = len(candidates := running.workers()) == workers and all_accepted >= seen + 3
            if killed < kills and ready:
                os.kill(random.choice(candidates), signal.SIGKILL)
                killed, seen = killed + 1, all_accepted
            failures += find_broken_promises(url, most)
            looks += 1
        stopped.set()
        for thread in load:
            thread.join(timeout=120)
        failures += [each for client in load for each in client.failures]
        # the last windows of the run end, and requests release them
        time.sleep(3)
        running.get("/ext/v1/reservations")
        failures += find_broken_promises(url, most)
        return WindowsOutcome(_count_answers(load), killed, looks, failures)


def _count_answers(load: list[WindowClient]) -> Counter[str]:
    # a copy, because the client may add an answer meanwhile
    return sum((client.answers.copy() for client in load), Counter())


def _make_host(running: RunningService, number: int) -> str:
    made = requests.post(
        f"{running.base}/resource_providers", json={"name": f"host-{number}"}, headers=HEADERS, timeout=30
    ).json()
    path = f"{running.base}/resource_providers/{made['uuid']}/inventories"
    body = inventories_body(0, VCPU=CAPACITY)
    requests.put(path, json=body, headers=HEADERS, timeout=30).raise_for_status()
    uuid_of_host: str = made["uuid"]
    return uuid_of_host
