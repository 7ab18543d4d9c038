"""The cost of an agent with all controllers at work: CPU time and memory beside 100 guests.

    python -m benchmarks.agent_everything [--watermarks] [--caches]
    python -m benchmarks.agent_everything --isolation [--scrape 15]

Guests are sleeping processes. Each has a cgroup with limits of memory and block I/O, a class with a CPU
class, a pool of CPUs, and counters of its cache use. Some have cache ways and a resctrl group of their own.
Folders replace the kernel's files (:mod:`benchmarks.agent_on_fakes`), because no machine of ours has all
these features. So the numbers lack the time that a real kernel takes to answer.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
import urllib.request
import uuid

from benchmarks import isolation
from benchmarks.agent_cost import AGENT, SAMPLINGS, AgentCost, WithGuests, measure_process, read_status
from tests.compute_agent.isolation.fake_kernel import FakeKernel
from tests.compute_agent.power_trees import xeon
from tests.compute_agent.resctrl import fake
from tests.compute_agent.two_caches import two_caches

OWN_WAYS = 6
"""Number of guests with cache ways, bandwidth and a resctrl group of their own."""

INI = """
[host]
root = {host}

[cgroup]
root = {cgroups}

[cpu_pool:bulk]
cpus = 1

[blockio_class:bulk]
weight = 50
read_bytes = 100M
write_bytes = 50M
write_operations = 500
devices = vd*

[cpu_class:fast]
governor = performance
min_frequency = base
disabled_c_states = C6

[cpu_class:shared]
max_frequency = base

[cpu_class:idle]
max_frequency = min

[qos_class:LS]
cpu_class = fast
memory_low = 50
memory_high = 90
"""


SHARED_CPUS = 28
"""Number of shared CPUs of a host with dedicated CPUs for each guest."""

ISOLATION = {
    "isolation, realtime, core scheduling and watermarks": SAMPLINGS["watermarks for CPU and memory"]
    + """
[qos_class:LSR]
isolation = quiet
realtime_priority = 5
core_scheduling = guest
cpu_class = fast

[qos_class:LSE]
rank = 25
isolation = alone
realtime_priority = 5
core_scheduling = guest
cpu_class = fast
"""
}
SCRAPE_SECONDS = 60.0
"""Prometheus' default for the time between two scrapes."""

CACHES = {
    "a watermark for the cache": """
[watermark:cache]
metric = llc_occupancy
throttle_up = 8M
throttle_down = 9M
mode = preview
"""
}


class FileHost(WithGuests):
    """A service, and an agent on a host made of files."""

    options = ()

    @property
    def cgroup_folder(self):
        """Return the folder of the guests' cgroups."""
        return self.folder / "host/sys/fs/cgroup/agent"

    def start_agent(self):
        """Start the agent on the files of the host, and wait for its first report."""
        command = [sys.executable, "-m", "benchmarks.agent_on_fakes", self.cgroup_folder, *self.options]
        with self.log(AGENT).open("ab") as log:
            self.processes[AGENT] = subprocess.Popen(
                [*map(str, command), "--config-file", str(self.agent_ini), "run"],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait(AGENT, "report", self._has_reported)


def make_host(root):
    """Write a host with two CPUs, an L3 cache for each, 16 GiB, a disk, frequencies and resctrl."""
    xeon(root, cpus=2)
    files = two_caches() | {
        "sys/block/vda/dev": "254:0",
        "sys/block/vda/queue/scheduler": "[bfq] none",
    }
    _write_files(root, files)
    fake.FakeResctrl.of(fake.INTEL, root / "sys/fs/resctrl")


def make_large_host(root, cpus):
    """Write a host with two packages with an L3 cache each, one NUMA node, and the usual work on its CPUs."""
    xeon(root, cpus=cpus)
    half = cpus // 2
    files = two_caches() | {
        "sys/block/vda/dev": "254:0",
        "sys/block/vda/queue/scheduler": "[bfq] none",
        "sys/devices/system/cpu/online": f"0-{cpus - 1}",
        "sys/devices/system/node/node0/cpulist": f"0-{cpus - 1}",
        "proc/self/status": f"CapEff:\t{1 << 21:016x}",
    }
    for package in range(2):
        listed = f"{package * half}-{(package + 1) * half - 1}"
        for cpu in range(package * half, (package + 1) * half):
            folder = f"sys/devices/system/cpu/cpu{cpu}"
            files |= {
                f"{folder}/topology/core_cpus_list": str(cpu),
                f"{folder}/topology/package_cpus_list": listed,
                f"{folder}/topology/core_id": str(cpu),
                f"{folder}/cache/index3/level": "3",
                f"{folder}/cache/index3/type": "Unified",
                f"{folder}/cache/index3/id": str(package),
                f"{folder}/cache/index3/size": "16384K",
                f"{folder}/cache/index3/ways_of_associativity": "16",
                f"{folder}/cache/index3/shared_cpu_list": listed,
            }
    _write_files(root, files)
    kernel = FakeKernel(root, cpus=cpus)
    kernel.cgroups.settle = lambda: None
    isolation.write_work(kernel)
    for path in kernel.managed:
        os.chmod(root / path, 0o444)
    isolation.write_interrupts(root, cpus)
    fake.FakeResctrl.of(fake.INTEL, root / "sys/fs/resctrl")


def _write_files(root, files):
    """Write files below a root, and link the files of /proc that the agent reads on this machine."""
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{content}\n")
    for name in ("stat", "meminfo", "loadavg", "pressure", "vmstat"):
        (root / "proc" / name).symlink_to(f"/proc/{name}")


def scrape_metrics(system, ended, interval):
    """Read the metrics as Prometheus does, until an event; the first time after half an interval."""
    url = f"http://127.0.0.1:{system.agent_port}/metrics"
    pause = interval / 2
    while not ended.wait(pause):
        pause = interval
        with urllib.request.urlopen(url, timeout=30) as answer:
            answer.read()


def guest_claims(system, guests):
    """Yield a consumer for each guest, and the amounts that it claims, by provider and resource class."""
    offers = system.find_offers()
    uuids = {name: [provider["uuid"] for provider in providers] for name, providers in offers.items()}
    pool = next((each["uuid"] for each in offers["VCPU"] if "POOL" in each["name"]), "")
    for number in range(guests):
        node = number % len(uuids["MEMORY_MB"])
        held = {pool: {"VCPU": 1}} if pool else {uuids["PCPU"][node]: {"PCPU": 1}}
        held.setdefault(uuids["MEMORY_MB"][node], {})["MEMORY_MB"] = 64
        if number < OWN_WAYS:
            held.setdefault(uuids["LLC"][number % 2], {}).update(LLC=1, MBA=10)
            held.setdefault(uuids["CUSTOM_RESCTRL_GROUP"][0], {})["CUSTOM_RESCTRL_GROUP"] = 1
        yield str(uuid.uuid4()), held


def measure_controllers(sections, guests, seconds, with_isolation, scrape_seconds=SCRAPE_SECONDS):
    """Return the cost of an agent with a number of guests."""
    with FileHost() as system:
        host, cgroups = system.folder / "host", system.cgroup_folder
        cpus, ini_text = SHARED_CPUS + guests + guests % 2, INI
        if with_isolation:
            system.options = ("--all-cpus",)
            make_large_host(host, cpus)
            ini_text = INI.replace("[cpu_pool:bulk]\ncpus = 1\n", "")
        else:
            make_host(host)
        cgroups.mkdir(parents=True)
        system.configure_service()
        system.manage("db", "sync")
        system.start_service(workers=1)
        sets = "cpu_dedicated_set = 0\ncpu_shared_set = 1"
        if with_isolation:
            shared = SHARED_CPUS // 2
            half = cpus // 2
            sets = (
                f"cpu_shared_set = 0-{shared - 1},{half}-{half + shared - 1}\n"
                f"cpu_dedicated_set = {shared}-{half - 1},{half + shared}-{cpus - 1}"
            )
        system.configure_agent(f"{sets}\n\n[DEFAULT]\ncpu_allocation_ratio = 1000")
        with system.agent_ini.open("a") as ini:
            ini.write(ini_text.format(host=host, cgroups=cgroups) + sections)
        system.start_agent()
        for number, (consumer, held) in enumerate(guest_claims(system, guests)):
            system.claim_amounts(consumer, held)
            settings = {"blockio_class": "bulk"}
            if with_isolation:
                settings["qos_class"] = "LSE" if number < isolation.ALONE else "LSR"
            system.guests("run", uuid=consumer, command=["sleep", "1000000"], **settings)
        shown = system.agent("status")
        if shown["pending_guests"] or shown["cache_control"] != "on":
            raise RuntimeError(f"some settings are not in force: {shown}")
        pid, ended = system.processes[AGENT].pid, threading.Event()
        if with_isolation:
            arguments = (system, ended, scrape_seconds)
            threading.Thread(target=scrape_metrics, args=arguments, daemon=True).start()
        # until the agent has finished the work that follows the starts
        time.sleep(min(seconds, 60 if with_isolation else 12))
        if with_isolation:
            shown = system.agent("status")
            print({name: shown[name] for name in ("quiet_cpus", "alone_cpus", "isolation_refusals")})
        elapsed, percent, resident = measure_process(pid, seconds)
        ended.set()
        return AgentCost(
            "", guests, round(elapsed, 1), round(percent, 2), round(resident, 1), read_status(pid, "Threads")
        )


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--guests", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--watermarks",
        action="store_true",
        help="also with watermarks for CPU and memory, each second",
    )
    parser.add_argument(
        "--caches",
        action="store_true",
        help="also with a watermark that reads cache counters",
    )
    parser.add_argument("--isolation", action="store_true", help="only guests on dedicated, quiet CPUs")
    parser.add_argument(
        "--scrape", type=float, default=SCRAPE_SECONDS, help="with --isolation: seconds between two scrapes"
    )
    args = parser.parse_args()
    samplings = SAMPLINGS if args.watermarks else dict(list(SAMPLINGS.items())[:1])
    if args.isolation:
        samplings = ISOLATION
    for name, sections in (samplings | CACHES if args.caches else samplings).items():
        cost = measure_controllers(sections, args.guests, args.seconds, args.isolation, args.scrape)
        print(
            f"all controllers, {name}: {cost.guests} guests for {cost.seconds} s: {cost.cpu_percent} % of a"
            f" core, {cost.resident_mb} MB, {cost.threads} threads"
            + (f", a scrape each {args.scrape:g} s" if args.isolation else ""),
            flush=True,
        )
    print("goals: 1 % of a core, 80 MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
