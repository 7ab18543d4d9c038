"""Which rules come to the same, and so need one group: CLOSIDs are few.

Two classes with the same ranges and percents have the same schemata whatever guests are given, and one that
may use all that is open has those of the default group. Equal are rules, never masks: these come to be equal
by chance as guests come and go, and threads would be moved to and fro.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compute_agent.resctrl.bandwidth import BandwidthUnknownError
from compute_agent.resctrl.host import Host
from compute_agent.resctrl.reader import DEFAULT_GROUP, Present
from compute_agent.resctrl.wishes import WayRange, Wish

Shares = tuple[tuple[WayRange, ...], tuple[int, ...]]
"""The range on each L3 cache, for code and for data, that on L2 caches, and the percent on each MB domain."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """The group of each class by its name, and the first group that has certain shares."""

    by_class: Mapping[str, str]
    by_shares: Mapping[Shares, str]

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that classes need, in the order of the classes; the default group is none of them."""
        return tuple(dict.fromkeys(group for group in self.by_class.values() if group != DEFAULT_GROUP))

    def group_with(self, host: Host, wish: Wish) -> str | None:
        """The group whose schemata a wish comes to; None: no class has them."""
        shares = shares_of(host, wish)
        return None if shares is None else self.by_shares.get(shares)


def share_groups(host: Host, classes: Mapping[str, Wish], present: Present) -> Sharing:
    """Who of the classes needs a group. Of equals the first gives it its name."""
    by_shares: dict[Shares, str] = {}
    nothing_asked = shares_of(host, Wish())
    if nothing_asked is not None and _is_uncapped(host, present):
        by_shares[nothing_asked] = DEFAULT_GROUP
    by_class = {}
    for name, wish in classes.items():
        group, shares = host.class_group(name), shares_of(host, wish)
        by_class[name] = group if shares is None else by_shares.setdefault(shares, group)
    return Sharing(by_class, by_shares)


def shares_of(host: Host, wish: Wish) -> Shares | None:
    """What a wish comes to; None where a cap is one of the group together, which nobody can share."""
    cache_control, control = host.platform.l3, host.platform.mb
    caches = cache_control.ids if cache_control else ()
    resources = cache_control.resources if cache_control else ()
    asked_ranges = [wish.range_on(cache, resource) for resource in resources for cache in caches]
    if host.platform.l2:
        asked_ranges.append(wish.l2)
    ranges = tuple(one or WayRange(0, 100) for one in asked_ranges)
    if control is None or host.engine is None:
        return ranges, ()
    asked = [wish.percent_on(domain) for domain in control.ids]
    percents = tuple(100 if percent is None else percent for percent in asked)
    if host.engine.shares_cap and min(percents, default=100) < 100:
        return None
    return ranges, percents


def _is_uncapped(host: Host, present: Present) -> bool:
    """Whether the default group, whose bandwidth is not ours to set, has what 100 percent means."""
    control, engine = host.platform.mb, host.engine
    if control is None or engine is None:
        return True
    try:
        return all(
            engine.bandwidth(domain, 100) == present.default.schemata.get("MB", domain)
            for domain in control.ids
        )
    except BandwidthUnknownError:
        return True  # nobody's bandwidth is set
