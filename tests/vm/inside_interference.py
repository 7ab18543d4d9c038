"""Interference with the lever of memory bandwidth: process guests, real resctrl, and the agent in this
process with a clock for decisions that goes faster. PLACEMENT is the address of the service outside.

Counters of the machine are a model: a CPU that runs moves what its demand register says. Nobody slows down
anybody there, so that the test does: the more its neighbour may have, the more the victim's CPU suffers.
"""

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

from compute_agent import conf as agent_conf
from compute_agent.daemon import service
from compute_agent.daemon.protocol import ask
from compute_agent.events.store import FILE, read_events
from compute_agent.loops import interference
from compute_agent.resctrl import schemata
from tests.vm import inside_machine
from tests.vm.inside_machine import BASE_INI, CGROUP, FOLDER, RESCTRL, SOCKET, SPIN, Rest, uid, wait_for

inside_machine.SECONDS = 200

SPEED = 8.0
DEMAND_REGISTER = 0x400000E0
SERVER, THIEF = uid(1), uid(2)
SERVER_CPU = 1

INI = f"""{BASE_INI}
[compute]
cpu_dedicated_set = {SERVER_CPU}
cpu_shared_set = 0
[resctrl]
mount = true
memory_bandwidth_gbps = 2
[interference:x]
signal = memory_bandwidth
mode = act
"""


class Fast(service.Agent):
    """The agent, whose loop of interference goes by a fast clock."""

    def __init__(self):
        super().__init__(lambda: agent_conf.load([], [str(FOLDER / "agent.ini")]))
        interference.INTERVAL = 10.0 / SPEED
        loop = self.loop = self._loops.interference
        loop._clock = lambda: time.monotonic() * SPEED
        self._read, loop._reader.read = loop._reader.read, self._sample

    def _sample(self, views, online, signals, now, caches):
        """By the true clock, told as of the fast one."""
        sample = self._read(views, online, signals, time.monotonic(), caches)
        return sample and replace(sample, time=now)


def demand(cpu, megabytes):
    """What a running CPU would like to move in a second."""
    with open(f"/dev/cpu/{cpu}/msr", "wb", buffering=0) as file:
        os.pwrite(file.fileno(), int(megabytes).to_bytes(8, "little"), DEMAND_REGISTER)


def share():
    """Of the bandwidth what the group may have that the thief's processes are in."""
    for _ in range(100):
        try:
            return _share()
        except (OSError, ValueError):  # they are on their way from one group to another
            time.sleep(0.05)
    raise AssertionError("the thief is in no group of resctrl")


def _share():
    processes = set((CGROUP / f"guest-{THIEF}/cgroup.procs").read_text().split())
    folders = [RESCTRL, *(one for one in RESCTRL.iterdir() if (one / "schemata").is_file())]
    (folder,) = [one for one in folders if processes & set((one / "tasks").read_text().split())]
    found = schemata.parse((folder / "schemata").read_text())
    return found.get("MB", 0) / 100


CALM = 2000
"""What the victim's CPU moves in a second, in MB."""


class World:
    """The two guests, and what the one does to the other."""

    def __init__(self):
        self.loud, self.over, self.seen = False, False, []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.over:
            has = share()
            self.seen.append(has)
            demand(SERVER_CPU, CALM / (1 + 4 * has**3) if self.loud else CALM)
            time.sleep(0.5)

    def freeze(self, frozen):
        (CGROUP / f"guest-{THIEF}/cgroup.freeze").write_text(f"{int(frozen)}\n")
        self.loud = not frozen


def test_who_takes_the_bandwidth_is_limited_in_the_kernel_and_has_all_back():
    FOLDER.mkdir(exist_ok=True)
    (CGROUP.parent / "cgroup.subtree_control").write_text("+cpu +cpuset +memory")
    CGROUP.mkdir(exist_ok=True)
    (FOLDER / "agent.ini").write_text(INI)
    agent = Fast()
    agent.start()
    world = None
    try:
        wait_for(lambda: ask(SOCKET, "status")["placement"] == "up")
        rest = Rest()
        rest.claim(SERVER, machine_NUMA_0={"PCPU": 1})
        rest.claim(THIEF, machine_NUMA_0={"VCPU": 1})
        for guest, qos_class in ((SERVER, "LS"), (THIEF, "BE")):
            ask(SOCKET, "guest.run", {"uuid": guest, "command": ["sh", "-c", SPIN], "qos_class": qos_class})
        world = World()
        world.freeze(True)
        loop = agent.loop
        told = lambda: f"{read_events(FOLDER / 'state' / FILE)} {world.seen[-60:]} {loop._state}"  # noqa: E731
        wait_for(lambda: any(track.baseline.count > 35 for track in loop._state.tracks.values()), told)
        before = share()
        world.freeze(False)
        wait_for(lambda: share() < before, told)
        wait_for(lambda: any(case.guilty for case in loop._state.cases), told)
        lowest = wait_for(
            lambda: any(case.phase == "hold" for case in loop._state.cases) and min(world.seen), told
        )
        world.freeze(True)
        wait_for(lambda: not loop._state.cases, told)
        wait_for(lambda: share() == before, told)
        events = [
            (one.kind, one.text)
            for one in read_events(FOLDER / "state" / FILE)
            if one.kind in ("verdict", "throttle_down", "throttle_up") and "(x)" in one.text
        ]
        Path("found.json").write_text(json.dumps({"before": before, "lowest": lowest, "told": events}))
    finally:
        if world is not None:
            world.over = True
            world.thread.join()
        for guest in ask(SOCKET, "guest.list"):
            ask(SOCKET, "guest.stop", {"guest": guest["uuid"]})
        agent.stop()
    assert [kind for kind, _ in events][:2] == ["throttle_down", "verdict"]
    assert events[-1][0] == "throttle_up"
