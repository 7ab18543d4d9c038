"""How the agent starts a process guest: held before its first instruction, and marked, so that it is found
again even if its record is lost.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

from compute_agent.drivers import procfs
from compute_agent.drivers.base import DriverError, GuestSettings
from compute_agent.drivers.registry import ProcessRecord

# The mark is in the environment.
ENV_GUEST = "COMPUTE_AGENT_GUEST"
ENV_HOME = "COMPUTE_AGENT_GUESTS"

# The child waits for a line on its standard input before it becomes the guest's program. If the agent dies
# first, the read fails and the child ends: a guest never runs before it is pinned.
_HOLD = 'read -r go && exec "$@" </dev/null'


def check_command(command: Sequence[str], cwd: str) -> None:
    """Raises DriverError if the command or the working folder cannot be used."""
    if not command:
        raise DriverError("the command of the guest is empty")
    if shutil.which(command[0]) is None and not os.access(os.path.join(cwd, command[0]), os.X_OK):
        raise DriverError(f"the command {command[0]!r} is not found or not executable")
    if not os.path.isdir(cwd):
        raise DriverError(f"the working folder {cwd!r} does not exist")


def start_held(
    guest_uuid: str, command: Sequence[str], cwd: str, home: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Start the process of a guest in a session of its own, held until release().

    ``home`` is the folder of the driver's records, ``log`` takes the output. Raises OSError.
    """
    environment = {**os.environ, ENV_GUEST: guest_uuid, ENV_HOME: str(home)}
    with open(log, "ab", opener=_private) as output:
        return subprocess.Popen(
            ["/bin/sh", "-c", _HOLD, "compute-agent-guest", *command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )


def release(child: subprocess.Popen[bytes]) -> None:
    """Let a held process run the guest's program. Raises BrokenPipeError if it is gone."""
    assert child.stdin is not None
    child.stdin.write(b"go\n")
    child.stdin.close()


def lost_guests(home: Path, known: Collection[str]) -> list[ProcessRecord]:
    """Session leaders that carry our mark but have no record."""
    lost = []
    for pid in procfs.pids():
        guest_uuid = procfs.environment_value(pid, ENV_GUEST)
        if guest_uuid is None or procfs.environment_value(pid, ENV_HOME) != str(home):
            continue
        identity = procfs.identify(pid)
        if identity is None or guest_uuid in known or procfs.session_of(pid) != pid:
            continue
        log = str(home / f"{guest_uuid}.log")
        lost.append(
            ProcessRecord(
                guest_uuid, guest_uuid, identity, GuestSettings(), procfs.command_line(pid), log=log
            )
        )
    return lost


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o640)
