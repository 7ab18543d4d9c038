"""What an agent costs that does everything: CPU time and memory beside 100 guests, all controllers at work.

    python -m benchmarks.agent_everything                # a minute, after the guests have started
    python -m benchmarks.agent_everything --guests 10 --seconds 5
    python -m benchmarks.agent_everything --watermarks   # and with watermarks for CPU and memory, each second
    python -m benchmarks.agent_everything --caches       # and with one that has counters read each second

Guests are processes that sleep, each in a group with limits of memory and block I/O, of a class with a CPU
class, in a pool of CPUs, and counted in the cache; some have ways and a group of their own. The kernel's part
is played by folders (:mod:`benchmarks.agent_on_fakes`), as no machine of ours has all of that: the time that
a real kernel takes to answer is not in the numbers.
"""

import argparse
import subprocess
import sys
import time
import uuid

from benchmarks.agent_cost import AGENT, SAMPLINGS, Cost, WithGuests, cpu_seconds, status
from tests.compute_agent.power_trees import xeon
from tests.compute_agent.resctrl import fake
from tests.compute_agent.two_caches import two_caches

OWN_WAYS = 6
"""Guests with ways, bandwidth and a group of their own."""

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


CACHES = {
    "a watermark for the cache": """
[watermark:cache]
metric = llc_occupancy
throttle_up = 8M
throttle_down = 9M
mode = preview
"""
}


class Host(WithGuests):
    """A service, and an agent on files."""

    def start_agent(self):
        """As the installed one."""
        command = [sys.executable, "-m", "benchmarks.agent_on_fakes", self.folder / "cgroups"]
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
    """Two CPUs, each with an L3 cache; 16 GiB; a disk; frequencies; resctrl."""
    xeon(root, cpus=2)
    files = two_caches() | {
        "sys/block/vda/dev": "254:0",
        "sys/block/vda/queue/scheduler": "[bfq] none",
    }
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{content}\n")
    for name in ("stat", "meminfo", "loadavg", "pressure", "vmstat"):
        (root / "proc" / name).symlink_to(f"/proc/{name}")
    fake.FakeResctrl.of(fake.INTEL, root / "sys/fs/resctrl")


def claims(system, guests):
    """What each guest holds, by provider."""
    has = {}
    for provider in system.providers():
        path = f"/resource_providers/{provider['uuid']}/inventories"
        for name in system.call("GET", path)["inventories"]:
            has.setdefault(name, []).append((provider["name"], provider["uuid"]))
    pool = next(found for name, found in has["VCPU"] if "POOL" in name)
    (_, memory), *_ = has["MEMORY_MB"]
    for number in range(guests):
        held = {pool: {"VCPU": 1}}
        held.setdefault(memory, {})["MEMORY_MB"] = 64
        if number < OWN_WAYS:
            cache = has["LLC"][number % 2][1]
            held.setdefault(cache, {}).update(LLC=1, MBA=10)
            held.setdefault(has["CUSTOM_RESCTRL_GROUP"][0][1], {})["CUSTOM_RESCTRL_GROUP"] = 1
        yield str(uuid.uuid4()), held


def running(sections, guests, seconds):
    """The cost of an agent with so many guests."""
    with Host() as system:
        host, cgroups = system.folder / "host", system.folder / "cgroups"
        make_host(host)
        cgroups.mkdir()
        system.configure_service()
        system.manage("db", "sync")
        system.start_service(workers=1)
        system.configure_agent(
            "cpu_dedicated_set = 0\ncpu_shared_set = 1\n\n[DEFAULT]\ncpu_allocation_ratio = 1000"
        )
        with system.agent_ini.open("a") as ini:
            ini.write(INI.format(host=host, cgroups=cgroups) + sections)
        system.start_agent()
        for consumer, held in claims(system, guests):
            body = {
                "allocations": {one: {"resources": amounts} for one, amounts in held.items()},
                "project_id": "p",
                "user_id": "u",
                "consumer_generation": None,
                "consumer_type": "INSTANCE",
            }
            system.call("PUT", f"/allocations/{consumer}", body=body)
            system.guests("run", uuid=consumer, command=["sleep", "1000000"], blockio_class="bulk")
        shown = system.agent("status")
        if shown["pending_guests"] or shown["cache_control"] != "on":
            raise RuntimeError(f"not all is in force: {shown}")
        pid = system.processes[AGENT].pid
        time.sleep(min(seconds, 12))  # what the starts left to do is done
        used, since = cpu_seconds(pid), time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - since
        percent = (cpu_seconds(pid) - used) / elapsed * 100
        resident = status(pid, "VmRSS") / 1024
        return Cost(
            "", guests, round(elapsed, 1), round(percent, 2), round(resident, 1), status(pid, "Threads")
        )


def main() -> int:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--guests", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--watermarks", action="store_true", help="also with watermarks for CPU and memory")
    parser.add_argument("--caches", action="store_true", help="also with a watermark for the cache")
    args = parser.parse_args()
    samplings = SAMPLINGS if args.watermarks else dict(list(SAMPLINGS.items())[:1])
    for name, sections in (samplings | CACHES if args.caches else samplings).items():
        cost = running(sections, args.guests, args.seconds)
        print(
            f"all controllers, {name}: {cost.guests} guests for {cost.seconds} s: {cost.cpu_percent} % of a"
            f" core, {cost.resident_mb} MB, {cost.threads} threads",
            flush=True,
        )
    print("goals: 1 % of a core, 80 MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
