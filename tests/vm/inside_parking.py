"""The agent parks idle cores of a real kernel, wakes them for guests, and leaves no CPU behind.

Runs in the virtual machine only: `test_parking.py` starts it there, and PLACEMENT is the service's address.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compute_agent.agent.protocol import call_agent
from compute_agent.host.cpus import read_online
from compute_agent.model import cpuset
from tests.vm.inside_machine import BASE_INI, FOLDER, SOCKET, SPIN, PlacementRest, make_agent, uid
from tests.waits import wait_for

INI = f"""{BASE_INI}
[compute]
cpu_dedicated_set = 2-7
cpu_shared_set = 0-1
update_resources_interval = 1
[guests]
reconcile_interval = 1
[cpu_class:idle]
park = offline
park_after = 2
"""
ALL = frozenset(range(8))


def online():
    return read_online(Path("/"))


def kept():
    """CPUs that are not parked: those in use, shared ones, and the first core of each node and L3 cache."""
    return online() - frozenset(cpuset.parse(call_agent(SOCKET, "status")["parked_cpus"]))


@pytest.fixture(scope="module")
def agent():
    agent = make_agent(INI)
    agent.start()
    yield agent
    print(agent.log())
    agent.kill()


def total():
    rest = PlacementRest()
    root = rest.provider("machine")
    nodes = rest.send("GET", f"/resource_providers?in_tree={root}")["resource_providers"]
    found = (rest.send("GET", f"/resource_providers/{node['uuid']}/inventories") for node in nodes)
    return sum(one["inventories"].get("PCPU", {}).get("total", 0) for one in found)


def is_parked():
    return online() < ALL and kept() == online()


def test_idle_cores_go_offline_and_stay_in_placement(agent):
    wait_for(is_parked, evidence=agent.log)
    assert {0, 1} <= online()
    assert total() == 6


def test_a_restarted_agent_continues_with_its_parked_cpus(agent):
    before = online()
    agent.kill()
    agent.start()
    assert total() == 6
    wait_for(is_parked, evidence=agent.log)
    assert online() == before


def test_a_guest_runs_on_a_woken_core_from_its_first_instruction(agent):
    rest = PlacementRest()
    root = rest.provider("machine")
    nodes = rest.send("GET", f"/resource_providers?in_tree={root}")["resource_providers"]
    names = [
        node["name"]
        for node in nodes
        if "PCPU" in rest.send("GET", f"/resource_providers/{node['uuid']}/inventories")["inventories"]
    ]
    rest.claim(uid(1), **{names[-1]: {"PCPU": 2}})
    command = ["sh", "-c", f"cat /proc/self/status > {FOLDER}/first; {SPIN}"]
    guest = call_agent(SOCKET, "guest.run", {"uuid": uid(1), "command": command})
    held = cpuset.parse(guest["cpus"])
    assert held <= online()
    assert os.sched_getaffinity(guest["pid"]) <= held
    wait_for((FOLDER / "first").exists)
    call_agent(SOCKET, "guest.stop", {"guest": uid(1)})
    wait_for(is_parked, evidence=agent.log)


def test_release_brings_all_cpus_online(agent):
    agent.kill()
    command = [sys.executable, "-m", "compute_agent.cmd.main", "--config-file", FOLDER / "agent.ini"]
    subprocess.run([*command, "release"], check=False)
    assert online() == ALL
    subprocess.run([*command, "release", "--undo"], check=False)
    agent.start()
