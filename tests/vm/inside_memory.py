"""Memory of guests before and after a watermark: real pages go to swap, and no guest has to leave.

Runs in the virtual machine only: `test_memory.py` starts it there with a disk for swap, and PLACEMENT is the
service's address.
"""

import json
import subprocess
import time
from pathlib import Path

import pytest

from compute_agent.agent.protocol import call_agent
from tests.vm.inside_machine import SOCKET, uid
from tests.vm.memory_guests import MIB, MemoryHost, end_guests, read_number, read_pressure

HELD, FILLED, HOT = 512, 400, 16
"""MiB of a guest: its allocation, what it fills, and what it uses all the time."""

FILL = f"""
import time
memory = bytearray({FILLED} << 20)
for at in range(0, len(memory), 4096):
    memory[at] = at >> 12 & 255
while True:
    for at in range(0, {HOT} << 20, 4096):
        memory[at] = memory[at] + 1 & 255
    time.sleep(0.2)
"""
GUESTS = {1: "LS", 2: "BE", 3: "BE"}


class MemoryMachine(MemoryHost):
    """The host, with lines that move with what it uses, and what the tests have found."""

    def __init__(self):
        super().__init__("margin = 0\n")
        self.found = {}

    def usage(self):
        return next(row["usage"] for row in self.rows() if row["metric"] == "memory_usage")


def evict_line(line):
    return f"[watermark:evict]\nmetric = memory_usage\nevict = {line:.0f}\nfor_samples = 10\n"


def step_lines(line):
    return (
        f"[watermark:steps]\nmetric = memory_usage\nthrottle_down = {line:.0f}\n"
        f"throttle_up = {line * 0.9:.0f}\nfor_samples = 1\ncool_down = 4\nmin_share = 40\n"
    )


FAR = 1 << 40


@pytest.fixture(scope="module")
def machine():
    subprocess.check_call("mkswap /dev/vda && swapon /dev/vda", shell=True)
    machine = MemoryMachine()
    machine.agent.start()
    for number in GUESTS:
        machine.start(number, GUESTS[number], HELD, ["python3", "-c", FILL])
    machine.configure(evict_line(FAR))
    for number in GUESTS:
        machine.wait_for(lambda number=number: read_number(number, "memory.current") > FILLED * MIB)
    yield machine
    Path("memory.json").write_text(json.dumps(machine.found))
    machine.agent.kill()
    end_guests(GUESTS)


def test_steps_bring_memory_below_the_line_and_no_guest_leaves(machine):
    usage = machine.usage()
    waited = {number: read_pressure(number) for number in GUESTS}
    # Guests fill 800 MiB that they do not use: 200 of these are enough.
    machine.configure(step_lines(usage - 200 * MIB) + evict_line(usage - 100 * MIB))
    begun = time.monotonic()
    machine.wait_for(lambda: machine.usage() <= usage - 200 * MIB)
    machine.found |= {
        "usage": usage,
        "after": machine.usage(),
        "seconds": time.monotonic() - begun,
        "swapped": {number: read_number(number, "memory.swap.current") for number in GUESTS},
        "waited": {number: read_pressure(number) - waited[number] for number in GUESTS},
    }
    limits = {number: read_number(number, "memory.high") for number in GUESTS}
    assert limits[1] is None
    assert any(limits[number] for number in (2, 3))
    assert machine.found["swapped"][1] == 0
    # Long enough for the line of evictions, which has been above since.
    time.sleep(25)
    assert machine.running() == {uid(number) for number in GUESTS}
    assert machine.usage() <= usage - 100 * MIB


def test_limits_survive_the_agent(machine):
    machine.agent.kill()
    before = {number: read_number(number, "memory.high") for number in GUESTS}
    machine.agent.start()
    machine.wait_for(lambda: machine.usage() is not None)
    assert {number: read_number(number, "memory.high") for number in GUESTS} == before
    shown = {one["uuid"]: one["limits"] for one in call_agent(SOCKET, "guest.list")}
    assert {guest for guest, limits in shown.items() if limits} == {
        uid(number) for number, limit in before.items() if limit
    }


def test_all_is_given_back_when_memory_is_there_again(machine):
    machine.configure(step_lines(FAR) + evict_line(FAR))
    machine.wait_for(lambda: not any(read_number(number, "memory.high") for number in GUESTS))


def test_without_steps_a_guest_has_to_leave(machine):
    # The pages are still in swap: those that guests use come back as they use them.
    usage = machine.usage()
    machine.configure(evict_line(usage - 100 * MIB))
    machine.wait_for(lambda: len(machine.running()) < len(GUESTS))
    machine.found["evicted_without_steps"] = len(GUESTS) - len(machine.running())
    assert uid(1) in machine.running()
