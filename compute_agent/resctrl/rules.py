"""Who gets what: configuration and guests resolved to exact schemata, without touching the kernel.

For each domain of a guest the first of these that says something applies: what it was given for itself, its
own wish, that of its class; what nobody speaks of stays open. Slow memory, and caches of level 2 of which
nobody speaks, are left as the kernel made them, and so are these and the bandwidth of the default group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from compute_agent.resctrl.bandwidth import BandwidthUnknownError
from compute_agent.resctrl.group_schemata import cache_lines, group_schemata, l2_lines
from compute_agent.resctrl.host import Host, cache_mask
from compute_agent.resctrl.masks import Mask
from compute_agent.resctrl.reader import DEFAULT_GROUP, Present
from compute_agent.resctrl.schemata import Schemata
from compute_agent.resctrl.sharing import Sharing, share_groups
from compute_agent.resctrl.ways import Move, WayAssignment, assign
from compute_agent.resctrl.wishes import BadWishError, Wish


@dataclass(frozen=True, slots=True)
class Demand:
    """A guest.

    ``ways`` and ``bandwidth`` (percent) are given to it by L3 cache id, ``wish`` is what it asks for.

    ``way_limits`` and ``bandwidth_limits`` hold it down for the time being, by L3 cache id: it gets no more
    than that, whoever gave it. ``reserved``: whoever asks keeps a group free for it. Such guests get groups
    first when there are not enough, then those of a higher priority.
    """

    guest: str
    qos_class: str = ""
    ways: Mapping[int, int] = field(default_factory=dict, hash=False)
    bandwidth: Mapping[int, int] = field(default_factory=dict, hash=False)
    wish: Wish = field(default_factory=Wish)
    priority: int = 0
    way_limits: Mapping[int, int] = field(default_factory=dict, hash=False)
    bandwidth_limits: Mapping[int, int] = field(default_factory=dict, hash=False)
    reserved: bool = False

    @property
    def allocated(self) -> bool:
        """Whether cache ways or bandwidth were given to it."""
        return any(self.ways.values()) or any(self.bandwidth.values())


@dataclass(frozen=True, slots=True)
class WantedGroup:
    """A group that should be: the schemata it should have, and which ways are its own, by L3 cache id."""

    name: str
    schemata: Schemata
    exclusive: Mapping[int, Mask] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resolution:
    """What should be. ``groups`` are by name, with the default group; ``membership`` is guest to group.

    ``moves`` are the rewritings of exclusive masks in their order, by L3 cache id; owners are groups.
    ``refused`` tells of each guest (and, by its group's name, of each class) what it does not get and why.
    """

    groups: Mapping[str, WantedGroup]
    membership: Mapping[str, str]
    moves: Mapping[int, tuple[Move, ...]]
    refused: Mapping[str, tuple[str, ...]]


_Refuse = Callable[[str, str], None]


def resolve(
    host: Host,
    classes: Mapping[str, Wish],
    demands: Iterable[Demand],
    present: Present,
    max_groups: int | None = None,
    barred: Mapping[str, str] = MappingProxyType({}),
) -> Resolution:
    """Everybody's groups and schemata. What cannot be had is refused, and the next rule applies.

    When there are more groups wanted than the kernel can make, classes come first, then guests whose group is
    reserved, allocations, annotations and limits; among these, groups that exist and guests of a higher
    priority. ``max_groups`` is how many groups there can be, if the kernel has shown that it is fewer than it
    tells. ``barred`` are groups that cannot be made, and why.
    """
    refused: dict[str, list[str]] = {}

    def refuse(name: str, reason: str) -> None:
        if reason not in refused.setdefault(name, []):
            refused[name].append(reason)

    for name, wish in classes.items():
        for reason in wish.unknown_domains(host.platform):
            refuse(host.class_group(name), reason)
    usable = {name: _usable(host, wish, host.class_group(name), refuse) for name, wish in classes.items()}
    sharing = share_groups(host, usable, present)
    guests = sorted(
        (_possible(host, usable, demand, refuse) for demand in demands),
        key=lambda demand: (-demand.priority, demand.guest),
    )
    capacity = _capacity(host, present) if max_groups is None else min(max_groups, _capacity(host, present))
    names = _admitted(host, usable, sharing, guests, present, capacity, barred)
    taken_up = f"all {capacity} resctrl groups are taken"
    for name, group in sharing.by_class.items():
        if group not in names:
            refuse(host.class_group(name), barred.get(group, taken_up))
    membership = {
        demand.guest: _group_of(host, usable, sharing, demand, names, barred, taken_up, refuse)
        for demand in guests
    }
    exclusive = _exclusive(host, guests, membership, present, refuse)
    taken = {cache: Mask.union(found.masks.values()) for cache, found in exclusive.items()}

    groups = {DEFAULT_GROUP: WantedGroup(DEFAULT_GROUP, cache_lines(host, Wish(), {}, taken))}
    wishes: dict[str, Wish] = {}
    for name, wish in usable.items():
        group = sharing.by_class[name]
        wishes.setdefault(group, wish)
        if group in names and group not in groups:
            groups[group] = WantedGroup(group, group_schemata(host, wish, {}, {}, taken))
    for demand in guests:
        group = membership[demand.guest]
        if group not in groups:
            own = {cache: found.masks[group] for cache, found in exclusive.items() if group in found.masks}
            bandwidth = demand.bandwidth if group == host.guest_group(demand.guest) else {}
            wish = demand.wish.over(usable.get(demand.qos_class, Wish()))
            wishes[group] = wish
            lines = group_schemata(host, wish, bandwidth, own, taken, demand.way_limits)
            groups[group] = WantedGroup(group, lines, own)
    for name in groups.keys() - {DEFAULT_GROUP}:
        lines = l2_lines(host, wishes.get(name, Wish()), present, name)
        groups[name] = replace(groups[name], schemata=groups[name].schemata.updated(lines))
    moves = {cache: found.moves for cache, found in exclusive.items() if found.moves}
    return Resolution(groups, membership, moves, {name: tuple(why) for name, why in refused.items()})


def _usable(host: Host, wish: Wish, name: str, refuse: _Refuse) -> Wish:
    """The wish without what cannot be had here: masks of code or of L2, a bandwidth without a value."""
    wish, reasons = wish.on(host.platform)
    for reason in reasons:
        refuse(name, reason)
    engine, control = host.engine, host.platform.mb
    if engine is None or control is None:
        return replace(wish, mb=None, mb_per_cache={})
    for domain in control.ids:
        percent = wish.percent_on(domain)
        try:
            if percent is not None:
                engine.bandwidth(domain, percent)
        except BandwidthUnknownError as error:
            refuse(name, str(error))
            return replace(wish, mb=None, mb_per_cache={})
    return wish


def _possible(host: Host, classes: Mapping[str, Wish], demand: Demand, refuse: _Refuse) -> Demand:
    """The demand without what this host cannot give, and within its limits."""
    wish = demand.wish
    try:
        wish.check(host.platform)
    except BadWishError as error:
        refuse(demand.guest, str(error))
        wish = Wish()
    wish = _usable(host, wish, demand.guest, refuse)
    ways, bandwidth = {}, {}
    for cache, count in demand.ways.items():
        if count and cache not in host.divisions:
            refuse(demand.guest, f"there are no ways to give of L3 cache {cache}")
        elif count:
            ways[cache] = count
    for cache, percent in demand.bandwidth.items():
        domain = host.platform.mb_domain(cache)
        if not percent:
            continue
        if host.engine is None or domain is None:
            refuse(demand.guest, f"the bandwidth of L3 cache {cache} cannot be controlled")
            continue
        try:
            host.engine.bandwidth(domain, percent)
            bandwidth[cache] = percent
        except BandwidthUnknownError as error:
            refuse(demand.guest, str(error))
    demand = replace(demand, wish=wish, ways=ways, bandwidth=bandwidth)
    if demand.way_limits or demand.bandwidth_limits:
        demand = _limited(host, classes.get(demand.qos_class, Wish()), demand, refuse)
    return demand


def _limited(host: Host, of_class: Wish, demand: Demand, refuse: _Refuse) -> Demand:
    """The demand with everything cut to its limits, of which those on ways that are not its own are left."""
    ways, bandwidth, percents = dict(demand.ways), dict(demand.bandwidth), dict(demand.wish.mb_per_cache)
    way_limits = {}
    for cache, limit in demand.way_limits.items():
        division = host.divisions.get(cache)
        if division is None:
            refuse(demand.guest, f"the ways of L3 cache {cache} cannot be limited")
            continue
        limit = max(limit, division.rules.min_bits, 1)
        if cache in ways:
            ways[cache] = min(ways[cache], limit)
        else:
            way_limits[cache] = limit
    rest = demand.wish.over(of_class)
    for cache, limit in demand.bandwidth_limits.items():
        domain = host.platform.mb_domain(cache)
        if host.engine is None or domain is None:
            refuse(demand.guest, f"the bandwidth of L3 cache {cache} cannot be limited")
            continue
        limit = max(limit, host.engine.min_percent)
        if cache in bandwidth:
            bandwidth[cache] = min(bandwidth[cache], limit)
            continue
        percent = rest.percent_on(domain)
        if limit < (100 if percent is None else percent):
            percents[domain] = limit
    wish = replace(demand.wish, mb_per_cache=percents)
    return replace(demand, ways=ways, bandwidth=bandwidth, wish=wish, way_limits=way_limits)


def _own_group(host: Host, classes: Mapping[str, Wish], sharing: Sharing, demand: Demand) -> str | None:
    """The group that a guest's own rules ask for; None where its class is enough.

    Guests of one annotation share a group, as their ways overlap anyway, unless they would share a cap, too;
    with a class or the default group, if it comes to the same.
    """
    if demand.allocated:
        return host.guest_group(demand.guest)
    wish = demand.wish
    if not wish and not demand.way_limits:
        return None
    capped = any(percent < 100 for percent in (wish.mb, *wish.mb_per_cache.values()) if percent is not None)
    if capped and host.engine is not None and host.engine.shares_cap:
        return host.guest_group(demand.guest)
    whole = wish.over(classes.get(demand.qos_class, Wish()))
    same = None if demand.way_limits else sharing.group_with(host, whole)
    return host.wish_group(whole, demand.way_limits) if same is None else same


def _capacity(host: Host, present: Present) -> int:
    """How many groups there can be, those of others included: as many as CLOSIDs and RMIDs last."""
    max_groups, monitoring = host.platform.groups, host.platform.monitoring
    if monitoring is None:
        return max_groups
    taken = sum(1 + len(group.monitoring_groups) for group in present.groups.values())
    return min(max_groups, len(present.groups) + max(0, monitoring.rmids - taken))


def _admitted(
    host: Host,
    classes: Mapping[str, Wish],
    sharing: Sharing,
    demands: Sequence[Demand],
    present: Present,
    capacity: int,
    barred: Collection[str],
) -> frozenset[str]:
    """The names of the groups there is room for, with the default group, for which there always is."""
    foreign = sum(1 for name in present.groups if name != DEFAULT_GROUP and not host.is_ours(name))
    wanted: dict[str, tuple[int, bool]] = dict.fromkeys(sharing.groups, (0, False))
    for demand in demands:
        group = _own_group(host, classes, sharing, demand)
        if group is not None and group != DEFAULT_GROUP:
            rank = (1 if demand.reserved else 2 if demand.allocated else 3, group not in present.groups)
            wanted[group] = min(rank, wanted.get(group, rank))
    # Equals stay in their order: classes as configured, guests by priority.
    order = sorted((name for name in wanted if name not in barred), key=wanted.__getitem__)
    admitted = order[: max(0, capacity - 1 - foreign)]
    return frozenset((DEFAULT_GROUP, *admitted))


def _group_of(
    host: Host,
    classes: Mapping[str, Wish],
    sharing: Sharing,
    demand: Demand,
    names: frozenset[str],
    barred: Mapping[str, str],
    taken_up: str,
    refuse: _Refuse,
) -> str:
    group = _own_group(host, classes, sharing, demand)
    if group is not None:
        if group in names:
            return group
        refuse(demand.guest, barred.get(group, taken_up))
    if demand.qos_class and demand.qos_class not in classes:
        refuse(demand.guest, f"there is no QoS class {demand.qos_class}")
    group = sharing.by_class.get(demand.qos_class, DEFAULT_GROUP)
    if group in names:
        return group
    refuse(demand.guest, barred.get(group, taken_up))
    return DEFAULT_GROUP


def _exclusive(
    host: Host,
    demands: Iterable[Demand],
    membership: Mapping[str, str],
    present: Present,
    refuse: _Refuse,
) -> dict[int, WayAssignment]:
    """The exclusive ways on each cache, of groups; those that exist keep theirs."""
    guest_of = {group: guest for guest, group in membership.items()}
    wanted: dict[int, dict[str, int]] = {cache: {} for cache in host.divisions}
    for demand in demands:
        group = membership[demand.guest]
        if group == host.guest_group(demand.guest):
            for cache, count in demand.ways.items():
                wanted[cache][group] = count
    found = {}
    for cache, counts in wanted.items():
        held = _held(host, present, cache, counts)
        found[cache] = assign(host.divisions[cache], held, counts)
        for group, reason in found[cache].refused.items():
            refuse(guest_of[group], f"L3 cache {cache}: {reason}")
    return found


def _held(host: Host, present: Present, cache: int, counts: Mapping[str, int]) -> dict[str, Mask]:
    """The masks of those who have exclusive ways now, in the order of their rights.

    Sure are those that the default group cannot fill. Where it can, somebody may have changed the default
    group: a mask of the right size in the pool is then worth keeping, too.
    """
    default = cache_mask(host.platform, present.default.schemata, cache)
    sure, likely = {}, {}
    for group, count in sorted(counts.items()):
        if group in present.groups:
            mask = cache_mask(host.platform, present.groups[group].schemata, cache)
            if not mask & default:
                sure[group] = mask
            elif len(mask) == count and host.divisions[cache].pool.covers(mask):
                likely[group] = mask
    return sure | likely
