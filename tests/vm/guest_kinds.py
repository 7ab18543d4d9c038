"""Guests of every kind in the virtual machine, the programs that run them, and a fast start of the agent.

The kinds are a domain, containers of Podman and Docker, a service, a scope, a slice and a process. Values are
read from the kernel.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import libvirt
import pytest

from compute_agent.agent.protocol import RequestError, call_agent
from compute_agent.drivers import procfs
from compute_agent.model import cpuset
from tests.compute_agent.drivers.containers.real_podman import pack_sleep
from tests.vm.inside_machine import FOLDER, SOCKET, MachineAgent, PlacementRest, uid
from tests.waits import wait_for

GROUPS = Path("/sys/fs/cgroup")
ROUNDS = FOLDER / "rounds"
"""The number of rounds of the interference loop since the start of the agent."""
DB = "db.service"
ALL = frozenset(os.sched_getaffinity(0))
DEDICATED = ALL - {0}
ALL_NODES = Path("/sys/devices/system/node/has_memory").read_text().strip()
UNIT = """
[Service]
ExecStart=/bin/sh -c '{script}'
Restart=on-failure
[X-ComputeAgent]
Uuid={uuid}
{settings}
"""
SPIN_ROM = Path("/usr/share/spin.rom")
"""A firmware with a single instruction, which jumps to itself, so that the processor never rests."""
DOMAIN = f"""
<domain type='qemu'>
  <name>vm</name>
  <uuid>{uid(1)}</uuid>
  <memory unit='MiB'>32</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64'>hvm</type><loader type='rom'>{SPIN_ROM}</loader></os>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""
PODMAN_CONF = """
[engine]
no_pivot_root = true
events_logger = "file"
runtime = "crun"
cgroup_manager = "systemd"
[containers]
log_driver = "k8s-file"
netns = "none"
"""
STORAGE_CONF = """
[storage]
driver = "vfs"
runroot = "/run/containers/storage"
graphroot = "/var/lib/containers/storage"
"""
CONTAINERD_CONF = 'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
DOCKERD = ("dockerd", "--containerd=/run/containerd/containerd.sock", "--storage-driver=vfs")
DOCKERD += ("--bridge=none", "--iptables=false", "--ip-masq=false")
PODMAN_FOLDER, DOCKER_FOLDER = "machine.slice/libpod-{}.scope", "system.slice/docker-{}.scope"
"""The control group of a container, by its id."""
PAUSED = 3
"""``VIR_DOMAIN_PAUSED`` of libvirt."""
KERNEL_FILES = ("cpuset.cpus.effective", "cpuset.mems.effective", "cpu.weight", "cpu.idle", "cpu.max")
KERNEL_FILES += ("memory.max", "memory.high", "memory.low", "memory.min", "memory.oom.group")
KERNEL_FILES += ("cpu.max.burst", "io.weight", "io.max")
DISK = Path("/sys/block/vda/dev").read_text().strip()
"""The number of the machine's disk."""
OTHER_VALUES = {"cpu.weight": "50", "memory.high": "max", "memory.low": "0", "memory.max": "max"}
OTHER_VALUES |= {"io.weight": "default 50", "io.max": f"{DISK} wbps=max"}
"""Values that another program may write."""


# The modules of the agent take a minute to import here, and the time limits of questions to daemons are for
# processors that are not emulated. The clock for decisions about interference advances by ten seconds in each
# round, and limits are held for one minute instead of five.
FORKING = """
import dataclasses, json, os, sys, time
from compute_agent.loops import triggers
from compute_agent.throttling import samplers, state_file
from compute_agent.throttling.interference import cases
cases.HOLD_SECONDS = 60.0
rounds, seconds = 0, triggers.INTERVAL
triggers.INTERVAL = 1.25
def decision_clock():
    return rounds * seconds
for clocked in (triggers.InterferenceLoop, state_file.ThrottlingFile):
    clocked.__init__.__defaults__ = (decision_clock,)
read_guests = samplers.GuestReader.read_guests
def read_round(self, views, online, signals, now, caches):
    global rounds
    sample = read_guests(self, views, online, signals, time.monotonic(), caches)
    rounds += 1
    with open(os.environ["AGENT_ROUNDS"], "w") as file:
        file.write(str(rounds))
    return sample and dataclasses.replace(sample, time=now)
samplers.GuestReader.read_guests = read_round
from compute_agent.drivers.containers import engine
engine.CALL_SECONDS = 60.0
from compute_agent.drivers.systemd import bus
bus.CALL_SECONDS = 60.0
import compute_agent.agent.assembly, compute_agent.cmd.release, compute_agent.cmd.run, libvirt
from compute_agent.cmd.main import main
for line in sys.stdin:
    if not (pid := os.fork()):
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for output in (1, 2):
            os.dup2(os.open(os.environ["AGENT_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND), output)
        sys.exit(main(json.loads(line)))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class ForkedProgram:
    """A command of the agent, as a process that has the modules from its start. One runs at a time."""

    def __init__(self, source, arguments):
        self._source = source
        source.stdin.write(json.dumps(arguments) + "\n")
        source.stdin.flush()
        self.pid = int(source.stdout.readline())

    def poll(self):
        return None if Path(f"/proc/{self.pid}").exists() else 0

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def wait(self):
        return int(self._source.stdout.readline())


class ForkedAgent(MachineAgent):
    """The daemon, and other commands with its configuration."""

    def __init__(self):
        super().__init__()
        environ = os.environ | {"AGENT_LOG": str(FOLDER / "log"), "AGENT_ROUNDS": str(ROUNDS)}
        command = (sys.executable, "-c", FORKING)
        self._source = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, *arguments):
        say(f"compute-agent {' '.join(arguments)}")
        return ForkedProgram(self._source, ["--config-file", str(FOLDER / "agent.ini"), *arguments])

    def start(self):
        self.process = self.run("run")
        wait_for(self.answers, evidence=self.log)
        say("the agent answers")

    def close(self):
        if self.process.poll() is None:
            self.kill()
        self._source.stdin.close()
        self._source.wait()


def order(method, **parameters):
    """Ask the agent for a change until it has the time for it."""

    def is_done():
        try:
            call_agent(SOCKET, method, parameters)
        except RequestError as error:
            if "busy" not in str(error):
                raise
            say(f"{method}: {error}")
            return False
        return True

    wait_for(is_done)


def say(text):
    """Print a line with the seconds since the start of the machine, also to the serial console."""
    line = f"{time.monotonic():.1f} s: {text}"
    print(line, flush=True)
    with open("/dev/console", "w") as console:
        print(line, file=console)


def read(path):
    """The text of a file; empty if the guest has ended."""
    try:
        return path.read_text()
    except OSError:
        return ""


def run(*command):
    say(" ".join(command))
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout} {done.stderr}"
    return done.stdout.strip()


class GuestKind:
    """A guest of one kind, which holds one dedicated CPU, and its control group."""

    other_score = "7"
    """The ``oom_score_adj`` that another program gives the guest."""

    def __init__(self, name, number, folder):
        self.name, self.uuid = name, uid(number)
        self.folder = self.cpu_folder = GROUPS / folder

    def start(self):
        raise NotImplementedError

    def stop(self):
        raise NotImplementedError

    def tasks(self):
        """The processes of the guest; of a domain, the thread of its CPU."""
        # The processes of a container of Podman are in a group of that name.
        groups = (self.folder, self.folder / "container")
        return [int(word) for group in groups for word in read(group / "cgroup.procs").split()]

    def is_running(self):
        return bool(self.tasks())

    def cpus(self):
        return frozenset().union(*(os.sched_getaffinity(task) for task in self.tasks()))

    def limit(self):
        return (self.folder / "cpu.max").read_text().split()[0]

    @contextlib.contextmanager
    def working(self, command):
        """Run the command in the guest."""
        process = subprocess.Popen(command)
        try:
            group = GROUPS / procfs.cgroup_path(min(self.tasks())).strip("/")
            (group / "cgroup.procs").write_text(str(process.pid))
            yield
        finally:
            process.kill()
            process.wait()

    def kernel_values(self):
        files = {
            name: (self.cpu_folder if name.startswith("cpuset") else self.folder) / name
            for name in KERNEL_FILES
        }
        found = {name: file.read_text().strip() for name, file in files.items() if file.exists()}
        score = Path(f"/proc/{min(self.tasks())}/oom_score_adj").read_text().strip()
        return found | {"affinity": self.cpus(), "oom_score_adj": score}

    def overwrite(self):
        """Give the guest all CPUs, as another program may."""
        (self.cpu_folder / "cpuset.cpus").write_text(cpuset.format(ALL))

    def overwrite_values(self):
        """Give the guest other memory, weights and block I/O, as another program may."""
        for name, text in OTHER_VALUES.items():
            (self.folder / name).write_text(text)
        (self.folder / "cpuset.mems").write_text(ALL_NODES)
        for task in self.tasks():
            Path(f"/proc/{task}/oom_score_adj").write_text(self.other_score)


class DomainKind(GuestKind):
    """A domain of libvirt, emulated by QEMU."""

    def __init__(self, number, connection):
        # A processor begins 16 bytes before the end of its firmware.
        SPIN_ROM.write_bytes(bytes.fromhex("eb fe").rjust(65536 - 14, b"\0").ljust(65536, b"\0"))
        self._domain = connection.defineXML(DOMAIN)
        super().__init__("domain", number, "")

    def start(self):
        self._domain.create()
        (task,) = self.tasks()
        self.cpu_folder = GROUPS / procfs.cgroup_path(task).strip("/")
        self.folder = self.cpu_folder.parent

    def stop(self):
        self._domain.destroy()

    def rest(self, rests):
        """Pause the domain, or let it run."""
        # A running domain refuses to be resumed.
        if self._domain.isActive() and rests != (self._domain.state()[0] == PAUSED):
            (self._domain.suspend if rests else self._domain.resume)()

    def overwrite_values(self):
        """libvirt reads the weight of CPUs from the kernel, and keeps the other values itself."""
        (self.folder / "cpu.weight").write_text("50")
        self._domain.setMemoryParameters({"soft_limit": 1 << 30}, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        self._domain.setBlkioParameters({"weight": 50}, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        self._domain.setNumaParameters({"numa_nodeset": ALL_NODES}, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        for task in self.tasks():
            Path(f"/proc/{task}/oom_score_adj").write_text("7")

    @contextlib.contextmanager
    def working(self, command):
        self.rest(False)
        try:
            yield
        finally:
            self.rest(True)

    def tasks(self):
        pid_file = Path("/run/libvirt/qemu/vm.pid")
        if not pid_file.exists():
            return []
        threads = Path("/proc", read(pid_file), "task").glob("*")
        return [int(one.name) for one in threads if "CPU 0" in read(one / "comm")]


class UnitKind(GuestKind):
    """A service of systemd; the settings are lines of its section for the agent."""

    def __init__(self, number, unit=DB, script="sleep 10000 & exec sleep 10000", settings=""):
        text = UNIT.format(script=script, uuid=uid(number), settings=settings)
        (Path("/run/systemd/system") / unit).write_text(text)
        run("systemctl", "daemon-reload")
        super().__init__("unit", number, f"system.slice/{unit}")
        self._unit = unit

    def overwrite_values(self):
        super().overwrite_values()
        own = ("CPUWeight=50", "MemoryMax=1G", "IOWeight=50")
        run("systemctl", "set-property", "--runtime", self._unit, *own)

    def start(self):
        run("systemctl", "start", self._unit)

    def stop(self):
        run("systemctl", "stop", self._unit)


class ScopeKind(GuestKind):
    """A scope of systemd with two processes; a drop-in has its section."""

    # Other scores belong to the programs in a scope or a slice, and stay.
    other_score = "0"

    def __init__(self, number, unit="job.scope"):
        folder = Path("/run/systemd/system") / f"{unit}.d"
        folder.mkdir(exist_ok=True)
        (folder / "guest.conf").write_text(f"[X-ComputeAgent]\nUuid={uid(number)}\n")
        run("systemctl", "daemon-reload")
        super().__init__("scope", number, f"system.slice/{unit}")
        self._unit, self._process = unit, None

    def overwrite_values(self):
        super().overwrite_values()
        run("systemctl", "set-property", "--runtime", self._unit, "CPUWeight=50", "IOWeight=50")

    def start(self):
        script = "sleep 10000 & exec sleep 10000"
        command = ("systemd-run", "--scope", "--unit", self._unit, "sh", "-c", script)
        self._process = subprocess.Popen(command)
        wait_for(lambda: len(self.tasks()) == 2)

    def is_running(self):
        if self._process is not None:
            self._process.poll()  # An ended process of this program would stay in the group.
        return super().is_running()

    def stop(self):
        run("systemctl", "stop", self._unit)
        self._process.wait()


class SliceKind(GuestKind):
    """A slice of systemd with a section, and a service in it."""

    other_score = "0"

    def __init__(self, number, unit="app.slice"):
        folder = Path("/run/systemd/system")
        (folder / unit).write_text(f"[Slice]\n[X-ComputeAgent]\nUuid={uid(number)}\n")
        script = "sleep 10000 & exec sleep 10000"
        (folder / "part.service").write_text(f"[Service]\nExecStart=/bin/sh -c '{script}'\nSlice={unit}\n")
        run("systemctl", "daemon-reload")
        super().__init__("slice", number, unit)
        self._unit = unit

    def tasks(self):
        return [int(word) for word in read(self.folder / "part.service/cgroup.procs").split()]

    def overwrite_values(self):
        super().overwrite_values()
        run("systemctl", "set-property", "--runtime", self._unit, "CPUWeight=50", "IOWeight=50")

    def start(self):
        run("systemctl", "start", "part.service")

    def stop(self):
        run("systemctl", "stop", self._unit)


class ContainerKind(GuestKind):
    """A container of Podman or Docker; the settings are labels."""

    def __init__(self, engine, number, folder, **settings):
        labels = {"guest": "true", "uuid": uid(number), **settings}
        words = [f"--label=compute-agent.{key}={text}" for key, text in labels.items()]
        # The machine has AppArmor, and not the program that loads its profiles.
        words.append("--security-opt=apparmor=unconfined")
        key = run(engine, "create", "--name=db", "--network=none", *words, "sleep:test", "/bin/sleep", "9000")
        super().__init__(engine, number, folder.format(key))

    def start(self):
        run(self.name, "start", "db")

    def stop(self):
        run(self.name, "stop", "--time=0", "db")

    def remove(self):
        run(self.name, "rm", "--force", "db")


class ProcessKind(GuestKind):
    """A process that the agent runs."""

    def __init__(self, number):
        super().__init__("process", number, f"agent/guest-{uid(number)}")

    def start(self):
        try:
            call_agent(SOCKET, "guest.run", {"uuid": self.uuid, "command": ["sleep", "10000"]})
        except RequestError as error:
            # The guest starts as soon as the agent has the time.
            if "busy" not in str(error):
                raise

    def stop(self):
        order("guest.stop", guest=self.uuid)


@pytest.fixture(scope="module")
def engines():
    """Podman and Docker with an image, and the message bus; the machine has started its command only."""
    run("systemctl", "start", "dbus.socket", "dbus.service")
    for path, text in {
        "/etc/containers/containers.conf": PODMAN_CONF,
        "/etc/containers/storage.conf": STORAGE_CONF,
        "/etc/containerd/config.toml": CONTAINERD_CONF,
    }.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    Path("/run/podman").mkdir(exist_ok=True)
    FOLDER.mkdir(exist_ok=True)
    log = (FOLDER / "engines.log").open("wb")
    # The root of the machine is an initial file system, in which pivot_root fails.
    environ = os.environ | {"DOCKER_RAMDISK": "1"}
    started = []
    for command, socket in (
        (("podman", "system", "service", "--time=0"), "/run/podman/podman.sock"),
        (("containerd",), "/run/containerd/containerd.sock"),
        (DOCKERD, "/run/docker.sock"),
    ):
        started.append(subprocess.Popen(command, env=environ, stdout=log, stderr=subprocess.STDOUT))
        wait_for(Path(socket).exists, evidence=(FOLDER / "engines.log").read_text)
    archive = FOLDER / "image.tar"
    pack_sleep(archive)
    run("podman", "import", str(archive), "sleep:test")
    wait_for(lambda: not subprocess.run(["docker", "version"], check=False, capture_output=True).returncode)
    run("docker", "import", str(archive), "sleep:test")
    yield
    for process in reversed(started):
        process.terminate()
        process.wait()


def restart(agent):
    """Kill the agent and start another one, as a crash does."""
    agent.kill()
    agent.start()


def hold(guests, **amounts):
    """Let each guest hold these amounts, and nothing else."""
    for guest in guests:
        PlacementRest().claim(guest.uuid, machine=amounts)


def configure(agent, ini):
    """Kill the agent and start another one with this configuration."""
    agent.kill()
    (FOLDER / "agent.ini").write_text(ini)
    agent.start()
