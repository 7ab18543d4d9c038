"""Tests that the agent does not trust processes, files and folders of other users."""

import json
import os
import pwd
import subprocess
import time
from pathlib import Path

import pytest

from compute_agent.drivers import procfs
from tests.compute_agent.cmd.agents import allowed_cpus

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of another user")
NOBODY = "nobody"
SECRET = "root's own\n"


@pytest.fixture
def run_as_nobody():
    """A function that starts processes of another user, each in its own session and with any environment."""
    started = []

    def run(**environment):
        process = subprocess.Popen(
            ["/bin/sleep", "100"],
            user=NOBODY,
            group=pwd.getpwnam(NOBODY).pw_gid,
            extra_groups=[],
            cwd="/",
            env=environment,
            start_new_session=True,
        )
        started.append(process)
        while procfs.command_line(process.pid) != ("/bin/sleep", "100"):
            time.sleep(0.001)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def secrets(tmp_path):
    """Files that only root can read."""
    files = [tmp_path / "secret", tmp_path / "secret.json", tmp_path / "secret.log"]
    for file in files:
        file.write_text(SECRET)
        file.chmod(0o600)
    return files


@as_root
def test_a_process_of_another_user_is_never_made_a_guest_whatever_its_environment_says(
    agent, claim, uid, run_as_nobody, secrets
):
    claim(uid, PCPU=1)
    agent.terminate()
    home = str(agent.folder / "guests")
    names = [str(secrets[0]), str(Path("..", "..", secrets[0].name)), "x" * 300, uid, uid, uid.upper()]
    impostors = [run_as_nobody(COMPUTE_AGENT_GUEST=name, COMPUTE_AGENT_GUESTS=home) for name in names]
    before = {process.pid: allowed_cpus(process.pid) for process in impostors}

    agent.start()

    assert agent.ask("guest", "list") == []
    assert sorted(os.listdir(home)) == []
    guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    assert guest["cpus"] == "0"
    assert {process.pid: allowed_cpus(process.pid) for process in impostors} == before
    for process in impostors:
        process.kill()
        process.wait()
    agent.ask("guest", "stop", uid)
    assert [file.read_text() for file in secrets] == [SECRET] * 3
    assert "Traceback" not in agent.log()


def test_a_guest_has_nothing_of_the_agents_environment_and_of_what_it_has_open(
    agent, uid, monkeypatch, tmp_path
):
    monkeypatch.setenv("OS_PASSWORD", "secret")
    monkeypatch.setenv("OS_PLACEMENT__PASSWORD", "secret")
    monkeypatch.setenv("HERE", "from the caller")
    agent.start_reporting()
    guest = agent.ask(
        "guest", "run", "--uuid", uid, "--env", "MINE=a=b", "--env", "HERE", "--env", "LANG=de_DE.UTF-8",
        "--", "sleep", "100",
    )  # fmt: skip
    agent.wait_for(lambda: procfs.command_line(guest["pid"]) == ("sleep", "100"))
    environ = Path(f"/proc/{guest['pid']}/environ").read_text().rstrip("\0").split("\0")
    user = pwd.getpwuid(os.geteuid())
    assert dict(entry.split("=", 1) for entry in environ) | {"PWD": "", "_": ""} == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell,
        "LANG": "de_DE.UTF-8",
        "COMPUTE_AGENT_GUEST": uid,
        "MINE": "a=b",
        "HERE": "from the caller",
        "PWD": "",  # these two a shell may add
        "_": "",
    }
    descriptors = Path(f"/proc/{guest['pid']}/fd")
    assert {path.name: os.readlink(path) for path in descriptors.iterdir()} == {
        "0": "/dev/null",
        "1": guest["log"],
        "2": guest["log"],
    }
    assert "from the caller" not in (agent.folder / "guests" / f"{uid}.json").read_text()
    agent.ask("guest", "stop", uid)


def test_invalid_variables_of_an_environment_are_refused(agent, monkeypatch):
    monkeypatch.delenv("NOT_HERE", raising=False)
    agent.start()
    for variable, words in (
        ("1A=b", "not a name of a variable"),
        ("COMPUTE_AGENT_GUEST=x", "sets that one itself"),
        ("NOT_HERE", "this shell has no variable NOT_HERE"),
    ):
        done = agent.cli("guest", "run", "--env", variable, "--", "true")
        assert done.returncode in (1, 2)
        assert words in done.stderr


def test_output_is_not_written_through_a_symbolic_link_or_into_another_file(agent, uid, secrets):
    agent.start_reporting()
    log = agent.folder / "guests" / f"{uid}.log"
    log.symlink_to(secrets[0])
    done = agent.cli("guest", "run", "--uuid", uid, "--", "echo", "overwritten")
    assert done.returncode == 1
    assert f"{log} is a symbolic link" in done.stderr
    log.unlink()
    os.mkfifo(log)
    done = agent.cli("guest", "run", "--uuid", uid, "--", "echo", "overwritten")
    assert f"{log} is not a regular file" in done.stderr
    assert secrets[0].read_text() == SECRET
    assert agent.ask("guest", "list") == []


@pytest.mark.parametrize(
    ("inner", "spoil", "words"),
    [
        pytest.param(
            "", lambda path: os.chown(path, pwd.getpwnam(NOBODY).pw_uid, -1), "belongs to user", marks=as_root
        ),
        ("guests", lambda path: path.chmod(0o770), "chmod go-w"),
    ],
)
def test_a_state_folder_that_others_could_change_is_refused(agent, inner, spoil, words):
    folder = agent.folder / inner
    folder.mkdir(parents=True)
    spoil(folder)
    done = agent.run_in_vain()
    assert done.returncode == 1
    assert f"[DEFAULT] state_path = {agent.folder}: {folder} " in done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["state.json", "agent.lock"])
def test_files_of_the_state_folder_that_are_symbolic_links_are_refused(agent, name, secrets):
    agent.folder.mkdir(mode=0o750)
    (agent.folder / name).symlink_to(secrets[0])
    done = agent.run_in_vain()
    assert done.returncode == 1
    assert f"{agent.folder / name} is a symbolic link" in done.stderr
    assert "Traceback" not in done.stderr
    assert secrets[0].read_text() == SECRET


def test_a_record_that_is_a_symbolic_link_is_not_followed_and_does_not_stop_the_start(agent, uid, tmp_path):
    agent.start_reporting()
    guest = agent.ask("guest", "run", "--uuid", uid, "--", "sleep", "100")
    agent.kill()
    record = agent.folder / "guests" / f"{uid}.json"
    elsewhere = record.rename(tmp_path / "elsewhere.json")
    content = elsewhere.read_bytes()
    record.symlink_to(elsewhere)
    agent.start()
    assert agent.ask("guest", "list") == []
    (lost,) = agent.status()["lost_guests"]
    assert f"{record} is a symbolic link" in lost
    record.unlink()
    elsewhere.rename(record)
    assert record.read_bytes() == content
    agent.kill()
    agent.start()
    assert agent.ask("guest", "show", uid)["pid"] == guest["pid"]
    assert json.loads(content)["uuid"] == uid
