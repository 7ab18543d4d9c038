"""What watermarks are told about caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compute_agent.monitoring.reading import CacheUse, MonitorReading
from compute_agent.qos.rounds import CacheReading
from compute_agent.resctrl.bandwidth import BYTES_PER_GB
from compute_agent.resctrl.platform import ResctrlPlatform


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
