"""Reads and writes files that the kernel generates (/proc, /sys, cgroups), with few system calls for each.

A round of the agent reads hundreds of such files. :class:`SysFiles` reads files below a root, any of which
may be missing, unreadable or have odd content.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from compute_agent.model import cpuset

# Bytes of one read(2). Nearly all files of the kernel are shorter.
_CHUNK: Final = 1 << 16


def read(path: str, max_bytes: int | None = None) -> bytes:
    """The content of a file, or its first ``max_bytes``.

    :raises OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        # One read(2) of a file in /proc may return less than the whole content.
        while part := os.read(descriptor, _CHUNK if max_bytes is None else min(max_bytes, _CHUNK)):
            parts.append(part)
            if max_bytes is not None and (max_bytes := max_bytes - len(part)) == 0:
                break
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_piece(path: str) -> bytes:
    """The content of a file that the kernel generates in one piece, so that one read(2) returns all of it.

    All files of a cgroup are generated in this way, except for the lists of its processes and threads. So are
    masks of interrupts, and the files ``stat`` and ``status`` of a process.

    :raises OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.read(descriptor, _CHUNK)
    finally:
        os.close(descriptor)
    # If the buffer is full, the file may be longer, and is read again with the general function.
    return found if len(found) < _CHUNK else read(path)


def read_text(path: str) -> str:
    """The content of a file as text, with replacements for bytes that are not UTF-8.

    :raises OSError: the file cannot be read.
    """
    return read(path).decode(errors="replace")


def read_optional(path: str) -> str | None:
    """The content of a file as text; None if it is missing or cannot be read.

    A read fails with ENODEV if the cgroup was removed or the CPU went offline after the file was opened. It
    fails with EOPNOTSUPP if PSI is switched off, and in containers with EACCES.
    """
    try:
        return read_text(path)
    except OSError:
        return None


def read_boot_id(root: Path) -> str:
    """The boot_id of the host below ``root``, which changes with each boot; empty if unknown."""
    return (read_optional(f"{root}/proc/sys/kernel/random/boot_id") or "").strip()


def write_text(path: str, text: str) -> None:
    """Write to an existing file with one system call, because the kernel parses each write(2) separately.

    :raises OSError: the file is missing, or the kernel refused the text.
    """
    # O_TRUNC is for the ordinary files of tests, which must not keep older text. Kernel files ignore it.
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


KTHREADD: Final = 2
"""The process id of kthreadd, the parent of all kernel threads."""


def list_kernel_threads(root: Path) -> list[str] | None:
    """The process ids, as text, of the kernel threads of the host below ``root``; None if unreadable."""
    text = read_optional(f"{root}/proc/{KTHREADD}/task/{KTHREADD}/children")
    return None if text is None else text.split()


LOG = logging.getLogger(__name__)


class SysFiles:
    """Reads files of /sys and /proc below a root; methods return None for an unreadable file.

    Missing files are normal (old kernel, other architecture, container), so that the caller logs them, once
    for the whole host. A file with odd content is logged here.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contradictions: list[str] = []
        """Paths of files with peers of a CPU that do not list the CPU itself."""

    def text(self, path: str) -> str | None:
        """The content of a file, without blanks and zero bytes at its ends; None if it cannot be read."""
        return self._read_stripped(path, read)

    def piece_text(self, path: str) -> str | None:
        """The content of a file as from text(), read with one system call as in read_piece()."""
        return self._read_stripped(path, read_piece)

    def _read_stripped(self, path: str, read_file: Callable[[str], bytes]) -> str | None:
        try:
            content = read_file(f"{self.root}/{path}").decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            # ENODEV for a CPU that has just gone offline, EACCES for some files in containers.
            LOG.debug("Cannot read %s: %s", self.root / path, error)
            return None
        return content.strip("\0 \t\r\n")

    def read_number(self, path: str) -> int | None:
        """The integer in a file; None if the file is missing, empty or has other content."""
        text = self.text(path)
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            LOG.warning("%s holds %r instead of a number: ignored", self.root / path, text)
            return None

    def cpu_list(self, path: str) -> frozenset[int] | None:
        """The CPUs in a file with a list such as ``0-3,8``; an empty file is the empty set."""
        return self._cpus(path, cpuset.parse)

    def cpus(self, folder: str, *names: str) -> frozenset[int] | None:
        """The CPUs in the first readable file of ``names``; None if no file is readable.

        A file with a name that ends in ``list`` has a list, and other files have a mask. Kernels before
        2.6.26 have only masks.
        """
        for name in names:
            parse = cpuset.parse if name.endswith("list") else cpuset.parse_mask
            cpus = self._cpus(f"{folder}/{name}", parse)
            if cpus is not None:
                return cpus
        return None

    def read_peers(self, cpu: int, folder: str, *names: str) -> frozenset[int] | None:
        """The CPUs in the first file of ``names`` that lists ``cpu`` itself; None without such a file.

        A file that lists other CPUs but not ``cpu`` is wrong, and is added to ``contradictions``.
        """
        for name in names:
            listed = self.cpus(folder, name)
            if listed and cpu in listed:
                return listed
            if listed:
                self.contradictions.append(f"{folder}/{name}")
        return None

    def list_numbers(self, folder: str, prefix: str, suffix: str = "") -> Iterator[int]:
        """The numbers N of the entries ``prefixNsuffix`` of a folder, ascending; empty without the folder."""
        pattern = re.compile(re.escape(prefix) + r"([0-9]+)" + re.escape(suffix), re.ASCII)
        matches = map(pattern.fullmatch, self.list_names(folder))
        return iter(sorted(int(match[1]) for match in matches if match))

    def list_names(self, folder: str) -> list[str]:
        """The sorted names in a folder; empty if the folder is missing."""
        try:
            return sorted(os.listdir(f"{self.root}/{folder}"))
        except OSError as error:
            LOG.debug("Cannot list %s: %s", self.root / folder, error)
            return []

    def list_folders(self, folder: str) -> list[str]:
        """The sorted names of folders in a folder, without symbolic links; empty if the folder is missing."""
        try:
            with os.scandir(f"{self.root}/{folder}") as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            LOG.debug("Cannot list %s: %s", self.root / folder, error)
            return []

    def read_link(self, path: str) -> str | None:
        """The target of a symbolic link as text; None if it is missing."""
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
