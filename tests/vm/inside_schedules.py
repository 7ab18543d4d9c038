"""The agent gives priorities and cookies to process guests that share a core, and partitions to them.

Then the kernel's tracer measures a CPU that no guest holds.

Runs in the virtual machine only: `test_schedules.py` starts it there, and PLACEMENT is the service's address.
CPUs N and N + 4 are the threads of a core.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compute_agent.agent.protocol import call_agent
from compute_agent.host import kernel_files
from compute_agent.model import cpuset
from compute_agent.schedules.cookies import CookieError, KernelCookies
from compute_agent.schedules.realtime import USUAL, KernelSchedules, realtime_schedule
from tests.vm.inside_machine import BASE_INI, CGROUP, FOLDER, SOCKET, PlacementRest, make_agent, uid
from tests.waits import wait_for

INI = f"""{BASE_INI}
[compute]
cpu_dedicated_set = 2-3,6-7
cpu_shared_set = 0-1,4-5
update_resources_interval = 1
[guests]
reconcile_interval = 1
"""
CLASSES = """
[qos_class:LSR]
realtime_priority = 5
core_scheduling = guest
isolation = alone
"""
SCHEDULE = realtime_schedule(5, in_turn=True)
COOKIES, SCHEDULES = KernelCookies(), KernelSchedules()
MODERN = Path("/sys/fs/cgroup/cpuset.cpus.isolated").exists()
try:
    HAS_COOKIES = COOKIES.read_cookie(os.getpid()) is not None
except CookieError:
    HAS_COOKIES = False
TRACING = Path("/sys/kernel/tracing")
if not (TRACING / "trace").exists():
    subprocess.run(["mount", "-t", "tracefs", "none", TRACING], check=False)
HAS_TRACER = "osnoise" in (kernel_files.read_optional(f"{TRACING}/available_tracers") or "")
needs_cookies = pytest.mark.skipif(not HAS_COOKIES, reason="the kernel has no core scheduling")
# A child each second shows what new processes have.
SPIN = "while :; do sleep 1; done & while :; do :; done"
SECONDS = 6.0
used = {}
"""Cores that both guests used together, by what they had."""


@pytest.fixture(scope="module")
def agent():
    agent = make_agent(INI)
    # As with systemd, no process of the host is in the root of the groups.
    slice = CGROUP.parent / "system.slice"
    slice.mkdir()
    for pid in (CGROUP.parent / "cgroup.procs").read_text().split():
        if os.path.exists(f"/proc/{pid}/exe"):
            (slice / "cgroup.procs").write_text(pid)
    agent.start()
    yield agent
    print(agent.log())
    agent.kill()


@pytest.fixture(scope="module")
def guests(agent):
    """Two guests, each with one thread of the same core."""
    found = {}
    for number in (1, 2):
        PlacementRest().claim(uid(number), machine_NUMA_0={"PCPU": 1})
        command = ["sh", "-c", SPIN]
        guest = call_agent(SOCKET, "guest.run", {"uuid": uid(number), "command": command, "qos_class": "LSR"})
        found[number] = guest["pid"], min(cpuset.parse(guest["cpus"]))
    assert abs(found[1][1] - found[2][1]) == 4, "they share a core"
    return found


def reload(agent, text):
    (FOLDER / "agent.ini").write_text(text)
    agent.process.send_signal(1)


def processes(number):
    return {int(line) for line in (CGROUP / f"guest-{uid(number)}/cgroup.procs").read_text().split()}


def cookies(number):
    return {COOKIES.read_cookie(pid) for pid in processes(number)} - {None}


def schedules(number):
    return {SCHEDULES.read(pid) for pid in processes(number)} - {None}


def used_cores(guests):
    """Cores that both guests use together."""

    def ticks(pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before, since = sum(ticks(pid) for pid, _ in guests.values()), time.monotonic()
    time.sleep(SECONDS)
    used = sum(ticks(pid) for pid, _ in guests.values()) - before
    return used / os.sysconf("SC_CLK_TCK") / (time.monotonic() - since)


def test_without_options_guests_share_the_core(agent, guests):
    assert schedules(1) == {USUAL}
    assert not HAS_COOKIES or cookies(1) == cookies(2) == {0}
    used["without"] = used_cores(guests)
    assert used["without"] > 1.4
    if HAS_COOKIES:
        # As coresched(1) starts a program.
        COOKIES.create_cookie(agent.process.pid)
    reload(agent, INI + CLASSES)
    wait_for(lambda: SCHEDULES.read(guests[1][0]) == SCHEDULE, evidence=agent.log)


@needs_cookies
def test_guests_with_cookies_never_run_on_one_core_together(agent, guests):
    wait_for(lambda: 0 not in cookies(1) | cookies(2), evidence=agent.log)
    used["with"] = used_cores(guests)
    assert (len(cookies(1)), len(cookies(2)), len(cookies(1) | cookies(2))) == (1, 1, 2)
    assert used["with"] < 1.2
    assert COOKIES.read_cookie(agent.process.pid) == 0


@pytest.mark.skipif(HAS_COOKIES, reason="the kernel has core scheduling")
def test_a_kernel_without_core_scheduling_is_told(guests):
    refused = call_agent(SOCKET, "guest.show", {"guest": uid(1)})["refused"]
    assert any("CONFIG_SCHED_CORE" in reason for reason in refused)
    assert used_cores(guests) > 1.4


def test_threads_have_the_priority_and_new_ones_get_it(agent, guests):
    # The child that sleeps is new all the time; its parent is not.
    wait_for(lambda: sum(SCHEDULES.read(each) == SCHEDULE for each in processes(1)) >= 2)
    assert ("stops busy realtime threads" in agent.log()) != MODERN


def test_a_lost_schedule_is_repaired(agent, guests):
    SCHEDULES.write(guests[1][0], USUAL)
    wait_for(lambda: SCHEDULES.read(guests[1][0]) == SCHEDULE, evidence=agent.log)


@needs_cookies
def test_a_lost_cookie_is_repaired_and_a_restart_makes_no_second_one(agent, guests):
    COOKIES.grant_cookie(0, processes(1) - {guests[1][0]})
    wait_for(lambda: len(cookies(1)) == 1 and 0 not in cookies(1), evidence=agent.log)
    COOKIES.grant_cookie(0, processes(1))
    wait_for(lambda: 0 not in cookies(1), evidence=agent.log)
    before = cookies(1), cookies(2)
    agent.kill()
    agent.start()
    time.sleep(3)
    assert (cookies(1), cookies(2)) == before


def test_a_guest_that_is_alone_is_verified(agent, guests):
    def states():
        rows = call_agent(SOCKET, "guest.verify", {"guest": uid(1)})
        return {row["kind"]: row["state"] for row in rows}

    _, cpu = guests[1]
    group = CGROUP / f"guest-{uid(1)}"
    if MODERN:
        wait_for(lambda: (group / "cpuset.cpus.partition").read_text().strip() == "isolated")
    wait_for(lambda: states()["alone"] == "kept", evidence=lambda: (states(), agent.log()))
    assert states()["cpus"] == "kept"
    # The child that sleeps has the usual schedule until the next reconcile.
    assert states()["realtime"] in ("kept", "limited")
    assert states()["core_scheduling"] == ("kept" if HAS_COOKIES else "limited")
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            # The kernel keeps processes of the host off, whatever these want.
            with pytest.raises(OSError, match="Invalid"):
                os.sched_setaffinity(process.pid, {cpu})
            # Elsewhere in the tree only a partition does.
            stranger = CGROUP.parent / "stranger"
            stranger.mkdir()
            (stranger / "cgroup.procs").write_text(str(process.pid))
            if MODERN:
                with pytest.raises(OSError, match="Invalid"):
                    os.sched_setaffinity(process.pid, {cpu})
        finally:
            process.kill()


@pytest.mark.skipif(not HAS_TRACER, reason="the kernel has no tracer osnoise")
def test_the_tracer_measures_cpus_that_no_guest_holds(agent, guests):
    before = (TRACING / "osnoise/cpus").read_text()
    command = [sys.executable, "-m", "compute_agent.cmd.main", "--config-file", FOLDER / "agent.ini"]
    command += ["cpu", "noise", "--osnoise", "--seconds", "3", "-f", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = {row["cpu"]: row for row in json.loads(done.stdout)}
    assert rows.keys() == {2, 3, 6, 7} - {cpu for _, cpu in guests.values()}
    assert all(row["by"] == "osnoise" and row["interrupts"] > 0 for row in rows.values())
    assert all(row["longest_us"] > 0 for row in rows.values())
    assert (TRACING / "osnoise/cpus").read_text() == before
    assert list((TRACING / "instances").iterdir()) == []
    used["noise"] = list(rows.values())


def test_release_gives_all_back(agent, guests):
    agent.kill()
    command = [sys.executable, "-m", "compute_agent.cmd.main", "--config-file", FOLDER / "agent.ini"]
    subprocess.run([*command, "release"], check=False)
    for number in guests:
        assert not HAS_COOKIES or cookies(number) == {0}
        assert schedules(number) == {USUAL}
        if MODERN:
            partition = CGROUP / f"guest-{uid(number)}/cpuset.cpus.partition"
            assert partition.read_text().strip() == "member"
    Path("/mnt/share/cores.json").write_text(json.dumps(used))
