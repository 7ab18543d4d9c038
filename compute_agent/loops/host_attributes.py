"""Adds attributes of the host to reports: CPUs and limits of guests, caches, thresholds, heartbeats."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from compute_agent.controllers.base import find_controller
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.inventory.attributes import (
    CacheLoad,
    GuestCpuMap,
    GuestLoad,
    RequestedLimit,
    begin_interval,
    guest_attributes,
    heartbeat_attributes,
    neighbour_attributes,
)
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.loops.base import ConfigurationInForce, ReloadedConfiguration
from compute_agent.monitoring.readings import TOTAL, MonitorReading, cache_sizes, mean_rates, rates_of_targets
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.resctrl.bandwidth import BYTES_PER_GB
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.groups import read_groups
from compute_agent.resctrl.layout import cache_mask
from compute_agent.resctrl.schemata import BadSchemataError
from compute_agent.throttling.interference.cases import InterferenceCase
from compute_agent.throttling.levers import GuestLimits
from compute_agent.throttling.triggers import InterferenceTrigger
from compute_agent.throttling.watermarks.sections import WatermarkAction, WatermarkSection
from compute_agent.throttling.watermarks.thresholds import local_moment

LOG = logging.getLogger(__name__)

Ways = Mapping[int, tuple[frozenset[int], int]]
"""The cache ways that a guest can fill, and the number of all ways of the cache, by id of the L3 cache."""


def add_positions(
    in_force: ConfigurationInForce, views: Callable[[], Iterable[GuestView]], tree: ProviderTree
) -> ProviderTree:
    """Return the tree with CPUs and cache ways of guests, and thresholds, on the agent's first provider."""
    conf = in_force.current
    if not conf.options.compute.report_positions or not tree.ours:
        return tree
    ways = ways_of(conf)
    guests = [
        GuestCpuMap(view.guest.uuid, view.assignment.cpus, ways.get(view.guest.uuid, {}))
        for view in views()
        if view.assignment is not None
    ]
    rules = conf.settings.rules.at_moment(local_moment())
    watermarks = {one.name: acting_at(one) for one in rules.watermarks}
    return tree.with_attributes(guest_attributes(guests, watermarks))


def ways_of(conf: ReloadedConfiguration) -> Mapping[str, Ways]:
    """Read the cache ways of each guest, by uuid; empty if the agent does not control caches."""
    controller = find_controller(conf.controllers, ResctrlController)
    if controller is None:
        return {}
    try:
        present = read_groups(controller.control.files)
        platform = controller.control.build_layout(present).platform
    except (ResctrlError, BadSchemataError) as error:
        LOG.info("The cache ways of guests are not reported to Placement: %s", error)
        return {}
    if platform.l3 is None:
        return {}
    count = len(platform.l3.rules.all_ways)
    return {
        guest: {
            cache: (frozenset(cache_mask(platform, present.groups[group].schemata, cache)), count)
            for cache in platform.l3.ids
        }
        for guest, group in controller.membership.items()
        # The kernel can lack a group that was removed after the controller's last sync().
        if group in present.groups
    }


def acting_at(watermark: WatermarkSection) -> str:
    """The thresholds of a watermark as text: ``cpu_usage: throttle_down 90%, throttle_up 80%``."""
    lines = [
        f"{action.value} {line}"
        for action in WatermarkAction
        if (line := watermark.threshold_for(action)) is not None
    ]
    return f"{watermark.metric}: {', '.join(lines)}" + (" (preview)" if watermark.preview else "")


def add_heartbeat(
    in_force: ConfigurationInForce, tree: ProviderTree, clock: Callable[[], float] = time.time
) -> ProviderTree:
    """Return the tree. If heartbeats are on, add the time of the last one to the agent's first provider."""
    options = in_force.current.options.compute
    if not options.heartbeat_interval:
        return tree
    reported = begin_interval(clock(), options.heartbeat_interval, tree.root.uuid)
    longest = max(options.heartbeat_interval, options.update_resources_interval)
    return tree.with_attributes(heartbeat_attributes(reported, longest))


class NeighbourReporter:
    """Adds attributes to a report: the cache use of the host and its guests, and the limits of guests.

    The values change only once in an interval. Bandwidths are means over the interval. Any thread may use the
    object.
    """

    def __init__(
        self,
        in_force: ConfigurationInForce,
        newest: Callable[[], MonitorReading | None],
        limits: Callable[[], Mapping[str, GuestLimits]],
        cases: Callable[[], Sequence[InterferenceCase]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare the reports.

        :param newest: returns the newest reading of monitoring; None if nothing was read.
        :param limits: returns the requested limits by trigger, guest and ``ThrottleControl``.
        :param cases: returns the cases of interference that are not closed.
        :param clock: returns the seconds since the epoch.
        """
        self._in_force = in_force
        self._newest = newest
        self._limits = limits
        self._cases = cases
        self._clock = clock
        self._lock = threading.Lock()
        self._measured_at: float | None = None
        self._reading: MonitorReading | None = None
        self._attributes: dict[str, str | float] = {}
        #: Whether the last values lack bandwidths only because the monitor has no earlier reading for a
        #: comparison.
        self._lacks_rates = False

    def add_to_tree(self, tree: ProviderTree) -> ProviderTree:
        """Return the tree; if neighbours are reported, its first provider has the attributes."""
        options = self._in_force.current.options.compute
        interval = options.neighbours_interval
        if not interval:
            return tree
        measured_at = begin_interval(self._clock(), interval, tree.root.uuid)
        # The lock is held during a measurement, for at most ten seconds, so that another caller gets the same
        # values.
        with self._lock:
            if measured_at != self._measured_at or self._lacks_rates:
                self._measure_host(measured_at, max(interval, options.update_resources_interval))
            return tree.with_attributes(self._attributes)

    def _measure_host(self, measured_at: float, interval: float) -> None:
        before, reading = self._reading, self._newest()
        self._lacks_rates = reading is not None and not _is_later(before, reading)
        self._measured_at, self._reading = measured_at, reading
        control = self._in_force.current.control
        sizes = cache_sizes(control.platform) if control is not None else {}
        gbps = control.options.memory_bandwidth_gbps if control is not None else None
        self._attributes = neighbour_attributes(
            measured_at,
            interval,
            cache_loads(before, reading, sizes, None if gbps is None else gbps * BYTES_PER_GB),
            guest_loads(before, reading),
            limits_of_guests(self._limits(), self._cases()),
        )


def cache_loads(
    before: MonitorReading | None,
    now: MonitorReading | None,
    sizes: Mapping[int, int],
    max_bandwidth: float | None,
) -> dict[int, CacheLoad]:
    """The use of each cache, by cache id. Bandwidths are means over the time between two readings.

    :param sizes: the sizes of caches in bytes, where they are known.
    :param max_bandwidth: the bandwidth of the memory of each cache, in bytes a second; None if unknown.
    """
    if now is None:
        return {}
    rates: Mapping[tuple[int, str], float] = {}
    if before is not None and _is_later(before, now):
        rates = mean_rates(before.host_moved_bytes, now.host_moved_bytes, now.time - before.time)
    return {
        cache: CacheLoad(rates.get((cache, TOTAL)), use.occupancy, max_bandwidth, sizes.get(cache))
        for cache, use in now.host_caches.items()
    }


def guest_loads(before: MonitorReading | None, now: MonitorReading | None) -> list[GuestLoad]:
    """The use of all caches by each monitored guest.

    Bandwidths are means over the time between two readings.
    """
    if now is None:
        return []
    known, found = rates_of_targets(before, now), []
    for use in now.targets:
        if not use.target.is_class and use.caches:
            rates = [rate for (_, kind), rate in known.get(use.target.key, {}).items() if kind == TOTAL]
            occupied = [one.occupancy for one in use.caches.values() if one.occupancy is not None]
            load = CacheLoad(sum(rates) if rates else None, sum(occupied) if occupied else None)
            found.append(GuestLoad(use.target.guest, use.target.qos_class, load))
    return found


def _is_later(before: MonitorReading | None, now: MonitorReading) -> bool:
    """Whether the same monitor took both readings, so that the bytes moved between them are known."""
    return before is not None and before.begun == now.begun and before.time < now.time


def limits_of_guests(
    requested: Mapping[str, GuestLimits], cases: Iterable[InterferenceCase]
) -> dict[str, list[RequestedLimit]]:
    """The limited resources of each guest. Limits because of interference name the protected guests, too."""
    victims: dict[tuple[str, str], set[str]] = {}
    for case in cases:
        if case.limit is not None:
            victims.setdefault((case.suspect, case.knob.lever), set()).add(case.victim)
    found: dict[str, list[RequestedLimit]] = {}
    for trigger, by_guest in requested.items():
        for guest, limits in by_guest.items():
            # A lever with several domains counts once. Bandwidth, for example, is limited for each cache.
            for lever in sorted({control.lever for control in limits}):
                caused = trigger == InterferenceTrigger.limit_owner
                for_whom = sorted(victims.get((guest, lever), ())) if caused else ()
                found.setdefault(guest, []).append(RequestedLimit(lever, trigger, tuple(for_whom)))
    return found
