"""Files that the kernel makes up as they are read (/proc, /sys, cgroups).

A few system calls for each and no more, as every round reads hundreds.

Reading small kernel files below a root, where any may be missing, unreadable or have odd content.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from compute_agent.model import cpuset

_CHUNK: Final = 1 << 16


def read(path: str, max_bytes: int | None = None) -> bytes:
    """The content of a file, ``max_bytes`` of it unless that is None.

    :raises OSError:
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, _CHUNK if max_bytes is None else min(max_bytes, _CHUNK)):
            parts.append(part)
            if max_bytes is not None and (max_bytes := max_bytes - len(part)) == 0:
                break
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_piece(path: str) -> bytes:
    """The content of a file that the kernel makes in one piece, so that one read(2) has all of it.

    So are all of a cgroup but the lists of its processes and threads.

    :raises OSError:
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.read(descriptor, _CHUNK)
    finally:
        os.close(descriptor)
    return found if len(found) < _CHUNK else read(path)


def read_text(path: str) -> str:
    """The content of a file as text; what is no UTF-8 is replaced.

    :raises OSError:
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


def write_text(path: str, text: str) -> None:
    """Write to a file that is there, at once as the kernel needs it.

    :raises OSError:
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


LOG = logging.getLogger(__name__)


class SysFiles:
    """The files of /sys and /proc below a root; what cannot be read is None.

    A file that is not there is an ordinary finding (old kernel, other architecture, container) and is left to
    the caller to log, once for the whole host; a file whose content makes no sense is logged here.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contradictions: list[str] = []
        """Paths of the files that tell of the peers of a CPU, and not of that CPU itself."""

    def text(self, path: str) -> str | None:
        """Content of ``path`` without blanks at its ends; None if it cannot be read.

        The path is relative to the root.
        """
        try:
            content = read_text(f"{self.root}/{path}")
        except FileNotFoundError:
            return None
        except OSError as error:
            # A CPU that goes offline meanwhile answers ENODEV, some files in containers EACCES.
            LOG.debug("Cannot read %s: %s", self.root / path, error)
            return None
        return content.strip("\0 \t\r\n")

    def number(self, path: str) -> int | None:
        """The whole number in ``path``."""
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

        It is a list where the name ends in ``list``, else a mask.

        Kernels before 2.6.26 have masks only.
        """
        for name in names:
            parse = cpuset.parse if name.endswith("list") else cpuset.parse_mask
            cpus = self._cpus(f"{folder}/{name}", parse)
            if cpus is not None:
                return cpus
        return None

    def peers(self, cpu: int, folder: str, *names: str) -> frozenset[int] | None:
        """The CPUs of the first of the files, as ``cpus`` reads them, that names ``cpu`` itself.

        A file of a CPU that lists others only cannot be true. One that lists nobody tells nothing.
        """
        for name in names:
            listed = self.cpus(folder, name)
            if listed and cpu in listed:
                return listed
            if listed:
                self.contradictions.append(f"{folder}/{name}")
        return None

    def numbered(self, folder: str, prefix: str, suffix: str = "") -> Iterator[int]:
        """The numbers N of entries ``prefixNsuffix`` of a folder, ascending.

        There are none where there is no folder.
        """
        pattern = re.compile(re.escape(prefix) + r"([0-9]+)" + re.escape(suffix), re.ASCII)
        matches = map(pattern.fullmatch, self.names(folder))
        return iter(sorted(int(match[1]) for match in matches if match))

    def names(self, folder: str) -> list[str]:
        """The names of what is in a folder, in order; none where there is no folder."""
        try:
            return sorted(entry.name for entry in (self.root / folder).iterdir())
        except OSError as error:
            LOG.debug("Cannot list %s: %s", self.root / folder, error)
            return []

    def link(self, path: str) -> str | None:
        """Where a symbolic link points, as it says so itself; None if it is none."""
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
