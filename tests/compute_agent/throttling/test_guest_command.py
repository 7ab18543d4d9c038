"""Tests of commands of the operator that act on a guest."""

import tracemalloc
from pathlib import Path

import pytest

from compute_agent.loops.metric_sources import METRIC_SOURCE_THREAD as SOURCE
from compute_agent.threads import run_aside
from compute_agent.throttling.guest_command import (
    CommandFailedError,
    RunningProgram,
    guest_command,
    run_program,
)
from tests.waits import wait_for


def test_command_is_called_with_the_uuid_without_a_shell(tmp_path):
    script = tmp_path / "migrate away"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$#" "$@" > {tmp_path}/called\n')
    script.chmod(0o755)
    guest_command(f"'{script}' --to 'host 2; $(id)'", 30)("uuid-1")
    assert (tmp_path / "called").read_text().splitlines() == ["3", "--to", "host 2; $(id)", "uuid-1"]


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("sh -c 'echo no room >&2; exit 3'", "sh ended with 3: no room"),
        ("false", "false ended with 1: no message"),
        ("/nowhere/migrate", "/nowhere/migrate cannot be run: "),
        ("sh -c 'sleep 60; true'", "sh did not end within 0.2 seconds"),
    ],
)
def test_command_that_fails_tells_why(command, told):
    with pytest.raises(CommandFailedError) as raised:
        guest_command(command, 0.2 if "sleep" in command else 30)("uuid-1")
    assert str(raised.value).startswith(told)


@pytest.mark.parametrize("command", ["", "  ", "'unclosed"])
def test_command_that_is_none_is_refused(command):
    with pytest.raises(ValueError, match=r"."):
        guest_command(command, 1)


def test_command_has_nothing_secret_of_the_agents_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("OS_PASSWORD", "secret")
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    guest_command(f"sh -c 'env > {tmp_path}/environment'", 30)("uuid-1")
    names = {line.partition("=")[0] for line in (tmp_path / "environment").read_text().splitlines()}
    assert "PATH" in names
    assert not names & {"OS_PASSWORD", "NOTIFY_SOCKET"}


def test_only_the_end_of_endless_output_is_kept():
    run = guest_command("sh -c 'head -c 64000000 /dev/zero; printf \"\\033[2Jlast\\nwords\" ; exit 1'", 60)
    tracemalloc.start()
    try:
        with pytest.raises(CommandFailedError, match="last words") as raised:
            run("uuid-1")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 600


def test_command_that_says_things_for_ever_is_ended():
    with pytest.raises(CommandFailedError, match="did not end within"):
        guest_command("sh -c yes", 0.3)("uuid-1")


def has_ended(pid):
    """Whether a process has ended, even if the parent of an orphan has not reaped it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_children_in_the_background_end_with_the_program(tmp_path):
    words = ("sh", "-c", f"sleep 600 & echo $! > {tmp_path}/child; echo 5")
    # The child keeps the pipes open, and delays nothing by it.
    assert run_program(words, 60) == "5\n"
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: has_ended(child))


def test_child_that_writes_for_ever_does_not_delay_the_end():
    assert run_program(("sh", "-c", "yes >&2 & echo 5"), 60) == "5\n"


def test_program_is_ended_from_another_thread_and_none_starts_after_it(tmp_path):
    running = RunningProgram()
    script = f"sleep 600 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/child; wait"
    run = run_aside(SOURCE, lambda: run_program(("sh", "-c", script), 600, running))
    wait_for((tmp_path / "child").exists)
    running.end_program()
    with pytest.raises(CommandFailedError, match="ended with -9"):
        run.result(30)
    wait_for(lambda: has_ended(int((tmp_path / "child").read_text())))
    with pytest.raises(CommandFailedError, match="is not run"):
        run_program(("true",), 60, running)


def test_end_of_a_program_that_has_ended_kills_nothing():
    running = RunningProgram()
    assert run_program(("echo", "5"), 60, running) == "5\n"
    running.end_program()


def test_program_that_closes_its_output_is_waited_for(tmp_path):
    script = f"exec >&- 2>&-; sleep 0.1; touch {tmp_path}/done"
    assert run_program(("sh", "-c", script), 60) == ""
    assert (tmp_path / "done").exists()
