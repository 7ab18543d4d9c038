"""A machine without systemd: a root folder with processes that end with the test."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil

SECONDS: Final = 300

_BOOT: Final = """
set -e
mount --make-rprivate /
mount --rbind /dev "$1/dev"
mount --rbind /sys "$1/sys"
mount -t proc proc "$1/proc"
mkdir -p "$1/run/systemd/system"
exec chroot "$1" sh -c 'echo up; exec sleep infinity'
"""


class BootedMachine:
    """Runs commands. Background processes live until the machine ends."""

    def __init__(self, root: Path, init: int) -> None:
        self.root = root
        self._enter = ("nsenter", "--target", str(init), "--mount", "--pid", "--root", "--wdns=/")

    def run(self, *words: object, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a command and return its result; with ``check``, a failing command fails the test."""
        done = subprocess.run(
            [*self._enter, *map(str, words)],
            env=_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert not check or done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
        return done

    def start(self, words: Sequence[object], log: str) -> "subprocess.Popen[bytes]":
        """Start a command in the background."""
        with (self.root / log).open("ab") as output:
            return subprocess.Popen(
                [*self._enter, *map(str, words)],
                env=_ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )


_ENVIRONMENT: Final = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}


class BootedMachineMissing(Exception):
    """The host cannot make such a machine; the text has the reason."""


@contextmanager
def booted(root: Path) -> Iterator[BootedMachine]:
    """Run a machine with this root.

    :raises BootedMachineMissing: the host cannot make namespaces
    """
    if os.geteuid() != 0:
        raise BootedMachineMissing("only root may make namespaces")
    holder = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _BOOT, "boot", root],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != b"up\n":
            raise BootedMachineMissing(f"namespaces cannot be made here: {holder.stderr.read().decode()}")
        (init,) = psutil.Process(holder.pid).children()
        yield BootedMachine(root, init.pid)
    finally:
        holder.kill()
        holder.communicate()
