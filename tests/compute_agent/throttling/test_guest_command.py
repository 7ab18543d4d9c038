"""Commands of the operator about a guest."""

import tracemalloc

import pytest

from compute_agent.throttling.guest_command import CommandFailedError, guest_command


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
