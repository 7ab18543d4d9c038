"""Finds cold memory: memory that guests do not need, which ``[capacity] memory`` offers to other guests.

A probe makes the kernel reclaim a little memory of a guest, and checks whether the guest then waits for
memory.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from compute_agent.drivers.base import GuestThreads
from compute_agent.drivers.memory_limits import reclaim_memory
from compute_agent.loops.base import AgentLoop, ReloadedConfiguration
from compute_agent.loops.usage import has_memory_of_rest
from compute_agent.pipeline.worker import GuestPipeline
from compute_agent.reclaim.cold_memory import (
    MIN_SWAP_ROOM,
    ColdReading,
    cold_memory,
    probe_size,
    track_calm,
)
from compute_agent.reclaim.zone import parse_swap_room
from compute_agent.threads import NO_LOCK, PeriodicTask, ThreadSpec, log_failures
from compute_agent.usage.rounds import MeasuringRound, pressure_share
from compute_agent.usage.subjects import SubjectFactory

LOG = logging.getLogger(__name__)

# Senpai, a program of Meta for the same purpose, has the same pause. During the pause, a guest that needs the
# memory that the last probe has reclaimed begins to wait for it.
PAUSE: Final = 6.0
"""Seconds between two rounds."""

ROUND_SECONDS: Final = 2.0
"""Seconds of a round after which no further guest is probed. The next round begins with the remaining
guests.
"""

COLD_MEMORY_THREAD: Final = ThreadSpec(
    "cold-memory",
    PAUSE,
    "has the kernel reclaim small parts of guests' memory, for ``[capacity] cold_memory``",
    NO_LOCK,
    "files of guests; the kernel reclaims memory meanwhile",
)


class ColdMemoryLoop(AgentLoop):
    """Probes the guests that can be throttled, and counts the memory that each guest did not need again."""

    def __init__(
        self,
        conf: ReloadedConfiguration,
        pipeline: GuestPipeline,
        driver: GuestThreads,
        registry: CollectorRegistry,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._conf = conf
        self._pipeline = pipeline
        self._subjects = SubjectFactory(driver)
        self._monotonic = monotonic
        self._before: MeasuringRound | None = None
        self._since: Mapping[str, float] = {}
        self._cold: Mapping[str, int] = {}
        self._probed: dict[str, float] = {}
        """The time of the last probe of each guest, in monotonic seconds."""
        self._refused: set[str] = set()
        """The guests for which the kernel has refused to reclaim memory; each guest is logged once."""
        self._gauge = Gauge(
            "compute_agent_cold_memory_bytes",
            "Memory in swap of the guests that have not waited for memory for ten minutes.",
            registry=registry,
        )
        self._reclaimed = Counter(
            "compute_agent_cold_memory_reclaimed_bytes",
            "Memory of guests that the search for cold memory has moved to swap.",
            registry=registry,
        )
        self._thread = PeriodicTask(
            COLD_MEMORY_THREAD,
            self.run_round,
            lambda took: PAUSE,
            log_failures(LOG, "Guests cannot be probed for cold memory"),
            is_needed=lambda: self._conf.options.capacity.cold_memory,
            rest=self._forget_all,
        )

    @property
    def cold_memory(self) -> Mapping[str, int]:
        """The bytes of cold memory by uuid of the guest. Any thread may read this value."""
        return self._cold

    def run_round(self) -> None:
        """Measure all guests, and reclaim some memory of each guest that does not wait for memory."""
        now = self._monotonic()
        root, limit = self._conf.options.host.root, self._conf.options.capacity.cold_pressure
        views = self._pipeline.guest_views()
        subjects = self._subjects.build_subjects(views, self._conf.settings.classes)
        this = MeasuringRound(now, root, subjects)
        readings, groups = {}, {}
        for view, subject in zip(views, subjects, strict=True):
            # A guest on reclaimed memory is not probed, because its memory was offered before and cannot be
            # offered again.
            if subject.facts.protected or not subject.cgroup or has_memory_of_rest(view):
                continue
            reading = _read_guest(subject.cgroup, this, self._before)
            if reading is not None:
                readings[subject.facts.uuid], groups[subject.facts.uuid] = reading, subject.cgroup
        room = this.parse_file(f"{root}/proc/meminfo", parse_swap_room) or 0.0
        this.close()
        self._before = this
        self._since = track_calm(self._since, readings, limit, now)
        self._cold = cold_memory(self._since, readings, now)
        self._gauge.set(sum(self._cold.values()))
        self._probed = {uuid: self._probed.get(uuid, 0.0) for uuid in readings}
        self._refused &= readings.keys()
        if room >= MIN_SWAP_ROOM:
            self._probe_guests(groups, {uuid: probe_size(one, limit) for uuid, one in readings.items()}, now)

    def _probe_guests(self, groups: Mapping[str, str], sizes: Mapping[str, int], now: float) -> None:
        for uuid in sorted(sizes, key=lambda uuid: (self._probed[uuid], uuid)):
            left = now + ROUND_SECONDS - self._monotonic()
            if left <= 0:
                break
            if sizes[uuid]:
                self._probed[uuid] = now
                try:
                    done = reclaim_memory(groups[uuid], sizes[uuid], left, self._monotonic)
                except OSError as error:
                    self._log_refusal(uuid, error)
                else:
                    self._reclaimed.inc(done)

    def _log_refusal(self, uuid: str, error: OSError) -> None:
        if uuid not in self._refused:
            self._refused.add(uuid)
            LOG.warning(
                "The kernel does not reclaim memory of guest %s, so its cold memory is not found: %s;"
                " memory.reclaim needs Linux 5.19",
                uuid,
                error,
            )

    def _forget_all(self) -> None:
        self._before, self._since, self._cold = None, {}, {}
        self._probed, self._refused = {}, set()
        self._gauge.set(0)


def _read_guest(group: str, now: MeasuringRound, before: MeasuringRound | None) -> ColdReading | None:
    used = now.parse_file(f"{group}/memory.current", int)
    if used is None:
        return None
    return ColdReading(
        used,
        now.parse_file(f"{group}/memory.swap.current", int) or 0,
        pressure_share(f"{group}/memory.pressure", now, before),
    )
