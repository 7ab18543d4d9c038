"""The cost of queries for several of many equal devices: ``python -m benchmarks.devices``.

Alone, the program uses the read model in this process. It prints the CPU time of search, order and rendering,
and the numbers of candidates, of their hosts and of distinct candidates. It also measures ordered claims and
counts of guests. With ``--reference`` it uses both services on PostgreSQL. It prints the elapsed time and the
CPU time of an answer, and the memory of the workers after it.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from benchmarks.clouds import PARTS, answer_query, model_of
from benchmarks.clouds_reference import fill_database, import_from
from benchmarks.http import NoAnswer, RequestRefused, ServiceConnection
from benchmarks.mixed import GPU, Guest, MixedCloud
from benchmarks.queries import parse_query
from benchmarks.reference import install_reference
from benchmarks.servers import MeasuredService, OpenStack, OurService, create_database_server
from benchmarks.worlds import Tree, WorldProvider, inventory
from placement.microversion import MAX
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.candidates import AllocationCandidate, candidates_of
from placement.search.claims.claim import ClaimScenario, Order, WantedClaim
from placement.search.claims.placement import UnplacedClaim, place_claims
from placement.search.rendering import ProviderSummaries
from placement.store.consumers import ConsumerOwnership
from placement_extras.planner.capacity import CloudHosts, count_flavor

_ORDERS: Final[dict[str, Order]] = {
    "numa_nodes": (("numa_nodes", 1.0),),
    "pack, distance": (("pack", 1.0), ("distance", 1.0)),
}
_FOR_WIDE_TREES: Final = """
[placement]
max_allocation_candidates = 1000
allocation_candidates_generation_strategy = breadth-first
[workarounds]
optimize_for_wide_provider_trees = true
"""
"""Settings that the manual of OpenStack Placement advises for hosts with many equal devices."""


@dataclass(frozen=True, slots=True)
class DeviceCloud(MixedCloud):
    """Hosts with devices below their NUMA nodes, or below the root without nodes, as Nova reports them.

    :param used: the share of devices that guests hold. With ``alike`` it is 0 and all hosts are equal.
    :param functions: virtual functions of each device.
    """

    devices: int = 8
    nodes: int = 0
    used: float = 0.0
    functions: int = 1

    def storage_pools(self) -> Tree:
        """Return no pools."""
        return []

    def make_host(self, number: int) -> tuple[Tree, list[Guest]]:
        """Return one host, and the guests that hold its devices."""
        rng = random.Random(f"{self.seed} {self.name} {number}")
        size = 64 if self.alike else rng.randrange(32, 200)
        root = WorldProvider(
            f"{self.name}-{number}",
            None,
            {"VCPU": inventory(size), "MEMORY_MB": inventory(1024 * size), "DISK_GB": inventory(10 * size)},
        )
        nodes = [
            WorldProvider(f"{root.name}-n{at}", root.uuid, {"PCPU": inventory(size // 2)}, ("HW_NUMA_ROOT",))
            for at in range(self.nodes)
        ]
        devices = [
            WorldProvider(
                f"{root.name}-d{at}",
                nodes[at * self.nodes // self.devices].uuid if nodes else root.uuid,
                {GPU: inventory(self.functions)},
            )
            for at in range(self.devices)
        ]
        guests: list[Guest] = [
            {each.uuid: {GPU: held}}
            for each in devices
            if (held := sum([rng.random() < self.used for _ in range(self.functions)]))
        ]
        return [root, *nodes, *devices], guests


CLOUDS: Final = {
    each.name: each
    for each in (
        DeviceCloud("devices-8", 0.0, devices=8),
        DeviceCloud("devices-16", 0.0, devices=16),
        DeviceCloud("nodes-16", 0.0, devices=16, nodes=2),
        DeviceCloud("unlike-8", 0.0, alike=False, devices=8, nodes=2, used=0.2),
        DeviceCloud("cards-16", 0.0, devices=16, functions=8),
        DeviceCloud("unlike-cards-16", 0.0, alike=False, devices=16, functions=8, used=0.4),
    )
}


@dataclass(frozen=True, slots=True)
class DeviceQuestion:
    """A query for a number of devices in a cloud of ``hosts`` hosts."""

    cloud: DeviceCloud
    hosts: int
    groups: int
    limit: int | None

    @property
    def row_title(self) -> str:
        """Return its name in tables."""
        return f"{self.groups} of {self.cloud.devices} ({self.cloud.name}), limit {self.limit or 'none'}"

    @property
    def path(self) -> str:
        """Return the path of the request."""
        devices = "&".join([f"resources_PCI{at}={GPU}:1" for at in range(self.groups)])
        limit = "" if self.limit is None else f"&limit={self.limit}"
        return f"/allocation_candidates?resources=VCPU:4,MEMORY_MB:4096&{devices}&group_policy=none{limit}"


def device_questions(hosts: int) -> Iterator[DeviceQuestion]:
    """Yield all queries: the worlds of two bugs of OpenStack, and a cloud of unlike hosts."""
    for limit in (None, 1000, 100):
        yield DeviceQuestion(CLOUDS["devices-8"], 1, 6, limit)
    # without a limit there are 518,918,400
    for name in ("devices-16", "nodes-16"):
        for limit in (1000, 100):
            yield DeviceQuestion(CLOUDS[name], 1, 8, limit)
    for groups in (1, 2, 4, 8):
        for limit in (1000, 100):
            yield DeviceQuestion(CLOUDS["unlike-8"], hosts, groups, limit)
    for name, number in (("cards-16", hosts), ("unlike-cards-16", hosts)):
        for limit in (1000, 100):
            yield DeviceQuestion(CLOUDS[name], number, 6, limit)


def measure_alone(hosts: int, count: int) -> Iterator[str]:
    """Yield the lines of the tables of this service alone."""
    models: dict[tuple[str, int], ModelSnapshot] = {}
    yield "| question | hosts | candidates | of hosts | distinct | CPU ms | search | order | render |"
    yield "| --- |" + " ---: |" * 8
    for asked in device_questions(hosts):
        key = asked.cloud.name, asked.hosts
        if key not in models:
            models[key] = model_of(asked.cloud, asked.hosts)
            models[key].whole_trees()
        yield _answer_line(asked, models[key], count)
    yield "\n| ordered claim | hosts | score | CPU ms |"
    yield "| --- | ---: | ---: | ---: |"
    for name, groups in (("nodes-16", 8), ("nodes-16", 9), ("unlike-8", 4), ("unlike-8", 8)):
        for title, order in _ORDERS.items():
            snapshot = models[name, 1 if name == "nodes-16" else hosts]
            question = DeviceQuestion(CLOUDS[name], len(snapshot.trees), groups, None)
            score, cpu = _measure_claim(snapshot, question, order, count)
            yield f"| {groups} devices ({name}), {title} | {question.hosts:,} | {score:.3f} | {cpu:.1f} |"
    yield "\n| guests with | hosts | fit | CPU ms |"
    yield "| --- | ---: | ---: | ---: |"
    for name, groups in (
        ("devices-16", 8),
        ("nodes-16", 8),
        ("nodes-16", 16),
        ("unlike-8", 4),
        ("unlike-8", 8),
    ):
        snapshot = models[name, 1 if name.endswith("-16") else hosts]
        question = DeviceQuestion(CLOUDS[name], len(snapshot.trees), groups, None)
        fit, cpu = _measure_count(snapshot, question, count)
        yield f"| {groups} devices ({name}) | {question.hosts:,} | {fit:,} | {cpu:.1f} |"


def _answer_line(asked: DeviceQuestion, snapshot: ModelSnapshot, count: int) -> str:
    parts: list[list[float]] = []
    for _ in range(count):
        cost, found = answer_query(snapshot, asked.path, ProviderSummaries())
        parts.append([cost.parts[name] for name in PARTS if name != "parse"])
    candidates = list(candidates_of(found))
    roots = {each.provider_set.members[0].root_id for each in candidates}
    distinct = {_distinct_key(snapshot, each) for each in candidates}
    medians = [statistics.median(each) for each in zip(*parts, strict=True)]
    cells = [f"{each:.1f}" for each in (sum(medians), *medians)]
    numbers = f"{asked.hosts:,} | {len(candidates):,} | {len(roots):,} | {len(distinct):,}"
    return f"| {asked.row_title} | {numbers} | {' | '.join(cells)} |"


def _distinct_key(snapshot: ModelSnapshot, candidate: AllocationCandidate) -> Hashable:
    """Return the host of a candidate, and the number of taken devices below each provider."""
    providers = [snapshot.providers[each] for each in candidate.resources]
    return frozenset(Counter([each.parent_id or each.id for each in providers]).items())


def _measure_claim(
    snapshot: ModelSnapshot, asked: DeviceQuestion, order: Order, count: int
) -> tuple[float, float]:
    """Return the score of an ordered claim, and the median of its CPU time in milliseconds."""
    request = parse_query(asked.path)
    owner = ConsumerOwnership("project", "user", "INSTANCE")
    wanted = WantedClaim("consumer", None, owner, request, MAX, order=order)
    took, score = [], 0.0
    for seed in range(count):
        began = time.thread_time()
        scenario = ClaimScenario.from_members(snapshot, {}, [wanted])
        placed = place_claims(scenario, [wanted], SearchBudget(60.0), random.Random(seed))
        took.append(1000 * (time.thread_time() - began))
        if not isinstance(placed, UnplacedClaim) and placed[0].choice.score is not None:
            score = placed[0].choice.score.total
    return score, statistics.median(took)


def _measure_count(snapshot: ModelSnapshot, asked: DeviceQuestion, count: int) -> tuple[int, float]:
    """Return the number of guests that fit, and the median of the CPU time of the count in milliseconds."""
    request = parse_query(asked.path)
    took, fit = [], 0
    for _ in range(count):
        began = time.thread_time()
        fit = count_flavor(CloudHosts(snapshot, SearchBudget(60.0)), request).fit.lower_bound
        took.append(1000 * (time.thread_time() - began))
    return fit, statistics.median(took)


def measure_beside(count: int, seconds: float) -> Iterator[str]:
    """Yield the lines of the table beside the reference: the worlds of the two bugs, one host each."""
    yield "| question | service | candidates | clock s | CPU s | memory MB |"
    yield "| --- | --- |" + " ---: |" * 4
    for asked in device_questions(1):
        if asked.cloud.alike:
            yield from _beside_lines(asked, count, seconds)


def _beside_lines(asked: DeviceQuestion, count: int, seconds: float) -> Iterator[str]:
    with ExitStack() as stack:
        server = stack.enter_context(create_database_server("postgresql"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="placement-benchmark-")))
        source, target = server.fresh_database(), server.fresh_database()
        # one worker, so that its memory is that of the answer
        theirs = OpenStack(source, folder, 1, 1, install_reference())
        with theirs:
            pass
        fill_database(source, asked.cloud, asked.hosts)
        ours = OurService(target, folder, 1, 1)
        with ours:
            pass
        import_from(ours, source)
        for service, configured in ((ours, ""), (theirs, ""), (theirs, _FOR_WIDE_TREES)):
            service.add_settings(configured)
            stack.callback(service.stop)
            service.start()
            cells = _asked_service(service, asked.path, count, seconds)
            title = f"{service.name}, for wide trees" if configured else service.name
            yield f"| {asked.row_title} | {title} | {cells} |"
            service.stop()


def _asked_service(service: MeasuredService, path: str, count: int, seconds: float) -> str:
    """Return the cells of a service: candidates, seconds and memory, or the reason of a failure."""
    clock, cpu, candidates = [], [], 0
    with ServiceConnection(service.port, seconds) as connection:
        for _ in range(count):
            began, worked = time.perf_counter(), service.cpu_seconds()
            try:
                body = connection.expect_success("GET", path)
            except (NoAnswer, RequestRefused) as error:
                reason, took = str(error).rpartition(": ")[2], time.perf_counter() - began
                cpu_used, memory = service.cpu_seconds() - worked, _worker_memory(service)
                return f"{reason} | {took:.1f} | {cpu_used:.1f} | {memory:.0f}"
            clock.append(time.perf_counter() - began)
            cpu.append(service.cpu_seconds() - worked)
            candidates = len(orjson.loads(body)["allocation_requests"])
    medians = f"{statistics.median(clock):.3f} | {statistics.median(cpu):.3f}"
    return f"{candidates:,} | {medians} | {_worker_memory(service):.0f}"


def _worker_memory(service: MeasuredService) -> float:
    """Return the memory of the workers in MB."""
    return sum([each.memory_info().rss for each in service.worker_processes()]) / 1e6


def main() -> None:
    """Measure and print."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.devices", description=__doc__)
    top.add_argument("--hosts", type=int, default=1000, help="number of unlike hosts; default: %(default)s")
    top.add_argument("--count", type=int, default=7, help="repeats of each query; default: %(default)s")
    top.add_argument("--reference", action="store_true", help="compare with OpenStack Placement")
    top.add_argument(
        "--seconds", type=float, default=120.0, help="maximum seconds for an answer of a service"
    )
    options = top.parse_args()
    count = options.count
    lines = (
        measure_beside(count, options.seconds) if options.reference else measure_alone(options.hosts, count)
    )
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
