"""Cpuset partitions for guests of level ``alone``: the kernel itself keeps all other work off their CPUs.

See Documentation/admin-guide/cgroup-v2.rst, "cpuset.cpus.partition". Each guest CPU of a libvirt domain has a
group, which becomes a partition. A process guest has a single group, which becomes a partition if the guest
uses only CPUs that it holds. A partition is *remote* if its parent groups are no partitions (Linux 6.7). Then
each ancestor group lists the CPUs of the partition in ``cpuset.cpus.exclusive``. Before Linux 6.11 the CPUs
must also be in ``cpuset.cpus`` of the ancestors, so the agent writes all CPUs to an empty ``cpuset.cpus`` of
an ancestor.

The kernel can accept a write and make the partition invalid. Then the file ``cpuset.cpus.partition`` contains
the reason. The agent removes partitions from the innermost group to the outermost.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compute_agent.host import kernel_files
from compute_agent.host.kernel_files import SysFiles
from compute_agent.host.proc_stat import has_capability
from compute_agent.isolation.control_groups import CONTROL_GROUPS, GROUP_CPUS
from compute_agent.model import cpuset
from compute_agent.model.cpuset import CpuSet

_EXCLUSIVE: Final = "cpuset.cpus.exclusive"
_EFFECTIVE: Final = "cpuset.cpus.exclusive.effective"
_PARTITION: Final = "cpuset.cpus.partition"

_CAP_SYS_ADMIN: Final = 21
"""The number of CAP_SYS_ADMIN in linux/capability.h."""

MEMBER: Final = "member"
ISOLATED: Final = "isolated"
"""The kind of partition without load balancing and without unbound workqueues; used for a single CPU."""
BALANCED: Final = "root"

PARTITION_PATH: Final = re.compile(
    rf"{CONTROL_GROUPS}/(?P<group>.+)/(?P<file>cpuset\.cpus(?:\.exclusive|\.partition)?)"
)
_STATE: Final = re.compile(r"(?P<kind>member|root|isolated)(?: invalid)?(?: \((?P<reason>.*)\))?", re.DOTALL)
_VCPU: Final = re.compile(r"vcpu(?P<number>[0-9]{1,5})", re.ASCII)

NO_GROUP: Final = "alone: it has no control group of its own"
NO_REMOTE: Final = "alone: the kernel has partitions below its root group only (Linux 6.7 has others)"
NO_CPUSET: Final = "alone: its control group cannot have CPUs"


@dataclass(frozen=True, slots=True)
class PartitionTarget:
    """A group of a guest that should become a partition with these CPUs."""

    uuid: str
    group: str
    cpus: CpuSet

    @property
    def path(self) -> str:
        """The file with the state of the partition."""
        return _path(self.group, _PARTITION)

    @property
    def partition_kind(self) -> str:
        """The kind of partition that the group should become: with or without load balancing."""
        return ISOLATED if len(self.cpus) == 1 else BALANCED


@dataclass(frozen=True, slots=True)
class GroupState:
    """The contents of a control group's cpuset files.

    A content of None means that the kernel has no such file.

    :ivar passed: the exclusive CPUs that the group actually gets from its ancestors
        (``cpuset.cpus.exclusive.effective``).
    """

    cpus: str | None = None
    exclusive: str | None = None
    passed: CpuSet = frozenset()
    partition: str | None = None

    def text_of(self, file: str) -> str | None:
        """The content of a file by its name."""
        return {GROUP_CPUS: self.cpus, _EXCLUSIVE: self.exclusive, _PARTITION: self.partition}[file]


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The states of the groups that matter to a plan.

    The groups are those that should become partitions, their ancestors, and groups with saved originals.
    """

    online: CpuSet = frozenset()
    groups: Mapping[str, GroupState] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The originals to save first, and the writes to make after that, in their order.

    :ivar refused: reasons why guests get no partition, by uuid of the guest.
    :ivar valid: the CPUs of the valid partitions in the kernel.
    """

    originals: Mapping[str, str]
    writes: tuple[tuple[str, str], ...] = ()
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    valid: CpuSet = frozenset()


def is_partition_text(path: str, text: object) -> bool:
    """Whether a text can be the original content of a file that partitions change."""
    if not isinstance(text, str):
        return False
    if path.endswith(f"/{_PARTITION}"):
        return text in (MEMBER, ISOLATED, BALANCED)
    try:
        cpuset.parse(text)
    except cpuset.BadCpuSet:
        return False
    return True


def decide_partitions(
    facts: PartitionFacts, targets: Iterable[PartitionTarget], originals: Mapping[str, str]
) -> PartitionPlan:
    """Plan the writes that make the wanted partitions of a host and remove all other partitions."""
    return _PartitionPlanner(facts, originals).plan_partitions(targets)


class _PartitionPlanner:
    """Collects the wanted contents of files, and then lists the writes in the order that the kernel needs."""

    def __init__(self, facts: PartitionFacts, originals: Mapping[str, str]) -> None:
        self._facts, self._originals = facts, originals
        self._exclusive: defaultdict[str, set[int]] = defaultdict(set)
        self._kinds: dict[str, str] = {}
        self._filled: set[str] = set()
        self._refused: defaultdict[str, list[str]] = defaultdict(list)
        self._valid: set[int] = set()

    def plan_partitions(self, targets: Iterable[PartitionTarget]) -> PartitionPlan:
        for target in targets:
            self._add_target(target)
        writes = [*self._list_returns(), *self._list_grants()]
        touched = {_group_of(path) for path, _ in writes}
        for group, kind in self._kinds.items():
            state = self._facts.groups[group].partition
            # The kernel makes an invalid partition valid again when the cause ends, but not if a write of the
            # agent ended the cause. So the agent writes the partition again.
            changed = any(group == each or group.startswith(f"{each}/") for each in touched)
            if state != kind and (_state_word(state) != kind or changed):
                writes.append((_path(group, _PARTITION), kind))
        kept = {path: text for path, text in self._originals.items() if self._is_kept(path)}
        for path, _ in writes:
            kept.setdefault(path, self._original_text(path))
        refused = {uuid: tuple(dict.fromkeys(each)) for uuid, each in self._refused.items()}
        return PartitionPlan(kept, tuple(writes), refused, frozenset(self._valid))

    def _add_target(self, target: PartitionTarget) -> None:
        state = self._facts.groups.get(target.group, GroupState())
        is_local = "/" not in target.group
        if state.partition is None:
            self._refused[target.uuid].append(NO_CPUSET)
            return
        if state.exclusive is None and not is_local:
            self._refused[target.uuid].append(NO_REMOTE)
            return
        # The partition is made only after the guest is pinned to these CPUs: later, pins to CPUs outside of
        # the partition would fail.
        if cpuset.parse_or_empty(state.cpus) != target.cpus:
            return
        self._kinds[target.group] = target.partition_kind
        if state.partition == target.partition_kind:
            self._valid |= target.cpus
        elif _state_word(state.partition) == target.partition_kind:
            self._refused[target.uuid].append(
                f"alone: {_in_words(target.group)}: {_refusal_reason(state.partition)}"
            )
        if state.exclusive is None:
            return
        self._exclusive[target.group] |= target.cpus
        for group in groups_above(target.group):
            self._exclusive[group] |= target.cpus
            above = self._facts.groups.get(group, GroupState())
            filled = _path(group, GROUP_CPUS) in self._originals
            lacks = target.cpus <= cpuset.parse_or_empty(above.exclusive) and not target.cpus <= above.passed
            if filled or (lacks and not above.cpus and state.partition != target.partition_kind):
                self._filled.add(group)

    def _list_returns(self) -> Iterator[tuple[str, str]]:
        """Yield the writes that restore files: innermost groups first, and partitions before other files."""
        order = [_PARTITION, _EXCLUSIVE, GROUP_CPUS]
        paths = [
            (-path.count("/"), order.index(match["file"]), path, match["group"], match["file"])
            for path in self._originals
            if (match := PARTITION_PATH.fullmatch(path))
        ]
        for _, _, path, group, file in sorted(paths):
            state = self._facts.groups.get(group)
            has = None if state is None else state.text_of(file)
            if has is not None and not self._is_wanted(group, file) and self._has_changed(path, has):
                yield path, self._originals[path]

    def _list_grants(self) -> Iterator[tuple[str, str]]:
        """Yield the writes that give exclusive CPUs to groups, outermost groups first."""
        for group in sorted(self._exclusive, key=lambda group: (group.count("/"), group)):
            state = self._facts.groups.get(group, GroupState())
            if group in self._filled and not state.cpus:
                yield _path(group, GROUP_CPUS), cpuset.format(self._facts.online)
            path = _path(group, _EXCLUSIVE)
            wanted = self._exclusive[group] | cpuset.parse_or_empty(self._originals.get(path, ""))
            if path not in self._originals:
                wanted |= cpuset.parse_or_empty(state.exclusive)
            if cpuset.parse_or_empty(state.exclusive) != wanted:
                yield path, cpuset.format(wanted)

    def _is_wanted(self, group: str, file: str) -> bool:
        if file == GROUP_CPUS:
            return group in self._filled
        return group in (self._kinds if file == _PARTITION else self._exclusive)

    def _is_kept(self, path: str) -> bool:
        group, file = _group_of(path), path.rpartition("/")[2]
        state = self._facts.groups.get(group)
        if state is None:
            return False
        has = state.text_of(file)
        return self._is_wanted(group, file) or (has is not None and self._has_changed(path, has))

    def _has_changed(self, path: str, has: str) -> bool:
        """Whether a file differs from its original.

        If the original is an empty set, all CPUs count as equal, because the kernel can refuse an empty set.
        """
        is_all = path.endswith(f"/{GROUP_CPUS}") and cpuset.parse_or_empty(has) >= self._facts.online
        return has != self._originals[path] and not (is_all and not self._originals[path])

    def _original_text(self, path: str) -> str:
        text = self._facts.groups[_group_of(path)].text_of(path.rpartition("/")[2]) or ""
        return _state_word(text) if path.endswith(f"/{_PARTITION}") else text


class PartitionFiles:
    """Reads and writes the cpuset files of groups below a root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._files = SysFiles(root)

    @property
    def has_remote(self) -> bool:
        """Whether the kernel supports partitions below groups that are no partitions."""
        # The agent looks for another file, which is a little newer (Linux 6.8): it is in the root group, and
        # exists even if the host has no other group.
        return os.path.exists(self.root / CONTROL_GROUPS / "cpuset.cpus.isolated")

    @property
    def may_make(self) -> bool:
        """Whether this process is allowed to make remote partitions, which requires CAP_SYS_ADMIN."""
        return has_capability(self._files.text("proc/self/status") or "", _CAP_SYS_ADMIN)

    def list_targets(
        self, uuid: str, group: str, cpus: CpuSet, vcpu_cpus: tuple[CpuSet, ...]
    ) -> tuple[list[PartitionTarget], str]:
        """The groups of a guest that should become partitions, or no group and a message with the reason.

        :param group: the control group of the whole guest.
        :param cpus: the dedicated CPUs that the guest holds.
        """
        if not group:
            return [], NO_GROUP
        names = self._files.list_names(f"{CONTROL_GROUPS}/{group}/libvirt")
        found = {int(match["number"]): name for name in names if (match := _VCPU.fullmatch(name))}
        if not found:
            # Only the CPUs of guest CPUs count for a process guest, because its group has no other CPUs.
            wanted = frozenset[int]().union(*vcpu_cpus)
            if not wanted <= cpus:
                others = cpuset.named_cpus(wanted - cpus)
                return [], f"alone: other threads of it are in the same control group, on {others}"
            return [PartitionTarget(uuid, group, wanted)], ""
        # A guest CPU that may use shared CPUs gets no partition.
        sets = dict(enumerate(vcpu_cpus))
        wanted_sets = {number: sets.get(number, frozenset()) for number in found}
        targets = [
            PartitionTarget(uuid, f"{group}/libvirt/{found[number]}", each)
            for number, each in sorted(wanted_sets.items())
            if each and each <= cpus
        ]
        if len(frozenset[int]().union(*(each.cpus for each in targets))) < sum(
            len(each.cpus) for each in targets
        ):
            return [], "alone: several of its CPUs may use the same host CPU"
        return targets, ""

    def read_facts(self, groups: Collection[str]) -> PartitionFacts:
        """Read the cpuset files of groups and their ancestors."""
        online = self._files.cpu_list("sys/devices/system/cpu/online") or frozenset()
        wanted = {above for group in groups for above in (group, *groups_above(group))}
        return PartitionFacts(
            online,
            {group: self._read_state(group) for group in sorted(wanted) if self._is_there(group)},
        )

    def _is_there(self, group: str) -> bool:
        return os.path.isdir(f"{self.root}/{CONTROL_GROUPS}/{group}")

    def _read_state(self, group: str) -> GroupState:
        folder = f"{CONTROL_GROUPS}/{group}"
        return GroupState(
            self._files.piece_text(f"{folder}/{GROUP_CPUS}"),
            self._files.piece_text(f"{folder}/{_EXCLUSIVE}"),
            self._files.cpu_list(f"{folder}/{_EFFECTIVE}") or frozenset(),
            self._files.piece_text(f"{folder}/{_PARTITION}"),
        )

    def write_text(self, path: str, text: str) -> None:
        """Write a file of a partition.

        :raises OSError: the kernel refuses the change.
        """
        kernel_files.write_text(f"{self.root}/{path}", f"{text}\n")


def groups_above(group: str) -> list[str]:
    """The ancestors of a group without the root, the outermost first."""
    return [group[:place] for place, letter in enumerate(group) if letter == "/"]


def _path(group: str, file: str) -> str:
    return f"{CONTROL_GROUPS}/{group}/{file}"


def _group_of(path: str) -> str:
    match = PARTITION_PATH.fullmatch(path)
    return "" if match is None else match["group"]


def _state_word(state: str | None) -> str:
    return (state or MEMBER).split(maxsplit=1)[0]


def _refusal_reason(state: str) -> str:
    match = _STATE.fullmatch(state)
    return match["reason"] if match is not None and match["reason"] else state


def _in_words(group: str) -> str:
    return f"control group {group.rpartition('/')[2]}"
