"""The hook of libvirt that announces to the agent which domains are about to start.

libvirt runs the programs in ``/etc/libvirt/hooks/qemu.d`` (https://libvirt.org/hooks.html, since 6.5.0) as
``PROGRAM DOMAIN OPERATION SUBOPERATION EXTRA``, with the XML of the domain on the standard input. libvirt
waits for each program. The operation ``start`` is the last operation before the QEMU process exists; at
``started`` the guest's CPUs already run.

A hook can do harm. If the hook fails during a start, the domain does not start. If the hook fails at
``reconnect``, libvirt ends a running guest. For a guest that migrates, the output of the hook becomes the XML
of the guest. A hook that calls libvirt waits for ever. So this hook acts only at ``start``, prints nothing,
always succeeds, and has a time limit. Without an agent or without Python, guests start as if there were no
hook, and the system's log gets a warning.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
import sys
from enum import StrEnum
from pathlib import Path
from typing import Final

HOOKS: Final = Path("/etc/libvirt/hooks")
HOOK_SECONDS: Final = 3
"""The longest time, in seconds, for which the hook can delay a guest's start. It is a little longer than the
agent's own time limit for an answer.
"""

# Distinguishes the agent's own hook from an operator's file, which install_hook() and remove() leave
# unchanged.
_MARK: Final = "# compute-agent libvirt hook"
# The agent's hook has 2 KiB. A larger file belongs to another program, and is not read.
_MAX_BYTES: Final = 1 << 16

# The script uses only Python's standard library: it runs with -I, without the agent's packages.
_ASK: Final = """\
import json, socket, sys
sys.tracebacklimit = 0
description = sys.stdin.buffer.read().decode("utf-8", "replace")
agent = socket.socket(socket.AF_UNIX)
agent.connect(sys.argv[1])
request = {"method": "guest.announce", "params": {"description": description}}
agent.sendall(json.dumps(request).encode() + b"\\n")
answer = json.loads(agent.makefile("rb").readline())
sys.exit(answer.get("error"))
"""

_SCRIPT: Final = """\
#!/bin/sh
{mark}: tells the agent which guests are about to start, so that it makes
# their cache groups before their processes are there.
# Made by "compute-agent libvirt hook install"; "... remove" takes it away.
# It never fails, prints nothing, and holds a start up for {seconds} seconds at most.
[ "$2/$3" = start/begin ] || exit 0
exec 2>/dev/null
why=$(timeout -s KILL {seconds} {python} -IS -c {ask} {socket} 2>&1 >/dev/null) ||
  timeout -s KILL 1 logger -t compute-agent -p daemon.warning \\
    "guest $1 starts before it has its cache group: ${{why:-no answer within {seconds} s}}" >/dev/null
exit 0
"""


class HookState(StrEnum):
    """The state of the file at the path of the hook. ``FOREIGN``: the agent did not write this file."""

    ABSENT = "absent"
    INSTALLED = "installed"
    OUTDATED = "outdated"
    FOREIGN = "foreign"


class ForeignHookError(Exception):
    """The file at the path of the hook belongs to another program. The text of the error says what to do."""


def hook_script(socket: Path, python: str = sys.executable) -> str:
    """The text of the hook script for an agent that listens on ``socket``.

    :param python: the interpreter that the script runs.
    """
    return _SCRIPT.format(
        mark=_MARK,
        seconds=HOOK_SECONDS,
        python=shlex.quote(python),
        ask=shlex.quote(_ASK),
        socket=shlex.quote(str(socket)),
    )


def hook_path(hooks: Path) -> Path:
    """The path of the hook script in libvirt's folder of hooks."""
    return hooks / "qemu.d" / "compute-agent"


def state(hooks: Path, socket: Path | None = None) -> HookState:
    """The state of the hook.

    A hook is outdated if another release wrote it, if it calls another ``socket``, or if it is not
    executable.

    :param hooks: libvirt's folder of hooks.
    :param socket: the agent's socket; None means that the hook is never reported as installed.
    :raises OSError: the folder cannot be read.
    """
    path = hook_path(hooks)
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return HookState.ABSENT
    if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
        return HookState.FOREIGN
    text = path.read_text(errors="replace")
    if not any(line.startswith(_MARK) for line in text.splitlines()[:2]):
        return HookState.FOREIGN
    # A caller without a socket only wants to know whether the agent wrote the file.
    usable = status.st_mode & 0o777 == 0o755 and socket is not None and text == hook_script(socket)
    return HookState.INSTALLED if usable else HookState.OUTDATED


def install_hook(hooks: Path, socket: Path) -> bool:
    """Install the hook; return whether it was missing or outdated.

    :raises ForeignHookError: there is a file that the agent did not write.
    :raises OSError: the hook cannot be written; the former state stays.
    """
    path, found = hook_path(hooks), state(hooks, socket)
    if found is HookState.FOREIGN:
        raise ForeignHookError(f"{path} is not the agent's: move it away, or give it another name")
    if found is HookState.INSTALLED:
        return False
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    # The script is written in the parent folder, where libvirt runs nothing, and then moved, so that libvirt
    # never runs half a script.
    beside = hooks / f".compute-agent.{os.getpid()}"
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(hook_script(socket))
            file.flush()
            os.fsync(file.fileno())
        # The script becomes executable only after it is complete.
        beside.chmod(0o755)
        beside.replace(path)
    except OSError:
        # The error from above is reported, and not an error of the removal.
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    return True


def remove(hooks: Path) -> bool:
    """Remove the hook; return whether the hook existed.

    :raises ForeignHookError: the file is not the agent's.
    :raises OSError: the hook cannot be removed.
    """
    path, found = hook_path(hooks), state(hooks)
    if found is HookState.FOREIGN:
        raise ForeignHookError(f"{path} is not the agent's, and stays")
    path.unlink(missing_ok=True)
    return found is not HookState.ABSENT
