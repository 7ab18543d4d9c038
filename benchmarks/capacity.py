"""The cost of counting the guests that fit on 10,000 hosts: ``python -m benchmarks.capacity``.

Like ``benchmarks.explaining``, it uses the read model alone, in this process, with random use of each
inventory.
"""

import argparse
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from benchmarks.explaining import format_times, used_at_random
from benchmarks.measure import time_calls
from benchmarks.queries import parse_query
from benchmarks.worlds import LLC, MBA, WORLDS
from placement.read_model.snapshot import ModelSnapshot
from placement.search.budget import SearchBudget
from placement.search.request import CandidatesRequest
from placement_extras.planner.capacity import CloudHosts, FlavorCapacity, count_flavor
from placement_extras.planner.proportions import FlavorProportion, count_sets

ASKED: Final[Mapping[str, Mapping[str, str]]] = {
    "nested": {
        "small": "resources=DISK_GB:10&resources_NUMA=VCPU:2,MEMORY_MB:2048",
        "large": "resources=DISK_GB:100&resources_NUMA=VCPU:16,MEMORY_MB:32768",
        "two nodes": "resources=DISK_GB:10&resources_1=VCPU:4,MEMORY_MB:8192"
        "&resources_2=VCPU:4,MEMORY_MB:8192&group_policy=isolate",
    },
    "numa": {
        "dedicated": "resources=MEMORY_MB:2048&resources_CPU=PCPU:4",
        "with cache": f"resources=MEMORY_MB:2048&resources_CPU=PCPU:4&resources_L3={LLC}:2,{MBA}:10"
        "&same_subtree=_CPU,_L3&required_L3=!CUSTOM_L3&group_policy=none",
    },
    "flat": {
        "small": "resources=VCPU:1,MEMORY_MB:2048,DISK_GB:20",
        "large": "resources=VCPU:16,MEMORY_MB:65536,DISK_GB:100",
        "gold": "resources=VCPU:16,MEMORY_MB:65536,DISK_GB:100&required=CUSTOM_GOLD",
    },
}


def main() -> None:
    """Measure and print."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=__doc__)
    top.add_argument("--world", choices=tuple(ASKED), help="name of the world; default: all")
    top.add_argument(
        "--trees", type=int, default=10_000, help="number of trees of providers; default: %(default)s"
    )
    top.add_argument("--count", type=int, default=20, help="number of counts of each; default: %(default)s")
    options = top.parse_args()
    for world in [options.world] if options.world else ASKED:
        snapshot = used_at_random(WORLDS[world], options.trees, random.Random(1))
        flavors = {name: parse_query(query) for name, query in ASKED[world].items()}
        for asked in [*([name] for name in flavors), list(flavors)]:
            count = partial(_count_flavors, snapshot, [flavors[name] for name in asked])
            work, clock, found = time_calls(count, options.count)
            fits = ", ".join(
                str(each.fit.lower_bound)
                if each.fit.lower_bound == each.fit.upper_bound
                else f"{each.fit.lower_bound}-{each.fit.upper_bound}"
                for each in found
            )
            name = " + ".join(asked)
            print(
                f"{world:8} {name:28} {format_times(work)} ms of work,"
                f" {format_times(clock)} ms by the clock, {fits} fit"
            )
            if len(asked) > 1:
                shares = [
                    FlavorProportion((flavors[name],), number, each.fit.upper_bound)
                    for number, (name, each) in enumerate(zip(asked, found, strict=True), start=1)
                ]
                cpu = time.thread_time()
                sets = count_sets(CloudHosts(snapshot, SearchBudget(seconds=5.0)), shares)
                took = (time.thread_time() - cpu) * 1000
                print(
                    f"{world:8} {'together, 1 to 2 to 3'[: 9 + 5 * len(asked)]:28} "
                    f"{took:6.1f} ms of work, {sets.lower_bound}-{sets.upper_bound} sets fit"
                )


def _count_flavors(snapshot: ModelSnapshot, flavors: Sequence[CandidatesRequest]) -> list[FlavorCapacity]:
    cloud = CloudHosts(snapshot, SearchBudget(seconds=5.0))
    # a new request for each call, as in the service
    return [count_flavor(cloud, replace(each)) for each in flavors]


if __name__ == "__main__":
    main()
