"""Workers of vhost and helpers of a domain leave its dedicated CPU, and an idle domain gives CPU time way.

Runs in the virtual machine only: `test_domains.py` starts it there. A process with the threads of QEMU stands
for the domain. It has the control groups that libvirt makes, and opens /dev/vhost-net as QEMU does.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from compute_agent.drivers import procfs
from compute_agent.drivers.base import CpuLimits, CpuSettings
from compute_agent.drivers.libvirt.helpers import HelperPins
from compute_agent.drivers.libvirt.qemu import QemuProcess
from compute_agent.drivers.libvirt.running_domain import RunningDomain
from compute_agent.isolation.decision import HeldCpus, IsolationDemand
from compute_agent.isolation.facts import MaskReader
from compute_agent.isolation.originals import OriginalsFile
from compute_agent.isolation.shell import HostIsolator
from compute_agent.model.guest import Guest
from compute_agent.model.guest_settings import GuestSettings
from tests.waits import wait_for

CGROUPS = Path("/sys/fs/cgroup")
SCOPE = CGROUPS / "machine.slice/machine-qemu-1.scope"
CPU, SHARED, ALL = 2, frozenset({0, 1}), frozenset(range(4))
SETTINGS = CpuSettings((frozenset({CPU}),), SHARED)
MODERN = (CGROUPS / "cpuset.cpus.isolated").exists()
HAS_TASKS = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 4)
"""Whether workers of vhost are threads of QEMU unless it asks for kernel threads."""
MODULES = Path("/mnt/share/modules")
CHOICE = Path("/sys/module/vhost/parameters/fork_from_owner_default")
"""A kernel with this file also makes kernel threads, for a program that asks for them."""

# A line on the input has it make another worker of vhost, as a kernel thread or as a thread of its own. The
# numbers are VHOST_SET_FORK_FROM_OWNER and VHOST_SET_OWNER of linux/vhost.h, and PR_SET_NAME.
QEMU = """
import ctypes, fcntl, os, sys, threading
libc = ctypes.CDLL(None)
def spin():
    libc.prctl(15, b"CPU 0/KVM")
    print(threading.get_native_id(), flush=True)
    while True: pass
libc.prctl(15, b"qemu-system-x86")
threading.Thread(target=spin, daemon=True).start()
held = []
for line in sys.stdin:
    held.append(os.open("/dev/vhost-net", os.O_RDWR))
    if line.strip() == "kernel":
        fcntl.ioctl(held[-1], 0x4001AF84, bytes([0]))
    fcntl.ioctl(held[-1], 0xAF01)
    print("made", flush=True)
"""
NOISE = "while True: pass"


def enable(folder, *names):
    for name in names:
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{name}")


class Domain:
    """A guest with one CPU, its helpers, and the agent's knowledge of it."""

    def __init__(self, folder):
        for path in (CGROUPS, SCOPE.parent, SCOPE):
            path.mkdir(parents=True, exist_ok=True)
            enable(path, "cpuset", "cpu")
        self.base = SCOPE / "libvirt"
        for name in ("", "emulator", "vcpu0"):
            (self.base / name).mkdir(parents=True, exist_ok=True)
            if name:
                (self.base / name / "cgroup.type").write_text("threaded")
        enable(self.base, "cpuset")
        (self.base / "emulator/cpuset.cpus").write_text("0-3")
        (self.base / "vcpu0/cpuset.cpus").write_text(str(CPU))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", QEMU], **pipes)
        self.thread = int(self.process.stdout.readline())
        self.started = [self.process]
        self.join(self.process.pid)
        (self.base / "vcpu0/cgroup.threads").write_text(str(self.thread))
        os.sched_setaffinity(self.thread, {CPU})
        self.folder, self.state = folder, folder / "state"
        (self.state / "swtpm").mkdir(parents=True)
        guest = Guest("g", "libvirt", "g", self.process.pid, GuestSettings())
        identity = procfs.identify_process(self.process.pid)
        definition = SimpleNamespace(limits_within=lambda limits: limits)
        self.known = RunningDomain(
            guest, QemuProcess(identity, "qemu-system-x86"), "", definition, SimpleNamespace(), number="1"
        )
        self.pins = HelperPins(self.state, clock=lambda: time.monotonic() * 1000)

    def join(self, pid):
        """Put a process into the group of the main thread, as libvirt does."""
        (self.base / "cgroup.procs").write_text(str(pid))
        (self.base / "emulator/cgroup.threads").write_text(str(pid))

    def make_worker(self, kind=""):
        """The thread id of a new worker of vhost."""
        before = set(self.workers())
        self.process.stdin.write(f"{kind}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "made\n"
        wait_for(lambda: set(self.workers()) - before)
        [found] = set(self.workers()) - before
        return found

    def workers(self):
        """The workers of vhost in the group of the main thread, by the kernel's names."""
        found = []
        for word in (self.base / "emulator/cgroup.threads").read_text().split():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{word}/comm").read_text().startswith("vhost-"):
                    found.append(int(word))
        return found

    def run_helper(self, name):
        program = self.folder / name
        shutil.copy(shutil.which("sleep"), program)
        process = subprocess.Popen([program, "3600"])
        self.started.append(process)
        wait_for(lambda: procfs.thread_name(process.pid, process.pid) == name)
        return process.pid

    def place(self):
        """Place the domain as the driver of libvirt does. Of libvirt's own calls, one changes the group's
        CPUs.
        """
        (self.base / "emulator/cpuset.cpus").write_text("0-1")
        self.known.pin_rest(SETTINGS)
        return self.pins.move_tasks(self.known, SHARED)


@pytest.fixture(scope="module", autouse=True)
def modules():
    """Debian's kernels have vhost as modules."""
    for name in ("vhost_iotlb", "vhost", "tun", "tap", "vhost_net"):
        if (MODULES / f"{name}.ko").exists():
            subprocess.run(["insmod", MODULES / f"{name}.ko"], check=True)
    wait_for(Path("/dev/vhost-net").exists)


@pytest.fixture
def domain(tmp_path):
    domain = Domain(tmp_path)
    try:
        yield domain
    finally:
        for process in domain.started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("kind", ["kernel", "task"])
def test_workers_of_vhost_leave_the_dedicated_cpu(domain, kind):
    if kind == "task" and not HAS_TASKS:
        pytest.skip("Linux before 6.4 has kernel threads alone")
    if kind == "kernel" and HAS_TASKS and not CHOICE.exists():
        pytest.skip("this kernel has threads of QEMU alone")
    asked = kind if HAS_TASKS else ""
    for _ in range(2):  # the second one is made when the first is placed
        worker = domain.make_worker(asked)
        assert procfs.is_kernel_thread(worker) == (kind == "kernel")
        assert (worker in domain.pins.read_affinity(domain.known)) == (kind == "kernel")
        assert CPU in os.sched_getaffinity(worker) or worker != domain.workers()[0]
        domain.place()
        assert os.sched_getaffinity(worker) == SHARED
    assert domain.pins.misplaced_tasks(domain.known, SHARED) == {}
    assert domain.known.process.misplaced_threads(SETTINGS) == {}
    assert os.sched_getaffinity(domain.thread) == {CPU}
    assert domain.pins.list_stuck(domain.known) == ()


def test_helpers_leave_the_dedicated_cpu(domain):
    early, late = domain.run_helper("swtpm"), domain.run_helper("passt")
    domain.join(early)
    # A helper that was plugged in later is in libvirtd's group.
    (domain.state / "1-g-net0-passt.pid").write_text(f"{late}\n")
    assert domain.pins.misplaced_tasks(domain.known, SHARED) == {early: ALL, late: ALL}
    domain.place()
    assert os.sched_getaffinity(early) == os.sched_getaffinity(late) == SHARED
    assert domain.place() == 0


def test_a_domain_that_is_alone_has_its_cpu_for_its_own(domain, tmp_path):
    worker, helper = domain.make_worker(), domain.run_helper("swtpm")
    domain.join(helper)
    domain.place()
    isolator = HostIsolator(MaskReader(Path("/")), OriginalsFile(tmp_path / "isolation.json"))
    cpus = frozenset({CPU})
    guest = HeldCpus("g", cpus, True, domain.process.pid, True, "", (cpus,))
    demand = IsolationDemand((guest,), frozenset({2, 3}), {0: ALL})
    isolator.bring_about(demand)
    partition = domain.base / "vcpu0/cpuset.cpus.partition"
    assert partition.read_text().strip() == ("isolated" if MODERN else "member")
    for tid in (worker, helper, domain.make_worker()):
        domain.place()
        assert os.sched_getaffinity(tid) == SHARED
    assert os.sched_getaffinity(domain.thread) == {CPU}
    isolator.bring_about(IsolationDemand((), frozenset({2, 3})))
    assert partition.read_text().strip() == "member"


def used_time(tid):
    return int(Path(f"/proc/{tid}/schedstat").read_text().split()[0])


def test_an_idle_domain_runs_when_no_other_domain_wants_its_cpu(domain):
    """The kernel compares groups with the same parent: a slice of idle domains has its weight."""
    (CGROUPS / "system.slice").mkdir(exist_ok=True)
    other_scope = SCOPE.parent / "machine-qemu-2.scope"
    other_scope.mkdir(exist_ok=True)
    other = subprocess.Popen([sys.executable, "-c", NOISE])
    domain.started.append(other)
    (other_scope / "cgroup.procs").write_text(str(other.pid))
    os.sched_setaffinity(other.pid, {CPU})

    def share():
        """The part of the CPU time of both that the domain gets."""
        own, others = used_time(domain.thread), used_time(other.pid)
        time.sleep(6)
        own, others = used_time(domain.thread) - own, used_time(other.pid) - others
        return own / (own + others)

    idle, group = CpuLimits(idle=True), domain.known.domain_group
    usual = group.read_limits()
    assert (usual.weight, usual.idle) == (100, False)
    assert 0.3 < share() < 0.7
    assert group.missing_parts(idle) == []
    group.write_idle(domain.known.other_limits(idle), idle)
    assert domain.known.other_limits(idle) is None
    assert (SCOPE / "cpu.idle").read_text().strip() == "1"
    assert share() < 0.1
    # The agent sees changes of another program.
    (SCOPE / "cpu.idle").write_text("0")
    group.write_idle(domain.known.other_limits(idle), idle)
    assert (SCOPE / "cpu.idle").read_text().strip() == "1"
    (CGROUPS / "system.slice/cgroup.procs").write_text(str(other.pid))
    assert 0.3 < share() < 0.7
    (other_scope / "cgroup.procs").write_text(str(other.pid))
    group.write_idle(domain.known.other_limits(usual), usual)
    assert group.read_limits() == usual
    assert 0.3 < share() < 0.7
