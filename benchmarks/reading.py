"""Latency of queries, one client on one connection, and whether both services say the same."""

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, Final

import orjson

from benchmarks.http import Connection
from benchmarks.measure import Latency, Result, Sample, interleave, serialisation
from benchmarks.queries import QUERIES, Query
from benchmarks.servers import Service

AGAIN: Final = "ours again"
_FLOORS: Final = {("nested", "all candidates"): 3.0}
_BOUNDS: Final = {("wide", "8 groups of one"): 20.0}


def measure(services: Mapping[str, Service], world: str, repeats: int, timeout: float) -> Iterator[Result]:
    """A result for each query of the world; ``timeout`` is in seconds for each request."""
    connections = {name: Connection(service.port, timeout) for name, service in services.items()}
    for query in QUERIES[world]:
        latencies = {
            name: Latency(connection, query.paths(), services[name].cpu_seconds)
            for name, connection in connections.items()
        }
        cpu_seconds = services["ours"].cpu_seconds
        latencies[AGAIN] = Latency(connections["ours"], repeat(query.path()), cpu_seconds)
        samples = interleave(
            latencies, repeats, failed=lambda name: services[name.partition(" ")[0]].restart()
        )
        answers = {
            name: connection.expect("GET", query.path())
            for name, connection in connections.items()
            if samples[name].failure is None
        }
        yield Result(
            f"queries: {world}",
            query.name,
            "ms",
            samples["ours"],
            samples.get("reference"),
            samples[AGAIN],
            goal=query.goal,
            bound=_BOUNDS.get((world, query.name)),
            cpu={name: each.cpu for name, each in latencies.items()},
            notes=_notes(query, answers),
        )
        if (world, query.name) in _FLOORS and "ours" in answers:
            floor = serialisation(answers["ours"], repeats)
            yield Result(
                f"queries: {world}",
                f"{query.name}, as a multiple of orjson's {floor:.2g} ms",
                "x",
                Sample([value / floor for value in samples["ours"].values]),
                bound=_FLOORS[world, query.name],
            )
    for connection in connections.values():
        connection.close()


def _notes(query: Query, answers: Mapping[str, bytes]) -> dict[str, Any]:
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
        notes["same answer"] = _same(query, contents["ours"], contents["reference"])
    return notes


def _same(query: Query, ours: Any, reference: Any) -> bool:
    """Whether two answers mean the same; of candidates with a limit only whether they are as many."""
    if "resource_providers" in ours:
        return _uuids(ours) == _uuids(reference)
    if query.limited:
        return len(ours["allocation_requests"]) == len(reference["allocation_requests"])
    return _set(ours["allocation_requests"]) == _set(reference["allocation_requests"]) and _plain(
        ours["provider_summaries"]
    ) == _plain(reference["provider_summaries"])


def _uuids(content: Any) -> set[str]:
    return {provider["uuid"] for provider in content["resource_providers"]}


def _set(candidates: Any) -> set[bytes]:
    return {orjson.dumps(each, option=orjson.OPT_SORT_KEYS) for each in candidates}


def _plain(summaries: Any) -> Any:
    return {uuid: {**each, "traits": sorted(each["traits"])} for uuid, each in summaries.items()}
