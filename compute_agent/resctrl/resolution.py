"""Computes the resctrl groups and schemata for the shares of classes and guests, without the kernel.

Three rules can apply to a guest on each domain: the amounts allocated to the guest, its own share, and the
share of its class. The first rule that exists applies. A domain without a rule stays open. Slow memory
(SMBA), L2 caches without a rule, and the bandwidth of the default group keep the kernel's values.

The number of CLOSIDs is small, so guests and classes with rules of the same effect share a group. Two classes
with equal ranges and percents always have the same schemata. A class with all open ways has the schemata of
the default group. Rules are compared, not masks. Masks can be equal by chance while guests come and go, and
threads would then move back and forth between groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from compute_agent.resctrl.bandwidth import (
    BandwidthCap,
    BandwidthUnknownError,
    encode_cap,
    is_below_full,
    percent_of_cap,
)
from compute_agent.resctrl.groups import DEFAULT_GROUP, ResctrlGroups
from compute_agent.resctrl.layout import ResctrlLayout, cache_mask
from compute_agent.resctrl.schemata import Schemata, WayMask
from compute_agent.resctrl.share_spec import BadShareError, ShareSpec, WayRange
from compute_agent.resctrl.ways import NO_WAYS, MaskMove, WayAssignment, assign_ways

ShareKey = tuple[tuple[WayRange, ...], tuple[BandwidthCap, ...]]
"""A key for the effect of a share: the ranges on L3 caches for code and data, the range on L2 caches, and the
bandwidth caps.

Two shares with the same key can have the same group.
"""


@dataclass(frozen=True, slots=True)
class GroupSharing:
    """The control groups of QoS classes.

    :ivar by_class: the group of each class, by its name.
    :ivar by_key: the group for each ``ShareKey``. Shares with the same effect have the same key.
    """

    by_class: Mapping[str, str]
    by_key: Mapping[ShareKey, str]

    @property
    def needed_groups(self) -> tuple[str, ...]:
        """The groups that classes need in addition to the default group, in the order of the classes."""
        return tuple(dict.fromkeys(group for group in self.by_class.values() if group != DEFAULT_GROUP))

    def group_with(self, host: ResctrlLayout, share: ShareSpec) -> str | None:
        """The group of a class with the effect of ``share``; None without such a class."""
        key = share_key(host, share)
        return None if key is None else self.by_key.get(key)


def share_groups(
    host: ResctrlLayout, classes: Mapping[str, ShareSpec], present: ResctrlGroups
) -> GroupSharing:
    """Find the control groups of classes. Classes with the same effect share the group of the first one."""
    by_key: dict[ShareKey, str] = {}
    # A class that asks for nothing can use the default group, which needs no further CLOSID. But the default
    # group must not have a bandwidth cap.
    nothing_asked = share_key(host, ShareSpec())
    if nothing_asked is not None and _is_default_uncapped(host, present):
        by_key[nothing_asked] = DEFAULT_GROUP
    by_class = {}
    for name, share in classes.items():
        group, key = host.class_group(name), share_key(host, share)
        by_class[name] = group if key is None else by_key.setdefault(key, group)
    return GroupSharing(by_class, by_key)


def share_key(host: ResctrlLayout, share: ShareSpec) -> ShareKey | None:
    """A key that is equal for shares with the same effect.

    The result is None if guests cannot share a group, because a bandwidth cap of the group would limit the
    sum of all its guests instead of each guest.
    """
    cache_control, control = host.platform.l3, host.platform.mb
    caches = cache_control.ids if cache_control else ()
    resources = cache_control.resources if cache_control else ()
    asked_ranges = [share.range_on(cache, resource) for resource in resources for cache in caches]
    if host.platform.l2:
        asked_ranges.append(share.l2)
    # A missing range has the same effect as the range 0-100.
    ranges = tuple(one or WayRange(0, 100) for one in asked_ranges)
    if control is None or host.codec is None:
        return ranges, ()
    asked = [share.cap_on(domain) for domain in control.ids]
    if host.codec.shares_cap and any(map(is_below_full, asked)):
        return None
    return ranges, tuple(100 if cap is None else cap for cap in asked)


def _is_default_uncapped(host: ResctrlLayout, present: ResctrlGroups) -> bool:
    """Whether the default group has 100 percent of the bandwidth. The agent never changes that bandwidth."""
    control, codec = host.platform.mb, host.codec
    if control is None or codec is None:
        return True
    try:
        # Values are compared and not percents, because 99.9 % would be rounded to 100.
        return all(
            codec.encode_percent(domain, 100) == present.default_group.schemata.get_value("MB", domain)
            for domain in control.ids
        )
    except BandwidthUnknownError:
        return True  # While 100 % is not known, the agent sets no bandwidth.


def group_schemata(
    host: ResctrlLayout,
    share: ShareSpec,
    bandwidth: Mapping[int, int],
    own: Mapping[int, WayMask],
    taken: Mapping[int, WayMask],
    way_limits: Mapping[int, int] = MappingProxyType({}),
) -> Schemata:
    """The L3 and bandwidth lines of a group's schemata.

    :param share: the share of cache and bandwidth that the group has.
    :param bandwidth: the percent that is allocated to the group, by L3 cache id.
    :param own: the ways that only this group can fill, by L3 cache id.
    :param taken: the ways that any group has exclusively, by L3 cache id.
    :param way_limits: the maximum number of ways for the group, by L3 cache id.
    """
    masks = cache_lines(host, share, own, taken, way_limits)
    control, codec = host.platform.mb, host.codec
    if control is None or codec is None:
        return masks
    percents = {host.platform.mb_domain(cache): percent for cache, percent in bandwidth.items()}
    values = {}
    for domain in control.ids:
        asked = percents.get(domain, share.cap_on(domain))
        # The value for 100 % is written, too, because an existing group can have a cap from an earlier rule.
        values[domain] = encode_cap(codec, domain, 100 if asked is None else asked)
    return masks.updated_with(Schemata({"MB": values}))


def cache_lines(
    host: ResctrlLayout,
    share: ShareSpec,
    own: Mapping[int, WayMask],
    taken: Mapping[int, WayMask],
    way_limits: Mapping[int, int] = MappingProxyType({}),
) -> Schemata:
    """The L3 lines of :func:`group_schemata`. Exclusive ways are for both code and data."""
    control = host.platform.l3
    if control is None:
        return Schemata()
    lines: dict[str, dict[int, int]] = {resource: {} for resource in control.resources}
    for resource, masks in lines.items():
        for cache in control.ids:
            mask = own.get(cache)
            if mask is None:
                open_ways = host.partitions[cache].open_ways(taken.get(cache, NO_WAYS))
                asked = share.range_on(cache, resource) or WayRange(0, 100)
                mask = open_ways.percent_range(asked.first, asked.last, control.rules.min_bits)
                # If the range begins with a run of ways that is too short for a mask, the group gets all open
                # ways.
                if control.rules.find_fault(mask):
                    mask = open_ways
                # Limited guests keep the lowest ways, so that all limited guests of a class use the same
                # ways.
                cut = WayMask.from_ways(list(mask)[: way_limits.get(cache)])
                if not control.rules.find_fault(cut):  # A sparse mask can begin with a run that is too short.
                    mask = cut
            masks[cache] = mask.bits
    return Schemata(lines)


def l2_lines(host: ResctrlLayout, share: ShareSpec, present: ResctrlGroups, name: str) -> Schemata:
    """The L2 lines of a group; empty if no rule applies and it has the masks of the default group."""
    control = host.platform.l2
    if control is None:
        return Schemata()
    all_ways = control.rules.all_ways
    group = present.groups.get(name)
    lines: dict[str, dict[int, int]] = {resource: {} for resource in control.resources}
    for resource, masks in lines.items():
        for cache in control.ids:
            default = present.default_group.schemata.get_value(resource, cache)
            if share.l2 is not None:
                masks[cache] = all_ways.percent_range(
                    share.l2.first, share.l2.last, control.rules.min_bits
                ).bits
            elif group is not None and default and group.schemata.get_value(resource, cache) != default:
                masks[cache] = default  # the present mask is from an earlier rule of its class
    return Schemata(lines)


@dataclass(frozen=True, slots=True)
class GuestDemand:
    """The demand of one guest on cache and bandwidth.

    :ivar guest: the uuid of the guest.
    :ivar ways: the exclusive ways that are allocated to the guest, by L3 cache id.
    :ivar bandwidth: the percent that is allocated to the guest, by L3 cache id.
    :ivar share: the share of open ways and of bandwidth that the guest asks for.
    :ivar way_limits: temporary limits on ways, by L3 cache id. These limits also apply to allocated ways.
    :ivar bandwidth_limits: temporary limits in percent of bandwidth, by L3 cache id.
    :ivar reserved: whether a group is kept free for this guest. When groups are short, such guests come
        first, and then guests of higher priority.
    """

    guest: str
    qos_class: str = ""
    ways: Mapping[int, int] = field(default_factory=dict, hash=False)
    bandwidth: Mapping[int, int] = field(default_factory=dict, hash=False)
    share: ShareSpec = field(default_factory=ShareSpec)
    priority: int = 0
    way_limits: Mapping[int, int] = field(default_factory=dict, hash=False)
    bandwidth_limits: Mapping[int, int] = field(default_factory=dict, hash=False)
    reserved: bool = False

    @property
    def is_allocated(self) -> bool:
        """Whether cache ways or bandwidth are allocated to the guest."""
        return any(self.ways.values()) or any(self.bandwidth.values())


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """A control group that should exist.

    :ivar schemata: the values that the group should have.
    :ivar exclusive: the ways that only this group can fill, by L3 cache id.
    """

    name: str
    schemata: Schemata
    exclusive: Mapping[int, WayMask] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupResolution:
    """The control groups that should exist, and the guests in them.

    :ivar groups: the groups by name, including the default group.
    :ivar membership: the control group of each guest, by uuid of the guest.
    :ivar moves: the changes of exclusive masks in their order, by L3 cache id. The owners of masks in these
        changes are groups.
    :ivar refused: messages about rules that cannot be met: by uuid for guests, and by group for classes.
    """

    groups: Mapping[str, TargetGroup]
    membership: Mapping[str, str]
    moves: Mapping[int, tuple[MaskMove, ...]]
    refused: Mapping[str, tuple[str, ...]]


def resolve_groups(
    host: ResctrlLayout,
    classes: Mapping[str, ShareSpec],
    demands: Iterable[GuestDemand],
    present: ResctrlGroups,
    max_groups: int | None = None,
    barred: Mapping[str, str] = MappingProxyType({}),
) -> GroupResolution:
    """Resolve the groups and schemata of all classes and guests.

    A rule that cannot be met is refused, and the next rule applies instead. When groups are short, classes
    come first, then guests with a reserved group, then guests with an allocation, then guests with
    annotations or limits. Within each rank, existing groups come first, then guests of higher priority.

    :param present: the control groups that exist in the kernel.
    :param max_groups: the maximum number of groups, if the kernel has refused to make more.
    :param barred: for each group that cannot be made, the reason.
    """
    return _GroupResolver(host, classes, present, barred, max_groups).resolve_demands(demands)


class _GroupResolver:
    """Resolves the groups of one host, and collects the rules that it refuses."""

    def __init__(
        self,
        host: ResctrlLayout,
        classes: Mapping[str, ShareSpec],
        present: ResctrlGroups,
        barred: Mapping[str, str],
        max_groups: int | None,
    ) -> None:
        self.host = host
        self.present = present
        self.barred = barred
        self.refused: dict[str, list[str]] = {}
        for name, share in classes.items():
            for reason in share.unknown_domains(host.platform):
                self.refuse_rule(host.class_group(name), reason)
        self.classes = {
            name: self.usable_share(share, host.class_group(name)) for name, share in classes.items()
        }
        self.sharing = share_groups(host, self.classes, present)
        fitting = self.group_capacity()
        self.capacity = fitting if max_groups is None else min(max_groups, fitting)

    def refuse_rule(self, name: str, reason: str) -> None:
        """Record that a guest or a class does not get one of its rules."""
        # If two rules of a guest fail for the same reason, the reason is reported once.
        if reason not in self.refused.setdefault(name, []):
            self.refused[name].append(reason)

    def resolve_demands(self, demands: Iterable[GuestDemand]) -> GroupResolution:
        """Resolve the groups of the classes and of the guests with these demands."""
        host = self.host
        # Equal priorities are ordered by name, so that equal inputs give equal groups.
        guests = sorted(map(self.possible_demand, demands), key=lambda one: (-one.priority, one.guest))
        names = self.admitted_groups(guests)
        for name, group in self.sharing.by_class.items():
            if group not in names:
                self.refuse_group(host.class_group(name), group)
        membership = {demand.guest: self.group_of(demand, names) for demand in guests}
        # Exclusive ways are assigned after the groups, because a guest without a group of its own gets no
        # exclusive ways.
        exclusive = self.exclusive_ways(guests, membership)
        taken = {cache: WayMask.union_of(found.masks.values()) for cache, found in exclusive.items()}

        groups = {DEFAULT_GROUP: TargetGroup(DEFAULT_GROUP, cache_lines(host, ShareSpec(), {}, taken))}
        shares: dict[str, ShareSpec] = {}
        for name, share in self.classes.items():
            group = self.sharing.by_class[name]
            # Classes that share a group have the same effect, so the share of the first class is used for
            # all.
            shares.setdefault(group, share)
            if group in names and group not in groups:
                groups[group] = TargetGroup(group, group_schemata(host, share, {}, {}, taken))
        for demand in guests:
            group = membership[demand.guest]
            # If the guest shares a group with its class or with guests of equal shares, the group already has
            # its schemata.
            if group not in groups:
                own = {
                    cache: found.masks[group] for cache, found in exclusive.items() if group in found.masks
                }
                # Allocated amounts belong to one guest, so they apply only to a group of its own.
                bandwidth = demand.bandwidth if group == host.guest_group(demand.guest) else {}
                share = shares[group] = self.whole_share(demand)
                lines = group_schemata(host, share, bandwidth, own, taken, demand.way_limits)
                groups[group] = TargetGroup(group, lines, own)
        # L2 caches have no exclusive ways, so their lines depend on the share alone.
        for name in groups.keys() - {DEFAULT_GROUP}:
            lines = l2_lines(host, shares.get(name, ShareSpec()), self.present, name)
            groups[name] = replace(groups[name], schemata=groups[name].schemata.updated_with(lines))
        moves = {cache: found.moves for cache, found in exclusive.items() if found.moves}
        refused = {name: tuple(reasons) for name, reasons in self.refused.items()}
        return GroupResolution(groups, membership, moves, refused)

    def refuse_group(self, name: str, group: str) -> None:
        """Record that a guest or a class does not get its group."""
        self.refuse_rule(name, self.barred.get(group, f"all {self.capacity} resctrl groups are taken"))

    def whole_share(self, demand: GuestDemand) -> ShareSpec:
        """The share of a guest, completed by the share of its class."""
        return demand.share.overlaid_on(self.classes.get(demand.qos_class, ShareSpec()))

    def usable_share(self, share: ShareSpec, name: str) -> ShareSpec:
        """The share without its unsupported parts. Each of these parts is recorded as refused for ``name``.

        For example, masks for code need CDP, and a percent of bandwidth can need the full bandwidth.
        """
        share, reasons = share.without_unsupported(self.host.platform)
        for reason in reasons:
            self.refuse_rule(name, reason)
        codec, control = self.host.codec, self.host.platform.mb
        if codec is None or control is None:
            return replace(share, mb=None, mb_per_cache={})

        def has_value(domain: int, cap: BandwidthCap) -> bool:
            try:
                encode_cap(codec, domain, cap)
            except BandwidthUnknownError as error:
                self.refuse_rule(name, str(error))
                return False
            return True

        # Only the first domain is checked: a cap that has no value there has no value on any other domain.
        known = share.mb is None or not control.ids or has_value(control.ids[0], share.mb)
        exceptions = {
            domain: cap
            for domain, cap in share.mb_per_cache.items()
            if domain not in control.ids or has_value(domain, cap)
        }
        return replace(share, mb=share.mb if known else None, mb_per_cache=exceptions)

    def possible_demand(self, demand: GuestDemand) -> GuestDemand:
        """The demand of a guest, without values that the platform does not support, and within its limits."""
        share = demand.share
        try:
            share.check_supported(self.host.platform)
        # Only the share is refused: the guest keeps its allocated ways.
        except BadShareError as error:
            self.refuse_rule(demand.guest, str(error))
            share = ShareSpec()
        share = self.usable_share(share, demand.guest)
        ways, bandwidth = {}, {}
        for cache, count in demand.ways.items():
            if count and cache not in self.host.partitions:
                self.refuse_rule(demand.guest, f"L3 cache {cache} has no ways to allocate")
            elif count:
                ways[cache] = count
        for cache, percent in demand.bandwidth.items():
            domain = self.controlled_domain(demand.guest, cache) if percent else None
            if domain is None or self.host.codec is None:
                continue
            try:
                self.host.codec.encode_percent(domain, percent)
                bandwidth[cache] = percent
            except BandwidthUnknownError as error:
                self.refuse_rule(demand.guest, str(error))
        demand = replace(demand, share=share, ways=ways, bandwidth=bandwidth)
        return self.limited_demand(demand) if demand.way_limits or demand.bandwidth_limits else demand

    def controlled_domain(self, guest: str, cache: int) -> int | None:
        """The bandwidth domain of an L3 cache; None, with a refusal, if it cannot be controlled."""
        domain = None if self.host.codec is None else self.host.platform.mb_domain(cache)
        if domain is None:
            self.refuse_rule(guest, f"this host cannot control the bandwidth of L3 cache {cache}")
        return domain

    def limited_demand(self, demand: GuestDemand) -> GuestDemand:
        """The demand of a guest within its limits.

        Limits lower the allocated ways and bandwidth. On caches without allocated ways, limits on ways stay
        in ``way_limits``. On domains without allocated bandwidth, limits on bandwidth become caps of the
        share.
        """
        ways, bandwidth, caps = dict(demand.ways), dict(demand.bandwidth), dict(demand.share.mb_per_cache)
        way_limits = {}
        for cache, limit in demand.way_limits.items():
            partition = self.host.partitions.get(cache)
            if partition is None:
                self.refuse_rule(demand.guest, f"this host cannot control the ways of L3 cache {cache}")
                continue
            limit = max(limit, partition.rules.min_bits, 1)  # A mask needs at least min_bits ways.
            if cache in ways:
                ways[cache] = min(ways[cache], limit)
            else:
                way_limits[cache] = limit
        rest = self.whole_share(demand)
        for cache, limit in demand.bandwidth_limits.items():
            domain = self.controlled_domain(demand.guest, cache)
            if domain is None or self.host.codec is None:
                continue
            # The lowest limit that the hardware accepts.
            limit = max(limit, self.host.codec.min_percent)
            if cache in bandwidth:
                bandwidth[cache] = min(bandwidth[cache], limit)
                continue
            cap = rest.cap_on(domain)
            # A limit above the share would give the guest more than it has without the limit.
            if limit < (100 if cap is None else percent_of_cap(self.host.codec, domain, cap)):
                caps[domain] = limit
        share = replace(demand.share, mb_per_cache=caps)
        return replace(demand, ways=ways, bandwidth=bandwidth, share=share, way_limits=way_limits)

    def own_group(self, demand: GuestDemand) -> str | None:
        """The group that a guest needs in addition to the group of its class; None if that group is enough.

        Guests with equal annotations share a group, because their ways overlap in any case. However, such
        guests get separate groups if a bandwidth cap would hold for all of them together. An annotation with
        the same effect as a class or the default group needs no group of its own.
        """
        host, share = self.host, demand.share
        if demand.is_allocated:
            return host.guest_group(demand.guest)
        if not share and not demand.way_limits:
            return None
        # If several guests shared one cap, one of them could use the bandwidth of all.
        capped = any(map(is_below_full, (share.mb, *share.mb_per_cache.values())))
        if capped and host.codec is not None and host.codec.shares_cap:
            return host.guest_group(demand.guest)
        whole = self.whole_share(demand)
        # Limits are temporary and not part of the key, so a guest gets another group while it is limited.
        same = None if demand.way_limits else self.sharing.group_with(host, whole)
        return host.share_group(whole, demand.way_limits) if same is None else same

    def group_capacity(self) -> int:
        """The maximum number of groups, including foreign ones, that the CLOSIDs and RMIDs allow."""
        max_groups, monitoring = self.host.platform.max_groups, self.host.platform.monitoring
        if monitoring is None:
            return max_groups
        # Each control group and each monitoring group needs an RMID. Existing groups have theirs already.
        present = self.present.groups
        taken = sum(1 + len(group.monitoring_groups) for group in present.values())
        return min(max_groups, len(present) + max(0, monitoring.rmids - taken))

    def admitted_groups(self, demands: Sequence[GuestDemand]) -> frozenset[str]:
        """The groups for which CLOSIDs and RMIDs are left, including the default group."""
        present = self.present.groups
        # Foreign groups need CLOSIDs, too.
        foreign = sum(1 for name in present if name != DEFAULT_GROUP and not self.host.is_ours(name))
        wanted: dict[str, tuple[int, bool]] = dict.fromkeys(self.sharing.needed_groups, (0, False))
        for demand in demands:
            group = self.own_group(demand)
            if group is not None and group != DEFAULT_GROUP:
                rank = (1 if demand.reserved else 2 if demand.is_allocated else 3, group not in present)
                # Guests with equal shares have one group, which gets the rank of its most important guest.
                wanted[group] = min(rank, wanted.get(group, rank))
        # The sort is stable: classes keep their configured order, and guests the order of their priority.
        order = sorted((name for name in wanted if name not in self.barred), key=wanted.__getitem__)
        admitted = order[: max(0, self.capacity - 1 - foreign)]  # 1 is for the default group.
        return frozenset((DEFAULT_GROUP, *admitted))

    def group_of(self, demand: GuestDemand, names: frozenset[str]) -> str:
        """The group of a guest among the admitted groups ``names``."""
        group = self.own_group(demand)
        if group is not None:
            if group in names:
                return group
            self.refuse_group(demand.guest, group)
        if demand.qos_class and demand.qos_class not in self.classes:
            self.refuse_rule(demand.guest, f"there is no QoS class {demand.qos_class}")
        group = self.sharing.by_class.get(demand.qos_class, DEFAULT_GROUP)
        if group in names:
            return group
        # In this case, no group is left for the class either. The guest stays in the default group with all
        # open ways, because too many ways are better than too few.
        self.refuse_group(demand.guest, group)
        return DEFAULT_GROUP

    def exclusive_ways(
        self, demands: Iterable[GuestDemand], membership: Mapping[str, str]
    ) -> dict[int, WayAssignment]:
        """The exclusive ways of the groups on each cache. Existing groups keep their ways if possible."""
        # Only a group of a single guest has exclusive ways, so one guest for each group is enough.
        guest_of = {group: guest for guest, group in membership.items()}
        wanted: dict[int, dict[str, int]] = {cache: {} for cache in self.host.partitions}
        for demand in demands:
            group = membership[demand.guest]
            if group == self.host.guest_group(demand.guest):
                for cache, count in demand.ways.items():
                    wanted[cache][group] = count
        found = {}
        for cache, counts in wanted.items():
            found[cache] = assign_ways(self.host.partitions[cache], self.held_masks(cache, counts), counts)
            for group, reason in found[cache].refused.items():
                self.refuse_rule(guest_of[group], f"L3 cache {cache}: {reason}")
        return found

    def held_masks(self, cache: int, counts: Mapping[str, int]) -> dict[str, WayMask]:
        """The exclusive masks that groups have now. The masks that are certainly exclusive come first."""
        platform, present = self.host.platform, self.present
        default = cache_mask(platform, present.default_group.schemata, cache)
        sure, likely = {}, {}
        for group, count in sorted(counts.items()):
            if group in present.groups:
                mask = cache_mask(platform, present.groups[group].schemata, cache)
                if not mask & default:
                    sure[group] = mask
                # A mask without ways of the default group is certainly exclusive. A mask of the right size in
                # the pool is kept, too, because another program may have changed the default group.
                elif len(mask) == count and self.host.partitions[cache].pool.contains_mask(mask):
                    likely[group] = mask
        return sure | likely
