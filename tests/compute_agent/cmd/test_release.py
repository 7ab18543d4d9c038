"""Tests of the release of a host: some settings are undone, some stay, and no agent applies them again."""

import json
import os
import signal

import pytest

from compute_agent.cmd import release as command
from compute_agent.drivers import procfs
from tests.compute_agent.builders import release_resources
from tests.compute_agent.cmd.agents import SECONDS, allowed_cpus, run_here

DISABLED = "COMPUTE_STATUS_DISABLED"
CLOSED = {"scheduling": {"stays: new guests are kept away until all else is given back"}}


def release(agent, *arguments):
    """Release the host; return the exit status, and the outcomes by kind."""
    done = agent.cli("release", *arguments, "-f", "json")
    assert done.stdout, done.stderr
    outcomes = {}
    for row in json.loads(done.stdout):
        outcomes.setdefault(row["kind"], set()).add(row["outcome"])
    return done.returncode, outcomes


@pytest.fixture
def guest(agent, claim, uid):
    """A guest on a dedicated CPU."""
    claim(uid, PCPU=1)
    guest = agent.ask("guest", "run", "--uuid", uid, "--name", "web-1", "--", "sleep", "300")
    assert allowed_cpus(guest["pid"]) == "0"
    return guest


def test_a_host_is_left_step_by_step(agent, guest, client, uid):
    root = agent.status()["provider_uuid"]
    agent.ask("host", "disable", "--reason", "it leaves")
    assert DISABLED in client.get_traits(root)[0]
    status, outcomes = release(agent)
    assert (status, agent.process.wait(SECONDS)) == (0, 0)
    assert outcomes == {
        "scheduling": {"given back"},
        "pins": {"stays: --pins gives it back"},
        "provider": {"stays: --provider gives it back"},
    }
    assert DISABLED not in client.get_traits(root)[0]
    assert (procfs.identify_process(guest["pid"]) is not None, allowed_cpus(guest["pid"])) == (True, "0")

    assert release(agent, "--pins")[1]["pins"] == {"given back"}
    online = frozenset(os.sched_getaffinity(0))
    assert {0, 1} <= procfs.thread_affinity(guest["pid"]) >= online
    assert "pins" not in release(agent)[1]

    status, outcomes = release(agent, "--provider")
    assert (status, outcomes) == (1, {"provider": {f"failed: 1 consumers hold something: {uid}"}, **CLOSED})
    assert len(client.providers_in_tree(root)) == 2
    release_resources(client, uid)
    # only the release before has kept new guests away, and this is no setting of the host
    assert release(agent, "--provider") == (0, {"provider": {"given back"}})
    assert client.providers_in_tree(root) == []
    assert release(agent, "--provider", "--pins") == (0, {})


def test_new_guests_are_kept_away_as_long_as_anything_is_not_given_back(agent, guest, client, uid):
    root = agent.status()["provider_uuid"]
    agent.ask("host", "disable", "--reason", "it leaves")
    stays = "stays: new guests are kept away until all else is given back"
    held = f"failed: 1 consumers hold something: {uid}"
    _, outcomes = release(agent, "--dry-run", "--pins", "--provider")
    assert (outcomes["scheduling"], outcomes["provider"]) == ({stays}, {held})
    for _ in range(2):
        status, outcomes = release(agent, "--pins", "--provider")
        assert (status, outcomes["scheduling"], outcomes["provider"]) == (1, {stays}, {held})
        assert DISABLED in client.get_traits(root)[0]
    release_resources(client, uid)
    status, outcomes = release(agent, "--pins", "--provider")
    assert (status, outcomes) == (0, {"provider": {"given back"}, "scheduling": {"given back"}})
    assert client.providers_in_tree(root) == []


def test_a_release_that_fails_keeps_new_guests_away_from_a_host_that_was_open(agent, guest, client, uid):
    root = agent.status()["provider_uuid"]
    assert DISABLED not in client.get_traits(root)[0]
    _, outcomes = release(agent, "--dry-run", "--pins", "--provider")
    assert outcomes["scheduling"] == {"would be kept away until all else is given back"}
    assert DISABLED not in client.get_traits(root)[0]
    stays = "stays: new guests are kept away until all else is given back"
    for _ in range(2):
        done = agent.cli("release", "--pins", "--provider", "-f", "json")
        outcomes = {row["kind"]: row["outcome"] for row in json.loads(done.stdout)}
        assert (done.returncode, outcomes["scheduling"]) == (1, stays)
        assert "run compute-agent release again; or run compute-agent release --undo" in done.stderr
        assert DISABLED in client.get_traits(root)[0]
    release_resources(client, uid)
    done = agent.cli("release", "--pins", "-f", "json")
    assert (done.returncode, "New guests are kept away from this host" in done.stderr) == (0, False)
    assert DISABLED not in client.get_traits(root)[0]


def test_a_release_that_is_undone_opens_the_host_only_if_the_release_had_closed_it(agent, guest, client):
    root = agent.status()["provider_uuid"]
    assert release(agent, "--provider")[0] == 1
    assert DISABLED in client.get_traits(root)[0]
    assert agent.cli("release", "--undo").returncode == 0
    agent.start()
    agent.wait_for(lambda: DISABLED not in client.get_traits(root)[0])
    agent.ask("host", "disable", "--reason", "by an operator")
    assert release(agent, "--provider")[0] == 1
    assert agent.cli("release", "--undo").returncode == 0
    agent.start()
    assert agent.status()["disabled_reason"] == "by an operator"
    assert DISABLED in client.get_traits(root)[0]


def test_a_trait_of_another_program_stays_after_a_release(agent, numa_node, client):
    root = agent.status()["provider_uuid"]
    traits, generation = client.get_traits(root)
    client.set_traits(root, traits | {DISABLED}, generation)
    assert release(agent)[0] == 0
    assert DISABLED in client.get_traits(root)[0]


def test_a_host_that_cannot_be_closed_is_reported(agent, guest, live_placement):
    agent.kill()
    live_placement.stop()
    done = agent.cli("release", "--pins", "-f", "json")
    outcomes = {row["kind"]: row["outcome"] for row in json.loads(done.stdout)}
    assert (done.returncode, outcomes["pins"]) == (1, "given back")
    assert outcomes["scheduling"].startswith("failed: ")
    assert "New guests may still come to this host" in done.stderr


def test_no_agent_works_on_a_host_that_was_released_until_it_is_told_to(agent, guest, uid):
    assert release(agent, "--pins")[0] == 0
    done = agent.run_in_vain()
    assert done.returncode == 1
    assert "The agent does not start: this host is released, or" in done.stderr
    assert allowed_cpus(guest["pid"]) != "0"
    assert agent.cli("release", "--undo").returncode == 0
    agent.start()
    agent.wait_for(lambda: allowed_cpus(guest["pid"]) == "0")
    assert agent.status()["disabled"] is False


def test_a_dry_run_changes_nothing_and_the_agent_goes_on(agent, guest, client, live_placement):
    live_placement.writes()
    status, outcomes = release(agent, "--dry-run", "--pins")
    assert (status, outcomes["pins"]) == (0, {"would be given back"})
    assert (agent.process.poll(), live_placement.writes()) == (None, [])
    assert allowed_cpus(guest["pid"]) == "0"
    agent.kill()
    assert release(agent, "--dry-run", "--pins") == (status, outcomes)
    agent.start()  # it was not marked either
    assert agent.ask("guest", "show", "web-1")["kind"] == "dedicated"


def test_a_dry_run_where_no_agent_has_worked_leaves_nothing_behind(write_ini, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    ini = write_ini()
    done = run_here(ini, "release", "--dry-run", "--pins", "--provider", "-f", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, []), done.stderr
    assert sorted(tmp_path.rglob("*")) == sorted([*before, ini])


def test_a_dry_run_that_cannot_read_the_state_does_not_say_that_there_is_nothing(write_ini, tmp_path):
    (tmp_path / "state").write_text("no folder")
    done = run_here(write_ini(), "release", "--dry-run", "-f", "json")
    assert (done.returncode, done.stdout) == (1, "")
    assert str(tmp_path / "state") in done.stderr


def test_an_interrupted_release_is_finished_by_a_second_one(agent, guest, live_placement, client):
    root = agent.status()["provider_uuid"]
    agent.ask("host", "disable", "--reason", "it leaves")
    live_placement.stop()
    status, outcomes = release(agent, "--pins")
    assert (status, outcomes["pins"]) == (1, {"given back"})
    (reason,) = outcomes["placement"]
    assert reason.startswith("failed: GET ")
    live_placement.start()
    assert release(agent, "--pins") == (
        0,
        {"scheduling": {"given back"}, "provider": {"stays: --provider gives it back"}},
    )
    assert DISABLED not in client.get_traits(root)[0]


def test_a_release_works_without_a_running_agent(agent, guest):
    agent.kill()
    status, outcomes = release(agent, "--pins")
    assert (status, outcomes["pins"]) == (0, {"given back"})


def test_providers_that_others_use_stay(agent, numa_node, client):
    root = agent.status()["provider_uuid"]
    inventories, generation = client.get_inventories(numa_node)
    client.create_resource_class("CUSTOM_THEIRS")
    theirs = {
        "total": 1,
        "reserved": 0,
        "min_unit": 1,
        "max_unit": 1,
        "step_size": 1,
        "allocation_ratio": 1.0,
    }
    client.set_inventories(numa_node, {**inventories, "CUSTOM_THEIRS": theirs}, generation)
    status, outcomes = release(agent, "--provider")
    assert status == 1
    assert outcomes["provider"] == {
        "failed: it has inventories that are not the agent's: CUSTOM_THEIRS",
        "failed: testhost_NUMA_0 below it stays",
    }
    assert {provider.uuid for provider in client.providers_in_tree(root)} == {root, numa_node}


def test_a_release_is_refused_while_another_agent_does_not_end(agent, guest, monkeypatch):
    monkeypatch.setattr(command, "LOCK_TIMEOUT", 0.3)
    monkeypatch.setattr(command.ReleaseCommand, "ask_daemon", lambda self, method, params=None: {})
    done = agent.cli("release")
    assert done.returncode == 1
    assert f"another agent (pid {agent.process.pid})" in done.stderr
    assert "systemctl stop compute-agent" in done.stderr
    agent.process.send_signal(signal.SIGTERM)
    agent.process.wait(SECONDS)
    assert release(agent)[0] == 0
