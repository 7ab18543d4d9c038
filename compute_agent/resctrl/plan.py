"""Plans the steps from the existing groups to the wanted groups, so that the state after each step is safe.

1. Groups of ended guests are removed, which frees CLOSIDs and ways.
2. All other groups give up the ways that become exclusive to a group.
3. Exclusive masks move.
4. Masks and bandwidths grow.

A way is *promised* to a group if it is exclusive to the group before, during or after the moves. No step
makes a mask overlap with ways that are promised to another group. Foreign groups are not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compute_agent.resctrl.groups import DEFAULT_GROUP, ResctrlGroups
from compute_agent.resctrl.layout import ResctrlLayout, cache_mask
from compute_agent.resctrl.resolution import GroupResolution, TargetGroup
from compute_agent.resctrl.schemata import Schemata, WayMask
from compute_agent.resctrl.ways import NO_WAYS


@dataclass(frozen=True, slots=True)
class RemoveGroup:
    """Remove a group. The kernel moves the tasks of the group to the default group."""

    group: str


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Make a group with these values. All other resources and domains keep the kernel's defaults."""

    group: str
    schemata: Schemata


@dataclass(frozen=True, slots=True)
class WriteSchemata:
    """Change these values of a group; all its other values stay unchanged."""

    group: str
    schemata: Schemata


PlanStep = RemoveGroup | CreateGroup | WriteSchemata


@dataclass(frozen=True, slots=True)
class ForeignConflict:
    """A conflict: ways that are exclusive to a group of the agent can be filled by another program's group.

    The agent logs the conflict and changes nothing.

    :ivar foreign: the name of the group of the other program.
    :ivar group: the name of the agent's group to which the ways are exclusive.
    :ivar cache: the id of the L3 cache that has the ways.
    """

    foreign: str
    group: str
    cache: int


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The steps of a plan, and the conflicts with foreign groups."""

    steps: tuple[PlanStep, ...]
    conflicts: tuple[ForeignConflict, ...] = ()


def make_plan(host: ResctrlLayout, present: ResctrlGroups, wanted: GroupResolution) -> GroupPlan:
    """Plan the steps from the ``present`` to the ``wanted`` groups; no steps if nothing differs."""
    # The default group counts as the agent's, because the agent writes its masks.
    foreign = sorted(n for n in present.groups if n != DEFAULT_GROUP and not host.is_ours(n))
    conflicts = tuple(
        ForeignConflict(name, group.name, cache)
        for name in foreign
        for group in wanted.groups.values()
        for cache, mask in group.exclusive.items()
        if mask & cache_mask(host.platform, present.groups[name].schemata, cache)
    )
    return GroupPlan(_StepPlanner(host, present, wanted).plan_steps(), conflicts)


class _StepPlanner:
    """Plans steps, and applies each to a copy of the groups, so that only real differences become steps."""

    def __init__(self, host: ResctrlLayout, present: ResctrlGroups, wanted: GroupResolution) -> None:
        self.host = host
        self.wanted = wanted
        self.now = {name: group.schemata for name, group in present.groups.items()}
        self.done: list[PlanStep] = []
        self.held = {cache: _held_masks(host, present, wanted, cache) for cache in host.partitions}
        self.promised = {cache: _promised_masks(wanted, cache, self.held[cache]) for cache in host.partitions}

    def plan_steps(self) -> tuple[PlanStep, ...]:
        # Removal comes first: hardware with 4 CLOSIDs has no room for old and new groups at once.
        for name in sorted(self.now):
            if name != DEFAULT_GROUP and self.host.is_ours(name) and name not in self.wanted.groups:
                self.done.append(RemoveGroup(name))
                del self.now[name]
        # All groups shrink before any group grows, so that a way never has two owners.
        for group in self.wanted.groups.values():
            if group.name in self.now:
                self._add_write(group.name, self._shrunk_schemata(group))
        for cache, moves in self.wanted.moves.items():
            for move in moves:
                masks = self._cache_lines(cache, move.after)
                if move.owner in self.now:
                    self._add_write(move.owner, masks)
                else:
                    # The group of a new owner is made only at its move, because other groups perhaps
                    # have its ways until then.
                    self._add_group(self.wanted.groups[move.owner], masks)
        # New groups without exclusive ways have no moves, so they are made here.
        for group in self.wanted.groups.values():
            if group.name not in self.now:
                self._add_group(group, Schemata())
        # Groups grow last, after all exclusive masks are in effect.
        for group in self.wanted.groups.values():
            self._add_write(group.name, group.schemata)
        return tuple(self.done)

    def _add_write(self, group: str, values: Schemata) -> None:
        # A domain disappears when all its CPUs are offline. Its values cannot be written then.
        changes = self._needed_changes(values.restricted_to(self.now[group]), self.now[group])
        if changes:
            self.done.append(WriteSchemata(group, changes))
            self.now[group] = self.now[group].updated_with(changes)

    def _needed_changes(self, values: Schemata, now: Schemata) -> Schemata:
        """The wanted values that differ from ``now`` by more than the kernel's rounding."""
        changes = {name: dict(line) for name, line in values.changes_from(now).lines.items()}
        for domain, value in tuple(changes.get("MB", {}).items()):
            shown = now.get_value("MB", domain)
            if (
                self.host.codec is not None
                and shown is not None
                and self.host.codec.is_same_value(value, shown)
            ):
                del changes["MB"][domain]
        return Schemata(changes)

    def _add_group(self, group: TargetGroup, masks: Schemata) -> None:
        known = self.now[DEFAULT_GROUP]
        # The default group has a value for each existing domain, and the kernel refuses values for other
        # domains.
        values = self._shrunk_schemata(group).updated_with(masks).restricted_to(known)
        self.done.append(CreateGroup(group.name, values))
        self.now[group.name] = values

    def _shrunk_schemata(self, group: TargetGroup) -> Schemata:
        """The schemata before masks move: the ways and bandwidth that a group has now and at the end."""
        now = self.now.get(group.name)
        values = Schemata()
        for cache in self.host.partitions:
            mask = self._transit_mask(group, cache, now)
            values = values.updated_with(self._split_like(mask, cache, group.schemata, now))
        lower = {}
        for domain, final in group.schemata.lines.get("MB", {}).items():
            before = now.get_value("MB", domain) if now is not None else None
            # A lower bandwidth is set at once. A higher bandwidth is set in the last step.
            lower[domain] = final if before is None else min(final, before)
        return values.updated_with(Schemata({"MB": lower}))

    def _transit_mask(self, group: TargetGroup, cache: int, now: Schemata | None) -> WayMask:
        """The mask until exclusive masks move: near the final mask, without ways promised to other groups."""
        partition = self.host.partitions[cache]
        before = cache_mask(self.host.platform, now, cache) if now is not None else NO_WAYS
        # These ways are outside of the pool. They are never exclusive, and there is always at least one.
        default_ways = partition.open_ways(partition.pool)
        if cache in group.exclusive:
            # Until its moves, the group keeps a mask that is safe: the moves write the exclusive mask later.
            if now is None:
                return default_ways
            # The group already has an exclusive mask, from which its moves start.
            if before and before == self.held[cache].get(group.name):
                return before
        others = NO_WAYS
        for name, mask in self.promised[cache].items():
            if name != group.name:
                others = others | mask
        final = cache_mask(self.host.platform, group.schemata, cache)
        if cache not in group.exclusive and not final & others:
            return final
        before = before or final  # A new group has no mask yet.
        if not before & (others | partition.locked):
            return before
        # The final mask can contain ways that other groups have not left yet.
        for candidate in (before & final, before, *([] if cache in group.exclusive else [final])):
            mask = partition.rules.widest_mask(
                candidate - others - partition.locked, around=partition.shared_ways
            )
            if mask:
                return mask
        return default_ways

    def _split_like(self, mask: WayMask, cache: int, *known: Schemata | None) -> Schemata:
        """A cache's schemata lines for ``mask``.

        With CDP, it is divided into code and data as in ``known``.
        """
        for schemata in known:
            if schemata is not None and cache_mask(self.host.platform, schemata, cache) == mask:
                # The masks are equal, so only the division into code and data is copied.
                lines = self._cache_lines(cache, mask)
                return Schemata(
                    {name: {cache: schemata.get_value(name, cache) or mask.bits} for name in lines.lines}
                )
        return self._cache_lines(cache, mask)

    def _cache_lines(self, cache: int, mask: WayMask) -> Schemata:
        resources = self.host.platform.l3.resources if self.host.platform.l3 else ()
        return Schemata({resource: {cache: mask.bits} for resource in resources})


def _held_masks(
    host: ResctrlLayout, present: ResctrlGroups, wanted: GroupResolution, cache: int
) -> dict[str, WayMask]:
    """The exclusive ways that each group has before the first step."""
    default = cache_mask(host.platform, present.default_group.schemata, cache)
    held = {name: group.exclusive[cache] for name, group in wanted.groups.items() if cache in group.exclusive}
    # Moves are visited in reverse order, so that the first move of each owner is stored last. The first move
    # contains the mask that is in effect now.
    for move in reversed(wanted.moves.get(cache, ())):
        # Ways that the default group can fill, too, are not exclusive, unless the group keeps them.
        held[move.owner] = NO_WAYS if move.before & default else move.before
    return held


def _promised_masks(wanted: GroupResolution, cache: int, held: Mapping[str, WayMask]) -> dict[str, WayMask]:
    """The ways that are exclusive to each group before, during or after the moves."""
    promised = dict(held)
    for name, group in wanted.groups.items():
        if cache in group.exclusive:
            promised[name] = promised[name] | group.exclusive[cache]
    for move in wanted.moves.get(cache, ()):
        promised[move.owner] = promised[move.owner] | move.after
    return promised
