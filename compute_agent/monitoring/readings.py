"""Targets of monitoring, and the values of one round, for samples, metrics and watermarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple, TypeVar

from compute_agent.model.guest import Guest
from compute_agent.resctrl.bandwidth import BYTES_PER_GB
from compute_agent.resctrl.groups import DEFAULT_GROUP
from compute_agent.resctrl.monitoring import (
    LOCAL_BYTES,
    OCCUPANCY,
    TOTAL_BYTES,
    BandwidthTotals,
    CounterSample,
    CounterValue,
)
from compute_agent.resctrl.platform import ResctrlPlatform


@dataclass(frozen=True, slots=True)
class CacheReading:
    """The use of last-level caches by L3 cache id as text, and of guests by uuid and cache id.

    Bandwidths are in bytes a second, occupancies in bytes. Values that are not measured are missing.
    """

    bandwidth: Mapping[str, float] = field(default_factory=dict)
    bandwidth_capacity: Mapping[str, float] = field(default_factory=dict)
    occupancy: Mapping[str, float] = field(default_factory=dict)
    cache_size: Mapping[str, float] = field(default_factory=dict)
    guest_bandwidth: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    guest_occupancy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def no_threads() -> Iterable[int]:
    """The threads of a target without own ones, such as a class."""
    return ()


@dataclass(frozen=True, slots=True)
class MonitorTarget:
    """A guest, or a QoS class, which has no ``guest`` and stands for its control group.

    :ivar group: the control group of the guest.
    :ivar threads: lists the thread ids of a guest. The function may raise OSError or DriverError if the guest
        has ended.
    :ivar cpu: CPU use in cores; None if unknown.
    """

    guest: str
    qos_class: str
    group: str = DEFAULT_GROUP
    priority: int = 0
    name: str = field(default="", compare=False)
    threads: Callable[[], Iterable[int]] = field(default=no_threads, compare=False)
    cpu: float | None = field(default=None, compare=False)

    @property
    def is_class(self) -> bool:
        """Whether the target is a class as a whole."""
        return not self.guest

    @property
    def key(self) -> tuple[str, str]:
        """Guest and class, which are unique."""
        return self.guest, self.qos_class


def build_targets(
    guests: Iterable[Guest],
    threads: Callable[[Guest], Iterable[int]],
    class_groups: Mapping[str, str],
    membership: Mapping[str, str] | None,
    cpu: Mapping[str, float] | None = None,
) -> list[MonitorTarget]:
    """The targets for guests and classes.

    :param threads: lists the thread ids of a guest.
    :param class_groups: control groups of the classes, by name.
    :param membership: control groups of the guests, by uuid. A guest without one is left out. None where
        cache control is off and all guests are in the default group.
    :param cpu: CPU use in cores by uuid.
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
                    _thread_reader(threads, guest),
                    None if cpu is None else cpu.get(guest.uuid),
                )
            )
    return targets


def _thread_reader(threads: Callable[[Guest], Iterable[int]], guest: Guest) -> Callable[[], Iterable[int]]:
    # A function of its own, so that the lambda binds the guest rather than the variable of a loop.
    return lambda: threads(guest)


LOCAL, TOTAL = "local", "total"
"""Kinds of bandwidth: to the memory of the cache's own NUMA node, and to all memory."""

N = TypeVar("N", int, float)

KINDS: Final = {LOCAL_BYTES: LOCAL, TOTAL_BYTES: TOTAL}


class CacheUse(NamedTuple):
    """Use of one L3 cache: occupancy in bytes, bandwidths in bytes a second; None where it is not known."""

    occupancy: int | None = None
    local: float | None = None
    total: float | None = None


class GroupCounters(NamedTuple):
    """The counters of a group by cache id and event, and their rates in bytes a second, where known."""

    values: Mapping[tuple[int, str], CounterValue]
    rates: Mapping[tuple[int, str], float]

    def cache_uses(self) -> dict[int, CacheUse]:
        """The use of each cache, by id."""
        values, rates = self.values, self.rates
        return {
            cache: CacheUse(
                occupancy if isinstance(occupancy := values.get((cache, OCCUPANCY)), int) else None,
                rates.get((cache, LOCAL_BYTES)),
                rates.get((cache, TOTAL_BYTES)),
            )
            for cache in {cache for cache, _ in values}
        }


# Without slots, which leave no room for cached properties. Most readings are never looked at, so the values
# below are computed on request.
@dataclass(frozen=True)
class TargetUse:
    """The use of a target since its monitoring began.

    :ivar begun: begin of monitoring in monotonic seconds.
    :ivar bytes_moved: totals by cache id and event.
    :ivar groups: counters of the groups that count for the target.
    """

    target: MonitorTarget
    begun: float
    bytes_moved: Mapping[tuple[int, str], int]
    groups: Sequence[GroupCounters] = ()

    @cached_property
    def caches(self) -> Mapping[int, CacheUse]:
        """The use of each cache, by id; empty without monitoring."""
        return add_up(group.cache_uses() for group in self.groups)

    @cached_property
    def moved_bytes(self) -> Mapping[tuple[int, str], int]:
        """Bytes by cache id and kind. The numbers never decrease."""
        return {(cache, KINDS[event]): amount for (cache, event), amount in self.bytes_moved.items()}


@dataclass(frozen=True)
class MonitorReading:
    """All targets at ``time`` (monotonic seconds), and the counters of all control groups.

    A target without monitoring is present without caches.
    """

    time: float
    targets: tuple[TargetUse, ...] = ()
    groups: Sequence[GroupCounters] = ()

    @cached_property
    def host_caches(self) -> Mapping[int, CacheUse]:
        """The use of each cache by the whole host."""
        return add_up(group.cache_uses() for group in self.groups)


class TargetMeter:
    """The totals of one target over time, also when another group gets its counters."""

    def __init__(self, begun: float) -> None:
        """Start at ``begun``, in monotonic seconds."""
        self.begun = begun
        self._group: str | None = None
        self._totals = BandwidthTotals()

    def add_sample(self, group: str, sample: CounterSample) -> GroupCounters:
        """The counters of a sample, with rates since the sample before. The first of a group has no rates."""
        # Counters of another group have another origin.
        if group != self._group:
            self._totals.start_again()
            self._group = group
        return GroupCounters(sample.values, self._totals.add_sample(sample))

    def moved_bytes(self) -> dict[tuple[int, str], int]:
        """Bytes since the first sample, by cache id and event. The numbers never decrease."""
        return self._totals.bytes.copy()


class BytesSum:
    """The sum of bytes of several guests, including ended ones. The sum never decreases."""

    def __init__(self) -> None:
        self.moved_bytes: dict[tuple[int, str], int] = {}
        self._last: dict[tuple[str, float], Mapping[tuple[int, str], int]] = {}

    def add(self, moved: Mapping[tuple[str, float], Mapping[tuple[int, str], int]]) -> None:
        """Add the increase of each guest since the round before. A new guest adds nothing.

        :param moved: totals by guest and begin of monitoring.
        """
        for one, bytes_moved in moved.items():
            last = self._last.get(one, bytes_moved)
            for key, amount in bytes_moved.items():
                self.moved_bytes[key] = self.moved_bytes.get(key, 0) + amount - last.get(key, 0)
        self._last = dict(moved)


def add_up(uses: Iterable[Mapping[int, CacheUse]]) -> dict[int, CacheUse]:
    """The sum of uses, by cache. A value that is unknown for all of them stays unknown."""
    found: dict[int, CacheUse] = {}
    for caches in uses:
        for cache, use in caches.items():
            other = found.get(cache, CacheUse())
            found[cache] = CacheUse(
                _add_known(other.occupancy, use.occupancy),
                _add_known(other.local, use.local),
                _add_known(other.total, use.total),
            )
    return found


def _add_known(one: N | None, other: N | None) -> N | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


class MonitoredCaches:
    """The newest reading in the form of :class:`CacheReading`."""

    def __init__(self, newest: Callable[[], MonitorReading | None]) -> None:
        """Make a reader. ``newest`` returns the newest reading, or None without a current one."""
        self._newest = newest
        self._sizes: Mapping[str, float] = {}
        self._bandwidth: float | None = None

    def set_platform(self, platform: ResctrlPlatform, memory_bandwidth_gbps: float | None) -> None:
        """Set the sizes and capacities of the caches.

        :param memory_bandwidth_gbps: the bandwidth of the memory of each cache in 10^9 bytes a second. The
            hardware does not show this bandwidth. Without this value the capacity is unknown, and thresholds
            in percent cannot be used.
        """
        self._sizes = {str(cache): float(size) for cache, size in cache_sizes(platform).items()}
        self._bandwidth = None if memory_bandwidth_gbps is None else memory_bandwidth_gbps * BYTES_PER_GB

    def read(self) -> CacheReading:
        """The newest rates and sizes; empty without a measurement."""
        reading = self._newest()
        if reading is None:
            return CacheReading()
        bandwidth = _known_values(reading.host_caches, _total_bandwidth)
        return CacheReading(
            bandwidth=bandwidth,
            bandwidth_capacity={} if self._bandwidth is None else dict.fromkeys(bandwidth, self._bandwidth),
            occupancy=_known_values(reading.host_caches, _occupied_bytes),
            cache_size=self._sizes,
            guest_bandwidth=_of_guests(reading, _total_bandwidth),
            guest_occupancy=_of_guests(reading, _occupied_bytes),
        )


def _total_bandwidth(use: CacheUse) -> float | None:
    return use.total


def _occupied_bytes(use: CacheUse) -> float | None:
    return None if use.occupancy is None else float(use.occupancy)


Value = Callable[[CacheUse], float | None]


def _known_values(caches: Mapping[int, CacheUse], value: Value) -> dict[str, float]:
    return {str(cache): amount for cache, use in caches.items() if (amount := value(use)) is not None}


def _of_guests(reading: MonitorReading, value: Value) -> dict[str, dict[str, float]]:
    return {
        use.target.guest: known
        for use in reading.targets
        if not use.target.is_class and (known := _known_values(use.caches, value))
    }


def cache_sizes(platform: ResctrlPlatform) -> Mapping[int, int]:
    """Bytes of each L3 cache, by its id; empty where the kernel shows no sizes."""
    if platform.l3 is None:
        return {}
    ways = len(platform.l3.rules.all_ways)
    return {cache: size * ways for cache, size in platform.l3.way_bytes.items()}
