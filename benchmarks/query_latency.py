"""Latency of queries of one client on one connection, and a comparison of the answers of both services."""

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, Final

import orjson

from benchmarks.http import ServiceConnection
from benchmarks.measure import (
    ComparisonResult,
    LatencyMeasurement,
    RepeatSample,
    interleave_repeats,
    serialisation_ms,
)
from benchmarks.queries import QUERIES, QueryFamily
from benchmarks.servers import MeasuredService

AGAIN: Final = "ours again"
_FLOORS: Final = {("nested", "all candidates"): 3.0}
_BOUNDS: Final = {("wide", "8 groups of one"): 20.0}


def measure_queries(
    services: Mapping[str, MeasuredService], world: str, repeats: int, timeout: float
) -> Iterator[ComparisonResult]:
    """Yield a result for each query of the world; ``timeout`` is in seconds for each request."""
    connections = {name: ServiceConnection(service.port, timeout) for name, service in services.items()}
    for query in QUERIES[world]:
        latencies = {
            name: LatencyMeasurement(connection, query.member_paths(), services[name].cpu_seconds)
            for name, connection in connections.items()
        }
        cpu_seconds = services["ours"].cpu_seconds
        latencies[AGAIN] = LatencyMeasurement(connections["ours"], repeat(query.path()), cpu_seconds)
        samples = interleave_repeats(
            latencies, repeats, failed=lambda name: services[name.partition(" ")[0]].restart_service()
        )
        answers = {
            name: connection.expect_success("GET", query.path())
            for name, connection in connections.items()
            if samples[name].failure is None
        }
        yield ComparisonResult(
            f"queries: {world}",
            query.name,
            "ms",
            samples["ours"],
            samples.get("reference"),
            samples[AGAIN],
            goal=query.goal,
            bound=_BOUNDS.get((world, query.name)),
            cpu={name: each.median_cpu for name, each in latencies.items()},
            notes=_answer_notes(query, answers),
        )
        if (world, query.name) in _FLOORS and "ours" in answers:
            floor = serialisation_ms(answers["ours"], repeats)
            yield ComparisonResult(
                f"queries: {world}",
                f"{query.name}, as a multiple of orjson's {floor:.2g} ms",
                "x",
                RepeatSample([value / floor for value in samples["ours"].values]),
                bound=_FLOORS[world, query.name],
            )
    for connection in connections.values():
        connection.close()


def _answer_notes(query: QueryFamily, answers: Mapping[str, bytes]) -> dict[str, Any]:
    notes: dict[str, Any] = {}
    contents = {name: orjson.loads(answer) for name, answer in answers.items()}
    ours = contents.get("ours", {})
    if "allocation_requests" in ours:
        notes["candidates"] = len(ours["allocation_requests"])
        notes["summaries"] = len(ours["provider_summaries"])
    elif ours:
        notes["providers"] = len(ours["resource_providers"])
    if "ours" in answers:
        notes["kB"] = round(len(answers["ours"]) / 1000)
    if len(contents) == 2:
        notes["same answer"] = _is_same(query, contents["ours"], contents["reference"])
    return notes


def _is_same(query: QueryFamily, ours: Any, reference: Any) -> bool:
    """Return whether two answers are equal. Candidates with a limit only need an equal number."""
    if "resource_providers" in ours:
        return _provider_uuids(ours) == _provider_uuids(reference)
    if query.is_limited:
        return len(ours["allocation_requests"]) == len(reference["allocation_requests"])
    return _candidate_set(ours["allocation_requests"]) == _candidate_set(
        reference["allocation_requests"]
    ) and _plain_summaries(ours["provider_summaries"]) == _plain_summaries(reference["provider_summaries"])


def _provider_uuids(content: Any) -> set[str]:
    return {provider["uuid"] for provider in content["resource_providers"]}


def _candidate_set(candidates: Any) -> set[bytes]:
    return {orjson.dumps(each, option=orjson.OPT_SORT_KEYS) for each in candidates}


def _plain_summaries(summaries: Any) -> Any:
    return {uuid: {**each, "traits": sorted(each["traits"])} for uuid, each in summaries.items()}
