"""CPU time of a round of monitoring on a fake tree: reading counters, keeping groups, storing samples.

`python -m benchmarks.monitoring`; the times lack the kernel's own work for a counter.
"""

import argparse
import os
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

from compute_agent.monitoring.loop import MonitoringSettings, MonitorLoop
from compute_agent.monitoring.monitor import CacheMonitor
from compute_agent.monitoring.readings import MonitorTarget
from compute_agent.monitoring.samples import SampleStore
from compute_agent.resctrl.mount import read_platform
from tests.compute_agent.resctrl import fake

CLASSES = ("LSR", "LS", "BE")


def round_seconds(folder: Path, guests: int, caches: int, rounds: int) -> float:
    """Return the CPU seconds of a round, with one round a second and the usual settings."""
    machine = replace(fake.INTEL, l3=tuple(range(caches)), rmids=2 * guests + 64)
    files = fake.FakeResctrl.of(machine, folder / "resctrl")
    targets = [MonitorTarget("", name, f"a.class.{name}") for name in CLASSES]
    for target in targets:
        files.make_folder(target.group)

    def own_threads() -> list[int]:
        return [int(name) for name in os.listdir("/proc/self/task")]

    targets += [
        MonitorTarget(str(uuid.uuid4()), "LS", "a.class.LS", threads=own_threads, cpu=0.5)
        for _ in range(guests)
    ]
    store = SampleStore(folder / "samples.db", 1e9, 10**9)
    loop = MonitorLoop(lambda: targets, store, MonitoringSettings())
    loop.monitor_with(CacheMonitor(files, read_platform(files), "a."))
    now = time.monotonic()
    loop.run_round(now, 0.0)
    for path in files.root.glob("**/mon_groups/*/tasks"):
        path.write_text("".join(f"{thread}\n" for thread in own_threads()))
    begin = time.process_time()
    for number in range(1, rounds + 1):
        loop.run_round(now + number, float(number))
    used = time.process_time() - begin
    loop.stop()
    return used / rounds


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=120)
    rounds = parser.parse_args().rounds
    for guests, caches in ((10, 2), (100, 2), (100, 8)):
        with tempfile.TemporaryDirectory() as folder:
            used = round_seconds(Path(folder), guests, caches, rounds)
        print(
            f"{guests} guests, {caches} caches: {used * 1e3:.2f} ms a round, {used * 100:.2f} % of a core"
            " with one round a second"
        )


if __name__ == "__main__":
    main()
