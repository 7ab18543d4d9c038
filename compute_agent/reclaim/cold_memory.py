"""Finds cold memory, which guests do not use, by small reclaims. Pure functions.

The rule is that of Senpai (Weiner et al., "TMO: Transparent Memory Offloading in Datacenters", ASPLOS 2022).
Every few seconds the kernel reclaims a small part of a guest's memory. The longer the guest waits for memory,
the smaller is this part. If the guest's pressure (PSI) reaches a limit, the part is 0. If the guest uses
memory that was moved to swap, it soon reads this memory back. So only cold memory stays in swap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

PROBE_SHARE: Final = 0.0005
"""The part of its memory that a probe (one small reclaim) takes from a guest without pressure, as in Senpai.
"""

MAX_PROBE: Final = 16 * 2**20
"""Maximum bytes of one probe."""

MIN_PROBE: Final = 64 * 2**10
"""Minimum bytes of one probe. A smaller probe would hardly free a page of each kind."""

CALM_SECONDS: Final = 600.0
"""Seconds without pressure after which the swapped memory of a guest counts as cold."""

MIN_SWAP_ROOM: Final = 0.25
"""The part of swap that probes leave free for watermarks, which need swap when memory is short."""


@dataclass(frozen=True, slots=True)
class ColdReading:
    """The memory of a guest in bytes.

    :ivar used: the guest's memory without swap; compressed memory (zswap) counts with its compressed size.
    :ivar swapped: the guest's memory in swap and zswap, with its size before compression.
    :ivar pressure: the percent of the time since the last reading in which the guest waited for memory; None
        if unknown.
    """

    used: int
    swapped: int
    pressure: float | None


def probe_size(reading: ColdReading, limit: float) -> int:
    """The bytes to reclaim from a guest now; 0 if its pressure is ``limit`` percent or more."""
    if reading.pressure is None:
        return 0
    wanted = int(reading.used * PROBE_SHARE * max(0.0, 1 - reading.pressure / limit))
    return min(MAX_PROBE, wanted) if wanted >= MIN_PROBE else 0


def track_calm(
    since: Mapping[str, float], readings: Mapping[str, ColdReading], limit: float, now: float
) -> dict[str, float]:
    """The time (seconds) since which each guest has not waited for memory. Waiting guests are left out.

    :param since: the result of the previous call.
    :param limit: the pressure, in percent, at which a guest counts as waiting.
    """
    return {
        uuid: since.get(uuid, now)
        for uuid, reading in readings.items()
        if reading.pressure is not None and reading.pressure < limit
    }


def cold_memory(
    since: Mapping[str, float], readings: Mapping[str, ColdReading], now: float
) -> dict[str, int]:
    """The bytes in swap, by uuid, of each guest that has not waited for memory for at least ``CALM_SECONDS``.

    :param since: the result of :func:`track_calm` for the same ``readings`` and ``now``.
    """
    return {
        uuid: readings[uuid].swapped
        for uuid, begin in since.items()
        if now - begin >= CALM_SECONDS and uuid in readings and readings[uuid].swapped
    }
