"""The monitor of one mount: a round keeps the groups, reads the counters once, and offers what they say."""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from compute_agent.monitoring.groups import MonitoringGroups
from compute_agent.monitoring.reading import BytesSum, GroupCounters, MonitorReading, TargetMeter, TargetUse
from compute_agent.monitoring.targets import MonitorTarget
from compute_agent.resctrl.filesystem import ResctrlError, ResctrlFilesystem
from compute_agent.resctrl.monitoring import CounterFiles, CounterSample
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
        self._due = 0.0
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
        if self._synced != tuple(targets) or time >= self._due:
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
        self._due = time + SYNC_SECONDS

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
