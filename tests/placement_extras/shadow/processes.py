"""Runs `placement-shadow` in front of OpenStack Placement, as processes, and clients of it."""

import json
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from benchmarks.reference import ReferenceInstall
from benchmarks.servers import MeasuredService, OpenStack, OurService
from placement_extras.shadow.comparison import comparable_body
from tests.databases import DatabaseServer
from tests.placement.differential.play import Names
from tests.placement.differential.services import Request, ServiceClient, ShadowAnswer
from tests.ports import free_port
from tests.programs import wait_for_answer
from tests.waits import wait_for

_SECONDS: Final = 60.0
_CLASSES: Final = threading.Lock()
"""OpenStack Placement may lose one of two classes created at once: the deviation ``classes-at-once``."""


def _without(names: Collection[str], document: Any) -> Any:
    """Return a document without the fields of these names, which are uuids of providers or consumers."""
    if isinstance(document, dict):
        return {name: _without(names, each) for name, each in document.items() if name not in names}
    return document


@dataclass
class RunningShadow:
    """OpenStack Placement, our service and the shadow between them. Clients use ``port``."""

    stock: MeasuredService
    ours: MeasuredService
    port: int
    report_port: int
    process: "subprocess.Popen[bytes]"
    log: Path

    def report(self) -> dict[str, Any]:
        """Return the present report."""
        with urlopen(f"http://127.0.0.1:{self.report_port}/report.json", timeout=_SECONDS) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def page(self, path: str) -> str:
        """Return the report for people or for Prometheus."""
        with urlopen(f"http://127.0.0.1:{self.report_port}{path}", timeout=_SECONDS) as answer:
            return str(answer.read().decode())

    def compared(self, requests: int) -> dict[str, Any]:
        """Wait until a number of requests has been compared; return the report."""
        wait_for(lambda: sum(self.report()["requests"].values()) >= requests)
        return self.report()

    def assert_same(self, *names: Names) -> None:
        """Check that both services show the same data of some providers and consumers, and of all names.

        Items in doubt, which several clients wrote at once, are left out, also as parts of other answers: the
        allocations of a consumer have the generation of each provider.
        """
        doubts = {each for thing in self.report()["doubts"].values() for each in thing}
        parts = ("", "/inventories", "/usages", "/traits", "/aggregates", "/allocations")
        providers = [f"/resource_providers/{uuid}" for each in names for uuid in each.providers]
        paths = [provider + part for provider in providers for part in parts]
        paths += [f"/allocations/{uuid}" for each in names for uuid in each.consumers]
        paths = [path for path in paths if not any(each in path for each in doubts)]
        if not doubts:
            paths += ["/resource_providers", "/traits?name=startswith:CUSTOM_"]
        with ServiceClient(self.stock.port) as stock, ServiceClient(self.ours.port) as ours:
            for path in paths:
                there, here = (each.send(Request("GET", path)) for each in (stock, ours))
                assert (there.status, path) == (here.status, path), doubts
                if there.status == 200:
                    bodies = (comparable_body(path, _without(doubts, each.body)) for each in (there, here))
                    assert next(bodies) == next(bodies), (path, doubts)

    def stop(self) -> str:
        """End the shadow; return its output and its log."""
        self.process.terminate()
        self.process.wait(_SECONDS)
        return self.log.read_text()


@contextmanager
def services(
    server: DatabaseServer, folder: Path, reference: ReferenceInstall
) -> Iterator[tuple[MeasuredService, MeasuredService]]:
    """Run OpenStack Placement and our service, each on a new database."""
    together = 1 if server.kind == "sqlite" else 4  # two writers of one file at once make it fail
    with (
        OpenStack(server.fresh_database(), folder, 1, together, reference) as stock,
        OurService(server.fresh_database(), folder, 1, 4) as ours,
    ):
        yield stock, ours


@contextmanager
def shadow(
    stock: MeasuredService, ours: MeasuredService, folder: Path, *options: str
) -> Iterator[RunningShadow]:
    """Run the shadow in front of running services."""
    port, report_port = free_port(), free_port()
    log = folder / f"shadow-{port}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-m",
                    "placement_extras.shadow.command",
                    "--config-file",
                    str(ours._config_path),
                ),
                *("--bind", f"127.0.0.1:{port}", "--report-bind", f"127.0.0.1:{report_port}"),
                *("--stock", f"http://127.0.0.1:{stock.port}", "--ours", f"http://127.0.0.1:{ours.port}"),
                *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    started = RunningShadow(stock, ours, port, report_port, process, log)
    try:
        wait_for_answer(f"http://127.0.0.1:{report_port}/report.json", process, log)
        wait_for(lambda: started.report()["phase"] == "comparing")
        wait_for_answer(f"http://127.0.0.1:{port}/", process, log)
        yield started
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS)
        process.kill()
        process.wait()


@dataclass
class ShadowTalk:
    """A client of the shadow that tells a generator of requests which generations a client knows."""

    client: ServiceClient
    requests: int = 0

    def ask(self, request: Request) -> ShadowAnswer:
        """Send a request to the shadow."""
        self.requests += 1
        makes_class = request.method != "GET" and request.path.startswith("/resource_classes")
        with _CLASSES if makes_class else nullcontext():
            return self.client.send(request)

    def generation(self, provider: str) -> int:
        """Return the generation of a provider, -1 for a missing one."""
        answer = self.ask(Request("GET", f"/resource_providers/{provider}"))
        return int(answer.body["generation"]) if answer.status == 200 else -1

    def consumer_generation(self, consumer: str) -> int | None:
        """Return the generation of a consumer, None for a missing one."""
        known: int | None = self.ask(Request("GET", f"/allocations/{consumer}")).body.get(
            "consumer_generation"
        )
        return known
