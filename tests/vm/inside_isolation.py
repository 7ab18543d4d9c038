"""A pinned busy loop at each level of isolation, beside irqbalance and load of processes and interrupts.

Then the agent is killed at writes. Runs in the virtual machine only: `test_isolation.py` starts it there. The
guest has the control groups of a domain of libvirt: its busy thread is in the threaded group ``vcpu0``, its
other thread in ``emulator``.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compute_agent.host import kernel_files
from compute_agent.isolation.decision import HeldCpus, IsolationDemand
from compute_agent.isolation.facts import MaskReader
from compute_agent.isolation.originals import OriginalsFile
from compute_agent.isolation.shell import HostIsolator
from compute_agent.model.cpuset import parse
from tests.waits import wait_for

CGROUPS = Path("/sys/fs/cgroup")
SCOPE = CGROUPS / "machine.slice/machine-qemu-1.scope"
TABLE = Path("/mnt/share/isolation.json")
SECONDS = float(os.environ["ISOLATION_SECONDS"])
CPU = 2
DEDICATED = frozenset({2, 3})
NO_AFFINITY = 0x04000000
"""PF_NO_SETAFFINITY of the kernel."""
MODERN = (CGROUPS / "cpuset.cpus.isolated").exists()

# The busy thread notes its longest gap: what runs in between are interrupts and other tasks.
GUEST = f"""
import os, sys, threading, time
def spin():
    os.sched_setaffinity(0, {{{CPU}}})
    print(threading.get_native_id(), flush=True)
    last, longest, until = time.perf_counter_ns(), 0, None
    while True:
        now = time.perf_counter_ns()
        longest = max(longest, now - last)
        last = now
        if flag:
            flag.clear()
            print(longest, flush=True)
            longest, last = 0, time.perf_counter_ns()
flag = []
threading.Thread(target=spin, daemon=True).start()
for line in sys.stdin:
    flag.append(1)
"""
NOISE = "while True: pass"
# Each read of the shared folder, and each write to the disk, ends with an interrupt.
READER = """
import os
while True:
    with open("/mnt/share/isolation.noise", "rb") as file:
        file.read()
    with open("/dev/vda", "r+b", buffering=0) as disk:
        disk.write(bytes(65536)); os.fsync(disk.fileno())
"""


# Each packet is answered, as nothing listens on the port.
SENDER = """
import contextlib, socket, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    while True:
        with contextlib.suppress(OSError):
            sender.sendto(bytes(1000), ("10.0.2.2", 9))
        time.sleep(0.002)
"""
BALANCER = "/usr/sbin/irqbalance"


class KilledError(BaseException):
    """The agent ends here."""


def run(*command, **options):
    return subprocess.Popen([sys.executable, "-c", *command], text=True, **options)


def enable(folder, *names):
    for name in names:
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{name}")


class Domain:
    """A guest with one CPU, as libvirt and QEMU make it."""

    def __init__(self):
        for folder in (CGROUPS, SCOPE.parent, SCOPE):
            folder.mkdir(parents=True, exist_ok=True)
            enable(folder, "cpuset", "cpu")
        base = SCOPE / "libvirt"
        base.mkdir()
        for name in ("emulator", "vcpu0"):
            (base / name).mkdir()
            (base / name / "cgroup.type").write_text("threaded")
        enable(base, "cpuset")
        (base / "emulator/cpuset.cpus").write_text("0-1")
        (base / "vcpu0/cpuset.cpus").write_text(str(CPU))
        self.process = run(GUEST, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.thread = int(self.process.stdout.readline())
        (base / "cgroup.procs").write_text(str(self.process.pid))
        # libvirt also sets the group first, and then the affinity.
        (base / "emulator/cgroup.threads").write_text(str(self.process.pid))
        (base / "vcpu0/cgroup.threads").write_text(str(self.thread))
        os.sched_setaffinity(self.thread, {CPU})

    def gap(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def switches(self):
        status = Path(f"/proc/{self.process.pid}/task/{self.thread}/status").read_text()
        return int(status.partition("nonvoluntary_ctxt_switches:")[2].split()[0])


def interrupts():
    """Interrupts on the CPU by name, but for those of the CPU itself."""
    found = {}
    lines = Path("/proc/interrupts").read_text().splitlines()
    column = lines[0].split().index(f"CPU{CPU}")
    for line in lines[1:]:
        name, _, rest = line.partition(":")
        if name.strip().isdigit():
            found[f"{name.strip()} {rest.split()[-1]}"] = int(rest.split()[column])
    return found


def without_interrupts(texts):
    return {path: text for path, text in texts.items() if not path.startswith("/proc/irq/")}


def kernel_texts():
    """All masks, byte for byte, and the affinity of each thread of the kernel."""
    found = {}
    patterns = (
        "proc/irq/*/smp_affinity",
        "proc/irq/default_smp_affinity",
        "proc/sys/kernel/watchdog_cpumask",
    )
    patterns += ("sys/devices/virtual/workqueue/**/cpumask", "sys/class/net/*/queues/*/?ps_cpus")
    patterns += ("sys/fs/cgroup/**/cpuset.cpus", "sys/fs/cgroup/**/cpuset.cpus.partition")
    patterns += ("sys/fs/cgroup/**/cpuset.cpus.exclusive",)
    for pattern in patterns:
        for path in Path("/").glob(pattern):
            text = (kernel_files.read_optional(str(path)) or "").strip()
            # The kernel has no way back from CPUs to none, and all CPUs are the same.
            found[str(path)] = "" if path.name == "cpuset.cpus" and text == "0-3" else text
    for name in Path("/proc/2/task/2/children").read_text().split():
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{name}/status").read_text()
            flags = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[6])
            # The kernel places workers and their rescuers; threads of interrupts follow these when they run.
            if not flags & NO_AFFINITY and not status.split()[1].startswith("irq/"):
                found[f"thread {status.split()[1]}"] = status.partition("Cpus_allowed:")[2].split()[0]
    return found


def isolator(folder):
    return HostIsolator(MaskReader(Path("/")), OriginalsFile(folder / "isolation.json"))


def demand(domain, level):
    if not level:
        return IsolationDemand((), DEDICATED)
    cpus = frozenset({CPU})
    guest = HeldCpus("g", cpus, level != "shared", domain.process.pid, level == "alone", "", (cpus,))
    return IsolationDemand((guest,), DEDICATED, {0: frozenset(range(4))})


@pytest.fixture(scope="module")
def domain():
    """The guest, and load: busy processes in two slices, and interrupts that all go to the guest's CPU."""
    domain = Domain()
    started = [domain.process]
    Path("/mnt/share/isolation.noise").write_bytes(bytes(1 << 18))
    (CGROUPS / "system.slice").mkdir(exist_ok=True)
    # As with systemd, no process of the host is in the root of the groups.
    for pid in (CGROUPS / "cgroup.procs").read_text().split():
        if os.path.exists(f"/proc/{pid}/exe"):
            (CGROUPS / "system.slice/cgroup.procs").write_text(pid)
    load = (("system.slice", NOISE), ("user.slice", NOISE), ("system.slice", READER), ("user.slice", SENDER))
    for name, code in load:
        for _ in range(2):
            (CGROUPS / name).mkdir(exist_ok=True)
            process = run(code)
            (CGROUPS / name / "cgroup.procs").write_text(str(process.pid))
            started.append(process)
    for file in Path("/proc/irq").glob("*/smp_affinity_list"):
        with contextlib.suppress(OSError):
            file.write_text(str(CPU))
    yield domain
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def balancer(domain):
    """Runs irqbalance, where the machine has it."""
    if not os.path.exists(BALANCER):
        yield None
        return
    os.makedirs("/run/irqbalance", exist_ok=True)
    process = subprocess.Popen([BALANCER, "--foreground"], stdout=subprocess.DEVNULL)
    (CGROUPS / "system.slice/cgroup.procs").write_text(str(process.pid))
    try:
        wait_for(lambda: list(Path("/run/irqbalance").glob("*.sock")))
        yield process
    finally:
        process.kill()
        process.wait()


def host_tasks(domain):
    """Threads of processes of the host that may run on the CPU."""
    kernel = set(Path("/proc/2/task/2/children").read_text().split())
    found = []
    for folder in Path("/proc").glob("[0-9]*/task/*"):
        if folder.parts[2] not in {*kernel, "2", str(domain.process.pid)}:
            with contextlib.suppress(OSError):
                if CPU in os.sched_getaffinity(int(folder.name)):
                    found.append((folder / "comm").read_text().strip())
    return found


def kernel_runs():
    """The number of runs of each kernel thread that is bound to the CPU."""
    found = {}
    for name in Path("/proc/2/task/2/children").read_text().split():
        with contextlib.suppress(OSError):
            if os.sched_getaffinity(int(name)) == {CPU}:
                found[name] = int(Path(f"/proc/{name}/schedstat").read_text().split()[2])
    return found


def test_each_level_takes_away_more(domain, balancer, tmp_path):
    before = without_interrupts(kernel_texts())
    agent, table = isolator(tmp_path), {}
    for level in ("shared", "quiet", "alone"):
        status = agent.bring_about(demand(domain, level))
        domain.gap()
        time.sleep(1)
        domain.gap()
        first, switches, runs = interrupts(), domain.switches(), kernel_runs()
        tasks = set()
        for _ in range(10):
            time.sleep(SECONDS / 10)
            # Each reconcile of the agent does the same.
            status = agent.bring_about(demand(domain, level))
            tasks.update(host_tasks(domain))
        gap = domain.gap()
        after, ran = interrupts(), kernel_runs()
        rates = {name: count - first.get(name, 0) for name, count in after.items()}
        table[level] = {
            "kernel": os.uname().release,
            "seconds": SECONDS,
            "interrupts": {name: count for name, count in rates.items() if count},
            "involuntary": domain.switches() - switches,
            # Workers that ended meanwhile have taken their counts with them.
            "kernel_runs": sum(ran.values()) - sum(runs.values()) if runs.keys() <= ran.keys() else None,
            "host_tasks": sorted(tasks),
            "irqbalance": balancer is not None and (list(status.balancers) or "bans"),
            "gap_us": gap // 1000,
            "stuck": [f"{one.mask.in_words}: {one.reason}" for one in status.stuck],
            "refused": status.refused,
            "partition": (SCOPE / "libvirt/vcpu0/cpuset.cpus.partition").read_text().strip(),
        }
        print(level, table[level])
    TABLE.write_text(json.dumps(table))
    agent.bring_about(demand(domain, ""))
    # irqbalance writes masks of interrupts all the time; the next tests compare these, without it.
    assert without_interrupts(kernel_texts()) == before
    assert table["alone"]["partition"] == ("isolated" if MODERN else "member")
    assert bool(table["alone"]["refused"]) != MODERN
    # Interrupts that the kernel manages never move, and the agent reports them.
    said = " ".join(table["quiet"]["stuck"])
    for level in ("quiet", "alone"):
        assert all(name.split()[1] in said for name in table[level]["interrupts"])
        assert table[level]["involuntary"] < table["shared"]["involuntary"]
        assert table[level]["host_tasks"] == []
        assert table[level]["irqbalance"] in (False, "bans")
    # At most the threads of the kernel that belong to the CPU come between.
    alone = table["alone"]
    assert alone["kernel_runs"] is None or alone["involuntary"] <= alone["kernel_runs"] or not MODERN


def test_a_busy_process_of_the_host_never_runs_there(domain, tmp_path):
    agent = isolator(tmp_path)
    agent.bring_about(demand(domain, "quiet"))
    allowed = set()
    for name in ("system.slice", "user.slice"):
        for pid in (CGROUPS / name / "cgroup.procs").read_text().split():
            status = Path(f"/proc/{pid}/status").read_text()
            allowed |= parse(status.partition("Cpus_allowed_list:")[2].split()[0])
    assert allowed == {0, 1}
    agent.bring_about(demand(domain, ""))


def test_killed_at_any_write_all_is_given_back(domain, tmp_path, monkeypatch):
    before, writes = kernel_texts(), []
    write, bind = kernel_files.write_text, os.sched_setaffinity
    limit = None

    def counted(function):
        def call(*arguments):
            if limit is not None and len(writes) >= limit:
                raise KilledError
            writes.append(arguments)
            return function(*arguments)

        return call

    monkeypatch.setattr(kernel_files, "write_text", counted(write))
    monkeypatch.setattr(os, "sched_setaffinity", counted(bind))
    isolator(tmp_path).bring_about(demand(domain, "alone"))
    isolator(tmp_path).bring_about(demand(domain, ""))
    total = len(writes)
    assert total > 10
    assert kernel_texts() == before
    for number in range(0, total, max(total // 8, 1)):
        writes.clear()
        limit = number
        with contextlib.suppress(KilledError):
            isolator(tmp_path).bring_about(demand(domain, "alone"))
            isolator(tmp_path).bring_about(demand(domain, ""))
        limit = None
        isolator(tmp_path).bring_about(demand(domain, ""))
        assert kernel_texts() == before, number
