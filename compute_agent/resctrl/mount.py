"""Find the mount, or make one: what is mounted is used, and nothing is mounted unless it is asked for."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compute_agent.resctrl.filesystem import read_text

MOUNT_POINT: Final = "sys/fs/resctrl"


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted resctrl: where, with which options, and whether it can be written.

    ``captured``: no mount, but the files of one of another machine.
    """

    path: Path
    options: frozenset[str]
    captured: bool = False

    @property
    def read_only(self) -> bool:
        """Whether groups cannot be changed."""
        return "ro" in self.options


class NoMountError(Exception):
    """There is no resctrl to work with; the text says why, for one log line."""


def open_mount(root: Path = Path("/"), mount: bool = False, options: str = "") -> Mount:
    """The writable mount of the machine whose files are below ``root``.

    With ``mount``, one is made at sys/fs/resctrl where there is none, with mount options such as
    ``cdp,mba_MBps``.

    :raises NoMountError: not supported, not mounted, mounted read-only, refused.
    """
    found = find_mount(root)
    if found is None:
        if not supported(root):
            raise NoMountError("resctrl is not supported by this processor or kernel")
        if not mount:
            raise NoMountError("resctrl is not mounted")
        make_mount(root / MOUNT_POINT, options)
        found = find_mount(root) or Mount(root / MOUNT_POINT, frozenset(filter(None, options.split(","))))
    if found.read_only:
        raise NoMountError(f"resctrl is mounted read-only at {found.path}")
    return found


def supported(root: Path) -> bool:
    """Whether the kernel has the filesystem, which it registers only where the hardware has something."""
    return any(line.split()[-1:] == ["resctrl"] for line in read_text(root / "proc/filesystems").splitlines())


def find_mount(root: Path) -> Mount | None:
    """The first resctrl of proc/mounts that can be reached, or a tree of one at sys/fs/resctrl.

    A captured tree of another machine has no mounts of its own; its folder counts.
    """
    for line in read_text(root / "proc/mounts").splitlines():
        fields = line.split()
        if len(fields) >= 4 and fields[2] == "resctrl":
            # The kernel writes blanks and backslashes in octal.
            where = fields[1].encode().decode("unicode_escape")
            return Mount(root / where.lstrip("/"), frozenset(fields[3].split(",")))
    tree = root / MOUNT_POINT
    return Mount(tree, frozenset(), captured=True) if (tree / "schemata").is_file() else None


def make_mount(path: Path, options: str) -> None:
    """Mount resctrl with mount(2).

    :raises NoMountError: with the kernel's reason.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"resctrl", os.fsencode(path), b"resctrl", 0, options.encode() or None) != 0:
        number = ctypes.get_errno()
        with_options = f" with options {options!r}" if options else ""
        raise NoMountError(f"resctrl cannot be mounted at {path}{with_options}: {os.strerror(number)}")
