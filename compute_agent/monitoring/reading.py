"""What is measured.

What one round has found, and how it comes from counters.

What watermarks are told about caches.
"""

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
    """The use of last-level caches, by L3 cache id as text; of guests by uuid, then by cache id.

    Bandwidths are in bytes a second, occupancies in bytes. What is not measured is missing.
    """

    bandwidth: Mapping[str, float] = field(default_factory=dict)
    bandwidth_capacity: Mapping[str, float] = field(default_factory=dict)
    occupancy: Mapping[str, float] = field(default_factory=dict)
    cache_size: Mapping[str, float] = field(default_factory=dict)
    guest_bandwidth: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    guest_occupancy: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def no_threads() -> Iterable[int]:
    """The threads of what has none of its own, such as a class."""
    return ()


@dataclass(frozen=True, slots=True)
class MonitorTarget:
    """A guest; or, with no ``guest``, a QoS class: what runs in its control group.

    ``group`` is the control group that it is in. ``threads`` tells the thread ids of a guest when asked, and
    may raise OSError or DriverError when it is gone. ``cpu`` is its use of CPU in cores, if somebody knows.
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
        """Whether this is a class as a whole."""
        return not self.guest

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from all others: guest and class."""
        return self.guest, self.qos_class


def build_targets(
    guests: Iterable[Guest],
    threads: Callable[[Guest], Iterable[int]],
    class_groups: Mapping[str, str],
    membership: Mapping[str, str] | None,
    cpu: Mapping[str, float] | None = None,
) -> list[MonitorTarget]:
    """Guests and classes as they are measured.

    ``class_groups`` are the control groups of the classes by name, ``membership`` those of the guests by
    uuid; a guest that is not in it is left out until it is. None: nobody puts guests into groups here, and
    all are in the default group. ``cpu`` is use of CPU in cores by uuid.
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
                    _later(threads, guest),
                    None if cpu is None else cpu.get(guest.uuid),
                )
            )
    return targets


def _later(threads: Callable[[Guest], Iterable[int]], guest: Guest) -> Callable[[], Iterable[int]]:
    return lambda: threads(guest)


LOCAL, TOTAL = "local", "total"
"""Kinds of bandwidth: to memory of the cache's own NUMA node, and to all memory."""

N = TypeVar("N", int, float)

KINDS: Final = {LOCAL_BYTES: LOCAL, TOTAL_BYTES: TOTAL}


class CacheUse(NamedTuple):
    """Use of one L3 cache: occupancy in bytes, bandwidths in bytes a second; None where it is not known."""

    occupancy: int | None = None
    local: float | None = None
    total: float | None = None


class GroupCounters(NamedTuple):
    """The counters of a group by cache id and event, and bytes a second of those that have a rate."""

    values: Mapping[tuple[int, str], CounterValue]
    rates: Mapping[tuple[int, str], float]

    def caches(self) -> dict[int, CacheUse]:
        """The use of each cache."""
        values, rates = self.values, self.rates
        return {
            cache: CacheUse(
                occupancy if isinstance(occupancy := values.get((cache, OCCUPANCY)), int) else None,
                rates.get((cache, LOCAL_BYTES)),
                rates.get((cache, TOTAL_BYTES)),
            )
            for cache in {cache for cache, _ in values}
        }


@dataclass(frozen=True)
class TargetUse:
    """What a target has used since ``begun`` (monotonic seconds), when its monitoring began, or began again.

    ``bytes_moved`` are by cache id and event, ``groups`` are those that have counted for it. What that means
    is made when somebody asks: of most readings nobody does.
    """

    target: MonitorTarget
    begun: float
    bytes_moved: Mapping[tuple[int, str], int]
    groups: Sequence[GroupCounters] = ()

    @cached_property
    def caches(self) -> Mapping[int, CacheUse]:
        """Use of the caches, by id; empty where it is not monitored."""
        return add_up(group.caches() for group in self.groups)

    @cached_property
    def moved(self) -> Mapping[tuple[int, str], int]:
        """Bytes, by cache id and kind; these never become less."""
        return {(cache, KINDS[event]): amount for (cache, event), amount in self.bytes_moved.items()}


@dataclass(frozen=True)
class MonitorReading:
    """All targets at ``time`` (monotonic seconds), and what the control groups of the host have counted.

    A target that is not monitored is in it without caches.
    """

    time: float
    targets: tuple[TargetUse, ...] = ()
    groups: Sequence[GroupCounters] = ()

    @cached_property
    def host(self) -> Mapping[int, CacheUse]:
        """Everybody on the host together."""
        return add_up(group.caches() for group in self.groups)


class TargetMeter:
    """One target from sample to sample, whichever group its counters are in."""

    def __init__(self, begun: float) -> None:
        """``begun`` is now, in monotonic seconds."""
        self.begun = begun
        self._group: str | None = None
        self._totals = BandwidthTotals()

    def take(self, group: str, sample: CounterSample) -> GroupCounters:
        """What was counted, with the rates since the sample before; the first of a group has none."""
        if group != self._group:
            self._totals.start_again()
            self._group = group
        return GroupCounters(sample.values, self._totals.add_sample(sample))

    def moved(self) -> dict[tuple[int, str], int]:
        """Bytes since the first sample, by cache id and event; these never become less."""
        return self._totals.bytes.copy()


class BytesSum:
    """Bytes that several have moved together, also those that have left; they never become less."""

    def __init__(self) -> None:
        self.moved: dict[tuple[int, str], int] = {}
        self._last: dict[tuple[str, float], Mapping[tuple[int, str], int]] = {}

    def add(self, moved: Mapping[tuple[str, float], Mapping[tuple[int, str], int]]) -> None:
        """Count what each, by name and when it began, has moved since the round before; who is new: none."""
        for one, bytes_moved in moved.items():
            last = self._last.get(one, bytes_moved)
            for key, amount in bytes_moved.items():
                self.moved[key] = self.moved.get(key, 0) + amount - last.get(key, 0)
        self._last = dict(moved)


def add_up(uses: Iterable[Mapping[int, CacheUse]]) -> dict[int, CacheUse]:
    """The use of caches by several together. What is known of none of them is not known."""
    found: dict[int, CacheUse] = {}
    for caches in uses:
        for cache, use in caches.items():
            other = found.get(cache, CacheUse())
            found[cache] = CacheUse(
                _sum(other.occupancy, use.occupancy),
                _sum(other.local, use.local),
                _sum(other.total, use.total),
            )
    return found


def _sum(one: N | None, other: N | None) -> N | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


class MonitoredCaches:
    """The newest reading as ``qos.rounds.CacheReader`` has it."""

    def __init__(self, newest: Callable[[], MonitorReading | None]) -> None:
        """``newest`` tells the newest reading, or None if there is none that is of now."""
        self._newest = newest
        self._sizes: Mapping[str, float] = {}
        self._bandwidth: float | None = None

    def use(self, platform: ResctrlPlatform, memory_bandwidth_gbps: float | None) -> None:
        """Tell the sizes of these caches.

        ``memory_bandwidth_gbps``: what the memory of each can do, in 10^9 bytes a second. The hardware tells
        nobody: without it there is no capacity, and lines in percent cannot be used.
        """
        self._sizes = {str(cache): float(size) for cache, size in cache_sizes(platform).items()}
        self._bandwidth = None if memory_bandwidth_gbps is None else memory_bandwidth_gbps * BYTES_PER_GB

    def read(self) -> CacheReading:
        """The newest rates and sizes; empty where nothing is measured."""
        reading = self._newest()
        if reading is None:
            return CacheReading()
        bandwidth = _known(reading.host, _total)
        return CacheReading(
            bandwidth=bandwidth,
            bandwidth_capacity={} if self._bandwidth is None else dict.fromkeys(bandwidth, self._bandwidth),
            occupancy=_known(reading.host, _occupancy),
            cache_size=self._sizes,
            guest_bandwidth=_of_guests(reading, _total),
            guest_occupancy=_of_guests(reading, _occupancy),
        )


def _total(use: CacheUse) -> float | None:
    return use.total


def _occupancy(use: CacheUse) -> float | None:
    return None if use.occupancy is None else float(use.occupancy)


Value = Callable[[CacheUse], float | None]


def _known(caches: Mapping[int, CacheUse], value: Value) -> dict[str, float]:
    return {str(cache): amount for cache, use in caches.items() if (amount := value(use)) is not None}


def _of_guests(reading: MonitorReading, value: Value) -> dict[str, dict[str, float]]:
    return {
        use.target.guest: known
        for use in reading.targets
        if not use.target.is_class and (known := _known(use.caches, value))
    }


def cache_sizes(platform: ResctrlPlatform) -> Mapping[int, int]:
    """Bytes of each L3 cache, by its id; empty where the kernel tells no sizes."""
    if platform.l3 is None:
        return {}
    ways = len(platform.l3.rules.all_ways)
    return {cache: size * ways for cache, size in platform.l3.way_bytes.items()}
