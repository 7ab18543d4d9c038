"""From the groups that are to those that should be: the steps, in an order that is safe at each of them.

Groups of guests that are gone go first, which frees CLOSIDs and ways. Then everybody else gives up the ways
that become exclusive, exclusive masks move, and at last what may grow grows. No step makes a mask overlap
exclusive ways that are in force or promised. Groups of others are not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from compute_agent.resctrl.host import Host, cache_mask
from compute_agent.resctrl.masks import Mask
from compute_agent.resctrl.reader import DEFAULT_GROUP, Present
from compute_agent.resctrl.rules import Resolution, WantedGroup
from compute_agent.resctrl.schemata import Schemata
from compute_agent.resctrl.ways import NOTHING


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a group of ours; its tasks, if any are left, go to the default group."""

    group: str


@dataclass(frozen=True, slots=True)
class Create:
    """Make a group with these values. What is not told is as the kernel makes it."""

    group: str
    schemata: Schemata


@dataclass(frozen=True, slots=True)
class Write:
    """Change these values of a group."""

    group: str
    schemata: Schemata


Step = Remove | Create | Write


@dataclass(frozen=True, slots=True)
class Conflict:
    """A group of others that can fill exclusive ways: nothing that we could change, but worth a log line."""

    foreign: str
    group: str
    cache: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps, and what the operator should know of groups that are not ours."""

    steps: tuple[Step, ...]
    conflicts: tuple[Conflict, ...] = ()


def make_plan(host: Host, present: Present, wanted: Resolution) -> Plan:
    """The steps from ``present`` to ``wanted``; none where everything is as it should be."""
    foreign = sorted(n for n in present.groups if n != DEFAULT_GROUP and not host.is_ours(n))
    conflicts = tuple(
        Conflict(name, group.name, cache)
        for name in foreign
        for group in wanted.groups.values()
        for cache, mask in group.exclusive.items()
        if mask & cache_mask(host.platform, present.groups[name].schemata, cache)
    )
    return Plan(_Planner(host, present, wanted).steps(), conflicts)


class _Planner:
    """Plays the steps on a copy of the groups, so that only differences become steps."""

    def __init__(self, host: Host, present: Present, wanted: Resolution) -> None:
        self.host = host
        self.wanted = wanted
        self.now = {name: group.schemata for name, group in present.groups.items()}
        self.done: list[Step] = []
        self.held = {cache: _held(host, present, wanted, cache) for cache in host.divisions}
        self.promised = {cache: _promised(wanted, cache, self.held[cache]) for cache in host.divisions}

    def steps(self) -> tuple[Step, ...]:
        for name in sorted(self.now):
            if name != DEFAULT_GROUP and self.host.is_ours(name) and name not in self.wanted.groups:
                self.done.append(Remove(name))
                del self.now[name]
        for group in self.wanted.groups.values():
            if group.name in self.now:
                self._put(group.name, self._shrunk(group))
        for cache, moves in self.wanted.moves.items():
            for move in moves:
                masks = self._cache_lines(cache, move.after)
                if move.owner in self.now:
                    self._put(move.owner, masks)
                else:
                    self._make(self.wanted.groups[move.owner], masks)
        for group in self.wanted.groups.values():
            if group.name not in self.now:
                self._make(group, Schemata())
        for group in self.wanted.groups.values():
            self._put(group.name, group.schemata)
        return tuple(self.done)

    def _put(self, group: str, values: Schemata) -> None:
        # Values of domains that went away (all CPUs offline) cannot be written.
        changes = self._unlike(values.within(self.now[group]), self.now[group])
        if changes:
            self.done.append(Write(group, changes))
            self.now[group] = self.now[group].updated(changes)

    def _unlike(self, values: Schemata, now: Schemata) -> Schemata:
        """The values that are not so now; a bandwidth that the kernel has rounded is."""
        changes = {name: dict(line) for name, line in values.changes_from(now).lines.items()}
        for domain, value in tuple(changes.get("MB", {}).items()):
            shown = now.get("MB", domain)
            if self.host.engine is not None and shown is not None and self.host.engine.agrees(value, shown):
                del changes["MB"][domain]
        return Schemata(changes)

    def _make(self, group: WantedGroup, masks: Schemata) -> None:
        known = self.now[DEFAULT_GROUP]
        values = self._shrunk(group).updated(masks).within(known)
        self.done.append(Create(group.name, values))
        self.now[group.name] = values

    def _shrunk(self, group: WantedGroup) -> Schemata:
        """The group as it can be before the moves: no more ways and bandwidth than at the end and now."""
        now = self.now.get(group.name)
        values = Schemata()
        for cache in self.host.divisions:
            mask = self._in_transit(group, cache, now)
            values = values.updated(self._as_in(mask, cache, group.schemata, now))
        lower = {}
        for domain, final in group.schemata.lines.get("MB", {}).items():
            before = now.get("MB", domain) if now is not None else None
            lower[domain] = final if before is None else min(final, before)
        return values.updated(Schemata({"MB": lower}))

    def _in_transit(self, group: WantedGroup, cache: int, now: Schemata | None) -> Mask:
        """A mask that steps on nothing that is promised to others, as near to the final one as can be."""
        division = self.host.divisions[cache]
        before = cache_mask(self.host.platform, now, cache) if now is not None else NOTHING
        everybodys = division.open_ways(division.pool)
        if cache in group.exclusive:  # its own moves come in their turn
            if now is None:
                return everybodys
            if before and before == self.held[cache].get(group.name):
                return before
        others = NOTHING
        for name, mask in self.promised[cache].items():
            if name != group.name:
                others = others | mask
        final = cache_mask(self.host.platform, group.schemata, cache)
        if cache not in group.exclusive and not final & others:
            return final
        before = before or final
        if not before & (others | division.locked):
            return before
        # What becomes its own is not free before everybody else has left it.
        for candidate in (before & final, before, *([] if cache in group.exclusive else [final])):
            mask = division.rules.widest(candidate - others - division.locked, around=division.shared)
            if mask:
                return mask
        return everybodys

    def _as_in(self, mask: Mask, cache: int, *known: Schemata | None) -> Schemata:
        """The lines of a cache with a mask, as those of ``known`` that have it divide it by code and data."""
        for schemata in known:
            if schemata is not None and cache_mask(self.host.platform, schemata, cache) == mask:
                lines = self._cache_lines(cache, mask)
                return Schemata(
                    {name: {cache: schemata.get(name, cache) or mask.bits} for name in lines.lines}
                )
        return self._cache_lines(cache, mask)

    def _cache_lines(self, cache: int, mask: Mask) -> Schemata:
        resources = self.host.platform.l3.resources if self.host.platform.l3 else ()
        return Schemata({resource: {cache: mask.bits} for resource in resources})


def _held(host: Host, present: Present, wanted: Resolution, cache: int) -> dict[str, Mask]:
    """The ways that groups have for themselves at the beginning and have to move from or keep.

    What the default group can fill as well is nobody's own, unless it is to stay.
    """
    default = cache_mask(host.platform, present.default.schemata, cache)
    held = {name: group.exclusive[cache] for name, group in wanted.groups.items() if cache in group.exclusive}
    for move in reversed(wanted.moves.get(cache, ())):
        held[move.owner] = NOTHING if move.before & default else move.before
    return held


def _promised(wanted: Resolution, cache: int, held: Mapping[str, Mask]) -> dict[str, Mask]:
    """All ways that are exclusive to a group before, during or after the moves."""
    promised = dict(held)
    for name, group in wanted.groups.items():
        if cache in group.exclusive:
            promised[name] = promised[name] | group.exclusive[cache]
    for move in wanted.moves.get(cache, ()):
        promised[move.owner] = promised[move.owner] | move.after
    return promised
