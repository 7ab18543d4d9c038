"""Many agents that report at their intervals while guests are scheduled: times and CPU cost.

    python -m benchmarks.fleet                              # 5,000 agents at 60 seconds: some minutes
    python -m benchmarks.fleet --agents 500 --interval 6    # as many reports a second, with fewer agents

Each agent is the real reporter with its real client, on a separate connection. First reports create the
hosts. "ordinary" are agents of a service without whole trees. CPU is that of the workers of the service.
"""

import argparse
import heapq
import multiprocessing
import random
import resource
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import orjson
from keystoneauth1 import adapter, session, token_endpoint

from benchmarks.http import CLAIM_OWNER, NoAnswer, ServiceConnection
from benchmarks.servers import (
    MeasuredService,
    OurService,
    ServiceFailed,
    create_database_server,
    exit_on_sigterm,
)
from benchmarks.worlds import random_uuid
from compute_agent.inventory.provider_tree import ProviderInventory, ProviderNode, ProviderTree
from compute_agent.loops.base import pause
from compute_agent.report.answers import PlacementError
from compute_agent.report.client import PlacementClient
from compute_agent.report.reporter import HostReporter

_THREADS: Final = 8
_CLIENTS: Final = 4
_HELD: Final = 50  # guests of each scheduling client
_QUESTIONS: Final = [
    f"/allocation_candidates?resources=PCPU:{n},MEMORY_MB:{512 * n}&limit=50" for n in (1, 2, 3)
]


@dataclass
class RequestTimes:
    """Milliseconds of the successes, and the number of failures."""

    times: list[float] = field(default_factory=list)
    failed: int = 0

    def add(self, work: Callable[[], object]) -> None:
        """Call a function and note its time."""
        began = time.perf_counter()
        try:
            work()
        except (PlacementError, NoAnswer, LookupError):
            self.failed += 1
        else:
            self.times.append(1000 * (time.perf_counter() - began))

    def describe(self, seconds: float) -> str:
        """Return the median, the 99th percentile, the rate and the failures."""
        if not self.times:
            return "none"
        p99 = sorted(self.times)[int(0.99 * len(self.times))]
        failed = f", {self.failed} failed" if self.failed else ""
        rate = len(self.times) / seconds
        return f"{statistics.median(self.times):.1f} / {p99:.1f} ms, {rate:.0f}/s{failed}"


class SimulatedAgent:
    """The agent of one simulated host."""

    def __init__(self, port: int, number: int) -> None:
        endpoint = f"http://127.0.0.1:{port}"
        opened = session.Session(token_endpoint.Token(endpoint, "admin"), timeout=60)
        self.client = PlacementClient(adapter.Adapter(opened, endpoint_override=endpoint))
        self.reporter = HostReporter(self.client, {}, lambda owned: None)
        self.tree = _host_tree(number)

    def report_host(self) -> None:
        """Send the requests of one round of an agent to the service."""
        self.reporter.report_tree(self.tree)
        if self.reporter.take_listing() is None:
            for each in self.tree.nodes[1:]:
                self.client.provider_allocations(each.uuid)


def _host_tree(number: int) -> ProviderTree:
    rng = random.Random(number)
    uuids = [random_uuid(rng) for _ in range(5)]
    name = f"host-{number}"
    root = ProviderNode(
        name, uuids[0], None, {"DISK_GB": ProviderInventory(1000, max_unit=1000)}, frozenset({"COMPUTE_NODE"})
    )
    nodes = [root]
    for node in range(2):
        offers = {
            "PCPU": ProviderInventory(32, max_unit=32),
            "MEMORY_MB": ProviderInventory(65536, max_unit=65536),
        }
        numa = ProviderNode(f"{name}-{node}", uuids[1 + node], root.uuid, offers, frozenset({"HW_NUMA_ROOT"}))
        cache = ProviderNode(
            f"{name}-{node}-l3", uuids[3 + node], numa.uuid, {"LLC": ProviderInventory(11, max_unit=11)}
        )
        nodes += [numa, cache]
    return ProviderTree(tuple(nodes))


def _reports(agents: Sequence[SimulatedAgent], interval: float, seconds: float) -> RequestTimes:
    """Report with all agents at their intervals, each from a random time in the first interval."""
    taken = RequestTimes()
    due = [(random.uniform(0, interval), number) for number in range(len(agents))]
    heapq.heapify(due)
    began, lock = time.monotonic(), threading.Lock()

    def go_on() -> None:
        while True:
            with lock:
                at, number = heapq.heappop(due)
            if at >= seconds or time.monotonic() - began >= seconds:
                return  # a slow service gets fewer reports, which the rate shows
            time.sleep(max(0.0, began + at - time.monotonic()))
            taken.add(agents[number].report_host)
            with lock:
                heapq.heappush(due, (at + pause(0, interval, interval, random.random), number))

    with ThreadPoolExecutor(_THREADS) as pool:
        for each in [pool.submit(go_on) for _ in range(_THREADS)]:
            each.result()
    return taken


def _schedule_guests(port: int, rate: float, seconds: float) -> RequestTimes:
    """Find candidates and claim at a rate; release the oldest guests."""
    taken, began = RequestTimes(), time.monotonic()
    held: deque[str] = deque()
    with ServiceConnection(port, 60.0) as connection:

        def schedule_guest() -> None:
            answer = connection.expect_success("GET", random.choice(_QUESTIONS))
            consumer = str(uuid.uuid4())
            chosen = random.choice(orjson.loads(answer)["allocation_requests"])
            status, _ = connection.send(
                "PUT", f"/allocations/{consumer}", orjson.dumps({**chosen, **CLAIM_OWNER})
            )
            if status != 204:
                raise LookupError(status)
            held.append(consumer)

        for number in range(int(rate * seconds)):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            if time.monotonic() - began >= seconds:
                break
            taken.add(schedule_guest)
            if len(held) > _HELD:
                connection.send("DELETE", f"/allocations/{held.popleft()}")
        for consumer in held:
            connection.send("DELETE", f"/allocations/{consumer}")
    return taken


def _measure_both(
    service: MeasuredService, agents: Sequence[SimulatedAgent], rate: float, options: argparse.Namespace
) -> Sequence[str]:
    """Measure reports and schedulings at the same time; return a row, with the CPU time in percent."""
    seconds = options.seconds
    context = multiprocessing.get_context("spawn")
    before, began = service.cpu_seconds(), time.monotonic()
    taken, scheduled = RequestTimes(), RequestTimes()
    with ProcessPoolExecutor(_CLIENTS, mp_context=context) as pool:
        shares = [
            pool.submit(_schedule_guests, service.port, rate / _CLIENTS, seconds)
            for _ in range(_CLIENTS if rate else 0)
        ]
        if agents:
            taken = _reports(agents, options.interval, seconds)
        for each in (share.result() for share in shares):
            scheduled.times += each.times
            scheduled.failed += each.failed
    elapsed = time.monotonic() - began
    cpu = service.cpu_seconds() - before
    per = ""
    if not scheduled.times and taken.times:
        per = f"{1000 * cpu / len(taken.times):.2f} a report"
    elif not taken.times and scheduled.times:
        per = f"{1000 * cpu / len(scheduled.times):.2f} a scheduling, with its release"
    return (taken.describe(seconds), scheduled.describe(seconds), f"{100 * cpu / elapsed:.0f} %", per)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("--agents", type=int, default=5000, help="number of agents; default: %(default)s")
    parser.add_argument(
        "--interval",
        type=float,
        default=60.0,
        help="seconds between two reports of an agent; default: %(default)s",
    )
    parser.add_argument(
        "--rate", type=float, default=100.0, help="schedulings a second; default: %(default)s"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds of each measurement; default: %(default)s"
    )
    options = parser.parse_args(arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    server = create_database_server("postgresql")
    exit_on_sigterm()
    rows: list[Sequence[str]] = []
    try:
        with (
            server,
            tempfile.TemporaryDirectory(prefix="placement-fleet-") as folder,
            OurService(server.fresh_database(), Path(folder), 2, 4) as service,
        ):
            agents = [SimulatedAgent(service.port, number) for number in range(options.agents)]
            before, first, began = service.cpu_seconds(), RequestTimes(), time.monotonic()
            with ThreadPoolExecutor(_THREADS) as pool:
                list(pool.map(lambda agent: first.add(agent.report_host), agents))
            cpu = 1000 * (service.cpu_seconds() - before) / len(agents)
            rows.append(
                ("first reports", first.describe(time.monotonic() - began), "", "", f"{cpu:.2f} a report")
            )
            for agent in agents:
                agent.report_host()  # each agent reads its own writes once
            for name, some, rate in (
                ("reports alone", agents, 0.0),
                ("schedulings alone", [], options.rate),
                ("both", agents, options.rate),
            ):
                rows.append((name, *_measure_both(service, some, rate, options)))
            for agent in agents:
                agent.client.has_trees = lambda: False  # type: ignore[method-assign]  # as for a stock service
                agent.report_host()
            rows.append(("ordinary reports alone", *_measure_both(service, agents, 0.0, options)))
            rows.append(("ordinary reports, both", *_measure_both(service, agents, options.rate, options)))
    except ServiceFailed as error:
        print(error, file=sys.stderr)
        return 1
    print("| | a report: p50 / p99 | a scheduling: p50 / p99 | CPU of the workers | CPU ms |")
    print("| --- | --- | --- | --- | --- |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
