"""Memory runs short beside a guest that needs it: the same host with steps, with evictions only, and without.

Two QEMU guests of the lowest class have filled their memory and do not use it. A process guest of a higher
class grows until the memory of the machine is short, and works on all of its memory. The scenario runs once
for each configuration. Runs in the virtual machine only: `test_reclaim.py` starts it there with a disk for
swap, and PLACEMENT is the service's address.
"""

import contextlib
import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from compute_agent.agent.protocol import RequestError, call_agent
from compute_agent.events.store import FILE, read_events
from tests.vm.cold_rom import FILLED, FIRST, GOOD, cold_rom
from tests.vm.inside_machine import FOLDER, SOCKET, uid
from tests.vm.memory_guests import MIB, MemoryHost, end_guests, group, read_number, read_pressure
from tests.waits import wait_for

COLD = 250
"""MiB that a QEMU guest fills."""
START, GROWTH, CHUNK = 100, 560, 16
"""MiB of the victim: at first, what it takes in addition, and what it takes at once."""
WORK_SECONDS = 40
"""Seconds for which the victim works after it has grown."""
VICTIM = 9
COLD_GUESTS = (1, 2)
QEMU = Path("/mnt/share/qemu")

WORKER = f"""
import json, os, sys, time
mib, grow, shrink, report = 1 << 20, *sys.argv[1:]
parts = []
def take(size):
    parts.append(bytearray(size * mib))
    parts[-1][::4096] = b"w" * (size * mib // 4096)
take({START})
passes, slowest, growing = 0, 0.0, 0
while True:
    begun = time.monotonic()
    for part in parts:
        part[::4096] = b"x" * (len(part) // 4096)
        time.sleep(0.01)
    passes, slowest = passes + 1, max(slowest, time.monotonic() - begun)
    if os.path.exists(grow) and growing < {GROWTH}:
        take({CHUNK})
        growing += {CHUNK}
    if os.path.exists(shrink) and growing:
        del parts[1:]
        growing = {GROWTH}
    with open(report + ".new", "w") as file:
        json.dump({{"passes": passes, "slowest": slowest, "grown": growing}}, file)
    os.rename(report + ".new", report)
    time.sleep(0.2)
"""

EVICTION = """
[watermark:memory]
metric = memory_usage
evict = 94%
for_samples = 2
"""
STEPS = """
[watermark:memory]
metric = memory_usage
reclaim = 80%
throttle_down = 87%
throttle_up = 70%
evict = 94%
for_samples = 2
cool_down = 4
min_share = 15
step = 10
"""
"""The lines of doc/host/watermarks.md, with a smaller share that stays, because these guests are idle."""
RUNS = {"the kernel alone": "", "evictions only": EVICTION, "steps": STEPS}


def read_counts(number):
    """The numbers of a guest's memory.stat."""
    lines = (group(number) / "memory.stat").read_text().splitlines()
    return {name: int(count) for name, count in map(str.split, lines)}


def refaults(number):
    counts = read_counts(number)
    return counts["workingset_refault_anon"] + counts["workingset_refault_file"]


class ReclaimHost(MemoryHost):
    """The host, and what the runs have found."""

    def __init__(self):
        super().__init__()
        self.found = {"kernel": os.uname().release, "runs": {}}

    def count_events(self, kind, since):
        """The number of actions of a kind that succeeded since a time."""
        events = read_events(FOLDER / "state" / FILE)
        return sum((one.kind, one.outcome) == (kind, "done") and one.time >= since for one in events)


class ColdGuest:
    """A QEMU guest that uses none of the pages that it has filled."""

    def __init__(self, host, number, folder):
        self.number, self._told, self._monitor = number, folder / f"{number}.told", folder / f"{number}.sock"
        rom = folder / f"{number}.rom"
        rom.write_bytes(cold_rom(FIRST + COLD * MIB))
        program = ["env", f"LD_LIBRARY_PATH={QEMU}", QEMU / "qemu-rdt"]
        machine = [
            "-nodefaults",
            "-machine",
            "pc,usb=off,smm=off,vmport=off,hpet=off",
            "-cpu",
            "486",
            "-accel",
            "tcg,tb-size=8",
        ]
        devices = ["-display", "none", "-debugcon", f"file:{self._told}"]
        monitor = ["-monitor", f"unix:{self._monitor},server=on,wait=off"]
        memory = ["-m", COLD + 16, "-bios", rom, "-L", QEMU / "firmware"]
        host.start(number, "BE", COLD + 70, [*program, *machine, *memory, *devices, *monitor])

    def told(self):
        return self._told.read_text() if self._told.exists() else ""

    def check_pages(self):
        """Have the guest read all of its pages, and return the character for the result."""
        before = len(self.told())
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.connect(str(self._monitor))
            monitor.sendall(b"nmi\n")
            wait_for(lambda: len(self.told()) > before, "the guest has checked its pages")
        return self.told()[-1]


@pytest.fixture(scope="module")
def host():
    subprocess.check_call("mkswap /dev/vda && swapon /dev/vda", shell=True)
    host = ReclaimHost()
    host.agent.start()
    yield host
    Path("reclaim.json").write_text(json.dumps(host.found))
    host.agent.kill()
    end_guests((*COLD_GUESTS, VICTIM))


@pytest.mark.parametrize("name", RUNS)
def test_memory_is_short(host, name, tmp_path):
    files = [tmp_path / each for each in ("grow", "shrink", "report")]
    grow, shrink, report = files

    def reported():
        return json.loads(report.read_text()) if report.exists() else {"passes": 0, "grown": 0}

    began_at = time.time()
    cold = [ColdGuest(host, number, tmp_path) for number in COLD_GUESTS]
    host.start(VICTIM, "LS", START + GROWTH + 40, ["python3", "-c", WORKER, *files])
    for guest in cold:
        host.wait_for(lambda guest=guest: FILLED in guest.told())
    host.wait_for(lambda: reported()["passes"])
    host.configure(RUNS[name])
    before = {"pressure": read_pressure(VICTIM), "refaults": refaults(VICTIM), **reported()}
    begun, most = time.monotonic(), 0.0
    grow.touch()
    host.wait_for(lambda: reported()["grown"] == GROWTH)
    grown = time.monotonic()
    while time.monotonic() - grown < WORK_SECONDS:
        most = max(most, read_number(VICTIM, "memory.swap.current") / MIB)
        time.sleep(1)
    seconds = time.monotonic() - begun
    left = [guest for guest in cold if uid(guest.number) in host.running()]
    this = host.found["runs"][name] = {
        "evicted": len(cold) - len(left),
        "reclaims": host.count_events("reclaim", began_at),
        "limited": sum(read_number(guest.number, "memory.high") is not None for guest in left),
        "seconds": seconds,
        "grown after": grown - begun,
        "waited": (read_pressure(VICTIM) - before["pressure"]) / 1e6,
        "refaults": refaults(VICTIM) - before["refaults"],
        "victim's swap": most,
        "cold swap": sum(read_number(guest.number, "memory.swap.current") for guest in left) / MIB,
        "passes": reported()["passes"] - before["passes"],
        "slowest": reported()["slowest"],
    }
    # Memory is there again: limits are removed, and the guests read all of their pages.
    shrink.touch()
    host.wait_for(lambda: read_number(VICTIM, "memory.current") < 2 * START * MIB)
    host.wait_for(lambda: not any(read_number(guest.number, "memory.high") for guest in left))
    begun = time.monotonic()
    results = [guest.check_pages() for guest in left]
    this["read back after"] = time.monotonic() - begun
    this["cold swap afterwards"] = sum(read_number(one.number, "memory.swap.current") for one in left) / MIB
    assert results == [GOOD] * len(left)
    shown = {one["uuid"]: one["limits"] for one in call_agent(SOCKET, "guest.list")}
    assert not any(shown.values())
    for number in (*[guest.number for guest in left], VICTIM):
        with contextlib.suppress(RequestError):
            call_agent(SOCKET, "guest.stop", {"guest": uid(number)})
    host.configure("")
    host.wait_for(lambda: not host.running())
