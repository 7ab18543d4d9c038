"""Commands of the operator about a guest."""

import pytest

from compute_agent.qos.guest_command import CommandFailedError, guest_command


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
