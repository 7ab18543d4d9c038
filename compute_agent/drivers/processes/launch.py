"""Starts process guests, and checks processes before the agent adopts them.

A started guest is held before its first instruction, so that the agent can record and pin the guest before
its program runs. A guest inherits neither the agent's environment nor its open files. Kernel threads, the
agent itself, and parts of other guests cannot be adopted.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import resource
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from compute_agent.drivers import procfs
from compute_agent.drivers.cgroup import CgroupRoot, GuestCgroup
from compute_agent.drivers.procfs import ProcessIdentity
from compute_agent.model.messages import DriverError

_INIT: Final = 1
# The kernel shows the pid 0 in cgroup.procs for a process of another pid namespace.
_OUTSIDE: Final = 0


def adoptable_process(pid: int) -> ProcessIdentity:
    """Check that the process with this pid can become a guest, and return the identity of the process.

    :raises DriverError: there is no such process, or it is process 1, the agent or a kernel thread.
    """
    if pid in (_INIT, os.getpid()):
        raise DriverError(
            f"pid {pid} is {'process 1' if pid == _INIT else 'the agent'} and cannot be a guest"
        )
    identity = procfs.identify_process(pid)
    if identity is None:
        raise DriverError(f"there is no process with pid {pid}")
    if procfs.is_kernel_thread(pid):
        raise DriverError(f"pid {pid} is a kernel thread and cannot be a guest")
    return identity


def adoptable_group(
    folder: Path, groups: CgroupRoot | None, guests: Collection[str]
) -> tuple[GuestCgroup, ProcessIdentity]:
    """Return the cgroup v2 group of a folder, and its oldest process, which becomes the main process.

    :param groups: the delegated group with the groups of all guests; None means that guests have no groups.
    :param guests: the uuids of all present guests.
    :raises DriverError: the folder is not a group, is empty, or contains the system, the agent or another
        guest.
    """
    if groups is None:
        raise DriverError(
            f"group {folder} cannot be a guest: guests have no groups of their own here ([cgroup] root)"
        )
    try:
        # Symbolic links are resolved first, so that the checks below see the real path.
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
    leader = procfs.oldest_process(group.process_ids())
    if leader is None:
        raise DriverError(f"group {folder} cannot be a guest: its processes have ended")
    return group, leader


def _find_objection(group: GuestCgroup, groups: CgroupRoot, guests: Collection[str]) -> str:
    """The reason why a group cannot be a guest; empty if the group can be a guest."""
    folder, root = group.folder, groups.folder.resolve()
    if not (folder / "cgroup.procs").is_file() or not (folder / "cgroup.controllers").is_file():
        return "it is not a group of cgroup v2"
    if root.is_relative_to(folder):
        return f"it holds all guests ([cgroup] root is {root})"
    # A group of an unknown guest was left by an agent that crashed during an adoption. Such a group can be
    # adopted again.
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
"""The environment variable with the uuid of a guest.

When a guest has ended, the agent kills processes with this variable, unless they are older than the guest.
Any process can set any variable, so the agent concludes nothing else from it.
"""

VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z", re.ASCII)

# The PATH of a system service: a guest must not depend on the PATH of the user that started the agent.
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The child waits for a line on its standard input before it becomes the guest's program. If the agent dies
# first, the child reads the end of the pipe and ends, so no guest runs before it is recorded and pinned.
# ``exec`` keeps the pid, and </dev/null closes the pipe for the guest.
_HOLD: Final = 'read -r go && exec "$@" </dev/null'


def guest_environment(guest_uuid: str, wanted: Mapping[str, str]) -> dict[str, str]:
    """The environment of a starting guest: a few variables that programs need, and those in ``wanted``."""
    user = os.geteuid()
    try:
        entry = pwd.getpwuid(user)
        name, home, shell = entry.pw_name, entry.pw_dir, entry.pw_shell
    except KeyError:
        # The user has no entry in the user database, as happens in a container.
        name, home, shell = str(user), "/", ""
    # The uuid comes last, so that a request cannot give a guest the variable of another guest.
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
    """Check the command and the working folder before the process is started.

    :param path: the PATH of the guest.
    :raises DriverError: the command or the working folder cannot be used.
    """
    if not command:
        raise DriverError("the command of the guest is empty")
    # The shell looks a relative command with a slash up in the guest's folder, so the check does the same.
    found = shutil.which(command[0], path=path) or os.access(os.path.join(cwd, command[0]), os.X_OK)
    if not found:
        raise DriverError(f"the command {command[0]!r} is not found in {path}, or not executable")
    if not os.path.isdir(cwd):
        raise DriverError(f"the working folder {cwd!r} does not exist")


def start_held(
    command: Sequence[str], cwd: str, environment: Mapping[str, str], output: int
) -> subprocess.Popen[bytes]:
    """Start the process of a guest in a session of its own, held until release().

    The guest does not inherit the limit that the agent's unit sets on the agent's memory (LimitDATA=).

    :param output: the file descriptor for the guest's standard output and error.
    :raises OSError: the process cannot be started.
    """
    # In a session of its own, the guest gets no signals to the agent's process group. The session also
    # identifies processes that the guest leaves behind.
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
    # The limit is set from outside with prlimit(2): preexec_fn would run Python code between fork and exec in
    # a process with threads. If the process is gone already, release() reports that.
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(child.pid, resource.RLIMIT_DATA, (most, most))
    return child


def end_held(child: subprocess.Popen[bytes]) -> None:
    """End a held process, unless it has ended already, and read its exit status."""
    child.kill()
    child.wait()
    assert child.stdin is not None  # start_held() opened it; the assertion is for the type checker.
    with contextlib.suppress(OSError):
        child.stdin.close()


def release(child: subprocess.Popen[bytes]) -> None:
    """Let a held process run the guest's program.

    :raises BrokenPipeError: the process is gone.
    """
    assert child.stdin is not None  # start_held() opened it; the assertion is for the type checker.
    child.stdin.write(b"go\n")
    child.stdin.close()
