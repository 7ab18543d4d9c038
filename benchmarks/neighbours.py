"""The delay of other requests while a worker answers a large query: ``python -m benchmarks.neighbours``.

Nearly full hosts are on SQLite, and the service is in this process. One thread sends a large query some
times. Another thread sends a small query as often as it can. A line has the cost of the large query alone,
and the time of the small query beside it. These times grow with other work on the machine. Compare them with
the first line, which is the small query alone.
"""

import argparse
import random
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import thread_time
from typing import Any, Final

import orjson
import sqlalchemy as sa
from werkzeug.test import run_wsgi_app

from benchmarks.decisions import CLASSES, host_guests
from benchmarks.profile_query import make_application, make_environ
from benchmarks.world_loader import load_directly
from benchmarks.worlds import WORLDS, random_uuid, uuid_of
from placement.api.garbage import GcScheduler
from placement.db import migration, tables
from placement.read_model.feed import ReadTurn
from placement.read_model.snapshot import ModelSnapshot
from tests import databases

SMALL: Final = ("GET", "/allocation_candidates?resources=DISK_GB:1&limit=1")
FITS: Final = "resources=VCPU:4,MEMORY_MB:8192,DISK_GB:80"
FITS_NOWHERE: Final = "resources=VCPU:4,MEMORY_MB:60000"
OWNER: Final = {"project_id": "p1", "user_id": "u", "consumer_type": "INSTANCE", "consumer_generation": None}
_PAUSE: Final = 0.003

Question = tuple[str, str] | tuple[str, str, Mapping[str, Any]]


@dataclass(frozen=True)
class TimedAnswer:
    """The status and size of an answer, and its elapsed seconds and CPU seconds."""

    status: str
    size: int
    clock: float
    work: float


class LocalService:
    """The application in this process."""

    def __init__(self, url: str) -> None:
        self._app = make_application(url)

    def ask_question(self, question: Question) -> TimedAnswer:
        """Send a query, and read the whole answer."""
        method, path, *body = question
        asked = make_environ(method, path, orjson.dumps(body[0]) if body else None)
        began, work = time.perf_counter(), thread_time()
        chunks, status, _ = run_wsgi_app(self._app, asked, buffered=True)
        size = sum(map(len, chunks))
        return TimedAnswer(status, size, time.perf_counter() - began, thread_time() - work)


def fill_hosts(url: str, hosts: int) -> int:
    """Place guests on flat hosts until these are nearly full; return the number of guests."""
    rng = random.Random(3)
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        providers = tables.resource_providers
        ids = dict(map(tuple, conn.execute(sa.select(providers.c.uuid, providers.c.id))))
        named = tables.resource_classes
        classes = dict(map(tuple, conn.execute(sa.select(named.c.name, named.c.id))))
        consumers: list[dict[str, Any]] = []
        held: list[dict[str, Any]] = []
        for number in range(hosts):
            for guest in host_guests(rng):
                key = len(consumers) + 1
                name = random_uuid(rng)
                owner = {"project_id": f"p{key % 50}", "user_id": "u", "consumer_type": "INSTANCE"}
                consumers.append({"id": key, "uuid": name, "generation": 1, "updated_at": 0.0, **owner})
                held += [
                    {
                        "consumer_id": key,
                        "provider_id": ids[uuid_of(f"flat-{number}")],
                        "resource_class_id": classes[name],
                        "used": amount,
                        "updated_at": 0.0,
                    }
                    for name, amount in zip(CLASSES, guest, strict=True)
                ]
        conn.execute(sa.insert(tables.consumers), consumers)
        conn.execute(sa.insert(tables.allocations), held)
    engine.dispose()
    return len(consumers)


def large_questions(hosts: int) -> Iterator[tuple[str, Question]]:
    """Yield the large queries by name."""
    drained = [uuid_of(f"flat-{number}") for number in range(min(1000, hosts // 10))]
    flavors = [{"name": "one", "query": FITS}]
    many = [
        {
            "name": f"f{cpus}",
            "query": f"resources=VCPU:{cpus},MEMORY_MB:{2048 * cpus}",
            "proportion": 1,
        }
        for cpus in range(1, 21)
    ]
    by_order = {"order": {"pack": 1}}
    yield "nothing", SMALL
    yield "all providers", ("GET", "/resource_providers")
    yield "usages of a project", ("GET", "/usages?project_id=p1")
    yield "candidates without a limit", ("GET", f"/allocation_candidates?{FITS}")
    yield "an explanation", ("POST", "/ext/v1/explanations", {"query": FITS_NOWHERE})
    yield "a refused claim", ("POST", "/ext/v1/claims", _claims_body(1, query=FITS_NOWHERE))
    yield "a claim by order", ("POST", "/ext/v1/claims", _claims_body(1, **by_order))
    yield "64 claims by order", ("POST", "/ext/v1/claims", _claims_body(64, **by_order))
    yield "capacity", ("POST", "/ext/v1/capacity", {"flavors": flavors})
    yield "capacity, 20 flavors", ("POST", "/ext/v1/capacity", {"flavors": many})
    for some in (drained[:10], drained):
        body = {"flavors": flavors, "excluded_hosts": some, "drain": True}
        yield f"guests of {len(some)} drained hosts", ("POST", "/ext/v1/capacity", body)
    moves = {"flavors": [{"name": "one", "query": FITS_NOWHERE}], "moves": True}
    yield "moves that make room", ("POST", "/ext/v1/capacity", moves)
    yield "changes", ("GET", "/ext/v1/changes")


def _claims_body(number: int, **fields: Any) -> Mapping[str, Any]:
    claims = [
        {"consumer_uuid": str(uuid.UUID(int=each, version=4)), "query": FITS, **OWNER, **fields}
        for each in range(number)
    ]
    return {"claims": claims, "dry_run": True}


def waits_beside(service: LocalService, large: Question, times: int) -> list[float]:
    """Return the sorted seconds of the small query while the large query runs some times."""
    asking = threading.Thread(target=lambda: [service.ask_question(large) for _ in range(times)])
    asking.start()
    waits = [service.ask_question(SMALL).clock]
    while asking.is_alive():
        waits.append(service.ask_question(SMALL).clock)
        time.sleep(_PAUSE)
    return sorted(waits)


class TurnWatch:
    """The longest uninterrupted work of a request, in seconds of CPU time of its thread."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._began: float | None = None

    def watch_turns(self) -> None:
        """Measure all turns from now on."""
        enter, leave, yield_lock = ReadTurn.__enter__, ReadTurn.__exit__, ReadTurn.yield_lock

        def enter_counted(turn: ReadTurn) -> ReadTurn:
            enter(turn)
            self._began = thread_time()
            return turn

        def leave_counted(turn: ReadTurn, *how: Any) -> None:
            self._note_turn()
            leave(turn, *how)

        def yield_counted(turn: ReadTurn, snapshot: ModelSnapshot) -> None:
            self._note_turn()
            yield_lock(turn, snapshot)
            self._began = thread_time()

        ReadTurn.__enter__, ReadTurn.__exit__, ReadTurn.yield_lock = (
            enter_counted,
            leave_counted,
            yield_counted,
        )  # type: ignore[method-assign]  # to measure the turns

    def _note_turn(self) -> None:
        assert self._began is not None
        self.longest = max(self.longest, thread_time() - self._began)

    def longest_turn(self, service: LocalService, large: Question) -> float:
        """Return the longest turn of one request."""
        self.longest = 0.0
        service.ask_question(large)
        return self.longest


def main() -> None:
    """Measure and print."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.neighbours", description=__doc__)
    top.add_argument("--hosts", type=int, default=10_000, help="number of hosts; default: %(default)s")
    top.add_argument("--only", default="", help="only queries with this text in their name")
    top.add_argument("--times", type=int, default=3, help="repeats of each query; default: %(default)s")
    options = top.parse_args()
    GcScheduler(lambda: 0)  # Python collects garbage at the same times as in the service
    with databases.create("sqlite", durable=False) as server:
        url = server.fresh_database()
        migration.upgrade_schema(url)
        load_directly(url, WORLDS["flat"], options.hosts)
        guests = fill_hosts(url, options.hosts)
        service = LocalService(url)
        service.ask_question(SMALL)
        print(f"{options.hosts} hosts, {guests} guests; milliseconds")
        turns = TurnWatch()
        turns.watch_turns()
        for name, large in large_questions(options.hosts):
            if options.only in name:
                alone, longest = service.ask_question(large), turns.longest_turn(service, large)
                waits = waits_beside(service, large, options.times)
                print(
                    f"{name:30} {alone.status[:3]} {alone.size:>9} bytes, {1000 * alone.work:6.0f} of work, "
                    f"longest turn {1000 * longest:6.1f}; "
                    f"others {1000 * waits[len(waits) // 2]:6.1f} (median), {1000 * waits[-1]:6.1f} (worst)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
