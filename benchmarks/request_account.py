"""The CPU time of the parts of a request: ``python -m benchmarks.request_account``.

Two servers of one worker answer the same requests in turn, on one database. One server has counters around
its parts. The parts have to add up to the time that the kernel counts for this server, without the time of
the counters themselves. The other server shows the time without counters.
"""

import argparse
import os
import socket
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks.http import CLAIM_OWNER
from benchmarks.machine_speed import addition_seconds
from benchmarks.part_counters import ACCOUNT_PATH, PARTS
from benchmarks.servers import OurService, add_database_option, create_database_server
from benchmarks.world_loader import load_directly
from benchmarks.worlds import WORLDS, uuid_of
from placement.db import migration

_HOSTS: Final = 179
"""Hosts with two candidates each: 358 in total."""
_WARM: Final = 5
_THREADS: Final = 4
_CANDIDATES: Final = "/allocation_candidates?resources=PCPU:{}&limit={}"

Request = bytes
"""All bytes of a request."""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.request_account", description=__doc__)
    add_database_option(top)
    top.add_argument("--repeats", type=int, default=15, help="number of repeats; default: %(default)s")
    top.add_argument("--count", type=int, default=100, help="requests of a repeat; default: %(default)s")
    top.add_argument("--plain", action="store_true", help="only the time of the server without counters")
    return top


class _CountedService(OurService):
    """The service with counters."""

    name = "counted"

    def _serve_command(self) -> list[str]:
        return [
            "benchmarks.part_counters" if each == "placement.cmd.api" else each
            for each in super()._serve_command()
        ]


class _RawClient:
    """One persistent connection with little cost for the measuring process."""

    def __init__(self, service: OurService) -> None:
        self.service = service
        self._socket = socket.create_connection(("127.0.0.1", service.port), 60)

    def send(self, request: Request) -> tuple[bytes, bytes]:
        """Return headers and body of the answer."""
        self._socket.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._receive()
        headers, _, body = answer.partition(b"\r\n\r\n")
        length = header_value(headers, b"content-length")
        pieces, missing = [body], int(length or 0) - len(body)
        while missing > 0:
            pieces.append(self._receive())
            missing -= len(pieces[-1])
        if headers[9:10] not in (b"2", b"3"):
            raise SystemExit(f"{request.decode()}\n{answer.decode()}")
        return headers, b"".join(pieces)

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 20)
        if not data:
            raise SystemExit("The service has closed the connection.")
        return data

    def read_counters(self) -> Any:
        """Return the counters of a service with counters."""
        return orjson.loads(self.send(make_request("GET", ACCOUNT_PATH))[1])

    def count_wakeups(self) -> int:
        """Return the number of waits of the service's threads so far."""
        return sum(
            int(line.split()[1])
            for worker in self.service.worker_processes()
            for status in Path(f"/proc/{worker.pid}/task").glob("*/status")
            for line in status.read_text().splitlines()
            if line.startswith("voluntary")
        )


def header_value(headers: bytes, name: bytes) -> bytes | None:
    """Return the value of a header."""
    lines = (line.partition(b":") for line in headers.split(b"\r\n"))
    return next((value.strip() for key, _, value in lines if key.lower() == name), None)


def make_request(method: str, path: str, body: object = None, more: str = "") -> Request:
    """Return a request of an administrator."""
    content = b"" if body is None else orjson.dumps(body)
    kind = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n" if content else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Auth-Token: admin\r\nAccept: application/json\r\n"
        f"OpenStack-API-Version: placement 1.39\r\n{kind}{more}\r\n"
    )
    return head.encode() + content


class _RequestKinds:
    """The requests of each column of the table."""

    def __init__(self, client: _RawClient, count: int) -> None:
        self._count = count
        self._consumers: list[str] = []
        tree = f"/ext/v1/trees/{uuid_of('numa-0')}?allocations=true"
        headers, _ = client.send(make_request("GET", tree))
        tag = (header_value(headers, b"etag") or b"").decode()
        self.kinds: dict[str, Callable[[], Sequence[Request]]] = {
            "`/`": lambda: [make_request("GET", "/")] * count,
            "no candidate": lambda: [make_request("GET", _CANDIDATES.format(100, 50))] * count,
            **{
                f"{limit} candidates" if limit > 1 else "1 candidate": self._candidate_requests(limit)
                for limit in (1, 50, 2 * _HOSTS)
            },
            "claim": self._claim_requests,
            "release": lambda: [make_request("DELETE", f"/allocations/{each}") for each in self._consumers],
            "report": lambda: [make_request("GET", tree, more=f"If-None-Match: {tag}\r\n")] * count,
        }

    def _candidate_requests(self, limit: int) -> Callable[[], Sequence[Request]]:
        return lambda: [make_request("GET", _CANDIDATES.format(2, limit))] * self._count

    def _claim_requests(self) -> Sequence[Request]:
        self._consumers = [str(uuid.uuid4()) for _ in range(self._count)]
        # the host of the report gets no claim, so that the report stays unchanged
        return [
            make_request(
                "PUT",
                f"/allocations/{each}",
                {
                    "allocations": {
                        uuid_of(f"numa-{1 + n % (_HOSTS - 1)}-numa0"): {"resources": {"PCPU": 1}}
                    },
                    **CLAIM_OWNER,
                },
            )
            for n, each in enumerate(self._consumers)
        ]


class _TimeColumn:
    """Repeats of one kind of request: µs of a request, by part and of the server without counters."""

    def __init__(self) -> None:
        self.parts: list[dict[str, float]] = []
        #: the time that the kernel counts for the server with counters, without the time of the counters
        self.totals: list[float] = []
        self.plain: list[float] = []
        self.wakeups: list[float] = []
        self.bytes = 0

    def table_cells(self) -> Iterator[str]:
        """Return the cells, of the repeat that other work on the machine disturbed least."""
        if self.parts:
            total, parts = min(zip(self.totals, self.parts, strict=True), key=lambda pair: pair[0])
            added = sum(parts.values())
            yield from (f"{parts[part]:.0f}" for part in PARTS)
            yield from (f"{added:.0f}", f"{total:.0f}", f"{100 * (added / total - 1):+.0f} %")
        yield f"{min(self.plain):.0f}"
        yield f"{statistics.median(self.plain):.0f}"
        yield f"{statistics.median(self.wakeups):.1f}"
        yield f"{self.bytes:,}"


def measure_requests(clients: Sequence[_RawClient], repeats: int, count: int) -> dict[str, _TimeColumn]:
    """Measure each kind of request on each server, in turn."""
    requests = [_RequestKinds(client, count) for client in clients]
    columns = {kind: _TimeColumn() for kind in requests[0].kinds}
    for _ in range(repeats):
        for kind, of_kind in columns.items():
            for client, its in zip(clients, requests, strict=True):
                batch = its.kinds[kind]()
                # releases and claims cannot be repeated
                for one in (
                    batch[:_WARM]
                    if batch[0] == batch[-1]
                    else [make_request("GET", _CANDIDATES.format(2, 1))]
                ):
                    client.send(one)
                _measure_batch(client, batch, of_kind)
    return columns


def _measure_batch(client: _RawClient, batch: Sequence[Request], columns: _TimeColumn) -> None:
    is_counted = isinstance(client.service, _CountedService)
    before = client.read_counters() if is_counted else {}
    cpu, wakeups = client.service.cpu_seconds(), client.count_wakeups()
    for one in batch:
        headers, body = client.send(one)
    cpu, wakeups = client.service.cpu_seconds() - cpu, client.count_wakeups() - wakeups
    if is_counted:
        parts, counters = _parts_between(before, client.read_counters(), len(batch))
        columns.parts.append(parts)
        columns.totals.append(1e6 * cpu / len(batch) - counters)
    else:
        columns.plain.append(1e6 * cpu / len(batch))
        columns.wakeups.append(wakeups / len(batch))
        columns.bytes = len(headers) + 4 + len(body)


def _parts_between(before: Any, after: Any, requests: int) -> tuple[dict[str, float], float]:
    """Return µs of a request by part without the time of the counters, and the time of all counters."""
    inner, outer = after["cost"]
    parts, counters = {}, 0.0
    for part, numbers in after["parts"].items():
        spent, calls, nested = (new - old for new, old in zip(numbers, before["parts"][part], strict=True))
        cost = inner * calls + outer * nested
        parts[part] = (spent - cost) / 1000 / requests
        counters += cost / 1000 / requests
    return parts, counters


def table_lines(columns: dict[str, _TimeColumn]) -> Iterator[str]:
    """Yield the lines of the table."""
    plain = ("without counters, least", "median", "waits", "bytes of the answer")
    is_counted = any(each.parts for each in columns.values())
    names = (*PARTS, "**sum**", "**total, by the kernel**", "difference", *plain) if is_counted else plain
    yield "| µs of CPU | " + " | ".join(columns) + " |"
    yield "| --- |" + " ---: |" * len(columns)
    for name, *cells in zip(names, *(each.table_cells() for each in columns.values()), strict=True):
        yield f"| {name} | " + " | ".join(cells) + " |"


@contextmanager
def _start_servers(database: str, plain: bool) -> Iterator[Sequence[_RawClient]]:
    with create_database_server(database) as server, tempfile.TemporaryDirectory() as folder:
        url = server.fresh_database()
        migration.upgrade_schema(url)
        load_directly(url, WORLDS["numa"], _HOSTS)
        with OurService(url, Path(folder), 1, _THREADS) as ours:
            if plain:
                yield [_RawClient(ours)]
                return
            with _CountedService(url, Path(folder), 1, _THREADS) as counted:
                yield [_RawClient(ours), _RawClient(counted)]


def main() -> None:
    """Measure and print."""
    options = build_parser().parse_args()
    loops = [addition_seconds()]
    with _start_servers(options.database, options.plain) as clients:
        columns = measure_requests(clients, options.repeats, options.count)
    loops.append(addition_seconds())
    print(f"five million additions: {loops[0]:.2f} s before and {loops[1]:.2f} s after the measurement")
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
    for line in table_lines(columns):
        print(line)


if __name__ == "__main__":
    main()
