"""Tests of events that an agent must survive, and of configurations that it must refuse."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from threading import Thread

import pytest

from compute_agent.agent.protocol import DaemonUnreachableError, call_agent
from compute_agent.drivers import procfs
from tests.compute_agent.builders import release_resources
from tests.compute_agent.cmd.agents import allowed_cpus


def test_a_killed_agent_finds_its_guest_where_it_was(agent, claim, client, uid, live_placement):
    claim(uid, PCPU=1)
    guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    assert guest["kind"] == "dedicated"
    assert allowed_cpus(guest["pid"]) == guest["cpus"] == "0"
    held = client.get_allocations(uid)

    for _ in range(3):
        agent.kill()
        assert allowed_cpus(guest["pid"]) == "0"
        live_placement.writes()
        agent.start_reporting()
        assert agent.ask("guest", "show", uid) == guest
        assert procfs.identify_process(guest["pid"]) is not None
        assert allowed_cpus(guest["pid"]) == "0"
        assert client.get_allocations(uid) == held
        assert live_placement.writes() == []

    agent.ask("guest", "stop", uid)
    assert agent.ask("guest", "list") == []
    assert procfs.identify_process(guest["pid"]) is None


def test_overlapping_sets_are_refused_and_the_cpu_named(agent, write_ini):
    ini = write_ini("overlap.ini", compute="cpu_dedicated_set = 0-1\ncpu_shared_set = 1")
    for done in (agent.run_in_vain(ini), agent.cli("config", "check", ini=ini)):
        assert done.returncode == 1
        assert "CPU 1" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_second_agent_on_the_same_state_is_refused(agent):
    agent.start()
    done = agent.run_in_vain()
    assert done.returncode == 1
    assert f"another agent (pid {agent.process.pid}) works on the state folder {agent.folder}" in done.stderr
    assert agent.status()["pid"] == agent.process.pid


@pytest.mark.parametrize("damage", [b"", b"{", None])
def test_without_a_usable_state_file_the_guest_stays_where_it_was(agent, claim, uid, damage):
    claim(uid, PCPU=1)
    guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    agent.kill()
    path = agent.folder / "state.json"
    path.unlink() if damage is None else path.write_bytes(damage)
    agent.start_reporting()
    agent.wait_for(lambda: agent.ask("guest", "show", uid) == guest)
    assert ("cannot be used" in agent.log()) == (damage is not None)
    assert json.loads(path.read_bytes())["data"]["guests"].keys() == {uid}


def test_sigterm_ends_the_agent_and_leaves_the_guest(agent, claim, uid):
    claim(uid, PCPU=1)
    guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    assert agent.terminate() == 0
    assert allowed_cpus(guest["pid"]) == "0"
    assert not (agent.folder / "agent.sock").exists()


def test_a_guest_that_dies_is_forgotten_and_its_cpu_free(agent, claim, client, uid):
    claim(uid, PCPU=1)
    guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    os.kill(guest["pid"], signal.SIGKILL)
    agent.wait_for(lambda: agent.ask("guest", "list") == [])
    assert [row["finding"] for row in agent.audit()[1]] == ["allocation without guest"]
    assert agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")["cpus"] == "0"


def test_a_guest_with_many_threads_never_leaves_its_cpu(agent, claim, uid):
    claim(uid, PCPU=1)
    script = (
        "import os, threading, time\n"
        "places = set()\n"
        "def note(): places.add(tuple(os.sched_getaffinity(0))); time.sleep(60)\n"
        "for _ in range(30): threading.Thread(target=note, daemon=True).start()\n"
        "time.sleep(0.2)\n"
        "print(sorted(places), flush=True)\n"
        "time.sleep(60)\n"
    )
    guest = agent.ask("guest", "run", "--uuid", uid, "--", sys.executable, "-c", script)

    def output():
        with open(guest["log"]) as log:
            return log.read()

    assert agent.wait_for(output) == "[(0,)]\n"


def test_a_changed_affinity_is_repaired(agent, claim, uid, write_ini):
    claim(uid, PCPU=1)
    guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    os.sched_setaffinity(guest["pid"], {0, 1})
    agent.wait_for(lambda: allowed_cpus(guest["pid"]) == "0")


def test_a_process_is_adopted_and_survives_the_agent(agent, claim, uid):
    claim(uid, VCPU=1)
    process = subprocess.Popen(["sleep", "100"])
    try:
        guest = agent.ask("guest", "adopt", "--uuid", uid, "--name", "old", "--pid", process.pid)
        assert (guest["origin"], guest["kind"], allowed_cpus(process.pid)) == ("adopted", "shared", "1")
        agent.kill()
        agent.start()
        assert agent.ask("guest", "show", "old")["pid"] == process.pid
        process.kill()
        process.wait()
        agent.wait_for(lambda: agent.ask("guest", "list") == [])
    finally:
        process.kill()
        process.wait()


def test_an_agent_that_starts_without_placement_catches_up(agent, live_placement, client, uid):
    live_placement.stop()
    agent.start()
    agent.wait_for(lambda: agent.status()["placement"] == "away")
    assert "/" in agent.status()["last_error"]
    done = agent.cli("guest", "run", "--uuid", uid, "--", "sleep", "100")
    assert done.returncode == 1
    assert f"the allocation of guest {uid} cannot be read" in done.stderr
    live_placement.start()
    agent.wait_for_placement()
    assert client.providers_in_tree(agent.status()["provider_uuid"]) != []


def test_placement_away_while_guests_run_changes_nothing_for_them(agent, claim, uid, live_placement):
    claim(uid, PCPU=1)
    guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    live_placement.stop()
    agent.kill()
    agent.start()
    agent.wait_for(lambda: agent.status()["placement"] == "away")
    assert agent.ask("guest", "show", uid) == guest
    os.sched_setaffinity(guest["pid"], {0, 1})
    agent.wait_for(lambda: allowed_cpus(guest["pid"]) == "0")
    agent.ask("guest", "stop", uid)


def test_a_change_of_the_configuration_applies_at_run_time(agent, claim, client, numa_node, write_ini):
    assert client.get_inventories(numa_node)[0].keys() >= {"PCPU", "VCPU"}
    write_ini(compute="cpu_shared_set = 0-1\nresource_provider_name = testhost")
    agent.process.send_signal(signal.SIGHUP)
    agent.wait_for(lambda: "PCPU" not in client.get_inventories(numa_node)[0])
    assert client.get_inventories(numa_node)[0]["VCPU"]["total"] == 2

    write_ini(compute="cpu_shared_set = 0-1,77\nresource_provider_name = testhost")
    agent.wait_for(lambda: "77" in agent.status()["config_error"])
    assert client.get_inventories(numa_node)[0]["VCPU"]["total"] == 2
    write_ini(compute="cpu_shared_set = 1\nresource_provider_name = testhost")
    agent.wait_for(lambda: client.get_inventories(numa_node)[0]["VCPU"]["total"] == 1)
    assert agent.status()["config_error"] == ""


def test_removal_of_capacity_in_use_is_refused_and_shown(agent, claim, client, numa_node, write_ini, uid):
    claim(uid, PCPU=1)
    guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    write_ini(compute="cpu_shared_set = 0-1\nresource_provider_name = testhost")
    agent.process.send_signal(signal.SIGHUP)
    agent.wait_for(lambda: agent.status()["refused"])
    assert client.get_inventories(numa_node)[0]["PCPU"]["total"] == 1
    assert allowed_cpus(guest["pid"]) == "0"
    agent.ask("guest", "stop", uid)
    release_resources(client, uid)
    agent.wait_for(lambda: not agent.status()["refused"])
    assert "PCPU" not in client.get_inventories(numa_node)[0]


def test_an_agent_killed_while_it_starts_guests_leaves_none_unpinned(agent, numa_node):
    """Whatever runs after the kill is pinned and known to the next agent, or does not run at all."""

    duration = str(100 + uuid.uuid4().int % 10**9)  # tells these guests from all other processes

    def start_one(name):
        with contextlib.suppress(DaemonUnreachableError):
            call_agent(
                agent.folder / "agent.sock", "guest.run", {"name": name, "command": ["sleep", duration]}
            )

    def known():
        return {guest["pid"] for guest in agent.ask("guest", "list")}

    def running():
        return {pid for pid in procfs.all_pids() if procfs.command_line(pid) == ("sleep", duration)}

    for pause in (0.0, 0.004, 0.008, 0.02):
        starters = [Thread(target=start_one, args=(f"guest-{pause}-{n}",)) for n in range(5)]
        for starter in starters:
            starter.start()
        time.sleep(pause)
        agent.kill()
        for starter in starters:
            starter.join()
        agent.start()
        agent.wait_for(lambda: known() == running())
        assert {allowed_cpus(pid) for pid in known()} <= {"1"}


def test_logs_of_ended_guests_are_removed_by_age(agent, numa_node, uid, write_ini):
    guests = {name: agent.ask("guest", "run", "--name", name, "--", "sleep", "100") for name in ("a", "b")}
    agent.ask("guest", "run", "--uuid", uid, "--", "echo", "the last words")
    agent.wait_for(lambda: len(agent.ask("guest", "list")) == 2)
    agent.kill()
    logs = {name: Path(guest["log"]) for name, guest in guests.items()} | {
        "ended": agent.folder / "guests" / f"{uid}.log"
    }
    for log in logs.values():
        os.utime(log, (time.time() - 8 * 86400,) * 2)
    os.kill(guests["b"]["pid"], signal.SIGKILL)
    agent.start()
    agent.wait_for(lambda: not logs["ended"].exists())
    assert "Removed the logs of 1 guests that have ended (15 bytes)" in agent.log()
    assert logs["a"].exists()  # it runs
    assert logs["b"].exists()  # it had its last output long ago, but ended just now
