"""Starting and adopting process guests.

A started guest is held before its first instruction, so that it is recorded and pinned by the time it runs.
It inherits neither the agent's environment nor its open files. Some processes cannot be adopted: kernel
threads, the agent itself, and parts of other guests.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import resource
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.cgroup import CgroupRoot, GuestCgroup
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.model.messages import DriverError

_INIT: Final = 1
_OUTSIDE: Final = 0
"""What cgroup.procs has for a process of another pid namespace."""


def adoptable_process(pid: int) -> ProcessIdentity:
    """The process with a pid.

    :raises DriverError: it cannot be a guest.
    """
    identity = procfs.identify_process(pid)
    if identity is None:
        raise DriverError(f"there is no process with pid {pid}")
    if procfs.is_kernel_thread(pid):
        raise DriverError(f"pid {pid} is a kernel thread and cannot be a guest")
    return identity


def adoptable_group(
    folder: Path, groups: CgroupRoot | None, guests: Collection[str]
) -> tuple[GuestCgroup, ProcessIdentity]:
    """The cgroup v2 group in a folder and its main process, the oldest.

    All of its processes are to be one guest.

    ``groups`` are where ``guests`` (their uuids) have theirs.

    :raises DriverError: that cannot be: it is no group, nobody is in it, or the system, the agent or other
        guests are.
    """
    if groups is None:
        raise DriverError(
            f"group {folder} cannot be a guest: guests have no groups of their own here ([cgroup] root)"
        )
    try:
        group = GuestCgroup(folder.resolve(strict=True))
        same_system = group.folder.stat().st_dev == groups.folder.stat().st_dev
    except OSError as error:
        raise DriverError(f"group {folder} cannot be a guest: {error}") from error
    why_not = (
        _find_objection(group, groups, guests)
        if same_system
        else f"it is not in the hierarchy of {groups.folder}"
    )
    if why_not:
        raise DriverError(f"group {folder} cannot be a guest: {why_not}")
    leader = oldest_process(group.process_ids())
    if leader is None:
        raise DriverError(f"group {folder} cannot be a guest: its processes have ended")
    return group, leader


def oldest_process(pids: Iterable[int]) -> ProcessIdentity | None:
    """Of some processes the one that runs longest; None if none of them runs."""
    alive = (identity for pid in pids if (identity := procfs.identify_process(pid)) is not None)
    return min(alive, key=lambda identity: (identity.start_time, identity.pid), default=None)


def _find_objection(group: GuestCgroup, groups: CgroupRoot, guests: Collection[str]) -> str:
    """Why a group cannot be a guest; empty if it can."""
    folder, root = group.folder, groups.folder.resolve()
    if not (folder / "cgroup.procs").is_file() or not (folder / "cgroup.controllers").is_file():
        return "it is no group of cgroup v2"
    if root.is_relative_to(folder):
        return f"it holds all guests ([cgroup] root is {root})"
    if (owner := groups.owner_of(folder)) in guests:
        return f"it belongs to guest {owner} already"
    if folder.name.endswith(".slice"):
        return "it is a slice of the system, which holds services and users"
    pids = group.process_ids()
    if not pids:
        return "there is no process in it"
    if os.getpid() in pids:
        return "the agent itself is in it"
    if _INIT in pids or any(map(procfs.is_kernel_thread, pids)):
        return "process 1 or a kernel thread is in it"
    if _OUTSIDE in pids:
        return "processes of another pid namespace are in it"
    return ""


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

    The descriptor ``output`` takes what it says. The guest does not inherit the limit that the unit sets on
    the agent's own memory (LimitDATA=).

    :raises OSError:
    """
    child = subprocess.Popen(
        ["/bin/sh", "-c", _HOLD, "compute-agent-guest", *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=cwd,
        env=environment,
        start_new_session=True,
    )
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    with contextlib.suppress(ProcessLookupError):  # release() says that it is gone
        resource.prlimit(child.pid, resource.RLIMIT_DATA, (most, most))
    return child


def release(child: subprocess.Popen[bytes]) -> None:
    """Let a held process run the guest's program.

    :raises BrokenPipeError: it is gone.
    """
    assert child.stdin is not None
    child.stdin.write(b"go\n")
    child.stdin.close()
