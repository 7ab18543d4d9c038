"""The layout of a resctrl mount: the partitions of its caches, and the names of the agent's groups."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from compute_agent.resctrl.bandwidth import BandwidthCodec
from compute_agent.resctrl.groups import DEFAULT_GROUP, ResctrlGroups
from compute_agent.resctrl.platform import ResctrlPlatform
from compute_agent.resctrl.schemata import Schemata, WayMask
from compute_agent.resctrl.share_spec import ShareSpec
from compute_agent.resctrl.ways import NO_WAYS, WayPartition, partition_ways


@dataclass(frozen=True, slots=True)
class ResctrlLayout:
    """The capabilities of a resctrl mount, the partitions of its caches, and the names of the agent's groups.

    :ivar codec: converts bandwidths; None means that bandwidth cannot be controlled.
    :ivar partitions: the partition of each L3 cache, by its id.
    :ivar prefix: the beginning of the names of the agent's groups.
    """

    platform: ResctrlPlatform
    codec: BandwidthCodec | None
    partitions: Mapping[int, WayPartition]
    prefix: str

    def __post_init__(self) -> None:
        # Without a prefix, each group would count as the agent's. A slash would make another folder, and the
        # kernel refuses a newline in a name.
        if not self.prefix or "/" in self.prefix or "\n" in self.prefix:
            raise ValueError(f"{self.prefix!r} cannot begin the names of groups")

    def is_ours(self, group: str) -> bool:
        """Whether a group belongs to the agent, by its name. Groups of other programs are foreign."""
        return group.startswith(self.prefix)

    def class_group(self, name: str) -> str:
        """The name of the control group for the guests of a QoS class."""
        return f"{self.prefix}class.{name}"

    def guest_group(self, guest: str) -> str:
        """The name of the control group of one guest, which has exclusive ways or a cap of its own."""
        return f"{self.prefix}guest.{guest}"

    def share_group(self, share: ShareSpec, way_limits: Mapping[int, int] = MappingProxyType({})) -> str:
        """The name of the control group for all guests with this share of the cache and these limits.

        :param way_limits: the maximum number of ways, by L3 cache id.
        """
        values = (
            share.llc,
            sorted(share.llc_per_cache.items()),
            share.mb,
            sorted(share.mb_per_cache.items()),
        )
        others = {"code": share.code, "data": share.data, "l2": share.l2}
        # Absent ranges are left out of the text, so that groups keep the names that earlier releases gave
        # them.
        present = [(name, one) for name, one in others.items() if one]
        text = repr((*values, sorted(way_limits.items()), *present))
        # The name has a digest, because exceptions for many caches would exceed the 255 bytes of a name. The
        # word "wish" is from earlier releases. With another word, the groups of running guests would be
        # removed, because no name would match.
        return f"{self.prefix}wish.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def build_layout(
    platform: ResctrlPlatform,
    codec: BandwidthCodec | None,
    present: ResctrlGroups,
    prefix: str,
    shared_ways: int,
) -> ResctrlLayout:
    """Partition the caches of a platform. The ways that other programs' groups have locked are left out.

    :param present: the control groups that exist in the kernel.
    :param prefix: the beginning of the names of the agent's groups.
    :param shared_ways: the number of cache ways that never become exclusive to a group.
    """
    partitions: dict[int, WayPartition] = {}
    if platform.l3:
        for cache in platform.l3.ids:
            locked = NO_WAYS
            for group in present.groups.values():
                # The default group has all ways at first, so it never counts as locked.
                if group.is_locked and group.name != DEFAULT_GROUP and not group.name.startswith(prefix):
                    locked = locked | cache_mask(platform, group.schemata, cache)
            partitions[cache] = partition_ways(platform.l3.rules, platform.l3.shareable, shared_ways, locked)
    return ResctrlLayout(platform, codec, partitions, prefix)


def cache_mask(platform: ResctrlPlatform, schemata: Schemata, cache: int) -> WayMask:
    """The ways of an L3 cache that a group can fill with code or with data."""
    mask = NO_WAYS
    for resource in platform.l3.resources if platform.l3 else ():
        mask = mask | WayMask(schemata.get_value(resource, cache) or 0)
    return mask
