"""What cache and bandwidth control (resctrl) offers, as far as inventories need to know it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CacheDomain:
    """Control over one L3 cache, named by the cache's own id (the ids of MB may be others).

    ``ways`` is 0 where capacity cannot be controlled; ``bandwidth_min`` and ``bandwidth_step`` (percent) are
    None where bandwidth cannot.
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
    """Control over all L3 caches of a host.

    ``groups`` is the number of CLOSIDs, ``groups_taken`` how many of them are held by something that has no
    allocation: the default group, QoS classes, groups that somebody else made. ``features`` are names such as
    ``L3_CAT``, ``L3_CDP``, ``L2_CAT``, ``MBA``, ``MBA_MBPS``, ``CMT``, ``MBM``.
    """

    domains: Mapping[int, CacheDomain] = field(default_factory=dict, hash=False)
    """By L3 cache id."""
    groups: int = 0
    groups_taken: int = 0
    features: frozenset[str] = frozenset()
