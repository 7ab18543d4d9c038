"""The cache ways and memory bandwidth of guests that nothing throttles, where the host has resctrl."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from compute_agent.controllers.base import GuestTarget, KernelController
from compute_agent.controllers.resctrl import demands, resctrl_of
from compute_agent.inventory.provider_tree import ProviderNode
from compute_agent.model.resource import CACHE_WAYS, MEMORY_BANDWIDTH, ThrottleControl
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.qos.snapshot import GuestAllotment
from compute_agent.resctrl.bandwidth import BYTES_PER_GB, BandwidthUnknownError
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.groups import read_groups
from compute_agent.resctrl.mount import ResctrlHandle
from compute_agent.resctrl.resolution import GuestDemand
from compute_agent.resctrl.schemata import BadSchemataError
from compute_agent.resctrl.share_spec import ShareSpec, WayRange
from compute_agent.resctrl.ways import NO_WAYS

LOG = logging.getLogger(__name__)


def open_entitlements(
    controllers: Iterable[KernelController], zones: Callable[[], Sequence[ProviderNode]]
) -> CacheEntitlements | None:
    """Entitlements on the mount that a controller works on; None where none does."""
    controller = resctrl_of(controllers)
    if controller is None:
        return None
    try:
        return CacheEntitlements(controller.control, controller.classes, zones)
    except (ResctrlError, BadSchemataError) as error:
        LOG.error("Watermarks cannot limit cache ways and bandwidth: %s", error)
        return None


class CacheEntitlements:
    """Entitlements on one mount, by the same rule as the controller's: allocation, annotation, class.

    What others have for themselves is not taken off the open ways: with a limit a guest fills those in its
    mask, however many they are.
    """

    def __init__(
        self,
        control: ResctrlHandle,
        classes: Mapping[str, ShareSpec],
        zones: Callable[[], Sequence[ProviderNode]],
    ) -> None:
        """``classes`` are the shares of the QoS classes, ``zones`` tells the providers that allocations name.

        :raises ResctrlError:
        :raises BadSchemataError:
        """
        self._control = control
        self._classes = classes
        self._zones = zones
        self._present = read_groups(control.files)
        self._host = control.build_layout(self._present)

    def __call__(self, view: GuestView) -> dict[ThrottleControl, GuestAllotment]:
        """By L3 cache; nothing for a guest of which it is not known what it holds."""
        if view.allocation is None:
            return {}
        target = GuestTarget(view.guest, view.assignment, frozenset(), view.allocation)
        (demand,) = demands((target,), self._zones(), self._host, self._present).demands
        wish = demand.share.overlaid_on(self._classes.get(demand.qos_class, ShareSpec()))
        return self._ways(demand, wish) | self._bandwidth(demand, wish)

    def _ways(self, demand: GuestDemand, wish: ShareSpec) -> dict[ThrottleControl, GuestAllotment]:
        control = self._host.platform.l3
        found = {}
        for cache in control.ids if control else ():
            asked = wish.range_on(cache) or WayRange(0, 100)
            division = self._host.partitions[cache]
            shared = division.open_ways(NO_WAYS).percent_range(
                asked.first, asked.last, division.rules.min_bits
            )
            full = demand.ways.get(cache) or len(shared)
            if control and full:
                size = control.way_bytes.get(cache)
                per_way = None if size is None else float(size)
                found[ThrottleControl(CACHE_WAYS, str(cache))] = GuestAllotment(float(full), 1.0, per_way)
        return found

    def _bandwidth(self, demand: GuestDemand, wish: ShareSpec) -> dict[ThrottleControl, GuestAllotment]:
        platform, engine = self._host.platform, self._host.codec
        found = {}
        for cache in platform.cache_ids if engine else ():
            domain = platform.mb_domain(cache)
            if engine is None or domain is None:
                continue
            try:
                engine.encode_percent(domain, engine.min_percent)
            except BandwidthUnknownError:
                continue  # there is no limit but 100 %
            full = demand.bandwidth.get(cache) or wish.percent_on(domain) or 100
            step = float(min(engine.percent_step, full))
            knob = ThrottleControl(MEMORY_BANDWIDTH, str(cache))
            found[knob] = GuestAllotment(float(full), step, self._per_percent())
        return found

    def _per_percent(self) -> float | None:
        """Bytes a second that a percent lets through; None where a cap is not one of the guest as a whole."""
        total = self._control.options.memory_bandwidth_gbps
        engine = self._host.codec
        return total * BYTES_PER_GB / 100 if total and engine and engine.shares_cap else None
