"""Sends all requests that change windows from several clients, and kills worker processes.

Clients book, claim, extend, shrink, return early, reshape, and book maintenances, while inventories change.
The service moves windows meanwhile, for bookings and maintenances. After each kill and at the end,
:mod:`tests.placement.workers.window_tables` looks at each instant ahead.
"""

import os
import random
import signal
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import requests

from tests.placement.builders import OWNER, claim_body, inventories_body
from tests.placement.moving_clock import after, iso
from tests.placement.serving import HEADERS, RunningService, service
from tests.placement.workers.window_tables import WindowBooks, read_books

CAPACITY: Final = 8
_PATH: Final = "/ext/v1/reservations"
_FIXED_HOSTS: Final = 3
_MIN_ACCEPTED: Final = 60
"""Minimum number of accepted requests of a run, however slow the machine is."""
NEEDED: Final = (
    *("book: 201", "claim: 201", "lend: 201", "draw: 201", "leave: 204", "release: 204"),
    *("lengthen: 200", "shorten: 200", "shrink: 200", "prolong: 200", "finish: 204"),
    *("reshape: 204", "maintain: 201"),
)
"""Answers that each run contains at least once."""
_MAX_SECONDS: Final = 240
"""Maximum duration of a run that still waits for one of ``NEEDED``."""
_OUTCOMES: Final = {200, 201, 204, 404, 409, 503}
"""Statuses of the answers: 404 if the consumer has ended meanwhile, 503 if other clients were faster."""

_LATE: Final = ("has to end", "so it cannot keep")
"""Parts of the messages of refusals of changes that come too late."""


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
    maintenances: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.rng = random.Random(self.seed)
        self.session = requests.Session()
        self.session.headers.update(HEADERS)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        steps = [self.book] * 5 + [self.claim] * 3 + [self.lend, self.hold, self.draw, self.resize]
        steps += [self.release] * 3 + [self.draw, self.leave] * 3 + [self.redraw]
        steps += [self.shrink, self.prolong, self.finish] + [self.move, self.reshape, self.maintain] * 2
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
        is_late = answer.status_code == 400 and any(each in answer.text for each in _LATE)
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
        if self.send("book", "POST", _PATH, body):
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

    def read(self, path: str) -> dict[str, Any]:
        """Return an answer; an empty document if there is none."""
        try:
            found = self.session.get(self.service.base + path, timeout=60)
        except requests.RequestException:
            return {}
        return dict(found.json()) if found.ok else {}

    def read_any(self, keys: list[str]) -> dict[str, Any]:
        """Return the document of one of the last of these reservations; an empty one if it has ended."""
        return self.read(f"{_PATH}/{self.rng.choice(keys[-8:])}").get("reservation", {}) if keys else {}

    def change(self, said: str, window: dict[str, Any], **fields: Any) -> None:
        body = {"generation": window["generation"], **fields}
        self.send(said, "PUT", f"{_PATH}/{window['uuid']}", body)

    def move(self) -> None:
        """Move the end of a window or of a maintenance."""
        if window := self.read_any(self.rng.choice([self.windows, self.windows, self.maintenances])):
            end = datetime.fromisoformat(window["expires_at"]).timestamp()
            later = self.rng.random() < 0.5
            # the window may begin at any time after the present
            end += self.rng.choice([0.5, 1800.0]) if later else -self.rng.choice([0.1, 0.5, 1800.0])
            self.change("lengthen" if later else "shorten", window, expires_at=iso(end))

    def shrink(self) -> None:
        """Give a part of the amounts of a window back."""
        if (window := self.read_any(self.windows)) and window["allocations"]:
            # a reshaped window has two hosts, if claims have given amounts back on its former host
            kept = {
                provider: {"resources": {"VCPU": self.rng.randint(1, held["resources"]["VCPU"])}}
                for provider, held in window["allocations"].items()
            }
            self.change("shrink", window, allocations=kept)

    def prolong(self) -> None:
        """Move the end of a claim."""
        key, _ = self.rng.choice(self.drawn) if self.drawn and self.rng.random() < 0.5 else ("", "")
        if key or self.guests:
            path = f"/ext/v1/claims/{key or self.rng.choice(self.guests[-8:])}"
            if claim := self.read(path).get("claim"):
                body = {"consumer_generation": claim["consumer_generation"]}
                self.send("prolong", "PUT", path, {**body, "ends_at": after(self.any_length())})

    def finish(self) -> None:
        """End a window early, or cancel it."""
        if chosen := self.rng.choice([self.begun, self.windows]):
            self.send("finish", "DELETE", f"{_PATH}/{chosen.pop()}")

    def reshape(self) -> None:
        """Move the allocations of a consumer, with the inventories of its new host, to this host."""
        keys = [*self.guests[-4:], *self.begun[-4:], *(key for key, _ in self.drawn[-8:])]
        if not keys:
            return
        key, host = self.rng.choice(keys), self.rng.choice(self.hosts)
        held = self.read(f"/allocations/{key}")
        if held.get("allocations") and (shape := self.read(f"/resource_providers/{host}/inventories")):
            amount = sum(each["resources"]["VCPU"] for each in held["allocations"].values())
            moved = {**held, "allocations": {host: {"resources": {"VCPU": amount}}}}
            body = {"inventories": {host: shape}, "allocations": {key: moved}}
            self.send("reshape", "POST", "/reshaper", body)

    def maintain(self) -> None:
        """Book a maintenance of a host, or delete the last one."""
        if self.maintenances:
            self.send("end maintenance", "DELETE", f"{_PATH}/{self.maintenances.pop()}")
            return
        start, key = self.any_start(), str(uuid.uuid4())
        body = {"maintenance_of": self.rng.choice([self.hosts[0], self.hosts[-1]]), "uuid": key}
        body |= {"project_id": "project", "user_id": "user"}
        body |= {"starts_at": after(start), "expires_at": after(start + self.any_length())}
        if self.send("maintain", "POST", _PATH, body):
            self.maintenances.append(key)

    def resize(self) -> None:
        """Lower or raise the inventory of the last host."""
        path = f"/resource_providers/{self.hosts[-1]}"
        if found := self.read(path):
            body = inventories_body(found["generation"], VCPU=self.rng.randint(2, CAPACITY))
            self.send("resize", "PUT", f"{path}/inventories", body)

    def release(self) -> None:
        chosen = self.rng.choice([self.windows, self.guests])
        if chosen:
            key = chosen.pop(self.rng.randrange(len(chosen)))
            self.send("release", "DELETE", f"/allocations/{key}")


@dataclass
class WindowsOutcome:
    """The counts and the errors of a run, and the numbers of looks at all instants and of moved windows."""

    seed: int
    answers: Counter[str]
    kills: int
    looks: int
    moves: int
    failures: list[str]


def run(url: str, folder: Path, *, seconds: float, kills: int, workers: int = 3) -> WindowsOutcome:
    """Send requests for ``seconds``, kill a worker ``kills`` times meanwhile, and look at all instants."""
    with service(url, folder, workers) as running:
        hosts = [_make_host(running, number) for number in range(_FIXED_HOSTS + 1)]
        # the last host has had the largest capacity before its inventory is lowered
        most = {hosts[-1]: CAPACITY}
        stopped = threading.Event()
        seed = random.randrange(1 << 32)
        load = [WindowClient(running, hosts, seed + number, stopped) for number in range(4)]
        for thread in load:
            thread.start()
        failures: list[str] = []
        missing, books = True, read_books(url)
        began, killed, looks, seen, all_accepted, moves = time.monotonic(), 0, 0, 0, 0, 0
        while killed < kills or time.monotonic() - began < seconds or all_accepted < _MIN_ACCEPTED or missing:
            time.sleep(random.uniform(0.05, 0.4))
            is_in_time = time.monotonic() - began < _MAX_SECONDS
            counts = _count_answers(load)
            missing = is_in_time and not (moves and all(counts[each] for each in NEEDED))
            all_accepted = sum(client.accepted for client in load)
            # on a slow machine new workers need some time before they accept requests
            ready = len(candidates := running.workers()) == workers and all_accepted >= seen + 3
            if killed < kills and ready:
                os.kill(random.choice(candidates), signal.SIGKILL)
                killed, seen = killed + 1, all_accepted
            books, earlier = read_books(url), books
            failures += _find_faults(books, earlier, most)
            moved, wrong = books.compare_moves(earlier)
            moves, looks, failures = moves + moved, looks + 1, failures + wrong
        stopped.set()
        for thread in load:
            thread.join(timeout=120)
        failures += [each for client in load for each in client.failures]
        # the last windows of the run end, and requests release them
        time.sleep(3)
        shown = running.get(_PATH)["reservations"]
        books, earlier = read_books(url), books
        failures += _find_faults(books, earlier, most)
        degraded = {each["uuid"] for each in shown if each["degraded"]}
        if degraded != books.degraded_reservations():
            failures.append(f"degraded: {degraded}, not {books.degraded_reservations()}")
        return WindowsOutcome(seed, _count_answers(load), killed, looks, moves, failures)


def _find_faults(books: WindowBooks, earlier: WindowBooks, most: dict[str, int]) -> list[str]:
    return [*books.find_excess(most), *books.find_growth(earlier, CAPACITY), *books.wrong]


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
