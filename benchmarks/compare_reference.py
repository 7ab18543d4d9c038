"""Measures this service beside OpenStack Placement, and its growth."""

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks import growth, query_latency, table, world_loader, write_rates
from benchmarks.http import NoAnswer, RequestRefused
from benchmarks.machine_speed import addition_seconds
from benchmarks.measure import MIN_REPEATS, ComparisonResult
from benchmarks.queries import SCHEDULING
from benchmarks.reference import VERSION, ReferenceInstall, ReferenceMissing, install_reference
from benchmarks.servers import (
    MeasuredService,
    OpenStack,
    OurService,
    ServiceFailed,
    add_database_option,
    create_database_server,
    exit_on_sigterm,
)
from benchmarks.worlds import WORLDS
from tests.databases import DatabaseServer

PARTS: Final = ("queries", "claims", "answers", "schedulings", "growth")
_QUICK_SCALE: Final = 0.02


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.compare_reference", description=__doc__)
    add_database_option(top)
    top.add_argument(
        "--worlds",
        type=_name_parser(WORLDS),
        default=tuple(WORLDS),
        help=f"some of {','.join(WORLDS)}; default: all",
    )
    top.add_argument(
        "--parts", type=_name_parser(PARTS), default=PARTS, help=f"some of {','.join(PARTS)}; default: all"
    )
    top.add_argument("--scale", type=float, default=1.0, help="size of the worlds; 1 is 1,000 hosts")
    top.add_argument(
        "--growth", type=_parse_numbers, default=growth.HOSTS, help="numbers of hosts; default: %(default)s"
    )
    top.add_argument("--workers", type=int, default=2, help="workers of each service; default: %(default)s")
    top.add_argument("--threads", type=int, default=4, help="threads of each worker; default: %(default)s")
    top.add_argument(
        "--repeats", type=int, default=MIN_REPEATS, help="number of repeats; default: %(default)s"
    )
    top.add_argument("--seconds", type=float, default=2.0, help="length of each repeat of writing")
    top.add_argument("--timeout", type=float, default=60.0, help="maximum seconds for an answer")
    top.add_argument("--quick", action="store_true", help="20 hosts and short repeats, to test the program")
    top.add_argument("--no-reference", action="store_true", help="measure this service only")
    top.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    return top


def _name_parser(known: Iterable[str]) -> Any:
    def parse(text: str) -> tuple[str, ...]:
        for name in (names := tuple(text.split(","))):
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return names

    return parse


def _parse_numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0 unless a part of this service failed."""
    options = build_parser().parse_args(arguments)
    if options.quick:
        options.scale, options.seconds, options.growth = _QUICK_SCALE, 0.3, (20,)
        options.timeout = min(options.timeout, 5.0)
    try:
        reference = None if options.no_reference else install_reference()
    except ReferenceMissing as error:
        print(error, file=sys.stderr)
        return 1
    server = create_database_server(options.database)
    exit_on_sigterm()
    machine = _describe_machine(options)
    began = time.monotonic()
    results: list[ComparisonResult] = []
    try:
        with server, tempfile.TemporaryDirectory(prefix="placement-benchmark-") as folder:
            for result in run(server, Path(folder), reference, options):
                seconds = time.monotonic() - began
                print(f"{seconds:6.0f} s  {result.section}: {result.name}", file=sys.stderr, flush=True)
                if options.scale != 1:
                    result = replace(result, goal=None, cpu_goal=None, bound=None)
                results.append(result)
    except (NoAnswer, RequestRefused, ServiceFailed) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if options.json is not None:
            options.json.write_text(table.as_json(results, machine))
        print("\n".join(f"{name}: {value}" for name, value in machine.items()), end="\n\n")
        print(table.format_table(results))
    return 1 if any(result.ours.failure for result in results) else 0


def run(
    server: DatabaseServer, folder: Path, reference: ReferenceInstall | None, options: argparse.Namespace
) -> Iterator[ComparisonResult]:
    """Yield each result as soon as it is complete."""
    if set(options.parts) != {"growth"}:
        for name in options.worlds:
            with ExitStack() as stack:
                services: dict[str, MeasuredService] = {
                    "ours": stack.enter_context(
                        OurService(server.fresh_database(), folder, options.workers, options.threads)
                    )
                }
                if reference is not None:
                    theirs = OpenStack(
                        server.fresh_database(), folder, options.workers, options.threads, reference
                    )
                    services["reference"] = stack.enter_context(theirs)
                yield from _measure_world(services, name, options)
    if "growth" in options.parts:
        yield from growth.measure_growth(server, folder, options.growth, options.repeats)


def _measure_world(
    services: Mapping[str, MeasuredService], name: str, options: argparse.Namespace
) -> Iterator[ComparisonResult]:
    loaded = world_loader.load_world(services, WORLDS[name], options.scale, options.repeats)
    failed = loaded.reference is not None and loaded.reference.failure is not None
    if failed:  # nothing can be compared
        services = {"ours": services["ours"]}
    if failed or WORLDS[name].size(options.scale) >= options.repeats:  # few trees tell nothing about speed
        yield loaded
    if "queries" in options.parts:
        yield from query_latency.measure_queries(services, name, options.repeats, options.timeout)
    if "claims" in options.parts and name == "flat":
        yield from write_rates.measure_claims(services, options.scale, options.repeats, options.seconds)
    if "answers" in options.parts and name == "flat":
        yield from write_rates.measure_answers(services, options.repeats, options.seconds)
    if "schedulings" in options.parts and name in SCHEDULING:
        yield from write_rates.measure_schedulings(services, name, options.repeats, options.seconds)


def _describe_machine(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "database": options.database,
        "workers": options.workers,
        "threads of each": options.threads,
        "repeats": options.repeats,
        "scale": options.scale,
        "reference": "none" if options.no_reference else f"openstack-placement {VERSION}",
        "CPUs": len(os.sched_getaffinity(0)),
        "processor": _processor_name(),
        "Python": platform.python_version(),
        "commit": _current_commit(),
        "five million additions, s": round(addition_seconds(), 2),
        "load before": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d"),
    }


def _current_commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    described = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return described.stdout.strip() or "unknown"


def _processor_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
