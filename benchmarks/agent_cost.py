"""The cost of an agent: CPU time and memory beside many guests, of a reconcile without changes, and of a
start.

    python -m benchmarks.agent_cost [--guests 100] [--seconds 60]
    python -m benchmarks.agent_cost --config more.ini    # with these sections in place of those below

The agent starts the guests, which are sleeping processes, each on its claim. The agent is the installed one,
beside a service. Its CPU time is the user and kernel time of all its threads (/proc/PID/stat). Unlike elapsed
time it hardly depends on other work of the machine. An agent in this process makes the measured starts and
reconciles, while nothing else sends requests to it. The program prints the CPU time of the whole process and
the elapsed time.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.http import CLAIM_OWNER
from compute_agent import conf as agent_conf
from compute_agent.agent.protocol import DaemonUnreachableError, RequestError, call_agent
from compute_agent.agent.service import HostAgent
from compute_agent.host.proc_stat import parse_process_stat
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.pipeline.events import ReconcileGuests, StartGuest
from tests.demo.system import System

AGENT = "compute-agent"

SAMPLINGS = {
    "no watermarks": "",
    "watermarks for CPU and memory": """
[watermark:cpu]
metric = cpu_usage
throttle_up = 90%
throttle_down = 95%
evict = 99%
mode = preview

[watermark:memory]
metric = memory_usage
evict = 99%
mode = preview
""",
}
"""Sections of the agent's ini file. The agent evaluates watermarks each second."""

GOALS = (
    "goals: 1 % of a core, 100 MB (100 guests); 20 ms a reconcile (200 guests); 50 ms from start to pinned"
)


@dataclass
class AgentCost:
    """The cost of a running agent over ``seconds``."""

    sampling: str
    guests: int
    seconds: float
    cpu_percent: float
    resident_mb: float
    threads: int


@dataclass
class ActionTimes:
    """Median and largest CPU time and elapsed time of an action, in milliseconds."""

    guests: int
    cpu: float
    cpu_worst: float
    clock: float
    clock_worst: float

    def text(self) -> str:
        """Return the times in words."""
        return (
            f"{self.guests} guests: {self.cpu} ms of CPU time (worst {self.cpu_worst}),"
            f" {self.clock} ms on the clock (worst {self.clock_worst})"
        )


def cpu_seconds(pid):
    """Return the CPU time of all threads of a process, also of those that have ended."""
    return parse_process_stat(Path(f"/proc/{pid}/stat").read_text()).cpu_seconds


def read_status(pid, name):
    """Return a number of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise ValueError(f"/proc/{pid}/status has no {name}")


def measure_process(pid, seconds):
    """Return the elapsed seconds, the CPU time in percent of a core, and the resident MB of a process."""
    used, since = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - since
    return elapsed, 100 * (cpu_seconds(pid) - used) / elapsed, read_status(pid, "VmRSS") / 1024


def compute_options():
    """Return options with a dedicated and a shared CPU of this machine, and room for all guests."""
    dedicated, shared = sorted(os.sched_getaffinity(0))[:2]
    sets = f"cpu_dedicated_set = {dedicated}\ncpu_shared_set = {shared}"
    return f"{sets}\n\n[DEFAULT]\ncpu_allocation_ratio = 1000"


class WithGuests(System):
    """The whole system with guests, which it stops at its end. Guests would outlive their agent."""

    def guests(self, method, **params):
        """Call a method of the agent about guests; return its answer."""
        return call_agent(self.folder / "agent" / "agent.sock", f"guest.{method}", params)

    def find_offers(self):
        """Return the providers with an inventory of each resource class, by the name of the class."""
        offers = {}
        for provider in self.providers():
            path = f"/resource_providers/{provider['uuid']}/inventories"
            for name in self.call("GET", path)["inventories"]:
                offers.setdefault(name, []).append(provider)
        return offers

    def claim_amounts(self, consumer, held):
        """Claim amounts by provider and resource class for a new consumer."""
        body = {
            "allocations": {one: {"resources": amounts} for one, amounts in held.items()},
            **CLAIM_OWNER,
        }
        self.call("PUT", f"/allocations/{consumer}", body=body)

    def __exit__(self, *exception):
        """Stop the guests, then the system."""
        with contextlib.suppress(
            DaemonUnreachableError, RequestError
        ):  # without an agent there are no guests
            for each in self.guests("list"):
                # A guest that cannot be stopped must not keep the others running.
                with contextlib.suppress(RequestError):
                    self.guests("stop", guest=each["uuid"])
        super().__exit__(*exception)


def measure_agent(sampling, sections, guests, seconds):
    """Return the cost of an agent with a number of guests."""
    with WithGuests() as system:
        system.configure_service()
        system.manage("db", "sync")
        system.start_service(workers=1)
        system.configure_agent(compute_options())
        with system.agent_ini.open("a") as ini:
            ini.write(sections)
        system.start_agent()
        zone = system.find_offers()["VCPU"][0]["uuid"]
        for _ in range(guests):
            consumer = str(uuid.uuid4())
            system.claim_amounts(consumer, {zone: {"VCPU": 1}})
            system.guests("run", uuid=consumer, command=["sleep", "1000000"])
        pid = system.processes[AGENT].pid
        time.sleep(min(seconds, 5))  # until the agent has finished the work that follows the starts
        elapsed, percent, resident = measure_process(pid, seconds)
        return AgentCost(
            sampling,
            guests,
            round(elapsed, 1),
            round(percent, 2),
            round(resident, 1),
            read_status(pid, "Threads"),
        )


def measure_reconciles(guests, rounds):
    """Return the times of starts of guests, and of reconciles of all of them, by an agent in this process."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ini = Path(folder) / "agent.ini"
        ini.write_text(
            f"[compute]\n{compute_options()}\nstate_path = {folder}/state\n"
            "[placement]\nauth_type = none\nendpoint = http://127.0.0.1:9\n[guests]\ndriver = process\n"
        )
        agent = HostAgent(lambda: agent_conf.load([], [str(ini)]))
        pipeline = agent.pipeline
        pipeline.start()
        stack.callback(pipeline.stop)
        zone = next(node.uuid for node in pipeline.host_state.tree.nodes if "VCPU" in node.inventories)
        starts = []
        for _ in range(guests):
            consumer = str(uuid.uuid4())
            event = StartGuest(
                consumer, consumer, GuestSettings(), ("sleep", "1000000"), {zone: {"VCPU": 1}}, 0.0
            )
            starts.append(_time_action(lambda event=event: pipeline.submit(event).result()))
        for guest in agent.driver.guests():
            stack.callback(agent.driver.stop, guest, 1)
        reconciles = [
            _time_action(lambda: pipeline.submit(ReconcileGuests()).result()) for _ in range(rounds)
        ]
        return _summarise_times(guests, starts), _summarise_times(guests, reconciles)


def _time_action(action):
    clock, cpu = time.monotonic(), time.process_time()
    action()
    return (time.process_time() - cpu) * 1000, (time.monotonic() - clock) * 1000


def _summarise_times(guests, pairs):
    cpu, clock = zip(*pairs, strict=True)
    values = (statistics.median(cpu), max(cpu), statistics.median(clock), max(clock))
    return ActionTimes(guests, *(round(value, 2) for value in values))


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--guests", type=int, default=100)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="length of the measurement of each kind of sampling"
    )
    parser.add_argument(
        "--rounds", type=int, default=30, help="number of reconciles, with twice as many guests"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="sections for the agent's ini file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    args = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        parser.error("two CPUs are needed")
    samplings = SAMPLINGS if args.config is None else {args.config.name: args.config.read_text()}
    starts, reconciles = measure_reconciles(2 * args.guests, args.rounds)
    print(f"start until pinned and saved: {starts.text()}\nreconcile without changes: {reconciles.text()}")
    costs = []
    for sampling, sections in samplings.items():
        cost = measure_agent(sampling, sections, args.guests, args.seconds)
        costs.append(cost)
        print(
            f"{sampling}: {cost.guests} guests for {cost.seconds} s: {cost.cpu_percent} % of a core,"
            f" {cost.resident_mb} MB, {cost.threads} threads",
            flush=True,
        )
    print(GOALS)
    if args.json:
        report = {
            "starts": asdict(starts),
            "reconciles": asdict(reconciles),
            "running": list(map(asdict, costs)),
        }
        args.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
