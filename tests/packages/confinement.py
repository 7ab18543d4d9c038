"""Runs a command with the confinement of a systemd unit, on a machine without systemd.

The module applies the settings that the kernel offers directly. ``command`` returns the command to run. As a
program of Debian's Python (with python3-seccomp), the module installs the filters and executes the command.
"""

import contextlib
import ctypes
import errno
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_PR_SET_MDWE = 65
_MAX_FAMILY = 46
_DEBIAN_PYTHON = "/usr/bin/python3"


class ConfinementMissing(Exception):
    """This machine lacks a requirement, which the text names."""


def settings_of(unit: Path) -> dict[str, list[str]]:
    """Return all values of each setting in section [Service], in their order."""
    found: dict[str, list[str]] = {}
    section = unit.read_text().partition("\n[Service]\n")[2].partition("\n[Install]")[0]
    for line in section.splitlines():
        name, is_setting, value = line.partition("=")
        if is_setting and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


def command(unit: Path, words: Sequence[object], writable: Sequence[Path]) -> list[str]:
    """Return the command that runs these words like the unit.

    :param folders: folders that the command may write to
    :raises ConfinementMissing: this machine lacks a requirement
    """
    if os.geteuid() != 0:
        raise ConfinementMissing("only root may confine")
    if subprocess.run([_DEBIAN_PYTHON, "-c", "import seccomp"], capture_output=True, check=False).returncode:
        raise ConfinementMissing("Debian's python3-seccomp is not installed")
    settings = settings_of(unit)
    mounts = []
    if settings["ProtectSystem"] == ["strict"]:
        mounts = ["mount --make-rprivate /"]
        mounts += [f"mount --bind {shlex.quote(str(each))} {shlex.quote(str(each))}" for each in writable]
        mounts.append("mount -o remount,bind,ro /")
    if settings.get("ProcSubset") == ["pid"]:
        mounts.append("mount -t proc -o hidepid=invisible,subset=pid proc /proc")
    kept = [f"+{name.removeprefix('CAP_').lower()}" for name in settings["CapabilityBoundingSet"][0].split()]
    limits = ["prlimit", *(f"--data={_bytes(each)}" for each in settings.get("LimitDATA", ())), "--"]
    bounds = ["setpriv", f"--bounding-set={','.join(['-all', *kept])}", "--inh-caps=-all", "--no-new-privs"]
    script = " && ".join(["true", *mounts, 'exec "$@"'])
    filters = [_DEBIAN_PYTHON, __file__, str(unit)]
    return ["unshare", "-m", "sh", "-c", script, "sh", *limits, *bounds, "--", *filters, *map(str, words)]


def _bytes(limit: str) -> str:
    """Convert a limit of systemd to ``prlimit``, which has no suffixes and another word for unlimited."""
    return re.sub(r"(\d+)G", lambda found: str(int(found[1]) * 2**30), limit).replace("infinity", "unlimited")


def allowed_calls(lines: Sequence[str]) -> set[str]:
    """Return the system calls that ``SystemCallFilter=`` allows; its first line is a list of allowed ones."""
    groups = _groups()

    def calls(word: str) -> Iterator[str]:
        if not word.startswith("@"):
            yield word
            return
        for member in groups[word]:
            yield from calls(member)

    allowed: set[str] = set()
    for line in lines:
        named = {call for word in line.removeprefix("~").split() for call in calls(word)}
        allowed = allowed - named if line.startswith("~") else allowed | named
    return allowed | set(calls("@default"))  # systemd always allows these


def _groups() -> dict[str, list[str]]:
    told = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True, check=True
    )
    groups: dict[str, list[str]] = {}
    for line in re.sub(r"\x1b\[[0-9;]*m", "", told.stdout).splitlines():
        if line.startswith("@"):
            groups[name := line.strip()] = []
        elif line.startswith("    ") and not line.strip().startswith("#"):
            groups[name].append(line.strip())
    return groups


def _confine(settings: dict[str, list[str]]) -> None:
    import seccomp

    families = {getattr(socket, name) for name in settings["RestrictAddressFamilies"][0].split()}
    sockets = seccomp.SyscallFilter(seccomp.ALLOW)
    for family in set(range(_MAX_FAMILY)) - families:
        refused = seccomp.Arg(0, seccomp.EQ, family)
        sockets.add_rule(seccomp.ERRNO(errno.EAFNOSUPPORT), "socket", refused)
    calls = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for call in allowed_calls(settings["SystemCallFilter"]):
        with contextlib.suppress(
            ValueError, RuntimeError
        ):  # a call of another processor, or newer than the library
            calls.add_rule(seccomp.ALLOW, call)
    sockets.load()
    if settings.get("MemoryDenyWriteExecute") == ["yes"]:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_MDWE, 1, 0, 0, 0) and ctypes.get_errno() != errno.EINVAL:  # a kernel before 6.3
            raise OSError(ctypes.get_errno(), "PR_SET_MDWE")
    calls.load()


if __name__ == "__main__":
    _confine(settings_of(Path(sys.argv[1])))
    os.execvp(sys.argv[2], sys.argv[2:])
