"""The parts of the time of one request: ``python -m benchmarks.profile_query --world numa``.

The service runs in this process, without a web server, on a separate database.
"""

import argparse
import cProfile
import pstats
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any
from wsgiref.types import WSGIApplication

import orjson
from werkzeug.datastructures import Headers
from werkzeug.test import EnvironBuilder, run_wsgi_app

from benchmarks.http import CLAIM_OWNER
from benchmarks.queries import QUERIES, QueryFamily
from benchmarks.servers import add_database_option, create_database_server
from benchmarks.world_loader import load_directly
from benchmarks.worlds import WORLDS, ProviderWorld, uuid_of
from placement.api.middleware import build_application
from placement.conf import new_config
from placement.db import migration

Environ = dict[str, Any]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.profile_query", description=__doc__)
    add_database_option(top, "sqlite")
    top.add_argument(
        "--world", choices=tuple(WORLDS), default="numa", help="name of the world; default: %(default)s"
    )
    top.add_argument("--trees", type=int, help="size of the world; default: its full size")
    what = top.add_mutually_exclusive_group()
    what.add_argument("--query", help="name of a query of the benchmark; default: the first")
    what.add_argument(
        "--path", help="path of another GET; a number after an @ grows by one with each request"
    )
    what.add_argument(
        "--claims", action="store_true", help="send claims to the flat world instead of a query"
    )
    what.add_argument("--decided", metavar="QUERY", help="send POST /ext/v1/claims with this query")
    top.add_argument("--count", type=int, default=50, help="number of requests; default: %(default)s")
    top.add_argument("--sort", default="tottime", help="order of the listing; default: %(default)s")
    top.add_argument("--lines", type=int, default=30, help="length of the listing; default: %(default)s")
    return top


def main() -> None:
    """Profile and print."""
    options = build_parser().parse_args()
    world = WORLDS["flat" if options.claims else options.world]
    with create_database_server(options.database) as server:
        url = server.fresh_database()
        migration.upgrade_schema(url)
        load_directly(url, world, options.trees or world.trees)
        profile_requests(make_application(url), _request_environs(options, world), options)


def _request_environs(options: argparse.Namespace, world: ProviderWorld) -> Iterator[Environ]:
    if options.claims:
        return _claim_environs(options.trees or world.trees)
    return _decided_environs(options.decided) if options.decided else _query_environs(_chosen_query(options))


def profile_requests(app: WSGIApplication, environs: Iterator[Environ], options: argparse.Namespace) -> None:
    """Print the time of a request, and its parts."""
    for _ in range(3):
        _answer_request(app, next(environs))
    prepared = [next(environs) for _ in range(options.count)]
    began, busy = time.perf_counter(), time.process_time()
    _answer_all(app, prepared)
    seconds, busy = time.perf_counter() - began, time.process_time() - busy
    print(
        f"{1000 * seconds / options.count:.3f} ms for each of {options.count} requests,"
        f" of which {1000 * busy / options.count:.3f} ms are work of this process"
    )
    prepared = [next(environs) for _ in range(options.count)]
    profiler = cProfile.Profile()
    profiler.runcall(_answer_all, app, prepared)
    pstats.Stats(profiler).strip_dirs().sort_stats(options.sort).print_stats(options.lines)


def make_application(url: str) -> WSGIApplication:
    conf = new_config(config_files=())
    conf.set_override("connection", url, "placement_database")
    conf.set_override("auth_strategy", "noauth2", "api")
    return build_application(conf)


def _chosen_query(options: argparse.Namespace) -> QueryFamily:
    if options.path is not None:
        return QueryFamily("", options.path)
    by_name = {query.name: query for query in QUERIES[options.world]}
    if options.query is None:
        return QUERIES[options.world][0]
    if options.query not in by_name:
        raise SystemExit(f"--query: {options.query!r} is not one of {', '.join(map(repr, by_name))}")
    return by_name[options.query]


def _query_environs(query: QueryFamily) -> Iterator[Environ]:
    return (make_environ("GET", path) for path in query.member_paths())


def _claim_environs(hosts: int) -> Iterator[Environ]:
    number = 0
    while True:
        body = {
            "allocations": {uuid_of(f"flat-{number % hosts}"): {"resources": {"VCPU": 1, "MEMORY_MB": 32}}},
            **CLAIM_OWNER,
        }
        yield make_environ("PUT", f"/allocations/{uuid.uuid4()}", orjson.dumps(body))
        number += 1


def _decided_environs(query: str) -> Iterator[Environ]:
    claim = {"query": query, **CLAIM_OWNER}
    while True:
        yield make_environ(
            "POST",
            "/ext/v1/claims",
            orjson.dumps({"claims": [{"consumer_uuid": str(uuid.uuid4()), **claim}]}),
        )


def make_environ(method: str, path: str, body: bytes | None = None) -> Environ:
    headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39"}
    builder = EnvironBuilder(path, method=method, headers=Headers(headers), data=body)
    if body is not None:
        builder.content_type = "application/json"
    return builder.get_environ()


def _answer_all(app: WSGIApplication, environs: Iterable[Environ]) -> None:
    for environ in environs:
        _answer_request(app, environ)


def _answer_request(app: WSGIApplication, environ: Environ) -> None:
    chunks, status, _ = run_wsgi_app(app, environ, buffered=True)
    if not status.startswith("2"):
        raise SystemExit(f"{status}: {b''.join(chunks).decode()}")


if __name__ == "__main__":
    main()
