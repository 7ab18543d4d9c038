"""Watches the guests in the cache: counts them for metrics, and reports missing allocations and PCI devices.

A device is missing if it vanishes while a guest holds it; its return is reported, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from compute_agent.drivers.base import RunningGuests
from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.model.guest import Guest
from compute_agent.pipeline.guest_cache import (
    CachedGuest,
    GuestCache,
    GuestView,
)
from compute_agent.pipeline.metrics import AgentMetrics
from compute_agent.pipeline.placer import place_words

LOG = logging.getLogger(__name__)


class HeldDeviceWatch:
    """Records held PCI devices that vanish, and those that return; only the worker uses it."""

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._gone: dict[str, dict[str, Guest]] = {}
        """The guests that hold a vanished device, by address of the device and uuid of the guest."""

    def compare_trees(self, before: ProviderTree, now: ProviderTree, guests: Iterable[CachedGuest]) -> None:
        """Record held devices that vanished, or are not selected any more, and devices that returned."""
        had, has = offered_devices(before), offered_devices(now)
        for uuid, address in had.items():
            if uuid in has:
                continue
            for entry in guests:
                if uuid in (entry.allocation or {}):
                    self._gone.setdefault(address, {})[entry.guest.uuid] = entry.guest
                    self._recorder.record_done(
                        LOG.warning,
                        EventKind.DEVICE_GONE,
                        entry.guest,
                        "Guest %s holds the PCI device %s, which is gone, or not offered any more",
                        address,
                    )
        for address in has.values():
            for guest in self._gone.pop(address, {}).values():
                self._recorder.record_done(
                    LOG.info,
                    EventKind.DEVICE_BACK,
                    guest,
                    "The PCI device that guest %s held is back: %s",
                    address,
                )


def offered_devices(tree: ProviderTree) -> Mapping[str, str]:
    """The addresses of the PCI devices that a tree offers, by uuid of the provider."""
    return {node.uuid: node.device for node in tree.device_providers}


class GuestOverview:
    """Sets metrics and warns about guests in the cache; only the worker uses the object."""

    def __init__(self, cache: GuestCache, driver: RunningGuests, metrics: AgentMetrics) -> None:
        self._cache = cache
        self._driver = driver
        self._metrics = metrics
        self._unallocated: frozenset[str] = frozenset()
        """Uuids of the guests for which the log already has a warning about a missing allocation."""

    def show_gauges(self, views: Sequence[GuestView]) -> None:
        """Set the metrics that count guests, such as guests without an allocation.

        :param views: present copies of all guests in the cache.
        """
        metrics, entries = self._metrics, list(self._cache)
        metrics.guests.set(len(entries))
        # An empty allocation is an answer of Placement. The allocation None means that there was no answer.
        # The next lines count such guests as unknown.
        metrics.unallocated_guests.set(sum(entry.allocation == {} for entry in entries))
        metrics.unknown_guests.set(sum(entry.allocation is None for entry in entries))
        metrics.migrating_guests.set(sum(entry.migration is not None for entry in entries))
        metrics.refused_guests.set(sum(bool(entry.refusal) for entry in entries))
        metrics.preserved_guests.set(sum(entry.guest.settings.preserve for entry in entries))
        metrics.lost_guests.set(len(self._driver.lost_guests()))
        metrics.excluded_guests.set(len(self._driver.excluded_guests()))
        metrics.stray_guests.set(sum(bool(entry.stray) for entry in entries))
        metrics.remote_memory_guests.set(sum(bool(view.remote_memory) for view in views))

    def warn_of_unallocated(self) -> None:
        """Log a warning for each guest that has lost its allocation."""
        unallocated = {entry.guest.uuid: entry for entry in self._cache if entry.allocation == {}}
        for uuid in sorted(unallocated.keys() - self._unallocated):
            entry = unallocated[uuid]
            LOG.warning(
                "Guest %s has no allocation on this host, and runs%s: see compute-agent audit",
                entry.guest,
                place_words(entry),
            )
        self._unallocated = frozenset(unallocated)
