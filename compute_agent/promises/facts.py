"""Facts about promises: memory by node, threads of the host, resctrl groups, and PCI devices."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from compute_agent.host import kernel_files
from compute_agent.host.kernel_files import SysFiles
from compute_agent.host.pci_devices import PciDevice
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import Allocation
from compute_agent.model.messages import printable_text
from compute_agent.promises.verdict import GroupFacts, HeldDevices, HostTask
from compute_agent.resctrl.groups import ResctrlGroups
from compute_agent.resctrl.layout import ResctrlLayout, cache_mask
from compute_agent.resctrl.ways import NO_WAYS

_ALLOWED: Final = re.compile(r"^Cpus_allowed_list:\s*(\S*)$", re.MULTILINE)
_NAME: Final = re.compile(r"^Name:\s*(.*)$", re.MULTILINE)

MAX_TASKS: Final = 1000
"""Maximum number of listed threads of the host on CPUs of guests. Without isolation, all threads of the host
may run there.
"""

_NODE: Final = re.compile(r"N([0-9]{1,6})=([0-9]{1,20})", re.ASCII)
_COUNTED: Final = ("anon", "shmem")
"""The lines of memory.numa_stat with a guest's own memory. The page cache does not count, because the kernel
decides its node.
"""


class TaskReader:
    """Reads the threads of the host with the /proc below a root folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files = SysFiles(root)

    def list_tasks(self, cpus: CpuSet, guests: Collection[int]) -> Iterator[HostTask]:
        """The threads that may run on any of these CPUs, at most ``MAX_TASKS``.

        Threads of the kernel and of guests are left out.

        :param guests: the pids of the processes of guests.
        """
        if not cpus:
            return
        kernel = {kernel_files.KTHREADD, *map(int, kernel_files.list_kernel_threads(self._root) or ())}
        count = 0
        for pid in self._files.list_numbers("proc", ""):
            if pid in guests or pid in kernel:
                continue
            for tid in self._files.list_numbers(f"proc/{pid}/task", ""):
                found = self._read_affinity(pid, tid)
                if found is None or not found & cpus:
                    continue
                yield HostTask(pid, tid, self._read_name(pid, tid), found)
                count += 1
                if count == MAX_TASKS:
                    return

    def _read_affinity(self, pid: int, tid: int) -> CpuSet | None:
        """The CPUs that a thread may use; None when the thread is gone."""
        # The system call asks the running kernel, so the answer fits only this kernel's own /proc.
        if self._root == Path("/"):
            # The call costs a fiftieth of a read of the thread's status file, and a host has thousands of
            # threads.
            try:
                return frozenset(os.sched_getaffinity(tid))
            except OSError:
                return None
        match = _ALLOWED.search(self._files.text(f"proc/{pid}/task/{tid}/status") or "")
        try:
            return None if match is None else cpuset.parse(match[1])
        except cpuset.BadCpuSet:
            return None

    def _read_name(self, pid: int, tid: int) -> str:
        match = _NAME.search(self._files.text(f"proc/{pid}/task/{tid}/status") or "")
        return printable_text(match[1]) if match else "?"


def read_node_memory(folder: str) -> dict[int, int]:
    """Bytes of a cgroup by NUMA node, from memory.numa_stat (Linux 5.10); empty without this file."""
    if not folder:
        return {}
    found: dict[int, int] = {}
    for line in (kernel_files.read_optional(f"{folder}/memory.numa_stat") or "").splitlines():
        name, _, rest = line.partition(" ")
        if name in _COUNTED:
            _add_nodes(found, rest)
    for path in _huge_page_files(folder):
        _add_nodes(found, kernel_files.read_optional(path) or "")
    return found


def _huge_page_files(folder: str) -> list[str]:
    """The files hugetlb.SIZE.numa_stat of a cgroup, which exist since Linux 5.17."""
    try:
        with os.scandir(folder) as entries:
            return [
                entry.path
                for entry in entries
                if entry.name.startswith("hugetlb.") and entry.name.endswith(".numa_stat")
            ]
    except OSError:
        return []


def _add_nodes(found: dict[int, int], text: str) -> None:
    for node, amount in _NODE.findall(text):
        found[int(node)] = found.get(int(node), 0) + int(amount)


def group_facts(
    host: ResctrlLayout, present: ResctrlGroups, name: str, tasks: Collection[int], threads: Collection[int]
) -> GroupFacts | None:
    """The facts about the resctrl group of a guest; None if the group does not exist.

    :param host: the layout of resctrl on this host.
    :param present: the groups that the kernel has.
    :param name: the name of the guest's group.
    :param tasks: the ids of the threads in the group.
    :param threads: the ids of the threads of the guest.
    """
    group = present.groups.get(name)
    if group is None:
        return None
    ways: dict[int, tuple[int, int]] = {}
    bandwidth: dict[int, int] = {}
    slack = 0
    for cache in host.platform.cache_ids:
        mask, others = cache_mask(host.platform, group.schemata, cache), NO_WAYS
        for other in present.groups.values():
            if other.name != name:
                others = others | cache_mask(host.platform, other.schemata, cache)
        ways[cache] = len(mask), len(mask & others)
        domain = host.platform.mb_domain(cache)
        value = None if domain is None else group.schemata.get_value("MB", domain)
        if host.codec is not None and domain is not None and value is not None:
            bandwidth[cache] = host.codec.decode_value(domain, value)
            step = host.codec.percent_step
            slack = max(slack, step if host.codec.is_same_value(value, value - step) else 0)
    return GroupFacts(ways, bandwidth, slack, frozenset(threads) - frozenset(tasks))


def held_devices(tree: ProviderTree, allocation: Allocation) -> HeldDevices:
    """The devices that an allocation contains."""
    return {
        node.device: amount
        for node in tree.device_providers
        if (amount := allocation.get(node.uuid, {}).get(node.device_class))
    }


def cards_of(tree: ProviderTree, read_devices: Callable[[], Iterable[PciDevice]]) -> Mapping[str, str]:
    """The card of each device that a host offers, by address, or by the uuid of a mediated device.

    The card of a virtual function is its physical function. If the host offers virtual functions separately,
    each of them is its own card.

    :param read_devices: reads the devices of the host; called only if the host offers devices.
    """
    offered = {node.device for node in tree.device_providers}
    if not offered:
        return {}
    cards = dict[str, str]()
    for device in read_devices():
        made = (each for one in device.mdev_types for each in one.devices)
        card = device.address if device.address in offered else device.card_address
        cards |= dict.fromkeys((device.address, *made), card)
    # A device that is gone is perhaps still in the definition of a guest.
    return {address: address for address in offered} | {
        address: card for address, card in cards.items() if card in offered
    }
