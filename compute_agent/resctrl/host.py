"""A platform with the choices of the operator: what is shared, and how our groups are called."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from compute_agent.resctrl.engine import Engine
from compute_agent.resctrl.masks import Mask
from compute_agent.resctrl.platform import Platform
from compute_agent.resctrl.reader import DEFAULT_GROUP, Present
from compute_agent.resctrl.schemata import Schemata
from compute_agent.resctrl.ways import NOTHING, Division, divide
from compute_agent.resctrl.wishes import Wish


@dataclass(frozen=True, slots=True)
class Host:
    """A platform with the choices of the operator. ``divisions`` is by L3 cache id."""

    platform: Platform
    engine: Engine | None
    divisions: Mapping[int, Division]
    prefix: str

    def __post_init__(self) -> None:
        if not self.prefix or "/" in self.prefix or "\n" in self.prefix:
            raise ValueError(f"{self.prefix!r} cannot begin the names of groups")

    def is_ours(self, group: str) -> bool:
        """Whether the name is one that we give; all other groups are foreign and not touched."""
        return group.startswith(self.prefix)

    def class_group(self, name: str) -> str:
        """The group of a QoS class."""
        return class_group(self.prefix, name)

    def guest_group(self, guest: str) -> str:
        """The group of a guest that has rules of its own."""
        return f"{self.prefix}guest.{guest}"

    def wish_group(self, wish: Wish, way_limits: Mapping[int, int] = MappingProxyType({})) -> str:
        """The group that guests of one wish, with the same limits on ways by L3 cache id, share."""
        values = (wish.llc, sorted(wish.llc_per_cache.items()), wish.mb, sorted(wish.mb_per_cache.items()))
        others = {"code": wish.code, "data": wish.data, "l2": wish.l2}
        said = [(name, one) for name, one in others.items() if one]  # none of them: names of before
        text = repr((*values, sorted(way_limits.items()), *said))
        return f"{self.prefix}wish.{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def class_group(prefix: str, name: str) -> str:
    """The group of a QoS class, where the names of our groups begin with ``prefix``."""
    return f"{prefix}class.{name}"


def describe(
    platform: Platform, engine: Engine | None, present: Present, prefix: str, shared_ways: int
) -> Host:
    """The host with its caches divided; ways that groups of others have locked belong to nobody here."""
    divisions: dict[int, Division] = {}
    if platform.l3:
        for cache in platform.l3.ids:
            locked = NOTHING
            for group in present.groups.values():
                if group.locked and group.name != DEFAULT_GROUP and not group.name.startswith(prefix):
                    locked = locked | cache_mask(platform, group.schemata, cache)
            divisions[cache] = divide(platform.l3.rules, platform.l3.shareable, shared_ways, locked)
    return Host(platform, engine, divisions, prefix)


def cache_mask(platform: Platform, schemata: Schemata, cache: int) -> Mask:
    """The ways of an L3 cache that a group can fill, with code or with data."""
    mask = NOTHING
    for resource in platform.l3.resources if platform.l3 else ():
        mask = mask | Mask(schemata.get(resource, cache) or 0)
    return mask
