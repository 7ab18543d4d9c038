"""The cost of counting guests that a topology splits: ``python -m benchmarks.split_capacity``.

Hosts have two NUMA nodes of 32 dedicated CPUs with random use, and hardly two hosts are equal. Times are CPU
seconds of the thread. With ``--caches`` the CPUs of a node belong to four providers below it.
"""

import argparse
import random
import time

from placement.read_model.snapshot import ModelSnapshot
from placement.read_model.trees import ZONE
from placement.schemas import candidates
from placement.search.budget import SearchBudget
from placement.search.claims.topology import TopologyPolicy
from placement_extras.planner.capacity import CloudHosts
from placement_extras.planner.split_count import count_split
from tests.placement.search.snapshots import Spec, build

QUERY = "resources=PCPU:6,MEMORY_MB:16384,DISK_GB:20"


def unlike_hosts(number: int, *, caches: bool) -> ModelSnapshot:
    """Return hosts of which hardly two have the same memory and use."""
    rng, specs = random.Random(0), list[Spec]()
    for host in range(number):
        specs.append(Spec(f"h{host}", None, {"DISK_GB": 2000}, used={"DISK_GB": rng.randint(0, 1500)}))
        for zone in range(2):
            inventories = {"MEMORY_MB": 262_144 - rng.randint(0, 200)}
            used = {"MEMORY_MB": rng.randint(0, 200_000)}
            name = f"h{host}z{zone}"
            if not caches:
                inventories["PCPU"], used["PCPU"] = 32, rng.randint(0, 31)
            specs.append(Spec(name, f"h{host}", inventories, [ZONE], used=used))
            if caches:
                specs += [
                    Spec(f"{name}c{cache}", name, {"PCPU": 8}, used={"PCPU": rng.randint(0, 7)})
                    for cache in range(4)
                ]
    return build(*specs)


def main() -> None:
    """Measure and print."""
    top = argparse.ArgumentParser(prog="python -m benchmarks.split_capacity", description=__doc__)
    top.add_argument(
        "--hosts",
        type=int,
        nargs="+",
        default=[400, 1000, 3000],
        help="number of hosts; default: %(default)s",
    )
    top.add_argument("--caches", action="store_true", help="put the CPUs below NUMA nodes")
    top.add_argument("--seconds", type=float, default=60.0, help="budget for placing; default: %(default)s")
    options = top.parse_args()
    asked = candidates.parse_body({"query": QUERY, "flavor": None, "microversion": "1.39"}, {})
    for number in options.hosts:
        snapshot = unlike_hosts(number, caches=options.caches)
        snapshot.whole_trees()
        for topology in TopologyPolicy:
            began = time.thread_time()
            cloud, placing = CloudHosts(snapshot, SearchBudget()), SearchBudget(options.seconds)
            found = count_split(cloud, asked.request, topology, placing)
            seconds = time.thread_time() - began
            bounds = f"{found.fit.lower_bound:,} to {found.fit.upper_bound:,} guests"
            print(
                f"{number:>6,} hosts {topology:<17} {seconds:7.3f} s  {bounds}, {found.uncounted_hosts} left"
            )


if __name__ == "__main__":
    main()
