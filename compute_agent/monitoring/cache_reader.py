"""What watermarks are told about caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from compute_agent.monitoring.reading import Reading
from compute_agent.qos.rounds import CacheReading
from compute_agent.resctrl.bandwidth import BYTES_PER_GB
from compute_agent.resctrl.platform import Platform


class MonitoredCaches:
    """The newest reading as `qos.rounds.CacheReader` has it."""

    def __init__(
        self, platform: Platform, newest: Callable[[], Reading | None], memory_bandwidth_gbps: float | None
    ) -> None:
        """``newest`` tells the newest reading, or None if there is none that is of now.

        ``memory_bandwidth_gbps``: what each L3 cache's memory can do, in 10^9 bytes a second. The hardware
        tells nobody: without it there is no capacity, and lines in percent cannot be used.
        """
        self._newest = newest
        self.memory_bandwidth_gbps = memory_bandwidth_gbps
        self._sizes = {str(cache): float(size) for cache, size in cache_sizes(platform).items()}

    def read(self) -> CacheReading:
        """The newest rates and sizes; empty where nothing is measured."""
        reading = self._newest()
        if reading is None:
            return CacheReading()
        guests = {
            use.target.guest: use.caches for use in reading.targets if not use.target.is_class and use.caches
        }
        bandwidth = {str(cache): use.total for cache, use in reading.host.items() if use.total is not None}
        capacity = (
            {}
            if self.memory_bandwidth_gbps is None
            else dict.fromkeys(bandwidth, self.memory_bandwidth_gbps * BYTES_PER_GB)
        )
        return CacheReading(
            bandwidth=bandwidth,
            bandwidth_capacity=capacity,
            occupancy={
                str(cache): float(use.occupancy)
                for cache, use in reading.host.items()
                if use.occupancy is not None
            },
            cache_size=self._sizes,
            guest_bandwidth={
                guest: {str(cache): use.total for cache, use in caches.items() if use.total is not None}
                for guest, caches in guests.items()
            },
            guest_occupancy={
                guest: {
                    str(cache): float(use.occupancy)
                    for cache, use in caches.items()
                    if use.occupancy is not None
                }
                for guest, caches in guests.items()
            },
        )


def cache_sizes(platform: Platform) -> Mapping[int, int]:
    """Bytes of each L3 cache, by its id; empty where the kernel tells no sizes."""
    if platform.l3 is None:
        return {}
    ways = len(platform.l3.rules.all_ways)
    return {cache: size * ways for cache, size in platform.l3.way_bytes.items()}
