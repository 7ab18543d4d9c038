"""Real guests over a line, under the real daemon: how many it touches, how long it takes, and what it costs.

    python -m benchmarks.watermark_guests --qemu 2 4 6     # QEMU guests of libvirtd that burn CPU
    python -m benchmarks.watermark_guests --cost 200       # CPU time of the daemon with so many guests

The line is on what guests of the lowest class use (`best_effort_cpu`), at a part of what they use when nobody
holds them back. So that whatever else runs on the machine matters little, each works for a part of the time
only, and the group of all guests comes first. The fewest guests possible are those that use most, if they
went down to their floors and freed the margin as well. A round takes a second.
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
    """One host. Usage and line are in cores, times in seconds from the moment the line was there, or the
    guests went quiet.
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
    """Percent of a core that the daemon takes with so many idle guests, with and without watermarks."""

    guests: int
    with_watermarks: float
    without: float


class DaemonBench:
    """A service, a daemon on it, and the ini file between them."""

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
        """Have the daemon take other lines up; returns when it did."""
        self.write_config(more)
        wait_for(lambda: bool(self.ask_agent("watermark.list")) == bool(more))

    def read_line(self):
        return next(row for row in self.ask_agent("watermark.list") if row["action"] == "throttle_down")


def wait_for(condition):
    """Returns what the condition does when it holds."""
    deadline = time.monotonic() + SECONDS
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError("it did not happen")
        time.sleep(POLL_SECONDS)
    return value


def busy_sector(millions):
    """A boot sector that counts down from so many millions at each tick of the BIOS's timer (18.2 Hz)."""
    # sti; count: mov ecx, N; down: dec ecx; jnz down; hlt; jmp count
    count = (millions * 1_000_000).to_bytes(4, "little")
    code = b"\xfb\x66\xb9" + count + b"\x66\x49\x75\xfc\xf4\xeb\xf3"
    return code.ljust(510, b"\0") + b"\x55\xaa"


def measure_recovery(bench, libvirtd, guests, share):
    """``guests`` that burn CPU; the line is at ``share`` of what they use."""
    domains = {}
    for number in range(guests):
        guest = str(uuid.uuid4())
        xml = libvirtd.xml(guest, vcpus=1, metadata=BATCH, busy=True)
        (libvirtd.folder / f"{guest}.img").write_bytes(busy_sector(3 + number % 4))
        domains[guest] = libvirtd.connection.createXML(xml)
    (CGROUP_CONTROLLERS[0] / "machine/cpu.shares").write_text("20480")
    pids = {guest: libvirtd.process(domain) for guest, domain in domains.items()}
    time.sleep(15)  # they boot
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
    """Sleeping guests without cgroups, which are measured by their processes: the dearest kind."""
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
    """Markdown."""
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
    parser.add_argument("--share", type=float, nargs="*", default=[0.8, 0.5], help="line, as part of the use")
    parser.add_argument("--cost", type=int, nargs="*", default=[], metavar="GUESTS")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all numbers there")
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
    """Run an agent whose guests are processes, with its files in a new folder."""
    home.mkdir()
    bench = DaemonBench(home, url, "drivers = process")
    try:
        bench.agent.start()
        yield bench
    finally:
        bench.agent.close()


@contextmanager
def libvirt_bench(folder, url):
    """An agent, not started yet, of QEMU guests, and the libvirtd that it is going to ask."""
    try:
        libvirtd = Libvirtd()
    except LibvirtMissing as missing:
        sys.exit(str(missing))
    if not libvirtd.has_cgroups:
        libvirtd.stop()
        sys.exit("libvirt has no CPU controller of cgroups here, and so no quotas")
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
