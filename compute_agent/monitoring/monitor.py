"""The monitor of one resctrl mount, and the monitoring groups of guests.

A round reads each counter once. Some rounds also compare the groups with the guests: they make, fill and
remove groups as guests start and end, and as RMIDs and assignable counters become free or scarce.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from compute_agent.model.messages import DriverError
from compute_agent.monitoring.readings import (
    BytesSum,
    GroupCounters,
    MonitorReading,
    MonitorTarget,
    TargetMeter,
    TargetUse,
)
from compute_agent.resctrl import groups, monitoring
from compute_agent.resctrl.filesystem import ResctrlError, ResctrlFilesystem
from compute_agent.resctrl.groups import DEFAULT_GROUP, ResctrlGroups, read_groups
from compute_agent.resctrl.monitoring import (
    CounterFiles,
    CounterSample,
    MonitoredGroup,
    ReaderPlace,
    choose_monitored,
    make_monitoring_group,
    monitoring_changes,
    monitoring_group,
    rmids_to_use,
)
from compute_agent.resctrl.platform import ResctrlPlatform

LOG = logging.getLogger(__name__)

# The comparison is also needed while guests do not change: a guest makes threads, RMIDs become free, and
# other programs change groups.
SYNC_SECONDS: Final = 10.0
"""Seconds between two comparisons of groups with guests while no guest starts or ends."""


class CacheMonitor:
    """Measures guests and classes on a resctrl mount.

    Only one thread measures. Any thread may read ``newest``.
    """

    def __init__(
        self,
        files: ResctrlFilesystem,
        platform: ResctrlPlatform,
        prefix: str,
        place: ReaderPlace | None = None,
    ) -> None:
        """Prepare to monitor a resctrl mount.

        :param prefix: the prefix in the names of monitoring groups that the agent makes.
        :param place: moves the thread to a CPU of a cache before it reads the counters of the cache.
        """
        self._files = files
        self.groups = MonitoringGroups(files, platform, prefix)
        self._counters = CounterFiles(files, place=place)
        self._caches: tuple[str, ...] = ()
        self._meters: dict[tuple[str, str], TargetMeter] = {}
        self._host_meters: dict[str, TargetMeter] = {}
        self._host_sum = BytesSum()
        self._begun: float | None = None
        self._sums: dict[tuple[str, str], BytesSum] = {}
        self._synced: tuple[MonitorTarget, ...] | None = None
        self._paths: dict[tuple[str, str], str] = {}
        self._guests_of: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self.sync_due = 0.0
        """The monotonic second of the next comparison of groups with guests."""
        self._failing: set[str] = set()
        self.newest: MonitorReading | None = None

    def measure_targets(self, targets: Sequence[MonitorTarget], time: float) -> MonitorReading:
        """Read the counters of all targets and of the host at ``time`` (monotonic seconds).

        :raises ResctrlError: the mount cannot be read.
        """
        # A comparison reads all groups. Most rounds have the same targets as the round before.
        if self._synced != tuple(targets) or time >= self.sync_due:
            self._sync(targets, time)
        samples = self._read_counters((*self.groups.control_groups, *self._paths.values()), time)
        host = [
            counted
            for group in self.groups.control_groups
            if (counted := _add_sample(self._host_meters[group], group, samples)) is not None
        ]
        # The bytes are summed over time, because the bytes of removed control groups would be missing in a
        # sum of the present counters.
        self._host_sum.add(
            {(group, meter.begun): meter.moved_bytes() for group, meter in self._host_meters.items()}
        )
        uses: dict[tuple[str, str], TargetUse] = {}
        for target in targets:
            key = target.key
            group, meter = self._paths.get(key), self._meters[key]
            counted = None if group is None else _add_sample(meter, group, samples)
            uses[key] = TargetUse(
                target, meter.begun, meter.moved_bytes(), () if counted is None else (counted,)
            )
        for key, guests in self._guests_of.items():
            uses[key] = self._add_up(uses[key], [uses[guest] for guest in guests])
        self._begun = time if self._begun is None else self._begun
        self.newest = MonitorReading(
            time, tuple(uses.values()), host, self._begun, self._host_sum.moved_bytes.copy()
        )
        return self.newest

    def _add_up(self, use: TargetUse, of_guests: Sequence[TargetUse]) -> TargetUse:
        """The use of a class that shares its control group with other classes: the sum over its guests."""
        # The key contains the begin of the guest's monitoring, because the totals of a guest begin at 0 again
        # when the guest returns.
        total = self._sums[use.target.key]
        total.add({(guest.target.guest, guest.begun): guest.bytes_moved for guest in of_guests})
        groups = [group for guest in of_guests for group in guest.groups]
        return replace(use, bytes_moved=total.moved_bytes.copy(), groups=groups)

    def close(self) -> None:
        """Close the files of counters. The monitoring groups stay for the next agent."""
        self._counters.close()
        self.newest = None

    def _sync(self, targets: Sequence[MonitorTarget], time: float) -> None:
        caches = self._files.list_folders("mon_data")
        if caches != self._caches:  # CPUs went online or offline; open files can belong to lost caches
            self._counters.close()
            self._caches = caches
        self._paths = self.groups.sync(targets)
        self._counters.keep_groups({*self._paths.values(), *self.groups.control_groups})
        self._meters = {target.key: self._meters.get(target.key) or TargetMeter(time) for target in targets}
        self._guests_of = _guests_of(targets, self._paths)
        self._sums = {
            target.key: self._sums.get(target.key) or BytesSum() for target in targets if target.is_class
        }
        self._host_meters = {
            group: self._host_meters.get(group) or TargetMeter(time) for group in self.groups.control_groups
        }
        self._synced = tuple(targets)
        self.sync_due = time + SYNC_SECONDS

    def _read_counters(self, groups: Iterable[str], time: float) -> dict[str, CounterSample]:
        """Read the counters of groups; groups that cannot be read are left out.

        If a group is missing, the next round compares the groups with the guests.
        """
        samples = {}
        for group, found in self._counters.read_samples(groups, time).items():
            if not isinstance(found, ResctrlError):
                samples[group] = found
                self._failing.discard(group)
            elif found.errno in (errno.ENOENT, errno.ENODEV):
                self._synced = None
            elif group not in self._failing:
                # The failure is logged once until the group is readable again, because there can be a round
                # each second.
                LOG.warning("The counters of a monitoring group cannot be read: %s", found)
                self._failing.add(group)
        return samples


def _add_sample(meter: TargetMeter, group: str, samples: Mapping[str, CounterSample]) -> GroupCounters | None:
    """Add the counters of a group to a meter; return them with their rates, or None without counters."""
    sample = samples.get(group)
    return None if sample is None else meter.add_sample(group, sample)


def _guests_of(
    targets: Sequence[MonitorTarget], paths: Mapping[tuple[str, str], str]
) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """The guests of each class that has no counters of its own.

    Such a class shares its control group with another class.
    """
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for target in targets:
        if not target.is_class:
            found.setdefault((target.qos_class, target.group), []).append(target.key)
    classes = (target for target in targets if target.is_class and target.key not in paths)
    return {target.key: found.get((target.qos_class, target.group), []) for target in classes}


class MonitoringGroups:
    """Makes, fills and removes the agent's monitoring groups of one mount; names begin with ``prefix``."""

    def __init__(self, files: ResctrlFilesystem, platform: ResctrlPlatform, prefix: str) -> None:
        self._files = files
        self._platform = platform
        self._prefix = prefix
        self._assigned = monitoring.needs_assignment(platform)
        self.unmonitored_guests: frozenset[str] = frozenset()
        """Uuids of guests without a monitoring group, because RMIDs or counters are too few."""
        self.exhaustion_count = 0
        """The number of times that groups became too few, after a time in which each guest had one."""
        self.control_groups: tuple[str, ...] = ()
        """All control groups of the mount, including the default group and groups of other programs."""

    def sync(self, targets: Sequence[MonitorTarget]) -> dict[tuple[str, str], str]:
        """Make and remove groups so that each target has a group; return the groups by the key of the target.

        A target is left out if RMIDs are too few for it, or if its control group does not exist yet.

        :raises ResctrlError: the mount cannot be read.
        """
        present = read_groups(self._files)
        self.control_groups = tuple(present.groups)
        groups = own_groups(targets, present)
        sharing = [target for target in targets if not target.is_class and target.key not in groups]
        watched = [
            MonitoredGroup(
                target.guest,
                priority=target.priority,
                monitored=self._name(target.guest) in present.groups[target.group].monitoring_groups,
            )
            for target in sharing
            if target.group in present.groups
        ]
        chosen = choose_monitored(self._max_groups(present), watched)
        by_guest = {target.guest: target for target in sharing}
        wanted = {guest: by_guest[guest] for guest in chosen}
        self._update_groups(present, chosen, wanted)
        missing = []
        for guest in chosen:
            target = wanted[guest]
            group = monitoring_group(target.group, self._name(guest))
            if self._fill_group(group, target):
                groups[target.key] = group
            else:
                missing.append(guest)
        self._report_unmonitored({one.name for one in watched} - set(chosen) | set(missing))
        if self._assigned:
            self._assign_counters((*self._counted_groups(present), *groups.values()))
        return groups

    def _name(self, guest: str) -> str:
        return f"{self._prefix}mon.{guest}"

    def _is_ours(self, name: str) -> bool:
        return name.startswith(self._name(""))

    def _counted_groups(self, present: ResctrlGroups) -> list[str]:
        """The control groups to which the agent assigns counters: the agent's, and the default group."""
        return [name for name in present.groups if name == DEFAULT_GROUP or name.startswith(self._prefix)]

    def _max_groups(self, present: ResctrlGroups) -> int:
        """The maximum number of monitoring groups that RMIDs and assignable counters allow."""
        rmids = rmids_to_use(self._platform, present, self._is_ours)
        if not self._assigned:
            return rmids
        # Each control group needs a counter of its own. If a monitoring group had no counter, its bytes would
        # also be missing in the sum of its control group.
        ours = [
            monitoring_group(group.name, name)
            for group in present.groups.values()
            for name in group.monitoring_groups
            if self._is_ours(name)
        ]
        counters = monitoring.read_available_counters(self._files)
        control_groups = self._counted_groups(present)
        for path in (*control_groups, *ours):
            for cache, _ in monitoring.read_assigned_counters(self._files, path):
                counters[cache] = counters.get(cache, 0) + 1
        return max(0, min(rmids, min(counters.values(), default=0) - len(control_groups)))

    def _update_groups(
        self, present: ResctrlGroups, chosen: Sequence[str], wanted: Mapping[str, MonitorTarget]
    ) -> None:
        names = {self._name(guest): target.group for guest, target in wanted.items()}
        stale, missing = monitoring_changes(present, names, self._is_ours)
        for path in stale:
            try:
                groups.remove_group(self._files, path)
            except ResctrlError as error:
                LOG.warning("A monitoring group that is no longer needed cannot be removed: %s", error)
        # The most important guests come first: the kernel does not always reuse a freed RMID at once, so the
        # last groups can fail.
        for guest in chosen:
            group, name = wanted[guest].group, self._name(guest)
            if monitoring_group(group, name) in missing:
                try:
                    make_monitoring_group(self._files, group, name)
                except ResctrlError as error:
                    LOG.warning(
                        "A guest is not monitored, because its monitoring group cannot be made: %s", error
                    )

    def _fill_group(self, group: str, target: MonitorTarget) -> bool:
        """Move all threads of a guest into its monitoring group; return whether the group exists."""
        try:
            # One read of the file costs less than a write for each thread.
            inside = groups.read_tasks(self._files, group)
            if not set(target.threads()) <= inside:
                groups.move_tasks(self._files, group, lambda: self._movable_threads(target))
        except DriverError as error:
            LOG.debug("Guest %s has ended, so its threads are not monitored: %s", target.guest, error)
        except ResctrlError as error:
            if error.errno == errno.ENOENT:
                return False
            # EINVAL: the guest was moved to another control group. EAGAIN: the guest makes threads faster
            # than they are moved.
            LOG.debug("Not all threads of guest %s are monitored: %s", target.guest, error)
        except OSError as error:
            LOG.debug("The threads of guest %s cannot be listed: %s", target.guest, error)
        return True

    def _movable_threads(self, target: MonitorTarget) -> frozenset[int]:
        """The guest's threads in its control group.

        Only these threads can be moved into its monitoring group.
        """
        return frozenset(target.threads()) & groups.read_tasks(self._files, target.group)

    def _assign_counters(self, groups: Iterable[str]) -> None:
        """Assign counters to groups in their order.

        Control groups come first, because they measure the whole host.
        """
        order = tuple(dict.fromkeys(groups))
        held = {group: monitoring.read_assigned_counters(self._files, group) for group in order}
        for step in monitoring.plan_assignments(monitoring.read_available_counters(self._files), held, order):
            try:
                monitoring.apply_assignment(self._files, step)
            except ResctrlError as error:
                # Another program has perhaps taken the counter or removed the group. The next comparison
                # tries again.
                LOG.debug("A counter cannot be assigned to a group; the agent tries again later: %s", error)

    def _report_unmonitored(self, guests: set[str]) -> None:
        if guests and not self.unmonitored_guests:
            self.exhaustion_count += 1
            what = "RMIDs or bandwidth counters" if self._assigned else "RMIDs"
            LOG.warning("The processor has too few %s: %d guests are not monitored", what, len(guests))
        elif self.unmonitored_guests and not guests:
            LOG.info("All guests are monitored again")
        self.unmonitored_guests = frozenset(guests)


def own_groups(targets: Sequence[MonitorTarget], present: ResctrlGroups) -> dict[tuple[str, str], str]:
    """The control groups that only one class or guest uses, by its key.

    This class or guest needs no monitoring group.
    """
    users = Counter(target.group for target in targets)
    classes = Counter(group for group, _ in {(target.group, target.qos_class) for target in targets})
    return {
        target.key: target.group
        for target in targets
        if target.group != DEFAULT_GROUP
        and target.group in present.groups
        and (classes[target.group] == 1 if target.is_class else users[target.group] == 1)
    }
