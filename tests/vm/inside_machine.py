"""The agent on the machine's kernel, with process guests in cgroup v2, against the service outside.

Runs in the virtual machine only: `test_agent.py` starts it there, and PLACEMENT is the service's address.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from compute_agent.agent.protocol import DaemonUnreachableError, RequestError, call_agent
from compute_agent.resctrl import schemata
from compute_agent.resctrl.schemata import WayMask
from tests import waits
from tests.waits import wait_for

PLACEMENT = os.environ["PLACEMENT"]
AMD = "AuthenticAMD" in Path("/proc/cpuinfo").read_text()
RESCTRL = Path("/sys/fs/resctrl")
CGROUP = Path("/sys/fs/cgroup/agent")
FOLDER = Path("/tmp/agent")
SOCKET = FOLDER / "state/agent.sock"
SPIN = "while :; do :; done"

BASE_INI = f"""
[DEFAULT]
state_path = {FOLDER}/state
reserved_host_memory_mb = 0
[compute]
resource_provider_name = machine
[placement]
auth_type = admin_token
endpoint = {PLACEMENT}
token = admin
[guests]
drivers = process
[cgroup]
root = {CGROUP}
[daemon]
http_port = 0
"""
"""Configuration of all agents of the machine."""

INI = f"""{BASE_INI}
[compute]
cpu_dedicated_set = 1-6
cpu_shared_set = 0,7
update_resources_interval = 1
[guests]
reconcile_interval = 1
[resctrl]
mount = true
memory_bandwidth_gbps = 2
"""


class PlacementRest:
    """The service's REST API."""

    def send(self, method, path, body=None):
        request = urllib.request.Request(
            PLACEMENT + path,
            None if body is None else json.dumps(body).encode(),
            {
                "X-Auth-Token": "admin",
                "OpenStack-API-Version": "placement 1.39",
                "Content-Type": "application/json",
            },
            method=method,
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or b"{}")

    def providers(self, name):
        """The providers with a name: one or none."""
        return self.send("GET", f"/resource_providers?name={name}")["resource_providers"]

    def provider(self, name):
        (found,) = self.providers(name)
        return found["uuid"]

    def inventories(self, name):
        return self.send("GET", f"/resource_providers/{self.provider(name)}/inventories")["inventories"]

    def claim(self, consumer, **resources):
        """Replace the allocations of the consumer; providers are given by name."""
        held = self.send("GET", f"/allocations/{consumer}")
        body = {
            "allocations": {
                self.provider(name): {"resources": amounts} for name, amounts in resources.items()
            },
            "project_id": "p",
            "user_id": "u",
            "consumer_generation": held.get("consumer_generation"),
            "consumer_type": "INSTANCE",
        }
        self.send("PUT", f"/allocations/{consumer}", body)


class MachineAgent:
    """The daemon, a process of its own."""

    def __init__(self):
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / "agent.ini").write_text(INI)
        self.process = None

    def start(self):
        command = [
            sys.executable,
            "-m",
            "compute_agent.cmd.main",
            "--config-file",
            FOLDER / "agent.ini",
            "run",
        ]
        with open(FOLDER / "log", "ab") as log:
            self.process = subprocess.Popen(command, stderr=log)
        wait_for(self.answers, evidence=self.log)

    def answers(self):
        assert self.process.poll() is None, self.log()
        try:
            status = call_agent(SOCKET, "status")
        except DaemonUnreachableError:
            return False
        return status["pid"] == self.process.pid and status["placement"] == "up"

    def log(self):
        return (FOLDER / "log").read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()


def make_agent(ini, controllers="+cpu +cpuset +memory", make=MachineAgent):
    """An agent with this configuration, and with a control group for its guests. It does not run yet."""
    (CGROUP.parent / "cgroup.subtree_control").write_text(controllers)
    CGROUP.mkdir(exist_ok=True)
    agent = make()
    (FOLDER / "agent.ini").write_text(ini)
    return agent


@pytest.fixture(scope="module")
def agent():
    agent = make_agent(INI)
    agent.start()
    yield agent
    print(agent.log())
    for guest in call_agent(SOCKET, "guest.list"):
        call_agent(SOCKET, "guest.stop", {"guest": guest["uuid"]})
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(waits.SECONDS) == 0


@pytest.fixture(scope="module")
def rest():
    return PlacementRest()


def uid(number):
    return f"00000000-0000-0000-0000-{number:012}"


def run(number, script):
    return call_agent(SOCKET, "guest.run", {"uuid": uid(number), "command": ["sh", "-c", script]})


def group(number):
    return RESCTRL / f"compute-agent.guest.{uid(number)}"


def values(folder):
    return schemata.parse_schemata((folder / "schemata").read_text())


def mask(folder, cache):
    return WayMask(values(folder).get_value("L3", cache))


def tasks(folder):
    return {int(line) for line in (folder / "tasks").read_text().split()}


def processes(number):
    return {int(line) for line in (CGROUP / f"guest-{uid(number)}/cgroup.procs").read_text().split()}


def others(number):
    """The folders of all groups but that of a guest."""
    names = ("info", "mon_data", "mon_groups")
    folders = (one for one in RESCTRL.iterdir() if one.is_dir() and one.name not in names)
    return [RESCTRL, *(one for one in folders if one != group(number))]


def bandwidth(percent):
    """Return the kernel's value for a percentage: AMD counts in 1/8 GB/s, and 2 GB/s are 100 %."""
    return -(-percent * 16 // 100) if AMD else percent


def test_the_resources_of_the_kernel_are_reported_to_the_service(agent, rest):
    for cache in (0, 1):
        offered = rest.inventories(f"machine_L3_{cache}")
        assert (offered["LLC"]["total"], offered["LLC"]["reserved"]) == (16, 2)
        assert (offered["MBA"]["total"], offered["MBA"]["step_size"]) == (100, 1 if AMD else 10)
    root = f"/resource_providers/{rest.provider('machine')}"
    assert {"CUSTOM_RESCTRL_L3_CAT", "CUSTOM_RESCTRL_MBA"} <= set(
        rest.send("GET", f"{root}/traits")["traits"]
    )
    groups = rest.inventories("machine")["CUSTOM_RESCTRL_GROUP"]
    # the default group, with LSR and LS unless 100 % is less than what it has, and BE
    assert groups["reserved"] == (3 if AMD else 2)


def test_a_claim_becomes_a_group_of_four_exclusive_ways_and_30_percent(agent, rest):
    rest.claim(uid(1), machine_L3_1={"LLC": 4, "MBA": 30}, machine_NUMA_1={"PCPU": 1})
    run(1, "sleep 1000 & sleep 1000")
    own = mask(group(1), 1)
    assert (len(own), own.is_contiguous) == (4, True)
    assert all(not mask(folder, 1) & own for folder in others(1))
    assert values(group(1)).get_value("MB", 1) == bandwidth(30)
    wait_for(lambda: len(processes(1)) == 3)
    assert tasks(group(1)) == processes(1)


def test_guests_do_not_overlap_and_the_service_refuses_claims_above_the_capacity(agent, rest):
    rest.claim(uid(2), machine_L3_1={"LLC": 9})
    run(2, "sleep 1000")
    assert len(mask(group(2), 1)) == 9
    assert not mask(group(1), 1) & mask(group(2), 1)
    with pytest.raises(urllib.error.HTTPError) as caught:
        rest.claim(uid(3), machine_L3_1={"LLC": 2})
    assert caught.value.code == 409


def test_drift_in_the_kernel_is_repaired(agent):
    before = mask(group(1), 1)
    (RESCTRL / "tasks").write_text(f"{min(processes(1))}\n")
    (group(1) / "schemata").write_text("L3:1=ffff\n")
    wait_for(lambda: mask(group(1), 1) == before and tasks(group(1)) == processes(1))


def test_a_restarted_agent_finds_its_groups_and_removes_those_without_a_guest(agent):
    before = mask(group(2), 1)
    (RESCTRL / "somebody").mkdir()
    agent.kill()
    (CGROUP / f"guest-{uid(1)}/cgroup.kill").write_text("1")
    agent.start()
    assert mask(group(2), 1) == before
    assert not group(1).exists()
    assert processes(2) <= tasks(group(2))
    shown = {row["group"]: row for row in call_agent(SOCKET, "resctrl.groups")}
    assert shown["somebody"]["kind"] == "foreign"
    (RESCTRL / "somebody").rmdir()


def test_the_group_is_removed_with_its_guest(agent):
    call_agent(SOCKET, "guest.stop", {"guest": uid(2)})
    assert not group(2).exists()
    assert len(mask(RESCTRL, 1)) == 16


def test_classes_change_at_run_time(agent):
    folder = RESCTRL / "compute-agent.class.BE"
    assert len(mask(folder, 0)) == 5
    (FOLDER / "agent.ini").write_text(INI + "[qos_class:BE]\nllc_range = 0-50\nmb_percent = 40\n")
    agent.process.send_signal(signal.SIGHUP)
    wait_for(lambda: len(mask(folder, 0)) == 8)
    assert values(folder).get_value("MB", 0) == bandwidth(40)


def rate(folder, seconds=3.0):
    """Bytes a second of all memory that a group uses by way of L3 cache 0, from the kernel's counter."""
    counter = folder / "mon_data/mon_L3_00/mbm_total_bytes"
    before, since = int(counter.read_text()), time.monotonic()
    time.sleep(seconds)
    return (int(counter.read_text()) - before) / (time.monotonic() - since)


def test_bandwidth_falls_in_the_kernels_counters_when_the_allowance_is_cut(agent, rest):
    """The machine's model: a CPU that is busy all the time moves 2 GB/s, cut to what its group may have."""
    rest.claim(uid(4), machine_L3_0={"MBA": 90}, machine_NUMA_0={"PCPU": 1})
    run(4, SPIN)
    found = []
    for percent in (90, 50, 20, 90):
        rest.claim(uid(4), machine_L3_0={"MBA": percent}, machine_NUMA_0={"PCPU": 1})
        wait_for(lambda percent=percent: values(group(4)).get_value("MB", 0) == bandwidth(percent))
        time.sleep(1)
        found.append(rate(group(4)))
    Path("rates.json").write_text(json.dumps([round(bytes_a_second / 1e6) for bytes_a_second in found]))
    first, half, fifth, last = found
    assert half < 0.75 * first
    assert fifth < 0.6 * half
    assert last > 1.3 * half


def test_a_bad_annotation_is_refused_with_the_reason(agent):
    with pytest.raises(RequestError, match="unknown key 'L9'"):
        call_agent(SOCKET, "guest.run", {"command": ["true"], "resctrl": '{"L9": {}}'})
