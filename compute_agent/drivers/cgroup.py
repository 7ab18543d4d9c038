"""Groups of cgroup v2 below a delegated one (Documentation/admin-guide/cgroup-v2.rst), one for each guest."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from compute_agent.drivers.base import UNLIMITED, CpuLimits
from compute_agent.files import check_folder
from compute_agent.host import kernel_files
from compute_agent.model import cpuset

LOG = logging.getLogger(__name__)

# What later controllers need as well; those that the parent does not offer are left out.
_WANTED: Final = ("cpuset", "cpu", "memory", "io", "hugetlb")

_PREFIX: Final = "guest-"

PERIOD: Final = 100_000
"""Microseconds over which a quota is counted; what the kernel has by default."""

_MIN_QUOTA: Final = 1000
"""Microseconds; the kernel takes no less."""

_MOVE_PASSES: Final = 16
_WITHOUT_FOLDERS: Final = 2
"""Links to a folder that has no others in it, where the file system counts them: itself and its own "."."""

_REMOVE_ATTEMPTS: Final = 50
_REMOVE_PAUSE: Final = 0.01


def group_name(guest_uuid: str) -> str:
    """What the folder of a guest's group is called."""
    return f"{_PREFIX}{guest_uuid}"


def quota_microseconds(cores: float) -> int:
    """What ``cores`` are within a period."""
    return max(round(cores * PERIOD), _MIN_QUOTA)


def _quota_cores(quota: str, period: str) -> float | None:
    """The cores that cpu.max is (microseconds in each period); None if it is no limit."""
    return None if quota == "max" else int(quota) / int(period)


def attainable_quota(cores: float | None) -> float | None:
    """A quota as it can be set, and is read back."""
    return None if cores is None else quota_microseconds(cores) / PERIOD


def limits_agree(has: CpuLimits, wanted: CpuLimits) -> bool:
    """Whether limits are as wanted."""
    return wanted.weight in (None, has.weight) and attainable_quota(wanted.quota) == has.quota


class CgroupRoot:
    """The delegated group; see open()."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path) -> CgroupRoot | None:
        """The group at ``folder`` with its controllers handed down.

        None, after a log line, if it is not a cgroup v2 group or not ours to write, or if others could put
        processes into the groups of guests.
        """
        try:
            check_folder(folder)
            offered = kernel_files.read_text(f"{folder}/cgroup.controllers").split()
            enabled = kernel_files.read_text(f"{folder}/cgroup.subtree_control").split()
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
        return cls(folder.resolve())

    def make_group(self, guest_uuid: str) -> GuestCgroup:
        """The group of a guest, made if absent.

        :raises OSError:
        """
        group = GuestCgroup(self.folder / group_name(guest_uuid))
        group.folder.mkdir(exist_ok=True)
        return group

    def protect_guests(self) -> None:
        """Let the root have as much protected memory as its guests: theirs counts up to that only.

        :raises OSError:
        """
        root = GuestCgroup(self.folder)
        found = [GuestCgroup(folder).memory_limit("memory.low") for folder in self.folder.glob(f"{_PREFIX}*")]
        whole = sum(amount for amount in found if amount is not None)
        if root.memory_limit("memory.low") not in (None, whole):
            root.limit_memory("memory.low", whole)

    def owner_of(self, folder: Path) -> str:
        """The uuid of the guest whose group a folder is, or below which it is; empty if it is none.

        The folder has no symbolic links in it.
        """
        root = self.folder.resolve()
        name = folder.relative_to(root).parts[0] if root in folder.parents else ""
        return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""


class GuestCgroup:
    """The group of one guest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = str(folder)

    def add(self, pid: int) -> None:
        """Move a process, with all its threads, into the group.

        To the kernel process 0 is whoever writes; in cgroup.procs it is one of another pid namespace.

        :raises OSError:
        """
        if pid < 1:
            raise ProcessLookupError(errno.ESRCH, "a process of another pid namespace", str(self.folder))
        (self.folder / "cgroup.procs").write_text(str(pid))

    def take_processes(self, source: GuestCgroup) -> None:
        """Move all processes of another group, and of those below it, here; until no new one appears there.

        One that ends meanwhile is no error.

        :raises OSError:
        """
        if source.folder == self.folder:
            return
        for _ in range(_MOVE_PASSES):
            pids = source.process_ids()
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    self.add(pid)
        raise OSError(errno.EBUSY, "processes are made faster than they can be moved", str(source.folder))

    def process_ids(self) -> list[int]:
        """The processes in the group and in the groups below it; empty when it is gone."""
        found: list[int] = []
        for folder in self._walk_tree():
            with contextlib.suppress(OSError):
                found.extend(map(int, kernel_files.read(f"{folder}/cgroup.procs").split()))
        return found

    def confine_cpus(self, cpus: frozenset[int]) -> None:
        """Write the CPUs if they differ.

        Without the controller cpuset nothing is done.

        :raises OSError:
        """
        self._write_numbers("cpuset.cpus", cpus)

    def memory_nodes(self) -> frozenset[int] | None:
        """The NUMA nodes memory is bound to (none if it never was); None without the controller cpuset."""
        return self._read_numbers("cpuset.mems")

    def possible_nodes(self) -> frozenset[int]:
        """The NUMA nodes that the group could have memory of."""
        return GuestCgroup(self.folder.parent)._read_numbers("cpuset.mems.effective") or frozenset()

    def bind_memory(self, nodes: frozenset[int]) -> None:
        """Write the NUMA nodes if they differ; the kernel moves what is elsewhere.

        Memory that was bound cannot but be bound to all nodes: as long as there are processes in a group, the
        kernel takes no empty set (ENOSPC). Without the controller cpuset nothing is done.

        :raises OSError:
        """
        self._write_numbers("cpuset.mems", nodes)

    def memory_use(self) -> int | None:
        """Bytes in use; None without the controller memory."""
        text = self._read("memory.current")
        return None if text is None else int(text)

    def memory_limit(self, name: str) -> int | None:
        """An amount in memory.max and its like, in bytes; None without the controller memory."""
        text = self._read(name)
        if text is None:
            return None
        return UNLIMITED if text == "max" else int(text)

    def limit_memory(self, name: str, amount: int) -> None:
        """Write an amount.

        :raises OSError:
        """
        self._write(name, "max" if amount >= UNLIMITED else str(amount))

    def oom_events(self) -> tuple[int, int] | None:
        """How often its own limit left no memory, and how many of its processes were killed for want of it.

        None without the controller memory, and when the group is gone.
        """
        try:
            words = kernel_files.read_piece(f"{self.path}/memory.events").split()
        except OSError:
            return None
        counts = dict(zip(words[::2], words[1::2], strict=False))
        return int(counts.get(b"oom", 0)), int(counts.get(b"oom_kill", 0))

    def has_file(self, name: str) -> bool:
        """Whether the kernel has a file here."""
        return os.path.exists(f"{self.path}/{name}")

    def io_text(self, name: str) -> str | None:
        """The content of io.max or one of its like; None where the kernel has none."""
        return self._read(name)

    def write_io(self, name: str, line: str) -> None:
        """Write the line of one device.

        :raises OSError:
        """
        self._write(name, line)

    def cpu_limits(self) -> CpuLimits | None:
        """Weight and quota; None without the controller cpu."""
        weight, maximum = self._read("cpu.weight"), self._read("cpu.max")
        if weight is None or maximum is None:
            return None
        return CpuLimits(int(weight), _quota_cores(*maximum.split()))

    def limit_cpu(self, has: CpuLimits, wanted: CpuLimits) -> None:
        """Write what differs between what the group ``has`` and what is wanted.

        :raises OSError:
        """
        if wanted.weight not in (None, has.weight):
            self._write("cpu.weight", str(wanted.weight))
        if attainable_quota(wanted.quota) != has.quota:
            quota = "max" if wanted.quota is None else quota_microseconds(wanted.quota)
            self._write("cpu.max", f"{quota} {PERIOD}")

    def remove(self) -> None:
        """End what is left in the group, and remove it; gone already is no error."""
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        for folder in reversed(list(self._walk_tree())):
            _remove(Path(folder))

    def remove_empty(self) -> None:
        """Remove the group, in which nobody is left.

        :raises OSError:
        """
        self.folder.rmdir()

    def _read(self, name: str) -> str | None:
        """The content of a file; None if there is none."""
        try:
            return kernel_files.read_piece(f"{self.path}/{name}").decode(errors="replace").strip()
        except FileNotFoundError:
            return None

    def _write(self, name: str, value: str) -> None:
        (self.folder / name).write_text(f"{value}\n")

    def _read_numbers(self, name: str) -> frozenset[int] | None:
        text = self._read(name)
        return None if text is None else cpuset.parse(text)

    def _write_numbers(self, name: str, wanted: frozenset[int]) -> None:
        if self._read_numbers(name) not in (None, wanted):
            self._write(name, cpuset.format(wanted))

    def _walk_tree(self) -> Iterator[str]:
        """The group and those below it, parents first."""
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_nlink == _WITHOUT_FOLDERS:
                yield self.path
                return
        for folder, _, _ in os.walk(self.path):
            yield folder


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
