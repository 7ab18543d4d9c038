"""The cgroup v2 groups of guests, one for each guest, below a delegated group.

Documentation/admin-guide/cgroup-v2.rst describes the files and their meaning. Methods raise the kernel's
errors unchanged, as OSError.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

from compute_agent.drivers.base import UNLIMITED, CpuLimits
from compute_agent.files import check_folder
from compute_agent.host import kernel_files
from compute_agent.model import cpuset

LOG = logging.getLogger(__name__)

# The controllers that the settings of any guest need. All these controllers are enabled when the agent
# starts: the kernel refuses to enable a controller (EBUSY) once a process is in the delegated group itself.
_WANTED: Final = ("cpuset", "cpu", "memory", "io", "hugetlb")

# Distinguishes the groups of guests from other groups below the delegated group, such as groups that an
# operator made.
_PREFIX: Final = "guest-"

PERIOD: Final = 100_000
"""The period of ``cpu.max`` in microseconds, over which the kernel counts a quota. The value is the kernel's
default.
"""

# The smallest quota in microseconds. The kernel refuses a smaller quota (EINVAL).
_MIN_QUOTA: Final = 1000

# A process that forks during its move leaves the child in the old group, and the next pass moves the child.
# Only a process that forks faster than the agent moves processes needs more passes.
_MOVE_PASSES: Final = 16
# The number of hard links of a folder without subfolders, on file systems that count them: the folder's name
# and ".".
_WITHOUT_FOLDERS: Final = 2

# Half a second in all (50 times 0.01 s): the kernel frees a killed process within milliseconds, unless the
# process waits for a disk.
_REMOVE_ATTEMPTS: Final = 50
_REMOVE_PAUSE: Final = 0.01


MAX_GROUPS: Final = 1000
"""Maximum number of groups of one guest of which the agent reads the processes. A guest can make any number
of groups below its own, and the agent would manage no other guest while it reads them."""

MAX_DEPTH: Final = 32
"""Maximum number of levels of groups below a guest's group. The kernel takes long to find a deep group by its
path."""

IDLE: Final = "cpu.idle"
BURST: Final = "cpu.max.burst"


def group_name(guest_uuid: str) -> str:
    """The name of the folder of a guest's group."""
    return f"{_PREFIX}{guest_uuid}"


def quota_microseconds(cores: float) -> int:
    """The quota of ``cores`` in microseconds per :data:`PERIOD`, at least the kernel's minimum."""
    return max(round(cores * PERIOD), _MIN_QUOTA)


def attainable_quota(cores: float | None) -> float | None:
    """A quota in cores, rounded to the kernel's microseconds, so that it equals the value read back."""
    return None if cores is None else quota_microseconds(cores) / PERIOD


def limits_agree(has: CpuLimits, wanted: CpuLimits) -> bool:
    """Whether limits of a group equal the ``wanted`` limits. The kernel must support all wanted limits."""
    return (
        # The kernel shows an idle group with the weight 0.
        (wanted.idle or wanted.weight in (None, has.weight))
        and attainable_quota(wanted.quota) == has.quota
        and wanted.idle == has.idle
        and burst_microseconds(wanted) == round(has.burst * PERIOD)
    )


def burst_microseconds(wanted: CpuLimits) -> int:
    """The number for ``cpu.max.burst``. The kernel demands at most the quota, and 0 without a quota."""
    if wanted.quota is None:
        return 0
    return min(round(wanted.burst * PERIOD), quota_microseconds(wanted.quota))


def without_missing(group: GuestCgroup, wanted: CpuLimits) -> CpuLimits:
    """The ``wanted`` limits that this kernel supports.

    Linux has ``cpu.idle`` since 5.15, and ``cpu.max.burst`` since 5.14.
    """
    if wanted.idle and not group.has_file(IDLE):
        wanted = replace(wanted, idle=False)
    return replace(wanted, burst=0.0) if wanted.burst and not group.has_file(BURST) else wanted


def missing_parts(group: GuestCgroup, wanted: CpuLimits) -> list[str]:
    """Messages for the operator about limits in ``wanted`` that the kernel of this host does not support."""
    found = []
    if wanted.idle and not group.has_file(IDLE):
        found.append("cpu_idle: the kernel has no cpu.idle here (Linux 5.15, controller cpu)")
    if wanted.burst and not group.has_file(BURST):
        found.append("cpu_burst: the kernel has no cpu.max.burst here (Linux 5.14, controller cpu)")
    return found


def offered_controllers(folder: Path) -> Sequence[str]:
    """The controllers that a delegated group offers to the groups of guests.

    :raises OSError: the folder is no group of cgroup v2, the agent is not allowed to write to it, or other
        users are.
    """
    # Another user with write access could put a process into a guest's group. The agent would then pin, limit
    # and kill that process like the guest's own.
    check_folder(folder)
    offered = kernel_files.read_text(f"{folder}/cgroup.controllers").split()
    # Write access to cgroup.procs is needed to move processes, and write access to the folder to make groups.
    if not os.access(folder / "cgroup.procs", os.W_OK) or not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, "not writable", str(folder))
    return offered


class CgroupRoot:
    """The delegated group, which contains a group for each guest; :meth:`open` checks and prepares it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, folder: Path) -> CgroupRoot | None:
        """The group at ``folder``, with its controllers enabled for the groups below it.

        The result is None, after a log line, if the folder is no group of cgroup v2, or if the agent is not
        allowed to write to it. The result is also None if other users could put processes into the groups of
        guests.
        """
        try:
            offered = offered_controllers(folder)
            enabled = kernel_files.read_text(f"{folder}/cgroup.subtree_control").split()
        except OSError as error:
            LOG.warning("Process guests get no cgroups, and are pinned by affinity instead: %s", error)
            return None
        # Controllers are enabled one at a time: a write of several names is refused as a whole if one of them
        # cannot be enabled.
        for controller in _WANTED:
            if controller in offered and controller not in enabled:
                try:
                    (folder / "cgroup.subtree_control").write_text(f"+{controller}")
                except OSError as error:
                    # EBUSY means that processes are in the group itself ("no internal process constraint").
                    LOG.warning(
                        "Controller %s cannot be enabled for groups below %s: %s", controller, folder, error
                    )
        # Records of guests keep these paths, so they must not depend on a symbolic link.
        return cls(folder.resolve())

    def make_group(self, guest_uuid: str) -> GuestCgroup:
        """Make the group of a guest, and return it. A group that a crashed agent left behind is used again.

        :raises OSError: the group cannot be made.
        """
        group = GuestCgroup(self.folder / group_name(guest_uuid))
        group.folder.mkdir(exist_ok=True)
        return group

    def protect_guests(self) -> None:
        """Set memory.low and memory.min of the delegated group to the sums of all guests' values."""
        # The kernel protects no more memory of a group than of its parent, and memory.low and memory.min of
        # the parent are 0 unless the agent writes them.
        root = GuestCgroup(self.folder)
        groups = [GuestCgroup(folder) for folder in self.folder.glob(f"{_PREFIX}*")]
        for name in ("memory.low", "memory.min"):
            found = [group.memory_limit(name) for group in groups]
            whole = sum(amount for amount in found if amount is not None)
            if root.memory_limit(name) not in (None, whole):
                root.limit_memory(name, whole)

    def owner_of(self, folder: Path) -> str:
        """The uuid of the guest with a group that contains this folder; empty if no guest has such a group.

        :param folder: a path without symbolic links.
        """
        root = self.folder.resolve()
        name = folder.relative_to(root).parts[0] if root in folder.parents else ""
        return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""


class GuestCgroup:
    """The cgroup v2 group of one guest, identified by its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = str(folder)

    def add(self, pid: int) -> None:
        """Move a process with all its threads into the group.

        :raises OSError: the process has ended, or the kernel refuses the move.
        """
        # The pid 0 is refused. In cgroup.procs it stands for a process of another pid namespace. The kernel
        # reads a written 0 as the writing process, so the agent would move itself.
        if pid < 1:
            raise ProcessLookupError(errno.ESRCH, "a process of another pid namespace", str(self.folder))
        (self.folder / "cgroup.procs").write_text(str(pid))

    def take_processes(self, source: GuestCgroup) -> None:
        """Move all processes of another group and its subgroups into this group.

        The move is repeated until no new process appears in the other group.

        The function ignores a process that ends during the move.

        :raises OSError: EBUSY: processes are made faster than they can be moved.
        """
        if source.folder == self.folder:
            return
        for _ in range(_MOVE_PASSES):
            pids = source.process_ids(all_groups=True)
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    self.add(pid)
        raise OSError(errno.EBUSY, "processes are made faster than they can be moved", str(source.folder))

    def process_ids(self, all_groups: bool = False) -> list[int]:
        """The pids of the processes in the group and its subgroups; empty if the group no longer exists.

        :param all_groups: whether to read more than ``MAX_GROUPS`` groups and ``MAX_DEPTH`` levels.
        """
        # A guest, such as a container runtime, can make groups of its own below its group.
        found: list[int] = []
        for number, folder in enumerate(self._walk_tree(None if all_groups else MAX_DEPTH)):
            if number == MAX_GROUPS and not all_groups:
                _warn_of_groups(self.path)
                break
            # A group may be removed while the tree is walked.
            with contextlib.suppress(OSError):
                found.extend(map(int, kernel_files.read(f"{folder}/cgroup.procs").split()))
        return found

    @property
    def is_populated(self) -> bool:
        """Whether the group or any of its subgroups has processes; False if the group no longer exists."""
        try:
            return b"populated 1" in kernel_files.read_piece(f"{self.path}/cgroup.events")
        except OSError:
            return False

    def confine_cpus(self, cpus: frozenset[int]) -> None:
        """Write ``cpuset.cpus`` of the group if it differs from ``cpus``.

        Without the controller cpuset, the function writes nothing.

        :raises OSError: the kernel refuses the CPUs.
        """
        self._write_numbers("cpuset.cpus", cpus)

    def allowed_cpus(self) -> frozenset[int] | None:
        """The CPUs in ``cpuset.cpus``; empty if the file is empty, None without the controller cpuset."""
        return self._read_numbers("cpuset.cpus")

    def memory_nodes(self) -> frozenset[int] | None:
        """The nodes in ``cpuset.mems``; empty if the file is empty, None without the controller cpuset."""
        return self._read_numbers("cpuset.mems")

    def possible_nodes(self) -> frozenset[int]:
        """The NUMA nodes that the parent group allows."""
        # The parent's file is read, because the group's own cpuset.mems.effective shows only the present
        # binding.
        return GuestCgroup(self.folder.parent)._read_numbers("cpuset.mems.effective") or frozenset()

    def bind_memory(self, nodes: frozenset[int]) -> None:
        """Write ``cpuset.mems`` if it differs from ``nodes``; the kernel then moves pages from other nodes.

        A caller that wants to remove a binding names all nodes, because the kernel refuses an empty set for a
        group with processes (ENOSPC). Without the controller cpuset, the function writes nothing.

        :raises OSError: the kernel refuses the nodes.
        """
        self._write_numbers("cpuset.mems", nodes)

    def memory_use(self) -> int | None:
        """The bytes of ``memory.current``, with page cache; None without the controller memory."""
        text = self.read_file("memory.current")
        return None if text is None else int(text)

    def memory_limit(self, name: str) -> int | None:
        """The bytes in a file like ``memory.max``; :data:`UNLIMITED` for "max", None without the file."""
        text = self.read_file(name)
        if text is None:
            return None
        return UNLIMITED if text == "max" else int(text)

    def limit_memory(self, name: str, amount: int) -> None:
        """Write a number of bytes to a file such as ``memory.max``.

        If the number is at least :data:`UNLIMITED`, the function writes "max".
        """
        self.write_file(name, "max" if amount >= UNLIMITED else str(amount))

    def oom_events(self) -> tuple[int, int] | None:
        """Counts since the group was made: how often it reached its memory limit, and its OOM kills.

        The result is None if the kernel does not show the counts.
        """
        # The file is read with one read(2) and without a file object, because each round reads it for each
        # guest.
        try:
            words = kernel_files.read_piece(f"{self.path}/memory.events").split()
        except OSError:
            return None
        counts = dict(zip(words[::2], words[1::2], strict=False))
        return int(counts.get(b"oom", 0)), int(counts.get(b"oom_kill", 0))

    def has_file(self, name: str) -> bool:
        """Whether the kernel and the enabled controllers give the group a file of this name."""
        return os.path.exists(f"{self.path}/{name}")

    def read_file(self, name: str) -> str | None:
        """The content of a file such as ``io.max``; None if the file does not exist."""
        try:
            return kernel_files.read_piece(f"{self.path}/{name}").decode(errors="replace").strip()
        except FileNotFoundError:
            return None

    def write_file(self, name: str, line: str) -> None:
        """Write a line to a file such as ``io.max``.

        :raises OSError: the kernel refuses the line.
        """
        (self.folder / name).write_text(f"{line}\n")

    def cpu_limits(self) -> CpuLimits | None:
        """Weight, quota, idleness and burst of the group; None if the group lacks the controller cpu."""
        weight, maximum = self.read_file("cpu.weight"), self.read_file("cpu.max")
        if weight is None or maximum is None:
            return None
        # Both numbers are in microseconds. A quota of "max" means no limit.
        quota, period = maximum.split()
        cores = None if quota == "max" else int(quota) / int(period)
        # Older kernels lack these files; a missing file has the same meaning as 0.
        idle, burst = self.read_file(IDLE) or "0", self.read_file(BURST) or "0"
        return CpuLimits(int(weight), cores, idle == "1", int(burst) / int(period))

    def limit_cpu(self, has: CpuLimits, wanted: CpuLimits) -> None:
        """Write those values of ``wanted`` that differ from ``has``, the result of ``cpu_limits``.

        :raises OSError: the kernel refuses a value.
        """
        if wanted.idle != has.idle:
            self.write_file(IDLE, str(int(wanted.idle)))
        # The kernel refuses a weight for an idle group (EINVAL), and a group that is no longer idle starts
        # with weight 100. So the idle state is written before the weight.
        if not wanted.idle and wanted.weight not in (None, has.weight):
            self.write_file("cpu.weight", str(wanted.weight))
        burst = burst_microseconds(wanted)
        # The kernel refuses a burst above the quota. So a smaller burst is written before the quota, and a
        # larger burst after it.
        if burst < round(has.burst * PERIOD):
            self.write_file(BURST, str(burst))
        if attainable_quota(wanted.quota) != has.quota:
            quota = "max" if wanted.quota is None else quota_microseconds(wanted.quota)
            self.write_file("cpu.max", f"{quota} {PERIOD}")
        if burst > round(has.burst * PERIOD):
            self.write_file(BURST, str(burst))

    def remove(self) -> None:
        """Kill the processes left in the group (Linux 5.14) and remove it; a missing group is no error."""
        # One write kills all processes of the subtree, including those that fork during the write. Kernels
        # before 5.14 have no such file; the group then stays until its processes have ended.
        with contextlib.suppress(OSError):
            (self.folder / "cgroup.kill").write_text("1")
        # The kernel removes only groups without subgroups, so the innermost are removed first.
        for folder in reversed(list(self._walk_tree())):
            _remove(Path(folder))

    def remove_empty(self) -> None:
        """Remove a group that has no processes.

        :raises OSError: EBUSY: the group still has processes.
        """
        self.folder.rmdir()

    def _read_numbers(self, name: str) -> frozenset[int] | None:
        text = self.read_file(name)
        return None if text is None else cpuset.parse(text)

    def _write_numbers(self, name: str, wanted: frozenset[int]) -> None:
        if self._read_numbers(name) not in (None, wanted):
            self.write_file(name, cpuset.format(wanted))

    def _walk_tree(self, max_depth: int | None = None) -> Iterator[str]:
        """The folders of the group and of its subgroups, parents first.

        :param max_depth: the number of levels of subgroups, with at least the first ``MAX_GROUPS`` groups;
            None means all groups.
        """
        # One stat(2) saves the walk for a group without subgroups. Most groups have none, and the agent reads
        # each guest's group every few seconds.
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_nlink == _WITHOUT_FOLDERS:
                yield self.path
                return
        # os.walk() of Python 3.11 calls itself for each level, and a guest can nest more groups than Python
        # allows levels of calls.
        waiting = [self.path]
        while waiting:
            folder = waiting.pop()
            yield folder
            if max_depth is not None and folder.count("/") - self.path.count("/") >= max_depth:
                _warn_of_groups(self.path)
                continue
            # A group may be removed during the walk, and the path of a deep group may be too long.
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                below = (entry.path for entry in entries if entry.is_dir(follow_symlinks=False))
                # One group can contain any number of groups, of which no more are listed than are read.
                waiting += below if max_depth is None else islice(below, MAX_GROUPS + 1 - len(waiting))


@functools.lru_cache(maxsize=4096)  # once for each group
def _warn_of_groups(path: str) -> None:
    LOG.warning(
        "The control group %s has more than %d groups or %d levels of groups below it. The agent does not"
        " read the processes of the groups beyond that, but the CPUs and limits of the control group apply to"
        " them, too. Set cgroup.max.descendants and cgroup.max.depth of the control group",
        path,
        MAX_GROUPS,
        MAX_DEPTH,
    )


@functools.lru_cache(maxsize=4096)
def group_at(folder: str) -> GuestCgroup:
    """The group with this folder. Each round of comparisons uses the same groups."""
    return GuestCgroup(Path(folder))


def _remove(folder: Path) -> None:
    """Remove a group's folder, with retries while the kernel frees killed processes (EBUSY)."""
    for attempt in range(_REMOVE_ATTEMPTS):
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if attempt == _REMOVE_ATTEMPTS - 1:
                LOG.warning(
                    "The control group %s cannot be removed; remove it with rmdir when it is empty: %s",
                    folder,
                    error,
                )
                return
            time.sleep(_REMOVE_PAUSE)
        else:
            return
