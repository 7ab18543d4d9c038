"""Interference with the levers of memory bandwidth and cache ways: process guests, real resctrl, and the
agent in this process with a clock for decisions that goes by rounds. PLACEMENT is the service's address.

Counters of the machine are a model: a running CPU moves the bytes of its demand register. Guests do not slow
each other down there, so the test does. The larger the share of the neighbour, the less the victim's CPU
moves in a second if bandwidth is short, and the more if it misses the cache.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from compute_agent import conf as agent_conf
from compute_agent.agent import service
from compute_agent.agent.protocol import call_agent
from compute_agent.events.store import FILE, read_events
from compute_agent.loops import triggers
from compute_agent.resctrl import schemata
from tests.vm.inside_machine import BASE_INI, CGROUP, FOLDER, RESCTRL, SOCKET, SPIN, PlacementRest, uid
from tests.waits import wait_for

ROUND_SECONDS = triggers.INTERVAL
"""Seconds of a round, by the clock for decisions."""
PAUSE = 1.25
"""Seconds of the machine between two rounds."""
DEMAND_REGISTER = 0x400000E0
SERVER, THIEF = uid(1), uid(2)
SERVER_CPU, THIEF_CPU = 1, 0

INI = f"""{BASE_INI}
[compute]
cpu_dedicated_set = {SERVER_CPU}
cpu_shared_set = {THIEF_CPU}
[resctrl]
mount = true
memory_bandwidth_gbps = 2
[qos_class:BE]
llc_range = 0-100
"""

WAYS = 16
CALM = 500
"""Bandwidth of the victim's CPU, in MB a second."""
FLOOD = 8000
"""Bandwidth of the thief, which fills its share of the cache."""


@dataclass(frozen=True)
class Lever:
    """Share (``part``) of the resource of a group, and the bandwidth of its victim in MB a second."""

    part: Callable[[schemata.Schemata], float]
    moved: Callable[[float], float]


LEVERS = {
    "memory_bandwidth": Lever(lambda of: of.get_value("MB", 0) / 100, lambda part: CALM / (1 + 4 * part**3)),
    "llc_occupancy": Lever(
        lambda of: of.get_value("L3", 0).bit_count() / WAYS, lambda part: CALM * (1 + 4 * part**3)
    ),
}
"""By signal."""


class Fast(service.HostAgent):
    """The agent; each round of its loop of interference advances the clock for decisions by ROUND_SECONDS.

    On a busy host, rounds of a clock that only runs faster are further apart than the window of a violation.
    Each gap ends the violation, so no guest becomes a victim.
    """

    def __init__(self):
        super().__init__(lambda: agent_conf.load([], [str(FOLDER / "agent.ini")]))
        triggers.INTERVAL = PAUSE
        self._rounds = 0
        loop = self.loop = self.parts.interference
        loop._clock = lambda: self._rounds * ROUND_SECONDS
        self._read, loop._reader.read_guests = loop._reader.read_guests, self._sample

    def _sample(self, views, online, signals, now, caches):
        """Read guests by the real clock, as a sample of this round."""
        sample = self._read(views, online, signals, time.monotonic(), caches)
        self._rounds += 1
        return sample and replace(sample, time=now)


def demand(cpu, megabytes):
    """Set the demand of a running CPU, in bytes a second."""
    with open(f"/dev/cpu/{cpu}/msr", "wb", buffering=0) as file:
        os.pwrite(file.fileno(), int(megabytes).to_bytes(8, "little"), DEMAND_REGISTER)


def thiefs_schemata():
    """Read the group of the thief's processes."""
    for _ in range(100):
        try:
            return _thiefs_schemata()
        except (OSError, ValueError):  # they move from one group to another
            time.sleep(0.05)
    raise AssertionError("the thief is in no group of resctrl")


def _thiefs_schemata():
    processes = set((CGROUP / f"guest-{THIEF}/cgroup.procs").read_text().split())
    folders = [RESCTRL, *(one for one in RESCTRL.iterdir() if (one / "schemata").is_file())]
    (folder,) = [one for one in folders if processes & set((one / "tasks").read_text().split())]
    return schemata.parse_schemata((folder / "schemata").read_text())


class InterferenceWorld:
    """The two guests, and the effect of the thief on the victim."""

    def __init__(self, lever):
        self.lever, self.loud, self.over, self.seen = lever, False, False, []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def share(self):
        """Read the thief's share of the resource."""
        return self.lever.part(thiefs_schemata())

    def run(self):
        while not self.over:
            has = self.share()
            self.seen.append(has)
            demand(SERVER_CPU, self.lever.moved(has) if self.loud else CALM)
            time.sleep(0.5)

    def freeze(self, frozen):
        (CGROUP / f"guest-{THIEF}/cgroup.freeze").write_text(f"{int(frozen)}\n")
        self.loud = not frozen


def measured(loop):
    """Cores, bandwidth and occupancy of each guest in each of the last samples."""
    return [
        (round(one.time), *((of.cpu, of.bandwidth, of.occupancy) for of in one.readings.values()))
        for one in loop._trigger._samples
    ]


@pytest.mark.parametrize("signal", LEVERS)
def test_a_thief_is_limited_in_the_kernel_and_restored(signal):
    FOLDER.mkdir(exist_ok=True)
    (CGROUP.parent / "cgroup.subtree_control").write_text("+cpu +cpuset +memory")
    CGROUP.mkdir(exist_ok=True)
    (FOLDER / "agent.ini").write_text(f"{INI}[interference:x]\nsignal = {signal}\nmode = act\n")
    demand(THIEF_CPU, FLOOD)
    agent = Fast()
    agent.start()
    world = None
    try:
        wait_for(lambda: call_agent(SOCKET, "status")["placement"] == "up")
        rest = PlacementRest()
        rest.claim(SERVER, machine_NUMA_0={"PCPU": 1})
        rest.claim(THIEF, machine_NUMA_0={"VCPU": 1})
        for guest, qos_class in ((SERVER, "LS"), (THIEF, "BE")):
            call_agent(
                SOCKET, "guest.run", {"uuid": guest, "command": ["sh", "-c", SPIN], "qos_class": qos_class}
            )
        world = InterferenceWorld(LEVERS[signal])
        world.freeze(True)
        loop = agent.loop

        def told():
            return f"{read_events(FOLDER / 'state' / FILE)} {measured(loop)} {loop._trigger.state.cases}"

        wait_for(
            lambda: any(track.baseline.count > 35 for track in loop._trigger.state.tracks.values()),
            evidence=told,
        )
        before = world.share()
        world.freeze(False)
        wait_for(lambda: world.share() < before, evidence=told)
        wait_for(lambda: any(case.guilty for case in loop._trigger.state.cases), evidence=told)

        def calm(case):  # long enough that no further step is tried
            return case.phase == "hold" and loop._clock() - case.since > 90

        lowest = wait_for(
            lambda: any(map(calm, loop._trigger.state.cases)) and min(world.seen), evidence=told
        )
        world.freeze(True)
        wait_for(lambda: not loop._trigger.state.cases, evidence=told)
        wait_for(lambda: world.share() == before, evidence=told)
        events = [
            (one.kind, one.text)
            for one in read_events(FOLDER / "state" / FILE)
            if one.kind in ("verdict", "throttle_down", "throttle_up") and "(x)" in one.text
        ]
        found = {"before": before, "lowest": lowest, "told": events}
        Path("found.json").write_text(json.dumps(found))
    finally:
        if world is not None:
            world.over = True
            world.thread.join()
        for guest in call_agent(SOCKET, "guest.list"):
            call_agent(SOCKET, "guest.stop", {"guest": guest["uuid"]})
        agent.stop()
    assert [kind for kind, _ in events][:2] == ["throttle_down", "verdict"]
    assert events[-1][0] == "throttle_up"
    assert lowest < before
