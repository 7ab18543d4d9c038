"""Targets of monitoring, which are guests and classes, and the values of one round of measurement.

The kernel reads a counter of an L3 cache on a CPU of that cache. Until Linux 6.8 the kernel uses the CPU of
the reading thread, if this CPU belongs to the cache. Otherwise the kernel interrupts any CPU of the cache,
even a quiet CPU. So a thread of the agent moves to shared CPUs of the cache before it reads a counter. Later
kernels always use the first CPU of the cache.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, NamedTuple, TypeVar

from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import Guest
from compute_agent.resctrl.bandwidth import BYTES_PER_GB
from compute_agent.resctrl.groups import DEFAULT_GROUP
from compute_agent.resctrl.monitoring import (
    LOCAL_BYTES,
    OCCUPANCY,
    TOTAL_BYTES,
    BandwidthTotals,
    CounterSample,
)
from compute_agent.resctrl.platform import ResctrlPlatform


@dataclass(frozen=True, slots=True)
class CacheReading:
    """The measured use of caches: bandwidths in bytes a second, occupancies and sizes in bytes.

    The use of the host is by cache id. The use of guests is by uuid of the guest and by cache id.
    """

    bandwidth: Mapping[str, float] = field(default_factory=dict)
    bandwidth_capacity: Mapping[str, float] = field(default_factory=dict)
    occupancy: Mapping[str, float] = field(default_factory=dict)
    cache_size: Mapping[str, float] = field(default_factory=dict)
    guest_bandwidth: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    guest_occupancy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MonitorTarget:
    """A target of monitoring: a guest, or a whole QoS class (with an empty ``guest``).

    :ivar guest: the uuid of the guest; empty for a class.
    :ivar group: the control group of resctrl in which the guest or the class is.
    :ivar priority: guests with a higher priority are monitored first if RMIDs are too few.
    :ivar threads: lists the thread ids of the guest; can raise OSError or DriverError if the guest has ended.
    :ivar cpu: CPU use of the target in cores; None if unknown.
    """

    guest: str
    qos_class: str
    group: str = DEFAULT_GROUP
    priority: int = 0
    name: str = field(default="", compare=False)
    threads: Callable[[], Iterable[int]] = field(default=tuple, compare=False)
    cpu: float | None = field(default=None, compare=False)

    @property
    def is_class(self) -> bool:
        """Whether the target is a whole class."""
        return not self.guest

    @property
    def key(self) -> tuple[str, str]:
        """The unique key of the target: uuid of the guest (empty for a class) and name of the class."""
        return self.guest, self.qos_class


def build_targets(
    guests: Iterable[Guest],
    threads: Callable[[Guest], Iterable[int]],
    class_groups: Mapping[str, str],
    membership: Mapping[str, str] | None,
    cpu: Mapping[str, float] | None = None,
) -> list[MonitorTarget]:
    """Build the targets for guests and classes.

    :param threads: a function that lists the thread ids of a guest.
    :param class_groups: the control groups of classes, by name of the class.
    :param membership: the control groups of guests, by uuid. A guest without a group is left out. None means
        that cache control is off, and all guests are in the default group.
    :param cpu: the CPU use of guests in cores, by uuid; None if unknown.
    """
    targets = [MonitorTarget("", name, group) for name, group in class_groups.items()]
    for guest in guests:
        group = DEFAULT_GROUP if membership is None else membership.get(guest.uuid)
        if group is not None:
            settings = guest.settings
            targets.append(
                MonitorTarget(
                    guest.uuid,
                    settings.qos_class,
                    group,
                    settings.priority,
                    guest.name,
                    partial(threads, guest),
                    None if cpu is None else cpu.get(guest.uuid),
                )
            )
    return targets


LOCAL, TOTAL = "local", "total"
"""The two kinds of bandwidth: to the memory of the cache's own NUMA node, and to all memory."""

N = TypeVar("N", int, float)

KINDS: Final = {LOCAL_BYTES: LOCAL, TOTAL_BYTES: TOTAL}
"""The kind of bandwidth by the kernel's name of the event."""


class CacheUse(NamedTuple):
    """The use of one L3 cache: occupancy in bytes, and bandwidths in bytes a second; None if unknown."""

    occupancy: int | None = None
    local: float | None = None
    total: float | None = None


class GroupCounters(NamedTuple):
    """The counters of a resctrl group, and their rates in bytes a second, by cache id and event."""

    values: Mapping[tuple[int, str], int | None]
    rates: Mapping[tuple[int, str], float]

    def cache_uses(self) -> dict[int, CacheUse]:
        """The use of each cache by the group, by cache id."""
        values, rates = self.values, self.rates
        return {
            cache: CacheUse(
                values.get((cache, OCCUPANCY)),
                rates.get((cache, LOCAL_BYTES)),
                rates.get((cache, TOTAL_BYTES)),
            )
            for cache in {cache for cache, _ in values}
        }


# The class has no slots, because cached properties need a dictionary. The values are computed on request,
# because most readings are never used.
@dataclass(frozen=True)
class TargetUse:
    """The cache use of a guest or class since its monitoring began.

    :ivar begun: the monotonic second at which the target's monitoring began.
    :ivar bytes_moved: bytes that the target has moved between caches and memory since ``begun``, by cache id
        and event.
    :ivar groups: the counters of the groups in which the target is measured.
    """

    target: MonitorTarget
    begun: float
    bytes_moved: Mapping[tuple[int, str], int]
    groups: Sequence[GroupCounters] = ()

    @cached_property
    def caches(self) -> Mapping[int, CacheUse]:
        """The use of each cache by the target, by cache id; empty if the target is not monitored."""
        # Most targets have one group.
        if len(self.groups) == 1:
            return self.groups[0].cache_uses()
        return add_up(group.cache_uses() for group in self.groups)

    @cached_property
    def moved_bytes(self) -> Mapping[tuple[int, str], int]:
        """Bytes since monitoring began, by cache id and kind of bandwidth; they never decrease."""
        return _by_kind(self.bytes_moved)


def _by_kind(moved: Mapping[tuple[int, str], int]) -> dict[tuple[int, str], int]:
    """Bytes by cache id and kind of bandwidth, from bytes by cache id and event."""
    return {(cache, KINDS[event]): amount for (cache, event), amount in moved.items()}


@dataclass(frozen=True)
class MonitorReading:
    """One reading: the use of all targets at ``time`` (monotonic seconds), and of all control groups.

    A target without monitoring is present, but its ``caches`` are empty.

    :ivar begun: the monotonic second of the first reading of the same monitor.
    :ivar host_bytes: bytes that the host has moved between caches and memory since ``begun``, by cache id and
        event.
    """

    time: float
    targets: tuple[TargetUse, ...] = ()
    groups: Sequence[GroupCounters] = ()
    begun: float = 0.0
    host_bytes: Mapping[tuple[int, str], int] = field(default_factory=dict)

    @cached_property
    def host_caches(self) -> Mapping[int, CacheUse]:
        """The use of each cache by the whole host, by cache id."""
        return add_up(group.cache_uses() for group in self.groups)

    @cached_property
    def host_moved_bytes(self) -> Mapping[tuple[int, str], int]:
        """Bytes that the host moved since monitoring began, by cache id and kind; they never decrease."""
        return _by_kind(self.host_bytes)


MovedBytes = Mapping[tuple[int, str], int]
"""Bytes by cache id and kind of bandwidth."""


def mean_rates(before: MovedBytes, now: MovedBytes, seconds: float) -> dict[tuple[int, str], float]:
    """Bytes a second between two totals, by cache id and kind, for each key that both totals have.

    :param seconds: the time between the two totals; the result is empty if this time is 0 or less.
    """
    if seconds <= 0:
        return {}
    return {key: (amount - before[key]) / seconds for key, amount in now.items() if key in before}


def rates_of_targets(
    before: MonitorReading | None, now: MonitorReading
) -> dict[tuple[str, str], dict[tuple[int, str], float]]:
    """The mean rates of each target since the reading ``before``, by the key of the target.

    A target has no rates if ``before`` is None, or does not have the target, or if the monitoring of the
    target has started again since ``before``.
    """
    if before is None:
        return {}
    last = {(use.target.key, use.begun): use.moved_bytes for use in before.targets}
    return {
        use.target.key: mean_rates(last[use.target.key, use.begun], use.moved_bytes, now.time - before.time)
        for use in now.targets
        if (use.target.key, use.begun) in last
    }


class TargetMeter:
    """Adds up the bytes of one target over time, and continues when the target moves to another group."""

    def __init__(self, begun: float) -> None:
        """Begin at ``begun``, in monotonic seconds."""
        self.begun = begun
        self._group: str | None = None
        self._totals = BandwidthTotals()

    def add_sample(self, group: str, sample: CounterSample) -> GroupCounters:
        """Add a sample; return its counters, with rates unless it is the group's first sample."""
        # The counters of another group begin at another value.
        if group != self._group:
            self._totals.start_again()
            self._group = group
        return GroupCounters(sample.values, self._totals.add_sample(sample))

    def moved_bytes(self) -> dict[tuple[int, str], int]:
        """Bytes moved since the first sample, by cache id and event. The numbers never decrease."""
        return self._totals.bytes.copy()


class BytesSum:
    """The sum of the bytes of several guests or groups, including ended ones. The sum never decreases."""

    def __init__(self) -> None:
        self.moved_bytes: dict[tuple[int, str], int] = {}
        self._last: dict[tuple[str, float], Mapping[tuple[int, str], int]] = {}

    def add(self, moved: Mapping[tuple[str, float], Mapping[tuple[int, str], int]]) -> None:
        """Add the increase of each guest or group since the last call. A new guest or group adds nothing.

        :param moved: bytes by cache id and event. The key names a guest or group, and the start of its
            monitoring.
        """
        for one, bytes_moved in moved.items():
            last = self._last.get(one, bytes_moved)
            for key, amount in bytes_moved.items():
                self.moved_bytes[key] = self.moved_bytes.get(key, 0) + amount - last.get(key, 0)
        self._last = dict(moved)


def add_up(uses: Iterable[Mapping[int, CacheUse]]) -> dict[int, CacheUse]:
    """Add up uses of caches, by cache id. A value is unknown only if it is unknown in all uses."""
    found: dict[int, CacheUse] = {}
    for caches in uses:
        for cache, use in caches.items():
            found[cache] = _add_use(found[cache], use) if cache in found else use
    return found


def _add_use(one: CacheUse, other: CacheUse) -> CacheUse:
    return CacheUse(
        _add_known(one.occupancy, other.occupancy),
        _add_known(one.local, other.local),
        _add_known(one.total, other.total),
    )


def _add_known(one: N | None, other: N | None) -> N | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


class MonitoredCaches:
    """Converts the newest reading to a :class:`CacheReading` for watermarks."""

    def __init__(self, newest: Callable[[], MonitorReading | None]) -> None:
        """``newest`` is a function that returns the newest reading, or None if there is no recent reading."""
        self._newest = newest
        self._sizes: Mapping[str, float] = {}
        self._bandwidth: float | None = None

    def set_platform(self, platform: ResctrlPlatform, memory_bandwidth_gbps: float | None) -> None:
        """Set the sizes of the caches, and the bandwidth of the memory behind them.

        :param memory_bandwidth_gbps: the bandwidth of the memory of each cache, in 10^9 bytes a second, which
            the hardware does not show. None if unknown; thresholds in percent then have no effect.
        """
        self._sizes = {str(cache): float(size) for cache, size in cache_sizes(platform).items()}
        self._bandwidth = None if memory_bandwidth_gbps is None else memory_bandwidth_gbps * BYTES_PER_GB

    def read(self) -> CacheReading:
        """The newest bandwidths and occupancies; empty if there is no recent reading."""
        reading = self._newest()
        if reading is None:
            return CacheReading()
        bandwidth = _known_values(reading.host_caches, "total")
        return CacheReading(
            bandwidth=bandwidth,
            bandwidth_capacity={} if self._bandwidth is None else dict.fromkeys(bandwidth, self._bandwidth),
            occupancy=_known_values(reading.host_caches, "occupancy"),
            cache_size=self._sizes,
            guest_bandwidth=_of_guests(reading, "total"),
            guest_occupancy=_of_guests(reading, "occupancy"),
        )


def _known_values(caches: Mapping[int, CacheUse], field_name: str) -> dict[str, float]:
    """The known values of a field of :class:`CacheUse`, by cache id."""
    values = {str(cache): getattr(use, field_name) for cache, use in caches.items()}
    return {cache: float(amount) for cache, amount in values.items() if amount is not None}


def _of_guests(reading: MonitorReading, field_name: str) -> dict[str, dict[str, float]]:
    return {
        use.target.guest: known
        for use in reading.targets
        if not use.target.is_class and (known := _known_values(use.caches, field_name))
    }


def cache_sizes(platform: ResctrlPlatform) -> Mapping[int, int]:
    """The size of each L3 cache in bytes, by cache id; empty if the kernel shows no sizes."""
    if platform.l3 is None:
        return {}
    ways = len(platform.l3.rules.all_ways)
    return {cache: size * ways for cache, size in platform.l3.way_bytes.items()}


def find_counter_cpus(caches: Iterable[CpuSet], tickless: CpuSet) -> CpuSet:
    """The CPUs on which the kernel itself reads counters of L3 caches: the first CPU of each cache.

    :param caches: the CPUs of each cache.
    :param tickless: the CPUs of ``nohz_full``, which the kernel avoids if it can.
    """
    return frozenset(min(cpus - tickless or cpus) for cpus in caches if cpus)


class CacheReaderPlace:
    """Moves the calling thread to CPUs of an L3 cache, and back to the CPUs of the main thread."""

    def __init__(self, cpus: Mapping[int, CpuSet]) -> None:
        """Keep the CPUs to which :meth:`move_near` moves a thread.

        :param cpus: the CPUs for shared work in each L3 cache, by its id.
        """
        self._cpus = cpus
        self._has_moved = False

    def move_near(self, cache: int) -> None:
        """Move the calling thread to shared CPUs of a cache. Without shared CPUs, the thread stays."""
        cpus = self._cpus.get(cache)
        if cpus:
            # An error (EINVAL) means that the agent's cgroup allows none of these CPUs. Then the thread
            # stays.
            with contextlib.suppress(OSError):
                # The id 0 stands for the calling thread.
                os.sched_setaffinity(0, cpus)
                self._has_moved = True

    def return_home(self) -> None:
        """Let the calling thread run on the CPUs that the main thread may use."""
        if self._has_moved:
            with contextlib.suppress(OSError):
                # The id of the main thread is the pid of the process.
                os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
            self._has_moved = False
