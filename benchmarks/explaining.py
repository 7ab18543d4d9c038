"""The cost of an explanation at 10,000 hosts: ``python -m benchmarks.explaining``.

The program uses the read model alone, in this process: trees of the worlds of the benchmark with random use,
and with ``--world mixed-full`` or ``unlike-full`` the clouds of ``benchmarks.mixed``. It prints elapsed time
and CPU time of the thread, because the machine may have other work. The goal is a p95 of at most 100 ms of
CPU time. Python collects garbage at the same times as in the service.
"""

import argparse
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from benchmarks.clouds import model_of
from benchmarks.machine_speed import addition_seconds
from benchmarks.measure import time_calls
from benchmarks.mixed import CLOUDS, DISABLED, NIC
from benchmarks.models import Inventories, snapshot_of
from benchmarks.queries import QUERIES, parse_query
from benchmarks.worlds import LLC, MBA, WORLDS, ProviderWorld, WorldProvider, aggregate_uuid, uuid_of
from placement.api.garbage import GcScheduler
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.diagnosis.explanation import RequestExplanation, explain_request
from placement.search.diagnosis.sentences import explanation_sentence
from placement.search.request import CandidatesRequest

_TWO_NODES: Final = next(query for query in QUERIES["numa"] if "isolate" in query.template)

ASKED: Final[Mapping[str, Sequence[tuple[str, str]]]] = {
    "nested": (
        ("fits", "resources=DISK_GB:10&resources_NUMA=VCPU:2,MEMORY_MB:2048&group_policy=none"),
        ("too many CPUs", "resources=DISK_GB:10&resources_NUMA=VCPU:129,MEMORY_MB:2048&group_policy=none"),
        (
            "rare and crowded",
            "resources=DISK_GB:1990&resources_NUMA=VCPU:120,MEMORY_MB:126000&resources_FPGA=FPGA:4"
            "&same_subtree=_NUMA,_FPGA&group_policy=none&required_FPGA=CUSTOM_FPGA_INTEL"
            f"&member_of={aggregate_uuid(1)}&root_required=STORAGE_DISK_SSD",
        ),
        (
            "another tree",
            f"resources=DISK_GB:10&resources_NUMA=VCPU:100&in_tree={uuid_of('nested-5')}&required=CUSTOM_GOLD",
        ),
    ),
    "numa": (
        ("too many dedicated CPUs", "resources=MEMORY_MB:2048&resources_CPU=PCPU:25&group_policy=none"),
        (
            "together, crowded",
            f"resources=MEMORY_MB:2048&resources_CPU=PCPU:24&resources_L3={LLC}:14,{MBA}:100"
            "&same_subtree=_CPU,_L3&required_L3=!CUSTOM_L3&group_policy=none",
        ),
        ("two nodes, fits", _TWO_NODES.path().partition("?")[2]),
    ),
    "flat": (
        ("too much memory", "resources=VCPU:2,MEMORY_MB:400000,DISK_GB:20"),
        (
            "traits and aggregate",
            "resources=VCPU:1000,MEMORY_MB:380000,DISK_GB:20&required=CUSTOM_GOLD,!STORAGE_DISK_SSD"
            f"&member_of={aggregate_uuid(1)}",
        ),
    ),
}

IN_CLOUDS: Final[Sequence[tuple[str, str]]] = (
    ("small", "resources=VCPU:1,MEMORY_MB:1024,DISK_GB:10"),
    (
        "node and device",
        f"resources=DISK_GB:10&resources_NUMA0=VCPU:2,MEMORY_MB:4096&resources_PCI0={NIC}:1"
        f"&same_subtree=_NUMA0,_PCI0&root_required=!{DISABLED}&group_policy=none",
    ),
    ("too many CPUs, too much memory", "resources=VCPU:1000,MEMORY_MB:4000000,DISK_GB:20"),
    (
        "two isolated nodes",
        "resources=DISK_GB:20&resources_NUMA0=VCPU:2,MEMORY_MB:4096&resources_NUMA1=VCPU:2,MEMORY_MB:4096"
        f"&root_required=!{DISABLED}&group_policy=isolate",
    ),
    ("a trait without providers", "resources=VCPU:2,MEMORY_MB:4096,DISK_GB:20&required=CUSTOM_NOBODY"),
)
"""Queries to the clouds of unlike hosts, nearly full."""


def used_at_random(world: ProviderWorld, trees: int, rng: random.Random) -> ModelSnapshot:
    """Return the read model of some trees with random use of each inventory."""

    def random_use(provider: WorldProvider, inventories: Inventories) -> dict[str, int]:
        return {
            name: rng.randrange(each.capacity + 1) // each.step_size * each.step_size
            for name, each in inventories.items()
        }

    return snapshot_of(map(world.tree, range(trees)), random_use)


def main() -> None:
    """Measure and print."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.explaining", description=__doc__)
    top.add_argument(
        "--world", choices=(*ASKED, *CLOUDS), help="name of the world; default: all but the clouds"
    )
    top.add_argument(
        "--trees", type=int, default=10_000, help="number of trees of providers; default: %(default)s"
    )
    top.add_argument(
        "--count", type=int, default=41, help="number of explanations of each query; default: %(default)s"
    )
    top.add_argument("--sentences", action="store_true", help="also print the explanations")
    options = top.parse_args()
    GcScheduler(lambda: 0)
    print(f"five million additions take {addition_seconds():.2f} s")
    for name in [options.world] if options.world else ASKED:
        if name in CLOUDS:
            snapshot, asked = model_of(CLOUDS[name], options.trees), IN_CLOUDS
        else:
            snapshot, asked = used_at_random(WORLDS[name], options.trees, random.Random(1)), ASKED[name]
        for title, query in asked:
            request = parse_query(query)
            work, clock, explanation = time_calls(partial(_explain_copy, snapshot, request), options.count)
            # the first request for a set of classes also computes the trees that have these classes
            print(
                f"{name:8} {title:30} first {work[0]:6.1f}, then {format_times(work[1:])} ms of work,"
                f" {format_times(clock[1:])} ms by the clock, "
                f"{explanation.fitting} of {explanation.hosts} hosts"
                + (f", incomplete: {', '.join(explanation.incomplete)}" if explanation.incomplete else "")
            )
            if options.sentences:
                print(f"         {explanation_sentence(explanation)}")


def _explain_copy(snapshot: ModelSnapshot, request: CandidatesRequest) -> RequestExplanation:
    # a new request for each call, as in the service
    return explain_request(snapshot, replace(request), SearchBudget(seconds=1.0))


def format_times(times: Sequence[float]) -> str:
    """Return the median and the 95th percentile."""
    ordered = sorted(times)
    return f"{ordered[len(times) // 2]:6.1f} (p95 {ordered[int(len(times) * 0.95)]:6.1f})"


if __name__ == "__main__":
    main()
