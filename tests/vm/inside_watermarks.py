"""The agent keeps the machine below its watermarks: process guests in cgroup v2 that burn CPU, a real kernel,
and the service outside.

Runs in the virtual machine only: `test_watermarks.py` starts it there, and PLACEMENT is the service's
address.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compute_agent.agent.protocol import call_agent
from tests.vm.inside_machine import (
    BASE_INI,
    CGROUP,
    FOLDER,
    SOCKET,
    SPIN,
    MachineAgent,
    PlacementRest,
    uid,
)
from tests.waits import wait_for

INTERVAL, FOR_SAMPLES, COOL_DOWN = 3, 2, 6
MARGIN, MIN_SHARE = 0.1, 0.1
GUESTS = 3
LINE = 1.2
"""Usage in cores; without limits the guests use both cores, and the agent a part of one."""

INI = f"""{BASE_INI}
[compute]
cpu_shared_set = 0-1
[qos]
interval = {INTERVAL}
margin = {100 * MARGIN}
min_share = {100 * MIN_SHARE}
[guest_rule:here]
order = 20
match_driver = process
match_name = nightly-*
qos_class = BE
"""
"""The rule is the one of doc/howto/guest-classes.md."""
WATERMARK = f"""
[watermark:cpu]
metric = cpu_usage
throttle_down = {LINE}
throttle_up = {LINE / 2}
disable_scheduling = {LINE}
for_samples = {FOR_SAMPLES}
cool_down = {COOL_DOWN}
"""


class WatermarkMachine:
    """The agent, its guests, and their groups."""

    def __init__(self):
        (CGROUP.parent / "cgroup.subtree_control").write_text("+cpu +cpuset +memory")
        CGROUP.mkdir(exist_ok=True)
        self.agent = MachineAgent()
        self.configure(WATERMARK)
        self.found = {}

    def configure(self, lines):
        (FOLDER / "agent.ini").write_text(INI + lines)

    def rows(self):
        return {row["action"]: row for row in call_agent(SOCKET, "watermark.list")}

    def throttled(self):
        return {text.split()[0] for text in self.rows()["throttle_down"]["in_force"]}

    def wait_for(self, condition):
        return wait_for(condition, evidence=lambda: self.agent.log() + str(self.rows()))


def groups():
    return sorted(CGROUP.glob("guest-*"))


def limited():
    """Return the guests that the kernel limits."""
    return {
        group.name.removeprefix("guest-")
        for group in groups()
        if not (group / "cpu.max").read_text().startswith("max")
    }


def run_command(*arguments):
    """Return the output of a command of `compute-agent` as JSON."""
    command = [sys.executable, "-m", "compute_agent.cmd.main", "--config-file", FOLDER / "agent.ini"]
    return json.loads(subprocess.check_output([*command, *arguments, "-f", "json"], timeout=120))


def freeze(frozen):
    for group in groups():
        (group / "cgroup.freeze").write_text(f"{int(frozen)}\n")


@pytest.fixture(scope="module")
def machine():
    machine = WatermarkMachine()
    machine.agent.start()
    for number in range(1, GUESTS + 1):
        call_agent(
            SOCKET,
            "guest.run",
            {"uuid": uid(number), "name": f"nightly-{number}", "command": ["sh", "-c", SPIN]},
        )
    yield machine
    Path("watermarks.json").write_text(json.dumps(machine.found))
    freeze(False)
    machine.agent.kill()
    for group in groups():
        (group / "cgroup.kill").write_text("1")


def test_the_machine_gets_below_its_watermark(machine):
    def throttled_and_below():
        row = machine.rows()["throttle_down"]
        return row["in_force"] and row["usage"] <= row["amount"]

    over = machine.wait_for(lambda: (row := machine.rows()["throttle_down"])["gap"] and row)
    begun = time.monotonic()
    machine.wait_for(throttled_and_below)
    touched = machine.throttled()
    machine.found |= {
        "over": over["usage"],
        "below": machine.rows()["throttle_down"]["usage"],
        "touched": len(touched),
        "seconds": time.monotonic() - begun,
    }
    assert limited() == touched
    assert touched
    assert PlacementRest().send("GET", "/resource_providers?required=COMPUTE_STATUS_DISABLED")[
        "resource_providers"
    ]


def test_commands_show_the_limit_of_a_guest_with_the_class_of_a_rule(machine):
    guest = next(iter(limited()))
    shown = run_command("guest", "show", guest, "-c", "qos_class", "-c", "setting_sources", "-c", "limits")
    assert shown["qos_class"] == "BE"
    assert "rule here" in str(shown["setting_sources"])
    assert "cpu" in str(shown["limits"])
    events = run_command("event", "list", "--kind", "throttle_down")
    assert any(guest in str(event) for event in events), events


def test_limits_survive_the_agent_and_the_next_one_knows_them(machine):
    machine.agent.kill()
    before = limited()
    assert before
    machine.agent.start()
    machine.wait_for(lambda: machine.rows()["throttle_down"]["usage"] is not None)
    assert limited() >= before
    shown = {one["uuid"]: one["limits"] for one in call_agent(SOCKET, "guest.list")}
    assert {guest for guest, limits in shown.items() if limits} == limited()


def test_limits_are_removed_when_the_guests_become_idle(machine):
    freeze(True)
    begun = time.monotonic()
    machine.wait_for(lambda: not limited())
    machine.found["restored"] = time.monotonic() - begun
    machine.wait_for(lambda: not machine.rows()["disable_scheduling"]["in_force"])
    wait_for(
        lambda: (
            not PlacementRest().send("GET", "/resource_providers?required=COMPUTE_STATUS_DISABLED")[
                "resource_providers"
            ]
        )
    )


def test_an_agent_without_watermarks_removes_the_limits_of_the_last_one(machine):
    freeze(False)
    machine.wait_for(limited)
    machine.agent.kill()
    machine.configure("")
    machine.agent.start()
    wait_for(lambda: not limited(), evidence=machine.agent.log)
