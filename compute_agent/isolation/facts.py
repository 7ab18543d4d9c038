"""Reads the CPU masks of a host from the kernel.

Files: /proc/irq (Documentation/core-api/irq/irq-affinity.rst), /sys/devices/virtual/workqueue
(Documentation/core-api/workqueue.rst), kernel.watchdog_cpumask (Documentation/admin-guide/sysctl/kernel.rst)
and rps_cpus (Documentation/networking/scaling.rst). The affinity of a kernel thread is also a mask: the agent
reads it in /proc/PID/status and sets it by sched_setaffinity(2). All paths are relative to the root of the
host's files. The files ``cpuset.cpus`` of control groups with processes of the host are masks as well; see
:mod:`compute_agent.isolation.control_groups`.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import itertools
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from compute_agent.host import kernel_files
from compute_agent.host.kernel_files import SysFiles
from compute_agent.isolation.control_groups import CONTROL_GROUPS, GROUP_CPUS, GroupReader
from compute_agent.isolation.irqbalance import BalancerSockets
from compute_agent.isolation.partitions import PartitionFiles
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.messages import printable_text

INTERRUPTS: Final = "proc/irq"
DEFAULT_MASK: Final = f"{INTERRUPTS}/default_smp_affinity"
WORKQUEUES: Final = "sys/devices/virtual/workqueue"
WORKQUEUE_MASK: Final = f"{WORKQUEUES}/cpumask"
WATCHDOG_MASK: Final = "proc/sys/kernel/watchdog_cpumask"
NETWORK: Final = "sys/class/net"
_ONLINE: Final = "sys/devices/system/cpu/online"

MASK_PATH: Final = re.compile(
    rf"{INTERRUPTS}/(?:(?P<number>[0-9]{{1,10}})/smp_affinity_list|default_smp_affinity)"
    rf"|{WORKQUEUES}/(?:(?P<queue>[^/]+)/)?cpumask|{WATCHDOG_MASK}"
    rf"|{NETWORK}/(?P<device>[^/]+)/queues/(?:(?P<rx>rx-[0-9]+)/rps_cpus|(?P<tx>tx-[0-9]+)/xps_cpus)"
    rf"|proc/(?P<thread>[0-9]{{1,10}})/status|{CONTROL_GROUPS}/(?P<group>.+)/{re.escape(GROUP_CPUS)}",
    re.ASCII,
)
"""The paths of all files with masks that the agent is allowed to write."""

_PASSTHROUGH: Final = re.compile(r"vfio-[a-z]+\S*\(([0-9a-f:.]+)\)", re.ASCII)
"""The action of an interrupt of a device that is passed through to a guest:
``vfio-msix[0](0000:3b:00.0)``.
"""

_INTERRUPT_FILES: Final = frozenset(
    {
        *("affinity_hint", "effective_affinity", "effective_affinity_list", "node", "smp_affinity"),
        *("smp_affinity_list", "spurious"),
    }
)
"""The files in the folder of an interrupt."""

_VFIO_FILE: Final = re.compile(r"/dev/vfio/(?:([0-9]+)|devices/(vfio[0-9]+))", re.ASCII)
"""The device file of a passthrough device: of its VFIO group, or of the device itself (Linux 6.6)."""

_MAX_FILES: Final = 8192
"""Maximum number of open files that the agent lists for a process: a process can have a million open
files."""

_STAT: Final = re.compile(
    r"[0-9]+ \((?P<name>.*)\) \S(?: -?[0-9]+){5} (?P<flags>[0-9]+)(?: -?[0-9]+){12} (?P<start>[0-9]+) ",
    re.DOTALL | re.ASCII,
)
"""Name, flags and start of a thread in /proc/PID/stat (Documentation/filesystems/proc.rst)."""

_NO_AFFINITY: Final = 0x04000000
"""PF_NO_SETAFFINITY of include/linux/sched.h: a thread that is bound to one CPU, or a worker of
workqueues.
"""

_FOLLOWING: Final = ("irq/", "vhost-")
"""Threads that the agent does not place: threads of interrupts follow their interrupts, and threads of vhost
follow their guest.
"""

_INTERRUPT_THREAD: Final = re.compile(r"irq/([0-9]+)-", re.ASCII)
_ALLOWED: Final = re.compile(r"^Cpus_allowed_list:\s*(\S*)$", re.MULTILINE)
_SINCE: Final = " since "
_TRUSTED_READS: Final = 30
"""The number of reads after which ignored threads are checked again, because their ids may belong to other
threads by then.
"""


class MaskKind(enum.StrEnum):
    """The kind of work that a mask restricts."""

    DEFAULT = "default mask of interrupts"
    INTERRUPT = "interrupt"
    WORKQUEUE = "unbound workqueues"
    WATCHDOG = "lockup watchdog"
    PACKETS = "receive packet steering"
    TRANSMISSION = "transmit packet steering"
    THREAD = "kernel thread"
    GROUP = "control group"
    PARENT = "control group of guests"
    """A group that contains guests, and therefore keeps its original."""
    PROCESSES = "processes"
    """Processes that are in the root group, which has no mask."""


@dataclass(frozen=True, slots=True)
class KernelMask:
    """A mask: its file, and the CPUs in it.

    ``node``, ``effective`` and ``movable`` are read only if a decision needs them.

    :ivar names: a text that identifies an interrupt (by its actions) or a thread (by its name and start
        time).
    :ivar node: the NUMA node of the device that causes the interrupt.
    :ivar effective: the CPUs that the kernel chose among those of the mask.
    :ivar movable: whether the kernel allows a change of the mask.
    """

    path: str
    kind: MaskKind
    cpus: CpuSet
    text: str
    names: str = ""
    node: int | None = None
    effective: CpuSet = frozenset()
    movable: bool = True

    @property
    def irq_number(self) -> int:
        """The number of the interrupt; -1 for other masks."""
        match = MASK_PATH.fullmatch(self.path)
        return -1 if match is None or match["number"] is None else int(match["number"])

    @property
    def pci_address(self) -> str:
        """The PCI address of a passthrough device; empty for other masks."""
        match = _PASSTHROUGH.search(self.names)
        return "" if match is None else match[1]

    @property
    def in_words(self) -> str:
        """A text for messages about the owner of the mask, such as ``interrupt 45 (eth0-rx-1)``."""
        match = MASK_PATH.fullmatch(self.path)
        if self.kind is MaskKind.INTERRUPT:
            return f"interrupt {self.irq_number}{f' ({self.names})' if self.names else ''}"
        if self.kind is MaskKind.THREAD:
            return f"{self.kind} {self.names.rpartition(_SINCE)[0]}"
        if self.kind is MaskKind.PROCESSES:
            return f"{self.names} {self.kind}"
        if match is not None and match["queue"]:
            return f"workqueue {match['queue']}"
        if match is not None and match["device"]:
            return f"{self.kind} of {match['device']} {match['rx'] or match['tx']}"
        if match is not None and match["group"]:
            return f"{self.kind} {printable_text(match['group'])}"
        return str(self.kind)

    def format_cpus(self, cpus: CpuSet) -> str:
        """The text for CPUs in the format of this file."""
        return cpuset.format(cpus) if is_list_file(self.path) else cpuset.format_mask(cpus)

    @property
    def reached_cpus(self) -> CpuSet:
        """The CPUs on which the restricted work can run, as far as the kernel shows them."""
        return self.effective or self.cpus


def is_list_file(path: str) -> bool:
    """Whether a mask is a list of CPUs, and not hexadecimal."""
    return path.endswith(("_list", "/status", f"/{GROUP_CPUS}")) or path == WATCHDOG_MASK


def parse_mask_text(path: str, text: str) -> CpuSet:
    """The CPUs in a text that has the format of the file ``path``.

    :raises cpuset.BadCpuSet: the text has another format.
    """
    return _parse_text(is_list_file(path), text)


@lru_cache(1024)
def _parse_text(is_list: bool, text: str) -> CpuSet:
    # The function is cached because hundreds of masks have the same few texts.
    return cpuset.parse(text) if is_list else cpuset.parse_mask(text)


@dataclass(frozen=True, slots=True)
class IsolationFacts:
    """The masks of a host, by path.

    :ivar boot: the identifier of the present boot of the host.
    :ivar gone: the paths of masks with saved originals that do not exist any more.
    :ivar counts: interrupts since boot, by number of the interrupt; read only if an interrupt needs another
        CPU.
    :ivar owners: uuids of guests by the PCI address of their passthrough device.
    :ivar loose_processes: the number of host processes in the root group, which cannot be restricted; None
        means that the host has no groups with cpusets.
    :ivar partitioned: the CPUs of cpuset partitions, from which the kernel keeps other work.
    :ivar possible: the CPUs that the host can ever have. A control group with all these CPUs counts as a
        group without a mask.
    """

    boot: str
    online: CpuSet
    masks: Mapping[str, KernelMask]
    gone: frozenset[str] = frozenset()
    counts: Mapping[int, int] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)
    loose_processes: int | None = 0
    partitioned: CpuSet = frozenset()
    possible: CpuSet = frozenset()


class MaskReader:
    """Reads masks below a root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files = SysFiles(root)
        self.groups = GroupReader(root)
        self.partitions = PartitionFiles(root)
        self.balancers = BalancerSockets(root)
        #: The ids of kernel threads that cannot be moved or that the agent does not place.
        self._fixed: set[str] = set()
        self._reads = 0

    @property
    def boot_id(self) -> str:
        """The kernel's identifier of the current boot; empty if it cannot be read."""
        return kernel_files.read_boot_id(self.root)

    @property
    def has_masks(self) -> bool:
        """Whether this host shows masks of interrupts. In some containers the masks are hidden."""
        return os.path.exists(self.root / DEFAULT_MASK)

    def read_facts(
        self,
        quiet: CpuSet,
        known: Collection[str] = (),
        processes: Mapping[str, int] | None = None,
        guest_groups: Collection[str] = (),
    ) -> IsolationFacts:
        """The masks of the host, with details for masks that contain a quiet CPU.

        :param known: paths of masks of which the agent has saved the original content.
        :param processes: the main processes of guests, by uuid of the guest. The agent looks for passthrough
            devices that these processes have open.
        :param guest_groups: control groups of guests, below the root of all control groups.
        """
        boot, online = self.boot_id, self._files.cpu_list(_ONLINE) or frozenset()
        masks = {
            mask.path: mask for mask in (*self._read_masks(known), *self._read_groups(known, guest_groups))
        }
        touching = [mask for mask in masks.values() if mask.kind is MaskKind.INTERRUPT and mask.cpus & quiet]
        masks |= {mask.path: self._with_details(mask) for mask in touching}
        counts: Mapping[int, int] = {}
        if any(mask.cpus <= quiet and masks[mask.path].movable for mask in touching):
            counts = self._read_counts()
            masks = {
                path: replace(mask, effective=self._read_effective(mask)) if mask.irq_number >= 0 else mask
                for path, mask in masks.items()
            }
        owners: Mapping[str, str] = {}
        if processes and any(mask.pci_address for mask in masks.values()):
            owners = self._read_owners(processes)
        # A file that exists but cannot be read at this moment does not count as gone.
        gone = frozenset(path for path in known if path not in masks and self._is_gone(path))
        loose = self._count_loose() if quiet else 0
        possible = self.groups.read_possible()
        return IsolationFacts(boot, online, masks, gone, counts, owners, loose, possible=possible)

    def _is_gone(self, path: str) -> bool:
        match = MASK_PATH.fullmatch(path)
        if match is not None and match["thread"]:
            # The id of the thread may belong to a process by now. The thread may also be one that the kernel
            # has bound to a CPU for ever.
            threads, thread = kernel_files.list_kernel_threads(self.root), match["thread"]
            is_ended = threads is not None and thread not in threads
            return is_ended or (self._files.text(f"proc/{thread}/stat") is not None and thread in self._fixed)
        if match is not None and match["group"]:
            # The folder of the group is checked, because the file exists only while the controller is
            # enabled.
            path = path.rpartition("/")[0]
        return not os.path.lexists(f"{self.root}/{path}")

    def _count_loose(self) -> int | None:
        """The number of processes in the root control group; None if the host has no cgroup v2."""
        if not self.groups.has_cpusets:
            return None
        threads = {str(kernel_files.KTHREADD), *(kernel_files.list_kernel_threads(self.root) or ())}
        present = (self._files.text(f"{CONTROL_GROUPS}/cgroup.procs") or "").split()
        return len(set(present) - threads)

    def read_cpus(self, path: str) -> CpuSet | None:
        """The CPUs of one mask; None if it cannot be read."""
        text = self._mask_text(path)
        try:
            return None if text is None else parse_mask_text(path, text)
        except cpuset.BadCpuSet:
            return None

    def write_mask(self, path: str, text: str, names: str = "") -> None:
        """Write a mask.

        :param names: the identifying text of the mask from the last reading. A thread must still have this
            identifying text.
        :raises ProcessLookupError: the thread has ended.
        :raises OSError: the kernel refuses the change.
        """
        match = MASK_PATH.fullmatch(path)
        if match is not None and match["thread"]:
            if self._thread_names(match["thread"]) != names:
                raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH), path)
            self.bind_thread(int(match["thread"]), cpuset.parse(text))
            return
        if match is not None and match["group"]:
            self.groups.write_cpus(match["group"], text)
            return
        kernel_files.write_text(f"{self.root}/{path}", f"{text}\n")

    def renew_threads(self) -> None:
        """Make the threads of interrupts follow their interrupts again.

        A new partition lets these threads use all CPUs. A write of the interrupt's present mask moves its
        thread.
        """
        for thread in kernel_files.list_kernel_threads(self.root) or []:
            match = _STAT.match(self._files.text(f"proc/{thread}/stat") or "")
            found = None if match is None else _INTERRUPT_THREAD.match(match["name"])
            if found is not None:
                path = f"{INTERRUPTS}/{found[1]}/smp_affinity_list"
                if text := self._files.text(path):
                    # The thread moves when it runs next. A thread that does not run disturbs no guest.
                    with contextlib.suppress(OSError):
                        kernel_files.write_text(f"{self.root}/{path}", f"{text}\n")

    def bind_thread(self, thread: int, cpus: CpuSet) -> None:
        """Set the affinity of a thread of this kernel.

        :raises OSError: the kernel refuses the affinity, or the root is not that of the running kernel.
        """
        # If the root is a captured tree, its thread ids are those of another machine.
        if self.root != Path("/"):
            raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), str(self.root))
        os.sched_setaffinity(thread, cpus)

    def _read_masks(self, known: Collection[str]) -> Iterator[KernelMask]:
        # The default mask is read first, so that an interrupt that is made during the reads has this or a
        # newer default mask.
        for path, kind in ((DEFAULT_MASK, MaskKind.DEFAULT), (WATCHDOG_MASK, MaskKind.WATCHDOG)):
            yield from self._read_mask(path, kind)
        yield from self._read_interrupts(known)
        for path in (
            WORKQUEUE_MASK,
            *(f"{WORKQUEUES}/{name}/cpumask" for name in self._files.list_folders(WORKQUEUES)),
        ):
            yield from self._read_mask(path, MaskKind.WORKQUEUE)
        yield from self._read_threads()
        for device in self._files.list_names(NETWORK):
            for queue in self._files.list_names(f"{NETWORK}/{device}/queues"):
                folder = f"{NETWORK}/{device}/queues/{queue}"
                if queue.startswith("rx-"):
                    yield from self._read_mask(f"{folder}/rps_cpus", MaskKind.PACKETS)
                elif queue.startswith("tx-"):
                    # A device with one queue has the file, but the file contains no mask.
                    yield from self._read_mask(f"{folder}/xps_cpus", MaskKind.TRANSMISSION)

    def _read_groups(self, known: Collection[str], guest_groups: Collection[str]) -> Iterator[KernelMask]:
        """Yield the control groups of host processes, and groups with an original that have guests now."""
        foreign = dict.fromkeys(self.groups.list_foreign(guest_groups), MaskKind.GROUP)
        before = {match["group"] for path in known if (match := MASK_PATH.fullmatch(path)) and match["group"]}
        for group in sorted(before - foreign.keys()):
            is_foreign = not self.groups.holds_guests(group, guest_groups)
            foreign[group] = MaskKind.GROUP if is_foreign else MaskKind.PARENT
        for group, kind in foreign.items():
            path = f"{CONTROL_GROUPS}/{group}/{GROUP_CPUS}"
            if os.path.isdir(self.root / CONTROL_GROUPS / group):
                # If the file is missing, the controller is not enabled, and no CPUs are set.
                text = self._files.text(path) or ""
                try:
                    yield KernelMask(path, kind, parse_mask_text(path, text), text)
                except cpuset.BadCpuSet:
                    continue

    def _read_interrupts(self, known: Collection[str]) -> Iterator[KernelMask]:
        for number in self._files.list_numbers(INTERRUPTS, ""):
            path = f"{INTERRUPTS}/{number}/smp_affinity_list"
            # The folder of an interrupt has a subfolder for each action, and some files. Subfolders and files
            # are distinguished by their names, because reading the type of each entry takes more time.
            names = self._files.list_names(f"{INTERRUPTS}/{number}")
            actions = printable_text(", ".join(name for name in names if name not in _INTERRUPT_FILES))
            # An interrupt without an action never fires. When the interrupt gets an action, its mask becomes
            # the default mask.
            if actions or path in known:
                yield from self._read_mask(path, MaskKind.INTERRUPT, actions)

    def _read_threads(self) -> Iterator[KernelMask]:
        """The masks of kernel threads that can move."""
        present = kernel_files.list_kernel_threads(self.root) or []
        self._reads += 1
        self._fixed = set() if self._reads % _TRUSTED_READS == 0 else self._fixed.intersection(present)
        for thread in present:
            if thread in self._fixed:
                continue
            if names := self._thread_names(thread):
                yield from self._read_mask(f"proc/{thread}/status", MaskKind.THREAD, names)
            else:
                self._fixed.add(thread)

    def _thread_names(self, thread: str) -> str:
        """Name and start time of a kernel thread that can be moved; empty for any other thread."""
        match = _STAT.match(self._files.piece_text(f"proc/{thread}/stat") or "")
        if match is None or int(match["flags"]) & _NO_AFFINITY or match["name"].startswith(_FOLLOWING):
            return ""
        return printable_text(f"{match['name']}{_SINCE}{match['start']}")

    def _mask_text(self, path: str) -> str | None:
        """The text of the mask in a file."""
        text = self._files.piece_text(path)
        if text is None or not path.endswith("/status"):
            return text
        match = _ALLOWED.search(text)
        return None if match is None else match[1]

    def _read_mask(self, path: str, kind: MaskKind, names: str = "") -> Iterator[KernelMask]:
        text = self._mask_text(path)
        if text is not None and MASK_PATH.fullmatch(path):
            try:
                yield KernelMask(path, kind, parse_mask_text(path, text), text, names)
            except cpuset.BadCpuSet:
                return

    def _with_details(self, mask: KernelMask) -> KernelMask:
        folder = mask.path.rpartition("/")[0]
        node = self._files.text(f"{folder}/node") or ""
        try:
            mode = os.stat(self.root / mask.path).st_mode
        except OSError:
            mode = stat.S_IWUSR
        return replace(
            mask,
            node=int(node) if node.isascii() and node.isdigit() else None,
            effective=self._read_effective(mask),
            # From Linux 6.11 on, the file of an interrupt that cannot be moved is read-only.
            movable=bool(mode & stat.S_IWUSR),
        )

    def _read_effective(self, mask: KernelMask) -> CpuSet:
        folder = mask.path.rpartition("/")[0]
        return self._files.cpu_list(f"{folder}/effective_affinity_list") or frozenset()

    def _read_counts(self) -> dict[int, int]:
        """Interrupts since boot, by number of the interrupt: the sums over all CPUs in /proc/interrupts."""
        found: dict[int, int] = {}
        for line in (self._files.text("proc/interrupts") or "").splitlines():
            number, colon, rest = line.partition(":")
            if colon and number.strip().isdigit():
                total = 0
                for word in rest.split():
                    if not word.isdigit():
                        break
                    total += int(word)
                found[int(number)] = total
        return found

    def _read_owners(self, processes: Mapping[str, int]) -> dict[str, str]:
        """Uuids of guests by the PCI addresses of the devices that their processes have open through VFIO."""
        found: dict[str, str] = {}
        for uuid, pid in processes.items():
            folder = f"proc/{pid}/fd"
            for name in self._list_some(folder):
                target = self._files.read_link(f"{folder}/{name}") or ""
                match = _VFIO_FILE.fullmatch(target)
                if match is None or not self._is_device(f"{folder}/{name}", target):
                    continue
                if match[1]:
                    devices = self._files.list_names(f"sys/kernel/iommu_groups/{match[1]}/devices")
                else:
                    devices = [
                        os.path.basename(self._files.read_link(f"sys/class/vfio-dev/{match[2]}/device") or "")
                    ]
                found |= dict.fromkeys(devices, uuid)
        return found

    def _list_some(self, folder: str) -> list[str]:
        """The first names in a folder, at most ``_MAX_FILES``; none if the folder cannot be read."""
        with contextlib.suppress(OSError), os.scandir(f"{self.root}/{folder}") as entries:
            return [entry.name for entry in itertools.islice(entries, _MAX_FILES)]
        return []

    def _is_device(self, opened: str, path: str) -> bool:
        """Whether an open file is the device with this path on the host.

        In the mount namespace of its process, the path can belong to another file.
        """
        try:
            has, wanted = (os.stat(f"{self.root}/{each}") for each in (opened, path.lstrip("/")))
        except OSError:
            return False
        return stat.S_ISCHR(has.st_mode) and has.st_rdev == wanted.st_rdev
