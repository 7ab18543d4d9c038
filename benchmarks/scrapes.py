"""The cost of a scrape of an agent's metrics of guests: series, bytes, and CPU time.

    python -m benchmarks.scrapes                  # 100 guests: all of them, and the 10 with the most use
    python -m benchmarks.scrapes --guests 300

Each guest has the files of a cgroup in a folder in memory, with values that kernels write, and two limits.
The first scrape of a process does not count. CPU time is the median of the others, in user and kernel mode.
"""

import argparse
import statistics
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import generate_latest

from compute_agent.model.resource import CPU_QUOTA, MEMORY_HIGH, ThrottleControl
from tests.compute_agent.usage.metered_host import MeteredHost

INTERVAL = 15.0
"""Seconds between two scrapes, for the share of a core."""


@dataclass(frozen=True)
class ScrapeCost:
    """The size of an answer, and its CPU time."""

    shown: str
    series: int
    kibibytes: float
    milliseconds: float

    def __str__(self) -> str:
        share = self.milliseconds / 10 / INTERVAL
        return (
            f"{self.shown:>8}: {self.series} series, {self.kibibytes:.0f} KiB, {self.milliseconds:.1f} ms of"
            f" CPU, {share:.3f} % of a core at a scrape each {INTERVAL:g} s"
        )


def measure_scrapes(guests: int, most: int | None, scrapes: int) -> ScrapeCost:
    """Measure scrapes of ``guests`` guests, of which the ``most`` with the largest use are shown."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        host = MeteredHost(Path(folder), most)
        held = {"p": {"VCPU": 4, "MEMORY_MB": 4096}}
        limits = {ThrottleControl(CPU_QUOTA): 1.5, ThrottleControl(MEMORY_HIGH): 2.0**31}
        for _ in range(guests):
            name = str(uuid.uuid4())
            host.add(name, allocation=held, display_name=f"web-{name[:8]}", project_id="p", flavor="m1.large")
            host.limits.setdefault("watermarks", {})[name] = limits
        times, answer = [], b""
        for number in range(scrapes + 1):
            host.now = number * INTERVAL
            began = time.process_time()
            answer = generate_latest(host.registry)
            times.append(1000 * (time.process_time() - began))
    series = sum(1 for line in answer.splitlines() if not line.startswith(b"#"))
    return ScrapeCost(
        "all" if most is None else f"{most}", series, len(answer) / 1024, statistics.median(times[1:])
    )


def main() -> None:
    """Print a line for all guests, and one for the default number of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--guests", type=int, default=100)
    parser.add_argument("--scrapes", type=int, default=20)
    options = parser.parse_args()
    for most in (None, 10):
        print(measure_scrapes(options.guests, most, options.scrapes))


if __name__ == "__main__":
    main()
