"""Real guests above a line, under the real daemon: touched guests, times and CPU cost.

    python -m benchmarks.watermark_guests --qemu 2 4 6     # QEMU guests of libvirtd that burn CPU
    python -m benchmarks.watermark_guests --cost 200       # CPU time of the daemon with 200 guests

The line applies to the use of guests of the lowest class (`best_effort_cpu`). It is a share of their use
without limits. Each guest works for a part of the time only, and the cgroup of all guests has priority, so
that other work of the machine matters little. The fewest possible guests are those with the most use, if they
go down to their floors and also free the margin. A round takes a second.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
import uuid
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.agent_cost import cpu_seconds
from compute_agent.agent.protocol import call_agent
from compute_agent.drivers.libvirt.domain_metadata import NAMESPACE
from tests.compute_agent.cmd.agents import AgentProcess
from tests.compute_agent.libvirtd import CGROUP_CONTROLLERS, Libvirtd, LibvirtMissing
from tests.compute_agent.servers import running

SECONDS = 180
POLL_SECONDS = 0.2
BATCH = f'<g:settings xmlns:g="{NAMESPACE}"><g:qos_class>BATCH</g:qos_class></g:settings>'
FOR_SAMPLES, COOL_DOWN, MIN_SHARE, MARGIN = 3, 5, 0.01, 0.1

IDLE_LINES = """
[watermark:cpu]
metric = cpu_usage
throttle_down = 100%
throttle_up = 50%

[watermark:memory]
metric = memory_usage
evict = 100%

[watermark:pressure]
metric = cpu_pressure
throttle_down = 100%
throttle_up = 50%
"""


@dataclass(frozen=True)
class GuestRecovery:
    """The recovery of one host. Usage and line are in cores.

    Times are in seconds since the line was set, or since the guests became quiet.
    """

    guests: int
    usage: float
    line: float
    touched: int
    fewest: int
    below_line_after: float
    restored_after: float


@dataclass(frozen=True)
class DaemonCost:
    """The daemon's CPU time in percent of a core with idle guests, with and without watermarks."""

    guests: int
    with_watermarks: float
    without: float


class DaemonBench:
    """A service, its daemon, and the ini file of the daemon."""

    def __init__(self, folder, url, driver):
        self.folder = folder
        self._url, self._driver = url, driver
        (folder / "state").mkdir()
        self.write_config()
        self.agent = AgentProcess(folder / "agent.ini")

    def write_config(self, more=""):
        (self.folder / "agent.ini").write_text(
            f"[DEFAULT]\nstate_path = {self.folder / 'state'}\n"
            "[compute]\ncpu_shared_set = 0-1\nresource_provider_name = bench\n"
            f"[placement]\nauth_type = admin_token\nendpoint = {self._url}\ntoken = admin\n"
            f"[guests]\n{self._driver}\n"
            f"[qos]\nmin_share = {100 * MIN_SHARE}\nmargin = {100 * MARGIN}\n"
            f"[qos_class:BATCH]\nrank = 0\n{more}"
        )

    def ask_agent(self, method, **params):
        return call_agent(self.folder / "state/agent.sock", method, params)

    def reload(self, more):
        """Write other watermarks, and wait until the daemon has applied them."""
        self.write_config(more)
        wait_for(lambda: bool(self.ask_agent("watermark.list")) == bool(more))

    def read_line(self):
        return next(row for row in self.ask_agent("watermark.list") if row["action"] == "throttle_down")


def wait_for(condition):
    """Wait until a condition is true; return its value."""
    deadline = time.monotonic() + SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the condition is still false after {SECONDS} s")
        time.sleep(POLL_SECONDS)
    return value


def busy_sector(millions):
    """Return a boot sector that counts down from some millions at each tick of the BIOS's timer (18.2 Hz)."""
    # sti; count: mov ecx, N; down: dec ecx; jnz down; hlt; jmp count
    count = (millions * 1_000_000).to_bytes(4, "little")
    code = b"\xfb\x66\xb9" + count + b"\x66\x49\x75\xfc\xf4\xeb\xf3"
    return code.ljust(510, b"\0") + b"\x55\xaa"


def measure_recovery(bench, libvirtd, guests, share):
    """Run ``guests`` that burn CPU, with the line at ``share`` of their use."""
    domains = {}
    for number in range(guests):
        guest = str(uuid.uuid4())
        xml = libvirtd.xml(guest, vcpus=1, metadata=BATCH, busy=True)
        (libvirtd.folder / f"{guest}.img").write_bytes(busy_sector(3 + number % 4))
        domains[guest] = libvirtd.connection.createXML(xml)
    (CGROUP_CONTROLLERS[0] / "machine/cpu.shares").write_text("20480")
    pids = {guest: libvirtd.process(domain) for guest, domain in domains.items()}
    time.sleep(15)  # until the guests have booted
    before, began = {guest: cpu_seconds(pid) for guest, pid in pids.items()}, time.monotonic()
    time.sleep(5)
    elapsed = time.monotonic() - began
    used = {guest: (cpu_seconds(pid) - before[guest]) / elapsed for guest, pid in pids.items()}
    usage = sum(used.values())
    percent = 100 * usage * share / guests
    bench.reload(
        f"[watermark:batch]\nmetric = best_effort_cpu\nthrottle_down = {percent:.1f}%\n"
        f"throttle_up = {percent / 2:.1f}%\nfor_samples = {FOR_SAMPLES}\ncool_down = {COOL_DOWN}\n"
    )
    began = time.monotonic()
    touched = set()

    def is_below():
        row = bench.read_line()
        touched.update(text.split()[0] for text in row["in_force"])
        return touched and row["usage"] is not None and row["usage"] <= row["amount"]

    wait_for(is_below)
    below_after = time.monotonic() - began
    count = len(touched)
    for domain in domains.values():
        domain.suspend()
    began = time.monotonic()
    wait_for(lambda: not bench.read_line()["in_force"])
    restored_after = time.monotonic() - began
    bench.reload("")
    libvirtd.end_guests()
    wait_for(lambda: not bench.ask_agent("guest.list"))
    gap = usage * (1 - share) * (1 + MARGIN)
    gains = sorted((cores - MIN_SHARE for cores in used.values()), reverse=True)
    needed = next((n for n in range(1, guests + 1) if sum(gains[:n]) >= gap), guests)
    return GuestRecovery(guests, usage, usage * share, count, needed, below_after, restored_after)


def measure_daemon(bench, guests, seconds=20):
    """Measure sleeping guests without cgroups. Their processes make them the most expensive kind."""
    for _ in range(guests):
        bench.ask_agent("guest.run", command=["sleep", "3600"], qos_class="BATCH")
    pid = bench.agent.process.pid
    spent = []
    for lines in (IDLE_LINES, ""):
        bench.reload(lines)
        time.sleep(3)
        before = cpu_seconds(pid)
        time.sleep(seconds)
        spent.append(100 * (cpu_seconds(pid) - before) / seconds)
    for each in bench.ask_agent("guest.list"):
        bench.ask_agent("guest.stop", guest=each["uuid"])
    return DaemonCost(guests, *spent)


def format_tables(found):
    """Return Markdown tables."""
    lines = [
        "| guests | used, cores | line, cores | touched | fewest possible | below the line after, s |"
        " restored after, s |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {one.guests} | {one.usage:.2f} | {one.line:.2f} | {one.touched} | {one.fewest} |"
            f" {one.below_line_after:.1f} | {one.restored_after:.1f} |"
            for one in found
            if isinstance(one, GuestRecovery)
        ),
        "",
        "| guests | daemon with watermarks, % of a core | without |",
        "| ---: | ---: | ---: |",
        *(
            f"| {one.guests} | {one.with_watermarks:.2f} | {one.without:.2f} |"
            for one in found
            if isinstance(one, DaemonCost)
        ),
    ]
    return "\n".join(lines)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.watermark_guests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--qemu", type=int, nargs="*", default=[], metavar="GUESTS")
    parser.add_argument(
        "--share", type=float, nargs="*", default=[0.8, 0.5], help="the line, as a share of the use"
    )
    parser.add_argument("--cost", type=int, nargs="*", default=[], metavar="GUESTS")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers to this file")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="watermark-guests-"))
    found = []
    try:
        with running("ours", folder) as url:
            if arguments.qemu:
                found.extend(_run_qemu(folder, url, arguments))
            for guests in arguments.cost:
                with process_bench(folder / f"cost-{guests}", url) as bench:
                    found.append(measure_daemon(bench, guests))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(format_tables(found))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in found], indent=1))
    return 0


@contextmanager
def process_bench(home, url):
    """Run an agent that starts its guests as processes, with its files in a new folder."""
    home.mkdir()
    bench = DaemonBench(home, url, "drivers = process")
    try:
        bench.agent.start()
        yield bench
    finally:
        bench.agent.close()


@contextmanager
def libvirt_bench(folder, url):
    """Yield an agent of QEMU guests that is not started yet, and its libvirtd."""
    try:
        libvirtd = Libvirtd()
    except LibvirtMissing as missing:
        sys.exit(str(missing))
    if not libvirtd.has_cgroups:
        libvirtd.stop()
        sys.exit("libvirt lacks the CPU controller of cgroups here, and so quotas")
    home = folder / "qemu"
    home.mkdir()
    bench = DaemonBench(home, url, f"drivers = libvirt\n[libvirt]\nuri = {libvirtd.uri}")
    try:
        libvirtd.start()
        yield bench, libvirtd
    finally:
        bench.agent.close()
        libvirtd.stop()


def _run_qemu(folder, url, arguments):
    with libvirt_bench(folder, url) as (bench, libvirtd):
        bench.agent.start()
        for guests in arguments.qemu:
            for share in arguments.share:
                print(f"{guests} guests, line at {share} ({os.getloadavg()[0]:.0f} load)", file=sys.stderr)
                yield (one := measure_recovery(bench, libvirtd, guests, share))
                print(one, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
