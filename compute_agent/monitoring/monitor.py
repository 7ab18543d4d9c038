"""The monitor of one mount: a round keeps the groups, reads the counters once, and offers what they say.

The monitoring groups of guests: made, filled and removed as guests, RMIDs and counters come and go.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from compute_agent.model.messages import DriverError
from compute_agent.monitoring.reading import (
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
    choose_monitored,
    make_monitoring_group,
    monitoring_changes,
    monitoring_group,
    rmids_to_use,
)
from compute_agent.resctrl.platform import ResctrlPlatform

LOG = logging.getLogger(__name__)

SYNC_SECONDS: Final = 10.0
"""How often groups are compared with what should be while nobody comes or goes: for threads that came into a
guest from outside, RMIDs that were freed, and what others did to the groups.
"""


class CacheMonitor:
    """To be used by one thread; ``newest`` can be read by all."""

    def __init__(self, files: ResctrlFilesystem, platform: ResctrlPlatform, prefix: str) -> None:
        """``prefix`` begins the names of the groups that are the agent's."""
        self._files = files
        self._groups = MonitoringGroups(files, platform, prefix)
        self._counters = CounterFiles(files)
        self._caches: tuple[str, ...] = ()
        self._meters: dict[tuple[str, str], TargetMeter] = {}
        self._host_meters: dict[str, TargetMeter] = {}
        self._sums: dict[tuple[str, str], BytesSum] = {}
        self._synced: tuple[MonitorTarget, ...] | None = None
        self._paths: dict[tuple[str, str], str] = {}
        self._guests_of: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self.sync_due = 0.0
        """When groups are looked after though no target has changed, in monotonic seconds."""
        self._failing: set[str] = set()
        self.newest: MonitorReading | None = None

    @property
    def unmonitored(self) -> frozenset[str]:
        """Guests for which RMIDs or counters do not last."""
        return self._groups.unmonitored

    @property
    def exhaustions(self) -> int:
        """How often it began that RMIDs or counters did not last."""
        return self._groups.exhaustions

    def take(self, targets: Sequence[MonitorTarget], time: float) -> MonitorReading:
        """Measure at ``time`` (monotonic seconds).

        :raises ResctrlError: the mount cannot be read.
        """
        if self._synced != tuple(targets) or time >= self.sync_due:
            self._sync(targets, time)
        samples: dict[str, CounterSample | None] = {}
        host = [
            counted
            for group in self._groups.control_groups
            if (counted := self._read(self._host_meters[group], group, time, samples)) is not None
        ]
        uses: dict[tuple[str, str], TargetUse] = {}
        for target in targets:
            key = target.key
            group, meter = self._paths.get(key), self._meters[key]
            counted = None if group is None else self._read(meter, group, time, samples)
            uses[key] = TargetUse(target, meter.begun, meter.moved(), () if counted is None else (counted,))
        for key, guests in self._guests_of.items():
            uses[key] = self._add_up(uses[key], [uses[guest] for guest in guests])
        self.newest = MonitorReading(time, tuple(uses.values()), host)
        return self.newest

    def _add_up(self, use: TargetUse, of_guests: Sequence[TargetUse]) -> TargetUse:
        """A class that shares its control group with others: what its guests in there have together."""
        total = self._sums[use.target.key]
        total.add({(guest.target.guest, guest.begun): guest.bytes_moved for guest in of_guests})
        groups = [group for guest in of_guests for group in guest.groups]
        return replace(use, bytes_moved=total.moved.copy(), groups=groups)

    def close(self) -> None:
        """Let go of the counters; the groups stay, for the next agent to take over."""
        self._counters.close()
        self.newest = None

    def _sync(self, targets: Sequence[MonitorTarget], time: float) -> None:
        caches = self._files.list_folders("mon_data")
        if caches != self._caches:  # CPUs came or went
            self._counters.close()
            self._caches = caches
        self._paths = self._groups.sync(targets)
        self._counters.keep_groups({*self._paths.values(), *self._groups.control_groups})
        self._meters = {target.key: self._meters.get(target.key) or TargetMeter(time) for target in targets}
        self._guests_of = _guests_of(targets, self._paths)
        self._sums = {
            target.key: self._sums.get(target.key) or BytesSum() for target in targets if target.is_class
        }
        self._host_meters = {
            group: self._host_meters.get(group) or TargetMeter(time) for group in self._groups.control_groups
        }
        self._synced = tuple(targets)
        self.sync_due = time + SYNC_SECONDS

    def _read(
        self, meter: TargetMeter, group: str, time: float, samples: dict[str, CounterSample | None]
    ) -> GroupCounters | None:
        """Every group is read once a round, whoever asks for it."""
        if group not in samples:
            samples[group] = self._sample(group, time)
        sample = samples[group]
        return None if sample is None else meter.take(group, sample)

    def _sample(self, group: str, time: float) -> CounterSample | None:
        """The counters of a group; None where they cannot be read.

        If that is because the group is gone, the next round looks after the groups.
        """
        try:
            sample = self._counters.read_sample(group, time)
        except ResctrlError as error:
            if error.errno in (errno.ENOENT, errno.ENODEV):
                self._synced = None
            elif group not in self._failing:
                LOG.warning("The counters of a group cannot be read: %s", error)
                self._failing.add(group)
            return None
        self._failing.discard(group)
        return sample


def _guests_of(
    targets: Sequence[MonitorTarget], paths: Mapping[tuple[str, str], str]
) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """The guests of each class that shares its control group with others, and has no counters of its own."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for target in targets:
        if not target.is_class:
            found.setdefault((target.qos_class, target.group), []).append(target.key)
    classes = (target for target in targets if target.is_class and target.key not in paths)
    return {target.key: found.get((target.qos_class, target.group), []) for target in classes}


class MonitoringGroups:
    """Keeps the groups of one mount whose names begin with ``prefix``; all others are left alone."""

    def __init__(self, files: ResctrlFilesystem, platform: ResctrlPlatform, prefix: str) -> None:
        self._files = files
        self._platform = platform
        self._prefix = prefix
        self._assigned = monitoring.needs_assignment(platform)
        self.unmonitored: frozenset[str] = frozenset()
        """Guests that have no monitoring group, as RMIDs or counters do not last for them."""
        self.exhaustions = 0
        """How often it began that there were such guests."""
        self.control_groups: tuple[str, ...] = ()
        """All control groups, the default group and those of others included."""

    def sync(self, targets: Sequence[MonitorTarget]) -> dict[tuple[str, str], str]:
        """The group whose counters are those of each target, by its key.

        A target that cannot be told apart is left out: for want of RMIDs, or because its control group is not
        there (yet).

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
        self._make(present, chosen, wanted)
        missing = []
        for guest in chosen:
            target = wanted[guest]
            group = monitoring_group(target.group, self._name(guest))
            if self._fill(group, target):
                groups[target.key] = group
            else:
                missing.append(guest)
        self._report_unmonitored({one.name for one in watched} - set(chosen) | set(missing))
        if self._assigned:
            self._assign((*self._counted(present), *groups.values()))
        return groups

    def _name(self, guest: str) -> str:
        return f"{self._prefix}mon.{guest}"

    def _is_ours(self, name: str) -> bool:
        return name.startswith(self._name(""))

    def _counted(self, present: ResctrlGroups) -> list[str]:
        """The control groups whose counters are ours to assign: the agent's own, and the default group."""
        return [name for name in present.groups if name == DEFAULT_GROUP or name.startswith(self._prefix)]

    def _max_groups(self, present: ResctrlGroups) -> int:
        """How many monitoring groups there may be."""
        rmids = rmids_to_use(self._platform, present, self._is_ours)
        if not self._assigned:
            return rmids
        # A guest in a group without a counter would be missing from what its control group counts, too.
        # Control groups need one each.
        ours = [
            monitoring_group(group.name, name)
            for group in present.groups.values()
            for name in group.monitoring_groups
            if self._is_ours(name)
        ]
        counters = monitoring.read_available_counters(self._files)
        control_groups = self._counted(present)
        for path in (*control_groups, *ours):
            for cache, _ in monitoring.read_assigned_counters(self._files, path):
                counters[cache] = counters.get(cache, 0) + 1
        return max(0, min(rmids, min(counters.values(), default=0) - len(control_groups)))

    def _make(
        self, present: ResctrlGroups, chosen: Sequence[str], wanted: Mapping[str, MonitorTarget]
    ) -> None:
        names = {self._name(guest): target.group for guest, target in wanted.items()}
        stale, missing = monitoring_changes(present, names, self._is_ours)
        for path in stale:
            try:
                groups.remove_group(self._files, path)
            except ResctrlError as error:
                LOG.warning("A monitoring group cannot be removed: %s", error)
        # In order of importance: an RMID that was just freed may be kept back for a while.
        for guest in chosen:
            group, name = wanted[guest].group, self._name(guest)
            if monitoring_group(group, name) in missing:
                try:
                    make_monitoring_group(self._files, group, name)
                except ResctrlError as error:
                    LOG.warning("A monitoring group cannot be made: %s", error)

    def _fill(self, group: str, target: MonitorTarget) -> bool:
        """Have all threads of a guest in its monitoring group. False if there is no such group."""
        try:
            inside = groups.read_tasks(self._files, group)
            if not set(target.threads()) <= inside:
                groups.move_tasks(self._files, group, lambda: self._movable(target))
        except DriverError as error:
            LOG.debug("Guest %s is gone: %s", target.guest, error)
        except ResctrlError as error:
            if error.errno == errno.ENOENT:
                return False
            # Somebody moved it to another control group meanwhile (EINVAL), or it makes threads without end.
            LOG.debug("Not all threads of guest %s are monitored: %s", target.guest, error)
        except OSError as error:
            LOG.debug("The threads of guest %s cannot be told: %s", target.guest, error)
        return True

    def _movable(self, target: MonitorTarget) -> frozenset[int]:
        """The threads that are in the control group: others cannot be in a monitoring group of it."""
        return frozenset(target.threads()) & groups.read_tasks(self._files, target.group)

    def _assign(self, groups: Iterable[str]) -> None:
        """Give counters to groups in this order. Control groups come first: they have what the host moves."""
        order = tuple(dict.fromkeys(groups))
        held = {group: monitoring.read_assigned_counters(self._files, group) for group in order}
        for step in monitoring.plan_assignments(monitoring.read_available_counters(self._files), held, order):
            try:
                monitoring.apply_assignment(self._files, step)
            except ResctrlError as error:
                # Others take counters, too, and groups go. The next time is soon.
                LOG.debug("A counter cannot be assigned: %s", error)

    def _report_unmonitored(self, guests: set[str]) -> None:
        if guests and not self.unmonitored:
            self.exhaustions += 1
            what = "RMIDs or bandwidth counters" if self._assigned else "RMIDs"
            LOG.warning("There are not enough %s: %d guests are not monitored", what, len(guests))
        elif self.unmonitored and not guests:
            LOG.info("All guests are monitored again")
        self.unmonitored = frozenset(guests)


def own_groups(targets: Sequence[MonitorTarget], present: ResctrlGroups) -> dict[tuple[str, str], str]:
    """The control groups of classes and guests that are alone in theirs: these count by themselves."""
    users = Counter(target.group for target in targets)
    classes = Counter(group for group, _ in {(target.group, target.qos_class) for target in targets})
    return {
        target.key: target.group
        for target in targets
        if target.group != DEFAULT_GROUP
        and target.group in present.groups
        and (classes[target.group] == 1 if target.is_class else users[target.group] == 1)
    }
