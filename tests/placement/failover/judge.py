"""Sends claims from several clients to several services with failing databases, and checks the results.

Each writer owns its consumers and a host, so the writer knows their expected state. Every service has to show
the last confirmed write immediately. After a 503 or a lost answer, the outcome of a write is unknown until a
later request is confirmed.
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import requests

from tests.placement.serving import HEADERS, RunningService

WRITERS: Final = 8
CLASSES: Final = {"PCPU": 12, "LLC": 11}
_OWNER: Final = {"project_id": "project", "user_id": "user", "consumer_type": "INSTANCE"}
_PATIENCE: Final = 120.0  # maximum seconds until a database is back

Resources = dict[str, dict[str, int]]


@dataclass(frozen=True)
class Answer:
    """The times of a request and of its answer by one service, and whether the answer was a 503."""

    service: int
    asked: float
    answered: float
    refused: bool


@dataclass
class Judge:
    """Observations of all writers and the watch, which add them from their threads.

    :ivar moment: returns words about a time, such as "1.2 s after the service stopped, ", or an empty string.
    """

    services: Sequence[RunningService]
    headers: Mapping[str, str] = field(default_factory=lambda: HEADERS)
    answers: list[Answer] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    moment: Callable[[float], str] = lambda _time: ""

    def find(self, kind: str, text: str) -> None:
        """Record a fault: ``lost``, ``doubled``, ``stale``, ``exceeded``, ``unanswered`` or ``other``."""
        self.counts[kind] += 1
        self.wrong.append(f"{kind}: {text}")


class UnansweredRequest(Exception):
    """A request got no answer; the judge has recorded it."""


class JudgedClient:
    """Sends requests to the services, and records the answers with the judge."""

    def __init__(self, judge: Judge, rng: random.Random) -> None:
        self._judge = judge
        self._rng = rng
        self._session = requests.Session()
        self._session.headers.update(judge.headers)
        #: time of the last answer of each service, since which the client's connection is unused
        self._answered: dict[int, float] = {}

    def any_but(self, service: int | None = None) -> int:
        """Return a random service other than this one."""
        return self._rng.choice([each for each in range(len(self._judge.services)) if each != service])

    def ask(self, service: int, method: str, path: str, **options: Any) -> requests.Response:
        """Send a request, and return the answer.

        :raises UnansweredRequest: there is none, for instance because the connection was closed.
        """
        asked = time.monotonic()
        url = f"{self._judge.services[service].base}{path}"
        try:
            response = self._session.request(method, url, timeout=90, **options)
        except requests.RequestException as error:
            unused = asked - self._answered.get(service, asked)
            waited = time.monotonic() - asked
            self._judge.find(
                "unanswered",
                f"{method} {path} at service {service}, {self._judge.moment(asked)}{unused:.3f} s after the"
                f" last answer to this client there, failed after {waited:.3f} s: {error!r}",
            )
            raise UnansweredRequest from error
        refused = response.status_code == 503
        self._answered[service] = time.monotonic()
        self._judge.answers.append(Answer(service, asked, time.monotonic(), refused))
        self._judge.counts[f"{method} {response.status_code}"] += 1
        return response

    def get(self, path: str, service: int | None = None) -> Any:
        """Send a GET and return the answer; repeat it at any service after a 503."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            response = self.ask(self.any_but() if service is None else service, "GET", path)
            if response.ok:
                return response.json()
            if response.status_code != 503:
                self._judge.find("other", f"GET {path}: {response.status_code} {response.text}")
            time.sleep(0.1)
        raise AssertionError(f"no answer to GET {path}")


class Writer(threading.Thread):
    """A client that creates, changes and removes claims until it is stopped."""

    def __init__(self, judge: Judge, number: int, shared: Sequence[str], seed: int) -> None:
        super().__init__(daemon=True)
        self._judge = judge
        self._rng = random.Random(f"{seed} {number}")
        self._shared = shared
        self.client = JudgedClient(judge, self._rng)
        self.host = _make_provider(self.client, f"host-of-{number}", {"VCPU": 10_000})
        self.consumers = [f"{number:08d}-0000-4000-8000-{n:012d}" for n in range(6)]
        #: possible allocations of each consumer; several only while the outcome of a request is open
        self.possible: dict[str, list[Resources]] = {consumer: [{}] for consumer in self.consumers}

    def run(self) -> None:
        try:
            while not self._judge.stopped.is_set():
                with suppress(UnansweredRequest):
                    self._step(self._rng.choice(self.consumers))
        except Exception as error:
            self._judge.find("other", repr(error))

    def _step(self, consumer: str) -> None:
        held, generation = self._held(consumer)
        wanted: Resources = {}
        if not held or self._rng.random() < 0.6:
            shared = self._rng.sample(self._shared, self._rng.randint(0, 2))
            wanted = {uuid: {name: self._rng.randint(1, 3) for name in CLASSES} for uuid in shared}
            wanted[self.host] = {"VCPU": self._rng.randint(1, 9)}
        allocations = {uuid: {"resources": resources} for uuid, resources in wanted.items()}
        body = {"allocations": allocations, "consumer_generation": generation, **_OWNER}
        service = self.client.any_but()
        try:
            response = self.client.ask(service, "PUT", f"/allocations/{consumer}", json=body)
        except UnansweredRequest:
            self.possible[consumer].append(wanted)
            raise
        if response.status_code == 204:
            self.possible[consumer] = [wanted]
            self._find_it_elsewhere(consumer, wanted, service)
        elif response.status_code == 503:
            self.possible[consumer].append(wanted)
        elif response.status_code != 409:
            self._judge.find("other", f"PUT: {response.status_code} {response.text}")
        elif "generation" in response.text and len(self.possible[consumer]) == 1:
            self._judge.find(
                "stale", f"{consumer} had another generation than was just read: {response.text}"
            )

    def _find_it_elsewhere(self, consumer: str, wanted: Resources, service: int) -> None:
        """Check that another service shows a confirmed write immediately."""
        other = self.client.any_but(service)
        if (shown := _resources(self.client.get(f"/allocations/{consumer}", other))) != wanted:
            time.sleep(5)
            later = _resources(self.client.get(f"/allocations/{consumer}"))
            kind = "stale" if later == wanted else "lost"
            self._judge.find(kind, f"{consumer}: {shown} after {wanted} was confirmed, and {later} later")
        if all(len(possible) == 1 for possible in self.possible.values()):
            used = self.client.get(f"/resource_providers/{self.host}/usages", other)["usages"]["VCPU"]
            right = sum(_vcpu(possible[0], self.host) for possible in self.possible.values())
            if used != right:
                self._judge.find("stale", f"{used} VCPU used on {self.host} in place of {right}")

    def _held(self, consumer: str) -> tuple[Resources, int | None]:
        """Read the generation and the allocations of a consumer, which must be one of the possible states."""
        shown = self.client.get(f"/allocations/{consumer}")
        held = _resources(shown)
        if held not in self.possible[consumer]:
            self._judge.find("lost", f"{consumer} holds {held}, possible: {self.possible[consumer]}")
            self.possible[consumer] = [held]
        return held, shown.get("consumer_generation")

    def settled(self) -> Counter[tuple[str, str]]:
        """Return the final allocations of the writer's consumers, by provider and class."""
        totals: Counter[tuple[str, str]] = Counter()
        for consumer in self.consumers:
            held, _ = self._held(consumer)
            totals.update({(uuid, name): n for uuid, each in held.items() for name, n in each.items()})
        return totals


class FailoverWatch(threading.Thread):
    """Checks repeatedly, at any service, whether capacity is exceeded or a generation decreases."""

    def __init__(self, judge: Judge, providers: Sequence[str], seed: int) -> None:
        super().__init__(daemon=True)
        self._judge = judge
        self._providers = providers
        self._client = JudgedClient(judge, random.Random(f"{seed} watch"))

    def run(self) -> None:
        newest: dict[str, int] = {}
        try:
            while not self._judge.stopped.wait(0.05):
                for uuid in self._providers:
                    try:
                        shown = self._client.get(f"/resource_providers/{uuid}/usages")
                    except UnansweredRequest:
                        continue
                    for name, used in shown["usages"].items():
                        if used > CLASSES[name]:
                            self._judge.find("exceeded", f"{used} of {CLASSES[name]} {name} on {uuid}")
                    generation = shown["resource_provider_generation"]
                    if generation < newest.get(uuid, 0):
                        self._judge.find("stale", f"generation {generation} of {uuid} after {newest[uuid]}")
                    newest[uuid] = generation
        except Exception as error:
            self._judge.find("other", repr(error))


class Booker(threading.Thread):
    """A client that changes windows until it is stopped."""

    def settle(self) -> None:
        """Compare the final windows with the expected ones, and record differences."""
        raise NotImplementedError


class FailoverLoad:
    """A context in which the writers and the watch run."""

    def __init__(
        self,
        services: Sequence[RunningService],
        seed: int,
        headers: Mapping[str, str] = HEADERS,
        make_bookers: Callable[[Judge, Sequence[str]], Sequence[Booker]] = lambda _judge, _hosts: (),
    ) -> None:
        """Make the providers.

        :param headers: the headers of all requests.
        :param make_bookers: a function that returns further clients, which book windows of hosts.
        """
        self.judge = Judge(services, headers)
        setup = JudgedClient(self.judge, random.Random(seed))
        self.shared = [_make_provider(setup, f"host-{number}", CLASSES) for number in range(4)]
        self._writers = [Writer(self.judge, number, self.shared, seed) for number in range(WRITERS)]
        booked = [_make_provider(setup, f"booked-host-{number}", CLASSES) for number in range(2)]
        self._bookers = make_bookers(self.judge, booked)
        self._watch = FailoverWatch(self.judge, [*self.shared, *booked], seed)

    def __enter__(self) -> Judge:
        for thread in self._threads:
            thread.start()
        return self.judge

    def __exit__(self, *exception: object) -> None:
        self.judge.stopped.set()
        for thread in self._threads:
            thread.join(timeout=200)
            if thread.is_alive():
                self.judge.find("other", f"{thread.name} hangs")

    @property
    def _threads(self) -> Sequence[threading.Thread]:
        return [*self._writers, *self._bookers, self._watch]

    def check_books(self) -> None:
        """Compare allocations, usages, windows and expected totals at the end, and record differences."""
        for booker in self._bookers:
            booker.settle()
        totals = sum((writer.settled() for writer in self._writers), Counter())
        client = self._writers[0].client
        for uuid in (*self.shared, *(writer.host for writer in self._writers)):
            for name, used in client.get(f"/resource_providers/{uuid}/usages")["usages"].items():
                if used != totals[uuid, name]:
                    text = f"{name} on {uuid}: usage {used}, allocations {totals[uuid, name]}"
                    self.judge.find("doubled" if used > totals[uuid, name] else "lost", text)


def longest_refusal(answers: Sequence[Answer], excused: Sequence[tuple[float, float]] = ()) -> float:
    """Return the longest time, in seconds, in which a service has answered only 503, without excused
    times.
    """
    longest = 0.0
    for service in {answer.service for answer in answers}:
        began = None
        for answer in sorted((a for a in answers if a.service == service), key=lambda a: a.answered):
            if answer.refused:
                began = answer.answered if began is None else began
            elif began is not None:
                overlap = sum(max(0.0, min(answer.answered, e) - max(began, b)) for b, e in excused)
                longest = max(longest, answer.answered - began - overlap)
                began = None
    return longest


def _make_provider(client: JudgedClient, name: str, totals: dict[str, int]) -> str:
    made = client.ask(0, "POST", "/resource_providers", json={"name": name}).json()
    body = {
        "resource_provider_generation": 0,
        "inventories": {resource: {"total": total} for resource, total in totals.items()},
    }
    client.ask(0, "PUT", f"/resource_providers/{made['uuid']}/inventories", json=body).raise_for_status()
    return str(made["uuid"])


def _resources(shown: Any) -> Resources:
    return {uuid: each["resources"] for uuid, each in shown["allocations"].items()}


def _vcpu(resources: Resources, host: str) -> int:
    return resources.get(host, {}).get("VCPU", 0)
