"""One host with guests of every kind: a domain, containers of Podman and Docker, a service and a process.

Runs in the virtual machine only: `test_all_kinds.py` starts it there, and PLACEMENT is the service's address.
The tests build on each other: the guests live through all of them. Values are read from the kernel.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from compute_agent.agent.protocol import RequestError, call_agent
from compute_agent.drivers import procfs
from compute_agent.events.store import FILE, read_events
from compute_agent.model import cpuset
from compute_agent.throttling import state_file
from compute_agent.throttling.interference.state import SignalKey
from tests.compute_agent.drivers.containers.real_podman import pack_sleep
from tests.vm.inside_hostdevs import connection  # noqa: F401 - a fixture
from tests.vm.inside_machine import (
    BASE_INI,
    FOLDER,
    SOCKET,
    SPIN,
    MachineAgent,
    PlacementRest,
    make_agent,
    uid,
)
from tests.waits import wait_for

GROUPS = Path("/sys/fs/cgroup")
ROUNDS = FOLDER / "rounds"
"""The number of rounds of the interference loop since the start of the agent."""
CALM_ROUNDS = 30
"""Rounds without a disturbance, after which the correlation with a disturbing guest is certain enough."""
DB, WEB = "db.service", "web.service"
ALL = frozenset(os.sched_getaffinity(0))
DEDICATED = ALL - {0}
INI = (
    BASE_INI.replace("drivers = process", "drivers = libvirt, systemd, podman, docker, process")
    + f"""
[DEFAULT]
cpu_allocation_ratio = 16
[compute]
cpu_dedicated_set = {cpuset.format(DEDICATED)}
cpu_shared_set = 0
provider_tree = flat
update_resources_interval = 5
[guests]
reconcile_interval = 5
stop_timeout = 5
[policy]
name = static
[qos]
evict_grace = 5
"""
)
WATERMARK = """
[qos]
interval = 2
[watermark:guests]
metric = best_effort_cpu
throttle_down = 5
throttle_up = 2
for_samples = 2
cool_down = 4
[guest_rule:all]
order = 20
match_driver = *
qos_class = BE
"""
"""The use of all guests. Their lowest limits are 10 % of their CPUs, so all busy ones get a limit."""
INTERFERENCE = f"""
[qos]
step = 40
[qos_class:BE]
cpu_weight = 100
[interference:cpu]
signal = run_delay
mode = act
[guest_rule:web]
order = 10
match_driver = systemd
match_name = {WEB}
qos_class = LS
[guest_rule:all]
order = 20
match_driver = *
qos_class = BE
"""
"""With its usual weight, a guest of class BE would get hardly any time of a CPU that another guest needs."""
STEADY = """
import time
while True:
    time.sleep(0.1)
    for _ in range(2000):
        pass
"""
"""The work of a guest that disturbs no other guest."""
UNIT = """
[Service]
ExecStart=/bin/sh -c '{script}'
Restart=on-failure
[X-ComputeAgent]
Uuid={uuid}
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
PAUSED = 3
"""``VIR_DOMAIN_PAUSED`` of libvirt."""
KERNEL_FILES = ("cpuset.cpus.effective", "cpuset.mems.effective", "cpu.weight", "cpu.idle", "cpu.max")
KERNEL_FILES += ("memory.max", "memory.high", "memory.low", "memory.min")


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
bus.bus_opener.__defaults__ = (60.0,)
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
        files = {name: self.folder / name for name in KERNEL_FILES}
        found = {name: file.read_text().strip() for name, file in files.items() if file.exists()}
        score = Path(f"/proc/{min(self.tasks())}/oom_score_adj").read_text().strip()
        return found | {"affinity": self.cpus(), "oom_score_adj": score}

    def overwrite(self):
        """Give the guest all CPUs, as another program may."""
        (self.cpu_folder / "cpuset.cpus").write_text(cpuset.format(ALL))


class DomainKind(GuestKind):
    """A domain of libvirt, emulated by QEMU."""

    def __init__(self, number, connection):  # noqa: F811
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
    """A service of systemd."""

    def __init__(self, number, unit=DB, script="sleep 10000 & exec sleep 10000"):
        (Path("/run/systemd/system") / unit).write_text(UNIT.format(script=script, uuid=uid(number)))
        run("systemctl", "daemon-reload")
        super().__init__("unit", number, f"system.slice/{unit}")
        self._unit = unit

    def start(self):
        run("systemctl", "start", self._unit)

    def stop(self):
        run("systemctl", "stop", self._unit)


class ContainerKind(GuestKind):
    """A container of Podman or Docker."""

    def __init__(self, engine, number, folder):
        labels = {"compute-agent.guest": "true", "compute-agent.uuid": uid(number)}
        words = [f"--label={key}={text}" for key, text in labels.items()]
        # The machine has AppArmor, and not the program that loads its profiles.
        words.append("--security-opt=apparmor=unconfined")
        key = run(engine, "create", "--name=db", "--network=none", *words, "sleep:test", "/bin/sleep", "9000")
        super().__init__(engine, number, folder.format(key))

    def start(self):
        run(self.name, "start", "db")

    def stop(self):
        run(self.name, "stop", "--time=0", "db")


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


@pytest.fixture(scope="module")
def agent():
    agent = make_agent(INI, make=ForkedAgent)
    yield agent
    print(agent.log())
    agent.close()


def restart(agent):
    """Kill the agent and start another one, as a crash does."""
    agent.kill()
    agent.start()


@pytest.fixture(scope="module")
def before():
    """The values of the guests in the kernel before the first agent, by kind."""
    return {}


@pytest.fixture(scope="module")
def guests(connection, engines, before, agent):  # noqa: F811
    """All guests. They run before the agent manages them, apart from the process."""
    found = [
        DomainKind(1, connection),
        UnitKind(2),
        ContainerKind("podman", 3, "machine.slice/libpod-{}.scope"),
        ContainerKind("docker", 4, "system.slice/docker-{}.scope"),
    ]
    for guest in found:
        guest.start()
    # The first container gives all services the files of some controllers.
    before |= {guest.name: guest.kernel_values() for guest in found}
    agent.start()
    process, rest = ProcessKind(5), PlacementRest()
    for guest in (*found, process):
        rest.claim(guest.uuid, machine={"PCPU": 1})
    wait_for(lambda: len(call_agent(SOCKET, "guest.list")) == len(found), evidence=agent.log)
    process.start()
    return [*found, process]


def assert_placed(guests, agent):
    """Each guest has a dedicated CPU of its own."""

    def placed():
        held = [guest.cpus() for guest in guests]
        return all(len(cpus) == 1 for cpus in held) and frozenset().union(*held) == DEDICATED

    wait_for(placed, evidence=lambda: f"{[guest.cpus() for guest in guests]} {agent.log()}")


def seconds_to_pinned(guest):
    """The seconds from the start of the first task of a guest to its dedicated CPU, in the kernel."""
    found = []

    def watch():
        while not found:
            try:
                if len(cpus := guest.cpus()) == 1 and cpus < DEDICATED:
                    found.append(time.clock_gettime(time.CLOCK_BOOTTIME))
            except OSError:
                pass
            time.sleep(0.05)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    guest.start()
    watcher.join(300)
    started = int(Path(f"/proc/{min(guest.tasks())}/stat").read_text().rpartition(")")[2].split()[19])
    return round(found[0] - started / os.sysconf("SC_CLK_TCK"), 2)


def test_guests_of_every_kind_have_a_cpu_each(guests, agent):
    assert_placed(guests, agent)
    rows = {row["uuid"]: row["driver"] for row in call_agent(SOCKET, "guest.list")}
    assert [rows[guest.uuid] for guest in guests] == ["libvirt", "systemd", "podman", "docker", "process"]
    restart(agent)
    assert_placed(guests, agent)


@pytest.mark.parametrize("is_away", [False, True], ids=["running", "killed"])
def test_disturbances_are_repaired(guests, agent, is_away):
    if is_away:
        agent.kill()
    for guest in guests:
        guest.overwrite()
    run("systemctl", "daemon-reload")
    if is_away:
        agent.start()
    assert_placed(guests, agent)


def test_limits_by_hand_end_with_the_agent(guests, agent):
    usual = [guest.limit() for guest in guests]
    half = ["50000"] * len(guests)

    def limit_all(cpus):
        for guest in guests:
            order("guest.limit", guest=guest.uuid, cpus=cpus)
        return [guest.limit() for guest in guests]

    assert limit_all(0.5) == half
    assert limit_all(None) == usual
    assert limit_all(0.5) == half
    agent.kill()
    assert [guest.limit() for guest in guests] == half
    agent.start()
    assert [guest.limit() for guest in guests] == usual


@contextlib.contextmanager
def busy_guests(guests, command=("sh", "-c", SPIN)):
    """Each guest uses all the CPU time that it can have, or runs the command. After that, all rest."""
    with contextlib.ExitStack() as stack:
        for guest in guests:
            stack.enter_context(guest.working(command))
        yield


def throttled_guests():
    """The uuids of guests with a limit of CPU time, as the agent shows them."""
    return {row["uuid"] for row in call_agent(SOCKET, "guest.list") if "cpu" in str(row["limits"])}


def hold(guests, **amounts):
    """Let each guest hold these amounts, and nothing else."""
    for guest in guests:
        PlacementRest().claim(guest.uuid, machine=amounts)


def configure(agent, ini):
    """Kill the agent and start another one with this configuration."""
    agent.kill()
    (FOLDER / "agent.ini").write_text(ini)
    agent.start()


def test_a_watermark_limits_guests_of_every_kind(guests, agent):
    usual = [guest.limit() for guest in guests]
    # The lowest limit is a tenth of a CPU.
    lowest = ["10000"] * len(guests)
    everyone = {guest.uuid for guest in guests}
    hold(guests, VCPU=1)
    configure(agent, INI + WATERMARK)
    wait_for(lambda: all(guest.cpus() == {0} for guest in guests), evidence=agent.log)

    def told():
        return f"{call_agent(SOCKET, 'watermark.list')} {agent.log()}"

    with busy_guests(guests):
        wait_for(lambda: [guest.limit() for guest in guests] == lowest, evidence=told)
        say("limited by the watermark")
        assert throttled_guests() == everyone
        agent.kill()
        assert [guest.limit() for guest in guests] == lowest
        agent.start()
        wait_for(lambda: throttled_guests() == everyone, evidence=told)
        assert [guest.limit() for guest in guests] == lowest
    wait_for(lambda: [guest.limit() for guest in guests] == usual, evidence=told)
    say("given back below the watermark")
    wait_for(lambda: not throttled_guests(), evidence=told)
    guests[0].rest(False)
    hold(guests, PCPU=1)
    configure(agent, INI)
    assert_placed(guests, agent)


class Interference:
    """The cases and events of the agent about guests that disturb the web server."""

    def __init__(self, agent, guests):
        self._agent, self._guests = agent, guests
        self.usual = [guest.limit() for guest in guests]

    def told(self):
        """The evidence for a failed wait."""
        events = [(one.kind, one.text) for one in self.events()]
        return f"{self.rows()} {self.learnt()} {events} {self._agent.log()}"

    def learnt(self):
        """The stored baseline of the web server."""
        tracks = state_file.look_up_state(FOLDER / "state").interference.tracks
        return tracks.get(SignalKey(uid(6), "run_delay", ""))

    def rows(self):
        """The open cases, by what the agent does about them."""
        return [row for row in call_agent(SOCKET, "interference.list") if row["limit"]]

    def events(self):
        """The events of interference, oldest first."""
        return [one for one in read_events(FOLDER / "state" / FILE) if "(cpu)" in one.text]

    def assert_only_limited(self, guest):
        """Check that only this guest is limited, in the kernel and in the answers of the agent."""
        others = [(one.limit(), usual) for one, usual in zip(self._guests, self.usual, strict=True)]
        assert [one is guest for one in self._guests] == [now != usual for now, usual in others], self.told()
        assert throttled_guests() == {guest.uuid}
        shown = call_agent(SOCKET, "guest.show", {"guest": guest.uuid})
        assert "cpu" in str(shown["limits"]), shown

    def guilty(self):
        """The uuids of guests in verdicts about the web server, in the order of the verdicts."""
        verdicts = [one for one in self.events() if (one.kind, one.guest) == ("verdict", uid(6))]
        return [guest.uuid for one in verdicts for guest in self._guests if guest.uuid in one.text]

    def has_verdict(self, guest):
        """Whether the agent holds a limit of the guest, and has stored the verdict about it."""
        is_held = any(row["state"].startswith("hold") for row in self.rows())
        return is_held and guest.uuid in self.guilty()

    def assert_limited(self, guest):
        """The agent limits the guest while it disturbs, finds it guilty, and gives the limit back."""
        # The samples of a killed agent are lost.
        wait_for(lambda: int(read(ROUNDS) or 0) >= CALM_ROUNDS, evidence=self.told)
        with busy_guests([guest]):
            wait_for(lambda: self.has_verdict(guest), evidence=self.told)
            (row,) = self.rows()
            assert (row["section"], guest.uuid in row["suspect"]) == ("cpu", True), row
            assert uid(6) in row["victim"], row
            self._agent.kill()
            # The agent saves a limit before it sets the limit, and the next agent sets what is saved.
            state = state_file.look_up_state(FOLDER / "state").interference
            (cores,) = state.guest_limits()[guest.uuid].values()
            limit = str(round(cores * 100_000))
            ROUNDS.unlink()
            self._agent.start()
            wait_for(lambda: throttled_guests() == {guest.uuid}, evidence=self.told)
            assert guest.limit() == limit
            self.assert_only_limited(guest)
        say(f"{guest.name} was limited to {limit}: {row}")
        wait_for(lambda: not self.rows(), evidence=self.told)
        assert [one.limit() for one in self._guests] == self.usual
        assert not throttled_guests()
        say(f"{guest.name} has its CPU time back")


def test_the_guest_that_disturbs_another_is_limited(guests, agent):
    web = UnitKind(6, WEB, SPIN)
    hold([*guests, web], VCPU=1)
    web.start()
    wait_for(lambda: all(guest.cpus() == {0} for guest in (*guests, web)), evidence=agent.log)
    guests[0].rest(True)
    seen = Interference(agent, guests)
    with busy_guests(guests[1:], (sys.executable, "-c", STEADY)):
        configure(agent, INI + INTERFERENCE)
        wait_for(lambda: (track := seen.learnt()) and track.baseline.is_usable, evidence=seen.told)
        say(f"learnt: {seen.learnt().baseline}")
        for guest in guests:
            seen.assert_limited(guest)
    events = seen.events()
    say(str([(one.kind, one.text, one.reason) for one in events]))
    everyone = [guest.uuid for guest in guests]
    assert seen.guilty() == everyone
    for kind in ("throttle_down", "throttle_up"):
        assert list(dict.fromkeys(one.guest for one in events if one.kind == kind)) == everyone, kind
    web.stop()
    guests[0].rest(False)
    hold(guests, PCPU=1)
    configure(agent, INI)
    PlacementRest().send("DELETE", f"/allocations/{web.uuid}")
    assert_placed(guests, agent)


def test_guests_that_start_again_are_pinned(guests, agent):
    times = {}
    for guest in guests:
        guest.stop()
        wait_for(lambda guest=guest: not guest.is_running())
        times[guest.name] = seconds_to_pinned(guest)
    say(f"seconds from start to pinned: {times}")
    Path("times.json").write_text(json.dumps(times))
    assert_placed(guests, agent)
    # Starts without an agent are found by the next one.
    agent.kill()
    for guest in guests:
        if guest.name != "process":
            guest.stop()
            guest.start()
    agent.start()
    assert_placed(guests, agent)


def test_a_drained_host_keeps_its_guests(guests, agent):
    rest = PlacementRest()
    query = "/allocation_candidates?resources=MEMORY_MB:1&root_required=!COMPUTE_STATUS_DISABLED"
    wait_for(lambda: rest.send("GET", query)["allocation_requests"])
    call_agent(SOCKET, "host.disable", {"reason": "test"})
    wait_for(lambda: not rest.send("GET", query)["allocation_requests"], evidence=agent.log)
    restart(agent)
    assert not rest.send("GET", query)["allocation_requests"]
    assert_placed(guests, agent)
    call_agent(SOCKET, "host.enable")
    wait_for(lambda: rest.send("GET", query)["allocation_requests"], evidence=agent.log)


def test_a_release_gives_all_values_back(guests, agent, before):
    for guest in guests:
        order("guest.limit", guest=guest.uuid, cpus=0.5)
    agent.kill()
    assert agent.run("release", "--pins").wait() == 0, agent.log()
    for guest in guests[:-1]:
        assert guest.kernel_values() == before[guest.name], guest.name
    assert agent.run("release", "--undo").wait() == 0, agent.log()
    agent.start()
    assert_placed(guests, agent)


def test_evicted_guests_end_and_their_resources_are_free(guests, agent):
    rest = PlacementRest()

    def held():
        return [
            guest.name for guest in guests if rest.send("GET", f"/allocations/{guest.uuid}")["allocations"]
        ]

    order("guest.evict", guest=guests[0].uuid)
    agent.kill()
    assert guests[0].name in held()
    # The next agent continues the eviction.
    agent.start()
    for guest in guests[1:]:
        order("guest.evict", guest=guest.uuid)
    for guest in guests:
        wait_for(lambda guest=guest: not guest.is_running(), evidence=agent.log)
    wait_for(lambda: call_agent(SOCKET, "guest.list") == [], evidence=agent.log)
    wait_for(lambda: not held(), evidence=agent.log)
