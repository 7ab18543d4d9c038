"""The cost of each driver: CPU time and memory of an agent beside 100 guests of one kind, and of all kinds.

    python -m benchmarks.agent_kinds                     # each kind for a minute, then 20 guests of each
    python -m benchmarks.agent_kinds --kinds podman systemd --guests 10 --seconds 5

Domains are paused QEMU processes of a libvirtd. A separate process runs the tests' fakes of systemd, Podman
and Docker, with real processes as guests. Each guest has an allocation of a CPU and 64 MiB. The agent
evaluates watermarks for CPU and memory each second. Folders replace the kernel's files, as in
:mod:`benchmarks.agent_everything`. The program also measures the time of five million additions in a loop. It
    scales the CPU time to a machine that takes 0.2 seconds for them.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass

from benchmarks.agent_cost import AGENT, SAMPLINGS, measure_process
from benchmarks.agent_everything import FileHost, make_host
from benchmarks.machine_speed import addition_seconds
from tests.compute_agent.libvirtd import Libvirtd

KINDS = ("libvirt", "systemd", "podman", "docker", "process")
FAKES = ("systemd", "podman", "docker")

SCALE_SECONDS = 0.2

INI = """
[host]
root = {host}

[cgroup]
root = {cgroups}

[systemd]
bus_socket = {folder}/systemd/bus

[podman]
socket = {folder}/podman/engine.sock

[docker]
socket = {folder}/docker/engine.sock
"""


@dataclass
class KindCost:
    """The cost of a running agent.

    ``exchanges`` is the number of requests to the fakes in a minute. ``additions`` is the median CPU time of
    five million additions during the measurement.
    """

    kind: str
    guests: int
    cpu_percent: float
    resident_mb: float
    exchanges: float | None
    additions: float

    @property
    def scaled_percent(self) -> float:
        """Return the CPU time on a machine with 0.2 seconds for the additions."""
        return self.cpu_percent * SCALE_SECONDS / self.additions

    def text(self) -> str:
        """Return a row of the table."""
        exchanges = "" if self.exchanges is None else f"{self.exchanges:.0f}"
        return (
            f"| {self.kind} | {self.guests} | {self.cpu_percent:.2f} % | {self.additions:.2f} s"
            f" | {self.scaled_percent:.2f} % | {self.resident_mb:.0f} MB | {exchanges} |"
        )


class MixedHost(FileHost):
    """A service, an agent on files, and the programs that run guests."""

    def start_fakes(self, uuids):
        """Start the fakes with guests, given as uuids by kind."""
        words = [f"{kind}={','.join(uuids[kind])}" for kind in FAKES if uuids.get(kind)]
        if words:
            command = [sys.executable, "-m", "benchmarks.kind_fakes", self.folder, *words]
            self.processes["fakes"] = subprocess.Popen(
                list(map(str, command)), env=self._environment, start_new_session=True
            )
            self.wait("fakes", "start guests", (self.folder / "calls").exists, 300)

    def count_calls(self):
        """Return the number of requests to the fakes so far, or None without fakes."""
        if "fakes" not in self.processes:
            return None
        return int((self.folder / "calls").read_text())

    def claim_guests(self, consumers):
        """Claim a CPU and memory for each guest."""
        offers = self.find_offers()
        for consumer in consumers:
            held = {}
            for name, amount in (("VCPU", 1), ("MEMORY_MB", 64)):
                held.setdefault(offers[name][0]["uuid"], {})[name] = amount
            self.claim_amounts(consumer, held)


class SpeedProbe:
    """Measures the speed of this machine during another measurement: other work also slows down the agent."""

    def __init__(self):
        self._seconds, self._ended = [], threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take_median(self):
        """Stop, and return the median CPU time of five million additions."""
        self._ended.set()
        self._thread.join()
        return statistics.median(self._seconds)

    def _run(self):
        while True:
            self._seconds.append(addition_seconds())
            if self._ended.wait(5):
                return


class FakeProcStat:
    """A file in place of /proc/stat, for a host that is always idle or always busy."""

    def __init__(self, path, busy):
        self._path, self._busy = path, busy
        self._ended = threading.Event()
        self._path.unlink()
        self._write(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        """Stop writing the file."""
        self._ended.set()
        self._thread.join()

    def _run(self):
        since = time.monotonic()
        while not self._ended.wait(0.2):
            self._write(round((time.monotonic() - since) * 100))

    def _write(self, ticks):
        user, idle = (ticks, 0) if self._busy else (0, ticks)
        rows = [("cpu", 2), ("cpu0", 1), ("cpu1", 1)]
        text = "".join(f"{name} {user * many} 0 0 {idle * many} 0 0 0 0 0 0\n" for name, many in rows)
        new = self._path.with_name("stat.new")
        new.write_text(f"{text}intr 0\n")
        new.rename(self._path)


def measure_kinds(name, kinds, guests, seconds, settle=75.0, sections="", busy=False):
    """Return the cost of an agent with a number of guests of each kind.

    :param busy: whether all CPUs of the host are busy.
    """
    uuids = {kind: [str(uuid.uuid4()) for _ in range(guests)] for kind in kinds}
    consumers = [one for kind in kinds for one in uuids[kind]]
    with contextlib.ExitStack() as stack:
        system = stack.enter_context(MixedHost())
        host, cgroups = system.folder / "host", system.cgroup_folder
        make_host(host)
        stack.callback(FakeProcStat(host / "proc/stat", busy).stop)
        cgroups.mkdir(parents=True)
        (cgroups.parent / "cgroup.controllers").write_text("cpuset cpu io memory")
        system.options = ("--peers", system.folder)
        system.configure_service()
        system.manage("db", "sync")
        system.start_service(workers=1)
        system.configure_agent(
            "cpu_dedicated_set = 0\ncpu_shared_set = 1\n\n[DEFAULT]\ncpu_allocation_ratio = 1000"
        )
        ini = system.agent_ini.read_text().replace("driver = process", f"drivers = {', '.join(kinds)}")
        system.start_fakes(uuids)
        if "libvirt" in kinds:
            libvirtd = Libvirtd()
            stack.callback(libvirtd.stop)
            libvirtd.start()
            ini += f"\n[libvirt]\nuri = {libvirtd.uri}\n"
            for one in uuids["libvirt"]:
                # a virtual CPU without a boot medium would not be idle
                libvirtd.connection.createXML(
                    libvirtd.xml(one, vcpus=1), libvirtd.libvirt.VIR_DOMAIN_START_PAUSED
                )
        ini += INI.format(host=host, cgroups=cgroups, folder=system.folder) + sections
        system.agent_ini.write_text(ini)
        system.start_agent()
        system.claim_guests(consumers)
        for one in uuids.get("process", ()):
            system.guests("run", uuid=one, command=["sleep", "1000000"])
        _wait_for_guests(system, set(consumers), 120)
        # until the agent has finished its starts: the next report reads the owners of new allocations
        time.sleep(settle)
        pid, calls = system.processes[AGENT].pid, system.count_calls()
        probe = SpeedProbe()
        elapsed, percent, resident = measure_process(pid, seconds)
        exchanges = None if calls is None else (system.count_calls() - calls) * 60 / elapsed
        return KindCost(
            name,
            len(consumers),
            round(percent, 2),
            round(resident, 1),
            exchanges,
            probe.take_median(),
        )


def _wait_for_guests(system, consumers, seconds):
    """Wait until the agent has placed all guests.

    :raises TimeoutError: some guests are missing after these seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        rows = {row["uuid"]: row for row in system.guests("list")}
        missing = [one for one in consumers if rows.get(one, {}).get("kind") != "shared"]
        pending = system.agent("status")["pending_guests"]
        if not missing and not pending:
            return
        if time.monotonic() > deadline:
            shown = [rows.get(one) for one in missing[:3]]
            raise TimeoutError(f"{len(missing)} guests are missing, such as {shown}; pending: {pending}")
        time.sleep(1)


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS, "all"], default=[*KINDS, "all"])
    parser.add_argument("--guests", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--plain", action="store_true", help="measure without watermarks")
    parser.add_argument(
        "--busy",
        action="store_true",
        help="a host above half of its watermarks, so that these measure guests",
    )
    args = parser.parse_args()
    sections = "" if args.plain else SAMPLINGS["watermarks for CPU and memory"]
    print(
        "| guests | number | CPU of a core | five million additions | scaled | memory | exchanges a minute |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in args.kinds:
        kinds = KINDS if name == "all" else (name,)
        cost = measure_kinds(
            name, kinds, args.guests // len(kinds), args.seconds, sections=sections, busy=args.busy
        )
        print(cost.text(), flush=True)
    print(
        f"load {os.getloadavg()[0]:.0f}; goal: 1 % of a core, scaled to {SCALE_SECONDS} s for the additions"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
