"""The masks of a host as the kernel shows them.

Files: /proc/irq (Documentation/core-api/irq/irq-affinity.rst), /sys/devices/virtual/workqueue
(Documentation/core-api/workqueue.rst), kernel.watchdog_cpumask (Documentation/admin-guide/sysctl/kernel.rst)
and rps_cpus (Documentation/networking/scaling.rst). All paths are relative to the root of /proc and /sys.
"""

from __future__ import annotations

import enum
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from compute_agent.host import kernel_files
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.messages import printable

INTERRUPTS: Final = "proc/irq"
DEFAULT_MASK: Final = f"{INTERRUPTS}/default_smp_affinity"
WORKQUEUES: Final = "sys/devices/virtual/workqueue"
WORKQUEUE_MASK: Final = f"{WORKQUEUES}/cpumask"
WATCHDOG_MASK: Final = "proc/sys/kernel/watchdog_cpumask"
NETWORK: Final = "sys/class/net"
_BOOT_ID: Final = "proc/sys/kernel/random/boot_id"
_ONLINE: Final = "sys/devices/system/cpu/online"

MASK_PATH: Final = re.compile(
    rf"{INTERRUPTS}/(?:(?P<number>[0-9]{{1,10}})/smp_affinity_list|default_smp_affinity)"
    rf"|{WORKQUEUES}/(?:(?P<queue>[^/]+)/)?cpumask|{WATCHDOG_MASK}"
    rf"|{NETWORK}/(?P<device>[^/]+)/queues/(?P<rx>rx-[0-9]+)/rps_cpus",
    re.ASCII,
)
"""The paths of all masks."""

_PASSTHROUGH: Final = re.compile(r"vfio-[a-z]+\S*\(([0-9a-f:.]+)\)", re.ASCII)
"""The action of an interrupt of a device that a guest has: ``vfio-msix[0](0000:3b:00.0)``."""


class MaskKind(enum.StrEnum):
    """The work that a mask binds."""

    DEFAULT = "default mask of interrupts"
    INTERRUPT = "interrupt"
    WORKQUEUE = "unbound workqueues"
    WATCHDOG = "lockup watchdog"
    PACKETS = "receive packet steering"


@dataclass(frozen=True, slots=True)
class KernelMask:
    """A mask: its file, and the CPUs that it names.

    Node, effective CPUs and movability are read only where a decision needs them.

    :ivar names: the actions of an interrupt, which tell a device from another one with the same number.
    :ivar node: the NUMA node of its device.
    :ivar effective: the CPUs that the kernel chose of the mask.
    :ivar movable: the file can be written.
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
    def is_list(self) -> bool:
        """Whether the file has a list of CPUs; otherwise it has a hexadecimal mask."""
        return self.path.endswith("_list") or self.kind is MaskKind.WATCHDOG

    @property
    def number(self) -> int:
        """The number of the interrupt; -1 for other masks."""
        match = MASK_PATH.fullmatch(self.path)
        return -1 if match is None or match["number"] is None else int(match["number"])

    @property
    def device(self) -> str:
        """The PCI address of a passthrough device; empty for other masks."""
        match = _PASSTHROUGH.search(self.names)
        return "" if match is None else match[1]

    @property
    def subject(self) -> str:
        """The mask in words: ``interrupt 45 (eth0-rx-1)``."""
        match = MASK_PATH.fullmatch(self.path)
        if self.kind is MaskKind.INTERRUPT:
            return f"interrupt {self.number} ({self.names})" if self.names else f"interrupt {self.number}"
        if match is not None and match["queue"]:
            return f"workqueue {match['queue']}"
        if match is not None and match["device"]:
            return f"{self.kind} of {match['device']} {match['rx']}"
        return str(self.kind)

    def parse_text(self, text: str) -> CpuSet:
        """The CPUs of a text in the format of this file.

        :raises cpuset.BadCpuSet:
        """
        return parse_mask_text(self.path, text)

    def format_cpus(self, cpus: CpuSet) -> str:
        """CPUs as the file takes them."""
        return cpuset.format(cpus) if self.is_list else cpuset.format_mask(cpus)

    @property
    def reach(self) -> CpuSet:
        """The CPUs on which the work runs, as far as the kernel tells."""
        return self.effective or self.cpus


def parse_mask_text(path: str, text: str) -> CpuSet:
    """The CPUs of a text in the format of a mask's file.

    :raises cpuset.BadCpuSet:
    """
    is_list = path.endswith("_list") or path == WATCHDOG_MASK
    return cpuset.parse(text) if is_list else cpuset.parse_mask(text)


@dataclass(frozen=True, slots=True)
class IsolationFacts:
    """The masks of a host, by path.

    :ivar boot: the identifier of the boot.
    :ivar gone: those of the known paths that do not exist any more.
    :ivar counts: interrupts since boot by number, read where one needs another CPU.
    :ivar owners: guests by the PCI address of their passthrough device.
    """

    boot: str
    online: CpuSet
    masks: Mapping[str, KernelMask]
    gone: frozenset[str] = frozenset()
    counts: Mapping[int, int] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)


class MaskReader:
    """Reads masks below a root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def boot(self) -> str:
        """The identifier of the boot; empty where the kernel has none."""
        return (self._text(_BOOT_ID) or "").strip()

    @property
    def has_masks(self) -> bool:
        """Whether interrupts of this host have masks at all, which a container may hide."""
        return os.path.exists(self.root / DEFAULT_MASK)

    def read_facts(
        self, quiet: CpuSet, known: Collection[str] = (), processes: Mapping[str, int] | None = None
    ) -> IsolationFacts:
        """The masks, with details of those that touch a quiet CPU.

        :param known: paths of masks that have originals.
        :param processes: main processes of guests by uuid, one of which may have a passthrough device.
        """
        boot, online = self.boot, self._parse(_ONLINE, cpuset.parse) or frozenset()
        masks = {mask.path: mask for mask in self._read_masks(known)}
        touching = [mask for mask in masks.values() if mask.kind is MaskKind.INTERRUPT and mask.cpus & quiet]
        masks |= {mask.path: self._with_details(mask) for mask in touching}
        counts: Mapping[int, int] = {}
        if any(mask.cpus <= quiet and masks[mask.path].movable for mask in touching):
            counts = self._read_counts()
            masks = {
                path: replace(mask, effective=self._effective(mask)) if mask.number >= 0 else mask
                for path, mask in masks.items()
            }
        owners: Mapping[str, str] = {}
        if processes and any(mask.device for mask in masks.values()):
            owners = self._read_owners(processes)
        # A file that cannot be read for a moment is not gone.
        gone = frozenset(path for path in known if not os.path.lexists(self.root / path))
        return IsolationFacts(boot, online, masks, gone, counts, owners)

    def read_cpus(self, path: str) -> CpuSet | None:
        """The CPUs of one mask; None where it cannot be read."""
        text = self._text(path)
        try:
            return None if text is None else parse_mask_text(path, text.strip())
        except cpuset.BadCpuSet:
            return None

    def write_mask(self, path: str, text: str) -> None:
        """Write a mask.

        :raises OSError: the kernel refuses it.
        """
        kernel_files.write_text(f"{self.root}/{path}", f"{text}\n")

    def _read_masks(self, known: Collection[str]) -> Iterator[KernelMask]:
        # The default first: an interrupt that is made afterwards has what this says, or something newer.
        for path, kind in ((DEFAULT_MASK, MaskKind.DEFAULT), (WATCHDOG_MASK, MaskKind.WATCHDOG)):
            yield from self._read_mask(path, kind)
        yield from self._read_interrupts(known)
        for path in (
            WORKQUEUE_MASK,
            *(f"{WORKQUEUES}/{name}/cpumask" for name in self._folders(WORKQUEUES)),
        ):
            yield from self._read_mask(path, MaskKind.WORKQUEUE)
        for device in self._names(NETWORK):
            for queue in self._names(f"{NETWORK}/{device}/queues"):
                if queue.startswith("rx-"):
                    path = f"{NETWORK}/{device}/queues/{queue}/rps_cpus"
                    yield from self._read_mask(path, MaskKind.PACKETS)

    def _read_interrupts(self, known: Collection[str]) -> Iterator[KernelMask]:
        for name in self._names(INTERRUPTS):
            if name.isascii() and name.isdigit():
                path = f"{INTERRUPTS}/{name}/smp_affinity_list"
                actions = printable(", ".join(self._folders(f"{INTERRUPTS}/{name}")))
                # An interrupt without an action never fires, and takes the default when it gets one.
                if actions or path in known:
                    yield from self._read_mask(path, MaskKind.INTERRUPT, actions)

    def _read_mask(self, path: str, kind: MaskKind, names: str = "") -> Iterator[KernelMask]:
        text = self._text(path)
        if text is not None and MASK_PATH.fullmatch(path):
            text = text.strip()
            try:
                yield KernelMask(path, kind, parse_mask_text(path, text), text, names)
            except cpuset.BadCpuSet:
                return

    def _with_details(self, mask: KernelMask) -> KernelMask:
        folder = mask.path.rpartition("/")[0]
        node = (self._text(f"{folder}/node") or "").strip()
        try:
            mode = os.stat(self.root / mask.path).st_mode
        except OSError:
            mode = stat.S_IWUSR
        return replace(
            mask,
            node=int(node) if node.isascii() and node.isdigit() else None,
            effective=self._effective(mask),
            # From Linux 6.11 on, the file of an interrupt that cannot be moved is read-only.
            movable=bool(mode & stat.S_IWUSR),
        )

    def _effective(self, mask: KernelMask) -> CpuSet:
        folder = mask.path.rpartition("/")[0]
        return self._parse(f"{folder}/effective_affinity_list", cpuset.parse) or frozenset()

    def _read_counts(self) -> dict[int, int]:
        """Interrupts since boot, by number: the sum of the columns of /proc/interrupts."""
        found: dict[int, int] = {}
        for line in (self._text("proc/interrupts") or "").splitlines():
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
        """Guests by the PCI address of a device that they have open through VFIO."""
        found: dict[str, str] = {}
        for uuid, pid in processes.items():
            folder = f"proc/{pid}/fd"
            for name in self._names(folder):
                target = self._link(f"{folder}/{name}")
                match = re.fullmatch(r"/dev/vfio/(?:([0-9]+)|devices/(vfio[0-9]+))", target, re.ASCII)
                if match is None:
                    continue
                if match[1]:
                    devices = self._names(f"sys/kernel/iommu_groups/{match[1]}/devices")
                else:
                    devices = [os.path.basename(self._link(f"sys/class/vfio-dev/{match[2]}/device"))]
                found |= dict.fromkeys(devices, uuid)
        return found

    def _text(self, path: str) -> str | None:
        return kernel_files.read_optional(f"{self.root}/{path}")

    def _parse(self, path: str, parse: cpuset.Parser) -> CpuSet | None:
        text = self._text(path)
        try:
            return None if text is None else parse(text.strip())
        except cpuset.BadCpuSet:
            return None

    def _names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder), key=lambda name: (len(name), name))
        except OSError:
            return []

    def _folders(self, folder: str) -> list[str]:
        try:
            with os.scandir(self.root / folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except OSError:
            return []

    def _link(self, path: str) -> str:
        try:
            return os.readlink(self.root / path)
        except OSError:
            return ""
