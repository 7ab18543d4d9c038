"""The hook of libvirt that tells the agent which domains are about to start.

libvirt runs the programs in ``/etc/libvirt/hooks/qemu.d`` (https://libvirt.org/hooks.html, since 6.5.0) as
``PROGRAM DOMAIN OPERATION SUBOPERATION EXTRA``, with the XML of the domain on the standard input, and waits
for each. Of the operations ``start`` is the last before the process is there; ``started`` comes when the CPUs
of the guest run already. One that fails prevents the start, or, at ``reconnect``, ends a guest that runs; and
what a hook prints becomes the XML of a guest that migrates. A hook that asked libvirt something would wait
for ever.

So this one does nothing but at ``start``, prints nothing, always succeeds, and has an end: without an agent,
or without Python, guests start as if there were no hook, and the system's log says so.
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
"""What a start is held up at most; a little longer than the agent takes to say that it has no time."""

_MARK: Final = "# compute-agent libvirt hook"
_MAX_BYTES: Final = 1 << 16

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
    """What is where the hook belongs."""

    ABSENT = "absent"
    INSTALLED = "installed"
    OUTDATED = "outdated"
    FOREIGN = "foreign"


class ForeignHookError(Exception):
    """There is something that the agent has not made; the text says what to do."""


def hook_script(socket: Path, python: str = sys.executable) -> str:
    """The hook for an agent that listens on ``socket``."""
    return _SCRIPT.format(
        mark=_MARK,
        seconds=HOOK_SECONDS,
        python=shlex.quote(python),
        ask=shlex.quote(_ASK),
        socket=shlex.quote(str(socket)),
    )


def hook_path(hooks: Path) -> Path:
    """Where the hook belongs."""
    return hooks / "qemu.d" / "compute-agent"


def state(hooks: Path, socket: Path | None = None) -> HookState:
    """What is there; outdated is one of another release, for another ``socket``, or that cannot be run.

    :raises OSError:
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
    usable = status.st_mode & 0o777 == 0o755 and socket is not None and text == hook_script(socket)
    return HookState.INSTALLED if usable else HookState.OUTDATED


def install_hook(hooks: Path, socket: Path) -> bool:
    """Put the hook where libvirt looks for it; whether there was anything to do.

    It is written beside, where libvirt runs nothing, and then moved: half of it is never run.

    :raises ForeignHookError:
    :raises OSError:
    """
    path, found = hook_path(hooks), state(hooks, socket)
    if found is HookState.FOREIGN:
        raise ForeignHookError(f"{path} is not the agent's: move it away, or give it another name")
    if found is HookState.INSTALLED:
        return False
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    beside = hooks / f".compute-agent.{os.getpid()}"
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with open(handle, "w", encoding="utf-8") as file:
            file.write(hook_script(socket))
            file.flush()
            os.fsync(file.fileno())
        beside.chmod(0o755)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    return True


def remove(hooks: Path) -> bool:
    """Take the hook away; whether there was one.

    :raises ForeignHookError:
    :raises OSError:
    """
    path, found = hook_path(hooks), state(hooks)
    if found is HookState.FOREIGN:
        raise ForeignHookError(f"{path} is not the agent's, and stays")
    path.unlink(missing_ok=True)
    return found is not HookState.ABSENT
