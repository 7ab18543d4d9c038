"""Clouds of unlike hosts, nearly full: ``python -m benchmarks.clouds``, alone or beside the reference.

Alone, the program uses the read model in this process. It measures each part by the number of hosts; between
two queries a guest starts or ends. Beside the reference it uses both services with their databases. No two
queries are equal.
"""

import argparse
import hashlib
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

import orjson

from benchmarks import table
from benchmarks.clouds_beside import compare_versions
from benchmarks.clouds_reference import measure_queries
from benchmarks.machine_speed import addition_seconds
from benchmarks.measure import MIN_REPEATS, ComparisonResult
from benchmarks.mixed import CLOUDS, MixedCloud
from benchmarks.mixed_queries import FAMILIES, query_paths
from benchmarks.models import Inventories, snapshot_of
from benchmarks.queries import parse_query
from benchmarks.worlds import WorldProvider
from placement.microversion import MAX, Microversion
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.candidate_search import find_candidates
from placement.search.candidates import Offer, topology_first
from placement.search.rendering import ProviderSummaries, render_pieces

PARTS: Final = ("parse", "search", "order", "render")
_WARM: Final = 2


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.clouds", description=__doc__)
    top.add_argument(
        "--clouds", type=_split_words, default=tuple(CLOUDS), help=f"some of {','.join(CLOUDS)}; default: all"
    )
    top.add_argument(
        "--queries", type=_split_words, default=tuple(FAMILIES), help="names of queries; default: all"
    )
    top.add_argument(
        "--hosts", type=_split_words, default=("1000", "10000"), help="number of hosts; default: 1000,10000"
    )
    top.add_argument(
        "--limits", type=_split_words, default=("1000", "100"), help="limits of candidates; default: 1000,100"
    )
    top.add_argument(
        "--count", type=int, default=15, help="number of queries of each kind; default: %(default)s"
    )
    top.add_argument(
        "--repeats", type=int, default=MIN_REPEATS, help="repeats beside the reference; default: %(default)s"
    )
    top.add_argument(
        "--reference", action="store_true", help="compare with the reference, at the first of --hosts"
    )
    top.add_argument(
        "--seeds",
        type=_split_words,
        default=("18",),
        help="seeds of clouds and queries, or random; default: 18",
    )
    top.add_argument("--beside", type=Path, metavar="FOLDER", help="another checkout to measure in turns")
    top.add_argument(
        "--versions", type=_split_words, default=("1.39",), help="microversions of the answers, with --beside"
    )
    top.add_argument("--seconds", type=float, default=60.0, help="maximum seconds for an answer of a service")
    return top


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


@dataclass(frozen=True, slots=True)
class AnswerCost:
    """The cost of an answer: milliseconds of CPU time by part, and elapsed milliseconds."""

    parts: Mapping[str, float]
    clock: float
    candidates: int
    body: bytes

    @property
    def total_cpu(self) -> float:
        """Return the CPU time of all parts."""
        return sum(self.parts.values())


class CloudModel:
    """The model of a cloud in this process. Guests start and end between queries."""

    def __init__(self, cloud: MixedCloud, hosts: int) -> None:
        self.snapshot = model_of(cloud, hosts)
        self._summaries = ProviderSummaries()
        self._changing = [each.id for each in self.snapshot if "VCPU" in each.inventories]
        self._changes = 0

    def answer_question(self, path: str, version: Microversion = MAX) -> AnswerCost:
        """Answer a query as the service does, without HTTP.

        :param version: the microversion of the answer. The query has the newest microversion.
        """
        self._change_usage()
        return answer_query(self.snapshot, path, self._summaries, version)[0]

    def _change_usage(self) -> None:
        """Start a guest on some host, or end the guest of the last call."""
        provider = self.snapshot.providers[self._changing[self._changes // 2 * 7919 % len(self._changing)]]
        used = provider.used.get("VCPU", 0) + (-1 if self._changes % 2 else 1)
        self.snapshot.put(replace(provider, used={**provider.used, "VCPU": used}))
        self.snapshot.whole_trees()
        self._changes += 1


def answer_query(
    snapshot: ModelSnapshot, path: str, summaries: ProviderSummaries, version: Microversion = MAX
) -> tuple[AnswerCost, list[Offer]]:
    """Answer a query as the service does, without HTTP; return the cost and the candidates."""
    clock = time.perf_counter()
    stamps = [time.thread_time()]
    request = parse_query(path)
    stamps.append(time.thread_time())
    found = find_candidates(snapshot, request, budget=SearchBudget(60.0))
    stamps.append(time.thread_time())
    found = topology_first(found)
    stamps.append(time.thread_time())
    body = b"".join(render_pieces(snapshot, found, version, summaries, SearchBudget()))
    stamps.append(time.thread_time())
    clock = time.perf_counter() - clock
    parts = {part: 1000 * (end - begin) for part, (begin, end) in zip(PARTS, pairwise(stamps), strict=True)}
    return AnswerCost(parts, 1000 * clock, sum([len(batch) for _, batch in found]), body), found


def model_of(cloud: MixedCloud, hosts: int) -> ModelSnapshot:
    """Return the read model of a cloud."""
    usage: dict[str, dict[str, int]] = {}
    trees = [[pool] for pool in cloud.storage_pools()]
    for tree, guests in cloud.hosts(hosts):
        trees.append(tree)
        for guest in guests:
            for uuid, amounts in guest.items():
                here = usage.setdefault(uuid, {})
                for name, amount in amounts.items():
                    here[name] = here.get(name, 0) + amount

    def usage_of(provider: WorldProvider, inventories: Inventories) -> Mapping[str, int]:
        return usage.get(provider.uuid, {})

    return snapshot_of(trees, usage_of)


def answer_lines(name: str, seed: str, hosts: str) -> None:
    """Answer the queries of :mod:`benchmarks.clouds_beside` on the standard input until its end."""
    model = CloudModel(replace(CLOUDS[name], seed=int(seed)), int(hosts))
    for line in sys.stdin.buffer:
        path, version = orjson.loads(line)
        asked = model.answer_question(path, tuple(version))
        digest = hashlib.sha256(asked.body).hexdigest()
        print(orjson.dumps([asked.total_cpu, asked.candidates, digest]).decode(), flush=True)


def _seeded_clouds(options: argparse.Namespace) -> Iterator[MixedCloud]:
    for name in options.clouds:
        for seed in options.seeds:
            yield replace(CLOUDS[name], seed=random.randrange(10**6) if seed == "random" else int(seed))


def measure_alone(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the tables of this service alone."""
    for cloud in _seeded_clouds(options):
        for hosts in map(int, options.hosts):
            model = CloudModel(cloud, hosts)
            for limit in map(int, options.limits):
                providers = len(model.snapshot)
                yield f"\n{_cloud_title(cloud, hosts)}, {providers:,} providers, limit={limit}\n"
                yield "| query | candidates | kB | CPU ms | p95 | clock ms | " + " | ".join(PARTS) + " |"
                yield "| --- |" + " ---: |" * (5 + len(PARTS))
                of_all = []
                for query in options.queries:
                    questions = query_paths(query, cloud, limit, cloud.seed)
                    asked = [
                        model.answer_question(path) for path in islice(questions, _WARM + options.count)
                    ][_WARM:]
                    of_all.append(statistics.median([each.total_cpu for each in asked]))
                    yield _query_line(query, asked)
                yield f"\nMedian {statistics.median(of_all):.2f}, highest {max(of_all):.2f} ms of CPU."


def _cloud_title(cloud: MixedCloud, hosts: int) -> str:
    return f"{cloud.name}, seed {cloud.seed}, {hosts:,} hosts"


def _query_line(query: str, asked: Sequence[AnswerCost]) -> str:
    cpu = sorted([each.total_cpu for each in asked])
    cells = [
        query,
        f"{statistics.median(each.candidates for each in asked):.0f}",
        f"{statistics.median(len(each.body) for each in asked) / 1000:.0f}",
        f"{statistics.median(cpu):.2f}",
        f"{cpu[int(len(cpu) * 0.95)]:.2f}",
        f"{statistics.median(each.clock for each in asked):.2f}",
        *(f"{statistics.median(each.parts[part] for each in asked):.2f}" for part in PARTS),
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure and print."""
    options = build_parser().parse_args()
    if options.beside:
        lines = _beside_checkout(options)
    else:
        lines = _beside_reference(options) if options.reference else measure_alone(options)
    for line in lines:
        print(line, flush=True)


def _beside_reference(options: argparse.Namespace) -> Iterator[str]:
    """Yield the tables beside the reference, for the first number of hosts and the first limit."""
    hosts, limit = int(options.hosts[0]), int(options.limits[0])
    for cloud in _seeded_clouds(options):
        results = []
        for result in measure_queries(cloud, hosts, limit, options.queries, options.repeats, options.seconds):
            print(f"{result.section}: {result.name}: {dict(result.cpu)}", file=sys.stderr, flush=True)
            results.append(result)
        additions = f"five million additions {addition_seconds():.2f} s"
        yield f"\n{_cloud_title(cloud, hosts)}, limit={limit}, {additions}\n"
        yield table.format_table(results)
        for what, ratios in _result_ratios(results).items():
            yield f"\n{what}: median {statistics.median(ratios):.1f}x, lowest {min(ratios):.1f}x\n"


def _beside_checkout(options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the tables beside another checkout, for each cloud, microversion and limit."""
    for cloud in _seeded_clouds(options):
        for hosts in map(int, options.hosts):
            for version in options.versions:
                for limit in map(int, options.limits):
                    yield f"\n{_cloud_title(cloud, hosts)}, microversion {version}, limit={limit}\n"
                    major, _, minor = version.partition(".")
                    asked = (int(major), int(minor)), options.queries, options.count
                    yield from compare_versions(options.beside, cloud, hosts, limit, *asked)


def _result_ratios(results: Sequence[ComparisonResult]) -> Mapping[str, Sequence[float]]:
    return {
        "clock": [each.median_ratio for each in results if each.median_ratio],
        "CPU": [each.cpu_ratio for each in results if each.cpu_ratio],
    }


if __name__ == "__main__":
    main()
