"""What guests may have of caches and memory bandwidth.

It is translated from allocations, annotations and limits to the terms of the resctrl library.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from compute_agent.controllers.base import GuestTarget
from compute_agent.inventory.tree import ProviderNode
from compute_agent.model.cpuset import CpuSet
from compute_agent.model.guest import Allocation
from compute_agent.model.resource import (
    CACHE_WAYS,
    MEMORY_BANDWIDTH,
    RESCTRL_GROUP,
    STOCK_NAMES,
    ThrottleControl,
)
from compute_agent.qos.annotation import parse_annotation
from compute_agent.resctrl.groups import ResctrlGroups
from compute_agent.resctrl.layout import ResctrlLayout, cache_mask
from compute_agent.resctrl.resolution import GuestDemand
from compute_agent.resctrl.share_spec import BadShareError, ShareSpec

_WAYS: Final = ("LLC", STOCK_NAMES["LLC"])
_BANDWIDTH: Final = ("MBA", STOCK_NAMES["MBA"])

_parse_annotation = functools.lru_cache(maxsize=1024)(parse_annotation)


@dataclass(frozen=True, slots=True)
class CacheDemands:
    """The demands of all guests, and by guest why something of it makes no sense."""

    demands: tuple[GuestDemand, ...] = ()
    faults: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def demands(
    targets: Iterable[GuestTarget], zones: Sequence[ProviderNode], host: ResctrlLayout, present: ResctrlGroups
) -> CacheDemands:
    """What guests may have. One of which it is not known what it holds keeps what its group has."""
    caches = {zone.uuid: next(iter(zone.l3_ids)) for zone in zones if len(zone.l3_ids) == 1}
    domains = {caches[zone.uuid]: zone.cpus for zone in zones if zone.uuid in caches}
    found, faults = [], {}
    for target in targets:
        demand, reasons = _demand(target, caches, host, present)
        if target.assignment is not None and target.assignment.given:
            demand = _at_its_caches(demand, target.assignment.cpus, domains)
        found.append(demand)
        if reasons:
            faults[demand.guest] = reasons
    return CacheDemands(tuple(found), faults)


def _demand(
    target: GuestTarget, caches: Mapping[str, int], host: ResctrlLayout, present: ResctrlGroups
) -> tuple[GuestDemand, tuple[str, ...]]:
    uuid, settings = target.guest.uuid, target.guest.settings
    reasons: list[str] = []
    if target.allocation is None:
        ways, bandwidth = _kept(uuid, host, present)
        reserved = bool(ways or bandwidth)
    else:
        reserved = any(resources.get(RESCTRL_GROUP) for resources in target.allocation.values())
        ways = _amounts(target.allocation, _WAYS, caches, reasons)
        bandwidth = _amounts(target.allocation, _BANDWIDTH, caches, reasons)
    wish = ShareSpec()
    try:
        wish = _parse_annotation(settings.resctrl)
    except BadShareError as error:
        reasons.append(str(error))
    demand = GuestDemand(
        guest=uuid,
        qos_class=settings.qos_class,
        ways=ways,
        bandwidth=bandwidth,
        share=wish,
        priority=settings.priority,
        way_limits=_limits(target.limits, CACHE_WAYS),
        bandwidth_limits=_limits(target.limits, MEMORY_BANDWIDTH),
        reserved=reserved,
    )
    return demand, tuple(reasons)


def _at_its_caches(demand: GuestDemand, cpus: CpuSet, domains: Mapping[int, CpuSet]) -> GuestDemand:
    """The demand on the caches of the CPUs that a guest runs on."""
    shares = {cache: len(cpus & inside) for cache, inside in domains.items() if cpus & inside}
    ways, bandwidth = at_its_caches(demand.ways, shares), at_its_caches(demand.bandwidth, shares)
    return replace(demand, ways=ways, bandwidth=bandwidth)


def at_its_caches(amounts: Mapping[int, int], shares: Mapping[int, int]) -> dict[int, int]:
    """The amounts by L3 cache of a guest that runs on ``shares`` CPUs of each cache.

    What is held of caches that it runs on stays there. The rest goes to the one that it has most CPUs of,
    rather to one of which it holds nothing. A guest that runs on no known cache keeps all where it is.
    """
    found = {cache: amount for cache, amount in amounts.items() if cache in shares or not shares}
    if elsewhere := sum(amounts.values()) - sum(found.values()):
        best = min(shares, key=lambda cache: (cache in found, -shares[cache], cache))
        found[best] = found.get(best, 0) + elsewhere
    return found


def _amounts(
    allocation: Allocation, names: Sequence[str], caches: Mapping[str, int], reasons: list[str]
) -> dict[int, int]:
    """The amounts of a resource class by L3 cache id."""
    found: dict[int, int] = {}
    for provider, resources in allocation.items():
        amount = sum(resources.get(name, 0) for name in names)
        if amount and provider in caches:
            found[caches[provider]] = found.get(caches[provider], 0) + amount
        elif amount:
            reasons.append(f"{amount} {names[0]} of provider {provider}, which stands for no L3 cache")
    return found


def _kept(uuid: str, host: ResctrlLayout, present: ResctrlGroups) -> tuple[dict[int, int], dict[int, int]]:
    """The ways and the bandwidth that the own group of a guest has now, if it has one."""
    group = present.groups.get(host.guest_group(uuid))
    if group is None:
        return {}, {}
    platform, engine = host.platform, host.codec
    ways, bandwidth = {}, {}
    for cache in platform.cache_ids:
        mask = cache_mask(platform, group.schemata, cache)
        if mask and not mask & cache_mask(platform, present.default_group.schemata, cache):
            ways[cache] = len(mask)
        domain = platform.mb_domain(cache)
        value = None if domain is None else group.schemata.get_value("MB", domain)
        if engine is not None and domain is not None and value is not None:
            percent = engine.decode_value(domain, value)
            if percent < 100:
                bandwidth[cache] = percent
    return ways, bandwidth


def _limits(limits: Mapping[ThrottleControl, float], lever: str) -> dict[int, int]:
    """The limits of one lever by L3 cache id, in whole percents or ways."""
    return {int(knob.domain): int(limit) for knob, limit in limits.items() if knob.lever == lever}
