"""What is told of all guests together: how many there are of each kind, and who holds nothing."""

from __future__ import annotations

import logging

from compute_agent.drivers.base import GuestDriver
from compute_agent.host.topology import HostTopology
from compute_agent.pipeline.cache import GuestCache
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.placer import where
from compute_agent.pipeline.view import view

LOG = logging.getLogger(__name__)


class GuestOverview:
    """Metrics and warnings about the guests of a cache. Used by the worker only."""

    def __init__(self, cache: GuestCache, driver: GuestDriver, metrics: AgentMetrics) -> None:
        self._cache = cache
        self._driver = driver
        self._metrics = metrics
        self._unallocated: frozenset[str] = frozenset()
        """The guests that were logged as holding nothing."""

    def show(self, topology: HostTopology) -> None:
        """Show how many guests there are of each kind, on a host with this topology."""
        metrics, entries = self._metrics, list(self._cache)
        metrics.guests.set(len(entries))
        metrics.unallocated_guests.set(sum(entry.allocation == {} for entry in entries))
        metrics.unknown_guests.set(sum(entry.allocation is None for entry in entries))
        metrics.migrating_guests.set(sum(entry.migration is not None for entry in entries))
        metrics.refused_guests.set(sum(bool(entry.refusal) for entry in entries))
        metrics.lost_guests.set(len(self._driver.lost()))
        metrics.stray_guests.set(sum(bool(entry.stray) for entry in entries))
        remote = sum(bool(view(entry, topology).remote_memory) for entry in entries)
        metrics.remote_memory_guests.set(remote)

    def warn(self) -> None:
        """Warn of guests that are known to hold nothing, once each."""
        unallocated = {entry.guest.uuid: entry for entry in self._cache if entry.allocation == {}}
        for uuid in sorted(unallocated.keys() - self._unallocated):
            entry = unallocated[uuid]
            LOG.warning(
                "Guest %s holds nothing of this host, and runs%s: see compute-agent audit",
                entry.guest,
                where(entry),
            )
        self._unallocated = frozenset(unallocated)
