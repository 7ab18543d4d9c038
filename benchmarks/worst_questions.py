"""Searches for the query that delays other requests longest: ``python -m benchmarks.worst_questions``.

Queries are random, of at most 8 kB, or changes of the worst query so far. The worlds have devices, pools that
share with hundreds of hosts, or equal groups. The program counts the CPU time of the thread while other
requests cannot get the model. Such a time ends when the search yields the lock.
"""

import argparse
import random
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from benchmarks.http import ServiceConnection
from benchmarks.models import snapshot_of
from benchmarks.queries import parse_query
from benchmarks.servers import OurService
from benchmarks.world_loader import load_directly
from benchmarks.worlds import ProviderWorld, Tree, WorldProvider, inventory, uuid_of
from placement.api.garbage import GcScheduler
from placement.db import migration
from placement.exceptions import InvalidRequest
from placement.microversion import MAX
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.candidate_search import find_candidates
from placement.search.candidates import topology_first
from placement.search.rendering import ProviderSummaries, render_pieces

MAX_BYTES: Final = 8192
"""The web server refuses longer request lines."""
_MIB: Final = 1 << 20
_EASY: Final = "/allocation_candidates?resources=VCPU:1&limit=5"
_CLASSES: Final = ("VCPU", "MEMORY_MB", "DISK_GB", "CUSTOM_A", "CUSTOM_B")
_TRAITS: Final = ("CUSTOM_T0", "CUSTOM_T1", "CUSTOM_T2")
_AGGREGATES: Final = tuple(uuid_of(f"worst-{number}") for number in range(6))


def _device_hosts() -> Iterator[Tree]:
    """Yield hosts with two nodes and 16 devices of several sizes below each node."""
    for host in range(20):
        root = WorldProvider(
            f"worst-{host}", None, {"DISK_GB": inventory(1000)}, aggregates=(_AGGREGATES[0],)
        )
        tree = [root]
        for node in range(2):
            sizes = {"VCPU": inventory(16), "MEMORY_MB": inventory(64)}
            numa = WorldProvider(f"worst-{host}-{node}", root.uuid, sizes, (_TRAITS[node],))
            tree.append(numa)
            for device in range(16):
                has = {"CUSTOM_A": inventory(5 + device % 4), "CUSTOM_B": inventory(5 + host % 3)}
                traits = (_TRAITS[device % 3],)
                tree.append(WorldProvider(f"worst-{host}-{node}-{device}", numa.uuid, has, traits))
        yield tree


def _pool_hosts() -> Iterator[Tree]:
    """Yield 40 pools with random classes, and hosts that share in some of them."""
    rng = random.Random(5)
    for number in range(40):
        has = {name: inventory(50) for name in rng.sample(_CLASSES, 3)}
        traits = ("MISC_SHARES_VIA_AGGREGATE", _TRAITS[number % 3])
        yield [WorldProvider(f"worst-pool-{number}", None, has, traits, tuple(rng.sample(_AGGREGATES, 2)))]
    for number in range(500):
        where = tuple(rng.sample(_AGGREGATES, 2))
        yield [
            WorldProvider(
                f"worst-{number}", None, {"VCPU": inventory(8), "CUSTOM_A": inventory(4)}, (), where
            )
        ]


def _alike_hosts() -> Iterator[Tree]:
    """Yield hosts with 40 devices of one unit."""
    for host in range(50):
        root = WorldProvider(f"worst-{host}", None, {"VCPU": inventory(8), "DISK_GB": inventory(99)})
        devices = (
            WorldProvider(f"worst-{host}-{number}", root.uuid, {"CUSTOM_A": inventory(1)})
            for number in range(40)
        )
        yield [root, *devices]


WORLDS: Final[Mapping[str, Callable[[], Iterator[Tree]]]] = {
    "devices": _device_hosts,
    "pools": _pool_hosts,
    "alike": _alike_hosts,
}


def world_snapshot(name: str) -> ModelSnapshot:
    """Return the read model of an unused world."""
    return snapshot_of(WORLDS[name](), lambda provider, inventories: {})


@dataclass(frozen=True, slots=True)
class QuestionGroup:
    """The parameters of one group, and the number of its subtree."""

    resources: tuple[tuple[str, int], ...]
    filters: tuple[str, ...]
    subtree: int


@dataclass(frozen=True, slots=True)
class RandomQuestion:
    """A query as data, which can be changed a little."""

    groups: tuple[QuestionGroup, ...]
    policy: str
    limit: int | None

    def query_string(self) -> str:
        """Return the query string."""
        parts = [f"group_policy={self.policy}"]
        subtrees: dict[int, list[str]] = {}
        for number, group in enumerate(self.groups):
            suffix = f"_{number}" if number else ""
            amounts = ",".join(f"{name}:{amount}" for name, amount in group.resources)
            parts.append(f"resources{suffix}={amounts}")
            parts += [f.replace("=", f"{suffix}=", 1) for f in group.filters]
            if suffix and group.subtree:
                subtrees.setdefault(group.subtree, []).append(suffix)
        parts += [f"same_subtree={','.join(suffixes)}" for suffixes in subtrees.values()]
        if self.limit is not None:
            parts.append(f"limit={self.limit}")
        return "&".join(parts)


def _random_group(rng: random.Random) -> QuestionGroup:
    names = rng.sample(_CLASSES, rng.choice((1, 1, 2)))
    filters = []
    if rng.random() < 0.3:
        filters.append(f"required=in:{','.join(rng.sample(_TRAITS, 2))}")
    if rng.random() < 0.2:
        filters.append(f"member_of=in:{','.join(rng.sample(_AGGREGATES, 3))}")
    resources = tuple((name, rng.choice((1, 1, 2, 3, 5))) for name in names)
    return QuestionGroup(resources, tuple(filters), rng.choice((0, 0, 0, 1, 2)))


def random_question(rng: random.Random) -> RandomQuestion:
    """Return a random query of at most 8 kB."""
    count = rng.choice((2, 4, 8, 16, 40, 100))
    groups = tuple(_random_group(rng) for _ in range(rng.choice((1, 1, 2, count))))
    repeated = (groups * count)[:count]
    return _shorten_question(
        RandomQuestion(repeated, rng.choice(("none", "isolate")), rng.choice((None, None, 1, 100, 1000)))
    )


def change_question(rng: random.Random, of: RandomQuestion) -> RandomQuestion:
    """Return a similar query."""
    groups = [*of.groups]
    what = rng.randrange(4)
    if what == 0:
        groups[rng.randrange(len(groups))] = _random_group(rng)
    elif what == 1:
        groups += rng.choices(groups, k=rng.randrange(1, 20))
    elif what == 2 and len(groups) > 1:
        groups = groups[: rng.randrange(1, len(groups))]
    else:
        return RandomQuestion(of.groups, rng.choice(("none", "isolate")), rng.choice((None, 1, 100, 1000)))
    return _shorten_question(RandomQuestion(tuple(groups), of.policy, of.limit))


def _shorten_question(of: RandomQuestion) -> RandomQuestion:
    while len(of.query_string()) > MAX_BYTES:
        of = RandomQuestion(of.groups[: len(of.groups) * 9 // 10], of.policy, of.limit)
    return of


@dataclass(frozen=True, slots=True)
class QuestionCost:
    """The cost of a query in milliseconds of CPU, and its outcome.

    ``waited`` is the longest wait of other requests for the model. ``after`` is the time after the search:
    order and rendering.
    """

    waited: float
    after: float
    total: float
    size: int
    outcome: str


def answer_question(
    snapshot: ModelSnapshot, query: str, seconds: float, max_size: int = 128 * _MIB
) -> QuestionCost:
    """Answer a query as the service does."""
    began = last = time.thread_time()
    longest = 0.0

    def yield_lock() -> None:
        nonlocal last, longest
        now = time.thread_time()
        longest, last = max(longest, now - last), now

    size, outcome = 0, ""
    try:
        request = parse_query(query)
        budget = SearchBudget(seconds, max_size, yield_lock)
        found = find_candidates(snapshot, request, budget=budget)
        searched = time.thread_time()
        size = sum(
            map(len, render_pieces(snapshot, topology_first(found, budget), MAX, ProviderSummaries(), budget))
        )
        outcome = f"{sum(len(batch) for _, batch in found)} candidates" + (
            f", ended by {budget.ended}" if budget.ended else ""
        )
    except InvalidRequest as error:
        searched = time.thread_time()
        outcome = f"{error.code}: {error.detail}"
    yield_lock()
    return QuestionCost(1000 * longest, 1000 * (last - searched), 1000 * (last - began), size, outcome)


@dataclass(frozen=True, slots=True)
class WorstQuestion:
    """The worst query of a world, and the growth of the process by all queries in MB."""

    world: str
    seed: int
    question: RandomQuestion
    answered: QuestionCost
    growth: float

    def table_row(self) -> str:
        """Return a row of the table."""
        answered = self.answered
        return (
            f"| {self.world} | {self.seed} | {answered.waited:.0f} | {answered.total:,.0f} "
            f"| {answered.after:,.0f} | {answered.size / 1e6:.1f} | {self.growth:,.0f} "
            f"| {len(self.question.groups)} | {answered.outcome[:60]} |"
        )


def find_worst(name: str, count: int, seed: int, seconds: float, max_size: int = 128 * _MIB) -> WorstQuestion:
    """Return the query, of a number of queries, with the longest wait of other requests."""
    snapshot, rng = world_snapshot(name), random.Random(seed)
    collect_garbage = GcScheduler(lambda: 0).collect_if_due  # the service also collects between requests
    before = _peak_memory()
    found: tuple[RandomQuestion, QuestionCost] | None = None
    for number in range(count):
        asked = random_question(rng) if found is None or number % 3 == 0 else change_question(rng, found[0])
        answered = answer_question(snapshot, asked.query_string(), seconds, max_size)
        collect_garbage()
        if found is None or answered.waited > found[1].waited:
            found = asked, answered
    assert found is not None
    return WorstQuestion(name, seed, *found, _peak_memory() - before)


def _peak_memory() -> float:
    """Return the largest size of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def as_others_see(
    asked: RandomQuestion, name: str, seconds: float, workers: int = 2
) -> tuple[float, float, int]:
    """Measure the elapsed time of other requests while a worker answers this query repeatedly.

    :param workers: number of clients that send the query at a time.
    :return: median and longest time, in ms, and the number of the other requests.
    """
    trees = list(WORLDS[name]())
    waits = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="placement-benchmark-")))
        url = f"sqlite:///{folder}/placement.sqlite"
        migration.upgrade_schema(url)
        load_directly(
            url, ProviderWorld("worst", len(trees), trees.__getitem__, _CLASSES[3:], _TRAITS), len(trees)
        )
        service = stack.enter_context(OurService(url, folder, workers=1, threads=4))
        ended = threading.Event()
        clients = [
            threading.Thread(target=_ask_repeatedly, args=(service.port, asked, ended))
            for _ in range(workers)
        ]
        with ServiceConnection(service.port) as connection:
            connection.expect_success("GET", _EASY)
            for client in clients:
                client.start()
            try:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    began = time.perf_counter()
                    connection.expect_success("GET", _EASY)
                    waits.append(1000 * (time.perf_counter() - began))
                    time.sleep(0.01)
            finally:
                ended.set()
                for client in clients:
                    client.join()
    return statistics.median(waits), max(waits), len(waits)


def _ask_repeatedly(port: int, asked: RandomQuestion, ended: threading.Event) -> None:
    with ServiceConnection(port) as connection:
        while not ended.is_set():
            connection.send("GET", f"/allocation_candidates?{asked.query_string()}")


def main() -> None:
    """Search and print."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.worst_questions", description=__doc__)
    top.add_argument("--world", choices=tuple(WORLDS), help="name of the world; default: all")
    top.add_argument(
        "--count", type=int, default=200, help="number of queries of each world; default: %(default)s"
    )
    top.add_argument(
        "--seeds", type=int, nargs="+", default=[18, 19, 20], help="seeds of the queries; default: 18 19 20"
    )
    top.add_argument(
        "--seconds", type=float, default=1.0, help="[api] candidates_deadline; default: %(default)s"
    )
    top.add_argument("--size", type=int, default=128, help="[api] candidates_size, MiB; default: %(default)s")
    top.add_argument(
        "--service",
        type=float,
        metavar="SECONDS",
        help="send the worst query to a worker for this time, and measure other requests",
    )
    options = top.parse_args()
    print(
        "| world | seed | others wait, ms | in all, ms | after the search, ms | answer, MB | grew by, MB "
        "| groups | outcome |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    )
    size = options.size * _MIB
    for name in [options.world] if options.world else WORLDS:
        # a process for each search, so that the memory of one does not count for the next
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
            jobs = [
                processes.submit(find_worst, name, options.count, seed, options.seconds, size)
                for seed in options.seeds
            ]
            found = []
            for job in jobs:
                found.append(job.result())
                print(found[-1].table_row(), flush=True)
        hardest = max(found, key=lambda each: each.answered.waited)
        print(f"\n{name}: {hardest.question.query_string()[:300]}", flush=True)
        if options.service:
            median, longest, count = as_others_see(hardest.question, name, options.service)
            print(f"others in the worker: median {median:.1f} ms, longest {longest:.0f} ms of {count}")
        print(flush=True)


if __name__ == "__main__":
    main()
