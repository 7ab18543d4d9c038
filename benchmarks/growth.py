"""The growth of this service: the `numa` world with more and more hosts, loaded with SQL."""

import statistics
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise, repeat
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks.clients import ClientPool
from benchmarks.http import CLAIM_OWNER, RequestRefused, ServiceConnection
from benchmarks.measure import ComparisonResult, LatencyMeasurement, RepeatSample, interleave_repeats
from benchmarks.queries import QUERIES
from benchmarks.query_latency import AGAIN
from benchmarks.servers import OurService
from benchmarks.world_loader import load_directly
from benchmarks.worlds import WORLDS, uuid_of
from placement.db import migration
from tests.databases import DatabaseServer

HOSTS: Final = (1_000, 10_000, 50_000)
_LIMITED_MS: Final = {10_000: 10.0}
_WORKER_MB: Final = {10_000: 400.0}
_COLD_SECONDS: Final = {10_000: 5.0}
_MAX_GROWTH: Final = {(10_000, 50_000): 1.5}
_WRITES: Final = 20
_SECONDS_TO_WRITE: Final = 120.0


def measure_growth(
    server: DatabaseServer, folder: Path, sizes: Sequence[int], repeats: int
) -> Iterator[ComparisonResult]:
    """Yield the results of each size, then the ratio between each size and the next one."""
    latencies: dict[int, dict[str, ComparisonResult]] = {}
    for hosts in sizes:
        url = server.fresh_database()
        migration.upgrade_schema(url)
        began = time.perf_counter()
        providers = load_directly(url, WORLDS["numa"], hosts)
        loading = RepeatSample([time.perf_counter() - began])
        section = f"growth: {hosts:,} numa hosts, {providers:,} providers"
        yield ComparisonResult(section, "loaded with SQL", "s", loading)
        with ExitStack() as stack:
            began = time.perf_counter()
            first = stack.enter_context(OurService(url, folder, workers=1, threads=4))
            for result in _one_size(section, first, hosts, repeats, began):
                latencies.setdefault(hosts, {})[result.name] = result
                yield result
            file = folder / f"model-{hosts}"
            second = stack.enter_context(OurService(url, folder, workers=1, threads=4, model_file=file))
            yield _from_file(section, second, file)
            yield from _two_workers(section, first, second, hosts)
        server.drop_database(url)
    for smaller, larger in pairwise(sizes):
        yield from _compare_sizes(smaller, larger, latencies[smaller], latencies[larger])


def _compare_sizes(
    smaller: int, larger: int, before: Mapping[str, ComparisonResult], after: Mapping[str, ComparisonResult]
) -> Iterator[ComparisonResult]:
    """Yield the ratio of the times of each limited query between two sizes."""
    bound = _MAX_GROWTH.get((smaller, larger))
    for query in QUERIES["numa"]:
        few, many = before.get(query.name), after.get(query.name)
        if few is not None and many is not None and few.ours.median_value:
            times = RepeatSample([value / few.ours.median_value for value in many.ours.values])
            yield ComparisonResult(
                f"growth: from {smaller:,} to {larger:,} hosts", query.name, "x", times, bound=bound
            )


def _one_size(
    section: str, service: OurService, hosts: int, repeats: int, began: float
) -> Iterator[ComparisonResult]:
    with ServiceConnection(service.port) as connection:
        ready = time.perf_counter()
        _check_loading(connection, hosts)
        cold = time.perf_counter() - ready
        yield ComparisonResult(
            section,
            "cold start: a new worker's first answer",
            "s",
            RepeatSample([_respawn_seconds(service, connection) for _ in range(3)]),
            bound=_COLD_SECONDS.get(hosts),
            notes={"first query after the start of the service": cold, "start of the service": ready - began},
        )
        queries = [query for query in QUERIES["numa"] if query.is_limited]
        for query in queries:
            ours = LatencyMeasurement(connection, query.member_paths(), service.cpu_seconds)
            again = LatencyMeasurement(connection, repeat(query.path()), service.cpu_seconds)
            samples = interleave_repeats({"ours": ours, AGAIN: again}, repeats)
            yield ComparisonResult(
                section,
                query.name,
                "ms",
                samples["ours"],
                again=samples[AGAIN],
                bound=_LIMITED_MS.get(hosts),
                cpu={"ours": ours.median_cpu, AGAIN: again.median_cpu},
            )
        yield _worker_memory(section, "memory of a worker", service, _WORKER_MB.get(hosts))
        began = time.perf_counter()
        answer = connection.expect_success("GET", QUERIES["numa"][0].path())
        seconds = time.perf_counter() - began
        yield ComparisonResult(
            section,
            f"all {len(orjson.loads(answer)['allocation_requests']):,} candidates, once",
            "ms",
            RepeatSample([seconds * 1000]),
            notes={"MB": len(answer) / 1e6},
        )
        yield _worker_memory(section, "memory of a worker after that", service, None)


def _check_loading(connection: ServiceConnection, hosts: int) -> None:
    """Check that SQL has loaded the same providers as REST would."""
    tree = WORLDS["numa"].tree(hosts - 1)
    shown = _get(connection, f"/resource_providers?in_tree={tree[0].uuid}")["resource_providers"]
    if {each["uuid"]: each["parent_provider_uuid"] for each in shown} != {
        each.uuid: each.parent for each in tree
    }:
        raise RequestRefused(f"the tree of {tree[0].name} was not loaded as it should be: {shown}")
    for provider in tree:
        place = f"/resource_providers/{provider.uuid}"
        inventories = _get(connection, f"{place}/inventories")["inventories"]
        totals = {name: each["total"] for name, each in inventories.items()}
        traits = set(_get(connection, f"{place}/traits")["traits"])
        if totals != {name: each["total"] for name, each in provider.inventories.items()} or traits != set(
            provider.traits
        ):
            raise RequestRefused(f"{provider.name} was not loaded as it should be: {totals}, {traits}")


def _from_file(section: str, service: OurService, file: Path) -> ComparisonResult:
    """Measure cold starts of a worker that finds the model file of another one."""
    deadline = time.monotonic() + _SECONDS_TO_WRITE
    with ServiceConnection(service.port) as connection:
        connection.expect_success("GET", QUERIES["numa"][1].path())
        while not file.exists():
            if time.monotonic() > deadline:
                raise RequestRefused(f"no worker has written {file} in time")
            time.sleep(0.05)
        starts = RepeatSample([_respawn_seconds(service, connection) for _ in range(3)])
    notes = {"MB": file.stat().st_size / 1e6}
    return ComparisonResult(section, "cold start from the model file", "s", starts, notes=notes)


def _respawn_seconds(service: OurService, connection: ServiceConnection) -> float:
    """Return the seconds from the end of the only worker to the first answer of the next one."""
    (worker,) = service.worker_processes()
    began = time.perf_counter()
    worker.kill()
    connection.close()
    connection.expect_success("GET", QUERIES["numa"][1].path())
    return time.perf_counter() - began


def _worker_memory(section: str, name: str, service: OurService, bound: float | None) -> ComparisonResult:
    (worker,) = service.worker_processes()
    full = worker.memory_full_info()
    notes = {"PSS MB": full.pss / 1e6, "USS MB": full.uss / 1e6}
    return ComparisonResult(section, name, "MB", RepeatSample([full.rss / 1e6]), bound=bound, notes=notes)


def _two_workers(
    section: str, first: OurService, second: OurService, hosts: int
) -> Iterator[ComparisonResult]:
    """Claim on one worker and query the other one: its next answer must show the claim."""
    step = max(1, hosts // _WRITES)
    with ServiceConnection(first.port) as writer, ServiceConnection(second.port) as reader:
        quiet, after = [], []
        missing = 0
        for number in range(0, step * _WRITES, step):
            numa = uuid_of(f"numa-{number}-numa0")
            look = f"/allocation_candidates?resources=PCPU:1&in_tree={numa}"
            before = _used_pcpus(reader, look, numa)
            began = time.perf_counter()
            _used_pcpus(reader, look, numa)
            quiet.append((time.perf_counter() - began) * 1000)
            _claim_pcpu(writer, numa)
            began = time.perf_counter()
            missing += _used_pcpus(reader, look, numa) != before + 1
            after.append((time.perf_counter() - began) * 1000)
        yield ComparisonResult(section, "answer of worker B when nothing changed", "ms", RepeatSample(quiet))
        yield ComparisonResult(
            section,
            "answer of worker B to what A just wrote",
            "ms",
            RepeatSample(after),
            notes={"writes": _WRITES, "answers without the write": missing},
        )
        if missing:
            raise RequestRefused(f"{missing} of {_WRITES} answers lacked a committed write")
        yield _under_load(section, first, reader, hosts)


def _under_load(section: str, first: OurService, reader: ServiceConnection, hosts: int) -> ComparisonResult:
    """Return the latency of a query on one worker while a client claims on the other one without a pause."""
    providers = [uuid_of(f"numa-{number}-numa0") for number in range(hosts)]
    query = next(query for query in QUERIES["numa"] if query.is_limited)
    paths = query.member_paths()
    times: list[float] = []
    with ClientPool(1) as clients:
        (load,) = clients.begin_claims(first.port, providers, 3.0, {"PCPU": 1})
        time.sleep(0.3)
        while not load.done():
            began = time.perf_counter()
            reader.expect_success("GET", next(paths))
            times.append((time.perf_counter() - began) * 1000)
        work = load.result()
    notes: dict[str, Any] = {
        "claims/s meanwhile": round(work.success_rate),
        "queries": len(times),
        "95 % within ms": sorted(times)[int(len(times) * 0.95)],
    }
    return ComparisonResult(
        section,
        f"{query.name}, while A is written to",
        "ms",
        RepeatSample([statistics.median(times)]),
        notes=notes,
    )


def _used_pcpus(connection: ServiceConnection, path: str, provider: str) -> int:
    return int(_get(connection, path)["provider_summaries"][provider]["resources"]["PCPU"]["used"])


def _claim_pcpu(connection: ServiceConnection, provider: str) -> None:
    body = {"allocations": {provider: {"resources": {"PCPU": 1}}}, **CLAIM_OWNER}
    connection.expect_success("PUT", f"/allocations/{uuid.uuid4()}", body)


def _get(connection: ServiceConnection, path: str) -> Any:
    return orjson.loads(connection.expect_success("GET", path))
