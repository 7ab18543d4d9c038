"""What a guest is throttled with: a lever, on one domain of the host."""

from __future__ import annotations

from typing import Final, NamedTuple

CPU_QUOTA: Final = "cpu_quota"
MEMORY_BANDWIDTH: Final = "memory_bandwidth"
CACHE_WAYS: Final = "cache_ways"
BLOCKIO: Final = "blockio"


class ThrottleControl(NamedTuple):
    """A lever, by its name, on one domain of the host: an L3 cache id as text, or "" for all of the host."""

    lever: str
    domain: str = ""

    def __str__(self) -> str:
        return f"{self.lever} on domain {self.domain}" if self.domain else self.lever
