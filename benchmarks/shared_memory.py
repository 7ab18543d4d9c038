"""The memory of workers that share the read model: ``python -m benchmarks.shared_memory``.

Two servers start from the same model file. One server starts all workers together, so that they share what
the parent process has read. The other server starts its workers one by one, and each of these reads the file
itself. Then each worker answers the same searches, and follows changes of the database. The memory of a
server is the sum over all processes; a page that n processes share counts as 1/n for each process (PSS).

Each worker has two connections, so that it gets its requests and its long search.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Final

import psutil
import sqlalchemy as sa

from benchmarks.following import change_providers
from benchmarks.http import ServiceConnection
from benchmarks.machine_speed import addition_seconds
from benchmarks.queries import QUERIES
from benchmarks.servers import OurService, ServiceFailed, add_database_option
from benchmarks.world_loader import load_directly
from benchmarks.worlds import WORLDS
from placement.db import migration
from placement.db.tables import resource_providers
from tests.databases import create

_PER_HOST: Final = 5
_THREADS: Final = 4
_SEARCHES: Final = 30
_CHANGES: Final = (300, 700, 2_000)
_ROUNDS: Final = 5
_AT_ONCE: Final = 20
# the service closes connections that are idle for longer
_SECONDS_TO_CONNECT: Final = 60.0
_LIMITED: Final = next(each for each in QUERIES["numa"] if each.is_limited)
_LONG: Final = _LIMITED.path().replace("limit=100", "limit=5000")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shared_memory", description=__doc__)
    add_database_option(parser)
    parser.add_argument(
        "--providers", type=int, default=250_000, help="number of providers; default: %(default)s"
    )
    parser.add_argument("--workers", type=int, default=16, help="number of workers; default: %(default)s")
    options = parser.parse_args(arguments)
    print(f"five million additions take {addition_seconds():.2f} s", file=sys.stderr)
    with ExitStack() as stack:
        server = stack.enter_context(create(options.database))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="placement-shared-")))
        url, file = server.fresh_database(), folder / "model"
        migration.upgrade_schema(url)
        load_directly(url, WORLDS["numa"], options.providers // _PER_HOST)
        measured = {
            name: list(
                _measure_server(start, OurService(url, folder, workers, _THREADS, file), options.workers, url)
            )
            for name, start, workers in (
                ("apart", _add_workers, 1),
                ("shared", _await_workers, options.workers),
            )
        }
    print(f"| {options.workers} workers, {options.providers:,} providers | apart, MB | shared, MB | ratio |")
    print("| --- | ---: | ---: | ---: |")
    for (step, apart), (_, shared) in zip(measured["apart"], measured["shared"], strict=True):
        print(f"| {step} | {apart:,.0f} | {shared:,.0f} | {shared / apart:.2f} |")
    return 0


def _write_file(url: str, service: OurService) -> None:
    file = service.model_file
    assert file is not None  # each server of this benchmark has a file
    file.unlink(missing_ok=True)
    with (
        OurService(url, file.parent, 1, _THREADS, file) as writer,
        ServiceConnection(writer.port) as connection,
    ):
        connection.expect_success("GET", _LIMITED.path())
        while not file.exists():
            time.sleep(0.1)


def _await_workers(service: OurService, workers: int) -> None:
    """Wait until all workers have started: the first ones answer before."""
    while len(service.worker_processes()) < workers:
        time.sleep(0.05)


def _add_workers(service: OurService, workers: int) -> None:
    """Start workers one by one, as gunicorn does on SIGTTIN."""
    for count in range(2, workers + 1):
        _parent_process(service).send_signal(signal.SIGTTIN)
        _await_workers(service, count)


def _parent_process(service: OurService) -> psutil.Process:
    return service.worker_processes()[0].parent()


def _measure_server(
    start: Callable[[OurService, int], None], service: OurService, workers: int, url: str
) -> Iterator[tuple[str, float]]:
    """Yield the name of each step, and the memory of the server after it."""
    engine, rng = sa.create_engine(url), random.Random(5)
    # a new file has no later changes to follow, also after the changes of the other server
    _write_file(url, service)
    with engine.begin() as conn:
        providers = [
            (id_, uuid) for id_, uuid in conn.execute(sa.select(*resource_providers.c["id", "uuid"]))
        ]
    with service:
        start(service, workers)
        pairs = _connect_twice(service)
        connections = [connection for connection, _ in pairs]
        _ask_each(connections, [_LIMITED.path()])
        yield "first search of each", _server_memory(service)
        _ask_each(connections, list(islice(_LIMITED.member_paths(), _SEARCHES)))
        yield f"{_SEARCHES} searches of each", _server_memory(service)
        done = 0
        for more in _CHANGES:
            for _ in range(_ROUNDS):
                change_providers(engine, rng.sample(providers, more // _ROUNDS))
                _ask_each(connections, [_LIMITED.path()])
            done += more
            yield f"{done:,} changed providers", _server_memory(service)
            if done == _CHANGES[0]:
                for long, short in pairs:
                    _change_during_search(long, short, engine, rng.sample(providers, 2))
                yield "a long search during a change", _server_memory(service)
        # each worker has read the file or taken over the model of its parent
        log = service.log_path.read_text()
        loaded = log.count("resource providers from its file") + log.count(
            "resource providers from the parent"
        )
        if (loaded, log.count("Booting worker")) != (workers, workers):
            raise ServiceFailed(f"{loaded} of {workers} workers have used the file")
    engine.dispose()


def _connect_twice(service: OurService) -> list[tuple[ServiceConnection, ServiceConnection]]:
    """Return two connections to each worker; the kernel chooses the worker of a connection."""
    workers, found = service.worker_processes(), defaultdict[int, list[ServiceConnection]](list)
    deadline = time.monotonic() + _SECONDS_TO_CONNECT
    while min(len(found[each.pid]) for each in workers) < 2:
        if time.monotonic() > deadline:
            raise ServiceFailed("some workers got no connections")
        # all connections of a round are made before their workers are looked up, which takes longer
        made = [ServiceConnection(service.port) for _ in range(_AT_ONCE * len(workers))]
        for connection in made:
            connection.expect_success("GET", "/")
        by_port = {connection.local_port: connection for connection in made}
        for worker in workers:
            ports = {end.raddr.port for end in worker.net_connections("tcp") if end.raddr}
            found[worker.pid] += [by_port[each] for each in ports & by_port.keys()]
    return [(found[each.pid][0], found[each.pid][1]) for each in workers]


def _ask_each(connections: Sequence[ServiceConnection], paths: Sequence[str]) -> None:
    for connection in connections:
        for path in paths:
            connection.expect_success("GET", path)


def _change_during_search(
    long: ServiceConnection, short: ServiceConnection, engine: sa.Engine, providers: Sequence[tuple[int, str]]
) -> None:
    searching = Thread(target=long.expect_success, args=("GET", _LONG))
    searching.start()
    for each in providers:
        time.sleep(0.2)
        change_providers(engine, [each])
        short.expect_success("GET", _LIMITED.path())
    searching.join()
    short.expect_success("GET", _LIMITED.path())


def _server_memory(service: OurService) -> float:
    """Return the MB of the parent process and of all workers."""
    return sum(_read_pss(each.pid) for each in (_parent_process(service), *service.worker_processes()))


def _read_pss(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000


if __name__ == "__main__":
    raise SystemExit(main())
