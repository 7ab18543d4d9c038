"""One host with guests of every kind: a domain, containers of Podman and Docker, units and a process.

The units are a service, a scope and a slice.

Runs in the virtual machine only: `test_all_kinds.py` starts it there, and PLACEMENT is the service's address.
The tests build on each other: the guests live through all of them. Values are read from the kernel.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from compute_agent.agent.protocol import call_agent
from compute_agent.events.store import FILE, read_events
from compute_agent.model import cpuset
from compute_agent.reclaim import offers
from compute_agent.reclaim.estimate import SYSTEM
from compute_agent.throttling import state_file
from compute_agent.throttling.interference.state import SignalKey
from tests.compute_agent.reclaim.zone_states import day_of_use
from tests.vm.guest_kinds import (
    ALL,
    ALL_NODES,
    DEDICATED,
    DISK,
    DOCKER_FOLDER,
    PODMAN_FOLDER,
    ROUNDS,
    ContainerKind,
    DomainKind,
    ForkedAgent,
    ProcessKind,
    ScopeKind,
    SliceKind,
    UnitKind,
    configure,
    engines,  # noqa: F401 - a fixture
    hold,
    order,
    read,
    restart,
    run,
    say,
)
from tests.vm.inside_hostdevs import connection  # noqa: F401 - a fixture
from tests.vm.inside_machine import BASE_INI, FOLDER, SOCKET, SPIN, PlacementRest, make_agent, uid
from tests.waits import wait_for

CALM_ROUNDS = 30
"""Rounds without a disturbance, after which the correlation with a disturbing guest is certain enough."""
WEB = "web.service"
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
UNITS = ("unit", "scope", "slice")
MEMORY_MB = 256
AMOUNTS = """
[compute]
memory_overhead = 0
[qos_class:gold]
rank = 30
cpu_weight = 300
cpu_burst = 50
memory_high = 75
memory_low = 50
oom_score_adj = 42
oom_group = true
[blockio_class:bulk]
weight = 300
write_bytes = 2M
devices = vda
[guest_rule:all]
order = 20
match_driver = *
qos_class = gold
blockio_class = bulk
"""
SHARED = INI.replace(
    f"cpu_dedicated_set = {cpuset.format(DEDICATED)}\ncpu_shared_set = 0\n",
    f"cpu_shared_set = {cpuset.format(ALL)}\n",
)
"""All CPUs are shared."""
RECLAIMED = """
[compute]
memory_overhead = 0
[capacity]
mode = act
memory = true
[qos_class:BE]
memory_high = 75
[guest_rule:all]
order = 20
match_driver = *
qos_class = BE
"""
OFFERED = {offers.FILE: 4, offers.MEMORY_FILE: 4 * MEMORY_MB}
"""The offers of reclaimed CPUs and memory, by the file that keeps them."""
STEADY = """
import time
while True:
    time.sleep(0.1)
    for _ in range(2000):
        pass
"""
"""The work of a guest that disturbs no other guest."""


@pytest.fixture(scope="module")
def agent():
    agent = make_agent(INI, "+cpu +cpuset +memory +io", ForkedAgent)
    yield agent
    print(agent.log())
    agent.close()


@pytest.fixture(scope="module")
def before():
    """The values of the guests in the kernel before the first agent, by kind."""
    return {}


@pytest.fixture(scope="module")
def guests(connection, engines, before, agent):  # noqa: F811
    """All guests. They run before the agent manages them, apart from the process."""
    domain = DomainKind(1, connection)
    found = [
        domain,
        UnitKind(2),
        ContainerKind("podman", 3, PODMAN_FOLDER),
        ContainerKind("docker", 4, DOCKER_FOLDER),
        ScopeKind(7),
        SliceKind(8),
    ]
    for guest in found:
        guest.start()
    # A domain that runs uses a whole processor of the machine.
    domain.rest(True)
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
    drivers = ["libvirt", "systemd", "podman", "docker", "systemd", "systemd", "process"]

    def listed_drivers():
        rows = {row["uuid"]: row["driver"] for row in call_agent(SOCKET, "guest.list")}
        return [rows.get(guest.uuid) for guest in guests]

    # The process has its CPU before the agent lists it.
    wait_for(lambda: listed_drivers() == drivers, evidence=listed_drivers)
    restart(agent)
    assert_placed(guests, agent)
    assert call_agent(SOCKET, "audit") == []


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
    seen = Interference(agent, guests)
    with busy_guests(guests[1:], (sys.executable, "-c", STEADY)):
        configure(agent, INI + INTERFERENCE)
        wait_for(lambda: (track := seen.learnt()) and track.baseline.is_usable, evidence=seen.told)
        say(f"learnt: {seen.learnt().baseline}")
        # The limit of a scope and a slice is a property, like that of a service.
        limited = [guest for guest in guests if guest.name not in ("scope", "slice")]
        for guest in limited:
            seen.assert_limited(guest)
    events = seen.events()
    say(str([(one.kind, one.text, one.reason) for one in events]))
    everyone = [guest.uuid for guest in limited]
    assert seen.guilty() == everyone
    for kind in ("throttle_down", "throttle_up"):
        assert list(dict.fromkeys(one.guest for one in events if one.kind == kind)) == everyone, kind
    web.stop()
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
    guests[0].rest(True)


def node_of(cpus):
    """The NUMA nodes of CPUs, as the kernel's text."""
    folders = (Path(f"/sys/devices/system/node/node{node}") for node in cpuset.parse(ALL_NODES))
    return cpuset.format(
        int(one.name.removeprefix("node"))
        for one in folders
        if cpus & cpuset.parse((one / "cpulist").read_text().strip())
    )


def expected_values(guest):
    """The values of the class, the class of block I/O and the allocation, by file."""
    found = {
        "cpu.weight": "300",
        "memory.high": str(MEMORY_MB * 3 // 4 << 20),
        "io.weight": "default 300",
        "oom_score_adj": "42",
        "cpuset.mems.effective": node_of(guest.cpus()),
    }
    found["io.max"] = f"{DISK} rbps=max wbps={2 << 20} riops=max wiops=max"
    if guest.name != "domain":
        found |= {"memory.max": str(MEMORY_MB << 20), "memory.low": str(MEMORY_MB // 2 << 20)}
        found["memory.oom.group"] = str(int(guest.name not in UNITS))
    return found


def assert_enforced(guests, agent):
    """Each guest has the values of its class and its allocation, in the kernel."""

    def differing():
        return {
            guest.name: {name: (has.get(name), one) for name, one in wanted.items() if has.get(name) != one}
            for guest in guests
            if (has := guest.kernel_values()) and (wanted := expected_values(guest))
        }

    assert_placed(guests, agent)
    wait_for(lambda: not any(differing().values()), evidence=lambda: f"{differing()} {agent.log()}")


def test_memory_weights_and_block_io_of_guests_are_enforced(guests, agent):
    hold(guests, PCPU=1, MEMORY_MB=MEMORY_MB)
    configure(agent, INI + AMOUNTS)
    assert_enforced(guests, agent)
    assert len({node_of(guest.cpus()) for guest in guests}) == 4
    for guest in guests:
        say(f"{guest.name}: {guest.kernel_values()}")
        refused = call_agent(SOCKET, "guest.show", {"guest": guest.uuid})["refused"]
        assert ["oom_group" in one for one in refused] == [True] * (guest.name in UNITS), refused


def test_a_burst_belongs_to_a_limit_except_of_units(guests, agent):
    others = [guest for guest in guests if guest.name not in (*UNITS, "domain")]

    def bursts():
        return [read(guest.folder / "cpu.max.burst").strip() for guest in others]

    for cpus, burst in ((0.5, "25000"), (0.2, "10000"), (None, "0")):
        for guest in others:
            order("guest.limit", guest=guest.uuid, cpus=cpus)
        wait_for(lambda burst=burst: bursts() == [burst] * len(others), evidence=bursts)


@pytest.mark.parametrize("is_away", [False, True], ids=["running", "killed"])
def test_other_memory_weights_and_block_io_are_repaired(guests, agent, is_away):
    if is_away:
        agent.kill()
    for guest in guests:
        guest.overwrite_values()
        found = guest.kernel_values()
        assert (found["cpu.weight"], found["oom_score_adj"]) == ("50", guest.other_score)
    if is_away:
        changed = [guest.kernel_values() for guest in guests]
        mark = len(agent.log())
        assert agent.run("run", "--dry-run", "-f", "json").wait() == 0, agent.log()
        assert all(guest.uuid in agent.log()[mark:] for guest in guests), agent.log()
        assert [guest.kernel_values() for guest in guests] == changed
        agent.start()
    assert_enforced(guests, agent)


def keep_a_day_of_use(guests, zone):
    """Write the agent's files about unused capacity, as after a day in which all guests were idle."""
    use = dict.fromkeys([SYSTEM, *(guest.uuid for guest in guests)], 0.0)
    for name, amount in OFFERED.items():
        (FOLDER / "state" / name).write_bytes(offers.ZONES_FORMAT.dump({zone: day_of_use(use, amount)}))


def test_guests_run_on_cpus_and_in_memory_that_others_leave_unused(guests, agent):
    rest = PlacementRest()
    hold(guests, VCPU=1)
    configure(agent, SHARED + RECLAIMED)
    zone = wait_for(lambda: rest.providers("machine_RECLAIMED"), evidence=agent.log)[0]["uuid"]
    agent.kill()
    keep_a_day_of_use(guests, zone)
    agent.start()

    def offered():
        found = rest.inventories("machine_RECLAIMED")
        return {name: one["total"] - one["reserved"] for name, one in found.items()}

    wait_for(lambda: min(offered().values()) > 0, evidence=lambda: f"{offered()} {agent.log()}")
    say(f"offered: {offered()}")
    amounts = {"CUSTOM_RECLAIMED_VCPU": 1, "CUSTOM_RECLAIMED_MEMORY_MB": MEMORY_MB}
    wanted = {
        "cpuset.cpus.effective": cpuset.format(ALL),
        "cpuset.mems.effective": ALL_NODES,
        "cpu.weight": "1",
        "memory.high": str(MEMORY_MB * 3 // 4 << 20),
        "oom_score_adj": "500",
    }
    for guest in guests:
        rest.claim(guest.uuid, machine_RECLAIMED=amounts)
        # The lowest weight of a domain is 2, and nothing limits the memory of a domain.
        own = {"cpu.weight": "2"} if guest.name == "domain" else {"memory.max": str(MEMORY_MB << 20)}
        expected = wanted | own

        def differing(guest=guest, expected=expected):
            found = guest.kernel_values()
            return {name: found.get(name) for name, one in expected.items() if found.get(name) != one}

        wait_for(lambda: not differing(), evidence=lambda: f"{differing()} {agent.log()}")
        say(f"{guest.name} runs on reclaimed capacity")
        rest.claim(guest.uuid, machine={"VCPU": 1})
    configure(agent, INI + AMOUNTS)
    wait_for(lambda: "PCPU" in rest.inventories("machine"), evidence=agent.log)
    hold(guests, PCPU=1, MEMORY_MB=MEMORY_MB)
    assert_enforced(guests, agent)


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


def records(*more):
    """The agent's records of values that guests had before, and systemd's files for values of services."""
    folders = [FOLDER / "state" / name for name in ("domains", "units", "podman", "docker", *more)]
    folders += [Path("/run/systemd/system.control"), Path("/run/systemd/transient/job.scope.d")]
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    # The agent keeps the output of process guests.
    return [str(path) for path in files if path.suffix != ".log"]


def test_a_release_gives_all_values_back(guests, agent, before):
    for guest in guests:
        order("guest.limit", guest=guest.uuid, cpus=0.5)
    agent.kill()
    # A release is killed after it has given back the first value.
    release = agent.run("release", "--pins")
    wait_for(lambda: any(len(guest.cpus()) > 1 for guest in guests), pause=0.005)
    release.kill()
    assert release.wait() == -signal.SIGKILL
    say(f"the release is killed, and CPUs are {[guest.cpus() for guest in guests]}")
    assert records()
    assert agent.run("release", "--pins").wait() == 0, agent.log()
    for guest in guests[:-1]:
        assert guest.kernel_values() == before[guest.name], guest.name
    assert records() == []
    assert agent.run("release", "--undo").wait() == 0, agent.log()
    agent.start()
    assert_enforced(guests, agent)


def test_evicted_guests_leave_nothing_behind(guests, agent, before):
    rest = PlacementRest()

    def is_held(guest):
        return bool(rest.send("GET", f"/allocations/{guest.uuid}")["allocations"])

    # The first process of a container and a domain without a system do not end when they are asked.
    for guest in sorted(guests, key=lambda guest: guest.name not in (*UNITS, "process")):
        order("guest.evict", guest=guest.uuid)
    agent.kill()
    for guest in guests:
        say(f"{guest.name}: the agent is killed; runs: {guest.is_running()}, held: {is_held(guest)}")
    assert all(is_held(guest) for guest in guests if guest.name not in (*UNITS, "process"))
    # The next agent continues the evictions.
    agent.start()
    for guest in guests:
        wait_for(lambda guest=guest: not guest.is_running(), evidence=agent.log)
        wait_for(lambda guest=guest: not is_held(guest), evidence=agent.log)
    wait_for(lambda: call_agent(SOCKET, "guest.list") == [], evidence=agent.log)
    usages = rest.send("GET", f"/resource_providers/{rest.provider('machine')}/usages")["usages"]
    assert set(usages.values()) == {0}
    wait_for(lambda: not records("guests"), evidence=lambda: records("guests"))
    agent.kill()
    # The definition of a domain has the values of the agent for the next start of the domain.
    others = guests[1:-1]
    for guest in others:
        guest.start()
    assert {guest.name: guest.kernel_values() for guest in others} == {
        guest.name: before[guest.name] for guest in others
    }
    for guest in others:
        guest.stop()
