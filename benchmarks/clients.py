"""Clients as separate processes, each with one persistent connection.

A client does little while the clock runs: it builds its requests before the start, and parses an answer only
if the next request depends on it. The program measures the CPU time of the clients, because they share the
machine with the services.
"""

import json
import multiprocessing
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from benchmarks.http import CLAIM_OWNER, NoAnswer, RequestRefused, ServiceConnection
from benchmarks.worlds import WorldProvider, random_uuid

FLAT_GUEST: Final = {"VCPU": 1, "MEMORY_MB": 32, "DISK_GB": 1}
_MADE_UP: Final = 4000  # claims that a client prepares before its start
_ATTEMPTS: Final = 20
_DATABASE_ERROR: Final = re.compile(r"\(\w+\.\w+\) [^\n\[]{1,80}")
_QUOTED: Final = re.compile(r"'[^']*'")


@dataclass
class ClientWork:
    """The work of one client: answers by status, elapsed seconds, seconds of CPU time, and created consumers.

    ``hosts`` are the known hosts of these consumers, in the same order. ``latencies`` are the seconds of each
    success.
    """

    answers: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    consumers: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    @property
    def success_count(self) -> int:
        """Return the number of successful answers."""
        return _count_successes(self.answers)

    @property
    def success_rate(self) -> float:
        """Return the successes per second."""
        return self.success_count / self.seconds if self.seconds else 0.0


@dataclass
class WorkTally:
    """The work of all clients of one side in all repeats."""

    answers: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def add(self, work: Sequence[ClientWork]) -> None:
        """Add the work of clients that ran at the same time."""
        self.answers += sum((each.answers for each in work), Counter())
        self.seconds += max(each.seconds for each in work)
        self.cpu_seconds += sum(each.cpu_seconds for each in work)

    @property
    def success_count(self) -> int:
        """Return the number of successful answers."""
        return _count_successes(self.answers)

    def describe(self) -> dict[str, Any]:
        """Return the notes of a result."""
        done = self.success_count
        return {
            "answers": {status: count for status, count in self.answers.items() if count},
            "client CPU ms for each": round(1000 * self.cpu_seconds / done, 2) if done else None,
            "clients' share of one CPU": round(self.cpu_seconds / self.seconds, 2) if self.seconds else None,
        }


class ClientPool:
    """A number of client processes, as a context manager."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("fork"))

    def __enter__(self) -> "ClientPool":
        list(self._pool.map(time.sleep, [0.02] * self.count))  # starts all processes
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown()

    def warm_up(self, port: int) -> None:
        """Send small requests with each client, so that probably all workers have answered."""
        self._run_all(_warm_up, [(port,)] * self.count)

    def claim_resources(
        self, port: int, hosts: Sequence[str], seconds: float, resources: Mapping[str, int] = FLAT_GUEST
    ) -> list[ClientWork]:
        """Claim with each client on random hosts for some seconds."""
        return [future.result() for future in self.begin_claims(port, hosts, seconds, resources)]

    def begin_claims(
        self, port: int, hosts: Sequence[str], seconds: float, resources: Mapping[str, int]
    ) -> "list[Future[ClientWork]]":
        """Begin the claims of :meth:`claim_resources`, without waiting for the end."""
        return [
            self._pool.submit(_claim_resources, port, seed, hosts, seconds, resources)
            for seed in self._random_seeds()
        ]

    def schedule_guests(self, port: int, queries: Sequence[str], seconds: float) -> list[ClientWork]:
        """Send a random query with each client and claim a random candidate, repeatedly for some seconds."""
        return self._run_all(
            _schedule_guests, [(port, seed, queries, seconds) for seed in self._random_seeds()]
        )

    def claim_found(self, port: int, queries: Sequence[str], seconds: float) -> list[ClientWork]:
        """Claim with each client candidates of a random query in one call, repeatedly for some seconds."""
        return self._run_all(_claim_found, [(port, seed, queries, seconds) for seed in self._random_seeds()])

    def release(self, port: int, consumers: Sequence[str]) -> list[ClientWork]:
        """Divide the consumers among the clients, and delete their allocations."""
        return self._run_all(_release, [(port, consumers[n :: self.count]) for n in range(self.count)])

    def ask_repeatedly(self, port: int, path: str, seconds: float) -> list[ClientWork]:
        """Send one request with each client, repeatedly for some seconds."""
        return self._run_all(_ask_repeatedly, [(port, path, seconds)] * self.count)

    def migrate_guests(
        self,
        port: int,
        placed: Sequence[tuple[str, str]],
        hosts: Sequence[str],
        resources: Mapping[str, int] = FLAT_GUEST,
    ) -> list[ClientWork]:
        """Divide consumers, each with its host, among the clients, and migrate each to a random other host.

        Nova begins a migration or a resize in this way. One POST /allocations moves the guest's allocation to
        the migration, and gives the guest an equal allocation elsewhere.
        """
        return self._run_all(
            _migrate_guests,
            [
                (port, seed, placed[n :: self.count], hosts, resources)
                for n, seed in enumerate(self._random_seeds())
            ],
        )

    def load(self, port: int, trees: Sequence[Sequence[WorldProvider]]) -> list[ClientWork]:
        """Divide the trees among the clients, and create the providers as compute hosts do."""
        return self._run_all(_load, [(port, trees[n :: self.count]) for n in range(self.count)])

    def _random_seeds(self) -> list[int]:
        return [random.getrandbits(32) for _ in range(self.count)]

    def _run_all(
        self, call: Callable[..., ClientWork], arguments: Sequence[tuple[Any, ...]]
    ) -> list[ClientWork]:
        return [future.result() for future in [self._pool.submit(call, *each) for each in arguments]]


class _TimedClient:
    """Counts the answers of one client and measures its times."""

    def __init__(self, port: int, seconds: float) -> None:
        self.work = ClientWork()
        self.connection = ServiceConnection(port)
        self.connection.expect_success("GET", "/")  # opens the connection
        self._began, self._cpu = time.perf_counter(), time.process_time()
        self._until = self._began + seconds

    def remaining_rounds(self) -> Iterator[None]:
        """Yield once for each round that begins before the end of the time."""
        while time.perf_counter() < self._until:
            yield

    def send(self, method: str, path: str, body: bytes | None = None) -> bytes | None:
        """Send a request and count its answer; return the body of a success, else None."""
        began = time.perf_counter()
        try:
            status, answer = self.connection.send(method, path, body)
        except NoAnswer as error:
            self.work.answers[str(error).rpartition(": ")[2]] += 1
            return None
        self.work.answers[_answer_kind(status, answer)] += 1
        if status >= 300:
            return None
        self.work.latencies.append(time.perf_counter() - began)
        return answer

    def send_until_success(self, method: str, path: str, body: bytes) -> bytes:
        """Send a request until it succeeds; return the body.

        :raises RequestRefused: too many attempts have failed.
        """
        for _ in range(_ATTEMPTS):
            answer = self.send(method, path, body)
            if answer is not None:
                return answer
            time.sleep(random.uniform(0, 0.05))  # so that clients do not repeat at the same time
        raise RequestRefused(
            f"{method} {path}: no success in {_ATTEMPTS} attempts: {dict(self.work.answers)}"
        )

    def stop_clocks(self) -> ClientWork:
        """Stop the clocks; return the work."""
        self.work.seconds = time.perf_counter() - self._began
        self.work.cpu_seconds = time.process_time() - self._cpu
        self.connection.close()
        return self.work


def _count_successes(answers: Counter[str]) -> int:
    return sum(count for status, count in answers.items() if status.startswith("2"))


def _answer_kind(status: int, answer: bytes) -> str:
    """Return the status, for errors with the quoted database error or the last sentence of the first line."""
    if status < 400:
        return str(status)
    try:
        detail = json.loads(answer)["errors"][0]["detail"].strip()
        if cause := _DATABASE_ERROR.search(detail):
            return f"{status} {cause[0].strip()}"
        return f"{status} {_QUOTED.sub('...', detail.splitlines()[0]).rpartition('. ')[2]}"
    except (ValueError, LookupError, TypeError, AttributeError):
        return str(status)


def _warm_up(port: int) -> ClientWork:
    timed = _TimedClient(port, 0.3)
    for _ in timed.remaining_rounds():
        timed.send("GET", "/allocation_candidates?resources=VCPU:1&limit=1")
    return timed.stop_clocks()


def _ask_repeatedly(port: int, path: str, seconds: float) -> ClientWork:
    timed = _TimedClient(port, seconds)
    for _ in timed.remaining_rounds():
        timed.send("GET", path)
    return timed.stop_clocks()


def _claim_resources(
    port: int, seed: int, hosts: Sequence[str], seconds: float, resources: Mapping[str, int]
) -> ClientWork:
    rng = random.Random(seed)
    bodies = {
        host: orjson.dumps({"allocations": {host: {"resources": resources}}, **CLAIM_OWNER}) for host in hosts
    }
    made_up = [(random_uuid(rng), rng.choice(hosts)) for _ in range(_MADE_UP)]
    timed = _TimedClient(port, seconds)
    for _, (consumer, host) in zip(timed.remaining_rounds(), made_up, strict=False):
        if timed.send("PUT", f"/allocations/{consumer}", bodies[host]) is not None:
            timed.work.consumers.append(consumer)
            timed.work.hosts.append(host)
    return timed.stop_clocks()


def _migrate_guests(
    port: int,
    seed: int,
    placed: Sequence[tuple[str, str]],
    hosts: Sequence[str],
    resources: Mapping[str, int],
) -> ClientWork:
    rng = random.Random(seed)
    made_up = []
    for consumer, host in placed:
        migration = random_uuid(rng)
        target = rng.choice([each for each in rng.sample(hosts, 2) if each != host])
        body = {
            migration: {
                **CLAIM_OWNER,
                "consumer_type": "MIGRATION",
                "allocations": {host: {"resources": resources}},
            },
            consumer: {
                **CLAIM_OWNER,
                "consumer_generation": 1,
                "allocations": {target: {"resources": resources}},
            },
        }
        made_up.append((migration, orjson.dumps(body)))
    timed = _TimedClient(port, 0)
    for migration, body in made_up:
        if timed.send("POST", "/allocations", body) is not None:
            timed.work.consumers.append(migration)
    return timed.stop_clocks()


def _schedule_guests(port: int, seed: int, queries: Sequence[str], seconds: float) -> ClientWork:
    rng = random.Random(seed)
    timed = _TimedClient(port, seconds)
    asked = 0
    for _ in timed.remaining_rounds():
        answer = timed.send("GET", rng.choice(queries))
        if answer is None:
            continue
        asked += 1
        requests = orjson.loads(answer)["allocation_requests"]
        if not requests:
            timed.work.answers["no candidates"] += 1
            continue
        consumer = random_uuid(rng)
        body = orjson.dumps({**rng.choice(requests), **CLAIM_OWNER})
        if timed.send("PUT", f"/allocations/{consumer}", body) is not None:
            timed.work.consumers.append(consumer)
    work = timed.stop_clocks()
    work.answers["200"] -= asked  # only the claim counts as a scheduling
    return work


def _claim_found(port: int, seed: int, queries: Sequence[str], seconds: float) -> ClientWork:
    rng = random.Random(seed)
    asked = [query.partition("?")[2] for query in queries]
    timed = _TimedClient(port, seconds)
    for _ in timed.remaining_rounds():
        consumer = random_uuid(rng)
        claim = {"consumer_uuid": consumer, "query": rng.choice(asked), **CLAIM_OWNER}
        if timed.send("POST", "/ext/v1/claims", orjson.dumps({"claims": [claim]})) is not None:
            timed.work.consumers.append(consumer)
    return timed.stop_clocks()


def _release(port: int, consumers: Sequence[str]) -> ClientWork:
    timed = _TimedClient(port, 0)
    for consumer in consumers:
        timed.send("DELETE", f"/allocations/{consumer}")
    return timed.stop_clocks()


def _load(port: int, trees: Sequence[Sequence[WorldProvider]]) -> ClientWork:
    timed = _TimedClient(port, 0)
    for tree in trees:
        for provider in tree:
            _make_provider(timed, provider)
    return timed.stop_clocks()


def _make_provider(timed: _TimedClient, provider: WorldProvider) -> None:
    """Create a resource provider and all its parts; each answer has the generation for the next step."""
    place = f"/resource_providers/{provider.uuid}"
    made = {"name": provider.name, "uuid": provider.uuid, "parent_provider_uuid": provider.parent}
    answer = timed.send_until_success("POST", "/resource_providers", orjson.dumps(made))
    generation = orjson.loads(answer)["generation"]
    steps = (
        ("inventories", provider.inventories),
        ("traits", provider.traits),
        ("aggregates", provider.aggregates),
    )
    for what, content in steps:
        if content:
            body = orjson.dumps({"resource_provider_generation": generation, what: content})
            answer = timed.send_until_success("PUT", f"{place}/{what}", body)
            generation = orjson.loads(answer)["resource_provider_generation"]
