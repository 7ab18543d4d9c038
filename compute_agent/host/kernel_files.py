"""Reads and writes files that the kernel generates (/proc, /sys, cgroups), with few system calls each.

Each round reads hundreds of such files. :class:`SysFiles` reads files below a root, where any file may be
missing, unreadable or have unexpected content.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from compute_agent.model import cpuset

# Nearly all of these files fit into one read of this number of bytes.
_CHUNK: Final = 1 << 16


def read(path: str, max_bytes: int | None = None) -> bytes:
    """The content of a file, or its first ``max_bytes`` bytes.

    :raises OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        # One read(2) of such a file can return only a part of the content.
        while part := os.read(descriptor, _CHUNK if max_bytes is None else min(max_bytes, _CHUNK)):
            parts.append(part)
            if max_bytes is not None and (max_bytes := max_bytes - len(part)) == 0:
                break
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_piece(path: str) -> bytes:
    """The content of a file that one read(2) returns completely.

    One read is enough for all files of a cgroup except its lists of processes and threads. One read is also
    enough for masks of interrupts, and for the files ``stat`` and ``status`` of a process.

    :raises OSError: the file cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.read(descriptor, _CHUNK)
    finally:
        os.close(descriptor)
    # If the buffer is full, the file may have more content, so it is read again completely.
    return found if len(found) < _CHUNK else read(path)


def read_text(path: str) -> str:
    """The content of a file as text. Bytes that are not UTF-8 are replaced.

    :raises OSError: the file cannot be read.
    """
    return read(path).decode(errors="replace")


def read_optional(path: str, is_short: bool = False) -> str | None:
    """The content of a file as text; None if it is missing or cannot be read.

    A read fails with ENODEV if a cgroup was removed, or a CPU went offline, after the file was opened. The
    read fails with EOPNOTSUPP if PSI is off, and with EACCES in some containers.

    :param is_short: whether one read(2) returns the whole file, see :func:`read_piece`.
    """
    try:
        return (read_piece(path) if is_short else read(path)).decode(errors="replace")
    except OSError:
        return None


def read_boot_id(root: Path) -> str:
    """The id of the present boot of the host below ``root``; empty if the kernel shows none."""
    return (read_optional(f"{root}/proc/sys/kernel/random/boot_id") or "").strip()


_MACHINE_ID: Final = re.compile(r"[0-9a-f]{32}\Z")


def read_machine_id(root: Path) -> str:
    """The content of ``/etc/machine-id`` of the host below ``root``; empty if the host has no id."""
    # systemd writes "uninitialized" until the first boot has made an id.
    found = (read_optional(f"{root}/etc/machine-id") or "").strip()
    return found if _MACHINE_ID.match(found) else ""


def read_host_name(root: Path) -> str:
    """The content of ``/etc/hostname`` of the host below ``root``; empty if there is no file."""
    # The file is read, because the kernel's host name can come from a DHCP server or from the namespace of a
    # container.
    return (read_optional(f"{root}/etc/hostname") or "").strip()


def read_machine_hash(root: Path) -> str:
    """A hash of the machine id of the host below ``root``; empty if the host has no id.

    Only a hash is used, because machine-id(5) asks programs to keep the id secret.
    """
    machine = read_machine_id(root)
    return _hash_identity(machine, "") if machine else ""


def read_host_id(root: Path) -> str:
    """A text that only the host below ``root`` has, also after a reboot; empty if nothing identifies it.

    The text is a hash of ``/etc/machine-id`` and ``/etc/hostname``. Hosts that were made from one image can
    have the same machine id.
    """
    machine, name = read_machine_id(root), read_host_name(root)
    return _hash_identity(machine, name) if machine or name else ""


def _hash_identity(machine: str, name: str) -> str:
    return hashlib.sha256(f"compute-agent {machine} {name}".encode()).hexdigest()[:32]


def write_text(path: str, text: str) -> None:
    """Write to an existing file with one system call, because the kernel parses each call by itself.

    :raises OSError: the file is missing, or the kernel refuses the text.
    """
    # The kernel's files ignore O_TRUNC. Ordinary files in a test's tree need the flag, because they would
    # keep the end of a longer text.
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


KTHREADD: Final = 2
"""The pid of the process that is the parent of all kernel threads."""


def list_kernel_threads(root: Path) -> list[str] | None:
    """The pids of the kernel's threads on the host below ``root``, as texts; None if they cannot be read."""
    text = read_optional(f"{root}/proc/{KTHREADD}/task/{KTHREADD}/children")
    return None if text is None else text.split()


LOG = logging.getLogger(__name__)


class SysFiles:
    """The files of /sys and /proc below a root. The result for a file that cannot be read is None.

    A missing file is usual on an old kernel, on another architecture or in a container. So the caller logs
    missing files, once for the whole host. Methods that return a number or CPUs log a file without such
    content; the caller of :meth:`text` checks the text itself.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contradictions: list[str] = []
        """The paths of files that should list a CPU and its peers, but do not list the CPU itself. This is an
        error of the kernel or the firmware.
        """

    def text(self, path: str) -> str | None:
        """The content of a file without blanks at its ends; None if it cannot be read."""
        return self._read_stripped(path, read)

    def piece_text(self, path: str) -> str | None:
        """The same as text(), but for a file that one read(2) returns completely (see read_piece())."""
        return self._read_stripped(path, read_piece)

    def _read_stripped(self, path: str, read_file: Callable[[str], bytes]) -> str | None:
        try:
            content = read_file(f"{self.root}/{path}").decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            # The error is ENODEV if the CPU has just gone offline, and EACCES for some files in containers.
            LOG.debug("The file %s cannot be read, and counts as missing: %s", self.root / path, error)
            return None
        return content.strip("\0 \t\r\n")

    def read_number(self, path: str) -> int | None:
        """The whole number in a file; None if the file has no number."""
        text = self.text(path)
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            LOG.warning(
                "The agent ignores the file %s, which has %r instead of a number", self.root / path, text
            )
            return None

    def cpu_list(self, path: str) -> frozenset[int] | None:
        """The CPUs in a list like ``0-3,8``; empty for an empty list, None if the file cannot be read."""
        return self._cpus(path, cpuset.parse)

    def cpus(self, folder: str, *names: str) -> frozenset[int] | None:
        """The CPUs in the first readable file of ``names``; None if no file can be read.

        A file with a name that ends with ``list`` contains a list of CPUs, and any other file a mask.
        """
        for name in names:
            parse = cpuset.parse if name.endswith("list") else cpuset.parse_mask
            cpus = self._cpus(f"{folder}/{name}", parse)
            if cpus is not None:
                return cpus
        return None

    def read_peers(self, cpu: int, folder: str, *names: str) -> frozenset[int] | None:
        """The CPUs in the first file of ``names`` that lists ``cpu`` itself; None if no file does.

        A file of a CPU must list this CPU. The paths of files that do not are added to ``contradictions``.
        """
        for name in names:
            listed = self.cpus(folder, name)
            if listed and cpu in listed:
                return listed
            if listed:
                self.contradictions.append(f"{folder}/{name}")
        return None

    def list_numbers(self, folder: str, prefix: str, suffix: str = "") -> Iterator[int]:
        """The numbers N of entries ``prefixNsuffix`` in a folder, ascending; none without the folder."""
        pattern = re.compile(re.escape(prefix) + r"([0-9]+)" + re.escape(suffix), re.ASCII)
        matches = map(pattern.fullmatch, self.list_names(folder))
        return iter(sorted(int(match[1]) for match in matches if match))

    def list_names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none without the folder."""
        try:
            return sorted(os.listdir(f"{self.root}/{folder}"))
        except OSError as error:
            LOG.debug("The folder %s cannot be listed, and counts as empty: %s", self.root / folder, error)
            return []

    def list_folders(self, folder: str) -> list[str]:
        """The names of the subfolders, sorted and without symbolic links; none without the folder."""
        try:
            with os.scandir(f"{self.root}/{folder}") as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError as error:
            LOG.debug("The folder %s cannot be listed, and counts as empty: %s", self.root / folder, error)
            return []

    def read_link(self, path: str) -> str | None:
        """The target of a symbolic link as text; None if there is no link."""
        try:
            return os.readlink(self.root / path)
        except OSError as error:
            LOG.debug("The file %s cannot be read, and counts as missing: %s", self.root / path, error)
            return None

    def _cpus(self, path: str, parse: cpuset.Parser) -> frozenset[int] | None:
        text = self.text(path)
        if text is None:
            return None
        try:
            return parse(text)
        except cpuset.BadCpuSet as error:
            LOG.warning("The file %s has no list of CPUs, and is ignored: %s", self.root / path, error)
            return None
