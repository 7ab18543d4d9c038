"""Control groups of cgroup v2: which of them have processes of the host, and which belong to guests.

Files: Documentation/admin-guide/cgroup-v2.rst, "Cpuset Interface Files". A path of a group is relative to the
root of the groups, as in ``system.slice``. systemd owns the groups of its units. The agent changes those
below the root by ``systemctl set-property --runtime``, so that a reload of systemd keeps them. The agent
writes to all other groups.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

from compute_agent.host import kernel_files
from compute_agent.host.kernel_files import SysFiles
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet

LOG = logging.getLogger(__name__)

CONTROL_GROUPS: Final = "sys/fs/cgroup"
GROUP_CPUS: Final = "cpuset.cpus"

_MACHINES: Final = "machine.slice"
"""The slice of libvirt's domains. A domain would not start if it lacked the CPUs."""

_GUEST_PREFIXES: Final = ("machine-", "guest-")
"""Names of the groups of domains and of process guests, also of those that the agent does not know."""

MAX_GROUPS: Final = 4000
"""Groups of the host that are listed. A user with a delegated group may make any number below it."""

_UNIT: Final = re.compile(r"[^/]+\.(?:slice|scope|service)")
_OWN_GROUP: Final = re.compile(r"(?P<domain>/.+)/libvirt/[^/]+")
"""The group of a domain's main thread. The groups of all its threads are below the same folder."""

_SYSTEMD_SECONDS: Final = 10.0
_SYSTEMD_PAUSE: Final = 60.0
"""Seconds without systemctl after it has hung: otherwise each group of a round would wait for it."""

_APPLY_SECONDS: Final = 0.5
"""systemd answers before it has written to the kernel."""


class GroupReader:
    """Reads control groups below a root, and writes CPUs of those with processes of the host."""

    def __init__(self, root: Path, find_systemctl: Callable[[], str | None] | None = None) -> None:
        """``find_systemctl`` finds the program; None: that of this host, where ``root`` is its own."""
        self.root = root
        self._files = SysFiles(root)
        self._find_systemctl = self._own_systemctl if find_systemctl is None else find_systemctl
        self._systemd_due = 0.0
        """The end (monotonic seconds) of the pause after systemctl has hung."""

    @property
    def has_cpusets(self) -> bool:
        """Whether the host has groups of cgroup v2 that can have CPUs."""
        return "cpuset" in (self._files.text(f"{CONTROL_GROUPS}/cgroup.controllers") or "").split()

    def list_foreign(self, guests: Collection[str]) -> Iterator[str]:
        """The outermost groups that have processes, and no guests in or below them.

        :param guests: the groups of guests.
        """
        if self.has_cpusets:
            found = tuple(itertools.islice(self._list_foreign("", guests), MAX_GROUPS + 1))
            if len(found) > MAX_GROUPS:
                LOG.warning(
                    "The host has more than %d control groups without guests. The agent restricts no"
                    " further ones, and their processes may use quiet CPUs",
                    MAX_GROUPS,
                )
            yield from found[:MAX_GROUPS]

    def _list_foreign(self, parent: str, guests: Collection[str]) -> Iterator[str]:
        for name in self._files.list_folders(f"{CONTROL_GROUPS}/{parent}"):
            group = f"{parent}/{name}" if parent else name
            if group in guests or self._is_guests(group):
                continue
            if self.holds_guests(group, guests):
                yield from self._list_foreign(group, guests)
            elif self._is_populated(group):
                yield group

    def holds_guests(self, group: str, guests: Collection[str]) -> bool:
        """Whether guests are in a group or below it, or may be started there."""
        return (
            group == _MACHINES
            or any(guest == group or guest.startswith(f"{group}/") for guest in guests)
            or any(
                self._is_guests(f"{group}/{name}")
                for name in self._files.list_folders(f"{CONTROL_GROUPS}/{group}")
            )
        )

    def _is_guests(self, group: str) -> bool:
        """Whether a group is that of a guest by its name, which the agent or libvirt gave."""
        if not group.rpartition("/")[2].startswith(_GUEST_PREFIXES):
            return False
        # A user with a delegated group may give any name below it, to stay on quiet CPUs.
        with contextlib.suppress(OSError):
            return os.lstat(f"{self.root}/{CONTROL_GROUPS}/{group}").st_uid in (0, os.geteuid())
        return False

    def find_group(self, pid: int) -> str:
        """The group of a guest by its main process: for a domain that with all of its threads.

        Empty where the process has ended, or is in the root of the groups.
        """
        for line in (self._files.text(f"proc/{pid}/cgroup") or "").splitlines():
            number, _, path = line.partition("::")
            if number == "0" and ".." not in path.split("/"):
                match = _OWN_GROUP.fullmatch(path)
                return (path if match is None else match["domain"]).strip("/")
        return ""

    def write_cpus(self, group: str, text: str) -> None:
        """Set the CPUs of a group; an empty text is those of its parent.

        :raises OSError: the kernel refuses it.
        """
        file = f"{self.root}/{CONTROL_GROUPS}/{group}/{GROUP_CPUS}"
        if _UNIT.fullmatch(group) and self._set_property(group, text) and _await_text(file, text):
            return
        if not os.path.exists(file):
            if not text:
                return
            self._enable_cpusets(group.rpartition("/")[0])
        try:
            # The kernel takes a line without content as an empty set, and ignores a write of nothing.
            self._write_file(file, f"{text}\n")
        except OSError as error:
            if text or error.errno != errno.ENOSPC:
                raise
            # A group with processes that has CPUs never becomes empty again. All CPUs are the same for it.
            self._write_file(file, f"{cpuset.format(self.read_possible())}\n")

    def _write_file(self, file: str, text: str) -> None:
        kernel_files.write_text(file, text)

    def read_possible(self) -> CpuSet:
        """The CPUs that the host can ever have."""
        folder = "sys/devices/system/cpu"
        found = self._files.cpu_list(f"{folder}/possible") or self._files.cpu_list(f"{folder}/online")
        return found or frozenset()

    def _enable_cpusets(self, parent: str) -> None:
        """Enable the controller cpuset for the groups below a group, and above it where necessary."""
        above = [parent]
        while above[-1]:
            above.append(above[-1].rpartition("/")[0])
        for group in reversed(above):
            file = "/".join(filter(None, (str(self.root), CONTROL_GROUPS, group, "cgroup.subtree_control")))
            if "cpuset" not in kernel_files.read_text(file).split():
                kernel_files.write_text(file, "+cpuset\n")

    def _set_property(self, unit: str, text: str) -> bool:
        """Tell systemd the CPUs of a unit, if systemd runs and knows the unit."""
        program = self._find_systemctl()
        if program is None or time.monotonic() < self._systemd_due:
            return False
        command = (program, "set-property", "--runtime", "--", unit, f"AllowedCPUs={text.replace(',', ' ')}")
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SYSTEMD_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            LOG.warning("systemctl cannot set the CPUs of %s: %s", unit, error)
            self._systemd_due = time.monotonic() + _SYSTEMD_PAUSE
            return False
        if done.returncode:
            LOG.debug("systemctl cannot set the CPUs of %s: %s", unit, done.stderr.strip())
            return False
        if not text:
            # An empty property at run time would hide one that an operator configures later.
            folder = self.root / f"run/systemd/system.control/{unit}.d"
            with contextlib.suppress(OSError):
                (folder / "50-AllowedCPUs.conf").unlink(missing_ok=True)
                folder.rmdir()
        return True

    def _own_systemctl(self) -> str | None:
        # systemd's sd_booted(3): the folder is there if systemd is the init system.
        is_own = self.root == Path("/") and os.path.isdir("/run/systemd/system")
        return shutil.which("systemctl") if is_own else None

    def _is_populated(self, group: str) -> bool:
        return "populated 1" in (self._files.piece_text(f"{CONTROL_GROUPS}/{group}/cgroup.events") or "")


def _await_text(file: str, text: str) -> bool:
    """Whether a file has a text, or gets it within a moment. A missing file is an empty one."""
    deadline = time.monotonic() + _APPLY_SECONDS
    while True:
        found = (kernel_files.read_optional(file) or "").strip()
        if found == text:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
