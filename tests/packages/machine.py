"""A machine without systemd: a root folder of the test's own, with processes that end with it."""

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
    """Runs commands; who is not waited for lives until the machine ends."""

    def __init__(self, root: Path, init: int) -> None:
        self.root = root
        self._enter = ("nsenter", "--target", str(init), "--mount", "--pid", "--root", "--wdns=/")

    def run(self, *words: object, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """What becomes of a command; of one that fails the test fails, unless told otherwise."""
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
        """A command that goes on."""
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
    """No such machine can be made here; the text says why."""


@contextmanager
def booted(root: Path) -> Iterator[BootedMachine]:
    """A machine with this root.

    :raises Missing: namespaces cannot be made.
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
