"""The values of one group: masks of what is open to it or its own, and bandwidths."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from compute_agent.resctrl.host import Host
from compute_agent.resctrl.masks import Mask
from compute_agent.resctrl.reader import Present
from compute_agent.resctrl.schemata import Schemata
from compute_agent.resctrl.ways import NOTHING
from compute_agent.resctrl.wishes import WayRange, Wish


def group_schemata(
    host: Host,
    wish: Wish,
    bandwidth: Mapping[int, int],
    own: Mapping[int, Mask],
    taken: Mapping[int, Mask],
    way_limits: Mapping[int, int] = MappingProxyType({}),
) -> Schemata:
    """The L3 and MB lines of a group.

    ``bandwidth`` (percent) and ``own`` ways were given to it by L3 cache id, ``taken`` are the ways that
    anybody has for himself.
    """
    masks = cache_lines(host, wish, own, taken, way_limits)
    control, engine = host.platform.mb, host.engine
    if control is None or engine is None:
        return masks
    percents = {host.platform.mb_domain(cache): percent for cache, percent in bandwidth.items()}
    values = {}
    for domain in control.ids:
        asked = percents.get(domain, wish.percent_on(domain))
        values[domain] = engine.bandwidth(domain, 100 if asked is None else asked)
    return masks.updated(Schemata({control.resource: values}))


def cache_lines(
    host: Host,
    wish: Wish,
    own: Mapping[int, Mask],
    taken: Mapping[int, Mask],
    way_limits: Mapping[int, int] = MappingProxyType({}),
) -> Schemata:
    """The L3 lines; ways of its own are for code and data alike."""
    control = host.platform.l3
    if control is None:
        return Schemata()
    lines: dict[str, dict[int, int]] = {resource: {} for resource in control.resources}
    for resource, masks in lines.items():
        for cache in control.ids:
            mask = own.get(cache)
            if mask is None:
                open_ways = host.divisions[cache].open_ways(taken.get(cache, NOTHING))
                asked = wish.range_on(cache, resource) or WayRange(0, 100)
                mask = open_ways.part(asked.first, asked.last, control.rules.min_bits)
                if control.rules.fault(mask):  # a range that begins with a piece that is too small
                    mask = open_ways
                cut = Mask.of(list(mask)[: way_limits.get(cache)])
                if not control.rules.fault(cut):
                    mask = cut
            masks[cache] = mask.bits
    return Schemata(lines)


def l2_lines(host: Host, wish: Wish, present: Present, name: str) -> Schemata:
    """The L2 lines of a group of ours: none where nobody asks, and it has what the default group has."""
    control = host.platform.l2
    if control is None:
        return Schemata()
    all_ways = control.rules.all_ways
    group = present.groups.get(name)
    lines: dict[str, dict[int, int]] = {resource: {} for resource in control.resources}
    for resource, masks in lines.items():
        for cache in control.ids:
            default = present.default.schemata.get(resource, cache)
            if wish.l2 is not None:
                masks[cache] = all_ways.part(wish.l2.first, wish.l2.last, control.rules.min_bits).bits
            elif group is not None and default and group.schemata.get(resource, cache) != default:
                masks[cache] = default  # a class asked for less before
    return Schemata(lines)
