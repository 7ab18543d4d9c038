"""The CPU time that single switches of the agent add beside 100 guests: memory, metrics and neighbours.

    python -m benchmarks.agent_switches                      # some fifteen minutes
    python -m benchmarks.agent_switches --guests 10 --seconds 5

One host runs the same guests for all rows. The agent starts again for each row. The program measures each row
between two measurements of its base row, because the speed of this machine changes. So only compare the rows
of one run. Folders replace the kernel's files (:mod:`benchmarks.agent_on_fakes`). The numbers lack the time
that a real kernel takes to answer, such as for a reclaim.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from benchmarks.agent_cost import AGENT, SAMPLINGS, measure_process
from benchmarks.agent_everything import INI, FileHost, guest_claims, make_host, scrape_metrics
from benchmarks.machine_speed import addition_seconds

MIB: Final = 2**20

GROUP_FILES: Final[Mapping[str, str]] = {
    "memory.current": f"{132 * MIB}\n",
    "memory.swap.current": f"{20 * MIB}\n",
    "memory.swap.max": "max\n",
    "memory.reclaim": "",
    "memory.stat": f"anon {100 * MIB}\nfile {32 * MIB}\ninactive_file {20 * MIB}\npgmajfault 7\n",
    "memory.numa_stat": f"anon N0={100 * MIB}\nfile N0={32 * MIB}\ninactive_file N0={20 * MIB}\n",
    "cpu.stat": "usage_usec 5000000\nuser_usec 4000000\nsystem_usec 1000000\nnr_throttled 3\n"
    "throttled_usec 20000\n",
    "io.stat": "254:0 rbytes=1000 wbytes=2000 rios=10 wios=20 dbytes=0 dios=0\n",
    **{
        f"{name}.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=500\n"
        for name in ("cpu", "memory", "io")
    },
}
"""Files of a guest's group that the kernel has and the fakes lack. Guests use 132 MiB and do not wait."""

SCRAPE_SECONDS: Final = 15.0
"""Seconds between two scrapes."""

START_SECONDS: Final = 180.0
"""Maximum seconds until the first report of an agent."""

SWAPS: Final = "Filename\tType\tSize\tUsed\tPriority\n/dev/vda2\tpartition\t8388604\t0\t-2\n"

WATERMARKS: Final = SAMPLINGS["watermarks for CPU and memory"]
CAPACITY: Final = "\n[capacity]\nmode = act\nmemory = true\n"
QUIET: Final = "\n[compute]\nneighbours_interval = 0\n[metrics]\nguests = 0\n"


def _reclaim_sections(threshold: str) -> str:
    return (
        f"\n[watermark:cold]\nmetric = memory_usage\nreclaim = {threshold}\nevict = 100%\n"
        "[qos]\nhighest_class = LS\nmin_share = 10\n"
    )


@dataclass(frozen=True, slots=True)
class AgentSwitch:
    """A row of the table: sections of the agent's file, and the row on which it is based.

    :ivar scraped: whether the program reads the metrics each ``SCRAPE_SECONDS``.
    """

    name: str
    sections: str
    base: str = ""
    scraped: bool = False


SWITCHES: Final = (
    AgentSwitch("neither watermarks nor metrics of guests", QUIET),
    AgentSwitch(
        "watermarks for CPU and memory", QUIET + WATERMARKS, "neither watermarks nor metrics of guests"
    ),
    AgentSwitch(
        "the same and `reclaim`, not reached",
        QUIET + WATERMARKS + _reclaim_sections("99%"),
        "watermarks for CPU and memory",
    ),
    AgentSwitch(
        "the same and `reclaim`, reached all the time",
        QUIET + WATERMARKS + _reclaim_sections("1%"),
        "watermarks for CPU and memory",
    ),
    AgentSwitch("reclaimed CPUs and memory", QUIET + CAPACITY, "neither watermarks nor metrics of guests"),
    AgentSwitch(
        "the same and `cold_memory`", QUIET + CAPACITY + "cold_memory = true\n", "reclaimed CPUs and memory"
    ),
    AgentSwitch(
        "scrapes without metrics of guests", QUIET, "neither watermarks nor metrics of guests", scraped=True
    ),
    AgentSwitch(
        "scrapes, `[metrics] guests = all`",
        QUIET.replace("guests = 0", "guests = all"),
        "scrapes without metrics of guests",
        scraped=True,
    ),
    AgentSwitch(
        "neighbours each 10 minutes",
        QUIET.replace("interval = 0", "interval = 600"),
        "neither watermarks nor metrics of guests",
    ),
    AgentSwitch(
        "neighbours each minute",
        QUIET.replace("interval = 0", "interval = 60"),
        "neither watermarks nor metrics of guests",
    ),
)


class SwitchedHost(FileHost):
    """A host with guests. Its agent starts with one configuration after the other."""

    def wait(
        self, script: str, verb: str, condition: Callable[[], bool], seconds: float = START_SECONDS
    ) -> None:
        """Wait longer than usual, because an agent with many guests starts slowly on a busy machine."""
        super().wait(script, verb, condition, seconds)

    def start_guests(self, guests: int) -> None:
        """Start the service, an agent and the guests."""
        host = self.folder / "host"
        make_host(host)
        (host / "proc/swaps").write_text(SWAPS)
        self.cgroup_folder.mkdir(parents=True)
        self.configure_service()
        self.manage("db", "sync")
        self.start_service(workers=1)
        self.write_sections("")
        self.start_agent()
        for consumer, held in guest_claims(self, guests):
            # 128 MB allow a probe of the smallest size, and fit for all guests on this host
            held = {
                one: {name: 128 if name == "MEMORY_MB" else amount for name, amount in amounts.items()}
                for one, amounts in held.items()
            }
            self.claim_amounts(consumer, held)
            self.guests("run", uuid=consumer, command=["sleep", "1000000"], blockio_class="bulk")
            for name, text in GROUP_FILES.items():
                (self.cgroup_folder / f"guest-{consumer}" / name).write_text(text)

    def write_sections(self, sections: str) -> None:
        """Write the agent's file with these sections."""
        sets = "cpu_dedicated_set = 0\ncpu_shared_set = 1"
        self.configure_agent(f"{sets}\n\n[DEFAULT]\ncpu_allocation_ratio = 1000")
        with self.agent_ini.open("a") as ini:
            ini.write(INI.format(host=self.folder / "host", cgroups=self.cgroup_folder) + sections)

    def measure_switch(self, switch: AgentSwitch, settle: float, seconds: float) -> tuple[float, float]:
        """Return the agent's CPU time in percent of a core, and its resident MB."""
        self.stop(AGENT)
        self.write_sections(switch.sections)
        self.start_agent()
        pid, ended = self.processes[AGENT].pid, threading.Event()
        if switch.scraped:
            threading.Thread(target=scrape_metrics, args=(self, ended, SCRAPE_SECONDS), daemon=True).start()
        time.sleep(settle)
        _, percent, resident = measure_process(pid, seconds)
        ended.set()
        return percent, resident


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--guests", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--rows", type=int, nargs="+", help="numbers of the rows to measure, from 1")
    parser.add_argument("--settle", type=float, default=15.0, help="seconds before each measurement")
    args = parser.parse_args()
    by_name = {switch.name: switch for switch in SWITCHES}
    print(f"{args.guests} guests; five million additions take {addition_seconds():.2f} s of CPU time\n")
    print("| switch | % of a core | before and after, without it | adds | MB |")
    print("| --- | --- | --- | --- | --- |")
    with SwitchedHost() as system:
        system.start_guests(args.guests)
        for number, switch in enumerate([one for one in SWITCHES if one.base], 1):
            if args.rows and number not in args.rows:
                continue
            base = by_name[switch.base]
            before, _ = system.measure_switch(base, args.settle, args.seconds)
            percent, resident = system.measure_switch(switch, args.settle, args.seconds)
            after, _ = system.measure_switch(base, args.settle, args.seconds)
            added = percent - statistics.mean((before, after))
            compared = f"{percent:.2f} | {before:.2f}, {after:.2f} | {added:+.2f}"
            print(f"| {switch.name} | {compared} | {resident:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
