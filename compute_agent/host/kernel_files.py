"""Files that the kernel generates (/proc, /sys, cgroups), with few system calls each.

Each round reads hundreds of them. :class:`SysFiles` reads files below a root, where any may be missing,
unreadable or have odd content.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from compute_agent.model import cpuset

# Nearly all of these files fit into one read of this size.
_CHUNK: Final = 1 << 16


def read(path: str, max_bytes: int | None = None) -> bytes:
    """The content of a file, or its first ``max_bytes``.

    :raises OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        # One read(2) of such a file may give less than there is.
        while part := os.read(descriptor, _CHUNK if max_bytes is None else min(max_bytes, _CHUNK)):
            parts.append(part)
            if max_bytes is not None and (max_bytes := max_bytes - len(part)) == 0:
                break
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_piece(path: str) -> bytes:
    """The content of a file that the kernel generates as a whole, so that one read(2) has all of it.

    All files of a cgroup are such, except for the lists of its processes and threads. So are masks of
    interrupts, and the files ``stat`` and ``status`` of a process.

    :raises OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.read(descriptor, _CHUNK)
    finally:
        os.close(descriptor)
    # A full buffer does not tell whether it was all of the file.
    return found if len(found) < _CHUNK else read(path)


def read_text(path: str) -> str:
    """The content of a file as text, with replacements for bytes that are not UTF-8.

    :raises OSError: the file cannot be read.
    """
    return read(path).decode(errors="replace")


def read_optional(path: str) -> str | None:
    """The content of a file as text; None where it is missing or cannot be read.

    Reading fails with ENODEV when a cgroup was removed or a CPU went offline meanwhile, with EOPNOTSUPP when
    PSI is switched off, and in containers with EACCES.
    """
    try:
        return read_text(path)
    except OSError:
        return None


def read_boot_id(root: Path) -> str:
    """The identifier of the boot of the host below ``root``; empty where the kernel has none."""
    return (read_optional(f"{root}/proc/sys/kernel/random/boot_id") or "").strip()


def write_text(path: str, text: str) -> None:
    """Write to an existing file with one system call, since the kernel parses each write by itself.

    :raises OSError: the file is missing, or the kernel refused the text.
    """
    # The kernel's files ignore O_TRUNC. The ordinary files of a test's tree must not keep older text.
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


KTHREADD: Final = 2
"""The number of the process that is the parent of all kernel threads."""


def list_kernel_threads(root: Path) -> list[str] | None:
    """The numbers of the kernel's threads on the host below ``root``; None if they cannot be read."""
    text = read_optional(f"{root}/proc/{KTHREADD}/task/{KTHREADD}/children")
    return None if text is None else text.split()


LOG = logging.getLogger(__name__)


class SysFiles:
    """The files of /sys and /proc below a root. An unreadable file is None.

    A missing file is ordinary (old kernel, other architecture, container), so the caller logs it, once for
    the whole host. A file with odd content is logged here.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contradictions: list[str] = []
        """Paths of files that list peers of a CPU without that CPU itself."""

    def text(self, path: str) -> str | None:
        """The content of a file without blanks at its ends; None if it cannot be read."""
        return self._read_stripped(path, read)

    def piece_text(self, path: str) -> str | None:
        """The same of a file for which read_piece() is enough."""
        return self._read_stripped(path, read_piece)

    def _read_stripped(self, path: str, read_file: Callable[[str], bytes]) -> str | None:
        try:
            content = read_file(f"{self.root}/{path}").decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            # A CPU that goes offline meanwhile answers ENODEV, some files in containers EACCES.
            LOG.debug("Cannot read %s: %s", self.root / path, error)
            return None
        return content.strip("\0 \t\r\n")

    def read_number(self, path: str) -> int | None:
        """The whole number in a file; None without one."""
        text = self.text(path)
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            LOG.warning("%s holds %r instead of a number: ignored", self.root / path, text)
            return None

    def cpu_list(self, path: str) -> frozenset[int] | None:
        """The CPUs of a list such as ``0-3,8``; an empty file is the empty set."""
        return self._cpus(path, cpuset.parse)

    def cpus(self, folder: str, *names: str) -> frozenset[int] | None:
        """The CPUs of the first readable file of ``names``.

        A file is a list where its name ends in ``list``, and a mask otherwise. Kernels before 2.6.26 have
        only masks.
        """
        for name in names:
            parse = cpuset.parse if name.endswith("list") else cpuset.parse_mask
            cpus = self._cpus(f"{folder}/{name}", parse)
            if cpus is not None:
                return cpus
        return None

    def read_peers(self, cpu: int, folder: str, *names: str) -> frozenset[int] | None:
        """The CPUs of the first file that lists ``cpu`` itself; None without such a file.

        A file of a CPU that lists only others is wrong, and an empty one says nothing.
        """
        for name in names:
            listed = self.cpus(folder, name)
            if listed and cpu in listed:
                return listed
            if listed:
                self.contradictions.append(f"{folder}/{name}")
        return None

    def list_numbers(self, folder: str, prefix: str, suffix: str = "") -> Iterator[int]:
        """The numbers N of the entries ``prefixNsuffix`` of a folder, ascending; none without the folder."""
        pattern = re.compile(re.escape(prefix) + r"([0-9]+)" + re.escape(suffix), re.ASCII)
        matches = map(pattern.fullmatch, self.list_names(folder))
        return iter(sorted(int(match[1]) for match in matches if match))

    def list_names(self, folder: str) -> list[str]:
        """The sorted names in a folder; none without the folder."""
        try:
            return sorted(os.listdir(f"{self.root}/{folder}"))
        except OSError as error:
            LOG.debug("Cannot list %s: %s", self.root / folder, error)
            return []

    def list_folders(self, folder: str) -> list[str]:
        """The sorted names of folders in a folder, without links; none without the folder."""
        try:
            with os.scandir(f"{self.root}/{folder}") as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            LOG.debug("Cannot list %s: %s", self.root / folder, error)
            return []

    def read_link(self, path: str) -> str | None:
        """The text of a symbolic link; None where there is none."""
        try:
            return os.readlink(self.root / path)
        except OSError as error:
            LOG.debug("Cannot read %s: %s", self.root / path, error)
            return None

    def _cpus(self, path: str, parse: cpuset.Parser) -> frozenset[int] | None:
        text = self.text(path)
        if text is None:
            return None
        try:
            return parse(text)
        except cpuset.BadCpuSet as error:
            LOG.warning("%s: %s: ignored", self.root / path, error)
            return None
