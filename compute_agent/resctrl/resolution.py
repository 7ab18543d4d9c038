"""Resolve classes and guests to exact groups and schemata, without touching the kernel.

For each domain of a guest the first applicable rule counts: the amounts allocated to it, its own share, the
share of its class. A domain without a rule stays open. Slow memory (SMBA), L2 caches without a rule, and
the bandwidth of the default group keep the kernel's values.

CLOSIDs are few, so rules with the same effect share a group. Two classes with equal ranges and percents
always have the same schemata, and a class with all open ways has the schemata of the default group. Rules
are compared, never masks: masks are equal by chance while guests come and go, and threads would move back
and forth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from compute_agent.resctrl.bandwidth import BandwidthUnknownError
from compute_agent.resctrl.groups import DEFAULT_GROUP, ResctrlGroups
from compute_agent.resctrl.layout import ResctrlLayout, cache_mask
from compute_agent.resctrl.schemata import Schemata, WayMask
from compute_agent.resctrl.share_spec import BadShareError, ShareSpec, WayRange
from compute_agent.resctrl.ways import NO_WAYS, MaskMove, WayAssignment, assign_ways

ShareKey = tuple[tuple[WayRange, ...], tuple[int, ...]]
"""The range on each L3 cache for code and data, the range on L2 caches, and the percent on each MB domain."""


@dataclass(frozen=True, slots=True)
class GroupSharing:
    """The group of each class by name, and the first group with each ``ShareKey``."""

    by_class: Mapping[str, str]
    by_key: Mapping[ShareKey, str]

    @property
    def needed_groups(self) -> tuple[str, ...]:
        """The groups that classes need beside the default group, in the order of the classes."""
        return tuple(dict.fromkeys(group for group in self.by_class.values() if group != DEFAULT_GROUP))

    def group_with(self, host: ResctrlLayout, share: ShareSpec) -> str | None:
        """The group of a class with the effect of a share; None without one."""
        key = share_key(host, share)
        return None if key is None else self.by_key.get(key)


def share_groups(
    host: ResctrlLayout, classes: Mapping[str, ShareSpec], present: ResctrlGroups
) -> GroupSharing:
    """The groups of the classes. The first of several equal classes names their group."""
    by_key: dict[ShareKey, str] = {}
    # The default group costs no CLOSID, but only uncapped it has the effect of an empty share.
    nothing_asked = share_key(host, ShareSpec())
    if nothing_asked is not None and _is_default_uncapped(host, present):
        by_key[nothing_asked] = DEFAULT_GROUP
    by_class = {}
    for name, share in classes.items():
        group, key = host.class_group(name), share_key(host, share)
        by_class[name] = group if key is None else by_key.setdefault(key, group)
    return GroupSharing(by_class, by_key)


def share_key(host: ResctrlLayout, share: ShareSpec) -> ShareKey | None:
    """The effect of a share as a key; None where guests may not share a group.

    Guests may not share a group where a cap applies to all tasks of a group together: each guest needs a cap
    of its own.
    """
    cache_control, control = host.platform.l3, host.platform.mb
    caches = cache_control.ids if cache_control else ()
    resources = cache_control.resources if cache_control else ()
    asked_ranges = [share.range_on(cache, resource) for resource in resources for cache in caches]
    if host.platform.l2:
        asked_ranges.append(share.l2)
    # No range and 0-100 have the same effect.
    ranges = tuple(one or WayRange(0, 100) for one in asked_ranges)
    if control is None or host.codec is None:
        return ranges, ()
    asked = [share.percent_on(domain) for domain in control.ids]
    percents = tuple(100 if percent is None else percent for percent in asked)
    if host.codec.shares_cap and min(percents, default=100) < 100:
        return None
    return ranges, percents


def _is_default_uncapped(host: ResctrlLayout, present: ResctrlGroups) -> bool:
    """Whether the default group has 100 percent. The agent never sets its bandwidth."""
    control, codec = host.platform.mb, host.codec
    if control is None or codec is None:
        return True
    try:
        # Values instead of percents: 99.9 % would be rounded to 100.
        return all(
            codec.encode_percent(domain, 100) == present.default_group.schemata.get_value("MB", domain)
            for domain in control.ids
        )
    except BandwidthUnknownError:
        return True  # without a known 100 % no bandwidth is ever set


def group_schemata(
    host: ResctrlLayout,
    share: ShareSpec,
    bandwidth: Mapping[int, int],
    own: Mapping[int, WayMask],
    taken: Mapping[int, WayMask],
    way_limits: Mapping[int, int] = MappingProxyType({}),
) -> Schemata:
    """The L3 and MB lines of a group.

    :param bandwidth: percent allocated to the group, by L3 cache id.
    :param own: exclusive ways of the group, by L3 cache id.
    :param taken: exclusive ways of all groups, by L3 cache id.
    :param way_limits: the most ways, by L3 cache id.
    """
    masks = cache_lines(host, share, own, taken, way_limits)
    control, codec = host.platform.mb, host.codec
    if control is None or codec is None:
        return masks
    percents = {host.platform.mb_domain(cache): percent for cache, percent in bandwidth.items()}
    values = {}
    for domain in control.ids:
        asked = percents.get(domain, share.percent_on(domain))
        # 100 is written, too: a group that existed may have a cap from an earlier rule.
        values[domain] = codec.encode_percent(domain, 100 if asked is None else asked)
    return masks.updated_with(Schemata({control.resource: values}))


def cache_lines(
    host: ResctrlLayout,
    share: ShareSpec,
    own: Mapping[int, WayMask],
    taken: Mapping[int, WayMask],
    way_limits: Mapping[int, int] = MappingProxyType({}),
) -> Schemata:
    """The L3 lines of a group. Exclusive ways are for code and data alike.

    Parameters are those of :func:`group_schemata`.
    """
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
                if control.rules.find_fault(mask):  # the range begins with too short a run
                    mask = open_ways
                # The lowest ways, so that all limited guests of a class lie in the same ones.
                cut = WayMask.from_ways(list(mask)[: way_limits.get(cache)])
                if not control.rules.find_fault(cut):  # a sparse mask may begin with a run that is too short
                    mask = cut
            masks[cache] = mask.bits
    return Schemata(lines)


def l2_lines(host: ResctrlLayout, share: ShareSpec, present: ResctrlGroups, name: str) -> Schemata:
    """The L2 lines of a group; none where it has no rule and the masks of the default group."""
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
                masks[cache] = default  # left from an earlier rule of its class
    return Schemata(lines)


@dataclass(frozen=True, slots=True)
class GuestDemand:
    """The demand of one guest.

    :ivar ways: exclusive ways allocated to the group, by L3 cache id.
    :ivar bandwidth: percent allocated to the group, by L3 cache id.
    :ivar share: the share that the group requests.
    :ivar way_limits: temporary upper limits by L3 cache id. The limits also cut allocations.
    :ivar bandwidth_limits: the same in percent of bandwidth.
    :ivar reserved: whether a group is kept free for this guest. Such guests come first when groups are
        short, then guests of higher priority.
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
        """Whether cache ways or bandwidth are allocated to it."""
        return any(self.ways.values()) or any(self.bandwidth.values())


@dataclass(frozen=True, slots=True)
class TargetGroup:
    """A wanted group: its schemata, and its exclusive ways by L3 cache id."""

    name: str
    schemata: Schemata
    exclusive: Mapping[int, WayMask] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupResolution:
    """The wanted groups and their members.

    :ivar groups: by name, the default group included.
    :ivar membership: the group of each guest.
    :ivar moves: rewritings of exclusive masks in their order, by L3 cache id. Owners are groups.
    :ivar refused: reasons by name of a guest, and by group for classes.
    """

    groups: Mapping[str, TargetGroup]
    membership: Mapping[str, str]
    moves: Mapping[int, tuple[MaskMove, ...]]
    refused: Mapping[str, tuple[str, ...]]


_RefusalRecorder = Callable[[str, str], None]


def resolve_groups(
    host: ResctrlLayout,
    classes: Mapping[str, ShareSpec],
    demands: Iterable[GuestDemand],
    present: ResctrlGroups,
    max_groups: int | None = None,
    barred: Mapping[str, str] = MappingProxyType({}),
) -> GroupResolution:
    """The groups and schemata of all classes and guests.

    An impossible rule is refused, and the next one applies.

    When groups are short, classes come first, then guests with a reserved group, then allocations, then
    annotations and limits. Within each rank, existing groups come first, then guests of higher priority.

    :param max_groups: the most groups, where the kernel has fewer than its files show.
    :param barred: the reason for each group that cannot be made.
    """
    refused: dict[str, list[str]] = {}

    def record_refusal(name: str, reason: str) -> None:
        # Two rules of a guest may fail for the same reason, which is reported once.
        if reason not in refused.setdefault(name, []):
            refused[name].append(reason)

    for name, share in classes.items():
        for reason in share.unknown_domains(host.platform):
            record_refusal(host.class_group(name), reason)
    usable = {
        name: _usable_share(host, share, host.class_group(name), record_refusal)
        for name, share in classes.items()
    }
    sharing = share_groups(host, usable, present)
    # Names break ties, so that equal inputs give equal groups.
    guests = sorted(
        (_possible_demand(host, usable, demand, record_refusal) for demand in demands),
        key=lambda demand: (-demand.priority, demand.guest),
    )
    capacity = (
        _group_capacity(host, present)
        if max_groups is None
        else min(max_groups, _group_capacity(host, present))
    )
    names = _admitted_groups(host, usable, sharing, guests, present, capacity, barred)
    shortage = f"all {capacity} resctrl groups are taken"
    for name, group in sharing.by_class.items():
        if group not in names:
            record_refusal(host.class_group(name), barred.get(group, shortage))
    membership = {
        demand.guest: _group_of(host, usable, sharing, demand, names, barred, shortage, record_refusal)
        for demand in guests
    }
    # After the membership: a guest without a group of its own gets no exclusive ways.
    exclusive = _exclusive_ways(host, guests, membership, present, record_refusal)
    taken = {cache: WayMask.union_of(found.masks.values()) for cache, found in exclusive.items()}

    groups = {DEFAULT_GROUP: TargetGroup(DEFAULT_GROUP, cache_lines(host, ShareSpec(), {}, taken))}
    shares: dict[str, ShareSpec] = {}
    for name, share in usable.items():
        group = sharing.by_class[name]
        # Classes that share a group have the same effect, so the share of the first one counts.
        shares.setdefault(group, share)
        if group in names and group not in groups:
            groups[group] = TargetGroup(group, group_schemata(host, share, {}, {}, taken))
    for demand in guests:
        group = membership[demand.guest]
        # The group of a class, or of guests with equal shares, already has its lines.
        if group not in groups:
            own = {cache: found.masks[group] for cache, found in exclusive.items() if group in found.masks}
            # Amounts are of one guest, so they count only in a group of its own.
            bandwidth = demand.bandwidth if group == host.guest_group(demand.guest) else {}
            share = demand.share.overlaid_on(usable.get(demand.qos_class, ShareSpec()))
            shares[group] = share
            lines = group_schemata(host, share, bandwidth, own, taken, demand.way_limits)
            groups[group] = TargetGroup(group, lines, own)
    # L2 caches have no exclusive ways, so their lines depend on nothing else.
    for name in groups.keys() - {DEFAULT_GROUP}:
        lines = l2_lines(host, shares.get(name, ShareSpec()), present, name)
        groups[name] = replace(groups[name], schemata=groups[name].schemata.updated_with(lines))
    moves = {cache: found.moves for cache, found in exclusive.items() if found.moves}
    return GroupResolution(groups, membership, moves, {name: tuple(why) for name, why in refused.items()})


def _usable_share(
    host: ResctrlLayout, share: ShareSpec, name: str, record_refusal: _RefusalRecorder
) -> ShareSpec:
    """The share without parts that the platform lacks: masks of code or L2, a bandwidth without a value."""
    share, reasons = share.without_unsupported(host.platform)
    for reason in reasons:
        record_refusal(name, reason)
    codec, control = host.codec, host.platform.mb
    if codec is None or control is None:
        return replace(share, mb=None, mb_per_cache={})
    for domain in control.ids:
        percent = share.percent_on(domain)
        try:
            if percent is not None:
                codec.encode_percent(domain, percent)
        except BandwidthUnknownError as error:
            # The bandwidth of one domain is as unknown as that of all others.
            record_refusal(name, str(error))
            return replace(share, mb=None, mb_per_cache={})
    return share


def _possible_demand(
    host: ResctrlLayout,
    classes: Mapping[str, ShareSpec],
    demand: GuestDemand,
    record_refusal: _RefusalRecorder,
) -> GuestDemand:
    """The demand without parts that the platform lacks, and cut to its limits."""
    share = demand.share
    try:
        share.check_supported(host.platform)
    # The guest keeps the ways that it holds by its allocation; only the share on top is refused.
    except BadShareError as error:
        record_refusal(demand.guest, str(error))
        share = ShareSpec()
    share = _usable_share(host, share, demand.guest, record_refusal)
    ways, bandwidth = {}, {}
    for cache, count in demand.ways.items():
        if count and cache not in host.partitions:
            record_refusal(demand.guest, f"L3 cache {cache} has no ways to allocate")
        elif count:
            ways[cache] = count
    for cache, percent in demand.bandwidth.items():
        domain = host.platform.mb_domain(cache)
        if not percent:
            continue
        if host.codec is None or domain is None:
            record_refusal(demand.guest, f"this host cannot control the bandwidth of L3 cache {cache}")
            continue
        try:
            host.codec.encode_percent(domain, percent)
            bandwidth[cache] = percent
        except BandwidthUnknownError as error:
            record_refusal(demand.guest, str(error))
    demand = replace(demand, share=share, ways=ways, bandwidth=bandwidth)
    if demand.way_limits or demand.bandwidth_limits:
        demand = _limited_demand(host, classes.get(demand.qos_class, ShareSpec()), demand, record_refusal)
    return demand


def _limited_demand(
    host: ResctrlLayout, of_class: ShareSpec, demand: GuestDemand, record_refusal: _RefusalRecorder
) -> GuestDemand:
    """The demand cut to its limits. Limits on ways stay in it where the guest has no exclusive ways."""
    ways, bandwidth, percents = dict(demand.ways), dict(demand.bandwidth), dict(demand.share.mb_per_cache)
    way_limits = {}
    for cache, limit in demand.way_limits.items():
        partition = host.partitions.get(cache)
        if partition is None:
            record_refusal(demand.guest, f"this host cannot control the ways of L3 cache {cache}")
            continue
        limit = max(limit, partition.rules.min_bits, 1)  # a mask is never shorter
        if cache in ways:
            ways[cache] = min(ways[cache], limit)
        else:
            way_limits[cache] = limit
    rest = demand.share.overlaid_on(of_class)
    for cache, limit in demand.bandwidth_limits.items():
        domain = host.platform.mb_domain(cache)
        if host.codec is None or domain is None:
            record_refusal(demand.guest, f"this host cannot control the bandwidth of L3 cache {cache}")
            continue
        # A lower limit would become the hardware's minimum in any case.
        limit = max(limit, host.codec.min_percent)
        if cache in bandwidth:
            bandwidth[cache] = min(bandwidth[cache], limit)
            continue
        percent = rest.percent_on(domain)
        # A limit above the share would give the guest more than it has without a limit.
        if limit < (100 if percent is None else percent):
            percents[domain] = limit
    share = replace(demand.share, mb_per_cache=percents)
    return replace(demand, ways=ways, bandwidth=bandwidth, share=share, way_limits=way_limits)


def _own_group(
    host: ResctrlLayout, classes: Mapping[str, ShareSpec], sharing: GroupSharing, demand: GuestDemand
) -> str | None:
    """The group that a guest needs beside the group of its class; None where the class is enough.

    Guests with equal annotations share a group, since their ways overlap anyway, unless they would share a
    cap. An annotation with the effect of a class, or of the default group, needs no group of its own.
    """
    if demand.is_allocated:
        return host.guest_group(demand.guest)
    share = demand.share
    if not share and not demand.way_limits:
        return None
    # One cap for several guests would let one of them take the bandwidth of the others.
    capped = any(percent < 100 for percent in (share.mb, *share.mb_per_cache.values()) if percent is not None)
    if capped and host.codec is not None and host.codec.shares_cap:
        return host.guest_group(demand.guest)
    whole = share.overlaid_on(classes.get(demand.qos_class, ShareSpec()))
    # Limits are temporary and part of no key, so such a guest has a group of its own meanwhile.
    same = None if demand.way_limits else sharing.group_with(host, whole)
    return host.share_group(whole, demand.way_limits) if same is None else same


def _group_capacity(host: ResctrlLayout, present: ResctrlGroups) -> int:
    """Maximum number of groups, including foreign ones, that the CLOSIDs and RMIDs allow."""
    max_groups, monitoring = host.platform.max_groups, host.platform.monitoring
    if monitoring is None:
        return max_groups
    # Each control group and each monitoring group has an RMID. Existing groups have theirs already.
    taken = sum(1 + len(group.monitoring_groups) for group in present.groups.values())
    return min(max_groups, len(present.groups) + max(0, monitoring.rmids - taken))


def _admitted_groups(
    host: ResctrlLayout,
    classes: Mapping[str, ShareSpec],
    sharing: GroupSharing,
    demands: Sequence[GuestDemand],
    present: ResctrlGroups,
    capacity: int,
    barred: Collection[str],
) -> frozenset[str]:
    """The names of the groups with room, the default group included."""
    # Foreign groups have CLOSIDs, too.
    foreign = sum(1 for name in present.groups if name != DEFAULT_GROUP and not host.is_ours(name))
    wanted: dict[str, tuple[int, bool]] = dict.fromkeys(sharing.needed_groups, (0, False))
    for demand in demands:
        group = _own_group(host, classes, sharing, demand)
        if group is not None and group != DEFAULT_GROUP:
            rank = (1 if demand.reserved else 2 if demand.is_allocated else 3, group not in present.groups)
            # Guests with equal shares have one group, and the most important of them gives its rank.
            wanted[group] = min(rank, wanted.get(group, rank))
    # The sort is stable: classes stay in their configured order, guests in that of their priority.
    order = sorted((name for name in wanted if name not in barred), key=wanted.__getitem__)
    admitted = order[: max(0, capacity - 1 - foreign)]  # the default group is 1
    return frozenset((DEFAULT_GROUP, *admitted))


def _group_of(
    host: ResctrlLayout,
    classes: Mapping[str, ShareSpec],
    sharing: GroupSharing,
    demand: GuestDemand,
    names: frozenset[str],
    barred: Mapping[str, str],
    shortage: str,
    record_refusal: _RefusalRecorder,
) -> str:
    group = _own_group(host, classes, sharing, demand)
    if group is not None:
        if group in names:
            return group
        record_refusal(demand.guest, barred.get(group, shortage))
    if demand.qos_class and demand.qos_class not in classes:
        record_refusal(demand.guest, f"there is no QoS class {demand.qos_class}")
    group = sharing.by_class.get(demand.qos_class, DEFAULT_GROUP)
    if group in names:
        return group
    # The class has no group either. The default group has all open ways: too much rather than too little.
    record_refusal(demand.guest, barred.get(group, shortage))
    return DEFAULT_GROUP


def _exclusive_ways(
    host: ResctrlLayout,
    demands: Iterable[GuestDemand],
    membership: Mapping[str, str],
    present: ResctrlGroups,
    record_refusal: _RefusalRecorder,
) -> dict[int, WayAssignment]:
    """The exclusive ways of the groups on each cache. Existing groups keep theirs."""
    # Exclusive ways are of groups with a single guest, so one guest for each group is enough.
    guest_of = {group: guest for guest, group in membership.items()}
    wanted: dict[int, dict[str, int]] = {cache: {} for cache in host.partitions}
    for demand in demands:
        group = membership[demand.guest]
        if group == host.guest_group(demand.guest):
            for cache, count in demand.ways.items():
                wanted[cache][group] = count
    found = {}
    for cache, counts in wanted.items():
        held = _held_masks(host, present, cache, counts)
        found[cache] = assign_ways(host.partitions[cache], held, counts)
        for group, reason in found[cache].refused.items():
            record_refusal(guest_of[group], f"L3 cache {cache}: {reason}")
    return found


def _held_masks(
    host: ResctrlLayout, present: ResctrlGroups, cache: int, counts: Mapping[str, int]
) -> dict[str, WayMask]:
    """The exclusive masks in force, the surest first."""
    default = cache_mask(host.platform, present.default_group.schemata, cache)
    sure, likely = {}, {}
    for group, count in sorted(counts.items()):
        if group in present.groups:
            mask = cache_mask(host.platform, present.groups[group].schemata, cache)
            if not mask & default:
                sure[group] = mask
            # A mask that the default group cannot fill is exclusive. A mask of the right size in the pool is
            # kept, too, since another program may have changed the default group meanwhile.
            elif len(mask) == count and host.partitions[cache].pool.contains_mask(mask):
                likely[group] = mask
    return sure | likely
