"""The time in which the agent reads each captured machine, and its findings: a table.

python -m benchmarks.topologies [FOLDER]    (archives like those of hwloc's tests, *.tar.bz2)
"""

import logging
import os
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prettytable import PrettyTable, TableStyle

from compute_agent.host.reader import read_topology

SHARED = Path(os.environ.get("PLACEMENT_COMPUTE_SHARED", Path(__file__).parents[2] / "shared"))
REPEATS = 5


@contextmanager
def extract_machine(archive: Path) -> Iterator[Path]:
    """Extract a captured machine into a temporary folder; yield the root of its files."""
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="tar")
        (root,) = Path(scratch).iterdir()
        yield root


def measure_machine(root: Path) -> list[object]:
    """Return sizes, and the median time of a read in milliseconds."""
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        topology = read_topology(root)
        seconds.append(time.perf_counter() - start)
    memory_kib = sum(node.memory_kib for node in topology.numa_nodes)
    return [
        len(topology.online),
        len(topology.offline),
        len(topology.packages),
        len(topology.numa_nodes),
        len(topology.cores),
        len(topology.l3_domains),
        f"{memory_kib / 2**20:.1f}",
        f"{statistics.median(seconds) * 1000:.1f}",
    ]


def main() -> None:
    """Measure and print."""
    logging.disable()  # captured machines with old kernels lack many files
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED / "topologies"
    archives = sorted(folder.glob("*.tar.bz2"))
    if not archives:
        sys.exit(f"There are no archives in {folder}")
    names = ["machine", "CPUs", "offline", "packages", "NUMA nodes", "cores", "L3", "memory GiB", "read ms"]
    table = PrettyTable(names, align="r")
    table.align["machine"] = "l"
    table.set_style(TableStyle.MARKDOWN)
    for archive in archives:
        with extract_machine(archive) as root:
            table.add_row([archive.name.removesuffix(".tar.bz2"), *measure_machine(root)])
    print(table)


if __name__ == "__main__":
    main()
