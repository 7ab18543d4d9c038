"""The cost of a round of isolation beside 100 guests: CPU time of each part of a reconcile without changes.

    python -m benchmarks.isolation                       # some minutes, most of them to build the host
    python -m benchmarks.isolation --guests 20 --rounds 5

The host is a tree of files in memory with 128 CPUs, 400 interrupts, 1300 threads of the kernel, 40 services,
and guests of libvirt. Each guest has a dedicated CPU; all guests are quiet and 40 of them alone. On a real
kernel, reads of /proc cost more: the last lines measure them on this machine, for the same number of threads.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from compute_agent.controllers.base import GuestTarget
from compute_agent.controllers.core_cookies import CoreCookieController
from compute_agent.controllers.emulator import EmulatorController, EmulatorSettings
from compute_agent.controllers.realtime import RealtimeController
from compute_agent.drivers import procfs
from compute_agent.isolation.decision import HeldCpus, IsolationDemand
from compute_agent.isolation.noise import NoiseReader
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import CpuAssignment
from compute_agent.model.guest_settings import GuestSettings
from compute_agent.model.resource import CoreScope
from compute_agent.schedules.realtime import KernelSchedules
from tests.compute_agent.fakes import FakeDriver
from tests.compute_agent.isolation.fake_kernel import IsolationHost

CPUS, SHARED = 128, 28
INTERRUPTS, MANAGED, FIXED_THREADS, THREADS, SERVICES = 400, 64, 1100, 200, 40
ALONE = 40
NO_AFFINITY = 0x04000000
RECONCILE_SECONDS, SCRAPE_SECONDS = 10.0, 15.0
GOAL_PERCENT = 1.0


class CookieTable:
    """Cookies in memory: one for each process."""

    def __init__(self, targets, driver):
        self._cookies = {}
        self._threads = {one.guest.pid: driver.thread_ids(one.guest) for one in targets}

    def read_cookie(self, tid):
        """Return the cookie of a thread."""
        return self._cookies.get(tid, 0)

    def create_cookie(self, pid):
        """Create one cookie for all threads of a process."""
        self._cookies.update(dict.fromkeys(self._threads[pid], pid))

    def clear_own_cookie(self):
        """Do nothing: the agent of the benchmark has no cookie."""


class NoNotes:
    """Notes in memory."""

    def __init__(self):
        self.kept_notes = {}

    def keep_notes(self, notes):
        self.kept_notes = dict(notes)


def write_work(kernel):
    """Write the work of a host that may run on any CPU: interrupts, threads of the kernel, services."""
    cpus = len(kernel.cpus)
    listing, kernel._list_threads = kernel._list_threads, lambda: None
    for number in range(INTERRUPTS):
        kernel.put(f"proc/irq/{number + 20}/node", str(number % 2))
        (kernel.root / f"proc/irq/{number + 20}/device{number}").mkdir()
        kernel.put(kernel.irq(number + 20), f"0-{cpus - 1}")
        kernel.put(f"proc/irq/{number + 20}/effective_affinity_list", str(number % cpus))
        if number < MANAGED:
            kernel.managed.add(kernel.irq(number + 20))
    for number in range(FIXED_THREADS + THREADS):
        kernel.add_thread(
            number + 1000, f"thread-{number}", flags=NO_AFFINITY if number < FIXED_THREADS else 0
        )
    for number in range(SERVICES):
        kernel.cgroups.add(f"system.slice/{number}.service")
    kernel.cgroups.add("system.slice")
    kernel.cgroups.add("user.slice")
    kernel.cgroups.add("machine.slice")
    kernel._list_threads = listing
    listing()


def build_host(folder, guests):
    """Return the host with its isolated guests, and the demand."""
    host = IsolationHost(folder, cpus=CPUS)
    kernel = host.kernel
    settle, kernel.cgroups.settle = kernel.cgroups.settle, lambda: None
    write_work(kernel)
    held = []
    for number in range(guests):
        cpu, scope = SHARED + number, f"machine.slice/machine-{number}.scope"
        for name in ("", "/libvirt", "/libvirt/emulator"):
            kernel.cgroups.add(scope + name)
        kernel.cgroups.add(f"{scope}/libvirt/vcpu0", str(cpu))
        cpus = frozenset({cpu})
        held.append(HeldCpus(f"g{number}", cpus, True, 0, number < ALONE, scope, (cpus,)))
    kernel.cgroups.settle = settle
    settle()
    nodes = {0: frozenset(range(0, CPUS, 2)), 1: frozenset(range(1, CPUS, 2))}
    demand = IsolationDemand(tuple(held), frozenset(range(SHARED, CPUS)), nodes)
    status = host.bring_about(demand)
    assert len(status.quiet) == guests, status
    return host, demand


def make_targets(driver, guests):
    """Return guests with four threads each and one dedicated CPU."""
    targets = []
    shared: CpuSet = frozenset(range(SHARED))
    for number in range(guests):
        guest = driver.create_guest(f"g{number}", f"g{number}", GuestSettings(qos_class="LSR"), ())
        cpu = frozenset({SHARED + number})
        driver.affinities[guest.uuid] = {guest.pid: cpu, guest.pid + 1000: cpu}
        driver.emulators[guest.uuid] = {guest.pid * 10 + each: shared for each in range(4)}
        place = CpuAssignment((cpu,), shared, tuple(cpu), given=True)
        targets.append(GuestTarget(guest, place, frozenset(range(CPUS))))
    return targets


def write_interrupts(root, cpus=CPUS):
    """Write a file /proc/interrupts of this size."""
    lines = ["      " + " ".join(f"CPU{cpu}" for cpu in range(cpus))]
    row = " ".join(["12345"] * cpus)
    # interrupts of a device have reached a few CPUs since boot
    for number in range(INTERRUPTS):
        counts = ["0"] * cpus
        counts[number % cpus] = counts[(number + 1) % cpus] = "12345"
        lines.append(f"{number + 20}: {' '.join(counts)} IR-PCI-MSIX device{number}")
    lines += [f"{name}: {row} Local interrupts" for name in ("LOC", "RES", "CAL", "TLB")]
    (root / "proc/interrupts").write_text("\n".join(lines) + "\n")
    kinds = "\n".join(f"{name}: {row}" for name in ("HI", "TIMER", "NET_TX", "NET_RX", "SCHED", "RCU"))
    (root / "proc/softirqs").write_text(f"{lines[0]}\n{kinds}\n")


def cpu_times(work, rounds):
    """Return the median and the largest CPU time of a round, in milliseconds."""
    work()
    found = []
    for _ in range(rounds):
        since = time.process_time()
        work()
        found.append((time.process_time() - since) * 1000)
    return statistics.median(found), max(found)


def read_real(count):
    """Read as many files of /proc as a round reads for threads of the kernel."""
    for _ in range(count):
        for name in ("stat", "status"):
            Path(f"/proc/self/{name}").read_bytes()


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--guests", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        host, demand = build_host(folder, args.guests)
        write_interrupts(host.kernel.root)
        driver = FakeDriver(range(CPUS))
        targets = make_targets(driver, args.guests)
        affinities = {tid: cpus for threads in driver.affinities.values() for tid, cpus in threads.items()}
        procfs.thread_affinity = affinities.get
        identities = {one.guest.pid: procfs.ProcessIdentity(one.guest.pid, 1, "b") for one in targets}
        procfs.identify_process = identities.get
        settings = EmulatorSettings(True, frozenset(range(SHARED)), demand.nodes)
        emulator = EmulatorController(driver, settings)
        schedules = KernelSchedules()
        schedules.read = lambda tid: KernelSchedules.read(schedules, 0)
        schedules.write = lambda tid, schedule: None
        realtime = RealtimeController(driver, {"LSR": 5}, NoNotes(), schedules)
        cookies = CoreCookieController(
            driver, {"LSR": CoreScope.GUEST}, NoNotes(), CookieTable(targets, driver)
        )
        parts = {
            "masks, bans and partitions": lambda: host.bring_about(demand),
            "threads of QEMU": lambda: (emulator.sync(targets, ()), *map(emulator.describe_drift, targets)),
            "realtime": lambda: realtime.sync(targets, ()),
            "core scheduling": lambda: cookies.sync(targets, ()),
        }
        reader = NoiseReader(host.kernel.root)
        held = frozenset(range(SHARED, SHARED + args.guests))
        threads = [os.getpid()] * (2 * args.guests)
        total = 0.0
        for name, work in parts.items():
            median, worst = cpu_times(work, args.rounds)
            total += median
            print(f"{name}: {median:.1f} ms a reconcile (worst {worst:.1f})", flush=True)
        noise, worst = cpu_times(lambda: reader.read_counters(held, threads), args.rounds)
        print(f"noise: {noise:.1f} ms a scrape (worst {worst:.1f})")
        real, _ = cpu_times(lambda: read_real(THREADS), args.rounds)
        percent = total / RECONCILE_SECONDS / 10 + noise / SCRAPE_SECONDS / 10
        print(f"of these, reads of {THREADS} threads in a real /proc: {real:.1f} ms a reconcile")
    print(
        f"{args.guests} guests: {percent:.2f} % of a core, with a reconcile each {RECONCILE_SECONDS:g} s and"
        f" a scrape each {SCRAPE_SECONDS:g} s; goal: {GOAL_PERCENT:g} % with all other work of the agent"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
