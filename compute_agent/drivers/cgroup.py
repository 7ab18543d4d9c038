"""Groups of cgroup v2 below a delegated one (Documentation/admin-guide/cgroup-v2.rst), one for each guest."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from compute_agent.host import cpuset

LOG = logging.getLogger(__name__)

# What later controllers need as well; those that the parent does not offer are left out.
_WANTED = ("cpuset", "cpu", "memory", "io")

_PREFIX = "guest-"

_REMOVE_ATTEMPTS = 50
_REMOVE_PAUSE = 0.01


class CgroupRoot:
    """The delegated group; see open()."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path) -> CgroupRoot | None:
        """The group at ``folder`` with its controllers handed down; None, after a log line, if it is not a
        cgroup v2 group or not ours to write.
        """
        try:
            offered = (folder / "cgroup.controllers").read_text().split()
            enabled = (folder / "cgroup.subtree_control").read_text().split()
            if not os.access(folder / "cgroup.procs", os.W_OK) or not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, "not writable", str(folder))
        except OSError as error:
            LOG.warning("No cgroup groups for guests, affinity is used instead: %s", error)
            return None
        for controller in _WANTED:
            if controller in offered and controller not in enabled:
                try:
                    (folder / "cgroup.subtree_control").write_text(f"+{controller}")
                except OSError as error:
                    # EBUSY: there are processes in the group itself (no internal process constraint).
                    LOG.warning("Controller %s cannot be handed down in %s: %s", controller, folder, error)
        return cls(folder)

    def make(self, guest_uuid: str) -> Group:
        """The group of a guest, made if absent. Raises OSError."""
        group = Group(self.folder / f"{_PREFIX}{guest_uuid}")
        group.folder.mkdir(exist_ok=True)
        return group


class Group:
    """The group of one guest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int) -> None:
        """Move a process, with all its threads, into the group. Raises OSError."""
        (self.folder / "cgroup.procs").write_text(str(pid))

    def processes(self) -> list[int]:
        """The processes in the group and in the groups below it; empty when it is gone."""
        found: list[int] = []
        for folder in self._tree():
            with contextlib.suppress(OSError):
                found.extend(int(line) for line in (folder / "cgroup.procs").read_text().split())
        return found

    def confine(self, cpus: frozenset[int], mems: frozenset[int]) -> bool:
        """Write CPUs and NUMA nodes (empty: any) where they differ. True if anything was written.

        Without the cpuset controller nothing is done. Raises OSError.
        """
        changed = False
        for name, wanted in (("cpuset.cpus", cpus), ("cpuset.mems", mems)):
            path = self.folder / name
            if path.exists() and cpuset.parse(path.read_text().strip()) != wanted:
                path.write_text(cpuset.format(wanted) + "\n")
                changed = True
        return changed

    def remove(self) -> None:
        """End what is left in the group, and remove it; gone already is no error."""
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        for folder in reversed(list(self._tree())):
            _remove(folder)

    def _tree(self) -> Iterator[Path]:
        """The group and those below it, parents first."""
        for folder, _, _ in os.walk(self.folder):
            yield Path(folder)


def _remove(folder: Path) -> None:
    """rmdir(2), tried for a moment: killed processes are in their group (EBUSY) until they are gone."""
    for attempt in range(_REMOVE_ATTEMPTS):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if attempt == _REMOVE_ATTEMPTS - 1:
                LOG.warning("Group %s cannot be removed: %s", folder, error)
                return
            time.sleep(_REMOVE_PAUSE)
        else:
            return
