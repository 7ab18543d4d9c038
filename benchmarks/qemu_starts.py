"""Starts and stops real QEMU guests under an agent that is killed repeatedly, and checks each pin.

    python -m benchmarks.qemu_starts                          # 200 starts, 50 kills: some ten minutes
    python -m benchmarks.qemu_starts --starts 10 --kills 4

Each guest claims a dedicated CPU and starts. The program checks it in /proc, stops it and releases its claim.
Another guest on a shared CPU runs all the time. Half of the kills (SIGKILL) hit the agent while it learns of
a start, others while the guest runs. The next agent must find the guest in its place. Times are from
libvirt's event of the start to the placement of the guest's last thread in /proc. Another client of libvirtd
receives this event. Two CPUs and the installed distribution are needed.
"""

import argparse
import json
import os
import random
import statistics
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.http import CLAIM_OWNER
from compute_agent.drivers.libvirt.connection import LibvirtConnection
from tests.compute_agent.libvirtd import Libvirtd, LibvirtMissing, thread_cpus
from tests.demo.system import System

SECONDS = 60
POLL_SECONDS = 0.0005
AGENT = "compute-agent"


@dataclass
class StartReport:
    """Counts, and milliseconds from start event to pinned for starts without a kill."""

    starts: int = 0
    kills_while_starting: int = 0
    kills_while_running: int = 0
    moved: int = 0
    times: list[float] = field(default_factory=list)

    def text(self) -> str:
        """Return the report in words."""
        return (
            f"{self.starts} guests started and stopped, {self.moved} moved;"
            f" the agent was killed {self.kills_while_starting} times in a start and"
            f" {self.kills_while_running} times beside a running guest\n"
            f"from start event to pinned ({len(self.times)} starts): median"
            f" {statistics.median(self.times):.1f} ms, worst {max(self.times):.1f} ms"
        )


class StartListener:
    """Receives events of starts as another client of libvirtd."""

    def __init__(self, uri):
        self._heard = {}
        self._changed = threading.Condition()
        self._connection = LibvirtConnection(uri, self._note_start)
        self._connection.open()

    def _note_start(self, guest_uuid):
        with self._changed:
            self._heard.setdefault(guest_uuid, time.monotonic())
            self._changed.notify_all()

    def wait(self, guest_uuid):
        """Wait for the start of a guest; return its time (monotonic seconds)."""
        with self._changed:
            if not self._changed.wait_for(lambda: guest_uuid in self._heard, SECONDS):
                raise TimeoutError(f"libvirtd has sent no event of the start of {guest_uuid}")
            return self._heard[guest_uuid]

    def close(self):
        self._connection.close()


class KilledRun:
    """One run on a libvirtd, a service and an agent."""

    def __init__(self, libvirtd, system):
        self.report = StartReport()
        self._libvirtd = libvirtd
        self._system = system
        self._starts = StartListener(libvirtd.uri)
        self._watcher = ThreadPoolExecutor(1)
        self._dedicated, self._shared = (str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:2])

    def begin_run(self):
        """Start service and agent, and the guest that stays."""
        system = self._system
        system.configure_service()
        system.manage("db", "sync")
        system.start_service()
        system.configure_agent(
            f"cpu_dedicated_set = {self._dedicated}\ncpu_shared_set = {self._shared}\n\n"
            f"[guests]\ndriver = libvirt\n\n[libvirt]\nuri = {self._libvirtd.uri}"
        )
        system.start_agent()
        inventories = (
            (it["uuid"], f"/resource_providers/{it['uuid']}/inventories") for it in system.providers()
        )
        (self._zone,) = [
            zone for zone, path in inventories if "PCPU" in system.call("GET", path)["inventories"]
        ]
        self._resident = self._start_guest(str(uuid.uuid4()), "VCPU")
        self._wait_until(self._resident, self._shared)

    def run_guest(self, kill):
        """Run one guest from claim to release; ``kill`` is None, "starting" or "running"."""
        guest_uuid = str(uuid.uuid4())
        watching = self._watcher.submit(self._watch_start, guest_uuid, kill)
        domain = self._start_guest(guest_uuid, "PCPU")
        watching.result()
        pid = self._libvirtd.process(domain)
        if kill == "starting":
            self._system.start_agent()
            self._wait_until(domain, self._dedicated)
        elif kill == "running":
            self._system.kill(AGENT)
            self._check_pins(domain, self._dedicated)
            self._system.start_agent()
        self._check_pins(domain, self._dedicated)
        self._check_pins(self._resident, self._shared)
        if self._libvirtd.process(domain) != pid:
            raise RuntimeError(f"guest {guest_uuid} was started twice")
        domain.destroy()
        self._system.call("DELETE", f"/allocations/{guest_uuid}")
        self.report.starts += 1
        self.report.kills_while_starting += kill == "starting"
        self.report.kills_while_running += kill == "running"

    def close(self):
        """Stop receiving events."""
        self._starts.close()
        self._watcher.shutdown()

    def _start_guest(self, guest_uuid, resource_class):
        body = {
            "allocations": {self._zone: {"resources": {resource_class: 1}}},
            **CLAIM_OWNER,
        }
        self._system.call("PUT", f"/allocations/{guest_uuid}", body=body)
        return self._libvirtd.run(guest_uuid, vcpus=1)

    def _watch_start(self, guest_uuid, kill):
        """Measure the time of a start, or kill the agent a moment after its notice of the start."""
        started = self._starts.wait(guest_uuid)
        if kill == "starting":
            time.sleep(random.uniform(0, 0.03))
            self._system.kill(AGENT)
            return
        domain = self._libvirtd.connection.lookupByUUIDString(guest_uuid)
        pinned = self._wait_until(domain, self._dedicated)
        self.report.times.append((pinned - started) * 1000)

    def _wait_until(self, domain, cpu):
        """Wait until all threads are in their places; return the time."""
        pid, deadline = self._libvirtd.process(domain), time.monotonic() + SECONDS
        while not self._is_placed(pid, cpu):
            if time.monotonic() > deadline:
                raise TimeoutError(f"guest {domain.UUIDString()} is not pinned: {thread_cpus(pid)}")
            time.sleep(POLL_SECONDS)
        return time.monotonic()

    def _check_pins(self, domain, cpu):
        if not self._is_placed(self._libvirtd.process(domain), cpu):
            self.report.moved += 1

    def _is_placed(self, pid, cpu):
        """Return whether the guest CPU is on ``cpu`` alone, and all other threads on the shared CPU."""
        names = thread_cpus(pid)
        return names.pop("CPU 0/TCG", None) == {cpu} and set().union(*names.values()) == {self._shared}


def kills_of(starts, kills):
    """Yield the kind of kill in each start, or None. Kills are spread evenly, and the kinds alternate."""
    kinds = ("running", "starting")
    done = 0
    for number in range(1, starts + 1):
        due = number * kills // starts > done
        yield kinds[done % 2] if due else None
        done += due


def main() -> int:
    """Measure and print; return 0 if each guest was always in its place."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    args = parser.parse_args()
    if not 0 <= args.kills < args.starts:
        parser.error("--starts must be larger than --kills")
    try:
        libvirtd = Libvirtd()
    except LibvirtMissing as missing:
        parser.error(str(missing))
    with System() as system:
        try:
            libvirtd.start()
            run = KilledRun(libvirtd, system)
            run.begin_run()
            for number, kill in enumerate(kills_of(args.starts, args.kills), 1):
                run.run_guest(kill)
                if number % 10 == 0:
                    print(f"{number} of {args.starts}", file=sys.stderr, flush=True)
            run.close()
        finally:
            libvirtd.stop()
    print(run.report.text())
    if args.json:
        args.json.write_text(json.dumps(asdict(run.report), indent=1))
    return int(run.report.moved > 0)


if __name__ == "__main__":
    sys.exit(main())
