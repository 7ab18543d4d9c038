"""Cache groups and quiet CPUs of units and containers, on a host with real engines and systemd.

Runs in the virtual machine only: `test_all_kinds.py` starts it there, and PLACEMENT is the service's address.
The tests build on each other. Values are read from the kernel.
"""

import os
import subprocess

import pytest

from compute_agent.agent.protocol import call_agent
from compute_agent.model import cpuset
from tests.vm.guest_kinds import (
    DEDICATED,
    DOCKER_FOLDER,
    PODMAN_FOLDER,
    ContainerKind,
    ForkedAgent,
    ScopeKind,
    SliceKind,
    UnitKind,
    configure,
    engines,  # noqa: F401 - a fixture
    restart,
    run,
    say,
)
from tests.vm.inside_machine import (
    BASE_INI,
    RESCTRL,
    SOCKET,
    PlacementRest,
    group,
    make_agent,
    mask,
    tasks,
    uid,
    values,
)
from tests.waits import wait_for

OTHER = "other.service"
"""A service that is no guest."""
INI = (
    BASE_INI.replace("drivers = process", "drivers = systemd, podman, docker")
    + f"""
[compute]
cpu_dedicated_set = {cpuset.format(DEDICATED)}
cpu_shared_set = 0
update_resources_interval = 5
[guests]
reconcile_interval = 5
stop_timeout = 5
[resctrl]
mount = true
memory_bandwidth_gbps = 2
"""
)
LEVEL = """
[guest_rule:all]
order = 10
match_driver = *
isolation = {}
"""
PLACES = {2: 1, 3: 1, 4: 2, 7: 2, 8: 3}
"""The number of the NUMA node and of the L3 cache of each guest, by the number of the guest."""


@pytest.fixture(scope="module")
def agent():
    agent = make_agent(INI, "+cpu +cpuset +memory +io", ForkedAgent)
    yield agent
    print(agent.log())
    agent.close()


@pytest.fixture(scope="module")
def guests(engines, agent):  # noqa: F811
    guests = [
        UnitKind(2),
        ContainerKind("podman", 3, PODMAN_FOLDER),
        ContainerKind("docker", 4, DOCKER_FOLDER),
        ScopeKind(7),
        SliceKind(8),
    ]
    agent.start()
    rest = PlacementRest()
    for guest, place in zip(guests, PLACES.values(), strict=True):
        resources = {f"machine_L3_{place}": {"LLC": 4, "MBA": 30}, f"machine_NUMA_{place}": {"PCPU": 1}}
        rest.claim(guest.uuid, **resources)
        guest.start()
    return guests


def place_of(guest):
    return next(place for number, place in PLACES.items() if uid(number) == guest.uuid)


def folder_of(guest):
    """The cache group of a guest."""
    return group(int(guest.uuid[-12:]))


def assert_grouped(guests, agent):
    """Each guest has a dedicated CPU, and its tasks are in a cache group of four ways and 30 percent."""

    def is_grouped(guest):
        folder, place = folder_of(guest), place_of(guest)
        return (
            folder.is_dir()
            and len(mask(folder, place)) == 4
            and values(folder).get_value("MB", place) == 30
            and set(guest.tasks()) <= tasks(folder)
            and len(guest.cpus()) == 1
            and guest.cpus() <= DEDICATED
        )

    wait_for(lambda: all(map(is_grouped, guests)), evidence=agent.log)
    assert len(frozenset().union(*(guest.cpus() for guest in guests))) == len(guests)


def test_guests_have_cache_groups_which_are_repaired(guests, agent):
    assert_grouped(guests, agent)
    masks = {place: [] for place in PLACES.values()}
    for guest in guests:
        masks[place_of(guest)].append(mask(folder_of(guest), place_of(guest)))
    assert all(not one & other for one, other in (both for both in masks.values() if len(both) == 2))
    for is_away in (False, True):
        if is_away:
            agent.kill()
        for guest in guests:
            for task in guest.tasks():
                (RESCTRL / "tasks").write_text(f"{task}\n")
        if is_away:
            agent.start()
        assert_grouped(guests, agent)
        say(f"the cache groups are repaired, away: {is_away}")


@pytest.mark.parametrize("level", ["quiet", "alone"])
def test_other_services_keep_off_the_cpus_of_quiet_units_and_containers(guests, agent, level):
    run("systemd-run", "--quiet", f"--unit={OTHER}", "sleep", "9000")
    other = int(run("systemctl", "show", "--value", "-p", "MainPID", OTHER))
    held = cpuset.format(frozenset().union(*(guest.cpus() for guest in guests)))
    configure(agent, INI + LEVEL.format(level))

    def is_quiet():
        status = call_agent(SOCKET, "status")
        return status["quiet_cpus"] == held and not os.sched_getaffinity(other) & cpuset.parse(held)

    def told():
        return f"{call_agent(SOCKET, 'status')} {os.sched_getaffinity(other)} {agent.log()}"

    wait_for(is_quiet, evidence=told)
    assert_grouped(guests, agent)
    run("systemctl", "daemon-reload")
    restart(agent)
    wait_for(is_quiet, evidence=told)
    assert_grouped(guests, agent)
    for guest in guests:
        say(f"{guest.name}: {call_agent(SOCKET, 'guest.show', {'guest': guest.uuid})['refused']}")
    configure(agent, INI)
    wait_for(lambda: os.sched_getaffinity(other) >= DEDICATED, evidence=told)
    assert_grouped(guests, agent)
    subprocess.run(["systemctl", "stop", OTHER], check=True)


def test_cache_groups_end_with_their_guests(guests, agent):
    for guest in guests:
        guest.stop()
    wait_for(lambda: not any(folder_of(guest).exists() for guest in guests), evidence=agent.log)
    agent.kill()
    assert agent.run("release", "--pins").wait() == 0, agent.log()
    assert not [one.name for one in RESCTRL.iterdir() if one.name.startswith("compute-agent.")]
