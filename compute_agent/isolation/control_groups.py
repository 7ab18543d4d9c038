"""Finds the control groups (cgroup v2) with processes of the host, and the groups that belong to guests.

Files: Documentation/admin-guide/cgroup-v2.rst, "Cpuset Interface Files". The path of a group is relative to
the root of all groups, such as ``system.slice``. systemd owns the groups of its units. The agent changes
units directly below the root by ``systemctl set-property --runtime``, so that a reload of systemd keeps the
change. For all other groups the agent writes to the group's files.
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
"""The slice of libvirt's domains. The agent does not restrict this slice: a domain would not start if the
slice lacked the domain's CPUs."""

_GUEST_PREFIXES: Final = ("machine-", "guest-")
"""The beginnings of the names of groups of domains and of process guests, including guests that the agent
does not know."""

MAX_GROUPS: Final = 4000
"""Maximum number of host groups that are listed. A user with a delegated group can make any number of groups
below it.
"""

_UNIT: Final = re.compile(r"[^/]+\.(?:slice|scope|service)")
_OWN_GROUP: Final = re.compile(r"(?P<domain>/.+)/libvirt/[^/]+")
"""The name of the group of a domain's main thread. The groups of all threads of the domain have the same
parent."""

_SYSTEMD_SECONDS: Final = 10.0
_SYSTEMD_PAUSE: Final = 60.0
"""Seconds for which systemctl is not called after it has hung; otherwise each round would wait for systemctl
again for each group.
"""

_APPLY_SECONDS: Final = 0.5
"""Maximum seconds to wait until a property has reached the kernel, because systemd answers before it
writes."""


class GroupReader:
    """Reads control groups below a root, and writes the CPUs of groups with processes of the host."""

    def __init__(self, root: Path, find_systemctl: Callable[[], str | None] | None = None) -> None:
        """Use the groups below ``root``.

        ``find_systemctl`` returns the path of systemctl; None means that the agent searches for it on this
        host.
        """
        self.root = root
        self._files = SysFiles(root)
        self._find_systemctl = self._own_systemctl if find_systemctl is None else find_systemctl
        self._systemd_due = 0.0
        """The end (monotonic seconds) of the pause after systemctl has hung."""

    @property
    def has_cpusets(self) -> bool:
        """Whether the host has cgroup v2 groups with the controller cpuset."""
        return "cpuset" in (self._files.text(f"{CONTROL_GROUPS}/cgroup.controllers") or "").split()

    def list_foreign(self, guests: Collection[str]) -> Iterator[str]:
        """The outermost control groups with processes of the host, and without groups of guests.

        :param guests: the control groups that belong to guests.
        """
        if self.has_cpusets:
            found = tuple(itertools.islice(self._list_foreign("", guests), MAX_GROUPS + 1))
            if len(found) > MAX_GROUPS:
                LOG.warning(
                    "The host has more than %d control groups without guests. The agent restricts no further"
                    " groups, and their processes may use quiet CPUs",
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
        """Whether guests are in the group or below it, or can be started there."""
        return (
            group == _MACHINES
            or any(guest == group or guest.startswith(f"{group}/") for guest in guests)
            or any(
                self._is_guests(f"{group}/{name}")
                for name in self._files.list_folders(f"{CONTROL_GROUPS}/{group}")
            )
        )

    def _is_guests(self, group: str) -> bool:
        """Whether a group has a name that the agent or libvirt gives to groups of guests."""
        if not group.rpartition("/")[2].startswith(_GUEST_PREFIXES):
            return False
        # The name alone proves nothing: a user with a delegated group can give such a name to a group below
        # it, so that processes there stay on quiet CPUs. So the folder must belong to root or to the agent's
        # user.
        with contextlib.suppress(OSError):
            return os.lstat(f"{self.root}/{CONTROL_GROUPS}/{group}").st_uid in (0, os.geteuid())
        return False

    def find_group(self, pid: int) -> str:
        """The control group of a guest's main process.

        For a libvirt domain, the result is the group that contains all threads of the domain.

        The result is empty if the process has ended or is in the root group.
        """
        for line in (self._files.text(f"proc/{pid}/cgroup") or "").splitlines():
            number, _, path = line.partition("::")
            if number == "0" and ".." not in path.split("/"):
                match = _OWN_GROUP.fullmatch(path)
                return (path if match is None else match["domain"]).strip("/")
        return ""

    def write_cpus(self, group: str, text: str) -> None:
        """Set the CPUs of a group; with an empty text the group may use the CPUs of its parent.

        :raises OSError: the kernel refuses the change.
        """
        file = f"{self.root}/{CONTROL_GROUPS}/{group}/{GROUP_CPUS}"
        if _UNIT.fullmatch(group) and self._set_property(group, text) and _await_text(file, text):
            return
        if not os.path.exists(file):
            if not text:
                return
            self._enable_cpusets(group.rpartition("/")[0])
        try:
            # The text ends with a line feed: the kernel reads an empty line as an empty set, and ignores a
            # write of zero bytes.
            self._write_file(file, f"{text}\n")
        except OSError as error:
            if text or error.errno != errno.ENOSPC:
                raise
            # The kernel refuses an empty set for a group with processes that once had CPUs. A set of all CPUs
            # has the same effect.
            self._write_file(file, f"{cpuset.format(self.read_possible())}\n")

    def _write_file(self, file: str, text: str) -> None:
        kernel_files.write_text(file, text)

    def read_possible(self) -> CpuSet:
        """The CPUs that the host can ever have."""
        folder = "sys/devices/system/cpu"
        found = self._files.cpu_list(f"{folder}/possible") or self._files.cpu_list(f"{folder}/online")
        return found or frozenset()

    def _enable_cpusets(self, parent: str) -> None:
        """Enable the controller cpuset for the groups below a group, and in the groups above if necessary."""
        above = [parent]
        while above[-1]:
            above.append(above[-1].rpartition("/")[0])
        for group in reversed(above):
            file = "/".join(filter(None, (str(self.root), CONTROL_GROUPS, group, "cgroup.subtree_control")))
            if "cpuset" not in kernel_files.read_text(file).split():
                kernel_files.write_text(file, "+cpuset\n")

    def _set_property(self, unit: str, text: str) -> bool:
        """Set the CPUs of a unit through systemd; return whether systemd runs and knows the unit."""
        program = self._find_systemctl()
        if program is None or time.monotonic() < self._systemd_due:
            return False
        command = (program, "set-property", "--runtime", "--", unit, f"AllowedCPUs={text.replace(',', ' ')}")
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_SYSTEMD_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            LOG.warning(
                "systemctl cannot set the CPUs of %s, so the agent writes them to the control group: %s",
                unit,
                error,
            )
            self._systemd_due = time.monotonic() + _SYSTEMD_PAUSE
            return False
        if done.returncode:
            LOG.debug(
                "systemctl cannot set the CPUs of %s, so the agent writes them to the control group: %s",
                unit,
                done.stderr.strip(),
            )
            return False
        if not text:
            # The file of the property is removed, because an empty property at run time would hide a later
            # setting of an operator.
            folder = self.root / f"run/systemd/system.control/{unit}.d"
            with contextlib.suppress(OSError):
                (folder / "50-AllowedCPUs.conf").unlink(missing_ok=True)
                folder.rmdir()
        return True

    def _own_systemctl(self) -> str | None:
        # The folder exists if systemd is the init system (sd_booted(3)).
        is_own = self.root == Path("/") and os.path.isdir("/run/systemd/system")
        return shutil.which("systemctl") if is_own else None

    def _is_populated(self, group: str) -> bool:
        return "populated 1" in (self._files.piece_text(f"{CONTROL_GROUPS}/{group}/cgroup.events") or "")


def _await_text(file: str, text: str) -> bool:
    """Whether a file has this content, or gets it within a moment. A missing file counts as empty."""
    deadline = time.monotonic() + _APPLY_SECONDS
    while True:
        found = (kernel_files.read_optional(file) or "").strip()
        if found == text:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
