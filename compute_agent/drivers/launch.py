"""How the agent starts a process guest: held before its first instruction.

So it is recorded and pinned by the time it runs. It has nothing of the agent's own: neither its environment
nor what it has open.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from compute_agent.model.messages import DriverError

GUEST_VARIABLE: Final = "COMPUTE_AGENT_GUEST"
"""Tells a guest its uuid. After its end, younger processes that have it are ended, too.

Any process can have any environment: nothing comes of this except its own end.
"""

VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The child waits for a line on its standard input before it becomes the guest's program. If the agent dies
# first, the read fails and the child ends: a guest never runs before it is recorded and pinned.
_HOLD: Final = 'read -r go && exec "$@" </dev/null'


def guest_environment(guest_uuid: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """All variables that a guest starts with: a few that programs rely on, and those that are ``wanted``."""
    user = os.geteuid()
    try:
        entry = pwd.getpwuid(user)
        name, home, shell = entry.pw_name, entry.pw_dir, entry.pw_shell
    except KeyError:
        name, home, shell = str(user), "/", ""
    return {
        "PATH": PATH,
        "HOME": home,
        "USER": name,
        "LOGNAME": name,
        "SHELL": shell or "/bin/sh",
        "LANG": "C.UTF-8",
        **wanted,
        GUEST_VARIABLE: guest_uuid,
    }


def check_command(command: Sequence[str], cwd: str, path: str) -> None:
    """``path`` is its PATH.

    :raises DriverError: the command or the working folder cannot be used.
    """
    if not command:
        raise DriverError("the command of the guest is empty")
    found = shutil.which(command[0], path=path) or os.access(os.path.join(cwd, command[0]), os.X_OK)
    if not found:
        raise DriverError(f"the command {command[0]!r} is not found in {path}, or not executable")
    if not os.path.isdir(cwd):
        raise DriverError(f"the working folder {cwd!r} does not exist")


def start_held(
    command: Sequence[str], cwd: str, environment: Mapping[str, str], output: int
) -> subprocess.Popen[bytes]:
    """Start the process of a guest in a session of its own, held until release().

    The descriptor ``output`` takes what it says.

    :raises OSError:
    """
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
    """Let a held process run the guest's program.

    :raises BrokenPipeError: it is gone.
    """
    assert child.stdin is not None
    child.stdin.write(b"go\n")
    child.stdin.close()
