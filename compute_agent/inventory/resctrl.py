"""The capabilities of resctrl (cache and bandwidth control) that inventories need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compute_agent.resctrl.bandwidth import BandwidthUnknownError
from compute_agent.resctrl.groups import DEFAULT_GROUP, ResctrlGroups
from compute_agent.resctrl.layout import ResctrlLayout
from compute_agent.resctrl.monitoring import LOCAL_BYTES, OCCUPANCY, TOTAL_BYTES
from compute_agent.resctrl.platform import ResctrlPlatform
from compute_agent.resctrl.resolution import share_groups
from compute_agent.resctrl.share_spec import ShareSpec


@dataclass(frozen=True, slots=True)
class CacheDomain:
    """The capabilities of resctrl for one L3 cache.

    :ivar l3_id: the id of the cache. The domain of the same cache for bandwidth control can have another id.
    :ivar ways: the number of all ways of the cache; 0 if ways cannot be controlled.
    :ivar reserved_ways: the number of ways that the agent does not offer to guests.
    :ivar min_ways: the smallest number of ways that the hardware allows for a group.
    :ivar way_kib: the size of a way in KiB; None if unknown.
    :ivar bandwidth_min: the smallest bandwidth limit in percent; None means that bandwidth cannot be
        controlled.
    :ivar bandwidth_step: the step between two possible limits in percent; None means that bandwidth cannot be
        controlled.
    """

    l3_id: int
    ways: int = 0
    reserved_ways: int = 0
    min_ways: int = 1
    way_kib: int | None = None
    bandwidth_min: int | None = None
    bandwidth_step: int | None = None


@dataclass(frozen=True, slots=True)
class CachePlatform:
    """The capabilities of resctrl for all L3 caches of a host.

    :ivar groups: the number of CLOSIDs, which limits the number of groups.
    :ivar groups_taken: the CLOSIDs that are used without an allocation: by the default group, QoS classes and
        foreign groups.
    :ivar features: the features of the host, a subset of ``L3_CAT``, ``L3_CDP``, ``L2_CAT``, ``MBA``,
        ``MBA_MBPS``, ``CMT`` and ``MBM``.
    """

    domains: Mapping[int, CacheDomain] = field(default_factory=dict, hash=False)
    """The capabilities for each L3 cache, by its id."""
    groups: int = 0
    groups_taken: int = 0
    features: frozenset[str] = frozenset()


def cache_platform(
    host: ResctrlLayout, present: ResctrlGroups, classes: Mapping[str, ShareSpec]
) -> CachePlatform:
    """The capabilities for the L3 caches of a host with ``present`` groups and QoS ``classes``.

    ``groups_taken`` counts the default group and the groups of classes and other programs. Groups of guests
    are not counted. Such a group belongs to an allocation or to an annotation, and an annotation has a lower
    priority than allocations.
    """
    platform = host.platform
    foreign = sum(1 for name in present.groups if name != DEFAULT_GROUP and not host.is_ours(name))
    of_classes = share_groups(host, classes, present).needed_groups
    return CachePlatform(
        domains={cache: _cache_domain(host, cache) for cache in platform.cache_ids},
        groups=platform.max_groups,
        # The default group also uses a CLOSID, so the count begins with 1.
        groups_taken=min(platform.max_groups, 1 + len(of_classes) + foreign),
        features=_feature_names(platform),
    )


def _cache_domain(host: ResctrlLayout, cache: int) -> CacheDomain:
    least, step = _bandwidth_steps(host, cache)
    control, division = host.platform.l3, host.partitions.get(cache)
    if control is None or division is None:
        return CacheDomain(cache, bandwidth_min=least, bandwidth_step=step)
    ways, way_bytes = len(control.rules.all_ways), control.way_bytes.get(cache, 0)
    return CacheDomain(
        l3_id=cache,
        ways=ways,
        reserved_ways=ways - len(division.pool),
        min_ways=control.rules.min_bits,
        way_kib=way_bytes // 1024 or None,
        bandwidth_min=least,
        bandwidth_step=step,
    )


def _bandwidth_steps(host: ResctrlLayout, cache: int) -> tuple[int | None, int | None]:
    """The smallest bandwidth limit and the step, in percent.

    Both numbers are None if bandwidth cannot be controlled, or if the hardware value for 100 % is not known.
    """
    engine, domain = host.codec, host.platform.mb_domain(cache)
    if engine is None or domain is None:
        return None, None
    try:
        engine.encode_percent(domain, engine.min_percent)
    except BandwidthUnknownError:
        return None, None
    return engine.min_percent, engine.percent_step


def _feature_names(platform: ResctrlPlatform) -> frozenset[str]:
    events = platform.monitoring.features if platform.monitoring else frozenset()
    has = {
        "L3_CAT": platform.l3 is not None,
        "L3_CDP": platform.l3 is not None and platform.l3.has_cdp,
        "L2_CAT": platform.l2 is not None,
        "MBA": platform.mb is not None,
        "MBA_MBPS": platform.mb is not None and platform.mb.in_mbps,
        "CMT": OCCUPANCY in events,
        "MBM": bool({TOTAL_BYTES, LOCAL_BYTES} & events),
    }
    return frozenset(name for name, there in has.items() if there)
