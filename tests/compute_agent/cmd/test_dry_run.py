"""Tests of `compute-agent run --dry-run`, which shows the changes of a start and makes none."""

import json
import os
import subprocess

from tests.compute_agent.cmd.agents import MAIN, allowed_cpus
from tests.waits import wait_for


def everything_in(folder):
    """The names, contents and times of all files and folders below a folder."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in sorted(folder.rglob("*"))
    }


def dry_run(agent, ini=None):
    done = agent.cli("run", "--dry-run", "-f", "json", ini=ini)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def of(rows, where):
    return {row["subject"]: row["change"] for row in rows if row["where"] == where}


def test_a_dry_run_of_a_first_start_leaves_no_trace(agent, live_placement):
    assert not agent.folder.exists()
    rows, words = dry_run(agent)
    placement = [(row["subject"], row["change"]) for row in rows if row["where"] == "placement"]
    assert any(change == "provider, new" for _, change in placement)
    assert any(change.startswith("PCPU none -> 1") for _, change in placement)
    assert any(change.startswith("traits +") and "HW_NUMA_ROOT" in change for _, change in placement)
    assert not agent.folder.exists()
    assert live_placement.writes() == []
    assert "Nothing was changed" in words


def test_a_closed_pipe_ends_a_dry_run_quietly(two_cpus, write_ini):
    reader, writer = os.pipe()
    os.close(reader)
    command = [*MAIN, "--config-file", write_ini(), "run", "--dry-run"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "Nothing was changed.\n")


def test_new_pins_of_a_running_guest_are_shown_and_not_applied(agent, claim, uid, live_placement):
    """Another program has pinned the guest. The agent would move it to its dedicated CPU."""
    claim(uid, PCPU=1)
    agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "600")
    pid = agent.ask("guest", "show", uid)["pid"]
    agent.process.terminate()
    agent.process.wait()
    os.sched_setaffinity(pid, {1})
    before = everything_in(agent.folder)
    live_placement.writes()

    rows, _ = dry_run(agent)
    assert of(rows, "cpuset") == {uid: "CPUs 1 -> dedicated CPUs 0, emulator CPUs 1"}
    assert of(rows, "placement") == {}

    assert allowed_cpus(pid) == "1"
    assert everything_in(agent.folder) == before
    assert live_placement.writes() == []


def test_a_start_makes_the_changes_that_were_shown_and_leaves_none(agent, claim, uid):
    claim(uid, PCPU=1)
    agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "600")
    pid = agent.ask("guest", "show", uid)["pid"]
    agent.process.terminate()
    agent.process.wait()
    os.sched_setaffinity(pid, {1})
    assert dry_run(agent)[0]
    agent.start()
    agent.wait_for(lambda: allowed_cpus(pid) == "0")
    rows, words = dry_run(agent)
    assert rows == []
    assert "Nothing would be changed" in words


def test_a_guest_that_ends_meanwhile_is_left_to_the_agent(agent, claim, uid):
    claim(uid, PCPU=1)
    agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "600")
    pid = agent.ask("guest", "show", uid)["pid"]
    agent.process.terminate()
    agent.process.wait()
    os.kill(pid, 9)
    wait_for(lambda: not os.path.exists(f"/proc/{pid}/exe"))
    before = everything_in(agent.folder)
    assert dry_run(agent)[0] == []
    assert everything_in(agent.folder) == before  # its record is there still


def test_policy_none_changes_no_guest(agent, claim, uid):
    agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "600")
    pid = agent.ask("guest", "show", uid)["pid"]
    agent.process.terminate()
    agent.process.wait()
    os.sched_setaffinity(pid, {0, 1})
    told, _ = dry_run(agent)
    assert set(of(told, "cpuset")) == {uid}
    careful = agent.ini.with_name("careful.ini")
    careful.write_text(agent.ini.read_text() + "\n[policy]\nname = none\n")
    told, _ = dry_run(agent, careful)
    assert of(told, "cpuset") == {}


def test_a_provider_of_this_name_with_another_uuid_is_shown(agent, claim, uid, client):
    root = agent.status()["provider_uuid"]
    agent.process.terminate()
    agent.process.wait()
    (agent.folder / "compute_id").unlink()
    rows, _ = dry_run(agent)
    refused = [row["change"] for row in rows if row["change"].startswith("refused")]
    assert refused
    assert root in refused[0]
    assert "compute_id" in refused[0]
    assert not (agent.folder / "compute_id").exists()


def test_a_dry_run_says_that_placement_is_away(write_ini, agent):
    away = agent.ini.with_name("away.ini")
    lines = agent.ini.read_text().splitlines()
    away.write_text(
        "\n".join("endpoint = http://127.0.0.1:1" if line.startswith("endpoint") else line for line in lines)
    )
    rows, _ = dry_run(agent, away)
    (told,) = [row["change"] for row in rows if row["where"] == "placement"]
    assert "cannot be asked" in told


def test_a_dry_run_refuses_what_a_start_would_refuse(agent):
    wrong = agent.ini.with_name("wrong.ini")
    wrong.write_text(agent.ini.read_text().replace("cpu_shared_set = 1", "cpu_shared_set = 0-1"))
    done = agent.cli("run", "--dry-run", ini=wrong)
    assert done.returncode == 1
    assert "overlap" in done.stderr
