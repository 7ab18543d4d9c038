"""Adds attributes of the host to reports: CPUs of guests, thresholds of watermarks, heartbeats."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from compute_agent.controllers.base import find_controller
from compute_agent.controllers.resctrl import ResctrlController
from compute_agent.inventory.attributes import (
    GuestCpuMap,
    begin_interval,
    guest_attributes,
    heartbeat_attributes,
)
from compute_agent.inventory.provider_tree import ProviderTree
from compute_agent.loops.base import ConfigurationInForce, ReloadedConfiguration
from compute_agent.pipeline.guest_cache import GuestView
from compute_agent.resctrl.filesystem import ResctrlError
from compute_agent.resctrl.groups import read_groups
from compute_agent.resctrl.layout import cache_mask
from compute_agent.resctrl.schemata import BadSchemataError
from compute_agent.throttling.watermarks.schedule import local_moment
from compute_agent.throttling.watermarks.sections import WatermarkAction, WatermarkSection

LOG = logging.getLogger(__name__)

Ways = Mapping[int, tuple[frozenset[int], int]]
"""The cache ways that a guest can fill, and the number of all ways of the cache, by id of the L3 cache."""


class PositionReporter:
    """Adds CPUs, cache ways and thresholds to reports; only the thread of reports uses it."""

    def __init__(self, in_force: ConfigurationInForce, views: Callable[[], Iterable[GuestView]]) -> None:
        self._in_force = in_force
        self._views = views

    def add_to_tree(self, tree: ProviderTree) -> ProviderTree:
        """Return the provider tree with the attributes added to the agent's first provider."""
        conf = self._in_force.current
        if not conf.options.compute.report_positions or not tree.ours:
            return tree
        ways = ways_of(conf)
        guests = [
            GuestCpuMap(view.guest.uuid, view.assignment.cpus, ways.get(view.guest.uuid, {}))
            for view in self._views()
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


class AgentHeartbeats:
    """Adds the time of the agent's last heartbeat to the provider tree of a report."""

    def __init__(self, in_force: ConfigurationInForce, clock: Callable[[], float] = time.time) -> None:
        self._in_force = in_force
        self._clock = clock

    def add_to_tree(self, tree: ProviderTree) -> ProviderTree:
        """Return the provider tree. If heartbeats are on, add the time to the agent's first provider."""
        options = self._in_force.current.options.compute
        interval = options.heartbeat_interval
        if not interval:
            return tree
        reported = begin_interval(self._clock(), interval, tree.root.uuid)
        longest = max(interval, options.update_resources_interval)
        return tree.with_attributes(heartbeat_attributes(reported, longest))
