"""Monitoring groups, their counters, and rates. A counter can wrap, be reset or be unreadable.

Each control group counts the traffic of its tasks. A guest that shares a control group gets a monitoring
group inside it. Each control group and each monitoring group needs an RMID of its own.

Hardware can have fewer counters than groups. In the mode ``mbm_event`` of info/L3_MON/mbm_assign_mode (Linux
6.18), counters are assigned to events of groups. On each L3 cache, an event of a group is counted only while
the event has a counter of this cache. The file ``mbm_L3_assignments`` of a group shows and changes the
counters of the group. The file ``info/L3_MON/available_mbm_cntrs`` shows how many counters are free. The
kernel itself assigns free counters to new groups.
"""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from compute_agent.resctrl.filesystem import ResctrlError, ResctrlFilesystem
from compute_agent.resctrl.groups import ResctrlGroups, group_path
from compute_agent.resctrl.platform import ResctrlPlatform

OCCUPANCY: Final = "llc_occupancy"
TOTAL_BYTES: Final = "mbm_total_bytes"
LOCAL_BYTES: Final = "mbm_local_bytes"

ASSIGNMENT_MODE: Final = "mbm_event"
ASSIGNMENTS: Final = "mbm_L3_assignments"
AVAILABLE_COUNTERS: Final = "info/L3_MON/available_mbm_cntrs"

# "e" stands for an exclusive counter, the only kind of assignment that the kernel has so far.
ASSIGNED, FREE = "e", "_"

COUNTER_BITS: Final = 64
"""The width of the kernel's counters in bits. The kernel sums up the shorter counters of the hardware."""

# A transfer of this size takes 281 seconds at 1 TB/s, while two readings are only seconds apart.
PLAUSIBLE_BYTES: Final = 2**48
"""More bytes than any memory can transfer between two readings. A larger increase shows a reset, not a
wrap-around.
"""


CounterKey = tuple[int, str]
"""The id of an L3 cache and the name of an event."""


@dataclass(frozen=True, slots=True)
class CounterSample:
    """The values of the counters of a group at one time.

    :ivar time: the time of the reading in monotonic seconds.
    :ivar values: for each counter, the number that was read; None if the kernel has shown a word, such as
        ``Unavailable``, in place of a number.
    """

    time: float
    values: Mapping[CounterKey, int | None] = field(default_factory=dict)


def monitoring_group(group: str, name: str) -> str:
    """The path of a monitoring group inside a control group, which can be the default group."""
    return group_path(group, f"mon_groups/{name}")


def make_monitoring_group(files: ResctrlFilesystem, group: str, name: str) -> bool:
    """Make a monitoring group. If the group exists already, the function does nothing.

    :return: whether the group exists; False if the kernel has no free RMID for it.
    """
    try:
        files.make_folder(monitoring_group(group, name))
    except ResctrlError as error:
        if error.errno == errno.EEXIST:
            return True
        # EBUSY: the kernel does not reuse a released RMID while more than a few cache lines still belong to
        # it (limbo).
        if error.errno in (errno.ENOSPC, errno.EBUSY):
            return False
        raise
    return True


class BandwidthTotals:
    """Totals of bandwidth counters for metrics.

    The totals only grow, even if the kernel's counters wrap or reset.

    A reading without a number is skipped, and the next number is compared with the last number.

    :ivar bytes: the bytes moved since the first sample, by L3 cache id and event.
    """

    def __init__(self) -> None:
        self._last: dict[CounterKey, tuple[float, int]] = {}
        self.bytes: dict[CounterKey, int] = {}

    def add_sample(self, sample: CounterSample) -> dict[CounterKey, float]:
        """Add the increase since the last sample. The first sample sets the starting point.

        :return: bytes per second, for each counter with a number in this and in an earlier sample.
        """
        found = {}
        for key, value in sample.values.items():
            # Occupancy is left out: it is a current amount, and its changes have no useful sum.
            if key[1] == OCCUPANCY or value is None:
                continue
            before = self._last.get(key)
            self._last[key] = (sample.time, value)
            if before is None:
                # The total starts at 0, so that Prometheus' rate() sees the first increase.
                self.bytes.setdefault(key, 0)
                continue
            grown = value - before[1]
            if grown < 0:
                # The counter has wrapped around, or it was reset to 0 and its value is the increase.
                wrapped = grown + 2**COUNTER_BITS
                grown = wrapped if wrapped < PLAUSIBLE_BYTES else value
            self.bytes[key] += grown
            if sample.time > before[0]:
                found[key] = grown / (sample.time - before[0])
        return found

    def start_again(self) -> None:
        """Begin again with the next sample, because the last sample came from another group."""
        self._last.clear()


@dataclass(frozen=True, slots=True)
class MonitoredGroup:
    """A guest or class for which monitoring is wanted.

    :ivar name: the name of the guest or class.
    :ivar is_class: whether the target is a class of guests.
    :ivar priority: guests of higher priority are monitored first.
    :ivar own_group: whether the guest or class has a control group of its own, which already has an RMID.
    :ivar monitored: whether the guest or class has a monitoring group now. Targets with a group come before
        other targets of equal priority.
    """

    name: str
    is_class: bool = False
    priority: int = 0
    own_group: bool = False
    monitored: bool = False


def spare_rmids(platform: ResctrlPlatform, present: ResctrlGroups, ours: Callable[[str], bool]) -> int:
    """The number of RMIDs (ids of monitoring) that neither control groups nor foreign monitoring groups use.

    :param ours: returns whether a monitoring group belongs to the agent, by its name.
    """
    if platform.monitoring is None:
        return 0
    foreign = sum(
        1 for group in present.groups.values() for name in group.monitoring_groups if not ours(name)
    )
    # Files that were copied from another machine can have more groups than RMIDs.
    return max(0, platform.monitoring.rmids - len(present.groups) - foreign)


def rmids_to_use(platform: ResctrlPlatform, present: ResctrlGroups, ours: Callable[[str], bool]) -> int:
    """The number of monitoring groups that the agent can make.

    Control groups need RMIDs, too, and are more important than measurement. So up to half of the spare RMIDs
    are left for control groups that could still be made.
    """
    spare = spare_rmids(platform, present, ours)
    to_come = max(0, platform.max_groups - len(present.groups))
    # The double negation rounds up, which leaves more RMIDs for control groups.
    return spare - min(to_come, -(-spare // 2))


def choose_monitored(free_rmids: int, wanted: Iterable[MonitoredGroup]) -> Sequence[str]:
    """Choose the guests and classes to monitor when RMIDs are short: classes first, then guests by priority.

    :param free_rmids: the number of RMIDs that are free, or that the agent's own monitoring groups have.
    """
    chosen = []
    # Classes come first, because the group of a class also counts the use of its guests without groups of
    # their own.
    order = sorted(wanted, key=lambda one: (not one.is_class, -one.priority, not one.monitored, one.name))
    for one in order:
        if not one.own_group:
            if free_rmids <= 0:
                # The loop continues, because a later guest can have a control group of its own, which needs
                # no further RMID.
                continue
            free_rmids -= 1
        chosen.append(one.name)
    return chosen


def monitoring_changes(
    present: ResctrlGroups, wanted: Mapping[str, str], ours: Callable[[str], bool]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The paths of the monitoring groups to remove, and of the groups to make after the removal.

    Groups are removed first, because that frees RMIDs.

    :param wanted: the control group that each monitoring group should be in, by name of the monitoring group.
    :param ours: returns whether a monitoring group belongs to the agent, by its name. Groups of other
        programs stay.
    """
    there = {(group.name, name) for group in present.groups.values() for name in group.monitoring_groups}
    should = {(group, name) for name, group in wanted.items()}
    stale = sorted(one for one in there - should if ours(one[1]))
    # If a control group is not made yet, its monitoring group is made in a later round.
    missing = sorted(one for one in should - there if one[0] in present.groups)
    return tuple(monitoring_group(*one) for one in stale), tuple(monitoring_group(*one) for one in missing)


EVENTS: Final = (OCCUPANCY, TOTAL_BYTES, LOCAL_BYTES)

# Maximum number of bytes of a counter file: 2**64 has 20 digits, and the longest word is "Unavailable".
_COUNTER_BYTES: Final = 64


_OpenCounters = dict[int, dict[CounterKey, int | str]]
"""The places of a group's counter files, by L3 cache id and counter.

A place is an open file descriptor or, if too many files are open, a path.
"""


class ReaderPlace(Protocol):
    """Moves the calling thread to CPUs of a cache before it reads the cache's counters.

    If a CPU outside of the cache reads the counters, the kernel interrupts a CPU of the cache.
    """

    def move_near(self, cache: int) -> None:
        """Make the calling thread run on CPUs of an L3 cache, if the thread may use any CPU of this cache."""
        ...

    def return_home(self) -> None:
        """Make the thread run on its former CPUs again."""
        ...


def descriptors_to_keep() -> int:
    """The number of counter files that can stay open, which is half of the process's limit."""
    # The other half is left for sockets, the state file and libvirt.
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # If the process has no limit, the result is a number far above the counters of any host.
    return 1 << 16 if soft == resource.RLIM_INFINITY else soft // 2


class CounterFiles:
    """The counter files of groups, which stay open, so that a reading is one system call."""

    def __init__(
        self, files: ResctrlFilesystem, keep: int | None = None, place: ReaderPlace | None = None
    ) -> None:
        """Keep at most ``keep`` files open; all others are opened for each reading.

        :param keep: the maximum number of files that stay open; None means half of the process's limit.
        :param place: moves the thread near each cache that is read; None means that the thread is not moved.
        """
        self._files = files
        self._spare = descriptors_to_keep() if keep is None else keep
        self._place = place
        self._groups: dict[str, _OpenCounters] = {}

    def read_sample(self, group: str, time: float) -> CounterSample:
        """Read the counters of one group.

        :param time: the time of the reading, in monotonic seconds.
        :raises ResctrlError: the counters cannot be read.
        """
        found = self.read_samples([group], time)[group]
        if isinstance(found, ResctrlError):
            raise found
        return found

    def read_samples(self, groups: Iterable[str], time: float) -> Mapping[str, CounterSample | ResctrlError]:
        """Read counters of groups, cache by cache; an unreadable group has an error as its result."""
        found: dict[str, CounterSample | ResctrlError] = {}
        opened: dict[str, _OpenCounters] = {}
        for group in dict.fromkeys(groups):
            try:
                opened[group] = self._groups[group] if group in self._groups else self._open_group(group)
            except OSError as error:
                found[group] = self._note_failure(group, error)
        texts: dict[str, dict[CounterKey, bytes]] = {group: {} for group in opened}
        try:
            for cache in sorted({cache for counters in opened.values() for cache in counters}):
                if self._place is not None:
                    self._place.move_near(cache)
                for group in [group for group in texts if cache in opened[group]]:
                    places = opened[group][cache]
                    try:
                        texts[group].update(zip(places, map(_read_place, places.values()), strict=True))
                    except OSError as error:
                        found[group] = self._note_failure(group, error)
                        del texts[group]
        finally:
            if self._place is not None:
                self._place.return_home()
        found.update({group: _make_sample(time, values) for group, values in texts.items()})
        return found

    def _note_failure(self, group: str, error: OSError) -> ResctrlError:
        # A group that is made again has new files with the same names.
        self.forget_group(group)
        if isinstance(error, ResctrlError):
            return error
        found = ResctrlError(error.errno or errno.EIO, str(self._files.root / group))
        found.__cause__ = error
        return found

    def forget_group(self, group: str) -> None:
        """Close the files of a group. The next reading opens them again."""
        for places in self._groups.pop(group, {}).values():
            for where in places.values():
                if isinstance(where, int):
                    os.close(where)
                    self._spare += 1

    def keep_groups(self, groups: Collection[str]) -> None:
        """Close the files of all groups except these."""
        for group in self._groups.keys() - set(groups):
            self.forget_group(group)

    def close(self) -> None:
        """Close all files. A later reading opens the files again."""
        self.keep_groups(())

    def _open_group(self, group: str) -> _OpenCounters:
        folder = group_path(group, "mon_data")
        # The files are stored while they are opened, so that forget_group() can close them after an error.
        found: _OpenCounters = {}
        self._groups[group] = found
        for name in self._files.list_folders(folder):
            # A folder with another name has no events of L3 caches.
            if (match := re.fullmatch(r"mon_L3_([0-9]+)", name)) is None:
                continue
            cache = int(match[1])
            for event in EVENTS:
                path = str(self._files.root / folder / name / event)
                if os.path.exists(path):
                    place = os.open(path, os.O_RDONLY) if self._spare > 0 else path
                    self._spare -= isinstance(place, int)
                    found.setdefault(cache, {})[cache, event] = place
        # A group can have no counters; only a missing group is an error.
        if not found and not (self._files.root / group).is_dir():
            raise ResctrlError(errno.ENOENT, str(self._files.root / folder))
        return found


def _make_sample(time: float, texts: Mapping[CounterKey, bytes]) -> CounterSample:
    # int() accepts bytes with a newline, so most samples need no decoding.
    try:
        return CounterSample(time, {key: int(text) for key, text in texts.items()})
    except ValueError:  # Words instead of numbers are rare.
        numbers = {key: int(text) if text.strip().isdigit() else None for key, text in texts.items()}
        return CounterSample(time, numbers)


def _read_place(where: int | str) -> bytes:
    # The kernel writes the text again for each read at offset 0.
    return os.pread(where, _COUNTER_BYTES, 0) if isinstance(where, int) else _read_path(where)


def _read_path(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, _COUNTER_BYTES)
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class CounterAssignment:
    """A hardware counter to assign to an event of a group, or to release (``assign`` is False)."""

    group: str
    slot: CounterKey
    assign: bool


def needs_assignment(platform: ResctrlPlatform) -> bool:
    """Whether an event is counted only for groups to which a counter of the event is assigned."""
    return platform.monitoring is not None and platform.monitoring.assign_mode == ASSIGNMENT_MODE


def read_available_counters(files: ResctrlFilesystem) -> dict[int, int]:
    """The number of free counters by L3 cache id; empty if the kernel does not show them."""
    text = files.read_optional(AVAILABLE_COUNTERS) or ""
    return {int(cache): int(count) for cache, count in re.findall(r"([0-9]+)=([0-9]+)", text)}


def read_assigned_counters(files: ResctrlFilesystem, group: str) -> frozenset[CounterKey]:
    """The events and caches for which a group has a counter; empty if the group is gone."""
    found = set()
    for line in (files.read_optional(group_path(group, ASSIGNMENTS)) or "").splitlines():
        event, _, states = line.strip().partition(":")
        found |= {(int(cache), event) for cache in re.findall(rf"([0-9]+)={ASSIGNED}", states)}
    return frozenset(found)


def plan_assignments(
    available: Mapping[int, int], held: Mapping[str, frozenset[CounterKey]], order: Sequence[str]
) -> tuple[CounterAssignment, ...]:
    """The changes that give counters to the groups in this ``order``, until no counter is left.

    All groups get a counter of total bandwidth before any gets a counter of local bandwidth. All releases
    come before the assignments.

    :param available: the numbers of free hardware counters, by L3 cache id.
    :param held: the counters that groups in ``order`` have. Counters of other groups are not changed.
    """
    left = dict(available)
    # The plan starts as if all counters were free. No change is made for a counter that keeps its group.
    for slots in held.values():
        for cache, _ in slots:
            left[cache] = left.get(cache, 0) + 1
    wanted = []
    for event in (TOTAL_BYTES, LOCAL_BYTES):
        for group in order:
            for cache in left:
                if left[cache] > 0:
                    left[cache] -= 1
                    wanted.append((group, (cache, event)))
    keep = set(wanted)
    return (
        *(
            CounterAssignment(group, slot, assign=False)
            for group in order
            for slot in sorted(held.get(group, ()))
            if (group, slot) not in keep
        ),
        *(
            CounterAssignment(group, slot, assign=True)
            for group, slot in wanted
            if slot not in held.get(group, frozenset())
        ),
    )


def apply_assignment(files: ResctrlFilesystem, one: CounterAssignment) -> None:
    """Assign or release one counter."""
    cache, event = one.slot
    state = ASSIGNED if one.assign else FREE
    files.write_file(group_path(one.group, ASSIGNMENTS), f"{event}:{cache}={state}\n")
