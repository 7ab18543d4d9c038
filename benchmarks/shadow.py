"""The time that `placement-shadow` adds to OpenStack Placement, compared with that of a plain proxy."""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from benchmarks.http import ServiceConnection, is_answering
from benchmarks.reference import install_reference
from benchmarks.servers import OpenStack, OurService
from placement_extras.shadow.proxy import InFlight, RequestForwarder
from tests.placement_extras.shadow.processes import shadow
from tests.ports import free_port

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

HOSTS: Final = 200
_STOCK: Final = "SHADOW_BENCHMARK_STOCK"
_SECONDS: Final = 60.0
_THREADS: Final = 8


def bare_proxy() -> "WSGIApplication":
    """Return the proxy alone, which copies no requests."""
    return RequestForwarder(os.environ[_STOCK], InFlight(lambda copy: None), _THREADS, _SECONDS)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shadow", description=__doc__)
    parser.add_argument(
        "--requests", type=int, default=300, help="number of requests of each kind, on each side"
    )
    count = parser.parse_args().requests
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        home = Path(folder)
        stock = stack.enter_context(
            OpenStack(f"sqlite:///{home}/stock.sqlite", home, 1, 4, install_reference())
        )
        _make_hosts(stock.port)
        ours = stack.enter_context(OurService(f"sqlite:///{home}/ours.sqlite", home, 1, 4))
        ports = {"directly": stock.port, "proxy alone": stack.enter_context(_start_proxy(stock.port))}
        few = ("--threads", str(_THREADS))
        following = shadow(stock, ours, home, *few, "--stock-database", stock._url)
        ports["shadow"] = stack.enter_context(following).port
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))  # never answers
        waiting = shadow(stock, ours, home, *few, "--ours", f"http://127.0.0.1:{silent.getsockname()[1]}")
        ports["shadow, ours hangs"] = stack.enter_context(waiting).port
        _measure_sides(ports, count)


def _measure_sides(ports: Mapping[str, int], count: int) -> None:
    """Measure all sides in turn, so that a disturbance of the machine affects all alike."""
    print("| request | " + " | ".join(f"{side}: p50 / p95 ms" for side in ports) + " |")
    print("|" + " --- |" * (len(ports) + 1))
    connections = {side: ServiceConnection(port, _SECONDS) for side, port in ports.items()}
    for name, request in _request_kinds().items():
        taken: dict[str, list[float]] = {side: [] for side in ports}
        for number in range(count):
            for side, connection in connections.items():
                method, path, body = request(number)
                began = time.perf_counter()
                status, _ = connection.send(method, path, body)
                taken[side].append(1000 * (time.perf_counter() - began))
                assert status < 300, (side, method, path, status)
        cells = (
            f"{statistics.median(each):.2f} / {statistics.quantiles(each, n=20)[18]:.2f}"
            for each in taken.values()
        )
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def _request_kinds() -> dict[str, Callable[[int], tuple[str, str, bytes | None]]]:
    candidates = "/allocation_candidates?resources=VCPU:1,MEMORY_MB:512"
    return {
        "one provider": lambda number: ("GET", f"/resource_providers/{_provider_uuid(number % HOSTS)}", None),
        "a trait is put": lambda number: ("PUT", "/traits/CUSTOM_SHADOW", b""),
        f"{HOSTS} allocation candidates": lambda number: ("GET", candidates, None),
    }


def _provider_uuid(number: int) -> UUID:
    return UUID(int=number + 1)


def _make_hosts(port: int) -> None:
    with ServiceConnection(port) as connection:
        for number in range(HOSTS):
            uuid = _provider_uuid(number)
            connection.expect_success(
                "POST", "/resource_providers", {"name": f"host{number}", "uuid": str(uuid)}
            )
            inventories = {"VCPU": {"total": 64}, "MEMORY_MB": {"total": 262144}}
            body = {"resource_provider_generation": 0, "inventories": inventories}
            connection.expect_success("PUT", f"/resource_providers/{uuid}/inventories", body)


@contextmanager
def _start_proxy(stock: int) -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "gunicorn", "--worker-class", "gthread", "--threads", str(_THREADS)),
            *("--keep-alive", "75", "--no-control-socket", "--bind", f"127.0.0.1:{port}"),
            "benchmarks.shadow:bare_proxy()",
        ],
        env={**os.environ, _STOCK: f"http://127.0.0.1:{stock}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + _SECONDS
        while not is_answering(port):
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit("the proxy does not answer")
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait(_SECONDS)


if __name__ == "__main__":
    main()
