"""Tests of guests without a place or without a known allocation, and of changed CPU sets under a guest.

The guests are real processes on two CPUs.
"""

import os

import pytest

from tests.compute_agent.builders import hold_resources
from tests.compute_agent.cmd.agents import AgentProcess, allowed_cpus

NO_PLACE = "the host has no shared CPUs, and the guest holds no PCPU"


@pytest.fixture
def sets(configure, metrics_port):
    """A function that writes the ini file with CPU sets. The agent reads from Placement every second."""

    def sets(dedicated, shared=None):
        lines = [f"cpu_dedicated_set = {dedicated}"] if dedicated else []
        lines += [f"cpu_shared_set = {shared}"] if shared else []
        return configure(
            "\n".join([*lines, "provider_tree = flat", "update_resources_interval = 1"]),
            guests="drivers = process\nreconcile_interval = 0.3\nstop_timeout = 0.2",
            daemon=f"http_port = {metrics_port}",
        )

    return sets


@pytest.fixture
def agent(client, sets):
    """An agent on a host with CPUs 0 and 1. CPU 0 is dedicated, and no CPU is shared."""
    with AgentProcess(sets("0")) as agent:
        agent.start_reporting()
        yield agent


@pytest.fixture
def claim(agent, client):
    """A function that allocates resources of the host to a consumer."""

    def claim(consumer, **resources):
        hold_resources(client, consumer, {agent.status()["provider_uuid"]: resources})

    return claim


def run(agent, uid):
    return agent.ask("guest", "run", "--uuid", uid, "--name", f"name-{uid[:4]}", "--", "sleep", "600")["pid"]


def listed(agent, uid):
    return next(guest for guest in agent.ask("guest", "list") if guest["uuid"] == uid)


def test_a_guest_that_loses_its_allocation_gives_way_where_nothing_is_shared(agent, claim, metric, uid):
    claim(uid, PCPU=1)
    pid = run(agent, uid)
    assert allowed_cpus(pid) == "0"
    claim(uid)
    agent.wait_for(lambda: allowed_cpus(pid) == "0-1")
    guest = listed(agent, uid)
    assert (guest["kind"], guest["cpus"], guest["reason"]) == ("unplaced", "0-1", NO_PLACE)
    assert agent.status()["refused_guests"] == [uid]
    assert agent.status()["reasons"] == {uid: NO_PLACE}
    assert metric("compute_agent_refused_guests") == 1
    assert f"the CPUs that it needs: {NO_PLACE}; it runs on CPUs that no guest holds, 0-1" in agent.log()

    other = f"{uid[:-4]}0000"
    claim(other, PCPU=1)
    assert allowed_cpus(run(agent, other)) == "0"
    assert allowed_cpus(pid) == "1"

    agent.kill()
    agent.start()
    agent.wait_for(lambda: listed(agent, uid)["reason"] == NO_PLACE)
    assert allowed_cpus(pid) == "1"
    agent.ask("guest", "stop", other)
    agent.wait_for(lambda: allowed_cpus(pid) == "0-1")


def test_cpu_sets_that_move_under_a_guest_are_shown_and_it_moves_on_request(agent, claim, sets, metric, uid):
    claim(uid, PCPU=1)
    pid = run(agent, uid)
    stray = "CPU 0 is not in [compute] cpu_dedicated_set any more"
    sets("1", "0")
    (warning,) = agent.ask("config", "check")["warnings"]
    assert warning == (
        f"Guest {uid} stays where it is, and no other guest gets its CPUs, but {stray}:"
        f" compute-agent guest move {uid} moves it into the current CPU sets"
    )
    agent.wait_for(lambda: agent.status()["stray_guests"] == [uid])
    assert agent.status()["reasons"] == {uid: stray}
    assert listed(agent, uid)["reason"] == stray
    assert metric("compute_agent_stray_guests") == 1
    assert f"({uid}) stays where it is, and no other guest gets its CPUs, but {stray}" in agent.log()
    # the test waits until the change has been reported
    agent.wait_for(lambda: agent.cli("audit").returncode == 3)
    _, findings = agent.audit("--consumer", uid)
    assert [(it["finding"], it["detail"], it["remedy"]) for it in findings] == [
        ("guest on CPUs outside the sets", stray, "guest move")
    ]

    refused = agent.cli("guest", "run", "--", "sleep", "9")
    assert refused.returncode == 1
    assert "the host has no shared CPUs that no other guest holds" in refused.stderr
    assert allowed_cpus(pid) == "0"

    planned = agent.ask("guest", "move", uid, "--dry-run")
    assert (planned["from"], planned["to"], planned["outcome"]) == ("0", "1", "would be moved")
    assert allowed_cpus(pid) == "0"
    assert agent.ask("guest", "move", uid)["outcome"] == "moved"
    assert allowed_cpus(pid) == "1"
    assert agent.status()["reasons"] == {}
    assert metric("compute_agent_stray_guests") == 0
    assert agent.ask("config", "check")["warnings"] == []
    assert agent.ask("guest", "move", uid)["outcome"] == "stays"
    assert allowed_cpus(agent.ask("guest", "run", "--", "sleep", "600")["pid"]) == "0"


def test_without_the_daemon_config_check_knows_the_guests_from_the_state(agent, claim, sets, uid):
    claim(uid, PCPU=1)
    run(agent, uid)
    agent.kill()
    sets("1", "0")
    assert [uid in warning for warning in agent.ask("config", "check")["warnings"]] == [True]
    (agent.folder / "state.json").write_text("nonsense")
    (warning,) = agent.ask("config", "check")["warnings"]
    assert warning.startswith("Whether guests hold CPUs outside the CPU sets is not known: ")


def test_a_move_without_room_is_refused_with_the_reason(agent, claim, sets, uid):
    claim(uid, PCPU=1)
    pid = run(agent, uid)
    sets(None, "0-1")
    agent.wait_for(lambda: agent.status()["stray_guests"] == [uid])
    done = agent.cli("guest", "move", uid)
    assert done.returncode == 1
    assert (
        f"guest {uid} cannot be moved: testhost has 0 free dedicated CPUs (none), but 1 are needed"
        in done.stderr
    )
    assert allowed_cpus(pid) == "0"
    assert allowed_cpus(agent.ask("guest", "run", "--", "sleep", "600")["pid"]) == "1"


@pytest.mark.parametrize("restarts", [0, 1], ids=["the agent runs on", "the agent is restarted"])
def test_a_guest_restarted_while_placement_is_away_keeps_its_dedicated_cpu(
    agent, claim, live_placement, uid, restarts
):
    claim(uid, PCPU=1)
    run(agent, uid)
    live_placement.stop()
    agent.ask("guest", "stop", uid)
    for _ in range(restarts):
        agent.kill()
        agent.start()
    pid = run(agent, uid)
    assert (allowed_cpus(pid), listed(agent, uid)["kind"]) == ("0", "dedicated")
    live_placement.start()
    agent.wait_for_placement()
    assert (allowed_cpus(pid), agent.status()["reasons"]) == ("0", {})


def test_a_guest_of_which_nothing_is_known_is_not_shown_as_one_without_allocation(
    agent, claim, live_placement, metric, uid
):
    claim(uid, PCPU=1)
    pid = run(agent, uid)
    live_placement.stop()
    agent.kill()
    (agent.folder / "state.json").unlink()
    os.sched_setaffinity(pid, {0, 1})  # so that nothing tells what it held
    agent.start()
    guest = listed(agent, uid)
    assert (guest["kind"], guest["reason"]) == (
        "unknown",
        "the allocation is not known yet from Placement",
    )
    status = agent.status()
    assert (status["unknown_guests"], status["unallocated_guests"]) == ([uid], [])
    assert metric("compute_agent_unknown_guests") == 1
    assert metric("compute_agent_unallocated_guests") == 0
    audit = agent.cli("audit")
    assert (audit.returncode, audit.stdout) == (1, "")
    live_placement.start()
    agent.wait_for(lambda: listed(agent, uid)["kind"] == "dedicated")
    assert allowed_cpus(pid) == "0"
