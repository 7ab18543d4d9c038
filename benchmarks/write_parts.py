"""Exchanges with PostgreSQL, and CPU time, of each kind of write: ``python -m benchmarks.write_parts``.

One client calls the application in this process, without a web server.
"""

import argparse
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any, Final

import orjson
from werkzeug.test import run_wsgi_app

from benchmarks.http import CLAIM_OWNER
from benchmarks.profile_query import make_application, make_environ
from benchmarks.servers import create_database_server
from benchmarks.worlds import inventory
from placement.db import migration, postgresql
from placement.db.postgresql import PostgresqlConnection

_WARM: Final = 10
"""Number of writes of each kind that do not count."""
_PROVIDERS: Final = 20


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.write_parts", description=__doc__)
    top.add_argument("--count", type=int, default=100, help="writes of each kind; default: %(default)s")
    return top


class CountedWriter:
    """The application on a separate database, with a count of its exchanges with PostgreSQL."""

    def __init__(self, url: str) -> None:
        migration.upgrade_schema(url)
        self._app = make_application(url)
        self._exchanges = 0
        for holder, name, counted in (
            (PostgresqlConnection, "wait", self._count_waits),
            (PostgresqlConnection, "ask_question", self._count_call),
            (postgresql, "exchange_statements", self._count_call),
        ):
            setattr(holder, name, counted(getattr(holder, name)))
        self.host = str(uuid.uuid4())
        large = {"VCPU": inventory(10**8), "MEMORY_MB": inventory(10**8)}
        self.send("POST", "/resource_providers", {"uuid": self.host, "name": self.host})
        self.send("PUT", f"/resource_providers/{self.host}/inventories", _inventories_body(0, large))

    def _count_call(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call_counted(*args: Any, **kwargs: Any) -> Any:
            self._exchanges += 1
            return function(*args, **kwargs)

        return call_counted

    def _count_waits(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that waits like psycopg, and counts a wait in which the server has to answer."""

        def count_answers(gen: Any) -> Any:
            try:
                wanted = next(gen)
                self._exchanges += 1
                while True:
                    wanted = gen.send((yield wanted))
            except StopIteration as end:
                return end.value

        return lambda connection, gen, *args, **kwargs: wait(connection, count_answers(gen), *args, **kwargs)

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, float]:
        """Send a write; return the exchanges with the database, and the CPU time of this process in ms."""
        sent = make_environ(method, path, None if body is None else orjson.dumps(body))
        self._exchanges, began = 0, time.process_time()
        chunks, status, _ = run_wsgi_app(self._app, sent, buffered=True)
        cpu = time.process_time() - began
        if not status.startswith("2"):
            raise SystemExit(f"{method} {path}: {status}: {b''.join(chunks).decode()}")
        return self._exchanges, 1000 * cpu


def _all_writes(host: str) -> Iterator[tuple[str, str, str, Any]]:
    child, consumer = str(uuid.uuid4()), str(uuid.uuid4())
    path, created = f"/resource_providers/{child}", {"uuid": child, "name": child}
    yield "provider", "POST", "/resource_providers", {**created, "parent_provider_uuid": host}
    yield "first inventories", "PUT", f"{path}/inventories", _inventories_body(0, {"DISK_GB": inventory(8)})
    traits = {"resource_provider_generation": 1, "traits": ["HW_CPU_X86_AVX2", "STORAGE_DISK_SSD"]}
    yield "traits", "PUT", f"{path}/traits", traits
    aggregates = {"resource_provider_generation": 2, "aggregates": [host]}
    yield "aggregates", "PUT", f"{path}/aggregates", aggregates
    yield "inventories", "PUT", f"{path}/inventories", _inventories_body(3, {"DISK_GB": inventory(9)})
    resources = {"allocations": {host: {"resources": {"VCPU": 1, "MEMORY_MB": 32}}}}
    yield "claim", "PUT", f"/allocations/{consumer}", {**resources, **CLAIM_OWNER}
    yield "release", "DELETE", f"/allocations/{consumer}", None
    for kind in ("claim in one call, after other writes", "claim in one call"):
        claim = {"consumer_uuid": str(uuid.uuid4()), "query": "resources=VCPU:1,MEMORY_MB:32", **CLAIM_OWNER}
        yield kind, "POST", "/ext/v1/claims", {"claims": [claim]}
    yield f"tree of {_PROVIDERS} providers", "POST", "/ext/v1/trees", {"resource_providers": _tree_body()}


def _inventories_body(generation: int, values: Mapping[str, Any]) -> dict[str, Any]:
    return {"resource_provider_generation": generation, "inventories": values}


def _tree_body() -> list[dict[str, Any]]:
    """Return a host with NUMA nodes, caches and devices, as in an agent's first report: 28 inventories."""
    root = str(uuid.uuid4())
    nodes = [str(uuid.uuid4()) for _ in range(4)]
    host = {"MEMORY_MB": inventory(262_144), "DISK_GB": inventory(4000)}
    cpus = {"PCPU": inventory(24), "VCPU": inventory(8), "MEMORY_MB": inventory(65_536)}
    described = [(root, None, host, ["COMPUTE_NODE"])]
    described += [(node, root, cpus, ["HW_NUMA_ROOT"]) for node in nodes]
    described += [
        (str(uuid.uuid4()), nodes[number % 4], {"VGPU": inventory(4)}, ["HW_GPU_API_VULKAN"])
        for number in range(_PROVIDERS - len(described))
    ]
    return [
        {
            "uuid": own,
            "name": own,
            "parent_provider_uuid": parent,
            "generation": None,
            "inventories": inventories,
            "traits": traits,
            "aggregates": [root],
        }
        for own, parent, inventories, traits in described
    ]


def main() -> None:
    """Measure and print."""
    options = build_parser().parse_args()
    exchanges: dict[str, int] = {}
    cpu: dict[str, list[float]] = {}
    with create_database_server("postgresql") as server:
        writer = CountedWriter(server.fresh_database())
        for round_ in range(_WARM + options.count):
            for kind, *request in _all_writes(writer.host):
                exchanges[kind], spent = writer.send(*request)
                if round_ >= _WARM:
                    cpu.setdefault(kind, []).append(spent)
    print("| write | exchanges | CPU ms, least | median |")
    print("| --- | ---: | ---: | ---: |")
    for kind, values in cpu.items():
        print(f"| {kind} | {exchanges[kind]} | {min(values):.2f} | {statistics.median(values):.2f} |")


if __name__ == "__main__":
    main()
