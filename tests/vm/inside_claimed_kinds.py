"""Claims of the agent for containers of Podman and Docker and for services, on a host with real engines.

Runs in the virtual machine only: `test_all_kinds.py` starts it there, and PLACEMENT is the service's address.
The tests build on each other. Values are read from the kernel and from Placement.
"""

import contextlib
from pathlib import Path

import pytest

from compute_agent.agent.protocol import call_agent
from compute_agent.events.store import FILE, read_events
from compute_agent.loops.note_files import CLAIMS_FILE
from compute_agent.model import cpuset
from tests.vm.guest_kinds import (
    DEDICATED,
    DOCKER_FOLDER,
    PODMAN_FOLDER,
    ContainerKind,
    ForkedAgent,
    GuestKind,
    UnitKind,
    configure,
    engines,  # noqa: F401 - a fixture
    order,
    read,
    restart,
    run,
    say,
)
from tests.vm.inside_machine import BASE_INI, FOLDER, SOCKET, PlacementRest, make_agent, uid
from tests.waits import wait_for

MIB = 1 << 20
OTHER = uid(9)
"""A consumer that holds the dedicated CPUs which are left."""
INI = (
    BASE_INI.replace("drivers = process", "drivers = systemd, podman, docker")
    + f"""
[compute]
cpu_dedicated_set = {cpuset.format(DEDICATED)}
cpu_shared_set = 0
provider_tree = flat
update_resources_interval = 5
[guests]
claim = true
claim_grace = 10
reconcile_interval = 5
stop_timeout = 5
[policy]
name = static
[qos]
evict_grace = 5
"""
)
QUADLET = """
[Container]
Image=sleep:test
ContainerName=web
Exec=/bin/sleep 9000
Network=none
PodmanArgs=--security-opt=apparmor=unconfined
Label=compute-agent.guest=true
Label=compute-agent.uuid={uuid}
Label=compute-agent.class=LSR
[Service]
Restart={restart}
[X-ComputeAgent]
"""
QUADLETS = Path("/usr/lib/systemd/system-generators/podman-system-generator")
"""The program that makes services from quadlets. Podman before 4.4 has none."""
QUADLET_SERVICE = """
[Service]
Environment=PODMAN_SYSTEMD_UNIT=%n
Type=notify
NotifyAccess=all
Delegate=yes
KillMode=mixed
Restart={restart}
ExecStart=/usr/bin/podman run --name=web --replace --rm --detach --cgroups=split --sdnotify=conmon \\
  --network=none --security-opt=apparmor=unconfined --label=compute-agent.guest=true \\
  --label=compute-agent.uuid={uuid} --label=compute-agent.class=LSR sleep:test /bin/sleep 9000
ExecStop=/usr/bin/podman rm --force --ignore web
ExecStopPost=-/usr/bin/podman rm --force --ignore web
[X-ComputeAgent]
"""
"""The service that Podman 4.4 and later makes from such a quadlet."""


class QuadletKind(GuestKind):
    """A container in the control group of its service."""

    def __init__(self, number, restart):
        file, text = Path("/run/systemd/system/web.service"), QUADLET_SERVICE
        if QUADLETS.exists():
            file, text = Path("/etc/containers/systemd/web.container"), QUADLET
            file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(restart=restart, uuid=uid(number)))
        run("systemctl", "daemon-reload")
        super().__init__("quadlet", number, "system.slice/web.service")

    def tasks(self):
        files = self.cpu_folder.glob("libpod-payload-*/**/cgroup.procs")
        return [int(word) for file in files for word in read(file).split()]

    def start(self):
        run("systemctl", "start", "web.service")

    def state(self):
        return run("systemctl", "show", "--value", "--property=ActiveState", "web.service")


def make_container(engine):
    number, folder = {"podman": (3, PODMAN_FOLDER), "docker": (4, DOCKER_FOLDER)}[engine]
    return ContainerKind(engine, number, folder, memory="64", **{"class": "LSR"})


@pytest.fixture(scope="module")
def agent():
    agent = make_agent(INI, make=ForkedAgent)
    yield agent
    print(agent.log())
    agent.close()


@pytest.fixture(scope="module")
def guests(engines):  # noqa: F811
    return [UnitKind(2, settings="Class=LSR\nMemory=64"), make_container("podman"), make_container("docker")]


def held(uuid):
    """The amounts of a consumer."""
    found = PlacementRest().send("GET", f"/allocations/{uuid}")["allocations"]
    return [one["resources"] for one in found.values()]


def wait_until_held(guests, agent):
    """Wait until each guest has a claim, a dedicated CPU and its memory."""
    claim = [{"PCPU": 1, "MEMORY_MB": 64}]
    wait_for(lambda: [held(one.uuid) for one in guests] == [claim] * len(guests), evidence=agent.log)

    def are_placed():
        cpus = [guest.cpus() for guest in guests]
        return all(len(one) == 1 and one <= DEDICATED for one in cpus) and len(set(cpus)) == len(cpus)

    wait_for(are_placed, evidence=lambda: f"{[one.cpus() for one in guests]} {agent.log()}")
    limits = [str(128 * MIB)] * len(guests)
    wait_for(
        lambda: [read(one.folder / "memory.max").strip() for one in guests] == limits, evidence=agent.log
    )


def events(kind):
    return [one for one in read_events(FOLDER / "state" / FILE) if one.kind == kind]


def test_claims_survive_an_agent_that_is_killed_while_it_claims(guests, agent):
    for guest in guests:
        guest.start()
    agent.process = agent.run("run")
    notes = FOLDER / "state" / CLAIMS_FILE
    wait_for(lambda: all(guest.uuid in read(notes) for guest in guests), evidence=agent.log)
    agent.kill()
    say(f"killed, and held are {[held(guest.uuid) for guest in guests]}")
    agent.start()
    wait_until_held(guests, agent)
    record = PlacementRest().send("GET", f"/allocations/{guests[1].uuid}")
    assert record["consumer_type"] == "HOST_GUEST"


def test_only_a_container_that_exists_keeps_its_claim(guests, agent):
    for guest in guests:
        guest.stop()
    restart(agent)
    wait_for(lambda: not held(guests[0].uuid), evidence=agent.log)
    say("the claim of the service is given back")
    # Another grace period, after which a container would have lost its claim.
    mark = len(events("claim"))
    guests[0].start()
    wait_for(lambda: held(guests[0].uuid), evidence=agent.log)
    guests[0].stop()
    wait_for(lambda: not held(guests[0].uuid), evidence=agent.log)
    assert all(held(guest.uuid) for guest in guests[1:])
    # A thread of its own writes events, and on a busy disk a sync takes seconds.
    wait_for(lambda: events("claim")[mark:], evidence=agent.log, seconds=5)
    assert {one.guest for one in events("claim")[mark:]} == {guests[0].uuid}
    for guest in guests:
        guest.start()
    wait_until_held(guests, agent)


def test_the_claim_of_a_removed_container_is_given_back(guests, agent):
    for guest in guests[1:]:
        guest.remove()
    restart(agent)
    wait_for(lambda: not any(held(guest.uuid) for guest in guests[1:]), evidence=agent.log)
    assert held(guests[0].uuid)
    guests[0].stop()
    wait_for(lambda: not held(guests[0].uuid), evidence=agent.log)


@contextlib.contextmanager
def full_host():
    """Another consumer holds all dedicated CPUs."""
    rest = PlacementRest()
    rest.claim(OTHER, machine={"PCPU": len(DEDICATED)})
    yield
    rest.send("DELETE", f"/allocations/{OTHER}")


@pytest.mark.parametrize("no_room", ["run", "stop"])
def test_guests_without_room(guests, agent, no_room):
    guests[:] = [guests[0], make_container("podman"), make_container("docker")]
    everyone = {guest.uuid for guest in guests}

    def are_refused():
        reasons = call_agent(SOCKET, "status")["unclaimed_guests"]
        return all(any(one in reason for reason in reasons) for one in everyone)

    with full_host():
        configure(agent, f"{INI}[guests]\nno_room = {no_room}\n")
        for guest in guests:
            guest.start()
        if no_room == "run":
            wait_for(are_refused, evidence=agent.log)
            wait_for(lambda: all(guest.cpus() == {0} for guest in guests), evidence=agent.log)
            restart(agent)
            wait_for(are_refused, evidence=agent.log)
            assert all(guest.cpus() == {0} for guest in guests)
        else:
            wait_for(lambda: not any(guest.is_running() for guest in guests), evidence=agent.log)
            wait_for(lambda: {one.guest for one in events("stop")} == everyone, evidence=agent.log)
        for guest in guests:
            if guest.is_running():
                guest.stop()
        for guest in guests[1:]:
            guest.remove()
        assert not any(map(held, everyone))


@pytest.mark.parametrize("policy", ["no", "always"])
def test_an_evicted_container_of_a_service(agent, engines, policy):  # noqa: F811
    rest = PlacementRest()
    configure(agent, INI)
    quadlet = QuadletKind(5 if policy == "no" else 6, policy)

    def is_placed():
        cpus = quadlet.cpus()
        return len(cpus) == 1 and cpus <= DEDICATED and held(quadlet.uuid) == [{"PCPU": 1}]

    quadlet.start()
    wait_for(is_placed, evidence=agent.log)
    # The service is a guest until its container exists.
    wait_for(lambda: [row["uuid"] for row in call_agent(SOCKET, "guest.list")] == [quadlet.uuid])
    wait_for(
        lambda: (
            "guest web of driver podman runs in it" in str(call_agent(SOCKET, "status")["excluded_guests"])
        )
    )
    (first,) = quadlet.tasks()
    order("guest.evict", guest=quadlet.uuid)
    wait_for(lambda: first not in quadlet.tasks(), evidence=agent.log)
    if policy == "always":
        # systemd starts the service again, and the agent claims for the new container.
        wait_for(lambda: quadlet.state() == "active" and is_placed(), evidence=agent.log)
        run("systemctl", "stop", "web.service")
    wait_for(lambda: quadlet.state() in ("failed", "inactive"))
    # systemd makes the group of an ended service again when the agent gives values back.
    wait_for(lambda: not quadlet.tasks())
    root = f"/resource_providers/{rest.provider('machine')}"
    wait_for(lambda: set(rest.send("GET", f"{root}/usages")["usages"].values()) == {0}, evidence=agent.log)
    say(str([(one.kind, one.text) for one in read_events(FOLDER / "state" / FILE)][-12:]))
