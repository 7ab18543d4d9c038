"""Reports PCI devices that vanish while guests hold them, and devices that return."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from compute_agent.events.event import EventKind, EventRecorder
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.model.guest import Guest
from compute_agent.pipeline.guest_cache import CachedGuest

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
