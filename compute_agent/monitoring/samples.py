"""What is kept of readings: a sample for each target and cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from compute_agent.monitoring.reading import LOCAL, TOTAL, MonitorReading


@dataclass(frozen=True, slots=True)
class StoredSample:
    """A target on an L3 cache at ``time`` (seconds since the epoch).

    Occupancy is in bytes, bandwidths are in bytes a second since the sample before; None where it is not
    known. ``cpu`` is in cores, over the whole target, and the same in the samples of all its caches. Of a
    target that is not monitored there is one sample, without a ``cache_id``, if its use of CPU is known.
    """

    time: float
    guest: str
    name: str
    qos_class: str
    cache_id: int | None = None
    occupancy: int | None = None
    local: float | None = None
    total: float | None = None
    cpu: float | None = None


def to_samples(before: MonitorReading | None, now: MonitorReading, time: float) -> Iterator[StoredSample]:
    """The samples of a reading that was taken at ``time``; ``before`` is the one that was kept last."""
    last = {(use.target.key, use.begun): use.moved for use in before.targets} if before else {}
    seconds = now.time - before.time if before else 0.0
    for use in now.targets:
        target = use.target
        moved = last.get((target.key, use.begun), {})
        labels = (time, target.guest, target.name, target.qos_class)
        for cache, now_used in sorted(use.caches.items()):
            local, total = (
                (use.moved[cache, kind] - moved[cache, kind]) / seconds
                if rate is not None and (cache, kind) in moved and seconds > 0
                else None
                for kind, rate in ((LOCAL, now_used.local), (TOTAL, now_used.total))
            )
            yield StoredSample(*labels, cache, now_used.occupancy, local, total, target.cpu)
        if not use.caches and target.cpu is not None:
            yield StoredSample(*labels, cpu=target.cpu)
